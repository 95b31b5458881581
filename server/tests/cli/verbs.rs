//! Tests of the other verbs: feeds, lists, seal, admin; global options; the shapes of JSON.

use serde_json::{Value, json};

use super::bench::{Bench, fields, finish, objects, sealog};

#[test]
fn feed_create_list_show_delete() {
    let bench = Bench::new();
    bench.ok(&["feed", "create", "b/keys"]);
    bench.ok(&["feed", "create", "b/plain", "--no-keys", "--exclusive"]);
    bench.ok(&["feed", "create", "a"]);
    bench.ok(&["feed", "create", "a"]);
    bench
        .run(&["feed", "create", "a", "--no-keys"])
        .fails(3, &["\"a\" exists already with other options"]);
    let names = |words: &[&str]| -> Vec<Value> {
        bench
            .json(words)
            .into_iter()
            .map(|feed| feed["feed"].clone())
            .collect()
    };
    assert_eq!(names(&["feed", "list"]), ["a", "b/keys", "b/plain"]);
    assert_eq!(names(&["feed", "list", "b/"]), ["b/keys", "b/plain"]);
    assert_eq!(
        names(&["feed", "list", "--after", "a", "--limit", "1"]),
        ["b/keys"]
    );
    let plain = &bench.json(&["feed", "show", "b/plain"])[0];
    assert_eq!(
        (&plain["keys"], &plain["exclusive"]),
        (&json!(false), &json!(true))
    );
    let keyed = bench.run(&["append", "b/plain", "--record", "k=v"]);
    keyed.fails(3, &["feed \"b/plain\" does not allow keys"]);
    assert_eq!(bench.ok(&["feed", "delete", "a"]), "deleted \"a\"\n");
    bench
        .run(&["feed", "show", "a"])
        .fails(4, &["feed \"a\" not found"]);
    bench
        .run(&["feed", "delete", "a"])
        .fails(4, &["feed \"a\" not found"]);
    bench
        .run(&["feed", "create", ""])
        .fails(2, &["feed name of 0 bytes"]);
    let long = "x".repeat(1025);
    bench
        .run(&["feed", "create", &long])
        .fails(2, &["feed name of 1025 bytes: at most 1024"]);
}

#[test]
fn lists_shapes_of_json_are_as_documented() {
    let bench = Bench::new();
    let words = [
        "append",
        "f",
        "--value",
        "x",
        "--producer",
        "p",
        "--producer-epoch",
        "0",
        "--producer-seq",
        "0",
    ];
    let appended = &bench.json(&words)[0];
    let commit = [
        "commit",
        "epoch",
        "feed",
        "first",
        "kind",
        "last",
        "manifest",
        "message",
        "parent",
        "payload_bytes",
        "records",
        "stream",
        "time_ms",
    ];
    let append = [
        "commit",
        "duplicate_batches",
        "epoch",
        "feed",
        "first",
        "last",
        "records",
        "stream",
    ];
    assert_eq!(fields(appended), append);
    assert_eq!(fields(&appended["commit"]), commit);
    bench.ok(&["append", "f", "--value", "y"]);
    let commits = bench.json(&["commits", "f"]);
    assert_eq!(commits.len(), 2);
    assert_eq!(fields(&commits[0]), commit);
    assert_eq!(commits[0], appended["commit"]);
    assert_eq!(
        (
            &commits[0]["parent"],
            commits[1]["parent"].as_str().map(str::len)
        ),
        (&json!(null), Some(64))
    );
    assert_eq!(
        bench.json(&["commits", "f", "--from", "1", "--limit", "5"]),
        commits[1..]
    );
    let streams = bench.json(&["streams", "f"]);
    let stream = [
        "commit",
        "feed",
        "first",
        "last",
        "packed_end",
        "payload_bytes",
        "phase",
        "records",
        "stream",
    ];
    assert_eq!(fields(&streams[0]), stream);
    assert_eq!(
        (streams.len(), &streams[1]["phase"]),
        (2, &json!("published"))
    );
    assert_eq!(bench.json(&["streams", "f", "--from", "2"]), streams[1..]);
    let producer = [
        "epoch",
        "feed",
        "last_range",
        "last_sequence",
        "last_updated_ms",
        "producer",
    ];
    assert_eq!(fields(&bench.json(&["producers", "f"])[0]), producer);
    let feed = [
        "commits",
        "created_ms",
        "epoch",
        "exclusive",
        "feed",
        "id",
        "keys",
        "next_sequence",
        "open_stream",
        "producers",
        "unpublished_streams",
    ];
    assert_eq!(fields(&bench.json(&["feed", "show", "f"])[0]), feed);
    bench
        .run(&["producers", "f", "--producer", "q"])
        .fails(4, &["feed \"f\" has no producer \"q\""]);
    assert_eq!(
        bench.json(&["admin", "repair", "f"]),
        [json!({"feed": "f", "published": 0})]
    );
}

#[test]
fn seal_and_admin_settle_streams() {
    let bench = Bench::new();
    bench.ok(&["append", "f", "--value", "a", "--no-seal"]);
    assert_eq!(bench.json(&["streams", "f"])[0]["phase"], json!("open"));
    assert_eq!(
        bench.ok(&["seal", "f", "-m", "one"]),
        "commit 0: 1 record, sequences 0..=0, message \"one\"\n"
    );
    bench
        .run(&["seal", "f"])
        .fails(3, &["feed \"f\" has no unsealed stream"]);
    bench
        .run(&["admin", "resume", "f"])
        .fails(3, &["has no unsealed stream"]);
    bench
        .run(&["admin", "discard", "f", "--stream", "9"])
        .fails(4, &["has no stream 9"]);
    bench.ok(&["append", "f", "--value", "b", "--no-seal"]);
    let discarded = bench.ok(&[
        "admin",
        "discard",
        "f",
        "--stream",
        "2",
        "--message",
        "oops",
    ]);
    assert_eq!(
        discarded,
        "commit 1 (discarded): 1 record, sequences 1..=1, message \"oops\"\n"
    );
    bench.ok(&["append", "f", "--value", "c", "--no-seal"]);
    assert_eq!(
        bench.json(&["admin", "resume", "f"])[0]["kind"],
        json!("sealed")
    );
    assert_eq!(bench.ok(&["read", "f", "--format", "payload"]), "a\nc\n");
    let phases: Vec<Value> = bench
        .json(&["streams", "f"])
        .iter()
        .map(|s| s["phase"].clone())
        .collect();
    assert_eq!(phases, ["published", "discarded", "published"]);
}

#[test]
fn seal_of_an_exclusive_feed_binds_the_token() {
    let bench = Bench::new();
    bench.ok(&["feed", "create", "f", "--exclusive"]);
    bench.ok(&["append", "f", "--value", "a", "--no-seal"]);
    let long = "x".repeat(65_537);
    bench
        .run(&["seal", "f", "--message", &long])
        .fails(3, &["65537", "65536"]);
    assert_eq!(bench.json(&["feed", "show", "f"])[0]["epoch"], json!(1));
    assert_eq!(bench.json(&["seal", "f"])[0]["records"], json!(1));
    assert_eq!(bench.json(&["feed", "show", "f"])[0]["epoch"], json!(2));
}

#[test]
fn globals_before_and_after_the_verb_do_the_same() {
    let bench = Bench::new();
    let (data, bucket) = (bench.path().join("d"), bench.path().join("b"));
    let config = bench.file("sealog.toml", b"[wal]\nsegment_bytes = \"8 MiB\"\n");
    let mut first = sealog();
    first
        .arg("--edge")
        .arg("--config")
        .arg(&config)
        .arg("--data-dir")
        .arg(&data);
    first
        .arg("--bucket-dir")
        .arg(&bucket)
        .args(["--json", "append", "f", "--value", "x"]);
    assert_eq!(objects(&finish(first, b"").ok())[0]["records"], json!(1));
    let mut second = sealog();
    second
        .args(["append", "f", "--value", "x", "--json", "--edge"])
        .arg("--config")
        .arg(&config);
    second
        .arg("--data-dir")
        .arg(&data)
        .arg(format!("--bucket-dir={}", bucket.display()));
    assert_eq!(objects(&finish(second, b"").ok())[0]["first"], json!(1));
    assert!(bucket.join("feeds").is_dir() && !data.join("bucket").exists());
}

#[test]
fn data_dir_defaults_to_the_working_directory() {
    let bench = Bench::new();
    let mut command = sealog();
    command
        .current_dir(bench.path())
        .args(["--edge", "append", "f", "--value", "x"]);
    finish(command, b"").ok();
    assert!(bench.path().join("sealog-data").is_dir());
}

#[test]
fn help_and_version_are_shown() {
    let run = |words: &[&str]| {
        let mut command = sealog();
        command.args(words);
        finish(command, b"").ok()
    };
    assert!(run(&["--version"]).starts_with("sealog "));
    assert!(run(&["--help"]).contains("Exit status: 0 done"));
    assert!(run(&["append", "--help"]).contains("--fencing-token"));
}

#[test]
fn inspect_shows_every_file_and_refuses_others() {
    let bench = Bench::new();
    bench.ok(&["append", "f", "--record", "k=v", "--message", "hello"]);
    let mut seen = 0;
    let mut open = vec![bench.data()];
    while let Some(dir) = open.pop() {
        for entry in std::fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            let name = path.to_str().unwrap();
            if path.is_dir() {
                // The bucket's own corner is not ours to read.
                if !name.ends_with(".tmp") {
                    open.push(path);
                }
                continue;
            }
            // Not formats: the lock, what people read, room kept for later.
            if ["LOCK", ".json", "reserve"]
                .iter()
                .any(|end| name.ends_with(end))
            {
                continue;
            }
            let text = bench.ok(&["inspect", name]);
            assert!(!text.trim().is_empty(), "{name}");
            assert_eq!(bench.json(&["inspect", name]).len(), 1, "{name}");
            if name.ends_with(".commit") {
                assert!(text.contains("hello"), "{text}");
            }
            seen += 1;
        }
    }
    assert!(seen >= 6, "{seen} files");
    let other = bench.file("other", b"not one of ours");
    bench
        .run(&["inspect", other.to_str().unwrap()])
        .fails(2, &["other is not a Sealog file: it begins with"]);
    bench
        .run(&["inspect", "absent"])
        .fails(4, &["absent does not exist"]);
}

#[test]
fn admin_reshard_keeps_everything() {
    let bench = Bench::new();
    for feed in ["a", "b", "c"] {
        bench.ok(&["append", feed, "--value", feed]);
        bench.ok(&["append", feed, "--value", "open", "--no-seal"]);
    }
    let report = &bench.json(&["admin", "reshard", "--logs", "3"])[0];
    assert_eq!(
        (report["logs"].as_array().map(Vec::len), &report["feeds"]),
        (Some(3), &json!(3))
    );
    for feed in ["a", "b", "c"] {
        assert_eq!(
            bench.ok(&["read", feed, "--format", "payload"]),
            format!("{feed}\nopen\n")
        );
        bench.ok(&["append", feed, "--value", "more"]);
    }
    bench.ok(&["verify"]);
    bench
        .run(&["admin", "reshard", "--logs", "0"])
        .fails(2, &["logs"]);
}

#[test]
fn admin_accept_loss_of_a_whole_directory_changes_nothing() {
    let bench = Bench::new();
    bench.ok(&["append", "f", "--value", "x"]);
    let said = bench.ok(&["admin", "accept-loss"]);
    assert_eq!(said, "nothing was damaged, nothing was changed\n");
    assert_eq!(bench.json(&["admin", "accept-loss"]), [json!({"logs": []})]);
    assert_eq!(bench.ok(&["read", "f", "--format", "payload"]), "x\n");
}

#[test]
fn settled_streams_are_refused_as_such() {
    let bench = Bench::new();
    bench.ok(&["append", "f", "--value", "a", "--no-seal"]);
    bench.ok(&["admin", "discard", "f"]);
    bench.ok(&["append", "f", "--value", "b"]);
    for (verb, stream) in [("resume", "1"), ("discard", "1"), ("resume", "2")] {
        let words = ["admin", verb, "f", "--stream", stream];
        let reason = format!("stream {stream} of feed \"f\" is settled already");
        bench.run(&words).fails(3, &[&reason]);
    }
    let none = ["admin", "resume", "f", "--stream", "3"];
    bench.run(&none).fails(4, &["has no stream 3"]);
}
