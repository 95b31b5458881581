//! AlignedBuf: heap memory that direct I/O accepts.
//!
//! **Invariants**
//! - The address is a multiple of [`BLOCK_BYTES`]; the capacity is too.
//! - Bytes before `len` are initialised; those behind it are never read.

use std::alloc::{Layout, alloc, alloc_zeroed, dealloc, handle_alloc_error};
use std::fs::File;
use std::io;
use std::ops::{Deref, DerefMut};
use std::os::fd::AsRawFd;
use std::ptr::NonNull;

use super::buf_pool::BufPool;

/// Alignment of buffers, file offsets and write lengths: the physical block of every disk we target.
pub const BLOCK_BYTES: usize = 4096;

/// A growable byte buffer at a block-aligned address. Shared as `Arc<AlignedBuf>` once filled.
pub struct AlignedBuf {
    ptr: NonNull<u8>,
    len: usize,
    capacity: usize,
    /// Where the memory goes when the buffer is dropped; none: back to the allocator.
    home: Option<BufPool>,
}

// SAFETY: the buffer owns its allocation and hands out references only through `&self`/`&mut self`.
unsafe impl Send for AlignedBuf {}
// SAFETY: shared access is read-only.
unsafe impl Sync for AlignedBuf {}

impl AlignedBuf {
    /// An empty buffer that can take `capacity` bytes (rounded up to whole blocks) without growing.
    #[must_use]
    pub fn with_capacity(capacity: usize) -> Self {
        Self::allocate(capacity, alloc)
    }

    /// A buffer of `len` zero bytes.
    #[must_use]
    pub fn zeroed(len: usize) -> Self {
        let mut buf = Self::allocate(len, alloc_zeroed);
        buf.len = len;
        buf
    }

    fn allocate(capacity: usize, allocate: unsafe fn(Layout) -> *mut u8) -> Self {
        let capacity = round_up(capacity.max(1));
        let layout = layout(capacity);
        // SAFETY: the layout has a non-zero size.
        let raw = unsafe { allocate(layout) };
        let Some(ptr) = NonNull::new(raw) else {
            handle_alloc_error(layout)
        };
        Self {
            ptr,
            len: 0,
            capacity,
            home: None,
        }
    }

    /// The same buffer, whose memory goes to `home` when it is dropped.
    pub(super) fn at_home(mut self, home: BufPool) -> Self {
        self.home = Some(home);
        self
    }

    /// A buffer holding a copy of `bytes`.
    #[must_use]
    pub fn copy_of(bytes: &[u8]) -> Self {
        let mut buf = Self::with_capacity(bytes.len());
        buf.extend_from_slice(bytes);
        buf
    }

    /// Bytes that fit without growing.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Appends `bytes`, growing (doubling) when they do not fit.
    pub fn extend_from_slice(&mut self, bytes: &[u8]) {
        self.reserve(bytes.len());
        let end = self.len + bytes.len();
        // SAFETY: `reserve` made room for `len..end`; source and target cannot overlap, since
        // `self` is borrowed exclusively.
        unsafe {
            std::ptr::copy_nonoverlapping(
                bytes.as_ptr(),
                self.ptr.as_ptr().add(self.len),
                bytes.len(),
            );
        }
        self.len = end;
    }

    /// Makes room for `more` bytes.
    pub fn reserve(&mut self, more: usize) {
        let needed = self.len + more;
        if needed <= self.capacity {
            return;
        }
        let capacity = needed.max(self.capacity * 2);
        let mut bigger = match &self.home {
            Some(home) => home.take(capacity),
            None => Self::with_capacity(capacity),
        };
        bigger.extend_from_slice(self);
        *self = bigger;
    }

    /// Pads with zeros to the next multiple of [`BLOCK_BYTES`].
    pub fn pad_to_block(&mut self) {
        self.resize(round_up(self.len));
    }

    /// Sets the length, filling with zeros when it grows.
    pub fn resize(&mut self, len: usize) {
        if len > self.len {
            let more = len - self.len;
            self.reserve(more);
            // SAFETY: `reserve` made room for `more` bytes behind `len`.
            unsafe { self.ptr.as_ptr().add(self.len).write_bytes(0, more) };
        }
        self.len = len;
    }

    /// Replaces the content by up to `len` bytes of `file` at `offset`, fewer at its end. Blocks.
    ///
    /// # Errors
    /// The system's own; the content is anything then.
    pub(crate) fn read_from(&mut self, file: &File, offset: u64, len: usize) -> io::Result<()> {
        self.clear();
        self.reserve(len);
        while self.len < len {
            let at = i64::try_from(offset + self.len as u64)
                .map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
            // SAFETY: the memory from `len` to the capacity is ours alone, and at least as long as
            // what is asked for; the call writes nowhere else.
            let got = unsafe {
                let to = self.ptr.as_ptr().add(self.len).cast();
                libc::pread(file.as_raw_fd(), to, len - self.len, at)
            };
            match usize::try_from(got) {
                Ok(0) => break,
                Ok(got) => self.len += got,
                Err(_) => {
                    let error = io::Error::last_os_error();
                    if error.kind() != io::ErrorKind::Interrupted {
                        return Err(error);
                    }
                }
            }
            // Direct reads begin at whole blocks: only the end of the file leaves less.
            if !self.len.is_multiple_of(BLOCK_BYTES) {
                break;
            }
        }
        Ok(())
    }

    /// Forgets the content, keeps the memory.
    pub fn clear(&mut self) {
        self.len = 0;
    }
}

/// `n` rounded up to a whole number of blocks.
pub(crate) const fn round_up(n: usize) -> usize {
    n.div_ceil(BLOCK_BYTES) * BLOCK_BYTES
}

fn layout(capacity: usize) -> Layout {
    Layout::from_size_align(capacity, BLOCK_BYTES).expect("capacity below isize::MAX")
}

impl Drop for AlignedBuf {
    fn drop(&mut self) {
        if let Some(home) = self.home.take() {
            let empty = Self {
                ptr: self.ptr,
                len: 0,
                capacity: self.capacity,
                home: None,
            };
            // It owns the memory from here on, and frees it if there is no room for it.
            home.put(empty);
            return;
        }
        // SAFETY: allocated in `allocate` with this very layout.
        unsafe { dealloc(self.ptr.as_ptr(), layout(self.capacity)) }
    }
}

impl Deref for AlignedBuf {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: `len <= capacity`, the first `len` bytes are initialised.
        unsafe { std::slice::from_raw_parts(self.ptr.as_ptr(), self.len) }
    }
}

impl DerefMut for AlignedBuf {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and `self` is borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.ptr.as_ptr(), self.len) }
    }
}

impl std::fmt::Debug for AlignedBuf {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "AlignedBuf({} of {})", self.len, self.capacity)
    }
}
