//! Engine: what a host process holds: threads, the lock on the directory, and the handle to call.
//!
//! **Invariants**
//! - The library never exits or aborts its host: a panic on a shard poisons that shard's logs.
//! - One data directory, one process.
//! - Start is all or nothing: after a failed open nothing is left running.
//!
//! **Not here**: what calls do (`shard`), sessions (`session`).

mod forks;
mod handle;
mod local;
pub mod offline;
mod place;
mod session;
mod shard_side;
mod usage;

pub use handle::{ForkRequest, Handle, LinkedFeed, SubscribeRequest, Subscribed};
pub use session::{AppendSession, SessionOptions, Ticket};
pub use shard_side::{LocalLog, ShardSide};

use std::cell::RefCell;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError};

use crate::bucket::{AnyBucket, FolderBucket};
use crate::datadir::{Marker, open_or_create};
use crate::env::host::{ShardThread, cores, make_dir};
use crate::env::{
    DirLock, Env, GlommioEnv, LockError, ShardHooks, ShardOptions, preflight, start_shards,
};
use crate::error::{Error, Result};
use crate::limits::{EngineConfig, SHARDS_PER_CORE_MAX};
use crate::recovery::LogPlace;
use crate::shard::LogService;
use handle::Job;

/// The environment of a production engine.
pub type ProductionEnv = GlommioEnv<AnyBucket>;

/// A running engine. Clone the handle for other threads; the engine itself is closed once.
///
/// Dropping it closes it, waiting for what was accepted.
pub struct Engine {
    handle: Handle<ProductionEnv>,
    threads: Vec<ShardThread<Option<()>>>,
    /// A shard has stopped turning: its thread can't be waited for.
    stalled: Arc<AtomicBool>,
    lock: Option<DirLock>,
}

/// What a shard tells the opener: how many logs the directory has.
type Ready = Result<usize>;

/// Waits for every shard; the number of logs, or the first error.
fn logs_ready(readiness: &flume::Receiver<Ready>, shards: usize) -> Result<usize> {
    let mut logs = 0;
    for _ in 0..shards {
        logs = readiness.recv().unwrap_or(Err(Error::Closed))?;
    }
    Ok(logs)
}

impl Engine {
    /// Opens the data directory and starts the shards. Blocks until recovery is done.
    ///
    /// # Errors
    /// [`Error::Config`], [`Error::Unusable`] (io_uring forbidden, memlock too small, no direct I/O,
    /// directory locked), [`Error::Corrupt`], [`Error::NewerFormat`], [`Error::Io`],
    /// [`Error::StorageFull`]; `Unusable` also when a shard panicked or stopped turning. Nothing
    /// acknowledged is lost, and after `Corrupt`, `NewerFormat` and an unusable place nothing was
    /// touched.
    pub fn open(config: EngineConfig) -> Result<Self> {
        Self::open_with(config, |_| ())
    }

    /// As [`Engine::open`]; `front` is called once on each shard when its logs are ready, to start the
    /// tasks of a front end there.
    ///
    /// # Errors
    /// As [`Engine::open`].
    pub fn open_with<F>(config: EngineConfig, front: F) -> Result<Self>
    where
        F: FnOnce(ShardSide) + Clone + Send + 'static,
    {
        config.validate()?;
        let shards = shard_count(&config)?;
        let lock = lock(&config)?;
        preflight(&config.data_dir, shards).map_err(|e| Error::Unusable(e.to_string()))?;
        let bucket = bucket(&config, true)?;
        let logs_max = usize::from(config.logs).max(64);
        let (ports, inboxes) = handle::ports::<ProductionEnv>(logs_max, &config);
        let handle = Handle::new(ports, config.clone());
        let (ready, readiness) = flume::unbounded::<Ready>();
        let stalled = Arc::new(AtomicBool::new(false));
        let mut options = ShardOptions::new(shards, hooks(&handle, &ready, &stalled));
        options.pin = config.pin;
        options.commit_method = config.wal.commit_method;
        options.spin = config.spin;
        let (plan, plans) = flume::bounded::<Result<Marker>>(shards);
        let shared = ShardPlan {
            config: config.clone(),
            shards,
            ready,
            plan,
            plans,
            inboxes,
            handle: handle.clone(),
        };
        let main = move |shard, env| run_shard(shard, env, shared, front);
        let threads = start_shards(&options, &bucket, main)
            .map_err(|e| Error::Unusable(format!("starting shards: {e}")))?;
        let mut engine = Self {
            handle,
            threads,
            stalled,
            lock: Some(lock),
        };
        match logs_ready(&readiness, shards) {
            Ok(logs) => {
                engine.handle.keep(logs);
                Ok(engine)
            }
            Err(error) => {
                engine.stop();
                Err(error)
            }
        }
    }

    /// The handle that calls go through; clone it freely.
    #[must_use]
    pub fn handle(&self) -> &Handle<ProductionEnv> {
        &self.handle
    }

    /// Writes `address` into the lock file, for tools that look for a running server.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn set_address(&self, address: &str) -> Result<()> {
        let Some(lock) = &self.lock else {
            return Ok(());
        };
        let path = PathBuf::from(crate::env::LOCK_FILE);
        lock.set_address(address)
            .map_err(|e| Error::io("write", &path, &e))
    }

    /// Refuses new writes, makes accepted ones durable, writes the clean markers, ends the threads.
    ///
    /// # Errors
    /// [`Error::Poisoned`] of the first log that had failed; everything acknowledged is durable.
    ///
    /// # Cancel safety
    /// Dropped midway, dropping the engine finishes the job.
    pub async fn close(mut self) -> Result<()> {
        let closed = self.handle.close().await;
        self.stop();
        closed
    }

    fn stop(&mut self) {
        self.handle.disconnect();
        for thread in self.threads.drain(..) {
            if !thread.is_finished() && self.stalled.load(Ordering::Relaxed) {
                // It may still write: the directory stays locked for as long as the process lives.
                std::mem::forget(self.lock.take());
            } else {
                let _ = thread.join();
            }
        }
        self.lock = None;
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.stop();
    }
}

/// What each shard's main takes with it.
#[derive(Clone)]
struct ShardPlan {
    config: EngineConfig,
    shards: usize,
    ready: flume::Sender<Ready>,
    plan: flume::Sender<Result<Marker>>,
    plans: flume::Receiver<Result<Marker>>,
    inboxes: handle::Inboxes<ProductionEnv>,
    handle: Handle<ProductionEnv>,
}

async fn run_shard(
    shard: usize,
    env: ProductionEnv,
    plan: ShardPlan,
    front: impl FnOnce(ShardSide),
) {
    let marker = if shard == 0 {
        let marker = open_or_create(&env, &plan.config).await;
        for _ in 1..plan.shards {
            let _ = plan.plan.send(marker.clone());
        }
        marker
    } else {
        plan.plans.recv_async().await.unwrap_or(Err(Error::Closed))
    };
    let started = match marker {
        Ok(marker) => {
            let services = start_logs(shard, &env, &plan, &marker).await;
            services.map(|services| (services, marker.logs.len()))
        }
        Err(error) => Err(error),
    };
    match started {
        Ok((services, logs)) => {
            plan.handle.keep(logs);
            for (service, _) in &services {
                forks::start(service, plan.handle.downgrade());
            }
            front(shard_side(shard, &env, &plan, logs, &services));
            let _ = plan.ready.send(Ok(logs));
            let over = plan.handle.over();
            drop(plan);
            serve_all(&env, services).await;
            // Also a shard without logs is there for its front end. Nothing is ever sent.
            let _ = over.recv_async().await;
        }
        Err(error) => {
            let _ = plan.ready.send(Err(error));
        }
    }
}

fn shard_side(
    shard: usize,
    env: &ProductionEnv,
    plan: &ShardPlan,
    logs: usize,
    services: &[Served],
) -> ShardSide {
    // Logs go round the shards: see `start_logs`.
    let mut mine = services.iter();
    let local = |log: usize| (log % plan.shards == shard).then(|| mine.next()).flatten();
    ShardSide {
        shard,
        shards: plan.shards,
        env: env.clone(),
        handle: plan.handle.clone(),
        logs: (0..logs)
            .map(local)
            .map(|served| served.map(|(service, _)| service.clone()))
            .collect(),
    }
}

/// Calls begun between two looks at other tasks.
const JOBS_PER_TURN: usize = 16;

type Served = (
    Rc<LogService<ProductionEnv>>,
    flume::Receiver<Job<ProductionEnv>>,
);

async fn start_logs(
    shard: usize,
    env: &ProductionEnv,
    plan: &ShardPlan,
    marker: &Marker,
) -> Result<Vec<Served>> {
    let mut services = Vec::new();
    for (index, log) in marker.logs.iter().enumerate() {
        if index % plan.shards != shard {
            continue;
        }
        let mut config = plan.config.clone();
        config.wal.segment_bytes = marker.segment_bytes;
        let place = LogPlace::new(&config, marker, *log);
        let inbox = {
            let mut inboxes = plan.inboxes.lock().unwrap_or_else(PoisonError::into_inner);
            inboxes.get_mut(index).and_then(Option::take)
        };
        let limit = || {
            Error::Config(format!(
                "log {index} is beyond the number this build serves"
            ))
        };
        let inbox = inbox.ok_or_else(limit)?;
        let service = LogService::start(env.clone(), config, place).await?;
        services.push((service, inbox));
    }
    Ok(services)
}

async fn serve_all(env: &ProductionEnv, services: Vec<Served>) {
    let done = crate::sync::Event::new();
    let left = Rc::new(RefCell::new(services.len()));
    for (service, inbox) in services {
        let (left, done) = (left.clone(), done.clone());
        env.spawn("inbox", async move {
            serve(service, inbox).await;
            *left.borrow_mut() -= 1;
            done.notify();
        });
    }
    done.until(|| (*left.borrow() == 0).then_some(())).await;
}

/// Runs jobs until every handle is gone, then closes the log.
pub(crate) async fn serve<E: Env>(service: Rc<LogService<E>>, inbox: flume::Receiver<Job<E>>) {
    while let Ok(job) = inbox.recv_async().await {
        job(&service);
        // All that wait are taken under one lock: callers contend for it.
        for (n, job) in inbox.drain().enumerate() {
            job(&service);
            if n % JOBS_PER_TURN == 0 {
                service.env.yield_if_needed().await;
            }
        }
        service.env.yield_if_needed().await;
    }
    if !service.is_stopping() {
        let _ = service.close().await;
    }
}

fn lock(config: &EngineConfig) -> Result<DirLock> {
    let dir = &config.data_dir;
    place::check(config)?;
    if !dir.exists() {
        make_dir(dir).map_err(|e| Error::io("create", dir, &e))?;
    }
    DirLock::acquire(dir).map_err(|error| match error {
        LockError::Held { .. } => Error::Unusable(error.to_string()),
        LockError::Io { dir, source } => Error::io("lock", &dir, &source),
    })
}

/// Opens the bucket that `config` names.
#[cfg_attr(not(feature = "s3"), expect(unused_variables))]
fn bucket(config: &EngineConfig, writes: bool) -> Result<AnyBucket> {
    #[cfg(feature = "s3")]
    if let Some(options) = &config.s3 {
        let local = crate::bucket::S3Local {
            dir: config.data_dir.join(crate::datadir::CACHE_DIR),
            cache_bytes_max: if writes { config.cache_bytes_max } else { 0 },
            upload_memory: config.inflight_bytes_max / 2,
            writes_after: writes.then_some(config.gc_grace),
        };
        let opened = crate::bucket::S3Bucket::open(options, local);
        let opened = opened.map_err(|e| Error::Unusable(e.to_string()))?;
        return Ok(AnyBucket::S3(opened));
    }
    let opened = FolderBucket::open(bucket_dir(config));
    let opened = opened.map_err(|e| Error::Unusable(e.to_string()))?;
    Ok(AnyBucket::Folder(opened))
}

fn bucket_dir(config: &EngineConfig) -> PathBuf {
    config
        .bucket_dir
        .clone()
        .unwrap_or_else(|| config.data_dir.join("bucket"))
}

fn shard_count(config: &EngineConfig) -> Result<usize> {
    let cores = cores();
    let max = cores * SHARDS_PER_CORE_MAX;
    match config.shards {
        0 => Ok(usize::from(config.logs).clamp(1, cores)),
        shards if shards <= max => Ok(shards),
        shards => Err(Error::Config(format!(
            "shards = {shards}, at most {max} on {cores} cores"
        ))),
    }
}

/// Trouble poisons the logs, and ends an open that still waits.
fn hooks(
    handle: &Handle<ProductionEnv>,
    ready: &flume::Sender<Ready>,
    stalled: &Arc<AtomicBool>,
) -> ShardHooks {
    let (poisoner, ready) = (handle.poisoner(), ready.clone());
    let poison = Arc::new(move |reason: String| {
        poisoner.poison(&reason);
        let _ = ready.send(Err(Error::Unusable(reason)));
    });
    let (stall, stalled) = (Arc::clone(&poison), Arc::clone(stalled));
    ShardHooks {
        on_panic: Arc::new(move |shard, task, message| {
            poison(format!(
                "bug: task {task:?} of shard {shard} panicked: {message}"
            ));
        }),
        on_stall: Arc::new(move |shard| {
            stalled.store(true, Ordering::Relaxed);
            stall(format!("shard {shard} has not turned for 10 s"));
        }),
    }
}
