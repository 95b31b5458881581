//! Sustained: log bandwidth over several log budgets with the lane on and the bucket on the same disk.
//!
//! **Invariants**
//! - Everything is counted from an empty directory on: making segments, packing, checkpoints.
//!
//! **Not here**: the log alone (`wal`).

use std::path::Path;
use std::time::Duration;

use sealog_engine::EngineConfig;
use serde_json::{Value, json};

use crate::Result;
use crate::load::{Crew, LoadRun, Shape, Until};
use crate::plain::PlainFile;
use crate::process::resident_peak_bytes;
use crate::report::progress;
use crate::report::{Report, Table, Target};
use crate::stats::{median, spread};
use crate::wal::engine_run;
use crate::workdir::Workdir;

/// Options of `sustained`.
#[derive(clap::Args)]
pub struct Options {
    /// Pairs per batch shape.
    #[arg(long, default_value_t = 2)]
    pub pairs: usize,
    /// Log budget in MiB.
    #[arg(long, default_value_t = 1024)]
    pub log_mib: u64,
    /// How many budgets to write.
    #[arg(long, default_value_t = 10)]
    pub budgets: u64,
    /// Producers.
    #[arg(long, default_value_t = 64)]
    pub producers: usize,
    /// Threads that drive them.
    #[arg(long, default_value_t = 2)]
    pub threads: usize,
    /// Batches each producer keeps in flight.
    #[arg(long, default_value_t = 4)]
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
}

/// Runs the benchmark.
pub fn run(dir: &Path, options: &Options) -> Result<Report> {
    let workdir = Workdir::create(dir)?;
    let mut plain = PlainFile::create(&workdir.path("plain"), 1 << 30)?;
    let mut report = Report::default();
    for record_bytes in &options.record_bytes {
        let shape = Shape {
            records: options.records,
            record_bytes: *record_bytes,
        };
        shape_pairs(&workdir, options, shape, &mut plain, &mut report)?;
    }
    Ok(report)
}

const COLUMNS: [&str; 11] = [
    "log MB/s",
    "payload MB/s",
    "append p50/p99/p99.9 us",
    "median group",
    "CPU ms/MB",
    "refused",
    "peak RSS MiB",
    "plain same MB/s",
    "plain 1 MiB MB/s",
    "ratio same",
    "ratio 1 MiB",
];

fn shape_pairs(
    workdir: &Workdir,
    options: &Options,
    shape: Shape,
    plain: &mut PlainFile,
    report: &mut Report,
) -> Result<()> {
    let title = format!(
        "sustained: {} batches, {} budgets",
        shape.label(),
        options.budgets
    );
    let mut table = Table::new(title, &COLUMNS);
    let (mut same_ratios, mut mib_ratios, mut rows) = (Vec::new(), Vec::new(), Vec::new());
    let time = Duration::from_secs(5);
    for round in 1..=options.pairs {
        progress("sustained", round, options.pairs);
        let engine = engine_budgets(workdir, options, shape)?;
        let same = plain.run(engine.median_group as usize, time, u64::MAX)?;
        let mib = plain.run(1 << 20, time, u64::MAX)?;
        let log = engine.log_mb_per_s();
        let (to_same, to_mib) = (log / same.mb_per_s, log / mib.mb_per_s);
        same_ratios.push(to_same);
        mib_ratios.push(to_mib);
        table.row(vec![
            format!("{log:.0}"),
            format!("{:.0}", engine.payload_mb_per_s()),
            engine.latencies.cell(),
            engine.median_group.to_string(),
            format!("{:.2}", engine.cpu_ms_per_mb()),
            engine.refused.to_string(),
            (resident_peak_bytes() >> 20).to_string(),
            format!("{:.0}", same.mb_per_s),
            format!("{:.0}", mib.mb_per_s),
            format!("{to_same:.2}"),
            format!("{to_mib:.2}"),
        ]);
        let row: Value = json!({
            "engine": engine.json(), "plain_same_mb_per_s": same.mb_per_s,
            "plain_1mib_mb_per_s": mib.mb_per_s, "resident_peak_bytes": resident_peak_bytes(),
        });
        rows.push(row);
    }
    report.tables.push(table);
    for (what, ratios) in [("the same size", &same_ratios), ("1 MiB", &mib_ratios)] {
        let (low, high) = spread(ratios);
        let name = format!(
            "{}: sustained engine / plain writes of {what}, median ({low:.2} to {high:.2})",
            shape.label()
        );
        report
            .targets
            .push(Target::at_least(name, median(ratios), 0.45));
    }
    report.data.insert(shape.label(), json!(rows));
    Ok(())
}

fn engine_budgets(workdir: &Workdir, options: &Options, shape: Shape) -> Result<LoadRun> {
    let mut config = EngineConfig::new(workdir.data());
    config.wal.disk_bytes_max = options.log_mib << 20;
    config.wal.lane_start_bytes = config
        .wal
        .lane_start_bytes
        .min(config.wal.disk_bytes_max / 4);
    let until = Until {
        warmup: Duration::ZERO,
        measure: Duration::from_secs(3600),
        log_bytes_max: config.wal.disk_bytes_max * options.budgets,
    };
    let crew = Crew {
        producers: options.producers,
        threads: options.threads,
        depth: options.depth,
    };
    let run = engine_run(&config, crew, shape, until, options.one_feed)?;
    workdir.clear()?;
    Ok(run)
}
