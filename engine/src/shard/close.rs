//! Close: the call that ends a feed's life as a writer's: a last batch, if there is one, and no more.
//! Spec: spec/lease.md §4.
//!
//! **Invariants**
//! - LEASE-6: a closed feed answers duplicates and refuses everything else.
//! - The last batch, the closing and the seal of the open stream are decided without a pause in between, and lie
//!   in one group.
//!
//! **Not here**: what the entries do to the state (`feed::fold`), publication of the sealed stream (`lane`).

use std::rc::Rc;

use sealog_frame::{Batch, FrameView};

use super::make::CHANGES_BYTES_MAX;
use super::write::{Answer, not_found};
use super::{FeedRef, LogService, OrderKey};
use crate::append::{AppendResult, Decision, check_token, is_duplicate, judge};
use crate::commit::CommitKind;
use crate::env::Env;
use crate::error::{Error, Result};
use crate::feed::Closing;
use crate::ids::{Epoch, FeedId, StreamId};
use crate::limits::ATTRIBUTES_BYTES_MAX;
use crate::producer::Producers;
use crate::sync::Permit;
use crate::wal::entry::{Change, entry_bytes};

/// How a feed is to be closed.
#[derive(Debug, Clone, Default)]
pub struct CloseRequest {
    /// Appended as the last, in the same step.
    pub batch: Option<Batch>,
    /// Without a batch: the request is this producer's (id, epoch, sequence), and is judged as a batch of
    /// it would be.
    pub producer: Option<(Vec<u8>, u64, u64)>,
    /// Above the feed's last, or nothing is done; a batch's is kept with it.
    pub order: Option<OrderKey>,
    /// The writer epoch; `None`: a cooperative caller.
    pub token: Option<Epoch>,
    /// Kept with the closing, at most 4,096 bytes.
    pub note: Box<[u8]>,
}

/// What a closing came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Closed {
    /// The feed.
    pub feed: FeedId,
    /// What became of the batch.
    pub appended: Option<AppendResult>,
    /// Sequence after the last record.
    pub next_sequence: u64,
    /// How the feed was closed, by this call or another. `None`: it is open, for what was asked had been done
    /// before, and did not close it.
    pub closing: Option<Closing>,
    /// It was this call that closed it.
    pub now: bool,
}

impl<E: Env> LogService<E> {
    /// Closes a feed; the answer comes when that is durable. Publication of its stream follows by itself.
    pub(crate) fn close_feed(
        self: &Rc<Self>,
        feed: FeedRef,
        request: CloseRequest,
        permit: Option<Permit>,
        answer: Answer<Closed>,
    ) {
        let bytes = request.batch.as_ref().map_or(0, |b| b.as_bytes().len());
        self.queue_write(bytes, move |service, room| {
            let decided = room.and_then(|()| service.close_whole(&feed, request));
            drop(permit);
            service.settled(move |durable| answer(durable.and(decided)));
        });
    }

    /// As [`LogService::close_now`], in one group.
    fn close_whole(self: &Rc<Self>, feed: &FeedRef, request: CloseRequest) -> Result<Closed> {
        if let Some(batch) = &request.batch
            && self.would_accept(feed, &batch.view())
        {
            // A crash leaves the last batch closed behind, or neither.
            let bytes = entry_bytes(batch.as_bytes().len());
            self.wal.keep_together(bytes + CHANGES_BYTES_MAX);
        }
        self.close_now(feed, request)
    }

    pub(super) fn close_now(
        self: &Rc<Self>,
        feed: &FeedRef,
        request: CloseRequest,
    ) -> Result<Closed> {
        let note_bytes = request.note.len();
        if note_bytes > ATTRIBUTES_BYTES_MAX {
            return Err(Error::OverLimit {
                what: "note bytes",
                value: note_bytes as u64,
                limit: ATTRIBUTES_BYTES_MAX as u64,
            });
        }
        let (id, is_closed) = {
            let feeds = self.feeds.borrow();
            let feed = feed.find(&feeds)?;
            check_token(feed, request.token)?;
            (feed.id, feed.closed.is_some())
        };
        let appended = match &request.batch {
            Some(batch) => {
                let (_, appended) =
                    self.append_ordered(feed, &batch.view(), request.order.as_ref())?;
                Some(appended)
            }
            None => None,
        };
        let done_before = match appended {
            Some(appended) => appended.duplicate,
            None if is_closed => true,
            None => self.judge_close(id, &request)?,
        };
        if !done_before {
            let time_ms = self.env.realtime_ms();
            let note = request.note;
            self.seal_last(id);
            self.change(id, StreamId(0), &Change::FeedClosed { note, time_ms });
            self.tails.notify(id);
        }
        let feeds = self.feeds.borrow();
        let closed = feeds.get(id).ok_or_else(|| not_found(&feed.name))?;
        Ok(Closed {
            feed: id,
            appended,
            next_sequence: closed.next_sequence,
            closing: closed.closed.as_deref().cloned(),
            now: !done_before,
        })
    }

    fn would_accept(&self, feed: &FeedRef, batch: &FrameView<'_>) -> bool {
        let feeds = self.feeds.borrow();
        let decision = feed.find(&feeds).map(|feed| judge(feed, batch));
        matches!(decision, Ok(Decision::Accept { .. }))
    }

    /// Whether a closing without a batch was done before.
    fn judge_close(&self, id: FeedId, request: &CloseRequest) -> Result<bool> {
        let done_before = self.judge_producer(id, request.producer.as_ref())?;
        let feeds = self.feeds.borrow();
        if let (false, Some(order), Some(feed)) = (done_before, &request.order, feeds.get(id)) {
            order.check(feed)?;
        }
        Ok(done_before)
    }

    /// Whether the request was done before.
    fn judge_producer(&self, id: FeedId, claim: Option<&(Vec<u8>, u64, u64)>) -> Result<bool> {
        let Some((producer, epoch, sequence)) = claim else {
            return Ok(false);
        };
        let feeds = self.feeds.borrow();
        let known = feeds.get(id).and_then(|feed| feed.producers.as_deref());
        let nobody = Producers::default();
        let verdict = known.unwrap_or(&nobody).judge(producer, *epoch, *sequence);
        is_duplicate(verdict, *epoch, *sequence)
    }

    /// Seals the open stream, unless an abandoned one is in the way: its fate is an operator's.
    fn seal_last(&self, id: FeedId) {
        let open = {
            let feeds = self.feeds.borrow();
            let feed = feeds.get(id);
            feed.and_then(|feed| Some((feed.name.to_string(), feed.open_stream()?.id)))
        };
        if let Some((name, stream)) = open {
            let _ = self.seal_stream(&name, stream, CommitKind::Sealed, String::new());
        }
    }
}
