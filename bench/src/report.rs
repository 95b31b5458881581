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
}

impl Target {
    /// A figure that must be `limit` or more.
    pub fn at_least(name: impl Into<String>, value: f64, limit: f64) -> Self {
        let name = name.into();
        let at_least = true;
        Self {
            name,
            value,
            limit,
            at_least,
        }
    }

    /// A figure that must be `limit` or less.
    pub fn at_most(name: impl Into<String>, value: f64, limit: f64) -> Self {
        let name = name.into();
        let at_least = false;
        Self {
            name,
            value,
            limit,
            at_least,
        }
    }

    /// Whether it does.
    pub fn is_met(&self) -> bool {
        if self.at_least {
            self.value >= self.limit
        } else {
            self.value <= self.limit
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
}

impl Report {
    /// One JSON document.
    pub fn to_json(&self) -> Value {
        let target = |t: &Target| {
            json!({
                "name": t.name, "value": t.value, "limit": t.limit,
                "at_least": t.at_least, "met": t.is_met(),
            })
        };
        let targets: Vec<Value> = self.targets.iter().map(target).collect();
        json!({ "targets": targets, "data": self.data })
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.tables
            .iter()
            .try_for_each(|table| write!(f, "{table}"))?;
        writeln!(f)?;
        for target in &self.targets {
            let verdict = if target.is_met() { "met" } else { "MISSED" };
            let sign = if target.at_least { ">=" } else { "<=" };
            let Target {
                name, value, limit, ..
            } = target;
            writeln!(f, "{verdict:<6} {name}: {value:.3} (target {sign} {limit})")?;
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
}
