//! Refusal: the answer that something was not done. Spec: server/spec/native-protocol.md §7.
//!
//! **Invariants**
//! - A code says what the caller must do; whether anything may have happened stands beside it.
//! - Numbers and names travel as values; the text is for people.
//!
//! **Not here**: which engine error becomes which code (the server has that table).

use crate::wire::{wire_code, wire_struct};

wire_code! {
    /// What is wrong. Numbers are never reused.
    pub enum ErrorCode: u16 {
        /// No such feed: `subject`.
        FeedNotFound = 1,
        /// The feed `subject` exists with other options.
        FeedExists = 2,
        /// The feed's name breaks the rules.
        FeedName = 3,
        /// `limit` feeds exist.
        FeedsFull = 4,
        /// Another writer took over: `value` was the epoch sent, `limit` the one in force.
        Fenced = 5,
        /// The feed `subject` takes no batch without a fencing token.
        TokenRequired = 6,
        /// `value` was the last sequence expected, `limit` the last in fact; absent: none, the feed is empty.
        SequenceMismatch = 7,
        /// `value` was the producer epoch sent, `limit` the one in force.
        ProducerFenced = 8,
        /// A new producer epoch must begin at sequence 0: `value` was the epoch, `limit` the sequence.
        ProducerEpochStart = 9,
        /// `value` was the producer sequence sent, `limit` the one expected.
        ProducerGap = 10,
        /// The feed remembers `limit` producers, none idle.
        ProducersFull = 11,
        /// The feed `subject` allows no keys.
        KeysNotAllowed = 12,
        /// The feed `subject` has no unsealed stream.
        NoOpenStream = 13,
        /// The feed `subject` is closed.
        FeedClosed = 21,
        /// The feed `subject` was deleted, and is kept for its forks.
        FeedGone = 24,
        /// Forks go on from what the stream `value` of the feed `subject` holds.
        Pinned = 25,
        /// The feed `subject` has no stream `value`.
        StreamNotFound = 14,
        /// The stream `value` of the feed `subject` is settled.
        StreamSettled = 15,
        /// The stream `value` of the feed `subject` was abandoned: settle it first.
        AbandonedStream = 16,
        /// The feed `subject` has no commit `value`.
        CommitNotFound = 17,
        /// `value` of what `subject` names is over `limit`.
        OverLimit = 18,
        /// The batch breaks a rule of the frame.
        Batch = 19,
        /// An argument makes no sense.
        Invalid = 20,
        /// No room; retry later.
        StorageFull = 32,
        /// The log stopped after a failed write; the server must be restarted.
        Poisoned = 33,
        /// The server is on its way down: retry on a new connection.
        Closed = 34,
        /// Damage in the store: `subject` is the file, `value` the offset.
        Corrupt = 35,
        /// Written by a newer program: `subject` is the file.
        NewerFormat = 36,
        /// The bucket failed; retry later.
        Bucket = 37,
        /// A file operation failed.
        Io = 38,
        /// The server's configuration or machine does not serve this.
        Unusable = 39,
        /// The token is wrong or missing.
        Unauthorized = 64,
        /// No version in common: `value` is the server's.
        Version = 65,
        /// The bytes are no message; the connection is closed.
        BadMessage = 66,
        /// A message of `value` bytes, `limit` allowed; the connection is closed.
        MessageTooLarge = 67,
        /// No feed was bound to the number `value` on this connection.
        NotBound = 68,
        /// No room for one more connection, or subscription: `limit`.
        Overloaded = 69,
        /// Nothing was heard for too long; the connection is closed.
        TimedOut = 70,
    }
}

wire_code! {
    /// Whether what was asked for may have happened.
    pub enum Effects: u8 {
        /// Nothing changed.
        None = 0,
        /// Nobody knows: read back, or retry through an idempotent producer.
        Unknown = 1,
        /// It happened, though it was answered with an error.
        Applied = 2,
    }
}

wire_struct! {
    /// Why a request was not done.
    pub struct Refusal<'a> {
        /// What is wrong.
        pub code: ErrorCode,
        /// Whether it may have happened.
        pub effects: Effects,
        /// The same request may succeed later, with nothing else done.
        pub retryable: bool,
        /// Wait at least this long before a retry.
        pub retry_after_ms: u32,
        /// A number: see the code.
        pub value: Option<u64>,
        /// Another number: see the code.
        pub limit: Option<u64>,
        /// A name: see the code.
        pub subject: &'a str,
        /// In words, for people.
        pub text: &'a str,
    }
}
