//! Convert: the engine's facts in the protocol's words.
//!
//! **Invariants**
//! - Nothing is decided, nothing is left out.
//!
//! **Not here**: errors (`refuse`).

use std::time::Duration;

use sealog_engine::commit::{Commit, CommitKind};
use sealog_engine::env::BucketHealth;
use sealog_engine::ids::{CommitNumber, FeedId, StreamId};
use sealog_engine::{
    FeedInfo, LogUsage, ProducerInfo, ReadFrom, ReadRequest, StreamInfo, StreamPhase,
};
use sealog_protocol as wire;

pub(super) fn feed(info: FeedInfo) -> wire::FeedInfo {
    wire::FeedInfo {
        name: info.name,
        id: info.id.0,
        keys: info.options.keys,
        exclusive: info.options.exclusive,
        created_ms: info.created_ms,
        epoch: info.epoch.0,
        next_sequence: info.next_sequence,
        commits: info.commits,
        open_stream: info.open_stream.map(|stream| stream.0),
        unpublished: info.unpublished,
        producers: info.producers,
    }
}

pub(super) fn stream(info: StreamInfo) -> wire::StreamInfo {
    wire::StreamInfo {
        id: info.id.0,
        phase: match info.phase {
            StreamPhase::Open => wire::StreamPhase::Open,
            StreamPhase::Abandoned => wire::StreamPhase::Abandoned,
            StreamPhase::Sealed => wire::StreamPhase::Sealed,
            StreamPhase::Published => wire::StreamPhase::Published,
            StreamPhase::Discarded => wire::StreamPhase::Discarded,
        },
        first: info.first,
        end: info.end,
        records: info.records,
        payload_bytes: info.payload_bytes,
        packed_end: info.packed_end,
        commit: info.commit.map(|commit| commit.0),
    }
}

pub(super) fn commit(commit: Commit) -> wire::CommitInfo {
    wire::CommitInfo {
        number: commit.number.0,
        discarded: commit.kind == CommitKind::Discarded,
        feed: commit.feed.0,
        stream: commit.stream.0,
        epoch: commit.epoch.0,
        parent: commit.parent.0,
        first: commit.first.0,
        end: commit.end.0,
        records: commit.records,
        payload_bytes: commit.payload_bytes,
        message: commit.message,
        time_ms: commit.time_ms,
        manifest: commit.manifest.0,
    }
}

pub(super) fn producer(info: ProducerInfo) -> wire::ProducerInfo {
    wire::ProducerInfo {
        id: info.id,
        epoch: info.state.epoch,
        last_sequence: info.state.last_sequence,
        first: info.state.last_range.0,
        last: info.state.last_range.1,
        last_arrival_ms: info.state.last_updated_ms,
    }
}

pub(super) fn read(scope: &wire::ReadScope<'_>) -> ReadRequest {
    ReadRequest {
        id: scope.feed_id.map(FeedId),
        stream: scope.stream.map(StreamId),
        from: match scope.from {
            wire::ReadFrom::Sequence(sequence) => ReadFrom::Sequence(sequence),
            wire::ReadFrom::Timestamp(time_ms) => ReadFrom::Timestamp(time_ms),
            wire::ReadFrom::Commit(number) => ReadFrom::Commit(CommitNumber(number)),
            wire::ReadFrom::Tail(records) => ReadFrom::Tail(records),
        },
        end: scope.end,
        bytes_max: usize::try_from(scope.bytes_max).unwrap_or(usize::MAX),
        fingerprints: scope.fingerprints,
        ..ReadRequest::new(scope.feed)
    }
}

fn trouble(trouble: Option<(String, Duration)>) -> Option<wire::Trouble> {
    trouble.map(|(text, lasts)| wire::Trouble {
        text,
        seconds: lasts.as_secs(),
    })
}

pub(super) fn log_usage(usage: LogUsage) -> wire::LogUsage {
    wire::LogUsage {
        log: usage.log.0,
        disk_bytes: usage.disk_bytes,
        disk_bytes_max: usage.disk_bytes_max,
        unpacked_bytes: usage.unpacked_bytes,
        unpublished_commits: usage.unpublished_commits,
        tried: usage.tried,
        trouble: trouble(usage.trouble),
    }
}

pub(super) fn bucket_usage(health: BucketHealth) -> wire::BucketUsage {
    wire::BucketUsage {
        tried: health.tried,
        trouble: trouble(health.trouble),
        retries: health.retries,
        leftover_uploads: health.leftovers,
        cache_bytes: health.cache_bytes,
    }
}
