//! Manifest: which packs and which key index hold a stream. Spec: spec/manifest.md §1.
//!
//! **Invariants**
//! - MANIFEST-2: packs are in sequence order and do not overlap; together they lie in the stream's range.
//! - MANIFEST-3: counts are the sums, timestamps the bounds, and the root the Merkle root of the packs'.
//! - Decoding checks both again, so a decoded manifest is consistent.
//!
//! **Not here**: where an object of a digest lies (`paths`).

use crate::codec::{DecodeError, Reader, Writer};
use crate::ids::{Digest, FeedId, LogId, Sequence, StreamId};
use crate::pack::layout::{self, Format};
use crate::pack::merkle::{Merkle, leaf_hash};
use crate::pack::{PackSummary, SectionSummary};

const MANIFEST: Format = Format {
    name: "manifest",
    magic: *b"SEALMANI",
    version: 1,
};
const FLAG_KEY_INDEX: u16 = 1;
/// Bytes of one pack's row.
const ROW_BYTES: usize = 136;

/// Where a pack lies in the bucket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PackPlace {
    /// Below the stream.
    Stream,
    /// Below the log whose streams share it.
    Shared(LogId),
}

/// A pack, or the section of a shared pack, that holds part of the stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PackRef {
    /// Where it lies.
    pub place: PackPlace,
    /// Digest of the whole object; its name.
    pub digest: Digest,
    /// Length of the whole object.
    pub pack_bytes: u64,
    /// First sequence of the section.
    pub first: Sequence,
    /// End of the section, exclusive.
    pub end: Sequence,
    /// Records in the section.
    pub records: u64,
    /// Their payload bytes.
    pub payload_bytes: u64,
    /// Effective timestamp of the section's first record.
    pub first_timestamp_ms: u64,
    /// Highest effective timestamp.
    pub max_timestamp_ms: u64,
    /// Merkle root over the section's records.
    pub merkle_root: [u8; 32],
}

impl PackRef {
    /// The row of a section of a pack.
    #[must_use]
    pub fn of(place: PackPlace, pack: &PackSummary, section: &SectionSummary) -> Self {
        Self {
            place,
            digest: pack.digest,
            pack_bytes: pack.bytes,
            first: section.first,
            end: section.end,
            records: section.records,
            payload_bytes: section.payload_bytes,
            first_timestamp_ms: section.first_timestamp_ms,
            max_timestamp_ms: section.max_timestamp_ms,
            merkle_root: section.merkle_root,
        }
    }
}

/// A stream's key index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeyIndexRef {
    /// Digest of the object; its name.
    pub digest: Digest,
    /// Its length.
    pub bytes: u64,
}

/// What holds a stream. Sums, bounds and root follow from the packs: see [`Manifest::totals`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Manifest {
    /// The feed.
    pub feed: FeedId,
    /// The stream.
    pub stream: StreamId,
    /// First sequence of the stream's range.
    pub first: Sequence,
    /// End of the range, exclusive.
    pub end: Sequence,
    /// The packs, in sequence order.
    pub packs: Vec<PackRef>,
    /// The key index, if the feed allows keys.
    pub key_index: Option<KeyIndexRef>,
}

/// What a manifest says about all of its stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ManifestTotals {
    /// Records kept.
    pub records: u64,
    /// Their payload bytes.
    pub payload_bytes: u64,
    /// Effective timestamp of the first record; 0 without records.
    pub first_timestamp_ms: u64,
    /// Highest effective timestamp; 0 without records.
    pub max_timestamp_ms: u64,
    /// Merkle root over the roots of the packs' sections.
    pub merkle_root: [u8; 32],
}

impl Manifest {
    /// Sums, bounds and root over the packs.
    #[must_use]
    pub fn totals(&self) -> ManifestTotals {
        let mut tree = Merkle::new();
        self.packs
            .iter()
            .for_each(|pack| tree.push_leaf(leaf_hash(&pack.merkle_root)));
        let sum = |field: fn(&PackRef) -> u64| {
            self.packs
                .iter()
                .fold(0u64, |sum, pack| sum.saturating_add(field(pack)))
        };
        ManifestTotals {
            records: sum(|pack| pack.records),
            payload_bytes: sum(|pack| pack.payload_bytes),
            first_timestamp_ms: self.packs.first().map_or(0, |pack| pack.first_timestamp_ms),
            max_timestamp_ms: self
                .packs
                .iter()
                .map(|p| p.max_timestamp_ms)
                .max()
                .unwrap_or(0),
            merkle_root: tree.root(),
        }
    }

    /// The packs that hold records from `sequence` on: the first may begin before it.
    #[must_use]
    pub fn packs_from(&self, sequence: Sequence) -> &[PackRef] {
        let from = self.packs.partition_point(|pack| pack.end <= sequence);
        &self.packs[from..]
    }

    /// The packs whose records reach `timestamp_ms` or later.
    #[must_use]
    pub fn packs_from_timestamp(&self, timestamp_ms: u64) -> &[PackRef] {
        let reaches = |pack: &PackRef| pack.max_timestamp_ms >= timestamp_ms;
        let from = self.packs.iter().position(reaches);
        &self.packs[from.unwrap_or(self.packs.len())..]
    }

    /// The object's bytes.
    ///
    /// # Panics
    /// When MANIFEST-2 does not hold: the lane stages packs in sequence order.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        if let Err(error) = self.check() {
            panic!("manifest that decoding would refuse: {error}");
        }
        let totals = self.totals();
        let key_index = self.key_index.unwrap_or(KeyIndexRef {
            digest: Digest::default(),
            bytes: 0,
        });
        let flags = if self.key_index.is_some() {
            FLAG_KEY_INDEX
        } else {
            0
        };
        let mut out = Writer::new();
        out.raw(&MANIFEST.magic)
            .u16(MANIFEST.version)
            .u16(flags)
            .u32(0);
        out.u64(self.feed.0).u64(self.stream.0);
        out.u64(self.first.0).u64(self.end.0);
        out.u64(totals.records).u64(totals.payload_bytes);
        out.u64(totals.first_timestamp_ms)
            .u64(totals.max_timestamp_ms);
        out.raw(&totals.merkle_root);
        out.raw(&key_index.digest.0).u64(key_index.bytes);
        out.u32(layout::stored_u32(self.packs.len())).u32(0);
        self.packs
            .iter()
            .for_each(|pack| encode_row(&mut out, pack));
        layout::seal(&mut out.0, layout::PREAMBLE_CRC_AT);
        out.0
    }

    /// Reads a whole object.
    ///
    /// # Errors
    /// [`DecodeError`] unless the bytes are exactly those of one consistent manifest of a known version.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        MANIFEST.check_version(bytes)?;
        layout::check_crc("manifest", bytes, layout::PREAMBLE_CRC_AT)?;
        let mut r = Reader(bytes);
        r.raw(10)?;
        let flags = r.u16()?;
        if flags & !FLAG_KEY_INDEX != 0 {
            return Err(layout::invalid("flags", flags.into()));
        }
        r.u32()?;
        let (feed, stream) = (FeedId(r.u64()?), StreamId(r.u64()?));
        let (first, end) = (Sequence(r.u64()?), Sequence(r.u64()?));
        let totals = ManifestTotals {
            records: r.u64()?,
            payload_bytes: r.u64()?,
            first_timestamp_ms: r.u64()?,
            max_timestamp_ms: r.u64()?,
            merkle_root: r.array()?,
        };
        let key_index = decode_key_index(&mut r, flags)?;
        let pack_count = r.u32()?;
        layout::zero("reserved", r.raw(4)?)?;
        if r.0.len() as u64 != u64::from(pack_count) * ROW_BYTES as u64 {
            return Err(layout::invalid("pack_count", pack_count.into()));
        }
        let mut packs = Vec::with_capacity(r.0.len() / ROW_BYTES);
        while !r.0.is_empty() {
            packs.push(decode_row(&mut r)?);
        }
        let manifest = Self {
            feed,
            stream,
            first,
            end,
            packs,
            key_index,
        };
        manifest.check()?;
        if manifest.totals() != totals {
            return Err(layout::invalid("totals", totals.records));
        }
        Ok(manifest)
    }

    /// Digest of the object's bytes: its name, and what the commit carries.
    #[must_use]
    pub fn digest(&self) -> Digest {
        Digest::of(&self.encode())
    }

    fn check(&self) -> Result<(), DecodeError> {
        layout::check_range(self.first.0, self.end.0, 0)?;
        let mut reached = self.first;
        for pack in &self.packs {
            layout::check_range(pack.first.0, pack.end.0, pack.records)?;
            if pack.first < reached {
                return Err(layout::invalid("pack first_sequence", pack.first.0));
            }
            if pack.records == 0 {
                return Err(layout::invalid("pack record_count", 0));
            }
            if pack.first_timestamp_ms > pack.max_timestamp_ms {
                return Err(layout::invalid(
                    "pack first_timestamp_ms",
                    pack.first_timestamp_ms,
                ));
            }
            reached = pack.end;
        }
        if reached > self.end {
            return Err(layout::invalid("pack end_sequence", reached.0));
        }
        Ok(())
    }
}

fn decode_key_index(r: &mut Reader<'_>, flags: u16) -> Result<Option<KeyIndexRef>, DecodeError> {
    let index = KeyIndexRef {
        digest: Digest(r.array()?),
        bytes: r.u64()?,
    };
    if flags & FLAG_KEY_INDEX != 0 {
        return Ok(Some(index));
    }
    layout::zero("key_index_digest", &index.digest.0)?;
    layout::zero("key_index_bytes", &index.bytes.to_le_bytes())?;
    Ok(None)
}

fn encode_row(out: &mut Writer, pack: &PackRef) {
    let (kind, log) = match pack.place {
        PackPlace::Stream => (1, 0),
        PackPlace::Shared(log) => (2, log.0),
    };
    out.u8(kind).raw(&[0; 7]).u64(log);
    out.raw(&pack.digest.0).u64(pack.pack_bytes);
    out.u64(pack.first.0).u64(pack.end.0);
    out.u64(pack.records).u64(pack.payload_bytes);
    out.u64(pack.first_timestamp_ms).u64(pack.max_timestamp_ms);
    out.raw(&pack.merkle_root);
}

fn decode_row(r: &mut Reader<'_>) -> Result<PackRef, DecodeError> {
    let kind = r.u8()?;
    layout::zero("pack reserved", r.raw(7)?)?;
    let place = match (kind, r.u64()?) {
        (1, 0) => PackPlace::Stream,
        (2, log) => PackPlace::Shared(LogId(log)),
        (other, _) => return Err(layout::invalid("pack kind", other.into())),
    };
    Ok(PackRef {
        place,
        digest: Digest(r.array()?),
        pack_bytes: r.u64()?,
        first: Sequence(r.u64()?),
        end: Sequence(r.u64()?),
        records: r.u64()?,
        payload_bytes: r.u64()?,
        first_timestamp_ms: r.u64()?,
        max_timestamp_ms: r.u64()?,
        merkle_root: r.array()?,
    })
}

#[cfg(test)]
mod tests;
