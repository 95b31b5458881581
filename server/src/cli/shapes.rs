//! Shapes: the JSON objects that `--json` prints, one per kind of answer. Reference: `docs/cli.md`.
//!
//! **Invariants**
//! - Fields are only added; numbers are whole; absent things are `null`, or left out where it says so.
//! - Bytes are text when they are UTF-8, else base64 under a name ending in `_base64`.
//!
//! **Not here**: text for people (beside each verb).

use sealog_engine::commit::{Commit, CommitKind};
use sealog_engine::{FeedInfo, ProducerInfo, StreamInfo, StreamPhase};
use sealog_frame::RecordView;
use serde::Serialize;

use super::encode;
use super::time;

/// A feed.
#[derive(Serialize)]
pub(super) struct FeedShape {
    pub(super) feed: String,
    pub(super) id: u64,
    pub(super) keys: bool,
    pub(super) exclusive: bool,
    pub(super) created_ms: u64,
    pub(super) epoch: u64,
    pub(super) next_sequence: u64,
    pub(super) commits: u64,
    pub(super) open_stream: Option<u64>,
    pub(super) unpublished_streams: u64,
    pub(super) producers: u64,
}

impl From<FeedInfo> for FeedShape {
    fn from(info: FeedInfo) -> Self {
        Self {
            feed: info.name,
            id: info.id.0,
            keys: info.options.keys,
            exclusive: info.options.exclusive,
            created_ms: info.created_ms,
            epoch: info.epoch.0,
            next_sequence: info.next_sequence,
            commits: info.commits,
            open_stream: info.open_stream.map(|stream| stream.0),
            unpublished_streams: info.unpublished,
            producers: info.producers,
        }
    }
}

/// A commit.
#[derive(Serialize)]
pub(super) struct CommitShape {
    pub(super) feed: String,
    pub(super) commit: u64,
    pub(super) kind: &'static str,
    pub(super) stream: u64,
    pub(super) epoch: u64,
    pub(super) first: u64,
    /// `null` when the range is empty.
    pub(super) last: Option<u64>,
    pub(super) records: u64,
    pub(super) payload_bytes: u64,
    pub(super) message: String,
    pub(super) time_ms: u64,
    pub(super) parent: Option<String>,
    pub(super) manifest: Option<String>,
}

impl CommitShape {
    pub(super) fn of(feed: &str, commit: Commit) -> Self {
        let sealed = commit.kind == CommitKind::Sealed;
        let range = commit.first.0..commit.end.0;
        Self {
            feed: feed.to_owned(),
            commit: commit.number.0,
            kind: if sealed { "sealed" } else { "discarded" },
            stream: commit.stream.0,
            epoch: commit.epoch.0,
            first: range.start,
            last: range.last(),
            records: commit.records,
            payload_bytes: commit.payload_bytes,
            message: commit.message,
            time_ms: commit.time_ms,
            parent: (commit.number.0 > 0).then(|| commit.parent.to_string()),
            manifest: sealed.then(|| commit.manifest.to_string()),
        }
    }

    pub(super) fn text(&self) -> String {
        let (number, records) = (self.commit, count(self.records, "record"));
        let range = range(self.first, self.last);
        let kind = if self.kind == "sealed" {
            ""
        } else {
            " (discarded)"
        };
        let message = &self.message;
        format!("commit {number}{kind}: {records}, {range}, message {message:?}")
    }
}

/// "1 record", "2 records", "2 batches".
pub(super) fn count(number: u64, noun: &str) -> String {
    let ending = match number {
        1 => "",
        _ if noun.ends_with("ch") || noun.ends_with('x') => "es",
        _ => "s",
    };
    format!("{number} {noun}{ending}")
}

/// "sequences 0..=1", or that there are none.
pub(super) fn range(first: u64, last: Option<u64>) -> String {
    match last {
        Some(last) => format!("sequences {first}..={last}"),
        None => "no sequences".to_owned(),
    }
}

/// A stream.
#[derive(Serialize)]
pub(super) struct StreamShape {
    pub(super) feed: String,
    pub(super) stream: u64,
    pub(super) phase: &'static str,
    pub(super) first: u64,
    pub(super) last: Option<u64>,
    pub(super) records: u64,
    pub(super) payload_bytes: u64,
    pub(super) packed_end: u64,
    pub(super) commit: Option<u64>,
}

impl StreamShape {
    pub(super) fn of(feed: &str, info: &StreamInfo) -> Self {
        Self {
            feed: feed.to_owned(),
            stream: info.id.0,
            phase: match info.phase {
                StreamPhase::Open => "open",
                StreamPhase::Abandoned => "abandoned",
                StreamPhase::Sealed => "sealed",
                StreamPhase::Published => "published",
                StreamPhase::Discarded => "discarded",
            },
            first: info.first,
            last: (info.first..info.end).last(),
            records: info.records,
            payload_bytes: info.payload_bytes,
            packed_end: info.packed_end,
            commit: info.commit.map(|commit| commit.0),
        }
    }
}

/// A producer.
#[derive(Serialize)]
pub(super) struct ProducerShape {
    pub(super) feed: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) producer: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) producer_base64: Option<String>,
    pub(super) epoch: u64,
    pub(super) last_sequence: u64,
    pub(super) last_updated_ms: u64,
    pub(super) last_range: [u64; 2],
}

impl ProducerShape {
    pub(super) fn of(feed: &str, info: &ProducerInfo) -> Self {
        let (text, base64) = text_or_base64(&info.id);
        Self {
            feed: feed.to_owned(),
            producer: text.map(str::to_owned),
            producer_base64: base64,
            epoch: info.state.epoch,
            last_sequence: info.state.last_sequence,
            last_updated_ms: info.state.last_updated_ms,
            last_range: [info.state.last_range.0, info.state.last_range.1],
        }
    }
}

/// What an append came to.
#[derive(Serialize)]
pub(super) struct AppendShape {
    pub(super) feed: String,
    /// The open stream; `null` when nothing was open and nothing new came.
    pub(super) stream: Option<u64>,
    /// Writer epoch: the fencing token for more.
    pub(super) epoch: u64,
    /// First and last sequence of the input's records; `null` when there were none.
    pub(super) first: Option<u64>,
    pub(super) last: Option<u64>,
    /// Records stored now.
    pub(super) records: u64,
    /// Batches that were stored before.
    pub(super) duplicate_batches: u64,
    pub(super) commit: Option<CommitShape>,
}

/// A record. `append --ndjson` takes it back.
#[derive(Serialize)]
pub(super) struct RecordShape<'a> {
    sequence: u64,
    /// Effective timestamp.
    time: u64,
    /// As sent.
    #[serde(skip_serializing_if = "Option::is_none")]
    timestamp: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    key_base64: Option<String>,
    #[serde(skip_serializing_if = "is_zero")]
    version: i64,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    tombstone: bool,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    headers: Vec<HeaderShape<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    fingerprint: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    payload: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    payload_base64: Option<String>,
}

#[derive(Serialize)]
struct HeaderShape<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    name_base64: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    value: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    value_base64: Option<String>,
}

fn is_zero(version: &i64) -> bool {
    *version == 0
}

fn text_or_base64(bytes: &[u8]) -> (Option<&str>, Option<String>) {
    match std::str::from_utf8(bytes) {
        Ok(text) => (Some(text), None),
        Err(_) => (None, Some(encode::base64(bytes))),
    }
}

impl<'a> RecordShape<'a> {
    /// `print` is the record's fingerprint where it was asked for; what was sent is shown anyhow.
    pub(super) fn of(record: &RecordView<'a>, print: Option<&[u8; 32]>) -> Self {
        let (payload, payload_base64) = text_or_base64(record.payload);
        let (key, key_base64) = record.key.map_or((None, None), text_or_base64);
        let print = print.or(record.fingerprint);
        Self {
            sequence: record.sequence,
            time: record.timestamp_ms,
            timestamp: record.sent_timestamp_ms,
            key,
            key_base64,
            version: record.version,
            tombstone: record.tombstone,
            headers: record.headers().map(HeaderShape::of).collect(),
            fingerprint: print.map(encode::hex),
            payload,
            payload_base64,
        }
    }
}

impl<'a> HeaderShape<'a> {
    fn of((name, value): (&'a [u8], &'a [u8])) -> Self {
        let (name, name_base64) = text_or_base64(name);
        let (value, value_base64) = text_or_base64(value);
        Self {
            name,
            name_base64,
            value,
            value_base64,
        }
    }
}

/// Time for people.
pub(super) fn when(ms: u64) -> String {
    time::format(ms)
}
