//! Commit: the published entry of a sealed or discarded stream. Spec: spec/commit.md §1.
//!
//! **Invariants**
//! - COMMIT-2: the parent is the digest of the previous commit object, zero exactly for number 0.
//! - COMMIT-3: a sealed commit names a manifest, a discarded one names none.
//! - Decoding takes no byte on trust: any other byte than those written is an error.
//!
//! **Not here**: object names (`paths`), the order in which commits are created (the lane).

use crate::codec::{DecodeError, Reader, Writer};
use crate::ids::{CommitNumber, Digest, Epoch, FeedId, Sequence, StreamId};
use crate::pack::layout::{self, Format};

/// Longest message in bytes.
pub const MESSAGE_BYTES_MAX: usize = 64 * 1024;
const COMMIT: Format = Format {
    name: "commit",
    magic: *b"SEALCOMT",
    version: 1,
};

/// What became of the stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CommitKind {
    /// Its records are part of the feed's history.
    Sealed,
    /// Its range of sequences was taken out.
    Discarded,
}

/// One entry of a feed's history.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Commit {
    /// Position in the history.
    pub number: CommitNumber,
    /// Sealed or discarded.
    pub kind: CommitKind,
    /// The feed.
    pub feed: FeedId,
    /// The stream it is about.
    pub stream: StreamId,
    /// Writer epoch under which the stream was sealed or discarded.
    pub epoch: Epoch,
    /// Digest of the previous commit object; zero for number 0.
    pub parent: Digest,
    /// First sequence of the range.
    pub first: Sequence,
    /// End of the range, exclusive.
    pub end: Sequence,
    /// Records in the range.
    pub records: u64,
    /// Sum of their payloads in bytes.
    pub payload_bytes: u64,
    /// The writer's words.
    pub message: String,
    /// When the stream was sealed, milliseconds since the Unix epoch.
    pub time_ms: u64,
    /// Digest of the manifest; zero for a discarded stream.
    pub manifest: Digest,
}

impl Commit {
    /// The object's bytes.
    ///
    /// # Panics
    /// When the message is longer than [`MESSAGE_BYTES_MAX`] or a field contradicts another
    /// (COMMIT-2 to COMMIT-4): sealing refused that long before.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        if let Err(error) = self.check() {
            panic!("commit that decoding would refuse: {error}");
        }
        let mut out = Writer::new();
        out.raw(&COMMIT.magic).u16(COMMIT.version);
        out.u8(match self.kind {
            CommitKind::Sealed => 1,
            CommitKind::Discarded => 2,
        });
        out.u8(0).u32(0);
        out.u64(self.number.0).u64(self.feed.0).u64(self.stream.0);
        out.u64(self.epoch.0).u64(self.first.0).u64(self.end.0);
        out.u64(self.records)
            .u64(self.payload_bytes)
            .u64(self.time_ms);
        out.raw(&self.parent.0).raw(&self.manifest.0);
        out.bytes(self.message.as_bytes());
        layout::seal(&mut out.0, layout::PREAMBLE_CRC_AT);
        out.0
    }

    /// Reads a whole object.
    ///
    /// # Errors
    /// [`DecodeError`] unless the bytes are exactly those of one consistent commit of a known version.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        COMMIT.check_version(bytes)?;
        layout::check_crc("commit", bytes, layout::PREAMBLE_CRC_AT)?;
        let mut r = Reader(bytes);
        r.raw(10)?;
        let kind = match r.u8()? {
            1 => CommitKind::Sealed,
            2 => CommitKind::Discarded,
            other => return Err(layout::invalid("kind", other.into())),
        };
        layout::zero("reserved", r.raw(1)?)?;
        r.u32()?;
        let commit = Self {
            kind,
            number: CommitNumber(r.u64()?),
            feed: FeedId(r.u64()?),
            stream: StreamId(r.u64()?),
            epoch: Epoch(r.u64()?),
            first: Sequence(r.u64()?),
            end: Sequence(r.u64()?),
            records: r.u64()?,
            payload_bytes: r.u64()?,
            time_ms: r.u64()?,
            parent: Digest(r.array()?),
            manifest: Digest(r.array()?),
            message: std::str::from_utf8(r.bytes()?)
                .map_err(|error| layout::invalid("message", error.valid_up_to() as u64))?
                .to_owned(),
        };
        r.finish()?;
        commit.check()?;
        Ok(commit)
    }

    /// Digest of the object's bytes: what the next commit's parent is.
    #[must_use]
    pub fn digest(&self) -> Digest {
        Digest::of(&self.encode())
    }

    fn check(&self) -> Result<(), DecodeError> {
        if self.message.len() > MESSAGE_BYTES_MAX {
            return Err(layout::invalid("message_bytes", self.message.len() as u64));
        }
        if (self.number.0 == 0) != (self.parent == Digest::default()) {
            return Err(layout::invalid("parent", self.number.0));
        }
        let sealed = self.kind == CommitKind::Sealed;
        if sealed == (self.manifest == Digest::default()) {
            return Err(layout::invalid("manifest", self.number.0));
        }
        layout::check_range(self.first.0, self.end.0, self.records)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn sample() -> Commit {
        Commit {
            number: CommitNumber(3),
            kind: CommitKind::Sealed,
            feed: FeedId(1 << 48 | 5),
            stream: StreamId(4),
            epoch: Epoch(2),
            parent: Digest([9; 32]),
            first: Sequence(100),
            end: Sequence(220),
            records: 120,
            payload_bytes: 5_000,
            message: "nightly load \u{2713}".to_owned(),
            time_ms: 1_700_000_000_000,
            manifest: Digest([8; 32]),
        }
    }

    #[test]
    fn roundtrip_commit_of_each_kind() {
        let sealed = sample();
        let discarded = Commit {
            kind: CommitKind::Discarded,
            manifest: Digest::default(),
            message: String::new(),
            ..sample()
        };
        let root = Commit {
            number: CommitNumber(0),
            parent: Digest::default(),
            ..sample()
        };
        let longest = Commit {
            message: "m".repeat(MESSAGE_BYTES_MAX),
            ..sample()
        };
        for commit in [sealed, discarded, root, longest] {
            let bytes = commit.encode();
            assert_eq!(Commit::decode(&bytes), Ok(commit.clone()));
            assert_eq!(Digest::of(&bytes), commit.digest());
        }
    }

    #[test]
    fn exhaustive_commit_any_flipped_bit_or_cut_is_detected() {
        let bytes = sample().encode();
        for at in 0..bytes.len() {
            for bit in 0..8 {
                let mut damaged = bytes.clone();
                damaged[at] ^= 1 << bit;
                assert!(Commit::decode(&damaged).is_err(), "byte {at} bit {bit}");
            }
            assert!(Commit::decode(&bytes[..at]).is_err(), "cut at {at}");
        }
        let longer = [bytes.as_slice(), &[0]].concat();
        assert!(Commit::decode(&longer).is_err());
    }

    #[test]
    fn commit_newer_version_is_named() {
        let mut bytes = sample().encode();
        bytes[8] = 2;
        let newer = DecodeError::Version {
            format: "commit",
            found: 2,
            supported: 1,
        };
        assert_eq!(Commit::decode(&bytes), Err(newer));
    }

    #[test]
    fn commit_contradicting_fields_are_refused_under_a_valid_checksum() {
        let patches: [(usize, &[u8], &str); 6] = [
            (10, &[3], "kind"),
            (11, &[1], "reserved"),
            (16, &[0; 8], "parent"),
            (120, &[0; 32], "manifest"),
            (48, &[221, 0, 0, 0, 0, 0, 0, 0], "end_sequence"),
            (64, &[121, 0, 0, 0, 0, 0, 0, 0], "record_count"),
        ];
        for (at, patch, expected) in patches {
            let mut bytes = sample().encode();
            bytes[at..at + patch.len()].copy_from_slice(patch);
            layout::seal(&mut bytes, layout::PREAMBLE_CRC_AT);
            match Commit::decode(&bytes) {
                Err(DecodeError::Invalid { field, .. }) => assert_eq!(field, expected),
                other => panic!("{expected}: {other:?}"),
            }
        }
    }

    #[test]
    #[should_panic(expected = "message_bytes")]
    fn commit_encode_message_too_long_panics() {
        let commit = Commit {
            message: "m".repeat(MESSAGE_BYTES_MAX + 1),
            ..sample()
        };
        let _ = commit.encode();
    }
}
