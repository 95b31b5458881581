//! Input: the records that `append` is given: on the command line, as lines, or as NDJSON.
//!
//! **Invariants**
//! - Records come in the order they were given in; `--record` and `--value` may be mixed.
//! - Records of the command line are one batch: stored whole or not at all.
//! - Nothing that does not hold together reaches the engine.
//!
//! **Not here**: where batches are cut (`lines`), sending them (`append`).

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use clap::{ArgMatches, Args};
use sealog_frame::{BatchBuilder, Record};

use super::encode;
use super::exit::CliError;
use super::lines::LineInput;
use super::ndjson;
use super::signals::Signals;

/// The options that say which records to append.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct RecordArgs {
    /// A record with a key: KEY=VALUE, split at the first "="; may be repeated
    #[arg(long, value_name = "KEY=VALUE", allow_hyphen_values = true)]
    record: Vec<OsString>,
    /// A record without a key; may be repeated
    #[arg(long, value_name = "V", allow_hyphen_values = true)]
    value: Vec<OsString>,
    /// One record per line of standard input (or --input), without its newline
    #[arg(long, conflicts_with_all = ["record", "value", "ndjson"])]
    lines: bool,
    /// One record per line of standard input (or --input), as JSON: see docs/cli.md
    #[arg(long, conflicts_with_all = ["record", "value"])]
    ndjson: bool,
    /// Read --lines or --ndjson from this file
    #[arg(long, value_name = "FILE", conflicts_with_all = ["record", "value"])]
    pub(super) input: Option<PathBuf>,
    /// Version of the records within their keys
    #[arg(
        long,
        display_order = 50,
        value_name = "N",
        allow_hyphen_values = true,
        conflicts_with = "ndjson"
    )]
    version: Option<i64>,
    /// The records are tombstones: they hide their keys
    #[arg(long, display_order = 50, conflicts_with = "ndjson")]
    tombstone: bool,
    /// A header of the records: NAME=VALUE, split at the first "="; may be repeated
    #[arg(
        long,
        display_order = 50,
        value_name = "N=V",
        allow_hyphen_values = true,
        conflicts_with = "ndjson"
    )]
    header: Vec<OsString>,
    /// Timestamp of the records, milliseconds since 1970
    #[arg(long, display_order = 50, value_name = "MS", conflicts_with = "ndjson")]
    timestamp: Option<u64>,
    /// Fingerprint of the records: 64 hex digits
    #[arg(long, display_order = 50, value_name = "HEX", value_parser = encode::fingerprint, conflicts_with = "ndjson")]
    fingerprint: Option<[u8; 32]>,
    /// The records in the order of the command line: whether each is a `--record`.
    #[arg(skip)]
    keyed_in_order: Vec<bool>,
}

impl RecordArgs {
    /// Remembers how `--record` and `--value` were mixed.
    pub(super) fn note_order(&mut self, matches: &ArgMatches) {
        let places = |id: &str, keyed: bool| {
            let indices = matches.indices_of(id).into_iter().flatten();
            indices.map(move |at| (at, keyed)).collect::<Vec<_>>()
        };
        let mut order = places("record", true);
        order.extend(places("value", false));
        order.sort_unstable();
        self.keyed_in_order = order.into_iter().map(|(_, keyed)| keyed).collect();
    }
}

/// Latest time that a record may be given: 9999-12-31T23:59:59.999Z. One absurd timestamp would raise
/// the effective timestamps of all records after it.
pub(super) const TIMESTAMP_MS_MAX: u64 = 253_402_300_799_999;

/// A record's timestamp, as long as it is one that people can write down.
pub(super) fn timestamp(ms: Option<u64>) -> Result<Option<u64>, CliError> {
    match ms {
        Some(ms) if ms > TIMESTAMP_MS_MAX => Err(CliError::refused(
            "OverLimit",
            format!(
                "timestamp of {ms} ms over the limit of {TIMESTAMP_MS_MAX} (9999-12-31T23:59:59.999Z)"
            ),
        )),
        ms => Ok(ms),
    }
}

/// Splits at the first `=`.
fn split<'a>(option: &str, text: &'a OsStr) -> Result<(&'a [u8], &'a [u8]), CliError> {
    let bytes = text.as_bytes();
    let at = bytes.iter().position(|byte| *byte == b'=');
    let at = at.ok_or_else(|| CliError::usage(format!("{option} {text:?} has no \"=\"")))?;
    Ok((&bytes[..at], &bytes[at + 1..]))
}

/// What all records of the input have in common.
#[derive(Debug, Clone, Default)]
pub(super) struct Template {
    version: i64,
    tombstone: bool,
    headers: Vec<(Vec<u8>, Vec<u8>)>,
    timestamp_ms: Option<u64>,
    fingerprint: Option<[u8; 32]>,
}

impl Template {
    /// A record of these.
    pub(super) fn record<'a>(&'a self, key: Option<&'a [u8]>, payload: &'a [u8]) -> Record<'a> {
        let headers = self.headers.iter();
        Record {
            payload,
            key,
            version: self.version,
            tombstone: self.tombstone,
            headers: headers
                .map(|(name, value)| (&name[..], &value[..]))
                .collect(),
            timestamp_ms: self.timestamp_ms,
            fingerprint: self.fingerprint,
        }
    }
}

/// Where the records come from.
pub(super) enum Input {
    /// The command line: all of them at once.
    Inline(Option<RecordArgs>, Template),
    /// Lines.
    Lines(LineInput, Template),
    /// Lines of JSON.
    Ndjson(LineInput),
}

impl Input {
    /// Opens the input that the arguments ask for. `steady` cuts batches by content alone.
    pub(super) fn open(
        args: RecordArgs,
        steady: bool,
        record_max: usize,
        signals: &Signals,
    ) -> Result<Self, CliError> {
        let mut template = Template {
            version: args.version.unwrap_or(0),
            tombstone: args.tombstone,
            headers: Vec::new(),
            timestamp_ms: timestamp(args.timestamp)?,
            fingerprint: args.fingerprint,
        };
        for header in &args.header {
            let (name, value) = split("--header", header)?;
            template.headers.push((name.to_vec(), value.to_vec()));
        }
        if args.tombstone && (args.lines || !args.value.is_empty()) {
            return Err(CliError::usage(
                "a tombstone needs a key: give it by --record",
            ));
        }
        if args.lines || args.ndjson {
            let line_max = if args.lines {
                record_max
            } else {
                record_max.saturating_mul(4)
            };
            let lines = LineInput::open(args.input.as_deref(), line_max, steady, signals.clone())?;
            return Ok(match args.lines {
                true => Self::Lines(lines, template),
                false => Self::Ndjson(lines),
            });
        }
        if args.keyed_in_order.is_empty() {
            return Err(CliError::usage(
                "nothing to append: give --record, --value, --lines or --ndjson",
            ));
        }
        if args.input.is_some() {
            return Err(CliError::usage("--input needs --lines or --ndjson"));
        }
        for record in &args.record {
            split("--record", record)?;
        }
        Ok(Self::Inline(Some(args), template))
    }

    /// Fills the builder with the records of the next batch; `false` at the end of the input.
    pub(super) fn fill(&mut self, builder: &mut BatchBuilder) -> Result<bool, CliError> {
        match self {
            Self::Inline(args, template) => match args.take() {
                Some(args) => fill_inline(&args, template, builder).map(|()| true),
                None => Ok(false),
            },
            Self::Lines(lines, template) => lines.fill(builder, |line, builder| {
                builder
                    .push(&template.record(None, line))
                    .map_err(CliError::from)
            }),
            Self::Ndjson(lines) => lines.fill(builder, ndjson::push),
        }
    }

    /// Bytes taken from the file or pipe so far.
    pub(super) fn bytes_read(&self) -> u64 {
        match self {
            Self::Inline(..) => 0,
            Self::Lines(lines, _) | Self::Ndjson(lines) => lines.bytes_read(),
        }
    }

    /// Whether the input may be long.
    pub(super) fn is_long(&self) -> bool {
        !matches!(self, Self::Inline(..))
    }
}

fn fill_inline(
    args: &RecordArgs,
    template: &Template,
    builder: &mut BatchBuilder,
) -> Result<(), CliError> {
    let (mut records, mut values) = (args.record.iter(), args.value.iter());
    for (index, keyed) in args.keyed_in_order.iter().enumerate() {
        let pushed = if *keyed {
            let Some(record) = records.next() else { break };
            let (key, value) = split("--record", record)?;
            builder.push(&template.record(Some(key), value))
        } else {
            let Some(value) = values.next() else { break };
            builder.push(&template.record(None, value.as_bytes()))
        };
        pushed.map_err(|error| CliError::from(error).at(format_args!("record {}", index + 1)))?;
    }
    Ok(())
}
