//! Common: one message of every kind, put together from bytes that decide.
//!
//! **Invariants**
//! - The same bytes make the same message; every kind and every variant of a field can come of some.
//!
//! **Not here**: tests.
#![allow(dead_code, reason = "each test file uses a part of it")]

use sealog_protocol::{
    Answer, BucketUsage, CommitInfo, Effects, ErrorCode, Features, FeedInfo, Hello, LogInfo,
    LogUsage, ProducerInfo, ReadFrom, ReadScope, Records, Refusal, Request, Rest, Settling,
    ShardAddress, StreamInfo, StreamPhase, Trouble, Welcome,
};

/// Takes decisions off bytes; zero and empty when they are used up.
pub struct Maker<'a>(pub &'a [u8]);

impl<'a> Maker<'a> {
    fn take(&mut self, wanted: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(wanted.min(self.0.len()));
        self.0 = rest;
        taken
    }

    fn u8(&mut self) -> u8 {
        self.take(1).first().copied().unwrap_or(0)
    }

    fn u64(&mut self) -> u64 {
        let mut bytes = [0; 8];
        let taken = self.take(8);
        bytes[..taken.len()].copy_from_slice(taken);
        u64::from_le_bytes(bytes)
    }

    fn u32(&mut self) -> u32 {
        u32::try_from(self.u64() & u64::from(u32::MAX)).unwrap_or(0)
    }

    fn u16(&mut self) -> u16 {
        u16::try_from(self.u64() & u64::from(u16::MAX)).unwrap_or(0)
    }

    fn bool(&mut self) -> bool {
        self.u8() & 1 == 1
    }

    fn bytes(&mut self) -> &'a [u8] {
        let wanted = usize::from(self.u8());
        self.take(wanted)
    }

    fn digest(&mut self) -> [u8; 32] {
        let mut digest = [0; 32];
        let taken = self.take(32);
        digest[..taken.len()].copy_from_slice(taken);
        digest
    }

    /// The longest text at the front of the next bytes.
    fn text(&mut self) -> &'a str {
        let bytes = self.bytes();
        match std::str::from_utf8(bytes) {
            Ok(text) => text,
            Err(error) => std::str::from_utf8(&bytes[..error.valid_up_to()]).unwrap_or(""),
        }
    }

    fn option<T>(&mut self, make: impl FnOnce(&mut Self) -> T) -> Option<T> {
        self.bool().then(|| make(self))
    }

    fn list<T>(&mut self, mut make: impl FnMut(&mut Self) -> T) -> Vec<T> {
        let count = self.u8() % 4;
        (0..count).map(|_| make(self)).collect()
    }

    fn pick<T: Copy>(&mut self, all: &[T]) -> T {
        all[usize::from(self.u8()) % all.len()]
    }

    fn scope(&mut self) -> ReadScope<'a> {
        ReadScope {
            feed: self.text(),
            feed_id: self.option(Self::u64),
            stream: self.option(Self::u64),
            from: {
                let value = self.u64();
                let all = [
                    ReadFrom::Sequence(value),
                    ReadFrom::Timestamp(value),
                    ReadFrom::Commit(value),
                    ReadFrom::Tail(value),
                ];
                self.pick(&all)
            },
            end: self.u64(),
            bytes_max: self.u32(),
            fingerprints: self.bool(),
        }
    }

    fn feed(&mut self) -> FeedInfo {
        FeedInfo {
            name: self.text().to_owned(),
            id: self.u64(),
            keys: self.bool(),
            exclusive: self.bool(),
            created_ms: self.u64(),
            epoch: self.u64(),
            next_sequence: self.u64(),
            commits: self.u64(),
            open_stream: self.option(Self::u64),
            unpublished: self.u64(),
            producers: self.u64(),
        }
    }

    fn stream(&mut self) -> StreamInfo {
        StreamInfo {
            id: self.u64(),
            phase: self.pick(StreamPhase::ALL),
            first: self.u64(),
            end: self.u64(),
            records: self.u64(),
            payload_bytes: self.u64(),
            packed_end: self.u64(),
            commit: self.option(Self::u64),
        }
    }

    fn commit(&mut self) -> CommitInfo {
        CommitInfo {
            number: self.u64(),
            discarded: self.bool(),
            feed: self.u64(),
            stream: self.u64(),
            epoch: self.u64(),
            parent: self.digest(),
            first: self.u64(),
            end: self.u64(),
            records: self.u64(),
            payload_bytes: self.u64(),
            message: self.text().to_owned(),
            time_ms: self.u64(),
            manifest: self.digest(),
        }
    }

    fn producer(&mut self) -> ProducerInfo {
        ProducerInfo {
            id: self.bytes().to_vec(),
            epoch: self.u64(),
            last_sequence: self.u64(),
            first: self.u64(),
            last: self.u64(),
            last_arrival_ms: self.u64(),
        }
    }

    fn log(&mut self) -> LogInfo {
        LogInfo {
            groups: self.u64(),
            group_bytes: self.u64(),
            poisoned: self.option(|maker| maker.text().to_owned()),
        }
    }

    fn trouble(&mut self) -> Trouble {
        Trouble {
            text: self.text().to_owned(),
            seconds: self.u64(),
        }
    }

    fn log_usage(&mut self) -> LogUsage {
        LogUsage {
            log: self.u64(),
            disk_bytes: self.u64(),
            disk_bytes_max: self.u64(),
            unpacked_bytes: self.u64(),
            unpublished_commits: self.u64(),
            tried: self.bool(),
            trouble: self.option(Self::trouble),
        }
    }

    fn bucket_usage(&mut self) -> BucketUsage {
        BucketUsage {
            tried: self.bool(),
            trouble: self.option(Self::trouble),
            retries: self.u64(),
            leftover_uploads: self.u64(),
            cache_bytes: self.u64(),
        }
    }

    fn welcome(&mut self) -> Welcome {
        Welcome {
            version: self.u16(),
            features: Features(self.u64()),
            server: self.u64(),
            agent: self.text().to_owned(),
            message_bytes_max: self.u32(),
            credit_bytes: self.u32(),
            producer_batches_max: self.u32(),
            batch_bytes_max: self.u32(),
            record_bytes_max: self.u32(),
            records_max: self.u32(),
            logs: self.u32(),
            shard: self.u32(),
            shards: self.list(|maker| ShardAddress { port: maker.u16() }),
        }
    }

    fn refusal(&mut self) -> Refusal<'a> {
        Refusal {
            code: self.pick(ErrorCode::ALL),
            effects: self.pick(Effects::ALL),
            retryable: self.bool(),
            retry_after_ms: self.u32(),
            value: self.option(Self::u64),
            limit: self.option(Self::u64),
            subject: self.text(),
            text: self.text(),
        }
    }

    fn hello(&mut self) -> Hello<'a> {
        Hello {
            magic: self.u32(),
            version_min: self.u16(),
            version_max: self.u16(),
            features: Features(self.u64()),
            heartbeat_ms: self.u32(),
            token: self.option(Self::bytes),
            agent: self.text(),
        }
    }

    /// A request of this kind. `None` for a kind that is not one: a new kind is to be added here.
    pub fn request(&mut self, kind: u8) -> Option<Request<'a>> {
        Some(match kind {
            0x01 => Request::Hello {
                hello: self.hello(),
            },
            0x02 => Request::Ping {},
            0x03 => Request::Goodbye {},
            0x04 => Request::Credit { bytes: self.u64() },
            0x05 => Request::Cancel {},
            0x10 => Request::CreateFeed {
                feed: self.text(),
                keys: self.bool(),
                exclusive: self.bool(),
            },
            0x11 => Request::DeleteFeed { feed: self.text() },
            0x12 => Request::DescribeFeed { feed: self.text() },
            0x13 => Request::ListFeeds {
                prefix: self.text(),
                after: self.text(),
                limit: self.u32(),
            },
            0x20 => Request::Bind { feed: self.text() },
            0x21 => Request::Open { feed: self.text() },
            0x22 => Request::Resume { feed: self.text() },
            kind => return self.later_request(kind),
        })
    }

    fn later_request(&mut self, kind: u8) -> Option<Request<'a>> {
        Some(match kind {
            0x23 => Request::Append {
                binding: self.u32(),
                frame: Rest(self.bytes()),
            },
            0x24 => Request::Seal {
                feed: self.text(),
                token: self.option(Self::u64),
                message: self.text(),
            },
            0x25 => Request::Settle {
                feed: self.text(),
                stream: self.option(Self::u64),
                settling: self.pick(Settling::ALL),
                message: self.text(),
            },
            0x26 => Request::Repair { feed: self.text() },
            0x27 => Request::Foresee {
                feed: self.text(),
                message: self.option(Self::text),
                frame: Rest(self.bytes()),
            },
            0x30 => Request::ListStreams {
                feed: self.text(),
                after: self.u64(),
                limit: self.u32(),
            },
            0x31 => Request::ListCommits {
                feed: self.text(),
                from: self.u64(),
                limit: self.u32(),
            },
            0x32 => Request::ListProducers {
                feed: self.text(),
                after: self.option(Self::bytes),
                limit: self.u32(),
            },
            0x33 => Request::DescribeProducer {
                feed: self.text(),
                id: self.bytes(),
            },
            0x40 => Request::Read {
                scope: self.scope(),
                wait_ms: self.u32(),
            },
            0x41 => Request::Follow {
                scope: self.scope(),
                credit_bytes: self.u64(),
            },
            0x50 => Request::Stats {},
            0x51 => Request::Usage {},
            _ => return None,
        })
    }

    /// An answer of this kind. `None` for a kind that is not one: a new kind is to be added here.
    pub fn answer(&mut self, kind: u8) -> Option<Answer<'a>> {
        Some(match kind {
            0x81 => Answer::Welcome {
                welcome: self.welcome(),
            },
            0x82 => Answer::Pong {},
            0x83 => Answer::Goodbye {
                reason: self.text(),
            },
            0x84 => Answer::Alive {},
            0x85 => Answer::Busy {},
            0x8f => Answer::Refused {
                refusal: self.refusal(),
            },
            0x90 => Answer::Done {},
            0x91 => Answer::Created { feed: self.u64() },
            0x92 => Answer::Feed { feed: self.feed() },
            0x93 => Answer::Feeds {
                feeds: self.list(Self::feed),
            },
            0xa0 => Answer::Bound {
                binding: self.u32(),
                feed: self.u64(),
                next_sequence: self.u64(),
            },
            0xa1 => Answer::Leased {
                binding: self.u32(),
                feed: self.u64(),
                epoch: self.u64(),
                stream: self.u64(),
                next_sequence: self.u64(),
            },
            kind => return self.later_answer(kind),
        })
    }

    fn later_answer(&mut self, kind: u8) -> Option<Answer<'a>> {
        Some(match kind {
            0xa3 => Answer::Appended {
                first: self.u64(),
                last: self.u64(),
                records: self.u32(),
                duplicate: self.bool(),
                producer_sequence: self.option(Self::u64),
            },
            0xa4 => Answer::Committed {
                commit: self.commit(),
            },
            0xa6 => Answer::Repaired {
                commits: self.u64(),
            },
            0xa7 => Answer::Foreseen {
                duplicate: self.bool(),
            },
            0xb0 => Answer::Streams {
                streams: self.list(Self::stream),
            },
            0xb1 => Answer::Commits {
                commits: self.list(Self::commit),
            },
            0xb2 => Answer::Producers {
                producers: self.list(Self::producer),
            },
            0xb3 => Answer::Producer {
                producer: self.option(Self::producer),
            },
            0xc0 => Answer::Records {
                records: Records {
                    first: self.u64(),
                    next: self.u64(),
                    tail: self.u64(),
                    ended: self.bool(),
                    fingerprints: self.list(Self::digest),
                    frames: Rest(self.bytes()),
                },
            },
            0xd0 => Answer::Stats {
                logs: self.list(Self::log),
            },
            0xd1 => Answer::Usage {
                logs: self.list(Self::log_usage),
                bucket: self.bucket_usage(),
            },
            _ => return None,
        })
    }
}
