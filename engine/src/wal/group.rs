//! Group: the unit of one write and one sync; header codec and builder. Spec: spec/wal.md §2.
//!
//! **Invariants**
//! - WAL-1: a group starts and ends on a block boundary and never crosses a segment.
//! - WAL-2: the header checksum covers the header, the body checksum every byte after it, padding too.
//! - WAL-3: `predecessor` is the header checksum of the group before, so a chain cannot skip one.
//! - WAL-4: `durable_end` never exceeds the group's own offset.

use crate::codec::{DecodeError, Reader, Writer};
use crate::env::{AlignedBuf, BLOCK_BYTES};
use crate::ids::LogId;

/// Bytes of the header.
pub const GROUP_HEADER_BYTES: usize = 128;
/// "SLGROUP1" little-endian.
pub const GROUP_MAGIC: u64 = u64::from_le_bytes(*b"SLGROUP1");
/// Newest version this program reads and writes.
pub const GROUP_VERSION: u16 = 1;

/// The group holds no entries: it only records how far the log is durable.
pub const FLAG_MARKER: u16 = 1;
/// The log was closed cleanly right after this marker.
pub const FLAG_CLEAN: u16 = 2;

const CRC_AT: usize = 12;

/// The header of a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GroupHeader {
    /// [`FLAG_MARKER`], [`FLAG_CLEAN`].
    pub flags: u16,
    /// Log that wrote it.
    pub log: LogId,
    /// Incarnation of the log that wrote it.
    pub incarnation: u64,
    /// Where in the log it starts.
    pub offset: u64,
    /// Whole length, a multiple of the block.
    pub group_bytes: u32,
    /// Length of the entries.
    pub body_bytes: u32,
    /// Number of entries.
    pub entries: u32,
    /// CRC32C of all bytes after the header.
    pub body_crc: u32,
    /// Header checksum of the group before; 0 for the first of a log.
    pub predecessor: u32,
    /// Durable frontier when this group was submitted.
    pub durable_end: u64,
}

impl GroupHeader {
    /// The header's bytes, sealed.
    #[must_use]
    pub fn encode(&self) -> [u8; GROUP_HEADER_BYTES] {
        // Whole at once: this is made for each group that is written, and for each that is read.
        let mut w = Writer(Vec::with_capacity(GROUP_HEADER_BYTES));
        w.u64(GROUP_MAGIC).u16(GROUP_VERSION).u16(self.flags).u32(0);
        w.u64(self.log.0).u64(self.incarnation).u64(self.offset);
        w.u32(self.group_bytes)
            .u32(self.body_bytes)
            .u32(self.entries)
            .u32(self.body_crc);
        w.u32(self.predecessor).u32(0).u64(self.durable_end);
        let mut bytes = [0; GROUP_HEADER_BYTES];
        bytes[..w.0.len()].copy_from_slice(&w.0);
        let crc = crc32c::crc32c(&bytes);
        bytes[CRC_AT..CRC_AT + 4].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// Reads and checks a header; the body is not looked at.
    ///
    /// # Errors
    /// [`DecodeError`] naming what is wrong. Any bytes may be given.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let header: [u8; GROUP_HEADER_BYTES] = Reader(bytes).array()?;
        let mut r = Reader(&header);
        let magic = r.u64()?;
        if magic != GROUP_MAGIC {
            return Err(DecodeError::Magic {
                format: "group",
                found: magic,
            });
        }
        let version = r.u16()?;
        let flags = r.u16()?;
        let stored = r.u32()?;
        check_crc(&header, stored)?;
        if version > GROUP_VERSION {
            return Err(DecodeError::Version {
                format: "group",
                found: version,
                supported: GROUP_VERSION,
            });
        }
        if version != GROUP_VERSION {
            return Err(DecodeError::Invalid {
                field: "format_version",
                value: u64::from(version),
            });
        }
        let (log, incarnation, offset) = (LogId(r.u64()?), r.u64()?, r.u64()?);
        let (group_bytes, body_bytes, entries, body_crc) = (r.u32()?, r.u32()?, r.u32()?, r.u32()?);
        let (predecessor, reserved, durable_end) = (r.u32()?, r.u32()?, r.u64()?);
        let group = Self {
            flags,
            log,
            incarnation,
            offset,
            group_bytes,
            body_bytes,
            entries,
            body_crc,
            predecessor,
            durable_end,
        };
        group.check(reserved, r.0)?;
        Ok(group)
    }

    fn check(&self, reserved: u32, rest: &[u8]) -> Result<(), DecodeError> {
        let invalid = |field, value: u64| Err(DecodeError::Invalid { field, value });
        let whole = self.group_bytes as usize;
        if !whole.is_multiple_of(BLOCK_BYTES)
            || whole < GROUP_HEADER_BYTES + self.body_bytes as usize
        {
            return invalid("group_bytes", u64::from(self.group_bytes));
        }
        if self.flags & !(FLAG_MARKER | FLAG_CLEAN) != 0 {
            return invalid("flags", u64::from(self.flags));
        }
        if reserved != 0 || rest.iter().any(|&byte| byte != 0) {
            return invalid("reserved", u64::from(reserved));
        }
        if self.durable_end > self.offset {
            return invalid("durable_end", self.durable_end);
        }
        Ok(())
    }

    /// Where the next group may start.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.offset + u64::from(self.group_bytes)
    }

    /// The checksum that the next group carries as its predecessor.
    #[must_use]
    pub fn crc(&self) -> u32 {
        header_crc(&self.encode())
    }

    /// Checks `rest`, all bytes after the header.
    ///
    /// # Errors
    /// [`DecodeError::Checksum`].
    pub fn check_body(&self, rest: &[u8]) -> Result<(), DecodeError> {
        let computed = crc32c::crc32c(rest);
        if computed == self.body_crc {
            return Ok(());
        }
        Err(DecodeError::Checksum {
            what: "group body",
            stored: self.body_crc,
            computed,
        })
    }
}

/// What the group behind a damaged one may name as its predecessor: the checksum as it is stored,
/// and the one that the rest of the header gives. One of them is right unless both parts are damaged.
pub(crate) fn checksums_of_damaged(header: &[u8; GROUP_HEADER_BYTES]) -> [u32; 2] {
    [header_crc(header), computed_crc(header)]
}

fn computed_crc(header: &[u8; GROUP_HEADER_BYTES]) -> u32 {
    let mut blank = *header;
    blank[CRC_AT..CRC_AT + 4].fill(0);
    crc32c::crc32c(&blank)
}

fn check_crc(header: &[u8; GROUP_HEADER_BYTES], stored: u32) -> Result<(), DecodeError> {
    let computed = computed_crc(header);
    if computed == stored {
        return Ok(());
    }
    Err(DecodeError::Checksum {
        what: "group header",
        stored,
        computed,
    })
}

fn header_crc(bytes: &[u8; GROUP_HEADER_BYTES]) -> u32 {
    let mut crc = [0; 4];
    crc.copy_from_slice(&bytes[CRC_AT..CRC_AT + 4]);
    u32::from_le_bytes(crc)
}

/// What the log knows of a group that is being cut, besides its content.
#[derive(Debug, Clone, Copy)]
pub struct GroupSeal {
    /// [`FLAG_MARKER`], [`FLAG_CLEAN`].
    pub flags: u16,
    /// This log.
    pub log: LogId,
    /// Its incarnation.
    pub incarnation: u64,
    /// Where the group goes.
    pub offset: u64,
    /// Number of entries in it.
    pub entries: u32,
    /// Header checksum of the group before.
    pub predecessor: u32,
    /// Durable frontier now.
    pub durable_end: u64,
}

/// Fills in the header of `buf` (which starts with room for it), pads it, and returns the header.
///
/// # Panics
/// When `buf` is shorter than a header or `durable_end` lies beyond the group: bugs of the log.
pub fn seal_group(buf: &mut AlignedBuf, seal: &GroupSeal) -> GroupHeader {
    let entries_crc = crc32c::crc32c(&buf[GROUP_HEADER_BYTES..]);
    seal_summed(buf, seal, entries_crc)
}

/// [`seal_group`] where the checksum of the entries is known already.
pub(crate) fn seal_summed(buf: &mut AlignedBuf, seal: &GroupSeal, entries_crc: u32) -> GroupHeader {
    assert!(seal.durable_end <= seal.offset, "WAL-4");
    let entries_end = buf.len();
    buf.pad_to_block();
    let small = |n: usize| u32::try_from(n).expect("group below 4 GiB");
    let header = GroupHeader {
        flags: seal.flags,
        log: seal.log,
        incarnation: seal.incarnation,
        offset: seal.offset,
        group_bytes: small(buf.len()),
        body_bytes: small(entries_end - GROUP_HEADER_BYTES),
        entries: seal.entries,
        body_crc: crc32c::crc32c_append(entries_crc, &buf[entries_end..]),
        predecessor: seal.predecessor,
        durable_end: seal.durable_end,
    };
    buf[..GROUP_HEADER_BYTES].copy_from_slice(&header.encode());
    header
}
