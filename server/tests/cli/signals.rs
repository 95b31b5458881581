//! Tests of signals: long verbs end where it is clean, and say what is durable.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::json;

use super::bench::Bench;

fn send(child: &Child, signal: i32) {
    // SAFETY: a plain call; the child is not reaped yet, so the id is its own.
    assert_eq!(unsafe { libc::kill(child.id() as i32, signal) }, 0);
}

/// Waits until the log holds `bytes`.
fn until_logged(bench: &Bench, bytes: &[u8]) {
    let segment = bench.data().join("wal/0/00000000.seg");
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        let log = std::fs::read(&segment).unwrap_or_default();
        if log.windows(bytes.len()).any(|window| window == bytes) {
            return;
        }
        assert!(Instant::now() < deadline, "{bytes:?} is not in the log");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Has the child heed `signal`, which whoever runs the tests may ignore (`nohup`), and children then, too.
fn heeding(command: &mut Command, signal: i32) {
    let heed = move || {
        // SAFETY: a plain call, fit for what runs between fork and exec.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
        Ok(())
    };
    // SAFETY: `heed` allocates nothing and takes no lock.
    unsafe { command.pre_exec(heed) };
}

#[test]
fn interrupted_append_keeps_what_was_read_and_leaves_the_stream_unsealed() {
    for (signal, status, word) in [
        (libc::SIGINT, 130, "interrupted"),
        (libc::SIGTERM, 143, "terminated"),
        (libc::SIGHUP, 129, "hung up"),
    ] {
        let bench = Bench::new();
        bench.ok(&["feed", "create", "f"]);
        let mut command = bench.command(&["append", "f", "--lines"]);
        command.stdin(Stdio::piped()).stderr(Stdio::piped());
        heeding(&mut command, signal);
        let mut child = command.spawn().unwrap();
        let mut stdin = child.stdin.take().unwrap();
        stdin.write_all(b"first\nsecond\nthird-of-three\n").unwrap();
        until_logged(&bench, b"third-of-three");
        send(&child, signal);
        // The input stays open: it is the signal that ends it.
        assert_eq!(child.wait().unwrap().code(), Some(status));
        let mut err = String::new();
        child
            .stderr
            .take()
            .unwrap()
            .read_to_string(&mut err)
            .unwrap();
        let told = format!(
            "sealog: {word}; 3 records before it stored, sequences 0..=2, stream unsealed\n"
        );
        assert_eq!(err, told);
        drop(stdin);
        let feed = &bench.json(&["feed", "show", "f"])[0];
        assert_eq!(
            (&feed["next_sequence"], &feed["commits"]),
            (&json!(3), &json!(0))
        );
        // Closed cleanly: the next open has nothing to recover.
        assert_eq!(bench.json(&["verify"])[0]["logs"][0]["clean"], json!(true));
    }
}

#[test]
fn interrupted_append_without_input_stores_nothing() {
    let bench = Bench::new();
    bench.ok(&["feed", "create", "f"]);
    let mut command = bench.command(&["append", "f", "--lines"]);
    command.stdin(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let pid = format!("pid={}\n", child.id());
    let lock = bench.data().join("LOCK");
    while !std::fs::read_to_string(&lock).unwrap().starts_with(&pid) {
        assert_eq!(child.try_wait().unwrap(), None);
        std::thread::sleep(Duration::from_millis(20));
    }
    send(&child, libc::SIGINT);
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert_eq!(bench.json(&["feed", "show", "f"])[0]["epoch"], json!(0));
}

#[test]
fn interrupted_follower_ends_cleanly() {
    let bench = Bench::new();
    bench.ok(&["append", "f", "--value", "x"]);
    let mut command = bench.command(&["read", "f", "--follow", "--format", "payload"]);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut out = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    out.read_line(&mut line).unwrap();
    send(&child, libc::SIGTERM);
    assert_eq!(child.wait().unwrap().code(), Some(143));
    out.read_line(&mut line).unwrap();
    assert_eq!(line, "x\n");
    assert_eq!(bench.json(&["verify"])[0]["logs"][0]["clean"], json!(true));
}
