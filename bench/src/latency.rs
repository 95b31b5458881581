//! Latency: one small append at a time, beside one block written and synced at a time.
//!
//! **Invariants**
//! - Nothing else is in flight: what is measured is the whole way there and back.
//!
//! **Not here**: throughput (`wal`).

use std::path::Path;
use std::time::{Duration, Instant};

use futures::executor::block_on;
use sealog_engine::{Engine, EngineConfig};
use serde_json::json;

use crate::Result;
use crate::load::{EngineHandle, Shape, create_feeds};
use crate::plain::PlainFile;
use crate::report::progress;
use crate::report::{Report, Table, Target};
use crate::stats::{Latencies, median, spread};
use crate::workdir::{Workdir, idle_lane, prewrite};

/// Options of `latency`.
#[derive(clap::Args)]
pub struct Options {
    /// Pairs.
    #[arg(long, default_value_t = 7)]
    pub pairs: usize,
    /// Appends, and plain writes, per pair.
    #[arg(long, default_value_t = 2000)]
    pub count: u64,
    /// Payload bytes of the record.
    #[arg(long, default_value_t = 100)]
    pub record_bytes: usize,
    /// Bind the shard to a CPU.
    #[arg(long)]
    pub pin: bool,
}

/// Runs the benchmark.
pub fn run(dir: &Path, options: &Options) -> Result<Report> {
    let workdir = Workdir::create(dir)?;
    let mut config: EngineConfig = idle_lane(&workdir, 1 << 30);
    config.pin = options.pin;
    let mut plain = PlainFile::create(&workdir.path("plain"), 256 << 20)?;
    prewrite(&config, 512 << 20)?;
    let engine = Engine::open(config)?;
    let handle = engine.handle().clone();
    create_feeds(&handle, &["single".to_owned()])?;
    appends(&handle, options, options.count / 4)?;
    let mut report = Report::default();
    let mut table = Table::new(
        format!(
            "latency: one append of {} B at a time, us",
            options.record_bytes
        ),
        &[
            "append p50/p99/p99.9",
            "write + sync p50/p99/p99.9",
            "p50 ratio",
        ],
    );
    let (mut ratios, mut rows) = (Vec::new(), Vec::new());
    for round in 1..=options.pairs {
        progress("latency", round, options.pairs);
        let append = appends(&handle, options, options.count)?;
        let plain = plain
            .run(4096, Duration::from_secs(600), options.count)?
            .latencies;
        let ratio = append.us(0.5) / plain.us(0.5);
        ratios.push(ratio);
        table.row(vec![append.cell(), plain.cell(), format!("{ratio:.2}")]);
        rows.push(json!({ "append": append.json(), "plain": plain.json(), "ratio": ratio }));
    }
    block_on(engine.close())?;
    let (low, high) = spread(&ratios);
    let name = format!("append p50 / write + sync p50, median ({low:.2} to {high:.2})");
    report
        .targets
        .push(Target::at_most(name, median(&ratios), 2.5));
    report.tables.push(table);
    report.data.insert("pairs".to_owned(), json!(rows));
    Ok(report)
}

fn appends(handle: &EngineHandle, options: &Options, count: u64) -> Result<Latencies> {
    let shape = Shape {
        records: 1,
        record_bytes: options.record_bytes,
    };
    one_at_a_time(handle, "single", shape, count)
}

/// `count` appends to `feed`, one after the other.
pub fn one_at_a_time(
    handle: &EngineHandle,
    feed: &str,
    shape: Shape,
    count: u64,
) -> Result<Latencies> {
    let batch = shape.batch(handle, 1, None)?;
    let mut latencies = Latencies::new();
    block_on(async {
        for _ in 0..count {
            let start = Instant::now();
            handle.append(feed, batch.clone()).await?;
            latencies.record(start.elapsed());
        }
        Ok::<_, sealog_engine::Error>(())
    })?;
    Ok(latencies)
}
