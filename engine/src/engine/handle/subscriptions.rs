//! Subscriptions: what may be done with subscriptions, whose feeds may be in any log.
//! Spec: spec/subscription.md §4.
//!
//! **Invariants**
//! - A decision is the owning log's; tails of other logs are asked for before, and only ever rise meanwhile.
//!
//! **Not here**: what carries tails to subscriptions (`carry`), decisions (`shard`).

use std::collections::BTreeMap;
use std::rc::Rc;

use super::Handle;
use crate::env::Env;
use crate::env::random_u64;
use crate::error::{Error, Result};
use crate::ids::FeedId;
use crate::shard::{AckRequest, DueWake, LogService, SubscriptionInfo};
use crate::subscription::{
    Fence, LINKS_MAX, Link, LinkRow, Refusal, Selector, SubscriptionOptions, Tail, glob_prefix,
};

/// Feeds looked at in one turn of a shard: others wait meanwhile.
const PAGE: usize = 128;
/// Bytes of links in one entry of the log.
const LINK_BYTES: usize = 32 << 10;
/// What a link takes besides its feed's name, in bytes.
const LINK_ROW_BYTES: usize = 32;
/// Tries to make a subscription that others make at the same time.
const TRIES: usize = 8;

/// What a subscription is to begin with.
#[derive(Debug, Clone, Default)]
pub struct SubscribeRequest {
    /// How it is made.
    pub options: SubscriptionOptions,
    /// Feeds that are linked by name, whether they are there or not.
    pub feeds: Vec<String>,
}

/// What became of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Subscribed {
    /// The subscription as it is now.
    pub subscription: SubscriptionInfo,
    /// It was this call that made it.
    pub now: bool,
}

/// A feed that a subscription is linked to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LinkedFeed {
    /// Its name.
    pub name: String,
    /// By name, not only by the pattern.
    pub explicit: bool,
    /// Sequence after the last one acknowledged.
    pub acked: u64,
    /// Its tail; none: it is not there.
    pub tail: Option<Tail>,
}

impl<E: Env> Handle<E> {
    /// Makes a subscription, if there is none of that name. Feeds that are there are linked at their tail.
    ///
    /// # Errors
    /// [`Error::FeedName`], [`Error::OverLimit`] (configuration, pattern, links, subscriptions),
    /// [`Error::Invalid`] (lease), [`Error::StorageFull`]: without effects that anybody sees. After
    /// [`Error::Closed`] or [`Error::Poisoned`] effects are unknown.
    ///
    /// # Cancel safety
    /// Dropped after it was sent, the subscription may exist.
    pub async fn subscribe(&self, name: &str, request: SubscribeRequest) -> Result<Subscribed> {
        for _ in 0..TRIES {
            if let Some(subscription) = self.subscription(name).await? {
                let now = false;
                return Ok(Subscribed { subscription, now });
            }
            match self.try_subscribe(name, &request).await {
                Ok(true) => {
                    let found = self.subscription(name).await?;
                    let subscription = found.ok_or_else(|| missing(name))?;
                    let now = true;
                    return Ok(Subscribed { subscription, now });
                }
                Ok(false) | Err(Error::Subscription(Refusal::Replaced { .. })) => {}
                Err(error) => return Err(error),
            }
        }
        let name = name.to_owned();
        Err(Refusal::Replaced { name }.into())
    }

    /// Begins a subscription, links it and has it seen; whether there was none.
    async fn try_subscribe(&self, name: &str, request: &SubscribeRequest) -> Result<bool> {
        let (log, nonce) = (self.log_of(name), random_u64());
        let (owned, options) = (name.to_owned(), request.options.clone());
        let begun = self.call(log, move |s, answer| {
            s.begin_subscription(owned, options, nonce, answer)
        });
        if !begun.await? {
            return Ok(false);
        }
        let rows = self.first_rows(request).await?;
        let parts = parts(rows, |row| row.name.len());
        let last = parts.len() - 1;
        for (at, links) in parts.into_iter().enumerate() {
            let owned = (name.to_owned(), nonce);
            self.call(log, move |s, answer| {
                s.first_links(owned, links, at == last, answer)
            })
            .await?;
        }
        Ok(true)
    }

    async fn first_rows(&self, request: &SubscribeRequest) -> Result<Vec<LinkRow>> {
        let named: std::collections::BTreeSet<String> = request.feeds.iter().cloned().collect();
        let mut tails = self.tails(named.iter()).await?;
        let mut rows: BTreeMap<String, Link> = BTreeMap::new();
        for name in &named {
            let tail = tails.remove(name);
            let link = Link {
                feed: tail.as_ref().map(|tail| tail.feed),
                acked: tail.map_or(0, |tail| tail.next),
                explicit: true,
            };
            rows.insert(name.clone(), link);
        }
        let selector = Selector {
            pattern: request.options.pattern.clone(),
            except: request.options.except.clone(),
            ..Selector::default()
        };
        for tail in self.selected(&selector).await? {
            // A feed without records is at its first sequence: the pattern says so, no row is needed.
            if tail.next > tail.first {
                rows.entry(tail.name).or_insert(Link {
                    feed: Some(tail.feed),
                    acked: tail.next,
                    explicit: false,
                });
            }
            if rows.len() > LINKS_MAX {
                let what = "links";
                let (value, limit) = (rows.len() as u64, LINKS_MAX as u64);
                return Err(Error::OverLimit { what, value, limit });
            }
        }
        let rows = rows.into_iter();
        Ok(rows.map(|(name, link)| LinkRow { name, link }).collect())
    }

    /// Tails of all feeds that are there and selected.
    pub(super) async fn selected(&self, selector: &Selector) -> Result<Vec<Tail>> {
        let mut found: BTreeMap<String, Tail> = self.tails(selector.names.iter()).await?;
        if let Some(pattern) = &selector.pattern {
            for log in 0..self.logs() {
                let mut after = Some(String::new());
                while let Some(from) = after {
                    let (page, more) = self.match_page(log, pattern, from).await?;
                    let page = page.into_iter();
                    let wanted = page.filter(|t| selector.except.as_ref() != Some(&t.name));
                    found.extend(wanted.map(|tail| (tail.name.clone(), tail)));
                    after = more;
                }
            }
        }
        Ok(found.into_values().collect())
    }

    async fn match_page(
        &self,
        log: usize,
        pattern: &str,
        after: String,
    ) -> Result<(Vec<Tail>, Option<String>)> {
        let pattern = pattern.to_owned();
        self.ask(log, |s: Rc<LogService<E>>| async move {
            let prefix = glob_prefix(&pattern);
            s.match_feeds(&pattern, prefix, &after, PAGE).await
        })
        .await
    }

    /// Tails of those feeds that are there, by name.
    async fn tails<'a>(
        &self,
        names: impl Iterator<Item = &'a String>,
    ) -> Result<BTreeMap<String, Tail>> {
        let mut by_log: BTreeMap<usize, Vec<String>> = BTreeMap::new();
        for name in names {
            let of_log = by_log.entry(self.log_of(name)).or_default();
            of_log.push(name.clone());
        }
        let mut tails = BTreeMap::new();
        for (log, names) in by_log {
            for part in names.chunks(PAGE) {
                let part = part.to_vec();
                let ask = |s: Rc<LogService<E>>| async move { s.tails_of(&part).await };
                let found = self.ask(log, ask).await?;
                tails.extend(found.into_iter().map(|tail| (tail.name.clone(), tail)));
            }
        }
        Ok(tails)
    }

    /// The subscription `name`, if there is one.
    ///
    /// # Errors
    /// [`Error::Poisoned`], [`Error::Closed`].
    ///
    /// # Cancel safety
    /// Cancel safe: only reads.
    pub async fn subscription(&self, name: &str) -> Result<Option<SubscriptionInfo>> {
        let owned = name.to_owned();
        let ask = |s: Rc<LogService<E>>| async move { s.subscription(&owned).await };
        self.ask(self.log_of(name), ask).await
    }

    /// What a subscription is linked to, if there is one of that name.
    pub(super) async fn selector(&self, name: &str) -> Result<Option<Selector>> {
        let owned = name.to_owned();
        let ask = |s: Rc<LogService<E>>| async move { s.selector(&owned).await };
        self.ask(self.log_of(name), ask).await
    }

    /// Feeds that subscription `name` is linked to, in name order: those linked by name whether they are there or
    /// not, and all that are there and match its pattern. None if there is no such subscription.
    ///
    /// # Errors
    /// [`Error::Poisoned`], [`Error::Closed`].
    ///
    /// # Cancel safety
    /// Cancel safe: only reads.
    pub async fn linked_feeds(&self, name: &str) -> Result<Vec<LinkedFeed>> {
        let owned = name.to_owned();
        let ask = |s: Rc<LogService<E>>| async move { s.subscription_links(&owned).await };
        let Some((selector, kept)) = self.ask(self.log_of(name), ask).await? else {
            return Ok(Vec::new());
        };
        let absent = |name: &String| LinkedFeed {
            name: name.clone(),
            explicit: true,
            acked: 0,
            tail: None,
        };
        let named = selector.names.iter();
        let mut feeds: BTreeMap<String, LinkedFeed> =
            named.map(|name| (name.clone(), absent(name))).collect();
        for tail in self.selected(&selector).await? {
            let link = kept.get(&tail.name);
            let same = link.filter(|link| link.feed == Some(tail.feed));
            let feed = LinkedFeed {
                explicit: link.is_some_and(|link| link.explicit),
                acked: same.map_or(tail.first, |link| link.acked.max(tail.first)),
                name: tail.name.clone(),
                tail: Some(tail),
            };
            feeds.insert(feed.name.clone(), feed);
        }
        Ok(feeds.into_values().collect())
    }

    /// Names of all subscriptions of a log.
    pub(super) async fn subscription_names(&self, log: usize) -> Result<Vec<String>> {
        let ask = |s: Rc<LogService<E>>| async move { s.subscription_names().await };
        self.ask(log, ask).await
    }

    /// Links feeds by name. Those that were not linked before are linked at their tail. Many are linked in parts:
    /// after an error some may be.
    ///
    /// # Errors
    /// [`Error::Subscription`] (none of that name), [`Error::OverLimit`] (links), [`Error::StorageFull`]. After [`Error::Closed`] or [`Error::Poisoned`] effects are unknown.
    ///
    /// # Cancel safety
    /// Dropped after it was sent, the feeds may be linked.
    pub async fn link_feeds(&self, name: &str, feeds: Vec<String>) -> Result<()> {
        for feeds in parts(feeds, String::len) {
            let tails = self.tails(feeds.iter()).await?.into_values().collect();
            let owned = name.to_owned();
            let job =
                move |s: &Rc<LogService<E>>, answer| s.link_feeds(owned, feeds, tails, answer);
            self.call(self.log_of(name), job).await?;
        }
        Ok(())
    }

    /// Takes back that a feed was linked by name; if the pattern matches, it stays linked.
    ///
    /// # Errors
    /// As [`Handle::link_feeds`].
    ///
    /// # Cancel safety
    /// Dropped after it was sent, the feed may be unlinked.
    pub async fn unlink_feed(&self, name: &str, feed: &str) -> Result<()> {
        let (owned, feed) = (name.to_owned(), feed.to_owned());
        self.call(self.log_of(name), move |s, answer| {
            s.unlink_feed(owned, feed, answer)
        })
        .await
    }

    /// Deletes a subscription; whether there was one.
    ///
    /// # Errors
    /// [`Error::StorageFull`], without effects; [`Error::Poisoned`], [`Error::Closed`].
    ///
    /// # Cancel safety
    /// Dropped after it was sent, the subscription may be gone.
    pub async fn unsubscribe(&self, name: &str) -> Result<bool> {
        let owned = name.to_owned();
        self.call(self.log_of(name), move |s, answer| {
            s.delete_subscription(owned, answer)
        })
        .await
    }

    /// Takes the wake of a subscription for `holder`, who has it until the lease is over or the wake ended.
    ///
    /// # Errors
    /// [`Error::Subscription`]: none of that name, claimed by somebody, or nothing is pending;
    /// [`Error::OverLimit`] (holder), [`Error::StorageFull`]: without effects. After [`Error::Closed`] or
    /// [`Error::Poisoned`] effects are unknown.
    ///
    /// # Cancel safety
    /// Dropped after it was sent, the lease may be taken; it runs out.
    pub async fn claim(&self, name: &str, holder: &str) -> Result<DueWake> {
        let known = self.subscription(name).await?;
        let known = known.ok_or_else(|| missing(name))?;
        if known.pending.is_empty() {
            // The news of a record just appended may be on its way.
            let selector = self.selector(name).await?;
            self.look(name, &selector.unwrap_or_default()).await?;
        }
        let (owned, holder) = (name.to_owned(), holder.to_owned());
        self.call(self.log_of(name), move |s, answer| {
            s.claim(owned, holder, answer)
        })
        .await
    }

    /// Acknowledges for the wake that `fence` names, and ends it or lengthens its lease. Whether the next wake
    /// was decided with it.
    ///
    /// # Errors
    /// [`Error::Subscription`]: none of that name, fenced, or an acknowledgement that does not fit;
    /// [`Error::OverLimit`], [`Error::StorageFull`]: without effects. After [`Error::Closed`] or
    /// [`Error::Poisoned`] effects are unknown.
    ///
    /// # Cancel safety
    /// Dropped after it was sent, it may be done.
    pub async fn acknowledge(&self, name: &str, fence: Fence, request: AckRequest) -> Result<bool> {
        let names = request.acks.iter().map(|ack| &ack.name);
        let tails = self.tails(names).await?.into_values().collect();
        let owned = (name.to_owned(), fence);
        self.call(self.log_of(name), move |s, answer| {
            s.acknowledge(owned, request, tails, answer)
        })
        .await
    }

    /// Says that nobody could be told of the wake; it is due again at `due_ms`, in milliseconds since the Unix
    /// epoch.
    ///
    /// # Errors
    /// [`Error::Subscription`]: none of that name, fenced, or held by somebody; [`Error::StorageFull`]:
    /// without effects. After [`Error::Closed`] or [`Error::Poisoned`] effects are unknown.
    ///
    /// # Cancel safety
    /// Dropped after it was sent, it may be done.
    pub async fn fail_wake(&self, name: &str, fence: Fence, due_ms: u64) -> Result<()> {
        let owned = (name.to_owned(), fence);
        self.call(self.log_of(name), move |s, answer| {
            s.fail_wake(owned, due_ms, answer)
        })
        .await
    }

    /// Waits for wakes of a log that somebody is to be told of. Each try is given to one caller, once; after a
    /// restart again.
    ///
    /// # Errors
    /// [`Error::Poisoned`], [`Error::Closed`].
    ///
    /// # Cancel safety
    /// Not cancel safe: what was taken and not answered is not given out again before a restart.
    pub async fn due_wakes(&self, log: usize) -> Result<Vec<DueWake>> {
        let ask = |s: Rc<LogService<E>>| async move { s.due_wakes().await };
        self.ask(log, ask).await
    }

    /// Looks at all feeds that a subscription is linked to, and tells it of them.
    pub(super) async fn look(&self, name: &str, selector: &Selector) -> Result<()> {
        let tails = self.selected(selector).await?;
        let mut told: BTreeMap<String, FeedId> = BTreeMap::new();
        told.extend(tails.iter().map(|tail| (tail.name.clone(), tail.feed)));
        for part in tails.chunks(PAGE) {
            self.note_tails(name, part.to_vec(), Vec::new()).await?;
        }
        // The news that one was deleted may have come before it was told of.
        let now = self.tails(told.keys()).await?;
        let is_there = |(name, id): &(String, FeedId)| {
            let tail = now.get(name);
            tail.is_some_and(|tail| tail.feed == *id)
        };
        let gone: Vec<_> = told.into_iter().filter(|feed| !is_there(feed)).collect();
        for part in gone.chunks(PAGE) {
            self.note_tails(name, Vec::new(), part.to_vec()).await?;
        }
        Ok(())
    }

    /// Tells a subscription of tails and of feeds that are gone.
    pub(super) async fn note_tails(
        &self,
        name: &str,
        tails: Vec<Tail>,
        gone: Vec<(String, FeedId)>,
    ) -> Result<()> {
        let owned = name.to_owned();
        self.call(self.log_of(name), move |s, answer| {
            s.note_tails(owned, tails, gone, answer)
        })
        .await
    }
}

fn missing(name: &str) -> Error {
    let name = name.to_owned();
    Refusal::NotFound { name }.into()
}

/// Cuts a list into parts that are one entry of the log each; one at least, if only an empty one.
fn parts<T>(rows: Vec<T>, bytes_of: impl Fn(&T) -> usize) -> Vec<Vec<T>> {
    let mut parts = vec![Vec::new()];
    let mut bytes = 0;
    for row in rows {
        bytes += bytes_of(&row) + LINK_ROW_BYTES;
        if bytes > LINK_BYTES {
            bytes = bytes_of(&row) + LINK_ROW_BYTES;
            parts.push(Vec::new());
        }
        parts.last_mut().expect("one at least").push(row);
    }
    parts
}
