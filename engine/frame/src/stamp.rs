//! Stamps: what the server writes into a batch it has admitted. Spec: spec/frame.md §4.
//!
//! **Invariants**
//! - Only bytes 0..64 change; the body and its checksum stay as the client sealed them (FRAME-5).
//! - A length is believed only after the header checksum (FRAME-4).
//!
//! **Not here**: which sequence, time or epoch a batch gets.

use zerocopy::FromBytes;

use crate::error::{FrameError, valid};
use crate::layout::{
    ENTRY_BYTES, FORMAT_VERSION, FRAME_HEADER_BYTES, MAGIC, SERVER_SECTION_BYTES, ServerSection,
};
use crate::timestamp::{TimestampMode, TimestampRule};

/// The server's fields of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Stamp {
    /// Sequence of the first record.
    pub base_sequence: u64,
    /// When the batch arrived, in milliseconds since the Unix epoch.
    pub arrival_ms: u64,
    /// Effective timestamp of the record before this batch in the feed.
    pub timestamp_floor_ms: u64,
    /// The feed's epoch that the batch was admitted under.
    pub epoch: u64,
    /// Whose timestamp counts.
    pub mode: TimestampMode,
    /// Sent timestamps after arrival count as arrival.
    pub cap: bool,
}

impl Stamp {
    /// The part of the stamp that effective timestamps depend on.
    #[must_use]
    pub fn timestamp_rule(&self) -> TimestampRule {
        TimestampRule {
            mode: self.mode,
            cap: self.cap,
            arrival_ms: self.arrival_ms,
            floor_ms: self.timestamp_floor_ms,
        }
    }

    /// Writes the stamp into the section and seals it.
    pub(crate) fn write_to(&self, server: &mut ServerSection) {
        server.base_sequence = self.base_sequence.into();
        server.arrival_ms = self.arrival_ms.into();
        server.timestamp_floor_ms = self.timestamp_floor_ms.into();
        server.epoch = self.epoch.into();
        server.timestamp_mode = self.mode.code();
        server.cap = u8::from(self.cap);
        server.seal();
    }
}

/// Writes the server's fields into a validated frame and re-seals its header. The body is not touched.
///
/// # Panics
/// When `frame` is shorter than a header, or its records do not fit between `base_sequence` and the end of u64:
/// both are the caller's to rule out before it admits a batch.
pub fn stamp(frame: &mut [u8], stamp: &Stamp) {
    assert!(
        frame.len() >= FRAME_HEADER_BYTES,
        "stamp takes a whole frame"
    );
    let (server, _) =
        ServerSection::mut_from_prefix(frame).expect("a header is longer than its first section");
    let end = stamp.base_sequence.checked_add(server.sequence_span.get());
    assert!(end.is_some(), "sequences end at u64::MAX");
    stamp.write_to(server);
}

/// Length of the whole frame that starts with `header`, of which at least 64 bytes are given. Checks magic, version
/// and header checksum first. The caller holds the length against [`crate::FrameLimits::frame_bytes_max`].
///
/// # Errors
/// [`FrameError::Truncated`], [`FrameError::Magic`], [`FrameError::Version`], [`FrameError::Checksum`] of the
/// header, or [`FrameError::Invalid`] when the length is below that of the smallest frame.
pub fn peek_frame_bytes(header: &[u8]) -> Result<usize, FrameError> {
    let server = server_section(header)?;
    check_header_crc(server)?;
    plausible(server)?;
    Ok(server.frame_bytes.get() as usize)
}

/// The first section of a frame of this version. The version is looked at before the checksum, because another
/// version may keep its checksum elsewhere.
pub(crate) fn server_section(bytes: &[u8]) -> Result<&ServerSection, FrameError> {
    let Ok((server, _)) = ServerSection::ref_from_prefix(bytes) else {
        return Err(FrameError::Truncated {
            needed: SERVER_SECTION_BYTES as u64,
            have: bytes.len() as u64,
        });
    };
    if server.magic != MAGIC {
        return Err(FrameError::Magic {
            found: u32::from_le_bytes(server.magic),
        });
    }
    let found = server.format_version.get();
    if found != FORMAT_VERSION {
        return Err(FrameError::Version {
            found,
            supported: FORMAT_VERSION,
        });
    }
    Ok(server)
}

/// Refuses a length below that of the smallest frame: a header and one empty record. Views need no such check, they
/// refuse when they cut the frame into its parts.
fn plausible(server: &ServerSection) -> Result<(), FrameError> {
    let frame_bytes = server.frame_bytes.get();
    let holds = frame_bytes as usize >= FRAME_HEADER_BYTES + ENTRY_BYTES;
    valid(holds, "frame_bytes", frame_bytes)
}

pub(crate) fn check_header_crc(server: &ServerSection) -> Result<(), FrameError> {
    let (stored, computed) = (server.header_crc.get(), server.computed_crc());
    if stored == computed {
        return Ok(());
    }
    Err(FrameError::Checksum {
        what: "header",
        stored,
        computed,
    })
}
