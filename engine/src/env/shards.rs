//! Shards: starts one executor per shard, each on a thread of its own, with all they share.
//!
//! **Invariants**
//! - All executors are made before any `main` runs: a machine that can't run them all runs none.
//! - When a shard's thread has ended, nothing it asked of the disk is in flight: the directory may be
//!   unlocked.
//! - Helper threads are started from the caller's thread, so they don't inherit a shard's CPU.
//!
//! **Not here**: the environment itself (`glommio_env`), checks before the start (`preflight`).

use std::future::Future;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use super::Bucket;
use super::commit_thread::{COMMIT_THREADS, CommitQueue, CommitThreads};
use super::glommio_env::{GlommioEnv, ShardExecutor};
use super::side_threads::SideThreads;
use super::unwind::panic_message;
use super::watchdog::{self, Heartbeat};

/// How a group becomes durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CommitMethod {
    /// Write, then fdatasync, on the executor's own ring.
    Executor,
    /// On one of two threads beside the executor.
    Thread,
    /// As a linked pair on a ring of the shard's own, waited for by the executor.
    LinkedRing,
}

/// Who hears of a shard's trouble. Called on the shard's or the watchdog's thread; must not block.
#[derive(Clone)]
pub struct ShardHooks {
    /// A task (named), `main` or the executor panicked: shard, task, message.
    pub on_panic: Arc<dyn Fn(usize, &'static str, String) + Send + Sync>,
    /// The shard hasn't turned for [`ShardOptions::stall_limit`].
    pub on_stall: Arc<dyn Fn(usize) + Send + Sync>,
}

impl ShardHooks {
    /// A hook's own panic stops here: nothing is left to report it to.
    pub(crate) fn panicked(&self, shard: usize, task: &'static str, message: String) {
        let _ = catch_unwind(AssertUnwindSafe(|| (self.on_panic)(shard, task, message)));
    }

    pub(crate) fn stalled(&self, shard: usize) {
        let _ = catch_unwind(AssertUnwindSafe(|| (self.on_stall)(shard)));
    }
}

/// How long an embedded shard without work looks for more before it sleeps: a sleep and the wake from
/// it cost both sides system calls, and most waits of a busy shard are shorter than this.
pub const SPIN: Duration = Duration::from_micros(50);

/// What to start.
#[derive(Clone)]
pub struct ShardOptions {
    /// Executors to start.
    pub shards: usize,
    /// Bind shard i to the i-th CPU this process may use, if there are enough of them.
    pub pin: bool,
    /// How groups become durable.
    pub commit_method: CommitMethod,
    /// How long a shard without work looks for more before it sleeps.
    pub spin: Duration,
    /// Silence after which a shard counts as stalled; no less than a second, heartbeats are 250 ms apart.
    pub stall_limit: Duration,
    /// Who hears of trouble.
    pub hooks: ShardHooks,
}

impl ShardOptions {
    /// `shards` shards, pinned where possible, 10 s of silence allowed.
    #[must_use]
    pub fn new(shards: usize, hooks: ShardHooks) -> Self {
        Self {
            shards,
            pin: true,
            commit_method: CommitMethod::Thread,
            spin: SPIN,
            stall_limit: Duration::from_secs(10),
            hooks,
        }
    }
}

/// What a shard's thread makes its environment of.
pub(crate) struct ShardSeed<B> {
    pub(crate) shard: usize,
    pub(crate) bucket: B,
    pub(crate) commit_method: CommitMethod,
    pub(crate) spin: Duration,
    pub(crate) commit_queue: CommitQueue,
    pub(crate) chores: SideThreads,
    pub(crate) offload: SideThreads,
    pub(crate) heartbeat: Arc<Heartbeat>,
    pub(crate) hooks: ShardHooks,
}

/// Starts the shards; `main` runs once on each. A thread gives `None` if its `main` panicked.
///
/// # Errors
/// An executor or thread can't be made (see `preflight` for why, said better); nothing is left running.
pub fn start_shards<B, M, F, T>(
    options: &ShardOptions,
    bucket: &B,
    main: M,
) -> io::Result<Vec<JoinHandle<Option<T>>>>
where
    B: Bucket + Send,
    M: FnOnce(usize, GlommioEnv<B>) -> F + Clone + Send + 'static,
    F: Future<Output = T> + 'static,
    T: Send + 'static,
{
    let cpus = cpus_for(options);
    let chores = SideThreads::start("sealog-chores", 1)?;
    let offload = SideThreads::start("sealog-offload", options.shards.max(1))?;
    let heartbeats: Vec<Arc<Heartbeat>> = (0..options.shards).map(|_| Arc::default()).collect();
    let (ready, made) = flume::unbounded::<io::Result<()>>();
    let mut waiting = WaitingShards {
        starters: Vec::new(),
        threads: Vec::new(),
    };
    for (shard, (cpu, heartbeat)) in cpus.into_iter().zip(&heartbeats).enumerate() {
        let threads = if options.commit_method == CommitMethod::Thread {
            COMMIT_THREADS
        } else {
            0
        };
        let commit = CommitThreads::start(shard, threads)?;
        let seed = ShardSeed {
            shard,
            bucket: bucket.clone(),
            commit_method: options.commit_method,
            spin: options.spin,
            commit_queue: commit.queue(),
            chores: chores.clone(),
            offload: offload.clone(),
            heartbeat: Arc::clone(heartbeat),
            hooks: options.hooks.clone(),
        };
        let (go, start) = flume::bounded::<()>(1);
        let (ready, main, chores) = (ready.clone(), main.clone(), chores.clone());
        let run = move || {
            let result = shard_thread(seed, cpu, &ready, &start, main);
            commit.join();
            chores.finish_queued();
            result
        };
        let name = format!("sealog-shard-{shard}");
        waiting
            .threads
            .push(std::thread::Builder::new().name(name).spawn(run)?);
        waiting.starters.push(go);
    }
    drop(ready);
    for _ in 0..options.shards {
        made.recv()
            .unwrap_or_else(|_| Err(io::Error::other("a shard ended at start")))?;
    }
    watchdog::start(heartbeats, options.stall_limit, options.hooks.clone())?;
    Ok(waiting.go())
}

/// Threads whose executors wait for the word; without it they end, and dropping this waits for that.
struct WaitingShards<T> {
    starters: Vec<flume::Sender<()>>,
    threads: Vec<JoinHandle<Option<T>>>,
}

impl<T> WaitingShards<T> {
    fn go(mut self) -> Vec<JoinHandle<Option<T>>> {
        for starter in &self.starters {
            // A shard that has ended meanwhile shows in its handle.
            let _ = starter.send(());
        }
        std::mem::take(&mut self.threads)
    }
}

impl<T> Drop for WaitingShards<T> {
    fn drop(&mut self) {
        self.starters.clear();
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

/// One entry per shard: the CPU to bind it to. None is bound unless there is one for each.
fn cpus_for(options: &ShardOptions) -> Vec<Option<usize>> {
    let usable = usable_cpus();
    let bits = 8 * size_of::<libc::cpu_set_t>();
    let cpus: Vec<Option<usize>> = (0..bits)
        // SAFETY: `cpu` is below the number of bits in the set.
        .filter(|&cpu| unsafe { libc::CPU_ISSET(cpu, &usable) })
        .take(options.shards)
        .map(Some)
        .collect();
    if options.pin && cpus.len() == options.shards {
        cpus
    } else {
        vec![None; options.shards]
    }
}

/// Starts one shard, runs `main` on it and waits: tests, tools, benchmarks.
///
/// # Errors
/// As [`start_shards`]; and if `main` panicked.
pub fn run_shard<B, M, F, T>(options: &ShardOptions, bucket: &B, main: M) -> io::Result<T>
where
    B: Bucket + Send,
    M: FnOnce(usize, GlommioEnv<B>) -> F + Clone + Send + 'static,
    F: Future<Output = T> + 'static,
    T: Send + 'static,
{
    let options = ShardOptions {
        shards: 1,
        ..options.clone()
    };
    let mut threads = start_shards(&options, bucket, main)?;
    let thread = threads
        .pop()
        .ok_or_else(|| io::Error::other("no shard was started"))?;
    match thread.join() {
        Ok(Some(value)) => Ok(value),
        _ => Err(io::Error::other("the shard's main panicked")),
    }
}

fn shard_thread<B, M, F, T>(
    seed: ShardSeed<B>,
    cpu: Option<usize>,
    ready: &flume::Sender<io::Result<()>>,
    start: &flume::Receiver<()>,
    main: M,
) -> Option<T>
where
    B: Bucket,
    M: FnOnce(usize, GlommioEnv<B>) -> F,
    F: Future<Output = T>,
{
    let (shard, hooks) = (seed.shard, seed.hooks.clone());
    let heartbeat = Arc::clone(&seed.heartbeat);
    let executor = match catch_unwind(|| ShardExecutor::make(cpu, seed.spin)) {
        Ok(Ok(executor)) => executor,
        Ok(Err(error)) => {
            let _ = ready.send(Err(error));
            return None;
        }
        Err(panic) => {
            let _ = ready.send(Err(io::Error::other(panic_message(&*panic))));
            return None;
        }
    };
    let _ = ready.send(Ok(()));
    if start.recv().is_err() {
        return None;
    }
    heartbeat.begin();
    let result = catch_unwind(AssertUnwindSafe(|| executor.run(seed, main)));
    heartbeat.end();
    result.unwrap_or_else(|panic| {
        hooks.panicked(shard, "executor", panic_message(&*panic));
        None
    })
}

/// CPUs this thread may run on; none if the system won't say.
fn usable_cpus() -> libc::cpu_set_t {
    // SAFETY: all-zero bytes are an empty CPU set.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: the size is that of `set`, which the call only writes; after a failure it is empty.
    unsafe { libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &mut set) };
    set
}

#[cfg(test)]
mod tests;
