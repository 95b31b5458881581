//! Edge: the edge profile at full rate, then with a bucket that can't be written, then healed.
//!
//! **Invariants**
//! - The first part fails on a single refusal for want of space; the second waits for one.
//!
//! **Not here**: disks and the memory limit (edge.sh makes them and starts this inside).

use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use futures::executor::block_on;
use sealog_engine::{Engine, EngineConfig, Error, ReadFrom, ReadRequest};
use serde_json::json;

use crate::Result;
use crate::load::{
    Crew, EngineHandle, LoadRun, Shape, Until, create_feeds, drive, feed_names, open_sessions,
};
use crate::process::resident_peak_bytes;
use crate::report::{Report, Table, Target};

/// Options of `edge`.
#[derive(clap::Args)]
pub struct Options {
    /// Data directory, on a disk of its own.
    #[arg(long)]
    pub data_dir: PathBuf,
    /// Bucket folder, on another.
    #[arg(long)]
    pub bucket_dir: PathBuf,
    /// MiB to append at full rate.
    #[arg(long, default_value_t = 20 * 1024)]
    pub mib: u64,
    /// Shell command that makes the bucket unwritable.
    #[arg(long)]
    pub forbid: Option<String>,
    /// Shell command that makes it writable again.
    #[arg(long)]
    pub allow: Option<String>,
    /// Seconds to wait for storage full, and for appends to resume.
    #[arg(long, default_value_t = 300)]
    pub wait_seconds: u64,
}

/// Runs the scenario.
pub fn run(options: &Options) -> Result<Report> {
    let mut config = EngineConfig::edge(&options.data_dir);
    config.bucket_dir = Some(options.bucket_dir.clone());
    let engine = Engine::open(config)?;
    let handle = engine.handle().clone();
    let feeds = feed_names("edge", 8);
    create_feeds(&handle, &feeds)?;
    let mut report = Report::default();
    full_rate(&handle, &feeds, options, &mut report)?;
    if let (Some(forbid), Some(allow)) = (&options.forbid, &options.allow) {
        let wait = Duration::from_secs(options.wait_seconds);
        unwritable(&handle, &feeds[0], forbid, allow, wait, &mut report)?;
    }
    let peak = resident_peak_bytes();
    report
        .data
        .insert("resident_peak_bytes".to_owned(), json!(peak));
    report.targets.push(Target::at_most(
        "peak RSS, MiB",
        peak as f64 / 1_048_576.0,
        64.0,
    ));
    block_on(engine.close())?;
    Ok(report)
}

fn full_rate(
    handle: &EngineHandle,
    feeds: &[String],
    options: &Options,
    report: &mut Report,
) -> Result<()> {
    let mut table = Table::new(
        "edge: at full rate",
        &[
            "batches",
            "log MiB",
            "log MB/s",
            "append p50/p99/p99.9 us",
            "refused",
            "peak RSS MiB",
        ],
    );
    // Mostly middling batches, and some as large as the profile allows; few of these at a time, since
    // the generator's own copies count too.
    let middling = Shape {
        records: 100,
        record_bytes: 1024,
    };
    let large = Shape {
        records: 16,
        record_bytes: 65_000,
    };
    let shapes = [(middling, feeds.len(), 9), (large, 2.min(feeds.len()), 1)];
    let mut refused = 0;
    for (shape, producers, tenths) in shapes {
        let crew = Crew {
            producers,
            threads: 1,
            depth: 1,
        };
        let sessions = open_sessions(handle, feeds, crew)?;
        let until = Until {
            warmup: Duration::ZERO,
            measure: Duration::from_secs(24 * 3600),
            log_bytes_max: (options.mib << 20) / 10 * tenths,
        };
        let run: LoadRun = drive(handle, &sessions, crew, shape, until)?;
        refused += run.refused;
        table.row(vec![
            shape.label(),
            (run.log_bytes >> 20).to_string(),
            format!("{:.0}", run.log_mb_per_s()),
            run.latencies.cell(),
            run.refused.to_string(),
            (resident_peak_bytes() >> 20).to_string(),
        ]);
        report.data.insert(shape.label(), run.json());
    }
    report.tables.push(table);
    report.targets.push(Target::at_most(
        "refusals at full rate",
        refused as f64,
        0.0,
    ));
    Ok(())
}

fn unwritable(
    handle: &EngineHandle,
    feed: &str,
    forbid: &str,
    allow: &str,
    wait: Duration,
    report: &mut Report,
) -> Result<()> {
    shell(forbid)?;
    let outcome = until_refused(handle, feed, wait).and_then(|seconds| {
        let start = Instant::now();
        let read = read_both_ends(handle, feed)?;
        Ok((seconds, read, start.elapsed().as_secs_f64()))
    });
    shell(allow)?;
    let (full_after, read, read_seconds) = outcome?;
    let resumed_after = until_accepted(handle, feed, wait)?;
    let mut table = Table::new(
        "edge: bucket unwritable",
        &[
            "storage full after s",
            "read while full",
            "in s",
            "resumed after s",
        ],
    );
    table.row(vec![
        format!("{full_after:.1}"),
        format!("{read} B"),
        format!("{read_seconds:.2}"),
        format!("{resumed_after:.1}"),
    ]);
    report.tables.push(table);
    report.targets.push(Target::at_least(
        "bytes read while storage is full",
        read as f64,
        1.0,
    ));
    let data = json!({
        "full_after_s": full_after, "read_bytes": read, "resumed_after_s": resumed_after,
    });
    report.data.insert("unwritable".to_owned(), data);
    Ok(())
}

fn shell(command: &str) -> Result<()> {
    let status = Command::new("sh").args(["-c", command]).status()?;
    if status.success() {
        Ok(())
    } else {
        Err(format!("{command}: {status}").into())
    }
}

const SHAPE: Shape = Shape {
    records: 100,
    record_bytes: 1024,
};

/// Appends until storage is full; the seconds that took.
fn until_refused(handle: &EngineHandle, feed: &str, wait: Duration) -> Result<f64> {
    let batch = SHAPE.batch(handle, 3, None)?;
    let start = Instant::now();
    while start.elapsed() < wait {
        match block_on(handle.append(feed, batch.clone())) {
            Ok(_) => {}
            Err(Error::StorageFull { .. }) => return Ok(start.elapsed().as_secs_f64()),
            Err(error) => return Err(error.into()),
        }
    }
    Err("storage never became full".into())
}

/// Appends until one is accepted; the seconds that took.
fn until_accepted(handle: &EngineHandle, feed: &str, wait: Duration) -> Result<f64> {
    let batch = SHAPE.batch(handle, 3, None)?;
    let start = Instant::now();
    while start.elapsed() < wait {
        match block_on(handle.append(feed, batch.clone())) {
            Ok(_) => return Ok(start.elapsed().as_secs_f64()),
            Err(Error::StorageFull { .. }) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Err("appends never resumed".into())
}

/// Reads the feed's first and newest records; how many bytes of frames came.
fn read_both_ends(handle: &EngineHandle, feed: &str) -> Result<usize> {
    let mut bytes = 0;
    for from in [ReadFrom::Sequence(0), ReadFrom::Tail(1000)] {
        let mut request = ReadRequest::new(feed);
        request.from = from;
        let chunk = block_on(handle.read(request))?;
        if chunk.frames.is_empty() {
            return Err(format!("nothing to read from {from:?}").into());
        }
        bytes += chunk.frames.len();
    }
    Ok(bytes)
}
