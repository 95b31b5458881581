//! Make: the call that brings a feed to life with its first records, or finds it there.
//!
//! **Invariants**
//! - The feed, its first batch and its closing are decided without a pause in between, and lie in one group: a
//!   crash leaves all of it or nothing.
//! - A feed that is there is not touched, and said to be there, whatever it was made with.
//!
//! **Not here**: what the entries do to the state (`feed::fold`).

use std::rc::Rc;

use sealog_frame::Batch;

use super::fork::Pinned;
use super::write::Answer;
use super::{CloseRequest, FeedInfo, FeedRef, LogService};
use crate::append::foresee_first_after;
use crate::env::Env;
use crate::error::Result;
use crate::feed::FeedOptions;
use crate::limits::{
    ATTRIBUTES_BYTES_MAX, FEED_NAME_BYTES_MAX, GROUP_OVERHEAD_BYTES, ORDER_BYTES_MAX,
};
use crate::sync::Permit;
use crate::wal::entry::entry_bytes;

/// What the changes take that make a feed, open its stream, order its batch, seal it and close the feed.
pub(super) const CHANGES_BYTES_MAX: usize =
    2 * FEED_NAME_BYTES_MAX + 2 * ATTRIBUTES_BYTES_MAX + ORDER_BYTES_MAX + 1024;
const _: () = assert!(CHANGES_BYTES_MAX + 4096 <= GROUP_OVERHEAD_BYTES);

/// What a feed is to begin with.
#[derive(Debug, Clone, Default)]
pub struct MakeRequest {
    /// How it is made.
    pub options: FeedOptions,
    /// Its first records.
    pub batch: Option<Batch>,
    /// It is closed behind them.
    pub closed: bool,
}

/// What became of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Made {
    /// The feed as it is now.
    pub feed: FeedInfo,
    /// It was this call that made it.
    pub now: bool,
}

impl<E: Env> LogService<E> {
    /// Makes a feed, if there is none of that name; the answer comes when that is durable.
    pub(crate) fn make_feed(
        self: &Rc<Self>,
        name: String,
        request: MakeRequest,
        pinned: Option<Pinned>,
        permit: Option<Permit>,
        answer: Answer<Made>,
    ) {
        let bytes = request.batch.as_ref().map_or(0, |b| b.as_bytes().len());
        self.queue_write(bytes, move |service, room| {
            let decided = room.and_then(|()| service.make_now(&name, request, pinned));
            drop(permit);
            service.settled(move |durable| answer(durable.and(decided)));
        });
    }

    fn make_now(
        self: &Rc<Self>,
        name: &str,
        request: MakeRequest,
        pinned: Option<Pinned>,
    ) -> Result<Made> {
        let now = self.feeds.borrow().named(name).is_none();
        if now {
            if let Some(batch) = &request.batch {
                // What its batch would be refused for must not leave a feed behind.
                let last = pinned.as_ref().and_then(|p| p.base.sequence.checked_sub(1));
                foresee_first_after(last, name, &request.options, &batch.view())?;
            }
            let bytes = request.batch.as_ref().map_or(0, |b| b.as_bytes().len());
            self.create_together(name, request.options, pinned, bytes)?;
            let feed = FeedRef::named(name);
            match request.closed {
                true => {
                    let closing = CloseRequest {
                        batch: request.batch,
                        ..CloseRequest::default()
                    };
                    self.close_now(&feed, closing)?;
                }
                false => {
                    if let Some(batch) = &request.batch {
                        let (id, _) = self.append_now(&feed, &batch.view())?;
                        self.roll_if_due(id);
                    }
                }
            }
        }
        let feed = self.feed_now(name)?;
        Ok(Made { feed, now })
    }

    /// Makes the feed at the beginning of a group that holds a batch of `bytes`, too.
    fn create_together(
        &self,
        name: &str,
        options: FeedOptions,
        pinned: Option<Pinned>,
        bytes: usize,
    ) -> Result<()> {
        // What it may be refused for comes before anything is put.
        self.check_new(name, &options)?;
        self.wal
            .keep_together(entry_bytes(bytes) + CHANGES_BYTES_MAX);
        self.create_now(name, options, pinned).map(drop)
    }
}
