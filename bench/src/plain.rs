//! Plain: the yardstick: one thread that writes blocks with O_DIRECT and syncs after each, or reads them.
//!
//! **Invariants**
//! - The file is written in full beforehand, so that no write allocates.
//! - Every block is random bytes, and is synced before the next is written.
//!
//! **Not here**: the engine.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::time::{Duration, Instant};

use sealog_engine::env::AlignedBuf;

use crate::Result;
use crate::prng::Prng;
use crate::stats::{Latencies, mb_per_s};

/// Blocks the file is prepared with.
const FILL_BYTES: usize = 1 << 20;

/// A file that is written round and round.
pub struct PlainFile {
    file: File,
    bytes: u64,
    at: u64,
}

/// What a run came to.
pub struct PlainRun {
    /// Length of the blocks.
    pub block_bytes: usize,
    /// Bandwidth.
    pub mb_per_s: f64,
    /// Write and sync together, per block.
    pub latencies: Latencies,
}

impl PlainFile {
    /// Makes the file and writes all of it once.
    pub fn create(path: &Path, bytes: u64) -> Result<Self> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(true)
            .custom_flags(libc::O_DIRECT)
            .open(path)?;
        let buf = random_block(FILL_BYTES);
        let bytes = bytes.next_multiple_of(FILL_BYTES as u64);
        for at in (0..bytes).step_by(FILL_BYTES) {
            file.write_all_at(&buf, at)?;
        }
        file.sync_all()?;
        Ok(Self { file, bytes, at: 0 })
    }

    /// Writes and syncs blocks of `block_bytes` for `time`, or `count` of them if that is sooner.
    pub fn run(&mut self, block_bytes: usize, time: Duration, count: u64) -> Result<PlainRun> {
        let buf = random_block(block_bytes);
        let mut latencies = Latencies::new();
        let start = Instant::now();
        let mut written = 0;
        let mut before = start;
        while written < count && before - start < time {
            self.write_and_sync(&buf)?;
            written += 1;
            let now = Instant::now();
            latencies.record(now - before);
            before = now;
        }
        let seconds = (before - start).as_secs_f64();
        Ok(PlainRun {
            block_bytes: buf.len(),
            mb_per_s: mb_per_s(written * buf.len() as u64, seconds),
            latencies,
        })
    }
}

impl PlainFile {
    /// Writes whole blocks at the next place and syncs.
    pub fn write_and_sync(&mut self, buf: &AlignedBuf) -> Result<()> {
        if self.at + buf.len() as u64 > self.bytes {
            self.at = 0;
        }
        self.file.write_all_at(buf, self.at)?;
        self.file.sync_data()?;
        self.at += buf.len() as u64;
        Ok(())
    }

    /// Reads the whole file once, block after block, past the page cache: MB a second.
    pub fn read_through(&self) -> Result<f64> {
        let mut buf = AlignedBuf::zeroed(FILL_BYTES);
        let start = Instant::now();
        for at in (0..self.bytes).step_by(FILL_BYTES) {
            self.file.read_exact_at(&mut buf, at)?;
        }
        Ok(mb_per_s(self.bytes, start.elapsed().as_secs_f64()))
    }
}

fn random_block(bytes: usize) -> AlignedBuf {
    let mut buf = AlignedBuf::zeroed(bytes);
    buf.pad_to_block();
    Prng::new(bytes as u64).fill(&mut buf);
    buf
}
