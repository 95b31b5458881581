//! Subject: what the workload asks of a durable stream store, and what it may answer.
//!
//! **Invariants**
//! - Every answer is one of three: acknowledged, refused without effects, unknown.
//!
//! **Not here**: the engine; `engine_subject` binds it, `toy` is a small stand-in.

use crate::history::is_as_sent;
use crate::sim::SimEnv;
use sealog_frame::{Batch, RecordView};
use std::future::Future;

/// What a call came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome<T> {
    /// It took effect and must last.
    Acked(T),
    /// It had no effect and never will.
    Refused(Refusal),
    /// It may have taken effect, or may yet be found to have.
    Unknown(String),
}

impl<T> Outcome<T> {
    /// The same outcome, its value changed.
    pub fn map<U>(self, f: impl FnOnce(T) -> U) -> Outcome<U> {
        match self {
            Outcome::Acked(value) => Outcome::Acked(f(value)),
            Outcome::Refused(refusal) => Outcome::Refused(refusal),
            Outcome::Unknown(why) => Outcome::Unknown(why),
        }
    }
}

/// Why a call was refused: what the oracle tells apart.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal {
    /// A newer writer epoch is in force.
    Fenced,
    /// Producer sequences are missing in between: for an orderly producer this is data loss.
    ProducerGap,
    /// The producer's epoch is stale: never so for an orderly producer.
    ProducerFenced,
    /// There is no such feed.
    NotFound,
    /// No room now.
    Full,
    /// Anything else, in words.
    Other(String),
}

/// Why a store did not start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StartError {
    /// It found damage and refuses; the text names the place.
    Corrupt(String),
    /// The environment failed; another try may work.
    Failed(String),
}

/// First and last sequence of an acknowledged batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Range {
    /// First sequence.
    pub first: u64,
    /// Last sequence.
    pub last: u64,
}

/// A stream opened, or taken up again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Opened {
    /// The stream.
    pub stream: u64,
    /// The epoch that its writer holds.
    pub epoch: u64,
}

/// One record as read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seen {
    /// Its sequence.
    pub sequence: u64,
    /// Its payload.
    pub payload: Vec<u8>,
    /// Key, version, tombstone mark and headers are those that were sent with this payload.
    pub as_sent: bool,
}

impl Seen {
    /// The record as a reader got it.
    #[must_use]
    pub fn of(record: &RecordView<'_>) -> Self {
        Self {
            sequence: record.sequence,
            payload: record.payload.to_vec(),
            as_sent: is_as_sent(record),
        }
    }
}

/// One answer to a reader: the records in `first..next`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Part {
    /// Records, in order.
    pub records: Vec<Seen>,
    /// First sequence that was asked for.
    pub first: u64,
    /// Where to go on.
    pub next: u64,
    /// Sequence after the last record accepted.
    pub tail: u64,
}

/// Where a producer stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProducerView {
    /// Producer epoch.
    pub epoch: u64,
    /// Highest producer sequence accepted.
    pub sequence: u64,
}

/// A published commit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommitView {
    /// Its number.
    pub number: u64,
    /// Digest of its own bytes.
    pub digest: [u8; 32],
    /// Digest of the commit before it; zero for the first.
    pub parent: [u8; 32],
    /// Whether its range was discarded.
    pub discarded: bool,
    /// First sequence.
    pub first: u64,
    /// One past the last sequence.
    pub end: u64,
    /// Records in it.
    pub records: u64,
}

/// A durable stream store in a simulated process.
pub trait Subject: Clone + 'static {
    /// Starts on whatever the disk and the bucket hold.
    fn start(env: SimEnv) -> impl Future<Output = Result<Self, StartError>>;
    /// Makes the feed, or finds it; its id.
    fn create_feed(&self, feed: &str) -> impl Future<Output = Outcome<u64>>;
    /// Deletes the feed: a later one of the name has another id and none of its data.
    fn delete_feed(&self, feed: &str) -> impl Future<Output = Outcome<()>>;
    /// Appends one batch.
    fn append(&self, feed: &str, batch: Batch) -> impl Future<Output = Outcome<Range>>;
    /// Opens the next stream under a new epoch.
    fn open(&self, feed: &str) -> impl Future<Output = Outcome<Opened>>;
    /// Takes up the newest unsealed stream under a new epoch.
    fn resume(&self, feed: &str) -> impl Future<Output = Outcome<Opened>>;
    /// Seals the newest stream, or the oldest abandoned one as it stands.
    fn seal(&self, feed: &str) -> impl Future<Output = Outcome<CommitView>>;
    /// Discards the oldest unsealed stream.
    fn discard(&self, feed: &str) -> impl Future<Output = Outcome<CommitView>>;
    /// Every record of the feed.
    fn read_all(&self, feed: &str) -> impl Future<Output = Result<Vec<Seen>, String>>;
    /// Every published commit, in order.
    fn commits(&self, feed: &str) -> impl Future<Output = Result<Vec<CommitView>, String>>;
    /// Where the producer `id` stands; `None` when unknown.
    fn producer(
        &self,
        feed: &str,
        id: &str,
    ) -> impl Future<Output = Result<Option<ProducerView>, String>>;
    /// What keys of the feed's commit objects in the bucket begin with.
    fn commits_prefix(feed: &str) -> String;
    /// Completes when nothing is left to publish.
    fn settle(&self) -> impl Future<Output = ()>;
    /// Checks everything that is kept, while nothing serves it; the damage in words if there is any.
    fn verify(env: SimEnv) -> impl Future<Output = Result<(), String>>;
    /// Closes in good order.
    fn close(&self) -> impl Future<Output = ()>;
}
