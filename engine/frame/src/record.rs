//! Records: what a client hands in, and the borrowed view a reader gets.
//!
//! **Invariants**
//! - A key of length zero is a key; no key is no key (FRAME-9).
//! - A view's bytes are the frame's own: nothing is copied.
//!
//! **Not here**: the frame around them.

use crate::layout::HEADER_PREFIX_BYTES;

/// The condition a batch may put on the feed it is appended to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MatchSequence {
    /// The feed has never had a record.
    Empty,
    /// The feed's last sequence is this one.
    At(u64),
}

/// Which idempotent producer sent the batch, and which of its batches it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProducerTag<'a> {
    /// Producer id, 1 to 256 bytes.
    pub id: &'a [u8],
    /// Producer epoch; not the feed's epoch.
    pub epoch: u64,
    /// Producer sequence; not the record's sequence.
    pub sequence: u64,
}

/// A record to append. Borrowed: the builder copies it into the batch.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Record<'a> {
    /// The payload; may be empty.
    pub payload: &'a [u8],
    /// The key; an empty key is a key.
    pub key: Option<&'a [u8]>,
    /// Version within the key: the highest one wins in `latest`.
    pub version: i64,
    /// Hides the key in `latest`. Needs a key.
    pub tombstone: bool,
    /// Headers in order; names may repeat and be empty.
    pub headers: Vec<(&'a [u8], &'a [u8])>,
    /// The client's timestamp, in milliseconds since the Unix epoch.
    pub timestamp_ms: Option<u64>,
    /// The client's fingerprint; without one readers take SHA-256 of the payload.
    pub fingerprint: Option<[u8; 32]>,
}

impl<'a> Record<'a> {
    /// A record of nothing but a payload.
    #[must_use]
    pub fn of(payload: &'a [u8]) -> Self {
        Self {
            payload,
            ..Self::default()
        }
    }

    /// A record with a key and a version.
    #[must_use]
    pub fn keyed(key: &'a [u8], version: i64, payload: &'a [u8]) -> Self {
        Self {
            payload,
            key: Some(key),
            version,
            ..Self::default()
        }
    }
}

/// A record within a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecordView<'a> {
    /// Its sequence.
    pub sequence: u64,
    /// Its effective timestamp, in milliseconds since the Unix epoch.
    pub timestamp_ms: u64,
    /// The timestamp it was sent with.
    pub sent_timestamp_ms: Option<u64>,
    /// The payload.
    pub payload: &'a [u8],
    /// The key.
    pub key: Option<&'a [u8]>,
    /// Version within the key.
    pub version: i64,
    /// Hides the key in `latest`.
    pub tombstone: bool,
    /// The fingerprint it was sent with.
    pub fingerprint: Option<&'a [u8; 32]>,
    /// Encoded headers; [`RecordView::headers`] takes them apart.
    pub headers_raw: &'a [u8],
    pub(crate) entry: &'a [u8; 32],
    pub(crate) area: &'a [u8],
}

impl<'a> RecordView<'a> {
    /// The headers in order.
    #[must_use]
    pub fn headers(&self) -> Headers<'a> {
        Headers(self.headers_raw)
    }

    /// The record as the frame has it: its table entry, and its area (key, headers, fingerprint, payload).
    ///
    /// Bytes 0..4 of the entry (`data_end`) depend on the records before it and change when a compaction takes some
    /// out. All others and the area stay as they were sent: hash those.
    #[must_use]
    pub fn encoded(&self) -> (&'a [u8; 32], &'a [u8]) {
        (self.entry, self.area)
    }

    /// The record as a client would hand it in, to append it again.
    #[must_use]
    pub fn to_record(&self) -> Record<'a> {
        Record {
            payload: self.payload,
            key: self.key,
            version: self.version,
            tombstone: self.tombstone,
            headers: self.headers().collect(),
            timestamp_ms: self.sent_timestamp_ms,
            fingerprint: self.fingerprint.copied(),
        }
    }
}

/// Iterates over a record's headers as (name, value). Ends early where the bytes are no headers.
#[derive(Debug, Clone)]
pub struct Headers<'a>(pub(crate) &'a [u8]);

impl<'a> Headers<'a> {
    /// Bytes that were not taken; none after the end of valid headers.
    pub(crate) fn rest(&self) -> &'a [u8] {
        self.0
    }
}

impl<'a> Iterator for Headers<'a> {
    type Item = (&'a [u8], &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        let (prefix, rest) = self.0.split_first_chunk::<HEADER_PREFIX_BYTES>()?;
        let [a, b, c, d, e, f, g, h] = *prefix;
        let name_bytes = u32::from_le_bytes([a, b, c, d]) as usize;
        let value_bytes = u32::from_le_bytes([e, f, g, h]) as usize;
        let (name, rest) = rest.split_at_checked(name_bytes)?;
        let (value, rest) = rest.split_at_checked(value_bytes)?;
        self.0 = rest;
        Some((name, value))
    }
}
