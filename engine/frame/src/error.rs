//! Frame errors: why bytes or records are refused, each with the value and the limit it broke.
//!
//! **Invariants**
//! - Every variant names what was found; those about limits name the limit too.
//! - Branch on variants, never on the text.
//!
//! **Not here**: what an API answers for them; front ends map variants.

/// Why a frame, a batch or a record was refused. Nothing has been changed when one is returned.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// Something is longer than its limit.
    #[error("{what} of {bytes} bytes is over the limit of {limit}")]
    TooLarge {
        /// What is too long: `record`, `key`, `batch`, `frame`, `producer_id`.
        what: &'static str,
        /// Its length.
        bytes: u64,
        /// The most that is allowed.
        limit: u64,
    },
    /// There are more of something than allowed.
    #[error("{count} {what} are over the limit of {limit}")]
    TooMany {
        /// What there are too many of: `records`, `headers`.
        what: &'static str,
        /// How many there are.
        count: u64,
        /// The most that is allowed.
        limit: u64,
    },
    /// A checksum does not match its bytes.
    #[error("{what} checksum {stored:#010x}, computed {computed:#010x}")]
    Checksum {
        /// Which checksum: `header` or `body`.
        what: &'static str,
        /// Value stored in the frame.
        stored: u32,
        /// Value of the bytes found.
        computed: u32,
    },
    /// Fewer bytes than the frame says it has.
    #[error("truncated frame: {needed} bytes needed, {have} there")]
    Truncated {
        /// Bytes that the layout asks for.
        needed: u64,
        /// Bytes that are there.
        have: u64,
    },
    /// A field holds a value that the layout forbids.
    #[error("field {field} holds {value}")]
    Invalid {
        /// Name in the spec's byte tables.
        field: &'static str,
        /// What it holds.
        value: u64,
    },
    /// The first four bytes are not those of a frame.
    #[error("not a frame: magic {found:#010x}")]
    Magic {
        /// First four bytes, little-endian.
        found: u32,
    },
    /// Written by a version of the format that this program does not know.
    #[error("frame version {found}, this program reads {supported}")]
    Version {
        /// Version found.
        found: u16,
        /// Version understood.
        supported: u16,
    },
    /// A batch without records.
    #[error("a batch needs at least one record")]
    Empty,
}

/// Refuses `bytes` over `limit`.
pub(crate) fn within(what: &'static str, bytes: usize, limit: usize) -> Result<(), FrameError> {
    if bytes <= limit {
        return Ok(());
    }
    Err(FrameError::TooLarge {
        what,
        bytes: bytes as u64,
        limit: limit as u64,
    })
}

/// Refuses `count` over `limit`.
pub(crate) fn at_most(what: &'static str, count: usize, limit: usize) -> Result<(), FrameError> {
    if count <= limit {
        return Ok(());
    }
    Err(FrameError::TooMany {
        what,
        count: count as u64,
        limit: limit as u64,
    })
}

/// Refuses the field unless `holds`.
pub(crate) fn valid(
    holds: bool,
    field: &'static str,
    value: impl Into<u64>,
) -> Result<(), FrameError> {
    if holds {
        return Ok(());
    }
    Err(FrameError::Invalid {
        field,
        value: value.into(),
    })
}
