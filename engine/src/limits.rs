//! Limits: every number that bounds the engine, and the configuration that sets them.
//!
//! **Invariants**
//! - [`EngineConfig::validate`] proves the limits against each other before anything is opened.
//! - A user who hits a limit gets an error that names it.

use std::path::PathBuf;
use std::time::Duration;

use sealog_frame::FrameLimits;

use crate::bucket::S3Options;
use crate::env::{BLOCK_BYTES, CommitMethod};
use crate::error::{Error, Result};

/// Longest order key of a batch, in bytes.
pub const ORDER_BYTES_MAX: usize = 1024;
/// Longest attributes of a feed, and longest note of its closing, in bytes.
pub const ATTRIBUTES_BYTES_MAX: usize = 4096;
/// Longest feed name in bytes of UTF-8.
pub const FEED_NAME_BYTES_MAX: usize = 1024;
/// Longest commit message in bytes of UTF-8.
pub const COMMIT_MESSAGE_BYTES_MAX: usize = 64 << 10;
/// Longest `producer id` in bytes.
pub const PRODUCER_ID_BYTES_MAX: usize = 256;
/// A producer idle for this long may be forgotten when room is needed.
pub const PRODUCER_IDLE: Duration = Duration::from_secs(7 * 24 * 3600);
/// Ranges of recent batches kept per producer so that a duplicate answers its own range.
pub const PRODUCER_RANGES_MAX: usize = 256;
/// Ranges kept per log over all producers (24 bytes each).
pub const PRODUCER_RANGES_PER_LOG_MAX: usize = 65_536;
/// Feeds that share a checkpoint chunk.
pub const CHUNK_FEEDS: u64 = 256;
/// Bytes of the current segment kept back for state changes when no further segment can be had.
pub const CONTROL_RESERVE_BYTES: u64 = 512 << 10;
/// Room that group header, entry headers, padding and the changes that are one step with a batch (a feed made
/// with it, or closed behind it) take besides the frame itself.
pub const GROUP_OVERHEAD_BYTES: usize = 8 * BLOCK_BYTES;
/// A second group is put in flight, while the first is being written, once it has this much. Smaller
/// ones are not worth a sync of their own, and answers in many small portions cost each client's wake.
pub const PIPELINE_BYTES_MIN: usize = 4 * BLOCK_BYTES;
/// Default size of one read answer.
pub const READ_BYTES_DEFAULT: usize = 1 << 20;

const _: () = assert!(CONTROL_RESERVE_BYTES >= 16 * BLOCK_BYTES as u64);
const _: () = assert!(PRODUCER_ID_BYTES_MAX <= u16::MAX as usize);

/// Checks the length of a commit's message: what sealing refuses, it refuses before it does anything.
///
/// # Errors
/// [`Error::OverLimit`], without effects.
pub fn check_commit_message(message: &str) -> Result<()> {
    if message.len() <= COMMIT_MESSAGE_BYTES_MAX {
        return Ok(());
    }
    Err(Error::OverLimit {
        what: "commit message bytes",
        value: message.len() as u64,
        limit: COMMIT_MESSAGE_BYTES_MAX as u64,
    })
}

/// The log's numbers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WalConfig {
    /// Size of one segment file. Fixed when the directory is made.
    pub segment_bytes: u64,
    /// A group is cut at this size; a larger batch is a group of its own.
    pub flush_bytes: usize,
    /// Holds a group back for this long; zero on a disk.
    pub flush_interval: Duration,
    /// Bound on all segments together; reaching it makes appends wait, then refuses them.
    pub disk_bytes_max: u64,
    /// The lane starts when this much of the log is durable and not read by it.
    pub lane_start_bytes: u64,
    /// A checkpoint is due after this much log.
    pub checkpoint_bytes: u64,
    /// Durable groups kept in memory for readers and the lane.
    pub cache_bytes: usize,
    /// How a group is made durable.
    pub commit_method: CommitMethod,
    /// How long an append waits for log space before it is refused.
    pub full_wait: Duration,
}

/// When a feed that rolls goes on in another stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RollConfig {
    /// Once the open one holds this much, a record counting 32 bytes besides its payload.
    pub bytes: u64,
    /// Once this much time has passed since the first record of the open one arrived.
    pub after: Duration,
}

/// Least size of a pack: below it a pack would be mostly its own footer.
const PACK_BYTES_MIN: u64 = 16 << 10;
/// Longest wait for more batches before a group is written.
const FLUSH_INTERVAL_MAX: Duration = Duration::from_secs(10);

/// Most memory that one number of the configuration may ask for; below it the machine decides.
const MEMORY_BYTES_MAX: u64 = 64 << 30;
/// Executors per core, at most: more would only wait for each other.
pub(crate) const SHARDS_PER_CORE_MAX: usize = 16;
/// Most that the cache of packs may hold: its index is in memory, about 100 bytes for a MiB.
const CACHE_BYTES_MAX: u64 = 256 << 30;
/// Shortest and longest time after which a feed rolls: every roll costs a few objects, and no timer is set
/// for more than a year.
const ROLL_AFTER: (Duration, Duration) =
    (Duration::from_secs(1), Duration::from_secs(366 * 24 * 3600));
/// Longest wait for log space.
const FULL_WAIT_MAX: Duration = Duration::from_secs(3600);

/// Everything the engine can be told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EngineConfig {
    /// The data directory.
    pub data_dir: PathBuf,
    /// The bucket folder; `None` is `bucket/` in the data directory.
    pub bucket_dir: Option<PathBuf>,
    /// The bucket is in this S3-compatible store, not in a folder.
    pub s3: Option<S3Options>,
    /// Make the bucket this directory's although its owner object names another one.
    pub take_bucket: bool,
    /// Bound on the local cache of packs from a store; 0 is no cache.
    pub cache_bytes_max: u64,
    /// Text kept in a directory that is made with this configuration, as the file
    /// [`SETTINGS_FILE`](crate::SETTINGS_FILE), for whoever opens it next. The engine does not read it.
    pub settings: Option<String>,
    /// Number of logs, fixed when the directory is made.
    pub logs: u16,
    /// Executors to start; 0 is one per log, but no more than there are cores.
    pub shards: usize,
    /// Pin shards to cores.
    pub pin: bool,
    /// How long a shard without work looks for more before it sleeps: 50 us. Where other threads need
    /// the cores, as behind sockets, zero serves better.
    pub spin: Duration,
    /// Create the directory if it is not there.
    pub create: bool,
    /// The log's numbers.
    pub wal: WalConfig,
    /// Size at which a pack is cut.
    pub pack_bytes: u64,
    /// When feeds that roll do.
    pub roll: RollConfig,
    /// Memory for batches and answers in flight, per log.
    pub inflight_bytes_max: usize,
    /// What a batch may hold.
    pub frame: FrameLimits,
    /// Feeds per log.
    pub feeds_max: u64,
    /// Producers remembered per feed.
    pub producers_max: u64,
    /// Age before a removed feed's objects are deleted.
    pub gc_grace: Duration,
}

impl EngineConfig {
    /// The standard profile: 64 MiB segments, 1 GiB of log, batches up to 16 MiB.
    #[must_use]
    pub fn new(data_dir: impl Into<PathBuf>) -> Self {
        Self {
            data_dir: data_dir.into(),
            bucket_dir: None,
            s3: None,
            take_bucket: false,
            cache_bytes_max: 1 << 30,
            settings: None,
            logs: 1,
            shards: 0,
            pin: false,
            spin: crate::env::SPIN,
            create: true,
            wal: WalConfig {
                segment_bytes: 64 << 20,
                flush_bytes: 1 << 20,
                flush_interval: Duration::ZERO,
                disk_bytes_max: 1 << 30,
                lane_start_bytes: 64 << 20,
                checkpoint_bytes: 128 << 20,
                cache_bytes: 96 << 20,
                commit_method: CommitMethod::Thread,
                full_wait: Duration::from_secs(10),
            },
            pack_bytes: 64 << 20,
            roll: RollConfig {
                bytes: 64 << 20,
                after: Duration::from_secs(3600),
            },
            inflight_bytes_max: 64 << 20,
            frame: FrameLimits::default(),
            feeds_max: 10_000_000,
            producers_max: 100_000,
            gc_grace: Duration::from_secs(3600),
        }
    }

    /// The profile for small machines: 64 MiB of memory, batches up to 1 MiB, one log.
    #[must_use]
    pub fn edge(data_dir: impl Into<PathBuf>) -> Self {
        let mut config = Self::new(data_dir);
        config.wal.segment_bytes = 8 << 20;
        config.wal.flush_bytes = 256 << 10;
        config.wal.disk_bytes_max = 256 << 20;
        config.wal.lane_start_bytes = 3 << 20;
        config.wal.checkpoint_bytes = 16 << 20;
        config.wal.cache_bytes = 4 << 20;
        config.pack_bytes = 16 << 20;
        config.roll.bytes = 16 << 20;
        config.cache_bytes_max = 128 << 20;
        config.inflight_bytes_max = 3 << 20;
        config.frame.record_bytes_max = 1 << 20;
        config.frame.batch_bytes_max = 1 << 20;
        config.frame.records_max = 8192;
        config.frame.headers_max = 32_768;
        config.feeds_max = 10_000;
        config
    }

    /// Largest group: one whole frame and what wraps it, in whole blocks.
    #[must_use]
    pub fn group_bytes_max(&self) -> usize {
        let frame = self.frame.frame_bytes_max().max(self.wal.flush_bytes);
        crate::env::round_up(frame + GROUP_OVERHEAD_BYTES)
    }

    /// Memory for what readers load, per log, from the log's disk and as much again from packs: a
    /// quarter of what is in flight, and at least the largest group.
    #[must_use]
    pub fn reading_bytes_max(&self) -> usize {
        (self.inflight_bytes_max / 4).max(self.group_bytes_max())
    }

    /// Proves the limits against each other.
    ///
    /// # Errors
    /// [`Error::Config`] naming the two that clash.
    pub fn validate(&self) -> Result<()> {
        let segment = self.wal.segment_bytes;
        let group = self.group_bytes_max() as u64;
        let refuse = |text: String| Err(Error::Config(text));
        self.check_least()?;
        self.check_most()?;
        self.check_bucket()?;
        let interval = self.wal.flush_interval;
        if interval > FLUSH_INTERVAL_MAX {
            return refuse(format!(
                "wal.flush_interval_ms = {}, at most {}: every append waits for it",
                interval.as_millis(),
                FLUSH_INTERVAL_MAX.as_millis()
            ));
        }
        if !segment.is_multiple_of(BLOCK_BYTES as u64) {
            return refuse(format!(
                "wal.segment_bytes = {segment} is not a multiple of {BLOCK_BYTES}"
            ));
        }
        let segment_min = 2 * group + BLOCK_BYTES as u64;
        if segment < segment_min {
            return refuse(format!(
                "wal.segment_bytes = {segment}, at least {segment_min} needed for two groups of {group}"
            ));
        }
        if self.wal.disk_bytes_max < 6 * segment {
            return refuse(format!(
                "wal.disk_bytes_max = {}, at least {} needed for six segments",
                self.wal.disk_bytes_max,
                6 * segment
            ));
        }
        if (self.inflight_bytes_max as u64) < group {
            return refuse(format!(
                "inflight_bytes_max = {}, at least {group} needed for one batch",
                self.inflight_bytes_max
            ));
        }
        Ok(())
    }

    fn check_bucket(&self) -> Result<()> {
        let Some(s3) = &self.s3 else { return Ok(()) };
        if !cfg!(feature = "s3") {
            let text = format!("bucket {}: this build knows folders only", s3.url());
            return Err(Error::Config(text));
        }
        if let Some(dir) = &self.bucket_dir {
            let text = format!("both a bucket folder, {}, and {}", dir.display(), s3.url());
            return Err(Error::Config(text));
        }
        s3.validate()
    }

    /// Refuses numbers that nothing can be done with.
    fn check_least(&self) -> Result<()> {
        let least: [(&str, u64, u64); 12] = [
            ("logs", u64::from(self.logs), 1),
            ("pack_bytes", self.pack_bytes, PACK_BYTES_MIN),
            ("roll.bytes", self.roll.bytes, PACK_BYTES_MIN),
            (
                "roll.after_ms",
                millis(self.roll.after),
                millis(ROLL_AFTER.0),
            ),
            ("feeds_max", self.feeds_max, 1),
            ("producers_max", self.producers_max, 1),
            ("batch.records_max", self.frame.records_max as u64, 1),
            ("batch.bytes_max", self.frame.batch_bytes_max as u64, 1),
            (
                "batch.record_bytes_max",
                self.frame.record_bytes_max as u64,
                1,
            ),
            ("batch.key_bytes_max", self.frame.key_bytes_max as u64, 1),
            (
                "wal.flush_bytes",
                self.wal.flush_bytes as u64,
                BLOCK_BYTES as u64,
            ),
            (
                "wal.checkpoint_bytes",
                self.wal.checkpoint_bytes,
                BLOCK_BYTES as u64,
            ),
        ];
        for (key, value, min) in least {
            if value < min {
                let text = format!("{key} = {value}, at least {min} needed");
                return Err(Error::Config(text));
            }
        }
        Ok(())
    }

    /// Refuses numbers that no machine can mean.
    fn check_most(&self) -> Result<()> {
        let most: [(&str, u64, u64); 5] = [
            ("cache.bytes_max", self.cache_bytes_max, CACHE_BYTES_MAX),
            (
                "inflight_bytes_max",
                self.inflight_bytes_max as u64,
                MEMORY_BYTES_MAX,
            ),
            (
                "wal.cache_bytes",
                self.wal.cache_bytes as u64,
                MEMORY_BYTES_MAX,
            ),
            (
                "wal.full_wait_ms",
                millis(self.wal.full_wait),
                millis(FULL_WAIT_MAX),
            ),
            (
                "roll.after_ms",
                millis(self.roll.after),
                millis(ROLL_AFTER.1),
            ),
        ];
        for (key, value, max) in most {
            if value > max {
                let text = format!("{key} = {value}, at most {max} allowed");
                return Err(Error::Config(text));
            }
        }
        Ok(())
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
