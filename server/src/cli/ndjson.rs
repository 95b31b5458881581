//! Ndjson: a record as a line of JSON, the schema that `append --ndjson` takes. Reference: `docs/cli.md`.
//!
//! **Invariants**
//! - What `read --format json` prints is taken as it is; `sequence` and `time` are then ignored.
//! - A record, and a header, is an object: an array is none, though serde would take it for the fields.
//! - Any other unknown field is an error that names it.
//!
//! **Not here**: the lines (`lines`), printing (`shapes`).

use std::borrow::Cow;

use sealog_frame::{BatchBuilder, Record};
use serde::Deserialize;

use super::encode;
use super::exit::CliError;
use super::input::timestamp;
use super::object::Object;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Line<'a> {
    #[serde(borrow)]
    payload: Option<Cow<'a, str>>,
    payload_base64: Option<Cow<'a, str>>,
    key: Option<Cow<'a, str>>,
    key_base64: Option<Cow<'a, str>>,
    version: Option<i64>,
    tombstone: Option<bool>,
    headers: Option<Vec<Object<Header<'a>>>>,
    timestamp: Option<u64>,
    fingerprint: Option<Cow<'a, str>>,
    #[serde(rename = "sequence")]
    _sequence: Option<serde::de::IgnoredAny>,
    #[serde(rename = "time")]
    _time: Option<serde::de::IgnoredAny>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Header<'a> {
    #[serde(borrow)]
    name: Option<Cow<'a, str>>,
    name_base64: Option<Cow<'a, str>>,
    value: Option<Cow<'a, str>>,
    value_base64: Option<Cow<'a, str>>,
}

/// Bytes given as text or as base64, but not as both.
fn bytes<'a>(
    field: &str,
    text: &'a Option<Cow<'_, str>>,
    base64: &Option<Cow<'_, str>>,
) -> Result<Option<Cow<'a, [u8]>>, CliError> {
    match (text, base64) {
        (None, None) => Ok(None),
        (Some(text), None) => Ok(Some(Cow::Borrowed(text.as_bytes()))),
        (None, Some(text)) => match encode::from_base64(text) {
            Some(bytes) => Ok(Some(Cow::Owned(bytes))),
            None => Err(CliError::usage(format!(
                "{field}_base64 is not padded base64"
            ))),
        },
        (Some(_), Some(_)) => Err(CliError::usage(format!(
            "{field} and {field}_base64 exclude each other"
        ))),
    }
}

/// The input's line is named by whoever reads lines; within it, a column is all there is to say.
fn not_a_record(error: &serde_json::Error) -> CliError {
    let text = error.to_string();
    let place = format!(" at line {} column {}", error.line(), error.column());
    let what = text.strip_suffix(&place).unwrap_or(&text);
    CliError::usage(match error.column() {
        0 => format!("not a record: {what}"),
        column => format!("not a record: {what} (column {column})"),
    })
}

/// Characters of a line that an error shows.
const SHOWN_CHARS: usize = 60;

/// The beginning of a line, in quotes.
fn shown(line: &[u8]) -> String {
    // A character has at most four bytes.
    let head = &line[..line.len().min(4 * SHOWN_CHARS)];
    let text = String::from_utf8_lossy(head);
    let text = text.trim();
    let head: String = text.chars().take(SHOWN_CHARS).collect();
    let whole = head.len() == text.len() && line.len() <= 4 * SHOWN_CHARS;
    let more = if whole { "" } else { "..." };
    format!("{head:?}{more}")
}

/// Pushes the record of one line; a blank line is none. What makes no sense is shown.
pub(super) fn push(line: &[u8], builder: &mut BatchBuilder) -> Result<(), CliError> {
    push_record(line, builder).map_err(|error| match error.is_usage() {
        true => error.within(shown(line)),
        false => error,
    })
}

fn push_record(line: &[u8], builder: &mut BatchBuilder) -> Result<(), CliError> {
    if line.trim_ascii().is_empty() {
        return Ok(());
    }
    let Object::<Line<'_>>(line) =
        serde_json::from_slice(line).map_err(|error| not_a_record(&error))?;
    let key = bytes("key", &line.key, &line.key_base64)?;
    let payload = bytes("payload", &line.payload, &line.payload_base64)?;
    let tombstone = line.tombstone.unwrap_or(false);
    if payload.is_none() && !tombstone {
        return Err(CliError::usage("payload (or payload_base64) is missing"));
    }
    if tombstone && key.is_none() {
        return Err(CliError::usage("a tombstone needs a key"));
    }
    let mut headers = Vec::new();
    for Object(header) in line.headers.iter().flatten() {
        let name = bytes("name", &header.name, &header.name_base64)?;
        let value = bytes("value", &header.value, &header.value_base64)?;
        headers.push((name.unwrap_or_default(), value.unwrap_or_default()));
    }
    let fingerprint = line.fingerprint.as_deref().map(encode::fingerprint);
    let record = Record {
        payload: payload.as_deref().unwrap_or_default(),
        key: key.as_deref(),
        version: line.version.unwrap_or(0),
        tombstone,
        headers: headers
            .iter()
            .map(|(name, value)| (&**name, &**value))
            .collect(),
        timestamp_ms: timestamp(line.timestamp)?,
        fingerprint: fingerprint.transpose().map_err(CliError::usage)?,
    };
    Ok(builder.push(&record)?)
}

#[cfg(test)]
mod tests;
