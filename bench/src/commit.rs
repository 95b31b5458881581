//! Commit: the three ways of committing a group, bare and under the engine, idle and busy.
//!
//! **Invariants**
//! - The methods take turns in every round, so that a slow minute of the disk hits all of them.
//! - Busy: one task on the same executor that computes without end and yields whenever asked to.
//!
//! **Not here**: the yardstick (`wal`, `latency`).

use std::cell::{Cell, RefCell};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use futures::channel::oneshot;
use sealog_engine::EngineConfig;
use sealog_engine::bucket::{AnyBucket, FolderBucket};
use sealog_engine::env::{
    AlignedBuf, CommitMethod, Disk, Env, File, GlommioEnv, ShardHooks, ShardOptions, run_shard,
};
use serde_json::json;

use crate::Result;
use crate::latency::one_at_a_time;
use crate::load::{
    Crew, EngineHandle, Shape, Until, create_feeds, delete_feeds, drive, feed_names, open_sessions,
};
use crate::report::progress;
use crate::report::{Report, Table};
use crate::stats::{Latencies, median};
use crate::workdir::{Workdir, idle_lane, prewrite, recycle};

const METHODS: [CommitMethod; 3] = [
    CommitMethod::Executor,
    CommitMethod::Thread,
    CommitMethod::LinkedRing,
];
/// Bare cells: block bytes and commits in flight.
const CELLS: [(usize, usize); 6] = [
    (4 << 10, 1),
    (4 << 10, 2),
    (64 << 10, 1),
    (64 << 10, 2),
    (1 << 20, 1),
    (1 << 20, 2),
];
/// The hog computes this long between two offers to yield.
const SPIN: Duration = Duration::from_micros(20);
const FILE_BYTES: u64 = 256 << 20;

/// Options of `commit`.
#[derive(clap::Args)]
pub struct Options {
    /// Rounds.
    #[arg(long, default_value_t = 5)]
    pub rounds: usize,
    /// Seconds of each bare cell.
    #[arg(long, default_value_t = 0.5)]
    pub cell_seconds: f64,
    /// Seconds of each engine run.
    #[arg(long, default_value_t = 2.0)]
    pub seconds: f64,
    /// Single appends per engine run.
    #[arg(long, default_value_t = 500)]
    pub count: u64,
    /// Bind the shard to a CPU.
    #[arg(long)]
    pub pin: bool,
    /// Leave the bare cells out.
    #[arg(long)]
    pub engine_only: bool,
}

/// Runs the benchmark.
pub fn run(dir: &Path, options: &Options) -> Result<Report> {
    let workdir = Workdir::create(dir)?;
    let mut report = Report::default();
    if !options.engine_only {
        for busy in [false, true] {
            bare(&workdir, options, busy, &mut report)?;
        }
    }
    engine(&workdir, options, &mut report)?;
    Ok(report)
}

fn load_name(busy: bool) -> &'static str {
    if busy { "busy" } else { "idle" }
}

fn bare(workdir: &Workdir, options: &Options, busy: bool, report: &mut Report) -> Result<()> {
    let path = workdir.path("bare");
    if !path.exists() {
        drop(crate::plain::PlainFile::create(&path, FILE_BYTES)?);
    }
    let bucket = AnyBucket::Folder(FolderBucket::open(workdir.path("bucket"))?);
    let mut merged = vec![vec![Latencies::new(); CELLS.len()]; METHODS.len()];
    for round in 1..=options.rounds {
        progress("commit", round, options.rounds);
        for (method, merged) in METHODS.iter().zip(&mut merged) {
            let mut shard = ShardOptions::new(1, hooks());
            shard.pin = options.pin;
            shard.commit_method = *method;
            let (path, seconds) = (path.clone(), options.cell_seconds);
            let main = move |_, env| cells(env, path, busy, seconds);
            let found = run_shard(&shard, &bucket, main)??;
            for (merged, found) in merged.iter_mut().zip(&found) {
                merged.merge(found);
            }
        }
    }
    let mut table = Table::new(
        format!(
            "commit, bare, {} executor: p50/p99/p99.9 us",
            load_name(busy)
        ),
        &[
            "method", "4K x1", "4K x2", "64K x1", "64K x2", "1M x1", "1M x2",
        ],
    );
    for (method, cells) in METHODS.iter().zip(&merged) {
        let mut row = vec![format!("{method:?}")];
        row.extend(cells.iter().map(Latencies::cell));
        table.row(row);
        let rows: Vec<_> = CELLS
            .iter()
            .zip(cells)
            .map(|((block, depth), cell)| {
                json!({ "block_bytes": block, "depth": depth, "latency": cell.json() })
            })
            .collect();
        let name = format!("bare {} {method:?}", load_name(busy));
        report.data.insert(name, json!(rows));
    }
    report.tables.push(table);
    Ok(())
}

fn hooks() -> ShardHooks {
    ShardHooks {
        on_panic: Arc::new(|_, task, message| eprintln!("task {task:?} panicked: {message}")),
        on_stall: Arc::new(|_| eprintln!("the shard stalled")),
    }
}

type BareEnv = GlommioEnv<AnyBucket>;

/// Measures every cell on a shard of its own.
async fn cells(
    env: BareEnv,
    path: PathBuf,
    busy: bool,
    seconds: f64,
) -> std::io::Result<Vec<Latencies>> {
    let file = env.disk().open(&path).await?;
    let stop = Rc::new(Cell::new(false));
    if busy {
        env.spawn("hog", hog(env.clone(), stop.clone()));
    }
    let mut all = Vec::new();
    for (block, depth) in CELLS {
        let found = Rc::new(RefCell::new(Latencies::new()));
        let writers = (0..depth).map(|lane| {
            let time = Duration::from_secs_f64(seconds);
            writer(&file, (lane, depth), block, time, found.clone())
        });
        for written in futures::future::join_all(writers).await {
            written?;
        }
        all.push(found.borrow().clone());
    }
    stop.set(true);
    Ok(all)
}

async fn hog(env: BareEnv, stop: Rc<Cell<bool>>) {
    while !stop.get() {
        let start = Instant::now();
        while start.elapsed() < SPIN {
            std::hint::spin_loop();
        }
        env.yield_if_needed().await;
    }
}

async fn writer<F: File>(
    file: &F,
    (lane, lanes): (usize, usize),
    block: usize,
    time: Duration,
    found: Rc<RefCell<Latencies>>,
) -> std::io::Result<()> {
    let share = FILE_BYTES / lanes as u64;
    let start = Instant::now();
    let mut at = 0;
    while start.elapsed() < time {
        let buf = Arc::new(AlignedBuf::zeroed(block));
        let before = Instant::now();
        file.commit(buf, share * lane as u64 + at).await?;
        found.borrow_mut().record(before.elapsed());
        at += block as u64;
        if at + block as u64 > share {
            at = 0;
        }
    }
    Ok(())
}

/// What one method came to under one load, a value per round.
#[derive(Default)]
struct EngineCell {
    log_mb_per_s: Vec<f64>,
    load: Option<Latencies>,
    single: Option<Latencies>,
}

fn engine(workdir: &Workdir, options: &Options, report: &mut Report) -> Result<()> {
    let mut config = idle_lane(workdir, 4 << 30);
    config.pin = options.pin;
    prewrite(&config, 3500 << 20)?;
    let mut cells: Vec<EngineCell> = Vec::new();
    cells.resize_with(METHODS.len() * 2, EngineCell::default);
    for round in 1..=options.rounds {
        progress("commit", round, options.rounds);
        for (index, cell) in cells.iter_mut().enumerate() {
            config.wal.commit_method = METHODS[index / 2];
            engine_round(&config, options, index % 2 == 1, cell)?;
        }
        recycle(&config)?;
    }
    let mut table = Table::new(
        "commit, under the engine: 64 producers x 4 of 100 x 100 B, and one append of 100 B at a time",
        &[
            "method",
            "executor",
            "log MB/s",
            "load p50/p99/p99.9 us",
            "single p50/p99/p99.9 us",
            "reads",
        ],
    );
    for (index, cell) in cells.iter().enumerate() {
        let (method, load) = (METHODS[index / 2], load_name(index % 2 == 1));
        let latency = |l: &Option<Latencies>| l.as_ref().map_or(String::new(), Latencies::cell);
        table.row(vec![
            format!("{method:?}"),
            load.to_owned(),
            format!("{:.0}", median(&cell.log_mb_per_s)),
            latency(&cell.load),
            latency(&cell.single),
        ]);
        let data = json!({
            "log_mb_per_s": cell.log_mb_per_s,
            "load": cell.load.as_ref().map(Latencies::json),
            "single": cell.single.as_ref().map(Latencies::json),
        });
        report
            .data
            .insert(format!("engine {load} {method:?}"), data);
    }
    report.tables.push(table);
    Ok(())
}

fn engine_round(
    config: &EngineConfig,
    options: &Options,
    busy: bool,
    cell: &mut EngineCell,
) -> Result<()> {
    let crew = Crew {
        producers: 64,
        threads: 2,
        depth: 4,
    };
    let shape = Shape {
        records: 100,
        record_bytes: 100,
    };
    let single = Shape {
        records: 1,
        record_bytes: 100,
    };
    let until = Until {
        warmup: Duration::from_millis(200),
        measure: Duration::from_secs_f64(options.seconds),
        log_bytes_max: 500 << 20,
    };
    let feeds = feed_names("load", crew.producers);
    on_shard(config, options.pin, busy, |handle| {
        create_feeds(handle, &feeds)?;
        one_at_a_time(handle, &feeds[0], single, 20)?;
        let alone = one_at_a_time(handle, &feeds[0], single, options.count)?;
        let sessions = open_sessions(handle, &feeds, crew)?;
        let run = drive(handle, &sessions, crew, shape, until)?;
        delete_feeds(handle, &feeds)?;
        cell.log_mb_per_s.push(run.log_mb_per_s());
        cell.load
            .get_or_insert_with(Latencies::new)
            .merge(&run.latencies);
        cell.single.get_or_insert_with(Latencies::new).merge(&alone);
        Ok(())
    })
}

/// Runs `work` against an engine on a shard that, if `busy`, has a hog beside it.
fn on_shard(
    config: &EngineConfig,
    pin: bool,
    busy: bool,
    work: impl FnOnce(&EngineHandle) -> Result<()>,
) -> Result<()> {
    let bucket = AnyBucket::Folder(FolderBucket::open(config.data_dir.join("bucket"))?);
    let mut shard = ShardOptions::new(1, hooks());
    shard.pin = pin;
    shard.commit_method = config.wal.commit_method;
    let (give, take) = std::sync::mpsc::channel();
    let (stop, stopped) = oneshot::channel::<()>();
    // `main` must be cloneable, and only ever runs once.
    let stopped = Arc::new(Mutex::new(Some(stopped)));
    let config = config.clone();
    let main = move |_, env: BareEnv| async move {
        let started = EngineHandle::start_on(&env, &config).await;
        let handle = started.as_ref().ok().cloned();
        let _ = give.send(started);
        let Some(handle) = handle else { return };
        let hog_stop = Rc::new(Cell::new(false));
        if busy {
            env.spawn("hog", hog(env.clone(), hog_stop.clone()));
        }
        let stopped = stopped.lock().ok().and_then(|mut slot| slot.take());
        if let Some(stopped) = stopped {
            let _ = stopped.await;
        }
        hog_stop.set(true);
        let _ = handle.close().await;
    };
    std::thread::scope(|scope| {
        let running = scope.spawn(|| run_shard(&shard, &bucket, main));
        let worked = match take.recv() {
            Ok(handle) => handle.map_err(Into::into).and_then(|handle| work(&handle)),
            Err(_) => Err("the shard did not start".into()),
        };
        let _ = stop.send(());
        running.join().map_err(|_| "the shard panicked")??;
        worked
    })
}
