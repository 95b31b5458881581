//! Offline: the verbs that work on a data directory no engine has open, and on single files.
//!
//! **Invariants**
//! - `verify` and `inspect` change nothing.
//! - A signal ends `reshard` and `accept-loss` between two steps, as the engine can be stopped there.
//!
//! **Not here**: what is checked, and what is moved (the engine).

use sealog_engine::{
    EngineConfig, FeedLoss, InspectOptions, LogLoss, LossReport, ReshardReport, S3Options,
    VerifyReport,
};
use serde::Serialize;

use super::args::{Globals, InspectArgs};
use super::exit::CliError;
use super::lines::open_file;
use super::open::check_exists;
use super::output::Output;
use super::progress::Progress;
use super::shapes::{count, range};
use super::signals::Signals;
use super::store::Store;

/// What `verify` found whole.
#[derive(Serialize)]
struct VerifyShape {
    verified: bool,
    feeds: u64,
    commits: u64,
    packs: u64,
    packed_records: u64,
    manifests: u64,
    key_indexes: u64,
    orphans: u64,
    foreign: u64,
    bytes: u64,
    logs: Vec<LogShape>,
}

#[derive(Serialize)]
struct LogShape {
    log: u64,
    segments: u64,
    groups: u64,
    batches: u64,
    end: u64,
    proven_end: u64,
    clean: bool,
}

impl From<VerifyReport> for VerifyShape {
    fn from(report: VerifyReport) -> Self {
        let logs = report.logs.iter().map(|log| LogShape {
            log: log.log.0,
            segments: log.segments,
            groups: log.groups,
            batches: log.batches,
            end: log.end,
            proven_end: log.proven_end,
            clean: log.clean,
        });
        Self {
            verified: true,
            feeds: report.feeds,
            commits: report.commits,
            packs: report.packs,
            packed_records: report.packed_records,
            manifests: report.manifests,
            key_indexes: report.key_indexes,
            orphans: report.orphans,
            foreign: report.foreign,
            bytes: report.bytes,
            logs: logs.collect(),
        }
    }
}

/// `verify`.
pub(super) fn verify(config: &EngineConfig, out: &mut Output) -> Result<(), CliError> {
    check_exists(config)?;
    let progress = Progress::bytes();
    let report = sealog_engine::verify(config, &mut |step| {
        progress.at(step.bytes, &step.reading);
    })?;
    drop(progress);
    out.line(&VerifyShape::from(report), verified)
}

fn verified(shape: &VerifyShape) -> String {
    let batches = shape.logs.iter().map(|log| log.batches).sum();
    let clean = shape.logs.iter().all(|log| log.clean);
    format!(
        "verified: {}, {}, {} with {}, {} in the log, {}",
        count(shape.feeds, "feed"),
        count(shape.commits, "commit"),
        count(shape.packs, "pack"),
        count(shape.packed_records, "record"),
        count(batches, "batch"),
        if clean {
            "cleanly closed"
        } else {
            "not cleanly closed: what is beyond its proven end was not checked"
        },
    )
}

/// `inspect`.
pub(super) fn inspect(
    args: &InspectArgs,
    globals: &Globals,
    out: &mut Output,
) -> Result<(), CliError> {
    let options = InspectOptions {
        items: args.items,
        preview_bytes: args.preview_bytes,
    };
    let tree = match object_of(args, globals)? {
        Some((store, key)) => sealog_engine::inspect_object(&store, &key, &options)?,
        None => {
            // A missing file is "not found", as everywhere.
            drop(open_file(&args.file)?);
            sealog_engine::inspect(&args.file, &options)?
        }
    };
    out.line(&tree.to_json(), |_| tree.to_string().trim_end().to_owned())
}

/// The object that `s3://NAME/KEY` names.
fn object_of(
    args: &InspectArgs,
    globals: &Globals,
) -> Result<Option<(S3Options, String)>, CliError> {
    let url = args.file.to_str().filter(|text| text.starts_with("s3://"));
    let Some((name, key)) = url.and_then(|url| url["s3://".len()..].split_once('/')) else {
        return Ok(None);
    };
    let store = Store::default().under(&Globals {
        bucket: Some(format!("s3://{name}")),
        ..globals.clone()
    });
    Ok(store.options()?.map(|store| (store, key.to_owned())))
}

/// What `admin reshard` did.
#[derive(Serialize)]
struct ReshardShape {
    before: Vec<u64>,
    logs: Vec<u64>,
    feeds: u64,
    batches: u64,
    leftovers: u64,
}

impl From<ReshardReport> for ReshardShape {
    fn from(report: ReshardReport) -> Self {
        Self {
            before: report.before.iter().map(|log| log.0).collect(),
            logs: report.logs.iter().map(|log| log.0).collect(),
            feeds: report.feeds,
            batches: report.batches,
            leftovers: report.leftovers,
        }
    }
}

/// `admin reshard`.
pub(super) fn reshard(config: &EngineConfig, logs: u16, out: &mut Output) -> Result<(), CliError> {
    check_exists(config)?;
    let progress = Progress::steps();
    let signals = Signals::listen()?;
    let report = sealog_engine::reshard(config, logs, progress.step(&signals));
    let report = report.map_err(|error| signals.check().err().unwrap_or_else(|| error.into()))?;
    drop(progress);
    out.done(&ReshardShape::from(report), |shape| {
        format!(
            "{} instead of {}: {} moved, {} copied",
            count(shape.logs.len() as u64, "log"),
            shape.before.len(),
            count(shape.feeds, "feed"),
            count(shape.batches, "batch"),
        )
    })
}

/// What `admin accept-loss` gave up.
#[derive(Serialize)]
struct LossShape {
    logs: Vec<LogLossShape>,
}

#[derive(Serialize)]
struct LogLossShape {
    log: u64,
    now: u64,
    damage: String,
    headers: Vec<String>,
    end: u64,
    lost_to: u64,
    feeds: Vec<FeedLossShape>,
    adopted_commits: u64,
}

#[derive(Serialize)]
struct FeedLossShape {
    feed: String,
    id: u64,
    first: u64,
    last: Option<u64>,
}

impl From<LossReport> for LossShape {
    fn from(report: LossReport) -> Self {
        Self {
            logs: report.logs.into_iter().map(LogLossShape::from).collect(),
        }
    }
}

impl From<LogLoss> for LogLossShape {
    fn from(loss: LogLoss) -> Self {
        let feed = |loss: FeedLoss| FeedLossShape {
            feed: loss.name,
            id: loss.feed.0,
            first: loss.first,
            last: (loss.first..loss.end).last(),
        };
        Self {
            log: loss.log.0,
            now: loss.now.0,
            damage: loss.damage,
            headers: loss.headers,
            end: loss.end,
            lost_to: loss.lost_to,
            feeds: loss.feeds.into_iter().map(feed).collect(),
            adopted_commits: loss.adopted,
        }
    }
}

/// `admin accept-loss`.
pub(super) fn accept_loss(config: &EngineConfig, out: &mut Output) -> Result<(), CliError> {
    check_exists(config)?;
    let progress = Progress::steps();
    let signals = Signals::listen()?;
    let report = sealog_engine::accept_loss(config, progress.step(&signals));
    let report = report.map_err(|error| signals.check().err().unwrap_or_else(|| error.into()))?;
    drop(progress);
    out.done(&LossShape::from(report), accepted)
}

fn accepted(shape: &LossShape) -> String {
    if shape.logs.is_empty() {
        return "nothing was damaged, nothing was changed".to_owned();
    }
    let mut lines = Vec::new();
    for log in &shape.logs {
        let (id, now, end, lost_to) = (log.log, log.now, log.end, log.lost_to);
        let damage = match log.damage.is_empty() {
            true => format!(
                "{} written again",
                count(log.headers.len() as u64, "header")
            ),
            false => log.damage.clone(),
        };
        lines.push(format!(
            "log {id} (now {now}): {damage}; whole to offset {end} of {lost_to}"
        ));
        for feed in &log.feeds {
            let lost = range(feed.first, feed.last);
            lines.push(format!("  feed {:?} lost {lost}", feed.feed));
        }
    }
    lines.join("\n")
}
