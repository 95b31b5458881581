//! Tests of `read`: where it begins, where it ends, what it prints, who listens.

use std::io::{BufRead, BufReader, Read};
use std::process::Stdio;
use std::time::{Duration, Instant};

use serde_json::json;

use super::bench::Bench;

/// Three commits of three records and one open stream of one.
fn filled() -> Bench {
    let bench = Bench::new();
    for n in 0..3 {
        let (at, values) = (
            format!("{}", 1_000 + n),
            [0, 1, 2].map(|i| format!("{}", 3 * n + i)),
        );
        let mut words = vec!["append", "f", "--timestamp", &at];
        for value in &values {
            words.extend(["--value", value]);
        }
        bench.ok(&words);
    }
    bench.ok(&["append", "f", "--value", "9", "--no-seal"]);
    bench
}

#[test]
fn read_each_start_and_limit() {
    let bench = filled();
    let cases: [(&[&str], &str); 13] = [
        (&[], "0123456789"),
        (&["--from", "4"], "456789"),
        (&["--from", "40"], ""),
        (&["--since", "1001"], "3456789"),
        (&["--since", "1970-01-01T00:00:01.002Z"], "6789"),
        (&["--since", "2001"], "9"),
        (&["--since", "1d"], "9"),
        (&["--commit", "1"], "3456789"),
        (&["--tail", "2"], "89"),
        (&["--tail", "0"], ""),
        (&["--limit", "0"], ""),
        (&["--from", "2", "--limit", "3"], "234"),
        (&["--stream", "2"], "345"),
    ];
    for (words, expected) in cases {
        let words: Vec<&str> = ["read", "f", "--format", "payload"]
            .iter()
            .chain(words)
            .copied()
            .collect();
        let printed = bench.ok(&words).replace('\n', "");
        assert_eq!(printed, expected, "{words:?}");
    }
    bench
        .run(&["read", "f", "--commit", "3"])
        .fails(4, &["feed \"f\" has no commit 3"]);
    bench
        .run(&["read", "f", "--stream", "9"])
        .fails(4, &["feed \"f\" has no stream 9"]);
    bench
        .run(&["read", "g"])
        .fails(4, &["feed \"g\" not found"]);
}

#[test]
fn read_formats_print_what_they_promise() {
    let bench = Bench::new();
    bench.ok(&[
        "append",
        "f",
        "--record",
        "k\t1=a\nb",
        "--timestamp",
        "0",
        "--version",
        "2",
        "--header",
        "h=v",
    ]);
    assert_eq!(
        bench.ok(&["read", "f"]),
        "0\t1970-01-01T00:00:00.000Z\tk\\t1\ta\\nb\tversion=2\theader h=v\n"
    );
    assert_eq!(bench.ok(&["read", "f", "--format", "payload"]), "a\nb\n");
    let record = json!({
        "sequence": 0, "time": 0, "timestamp": 0, "key": "k\t1", "version": 2,
        "headers": [{"name": "h", "value": "v"}], "payload": "a\nb",
    });
    assert_eq!(bench.json(&["read", "f"]), [record]);
    // SHA-256 of "a\nb".
    let print = "7e18f737311b2dc3b2f269dd78396b0351f14fb66efa879f768cb23181883c78";
    assert_eq!(
        bench.json(&["read", "f", "--fingerprints"])[0]["fingerprint"],
        json!(print)
    );
    let both = bench.run(&["read", "f", "--json", "--format", "text"]);
    assert_eq!(both.status, 2);
    assert!(
        both.err.contains("--json and --format text exclude"),
        "{}",
        both.err
    );
}

#[test]
fn read_pipe_closed_early_is_silent() {
    let bench = Bench::new();
    let input: String = (0..200_000).map(|n| format!("{n:020}\n")).collect();
    bench
        .run_with(&["append", "f", "--lines"], input.as_bytes())
        .ok();
    for extra in [None, Some("--follow")] {
        let mut command = bench.command(&["read", "f", "--format", "payload"]);
        command
            .args(extra)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut line = String::new();
        let mut out = BufReader::with_capacity(64, child.stdout.take().unwrap());
        out.read_line(&mut line).unwrap();
        drop(out);
        let status = child.wait().unwrap();
        let mut err = String::new();
        child
            .stderr
            .take()
            .unwrap()
            .read_to_string(&mut err)
            .unwrap();
        assert_eq!((status.code(), &err[..]), (Some(141), ""), "{extra:?}");
    }
    // The directory was closed cleanly.
    assert_eq!(
        bench.ok(&["read", "f", "--limit", "1", "--format", "payload"]),
        format!("{:020}\n", 0)
    );
}

#[test]
fn read_follow_waits_at_the_tail_and_ends_at_its_limit() {
    let bench = filled();
    let mut command = bench.command(&[
        "read", "f", "--format", "payload", "--follow", "--tail", "1",
    ]);
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    let mut out = BufReader::new(child.stdout.take().unwrap());
    out.read_line(&mut line).unwrap();
    assert_eq!(line, "9\n", "what is there comes at once");
    std::thread::sleep(Duration::from_millis(300));
    assert!(child.try_wait().unwrap().is_none(), "it waits");
    // Nobody reads any more: a follower with nothing to write must notice too.
    drop(out);
    let begun = Instant::now();
    assert_eq!(child.wait().unwrap().code(), Some(141));
    assert!(begun.elapsed() < Duration::from_secs(30));
    assert_eq!(
        bench
            .ok(&[
                "read", "f", "--follow", "--limit", "10", "--format", "payload"
            ])
            .lines()
            .count(),
        10
    );
    // A sealed stream has an end, so following it ends.
    assert_eq!(
        bench.ok(&[
            "read", "f", "--follow", "--stream", "1", "--format", "payload"
        ]),
        "0\n1\n2\n"
    );
}
