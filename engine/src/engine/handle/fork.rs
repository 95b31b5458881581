//! Fork: makes a feed that goes on from another: pinned first, then made, and unpinned if that came to nothing.
//!
//! **Invariants**
//! - FORK-4: the pin is durable before the fork is logged; whoever asked may go away, the steps are taken to
//!   their end.
//! - A fork that was refused, or found the name taken, leaves no pin.
//!
//! **Not here**: what each log decides (`shard::fork`, `shard::make`); pins that a crash left (`engine::forks`).

use std::rc::Rc;

use super::Handle;
use crate::env::Env;
use crate::error::{Effects, Result};
use crate::feed::Base;
use crate::ids::FeedId;
use crate::shard::{Claim, FeedRef, Hold, LogService, Made, MakeRequest, Pinned};
use crate::sync::Permit;

/// What a fork is to be.
#[derive(Debug, Clone, Default)]
pub struct ForkRequest {
    /// The feed to go on from.
    pub source: String,
    /// Only the feed with this id: one of that name that was made later is not found.
    pub source_id: Option<FeedId>,
    /// First sequence that is the fork's own; `None`: the source's tail.
    pub at: Option<u64>,
    /// What it begins with itself.
    pub make: MakeRequest,
}

impl<E: Env> Handle<E> {
    /// Makes a feed whose records up to a sequence are those of another, without copying them: its own go on
    /// there, with the same sequences. It is open, and knows no producers. A feed that is there already is left
    /// as it is. What it goes on from is kept for as long as it is there, also when the source is deleted
    /// ([`Error::FeedGone`](crate::Error::FeedGone)).
    ///
    /// # Errors
    /// Those of [`Handle::make_feed`]; [`Error::FeedNotFound`](crate::Error::FeedNotFound) and
    /// [`Error::FeedGone`](crate::Error::FeedGone) naming the source, or the fork's own name;
    /// [`Error::OverLimit`](crate::Error::OverLimit) (`fork sequence`) beyond the source's tail: without effects.
    ///
    /// # Cancel safety
    /// Dropped after it was sent, the fork may be made; never half.
    pub async fn fork_feed(&self, fork: &str, request: ForkRequest) -> Result<Made> {
        let log = self.log_of(fork);
        let permit = match &request.make.batch {
            Some(batch) => Some(self.permit(log, batch).await?),
            None => None,
        };
        let (handle, name) = (self.clone(), fork.to_owned());
        self.call(log, move |service, answer| {
            let own = service.clone();
            service.env.spawn("fork", async move {
                answer(handle.fork_on(&own, name, request, permit).await);
            });
        })
        .await
    }

    async fn fork_on(
        self,
        own: &Rc<LogService<E>>,
        name: String,
        request: ForkRequest,
        permit: Option<Permit>,
    ) -> Result<Made> {
        let ForkRequest {
            source,
            source_id,
            at,
            make,
        } = request;
        let pinned = self.pin(source, source_id, at, name.clone()).await?;
        let (base, log) = (pinned.base.clone(), self.log_of(&name));
        let job = move |s: &Rc<LogService<E>>, answer| {
            s.make_feed(name, make, Some(pinned), permit, answer);
        };
        let made = self.call(log, job).await;
        let nothing = match &made {
            Ok(made) => !made.now,
            Err(error) => error.effects() == Effects::None,
        };
        // Where effects are unknown, the next start knows.
        if nothing && self.unpin(&base).await.is_err() {
            own.releases.put(base);
        }
        made
    }

    async fn pin(
        &self,
        source: String,
        id: Option<FeedId>,
        at: Option<u64>,
        fork: String,
    ) -> Result<Pinned> {
        let log = self.log_of(&source);
        self.call(log, move |s, answer| {
            let source = FeedRef {
                id,
                ..FeedRef::named(&source)
            };
            s.pin_feed(source, at, fork, answer);
        })
        .await
    }

    /// Drops the pin that `base` names, if it is there still.
    pub(crate) async fn unpin(&self, base: &Base) -> Result<()> {
        let (source, pin) = (base.feed, base.pin);
        self.call(self.log_of(&base.name), move |s, answer| {
            s.unpin(source, pin, answer);
        })
        .await
    }

    /// Which of these sources lack their pins; all of them would be in `log`.
    pub(crate) async fn lacking(&self, log: usize, holds: Vec<Hold>) -> Result<Vec<bool>> {
        self.ask(log, move |s| async move { Ok(s.lacking(&holds)) })
            .await
    }

    /// Puts a pin again that its source lacks.
    pub(crate) async fn hold(&self, hold: Hold) -> Result<()> {
        let log = self.log_of(&hold.base.name);
        self.call(log, move |s, answer| s.hold(hold, answer)).await
    }

    /// Which of these forks are there; all of them would be in `log`.
    pub(crate) async fn held(&self, log: usize, claims: Vec<Claim>) -> Result<Vec<bool>> {
        self.ask(log, move |s| async move { s.held(&claims).await })
            .await
    }
}
