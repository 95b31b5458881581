//! Env: the seams through which the engine meets time, disk, bucket, tasks and chance.
//!
//! Production is `GlommioEnv` with `bucket::folder`; the simulator in `tests/` implements the
//! same traits with virtual time and faults. Everything above is generic over [`Env`], statically
//! dispatched and `!Send`.
//!
//! **Invariants**
//! - Nothing else in the engine touches clocks, randomness, files, threads or the network.
//! - [`File::sync_data`] (or [`File::commit`]) returning `Ok` is the only durability point of a file;
//!   [`Disk::sync_dir`] is the only durability point of a name.
//! - A buffer handed to a write stays allocated until the device is done, even when the future is
//!   dropped: buffers are shared (`Arc`), never lent.
//!
//! **Not here**: sockets (the server owns them), retry policy (callers decide).

use std::future::Future;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

mod buf;
mod buf_pool;
mod commit_thread;
pub(crate) mod fs_ops;
mod glommio_env;
pub(crate) mod host;
mod linked_ring;
mod lock;
mod nudge;
mod preflight;
mod shards;
mod side_threads;
mod sys;
#[cfg(test)]
pub(crate) mod testing;
mod unwind;
mod watchdog;

pub(crate) use buf::round_up;
pub use buf::{AlignedBuf, BLOCK_BYTES};
pub use buf_pool::BufPool;
pub use glommio_env::{GlommioDisk, GlommioEnv, GlommioFile};
pub use lock::{DirLock, Holder, LOCK_FILE, LockError};
pub use preflight::{PreflightError, preflight};
pub use shards::{CommitMethod, SPIN, ShardHooks, ShardOptions, run_shard, start_shards};
pub(crate) use side_threads::SideThreads;
pub(crate) use sys::random_u64;

/// Everything the engine needs of its surroundings. Cheap to clone, one per shard.
pub trait Env: Clone + 'static {
    /// Files of the data directory.
    type Disk: Disk;
    /// Objects of the bucket.
    type Bucket: Bucket;

    /// The disk that holds the data directory.
    fn disk(&self) -> &Self::Disk;
    /// The bucket that receives packs, manifests and commits.
    fn bucket(&self) -> &Self::Bucket;
    /// Nanoseconds of a clock that never goes back; meaningless across restarts.
    fn monotonic_ns(&self) -> u64;
    /// Milliseconds since the Unix epoch; may jump either way.
    fn realtime_ms(&self) -> u64;
    /// Completes after `duration` of monotonic time.
    fn sleep(&self, duration: Duration) -> impl Future<Output = ()>;
    /// Starts a detached task on this shard. A panic inside it must reach the shard's panic hook
    /// (callers wrap with `catch_unwind`), never the executor.
    fn spawn(&self, name: &'static str, future: impl Future<Output = ()> + 'static);
    /// [`Env::spawn`] for a short task that is to notice what it waits for at once, ahead of the
    /// others: a busy shard interrupts them for it.
    fn spawn_urgent(&self, name: &'static str, future: impl Future<Output = ()> + 'static) {
        self.spawn(name, future);
    }
    /// Nanoseconds that this shard has spent at work, as of its last turn; 0 where nobody counts. What it
    /// spends asleep in the kernel, in a call that blocks, counts.
    fn busy_ns(&self) -> u64 {
        0
    }
    /// A random number: ids of temporary files, a data directory's identity, and jitter.
    fn random_u64(&self) -> u64;
    /// Gives other tasks a turn if this one has run for its slice (simulator: a seeded preemption point).
    fn yield_if_needed(&self) -> impl Future<Output = ()>;
    /// Runs CPU-heavy work (hashing, index building) off the shard; the simulator runs it in place.
    fn offload<T: Send + 'static>(
        &self,
        job: impl FnOnce() -> T + Send + 'static,
    ) -> impl Future<Output = T>;
}

/// The directory tree of one data directory. Paths are absolute or relative to the process.
pub trait Disk: Clone + 'static {
    /// An open file.
    type File: File;

    /// Creates a new file for direct reads and writes; an existing one is an error (`AlreadyExists`).
    fn create(&self, path: &Path) -> impl Future<Output = io::Result<Self::File>>;
    /// Opens an existing file for direct reads and writes.
    fn open(&self, path: &Path) -> impl Future<Output = io::Result<Self::File>>;
    /// Renames a file, replacing `to`. Durable after [`Disk::sync_dir`].
    fn rename(&self, from: &Path, to: &Path) -> impl Future<Output = io::Result<()>>;
    /// Removes a file. Durable after [`Disk::sync_dir`].
    fn remove(&self, path: &Path) -> impl Future<Output = io::Result<()>>;
    /// Names of the files directly in `dir`, sorted.
    fn list(&self, dir: &Path) -> impl Future<Output = io::Result<Vec<String>>>;
    /// Creates a directory and its parents, and syncs the parents' entries.
    fn create_dir_all(&self, dir: &Path) -> impl Future<Output = io::Result<()>>;
    /// Makes the entries of `dir` durable.
    fn sync_dir(&self, dir: &Path) -> impl Future<Output = io::Result<()>>;
    /// Bytes that can still be written on the disk that holds `dir`; `None`: that isn't known.
    fn free_bytes(&self, dir: &Path) -> impl Future<Output = io::Result<Option<u64>>> {
        let _ = dir;
        async { Ok(None) }
    }
}

/// An open file: block-aligned direct I/O. Offsets and lengths of writes are multiples of
/// [`BLOCK_BYTES`]; reads may be unaligned.
#[expect(
    clippy::len_without_is_empty,
    reason = "nobody asks a log file whether it is empty"
)]
pub trait File: Clone + 'static {
    /// Length in bytes.
    fn len(&self) -> impl Future<Output = io::Result<u64>>;
    /// Writes all of `buf[..len]` at `offset`; not durable.
    fn write_at(&self, buf: Arc<AlignedBuf>, offset: u64) -> impl Future<Output = io::Result<()>>;
    /// Reads up to `len` bytes at `offset`; fewer only at the end of the file.
    fn read_at(&self, offset: u64, len: usize) -> impl Future<Output = io::Result<Vec<u8>>>;
    /// As [`File::read_at`], whole blocks, into memory that is used again.
    fn read_into(
        &self,
        offset: u64,
        len: usize,
        mut buf: AlignedBuf,
    ) -> impl Future<Output = io::Result<AlignedBuf>> {
        async move {
            let bytes = self.read_at(offset, len).await?;
            buf.clear();
            buf.extend_from_slice(&bytes);
            Ok(buf)
        }
    }
    /// Makes every write that completed before this call durable. The only durability point.
    fn sync_data(&self) -> impl Future<Output = io::Result<()>>;
    /// One write and one sync as a unit: the way a group becomes durable. After an error the range
    /// holds anything and nothing is known to be durable.
    fn commit(&self, buf: Arc<AlignedBuf>, offset: u64) -> impl Future<Output = io::Result<()>>;
    /// [`File::commit`] for a shard that has nothing else to do: it may block the shard until the device
    /// has answered, which saves the ways to another thread and back.
    fn commit_alone(
        &self,
        buf: Arc<AlignedBuf>,
        offset: u64,
    ) -> impl Future<Output = io::Result<()>> {
        self.commit(buf, offset)
    }
    /// Waits until no write is in flight that an ended process, or a closed engine, left behind: from
    /// then on the file changes only by calls that follow. Changes nothing in it.
    fn drain(&self) -> impl Future<Output = io::Result<()>>;
    /// Sets the length (used to cut small files to their true size, and to reserve none).
    fn set_len(&self, len: u64) -> impl Future<Output = io::Result<()>>;
}

/// What a conditional create came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PutOutcome {
    /// This call made the object.
    Created,
    /// An object of that name was there; read it back to learn whose it is.
    Exists,
}

/// What a compare-and-swap came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SwapOutcome {
    /// The object now holds the new bytes under this tag.
    Swapped(ETag),
    /// The object changed, or is absent; nothing was written.
    Mismatch,
}

/// Opaque version tag of an object, as the store gave it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ETag(pub String);

/// One row of a listing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObjectMeta {
    /// Full key.
    pub key: String,
    /// Length in bytes.
    pub len: u64,
}

/// Why a bucket call failed.
#[derive(Debug, thiserror::Error)]
pub enum BucketError {
    /// No such object.
    #[error("object {key} not found")]
    NotFound {
        /// The key asked for.
        key: String,
    },
    /// The store has no room; retry when there is.
    #[error("bucket full at {key}: {source}")]
    Full {
        /// The key being written.
        key: String,
        /// The store's own error.
        source: io::Error,
    },
    /// The store does not let us: permissions, credentials. Nothing was written.
    #[error("the bucket refuses {key}: {source}")]
    Denied {
        /// The key in question.
        key: String,
        /// The store's own error.
        source: io::Error,
    },
    /// Anything else: unreachable, refused, timed out. A write may have taken effect.
    #[error("bucket unavailable at {key}: {source}")]
    Unavailable {
        /// The key in question.
        key: String,
        /// The store's own error.
        source: io::Error,
    },
}

/// How a bucket has been doing lately.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct BucketHealth {
    /// It was asked for something since it was opened, and has answered or failed: until then nothing is
    /// known of it.
    pub tried: bool,
    /// What went wrong, if nothing has gone well since, and for how long.
    pub trouble: Option<(String, Duration)>,
    /// Requests that had to be sent again.
    pub retries: u64,
    /// Uploads in parts that were given up and are not cleaned up yet.
    pub leftovers: u64,
    /// Bytes that the local cache of packs holds.
    pub cache_bytes: u64,
}

/// An object store. Keys are `/`-separated, without leading slash. `put_*` return only when the
/// object is durable (a folder: file and directory synced).
pub trait Bucket: Clone + 'static {
    /// A big object in the making.
    type Upload: Upload;

    /// Whether the bucket takes space of the disk that `dir` lies on.
    fn shares_disk(&self, dir: &Path) -> bool;
    /// Whether a bucket that shares the log's disk is as fast as that disk: the log then gives way to
    /// the lane. Waiting for a network would only make appends as slow as the network.
    fn keeps_disk_pace(&self) -> bool {
        true
    }
    /// How the store behind the bucket is doing.
    fn health(&self) -> BucketHealth {
        BucketHealth::default()
    }
    /// [`BucketError::Full`] where objects of `bytes` would find no room; where that cannot be told, writing
    /// them tells. Asked before anything is written, so that nothing is written for nothing.
    fn check_room(&self, bytes: u64) -> impl Future<Output = Result<(), BucketError>> {
        let _ = bytes;
        async { Ok(()) }
    }
    /// Creates `key` with `data`, whole or not at all, if absent.
    fn put_if_absent(
        &self,
        key: &str,
        data: Vec<u8>,
    ) -> impl Future<Output = Result<PutOutcome, BucketError>>;
    /// Replaces `key` if its tag is still `tag`.
    fn put_if_match(
        &self,
        key: &str,
        tag: &ETag,
        data: Vec<u8>,
    ) -> impl Future<Output = Result<SwapOutcome, BucketError>>;
    /// The whole object and its tag.
    fn get(&self, key: &str) -> impl Future<Output = Result<(Vec<u8>, ETag), BucketError>>;
    /// Bytes `offset..offset + len`, clamped to the object's end.
    fn get_range(
        &self,
        key: &str,
        offset: u64,
        len: usize,
    ) -> impl Future<Output = Result<Vec<u8>, BucketError>>;
    /// Length of the object, `None` if absent.
    fn head(&self, key: &str) -> impl Future<Output = Result<Option<u64>, BucketError>>;
    /// Up to `limit` objects below `prefix` that come after `start_after`. The order is that of the keys'
    /// bytes, but for stores that keep folders: theirs goes folder by folder. Either way one page after
    /// the other misses nothing and repeats nothing, and keys that differ only in what follows their last
    /// `/` come in order.
    fn list(
        &self,
        prefix: &str,
        start_after: &str,
        limit: usize,
    ) -> impl Future<Output = Result<Vec<ObjectMeta>, BucketError>>;
    /// Removes `key`; absent is fine.
    fn delete(&self, key: &str) -> impl Future<Output = Result<(), BucketError>>;
    /// Starts a big object whose key is known only at the end (it carries the content digest).
    fn upload(&self) -> impl Future<Output = Result<Self::Upload, BucketError>>;
}

/// A big object being written part by part. Dropping it abandons it; leftovers are cleaned up later.
pub trait Upload: 'static {
    /// Adds the next part. Every part but the last is a multiple of [`BLOCK_BYTES`] long.
    fn part(&mut self, data: Arc<AlignedBuf>) -> impl Future<Output = Result<(), BucketError>>;
    /// Makes the object durable under `key`. An existing object of that name is replaced only by the
    /// same bytes: the key carries the digest of the content.
    fn finish(self, key: &str) -> impl Future<Output = Result<(), BucketError>>;
}
