//! Crash: a process of writers that is killed again and again, and the check that nothing is lost.
//!
//! **Invariants**
//! - A writer notes what it is about to do before it does it, and what was acknowledged after; both
//!   notes go to a pipe and survive the kill.
//! - The check trusts nothing but those notes: acknowledged means there, once; noted means whole or absent.
//!
//! **Not here**: power loss (the simulator has it: a killed process loses no written byte).

pub mod check;
pub mod note;
pub mod rounds;
pub mod writers;

use std::path::{Path, PathBuf};

use sealog_engine::{EngineConfig, S3Options};

/// Feeds that the writers share.
pub const FEEDS: usize = 6;
/// Concurrent writers.
pub const WRITERS: usize = 8;

/// Where the writers write.
#[derive(Debug, Clone)]
pub struct Place {
    /// The data directory.
    pub dir: PathBuf,
    /// The store that holds the bucket; `None` is a folder in the directory.
    pub store: Option<S3Options>,
}

impl Place {
    /// The configuration of writers and check.
    #[must_use]
    pub fn config(&self) -> EngineConfig {
        EngineConfig {
            s3: self.store.clone(),
            ..config(&self.dir)
        }
    }
}

/// Name of feed `index`.
#[must_use]
pub fn feed_name(index: usize) -> String {
    format!("crash/{index}")
}

/// Small limits, so that segments, packs and checkpoints turn over within a round.
#[must_use]
pub fn config(dir: &Path) -> EngineConfig {
    let mut config = EngineConfig::new(dir);
    config.frame.record_bytes_max = 16 << 10;
    config.frame.batch_bytes_max = 64 << 10;
    config.frame.records_max = 64;
    config.frame.headers_max = 64;
    config.wal.segment_bytes = 512 << 10;
    config.wal.flush_bytes = 64 << 10;
    config.wal.disk_bytes_max = 8 << 20;
    config.wal.lane_start_bytes = 1 << 20;
    config.wal.checkpoint_bytes = 512 << 10;
    config.wal.cache_bytes = 256 << 10;
    config.pack_bytes = 256 << 10;
    config.inflight_bytes_max = 2 << 20;
    config
}
