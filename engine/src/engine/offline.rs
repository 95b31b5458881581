//! Offline: a data directory that no engine has open: its lock, its bucket, and one shard to run on.
//!
//! **Invariants**
//! - The directory's lock is held from before the first read to after the last write.
//! - A panic on the shard is an error for the caller, never the host's end.
//!
//! **Not here**: what is done there (`verify`, `accept_loss`, `reshard`).

mod accept_loss;
mod reshard;
mod survey;

pub use accept_loss::{FeedLoss, LogLoss, LossReport, accept_loss, accept_loss_in};
pub use reshard::{ReshardReport, reshard, reshard_in};

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use super::{ProductionEnv, bucket, bucket_dir, lock};
use crate::bucket::AnyBucket;
use crate::datadir::{MARKER_FILE, Marker, read_marker};
use crate::env::{DirLock, Env, ShardHooks, ShardOptions, preflight, start_shards};
use crate::error::{Error, Result};
use crate::limits::EngineConfig;

/// A data directory, locked, with nothing running in it.
pub(crate) struct Offline {
    _lock: DirLock,
    bucket: AnyBucket,
    config: EngineConfig,
}

impl Offline {
    /// Locks an existing directory and opens its bucket.
    pub(crate) fn enter(config: &EngineConfig) -> Result<Self> {
        config.validate()?;
        let config = EngineConfig {
            create: false,
            ..config.clone()
        };
        let lock = lock(&config)?;
        preflight(&config.data_dir, 1).map_err(|e| Error::Unusable(e.to_string()))?;
        let folder = bucket_dir(&config);
        if config.s3.is_none() && !folder.is_dir() {
            let text = format!("bucket folder {} is not there", folder.display());
            return Err(Error::Unusable(text));
        }
        let bucket = bucket(&config, false)?;
        Ok(Self {
            _lock: lock,
            bucket,
            config,
        })
    }

    /// Runs `main` on a shard of its own; `meanwhile` runs here and ends by itself.
    pub(crate) fn run<T, M, F>(&self, main: M, meanwhile: impl FnOnce()) -> Result<T>
    where
        M: FnOnce(ProductionEnv) -> F + Clone + Send + 'static,
        F: Future<Output = Result<T>> + 'static,
        T: Send + 'static,
    {
        let panicked: Arc<Mutex<Option<String>>> = Arc::default();
        let heard = panicked.clone();
        let hooks = ShardHooks {
            on_panic: Arc::new(move |_, task, message| {
                let mut heard = heard.lock().unwrap_or_else(PoisonError::into_inner);
                heard.get_or_insert(format!("task {task:?}: {message}"));
            }),
            on_stall: Arc::new(|_| {}),
        };
        let mut options = ShardOptions::new(1, hooks);
        options.pin = false;
        options.commit_method = self.config.wal.commit_method;
        let threads = start_shards(&options, &self.bucket, |_, env| main(env))
            .map_err(|e| Error::Unusable(format!("starting a shard: {e}")))?;
        meanwhile();
        let results = threads.into_iter().map(|thread| thread.join().ok());
        match results.flatten().flatten().next() {
            Some(result) => result,
            None => {
                let message = panicked.lock().unwrap_or_else(PoisonError::into_inner);
                let message = message.clone().unwrap_or_default();
                Err(Error::Unusable(format!(
                    "bug: the shard panicked: {message}"
                )))
            }
        }
    }
}

/// The marker of a folder that must be a data directory.
pub(crate) async fn marker_of<E: Env>(env: &E, dir: &Path) -> Result<Marker> {
    read_marker(env, dir).await?.ok_or_else(|| {
        let text = format!(
            "{} is not a data directory: no file {MARKER_FILE:?}",
            dir.display()
        );
        Error::Unusable(text)
    })
}
