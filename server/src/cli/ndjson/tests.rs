//! Tests of ndjson: what a line may hold.

use sealog_frame::FrameLimits;

use super::*;

fn pushed(line: &str) -> Result<BatchBuilder, String> {
    let mut builder = BatchBuilder::new(FrameLimits::default());
    push(line.as_bytes(), &mut builder).map_err(|error| error.message)?;
    Ok(builder)
}

#[test]
fn push_every_field_arrives() {
    let line = format!(
        r#"{{"sequence":9,"time":1,"payload":"hé\n","key_base64":"/w==","version":-3,"tombstone":true,
        "headers":[{{"name":"a","value":"b"}},{{"name_base64":"AA==","value":""}}],"timestamp":5,"fingerprint":"{}"}}"#,
        "0f".repeat(32)
    );
    let batch = pushed(&line).unwrap().build().unwrap();
    let record = batch.view().record(0).unwrap().to_record();
    let expected = Record {
        payload: "hé\n".as_bytes(),
        key: Some(b"\xff"),
        version: -3,
        tombstone: true,
        headers: vec![(b"a", b"b"), (b"\0", b"")],
        timestamp_ms: Some(5),
        fingerprint: Some([0x0f; 32]),
    };
    assert_eq!(record, expected);
}

#[test]
fn push_blank_line_is_no_record() {
    assert!(pushed(" \r").unwrap().is_empty());
}

#[test]
fn push_tombstone_needs_no_payload() {
    assert_eq!(pushed(r#"{"key":"k","tombstone":true}"#).unwrap().len(), 1);
}

#[test]
fn push_wrong_lines_say_why() {
    for (line, reason) in [
        ("nonsense", "not a record: expected"),
        (
            "[]",
            "not a record: invalid type: sequence, expected an object",
        ),
        (r#"["a"]"#, "expected an object"),
        (
            r#"{"payload":"a","headers":[["n"]]}"#,
            "expected an object (column ",
        ),
        (
            r#"{"payload":"a","timestamp":253402300800000}"#,
            "timestamp of 253402300800000 ms over the limit of 253402300799999",
        ),
        (r#"{"payload":"a"} x"#, "trailing characters"),
        (r#"{"payload":"a","colour":1}"#, "unknown field `colour`"),
        (r#"{"key":"a"}"#, "payload (or payload_base64) is missing"),
        (
            r#"{"payload":"a","payload_base64":"YQ=="}"#,
            "payload and payload_base64 exclude",
        ),
        (
            r#"{"payload_base64":"Y"}"#,
            "payload_base64 is not padded base64",
        ),
        (
            r#"{"payload":"a","tombstone":true}"#,
            "a tombstone needs a key",
        ),
        (
            r#"{"payload":"a","fingerprint":"00"}"#,
            "fingerprint of 2 hex digits, 64 needed",
        ),
        (
            r#"{"payload":"a","version":1.5}"#,
            "invalid type: floating point",
        ),
        (
            r#"{"payload":"a","timestamp":-1}"#,
            "invalid value: integer `-1`",
        ),
    ] {
        let refused = pushed(line).map(|_| ()).unwrap_err();
        assert!(refused.contains(reason), "{line}: {refused}");
        // Which line it is, the reader of lines says.
        assert!(!refused.contains(" line "), "{line}: {refused}");
    }
}

#[test]
fn push_wrong_lines_are_shown_up_to_a_length() {
    let refused = |line: &str| pushed(line).map(|_| ()).unwrap_err();
    let whole = refused("nonsense \u{7}");
    assert!(whole.ends_with(" in \"nonsense \\u{7}\""), "{whole}");
    let long = refused(&"é".repeat(1000));
    assert!(
        long.ends_with(&format!("in \"{}\"...", "é".repeat(60))),
        "{long}"
    );
}
