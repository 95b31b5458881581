//! Report: what a benchmark says: tables for people, one JSON document for programs.
//!
//! **Invariants**
//! - Both carry the same figures and the same verdicts on targets.
//!
//! **Not here**: figures (`stats`).

use std::fmt;

use serde_json::{Value, json};

/// Tells whoever watches how far a benchmark is.
pub fn progress(what: &str, round: usize, rounds: usize) {
    eprintln!("sealog-bench: {what}, round {round} of {rounds}");
}

/// A table with a title.
pub struct Table {
    title: String,
    columns: Vec<String>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// An empty table.
    pub fn new(title: impl Into<String>, columns: &[&str]) -> Self {
        Self {
            title: title.into(),
            columns: columns.iter().map(ToString::to_string).collect(),
            rows: Vec::new(),
        }
    }

    /// Adds a row.
    pub fn row(&mut self, cells: Vec<String>) {
        self.rows.push(cells);
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "\n## {}\n", self.title)?;
        let width = |column: usize| {
            let cells = self.rows.iter().filter_map(|row| row.get(column));
            let widest = cells.map(|cell| cell.chars().count()).max().unwrap_or(0);
            widest.max(self.columns[column].chars().count())
        };
        let widths: Vec<usize> = (0..self.columns.len()).map(width).collect();
        let line = |f: &mut fmt::Formatter<'_>, cells: &[String]| {
            for (cell, width) in cells.iter().zip(&widths) {
                write!(f, "| {cell:<width$} ")?;
            }
            writeln!(f, "|")
        };
        line(f, &self.columns)?;
        let dashes: Vec<String> = widths.iter().map(|width| "-".repeat(*width)).collect();
        line(f, &dashes)?;
        self.rows.iter().try_for_each(|row| line(f, row))
    }
}

/// A figure that must keep to a limit.
pub struct Target {
    /// What it is.
    pub name: String,
    /// What was measured.
    pub value: f64,
    /// What it must reach, or stay within.
    pub limit: f64,
    /// Reach rather than stay within.
    pub at_least: bool,
    /// What is wanted beyond that.
    pub goal: Option<f64>,
    /// Nothing hangs on it.
    pub only_goal: bool,
    /// Why the figure means nothing, if so.
    pub void: Option<String>,
}

impl Target {
    /// A figure that must be `limit` or more.
    pub fn at_least(name: impl Into<String>, value: f64, limit: f64) -> Self {
        Self::new(name, value, limit, true)
    }

    /// A figure that must be `limit` or less.
    pub fn at_most(name: impl Into<String>, value: f64, limit: f64) -> Self {
        Self::new(name, value, limit, false)
    }

    /// A figure that must be `limit` or more, or less.
    pub fn new(name: impl Into<String>, value: f64, limit: f64, at_least: bool) -> Self {
        Self {
            name: name.into(),
            value,
            limit,
            at_least,
            goal: None,
            only_goal: false,
            void: None,
        }
    }

    /// Whether it does.
    pub fn is_met(&self) -> bool {
        self.void.is_none() && self.reaches(self.limit)
    }

    /// Whether the benchmark fails by it.
    pub fn fails(&self) -> bool {
        !self.is_met() && !self.only_goal
    }

    fn reaches(&self, bound: f64) -> bool {
        if self.at_least {
            self.value >= bound
        } else {
            self.value <= bound
        }
    }

    fn verdict(&self) -> &'static str {
        match (self.is_met(), self.only_goal) {
            _ if self.void.is_some() => "VOID",
            (true, _) => "met",
            (false, true) => "short",
            (false, false) => "MISSED",
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sign = if self.at_least { ">=" } else { "<=" };
        let what = if self.only_goal { "goal" } else { "target" };
        let (verdict, name, value, limit) = (self.verdict(), &self.name, self.value, self.limit);
        write!(f, "{verdict:<6} {name}: {value:.3} ({what} {sign} {limit}")?;
        if let Some(goal) = self.goal {
            let reached = if self.reaches(goal) { "reached" } else { "not" };
            write!(f, ", goal {goal} {reached}")?;
        }
        write!(f, ")")?;
        match &self.void {
            Some(why) => write!(f, ": {why}"),
            None => Ok(()),
        }
    }
}

/// Everything a benchmark found.
#[derive(Default)]
pub struct Report {
    /// For people.
    pub tables: Vec<Table>,
    /// The verdicts.
    pub targets: Vec<Target>,
    /// For programs.
    pub data: serde_json::Map<String, Value>,
    /// What was left out, and why.
    pub skipped: Vec<String>,
    /// What makes the benchmark fail besides targets.
    pub failures: Vec<String>,
}

impl Report {
    /// Whether a target is missed or something else failed.
    pub fn fails(&self) -> bool {
        !self.failures.is_empty() || self.targets.iter().any(Target::fails)
    }

    /// One JSON document.
    pub fn to_json(&self) -> Value {
        let target = |t: &Target| {
            json!({
                "name": t.name, "value": t.value, "limit": t.limit,
                "at_least": t.at_least, "met": t.is_met(), "goal": t.goal,
                "only_goal": t.only_goal, "void": t.void,
            })
        };
        let targets: Vec<Value> = self.targets.iter().map(target).collect();
        json!({
            "targets": targets, "data": self.data,
            "skipped": self.skipped, "failures": self.failures,
        })
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.tables
            .iter()
            .try_for_each(|table| write!(f, "{table}"))?;
        writeln!(f)?;
        for target in &self.targets {
            writeln!(f, "{target}")?;
        }
        for skipped in &self.skipped {
            writeln!(f, "skipped {skipped}")?;
        }
        for failure in &self.failures {
            writeln!(f, "FAILED {failure}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn target_on_either_side_of_its_limit_is_told_apart() {
        assert!(Target::at_least("a", 0.85, 0.85).is_met());
        assert!(!Target::at_least("a", 0.84, 0.85).is_met());
        assert!(Target::at_most("a", 2.5, 2.5).is_met());
        assert!(!Target::at_most("a", 2.6, 2.5).is_met());
    }

    #[test]
    fn report_fails_by_limits_and_void_figures_and_not_by_goals() {
        let mut report = Report::default();
        let mut goal = Target::at_least("a", 0.5, 1.0);
        goal.only_goal = true;
        report.targets.push(goal);
        report.targets.push(Target::at_least("b", 2.0, 1.0));
        assert!(!report.fails());
        let mut void = Target::at_least("c", 9.0, 1.0);
        void.void = Some("no flushes".to_owned());
        assert!(void.to_string().starts_with("VOID"));
        report.targets.push(void);
        assert!(report.fails());
        let failures = vec!["peer absent".to_owned()];
        let report = Report {
            failures,
            ..Report::default()
        };
        assert!(report.fails());
    }
}
