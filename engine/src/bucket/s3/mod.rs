//! S3Bucket: a bucket in an S3-compatible store.
//!
//! ```text
//!  shards ── calls ──> one thread: probe passed? -> try, wait, try again -> the store
//!    └── parts ──> a nameless file on the local disk ── finish(key) ──> whole, or in parts
//! ```
//!
//! **Invariants**
//! - Every create and every swap carries its condition; objects sent in parts alone do not: their name
//!   is their content's digest. Commit points are plain writes.
//! - Nothing is sent before the store has proved that it keeps conditions, unless told otherwise.
//! - No call blocks the executor. One whose future is dropped runs on.
//!
//! **Not here**: what the objects are (`lane`, `commit`).

mod backoff;
mod cache;
mod client;
mod objects;
mod probe;
mod profile;
mod ranges;
mod reply;
mod runtime;
mod spool;
mod stale;
mod upload;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use super::S3Options;
use super::key::check;
use crate::env::fs_ops::check_room;
use crate::env::{
    AlignedBuf, Bucket, BucketError, BucketHealth, ETag, ObjectMeta, PutOutcome, SideThreads,
    SwapOutcome, Upload,
};
use cache::Cache;
use client::Client;
use probe::Gate;
use ranges::Ranges;
use reply::{Failure, Kind};
use runtime::Runtime;
use spool::Spool;
use upload::{UploadLimits, Uploader};

/// Threads for spools.
const DISK_THREADS: usize = 2;
/// Where machines of a cloud ask for their own credentials.
const MACHINE_CREDENTIALS: &str = "//169.254.169.254/";
/// Stands for the key in errors of an upload, which has none yet.
const UPLOAD_KEY: &str = "(upload)";

/// What a bucket may use of this machine.
#[derive(Debug, Clone)]
pub struct S3Local {
    /// Folder for objects in the making and for the cache; may be deleted at any time.
    pub dir: PathBuf,
    /// Bound on the cache; 0 is none.
    pub cache_bytes_max: u64,
    /// Memory for parts on their way.
    pub upload_memory: usize,
    /// Age at which uploads in parts that nobody goes on with are aborted; `None` for a bucket that is
    /// only read: nothing is written to it, not even to probe it.
    pub writes_after: Option<Duration>,
}

/// Why a store can't be the bucket.
#[derive(Debug, thiserror::Error)]
#[error("bucket {url} can't be used: {reason}")]
pub struct S3OpenError {
    /// The bucket.
    pub url: String,
    /// What is wrong with it.
    pub reason: String,
}

struct Shared {
    client: Arc<Client>,
    gate: Arc<Gate>,
    uploader: Arc<Uploader>,
    ranges: Arc<Ranges>,
    cache: Option<Arc<Cache>>,
    disk: SideThreads,
    local: S3Local,
}

/// A bucket in a store. Cheap to clone.
#[derive(Clone)]
pub struct S3Bucket {
    shared: Arc<Shared>,
    runtime: Runtime,
}

impl S3Bucket {
    /// Opens the bucket, and waits up to ten seconds for the store to prove that it can be one. A
    /// store that does not answer is waited for while the bucket is open: until then calls fail as
    /// unavailable. Blocks; call it before the executors run.
    ///
    /// # Errors
    /// The options make no sense, the store won't have us or lacks what a bucket needs, or no threads
    /// can be made.
    pub fn open(options: &S3Options, local: S3Local) -> Result<Self, S3OpenError> {
        let failed = |reason: String| S3OpenError {
            url: options.url(),
            reason,
        };
        let client = Client::new(options).map_err(|failure| failed(failure.to_string()))?;
        let client = Arc::new(client);
        let io = |error: io::Error| failed(error.to_string());
        let disk = SideThreads::start("sealog-cache", DISK_THREADS).map_err(io)?;
        let runtime = Runtime::start().map_err(io)?;
        let limits = UploadLimits::within(local.upload_memory);
        let cache = open_cache(&local).map_err(io)?;
        let gate = match local.writes_after {
            None => Arc::new(Gate::open()),
            Some(grace) => prove(&runtime, &client, grace).map_err(failed)?,
        };
        let uploader = Uploader::new(client.clone(), disk.clone(), limits);
        Ok(Self {
            shared: Arc::new(Shared {
                gate,
                uploader: Arc::new(uploader),
                ranges: Arc::new(Ranges::new(client.clone(), cache.clone(), disk.clone())),
                client,
                cache,
                disk,
                local,
            }),
            runtime,
        })
    }

    /// Runs `work` on the bucket's thread.
    async fn call<T: Send + 'static, F>(
        &self,
        key: &str,
        work: impl FnOnce(Arc<Client>, String) -> F,
    ) -> Result<T, BucketError>
    where
        F: Future<Output = Result<T, Failure>> + Send + 'static,
    {
        let passed = self.shared.gate.check();
        passed.map_err(|failure| typed(key, failure))?;
        let done = self
            .runtime
            .run(work(self.shared.client.clone(), key.to_owned()));
        match done.await {
            Some(done) => done.map_err(|failure| typed(key, failure)),
            None => Err(unavailable(key, io::Error::other("bug: the call panicked"))),
        }
    }
}

impl Bucket for S3Bucket {
    type Upload = S3Upload;

    /// Objects in the making are there.
    fn shares_disk(&self, dir: &Path) -> bool {
        use std::os::unix::fs::MetadataExt;
        let device = |path: &Path| std::fs::metadata(path).map(|meta| meta.dev());
        matches!((device(&self.shared.local.dir), device(dir)), (Ok(own), Ok(other)) if own == other)
    }

    fn keeps_disk_pace(&self) -> bool {
        false
    }

    fn health(&self) -> BucketHealth {
        let mut health = self.shared.client.health();
        health.cache_bytes = self.shared.cache.as_ref().map_or(0, |cache| cache.bytes());
        health
    }

    /// Of the disk that objects in the making are on; the store tells of itself when it is asked.
    async fn check_room(&self, bytes: u64) -> Result<(), BucketError> {
        let (dir, cache) = (self.shared.local.dir.clone(), self.shared.cache.clone());
        let check = move || match (check_room(&dir, bytes), cache) {
            // What is in the cache is elsewhere, too.
            (Err(_), Some(cache)) => {
                cache.clear();
                check_room(&dir, bytes)
            }
            (checked, _) => checked,
        };
        let checked = self.shared.disk.run(check).await;
        checked.map_err(|error| unavailable(UPLOAD_KEY, error))
    }

    async fn put_if_absent(&self, key: &str, data: Vec<u8>) -> Result<PutOutcome, BucketError> {
        checked(key)?;
        self.call(key, |client, key| async move {
            client.put_if_absent(&key, data.into()).await
        })
        .await
    }

    async fn put_if_match(
        &self,
        key: &str,
        tag: &ETag,
        data: Vec<u8>,
    ) -> Result<SwapOutcome, BucketError> {
        checked(key)?;
        let tag = tag.clone();
        self.call(key, |client, key| async move {
            client.put_if_match(&key, &tag, data.into()).await
        })
        .await
    }

    async fn get(&self, key: &str) -> Result<(Vec<u8>, ETag), BucketError> {
        checked(key)?;
        self.call(key, |client, key| async move { client.get(&key).await })
            .await
    }

    async fn get_range(&self, key: &str, offset: u64, len: usize) -> Result<Vec<u8>, BucketError> {
        checked(key)?;
        let ranges = self.shared.ranges.clone();
        self.call(key, move |_, key| async move {
            ranges.get(&key, offset, len).await
        })
        .await
    }

    async fn head(&self, key: &str) -> Result<Option<u64>, BucketError> {
        checked(key)?;
        self.call(key, |client, key| async move { client.head(&key).await })
            .await
    }

    async fn list(
        &self,
        prefix: &str,
        start_after: &str,
        limit: usize,
    ) -> Result<Vec<ObjectMeta>, BucketError> {
        let start_after = start_after.to_owned();
        self.call(prefix, move |client, prefix| async move {
            client.list(&prefix, &start_after, limit).await
        })
        .await
    }

    async fn delete(&self, key: &str) -> Result<(), BucketError> {
        checked(key)?;
        self.call(key, |client, key| async move { client.delete(&key).await })
            .await
    }

    async fn upload(&self) -> Result<S3Upload, BucketError> {
        if self.shared.client.in_trouble() {
            // A whole object is not made to find out at its end that the store is still away.
            self.call(UPLOAD_KEY, |client, _| async move { client.knock().await })
                .await?;
        }
        let dir = self.shared.local.dir.clone();
        let spool = self.shared.disk.run(move || Spool::create(&dir)).await;
        Ok(S3Upload {
            bucket: self.clone(),
            spool: Some(spool.map_err(|error| unavailable(UPLOAD_KEY, error))?),
        })
    }
}

/// A big object on its way into an [`S3Bucket`].
pub struct S3Upload {
    bucket: S3Bucket,
    /// Away while a part is being written; a dropped call never brings it back.
    spool: Option<Spool>,
}

impl S3Upload {
    fn take(&mut self) -> Result<Spool, BucketError> {
        self.spool.take().ok_or_else(|| {
            let text = "an earlier call on this upload was dropped or failed";
            unavailable(UPLOAD_KEY, io::Error::other(text))
        })
    }
}

impl Upload for S3Upload {
    async fn part(&mut self, data: Arc<AlignedBuf>) -> Result<(), BucketError> {
        let mut spool = self.take()?;
        let cache = self.bucket.shared.cache.clone();
        let write = move || {
            match (spool.write(&data), cache) {
                // What is in the cache is elsewhere, too; this isn't.
                (Err(error), Some(cache)) if error.kind() == io::ErrorKind::StorageFull => {
                    cache.clear();
                    spool.write(&data)?;
                }
                (written, _) => written?,
            }
            Ok(spool)
        };
        let written = self.bucket.shared.disk.run(write).await;
        self.spool = Some(written.map_err(|error| unavailable(UPLOAD_KEY, error))?);
        Ok(())
    }

    async fn finish(mut self, key: &str) -> Result<(), BucketError> {
        checked(key)?;
        let spool = Arc::new(self.take()?);
        let uploader = self.bucket.shared.uploader.clone();
        self.bucket
            .call(
                key,
                |_, key| async move { uploader.send(spool, &key).await },
            )
            .await
    }
}

/// Reads one object of a store that is not opened otherwise. Blocks.
pub(crate) fn fetch(options: &S3Options, key: &str) -> crate::Result<Vec<u8>> {
    let failed = |failure: Failure| crate::Error::from(typed(key, failure));
    checked(key)?;
    let client = Client::new(options).map_err(failed)?;
    let runtime = Runtime::start().map_err(|error| unavailable(key, error))?;
    let (reply, answer) = flume::bounded(1);
    let owned = key.to_owned();
    runtime.begin(async move {
        let _ = reply.send(client.get(&owned).await);
    });
    match answer.recv() {
        Ok(got) => got.map(|(bytes, _)| bytes).map_err(failed),
        Err(_) => Err(crate::Error::Bucket(format!("bug: reading {key} panicked"))),
    }
}

fn open_cache(local: &S3Local) -> io::Result<Option<Arc<Cache>>> {
    std::fs::create_dir_all(&local.dir)?;
    if local.cache_bytes_max == 0 {
        return Ok(None);
    }
    let cache = Cache::open(&local.dir, local.cache_bytes_max)?;
    Ok(Some(Arc::new(cache)))
}

/// Begins the probe, and waits for what it says.
fn prove(runtime: &Runtime, client: &Arc<Client>, grace: Duration) -> Result<Arc<Gate>, String> {
    let (gate, news) = Gate::closed();
    let gate = Arc::new(gate);
    let (client, probed) = (client.clone(), gate.clone());
    runtime.begin(async move {
        probe::run(client.clone(), probed.clone()).await;
        if probed.check().is_ok() {
            // A store that can't list them cleans up by a rule of its own, or not at all.
            let _ = stale::abort_stale(&client, grace).await;
        }
    });
    match news.wait() {
        Err(text) if text.contains(MACHINE_CREDENTIALS) => Err(format!(
            "no credentials in AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, and none of this machine: {text}"
        )),
        heard => heard.map(|()| gate),
    }
}

fn checked(key: &str) -> Result<(), BucketError> {
    check(key).map_err(|error| unavailable(key, error))
}

/// The one place where failures become the seam's errors.
fn typed(key: &str, failure: Failure) -> BucketError {
    let key = key.to_owned();
    match failure.kind {
        Kind::NotFound => BucketError::NotFound { key },
        Kind::Full => BucketError::Full {
            key,
            source: io::Error::new(io::ErrorKind::StorageFull, failure.to_string()),
        },
        Kind::Denied => BucketError::Denied {
            key,
            source: io::Error::other(failure.to_string()),
        },
        _ => BucketError::Unavailable {
            key,
            source: io::Error::other(failure.to_string()),
        },
    }
}

/// An error of this machine.
fn unavailable(key: &str, source: io::Error) -> BucketError {
    let key = key.to_owned();
    match source.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            BucketError::Full { key, source }
        }
        _ => BucketError::Unavailable { key, source },
    }
}
