//! Convert: what a server tells, in the engine's words, which the shapes are made of.
//!
//! **Invariants**
//! - The other way round from `native::convert`: nothing is decided, nothing is left out.
//!
//! **Not here**: errors (`exit`).

use std::time::Duration;

use sealog_client as wire;
use sealog_engine::append::AppendResult;
use sealog_engine::commit::{Commit, CommitKind};
use sealog_engine::env::BucketHealth;
use sealog_engine::ids::{CommitNumber, Digest, Epoch, FeedId, LogId, Sequence, StreamId};
use sealog_engine::producer::ProducerState;
use sealog_engine::{
    FeedInfo, FeedOptions, LogUsage, ProducerInfo, ReadFrom, StreamInfo, StreamPhase, Usage,
};

pub(super) fn ack(ack: wire::Ack) -> AppendResult {
    AppendResult {
        first: ack.first,
        last: ack.last,
        record_count: ack.records.into(),
        duplicate: ack.duplicate,
        producer_sequence: ack.producer_sequence,
    }
}

pub(super) fn feed(info: wire::FeedInfo) -> FeedInfo {
    FeedInfo {
        name: info.name,
        id: FeedId(info.id),
        options: FeedOptions {
            keys: info.keys,
            exclusive: info.exclusive,
            ..FeedOptions::default()
        },
        created_ms: info.created_ms,
        epoch: Epoch(info.epoch),
        next_sequence: info.next_sequence,
        commits: info.commits,
        open_stream: info.open_stream.map(StreamId),
        unpublished: info.unpublished,
        closed: None,
        base: None,
        producers: info.producers,
    }
}

pub(super) fn stream(info: wire::StreamInfo) -> StreamInfo {
    StreamInfo {
        id: StreamId(info.id),
        phase: match info.phase {
            wire::StreamPhase::Open => StreamPhase::Open,
            wire::StreamPhase::Abandoned => StreamPhase::Abandoned,
            wire::StreamPhase::Sealed => StreamPhase::Sealed,
            wire::StreamPhase::Published => StreamPhase::Published,
            wire::StreamPhase::Discarded => StreamPhase::Discarded,
        },
        first: info.first,
        end: info.end,
        records: info.records,
        payload_bytes: info.payload_bytes,
        packed_end: info.packed_end,
        commit: info.commit.map(CommitNumber),
    }
}

pub(super) fn commit(info: wire::CommitInfo) -> Commit {
    Commit {
        number: CommitNumber(info.number),
        kind: match info.discarded {
            true => CommitKind::Discarded,
            false => CommitKind::Sealed,
        },
        feed: FeedId(info.feed),
        stream: StreamId(info.stream),
        epoch: Epoch(info.epoch),
        parent: Digest(info.parent),
        first: Sequence(info.first),
        end: Sequence(info.end),
        records: info.records,
        payload_bytes: info.payload_bytes,
        message: info.message,
        time_ms: info.time_ms,
        manifest: Digest(info.manifest),
    }
}

pub(super) fn producer(info: wire::ProducerInfo) -> ProducerInfo {
    ProducerInfo {
        id: info.id,
        state: ProducerState {
            epoch: info.epoch,
            last_sequence: info.last_sequence,
            last_updated_ms: info.last_arrival_ms,
            last_range: (info.first, info.last),
        },
    }
}

pub(super) fn from(from: ReadFrom) -> wire::ReadFrom {
    match from {
        ReadFrom::Sequence(sequence) => wire::ReadFrom::Sequence(sequence),
        ReadFrom::Timestamp(time_ms) => wire::ReadFrom::Timestamp(time_ms),
        ReadFrom::Commit(number) => wire::ReadFrom::Commit(number.0),
        ReadFrom::Tail(records) => wire::ReadFrom::Tail(records),
    }
}

fn trouble(trouble: Option<wire::Trouble>) -> Option<(String, Duration)> {
    trouble.map(|trouble| (trouble.text, Duration::from_secs(trouble.seconds)))
}

pub(super) fn usage(usage: wire::Usage) -> Usage {
    let log = |usage: wire::LogUsage| LogUsage {
        log: LogId(usage.log),
        disk_bytes: usage.disk_bytes,
        disk_bytes_max: usage.disk_bytes_max,
        unpacked_bytes: usage.unpacked_bytes,
        unpublished_commits: usage.unpublished_commits,
        tried: usage.tried,
        trouble: trouble(usage.trouble),
    };
    let wire::Usage { logs, bucket } = usage;
    Usage {
        logs: logs.into_iter().map(log).collect(),
        bucket: BucketHealth {
            tried: bucket.tried,
            trouble: trouble(bucket.trouble),
            retries: bucket.retries,
            leftovers: bucket.leftover_uploads,
            cache_bytes: bucket.cache_bytes,
        },
    }
}
