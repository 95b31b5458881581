//! Load: many producers on few threads, each keeping its batches in flight.
//!
//! **Invariants**
//! - Batches are built before the clock starts; sending one copies no bytes.
//! - What is counted was acknowledged inside the measured time.
//!
//! **Not here**: where the engine lies and how it is configured (`workdir`).

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use futures::StreamExt;
use futures::executor::block_on;
use futures::stream::FuturesUnordered;
use sealog_engine::{AppendSession, Error, FeedOptions, Handle, ProductionEnv, SessionOptions};
use sealog_frame::{Batch, BatchBuilder, Record};
use serde_json::{Value, json};

use crate::Result;
use crate::prng::Prng;
use crate::process::cpu_time;
use crate::stats::{Latencies, mb_per_s, median_u32};

/// The engine as an application holds it.
pub type EngineHandle = Handle<ProductionEnv>;

/// Pause between looks at how far the load got.
const LOOK: Duration = Duration::from_millis(20);

/// What a batch holds.
#[derive(Debug, Clone, Copy)]
pub struct Shape {
    /// Records of a batch.
    pub records: usize,
    /// Payload bytes of a record.
    pub record_bytes: usize,
}

impl Shape {
    /// For titles.
    pub fn label(&self) -> String {
        format!("{} x {} B", self.records, self.record_bytes)
    }

    /// Payload of a batch.
    pub fn payload_bytes(&self) -> u64 {
        (self.records * self.record_bytes) as u64
    }

    /// A batch of random payloads.
    pub fn batch(&self, handle: &EngineHandle, seed: u64, token: Option<u64>) -> Result<Batch> {
        let mut builder = BatchBuilder::new(handle.frame_limits());
        let mut prng = Prng::new(seed);
        let mut payload = vec![0; self.record_bytes];
        for _ in 0..self.records {
            prng.fill(&mut payload);
            builder.push(&Record::of(&payload))?;
        }
        if let Some(token) = token {
            builder.fencing_token(token);
        }
        Ok(builder.build()?)
    }
}

/// Who appends, and how many at a time.
#[derive(Debug, Clone, Copy)]
pub struct Crew {
    /// Producers.
    pub producers: usize,
    /// Threads that drive them.
    pub threads: usize,
    /// Batches each producer keeps in flight.
    pub depth: usize,
}

/// When to stop.
#[derive(Debug, Clone, Copy)]
pub struct Until {
    /// Not measured.
    pub warmup: Duration,
    /// Measured.
    pub measure: Duration,
    /// End early when this much went into the log (0: no bound).
    pub log_bytes_max: u64,
}

/// Where a producer's batches go.
pub enum Target {
    /// A writer's session.
    Session(Arc<AppendSession<ProductionEnv>>),
    /// One feed after the other, without a session.
    Spread {
        /// The engine.
        handle: EngineHandle,
        /// Names of all feeds.
        feeds: Arc<Vec<String>>,
        /// Index of the next one, shared by all producers.
        next: Arc<AtomicU64>,
    },
}

impl Target {
    async fn append(&self, batch: Batch) -> std::result::Result<(), Error> {
        match self {
            Self::Session(session) => session.append(batch).await.map(|_| ()),
            Self::Spread {
                handle,
                feeds,
                next,
            } => {
                let at = next.fetch_add(1, Ordering::Relaxed) as usize % feeds.len();
                handle.append(&feeds[at], batch).await.map(|_| ())
            }
        }
    }
}

/// What a run came to.
#[derive(Clone)]
pub struct LoadRun {
    /// Measured time.
    pub seconds: f64,
    /// Batches acknowledged.
    pub batches: u64,
    /// Payload in them.
    pub payload_bytes: u64,
    /// Records in them.
    pub records: u64,
    /// Bytes of groups as written.
    pub log_bytes: u64,
    /// Groups written.
    pub groups: u64,
    /// Middle of their sizes (of the newest few thousand).
    pub median_group: u32,
    /// From call to acknowledgement.
    pub latencies: Latencies,
    /// Refusals for want of log space.
    pub refused: u64,
    /// CPU seconds of the whole process, generator included.
    pub cpu_seconds: f64,
}

impl LoadRun {
    /// Log bandwidth.
    pub fn log_mb_per_s(&self) -> f64 {
        mb_per_s(self.log_bytes, self.seconds)
    }

    /// Payload bandwidth.
    pub fn payload_mb_per_s(&self) -> f64 {
        mb_per_s(self.payload_bytes, self.seconds)
    }

    /// Records per second.
    pub fn records_per_s(&self) -> f64 {
        self.records as f64 / self.seconds
    }

    /// CPU milliseconds per MB of log.
    pub fn cpu_ms_per_mb(&self) -> f64 {
        self.cpu_seconds * 1e9 / self.log_bytes.max(1) as f64
    }

    /// For JSON.
    pub fn json(&self) -> Value {
        json!({
            "seconds": self.seconds, "log_mb_per_s": self.log_mb_per_s(),
            "payload_mb_per_s": self.payload_mb_per_s(), "records_per_s": self.records_per_s(),
            "batches": self.batches, "groups": self.groups, "median_group_bytes": self.median_group,
            "append": self.latencies.json(), "refused": self.refused,
            "cpu_ms_per_mb": self.cpu_ms_per_mb(),
        })
    }
}

/// Feed names `prefix-0000000` and on.
pub fn feed_names(prefix: &str, count: usize) -> Vec<String> {
    (0..count).map(|n| format!("{prefix}-{n:07}")).collect()
}

/// Creates feeds, many at a time.
pub fn create_feeds(handle: &EngineHandle, names: &[String]) -> Result<()> {
    block_on(async {
        let mut calls = futures::stream::iter(names)
            .map(|name| handle.create_feed(name, FeedOptions::default()))
            .buffer_unordered(512);
        while let Some(created) = calls.next().await {
            created?;
        }
        Ok(())
    })
}

/// Deletes feeds, many at a time.
pub fn delete_feeds(handle: &EngineHandle, names: &[String]) -> Result<()> {
    block_on(async {
        let mut calls = futures::stream::iter(names)
            .map(|name| handle.delete_feed(name))
            .buffer_unordered(512);
        while let Some(deleted) = calls.next().await {
            deleted?;
        }
        Ok(())
    })
}

/// A session per producer, on a feed each or all on the first one.
pub fn open_sessions(handle: &EngineHandle, feeds: &[String], crew: Crew) -> Result<Vec<Target>> {
    let options = SessionOptions {
        max_unacked_bytes: 256 << 20,
    };
    let open = |feed: &String| block_on(handle.open_session(feed, options)).map(Arc::new);
    let sessions = feeds
        .iter()
        .take(crew.producers)
        .map(open)
        .collect::<std::result::Result<Vec<_>, _>>()?;
    let shared = |n: usize| Target::Session(sessions[n % sessions.len()].clone());
    Ok((0..crew.producers).map(shared).collect())
}

#[derive(Default)]
struct Shared {
    measuring: AtomicBool,
    stop: AtomicBool,
    sent_bytes: AtomicU64,
    refused: AtomicU64,
}

#[derive(Clone)]
struct Tally {
    batches: u64,
    latencies: Latencies,
}

/// Drives `targets`, one per producer, and measures.
pub fn drive(
    handle: &EngineHandle,
    targets: &[Target],
    crew: Crew,
    shape: Shape,
    until: Until,
) -> Result<LoadRun> {
    let mut producers = Vec::new();
    for (n, target) in targets.iter().enumerate() {
        let token = match target {
            Target::Session(session) => Some(session.lease().epoch.0),
            Target::Spread { .. } => None,
        };
        producers.push((target, shape.batch(handle, n as u64, token)?));
    }
    let shared = Shared::default();
    let threads = crew.threads.clamp(1, producers.len().max(1));
    let mut shares: Vec<Vec<(&Target, Batch)>> = (0..threads).map(|_| Vec::new()).collect();
    for (n, producer) in producers.into_iter().enumerate() {
        shares[n % threads].push(producer);
    }
    std::thread::scope(|scope| {
        let shared = &shared;
        let run = |share| scope.spawn(move || run_share(share, crew.depth, shared));
        let workers: Vec<_> = shares.into_iter().map(run).collect();
        let measured = measure(handle, shared, until);
        shared.stop.store(true, Ordering::SeqCst);
        let mut total = Tally {
            batches: 0,
            latencies: Latencies::new(),
        };
        for worker in workers {
            let tally = worker.join().map_err(|_| "a producer thread panicked")??;
            total.batches += tally.batches;
            total.latencies.merge(&tally.latencies);
        }
        let mut run = measured?;
        run.batches = total.batches;
        run.payload_bytes = total.batches * shape.payload_bytes();
        run.records = total.batches * shape.records as u64;
        run.latencies = total.latencies;
        run.refused = shared.refused.load(Ordering::Relaxed);
        Ok(run)
    })
}

fn run_share(share: Vec<(&Target, Batch)>, depth: usize, shared: &Shared) -> Result<Tally> {
    let tally = Rc::new(RefCell::new(Tally {
        batches: 0,
        latencies: Latencies::new(),
    }));
    let mut loops = FuturesUnordered::new();
    for (target, batch) in &share {
        for _ in 0..depth.max(1) {
            loops.push(produce(target, batch, shared, tally.clone()));
        }
    }
    block_on(async {
        while let Some(ended) = loops.next().await {
            if ended.is_err() {
                shared.stop.store(true, Ordering::SeqCst);
                return ended;
            }
        }
        Ok(())
    })?;
    drop(loops);
    let tally = tally.borrow().clone();
    Ok(tally)
}

async fn produce(
    target: &Target,
    batch: &Batch,
    shared: &Shared,
    tally: Rc<RefCell<Tally>>,
) -> Result<()> {
    let bytes = batch.as_bytes().len() as u64;
    while !shared.stop.load(Ordering::Relaxed) {
        let start = Instant::now();
        match target.append(batch.clone()).await {
            Ok(()) => {}
            Err(Error::StorageFull { .. }) => {
                shared.refused.fetch_add(1, Ordering::Relaxed);
                continue;
            }
            Err(error) => return Err(error.into()),
        }
        shared.sent_bytes.fetch_add(bytes, Ordering::Relaxed);
        if shared.measuring.load(Ordering::Relaxed) {
            let mut tally = tally.borrow_mut();
            tally.batches += 1;
            tally.latencies.record(start.elapsed());
        }
    }
    Ok(())
}

fn measure(handle: &EngineHandle, shared: &Shared, until: Until) -> Result<LoadRun> {
    let bound = match until.log_bytes_max {
        0 => u64::MAX,
        bound => bound,
    };
    let full = || shared.sent_bytes.load(Ordering::Relaxed) >= bound;
    let wait = |time: Duration| {
        let start = Instant::now();
        while start.elapsed() < time && !full() && !shared.stop.load(Ordering::Relaxed) {
            std::thread::sleep(LOOK.min(time));
        }
    };
    wait(until.warmup);
    let stats = || block_on(handle.stats());
    let before = stats()?;
    let (start, cpu) = (Instant::now(), cpu_time());
    shared.measuring.store(true, Ordering::SeqCst);
    wait(until.measure);
    shared.measuring.store(false, Ordering::SeqCst);
    let seconds = start.elapsed().as_secs_f64();
    let cpu_seconds = (cpu_time() - cpu).as_secs_f64();
    let after = stats()?;
    let mut sizes: Vec<u32> = Vec::new();
    let (mut groups, mut log_bytes) = (0, 0);
    for (before, after) in before.iter().zip(&after) {
        let made = after.groups - before.groups;
        groups += made;
        log_bytes += after.bytes - before.bytes;
        let newest = usize::try_from(made).unwrap_or(usize::MAX);
        sizes.extend(after.group_sizes.iter().rev().take(newest));
    }
    Ok(LoadRun {
        seconds,
        batches: 0,
        payload_bytes: 0,
        records: 0,
        log_bytes,
        groups,
        median_group: median_u32(&sizes),
        latencies: Latencies::new(),
        refused: 0,
        cpu_seconds,
    })
}
