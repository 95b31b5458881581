//! Codec: the little-endian writer and reader that every format of ours but the frame is built with.
//!
//! **Invariants**
//! - [`Reader`] never panics and never allocates more than the bytes it was given.
//! - Lengths are checked against what is left before anything is taken.
//!
//! **Not here**: checksums and layout, each format's own file has them.

/// Appends fixed-width little-endian values and length-prefixed bytes.
#[derive(Debug, Default)]
pub struct Writer(pub Vec<u8>);

macro_rules! put {
    ($($name:ident $ty:ty),*) => {$(
        /// Appends the value, little-endian.
        pub fn $name(&mut self, value: $ty) -> &mut Self {
            self.0.extend_from_slice(&value.to_le_bytes());
            self
        }
    )*};
}

impl Writer {
    /// An empty writer.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }
    put!(u8 u8, u16 u16, u32 u32, u64 u64, i64 i64);
    /// Appends the bytes as they are.
    pub fn raw(&mut self, bytes: &[u8]) -> &mut Self {
        self.0.extend_from_slice(bytes);
        self
    }
    /// Appends a u32 length and the bytes.
    ///
    /// # Panics
    /// When `bytes` is longer than `u32::MAX`: callers bound what they store far below that.
    pub fn bytes(&mut self, bytes: &[u8]) -> &mut Self {
        let len = u32::try_from(bytes.len()).expect("field below 4 GiB");
        self.u32(len).raw(bytes)
    }
}

/// Why bytes could not be decoded. Never an assertion: bytes come from outside.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// Fewer bytes than the layout asks for.
    #[error("truncated: {needed} bytes needed, {left} left")]
    Truncated {
        /// Bytes the next field takes.
        needed: usize,
        /// Bytes that are there.
        left: usize,
    },
    /// A field holds a value the layout forbids.
    #[error("field {field} holds {value}")]
    Invalid {
        /// Name in the spec's byte table.
        field: &'static str,
        /// What it holds.
        value: u64,
    },
    /// The magic number is another one.
    #[error("not a {format}: magic {found:#x}")]
    Magic {
        /// Format that was expected.
        format: &'static str,
        /// First eight bytes, little-endian.
        found: u64,
    },
    /// Written by a newer version of this program.
    #[error("{format} version {found} is newer than {supported}, the newest this program reads")]
    Version {
        /// Format in question.
        format: &'static str,
        /// Version found.
        found: u16,
        /// Newest version understood.
        supported: u16,
    },
    /// A checksum does not match.
    #[error("{what} checksum {stored:#010x}, computed {computed:#010x}")]
    Checksum {
        /// Which part it covers.
        what: &'static str,
        /// Value stored.
        stored: u32,
        /// Value of the bytes found.
        computed: u32,
    },
}

/// Takes values off a byte slice from the front.
#[derive(Debug, Clone, Copy)]
pub struct Reader<'a>(pub &'a [u8]);

macro_rules! take {
    ($($name:ident $ty:ty),*) => {$(
        /// The next value, little-endian.
        ///
        /// # Errors
        /// [`DecodeError::Truncated`] when too few bytes are left.
        pub fn $name(&mut self) -> Result<$ty, DecodeError> {
            Ok(<$ty>::from_le_bytes(self.array()?))
        }
    )*};
}

impl<'a> Reader<'a> {
    take!(u8 u8, u16 u16, u32 u32, u64 u64, i64 i64);
    /// The next `N` bytes.
    ///
    /// # Errors
    /// [`DecodeError::Truncated`] when too few bytes are left.
    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], DecodeError> {
        let left = self.0.len();
        let (head, rest) = self
            .0
            .split_first_chunk::<N>()
            .ok_or(DecodeError::Truncated { needed: N, left })?;
        self.0 = rest;
        Ok(*head)
    }
    /// The next `len` bytes.
    ///
    /// # Errors
    /// [`DecodeError::Truncated`] when too few bytes are left.
    pub fn raw(&mut self, len: usize) -> Result<&'a [u8], DecodeError> {
        let left = self.0.len();
        let (head, rest) = self
            .0
            .split_at_checked(len)
            .ok_or(DecodeError::Truncated { needed: len, left })?;
        self.0 = rest;
        Ok(head)
    }
    /// A u32 length and that many bytes.
    ///
    /// # Errors
    /// [`DecodeError::Truncated`] when too few bytes are left.
    pub fn bytes(&mut self) -> Result<&'a [u8], DecodeError> {
        let len = self.u32()?;
        self.raw(usize::try_from(len).unwrap_or(usize::MAX))
    }
    /// Fails unless all bytes were taken.
    ///
    /// # Errors
    /// [`DecodeError::Invalid`] with the number of bytes left over.
    pub fn finish(self) -> Result<(), DecodeError> {
        if self.0.is_empty() {
            return Ok(());
        }
        Err(DecodeError::Invalid {
            field: "trailing bytes",
            value: self.0.len() as u64,
        })
    }
}
