//! Below: what a fork answers to a read that begins below its base, and what of another feed's answer is its own.
//!
//! ```text
//!  fork:   |  .......... base |  own records      sequences go on: one space
//!  source: | records | base   |  later records    never seen through the fork
//! ```
//!
//! **Invariants**
//! - FORK-1: nothing at or above the base comes from the source, not even the rest of a batch.
//!
//! **Not here**: which log is asked in turn (`engine::handle`).

use sealog_frame::{FrameLimits, FrameView, seal_sparse};

use super::{ReadChunk, ReadFrom};
use crate::error::{Error, Result};
use crate::feed::{Base, Feed};
use crate::ids::FeedId;

/// What one log has to say to a read.
#[derive(Debug)]
pub(crate) enum ReadStep {
    /// This.
    Chunk(ReadChunk),
    /// It begins below the feed's base: the source is to be asked.
    Below(Below),
}

/// Where a read goes on, and what of the fork its answer must say.
#[derive(Debug, Clone)]
pub(crate) struct Below {
    pub(crate) base: Base,
    pub(crate) from: ReadFrom,
    pub(crate) fork: FeedId,
    /// The fork's durable tail.
    pub(crate) tail: u64,
    /// Where the fork ends, if it is closed.
    pub(crate) closed_at: Option<u64>,
}

/// How a read came to a feed.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Way {
    /// Through a fork: by id alone, also to a feed that was deleted.
    pub(crate) by_fork: bool,
    /// What lies below its base was looked through.
    pub(crate) above_base: bool,
}

impl Below {
    /// Where a read of `feed` from `from`, found to begin at `first` if that is known, goes on below its base.
    pub(super) fn of(feed: &Feed, from: ReadFrom, first: Option<u64>, tail: u64) -> Option<Self> {
        let base = feed.base()?;
        let from = match (first, from) {
            (Some(first), _) => ReadFrom::Sequence(first),
            (None, from) => from,
        };
        if first.is_some_and(|first| first >= base.sequence) || base.sequence == 0 {
            return None;
        }
        Some(Self {
            base: base.clone(),
            from,
            fork: feed.id,
            tail,
            closed_at: feed.closed.is_some().then_some(feed.next_sequence),
        })
    }
}

impl ReadChunk {
    /// Takes out what lies at or above `end`: the rest of its last batch.
    pub(crate) fn cut(&mut self, end: u64, limits: &FrameLimits) -> Result<()> {
        let damaged =
            |error| Error::corrupt(format!("records of feed id {}", self.feed), end, error);
        let (mut at, mut records) = (0, 0);
        let mut cut = None;
        while at < self.frames.len() {
            let (frame, _) = FrameView::split_trusted(&self.frames[at..]).map_err(damaged)?;
            if frame.end_sequence() > end {
                let kept: Vec<_> = frame.records().filter(|r| r.sequence < end).collect();
                records += kept.len();
                cut = Some(match kept.is_empty() {
                    true => Vec::new(),
                    false => seal_sparse(&frame.server_stamp(), kept, limits).map_err(damaged)?,
                });
                break;
            }
            at += frame.frame_bytes();
            records += frame.record_count();
        }
        if let Some(cut) = cut {
            self.frames.truncate(at);
            self.frames.extend_from_slice(&cut);
            self.fingerprints.truncate(records);
        }
        Ok(())
    }

    /// Goes on with the answer that follows.
    pub(crate) fn join(&mut self, next: Self) {
        self.frames.extend_from_slice(&next.frames);
        self.fingerprints.extend_from_slice(&next.fingerprints);
        self.next = next.next;
        self.ended = next.ended;
        self.tail = next.tail;
        self.over_gap |= next.over_gap;
    }
}
