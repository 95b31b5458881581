//! Tests of a bucket in an S3-compatible store: what is refused without one, and the main job with those
//! that `tests/s3/run.sh` starts.

use std::io::Write;
use std::process::{Command, Stdio};

use super::bench::Bench;

/// Lines of the main job; all five million by `SEALOG_S3_LINES=5000000`.
const LINES: u64 = 200_000;

#[test]
fn store_options_that_make_no_sense_are_refused() {
    let bench = Bench::new();
    let append = ["append", "f", "--value", "x"];
    for (options, said) in [
        (&["--region", "eu"][..], "--bucket s3://NAME is needed"),
        (
            &["--bucket", "abc"],
            "s3://NAME or s3://NAME/PREFIX is needed",
        ),
        (&["--bucket", "s3://abc//x"], "can't be part of a prefix"),
        (
            &["--bucket", "s3://abc", "--endpoint", "here:1"],
            "http:// or https:// is needed",
        ),
        (
            &["--bucket", "s3://abc", "--bucket-dir", "x"],
            "cannot be used with",
        ),
    ] {
        let words: Vec<&str> = options.iter().chain(&append).copied().collect();
        let ran = bench.run(&words);
        assert_eq!(ran.status, 2, "{ran:?}");
        assert!(ran.err.contains(said), "{ran:?}");
    }
    assert!(!bench.data().exists());
}

#[test]
fn store_is_not_taken_for_a_folder_nor_the_other_way() {
    let bench = Bench::new();
    let made = bench.run(&["append", "f", "--value", "x"]);
    assert_eq!(made.status, 0, "{made:?}");
    let ran = bench.run(&["--bucket", "s3://abc", "read", "f"]);
    assert_eq!(ran.status, 7, "{ran:?}");
    assert!(ran.err.contains("has its bucket in a folder"), "{ran:?}");
    let file = bench.data().join("settings.toml");
    let text = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, text + "bucket = \"s3://abc/x\"\n").unwrap();
    for options in [["--bucket", "s3://abc/y"], ["--bucket-dir", "elsewhere"]] {
        let words: Vec<&str> = options.iter().chain(&["read", "f"]).copied().collect();
        let ran = bench.run(&words);
        assert_eq!(ran.status, 7, "{ran:?}");
        assert!(ran.err.contains("has its bucket in s3://abc/x"), "{ran:?}");
    }
}

#[test]
fn store_that_nobody_may_use_is_named_and_nothing_is_made() {
    let bench = Bench::new();
    let words = ["--bucket", "s3://abc", "append", "f", "--value", "x"];
    // Half a credential: nothing is asked of anybody.
    let ran = bench
        .command(&words)
        .env_remove("AWS_SECRET_ACCESS_KEY")
        .env("AWS_ACCESS_KEY_ID", "k")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&ran.stderr);
    assert_eq!(ran.status.code(), Some(7), "{said}");
    assert!(said.contains("s3://abc"), "{said}");
    assert!(!bench.data().join("format").exists());
}

#[test]
fn store_the_main_job_comes_back_byte_for_byte() {
    let endpoints = std::env::var("SEALOG_S3_ENDPOINTS").unwrap_or_default();
    if endpoints.is_empty() {
        println!("skipped: no stores; tests/s3/run.sh starts some");
    }
    let lines = std::env::var("SEALOG_S3_LINES").ok();
    let lines = lines.and_then(|n| n.parse().ok()).unwrap_or(LINES);
    let numbers: Vec<u8> = (1..=lines)
        .flat_map(|n| format!("{n}\n").into_bytes())
        .collect();
    for (name, endpoint) in endpoints
        .split_whitespace()
        .filter_map(|s| s.split_once('='))
    {
        let bench = Bench::new();
        let url = format!("s3://sealog/main-{}", std::process::id());
        let append = [
            "append",
            "numbers",
            "--lines",
            "--message",
            "bulk load",
            "--bucket",
            &url,
            "--endpoint",
            endpoint,
        ];
        let mut command = bench.command(&append);
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        child.stdin.take().unwrap().write_all(&numbers).unwrap();
        let ran = child.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&ran.stdout);
        assert!(
            said.contains(&format!("commit 0: {lines} records")),
            "{name}: {said}"
        );
        // The directory remembers the store; the second read comes from the cache.
        for _ in 0..2 {
            let read: &mut Command =
                &mut bench.command(&["read", "numbers", "--format", "payload"]);
            let read = read.output().unwrap();
            assert!(
                read.stdout == numbers,
                "{name}: {} bytes",
                read.stdout.len()
            );
        }
        let verified = bench.run(&["verify"]);
        assert_eq!(verified.status, 0, "{name}: {verified:?}");
        assert!(
            verified.out.contains(&format!("with {lines} records")),
            "{verified:?}"
        );
        let id = &bench.json(&["feed", "show", "numbers"])[0]["id"];
        let object = format!("{url}/feeds/numbers/{id}/commits/{:020}.commit", 0);
        let shown = bench.run(&["inspect", &object, "--endpoint", endpoint]);
        assert!(shown.out.contains("bulk load"), "{name}: {shown:?}");
        let usage = bench.run(&["usage", "--json"]);
        assert!(usage.out.contains("\"unpublished_commits\":0"), "{usage:?}");
        let kept = std::fs::read_to_string(bench.data().join("settings.toml")).unwrap();
        assert!(kept.contains(&url) && kept.contains(endpoint), "{kept}");
        assert!(!kept.contains("testsecret"), "{kept}");
    }
}
