//! Sweep: the `load` command: one run, or a closed loop for the peak and open loops below it, with a plot.
//!
//! **Invariants**
//! - A sweep's points are all on one target, one after the other, with a rest in between.
//!
//! **Not here**: peers and ratios (`compare`).

use std::path::{Path, PathBuf};
use std::time::Duration;

use sealog_engine::EngineConfig;
use serde_json::json;

use crate::Result;
use crate::compare::own;
use crate::compare::peers::reach;
use crate::generator::{LoadSpec, Outcome, Pace, PayloadPool, Plan, Target, drive};
use crate::plot::{Point, plot};
use crate::report::{Report, Table, progress};
use crate::targets::TargetUrl;
use crate::workdir::{Workdir, idle_lane, prewrite};

/// Log that is written before and recycled.
const PREWRITE_BYTES: u64 = 700 << 20;
/// Parts of the peak that a sweep offers, in percent.
const SWEEP_PERCENT: [u32; 9] = [10, 25, 40, 50, 60, 70, 80, 90, 95];
/// In flight per client in an open loop, unless the spec says more.
const OPEN_WINDOW_MIN: usize = 1024;

/// Options of `load`.
#[derive(clap::Args)]
pub struct Options {
    /// Where the load goes: native (a server started here, through the client crate), native-raw,
    /// in-process, or sealog://, sealog-raw://, redis://, nats://HOST:PORT, which is emptied first.
    #[arg(long, default_value = "native")]
    pub target: TargetUrl,
    /// CLIENTSxWINDOWxBYTES, or CLIENTSxWINDOWxRECORDSxBYTES for batches of several records.
    #[arg(long, default_value = "16x16x1k")]
    pub spec: LoadSpec,
    /// Records carry keys of 16 bytes.
    #[arg(long)]
    pub keyed: bool,
    /// Open loop: this many appends a second over all clients; repeat for several runs.
    #[arg(long, value_name = "PER_SECOND")]
    pub rate: Vec<f64>,
    /// Find the peak in a closed loop, then offer 10 to 95 % of it in open loops.
    #[arg(long, conflicts_with = "rate")]
    pub sweep: bool,
    /// Seconds of each run.
    #[arg(long, default_value_t = 3.0)]
    pub seconds: f64,
    /// Seconds before that, not measured.
    #[arg(long, default_value_t = 0.6)]
    pub warmup: f64,
    /// Seconds of rest before each run.
    #[arg(long, default_value_t = 1.0)]
    pub rest: f64,
    /// Threads that drive the clients.
    #[arg(long, default_value_t = 1)]
    pub threads: usize,
    /// Write latency over throughput as SVG to this file.
    #[arg(long, value_name = "FILE")]
    pub svg: Option<PathBuf>,
}

/// Runs the benchmark.
pub fn run(dir: &Path, options: &Options) -> Result<Report> {
    let workdir = Workdir::create(dir)?;
    let target = target(&workdir, &options.target)?;
    let mut load = Load {
        target: target.as_ref(),
        options,
        pool: PayloadPool::new(options.spec.record_bytes, 1),
        outcomes: Vec::new(),
    };
    if options.sweep {
        let peak = load.run(Pace::Closed)?;
        let appends = peak.records_per_s() / peak.spec.records as f64;
        for (round, percent) in SWEEP_PERCENT.into_iter().enumerate() {
            progress("load", round + 1, SWEEP_PERCENT.len());
            let per_second = appends * f64::from(percent) / 100.0;
            load.run(Pace::Open { per_second })?;
        }
    } else if options.rate.is_empty() {
        load.run(Pace::Closed)?;
    } else {
        for per_second in &options.rate {
            let per_second = *per_second;
            load.run(Pace::Open { per_second })?;
        }
    }
    load.report()
}

fn target(workdir: &Workdir, url: &TargetUrl) -> Result<Box<dyn Target>> {
    if !own::is_own(url) {
        return reach(url, 1);
    }
    prewrite(&idle_lane(workdir, 1 << 30), PREWRITE_BYTES)?;
    own::open(workdir, url, EngineConfig::new(workdir.data()))
}

/// Runs so far.
struct Load<'a> {
    target: &'a dyn Target,
    options: &'a Options,
    pool: PayloadPool,
    outcomes: Vec<Outcome>,
}

impl Load<'_> {
    fn run(&mut self, pace: Pace) -> Result<Outcome> {
        let options = self.options;
        let mut spec = options.spec;
        spec.keyed = options.keyed;
        if pace != Pace::Closed {
            spec.window = spec.window.max(OPEN_WINDOW_MIN);
        }
        let plan = Plan {
            spec,
            pace,
            warmup: Duration::from_secs_f64(options.warmup),
            measure: Duration::from_secs_f64(options.seconds),
            appends_max: None,
            threads: options.threads,
        };
        std::thread::sleep(Duration::from_secs_f64(options.rest));
        self.target.empty(&plan)?;
        let outcome = drive(self.target, &plan, &self.pool)?;
        self.outcomes.push(outcome.clone());
        Ok(outcome)
    }

    fn report(&self) -> Result<Report> {
        let (target, spec) = (&self.options.target, self.options.spec);
        let keyed = if self.options.keyed { ", keyed" } else { "" };
        let title = format!("load: {spec}{keyed} on {target}");
        let mut table = Table::new(
            title.clone(),
            &[
                "offered appends/s",
                "records/s",
                "payload MB/s",
                "append p50 / p99 / p99.9 us",
                "unanswered",
                "latency is",
            ],
        );
        for outcome in &self.outcomes {
            let offered = match outcome.pace {
                Pace::Closed => "closed loop".to_owned(),
                Pace::Open { per_second } => format!("{per_second:.0}"),
            };
            table.row(vec![
                offered,
                format!("{:.0}", outcome.records_per_s()),
                format!("{:.1}", outcome.mb_per_s()),
                outcome.latencies().cell(),
                outcome.tally.unanswered.to_string(),
                outcome.correction().to_owned(),
            ]);
        }
        let mut report = Report::default();
        report.tables.push(table);
        let runs: Vec<_> = self.outcomes.iter().map(Outcome::json).collect();
        let data = json!({ "target": target.to_string(), "runs": runs });
        report.data.insert("load".to_owned(), data);
        if let Some(path) = &self.options.svg {
            let points: Vec<Point> = self.outcomes.iter().map(Point::of).collect();
            std::fs::write(path, plot(&title, &points)?)?;
        }
        Ok(report)
    }
}
