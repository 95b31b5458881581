//! Offline: the verbs that work on a data directory no engine has open: `verify`.
//!
//! **Invariants**
//! - Nothing is changed by `verify`.
//!
//! **Not here**: what is checked (the engine).

use sealog_engine::{EngineConfig, VerifyReport};
use serde::Serialize;

use super::exit::CliError;
use super::open::check_exists;
use super::output::Output;
use super::progress::Progress;
use super::shapes::count;

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
