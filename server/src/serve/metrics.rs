//! Metrics: every number that `/metrics` shows, under its name, with what it means.
//! Reference: `docs/serve.md`, whose table is held against [`METRICS`] by a test.
//!
//! **Invariants**
//! - Names are `sealog_NOUN_VERB_UNIT`, and `_total` at the end of what only grows.
//! - Numbers are gathered when they are asked for; between two scrapes nothing is done.
//!
//! **Not here**: counting (`native::meters`, the engine), HTTP (`admin`).

use std::collections::BTreeMap;
use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;
use sealog_engine::wal::Histogram;

use super::state::State;

/// What a number does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// It grows, until the process ends.
    Counter,
    /// It goes up and down.
    Gauge,
    /// How often values fell between bounds.
    Histogram,
}

/// A metric: its name (without `sealog_` and `_total`), its kind, its label, what it means.
pub(super) type Metric = (&'static str, Kind, &'static str, &'static str);

/// All of them.
pub(super) const METRICS: &[Metric] = &[
    (
        "server_ready",
        Kind::Gauge,
        "",
        "1 while every log serves and the server is not draining, else 0",
    ),
    (
        "connections_open",
        Kind::Gauge,
        "shard",
        "Connections of the native protocol",
    ),
    (
        "connections_accepted",
        Kind::Counter,
        "shard",
        "Connections of the native protocol since the start",
    ),
    (
        "connections_refused",
        Kind::Counter,
        "shard",
        "Connections refused before they were welcomed",
    ),
    (
        "connections_cut",
        Kind::Counter,
        "shard",
        "Connections ended because they left unread what others waited for the memory of",
    ),
    (
        "answers_reserved_bytes",
        Kind::Gauge,
        "shard",
        "Memory reserved for records and pages on their way to clients",
    ),
    (
        "answers_unreserved_bytes",
        Kind::Gauge,
        "shard",
        "Small answers that wait for clients, and beginnings of messages",
    ),
    (
        "requests_received",
        Kind::Counter,
        "shard",
        "Messages taken in, of every kind",
    ),
    (
        "requests_received_bytes",
        Kind::Counter,
        "shard",
        "Bytes of messages taken in",
    ),
    (
        "requests_refused",
        Kind::Counter,
        "code",
        "Requests and connections answered with this error code",
    ),
    (
        "appends_acknowledged",
        Kind::Counter,
        "shard",
        "Batches acknowledged as durable, duplicates among them",
    ),
    (
        "appends_stored_bytes",
        Kind::Counter,
        "shard",
        "Bytes of acknowledged batches, as sent, without duplicates",
    ),
    (
        "records_stored",
        Kind::Counter,
        "shard",
        "Records of acknowledged batches, without duplicates",
    ),
    (
        "records_sent_bytes",
        Kind::Counter,
        "shard",
        "Bytes of batches put on their way to readers",
    ),
    (
        "groups_committed",
        Kind::Counter,
        "log",
        "Groups made durable, each by one write and one sync",
    ),
    (
        "groups_committed_bytes",
        Kind::Counter,
        "log",
        "Bytes of groups made durable, as written",
    ),
    (
        "groups_commit_seconds",
        Kind::Histogram,
        "log",
        "From a group's submission until it and all before it were durable",
    ),
    (
        "groups_size_bytes",
        Kind::Histogram,
        "log",
        "Sizes of groups, as written",
    ),
    (
        "groups_recent_median_bytes",
        Kind::Gauge,
        "log",
        "Median size of the last few thousand groups",
    ),
    (
        "groups_recent_max_bytes",
        Kind::Gauge,
        "log",
        "Largest of the last few thousand groups",
    ),
    (
        "log_used_bytes",
        Kind::Gauge,
        "log",
        "Bytes of log segments in use",
    ),
    (
        "log_limit_bytes",
        Kind::Gauge,
        "log",
        "Bound on log segments (wal.disk_bytes_max)",
    ),
    (
        "log_unpacked_bytes",
        Kind::Gauge,
        "log",
        "Durable log that is not in packs of the bucket yet",
    ),
    (
        "commits_unpublished",
        Kind::Gauge,
        "log",
        "Commits that are durable here and not in the bucket yet",
    ),
    (
        "lane_troubled_seconds",
        Kind::Gauge,
        "log",
        "How long packing and publishing have been failing; 0: they are not",
    ),
    (
        "bucket_troubled_seconds",
        Kind::Gauge,
        "",
        "How long the bucket has been failing; 0: it is not",
    ),
    (
        "bucket_requests_retried",
        Kind::Counter,
        "",
        "Requests to the bucket that had to be sent again",
    ),
    (
        "bucket_uploads_leftover",
        Kind::Gauge,
        "",
        "Uploads given up and not cleaned up yet",
    ),
    (
        "bucket_cache_bytes",
        Kind::Gauge,
        "",
        "Bytes of the local cache of packs",
    ),
    (
        "budget_used_bytes",
        Kind::Gauge,
        "log",
        "Of inflight_bytes_max: what batches hold that wait in a queue or come from another shard",
    ),
    (
        "budget_limit_bytes",
        Kind::Gauge,
        "log",
        "Bound on what is in flight (inflight_bytes_max)",
    ),
    (
        "process_resident_bytes",
        Kind::Gauge,
        "",
        "Memory of the process that is in RAM",
    ),
    (
        "log_lines_dropped",
        Kind::Counter,
        "",
        "Lines of the process's own log that standard error did not take in time",
    ),
];

/// Values of metrics, each with the value of its label.
#[derive(Debug, Default)]
struct Values {
    numbers: BTreeMap<&'static str, Vec<(String, u64)>>,
    /// Each with what its values are divided by.
    histograms: BTreeMap<&'static str, Vec<(String, Histogram, f64)>>,
}

impl Values {
    fn put(&mut self, name: &'static str, label: impl ToString, value: u64) {
        let values = self.numbers.entry(name).or_default();
        values.push((label.to_string(), value));
    }

    fn put_histogram(
        &mut self,
        (name, label): (&'static str, impl ToString),
        histogram: Histogram,
        unit: f64,
    ) {
        let values = self.histograms.entry(name).or_default();
        values.push((label.to_string(), histogram, unit));
    }

    fn encode_histograms(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        for (name, _, label, help) in METRICS {
            let Some(values) = self.histograms.get(name) else {
                continue;
            };
            let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Histogram)?;
            for (of, histogram, unit) in values {
                let bound = |bound| match bound {
                    u64::MAX => f64::MAX,
                    bound => bound as f64 / unit,
                };
                let buckets: Vec<_> = histogram
                    .buckets()
                    .map(|(upper, count)| (bound(upper), count))
                    .collect();
                let (sum, total) = (histogram.sum() as f64 / unit, histogram.total());
                metric
                    .encode_family(&[(*label, of.as_str())])?
                    .encode_histogram::<NoLabelSet>(sum, total, &buckets, None)?;
            }
        }
        Ok(())
    }
}

impl Collector for Values {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        for (name, kind, label, help) in METRICS {
            let Some(values) = self.numbers.get(name) else {
                continue;
            };
            let metric_type = match kind {
                Kind::Counter => MetricType::Counter,
                Kind::Gauge => MetricType::Gauge,
                Kind::Histogram => continue,
            };
            let mut metric = encoder.encode_descriptor(name, help, None, metric_type)?;
            for (of, value) in values {
                if label.is_empty() {
                    encode_one(&mut metric, *kind, *value)?;
                } else {
                    let labels = [(*label, of.as_str())];
                    encode_one(&mut metric.encode_family(&labels)?, *kind, *value)?;
                }
            }
        }
        self.encode_histograms(&mut encoder)
    }
}

fn encode_one(metric: &mut MetricEncoder<'_>, kind: Kind, value: u64) -> fmt::Result {
    match kind {
        Kind::Counter => metric.encode_counter::<NoLabelSet, _, u64>(&value, None),
        // A gauge's numbers end where an i64 does.
        Kind::Gauge => metric.encode_gauge(&i64::try_from(value).unwrap_or(i64::MAX)),
        Kind::Histogram => Ok(()),
    }
}

/// The answer to `/metrics`.
///
/// # Cancel safety
/// Cancel safe: only reads.
pub(super) async fn text(state: &State, lines_dropped: u64) -> Result<String, fmt::Error> {
    let mut values = Values::default();
    values.put("server_ready", "", state.unready().is_none().into());
    values.put("log_lines_dropped", "", lines_dropped);
    values.put("process_resident_bytes", "", resident_bytes());
    count_native(&mut values, state);
    ask_engine(&mut values, state).await;
    let mut registry = Registry::with_prefix("sealog");
    registry.register_collector(Box::new(values));
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &registry)?;
    Ok(text)
}

fn count_native(values: &mut Values, state: &State) {
    let mut refusals = BTreeMap::new();
    for meters in state.meters() {
        for (name, meter) in [
            ("connections_open", &meters.open),
            ("connections_accepted", &meters.accepted),
            ("connections_refused", &meters.refused),
            ("connections_cut", &meters.cut),
            ("answers_unreserved_bytes", &meters.unreserved),
            ("requests_received", &meters.requests),
            ("requests_received_bytes", &meters.request_bytes),
            ("appends_acknowledged", &meters.appends),
            ("appends_stored_bytes", &meters.append_bytes),
            ("records_stored", &meters.records),
            ("records_sent_bytes", &meters.sent_bytes),
        ] {
            values.put(name, meters.shard, meter.get());
        }
        let reserved = meters.sending.used() as u64;
        values.put("answers_reserved_bytes", meters.shard, reserved);
        for (code, count) in meters.refusals() {
            *refusals.entry(code).or_insert(0) += count;
        }
    }
    for (code, count) in refusals {
        values.put("requests_refused", format!("{code:?}"), count);
    }
}

/// What the engine tells; what it can't tell any more is left out.
async fn ask_engine(values: &mut Values, state: &State) {
    let Some(engine) = state.engine.get() else {
        return;
    };
    for (log, stats) in engine.stats().await.unwrap_or_default().iter().enumerate() {
        values.put("groups_committed", log, stats.groups);
        values.put("groups_committed_bytes", log, stats.bytes);
        let (times, bytes) = (stats.commit_times.clone(), stats.commit_sizes.clone());
        values.put_histogram(("groups_commit_seconds", log), times, 1e9);
        values.put_histogram(("groups_size_bytes", log), bytes, 1.0);
        let mut sizes: Vec<u32> = stats.group_sizes.iter().copied().collect();
        sizes.sort_unstable();
        let at = |index: usize| u64::from(sizes.get(index).copied().unwrap_or(0));
        values.put("groups_recent_median_bytes", log, at(sizes.len() / 2));
        values.put(
            "groups_recent_max_bytes",
            log,
            at(sizes.len().saturating_sub(1)),
        );
    }
    for (log, (used, limit)) in engine.budgets().into_iter().enumerate() {
        values.put("budget_used_bytes", log, used as u64);
        values.put("budget_limit_bytes", log, limit as u64);
    }
    let Ok(usage) = engine.usage().await else {
        return;
    };
    let seconds = |trouble: &Option<(String, std::time::Duration)>| {
        // Trouble of less than a second is trouble.
        trouble
            .as_ref()
            .map_or(0, |(_, time)| time.as_secs().max(1))
    };
    for log in &usage.logs {
        let of = log.log.0;
        values.put("log_used_bytes", of, log.disk_bytes);
        values.put("log_limit_bytes", of, log.disk_bytes_max);
        values.put("log_unpacked_bytes", of, log.unpacked_bytes);
        values.put("commits_unpublished", of, log.unpublished_commits);
        values.put("lane_troubled_seconds", of, seconds(&log.trouble));
    }
    let bucket = &usage.bucket;
    values.put("bucket_troubled_seconds", "", seconds(&bucket.trouble));
    values.put("bucket_requests_retried", "", bucket.retries);
    values.put("bucket_uploads_leftover", "", bucket.leftovers);
    values.put("bucket_cache_bytes", "", bucket.cache_bytes);
}

/// Of this process; 0 where the system does not tell.
fn resident_bytes() -> u64 {
    let pages = std::fs::read_to_string("/proc/self/statm")
        .ok()
        .and_then(|text| text.split(' ').nth(1)?.parse::<u64>().ok());
    // SAFETY: a plain call without pointers.
    let page_bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    pages.unwrap_or(0) * u64::try_from(page_bytes).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_are_named_by_the_rule_and_once() {
        let mut names: Vec<_> = METRICS.iter().map(|(name, ..)| *name).collect();
        assert!(
            names
                .iter()
                .all(|name| name.bytes().all(|b| b.is_ascii_lowercase() || b == b'_'))
        );
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), METRICS.len());
    }

    #[test]
    fn metrics_docs_list_all_and_no_other() {
        let docs = include_str!("../../docs/serve.md");
        let rows = docs.lines().filter(|line| line.starts_with("| `sealog_"));
        let listed: Vec<String> = rows.map(str::to_owned).collect();
        let expected = METRICS.iter().map(|(name, kind, label, help)| {
            let total = if *kind == Kind::Counter { "_total" } else { "" };
            let label = if label.is_empty() {
                String::new()
            } else {
                format!("`{label}`")
            };
            format!("| `sealog_{name}{total}` | {label} | {help} |")
        });
        assert_eq!(listed, expected.collect::<Vec<_>>());
    }

    #[test]
    fn text_before_the_engine_is_open_says_not_ready() {
        let text = futures_lite::future::block_on(text(&State::default(), 3)).unwrap();
        assert!(text.contains("\nsealog_server_ready 0\n"), "{text}");
        assert!(
            text.contains("\nsealog_log_lines_dropped_total 3\n"),
            "{text}"
        );
    }
}
