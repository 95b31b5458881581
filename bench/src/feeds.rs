//! Feeds: many feeds in one directory: memory of each, restart, and bandwidth against one feed's.
//!
//! **Invariants**
//! - Memory is the difference between two fresh processes, one with few feeds and one with all.
//! - Both bandwidths go through the same calls with the same batches, in alternation.
//!
//! **Not here**: sessions (`wal`).

use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

use futures::StreamExt;
use futures::executor::block_on;
use sealog_engine::{Engine, EngineConfig};
use serde_json::json;

use crate::Result;
use crate::load::{
    Crew, EngineHandle, LoadRun, Shape, Target as Aim, Until, create_feeds, drive, feed_names,
};
use crate::process::resident_bytes;
use crate::report::progress;
use crate::report::{Report, Table, Target};
use crate::stats::{median, spread};
use crate::workdir::{Workdir, idle_lane, prewrite};

/// Feeds of the process that memory is compared with.
const FEW: usize = 16;

/// Options of `feeds`.
#[derive(clap::Args)]
pub struct Options {
    /// Feeds.
    #[arg(long, default_value_t = 100_000)]
    pub feeds: usize,
    /// Pairs of bandwidth runs.
    #[arg(long, default_value_t = 5)]
    pub pairs: usize,
    /// Seconds of each.
    #[arg(long, default_value_t = 2.0)]
    pub seconds: f64,
    /// Records of a batch, of 100 B each.
    #[arg(long, default_value_t = 100)]
    pub records: usize,
    /// Log budget of the bandwidth runs in MiB, shared by all of them.
    #[arg(long, default_value_t = 8192)]
    pub log_mib: u64,
    /// Open the data directory, say how much memory that took, and end.
    #[arg(long, hide = true)]
    pub probe: bool,
}

/// What a fresh process came to after opening the directory.
struct Probe {
    resident_bytes: u64,
    open_seconds: f64,
}

/// Runs the benchmark.
pub fn run(dir: &Path, options: &Options) -> Result<Report> {
    if options.probe {
        return probe_here(dir);
    }
    let mut report = Report::default();
    memory(dir, options, &mut report)?;
    bandwidth(dir, options, &mut report)?;
    Ok(report)
}

fn probe_here(dir: &Path) -> Result<Report> {
    let start = Instant::now();
    let engine = Engine::open(EngineConfig::new(dir))?;
    let open_seconds = start.elapsed().as_secs_f64();
    std::thread::sleep(Duration::from_secs(2));
    let mut report = Report::default();
    report
        .data
        .insert("resident_bytes".to_owned(), json!(resident_bytes()));
    report
        .data
        .insert("open_seconds".to_owned(), json!(open_seconds));
    block_on(engine.close())?;
    Ok(report)
}

fn probe(data: &Path) -> Result<Probe> {
    let output = Command::new(std::env::current_exe()?)
        .args(["feeds", "--probe", "--json", "--dir"])
        .arg(data)
        .output()?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned().into());
    }
    let told: serde_json::Value = serde_json::from_slice(&output.stdout)?;
    let number = |name: &str| told["data"][name].as_f64().ok_or("the probe said nothing");
    Ok(Probe {
        resident_bytes: number("resident_bytes")? as u64,
        open_seconds: number("open_seconds")?,
    })
}

/// Creates `names` and appends once to each; the seconds both took.
fn fill(handle: &EngineHandle, names: &[String]) -> Result<(f64, f64)> {
    let start = Instant::now();
    create_feeds(handle, names)?;
    let created = start.elapsed().as_secs_f64();
    let shape = Shape {
        records: 1,
        record_bytes: 100,
    };
    let batch = shape.batch(handle, 1, None)?;
    let start = Instant::now();
    block_on(async {
        let mut calls = futures::stream::iter(names)
            .map(|name| handle.append(name, batch.clone()))
            .buffer_unordered(1024);
        while let Some(appended) = calls.next().await {
            appended?;
        }
        Ok::<_, sealog_engine::Error>(())
    })?;
    Ok((created, start.elapsed().as_secs_f64()))
}

fn memory(dir: &Path, options: &Options, report: &mut Report) -> Result<()> {
    let workdir = Workdir::create(dir)?;
    let config = EngineConfig::new(workdir.data());
    let names = feed_names("feed", options.feeds);
    let engine = Engine::open(config.clone())?;
    fill(engine.handle(), &names[..FEW.min(names.len())])?;
    let live_before = resident_bytes();
    block_on(engine.close())?;
    let few = probe(&config.data_dir)?;
    let engine = Engine::open(config.clone())?;
    let (created, appended) = fill(engine.handle(), &names)?;
    let live_after = resident_bytes();
    block_on(engine.close())?;
    let many = probe(&config.data_dir)?;
    let per_feed = |after: u64, before: u64| {
        (after as f64 - before as f64) / options.feeds.saturating_sub(FEW).max(1) as f64
    };
    let restarted = per_feed(many.resident_bytes, few.resident_bytes);
    let live = per_feed(live_after, live_before);
    let mut table = Table::new(
        format!("feeds: {} in one directory", options.feeds),
        &[
            "creates/s",
            "appends/s",
            "restart s",
            "RSS few MiB",
            "RSS all MiB",
            "B per feed restarted",
            "B per feed live",
        ],
    );
    let mib = |bytes: u64| format!("{:.1}", bytes as f64 / 1_048_576.0);
    table.row(vec![
        format!("{:.0}", options.feeds as f64 / created),
        format!("{:.0}", options.feeds as f64 / appended),
        format!("{:.2}", many.open_seconds),
        mib(few.resident_bytes),
        mib(many.resident_bytes),
        format!("{restarted:.0}"),
        format!("{live:.0}"),
    ]);
    report.tables.push(table);
    let name = "memory per idle feed after a restart, bytes";
    report
        .targets
        .push(Target::at_most(name, restarted, 1024.0));
    let data = json!({
        "feeds": options.feeds, "create_seconds": created, "append_seconds": appended,
        "open_seconds": many.open_seconds, "resident_few": few.resident_bytes,
        "resident_all": many.resident_bytes, "bytes_per_feed": restarted, "bytes_per_feed_live": live,
    });
    report.data.insert("memory".to_owned(), data);
    Ok(())
}

fn bandwidth(dir: &Path, options: &Options, report: &mut Report) -> Result<()> {
    let workdir = Workdir::create(dir)?;
    let log_bytes = options.log_mib << 20;
    let config = idle_lane(&workdir, log_bytes);
    prewrite(&config, log_bytes / 10 * 9)?;
    let names = Arc::new(feed_names("feed", options.feeds));
    let one = Arc::new(vec!["one".to_owned()]);
    let engine = Engine::open(config)?;
    create_feeds(engine.handle(), &one)?;
    fill(engine.handle(), &names)?;
    let shape = Shape {
        records: options.records,
        record_bytes: 100,
    };
    let mut table = Table::new(
        format!(
            "feeds: {} batches to all feeds in turn, and to one",
            shape.label()
        ),
        &[
            "all MB/s",
            "one MB/s",
            "all median group",
            "one median group",
            "all p50/p99/p99.9 us",
            "one p50/p99/p99.9 us",
            "ratio",
        ],
    );
    let (mut ratios, mut rows) = (Vec::new(), Vec::new());
    for round in 1..=options.pairs {
        progress("feeds", round, options.pairs);
        let share = log_bytes / 10 * 8 / (2 * options.pairs as u64);
        let all = spread_run(engine.handle(), &names, shape, options.seconds, share)?;
        let alone = spread_run(engine.handle(), &one, shape, options.seconds, share)?;
        let ratio = all.log_mb_per_s() / alone.log_mb_per_s();
        ratios.push(ratio);
        table.row(vec![
            format!("{:.0}", all.log_mb_per_s()),
            format!("{:.0}", alone.log_mb_per_s()),
            all.median_group.to_string(),
            alone.median_group.to_string(),
            all.latencies.cell(),
            alone.latencies.cell(),
            format!("{ratio:.2}"),
        ]);
        rows.push(json!({ "all": all.json(), "one": alone.json(), "ratio": ratio }));
    }
    block_on(engine.close())?;
    report.tables.push(table);
    let (low, high) = spread(&ratios);
    let name = format!("all feeds / one feed, median ({low:.2} to {high:.2})");
    report
        .targets
        .push(Target::at_least(name, median(&ratios), 0.85));
    report.data.insert("bandwidth".to_owned(), json!(rows));
    Ok(())
}

fn spread_run(
    handle: &EngineHandle,
    feeds: &Arc<Vec<String>>,
    shape: Shape,
    seconds: f64,
    log_bytes_max: u64,
) -> Result<LoadRun> {
    let crew = Crew {
        producers: 64,
        threads: 2,
        depth: 4,
    };
    let next = Arc::new(AtomicU64::new(0));
    let aim = || Aim::Spread {
        handle: handle.clone(),
        feeds: feeds.clone(),
        next: next.clone(),
    };
    let targets: Vec<Aim> = (0..crew.producers).map(|_| aim()).collect();
    let until = Until {
        warmup: Duration::from_millis(200),
        measure: Duration::from_secs_f64(seconds),
        log_bytes_max,
    };
    drive(handle, &targets, crew, shape, until)
}
