//! Tests of refusals: what is refused has changed nothing: no feed, no stream, no epoch.

use std::process::Stdio;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::bench::{Bench, finish};

/// All that a refusal might have changed.
fn state(bench: &Bench) -> Vec<Value> {
    let mut all = bench.json(&["feed", "list"]);
    for feed in all.clone() {
        let name = feed["feed"].as_str().unwrap().to_owned();
        all.extend(bench.json(&["streams", &name]));
    }
    all
}

const PRODUCER_GAP: &[&str] = &[
    "--producer",
    "p",
    "--producer-epoch",
    "3",
    "--producer-seq",
    "7",
];
const PRODUCER_STALE: &[&str] = &[
    "--producer",
    "p",
    "--producer-epoch",
    "2",
    "--producer-seq",
    "0",
];

#[test]
fn refused_first_append_makes_nothing() {
    let bench = Bench::new();
    let cases: [(&[&str], i32, &str); 4] = [
        (
            &["--match-seq", "3"],
            3,
            "match sequence 3, feed is at empty",
        ),
        (
            PRODUCER_GAP,
            3,
            "producer sequence gap: expected 0, received 7",
        ),
        (&["--timestamp", "253402300800000"], 3, "253402300799999"),
        (
            &[
                "--producer",
                "",
                "--producer-epoch",
                "0",
                "--producer-seq",
                "0",
            ],
            2,
            "--producer",
        ),
    ];
    for (words, status, reason) in cases {
        let words: Vec<&str> = ["append", "f", "--value", "x"]
            .iter()
            .chain(words)
            .copied()
            .collect();
        bench.run(&words).fails(status, &[reason]);
        assert!(!bench.data().exists(), "{words:?} made the data directory");
    }
    bench.ok(&["feed", "create", "other"]);
    let before = state(&bench);
    for (words, status, reason) in cases {
        let words: Vec<&str> = ["append", "f", "--value", "x"]
            .iter()
            .chain(words)
            .copied()
            .collect();
        bench.run(&words).fails(status, &[reason]);
        assert_eq!(state(&bench), before, "{words:?}");
    }
}

#[test]
fn refused_append_leaves_epoch_and_streams() {
    let bench = Bench::new();
    bench.ok(&["feed", "create", "plain", "--no-keys"]);
    bench.ok(&[
        "append",
        "f",
        "--value",
        "a",
        "--producer",
        "p",
        "--producer-epoch",
        "3",
        "--producer-seq",
        "0",
    ]);
    bench.ok(&["append", "open", "--value", "a", "--no-seal"]);
    let before = state(&bench);
    let long = "m".repeat((64 << 10) + 1);
    let too_long = "commit message bytes of 65537 over the limit of 65536";
    let cases: [(&[&str], &str); 11] = [
        (&["f", "--match-seq", "9"], "match sequence 9, feed is at 0"),
        (
            &["f", "--match-seq", "empty"],
            "match sequence empty, feed is at 0",
        ),
        (
            &["open", "--match-seq", "9"],
            "match sequence 9, feed is at 0",
        ),
        (
            &["plain", "--record", "k=v"],
            "\"plain\" does not allow keys",
        ),
        (
            &[&["f"], PRODUCER_GAP].concat(),
            "producer sequence gap: expected 1, received 7",
        ),
        (
            &[&["f"], PRODUCER_STALE].concat(),
            "producer epoch 2 is stale, current 3",
        ),
        (
            &[&["open"], PRODUCER_GAP].concat(),
            "producer sequence gap: expected 0, received 7",
        ),
        (
            &["open", "--fencing-token", "9"],
            "fenced: our epoch 9, current 1",
        ),
        (&["f", "--message", &long], too_long),
        (&["new", "--message", &long], too_long),
        (
            &["open", "--fencing-token", "1", "--message", &long],
            too_long,
        ),
    ];
    for (words, reason) in cases {
        let value: &[&str] = match words.contains(&"--record") {
            true => &[],
            false => &["--value", "x"],
        };
        let words = [&["append"], words, value].concat();
        bench.run(&words).fails(3, &[reason]);
        assert_eq!(state(&bench), before, "{words:?}");
    }
}

/// Whoever pipes data in must not lose it to a directory that is in use.
#[test]
fn locked_directory_is_told_before_the_input_is_read() {
    let bench = Bench::new();
    bench.ok(&["append", "f", "--value", "x"]);
    let mut holder = bench.command(&["append", "f", "--lines"]);
    let mut holder = holder
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let deadline = Instant::now() + Duration::from_secs(60);
    let pid = format!("pid={}\n", holder.id());
    let lock = bench.data().join("LOCK");
    while !std::fs::read_to_string(&lock).unwrap().starts_with(&pid) {
        assert!(
            Instant::now() < deadline,
            "append without input holds no lock"
        );
        assert_eq!(holder.try_wait().unwrap(), None);
        std::thread::sleep(Duration::from_millis(20));
    }
    let mut second = bench.command(&["append", "f", "--lines"]);
    second.stdin(Stdio::piped()).stderr(Stdio::piped());
    let mut second = second.spawn().unwrap();
    // Its input stays open and empty.
    while second.try_wait().unwrap().is_none() {
        if Instant::now() > deadline {
            second.kill().unwrap();
            panic!("waits for its input first");
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(second.wait().unwrap().code(), Some(7));
    drop(holder.stdin.take());
    assert_eq!(holder.wait().unwrap().code(), Some(0));
}

/// A seal that is durable is not told as a failure, wherever standard output goes.
#[test]
fn unwritten_answer_says_what_was_done() {
    let bench = Bench::new();
    let words = ["append", "f", "--value", "x", "--message", "m"];
    for (number, closed) in [(0, false), (1, true)] {
        let mut command = bench.command(&words);
        command.stdin(Stdio::null()).stderr(Stdio::piped());
        if closed {
            let (reader, writer) = std::io::pipe().unwrap();
            drop(reader);
            command.stdout(writer);
        } else {
            command.stdout(std::fs::File::create("/dev/full").unwrap());
        }
        let ran = command.spawn().unwrap().wait_with_output().unwrap();
        let err = String::from_utf8(ran.stderr).unwrap();
        assert_eq!(ran.status.code(), Some(8), "{err}");
        let done = format!("sealog: done, but not printed: commit {number}: 1 record");
        assert!(err.starts_with(&done), "{err}");
    }
    let mut command = bench.command(&["read", "f"]);
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let ran = command.stdout(writer).output().unwrap();
    assert_eq!((ran.status.code(), ran.stderr), (Some(141), Vec::new()));
    let full = std::fs::File::create("/dev/full").unwrap();
    let ran = bench.command(&["read", "f"]).stdout(full).output().unwrap();
    assert_eq!(ran.status.code(), Some(1));
    let json = bench.command(&["seal", "f", "--json"]);
    let ran = finish(json, b"");
    let error: Value = serde_json::from_str(&ran.err).unwrap();
    assert_eq!(error["effects"], json!("none"));
}

#[test]
fn settling_with_a_message_that_is_too_long_takes_no_token() {
    let bench = Bench::new();
    bench.ok(&["append", "open", "--value", "a", "--no-seal"]);
    let before = state(&bench);
    let long = "m".repeat((64 << 10) + 1);
    for verb in ["resume", "discard"] {
        bench
            .run(&["admin", verb, "open", "--message", &long])
            .fails(3, &["65537", "65536"]);
        assert_eq!(state(&bench), before, "{verb}");
    }
}
