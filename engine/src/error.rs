//! Error: everything that can go wrong, and what the caller must do about it.
//!
//! **Invariants**
//! - A refusal has no effects. A failure of a write has effects *unknown* unless it says otherwise.
//! - Messages are lower case, name values and limits, and end without a full stop.
//!
//! **Not here**: bugs (assertions; they poison the shard) and decoding errors (`codec`, wrapped as
//! [`Error::Corrupt`] with the place).

use std::io::ErrorKind;

use crate::ids::{CommitNumber, Epoch, FeedId, StreamId};

/// Result of engine calls.
pub type Result<T> = std::result::Result<T, Error>;

/// Whether the call that failed may have changed anything.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effects {
    /// Nothing changed.
    None,
    /// Unknown: read back, or retry through an idempotent producer.
    Unknown,
}

/// Everything an engine call can answer but success.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// No feed of that name. Create it, or check the spelling.
    #[error("feed {feed:?} not found")]
    FeedNotFound {
        /// Name asked for.
        feed: String,
    },
    /// The feed was deleted, and is kept for the feeds that go on from it: its name is free when the last of
    /// them is deleted.
    #[error("feed {feed:?} was deleted, and is kept for its forks")]
    FeedGone {
        /// Its name.
        feed: String,
    },
    /// Forks go on from what the stream holds: seal it as it stands, or delete the forks.
    #[error("stream {stream} of feed {feed:?} holds what forks go on from: it cannot be discarded")]
    Pinned {
        /// Name of the feed.
        feed: String,
        /// The stream.
        stream: StreamId,
    },
    /// The feed is closed: it takes no more batches, and no stream opens in it.
    #[error("feed {feed:?} is closed")]
    FeedClosed {
        /// Its name.
        feed: String,
    },
    /// A feed of that name exists with other options.
    #[error("feed {feed:?} exists already with other options")]
    FeedExists {
        /// Name asked for.
        feed: String,
    },
    /// The name breaks the rules for names.
    #[error("feed name of {bytes} bytes: {rule}")]
    FeedName {
        /// Length of the name.
        bytes: usize,
        /// The rule it breaks.
        rule: &'static str,
    },
    /// As many feeds as the configuration allows.
    #[error("{limit} feeds exist, the limit")]
    FeedsFull {
        /// `feeds_max`.
        limit: u64,
    },
    /// Another writer took over. Stop, or open again.
    #[error("fenced: our epoch {token}, current {current}")]
    Fenced {
        /// Epoch the call carried.
        token: Epoch,
        /// Epoch in force.
        current: Epoch,
    },
    /// The feed is exclusive and the batch carries no fencing token.
    #[error("feed {feed:?} is exclusive: open it and append under the epoch it gives")]
    TokenRequired {
        /// Name of the feed.
        feed: String,
    },
    /// The match sequence is not the feed's last sequence.
    #[error("match sequence {expected}, feed is at {actual}", expected = show(*.expected), actual = show(*.actual))]
    SequenceMismatch {
        /// Last sequence the batch expected, `None` for an empty feed.
        expected: Option<u64>,
        /// Last sequence in fact, `None` for an empty feed.
        actual: Option<u64>,
    },
    /// The producer's epoch is behind.
    #[error("producer epoch {epoch} is stale, current {current}")]
    ProducerFenced {
        /// Epoch the batch carried.
        epoch: u64,
        /// Epoch in force.
        current: u64,
    },
    /// A new producer epoch must start at producer sequence 0.
    #[error("producer epoch {epoch} must start at sequence 0, got {sequence}")]
    ProducerEpochStart {
        /// The new epoch.
        epoch: u64,
        /// Sequence the batch carried.
        sequence: u64,
    },
    /// Producer sequences are missing in between.
    #[error("producer sequence gap: expected {expected}, received {received}")]
    ProducerGap {
        /// Next sequence the producer may send.
        expected: u64,
        /// Sequence it sent.
        received: u64,
    },
    /// As many producers as the feed may remember, none of them idle long enough to forget.
    #[error("feed has {limit} active producers, the limit")]
    ProducersFull {
        /// `producers_max`.
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
        stream: StreamId,
    },
    /// The stream is settled: its commit is published or on its way.
    #[error("stream {stream} of feed {feed:?} is settled already: it was sealed or discarded")]
    StreamSettled {
        /// Name of the feed.
        feed: String,
        /// Id asked for.
        stream: StreamId,
    },
    /// An older stream was abandoned unsealed; settle it first.
    #[error(
        "stream {stream} of feed {feed:?} was abandoned unsealed: `admin resume` or `admin discard` it first"
    )]
    AbandonedStream {
        /// Name of the feed.
        feed: String,
        /// The oldest abandoned stream.
        stream: StreamId,
    },
    /// No commit of that number.
    #[error("feed {feed:?} has no commit {commit}")]
    CommitNotFound {
        /// Name of the feed.
        feed: String,
        /// Number asked for.
        commit: CommitNumber,
    },
    /// A value is over its limit.
    #[error("{what} of {value} over the limit of {limit}")]
    OverLimit {
        /// What is too large.
        what: &'static str,
        /// Its value.
        value: u64,
        /// The limit.
        limit: u64,
    },
    /// The batch's order key is not above the last one.
    #[error("order key {given:?} is not above the feed's last, {last:?}")]
    OutOfOrder {
        /// The key of the batch, as text.
        given: String,
        /// The feed's.
        last: String,
    },
    /// What a subscription does not do. Its own words say what to do about it.
    #[error("{0}")]
    Subscription(crate::subscription::Refusal),
    /// The batch breaks a rule of the frame.
    #[error("batch refused: {0}")]
    Batch(String),
    /// An argument makes no sense.
    #[error("{0}")]
    Invalid(String),
    /// The configuration cannot work.
    #[error("configuration: {0}")]
    Config(String),
    /// No room for more. Retry later: appends resume by themselves when space returns.
    #[error("storage full: {detail}")]
    StorageFull {
        /// What ran out.
        detail: String,
    },
    /// The log stopped after a failed write or sync; reopen to recover.
    #[error("log {log} is poisoned: {reason}")]
    Poisoned {
        /// Which log.
        log: u64,
        /// What happened.
        reason: String,
    },
    /// The engine is closing or closed.
    #[error("engine is closed")]
    Closed,
    /// Bytes on disk or in the bucket are not what was written.
    #[error("corrupt: {file} at offset {offset}: {detail}")]
    Corrupt {
        /// File or object.
        file: String,
        /// Byte offset of the damage.
        offset: u64,
        /// What is wrong.
        detail: String,
    },
    /// Written by a newer program.
    #[error("{file}: {detail}")]
    NewerFormat {
        /// File or object.
        file: String,
        /// Both version numbers.
        detail: String,
    },
    /// The bucket failed; the engine keeps trying where it can.
    #[error("bucket: {0}")]
    Bucket(String),
    /// The stream is sealed and durable, but its commit is not in the bucket yet. It is published as soon
    /// as the trouble ends, or after the next start; another seal is not needed.
    #[error(
        "{}: commit {commit} is sealed and durable, but not published yet: {trouble}; it is published as \
         soon as that ends, or after the next start",
        if *.full { "storage full" } else { "bucket" }
    )]
    Unpublished {
        /// Its number.
        commit: CommitNumber,
        /// There is no room for it.
        full: bool,
        /// What keeps it.
        trouble: String,
    },
    /// A file operation failed.
    #[error("{op} {path}: {detail}")]
    Io {
        /// What was tried.
        op: &'static str,
        /// On which file.
        path: String,
        /// The system's error.
        detail: String,
    },
    /// The place cannot run the engine, or another process holds the directory.
    #[error("{0}")]
    Unusable(String),
}

fn show(sequence: Option<u64>) -> String {
    sequence.map_or_else(|| "empty".to_owned(), |s| s.to_string())
}

impl Error {
    /// Whether the same call may succeed later without anything else being done.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        matches!(
            self,
            Self::StorageFull { .. } | Self::Bucket(_) | Self::Unpublished { .. }
        )
    }

    /// Whether a write that answered this may have taken effect.
    #[must_use]
    pub fn effects(&self) -> Effects {
        match self {
            Self::Poisoned { .. }
            | Self::Closed
            | Self::Io { .. }
            | Self::Bucket(_)
            | Self::Unpublished { .. } => Effects::Unknown,
            _ => Effects::None,
        }
    }

    /// What went wrong, to be told again within [`Error::StorageFull`]: said once that the storage is full.
    pub(crate) fn reason(&self) -> String {
        match self {
            Self::StorageFull { detail } => detail.clone(),
            other => other.to_string(),
        }
    }

    pub(crate) fn io(op: &'static str, path: &std::path::Path, error: &std::io::Error) -> Self {
        let text = || format!("{op} {}: {error}", path.display());
        if matches!(
            error.kind(),
            ErrorKind::StorageFull | ErrorKind::QuotaExceeded
        ) {
            return Self::StorageFull { detail: text() };
        }
        match error.raw_os_error() {
            // Of a write or a sync nobody knows what it did before.
            Some(libc::EACCES | libc::EPERM | libc::EROFS | libc::ENOTDIR | libc::ELOOP)
                if matches!(op, "open" | "create" | "list" | "lock" | "read") =>
            {
                return Self::Unusable(text());
            }
            _ => {}
        }
        Self::Io {
            op,
            path: path.display().to_string(),
            detail: error.to_string(),
        }
    }

    pub(crate) fn corrupt(file: impl ToString, offset: u64, detail: impl ToString) -> Self {
        Self::Corrupt {
            file: file.to_string(),
            offset,
            detail: detail.to_string(),
        }
    }

    /// Damage or a newer format, told apart by the decoder's own word.
    pub(crate) fn decode(
        file: impl ToString,
        offset: u64,
        error: crate::codec::DecodeError,
    ) -> Self {
        match error {
            crate::codec::DecodeError::Version { .. } => Self::NewerFormat {
                file: file.to_string(),
                detail: error.to_string(),
            },
            _ => Self::corrupt(file, offset, error),
        }
    }
}

impl From<crate::subscription::Refusal> for Error {
    fn from(refusal: crate::subscription::Refusal) -> Self {
        Self::Subscription(refusal)
    }
}

impl From<crate::env::BucketError> for Error {
    fn from(error: crate::env::BucketError) -> Self {
        match &error {
            crate::env::BucketError::Full { .. } => Self::StorageFull {
                detail: error.to_string(),
            },
            crate::env::BucketError::Denied { .. } => Self::Unusable(error.to_string()),
            _ => Self::Bucket(error.to_string()),
        }
    }
}

/// Feed id in the form messages use.
pub(crate) fn feed_label(id: FeedId) -> String {
    format!("feed id {id}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn full_of_another_full_error_says_so_once() {
        let inner = Error::StorageFull {
            detail: "write a.seg: no space left on device".to_owned(),
        };
        let outer = Error::StorageFull {
            detail: inner.reason(),
        };
        assert_eq!(outer, inner);
        assert_eq!(
            outer.to_string(),
            "storage full: write a.seg: no space left on device"
        );
    }
}
