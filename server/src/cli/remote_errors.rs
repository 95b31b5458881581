//! Remote errors: the status and the name of what a server, or the way to it, fails with.
//!
//! **Invariants**
//! - What the engine would answer here has the same status and name when a server answers it.
//!
//! **Not here**: texts (the client's).

use sealog_client::ErrorKind as K;

use super::exit::Exit;

/// Status and name of a kind of error.
pub(super) fn classify(kind: &K) -> (Exit, &'static str) {
    match kind {
        K::FeedNotFound { .. } => (Exit::NotFound, "FeedNotFound"),
        K::FeedClosed { .. } => (Exit::Refused, "FeedClosed"),
        K::FeedGone { .. } => (Exit::Refused, "FeedGone"),
        K::Pinned { .. } => (Exit::Refused, "Pinned"),
        K::FeedExists { .. } => (Exit::Refused, "FeedExists"),
        K::FeedName => (Exit::Usage, "FeedName"),
        K::FeedsFull { .. } => (Exit::Refused, "FeedsFull"),
        K::Fenced { .. } => (Exit::Refused, "Fenced"),
        K::TokenRequired { .. } => (Exit::Refused, "TokenRequired"),
        K::SequenceMismatch { .. } => (Exit::Refused, "SequenceMismatch"),
        K::ProducerFenced { .. } => (Exit::Refused, "ProducerFenced"),
        K::ProducerEpochStart { .. } => (Exit::Refused, "ProducerEpochStart"),
        K::ProducerGap { .. } => (Exit::Refused, "ProducerGap"),
        K::ProducersFull { .. } => (Exit::Refused, "ProducersFull"),
        K::KeysNotAllowed { .. } => (Exit::Refused, "KeysNotAllowed"),
        K::NoOpenStream { .. } => (Exit::Refused, "NoOpenStream"),
        K::StreamNotFound { .. } => (Exit::NotFound, "StreamNotFound"),
        K::StreamSettled { .. } => (Exit::Refused, "StreamSettled"),
        K::AbandonedStream { .. } => (Exit::Refused, "AbandonedStream"),
        K::CommitNotFound { .. } => (Exit::NotFound, "CommitNotFound"),
        K::OverLimit { .. } => (Exit::Refused, "OverLimit"),
        K::Batch => (Exit::Refused, "Batch"),
        K::Invalid => (Exit::Usage, "Invalid"),
        K::StorageFull => (Exit::StorageFull, "StorageFull"),
        K::Poisoned => (Exit::Failure, "Poisoned"),
        K::Closing => (Exit::Failure, "Closed"),
        K::Corrupt { .. } => (Exit::Corrupt, "Corrupt"),
        K::NewerFormat { .. } => (Exit::Unusable, "NewerFormat"),
        K::Bucket => (Exit::Failure, "Bucket"),
        K::Io => (Exit::Failure, "Io"),
        other => connection(other),
    }
}

/// What only the way to a server can fail with.
pub(super) const CONNECTION: [(Exit, &str); 9] = [
    (Exit::Unusable, "Unauthorized"),
    (Exit::Unusable, "Version"),
    (Exit::Unusable, "Overloaded"),
    (Exit::Unusable, "Connect"),
    (Exit::Refused, "FeedReplaced"),
    (Exit::Failure, "Disconnected"),
    (Exit::Failure, "TimedOut"),
    (Exit::Failure, "Stopped"),
    (Exit::Failure, "Protocol"),
];

fn connection(kind: &K) -> (Exit, &'static str) {
    let [
        unauthorized,
        version,
        overloaded,
        connect,
        replaced,
        rest @ ..,
    ] = CONNECTION;
    let [disconnected, timed_out, stopped, protocol] = rest;
    match kind {
        K::Unauthorized => unauthorized,
        K::Version { .. } => version,
        K::Overloaded { .. } => overloaded,
        K::Connect { .. } => connect,
        K::Unusable => (Exit::Unusable, "Unusable"),
        K::FeedReplaced { .. } => replaced,
        K::Disconnected => disconnected,
        K::TimedOut { .. } => timed_out,
        K::Stopped | K::SessionClosed => stopped,
        // `Protocol`, and kinds of later versions.
        _ => protocol,
    }
}
