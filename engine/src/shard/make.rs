//! Make: the call that brings a feed to life with its first records, or finds it there.
//!
//! **Invariants**
//! - The feed, its first batch and its closing are decided without a pause in between.
//! - A feed that is there is not touched, and said to be there, whatever it was made with.
//!
//! **Not here**: what the entries do to the state (`feed::fold`).

use std::rc::Rc;

use sealog_frame::Batch;

use super::write::Answer;
use super::{CloseRequest, FeedInfo, FeedRef, LogService};
use crate::env::Env;
use crate::error::Result;
use crate::feed::FeedOptions;
use crate::sync::Permit;

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
        permit: Option<Permit>,
        answer: Answer<Made>,
    ) {
        let bytes = request.batch.as_ref().map_or(0, |b| b.as_bytes().len());
        self.queue_write(bytes, move |service, room| {
            let decided = room.and_then(|()| service.make_now(&name, request));
            drop(permit);
            service.settled(move |durable| answer(durable.and(decided)));
        });
    }

    fn make_now(self: &Rc<Self>, name: &str, request: MakeRequest) -> Result<Made> {
        let now = self.feeds.borrow().named(name).is_none();
        if now {
            if let Some(batch) = &request.batch {
                // What its batch would be refused for must not leave a feed behind.
                crate::append::foresee_first(name, &request.options, &batch.view())?;
            }
            self.create_now(name, request.options)?;
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
                        self.append_now(&feed, &batch.view())?;
                    }
                }
            }
        }
        let feed = self.feed_now(name)?;
        Ok(Made { feed, now })
    }
}
