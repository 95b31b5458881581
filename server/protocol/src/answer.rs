//! Answer: what a server says to a request. Spec: server/spec/native-protocol.md §5.
//!
//! **Invariants**
//! - Whatever was asked, a refusal is an answer to it.
//!
//! **Not here**: when it is sent (the server: never before what it says is durable).

use crate::header::MessageHeader;
use crate::hello::Welcome;
use crate::info::{BucketUsage, CommitInfo, FeedInfo, LogInfo, LogUsage, ProducerInfo, StreamInfo};
use crate::refusal::Refusal;
use crate::wire::{Rest, Wire, messages, wire_struct};

wire_struct! {
    /// Whole frames, of which the records in `first..next` were asked for.
    pub struct Records<'a> {
        /// First sequence asked for: records below it in the first frame are not part of the answer.
        pub first: u64,
        /// Where to go on: one past the last record, or past a gap.
        pub next: u64,
        /// Sequence after the last record accepted when the answer was made.
        pub tail: u64,
        /// Nothing more will ever come in this scope.
        pub ended: bool,
        /// If asked for, the fingerprint of every record in `frames`, in order.
        pub fingerprints: Vec<[u8; 32]>,
        /// Batch frames, back to back.
        pub frames: Rest<'a>,
    }
}

messages! {
    /// An answer.
    pub enum Answer<'a> {
        /// To a hello.
        0x81 Welcome {
            /// Who answers, and its limits.
            welcome: Welcome,
        },
        /// To a ping.
        0x82 Pong {},
        /// The server is going: nothing that was not answered yet will be. Belongs to the connection.
        0x83 Goodbye {
            /// Why, for people.
            reason: &'a str,
        },
        /// The server sends a heartbeat of its own; no answer is expected. Belongs to the connection.
        0x84 Alive {},
        /// A heartbeat of a server that reads nothing now, for want of memory or credit: a ping is answered, and
        /// what is on its way is taken, when it reads on.
        0x85 Busy {},
        /// It was not done.
        0x8f Refused {
            /// Why.
            refusal: Refusal<'a>,
        },
        /// It is done.
        0x90 Done {},
        /// To a creation.
        0x91 Created {
            /// The feed's id.
            feed: u64,
        },
        /// To a question after a feed.
        0x92 Feed {
            /// What it is.
            feed: FeedInfo,
        },
        /// A page of feeds.
        0x93 Feeds {
            /// In name order.
            feeds: Vec<FeedInfo>,
        },
        /// A feed has a number on this connection.
        0xa0 Bound {
            /// The number.
            binding: u32,
            /// The feed's id.
            feed: u64,
            /// Sequence the next record gets.
            next_sequence: u64,
        },
        /// To open and resume: the right to write.
        0xa1 Leased {
            /// The feed's number on this connection.
            binding: u32,
            /// The feed's id.
            feed: u64,
            /// The writer epoch: the fencing token of the batches to come.
            epoch: u64,
            /// The stream that is open.
            stream: u64,
            /// Sequence the next record gets.
            next_sequence: u64,
        },
        /// The batch is durable.
        0xa3 Appended {
            /// Sequence of the first record.
            first: u64,
            /// Sequence of the last record.
            last: u64,
            /// Records; 0 for a duplicate whose own range is not remembered any more.
            records: u32,
            /// It was in the log already.
            duplicate: bool,
            /// Highest producer sequence accepted.
            producer_sequence: Option<u64>,
        },
        /// To seal and settle.
        0xa4 Committed {
            /// What was published.
            commit: CommitInfo,
        },
        /// To repair.
        0xa6 Repaired {
            /// Commits that were published meanwhile.
            commits: u64,
        },
        /// The batch would be taken.
        0xa7 Foreseen {
            /// As a duplicate.
            duplicate: bool,
        },
        /// A page of streams.
        0xb0 Streams {
            /// Oldest first.
            streams: Vec<StreamInfo>,
        },
        /// A page of commits.
        0xb1 Commits {
            /// In order.
            commits: Vec<CommitInfo>,
        },
        /// A page of producers.
        0xb2 Producers {
            /// In id order.
            producers: Vec<ProducerInfo>,
        },
        /// Where a producer stands.
        0xb3 Producer {
            /// Absent: never seen, or forgotten.
            producer: Option<ProducerInfo>,
        },
        /// To read and follow.
        0xc0 Records {
            /// What there was.
            records: Records<'a>,
        },
        /// Counters.
        0xd0 Stats {
            /// One entry per log.
            logs: Vec<LogInfo>,
        },
        /// What is held, and what waits.
        0xd1 Usage {
            /// One entry per log.
            logs: Vec<LogUsage>,
            /// The bucket.
            bucket: BucketUsage,
        },
    }
}

impl Answer<'_> {
    /// Appends the head of a [`Answer::Records`] whose frames, `frames_bytes` of them, are sent right
    /// after it from where they are: big answers are not copied.
    ///
    /// # Panics
    /// When the message would be longer than 4 GiB.
    pub fn encode_records_head(
        records: &Records<'_>,
        frames_bytes: usize,
        (request, flags): (u64, u8),
        out: &mut Vec<u8>,
    ) {
        const RECORDS: u8 = 0xc0;
        debug_assert!(records.frames.0.is_empty(), "frames follow by themselves");
        let start = out.len();
        MessageHeader::reserve(out);
        records.put(out);
        let header = MessageHeader {
            message_bytes: out.len() - start + frames_bytes,
            kind: RECORDS,
            flags,
            request,
        };
        out[start..start + crate::HEADER_BYTES].copy_from_slice(&header.encode());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_head_and_frames_are_the_whole_message() {
        let records = |frames| Records {
            first: 1,
            next: 3,
            tail: 9,
            ended: false,
            fingerprints: vec![[7; 32]],
            frames: Rest(frames),
        };
        let mut whole = Vec::new();
        let answer = Answer::Records {
            records: records(b"frames"),
        };
        answer.encode(5, crate::MORE, &mut whole);
        let mut parts = Vec::new();
        Answer::encode_records_head(&records(b""), 6, (5, crate::MORE), &mut parts);
        parts.extend_from_slice(b"frames");
        assert_eq!(parts, whole);
    }
}
