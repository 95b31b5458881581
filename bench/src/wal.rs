//! Wal: log bandwidth with the lane idle, beside plain writes of the same size and of 1 MiB.
//!
//! **Invariants**
//! - A pair is one engine run and, right after it, one plain run per block size.
//! - Both write into files that were written before.
//!
//! **Not here**: the lane at work (`sustained`).

use std::path::Path;
use std::time::Duration;

use futures::executor::block_on;
use sealog_engine::{Engine, EngineConfig};
use serde_json::{Value, json};

use crate::Result;
use crate::load::{
    Crew, LoadRun, Shape, Until, create_feeds, delete_feeds, drive, feed_names, open_sessions,
};
use crate::plain::{PlainFile, PlainRun};
use crate::report::progress;
use crate::report::{Report, Table, Target};
use crate::stats::{median, spread};
use crate::workdir::{Workdir, idle_lane, prewrite, recycle};

/// Options of `wal`.
#[derive(clap::Args)]
pub struct Options {
    /// Pairs per batch shape.
    #[arg(long, default_value_t = 11)]
    pub pairs: usize,
    /// Seconds of each engine run.
    #[arg(long, default_value_t = 1.0)]
    pub seconds: f64,
    /// Seconds of each plain run.
    #[arg(long, default_value_t = 0.7)]
    pub plain_seconds: f64,
    /// Producers.
    #[arg(long, default_value_t = 64)]
    pub producers: usize,
    /// Threads that drive them.
    #[arg(long, default_value_t = 2)]
    pub threads: usize,
    /// Batches each producer keeps in flight.
    #[arg(long, default_value_t = 16)]
    pub depth: usize,
    /// All producers on one feed.
    #[arg(long)]
    pub one_feed: bool,
    /// Payload bytes of a record; repeat for several shapes.
    #[arg(long, default_values_t = [100, 1024])]
    pub record_bytes: Vec<usize>,
    /// Records of a batch.
    #[arg(long, default_value_t = 100)]
    pub records: usize,
    /// Log budget in MiB; all runs of a shape together end at four fifths of it.
    #[arg(long, default_value_t = 6144)]
    pub log_mib: u64,
}

impl Options {
    pub(crate) fn crew(&self) -> Crew {
        Crew {
            producers: self.producers,
            threads: self.threads,
            depth: self.depth,
        }
    }
}

/// One engine run and the plain runs after it.
struct Pair {
    engine: LoadRun,
    same: PlainRun,
    mib: PlainRun,
    fresh_segments: usize,
}

/// Runs the benchmark.
pub fn run(dir: &Path, options: &Options) -> Result<Report> {
    let workdir = Workdir::create(dir)?;
    let log_bytes = options.log_mib << 20;
    let config = idle_lane(&workdir, log_bytes);
    let mut plain = PlainFile::create(&workdir.path("plain"), 1 << 30)?;
    prewrite(&config, log_bytes / 10 * 9)?;
    let mut report = Report::default();
    for record_bytes in &options.record_bytes {
        let shape = Shape {
            records: options.records,
            record_bytes: *record_bytes,
        };
        let pairs = shape_pairs(&workdir, &config, options, shape, &mut plain)?;
        tell(&mut report, shape, &pairs);
        recycle(&config)?;
    }
    Ok(report)
}

/// All pairs of one shape on one engine, which rests while the yardstick runs.
fn shape_pairs(
    workdir: &Workdir,
    config: &EngineConfig,
    options: &Options,
    shape: Shape,
    plain: &mut PlainFile,
) -> Result<Vec<Pair>> {
    let crew = options.crew();
    let until = Until {
        warmup: Duration::from_millis(200),
        measure: Duration::from_secs_f64(options.seconds),
        log_bytes_max: config.wal.disk_bytes_max / 10 * 8 / options.pairs.max(1) as u64,
    };
    let time = Duration::from_secs_f64(options.plain_seconds);
    let feeds = feed_names("load", if options.one_feed { 1 } else { crew.producers });
    let engine = Engine::open(config.clone())?;
    create_feeds(engine.handle(), &feeds)?;
    let sessions = open_sessions(engine.handle(), &feeds, crew)?;
    let mut pairs = Vec::new();
    for round in 1..=options.pairs {
        progress("wal", round, options.pairs);
        let before = workdir.segments();
        let run = drive(engine.handle(), &sessions, crew, shape, until)?;
        let fresh_segments = workdir.segments() - before;
        let same = plain.run(run.median_group as usize, time, u64::MAX)?;
        let mib = plain.run(1 << 20, time, u64::MAX)?;
        pairs.push(Pair {
            engine: run,
            same,
            mib,
            fresh_segments,
        });
    }
    drop(sessions);
    delete_feeds(engine.handle(), &feeds)?;
    block_on(engine.close())?;
    Ok(pairs)
}

/// One run on a directory that is there already; its feeds are deleted afterwards.
pub fn engine_run(
    config: &EngineConfig,
    crew: Crew,
    shape: Shape,
    until: Until,
    one_feed: bool,
) -> Result<LoadRun> {
    let feeds = feed_names("load", if one_feed { 1 } else { crew.producers });
    let engine = Engine::open(config.clone())?;
    create_feeds(engine.handle(), &feeds)?;
    let sessions = open_sessions(engine.handle(), &feeds, crew)?;
    let run = drive(engine.handle(), &sessions, crew, shape, until)?;
    delete_feeds(engine.handle(), &feeds)?;
    block_on(engine.close())?;
    Ok(run)
}

fn tell(report: &mut Report, shape: Shape, pairs: &[Pair]) {
    let title = format!("wal: {} batches, lane idle", shape.label());
    let mut table = Table::new(
        title,
        &[
            "log MB/s",
            "payload MB/s",
            "records/s",
            "append p50/p99/p99.9 us",
            "median group",
            "CPU ms/MB",
            "fresh segments",
            "plain same MB/s",
            "plain 1 MiB MB/s",
            "ratio same",
            "ratio 1 MiB",
        ],
    );
    let (mut same, mut mib) = (Vec::new(), Vec::new());
    for pair in pairs {
        let engine = &pair.engine;
        let log = engine.log_mb_per_s();
        same.push(log / pair.same.mb_per_s);
        mib.push(log / pair.mib.mb_per_s);
        table.row(vec![
            format!("{log:.0}"),
            format!("{:.0}", engine.payload_mb_per_s()),
            format!("{:.0}", engine.records_per_s()),
            engine.latencies.cell(),
            engine.median_group.to_string(),
            format!("{:.2}", engine.cpu_ms_per_mb()),
            pair.fresh_segments.to_string(),
            format!("{:.0}", pair.same.mb_per_s),
            format!("{:.0}", pair.mib.mb_per_s),
            format!("{:.2}", log / pair.same.mb_per_s),
            format!("{:.2}", log / pair.mib.mb_per_s),
        ]);
    }
    report.tables.push(table);
    for (name, ratios) in [("the same size", &same), ("1 MiB", &mib)] {
        let (low, high) = spread(ratios);
        let name = format!(
            "{}: engine / plain writes of {name}, median of {} ({low:.2} to {high:.2})",
            shape.label(),
            ratios.len()
        );
        report
            .targets
            .push(Target::at_least(name, median(ratios), 0.85));
    }
    let rows: Vec<Value> = pairs.iter().map(pair_json).collect();
    report.data.insert(shape.label(), json!(rows));
}

fn pair_json(pair: &Pair) -> Value {
    json!({
        "engine": pair.engine.json(),
        "fresh_segments": pair.fresh_segments,
        "plain_same": { "block_bytes": pair.same.block_bytes, "mb_per_s": pair.same.mb_per_s,
            "latency": pair.same.latencies.json() },
        "plain_1mib": { "mb_per_s": pair.mib.mb_per_s, "latency": pair.mib.latencies.json() },
    })
}
