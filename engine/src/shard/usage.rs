//! Usage: what a log holds, what still waits for the bucket, and what keeps it waiting.
//!
//! **Invariants**
//! - Asking costs no more than the number of feeds that wait for publication.
//!
//! **Not here**: rates and latencies (`wal::log::WalStats`).

use std::time::Duration;

use super::LogService;
use crate::env::{Bucket, BucketHealth, Env};
use crate::ids::LogId;

/// What one log holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogUsage {
    /// Which log.
    pub log: LogId,
    /// Bytes of the segments in use.
    pub disk_bytes: u64,
    /// Bound on them: beyond it appends wait, then are refused as storage full.
    pub disk_bytes_max: u64,
    /// Bytes from the first that some stream still needs to the durable end: not yet in the bucket, or
    /// kept because of what lies before.
    pub unpacked_bytes: u64,
    /// Commits that are sealed, and durable here, but not published.
    pub unpublished_commits: u64,
    /// Packing and publishing have been tried since the start: until then nothing is known of trouble.
    pub tried: bool,
    /// What keeps the lane from working, and for how long it has.
    pub trouble: Option<(String, Duration)>,
}

/// What an engine holds, and how its bucket is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Usage {
    /// Its logs.
    pub logs: Vec<LogUsage>,
    /// The bucket.
    pub bucket: BucketHealth,
}

impl<E: Env> LogService<E> {
    /// What the log holds now.
    pub fn usage(&self) -> LogUsage {
        let segments = self.wal.space().live_segments() as u64;
        let feeds = self.feeds.borrow();
        let end = self.wal.durable_end();
        let needed = feeds.needed_from().unwrap_or(end).min(end);
        LogUsage {
            log: self.wal.params().log,
            disk_bytes: segments * self.config.wal.segment_bytes,
            disk_bytes_max: self.config.wal.disk_bytes_max,
            unpacked_bytes: end - needed,
            unpublished_commits: feeds.unpublished(),
            tried: self.lane.has_tried(),
            trouble: self.lane.trouble_for(self.env.monotonic_ns()),
        }
    }

    /// How the bucket is.
    pub fn bucket_health(&self) -> BucketHealth {
        self.env.bucket().health()
    }
}
