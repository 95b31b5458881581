//! Fuzz helpers: what several targets need to turn a fuzzer's bytes into something to try.
//!
//! **Invariants**
//! - The same input always makes the same choices.
//! - [`Choices`] never panics: past the end of the input everything is zero or empty.
//!
//! **Not here**: targets, one file each in `src/bin`.

/// Reads decisions off a fuzzer's input.
#[derive(Debug, Clone)]
pub struct Choices<'a>(pub &'a [u8]);

impl<'a> Choices<'a> {
    /// Whether no input is left.
    #[must_use]
    pub fn is_spent(&self) -> bool {
        self.0.is_empty()
    }

    /// The next byte.
    pub fn byte(&mut self) -> u8 {
        let Some((byte, rest)) = self.0.split_first() else {
            return 0;
        };
        self.0 = rest;
        *byte
    }

    /// The next eight bytes, as far as there are any.
    pub fn number(&mut self) -> u64 {
        u64::from_le_bytes(std::array::from_fn(|_| self.byte()))
    }

    /// Up to 255 bytes, as many as the next byte says and there are.
    pub fn bytes(&mut self) -> &'a [u8] {
        let wanted = usize::from(self.byte());
        let (bytes, rest) = self.0.split_at(wanted.min(self.0.len()));
        self.0 = rest;
        bytes
    }
}

/// Sets length and both checksums of a frame to what its bytes say. Leaves less than a header alone.
pub fn reseal_frame(frame: &mut [u8]) {
    let Ok(frame_bytes) = u32::try_from(frame.len()) else {
        return;
    };
    if frame.len() < 128 {
        return;
    }
    frame[8..12].copy_from_slice(&frame_bytes.to_le_bytes());
    let body = crc32c::crc32c(&frame[64..]);
    frame[16..20].copy_from_slice(&body.to_le_bytes());
    frame[12..16].fill(0);
    let header = crc32c::crc32c(&frame[..64]);
    frame[12..16].copy_from_slice(&header.to_le_bytes());
}

/// Sets the checksum at `crc_at` to that of all of `bytes` with those four taken as zero. A fuzzer
/// does not find a checksum by itself; behind it lies most of a decoder.
#[must_use]
pub fn resealed(bytes: &[u8], crc_at: usize) -> Vec<u8> {
    let mut sealed = bytes.to_vec();
    if let Some(crc) = sealed.get_mut(crc_at..crc_at + 4) {
        crc.fill(0);
        let computed = crc32c::crc32c(&sealed);
        sealed[crc_at..crc_at + 4].copy_from_slice(&computed.to_le_bytes());
    }
    sealed
}
