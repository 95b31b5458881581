//! Test frames: generated batches, and bytes broken on purpose and sealed again.
//!
//! **Invariants**
//! - `reseal` sets both checksums right, so that what a parser then refuses is the value under test.
//!
//! **Not here**: assertions.
#![allow(dead_code, clippy::unwrap_used, missing_docs)]

use proptest::collection::vec;
use proptest::prelude::*;
use sealog_frame::{Batch, BatchBuilder, FrameLimits, MatchSequence, Record};

/// An owned record, for generators.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Owned {
    pub payload: Vec<u8>,
    pub key: Option<Vec<u8>>,
    pub version: i64,
    pub tombstone: bool,
    pub headers: Vec<(Vec<u8>, Vec<u8>)>,
    pub timestamp_ms: Option<u64>,
    pub fingerprint: Option<[u8; 32]>,
}

impl Owned {
    pub fn borrow(&self) -> Record<'_> {
        Record {
            payload: &self.payload,
            key: self.key.as_deref(),
            version: self.version,
            tombstone: self.tombstone,
            headers: self
                .headers
                .iter()
                .map(|(name, value)| (name.as_slice(), value.as_slice()))
                .collect(),
            timestamp_ms: self.timestamp_ms,
            fingerprint: self.fingerprint,
        }
    }
}

/// What a batch carries besides its records.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Tags {
    pub token: Option<u64>,
    pub matching: Option<MatchSequence>,
    pub producer: Option<(Vec<u8>, u64, u64)>,
}

pub fn tags() -> impl Strategy<Value = Tags> {
    let matching = prop_oneof![
        Just(MatchSequence::Empty),
        any::<u64>().prop_map(MatchSequence::At)
    ];
    let producer = (vec(any::<u8>(), 1..=256), any::<u64>(), any::<u64>());
    (
        proptest::option::of(any::<u64>()),
        proptest::option::of(matching),
        proptest::option::of(producer),
    )
        .prop_map(|(token, matching, producer)| Tags {
            token,
            matching,
            producer,
        })
}

pub fn record() -> impl Strategy<Value = Owned> {
    let bytes = || vec(any::<u8>(), 0..40);
    (
        bytes(),
        proptest::option::of(bytes()),
        any::<i64>(),
        any::<bool>(),
        vec((bytes(), bytes()), 0..4),
        proptest::option::of(any::<u64>()),
        proptest::option::of(any::<[u8; 32]>()),
    )
        .prop_map(
            |(payload, key, version, tombstone, headers, timestamp_ms, fingerprint)| Owned {
                payload,
                tombstone: tombstone && key.is_some(),
                key,
                version,
                headers,
                timestamp_ms,
                fingerprint,
            },
        )
}

pub fn records() -> impl Strategy<Value = Vec<Owned>> {
    vec(record(), 1..20)
}

/// A builder with the tags set and no records.
pub fn builder(tags: &Tags) -> BatchBuilder {
    let mut builder = BatchBuilder::new(FrameLimits::DEFAULT);
    if let Some(token) = tags.token {
        builder.fencing_token(token);
    }
    if let Some(matching) = tags.matching {
        builder.match_sequence(matching);
    }
    if let Some((id, epoch, sequence)) = &tags.producer {
        builder.producer(id, *epoch, *sequence).unwrap();
    }
    builder
}

pub fn build(records: &[Owned], tags: &Tags) -> Batch {
    let mut builder = builder(tags);
    for record in records {
        builder.push(&record.borrow()).unwrap();
    }
    builder.build().unwrap()
}

/// A batch of plain payloads.
pub fn plain(payloads: &[&[u8]]) -> Batch {
    let mut builder = BatchBuilder::default();
    for payload in payloads {
        builder.push(&Record::of(payload)).unwrap();
    }
    builder.build().unwrap()
}

/// Sets length and both checksums of a frame to what its bytes say.
pub fn reseal(frame: &mut [u8]) {
    if frame.len() < 128 {
        return;
    }
    let frame_bytes = u32::try_from(frame.len()).unwrap();
    frame[8..12].copy_from_slice(&frame_bytes.to_le_bytes());
    reseal_sums(frame);
}

/// Sets both checksums, leaves the length field alone.
pub fn reseal_sums(frame: &mut [u8]) {
    let body = crc32c::crc32c(&frame[64..]);
    frame[16..20].copy_from_slice(&body.to_le_bytes());
    frame[12..16].fill(0);
    let header = crc32c::crc32c(&frame[..64]);
    frame[12..16].copy_from_slice(&header.to_le_bytes());
}
