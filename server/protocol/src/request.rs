//! Request: what a client asks for. Spec: server/spec/native-protocol.md §5.
//!
//! **Invariants**
//! - Every request but `Credit`, `Cancel` and `Goodbye` is answered: once, or (`Follow`) until an
//!   answer without [`MORE`](crate::MORE).
//!
//! **Not here**: what becomes of it (the server).

use crate::header::MessageHeader;
use crate::hello::Hello;
use crate::wire::{Input, Rest, Wire, WireError, messages, wire_code, wire_struct};

/// Where a read begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReadFrom {
    /// At this sequence, or the next one there is.
    Sequence(u64),
    /// At the first record whose effective timestamp (milliseconds) is at or after this.
    Timestamp(u64),
    /// At the first record of this commit.
    Commit(u64),
    /// This many records before the durable tail.
    Tail(u64),
}

impl<'a> Wire<'a> for ReadFrom {
    fn put(&self, out: &mut Vec<u8>) {
        let (kind, value) = match *self {
            Self::Sequence(value) => (0_u8, value),
            Self::Timestamp(value) => (1, value),
            Self::Commit(value) => (2, value),
            Self::Tail(value) => (3, value),
        };
        kind.put(out);
        value.put(out);
    }
    fn take(input: &mut Input<'a>) -> Result<Self, WireError> {
        let kind = u8::take(input)?;
        let value = u64::take(input)?;
        match kind {
            0 => Ok(Self::Sequence(value)),
            1 => Ok(Self::Timestamp(value)),
            2 => Ok(Self::Commit(value)),
            3 => Ok(Self::Tail(value)),
            kind => Err(WireError::Invalid {
                field: "ReadFrom",
                value: kind.into(),
            }),
        }
    }
}

wire_struct! {
    /// What is to be read.
    pub struct ReadScope<'a> {
        /// Name of the feed.
        pub feed: &'a str,
        /// Only the feed with this id: one of that name that was made later is not found.
        pub feed_id: Option<u64>,
        /// Only this stream.
        pub stream: Option<u64>,
        /// Where to begin.
        pub from: ReadFrom,
        /// Stop before this sequence.
        pub end: u64,
        /// Bytes of frames after which no further batch is added to an answer.
        pub bytes_max: u32,
        /// Answer every record's fingerprint, too.
        pub fingerprints: bool,
    }
}

wire_code! {
    /// How an unsealed stream is settled.
    pub enum Settling: u8 {
        /// As a commit of what is in it.
        Seal = 1,
        /// As a gap.
        Discard = 2,
    }
}

messages! {
    /// A request.
    pub enum Request<'a> {
        /// The first message of a connection.
        0x01 Hello {
            /// Who calls.
            hello: Hello<'a>,
        },
        /// Answered by a pong.
        0x02 Ping {},
        /// Nothing more will be asked; the server answers what it has and closes.
        0x03 Goodbye {},
        /// The answers of the follow with this message's request id may take so many bytes of frames more.
        0x04 Credit {
            /// Added to what is left.
            bytes: u64,
        },
        /// Ends the follow with this message's request id; its last answer says ended.
        0x05 Cancel {},
        /// Makes a feed; the same again is success.
        0x10 CreateFeed {
            /// Its name.
            feed: &'a str,
            /// Records may carry keys.
            keys: bool,
            /// Batches without a fencing token are refused.
            exclusive: bool,
        },
        /// Deletes a feed and all that is in it.
        0x11 DeleteFeed {
            /// Its name.
            feed: &'a str,
        },
        /// What a feed is.
        0x12 DescribeFeed {
            /// Its name.
            feed: &'a str,
        },
        /// Feeds in name order.
        0x13 ListFeeds {
            /// Names begin with this.
            prefix: &'a str,
            /// And come after this.
            after: &'a str,
            /// At most so many.
            limit: u32,
        },
        /// Gives a feed a number on this connection, for appends without a lease.
        0x20 Bind {
            /// Its name.
            feed: &'a str,
        },
        /// Takes the writer lease and opens a new stream; binds the feed.
        0x21 Open {
            /// Its name.
            feed: &'a str,
        },
        /// Takes the writer lease over the newest unsealed stream; binds the feed.
        0x22 Resume {
            /// Its name.
            feed: &'a str,
        },
        /// Appends a batch to a bound feed.
        0x23 Append {
            /// The feed's number on this connection.
            binding: u32,
            /// The batch's frame (`sealog-frame`).
            frame: Rest<'a>,
        },
        /// Seals the open stream, and waits for its commit.
        0x24 Seal {
            /// Name of the feed.
            feed: &'a str,
            /// The writer's epoch; absent: a cooperative caller.
            token: Option<u64>,
            /// Kept in the commit.
            message: &'a str,
        },
        /// Settles an unsealed stream as it stands.
        0x25 Settle {
            /// Name of the feed.
            feed: &'a str,
            /// Which; absent: the oldest.
            stream: Option<u64>,
            /// How.
            settling: Settling,
            /// Kept in the commit.
            message: &'a str,
        },
        /// Waits until everything sealed of a feed is published.
        0x26 Repair {
            /// Name of the feed.
            feed: &'a str,
        },
        /// Judges a batch as an append under a lease would, and changes nothing.
        0x27 Foresee {
            /// Name of the feed.
            feed: &'a str,
            /// A seal would follow with this message.
            message: Option<&'a str>,
            /// The batch's frame.
            frame: Rest<'a>,
        },
        /// Streams, oldest first.
        0x30 ListStreams {
            /// Name of the feed.
            feed: &'a str,
            /// Ids above this.
            after: u64,
            /// At most so many.
            limit: u32,
        },
        /// Published commits.
        0x31 ListCommits {
            /// Name of the feed.
            feed: &'a str,
            /// From this number on.
            from: u64,
            /// At most so many.
            limit: u32,
        },
        /// Producers, in id order.
        0x32 ListProducers {
            /// Name of the feed.
            feed: &'a str,
            /// Ids above this.
            after: Option<&'a [u8]>,
            /// At most so many.
            limit: u32,
        },
        /// Where a producer stands.
        0x33 DescribeProducer {
            /// Name of the feed.
            feed: &'a str,
            /// Its id.
            id: &'a [u8],
        },
        /// One answer's worth of records.
        0x40 Read {
            /// What.
            scope: ReadScope<'a>,
            /// Wait this long, in milliseconds, for records when there are none yet.
            wait_ms: u32,
        },
        /// Records as they come, until the scope ends or [`Request::Cancel`].
        0x41 Follow {
            /// What.
            scope: ReadScope<'a>,
            /// Bytes of frames that may be sent before more [`Request::Credit`].
            credit_bytes: u64,
        },
        /// Counters of every log.
        0x50 Stats {},
        /// What every log holds, what waits for the bucket, and how that is.
        0x51 Usage {},
    }
}

impl Request<'_> {
    /// Appends the head of a [`Request::Append`] whose frame, `frame_bytes` long, is sent right after it
    /// from where it is: big batches are not copied.
    ///
    /// # Panics
    /// When the message would be longer than 4 GiB.
    pub fn encode_append_head(binding: u32, frame_bytes: usize, request: u64, out: &mut Vec<u8>) {
        const APPEND: u8 = 0x23;
        let start = out.len();
        MessageHeader::reserve(out);
        binding.put(out);
        let header = MessageHeader {
            message_bytes: out.len() - start + frame_bytes,
            kind: APPEND,
            flags: 0,
            request,
        };
        out[start..start + crate::HEADER_BYTES].copy_from_slice(&header.encode());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn append_head_and_frame_are_the_whole_message() {
        let frame = Rest(b"frame");
        let mut whole = Vec::new();
        Request::Append { binding: 7, frame }.encode(9, 0, &mut whole);
        let mut parts = Vec::new();
        Request::encode_append_head(7, 5, 9, &mut parts);
        parts.extend_from_slice(b"frame");
        assert_eq!(parts, whole);
    }
}
