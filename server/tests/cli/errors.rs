//! Tests of bad input and bad places: one line, a documented status, nothing touched.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Stdio;

use serde_json::{Value, json};

use super::bench::{Bench, finish, sealog};

/// Every file below `dir` with its bytes.
fn snapshot(dir: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut files = BTreeMap::new();
    let mut open = vec![dir.to_owned()];
    while let Some(dir) = open.pop() {
        for entry in std::fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                open.push(path);
            } else {
                files.insert(path.display().to_string(), std::fs::read(&path).unwrap());
            }
        }
    }
    files
}

#[test]
fn locked_directory_names_its_holder() {
    let bench = Bench::new();
    bench.ok(&["append", "f", "--value", "x"]);
    let mut holder = bench.command(&["read", "f", "--follow"]);
    let mut holder = holder.stdout(Stdio::piped()).spawn().unwrap();
    let mut out = std::io::BufReader::new(holder.stdout.take().unwrap());
    std::io::BufRead::read_line(&mut out, &mut String::new()).unwrap();
    let before = snapshot(&bench.data());
    let pid = format!("process {}", holder.id());
    bench
        .run(&["append", "f", "--value", "y"])
        .fails(7, &["is in use by", &pid, "read f --follow"]);
    bench.run(&["read", "f"]).fails(7, &["is in use by", &pid]);
    assert!(snapshot(&bench.data()) == before, "nothing was touched");
    drop(out);
    assert_eq!(holder.wait().unwrap().code(), Some(141));
    bench.ok(&["append", "f", "--value", "y"]);
}

#[test]
fn reading_verbs_make_no_directory() {
    let bench = Bench::new();
    for words in [
        &["read", "f"][..],
        &["feed", "list"],
        &["commits", "f"],
        &["seal", "f"],
        &["admin", "repair", "f"],
        &["verify"],
        &["admin", "reshard", "--logs", "2"],
        &["admin", "accept-loss"],
    ] {
        bench.run(words).fails(4, &["does not exist"]);
        assert!(!bench.data().exists(), "{words:?}");
    }
    std::fs::create_dir(bench.data()).unwrap();
    bench
        .run(&["read", "f"])
        .fails(7, &["is not a data directory"]);
}

#[test]
fn configuration_mistakes_are_named() {
    let bench = Bench::new();
    let cases: [(&[u8], &str); 11] = [
        (
            b"[batch]\nbytes_max = 0\n",
            "bad.toml: batch.bytes_max = 0, at least 1 needed",
        ),
        (
            b"[batch]\nrecord_bytes_max = 0\n",
            "bad.toml: batch.record_bytes_max = 0, at least 1 needed",
        ),
        (
            b"[serve]\nconnections_max = 0\n",
            "bad.toml: serve.connections_max = 0: at least 1 is needed",
        ),
        (b"shards = 10000\n", "shards = 10000, at most "),
        (
            b"inflight_bytes_max = \"1000 GiB\"\n",
            "inflight_bytes_max = 1073741824000, at most 68719476736 allowed",
        ),
        (
            b"wal.lane_start_bytes = \"2 GiB\"\n",
            "wal.lane_start_bytes = 2147483648, at most wal.disk_bytes_max = 268435456",
        ),
        (
            b"wal.full_wait_ms = 3600001\n",
            "wal.full_wait_ms = 3600001, at most 3600000 allowed",
        ),
        (b"[wal]\nsegment_byte = 1\n", "unknown key wal.segment_byte"),
        (b"logs = \"two\"\n", "logs = \"two\": a whole number"),
        (b"logs = = 2\n", "line 1: "),
        (
            b"wal.segment_bytes = 4097\n",
            "wal.segment_bytes = 4097 is not a multiple of 4096",
        ),
    ];
    for (text, reason) in cases {
        let file = bench.file("bad.toml", text);
        let words = [
            "append",
            "f",
            "--value",
            "x",
            "--config",
            file.to_str().unwrap(),
        ];
        bench.run(&words).fails(2, &[reason]);
        assert!(!bench.data().exists(), "{reason}");
    }
    bench
        .run(&["feed", "list", "--config", "absent.toml"])
        .fails(4, &["absent.toml does not exist"]);
}

#[test]
fn edge_directory_is_opened_as_it_was_made() {
    let bench = Bench::new();
    bench.ok(&["append", "f", "--value", "x"]);
    let read = || {
        let mut command = sealog();
        command.args(["read", "f", "--format", "payload", "--data-dir"]);
        command.arg(bench.data());
        finish(command, b"")
    };
    assert_eq!(read().ok(), "x\n");
    // One that was made before directories remembered it.
    std::fs::remove_file(bench.data().join("settings.toml")).unwrap();
    read().fails(2, &["do not fit", "--edge"]);
    // The other way round.
    let standard = bench.path().join("standard");
    let mut command = sealog();
    command
        .args(["append", "f", "--value", "x", "--data-dir"])
        .arg(&standard);
    finish(command, b"").ok();
    let words = ["read", "f", "--data-dir", standard.to_str().unwrap()];
    bench
        .run(&words)
        .fails(2, &["--edge", "made with the standard profile"]);
}

#[test]
fn bucket_elsewhere_is_remembered_and_another_one_refused() {
    let bench = Bench::new();
    bench.ok(&["append", "f", "--value", "x", "--bucket-dir", "packs"]);
    assert_eq!(bench.ok(&["read", "f", "--format", "payload"]), "x\n");
    bench.ok(&["verify"]);
    assert!(!bench.data().join("bucket").exists());
    let absolute = bench.path().join("packs");
    let absolute = absolute.to_str().unwrap();
    bench.ok(&["read", "f", "--bucket-dir", absolute]);
    for words in [
        &["read", "f", "--bucket-dir", "others"][..],
        &["append", "f", "--value", "y", "--bucket-dir", "others"],
        &["verify", "--bucket-dir", "others"],
    ] {
        bench.run(words).fails(7, &["others was named", absolute]);
        assert!(!bench.path().join("others").exists(), "{words:?}");
    }
    // Another directory's it is not.
    let others = bench.path().join("two");
    let words = ["--data-dir", "two", "--bucket-dir", absolute];
    let append = [&["append", "f", "--value", "z"][..], &words].concat();
    bench
        .run(&append)
        .fails(7, &[absolute, others.to_str().unwrap(), "--take-bucket"]);
    std::fs::remove_dir_all(others).unwrap();
    // Moved, and said so.
    std::fs::rename(absolute, bench.path().join("moved")).unwrap();
    let settings = bench.data().join("settings.toml");
    let text = std::fs::read_to_string(&settings).unwrap();
    std::fs::write(&settings, text.replace("/packs", "/moved")).unwrap();
    bench.ok(&["append", "f", "--value", "y"]);
    std::fs::write(&settings, "profile = 7\n").unwrap();
    bench.run(&["read", "f"]).fails(
        2,
        &["settings.toml: line 1, offset 0: profile = 7 is not understood"],
    );
    for (damaged, place) in [
        (
            &b"# ok\nprofile = \"stan\xe4ard\"\n"[..],
            "line 2, offset 20: not UTF-8",
        ),
        (b"# ok\nprofile \x7f \"standard\"\n", "line 2, offset 1"),
        (
            b"# ok\n\nprofile = \"stanlard\"\n",
            "line 3, offset 6: profile",
        ),
        (
            b"# ok\nprofjle = \"standard\"\n",
            "line 2, offset 5: profjle",
        ),
    ] {
        std::fs::write(&settings, damaged).unwrap();
        bench
            .run(&["read", "f"])
            .fails(2, &["settings.toml: ", place]);
    }
    let shown = bench.ok(&["inspect", bench.data().join("LOCK").to_str().unwrap()]);
    assert!(shown.contains("directory lock"), "{shown}");
}

#[test]
fn json_failures_are_objects() {
    let bench = Bench::new();
    bench.ok(&["append", "f", "--value", "x", "--no-seal"]);
    let ran = bench.run(&[
        "append",
        "f",
        "--value",
        "y",
        "--fencing-token",
        "9",
        "--json",
    ]);
    let error: Value = serde_json::from_str(&ran.err).unwrap();
    let expected = json!({
        "error": "Fenced", "message": "fenced: our epoch 9, current 1", "exit": 3, "retryable": false, "effects": "none",
    });
    assert_eq!((ran.status, error), (3, expected));
    let usage = bench.run(&["append", "--json"]);
    let error: Value = serde_json::from_str(&usage.err).unwrap();
    assert_eq!((usage.status, &error["error"]), (2, &json!("Usage")));
}

#[test]
fn damaged_format_marker_is_corrupt_and_newer_is_unusable() {
    let bench = Bench::new();
    bench.ok(&["append", "f", "--value", "x"]);
    let marker = bench.data().join("format");
    let good = std::fs::read(&marker).unwrap();
    for (at, status, words) in [
        (20, 5, &["corrupt", "format", "offset"][..]),
        (8, 7, &["format", "version"][..]),
    ] {
        let mut bad = good.clone();
        bad[at] ^= 0x40;
        std::fs::write(&marker, &bad).unwrap();
        let before = snapshot(&bench.data());
        bench
            .run(&["append", "f", "--value", "y"])
            .fails(status, words);
        assert!(
            snapshot(&bench.data()) == before,
            "byte {at}: nothing was touched"
        );
    }
    std::fs::write(&marker, &good).unwrap();
    assert_eq!(bench.ok(&["read", "f", "--format", "payload"]), "x\n");
}

#[test]
fn data_directory_that_is_a_file_is_refused() {
    let bench = Bench::new();
    let file = bench.file("data", b"precious");
    bench
        .run(&["append", "f", "--value", "x"])
        .fails(7, &["data is not a directory"]);
    assert_eq!(std::fs::read(file).unwrap(), b"precious");
}

#[test]
fn verify_passes_and_names_the_damaged_file_and_offset() {
    let bench = Bench::new();
    bench.ok(&["append", "f", "--record", "k=v"]);
    bench.ok(&["append", "f", "--value", "w", "--no-seal"]);
    let before = snapshot(&bench.data());
    let printed = bench.ok(&["verify"]);
    assert!(
        printed.starts_with("verified: 1 feed, 1 commit, 1 pack with 1 record,"),
        "{printed}"
    );
    assert!(printed.ends_with("cleanly closed\n"), "{printed}");
    assert!(snapshot(&bench.data()) == before, "nothing was touched");
    let report = &bench.json(&["verify"])[0];
    assert_eq!(
        (&report["verified"], &report["logs"][0]["clean"]),
        (&json!(true), &json!(true))
    );
    let packs = before.keys().find(|path| path.ends_with(".pack")).unwrap();
    let mut bytes = before[packs].clone();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(packs, &bytes).unwrap();
    let name = Path::new(packs).file_name().unwrap().to_str().unwrap();
    bench
        .run(&["verify"])
        .fails(5, &["corrupt: ", name, "at offset"]);
}

#[test]
fn missing_segment_is_named_and_nothing_is_lost_over_it() {
    let bench = Bench::new();
    bench.ok(&["append", "f", "--value", "kept", "--no-seal"]);
    let segment = bench.data().join("wal/0/00000000.seg");
    let aside = bench.path().join("aside");
    std::fs::rename(&segment, &aside).unwrap();
    for words in [
        &["read", "f"][..],
        &["append", "f", "--value", "second"],
        &["verify"],
    ] {
        bench.run(words).fails(5, &["segment 0", "missing"]);
    }
    std::fs::rename(&aside, &segment).unwrap();
    assert_eq!(bench.ok(&["read", "f", "--format", "payload"]), "kept\n");
}

#[test]
fn bucket_of_another_directory_is_refused_and_the_right_one_goes_on() {
    let bench = Bench::new();
    bench.ok(&["append", "f", "--value", "a"]);
    // As one that was made before directories remembered where their bucket is.
    std::fs::remove_file(bench.data().join("settings.toml")).unwrap();
    let other = bench.path().join("other");
    let other = other.to_str().unwrap();
    let wrong = ["append", "f", "--value", "b", "--bucket-dir", other];
    bench.run(&wrong).fails(7, &["commit 0", "another bucket"]);
    // Another directory's bucket, with a feed and commits of the same names.
    let theirs = Bench::new();
    theirs.ok(&["append", "f", "--value", "a", "--bucket-dir", "packs"]);
    let theirs = theirs.path().join("packs");
    let wrong = [
        "append",
        "f",
        "--value",
        "b",
        "--bucket-dir",
        theirs.to_str().unwrap(),
    ];
    bench.run(&wrong).fails(7, &["commit 0", "another bucket"]);
    bench.ok(&["append", "f", "--value", "b"]);
    assert_eq!(bench.ok(&["read", "f", "--format", "payload"]), "a\nb\n");
}

#[test]
fn empty_variables_are_not_set() {
    let bench = Bench::new();
    for name in [
        "CONNECTIONS_MAX",
        "DATA_DIR",
        "INSECURE",
        "LISTEN",
        "LOG",
        "SERVER",
        "SHARD_PORT",
        "TLS_CA",
        "TOKEN_FILE",
    ] {
        let mut command = sealog();
        command.args(["config", "show"]).current_dir(bench.path());
        command.env(format!("SEALOG_{name}"), "");
        let shown = finish(command, b"").ok();
        assert!(shown.contains("data_dir = \"./sealog-data\"  # default"));
        assert!(!shown.contains("# env"), "{name}: {shown}");
    }
}

#[test]
fn addresses_and_files_that_make_no_sense_name_their_option() {
    let bench = Bench::new();
    bench.file("plain.pem", b"no certificate\n");
    for (words, reason) in [
        (
            &["--server", "http://127.0.0.1:1"][..],
            "--server http://127.0.0.1:1: HOST:PORT is needed, as in 127.0.0.1:4436, without a scheme",
        ),
        (
            &["--server", "localhost"],
            "--server localhost: HOST:PORT is needed",
        ),
        (&["--server", ":1"], "--server :1: HOST:PORT is needed"),
        (
            &["--server", "127.0.0.1:1", "--tls-ca", "plain.pem"],
            "--tls-ca plain.pem: invalid argument: no certificate",
        ),
        (
            &["--bucket", "s3://abc", "--endpoint", "ftp://x"],
            "--endpoint ftp://x (s3.endpoint in a file): http:// or https:// is needed\n",
        ),
    ] {
        let words = [words, &["feed", "create", "f"]].concat();
        bench.run(&words).fails(2, &[reason]);
    }
    assert!(!bench.data().exists());
}

#[test]
fn wrong_line_is_shown_with_what_was_stored_before_it() {
    let bench = Bench::new();
    let lines = b"{\"payload\":\"a\"}\n{\"payload\":7}\n{\"payload\":\"b\"}\n";
    bench.run_with(&["append", "f", "--ndjson"], lines).fails(
        2,
        &[
            "standard input line 2: not a record: invalid type: integer `7`",
            "in \"{\\\"payload\\\":7}\"",
            "1 record before it stored, sequences 0..=0, stream unsealed",
        ],
    );
    assert_eq!(bench.ok(&["read", "f", "--format", "payload"]), "a\n");
}

#[test]
fn bucket_with_feeds_of_another_directory_is_not_taken_by_one_without_their_history() {
    let bench = Bench::new();
    bench.ok(&["append", "f", "--value", "x", "--bucket-dir", "packs"]);
    let two = ["--data-dir", "two", "--bucket-dir", "packs"];
    for verb in [
        &["append", "f", "--value", "z"][..],
        &["feed", "create", "f"],
    ] {
        let words = [verb, &two, &["--take-bucket"]].concat();
        bench
            .run(&words)
            .fails(7, &["can't be taken", "feeds/f/", "of its own"]);
    }
    // Nor has the refusal changed anything.
    assert_eq!(bench.ok(&["read", "f", "--format", "payload"]), "x\n");
    bench.ok(&["verify"]);
}

#[test]
fn bucket_does_not_lie_in_a_data_directory() {
    let bench = Bench::new();
    bench.ok(&["append", "f", "--value", "x"]);
    for inside in ["data/bucket", "data/wal", "data/wal/deep/er", "data"] {
        let words = ["append", "g", "--value", "y", "--data-dir", "two"];
        let words = [&words[..], &["--bucket-dir", inside]].concat();
        bench
            .run(&words)
            .fails(7, &[inside, "lies in data directory"]);
        assert!(!bench.path().join("two").exists(), "{inside}");
    }
    let words = ["append", "g", "--value", "y", "--data-dir", "three"];
    let words = [&words[..], &["--bucket-dir", "three/wal"]].concat();
    bench
        .run(&words)
        .fails(7, &["three/wal", "lies in data directory"]);
    bench.ok(&["verify"]);
}

#[test]
fn damaged_owner_names_the_way_out() {
    let bench = Bench::new();
    bench.ok(&["append", "f", "--value", "x", "--bucket-dir", "packs"]);
    let owner = bench.path().join("packs").join("owner");
    std::fs::write(&owner, "garbage").unwrap();
    bench
        .run(&["append", "f", "--value", "y"])
        .fails(5, &["owner", "--take-bucket"]);
    bench.ok(&["append", "f", "--value", "y", "--take-bucket"]);
    bench.ok(&["verify"]);
}
