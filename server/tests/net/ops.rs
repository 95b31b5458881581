//! Ops: what `sealog serve` says of itself, and how it ends.

use std::io::{BufRead, BufReader, Read};
use std::process::{Command, Stdio};

use sealog_protocol::Request;

use crate::server::Connection;

/// What a server that is started with `args`, given a client without hello and ended by SIGTERM says.
fn said(args: &[&str]) -> Vec<String> {
    let dir = tempfile::tempdir().unwrap();
    let mut child = Command::new(env!("CARGO_BIN_EXE_sealog"))
        .args(["serve", "--listen", "127.0.0.1:0", "--shard-port", "0"])
        .arg("--data-dir")
        .arg(dir.path().join("data"))
        .args(args)
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stderr = BufReader::new(child.stderr.take().unwrap());
    let mut lines = Vec::new();
    let address = loop {
        let mut line = String::new();
        assert!(stderr.read_line(&mut line).unwrap() > 0, "{lines:?}");
        lines.push(line.trim_end().to_owned());
        if let Some((_, rest)) = line.split_once("listening on ") {
            break rest.trim_end_matches(['"', '}', '\n']).to_owned();
        }
    };
    let mut client = Connection::raw(address.parse().unwrap());
    client.send(&Request::Ping {});
    let refused = client.receive();
    assert!(refused.is_some());
    let pid = i32::try_from(child.id()).unwrap();
    // SAFETY: a plain call; the process is a child that was not waited for.
    assert_eq!(unsafe { libc::kill(pid, libc::SIGTERM) }, 0);
    let mut rest = String::new();
    stderr.read_to_string(&mut rest).unwrap();
    lines.extend(rest.lines().map(str::to_owned));
    assert_eq!(child.wait().unwrap().code(), Some(0), "{lines:?}");
    lines
}

/// That every one of `words` is in a line, in this order.
#[track_caller]
fn assert_in_order(lines: &[String], words: &[&str]) {
    let mut rest = lines.iter();
    for word in words {
        assert!(
            rest.any(|line| line.contains(word)),
            "{word} in {}",
            lines.join("\n")
        );
    }
}

const STORY: [&str; 7] = [
    "starting",
    "recovered",
    "listening on",
    "connection refused: the first message is no hello",
    "draining",
    "drained",
    "closed",
];

#[test]
fn log_text_tells_start_recovery_refusals_and_drain() {
    let lines = said(&[]);
    assert_in_order(&lines, &STORY);
    let line = lines.iter().find(|line| line.contains("recovered"));
    assert!(line.unwrap().contains("groups_replayed=0"), "{lines:?}");
}

#[test]
fn log_json_is_an_object_per_line() {
    let lines = said(&["--log-format", "json"]);
    assert_in_order(&lines, &STORY);
    for line in &lines {
        let object: serde_json::Value = serde_json::from_str(line).expect(line);
        for field in ["timestamp", "level", "target", "message"] {
            assert!(object[field].is_string(), "{field} of {line}");
        }
    }
}

#[test]
fn log_level_hides_what_is_below_it_and_a_wrong_one_is_usage() {
    let dir = tempfile::tempdir().unwrap();
    let run = |level: &str| {
        Command::new(env!("CARGO_BIN_EXE_sealog"))
            .args(["serve", "--listen", "192.0.2.1:0", "--insecure"])
            .args(["--log", level, "--data-dir"])
            .arg(dir.path().join("data"))
            .output()
            .unwrap()
    };
    let wrong = run("loud");
    let text = String::from_utf8_lossy(&wrong.stderr).into_owned();
    assert_eq!(wrong.status.code(), Some(2), "{text}");
    assert!(text.contains("--log loud: "), "{text}");
    let quiet = run("error");
    let text = String::from_utf8_lossy(&quiet.stderr).into_owned();
    assert_eq!(quiet.status.code(), Some(7), "{text}");
    assert_eq!(text.lines().count(), 1, "{text}");
}

#[test]
fn log_never_holds_a_token() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("token");
    std::fs::write(&file, "open-sesame").unwrap();
    let lines = said(&["--token-file", file.to_str().unwrap(), "--log", "trace"]);
    assert!(lines.iter().all(|line| !line.contains("open-sesame")));
    assert_in_order(&lines, &["token=true"]);
}
