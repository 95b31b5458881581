//! Origins: where each value of the configuration came from, and `config show`. Reference: `docs/cli.md`.
//!
//! **Invariants**
//! - Every key of the file is shown, whoever set it; what a key names a secret by is shown, the secret never.
//! - What is shown is what a verb that is started the same way works with.
//!
//! **Not here**: how the values come together (`config`).

use std::collections::BTreeMap;
use std::fmt;

use clap::ArgMatches;
use clap::parser::ValueSource;
use serde::Serialize;
use toml::Value;
use toml::de::{DeTable, DeValue};

use super::exit::CliError;
use super::output::Output;

/// How an option got its value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Given {
    /// On the command line.
    Flag,
    /// By its variable.
    Env,
}

/// Which options were given, and how.
#[derive(Debug, Clone, Default)]
pub(crate) struct GivenOptions(BTreeMap<String, Given>);

impl GivenOptions {
    /// What a command line and its surroundings gave.
    pub(super) fn of_matches(matches: &ArgMatches) -> Self {
        let mut all = Self::default();
        let mut next = Some(matches);
        while let Some(matches) = next {
            for id in matches.ids() {
                let given = match matches.value_source(id.as_str()) {
                    Some(ValueSource::CommandLine) => Given::Flag,
                    Some(ValueSource::EnvVariable) => Given::Env,
                    _ => continue,
                };
                all.0.insert(id.as_str().to_owned(), given);
            }
            next = matches.subcommand().map(|(_, inner)| inner);
        }
        all
    }

    /// How option `id` was given.
    pub(super) fn of(&self, id: &str) -> Option<Given> {
        self.0.get(id).copied()
    }
}

/// Where a value came from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Origin {
    /// Nobody said anything.
    Default,
    /// It follows from another key's value.
    Derived(&'static str),
    /// The profile that is not the standard one.
    Profile(&'static str),
    /// What the data directory remembers.
    Directory(String),
    /// The configuration file, and the line there.
    File(String, usize),
    /// A variable of the environment.
    Env(String),
    /// An option.
    Flag(String),
}

impl Origin {
    /// Of an option that was given.
    pub(super) fn of_option(id: &str, given: Given) -> Self {
        match given {
            Given::Flag => Self::Flag(format!("--{}", id.replace('_', "-"))),
            Given::Env => Self::Env(format!("SEALOG_{}", id.to_uppercase())),
        }
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => write!(f, "default"),
            Self::Derived(key) => write!(f, "from {key}"),
            Self::Profile(name) => write!(f, "profile {name}"),
            Self::Directory(file) => write!(f, "directory {file}"),
            Self::File(path, line) => write!(f, "file {path}:{line}"),
            Self::Env(name) => write!(f, "env {name}"),
            Self::Flag(name) => write!(f, "flag {name}"),
        }
    }
}

/// The line of each key in a configuration file that was read before.
pub(super) fn lines(text: &str) -> BTreeMap<String, usize> {
    let mut lines = BTreeMap::new();
    if let Ok(table) = DeTable::parse(text) {
        note_lines(&mut lines, text, "", table.get_ref());
    }
    lines
}

fn note_lines(lines: &mut BTreeMap<String, usize>, text: &str, prefix: &str, table: &DeTable<'_>) {
    for (name, value) in table {
        let key = format!("{prefix}{}", name.get_ref());
        match value.get_ref() {
            DeValue::Table(table) => note_lines(lines, text, &format!("{key}."), table),
            _ => {
                let before = text.get(..name.span().start).unwrap_or_default();
                lines.insert(key, before.matches('\n').count() + 1);
            }
        }
    }
}

/// A key, its value, and where that came from.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Row {
    pub(super) key: &'static str,
    pub(super) value: Option<Shown>,
    pub(super) origin: Origin,
}

/// A value as it stands in a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Shown(String, serde_json::Value);

impl Shown {
    pub(super) fn new(value: &Value) -> Self {
        let json = match value {
            Value::Integer(n) => (*n).into(),
            Value::Boolean(b) => (*b).into(),
            Value::String(text) => text.clone().into(),
            other => other.to_string().into(),
        };
        Self(value.to_string(), json)
    }
}

#[derive(Serialize)]
struct RowShape<'a> {
    key: &'a str,
    value: serde_json::Value,
    origin: String,
}

/// `config show`: a line per key.
pub(super) fn show(rows: &[Row], out: &mut Output) -> Result<(), CliError> {
    for row in rows {
        let shape = RowShape {
            key: row.key,
            value: row
                .value
                .as_ref()
                .map_or(serde_json::Value::Null, |value| value.1.clone()),
            origin: row.origin.to_string(),
        };
        out.line(&shape, |shape| match &row.value {
            Some(value) => format!("{} = {}  # {}", shape.key, value.0, shape.origin),
            None => format!("# {} is not set", shape.key),
        })?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_those_of_the_keys() {
        let text = "logs = 2\n\n[wal]\n# a\nsegment_bytes = 1\n[serve]\nlog = \"a\\nb\"\n[batch]\nx.y = 1\n";
        let told: Vec<_> = lines(text).into_iter().collect();
        let expected = [
            ("batch.x.y", 9),
            ("logs", 1),
            ("serve.log", 7),
            ("wal.segment_bytes", 5),
        ];
        assert_eq!(told, expected.map(|(key, line)| (key.to_owned(), line)));
    }
}
