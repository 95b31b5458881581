//! Info: what the server tells about feeds, streams, commits, producers and logs.
//!
//! **Invariants**
//! - The same facts as the engine's types of these names; times in milliseconds since the Unix epoch.
//!
//! **Not here**: records.

use crate::wire::{Input, Wire, WireError, put_list, take_list, wire_code, wire_struct};

macro_rules! wire_list {
    ($($type:ty),*) => {$(
        impl<'a> Wire<'a> for Vec<$type> {
            fn put(&self, out: &mut Vec<u8>) {
                put_list(self, out);
            }
            fn take(input: &mut Input<'a>) -> Result<Self, WireError> {
                take_list(input)
            }
        }
    )*};
}
wire_list!(
    FeedInfo,
    StreamInfo,
    CommitInfo,
    ProducerInfo,
    LogInfo,
    LogUsage,
    [u8; 32]
);

wire_struct! {
    /// A feed.
    pub struct FeedInfo {
        /// Its name.
        pub name: String,
        /// Its id, never used again.
        pub id: u64,
        /// Records may carry keys.
        pub keys: bool,
        /// Batches without a fencing token are refused.
        pub exclusive: bool,
        /// When it was made.
        pub created_ms: u64,
        /// Writer epoch in force; 0 before the first open.
        pub epoch: u64,
        /// Sequence the next record gets.
        pub next_sequence: u64,
        /// Commits published.
        pub commits: u64,
        /// The open stream.
        pub open_stream: Option<u64>,
        /// Unpublished streams.
        pub unpublished: u64,
        /// Producers remembered.
        pub producers: u64,
    }
}

wire_code! {
    /// What has become of a stream.
    pub enum StreamPhase: u8 {
        /// It takes batches.
        Open = 1,
        /// A later stream was opened; it waits to be settled.
        Abandoned = 2,
        /// Its commit is on its way.
        Sealed = 3,
        /// Its commit is published.
        Published = 4,
        /// Its range was discarded, and the commit that says so is published.
        Discarded = 5,
    }
}

wire_struct! {
    /// A stream.
    pub struct StreamInfo {
        /// Its id.
        pub id: u64,
        /// What has become of it.
        pub phase: StreamPhase,
        /// Its first sequence.
        pub first: u64,
        /// One past its last sequence.
        pub end: u64,
        /// Records in it.
        pub records: u64,
        /// Bytes of their payloads.
        pub payload_bytes: u64,
        /// One past the last sequence that is in packs.
        pub packed_end: u64,
        /// Number of its commit, if it is settled.
        pub commit: Option<u64>,
    }
}

wire_struct! {
    /// A commit.
    pub struct CommitInfo {
        /// Position in the history.
        pub number: u64,
        /// It records a discarded range.
        pub discarded: bool,
        /// Id of the feed.
        pub feed: u64,
        /// The stream it is about.
        pub stream: u64,
        /// Writer epoch under which it was settled.
        pub epoch: u64,
        /// SHA-256 of the previous commit object; zero for number 0.
        pub parent: [u8; 32],
        /// First sequence of the range.
        pub first: u64,
        /// End of the range, exclusive.
        pub end: u64,
        /// Records in the range.
        pub records: u64,
        /// Sum of their payloads in bytes.
        pub payload_bytes: u64,
        /// The writer's words.
        pub message: String,
        /// When it was settled.
        pub time_ms: u64,
        /// SHA-256 of the manifest; zero for a discarded stream.
        pub manifest: [u8; 32],
    }
}

wire_struct! {
    /// An idempotent producer.
    pub struct ProducerInfo {
        /// Its id.
        pub id: Vec<u8>,
        /// Its epoch.
        pub epoch: u64,
        /// Its highest sequence.
        pub last_sequence: u64,
        /// First sequence of its newest batch.
        pub first: u64,
        /// Last sequence of its newest batch.
        pub last: u64,
        /// Arrival of its newest batch.
        pub last_arrival_ms: u64,
    }
}

wire_struct! {
    /// A log and how it does.
    pub struct LogInfo {
        /// Groups made durable since the start.
        pub groups: u64,
        /// Bytes written for them.
        pub group_bytes: u64,
        /// Why it takes nothing any more.
        pub poisoned: Option<String>,
    }
}

wire_struct! {
    /// What keeps something from working.
    pub struct Trouble {
        /// What went wrong last.
        pub text: String,
        /// For how long nothing has gone well, in seconds.
        pub seconds: u64,
    }
}

wire_struct! {
    /// What a log holds, and what of it waits for the bucket.
    pub struct LogUsage {
        /// Which log.
        pub log: u64,
        /// Bytes of the segments in use.
        pub disk_bytes: u64,
        /// Bound on them: beyond it appends wait, then are refused as storage full.
        pub disk_bytes_max: u64,
        /// Bytes of log that are not in packs yet, or are kept because of what lies before.
        pub unpacked_bytes: u64,
        /// Commits that are durable and not published.
        pub unpublished_commits: u64,
        /// Packing and publishing have been tried since the start.
        pub tried: bool,
        /// What keeps them from working.
        pub trouble: Option<Trouble>,
    }
}

wire_struct! {
    /// How the bucket is.
    pub struct BucketUsage {
        /// It was asked for something since the start, and has answered or failed.
        pub tried: bool,
        /// What went wrong, if nothing has gone well since.
        pub trouble: Option<Trouble>,
        /// Requests that had to be sent again.
        pub retries: u64,
        /// Uploads in parts that were given up and are not cleaned up yet.
        pub leftover_uploads: u64,
        /// Bytes that the local cache of packs holds.
        pub cache_bytes: u64,
    }
}
