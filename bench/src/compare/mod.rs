//! Compare: Sealog beside what would be picked instead, in alternation, in one run.
//!
//! **Invariants**
//! - Both sides acknowledge each append, and are durable first; a peer that isn't is marked, and
//!   nothing is passed by it.
//! - A peer that isn't here is skipped aloud; one that is required makes the run fail before it begins.
//! - Peers listen on loopback and keep their files in a folder of their own on the measured disk.
//!
//! **Not here**: single loads (`sweep`).

mod contest;
pub mod flushes;
pub mod own;
pub mod peers;
mod shards;
mod sides;
pub mod verdicts;
mod workloads;

use std::path::Path;
use std::time::Duration;

use serde_json::json;

use crate::Result;
use crate::report::Report;
use crate::targets::TargetUrl;
use crate::workdir::Workdir;
use flushes::Device;
use peers::Peer;
use sides::Bench;
use workloads::{Shape, Workload};

/// Options of `compare`.
#[derive(clap::Args)]
pub struct Options {
    /// What is compared with the peers: native (a server started here, through the client crate),
    /// native-raw, in-process, or a URL.
    #[arg(long, default_value = "native")]
    pub target: TargetUrl,
    /// Fail unless this peer is here (redis-always, nats-always, a URL); repeat for several.
    #[arg(long = "require", value_name = "PEER")]
    pub requires: Vec<String>,
    /// Beside all record workloads, a server that runs already: redis://HOST:PORT or nats://HOST:PORT.
    #[arg(long = "peer", value_name = "URL")]
    pub peers: Vec<String>,
    /// Only this workload; repeat for several.
    #[arg(long = "workload", value_name = "NAME")]
    pub workloads: Vec<String>,
    /// Runs of each contestant.
    #[arg(long, default_value_t = 5)]
    pub pairs: usize,
    /// Seconds of each run, after a warm-up of a fifth of it.
    #[arg(long, default_value_t = 3.0)]
    pub seconds: f64,
    /// Seconds of rest before each run.
    #[arg(long, default_value_t = 1.0)]
    pub rest: f64,
    /// Threads that drive the clients.
    #[arg(long, default_value_t = 1)]
    pub threads: usize,
    /// Log of the `wal` workloads in MiB, all runs of one together; more for a fast disk.
    #[arg(long, default_value_t = 6144)]
    pub log_mib: u64,
    /// Log budgets that each `sustained` run writes, of 1 GiB.
    #[arg(long, default_value_t = 10)]
    pub budgets: u64,
}

/// Runs the benchmark.
pub fn run(dir: &Path, options: &Options) -> Result<Report> {
    let chosen = workloads::chosen(&options.workloads)?;
    let mut report = Report::default();
    let extra = named(&options.peers)?;
    for required in named(&options.requires)? {
        if let Some(why) = required.absent() {
            report
                .failures
                .push(format!("{} is required: {why}", required.name()));
        }
    }
    if !report.failures.is_empty() {
        return Ok(report);
    }
    let workdir = Workdir::create(dir)?;
    let device = Device::under(dir);
    eprintln!("sealog-bench: disk {}", device.describe());
    report
        .data
        .insert("disk".to_owned(), json!(device.describe()));
    let bench = Bench {
        workdir: &workdir,
        options,
        extra,
    };
    for workload in chosen {
        one(&bench, &device, workload, &mut report)?;
    }
    Ok(report)
}

fn named(names: &[String]) -> Result<Vec<Peer>> {
    let peers = names.iter().map(|name| Peer::named(name));
    Ok(peers.collect::<std::result::Result<_, _>>()?)
}

fn one(bench: &Bench<'_>, device: &Device, workload: &Workload, report: &mut Report) -> Result<()> {
    if workload.shape == Shape::Shards {
        return shards::run(bench, workload, report);
    }
    let options = bench.options;
    let mut sides = bench.sides(workload, report)?;
    if sides.contestants.len() < 2 {
        return Ok(());
    }
    let rest = Duration::from_secs_f64(options.rest);
    let all = contest::alternate(
        workload.name,
        &mut sides.contestants,
        &sides.pool,
        device,
        options.pairs.max(1),
        rest,
    )?;
    verdicts::tell(report, workload, &all);
    drop(sides);
    bench.clear()
}
