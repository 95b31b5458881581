//! Verdicts: ratios of the target's runs and a peer's, pair by pair, and what they mean.
//!
//! **Invariants**
//! - A ratio is of two runs of the same pair; the verdict is on the median.
//! - A comparison with a peer that claims to be durable and isn't is void, never passed.
//!
//! **Not here**: printing (`report`).

use serde_json::{Value, json};

use super::contest::{Run, Series};
use super::flushes::Verdict;
use super::workloads::{Check, Metric, Workload};
use crate::report::{Report, Table, Target};
use crate::stats::{Latencies, median, spread};

/// Ratios of one figure, pair by pair.
pub struct Ratios(Vec<f64>);

impl Ratios {
    /// The target's figures over the peer's.
    pub fn of(target: &[Run], peer: &[Run], metric: Metric) -> Self {
        let pairs = target.iter().zip(peer);
        Self::of_figures(pairs.map(|(a, b)| (a.figure(metric), b.figure(metric))))
    }

    /// First over second.
    pub fn of_figures(pairs: impl Iterator<Item = (f64, f64)>) -> Self {
        let ratio = |(a, b): (f64, f64)| if b > 0.0 { a / b } else { f64::NAN };
        Self(pairs.map(ratio).collect())
    }

    /// The middle one; not a number if a figure was zero or there is none.
    pub fn median(&self) -> f64 {
        if self.0.is_empty() || self.0.iter().any(|ratio| ratio.is_nan()) {
            return f64::NAN;
        }
        median(&self.0)
    }

    /// `median of N (least..greatest)`, for the name of a verdict.
    pub fn describe(&self) -> String {
        let (low, high) = spread(&self.0);
        format!("median of {} pairs ({low:.2}..{high:.2})", self.0.len())
    }

    /// For JSON.
    pub fn json(&self) -> Value {
        let (low, high) = spread(&self.0);
        json!({ "pairs": self.0, "median": self.median(), "min": low, "max": high })
    }
}

/// Tells what the workload came to. The first series is the target's.
pub fn tell(report: &mut Report, workload: &Workload, all: &[Series]) {
    let Some((target, peers)) = all.split_first() else {
        return;
    };
    report.tables.push(table(workload, target, peers));
    if not_durable(target) {
        report.failures.push(format!(
            "{}: {} acknowledged what no flush can have made durable",
            workload.name, target.name
        ));
    }
    let mut ratios = Vec::new();
    for check in workload.checks {
        let name = check.peer.name();
        let Some(peer) = peers.iter().find(|peer| peer.name == name) else {
            continue;
        };
        let found = Ratios::of(&target.runs, &peer.runs, check.metric);
        report
            .targets
            .push(verdict(workload, check, target, peer, &found));
        ratios.push(json!({
            "peer": name, "metric": check.metric.label(), "ratio": found.json(),
        }));
    }
    let runs = |series: &Series| {
        let runs: Vec<Value> = series.runs.iter().map(Run::json).collect();
        json!({ "name": series.name, "set_to_be_durable": series.claims, "runs": runs })
    };
    let series: Vec<Value> = all.iter().map(runs).collect();
    let data = json!({
        "title": workload.title, "spec": workload.shape.spec().to_string(),
        "ratios": ratios, "series": series,
    });
    report.data.insert(workload.name.to_owned(), data);
}

fn verdict(
    workload: &Workload,
    check: &Check,
    target: &Series,
    peer: &Series,
    ratios: &Ratios,
) -> Target {
    let name = format!(
        "{}: {} {} / {}, {}",
        workload.name,
        target.name,
        check.metric.label(),
        peer.name,
        ratios.describe()
    );
    let limit = check.limit.unwrap_or(check.goal);
    let mut verdict = Target::new(name, ratios.median(), limit, check.metric.at_least());
    verdict.only_goal = check.limit.is_none();
    verdict.goal = check.limit.and(Some(check.goal));
    if peer.claims == Some(true) && not_durable(peer) {
        verdict.void = Some(format!(
            "{} answered before its flushes: not durable",
            peer.name
        ));
    } else if ratios.median().is_nan() {
        verdict.void = Some("a run came to nothing".to_owned());
    }
    verdict
}

fn not_durable(series: &Series) -> bool {
    series
        .runs
        .iter()
        .any(|run| run.verdict == Verdict::NotDurable)
}

const COLUMNS: [&str; 9] = [
    "",
    "records/s (min..max)",
    "payload MB/s",
    "p50 / p99 / p99.9 us",
    "CPU us/record: client + server",
    "acks/flush",
    "set to be durable",
    "flushes say",
    "ratio (min..max)",
];

fn table(workload: &Workload, target: &Series, peers: &[Series]) -> Table {
    let title = format!("{}: {}", workload.name, workload.title);
    let mut table = Table::new(title, &COLUMNS);
    let metric = workload
        .checks
        .first()
        .map_or(Metric::Records, |check| check.metric);
    let row = |series: &Series, ratio: String| {
        let figures =
            |metric| -> Vec<f64> { series.runs.iter().map(|run| run.figure(metric)).collect() };
        let records = figures(Metric::Records);
        let (low, high) = spread(&records);
        let mut latencies = Latencies::new();
        for run in &series.runs {
            latencies.merge(&run.latencies);
        }
        vec![
            series.name.clone(),
            match high > 0.0 {
                true => format!("{:.0} ({low:.0}..{high:.0})", median(&records)),
                false => "-".to_owned(),
            },
            format!("{:.1}", median(&figures(Metric::Bandwidth))),
            latencies.cell(),
            cpu_cell(series),
            acks_per_flush(series),
            claim_cell(series.claims).to_owned(),
            flushes_cell(series).to_owned(),
            ratio,
        ]
    };
    table.row(row(target, String::new()));
    for peer in peers {
        let ratios = Ratios::of(&target.runs, &peer.runs, metric);
        let (low, high) = spread(&ratios.0);
        let cell = format!(
            "{} {:.2} ({low:.2}..{high:.2})",
            metric.label(),
            ratios.median()
        );
        table.row(row(peer, cell));
    }
    table
}

fn cpu_cell(series: &Series) -> String {
    let own: Option<Vec<f64>> = series.runs.iter().map(|r| Some(r.cpu_us?.0)).collect();
    let server: Option<Vec<f64>> = series.runs.iter().map(|r| r.cpu_us?.1).collect();
    match (own, server) {
        (Some(own), Some(server)) => format!("{:.2} + {:.2}", median(&own), median(&server)),
        (Some(own), None) => format!("{:.2}", median(&own)),
        (None, _) => "-".to_owned(),
    }
}

fn acks_per_flush(series: &Series) -> String {
    let each = |run: &Run| Some(run.acks as f64 / run.flushes?.max(1) as f64);
    let all: Option<Vec<f64>> = series.runs.iter().map(each).collect();
    all.map_or("-".to_owned(), |all| format!("{:.1}", median(&all)))
}

fn claim_cell(claims: Option<bool>) -> &'static str {
    match claims {
        Some(true) => "yes",
        Some(false) => "NO: answers from memory",
        None => "unknown",
    }
}

fn flushes_cell(series: &Series) -> &'static str {
    let cells = series.runs.iter().map(|run| run.verdict.cell());
    // The worst of them: not durable before untold before explained.
    cells.min().unwrap_or("-")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::peers::Peer;
    use crate::compare::workloads::WORKLOADS;

    fn run(records_per_s: f64, verdict: Verdict) -> Run {
        Run {
            records_per_s,
            mb_per_s: records_per_s / 1e4,
            latencies: Latencies::new(),
            cpu_us: None,
            acks: 10,
            flushes: Some(10),
            verdict,
            data: Value::Null,
        }
    }

    fn series(name: &str, claims: Option<bool>, figures: &[f64], verdict: &Verdict) -> Series {
        Series {
            name: name.to_owned(),
            claims,
            runs: figures
                .iter()
                .map(|figure| run(*figure, verdict.clone()))
                .collect(),
        }
    }

    fn told(target: Series, peer: Series) -> Report {
        let workload = &WORKLOADS[0];
        assert_eq!(workload.checks[0].peer, Peer::RedisAlways);
        let mut report = Report::default();
        tell(&mut report, workload, &[target, peer]);
        report
    }

    #[test]
    fn ratios_are_of_pairs_and_the_median_counts() {
        let figures = [(30.0, 10.0), (10.0, 10.0), (40.0, 20.0)];
        let ratios = Ratios::of_figures(figures.into_iter());
        assert_eq!(ratios.median(), 2.0);
        assert_eq!(ratios.describe(), "median of 3 pairs (1.00..3.00)");
        assert!(
            Ratios::of_figures([(1.0, 0.0)].into_iter())
                .median()
                .is_nan()
        );
        assert!(Ratios::of_figures(std::iter::empty()).median().is_nan());
    }

    #[test]
    fn target_that_is_fast_enough_passes_and_a_slow_one_fails() {
        let durable = Verdict::Explained;
        let peer = || series("redis-always", Some(true), &[10.0, 10.0, 10.0], &durable);
        let fast = series("in-process", Some(true), &[24.0, 25.0, 26.0], &durable);
        assert!(!told(fast, peer()).fails());
        let slow = series("in-process", Some(true), &[24.0, 24.0, 26.0], &durable);
        assert!(told(slow, peer()).fails());
    }

    #[test]
    fn comparison_with_a_peer_that_lies_is_void() {
        let (durable, lie) = (Verdict::Explained, Verdict::NotDurable);
        let fast = || series("in-process", Some(true), &[99.0], &durable);
        let liar = series("redis-always", Some(true), &[1.0], &lie);
        let report = told(fast(), liar);
        assert!(report.fails());
        assert!(report.targets[0].void.is_some());
        let idle = series("redis-always", Some(true), &[0.0], &durable);
        assert!(told(fast(), idle).fails());
    }

    #[test]
    fn target_that_is_not_durable_fails_however_fast() {
        let target = series("in-process", Some(true), &[99.0], &Verdict::NotDurable);
        let peer = series("redis-always", Some(true), &[1.0], &Verdict::Explained);
        let report = told(target, peer);
        assert!(report.fails());
        assert_eq!(report.failures.len(), 1);
    }

    #[test]
    fn absent_peer_gives_no_verdict() {
        let target = series("in-process", Some(true), &[99.0], &Verdict::Explained);
        let mut report = Report::default();
        tell(&mut report, &WORKLOADS[0], &[target]);
        assert!(report.targets.is_empty());
    }
}
