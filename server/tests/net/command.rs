//! Command: the verbs of `sealog` on a server: named, or found by the data directory.

use std::io::{Read, Write};
use std::path::Path;
use std::process::{Command, Stdio};

use crate::server::Server;

/// Status, standard output and standard error of a run.
fn run(words: &[&str], input: &str) -> (i32, String, String) {
    let mut child = Command::new(env!("CARGO_BIN_EXE_sealog"))
        .args(words)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child
        .stdin
        .take()
        .unwrap()
        .write_all(input.as_bytes())
        .unwrap();
    let ran = child.wait_with_output().unwrap();
    let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
    (
        ran.status.code().unwrap(),
        text(&ran.stdout),
        text(&ran.stderr),
    )
}

/// Runs a verb on the server; what it printed.
fn ask(server: &Server, words: &[&str], input: &str) -> String {
    let address = server.address.to_string();
    let words = [&["--server", &address], words].concat();
    let (status, out, err) = run(&words, input);
    assert_eq!(status, 0, "{words:?}: {err}");
    assert_eq!(err, "", "{words:?}");
    out
}

fn start(dir: &Path) -> Server {
    Server::start(&dir.join("data"), &[])
}

#[test]
fn verbs_answer_over_the_network_as_they_do_here() {
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path());
    let appended = ask(
        &server,
        &[
            "append",
            "orders",
            "--record",
            "k1=hello",
            "--record",
            "k2=world",
            "-m",
            "hourly poll",
        ],
        "",
    );
    assert_eq!(
        appended,
        "commit 0: 2 records, sequences 0..=1, message \"hourly poll\"\n"
    );
    let lines: String = (0..5000).map(|n| format!("{n}\n")).collect();
    ask(
        &server,
        &["append", "numbers", "--lines", "--no-seal"],
        &lines,
    );
    let read = ask(&server, &["read", "numbers", "--format", "payload"], "");
    assert_eq!(read, lines);
    let tail = ask(
        &server,
        &["read", "numbers", "--tail", "2", "--format", "payload"],
        "",
    );
    assert_eq!(tail, "4998\n4999\n");
    let streams = ask(&server, &["streams", "numbers"], "");
    assert!(
        streams.starts_with("stream 1: open, 5000 records"),
        "{streams}"
    );
    let sealed = ask(&server, &["seal", "numbers", "-m", "done"], "");
    assert!(sealed.starts_with("commit 0: 5000 records"), "{sealed}");
    let commits = ask(&server, &["commits", "numbers"], "");
    assert!(commits.contains("message \"done\""), "{commits}");
    let feeds = ask(&server, &["feed", "list"], "");
    assert_eq!(feeds.lines().count(), 2, "{feeds}");
    assert_eq!(
        ask(&server, &["admin", "repair", "numbers"], ""),
        "0 commits published\n"
    );
    assert_eq!(
        ask(&server, &["feed", "delete", "orders"], ""),
        "deleted \"orders\"\n"
    );
    let fingerprints = ask(
        &server,
        &[
            "read",
            "numbers",
            "--from",
            "7",
            "--limit",
            "1",
            "--fingerprints",
        ],
        "",
    );
    assert!(fingerprints.contains("\tfingerprint="), "{fingerprints}");
}

#[test]
fn producer_that_sends_again_is_recognised_over_the_network() {
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path());
    let words = [
        "append",
        "f",
        "--producer",
        "p",
        "--producer-epoch",
        "3",
        "--producer-seq",
        "0",
        "--value",
        "x",
        "--json",
    ];
    let first = ask(&server, &words, "");
    assert!(first.contains("\"duplicate_batches\":0"), "{first}");
    let again = ask(&server, &words, "");
    assert!(again.contains("\"duplicate_batches\":1"), "{again}");
    assert_eq!(
        ask(&server, &["read", "f", "--format", "payload"], ""),
        "x\n"
    );
    let producers = ask(&server, &["producers", "f"], "");
    assert!(
        producers.contains("producer \"p\": epoch 3, last sequence 0"),
        "{producers}"
    );
}

#[test]
fn refusals_have_the_status_that_they_have_here() {
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path());
    let address = server.address.to_string();
    ask(&server, &["append", "f", "--value", "x", "--no-seal"], "");
    for (words, status, text) in [
        (&["read", "none"][..], 4, "feed \"none\" not found"),
        (
            &["append", "f", "--value", "x", "--match-seq", "9"],
            3,
            "match sequence 9, feed is at 0",
        ),
        (
            &["append", "f", "--value", "x", "--fencing-token", "9"],
            3,
            "fenced: our epoch 9, current 1",
        ),
        (&["feed", "create", "f", "--no-keys"], 3, "exists already"),
    ] {
        let words = [&["--server", &address], words].concat();
        let (ended, _, err) = run(&words, "");
        assert_eq!(ended, status, "{words:?}: {err}");
        assert_eq!(err.matches(text).count(), 1, "{words:?}: {err}");
    }
    // What lies here is not looked at.
    let broken = dir.path().join("broken");
    std::fs::create_dir(&broken).unwrap();
    std::fs::write(broken.join("settings.toml"), "x = [").unwrap();
    let broken = broken.to_str().unwrap();
    let (status, out, err) = run(
        &["--data-dir", broken, "--server", &address, "feed", "list"],
        "",
    );
    assert_eq!((status, out.contains('f')), (0, true), "{err}");
    let (status, _, err) = run(&["verify", "--server", &address], "");
    assert_eq!(status, 2, "{err}");
    let told = format!("verify works on a data directory, not on a server: --server {address}");
    assert!(err.contains(&told), "{err}");
    let (status, _, err) = run(&["--server", "127.0.0.1:1", "feed", "list"], "");
    assert_eq!(status, 7, "{err}");
    assert!(err.contains("127.0.0.1:1"), "{err}");
    let stranger = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let there = stranger.local_addr().unwrap().to_string();
    let answer = std::thread::spawn(move || {
        let (mut caller, _) = stranger.accept().unwrap();
        assert!(caller.read(&mut [0; 512]).unwrap() > 0);
        caller
            .write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            .unwrap();
        caller
    });
    let (status, _, err) = run(&["--server", &there, "feed", "list"], "");
    drop(answer.join().unwrap());
    assert_eq!(status, 7, "{err}");
    let told = format!("{there}: it does not speak the native protocol");
    assert!(err.contains(&told), "{err}");
}

#[test]
fn data_directory_in_use_leads_to_its_server() {
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path());
    let data = dir.path().join("data");
    let data = data.to_str().unwrap();
    let (status, out, err) = run(&["--data-dir", data, "append", "f", "--value", "x"], "");
    assert_eq!(
        (status, out.as_str()),
        (0, "commit 0: 1 record, sequences 0..=0, message \"\"\n"),
        "{err}"
    );
    let told = format!(
        "the data directory is served at {}: asking there",
        server.address
    );
    assert!(err.contains(&told), "{err}");
    drop(server);
    let (status, out, err) = run(
        &["--data-dir", data, "read", "f", "--format", "payload"],
        "",
    );
    assert_eq!((status, out.as_str(), err.as_str()), (0, "x\n", ""));
}

#[test]
fn usage_is_asked_of_the_server_that_holds_the_directory() {
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path());
    let data = dir.path().join("data");
    let there = server.address.to_string();
    let append = [
        "--server",
        &there,
        "append",
        "f",
        "--value",
        "x",
        "--no-seal",
    ];
    let (status, _, err) = run(&append, "");
    assert_eq!(status, 0, "{err}");
    for place in [["--data-dir", data.to_str().unwrap()], ["--server", &there]] {
        let words = [&place[..], &["--json", "usage"]].concat();
        let (status, out, err) = run(&words, "");
        assert_eq!(status, 0, "{err}");
        let usage: serde_json::Value = serde_json::from_str(&out).unwrap();
        let log = &usage["logs"][0];
        assert!(log["unpacked_bytes"].as_u64().unwrap() > 0, "{out}");
        assert!(log["disk_bytes"].as_u64() <= log["disk_bytes_max"].as_u64());
        assert_eq!(usage["bucket"]["trouble"], serde_json::Value::Null, "{out}");
    }
}

#[test]
fn directory_that_is_named_goes_before_a_server_of_the_environment() {
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path());
    let own = dir.path().join("own");
    let append = |words: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_sealog"));
        let command = command.args(words).args(["append", "f", "--value", "x"]);
        let output = command
            .env("SEALOG_SERVER", server.address.to_string())
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
    };
    append(&["--data-dir", own.to_str().unwrap()]);
    assert!(own.join("format").exists());
    append(&[]);
    let there = server.address.to_string();
    let (_, out, _) = run(
        &["--server", &there, "read", "f", "--format", "payload"],
        "",
    );
    assert_eq!(out, "x\n");
}

#[test]
fn seal_that_the_server_is_long_about_is_told() {
    use std::io::{BufRead, BufReader};
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path());
    ask(&server, &["append", "f", "--value", "x", "--no-seal"], "");
    let bucket = dir.path().join("data/bucket");
    std::fs::rename(&bucket, dir.path().join("away")).unwrap();
    std::fs::write(&bucket, "no folder").unwrap();
    let mut child = Command::new(env!("CARGO_BIN_EXE_sealog"))
        .args(["--server", &server.address.to_string(), "seal", "f"])
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    let mut stderr = BufReader::new(child.stderr.take().unwrap());
    stderr.read_line(&mut line).unwrap();
    assert_eq!(
        line,
        "sealog: still waiting for the commit to be published in the bucket\n"
    );
    std::fs::remove_file(&bucket).unwrap();
    std::fs::rename(dir.path().join("away"), &bucket).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0));
}
