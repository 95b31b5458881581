//! Local: all logs of a data directory on the executor that calls: the simulator's engine.
//!
//! **Invariants**
//! - The same recovery, services and handle as in production; only threads are missing.
//!
//! **Not here**: the lock on the directory: the simulator has one process at a time.

use super::handle::Handle;
use crate::datadir::open_or_create;
use crate::env::Env;
use crate::error::Result;
use crate::limits::EngineConfig;
use crate::recovery::LogPlace;
use crate::shard::LogService;

impl<E: Env> Handle<E> {
    /// Opens the data directory, or makes it, and serves all its logs as tasks of `env`.
    ///
    /// # Errors
    /// As [`crate::Engine::open`], but for what only threads and real files can fail with.
    ///
    /// # Cancel safety
    /// Dropped midway, recovery stops as after a crash; tasks already spawned stay with `env`.
    pub async fn start_on(env: &E, config: &EngineConfig) -> Result<Self> {
        let marker = open_or_create(env, config).await?;
        let mut config = config.clone();
        config.wal.segment_bytes = marker.segment_bytes;
        let group = usize::try_from(marker.group_bytes_max).unwrap_or(usize::MAX);
        let mut services = Vec::new();
        for log in &marker.logs {
            let place = LogPlace {
                data_dir: config.data_dir.clone(),
                log: *log,
                wal: config.wal.clone(),
                group_bytes_max: group.max(config.group_bytes_max()),
                accept_loss: false,
            };
            services.push(LogService::start(env.clone(), config.clone(), place).await?);
        }
        Ok(Self::attach(&services, &config))
    }
}
