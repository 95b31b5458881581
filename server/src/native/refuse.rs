//! Refuse: which failure is which code on the wire. Spec: server/spec/native-protocol.md §7.
//!
//! **Invariants**
//! - Every error of the engine has a code; the compiler finds one that misses.
//!
//! **Not here**: statuses of other front ends.

use sealog_engine::{Effects, Error};
use sealog_frame::FrameError;
use sealog_protocol::{Effects as WireEffects, ErrorCode, Refusal, WireError};

/// Clients wait at least this long when storage is full, in milliseconds.
const FULL_RETRY_MS: u32 = 500;

/// The refusal that `error`, told as `text`, is.
pub(super) fn refusal<'a>(error: &'a Error, text: &'a str) -> Refusal<'a> {
    let (code, subject, value, limit) = parts(error);
    Refusal {
        code,
        effects: match error.effects() {
            Effects::None => WireEffects::None,
            Effects::Unknown => WireEffects::Unknown,
        },
        retryable: error.is_retryable(),
        retry_after_ms: match error.is_retryable() {
            true => FULL_RETRY_MS,
            false => 0,
        },
        value,
        limit,
        subject,
        text,
    }
}

/// The code that `error` is answered with.
pub(super) fn code(error: &Error) -> ErrorCode {
    parts(error).0
}

type Parts<'a> = (ErrorCode, &'a str, Option<u64>, Option<u64>);

fn parts(error: &Error) -> Parts<'_> {
    use ErrorCode as C;
    let plain = |code| (code, "", None, None);
    match error {
        Error::FeedNotFound { feed } => of(C::FeedNotFound, feed),
        Error::FeedExists { feed } => of(C::FeedExists, feed),
        Error::FeedClosed { feed } => of(C::FeedClosed, feed),
        Error::FeedGone { feed } => of(C::FeedGone, feed),
        Error::Pinned { feed, stream } => (C::Pinned, feed, Some(stream.0), None),
        Error::FeedName { bytes, .. } => (C::FeedName, "", Some(*bytes as u64), None),
        Error::FeedsFull { limit } => (C::FeedsFull, "", None, Some(*limit)),
        Error::Fenced { token, current } => (C::Fenced, "", Some(token.0), Some(current.0)),
        Error::TokenRequired { feed } => of(C::TokenRequired, feed),
        Error::SequenceMismatch { expected, actual } => {
            (C::SequenceMismatch, "", *expected, *actual)
        }
        Error::ProducerFenced { epoch, current } => {
            (C::ProducerFenced, "", Some(*epoch), Some(*current))
        }
        Error::ProducerEpochStart { epoch, sequence } => {
            (C::ProducerEpochStart, "", Some(*epoch), Some(*sequence))
        }
        Error::ProducerGap { expected, received } => {
            (C::ProducerGap, "", Some(*received), Some(*expected))
        }
        Error::ProducersFull { limit } => (C::ProducersFull, "", None, Some(*limit)),
        Error::KeysNotAllowed { feed } => of(C::KeysNotAllowed, feed),
        Error::NoOpenStream { feed } => of(C::NoOpenStream, feed),
        Error::StreamNotFound { feed, stream } => (C::StreamNotFound, feed, Some(stream.0), None),
        Error::StreamSettled { feed, stream } => (C::StreamSettled, feed, Some(stream.0), None),
        Error::AbandonedStream { feed, stream } => (C::AbandonedStream, feed, Some(stream.0), None),
        Error::CommitNotFound { feed, commit } => (C::CommitNotFound, feed, Some(commit.0), None),
        Error::OverLimit { what, value, limit } => (C::OverLimit, what, Some(*value), Some(*limit)),
        Error::Batch(_) => plain(C::Batch),
        // No message of the protocol asks a subscription, or brings an order key, yet.
        Error::Invalid(_)
        | Error::Config(_)
        | Error::Subscription(_)
        | Error::OutOfOrder { .. } => plain(C::Invalid),
        Error::StorageFull { .. } => plain(C::StorageFull),
        Error::Poisoned { log, .. } => (C::Poisoned, "", Some(*log), None),
        Error::Closed => plain(C::Closed),
        Error::Corrupt { file, offset, .. } => (C::Corrupt, file, Some(*offset), None),
        Error::NewerFormat { file, .. } => of(C::NewerFormat, file),
        Error::Unpublished { full: true, .. } => plain(C::StorageFull),
        Error::Bucket(_) | Error::Unpublished { .. } => plain(C::Bucket),
        Error::Io { path, .. } => of(C::Io, path),
        Error::Unusable(_) => plain(C::Unusable),
    }
}

fn of(code: ErrorCode, subject: &str) -> Parts<'_> {
    (code, subject, None, None)
}

/// A refusal that is the protocol's own.
pub(super) fn own(code: ErrorCode, text: &str) -> Refusal<'_> {
    Refusal {
        code,
        effects: WireEffects::None,
        retryable: false,
        retry_after_ms: 0,
        value: None,
        limit: None,
        subject: "",
        text,
    }
}

/// A message that makes no sense where it came.
pub(super) fn bad_message(text: &str) -> Refusal<'_> {
    own(ErrorCode::BadMessage, text)
}

/// Bytes that are no message.
pub(super) fn wire_refusal(error: WireError, text: &str) -> Refusal<'_> {
    match error {
        WireError::Size { bytes, limit } if bytes > limit => Refusal {
            value: Some(bytes),
            limit: Some(limit),
            ..own(ErrorCode::MessageTooLarge, text)
        },
        _ => bad_message(text),
    }
}

/// A frame that is no batch, or one that is too large.
pub(super) fn frame_error(error: &FrameError) -> Error {
    match *error {
        FrameError::TooLarge {
            what,
            bytes: value,
            limit,
        }
        | FrameError::TooMany {
            what,
            count: value,
            limit,
        } => Error::OverLimit { what, value, limit },
        _ => Error::Batch(error.to_string()),
    }
}
