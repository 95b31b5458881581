//! Asked: what is asked of subscriptions and, for their sake, of feeds; and wakes that are due.
//!
//! **Invariants**
//! - What is answered is durable.
//! - A try to tell of a wake is given out once per start.
//!
//! **Not here**: what changes subscriptions (`subscriptions`).

use std::collections::BTreeMap;
use std::time::Duration;

use super::LogService;
use super::subscriptions::{DueWake, SubscriptionInfo, info};
use crate::env::Env;
use crate::error::{Error, Result};
use crate::ids::FeedId;
use crate::subscription::{Link, Selector, Tail, glob_matches};
use crate::sync::race;

/// Wakes given out at once.
const DUE_WAKES_MAX: usize = 64;

/// What is asked: without effects.
impl<E: Env> LogService<E> {
    /// The subscription `name`, if there is one.
    pub(crate) async fn subscription(&self, name: &str) -> Result<Option<SubscriptionInfo>> {
        let found = {
            let feeds = self.feeds.borrow();
            let known = feeds.subscriptions.ready(name);
            known.map(|known| info(name, known))
        };
        self.settle().await?;
        Ok(found)
    }

    /// What subscription `name` is linked to, and what is kept of that, if there is one.
    pub(crate) async fn subscription_links(
        &self,
        name: &str,
    ) -> Result<Option<(Selector, BTreeMap<String, Link>)>> {
        let found = {
            let feeds = self.feeds.borrow();
            let known = feeds.subscriptions.ready(name);
            known.map(|known| (Selector::of(known), known.links.clone()))
        };
        self.settle().await?;
        Ok(found)
    }

    /// What subscription `name` is linked to, if there is one.
    pub(crate) async fn selector(&self, name: &str) -> Result<Option<Selector>> {
        let found = {
            let feeds = self.feeds.borrow();
            feeds.subscriptions.ready(name).map(Selector::of)
        };
        self.settle().await?;
        Ok(found)
    }

    /// Names of all subscriptions of this log.
    pub(crate) async fn subscription_names(&self) -> Result<Vec<String>> {
        let names = {
            let feeds = self.feeds.borrow();
            let ready = feeds.subscriptions.iter().filter(|(_, known)| known.ready);
            ready.map(|(name, _)| name.to_owned()).collect()
        };
        self.settle().await?;
        Ok(names)
    }

    /// Waits for wakes that somebody is to be told of, and takes them.
    pub(crate) async fn due_wakes(&self) -> Result<Vec<DueWake>> {
        loop {
            let moved = self.subscribed.listen();
            if self.is_stopping() {
                return Err(self.wal.poisoned().unwrap_or(Error::Closed));
            }
            let now_ms = self.env.realtime_ms();
            let due = self.take_due(now_ms);
            if !due.is_empty() {
                // Nobody is told of a wake that is not durable.
                self.settle().await?;
                return Ok(due);
            }
            let next_ms = self.feeds.borrow().subscriptions.next_due_ms();
            match next_ms {
                Some(at) => {
                    let left = Duration::from_millis(at.saturating_sub(now_ms));
                    race(moved, self.env.sleep(left)).await;
                }
                None => moved.await,
            }
        }
    }

    fn take_due(&self, now_ms: u64) -> Vec<DueWake> {
        let mut feeds = self.feeds.borrow_mut();
        let due = feeds.subscriptions.iter().filter_map(|(name, known)| {
            let (attempt, due_ms) = known.undelivered()?;
            (due_ms <= now_ms).then(|| (name.to_owned(), attempt))
        });
        let due: Vec<_> = due.take(DUE_WAKES_MAX).collect();
        let mut taken = Vec::new();
        for (name, attempt) in due {
            let Some(known) = feeds.subscriptions.get_mut(&name) else {
                continue;
            };
            known.handed = Some(attempt);
            taken.push(DueWake {
                fence: known.fence(),
                subscription: info(&name, known),
                attempts: attempt.1,
            });
        }
        taken
    }

    /// Tails of feeds that match `pattern` and come after `after` in name order, up to `limit`; how far it
    /// looked, if there is more.
    pub(crate) async fn match_feeds(
        &self,
        pattern: &str,
        prefix: &str,
        after: &str,
        limit: usize,
    ) -> Result<(Vec<Tail>, Option<String>)> {
        let from = if after > prefix { after } else { prefix };
        let mut last = None;
        let ids: Vec<FeedId> = {
            let feeds = self.feeds.borrow();
            let looked = feeds
                .names_from(from)
                .filter(|feed| after.is_empty() || &*feed.name > after)
                .take_while(|feed| feed.name.starts_with(prefix))
                .take(limit);
            let mut ids = Vec::new();
            for (at, feed) in looked.enumerate() {
                if glob_matches(pattern, &feed.name) {
                    ids.push(feed.id);
                }
                if at + 1 == limit {
                    last = Some(feed.name.to_string());
                }
            }
            ids
        };
        self.settle().await?;
        Ok((
            ids.into_iter().filter_map(|id| self.tail_of(id)).collect(),
            last,
        ))
    }

    /// Tails of those feeds of this log that are there.
    pub(crate) async fn tails_of(&self, names: &[String]) -> Result<Vec<Tail>> {
        self.settle().await?;
        let ids: Vec<FeedId> = {
            let feeds = self.feeds.borrow();
            let found = names.iter().filter_map(|name| feeds.named(name));
            found.map(|feed| feed.id).collect()
        };
        Ok(ids.into_iter().filter_map(|id| self.tail_of(id)).collect())
    }
}
