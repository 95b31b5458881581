//! Append: from a batch at the shard's door to its place in the log: judge, then write.
//!
//! **Invariants**
//! - Judging is pure: the same feed and batch give the same decision.
//! - No answer leaves before the state it rests on is durable; a duplicate waits for its original.
//!
//! **Not here**: groups and syncs (`wal`), the queue in front of it (`shard`).

mod admit;

pub(crate) use admit::foresee_first_after;
pub use admit::{Decision, foresee_first, judge};
pub(crate) use admit::{check_token, foresee, is_duplicate};

use crate::ids::{Epoch, FeedId, StreamId};

/// What an acknowledged append came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AppendResult {
    /// Sequence of the first record.
    pub first: u64,
    /// Sequence of the last record.
    pub last: u64,
    /// Number of records.
    pub record_count: u64,
    /// The batch was in the log already: a producer sent it before. `first..=last` is the original's
    /// range while it is remembered; else both are the last sequence of the producer's newest batch
    /// and `record_count` is 0.
    pub duplicate: bool,
    /// For a producer's batch: highest producer sequence accepted.
    pub producer_sequence: Option<u64>,
}

/// What `open` and `resume` hand out: the right to write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lease {
    /// The feed: not another one of its name.
    pub feed: FeedId,
    /// The writer epoch: the fencing token of the batches to come.
    pub epoch: Epoch,
    /// The stream that is open.
    pub stream: StreamId,
    /// Sequence that the next record gets.
    pub next_sequence: u64,
}
