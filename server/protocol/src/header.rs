//! Header: the 16 bytes before every body. Spec: server/spec/native-protocol.md §2.
//!
//! **Invariants**
//! - A length outside the limits is refused before a byte of the body is read or reserved.
//!
//! **Not here**: bodies.

use crate::wire::WireError;

/// Length of the header.
pub const HEADER_BYTES: usize = 16;
/// Longest message of all, header included: a frame of the largest batch, and more.
pub const MESSAGE_BYTES_MAX: usize = 64 << 20;
/// Longest message before the welcome, header included.
pub const HELLO_BYTES_MAX: usize = 8 << 10;
/// Request id of messages that belong to the connection as a whole.
pub const CONNECTION: u64 = 0;
/// Flag: more answers to the same request follow.
pub const MORE: u8 = 1;

/// What stands before a body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MessageHeader {
    /// Length of the whole message.
    pub message_bytes: usize,
    /// Which message.
    pub kind: u8,
    /// [`MORE`], or nothing.
    pub flags: u8,
    /// The request it is, or answers; [`CONNECTION`] for neither.
    pub request: u64,
}

impl MessageHeader {
    /// Reads the header at the start of `bytes`; `None` if there are fewer than [`HEADER_BYTES`]. A
    /// length that is over `limit` is refused as soon as its four bytes are there.
    ///
    /// # Errors
    /// [`WireError::Size`], [`WireError::Invalid`] (a reserved bit is set).
    pub fn peek(bytes: &[u8], limit: usize) -> Result<Option<Self>, WireError> {
        let Some((length, _)) = bytes.split_first_chunk::<4>() else {
            return Ok(None);
        };
        let length = u32::from_le_bytes(*length);
        let message_bytes = usize::try_from(length).unwrap_or(usize::MAX);
        let size = |limit: usize| WireError::Size {
            bytes: length.into(),
            limit: limit as u64,
        };
        if message_bytes < HEADER_BYTES {
            return Err(size(HEADER_BYTES));
        }
        if message_bytes > limit {
            return Err(size(limit));
        }
        let Some((header, _)) = bytes.split_first_chunk::<HEADER_BYTES>() else {
            return Ok(None);
        };
        let [_, _, _, _, kind, flags, low, high, request @ ..] = *header;
        let reserved = u16::from_le_bytes([low, high]);
        if reserved != 0 {
            return Err(invalid("reserved", reserved.into()));
        }
        if flags & !MORE != 0 {
            return Err(invalid("flags", flags.into()));
        }
        Ok(Some(Self {
            message_bytes,
            kind,
            flags,
            request: u64::from_le_bytes(request),
        }))
    }

    /// The header's bytes.
    ///
    /// # Panics
    /// When the message is longer than 4 GiB.
    #[must_use]
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        let length = u32::try_from(self.message_bytes).expect("messages are bounded");
        bytes[..4].copy_from_slice(&length.to_le_bytes());
        bytes[4] = self.kind;
        bytes[5] = self.flags;
        bytes[8..].copy_from_slice(&self.request.to_le_bytes());
        bytes
    }

    pub(crate) fn reserve(out: &mut Vec<u8>) {
        out.extend_from_slice(&[0; HEADER_BYTES]);
    }

    /// Fills in the header of the message that began at `start` and ends with `out`.
    pub(crate) fn fill(out: &mut [u8], start: usize, kind: u8, flags: u8, request: u64) {
        let header = Self {
            message_bytes: out.len() - start,
            kind,
            flags,
            request,
        };
        out[start..start + HEADER_BYTES].copy_from_slice(&header.encode());
    }
}

fn invalid(field: &'static str, value: u64) -> WireError {
    WireError::Invalid { field, value }
}
