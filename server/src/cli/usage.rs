//! Usage: the verb that shows what the logs hold, and what waits for the bucket.
//!
//! **Invariants**
//! - Numbers are what they are at that moment; nothing is waited for.
//!
//! **Not here**: what they mean (`docs/cli.md`).

use std::time::Duration;

use sealog_engine::env::BucketHealth;
use sealog_engine::{LogUsage, Usage};
use serde::Serialize;

use super::access::{Place, with_access};
use super::exit::CliError;
use super::output::Output;
use super::shapes::count;

#[derive(Serialize)]
struct UsageShape {
    logs: Vec<LogShape>,
    bucket: BucketShape,
}

#[derive(Serialize)]
struct LogShape {
    log: u64,
    disk_bytes: u64,
    disk_bytes_max: u64,
    unpacked_bytes: u64,
    unpublished_commits: u64,
    tried: bool,
    trouble: Option<TroubleShape>,
}

#[derive(Serialize)]
struct BucketShape {
    tried: bool,
    trouble: Option<TroubleShape>,
    retries: u64,
    leftover_uploads: u64,
    cache_bytes: u64,
}

#[derive(Serialize)]
struct TroubleShape {
    text: String,
    seconds: u64,
}

impl From<(String, Duration)> for TroubleShape {
    fn from((text, lasts): (String, Duration)) -> Self {
        let seconds = lasts.as_secs();
        Self { text, seconds }
    }
}

impl From<LogUsage> for LogShape {
    fn from(usage: LogUsage) -> Self {
        Self {
            log: usage.log.0,
            disk_bytes: usage.disk_bytes,
            disk_bytes_max: usage.disk_bytes_max,
            unpacked_bytes: usage.unpacked_bytes,
            unpublished_commits: usage.unpublished_commits,
            tried: usage.tried,
            trouble: usage.trouble.map(TroubleShape::from),
        }
    }
}

impl From<BucketHealth> for BucketShape {
    fn from(health: BucketHealth) -> Self {
        Self {
            tried: health.tried,
            trouble: health.trouble.map(TroubleShape::from),
            retries: health.retries,
            leftover_uploads: health.leftovers,
            cache_bytes: health.cache_bytes,
        }
    }
}

impl From<Usage> for UsageShape {
    fn from(usage: Usage) -> Self {
        Self {
            logs: usage.logs.into_iter().map(LogShape::from).collect(),
            bucket: usage.bucket.into(),
        }
    }
}

/// `usage`.
pub(super) fn run(place: Place, out: &mut Output) -> Result<(), CliError> {
    with_access(place, false, async |access| {
        let usage = access.usage().await?;
        out.line(&UsageShape::from(usage), text)
    })
}

fn text(shape: &UsageShape) -> String {
    let mut lines = Vec::new();
    let trouble = |tried: bool, trouble: &Option<TroubleShape>| match trouble {
        Some(TroubleShape { text, seconds }) => format!("in trouble for {seconds} s: {text}"),
        None if tried => "no trouble".to_owned(),
        None => "not tried yet".to_owned(),
    };
    for log in &shape.logs {
        lines.push(format!(
            "log {}: {} of {} bytes on disk, {} not in packs, {} waiting, {}",
            log.log,
            log.disk_bytes,
            log.disk_bytes_max,
            log.unpacked_bytes,
            count(log.unpublished_commits, "commit"),
            trouble(log.tried, &log.trouble),
        ));
    }
    let BucketShape {
        tried,
        retries,
        leftover_uploads,
        cache_bytes,
        ..
    } = shape.bucket;
    lines.push(format!(
        "bucket: {retries} requests sent again, {leftover_uploads} uploads to clean up, {cache_bytes} \
         bytes cached, {}",
        trouble(tried, &shape.bucket.trouble),
    ));
    lines.join("\n")
}
