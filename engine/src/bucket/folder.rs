//! FolderBucket: a bucket that is a local folder, for one machine without an object store.
//!
//! **Invariants**
//! - No call blocks the executor: all work runs on the bucket's own threads.
//! - A call once begun runs to its end, also when its future is dropped (the effect is then unknown).
//! - The page cache holds little of what is written here: parts go direct, the rest is dropped.
//!
//! **Not here**: what happens on disk (`folder_store`), its order of listing (`folder_list`).

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use super::folder_list::{is_absent, list};
use super::folder_store::{FolderStore, UploadFile};
use crate::env::fs_ops::check_room;
use crate::env::{
    AlignedBuf, Bucket, BucketError, BucketHealth, ETag, ObjectMeta, PutOutcome, SideThreads,
    SwapOutcome, Upload,
};

/// Threads of one open folder.
const THREADS: usize = 2;

/// Stands for the key in errors of an upload, which has none yet.
const UPLOAD_KEY: &str = "(upload)";

/// Why a folder can't be a bucket.
#[derive(Debug, thiserror::Error)]
#[error("bucket folder {} can't be opened: {source}", path.display())]
pub struct FolderOpenError {
    /// The folder.
    pub path: PathBuf,
    /// The system's own error.
    #[source]
    pub source: io::Error,
}

/// A folder as object store: keys are relative paths. Cheap to clone; may be opened more than once,
/// also by several processes.
#[derive(Clone)]
pub struct FolderBucket {
    store: Arc<FolderStore>,
    threads: SideThreads,
    health: Arc<Mutex<Health>>,
}

/// What a call is for, as far as its success says how the folder is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Aim {
    /// An object that is absent is an answer.
    Get,
    Read,
    /// Its success does not say that there is room.
    Begin,
    Store,
}

/// What the calls came to. A full folder is still read: only what was stored ends the trouble of what was
/// not.
#[derive(Default)]
struct Health {
    tried: bool,
    /// What the last call failed with, and since when all have.
    reading: Option<(String, Instant)>,
    writing: Option<(String, Instant)>,
}

impl Health {
    fn remember<T>(&mut self, aim: Aim, outcome: &Result<T, BucketError>) {
        self.tried = true;
        let trouble = match aim {
            Aim::Get | Aim::Read => &mut self.reading,
            Aim::Begin | Aim::Store => &mut self.writing,
        };
        match outcome {
            // An object that is not there is an answer.
            Ok(_) | Err(BucketError::NotFound { .. }) => match aim {
                Aim::Get | Aim::Read => self.reading = None,
                Aim::Begin => {}
                Aim::Store => (self.reading, self.writing) = (None, None),
            },
            Err(error) => {
                let since = trouble.as_ref().map(|(_, since)| *since);
                *trouble = Some((error.to_string(), since.unwrap_or_else(Instant::now)));
            }
        }
    }
}

impl FolderBucket {
    /// Opens the folder `root`, making it if absent, and removes what crashed writers left behind.
    /// Blocks; call it before the executors run.
    ///
    /// # Errors
    /// The folder can't be made, read or written, or no threads can be made.
    pub fn open(root: impl AsRef<Path>) -> Result<Self, FolderOpenError> {
        let root = root.as_ref();
        let failed = |source| FolderOpenError {
            path: root.to_owned(),
            source,
        };
        Ok(Self {
            store: Arc::new(FolderStore::open(root).map_err(failed)?),
            threads: SideThreads::start("sealog-bucket", THREADS).map_err(failed)?,
            health: Arc::default(),
        })
    }

    /// Runs a job to its end.
    async fn call<T: Send + 'static>(
        &self,
        aim: Aim,
        key: &str,
        job: impl FnOnce(&FolderStore, &str) -> io::Result<T> + Send + 'static,
    ) -> Result<T, BucketError> {
        let store = Arc::clone(&self.store);
        let owned = key.to_owned();
        let outcome = self.threads.run(move || job(&store, &owned)).await;
        let outcome = outcome.map_err(|source| match aim {
            Aim::Get => absent(key, typed(key, source)),
            Aim::Read | Aim::Begin | Aim::Store => typed(key, source),
        });
        let mut health = self.health.lock().unwrap_or_else(PoisonError::into_inner);
        health.remember(aim, &outcome);
        outcome
    }
}

impl Bucket for FolderBucket {
    type Upload = FolderUpload;

    fn shares_disk(&self, dir: &Path) -> bool {
        self.store.shares_disk(dir)
    }

    fn health(&self) -> BucketHealth {
        let health = self.health.lock().unwrap_or_else(PoisonError::into_inner);
        let trouble = health.writing.as_ref().or(health.reading.as_ref());
        BucketHealth {
            tried: health.tried,
            trouble: trouble.map(|(text, since)| (text.clone(), since.elapsed())),
            ..BucketHealth::default()
        }
    }

    async fn check_room(&self, bytes: u64) -> Result<(), BucketError> {
        let check = move |store: &FolderStore, _: &str| check_room(store.root(), bytes);
        self.call(Aim::Begin, UPLOAD_KEY, check).await
    }

    async fn put_if_absent(&self, key: &str, data: Vec<u8>) -> Result<PutOutcome, BucketError> {
        self.call(Aim::Store, key, move |store, key| {
            store.put_if_absent(key, &data)
        })
        .await
    }

    async fn put_if_match(
        &self,
        key: &str,
        tag: &ETag,
        data: Vec<u8>,
    ) -> Result<SwapOutcome, BucketError> {
        let tag = tag.clone();
        self.call(Aim::Store, key, move |store, key| {
            store.put_if_match(key, &tag, &data)
        })
        .await
    }

    async fn get(&self, key: &str) -> Result<(Vec<u8>, ETag), BucketError> {
        self.call(Aim::Get, key, |store, key| store.get(key)).await
    }

    async fn get_range(&self, key: &str, offset: u64, len: usize) -> Result<Vec<u8>, BucketError> {
        self.call(Aim::Get, key, move |store, key| {
            store.get_range(key, offset, len)
        })
        .await
    }

    async fn head(&self, key: &str) -> Result<Option<u64>, BucketError> {
        self.call(Aim::Read, key, |store, key| store.head(key))
            .await
    }

    async fn list(
        &self,
        prefix: &str,
        start_after: &str,
        limit: usize,
    ) -> Result<Vec<ObjectMeta>, BucketError> {
        let start_after = start_after.to_owned();
        self.call(Aim::Read, prefix, move |store, prefix| {
            list(store.root(), prefix, &start_after, limit)
        })
        .await
    }

    async fn delete(&self, key: &str) -> Result<(), BucketError> {
        self.call(Aim::Begin, key, |store, key| store.delete(key))
            .await
    }

    async fn upload(&self) -> Result<FolderUpload, BucketError> {
        let file = self
            .call(Aim::Begin, UPLOAD_KEY, |store, _| store.upload())
            .await?;
        Ok(FolderUpload {
            bucket: self.clone(),
            file: Some(file),
        })
    }
}

/// A big object on its way into a [`FolderBucket`].
pub struct FolderUpload {
    bucket: FolderBucket,
    /// Away while a part is being written; a dropped call never brings it back.
    file: Option<UploadFile>,
}

impl FolderUpload {
    fn take(&mut self) -> Result<UploadFile, BucketError> {
        self.file.take().ok_or_else(|| {
            typed(
                UPLOAD_KEY,
                io::Error::other("an earlier call on this upload was dropped or failed"),
            )
        })
    }
}

impl Upload for FolderUpload {
    async fn part(&mut self, data: Arc<AlignedBuf>) -> Result<(), BucketError> {
        let mut file = self.take()?;
        let write = move |_: &FolderStore, _: &str| {
            file.part(&data)?;
            Ok(file)
        };
        self.file = Some(self.bucket.call(Aim::Begin, UPLOAD_KEY, write).await?);
        Ok(())
    }

    async fn finish(mut self, key: &str) -> Result<(), BucketError> {
        let file = self.take()?;
        self.bucket
            .call(Aim::Store, key, move |store, key| store.finish(file, key))
            .await
    }
}

impl Drop for FolderUpload {
    fn drop(&mut self) {
        if let Some(file) = self.file.take() {
            // Removing a big file takes a while: not on the executor, unless the threads are swamped.
            self.bucket.threads.run_detached(move || drop(file));
        }
    }
}

/// The one place where the system's errors become the bucket's.
fn typed(key: &str, source: io::Error) -> BucketError {
    let key = key.to_owned();
    match source.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            BucketError::Full { key, source }
        }
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
            BucketError::Denied { key, source }
        }
        _ => BucketError::Unavailable { key, source },
    }
}

fn absent(key: &str, error: BucketError) -> BucketError {
    match error {
        BucketError::Unavailable { source, .. } if is_absent(&source) => BucketError::NotFound {
            key: key.to_owned(),
        },
        other => other,
    }
}

#[cfg(test)]
mod tests;
