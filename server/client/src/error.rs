//! Error: everything a call of the client can answer but success. One type, with what to do about it.
//!
//! **Invariants**
//! - A refusal keeps its values: numbers, names and limits are fields, never only text.
//! - [`Error::effects`] is never better than what is known: lost answers are *unknown*.
//! - Every code of the protocol has a kind: a test goes through all of them.
//!
//! **Not here**: which errors a session gets over by itself (`session`).

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use sealog_frame::FrameError;
use sealog_protocol::{ErrorCode, Refusal, WireError};

pub use sealog_protocol::Effects;

/// Result of the client's calls.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a call failed. Cheap to clone: the ticket, the ack stream and `failure_cause` share one.
#[derive(Clone)]
pub struct Error(Arc<Inner>);

#[derive(Clone)]
struct Inner {
    kind: ErrorKind,
    effects: Effects,
    retryable: bool,
    retry_after: Duration,
    /// A server said so.
    refusal: bool,
    text: String,
}

/// What is wrong. Branch on this, never on the text.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ErrorKind {
    /// No feed of that name. Create it, or check the spelling.
    #[error("feed {feed:?} not found")]
    FeedNotFound {
        /// Name asked for.
        feed: String,
    },
    /// The feed exists with other options.
    #[error("feed {feed:?} exists already with other options")]
    FeedExists {
        /// Name asked for.
        feed: String,
    },
    /// The feed is closed: it takes no more batches, and no stream opens in it.
    #[error("feed {feed:?} is closed")]
    FeedClosed {
        /// Name asked for.
        feed: String,
    },
    /// The feed was deleted, and is kept for the feeds that go on from it.
    #[error("feed {feed:?} was deleted, and is kept for its forks")]
    FeedGone {
        /// Name asked for.
        feed: String,
    },
    /// Forks go on from what the stream holds: it cannot be discarded.
    #[error("stream {stream} of feed {feed:?} holds what forks go on from: it cannot be discarded")]
    Pinned {
        /// Name of the feed.
        feed: String,
        /// The stream.
        stream: u64,
    },
    /// The name breaks the rules for names.
    #[error("feed name refused")]
    FeedName,
    /// As many feeds exist as the server allows.
    #[error("{limit} feeds exist, the limit")]
    FeedsFull {
        /// How many.
        limit: u64,
    },
    /// Another writer took over. Stop, or open again.
    #[error("fenced: our epoch {epoch}, current {current}")]
    Fenced {
        /// Writer epoch that was sent.
        epoch: u64,
        /// The one in force.
        current: u64,
    },
    /// The feed takes no batch without a fencing token: open or resume it.
    #[error("feed {feed:?} is exclusive: open it")]
    TokenRequired {
        /// Name of the feed.
        feed: String,
    },
    /// The batch's condition does not hold. Read on from there and decide again.
    #[error("match sequence {}, feed is at {}", show(*.expected), show(*.actual))]
    SequenceMismatch {
        /// Last sequence the batch expected; `None`: an empty feed.
        expected: Option<u64>,
        /// The last sequence in fact; `None`: the feed is empty.
        actual: Option<u64>,
    },
    /// The producer id is used by somebody with a newer producer epoch.
    #[error("producer epoch {epoch} is stale, current {current}")]
    ProducerFenced {
        /// Producer epoch that was sent.
        epoch: u64,
        /// The one in force.
        current: u64,
    },
    /// A new producer epoch must begin at producer sequence 0.
    #[error("producer epoch {epoch} must start at sequence 0, got {sequence}")]
    ProducerEpochStart {
        /// The epoch.
        epoch: u64,
        /// The sequence sent.
        sequence: u64,
    },
    /// Producer sequences are missing in between.
    #[error("producer sequence gap: expected {expected}, sent {sent}")]
    ProducerGap {
        /// The sequence sent.
        sent: u64,
        /// The one expected.
        expected: u64,
    },
    /// The feed remembers as many producers as it may, none idle.
    #[error("feed has {limit} active producers, the limit")]
    ProducersFull {
        /// How many.
        limit: u64,
    },
    /// The feed does not allow keys.
    #[error("feed {feed:?} does not allow keys")]
    KeysNotAllowed {
        /// Name of the feed.
        feed: String,
    },
    /// Nothing is open on the feed.
    #[error("feed {feed:?} has no unsealed stream")]
    NoOpenStream {
        /// Name of the feed.
        feed: String,
    },
    /// No stream of that id.
    #[error("feed {feed:?} has no stream {stream}")]
    StreamNotFound {
        /// Name of the feed.
        feed: String,
        /// Id asked for.
        stream: u64,
    },
    /// The stream is sealed or discarded.
    #[error("stream {stream} of feed {feed:?} is settled already")]
    StreamSettled {
        /// Name of the feed.
        feed: String,
        /// Its id.
        stream: u64,
    },
    /// An older stream was abandoned unsealed; settle it first.
    #[error("stream {stream} of feed {feed:?} was abandoned unsealed: settle it first")]
    AbandonedStream {
        /// Name of the feed.
        feed: String,
        /// The oldest abandoned stream.
        stream: u64,
    },
    /// No commit of that number.
    #[error("feed {feed:?} has no commit {commit}")]
    CommitNotFound {
        /// Name of the feed.
        feed: String,
        /// Number asked for.
        commit: u64,
    },
    /// A value is over its limit: the server's, or the session's window.
    #[error("{what} of {value} over the limit of {limit}")]
    OverLimit {
        /// What is too large.
        what: String,
        /// Its value.
        value: u64,
        /// The limit.
        limit: u64,
    },
    /// The records break a rule of the frame.
    #[error("batch refused")]
    Batch,
    /// An argument makes no sense.
    #[error("invalid argument")]
    Invalid,
    /// No room for more. Appends resume by themselves when space returns.
    #[error("storage full")]
    StorageFull,
    /// The log stopped after a failed write; the server must be restarted.
    #[error("log is poisoned")]
    Poisoned,
    /// The server is on its way down.
    #[error("server is closing")]
    Closing,
    /// Damage in the store.
    #[error("corrupt: {file} at offset {offset}")]
    Corrupt {
        /// File or object.
        file: String,
        /// Byte offset of the damage.
        offset: u64,
    },
    /// The store was written by a newer program.
    #[error("{file}: newer format")]
    NewerFormat {
        /// File or object.
        file: String,
    },
    /// The server's bucket failed.
    #[error("bucket failed")]
    Bucket,
    /// A file operation of the server failed.
    #[error("server's file operation failed")]
    Io,
    /// The server's configuration or machine does not serve this.
    #[error("not served")]
    Unusable,
    /// The token is wrong or missing.
    #[error("unauthorized")]
    Unauthorized,
    /// No version of the protocol in common.
    #[error("no protocol version in common: server speaks {server}, this client {client}")]
    Version {
        /// The server's.
        server: u64,
        /// This crate's.
        client: u16,
    },
    /// One side sent bytes that the other does not understand. A bug, or not a Sealog server.
    #[error("protocol error")]
    Protocol,
    /// No room for one more connection or subscription.
    #[error("server is overloaded, limit {limit}")]
    Overloaded {
        /// How many there may be.
        limit: u64,
    },
    /// No connection could be made.
    #[error("cannot connect to {address}")]
    Connect {
        /// Host and port.
        address: String,
    },
    /// The connection was lost before the answer came.
    #[error("connection lost")]
    Disconnected,
    /// No answer, or no progress, within the time that the options set.
    #[error("timed out after {after:?}")]
    TimedOut {
        /// How long it took.
        after: Duration,
    },
    /// The feed was deleted and made again while this session or reader was away: another feed now.
    #[error("feed {feed:?} is another one now: id {now}, was {before}")]
    FeedReplaced {
        /// Its name.
        feed: String,
        /// The id that the session or reader began with.
        before: u64,
        /// The id now.
        now: u64,
    },
    /// The session stopped before this batch; its `failure_cause` says why.
    #[error("session stopped")]
    Stopped,
    /// The session was closed, sealed or dropped.
    #[error("session is closed")]
    SessionClosed,
}

fn show(sequence: Option<u64>) -> String {
    sequence.map_or_else(|| "empty".to_owned(), |s| s.to_string())
}

impl Error {
    pub(crate) fn new(kind: ErrorKind, effects: Effects, text: impl Into<String>) -> Self {
        let retryable = matches!(kind, ErrorKind::Connect { .. } | ErrorKind::Disconnected);
        Self(Arc::new(Inner {
            kind,
            effects,
            retryable,
            retry_after: Duration::ZERO,
            refusal: false,
            text: text.into(),
        }))
    }

    /// What is wrong.
    #[must_use]
    pub fn kind(&self) -> &ErrorKind {
        &self.0.kind
    }

    /// Whether the same call may succeed later with nothing else done. Mind [`Error::effects`]: a write
    /// whose effects are unknown may be done twice by a retry.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        self.0.retryable
    }

    /// Whether what was asked for may have happened.
    #[must_use]
    pub fn effects(&self) -> Effects {
        self.0.effects
    }

    /// The server asked to wait this long before a retry; zero: it did not say.
    #[must_use]
    pub fn retry_after(&self) -> Duration {
        self.0.retry_after
    }

    pub(crate) fn with_effects(&self, effects: Effects) -> Self {
        if self.0.effects == effects {
            return self.clone();
        }
        let inner = Inner {
            effects,
            ..(*self.0).clone()
        };
        Self(Arc::new(inner))
    }

    /// The same, and a retry is of no use.
    pub(crate) fn for_good(&self) -> Self {
        let inner = Inner {
            retryable: false,
            ..(*self.0).clone()
        };
        Self(Arc::new(inner))
    }

    pub(crate) fn protocol(text: impl Into<String>) -> Self {
        Self::new(ErrorKind::Protocol, Effects::Unknown, text)
    }

    pub(crate) fn disconnected(text: impl Into<String>) -> Self {
        Self::new(ErrorKind::Disconnected, Effects::Unknown, text)
    }

    pub(crate) fn timed_out(after: Duration, text: impl Into<String>) -> Self {
        Self::new(ErrorKind::TimedOut { after }, Effects::Unknown, text)
    }

    pub(crate) fn invalid(text: impl Into<String>) -> Self {
        Self::new(ErrorKind::Invalid, Effects::None, text)
    }

    pub(crate) fn over(what: &str, value: u64, limit: u64) -> Self {
        let what = what.to_owned();
        let kind = ErrorKind::OverLimit { what, value, limit };
        Self::new(kind, Effects::None, "")
    }

    /// What a batch behind the one that stopped the session comes to.
    pub(crate) fn stopped(cause: &Self, effects: Effects) -> Self {
        Self::new(ErrorKind::Stopped, effects, cause.to_string())
    }

    pub(crate) fn session_closed() -> Self {
        Self::new(ErrorKind::SessionClosed, Effects::None, "")
    }
}

impl From<&Refusal<'_>> for Error {
    fn from(refusal: &Refusal<'_>) -> Self {
        Self(Arc::new(Inner {
            kind: kind_of(refusal),
            effects: refusal.effects,
            retryable: refusal.retryable || refusal.code == ErrorCode::Closed,
            retry_after: Duration::from_millis(refusal.retry_after_ms.into()),
            refusal: true,
            text: refusal.text.to_owned(),
        }))
    }
}

impl From<WireError> for Error {
    fn from(error: WireError) -> Self {
        Self::protocol(error.to_string())
    }
}

impl From<FrameError> for Error {
    fn from(error: FrameError) -> Self {
        match error {
            FrameError::TooLarge { what, bytes, limit } => Self::over(what, bytes, limit),
            FrameError::TooMany { what, count, limit } => Self::over(what, count, limit),
            other => Self::new(ErrorKind::Batch, Effects::None, other.to_string()),
        }
    }
}

/// The one table from the protocol's codes to the client's kinds.
fn kind_of(refusal: &Refusal<'_>) -> ErrorKind {
    let name = || refusal.subject.to_owned();
    let value = refusal.value.unwrap_or_default();
    let limit = refusal.limit.unwrap_or_default();
    match refusal.code {
        ErrorCode::FeedNotFound => ErrorKind::FeedNotFound { feed: name() },
        ErrorCode::FeedExists => ErrorKind::FeedExists { feed: name() },
        ErrorCode::FeedClosed => ErrorKind::FeedClosed { feed: name() },
        ErrorCode::FeedName => ErrorKind::FeedName,
        ErrorCode::FeedsFull => ErrorKind::FeedsFull { limit },
        ErrorCode::Fenced => ErrorKind::Fenced {
            epoch: value,
            current: limit,
        },
        ErrorCode::TokenRequired => ErrorKind::TokenRequired { feed: name() },
        ErrorCode::SequenceMismatch => ErrorKind::SequenceMismatch {
            expected: refusal.value,
            actual: refusal.limit,
        },
        ErrorCode::ProducerFenced => ErrorKind::ProducerFenced {
            epoch: value,
            current: limit,
        },
        ErrorCode::ProducerEpochStart => ErrorKind::ProducerEpochStart {
            epoch: value,
            sequence: limit,
        },
        ErrorCode::ProducerGap => ErrorKind::ProducerGap {
            sent: value,
            expected: limit,
        },
        ErrorCode::ProducersFull => ErrorKind::ProducersFull { limit },
        ErrorCode::KeysNotAllowed => ErrorKind::KeysNotAllowed { feed: name() },
        _ => kind_of_the_rest(refusal),
    }
}

fn kind_of_the_rest(refusal: &Refusal<'_>) -> ErrorKind {
    let name = || refusal.subject.to_owned();
    let value = refusal.value.unwrap_or_default();
    let limit = refusal.limit.unwrap_or_default();
    match refusal.code {
        ErrorCode::FeedGone => ErrorKind::FeedGone { feed: name() },
        ErrorCode::Pinned => ErrorKind::Pinned {
            feed: name(),
            stream: value,
        },
        ErrorCode::NoOpenStream => ErrorKind::NoOpenStream { feed: name() },
        ErrorCode::StreamNotFound => ErrorKind::StreamNotFound {
            feed: name(),
            stream: value,
        },
        ErrorCode::StreamSettled => ErrorKind::StreamSettled {
            feed: name(),
            stream: value,
        },
        ErrorCode::AbandonedStream => ErrorKind::AbandonedStream {
            feed: name(),
            stream: value,
        },
        ErrorCode::CommitNotFound => ErrorKind::CommitNotFound {
            feed: name(),
            commit: value,
        },
        ErrorCode::OverLimit => ErrorKind::OverLimit {
            what: name(),
            value,
            limit,
        },
        ErrorCode::Batch => ErrorKind::Batch,
        ErrorCode::Invalid => ErrorKind::Invalid,
        ErrorCode::StorageFull => ErrorKind::StorageFull,
        ErrorCode::Poisoned => ErrorKind::Poisoned,
        ErrorCode::Closed => ErrorKind::Closing,
        ErrorCode::Corrupt => ErrorKind::Corrupt {
            file: name(),
            offset: value,
        },
        ErrorCode::NewerFormat => ErrorKind::NewerFormat { file: name() },
        ErrorCode::Bucket => ErrorKind::Bucket,
        ErrorCode::Io => ErrorKind::Io,
        ErrorCode::Unusable => ErrorKind::Unusable,
        ErrorCode::Unauthorized => ErrorKind::Unauthorized,
        ErrorCode::Version => ErrorKind::Version {
            server: value,
            client: sealog_protocol::PROTOCOL_VERSION,
        },
        ErrorCode::MessageTooLarge => ErrorKind::OverLimit {
            what: "message".to_owned(),
            value,
            limit,
        },
        ErrorCode::Overloaded => ErrorKind::Overloaded { limit },
        ErrorCode::TimedOut => ErrorKind::Disconnected,
        _ => ErrorKind::Protocol,
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (kind, text) = (self.0.kind.to_string(), &self.0.text);
        let begins = kind.split(':').next().unwrap_or_default();
        match text.is_empty() {
            true => f.write_str(&kind)?,
            // The engine's text says what the kind does, and more.
            false if self.0.refusal && text.starts_with(begins) => f.write_str(text)?,
            false => write!(f, "{kind}: {text}")?,
        }
        match self.0.effects {
            Effects::None => Ok(()),
            Effects::Unknown => f.write_str(" (outcome unknown)"),
            Effects::Applied => f.write_str(" (it was applied)"),
        }
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Error")
            .field("kind", &self.0.kind)
            .field("effects", &self.0.effects)
            .field("retryable", &self.0.retryable)
            .field("text", &self.0.text)
            .finish()
    }
}

impl std::error::Error for Error {}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(code: ErrorCode) -> Refusal<'static> {
        Refusal {
            code,
            effects: Effects::None,
            retryable: false,
            retry_after_ms: 250,
            value: Some(5),
            limit: Some(9),
            subject: "orders",
            text: "as the server says it",
        }
    }

    #[test]
    fn every_code_has_a_kind_that_keeps_its_values() {
        for &code in ErrorCode::ALL {
            let error = Error::from(&refusal(code));
            let own = [ErrorCode::BadMessage, ErrorCode::NotBound];
            let is_protocol = *error.kind() == ErrorKind::Protocol;
            assert_eq!(is_protocol, own.contains(&code), "{code:?}");
            assert!(error.to_string().contains("as the server says it"));
            assert_eq!(error.retry_after(), Duration::from_millis(250));
        }
        let fenced = Error::from(&refusal(ErrorCode::Fenced));
        let expected = ErrorKind::Fenced {
            epoch: 5,
            current: 9,
        };
        assert_eq!(*fenced.kind(), expected);
        assert!(
            fenced
                .to_string()
                .starts_with("fenced: our epoch 5, current 9")
        );
        let said = "fenced: sent epoch 5, current 9";
        let text = Error::from(&Refusal {
            text: said,
            ..refusal(ErrorCode::Fenced)
        });
        assert_eq!(
            text.with_effects(Effects::None).to_string(),
            said,
            "not twice"
        );
        let over = Error::from(&refusal(ErrorCode::OverLimit));
        assert!(
            over.to_string()
                .starts_with("orders of 5 over the limit of 9")
        );
    }

    #[test]
    fn effects_and_retries_are_the_servers_word() {
        for &effects in Effects::ALL {
            for retryable in [false, true] {
                let error = Error::from(&Refusal {
                    effects,
                    retryable,
                    ..refusal(ErrorCode::StorageFull)
                });
                assert_eq!(
                    (error.effects(), error.is_retryable()),
                    (effects, retryable)
                );
            }
        }
        // A server on its way down is followed by another one.
        assert!(Error::from(&refusal(ErrorCode::Closed)).is_retryable());
        let lost = Error::disconnected("reset");
        assert!(lost.is_retryable() && lost.effects() == Effects::Unknown);
        assert_eq!(lost.to_string(), "connection lost: reset (outcome unknown)");
        assert_eq!(
            lost.with_effects(Effects::None).to_string(),
            "connection lost: reset"
        );
    }

    #[test]
    fn frame_errors_keep_their_limits() {
        let error = Error::from(FrameError::TooMany {
            what: "records",
            count: 65_537,
            limit: 65_536,
        });
        let expected = ErrorKind::OverLimit {
            what: "records".to_owned(),
            value: 65_537,
            limit: 65_536,
        };
        assert_eq!((error.kind(), error.effects()), (&expected, Effects::None));
        assert_eq!(*Error::from(FrameError::Empty).kind(), ErrorKind::Batch);
    }
}
