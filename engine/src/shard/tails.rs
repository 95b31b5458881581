//! Tails: the durable ends of feeds, and who waits for them to move.
//!
//! **Invariants**
//! - The tail of a feed is never beyond what is durable.
//! - A feed takes memory here only while somebody waits for it, or records of it are on their way.
//!
//! **Not here**: reading (`read`), groups (`wal`).

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

use super::LogService;
use super::watch::Watch;
use crate::env::Env;
use crate::ids::FeedId;
use crate::sync::{Event, Listen};

/// Records on their way into the log.
struct Due {
    group: u64,
    feed: FeedId,
    /// Sequence of the first of them.
    first: u64,
}

/// The tails of a log's feeds.
#[derive(Default)]
pub(crate) struct Tails {
    /// What is not durable yet, in log order; some of it may be by now.
    due: RefCell<VecDeque<Due>>,
    /// Who waits for records of a feed.
    waiting: RefCell<BTreeMap<FeedId, Event>>,
    /// What those hear who care for all feeds.
    pub(super) watch: Watch,
}

/// Waits for records of a feed, from when it was made.
pub(crate) struct TailListen<'a> {
    tails: &'a Tails,
    feed: FeedId,
    pub(crate) moved: Option<Listen>,
}

impl Tails {
    /// Listens for records of `feed`.
    pub(crate) fn listen(&self, feed: FeedId) -> TailListen<'_> {
        let moved = self.waiting.borrow_mut().entry(feed).or_default().listen();
        TailListen {
            tails: self,
            feed,
            moved: Some(moved),
        }
    }

    /// Records of `feed` from `first` on went into `group`; whether they are the first of that group.
    fn put(&self, group: u64, feed: FeedId, first: u64) -> bool {
        let mut due = self.due.borrow_mut();
        let last = due.back().map(|last| (last.group, last.feed));
        if last != Some((group, feed)) {
            due.push_back(Due { group, feed, first });
        }
        last.is_none_or(|(earlier, _)| earlier != group)
    }

    /// First sequence of `feed` that is not durable, if there is one.
    fn undurable(&self, feed: FeedId, is_durable: impl Fn(u64) -> bool) -> Option<u64> {
        let due = self.due.borrow();
        let mut of_feed = due.iter().filter(|due| due.feed == feed);
        of_feed
            .find(|due| !is_durable(due.group))
            .map(|due| due.first)
    }

    /// Wakes who waits for what is in groups up to `group`; forgets it if that is durable.
    fn notify_due(&self, group: u64, durable: bool) {
        let mut due = self.due.borrow_mut();
        let count = due.partition_point(|due| due.group <= group);
        let feeds: Vec<FeedId> = due.range(..count).map(|due| due.feed).collect();
        if durable {
            due.drain(..count);
        }
        drop(due);
        if durable {
            self.watch.note(&feeds);
        }
        feeds.into_iter().for_each(|feed| self.notify(feed));
    }

    /// Wakes who waits for `feed`.
    pub(super) fn notify(&self, feed: FeedId) {
        let event = self.waiting.borrow_mut().remove(&feed);
        if let Some(event) = event {
            event.notify();
        }
    }

    /// Wakes everybody.
    pub(super) fn notify_all(&self) {
        let waiting = std::mem::take(&mut *self.waiting.borrow_mut());
        waiting.values().for_each(Event::notify);
    }
}

impl Drop for TailListen<'_> {
    fn drop(&mut self) {
        self.moved = None;
        let mut waiting = self.tails.waiting.borrow_mut();
        if waiting.get(&self.feed).is_some_and(Event::is_unheard) {
            waiting.remove(&self.feed);
        }
    }
}

impl<E: Env> LogService<E> {
    /// Wakes whoever waits for records of `feed`, of which those from `first` on were just accepted, once
    /// they are durable.
    pub(super) fn announce_tail(self: &Rc<Self>, feed: FeedId, first: u64) {
        let group = self.wal.accepted().group;
        if self.tails.put(group, feed, first) {
            let service = self.clone();
            self.wal.on_durable(group, move |durable| {
                service.tails.notify_due(group, durable.is_ok());
            });
        }
    }

    /// Listens for records of `feed`.
    pub(crate) fn listen_tail(&self, feed: FeedId) -> TailListen<'_> {
        self.tails.listen(feed)
    }

    /// Sequence after the last durable record of `feed`.
    pub(crate) fn durable_tail(&self, feed: FeedId) -> u64 {
        let accepted = {
            let feeds = self.feeds.borrow();
            let found = feeds.get(feed);
            found.map_or((0, 0), |feed| (feed.next_sequence, feed.last_group))
        };
        let is_durable = |group| matches!(self.wal.outcome(group), Some(Ok(())));
        match accepted {
            (next, group) if is_durable(group) => next,
            (next, _) => self.tails.undurable(feed, is_durable).unwrap_or(next),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tails_are_forgotten_with_their_last_listener() {
        let tails = Tails::default();
        let (first, second) = (tails.listen(FeedId(1)), tails.listen(FeedId(1)));
        let other = tails.listen(FeedId(2));
        drop(first);
        assert_eq!(tails.waiting.borrow().len(), 2);
        drop(second);
        assert_eq!(tails.waiting.borrow().len(), 1);
        tails.notify(FeedId(2));
        let again = tails.listen(FeedId(2));
        drop(other);
        assert_eq!(tails.waiting.borrow().len(), 1, "the second is listened to");
        drop(again);
        assert!(tails.waiting.borrow().is_empty());
    }

    #[test]
    fn tail_stands_before_the_first_group_that_is_not_durable() {
        let tails = Tails::default();
        assert!(tails.put(7, FeedId(1), 10));
        assert!(!tails.put(7, FeedId(1), 11));
        assert!(!tails.put(7, FeedId(2), 50));
        assert!(tails.put(8, FeedId(1), 12));
        let at = |feed, durable| tails.undurable(FeedId(feed), |group| group <= durable);
        assert_eq!((at(1, 6), at(1, 7), at(1, 8)), (Some(10), Some(12), None));
        assert_eq!((at(2, 6), at(2, 7), at(3, 6)), (Some(50), None, None));
        tails.notify_due(7, false);
        assert_eq!(at(1, 6), Some(10), "a log that stopped keeps its tail");
        tails.notify_due(7, true);
        assert_eq!((at(1, 7), at(2, 6)), (Some(12), None));
    }
}
