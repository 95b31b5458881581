//! Watch: which feeds got durable records, and which subscriptions changed, for who carries the one to the
//! other.
//!
//! **Invariants**
//! - While nobody watches feeds, an append costs nothing here, and a group one look at a flag.
//! - What was heard of is named once until it is taken, however often it happens.
//! - There is one taker.
//!
//! **Not here**: what is done about it (`engine::handle`).

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;

use super::LogService;
use crate::env::Env;
use crate::error::{Error, Result};
use crate::feed::Feed;
use crate::ids::FeedId;
use crate::subscription::Tail;
use crate::sync::Event;

/// Feeds told of at once, and feeds that are gone.
const NEWS_FEEDS_MAX: usize = 128;

/// What happened since the last look.
#[derive(Debug, Clone, Default)]
pub(crate) struct News {
    /// Feeds with new durable records.
    pub(crate) tails: Vec<Tail>,
    /// Feeds that were deleted.
    pub(crate) gone: Vec<(String, FeedId)>,
    /// Subscriptions that were made, deleted or linked anew.
    pub(crate) subscriptions: Vec<String>,
}

#[derive(Default)]
pub(super) struct Watch {
    /// Subscriptions for whose sake feeds are watched.
    watchers: RefCell<BTreeSet<String>>,
    /// Whether there is one.
    feeds_too: Cell<bool>,
    changed: RefCell<BTreeSet<FeedId>>,
    gone: RefCell<BTreeSet<(String, FeedId)>>,
    subscriptions: RefCell<BTreeSet<String>>,
    pub(super) moved: Event,
}

impl Watch {
    /// Records of these feeds are durable.
    pub(super) fn note(&self, feeds: &[FeedId]) {
        if self.feeds_too.get() && !feeds.is_empty() {
            self.changed.borrow_mut().extend(feeds);
            self.moved.notify();
        }
    }

    /// A feed was deleted.
    pub(super) fn note_gone(&self, name: &str, feed: FeedId) {
        if self.feeds_too.get() {
            self.gone.borrow_mut().insert((name.to_owned(), feed));
            self.moved.notify();
        }
    }

    /// What a subscription is linked to has changed.
    pub(super) fn note_subscription(&self, name: &str) {
        self.subscriptions.borrow_mut().insert(name.to_owned());
        self.moved.notify();
    }

    fn is_empty(&self) -> bool {
        self.changed.borrow().is_empty()
            && self.gone.borrow().is_empty()
            && self.subscriptions.borrow().is_empty()
    }
}

impl<E: Env> LogService<E> {
    /// Watches feeds for a subscription's sake, or no more.
    pub(crate) fn watch_feeds(&self, subscription: String, wanted: bool) {
        let watch = &self.tails.watch;
        let mut watchers = watch.watchers.borrow_mut();
        match wanted {
            true => watchers.insert(subscription),
            false => watchers.remove(&subscription),
        };
        watch.feeds_too.set(!watchers.is_empty());
        if watchers.is_empty() {
            watch.changed.borrow_mut().clear();
            watch.gone.borrow_mut().clear();
        }
    }

    /// Waits for news, and takes it.
    pub(crate) async fn news(&self) -> Result<News> {
        let watch = &self.tails.watch;
        let ready = || match self.is_stopping() {
            true => Some(Err(self.wal.poisoned().unwrap_or(Error::Closed))),
            false => (!watch.is_empty()).then_some(Ok(())),
        };
        watch.moved.until(ready).await?;
        // What is told is durable: deletions and subscriptions were noted when they were decided.
        self.settle().await?;
        let ids: Vec<FeedId> = {
            let mut changed = watch.changed.borrow_mut();
            first_of(&mut changed)
        };
        Ok(News {
            tails: ids.into_iter().filter_map(|id| self.tail_of(id)).collect(),
            gone: first_of(&mut watch.gone.borrow_mut()),
            subscriptions: std::mem::take(&mut *watch.subscriptions.borrow_mut())
                .into_iter()
                .collect(),
        })
    }

    pub(super) fn tail_of(&self, id: FeedId) -> Option<Tail> {
        let named = {
            let feeds = self.feeds.borrow();
            let feed = feeds.get(id)?;
            (feed.name.to_string(), first_sequence(feed))
        };
        Some(Tail {
            name: named.0,
            feed: id,
            first: named.1,
            next: self.durable_tail(id),
        })
    }
}

/// Takes as many as are told of at once.
fn first_of<T: Ord + Clone>(all: &mut BTreeSet<T>) -> Vec<T> {
    let rest = match all.iter().nth(NEWS_FEEDS_MAX).cloned() {
        Some(at) => all.split_off(&at),
        None => BTreeSet::new(),
    };
    std::mem::replace(all, rest).into_iter().collect()
}

/// Sequence of the first record that is the feed's own.
fn first_sequence(feed: &Feed) -> u64 {
    feed.base().map_or(0, |base| base.sequence)
}
