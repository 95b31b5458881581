//! Compare from outside: what it answers without peers, and what it does to those it started.
//!
//! **Invariants**
//! - Nothing here needs a peer: where one is absent, the test says that the comparison was skipped,
//!   never that it was passed.
//!
//! **Not here**: figures: they are for a quiet machine.
#![allow(missing_docs)]

use std::path::PathBuf;
use std::process::{Command, Output};

fn folder(name: &str) -> PathBuf {
    let dir = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::create_dir_all(&dir).expect("a folder");
    dir
}

/// Runs the program where no peer can be found.
fn without_peers(name: &str, args: &[&str]) -> Output {
    let dir = folder(name);
    let mut command = Command::new(env!("CARGO_BIN_EXE_sealog-bench"));
    command
        .arg("--dir")
        .arg(&dir)
        .args(args)
        .env("SEALOG_PEERS", dir.join("nowhere"))
        .env("PATH", dir.join("nowhere"));
    command.output().expect("the program runs")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn compare_without_its_peer_skips_aloud_and_passes_nothing() {
    let args = ["compare", "--workload", "1k-16x1"];
    let output = without_peers("skips", &args);
    let said = text(&output.stdout);
    assert!(output.status.success(), "{said}{}", text(&output.stderr));
    assert!(
        said.contains("skipped 1k-16x1 beside nats-always"),
        "{said}"
    );
    assert!(!said.contains("met "), "{said}");
}

#[test]
fn compare_that_requires_an_absent_peer_fails_and_names_it() {
    let args = [
        "--json",
        "compare",
        "--workload",
        "1k-16x1",
        "--require",
        "nats",
    ];
    let output = without_peers("requires", &args);
    assert_eq!(output.status.code(), Some(1));
    let said: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let failure = said["failures"][0].as_str().expect("a failure");
    assert!(failure.contains("nats-always is required"), "{failure}");
}

#[test]
fn compare_refuses_names_it_does_not_know() {
    for args in [
        ["compare", "--workload", "nothing"],
        ["compare", "--require", "kafka"],
        ["compare", "--peer", "kafka://127.0.0.1:1"],
        ["http", "--beside", "kafka"],
        ["http", "--beside", "redis"],
    ] {
        let output = without_peers("refuses", &args);
        assert_eq!(output.status.code(), Some(1), "{args:?}");
        let said = text(&output.stderr);
        assert!(said.contains("is not one of"), "{said}");
    }
}
