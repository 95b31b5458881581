//! Batch builder: turns records into one sealed frame. Spec: spec/frame.md §2, §3.
//!
//! **Invariants**
//! - A record that is refused leaves the batch as it was.
//! - What [`BatchBuilder::build`] returns parses under the builder's own limits.
//! - The buffers are kept from batch to batch.
//!
//! **Not here**: server fields (`stamp`), SPARSE frames (`sparse`).

use zerocopy::IntoBytes;
use zerocopy::little_endian::{U32, U64};

use crate::batch::{Batch, seal};
use crate::error::{FrameError, at_most, valid, within};
use crate::layout::{
    ClientSection, ENTRY_BYTES, FINGERPRINT_BYTES, FORMAT_VERSION, FRAME_HEADER_BYTES, FrameHeader,
    FrameKind, HEADER_PREFIX_BYTES, MAGIC, NO_KEY, ServerSection, TableEntry, flag, record_flag,
};
use crate::limits::FrameLimits;
use crate::record::{MatchSequence, Record};

/// Collects records into a batch.
#[derive(Debug, Clone, Default)]
pub struct BatchBuilder {
    limits: FrameLimits,
    table: Vec<u8>,
    data: Vec<u8>,
    producer_id: Vec<u8>,
    producer_epoch: u64,
    producer_sequence: u64,
    fencing_token: u64,
    match_sequence: u64,
    flags: u16,
    headers: usize,
    metered_bytes: usize,
}

/// What one record adds to a batch.
struct Measured {
    headers_bytes: usize,
    metered_bytes: usize,
    area_bytes: usize,
}

impl BatchBuilder {
    /// An empty builder that refuses what is over `limits`, or over the format's own: a frame beyond those could be
    /// sent and never read.
    #[must_use]
    pub fn new(limits: FrameLimits) -> Self {
        Self {
            limits: limits.lowered(),
            ..Self::default()
        }
    }

    /// Adds a record.
    ///
    /// # Errors
    /// [`FrameError::TooLarge`] or [`FrameError::TooMany`] when the record, or the batch with it, is over a limit;
    /// [`FrameError::Invalid`] for a tombstone without a key. The batch is as it was before.
    pub fn push(&mut self, record: &Record<'_>) -> Result<(), FrameError> {
        let measured = self.measure(record)?;
        self.data.reserve(measured.area_bytes);
        let data = &mut self.data;
        if let Some(key) = record.key {
            data.extend_from_slice(key);
            self.flags |= flag::KEYED;
        }
        for (name, value) in &record.headers {
            data.extend_from_slice(U32::new(length(name)).as_bytes());
            data.extend_from_slice(U32::new(length(value)).as_bytes());
            data.extend_from_slice(name);
            data.extend_from_slice(value);
        }
        if let Some(fingerprint) = &record.fingerprint {
            data.extend_from_slice(fingerprint);
        }
        data.extend_from_slice(record.payload);
        let entry = TableEntry {
            data_end: length(data).into(),
            key_bytes: record.key.map_or(NO_KEY, length).into(),
            headers_bytes: u32_of(measured.headers_bytes).into(),
            flags: record_flags(record).into(),
            timestamp_ms: record.timestamp_ms.unwrap_or(0).into(),
            version: record.version.into(),
        };
        self.table.extend_from_slice(entry.as_bytes());
        self.headers += record.headers.len();
        self.metered_bytes += measured.metered_bytes;
        Ok(())
    }

    /// Whether [`BatchBuilder::push`] would take the record. If not even an empty builder would, no batch can.
    #[must_use]
    pub fn would_fit(&self, record: &Record<'_>) -> bool {
        self.measure(record).is_ok()
    }

    /// Number of records so far.
    #[must_use]
    pub fn len(&self) -> usize {
        self.table.len() / ENTRY_BYTES
    }

    /// Whether there is no record yet.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.table.is_empty()
    }

    /// Payloads, keys, header names and values so far, in bytes.
    #[must_use]
    pub fn metered_bytes(&self) -> u64 {
        self.metered_bytes as u64
    }

    /// Binds the batch to the feed epoch `token`: under another it is refused.
    pub fn fencing_token(&mut self, token: u64) -> &mut Self {
        self.fencing_token = token;
        self.flags |= flag::FENCED;
        self
    }

    /// Makes the batch conditional on the feed's last sequence.
    pub fn match_sequence(&mut self, expected: MatchSequence) -> &mut Self {
        self.flags &= !(flag::MATCH_EMPTY | flag::MATCH_AT);
        match expected {
            MatchSequence::Empty => {
                self.match_sequence = 0;
                self.flags |= flag::MATCH_EMPTY;
            }
            MatchSequence::At(last) => {
                self.match_sequence = last;
                self.flags |= flag::MATCH_AT;
            }
        }
        self
    }

    /// Marks the batch as number `sequence` of an idempotent producer.
    ///
    /// # Errors
    /// [`FrameError::Invalid`] for an empty id, [`FrameError::TooLarge`] for one over the limit.
    pub fn producer(
        &mut self,
        id: &[u8],
        epoch: u64,
        sequence: u64,
    ) -> Result<&mut Self, FrameError> {
        valid(!id.is_empty(), "producer_id_bytes", 0_u64)?;
        within("producer_id", id.len(), self.limits.producer_id_bytes_max)?;
        self.producer_id.clear();
        self.producer_id.extend_from_slice(id);
        self.producer_epoch = epoch;
        self.producer_sequence = sequence;
        self.flags |= flag::PRODUCER;
        Ok(self)
    }

    /// Seals what was pushed into a batch, and leaves the builder empty for the next one.
    ///
    /// # Errors
    /// [`FrameError::Empty`] without records. The builder is as it was before.
    pub fn build(&mut self) -> Result<Batch, FrameError> {
        if self.is_empty() {
            return Err(FrameError::Empty);
        }
        let frame_bytes =
            FRAME_HEADER_BYTES + self.producer_id.len() + self.table.len() + self.data.len();
        debug_assert!(frame_bytes <= self.limits.frame_bytes_max());
        let header = FrameHeader {
            server: ServerSection {
                sequence_span: (self.len() as u64).into(),
                ..unsealed_server(FrameKind::Plain, frame_bytes)
            },
            client: self.client_section(),
        };
        let mut frame = Vec::with_capacity(frame_bytes);
        frame.extend_from_slice(header.as_bytes());
        frame.extend_from_slice(&self.producer_id);
        frame.extend_from_slice(&self.table);
        frame.extend_from_slice(&self.data);
        seal(&mut frame);
        self.reset();
        Ok(Batch::sealed(frame))
    }

    /// Forgets records, token, condition and producer; keeps limits and buffers.
    pub fn reset(&mut self) {
        self.table.clear();
        self.data.clear();
        self.producer_id.clear();
        self.producer_epoch = 0;
        self.producer_sequence = 0;
        self.fencing_token = 0;
        self.match_sequence = 0;
        self.flags = 0;
        self.headers = 0;
        self.metered_bytes = 0;
    }

    fn measure(&self, record: &Record<'_>) -> Result<Measured, FrameError> {
        let limits = &self.limits;
        let holds = record.key.is_some() || !record.tombstone;
        valid(holds, "record flags", record_flags(record))?;
        let key_bytes = record.key.map_or(0, <[u8]>::len);
        within("key", key_bytes, limits.key_bytes_max)?;
        let names_and_values: usize = record
            .headers
            .iter()
            .map(|(name, value)| name.len() + value.len())
            .sum();
        let record_bytes = record.payload.len() + names_and_values;
        within("record", record_bytes, limits.record_bytes_max)?;
        let metered_bytes = record_bytes + key_bytes;
        within(
            "batch",
            self.metered_bytes + metered_bytes,
            limits.batch_bytes_max,
        )?;
        at_most("records", self.len() + 1, limits.records_max)?;
        at_most(
            "headers",
            self.headers + record.headers.len(),
            limits.headers_max,
        )?;
        let headers_bytes = names_and_values + record.headers.len() * HEADER_PREFIX_BYTES;
        let fingerprint_bytes = record.fingerprint.map_or(0, |_| FINGERPRINT_BYTES);
        let area_bytes = key_bytes + headers_bytes + fingerprint_bytes + record.payload.len();
        Ok(Measured {
            headers_bytes,
            metered_bytes,
            area_bytes,
        })
    }

    fn client_section(&self) -> ClientSection {
        ClientSection {
            record_count: u32_of(self.len()).into(),
            flags: self.flags.into(),
            producer_id_bytes: u16::try_from(self.producer_id.len())
                .expect("checked when it was set")
                .into(),
            fencing_token: self.fencing_token.into(),
            match_sequence: self.match_sequence.into(),
            producer_epoch: self.producer_epoch.into(),
            producer_sequence: self.producer_sequence.into(),
            metered_bytes: U64::new(self.metered_bytes as u64),
            reserved: [0; 16],
        }
    }
}

/// A server section with nothing stamped and nothing sealed.
pub(crate) fn unsealed_server(kind: FrameKind, frame_bytes: usize) -> ServerSection {
    ServerSection {
        magic: MAGIC,
        format_version: FORMAT_VERSION.into(),
        kind: kind.code(),
        timestamp_mode: 0,
        frame_bytes: u32_of(frame_bytes).into(),
        header_crc: U32::ZERO,
        body_crc: U32::ZERO,
        cap: 0,
        reserved: [0; 3],
        base_sequence: U64::ZERO,
        arrival_ms: U64::ZERO,
        timestamp_floor_ms: U64::ZERO,
        epoch: U64::ZERO,
        sequence_span: U64::ZERO,
    }
}

fn record_flags(record: &Record<'_>) -> u32 {
    let mut flags = 0;
    if record.tombstone {
        flags |= record_flag::TOMBSTONE;
    }
    if record.timestamp_ms.is_some() {
        flags |= record_flag::TIMESTAMP;
    }
    if record.fingerprint.is_some() {
        flags |= record_flag::FINGERPRINT;
    }
    flags
}

fn length(bytes: &[u8]) -> u32 {
    u32_of(bytes.len())
}

/// A length within a frame, whose own length is bounded by u32 before anything is written.
pub(crate) fn u32_of(length: usize) -> u32 {
    u32::try_from(length).expect("frame lengths are bounded by u32")
}
