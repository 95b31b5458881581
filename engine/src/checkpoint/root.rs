//! Root: the record that makes a checkpoint: where to replay from, what to keep, which chunks.
//! Spec: spec/checkpoint.md §2.
//!
//! **Invariants**
//! - CKPT-1: the checksum covers every byte of the file.
//! - CKPT-2: replaying from `replay_from`, skipping for each chunk the entries before its `as_of`,
//!   gives the state.
//! - CKPT-3: `retain_from` is at or below `replay_from` and every log offset the state points at.

use crate::codec::{DecodeError, Reader, Writer};
use crate::ids::LogId;

/// "SLCKPT01" little-endian.
pub const ROOT_MAGIC: u64 = u64::from_le_bytes(*b"SLCKPT01");
/// "SLCHUNK1" little-endian.
pub const CHUNK_MAGIC: u64 = u64::from_le_bytes(*b"SLCHUNK1");
/// Newest version of both that this program reads and writes.
pub const CHECKPOINT_VERSION: u16 = 1;

/// A chunk as a root names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChunkRef {
    /// Which chunk.
    pub chunk: u64,
    /// Which version of it: part of the file name.
    pub generation: u64,
    /// Log offset of the group up to which it holds the state.
    pub as_of_offset: u64,
    /// Entries of that group which it holds.
    pub as_of_index: u32,
}

/// A checkpoint's root.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Root {
    /// Log it belongs to.
    pub log: LogId,
    /// Running number; the newest is the highest.
    pub number: u64,
    /// Incarnation of the log that wrote it.
    pub incarnation: u64,
    /// The log was durable up to here.
    pub durable_end: u64,
    /// Header checksum of the group that ended there.
    pub predecessor: u32,
    /// Replay starts here.
    pub replay_from: u64,
    /// Nothing before here is needed.
    pub retain_from: u64,
    /// Counter of the next feed id.
    pub next_counter: u64,
    /// All chunks, in order.
    pub chunks: Vec<ChunkRef>,
}

/// `magic, version, reserved, crc` and the body, as one file's bytes.
pub(crate) fn seal_file(magic: u64, version: u16, body: &[u8]) -> Vec<u8> {
    let mut w = Writer::new();
    w.u64(magic).u16(version).u16(0).u32(0).raw(body);
    let crc = crc32c::crc32c(&w.0);
    w.0[12..16].copy_from_slice(&crc.to_le_bytes());
    w.0
}

/// The body of a file that [`seal_file`] made. The version is looked at before the checksum, so
/// that a newer format is told from damage.
pub(crate) fn open_file<'a>(
    bytes: &'a [u8],
    format: &'static str,
    magic: u64,
    version: u16,
) -> Result<&'a [u8], DecodeError> {
    let mut r = Reader(bytes);
    let found = r.u64()?;
    if found != magic {
        return Err(DecodeError::Magic { format, found });
    }
    let (found, reserved, stored) = (r.u16()?, r.u16()?, r.u32()?);
    if found > version {
        return Err(DecodeError::Version {
            format,
            found,
            supported: version,
        });
    }
    let head = crc32c::crc32c(&bytes[..12]);
    let computed = crc32c::crc32c_append(crc32c::crc32c_append(head, &[0; 4]), r.0);
    if computed != stored {
        return Err(DecodeError::Checksum {
            what: format,
            stored,
            computed,
        });
    }
    for (field, value, expected) in [
        ("format_version", found, version),
        ("reserved", reserved, 0),
    ] {
        if value != expected {
            let value = u64::from(value);
            return Err(DecodeError::Invalid { field, value });
        }
    }
    Ok(r.0)
}

impl Root {
    /// The file's bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut w = Writer::new();
        w.u64(self.log.0)
            .u64(self.number)
            .u64(self.incarnation)
            .u64(self.durable_end);
        w.u32(self.predecessor)
            .u32(0)
            .u64(self.replay_from)
            .u64(self.retain_from);
        w.u64(self.next_counter).u64(self.chunks.len() as u64);
        for chunk in &self.chunks {
            w.u64(chunk.chunk)
                .u64(chunk.generation)
                .u64(chunk.as_of_offset);
            w.u32(chunk.as_of_index).u32(0);
        }
        seal_file(ROOT_MAGIC, CHECKPOINT_VERSION, &w.0)
    }

    /// Reads and checks a root. Any bytes may be given.
    ///
    /// # Errors
    /// [`DecodeError`] naming what is wrong.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let mut r = Reader(open_file(
            bytes,
            "checkpoint root",
            ROOT_MAGIC,
            CHECKPOINT_VERSION,
        )?);
        let (log, number, incarnation, durable_end) =
            (LogId(r.u64()?), r.u64()?, r.u64()?, r.u64()?);
        let (predecessor, mut reserved) = (r.u32()?, r.u32()?);
        let (replay_from, retain_from, next_counter) = (r.u64()?, r.u64()?, r.u64()?);
        let mut chunks = Vec::new();
        for _ in 0..r.u64()? {
            let (chunk, generation, as_of_offset) = (r.u64()?, r.u64()?, r.u64()?);
            let as_of_index = r.u32()?;
            reserved |= r.u32()?;
            chunks.push(ChunkRef {
                chunk,
                generation,
                as_of_offset,
                as_of_index,
            });
        }
        r.finish()?;
        if reserved != 0 {
            return Err(DecodeError::Invalid {
                field: "reserved",
                value: u64::from(reserved),
            });
        }
        if !chunks.is_sorted_by(|a: &ChunkRef, b| a.chunk < b.chunk) {
            return Err(DecodeError::Invalid {
                field: "chunk order",
                value: chunks.len() as u64,
            });
        }
        if retain_from > replay_from {
            return Err(DecodeError::Invalid {
                field: "retain_from",
                value: retain_from,
            });
        }
        Ok(Self {
            log,
            number,
            incarnation,
            durable_end,
            predecessor,
            replay_from,
            retain_from,
            next_counter,
            chunks,
        })
    }
}

/// A chunk file's bytes.
#[must_use]
pub fn encode_chunk(chunk: u64, generation: u64, body: &[u8]) -> Vec<u8> {
    let mut w = Writer::new();
    w.u64(chunk).u64(generation).raw(body);
    seal_file(CHUNK_MAGIC, CHECKPOINT_VERSION, &w.0)
}

/// Chunk and generation that a chunk file says it is.
pub(crate) fn peek_chunk(bytes: &[u8]) -> Result<(u64, u64), DecodeError> {
    let mut r = Reader(open_file(
        bytes,
        "checkpoint chunk",
        CHUNK_MAGIC,
        CHECKPOINT_VERSION,
    )?);
    Ok((r.u64()?, r.u64()?))
}

/// The body of a chunk file, which must be the one that was asked for.
///
/// # Errors
/// [`DecodeError`] naming what is wrong.
pub fn decode_chunk(bytes: &[u8], chunk: u64, generation: u64) -> Result<&[u8], DecodeError> {
    let mut r = Reader(open_file(
        bytes,
        "checkpoint chunk",
        CHUNK_MAGIC,
        CHECKPOINT_VERSION,
    )?);
    let (found_chunk, found_generation) = (r.u64()?, r.u64()?);
    if found_chunk != chunk {
        return Err(DecodeError::Invalid {
            field: "chunk",
            value: found_chunk,
        });
    }
    if found_generation != generation {
        return Err(DecodeError::Invalid {
            field: "generation",
            value: found_generation,
        });
    }
    Ok(r.0)
}
