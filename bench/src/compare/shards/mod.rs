//! Shards: the engine on one shard and on two, each with a generator on its own executor and a disk in
//! memory: what a second core brings when the disk doesn't bound. And a server of one and of two, over TCP:
//! what a record costs it.
//!
//! **Invariants**
//! - A shard's engine, producers and disk share nothing with the other shard's but the process.
//! - Records are framed inside the measured time; each is an append of its own.
//!
//! **Not here**: the disk (`memory`), the server (`tcp`).

mod memory;
mod tcp;

use std::cell::Cell;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use sealog_engine::bucket::FolderBucket;
use sealog_engine::env::{CommitMethod, Env, GlommioEnv, ShardHooks, ShardOptions, start_shards};
use sealog_engine::{AppendSession, EngineConfig, FeedOptions, Handle, SessionOptions};
use sealog_frame::{BatchBuilder, Record};
use serde_json::{Value, json};

use super::sides::{Bench, SEED};
use super::verdicts::Ratios;
use super::workloads::Workload;
use crate::Result;
use crate::generator::PayloadPool;
use crate::load::feed_names;
use crate::process::thread_cpu_time;
use crate::report::{Report, Table, Target, progress};
use crate::stats::{median, spread};
use memory::MemoryEnv;

/// What two shards must reach of one's records a second.
const RATIO_MIN: f64 = 1.7;
/// What CPU time a record may take on two shards, of what it takes on one.
const CPU_RATIO_MAX: f64 = 1.15;
/// Producers of a shard, and appends each keeps in flight.
const PRODUCERS: usize = 16;
const WINDOW: usize = 64;
/// Before it counts.
const WARMUP: Duration = Duration::from_millis(300);
/// Log of a run: the disk forgets it, the engine only counts.
const LOG_BYTES: u64 = 1 << 40;

type MemoryHandle = Handle<MemoryEnv>;

/// Runs the workload and tells what it came to.
///
/// # Errors
/// A shard can't be started, or its engine fails.
pub fn run(bench: &Bench<'_>, workload: &Workload, report: &mut Report) -> Result<()> {
    let options = bench.options;
    let pool = Arc::new(PayloadPool::new(workload.shape.spec().record_bytes, SEED));
    let rest = Duration::from_secs_f64(options.rest);
    let measure = Duration::from_secs_f64(options.seconds);
    let (mut ones, mut twos) = (Vec::new(), Vec::new());
    for pair in 1..=options.pairs.max(1) {
        progress(workload.name, pair, options.pairs.max(1));
        for (shards, figures) in [(2, &mut twos), (1, &mut ones)] {
            std::thread::sleep(rest);
            let run = Generation {
                bucket_dir: bench.workdir.path("shards"),
                pool: Arc::clone(&pool),
                measure,
                barrier: Arc::new(Barrier::new(shards)),
            };
            figures.push(run.figures(shards)?);
        }
    }
    tell(report, workload, &ones, &twos);
    tcp::run(bench, report)
}

fn tell(report: &mut Report, workload: &Workload, ones: &[Figures], twos: &[Figures]) {
    let ratios = |figure: fn(&Figures) -> f64| {
        let pairs = twos.iter().map(figure).zip(ones.iter().map(figure));
        Ratios::of_figures(pairs)
    };
    let title = format!("{}: {}", workload.name, workload.title);
    report.tables.push(table(title, ones, twos));
    let rate = ratios(|figures| figures.records_per_s);
    let cpu = ratios(|figures| figures.cpu_us);
    let name = format!("shards: records/s of 2 / 1, {}", rate.describe());
    report
        .targets
        .push(Target::at_least(name, rate.median(), RATIO_MIN));
    // Holds on a busy machine too, where the rate can't.
    let name = format!("shards: CPU per record of 2 / 1, {}", cpu.describe());
    let mut per_record = Target::at_most(name, cpu.median(), CPU_RATIO_MAX);
    per_record.only_goal = true;
    report.targets.push(per_record);
    report.data.insert(
        workload.name.to_owned(),
        json!({
            "ratio": rate.json(), "cpu_ratio": cpu.json(), "one": rows(ones), "two": rows(twos),
        }),
    );
}

fn table(title: String, ones: &[Figures], twos: &[Figures]) -> Table {
    let columns = ["shards", "records/s (min..max)", "CPU us/record"];
    let mut table = Table::new(title, &columns);
    for (shards, figures) in [(1, ones), (2, twos)] {
        let rates: Vec<f64> = figures.iter().map(|f| f.records_per_s).collect();
        let cpu: Vec<f64> = figures.iter().map(|f| f.cpu_us).collect();
        let (low, high) = spread(&rates);
        table.row(vec![
            shards.to_string(),
            format!("{:.0} ({low:.0}..{high:.0})", median(&rates)),
            format!("{:.2}", median(&cpu)),
        ]);
    }
    table
}

fn rows(figures: &[Figures]) -> Vec<Value> {
    let row = |f: &Figures| json!({ "records_per_s": f.records_per_s, "cpu_us": f.cpu_us });
    figures.iter().map(row).collect()
}

/// What a run came to.
struct Figures {
    records_per_s: f64,
    /// Per record: of the shards' threads, generator included; of the server's process over TCP.
    cpu_us: f64,
}

/// What a shard counted in the measured time.
struct Counted {
    records: u64,
    cpu: Duration,
}

/// One run, on any number of shards.
#[derive(Clone)]
struct Generation {
    bucket_dir: PathBuf,
    pool: Arc<PayloadPool>,
    measure: Duration,
    barrier: Arc<Barrier>,
}

impl Generation {
    fn figures(self, shards: usize) -> Result<Figures> {
        let bucket = FolderBucket::open(&self.bucket_dir)?;
        let hooks = ShardHooks {
            on_panic: Arc::new(|shard, task, message| {
                eprintln!("sealog-bench: task {task} of shard {shard} panicked: {message}");
            }),
            on_stall: Arc::new(|shard| eprintln!("sealog-bench: shard {shard} stalled")),
        };
        let mut options = ShardOptions::new(shards, hooks);
        // Its threads would have nothing to commit.
        options.commit_method = CommitMethod::Executor;
        let seconds = self.measure.as_secs_f64();
        let main = move |shard, env| self.on_shard(shard, env);
        let (mut records, mut cpu) = (0, Duration::ZERO);
        for thread in start_shards(&options, &bucket, main)? {
            let ended = thread.join().map_err(|_| "a shard's thread panicked")?;
            let counted = ended.ok_or("a shard panicked")??;
            records += counted.records;
            cpu += counted.cpu;
        }
        Ok(Figures {
            records_per_s: records as f64 / seconds,
            cpu_us: cpu.as_secs_f64() * 1e6 / records.max(1) as f64,
        })
    }

    async fn on_shard(self, shard: usize, env: GlommioEnv<FolderBucket>) -> Result<Counted> {
        let env = MemoryEnv::new(env);
        let mut config = EngineConfig::new(format!("/in-memory/{shard}"));
        config.wal.disk_bytes_max = LOG_BYTES;
        config.wal.lane_start_bytes = u64::MAX / 2;
        let opened = self.open(&env, &config).await;
        // Whoever failed must not keep the other shard waiting.
        self.barrier.wait();
        let (handle, sessions) = opened?;
        let counted = self.produce(&env, &handle, sessions).await;
        handle.close().await?;
        counted
    }

    async fn open(
        &self,
        env: &MemoryEnv,
        config: &EngineConfig,
    ) -> Result<(MemoryHandle, Vec<AppendSession<MemoryEnv>>)> {
        let handle = MemoryHandle::start_on(env, config).await?;
        let mut sessions = Vec::new();
        for feed in feed_names("load", PRODUCERS) {
            handle.create_feed(&feed, FeedOptions::default()).await?;
            let options = SessionOptions::default();
            sessions.push(handle.open_session(&feed, options).await?);
        }
        Ok((handle, sessions))
    }

    async fn produce(
        &self,
        env: &MemoryEnv,
        handle: &MemoryHandle,
        sessions: Vec<AppendSession<MemoryEnv>>,
    ) -> Result<Counted> {
        let begin = Instant::now() + WARMUP;
        let end = begin + self.measure;
        let tally = Rc::new(Tally::default());
        tally.alive.set(PRODUCERS * WINDOW);
        for (client, session) in sessions.into_iter().enumerate() {
            let session = Rc::new(session);
            for slot in 0..WINDOW {
                let producer = Producer {
                    session: Rc::clone(&session),
                    pool: Arc::clone(&self.pool),
                    builder: BatchBuilder::new(handle.frame_limits()),
                    next: (client * WINDOW + slot) as u64,
                };
                env.spawn("producer", producer.run(begin, end, Rc::clone(&tally)));
            }
        }
        env.sleep(begin.saturating_duration_since(Instant::now()))
            .await;
        let before = thread_cpu_time();
        env.sleep(end.saturating_duration_since(Instant::now()))
            .await;
        let cpu = thread_cpu_time().saturating_sub(before);
        while tally.alive.get() > 0 {
            env.sleep(Duration::from_millis(10)).await;
        }
        match tally.failure.take() {
            Some(error) => Err(error),
            None => Ok(Counted {
                records: tally.acks.get(),
                cpu,
            }),
        }
    }
}

/// What a shard's producers share.
#[derive(Default)]
struct Tally {
    alive: Cell<usize>,
    acks: Cell<u64>,
    failure: Cell<Option<Box<dyn std::error::Error + Send + Sync>>>,
}

/// One append in flight.
struct Producer {
    session: Rc<AppendSession<MemoryEnv>>,
    pool: Arc<PayloadPool>,
    builder: BatchBuilder,
    next: u64,
}

impl Producer {
    async fn run(mut self, begin: Instant, end: Instant, tally: Rc<Tally>) {
        while Instant::now() < end {
            match self.append().await {
                Ok(()) if (begin..end).contains(&Instant::now()) => {
                    tally.acks.set(tally.acks.get() + 1);
                }
                Ok(()) => {}
                Err(error) => {
                    tally.failure.set(Some(error));
                    break;
                }
            }
        }
        tally.alive.set(tally.alive.get() - 1);
    }

    async fn append(&mut self) -> Result<()> {
        self.builder
            .push(&Record::of(self.pool.payload(self.next)))?;
        self.next += 1;
        self.builder.fencing_token(self.session.lease().epoch.0);
        self.session.append(self.builder.build()?).await?;
        Ok(())
    }
}
