//! Tests of what is said of long waits, and of a bucket that is away.

use std::io::{Read, Write};
use std::process::Stdio;

use serde_json::json;

use super::bench::{Bench, objects};

/// What a seal says whose bucket went away before it; `full_wait_ms` is how long it waits.
fn sealed_without_bucket(bench: &Bench, more: &[&str]) -> (Option<i32>, String) {
    let file = bench.file("sealog.toml", b"wal.full_wait_ms = 5000\n");
    let config = ["--config", file.to_str().unwrap()];
    let words = [&["append", "f", "--lines"], &config[..], more].concat();
    let mut command = bench.command(&words);
    command.stdin(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(b"first\n").unwrap();
    let bucket = bench.data().join("bucket");
    while !bench.data().join("format").exists() || !bucket.join(".tmp/CAS").exists() {
        assert_eq!(child.try_wait().unwrap(), None);
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    std::fs::rename(&bucket, bench.path().join("away")).unwrap();
    std::fs::write(&bucket, "no folder").unwrap();
    drop(stdin);
    let mut err = String::new();
    let mut stderr = child.stderr.take().unwrap();
    stderr.read_to_string(&mut err).unwrap();
    (child.wait().unwrap().code(), err)
}

#[test]
fn seal_that_waits_for_the_bucket_says_so_and_why() {
    let bench = Bench::new();
    let (status, err) = sealed_without_bucket(&bench, &[]);
    assert_eq!(status, Some(1), "{err}");
    let lines: Vec<&str> = err.lines().collect();
    assert_eq!(lines.len(), 2, "{err}");
    let told = "sealog: still waiting for the commit to be published in the bucket: bucket";
    assert!(lines[0].starts_with(told), "{err}");
    assert!(
        lines[1].contains("sealed and durable, but not published yet"),
        "{err}"
    );
}

#[test]
fn seal_that_waits_is_silent_where_programs_read() {
    let bench = Bench::new();
    let (status, err) = sealed_without_bucket(&bench, &["--json"]);
    assert_eq!(status, Some(1), "{err}");
    let errors = objects(&err);
    assert_eq!(errors.len(), 1, "{err}");
    assert_eq!(errors[0]["error"], json!("Bucket"));
}

#[test]
fn usage_tells_what_was_tried() {
    let bench = Bench::new();
    bench.ok(&["append", "f", "--value", "x"]);
    let usage = &bench.json(&["usage"])[0];
    // A bucket that has a commit of ours was asked for it at the start.
    assert_eq!(usage["bucket"]["tried"], json!(true), "{usage}");
    assert!(usage["logs"][0]["tried"].is_boolean(), "{usage}");
    let text = bench.ok(&["usage"]);
    assert!(text.contains("no trouble"), "{text}");
}
