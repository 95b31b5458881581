//! Read: records as they come from the server, one answer at a time.
//!
//! **Invariants**
//! - A batch's frames are checked whole, checksums too, before anybody sees a record.
//! - Only records that were asked for are shown: not those of the same frame before or behind.
//!
//! **Not here**: following a feed (`follow`).

use std::time::Duration;

use bytes::Bytes;
use sealog_frame::{FrameError, FrameLimits, FrameView, RecordView};
use sealog_protocol::{Answer, Effects, ReadFrom, ReadScope, Request};

use crate::client::{Again, Client};
use crate::conn::Message;
use crate::error::{Error, ErrorKind, Result};

/// What is read, and how.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReadOptions {
    /// Only the feed with this id: one of that name that was made later is not found.
    pub feed_id: Option<u64>,
    /// Only this stream.
    pub stream: Option<u64>,
    /// Where to begin: at sequence 0.
    pub from: ReadFrom,
    /// Stop before this sequence: never.
    pub end: u64,
    /// Bytes after which no further batch is added to an answer: 1 MiB.
    pub bytes_max: u32,
    /// Have every record's fingerprint, too: no.
    pub fingerprints: bool,
    /// [`Client::read`] waits so long for records when there are none yet: not at all.
    pub wait: Duration,
    /// Bytes of batches that a [`Follow`](crate::Follow) holds for its user at most, but for one answer:
    /// 4 MiB.
    pub buffer_bytes: u64,
}

impl Default for ReadOptions {
    fn default() -> Self {
        Self {
            feed_id: None,
            stream: None,
            from: ReadFrom::Sequence(0),
            end: u64::MAX,
            bytes_max: 1 << 20,
            fingerprints: false,
            wait: Duration::ZERO,
            buffer_bytes: 4 << 20,
        }
    }
}

impl ReadOptions {
    /// From the sequence `sequence` on.
    #[must_use]
    pub fn from_sequence(sequence: u64) -> Self {
        Self {
            from: ReadFrom::Sequence(sequence),
            ..Self::default()
        }
    }

    /// What comes from now on.
    #[must_use]
    pub fn from_tail() -> Self {
        Self {
            from: ReadFrom::Tail(0),
            ..Self::default()
        }
    }

    pub(crate) fn without_wait(&self) -> Self {
        Self {
            wait: Duration::ZERO,
            ..self.clone()
        }
    }

    pub(crate) fn scope<'a>(&self, feed: &'a str, from: ReadFrom) -> ReadScope<'a> {
        ReadScope {
            feed,
            feed_id: self.feed_id,
            stream: self.stream,
            from,
            end: self.end,
            bytes_max: self.bytes_max,
            fingerprints: self.fingerprints,
        }
    }
}

/// Records that came together: whole frames of which some records were asked for. Cheap to clone.
#[derive(Debug, Clone)]
pub struct RecordBatch {
    frames: Bytes,
    first: u64,
    next: u64,
    tail: u64,
    ended: bool,
    fingerprints: Vec<[u8; 32]>,
}

impl RecordBatch {
    /// Takes an answer apart and checks it: the records lie in `from..end` and in order.
    pub(crate) fn parse(message: &Message, end: u64) -> Result<Self> {
        let Answer::Records { records } = message.answer()? else {
            return Err(Error::protocol("a read is answered by something else"));
        };
        let frames = message.body.slice_ref(records.frames.0);
        let mut rest = &frames[..];
        let (mut count, mut at) = (0, 0);
        while !rest.is_empty() {
            let (frame, behind) = FrameView::split_trusted(rest).map_err(corrupt)?;
            let frame =
                FrameView::parse(frame.as_bytes(), &FrameLimits::DEFAULT).map_err(corrupt)?;
            if frame.base_sequence() < at {
                return Err(Error::protocol("frames are out of order"));
            }
            at = frame.end_sequence();
            count += frame.record_count();
            rest = behind;
        }
        if !records.fingerprints.is_empty() && records.fingerprints.len() != count {
            let have = records.fingerprints.len();
            return Err(Error::protocol(format!(
                "{have} fingerprints of {count} records"
            )));
        }
        Ok(Self {
            frames,
            first: records.first,
            next: records.next.min(end),
            tail: records.tail,
            ended: records.ended,
            fingerprints: records.fingerprints,
        })
    }

    /// The records, in order.
    pub fn records(&self) -> impl Iterator<Item = RecordView<'_>> {
        self.with_fingerprints().map(|(record, _)| record)
    }

    /// The records, each with its fingerprint if the read asked for them.
    pub fn with_fingerprints(&self) -> impl Iterator<Item = (RecordView<'_>, Option<&[u8; 32]>)> {
        let asked_for = self.first..self.next;
        self.frames()
            .flat_map(|frame| frame.records())
            .enumerate()
            .filter(move |(_, record)| asked_for.contains(&record.sequence))
            .map(|(at, record)| (record, self.fingerprints.get(at)))
    }

    /// The frames that the records are in, whole: also records that were not asked for.
    pub fn frames(&self) -> impl Iterator<Item = FrameView<'_>> {
        let mut rest = &self.frames[..];
        std::iter::from_fn(move || {
            let (frame, behind) = FrameView::split_trusted(rest).ok()?;
            rest = behind;
            Some(frame)
        })
    }

    /// Fingerprints of every record in [`frames`](Self::frames), in order; none if they were not asked for.
    #[must_use]
    pub fn fingerprints(&self) -> &[[u8; 32]] {
        &self.fingerprints
    }

    /// First sequence that was asked for.
    #[must_use]
    pub fn first(&self) -> u64 {
        self.first
    }

    /// Where to go on: one past the last record, or past a gap.
    #[must_use]
    pub fn next(&self) -> u64 {
        self.next
    }

    /// Sequence after the last record of the feed when the answer was made.
    #[must_use]
    pub fn tail(&self) -> u64 {
        self.tail
    }

    /// Nothing more will ever come of what was asked for.
    #[must_use]
    pub fn is_end(&self) -> bool {
        self.ended
    }

    /// No record that was asked for is in it.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.records().next().is_none()
    }

    pub(crate) fn frames_bytes(&self) -> u64 {
        self.frames.len() as u64
    }
}

/// A frame that arrived damaged, past TCP's checksum or out of the server itself.
fn corrupt(error: FrameError) -> Error {
    let kind = ErrorKind::Corrupt {
        file: "answer".to_owned(),
        offset: 0,
    };
    Error::new(kind, Effects::None, error.to_string())
}

impl Client {
    /// One answer's worth of records.
    ///
    /// # Errors
    /// [`ErrorKind::FeedNotFound`], [`ErrorKind::StreamNotFound`], [`ErrorKind::CommitNotFound`],
    /// [`ErrorKind::Corrupt`], [`ErrorKind::Bucket`], those of the connection. There are no effects.
    ///
    /// # Cancel safety
    /// Cancel safe: only reads.
    pub async fn read(&self, feed: &str, options: &ReadOptions) -> Result<RecordBatch> {
        let request = Request::Read {
            scope: options.scope(feed, options.from),
            wait_ms: u32::try_from(options.wait.as_millis()).unwrap_or(u32::MAX),
        };
        let within = self.options().request_timeout + options.wait;
        let asked = self.message_within(within, Some(feed), &request, Again::Always);
        let (_, message) = asked.await?;
        RecordBatch::parse(&message, options.end)
    }
}
