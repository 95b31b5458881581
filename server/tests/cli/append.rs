//! Tests of `append`: the Producer document's examples, inputs, conditions, producers.

use serde_json::json;

use super::bench::{Bench, objects};

#[test]
fn example_one_shot_append_and_seal() {
    let bench = Bench::new();
    let words = [
        "append",
        "orders",
        "--record",
        "k1=hello",
        "--record",
        "k2=world",
        "--message",
        "hourly poll",
    ];
    let printed = bench.ok(&words);
    assert_eq!(
        printed,
        "commit 0: 2 records, sequences 0..=1, message \"hourly poll\"\n"
    );
    assert_eq!(
        bench.ok(&["read", "orders", "--format", "payload"]),
        "hello\nworld\n"
    );
}

/// Explicit session control: open, append, append under the session's epoch, seal.
#[test]
fn example_session_held_over_several_commands() {
    let bench = Bench::new();
    let opened = bench.json(&[
        "append",
        "orders",
        "--value",
        "hello",
        "--record",
        "k2=world",
        "--no-seal",
    ]);
    assert_eq!(opened[0]["commit"], json!(null));
    assert_eq!(
        (&opened[0]["stream"], &opened[0]["epoch"]),
        (&json!(1), &json!(1))
    );
    // Unsealed, durable, readable.
    assert_eq!(
        bench.ok(&["read", "orders", "--format", "payload"]),
        "hello\nworld\n"
    );
    let more = bench.json(&[
        "append",
        "orders",
        "--value",
        "again",
        "--fencing-token",
        "1",
    ]);
    assert_eq!(
        (&more[0]["first"], &more[0]["commit"]),
        (&json!(2), &json!(null))
    );
    let sealed = bench.json(&[
        "seal",
        "orders",
        "--message",
        "hourly poll",
        "--fencing-token",
        "1",
    ]);
    assert_eq!(
        (&sealed[0]["records"], &sealed[0]["message"]),
        (&json!(3), &json!("hourly poll"))
    );
    let late = bench.run(&[
        "append",
        "orders",
        "--value",
        "late",
        "--fencing-token",
        "1",
    ]);
    late.fails(3, &["\"orders\" has no unsealed stream"]);
}

#[test]
fn example_pipelined_ingest_before_seal() {
    let bench = Bench::new();
    let input: String = (1..=50_000).map(|n| format!("{n}\n")).collect();
    let words = ["append", "numbers", "--lines", "--message", "bulk load"];
    let printed = bench.run_with(&words, input.as_bytes()).ok();
    assert_eq!(
        printed,
        "commit 0: 50000 records, sequences 0..=49999, message \"bulk load\"\n"
    );
    assert!(
        bench.ok(&["read", "numbers", "--format", "payload"]) == input,
        "same bytes back"
    );
}

#[test]
fn append_newer_writer_fences_the_older() {
    let bench = Bench::new();
    bench.ok(&["append", "f", "--value", "a", "--no-seal"]);
    bench.ok(&["append", "f", "--value", "b", "--no-seal"]);
    let fenced = bench.run(&["append", "f", "--value", "c", "--fencing-token", "1"]);
    fenced.fails(3, &["fenced: our epoch 1, current 2"]);
    let sealed = bench.ok(&[
        "append",
        "f",
        "--value",
        "c",
        "--fencing-token",
        "2",
        "--message",
        "m",
    ]);
    assert_eq!(
        sealed,
        "commit 0: 3 records, sequences 0..=2, message \"m\"\n"
    );
}

#[test]
fn append_lines_from_file_keep_every_byte() {
    let bench = Bench::new();
    let file = bench.file("input", b"\nx\r\n\xff\xfe\0\n=no key=\nlast");
    let file = file.to_str().unwrap();
    bench.ok(&[
        "append",
        "f",
        "--lines",
        "--input",
        file,
        "--header",
        "from=file=1",
        "--timestamp",
        "7",
    ]);
    let records = bench.json(&["read", "f"]);
    let payloads: Vec<_> = records.iter().map(|r| r.get("payload").cloned()).collect();
    let text = |text: &str| Some(json!(text));
    assert_eq!(
        payloads,
        [text(""), text("x\r"), None, text("=no key="), text("last")]
    );
    assert_eq!(records[2]["payload_base64"], json!("//4A"));
    for record in &records {
        assert_eq!(
            record["headers"],
            json!([{"name": "from", "value": "file=1"}])
        );
        assert_eq!((&record["timestamp"], record.get("key")), (&json!(7), None));
    }
}

#[test]
fn append_record_options_arrive_in_order() {
    let bench = Bench::new();
    let print = "ab".repeat(32);
    let words = [
        "append",
        "f",
        "--value",
        "-1",
        "--record",
        "a=b=c",
        "--value",
        "",
        "--record",
        "=empty key",
        "--version",
        "-3",
        "--header",
        "h=1",
        "--header",
        "h=2",
        "--timestamp",
        "5",
        "--fingerprint",
        &print,
    ];
    bench.ok(&words);
    let headers = json!([{"name": "h", "value": "1"}, {"name": "h", "value": "2"}]);
    let common = |sequence: u64, key: Option<&str>, payload: &str| {
        let mut record = json!({
            "sequence": sequence, "time": 5, "timestamp": 5, "version": -3, "headers": headers,
            "fingerprint": print, "payload": payload,
        });
        if let Some(key) = key {
            record["key"] = json!(key);
        }
        record
    };
    let expected = [
        common(0, None, "-1"),
        common(1, Some("a"), "b=c"),
        common(2, None, ""),
        common(3, Some(""), "empty key"),
    ];
    assert_eq!(bench.json(&["read", "f"]), expected);
    bench.ok(&["append", "f", "--record", "a=", "--tombstone"]);
    assert_eq!(
        bench.json(&["read", "f", "--from", "4"])[0]["tombstone"],
        json!(true)
    );
}

#[test]
fn append_ndjson_of_a_read_copies_the_feed() {
    let bench = Bench::new();
    let lines = concat!(
        r#"{"payload":"plain"}"#,
        "\n\n",
        r#"{"key":"k","payload_base64":"/w==","version":9,"headers":[{"name_base64":"AA==","value":"v"}]}"#,
        "\n",
        r#"{"key_base64":"/w==","tombstone":true,"timestamp":3}"#,
        "\n",
    );
    let printed = bench
        .run_with(&["append", "a", "--ndjson", "--json"], lines.as_bytes())
        .ok();
    assert_eq!(objects(&printed)[0]["records"], json!(3));
    let read = bench.ok(&["read", "a", "--format", "json"]);
    bench
        .run_with(&["append", "b", "--ndjson"], read.as_bytes())
        .ok();
    let without_time = |feed: &str| {
        let mut records = bench.json(&["read", feed]);
        for record in &mut records {
            record.as_object_mut().unwrap().remove("time");
        }
        records
    };
    assert_eq!(without_time("a"), without_time("b"));
    assert_eq!(without_time("a").len(), 3);
}

#[test]
fn append_match_sequence_holds_or_refuses() {
    let bench = Bench::new();
    bench.ok(&["append", "f", "--value", "a", "--match-seq", "empty"]);
    let refused = bench.run(&["append", "f", "--value", "b", "--match-seq", "empty"]);
    refused.fails(3, &["match sequence empty, feed is at 0"]);
    let refused = bench.run(&["append", "f", "--value", "b", "--match-seq", "7"]);
    refused.fails(3, &["match sequence 7, feed is at 0"]);
    let input: String = (0..10_000).map(|n| format!("{n}\n")).collect();
    let words = ["append", "f", "--lines", "--match-seq", "0"];
    bench.run_with(&words, input.as_bytes()).ok();
    assert_eq!(
        bench.json(&["feed", "show", "f"])[0]["next_sequence"],
        json!(10_001)
    );
}

#[test]
fn append_producer_retry_is_a_duplicate() {
    let bench = Bench::new();
    let input: String = (0..10_000).map(|n| format!("{n}\n")).collect();
    let from = |epoch: &'static str, seq: &'static str| {
        [
            "append",
            "f",
            "--lines",
            "--json",
            "--producer",
            "p1",
            "--producer-epoch",
            epoch,
            "--producer-seq",
            seq,
        ]
    };
    let first = bench.run_with(&from("0", "0"), input.as_bytes()).ok();
    assert_eq!(objects(&first)[0]["records"], json!(10_000));
    let again = objects(&bench.run_with(&from("0", "0"), input.as_bytes()).ok());
    assert_eq!(
        (&again[0]["records"], &again[0]["duplicate_batches"]),
        (&json!(0), &json!(3))
    );
    assert_eq!(
        (&again[0]["first"], &again[0]["last"]),
        (&json!(0), &json!(9_999))
    );
    // Neither records nor an empty commit nor an empty stream.
    assert_eq!(again[0]["commit"], json!(null));
    let feed = &bench.json(&["feed", "show", "f"])[0];
    assert_eq!(
        (&feed["commits"], &feed["open_stream"]),
        (&json!(1), &json!(null))
    );
    let producer = &bench.json(&["producers", "f"])[0];
    assert_eq!(
        (&producer["producer"], &producer["last_sequence"]),
        (&json!("p1"), &json!(2))
    );

    let gap = bench.run_with(
        &from("0", "5")[..3]
            .iter()
            .chain(&from("0", "5")[4..])
            .copied()
            .collect::<Vec<_>>(),
        b"x",
    );
    gap.fails(3, &["producer sequence gap: expected 3, received 5"]);
    let start = [
        "append",
        "f",
        "--value",
        "x",
        "--producer",
        "p1",
        "--producer-epoch",
        "1",
        "--producer-seq",
        "1",
    ];
    bench
        .run(&start)
        .fails(3, &["producer epoch 1 must start at sequence 0, got 1"]);
    let newer = [
        "append",
        "f",
        "--value",
        "x",
        "--producer",
        "p1",
        "--producer-epoch",
        "1",
        "--producer-seq",
        "0",
    ];
    bench.ok(&newer);
    let stale = [
        "append",
        "f",
        "--value",
        "x",
        "--producer",
        "p1",
        "--producer-epoch",
        "0",
        "--producer-seq",
        "3",
    ];
    bench
        .run(&stale)
        .fails(3, &["producer epoch 0 is stale, current 1"]);
}

#[test]
fn append_refused_inputs_touch_nothing() {
    let bench = Bench::new();
    let long = vec![b'x'; (1 << 20) + 1];
    let cases: [(&[&str], &[u8], i32, &str); 10] = [
        (&[], b"", 2, "give --record, --value, --lines or --ndjson"),
        (
            &["--record", "novalue"],
            b"",
            2,
            "--record \"novalue\" has no \"=\"",
        ),
        (
            &["--value", "x", "--header", "h"],
            b"",
            2,
            "--header \"h\" has no \"=\"",
        ),
        (
            &["--value", "x", "--tombstone"],
            b"",
            2,
            "a tombstone needs a key: give it by --record",
        ),
        (
            &["--value", "x", "--fingerprint", "00"],
            b"",
            2,
            "fingerprint of 2 hex digits, 64 needed",
        ),
        (
            &["--value", "x", "--input", "f"],
            b"",
            2,
            "cannot be used with",
        ),
        (
            &["--ndjson"],
            b"{\"payload\":1}\n",
            2,
            "standard input line 1: not a record: invalid type",
        ),
        (
            &["--lines", "--input", "absent"],
            b"",
            4,
            "absent does not exist",
        ),
        (&["--lines"], &long, 3, "over the limit of 1048576"),
        (
            &[
                "--value",
                "x",
                "--producer",
                "",
                "--producer-epoch",
                "0",
                "--producer-seq",
                "0",
            ],
            b"",
            2,
            "a producer id of 0 bytes, 1 to 256 are allowed",
        ),
    ];
    for (words, input, status, reason) in cases {
        let words: Vec<&str> = ["append", "f"].iter().chain(words).copied().collect();
        bench.run_with(&words, input).fails(status, &[reason]);
        assert!(!bench.data().exists(), "{words:?} made the data directory");
    }
}

#[test]
fn append_bad_line_in_the_middle_keeps_what_came_before() {
    let bench = Bench::new();
    let input = "{\"payload\":\"a\"}\n{\"payload\":\"b\"}\nnonsense\n{\"payload\":\"c\"}\n";
    let ran = bench.run_with(
        &["append", "f", "--ndjson", "--message", "m"],
        input.as_bytes(),
    );
    ran.fails(
        2,
        &[
            "standard input line 3: not a record",
            "2 records before it stored, sequences 0..=1",
            "unsealed",
        ],
    );
    let feed = &bench.json(&["feed", "show", "f"])[0];
    assert_eq!(
        (&feed["next_sequence"], &feed["commits"]),
        (&json!(2), &json!(0))
    );
}

#[test]
fn append_empty_input_does_nothing() {
    let bench = Bench::new();
    let printed = bench.run_with(&["append", "f", "--lines"], b"").ok();
    assert_eq!(printed, "nothing appended: the input is empty\n");
    assert!(!bench.data().exists());
}

#[test]
fn append_no_create_needs_directory_and_feed() {
    let bench = Bench::new();
    let words = ["append", "f", "--value", "x", "--no-create"];
    bench
        .run(&words)
        .fails(4, &["data directory", "does not exist", "--data-dir"]);
    assert!(!bench.data().exists());
    bench.ok(&["feed", "create", "g"]);
    bench.run(&words).fails(4, &["feed \"f\" not found"]);
    let token = ["append", "f", "--value", "x", "--fencing-token", "1"];
    bench.run(&token).fails(4, &["feed \"f\" not found"]);
    bench.ok(&["append", "g", "--value", "x", "--no-create"]);
}
