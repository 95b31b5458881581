//! Contest: one workload: its contestants take turns, A B A B, with a rest in between.
//!
//! **Invariants**
//! - All contestants of a workload get the same payloads, and the same plan where they are loads.
//! - Flushes are counted over the same time as acknowledgements, warm-up and drain included.
//!
//! **Not here**: verdicts (`verdicts`).

use std::time::Duration;

use serde_json::{Value, json};

use super::flushes::{Device, Verdict};
use super::workloads::Metric;
use crate::Result;
use crate::generator::{PayloadPool, Plan, Target, drive};
use crate::plain::PlainFile;
use crate::report::progress;
use crate::stats::Latencies;

/// Block of the plain disk yardstick.
const PLAIN_BLOCK_BYTES: usize = 1 << 20;

/// Makes a target on an empty directory.
pub type Fresh<'a> = Box<dyn Fn() -> Result<Box<dyn Target>> + 'a>;

/// How a contestant runs.
pub enum Runner<'a> {
    /// A load on a target that stays.
    Load(Box<dyn Target>),
    /// A load on a target that is made for each run.
    Fresh(Fresh<'a>),
    /// Blocks written and synced by one thread.
    Blocks(PlainFile),
}

/// One side.
pub struct Contestant<'a> {
    /// For tables.
    pub name: String,
    /// Whether it is set to sync before it answers.
    pub claims: Option<bool>,
    /// What it is to do.
    pub plan: Plan,
    /// How it does it.
    pub runner: Runner<'a>,
}

/// What one run of a contestant came to.
pub struct Run {
    /// Records a second.
    pub records_per_s: f64,
    /// Payload MB a second.
    pub mb_per_s: f64,
    /// Latencies of appends, or of blocks.
    pub latencies: Latencies,
    /// CPU microseconds a record, of the generator's process and the server's.
    pub cpu_us: Option<(f64, Option<f64>)>,
    /// Answers, warm-up included.
    pub acks: u64,
    /// Flushes of the disk meanwhile.
    pub flushes: Option<u64>,
    /// What they say.
    pub verdict: Verdict,
    /// Everything else.
    pub data: Value,
}

impl Run {
    /// A figure of it.
    pub fn figure(&self, metric: Metric) -> f64 {
        match metric {
            Metric::Records => self.records_per_s,
            Metric::Bandwidth => self.mb_per_s,
            Metric::P50 => self.latencies.us(0.5),
            Metric::P99 => self.latencies.us(0.99),
            Metric::P999 => self.latencies.us(0.999),
            Metric::ServerCpu => self.cpu_us.and_then(|(_, server)| server).unwrap_or(0.0),
        }
    }

    /// For JSON.
    pub fn json(&self) -> Value {
        json!({
            "records_per_s": self.records_per_s, "payload_mb_per_s": self.mb_per_s,
            "acks": self.acks, "flushes": self.flushes, "flushes_say": self.verdict.cell(),
            "run": self.data,
        })
    }
}

/// Runs of one contestant, one a pair.
pub struct Series {
    /// Whose.
    pub name: String,
    /// Whether it is set to sync before it answers.
    pub claims: Option<bool>,
    /// In the order of pairs.
    pub runs: Vec<Run>,
}

/// Lets all contestants run `pairs` times in turn.
///
/// # Errors
/// A contestant's.
pub fn alternate(
    what: &str,
    contestants: &mut [Contestant<'_>],
    pool: &PayloadPool,
    device: &Device,
    pairs: usize,
    rest: Duration,
) -> Result<Vec<Series>> {
    let mut all: Vec<Series> = contestants
        .iter()
        .map(|contestant| Series {
            name: contestant.name.clone(),
            claims: contestant.claims,
            runs: Vec::new(),
        })
        .collect();
    for pair in 1..=pairs {
        progress(what, pair, pairs);
        for (contestant, series) in contestants.iter_mut().zip(&mut all) {
            std::thread::sleep(rest);
            let run = contestant
                .run(pool, device)
                .map_err(|error| format!("{what}, {}: {error}", contestant.name))?;
            series.runs.push(run);
        }
    }
    Ok(all)
}

impl Contestant<'_> {
    fn run(&mut self, pool: &PayloadPool, device: &Device) -> Result<Run> {
        let plan = &self.plan;
        match &mut self.runner {
            Runner::Load(target) => load(target.as_ref(), plan, pool, device),
            Runner::Fresh(make) => load(make()?.as_ref(), plan, pool, device),
            Runner::Blocks(file) => blocks(file, plan, device),
        }
    }
}

fn load(target: &dyn Target, plan: &Plan, pool: &PayloadPool, device: &Device) -> Result<Run> {
    target.empty(plan)?;
    let before = device.flushes();
    let outcome = drive(target, plan, pool)?;
    let flushes = device
        .flushes()
        .zip(before)
        .map(|(after, before)| after.saturating_sub(before));
    let acks = outcome.tally.acks_all;
    Ok(Run {
        records_per_s: outcome.records_per_s(),
        mb_per_s: outcome.mb_per_s(),
        latencies: outcome.latencies().clone(),
        cpu_us: Some(outcome.cpu_us()),
        acks,
        flushes,
        verdict: device.judge(flushes, acks, plan.spec.in_flight_max()),
        data: outcome.json(),
    })
}

fn blocks(file: &mut PlainFile, plan: &Plan, device: &Device) -> Result<Run> {
    let before = device.flushes();
    let run = file.run(PLAIN_BLOCK_BYTES, plan.measure, u64::MAX)?;
    let flushes = device
        .flushes()
        .zip(before)
        .map(|(after, before)| after.saturating_sub(before));
    let acks = run.latencies.count();
    Ok(Run {
        records_per_s: 0.0,
        mb_per_s: run.mb_per_s,
        cpu_us: None,
        acks,
        flushes,
        verdict: device.judge(flushes, acks, 1),
        data: json!({ "block_bytes": run.block_bytes, "latency": run.latencies.json() }),
        latencies: run.latencies,
    })
}
