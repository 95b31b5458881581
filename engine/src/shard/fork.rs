//! Fork: pins that keep a feed's range for those that go on from it: put, dropped, and looked after.
//! Spec: spec/lease.md §6.
//!
//! ```text
//!  fork made:  source's log: pinned -> durable -> fork's log: forked -> durable -> answer
//!  fork gone:  fork's log: deleted -> durable -> source's log: unpinned (and gone, if that was the last) -> its own base ...
//! ```
//!
//! **Invariants**
//! - FORK-4: a pin is durable before the fork that rests on it is logged, and is dropped only when the fork's
//!   end is durable, or it is known not to have come about.
//!
//! **Not here**: who tells which log (`engine::forks`), what the entries do to the state (`feed::lineage`).

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;

use super::write::{Answer, living, not_found};
use super::{FeedRef, LogService};
use crate::env::Env;
use crate::error::{Error, Result};
use crate::feed::{Base, Feed, Feeds, Pin};
use crate::ids::{FeedId, PinId, StreamId};
use crate::sync::Event;
use crate::wal::entry::{Change, Ground};

/// A source that was pinned for a fork.
#[derive(Debug, Clone)]
pub(crate) struct Pinned {
    pub(crate) base: Base,
    pub(crate) ground: Ground,
}

/// A pin, and the fork that it is for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Claim {
    pub(crate) source: FeedId,
    pub(crate) pin: PinId,
    pub(crate) fork: Box<str>,
}

impl Claim {
    /// Whether `feeds`, of the log that the fork would be in, has it.
    fn is_held(&self, feeds: &Feeds) -> bool {
        let base = feeds.named(&self.fork).and_then(Feed::base);
        base.is_some_and(|base| (base.feed, base.pin) == (self.source, self.pin))
    }
}

/// A fork, and what it goes on from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Hold {
    pub(crate) base: Base,
    pub(crate) fork: Box<str>,
}

/// What a log that was just recovered must ask others for.
#[derive(Debug, Default)]
pub(crate) struct Doubts {
    /// Pins that are here: any of their forks may not have come about.
    pub(crate) claims: Vec<Claim>,
    /// Forks that are here: a loss that was accepted may have taken any of their pins.
    pub(crate) holds: Vec<Hold>,
}

/// Pins of other logs to be dropped, and what must be looked for once.
#[derive(Default)]
pub(crate) struct Releases {
    due: RefCell<VecDeque<Base>>,
    doubts: Cell<Doubts>,
    moved: Event,
}

impl Releases {
    /// Of a state that was just recovered.
    pub(crate) fn of(feeds: &Feeds) -> Self {
        let claims = feeds.iter().flat_map(|feed| {
            feed.pins().map(|(pin, what)| Claim {
                source: feed.id,
                pin,
                fork: what.fork.clone(),
            })
        });
        let holds = feeds.iter().filter_map(|feed| {
            Some(Hold {
                base: feed.base()?.clone(),
                fork: (*feed.name).into(),
            })
        });
        let doubts = Doubts {
            claims: claims.collect(),
            holds: holds.collect(),
        };
        Self {
            doubts: Cell::new(doubts),
            ..Self::default()
        }
    }

    /// What there is to ask others for since the start; once.
    pub(crate) fn take_doubts(&self) -> Doubts {
        self.doubts.take()
    }

    pub(crate) fn put(&self, base: Base) {
        self.due.borrow_mut().push_back(base);
        self.moved.notify();
    }

    pub(crate) fn take(&self) -> Option<Base> {
        self.due.borrow_mut().pop_front()
    }

    /// Notified when there is something to drop, and when the service stops.
    pub(crate) fn moved(&self) -> &Event {
        &self.moved
    }
}

impl<E: Env> LogService<E> {
    /// Pins a feed at sequence `at`, or at its tail, for a fork of this name; answers when that is durable.
    pub(crate) fn pin_feed(
        self: &Rc<Self>,
        source: FeedRef,
        at: Option<u64>,
        fork: String,
        answer: Answer<Pinned>,
    ) {
        self.decide(answer, move |service| service.pin_now(&source, at, &fork));
    }

    fn pin_now(&self, source: &FeedRef, at: Option<u64>, fork: &str) -> Result<Pinned> {
        let (base, ground) = {
            let feeds = self.feeds.borrow();
            let feed = source.find(&feeds)?;
            let tail = feed.next_sequence;
            let sequence = at.unwrap_or(tail);
            if sequence > tail {
                return Err(Error::OverLimit {
                    what: "fork sequence",
                    value: sequence,
                    limit: tail,
                });
            }
            let mut pin = PinId(self.env.random_u64());
            while feed.has_pin(pin) {
                pin = PinId(self.env.random_u64());
            }
            let base = Base {
                feed: feed.id,
                name: (*feed.name).into(),
                sequence,
                pin,
            };
            let ground = Ground {
                last_arrival_ms: feed.last_arrival_ms,
                last_timestamp_ms: feed.last_timestamp_ms,
            };
            (base, ground)
        };
        let (id, fork) = (base.pin, fork.into());
        let pin = Pin {
            sequence: base.sequence,
            fork,
        };
        self.change(base.feed, StreamId(0), &Change::Pinned { id, pin });
        Ok(Pinned { base, ground })
    }

    /// Drops a pin, if it is there still; answers when that is durable.
    pub(crate) fn unpin(self: &Rc<Self>, source: FeedId, pin: PinId, answer: Answer<()>) {
        self.decide(answer, move |service| {
            let there = {
                let feeds = service.feeds.borrow();
                feeds.get(source).is_some_and(|feed| feed.has_pin(pin))
            };
            if there {
                let time_ms = service.env.realtime_ms();
                service.end_with(source, &Change::Unpinned { id: pin, time_ms });
            }
            Ok(())
        });
    }

    /// Deletes a feed: gone at once, its objects after the grace time; but for forks, for which it is kept.
    /// With `only`: that feed, none that has its name by now.
    pub(crate) fn delete_feed(
        self: &Rc<Self>,
        name: String,
        only: Option<FeedId>,
        answer: Answer<()>,
    ) {
        self.decide(answer, move |service| {
            let id = living(&service.feeds.borrow(), &name)?.id;
            if only.is_some_and(|only| only != id) {
                return Err(not_found(&name));
            }
            let time_ms = service.env.realtime_ms();
            service.end_with(id, &Change::FeedDeleted { time_ms });
            service.tails.watch.note_gone(&name, id);
            Ok(())
        });
    }

    /// Logs what may be the end of a feed, and lets go of its own base if it was.
    fn end_with(&self, id: FeedId, change: &Change) {
        let base = {
            let feeds = self.feeds.borrow();
            feeds.get(id).and_then(|feed| feed.base().cloned())
        };
        self.change(id, StreamId(0), change);
        self.tails.notify(id);
        if let Some(base) = base
            && self.feeds.borrow().get(id).is_none()
        {
            self.releases.put(base);
        }
    }

    /// As [`LogService::unpin`], for a task of this shard.
    pub(crate) async fn unpin_here(self: &Rc<Self>, source: FeedId, pin: PinId) -> Result<()> {
        let (reply, answer) = flume::bounded(1);
        let reply = move |done| drop(reply.send(done));
        self.unpin(source, pin, Box::new(reply));
        answer.recv_async().await.unwrap_or(Err(Error::Closed))
    }

    /// Whether a fork is here still.
    pub(crate) fn is_here(&self, hold: &Hold) -> bool {
        let feeds = self.feeds.borrow();
        feeds.named(&hold.fork).and_then(Feed::base) == Some(&hold.base)
    }

    /// Which of these sources are here, and lack their pins.
    pub(crate) fn lacking(&self, holds: &[Hold]) -> Vec<bool> {
        let feeds = self.feeds.borrow();
        let lacks = |hold: &Hold| {
            let source = feeds.get(hold.base.feed);
            source.is_some_and(|source| !source.has_pin(hold.base.pin))
        };
        holds.iter().map(lacks).collect()
    }

    /// Puts a pin again that was lost, as far as the source still reaches.
    pub(crate) fn hold(self: &Rc<Self>, hold: Hold, answer: Answer<()>) {
        self.decide(answer, move |service| {
            let Hold { base, fork } = hold;
            let reach = {
                let feeds = service.feeds.borrow();
                let lacking = feeds.get(base.feed).filter(|feed| !feed.has_pin(base.pin));
                lacking.map(|feed| feed.next_sequence)
            };
            if let Some(reach) = reach {
                let (id, sequence) = (base.pin, base.sequence.min(reach));
                let pin = Pin { sequence, fork };
                service.change(base.feed, StreamId(0), &Change::Pinned { id, pin });
            }
            Ok(())
        });
    }

    /// Which of these forks are here.
    ///
    /// # Errors
    /// [`Error::Poisoned`], [`Error::Closed`].
    ///
    /// # Cancel safety
    /// Cancel safe: only reads.
    pub(crate) async fn held(&self, claims: &[Claim]) -> Result<Vec<bool>> {
        let held = {
            let feeds = self.feeds.borrow();
            claims.iter().map(|claim| claim.is_held(&feeds)).collect()
        };
        self.settle().await?;
        Ok(held)
    }

    /// Refuses a read of a feed that was deleted, unless it came through a fork.
    pub(crate) fn check_there(&self, id: FeedId) -> Result<()> {
        let feeds = self.feeds.borrow();
        match feeds.get(id) {
            Some(feed) if feed.is_gone() => Err(gone(&feed.name)),
            Some(_) => Ok(()),
            None => Err(not_found(&crate::error::feed_label(id))),
        }
    }
}

/// The answer of a feed that is there for its forks only.
pub(super) fn gone(name: &str) -> Error {
    Error::FeedGone {
        feed: name.to_owned(),
    }
}
