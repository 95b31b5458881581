//! Parts: what a part of the benchmark measures, what must come out, and how both are told.
//!
//! **Invariants**
//! - A ratio is of two runs of the same pair, ours over theirs; the verdict is on the median.
//! - A side that acknowledged what no flush can have settled passes nothing and nothing is passed by it.
//!
//! **Not here**: how the figures come about (`creates`, `fan_out`, `catch_up`, `streams`).

use serde_json::{Value, json};

use crate::compare::flushes::Verdict;
use crate::compare::peers::Peer;
use crate::compare::verdicts::Ratios;
use crate::report::{Report, Table, Target};
use crate::stats::{median, spread};

/// A figure that each run has.
pub struct Column {
    /// For tables.
    pub label: &'static str,
    larger_is_better: bool,
}

impl Column {
    /// The more the better.
    pub const fn rate(label: &'static str) -> Self {
        Self {
            label,
            larger_is_better: true,
        }
    }

    /// The less the better.
    pub const fn time(label: &'static str) -> Self {
        Self {
            label,
            larger_is_better: false,
        }
    }
}

/// What must come out of a column.
pub struct Want {
    column: usize,
    /// Ours over this one's, or ours by itself.
    beside: Option<Peer>,
    limit: f64,
    only_goal: bool,
}

impl Want {
    /// The benchmark fails by it.
    pub const fn limit(column: usize, beside: Option<Peer>, limit: f64) -> Self {
        Self {
            column,
            beside,
            limit,
            only_goal: false,
        }
    }

    /// Nothing hangs on it.
    pub const fn goal(column: usize, beside: Option<Peer>, limit: f64) -> Self {
        Self {
            only_goal: true,
            ..Self::limit(column, beside, limit)
        }
    }
}

/// A part of the benchmark.
pub struct Part {
    /// For verdicts and programs.
    pub name: &'static str,
    /// The figures of a run.
    pub columns: &'static [Column],
    /// What must come out.
    pub wants: &'static [Want],
}

/// What one run came to.
pub struct Run {
    /// By the columns of its part.
    pub figures: Vec<f64>,
    /// What was acknowledged as stored.
    pub acks: u64,
    /// Everything else.
    pub data: Value,
}

/// A run, and what the disk says about it.
pub struct Judged {
    /// The run.
    pub run: Run,
    /// Flushes of the disk meanwhile, and what they say; `None` where nothing is stored.
    pub flushes: Option<(Option<u64>, Verdict)>,
}

/// Runs of one side, one a pair.
pub struct Series {
    /// Whose.
    pub name: String,
    /// In the order of pairs.
    pub runs: Vec<Judged>,
}

impl Series {
    fn figures(&self, column: usize) -> Vec<f64> {
        let runs = self.runs.iter();
        runs.map(|judged| judged.run.figures[column]).collect()
    }

    fn is_not_durable(&self) -> bool {
        let lies = |judged: &Judged| matches!(judged.flushes, Some((_, Verdict::NotDurable)));
        self.runs.iter().any(lies)
    }

    fn flushes_cell(&self) -> String {
        let told: Vec<_> = self
            .runs
            .iter()
            .filter_map(|judged| {
                let (flushes, verdict) = judged.flushes.as_ref()?;
                let acks = judged.run.acks as f64;
                Some((acks / (*flushes)?.max(1) as f64, verdict.cell()))
            })
            .collect();
        let per_flush: Vec<f64> = told.iter().map(|(acks, _)| *acks).collect();
        match told.iter().map(|(_, cell)| *cell).min() {
            Some(cell) => format!("{:.1}, {cell}", median(&per_flush)),
            None => "-".to_owned(),
        }
    }

    fn json(&self) -> Value {
        let run = |judged: &Judged| {
            let (flushes, say) = match &judged.flushes {
                Some((flushes, verdict)) => (*flushes, Some(verdict.cell())),
                None => (None, None),
            };
            let Run {
                figures,
                acks,
                data,
            } = &judged.run;
            json!({
                "figures": figures, "acks": acks, "flushes": flushes, "flushes_say": say, "run": data,
            })
        };
        let runs: Vec<Value> = self.runs.iter().map(run).collect();
        json!({ "name": self.name, "runs": runs })
    }
}

/// Tells what a part came to. The first series is ours.
pub fn tell(report: &mut Report, part: &Part, title: &str, all: &[Series]) {
    let Some((own, peers)) = all.split_first() else {
        return;
    };
    report.tables.push(table(part, title, all));
    if own.is_not_durable() {
        report.failures.push(format!(
            "{}: {} acknowledged what no flush can have made durable",
            part.name, own.name
        ));
    }
    let mut ratios = Vec::new();
    for want in part.wants {
        let column = &part.columns[want.column];
        let Some(peer) = &want.beside else {
            let values = own.figures(want.column);
            let name = format!("{}: {} of {}", part.name, column.label, own.name);
            report
                .targets
                .push(verdict(want, column, name, median(&values)));
            continue;
        };
        let Some(peer) = peers.iter().find(|series| series.name == peer.name()) else {
            continue;
        };
        let pairs = own.figures(want.column).into_iter();
        let found = Ratios::of_figures(pairs.zip(peer.figures(want.column)));
        let name = format!(
            "{}: {}, {} / {}, {}",
            part.name,
            column.label,
            own.name,
            peer.name,
            found.describe()
        );
        let mut verdict = verdict(want, column, name, found.median());
        if peer.is_not_durable() {
            verdict.void = Some(format!("{} answered before its flushes", peer.name));
        }
        report.targets.push(verdict);
        let name = &peer.name;
        ratios.push(json!({ "peer": name, "figure": column.label, "ratio": found.json() }));
    }
    let columns: Vec<&str> = part.columns.iter().map(|column| column.label).collect();
    let series: Vec<Value> = all.iter().map(Series::json).collect();
    let data = json!({
        "title": title, "figures": columns, "ratios": ratios, "series": series,
    });
    report.data.insert(part.name.to_owned(), data);
}

fn verdict(want: &Want, column: &Column, name: String, value: f64) -> Target {
    let mut verdict = Target::new(name, value, want.limit, column.larger_is_better);
    verdict.only_goal = want.only_goal;
    if value.is_nan() {
        verdict.void = Some("a run came to nothing".to_owned());
    }
    verdict
}

fn table(part: &Part, title: &str, all: &[Series]) -> Table {
    let stores = all.iter().any(|series| series.flushes_cell() != "-");
    let mut columns = vec![""];
    columns.extend(part.columns.iter().map(|column| column.label));
    if stores {
        columns.push("acks/flush, flushes say");
    }
    let mut table = Table::new(format!("{}: {title}", part.name), &columns);
    for series in all {
        let mut row = vec![series.name.clone()];
        row.extend((0..part.columns.len()).map(|column| cell(&series.figures(column))));
        if stores {
            row.push(series.flushes_cell());
        }
        table.row(row);
    }
    table
}

/// `median (min..max)`, small figures to two places.
fn cell(figures: &[f64]) -> String {
    let (low, high) = spread(figures);
    let places = if high < 10.0 { 2 } else { 0 };
    let middle = median(figures);
    match figures.len() {
        1 => format!("{middle:.places$}"),
        _ => format!("{middle:.places$} ({low:.places$}..{high:.places$})"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    static PART: Part = Part {
        name: "part",
        columns: &[Column::rate("a/s"), Column::time("us")],
        wants: &[
            Want::limit(0, Some(Peer::DurableStreams), 2.0),
            Want::goal(1, Some(Peer::DurableStreamsNode), 0.5),
            Want::limit(1, None, 30.0),
        ],
    };

    fn series(name: &str, runs: &[[f64; 2]], verdict: &Verdict) -> Series {
        let judged = |figures: &[f64; 2]| Judged {
            run: Run {
                figures: figures.to_vec(),
                acks: 10,
                data: Value::Null,
            },
            flushes: Some((Some(5), verdict.clone())),
        };
        Series {
            name: name.to_owned(),
            runs: runs.iter().map(judged).collect(),
        }
    }

    fn told(own: &[[f64; 2]], peer: &Verdict) -> Report {
        let mut report = Report::default();
        let peers = [
            series("sealog", own, &Verdict::Explained),
            series("durable-streams", &[[10.0, 1.0]; 3], peer),
        ];
        tell(&mut report, &PART, "title", &peers);
        report
    }

    #[test]
    fn ratios_are_ours_over_theirs_and_absent_peers_give_no_verdict() {
        let own = [[10.0, 20.0], [20.0, 30.0], [40.0, 40.0]];
        let report = told(&own, &Verdict::Explained);
        let values: Vec<f64> = report.targets.iter().map(|target| target.value).collect();
        assert_eq!(values, [2.0, 30.0]);
        assert!(!report.fails());
        assert!(told(&[[19.0, 30.0]], &Verdict::Explained).fails());
        assert!(told(&[[20.0, 31.0]], &Verdict::Explained).fails());
        let text = report.to_string();
        assert!(text.contains("20 (10..40)"), "{text}");
        assert!(text.contains("2.0, explained"), "{text}");
    }

    #[test]
    fn side_that_answers_before_its_flushes_passes_nothing() {
        let report = told(&[[90.0, 1.0]], &Verdict::NotDurable);
        assert!(report.targets[0].void.is_some());
        let mut report = Report::default();
        let own = series("sealog", &[[90.0, 1.0]], &Verdict::NotDurable);
        tell(&mut report, &PART, "title", &[own]);
        assert_eq!(report.failures.len(), 1);
    }
}
