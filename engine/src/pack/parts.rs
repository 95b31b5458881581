//! Parts: an object's bytes on their way out, cut into parts for the uploader.
//!
//! **Invariants**
//! - Every part but the last is a multiple of [`BLOCK_BYTES`] long.
//! - Bytes are copied once, into the buffer that is handed out; a cut moves less than one block.
//! - Nothing before the last cut can be patched.
//!
//! **Not here**: what the bytes mean, and their digest.

use crate::env::{AlignedBuf, BLOCK_BYTES, BufPool};
use std::collections::VecDeque;

/// Memory of a new object; from the second part on buffers are made in full size.
const FIRST_BYTES: usize = 4 * BLOCK_BYTES;

pub(crate) struct PartWriter {
    open: AlignedBuf,
    ready: VecDeque<AlignedBuf>,
    ready_bytes: usize,
    pool: BufPool,
    /// Object offset of the first byte of `open`.
    open_at: u64,
    part_bytes: usize,
    /// Capacity of a part.
    room_bytes: usize,
}

impl PartWriter {
    /// A writer of parts of about `part_bytes`; `slack_bytes` is what one piece usually adds.
    pub fn new(part_bytes: usize, slack_bytes: usize) -> Self {
        let part_bytes = part_bytes.max(BLOCK_BYTES);
        Self {
            // Small at first: of many open packs most stay small, and memory is counted.
            open: AlignedBuf::with_capacity(FIRST_BYTES.min(part_bytes)),
            ready: VecDeque::new(),
            ready_bytes: 0,
            pool: BufPool::new(0, 0),
            open_at: 0,
            part_bytes,
            room_bytes: part_bytes + slack_bytes,
        }
    }

    /// Bytes written so far: the object offset of the next one.
    pub fn position(&self) -> u64 {
        self.open_at + self.open.len() as u64
    }

    pub fn write(&mut self, bytes: &[u8]) {
        self.open.extend_from_slice(bytes);
    }

    pub fn zeros(&mut self, len: usize) {
        self.open.resize(self.open.len() + len);
    }

    /// The bytes from object offset `at` on, which no [`PartWriter::settle`] has come after.
    pub fn patch(&mut self, at: u64) -> &mut [u8] {
        let at = at.checked_sub(self.open_at).expect("patched before a cut");
        &mut self.open[at as usize..]
    }

    /// Says that nothing written so far will be patched: cuts a part if there is enough for one.
    /// The part that was cut, if one was.
    pub fn settle(&mut self) -> Option<&[u8]> {
        if self.open.len() < self.part_bytes {
            return None;
        }
        let cut = self.open.len() / BLOCK_BYTES * BLOCK_BYTES;
        let mut next = self.pool.take(self.room_bytes);
        next.extend_from_slice(&self.open[cut..]);
        let mut part = std::mem::replace(&mut self.open, next);
        part.resize(cut);
        self.open_at += cut as u64;
        self.ready_bytes += part.capacity();
        self.ready.push_back(part);
        self.ready.back().map(|part| &part[..])
    }

    /// Takes memory for parts from `pool`.
    pub fn set_pool(&mut self, pool: BufPool) {
        self.pool = pool;
    }

    /// The next part that is ready.
    pub fn drain(&mut self) -> Option<AlignedBuf> {
        let part = self.ready.pop_front()?;
        self.ready_bytes -= part.capacity();
        Some(part)
    }

    /// Memory in use, in bytes.
    pub fn buffered_bytes(&self) -> usize {
        self.open.capacity() + self.ready_bytes
    }

    /// The parts that were not drained before; every one but the last is a multiple of [`BLOCK_BYTES`].
    pub fn finish(mut self) -> Vec<AlignedBuf> {
        self.ready.push_back(self.open);
        self.ready.into()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn parts_put_together_are_what_was_written() {
        let mut writer = PartWriter::new(2 * BLOCK_BYTES, 100);
        let (mut expected, mut got) = (Vec::new(), Vec::new());
        for n in 0..50u32 {
            let piece = vec![n as u8; 777 * (1 + n as usize % 9)];
            assert_eq!(writer.position(), expected.len() as u64);
            let at = writer.position();
            writer.write(&piece);
            writer.zeros(3);
            writer.patch(at)[0] = 0xff;
            expected.extend_from_slice(&piece);
            expected.extend_from_slice(&[0; 3]);
            let len = expected.len() - piece.len() - 3;
            expected[len] = 0xff;
            let cut = writer.settle().map(<[u8]>::len);
            assert!(cut.is_none_or(|cut| cut >= 2 * BLOCK_BYTES));
            while n % 3 == 0
                && let Some(part) = writer.drain()
            {
                assert_eq!(part.len() % BLOCK_BYTES, 0);
                got.extend_from_slice(&part);
            }
        }
        assert_eq!(writer.position(), expected.len() as u64);
        let parts = writer.finish();
        let (last, full) = parts.split_last().unwrap();
        full.iter()
            .for_each(|part| assert_eq!(part.len() % BLOCK_BYTES, 0));
        full.iter().for_each(|part| got.extend_from_slice(part));
        got.extend_from_slice(last);
        assert_eq!(got, expected);
    }

    #[test]
    fn buffered_bytes_falls_as_parts_are_drained() {
        let mut writer = PartWriter::new(BLOCK_BYTES, 0);
        let idle = writer.buffered_bytes();
        writer.write(&vec![1; 10 * BLOCK_BYTES]);
        writer.settle();
        assert!(writer.buffered_bytes() >= 10 * BLOCK_BYTES);
        assert_eq!(writer.drain().unwrap().len(), 10 * BLOCK_BYTES);
        assert_eq!(writer.buffered_bytes(), idle);
        assert!(writer.drain().is_none());
    }
}
