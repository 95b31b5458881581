//! Frame layout: the byte structures of header and record table. Spec: spec/frame.md §2.
//!
//! **Invariants**
//! - Little-endian, alignment 1: any byte slice of the right length is a view (FRAME-1).
//! - The structures' sizes are the spec's, checked at compile time.
//!
//! **Not here**: which values are valid (`validate`), who writes which section (`builder`, `stamp`, `sparse`).

use zerocopy::little_endian::{I64, U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Bytes before a frame's body: server section and client section.
pub const FRAME_HEADER_BYTES: usize = 128;
/// Bytes of the section that a server stamps, at the front of the header.
pub const SERVER_SECTION_BYTES: usize = 64;
/// Version of the layout that this crate reads and writes.
pub const FORMAT_VERSION: u16 = 1;

pub(crate) const MAGIC: [u8; 4] = *b"SLF1";
pub(crate) const ENTRY_BYTES: usize = 32;
pub(crate) const FINGERPRINT_BYTES: usize = 32;
pub(crate) const HEADER_PREFIX_BYTES: usize = 8;
pub(crate) const SPARSE_DELTA_BYTES: usize = 4;
pub(crate) const SPARSE_TIMESTAMP_BYTES: usize = 8;
/// `key_bytes` of a record without a key; a key of length zero is another thing (FRAME-9).
pub(crate) const NO_KEY: u32 = u32::MAX;

/// Batch flags of the client section.
pub(crate) mod flag {
    pub(crate) const FENCED: u16 = 1;
    pub(crate) const MATCH_EMPTY: u16 = 2;
    pub(crate) const MATCH_AT: u16 = 4;
    pub(crate) const PRODUCER: u16 = 8;
    pub(crate) const KEYED: u16 = 16;
    pub(crate) const ALL: u16 = FENCED | MATCH_EMPTY | MATCH_AT | PRODUCER | KEYED;
}

/// Record flags of a table entry.
pub(crate) mod record_flag {
    pub(crate) const TOMBSTONE: u32 = 1;
    pub(crate) const TIMESTAMP: u32 = 2;
    pub(crate) const FINGERPRINT: u32 = 4;
    pub(crate) const ALL: u32 = TOMBSTONE | TIMESTAMP | FINGERPRINT;
}

/// How a frame numbers its records.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FrameKind {
    /// Contiguous sequences from the base: what clients send.
    Plain,
    /// Sequence deltas and effective timestamps per record: what the compactor leaves of a frame.
    Sparse,
}

impl FrameKind {
    pub(crate) const PLAIN: u8 = 1;
    pub(crate) const SPARSE: u8 = 2;

    pub(crate) fn code(self) -> u8 {
        match self {
            Self::Plain => Self::PLAIN,
            Self::Sparse => Self::SPARSE,
        }
    }

    pub(crate) fn of(code: u8) -> Option<Self> {
        match code {
            Self::PLAIN => Some(Self::Plain),
            Self::SPARSE => Some(Self::Sparse),
            _ => None,
        }
    }
}

/// Bytes 0..64: what the server stamps, covered by `header_crc`.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(crate) struct ServerSection {
    pub(crate) magic: [u8; 4],
    pub(crate) format_version: U16,
    pub(crate) kind: u8,
    pub(crate) timestamp_mode: u8,
    pub(crate) frame_bytes: U32,
    pub(crate) header_crc: U32,
    pub(crate) body_crc: U32,
    pub(crate) cap: u8,
    pub(crate) reserved: [u8; 3],
    pub(crate) base_sequence: U64,
    pub(crate) arrival_ms: U64,
    pub(crate) timestamp_floor_ms: U64,
    pub(crate) epoch: U64,
    pub(crate) sequence_span: U64,
}

impl ServerSection {
    /// CRC32C of the section with its own field taken as zero.
    pub(crate) fn computed_crc(&self) -> u32 {
        let mut copy = *self;
        copy.header_crc = U32::ZERO;
        crc32c::crc32c(copy.as_bytes())
    }

    pub(crate) fn seal(&mut self) {
        self.header_crc = self.computed_crc().into();
    }
}

/// Bytes 64..128: what the client fixed, covered by `body_crc` with the body.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(crate) struct ClientSection {
    pub(crate) record_count: U32,
    pub(crate) flags: U16,
    pub(crate) producer_id_bytes: U16,
    pub(crate) fencing_token: U64,
    pub(crate) match_sequence: U64,
    pub(crate) producer_epoch: U64,
    pub(crate) producer_sequence: U64,
    pub(crate) metered_bytes: U64,
    pub(crate) reserved: [u8; 16],
}

/// The whole header.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(crate) struct FrameHeader {
    pub(crate) server: ServerSection,
    pub(crate) client: ClientSection,
}

/// One record's entry in the table.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(crate) struct TableEntry {
    pub(crate) data_end: U32,
    pub(crate) key_bytes: U32,
    pub(crate) headers_bytes: U32,
    pub(crate) flags: U32,
    pub(crate) timestamp_ms: U64,
    pub(crate) version: I64,
}

impl TableEntry {
    pub(crate) fn has(&self, flag: u32) -> bool {
        self.flags.get() & flag != 0
    }

    pub(crate) fn sent_timestamp_ms(&self) -> Option<u64> {
        self.has(record_flag::TIMESTAMP)
            .then(|| self.timestamp_ms.get())
    }

    pub(crate) fn key_len(&self) -> Option<usize> {
        let key_bytes = self.key_bytes.get();
        (key_bytes != NO_KEY).then_some(key_bytes as usize)
    }

    /// Bytes of the record's area before its payload: key, headers, fingerprint.
    pub(crate) fn lead_bytes(&self) -> u64 {
        let fingerprint = if self.has(record_flag::FINGERPRINT) {
            FINGERPRINT_BYTES as u64
        } else {
            0
        };
        self.key_len().unwrap_or(0) as u64 + u64::from(self.headers_bytes.get()) + fingerprint
    }
}

const _: () = {
    assert!(size_of::<ServerSection>() == SERVER_SECTION_BYTES);
    assert!(size_of::<FrameHeader>() == FRAME_HEADER_BYTES);
    assert!(size_of::<TableEntry>() == ENTRY_BYTES);
    assert!(align_of::<FrameHeader>() == 1);
    assert!(align_of::<TableEntry>() == 1);
    // Offsets and lengths of a frame fit in usize without a check: 64-bit only.
    assert!(size_of::<usize>() == 8);
};
