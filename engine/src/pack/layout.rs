//! Layout: what pack, manifest, commit and key index share: preamble, sealing, and the checks of decoding.
//!
//! **Invariants**
//! - The magic number and then the version are looked at before any other byte.
//! - A checksum covers all of its part with its own four bytes taken as zero.
//!
//! **Not here**: the fields of any one format.

use crate::codec::{DecodeError, Reader, Writer};

/// Where every object keeps the checksum of its preamble: magic 8, version 2, two bytes, checksum 4.
pub(crate) const PREAMBLE_CRC_AT: usize = 12;
/// Bytes of the footer that pack and key index end with.
pub(crate) const FOOTER_BYTES: usize = 128;
/// Where a footer keeps its checksum; the magic number follows and ends the object.
const FOOTER_CRC_AT: usize = FOOTER_BYTES - 12;
/// Blocks, chunks and frames start at multiples of this.
pub(crate) const ALIGN: usize = 8;

/// A format's name, magic number and newest version.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Format {
    pub name: &'static str,
    pub magic: [u8; 8],
    pub version: u16,
}

impl Format {
    /// Checks magic number and version at the front of `bytes`.
    pub fn check_version(&self, bytes: &[u8]) -> Result<(), DecodeError> {
        let Some((head, _)) = bytes.split_first_chunk::<10>() else {
            return Err(truncated(10, bytes.len()));
        };
        let [magic @ .., low, high] = *head;
        self.check(&magic, u16::from_le_bytes([low, high]))
    }

    /// Checks a magic number and a version wherever they were found.
    pub fn check(&self, magic: &[u8], version: u16) -> Result<(), DecodeError> {
        if magic != self.magic {
            let mut found = [0; 8];
            found
                .iter_mut()
                .zip(magic)
                .for_each(|(to, from)| *to = *from);
            return Err(DecodeError::Magic {
                format: self.name,
                found: u64::from_le_bytes(found),
            });
        }
        match version {
            0 => Err(invalid("version", 0)),
            found if found > self.version => Err(DecodeError::Version {
                format: self.name,
                found,
                supported: self.version,
            }),
            _ => Ok(()),
        }
    }
}

/// The field of that name holds a value that the layout forbids.
pub(crate) const fn invalid(field: &'static str, value: u64) -> DecodeError {
    DecodeError::Invalid { field, value }
}

/// There are fewer bytes than a part takes.
pub(crate) const fn truncated(needed: usize, left: usize) -> DecodeError {
    DecodeError::Truncated { needed, left }
}

/// Fails unless reserved or padding bytes are all zero.
pub(crate) fn zero(field: &'static str, bytes: &[u8]) -> Result<(), DecodeError> {
    match bytes.iter().find(|byte| **byte != 0) {
        Some(byte) => Err(invalid(field, u64::from(*byte))),
        None => Ok(()),
    }
}

/// CRC32C of `bytes` with the four bytes at `crc_at` taken as zero.
fn crc_without(bytes: &[u8], crc_at: usize) -> u32 {
    let crc = crc32c::crc32c_append(crc32c::crc32c(&bytes[..crc_at]), &[0; 4]);
    crc32c::crc32c_append(crc, &bytes[crc_at + 4..])
}

/// Writes the checksum of all of `bytes` into the four bytes at `crc_at`.
pub(crate) fn seal(bytes: &mut [u8], crc_at: usize) {
    let crc = crc_without(bytes, crc_at);
    bytes[crc_at..crc_at + 4].copy_from_slice(&crc.to_le_bytes());
}

/// Checks what [`seal`] wrote.
pub(crate) fn check_crc(
    what: &'static str,
    bytes: &[u8],
    crc_at: usize,
) -> Result<(), DecodeError> {
    let stored = u32_at(bytes, crc_at)?;
    let computed = crc_without(bytes, crc_at);
    if stored == computed {
        return Ok(());
    }
    Err(DecodeError::Checksum {
        what,
        stored,
        computed,
    })
}

/// Pads a footer, seals it and ends it with the magic number.
pub(crate) fn finish_footer(out: &mut Writer, end: Format) {
    assert!(out.0.len() <= FOOTER_CRC_AT, "footer fields fit");
    out.0.resize(FOOTER_CRC_AT + 4, 0);
    out.raw(&end.magic);
    seal(&mut out.0, FOOTER_CRC_AT);
}

/// The fields between version and checksum of the footer that `tail` ends with.
pub(crate) fn open_footer(tail: &[u8], end: Format) -> Result<Reader<'_>, DecodeError> {
    let Some(footer) = tail.last_chunk::<FOOTER_BYTES>() else {
        return Err(truncated(FOOTER_BYTES, tail.len()));
    };
    let version = u16::from_le_bytes([footer[0], footer[1]]);
    end.check(&footer[FOOTER_CRC_AT + 4..], version)?;
    check_crc(end.name, footer, FOOTER_CRC_AT)?;
    zero("footer reserved", &footer[2..8])?;
    Ok(Reader(&footer[8..FOOTER_CRC_AT]))
}

/// The u32 at offset `at`.
pub(crate) fn u32_at(bytes: &[u8], at: usize) -> Result<u32, DecodeError> {
    let field = bytes.get(at..).and_then(|rest| rest.first_chunk::<4>());
    let field = field.ok_or(truncated(at.saturating_add(4), bytes.len()))?;
    Ok(u32::from_le_bytes(*field))
}

/// Checks a half-open range of sequences and the number of records in it.
pub(crate) fn check_range(first: u64, end: u64, records: u64) -> Result<(), DecodeError> {
    let Some(span) = end.checked_sub(first) else {
        return Err(invalid("end_sequence", end));
    };
    if records > span {
        return Err(invalid("record_count", records));
    }
    Ok(())
}

/// `len` rounded up to [`ALIGN`].
pub(crate) const fn align(len: usize) -> usize {
    len.next_multiple_of(ALIGN)
}

/// A length of ours as it is stored; parts are cut far below 4 GiB.
pub(crate) fn stored_u32(len: usize) -> u32 {
    u32::try_from(len).expect("part below 4 GiB")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    const FORMAT: Format = Format {
        name: "thing",
        magic: *b"THINGTHG",
        version: 3,
    };

    #[test]
    fn check_version_magic_comes_before_version() {
        assert_eq!(FORMAT.check_version(b"THINGTHG\x03\0"), Ok(()));
        assert_eq!(FORMAT.check_version(b"THINGTHG\x01\0"), Ok(()));
        let newer = FORMAT.check_version(b"THINGTHG\x04\0");
        assert!(matches!(newer, Err(DecodeError::Version { found: 4, .. })));
        let zero = FORMAT.check_version(b"THINGTHG\0\0");
        assert_eq!(zero, Err(invalid("version", 0)));
        let other = FORMAT.check_version(b"OTHERTHG\x09\0");
        assert!(matches!(other, Err(DecodeError::Magic { .. })));
        let short = FORMAT.check_version(b"THINGTHG\x01");
        assert_eq!(short, Err(truncated(10, 9)));
    }

    #[test]
    fn seal_covers_every_byte_around_its_own() {
        let mut bytes = (0..40u8).collect::<Vec<_>>();
        seal(&mut bytes, 12);
        assert_eq!(check_crc("x", &bytes, 12), Ok(()));
        for at in 0..bytes.len() {
            bytes[at] ^= 0x40;
            assert!(check_crc("x", &bytes, 12).is_err(), "byte {at}");
            bytes[at] ^= 0x40;
        }
        assert!(check_crc("x", &bytes[..15], 12).is_err());
    }

    #[test]
    fn check_range_more_records_than_sequences_is_refused() {
        assert_eq!(check_range(5, 5, 0), Ok(()));
        assert_eq!(check_range(5, 8, 2), Ok(()));
        assert!(check_range(5, 8, 4).is_err());
        assert!(check_range(5, 4, 0).is_err());
    }
}
