//! Subscriptions: the calls that change and ask subscriptions, and the task that ends their leases.
//! Spec: spec/subscription.md §2.
//!
//! **Invariants**
//! - SUB-5: a step is decided in write order, in the log that the subscription's name belongs to, and
//!   answered once it is durable.
//! - SUB-6: where something is pending and nobody awake, a wake is decided, at the latest a second later.
//!
//! **Not here**: what is only asked (`asked`), what is decided (`subscription`), tails of other logs (`engine::handle` brings them).

use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use super::LogService;
use super::write::{Answer, check_feed_name};
use crate::env::Env;
use crate::error::{Error, Result};
use crate::ids::{FeedId, StreamId};
use crate::subscription::{
    Ack, AckTo, CONFIG_BYTES_MAX, Fence, HOLDER_BYTES_MAX, LEASE_TTL_MS, LINKS_MAX, Link, LinkRow,
    PATTERN_BYTES_MAX, Phase, Refusal, SUBSCRIPTIONS_ID, SUBSCRIPTIONS_MAX, Step, Subscription,
    SubscriptionChange, SubscriptionOptions, Tail, WAKE_FEEDS_MAX, WakeId,
};
use crate::sync::race;
use crate::wal::entry::Change;

/// After a decision that could not be taken: when to try again.
const RETRY: Duration = Duration::from_secs(1);
/// What an acknowledgement takes besides its feed's name, in bytes.
const ACK_BYTES: usize = 20;

/// A subscription as callers see it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SubscriptionInfo {
    /// Its name.
    pub name: String,
    /// How it was made.
    pub options: SubscriptionOptions,
    /// When it was made, in milliseconds since the Unix epoch.
    pub created_ms: u64,
    /// Number of its last wake.
    pub generation: u64,
    /// Where it stands.
    pub phase: Phase,
    /// Feeds with unacknowledged records, as far as known.
    pub pending: Vec<PendingFeed>,
}

/// A feed with unacknowledged records.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PendingFeed {
    /// Its tail.
    pub tail: Tail,
    /// Sequence after the last one acknowledged.
    pub acked: u64,
    /// Linked by name, not only by the pattern.
    pub explicit: bool,
}

/// A wake that somebody is to be told of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DueWake {
    /// The subscription; `pending` holds what the wake tells of.
    pub subscription: SubscriptionInfo,
    /// The wake.
    pub fence: Fence,
    /// Tries that failed before.
    pub attempts: u32,
}

/// What is said about a wake by who works on it.
#[derive(Debug, Clone, Default)]
pub struct AckRequest {
    /// What is acknowledged.
    pub acks: Vec<AckTo>,
    /// Acknowledges all that the wake told of, but what has moved on since.
    pub told: Vec<Tail>,
    /// The wake is over; otherwise its lease begins anew.
    pub ended: bool,
    /// Who has the lease, if nobody had it.
    pub holder: String,
}

fn over(what: &'static str, value: usize, limit: usize) -> Result<()> {
    match value > limit {
        true => Err(Error::OverLimit {
            what,
            value: value as u64,
            limit: limit as u64,
        }),
        false => Ok(()),
    }
}

fn check_options(name: &str, options: &SubscriptionOptions) -> Result<()> {
    check_feed_name(name)?;
    over(
        "subscription config bytes",
        options.config.len(),
        CONFIG_BYTES_MAX,
    )?;
    let names = [&options.pattern, &options.except];
    for text in names.into_iter().flatten() {
        over("pattern bytes", text.len(), PATTERN_BYTES_MAX)?;
    }
    match LEASE_TTL_MS.contains(&options.lease_ttl_ms) {
        true => Ok(()),
        false => Err(Error::Invalid(format!(
            "lease of {} ms: {} to {} are possible",
            options.lease_ttl_ms,
            LEASE_TTL_MS.start(),
            LEASE_TTL_MS.end()
        ))),
    }
}

/// What callers see.
pub(super) fn info(name: &str, known: &Subscription) -> SubscriptionInfo {
    let pending = known.pending.iter().take(WAKE_FEEDS_MAX).map(|(name, at)| {
        let tail = Tail {
            name: name.clone(),
            feed: at.feed,
            first: at.first,
            next: at.next,
        };
        PendingFeed {
            acked: known.acked(name, at.feed, at.first),
            explicit: known.links.get(name).is_some_and(|link| link.explicit),
            tail,
        }
    });
    SubscriptionInfo {
        name: name.to_owned(),
        options: known.options.clone(),
        created_ms: known.created_ms,
        generation: known.generation,
        phase: known.phase.clone(),
        pending: pending.collect(),
    }
}

fn missing(name: &str) -> Error {
    let name = name.to_owned();
    Refusal::NotFound { name }.into()
}

impl<E: Env> LogService<E> {
    fn subscription_change(&self, name: &str, change: SubscriptionChange) {
        let name = name.to_owned();
        let change = Change::Subscription { name, change };
        self.change(SUBSCRIPTIONS_ID, StreamId(0), &change);
        self.subscribed.notify();
    }

    fn subscription_step(&self, name: &str, step: Step, acks: Vec<Ack>) {
        self.subscription_change(name, SubscriptionChange::Stepped { step, acks });
    }

    /// Decides over a subscription that is ready.
    fn with_subscription<T>(
        &self,
        name: &str,
        decide: impl FnOnce(&Subscription) -> Result<T>,
    ) -> Result<T> {
        let feeds = self.feeds.borrow();
        let known = feeds.subscriptions.ready(name);
        decide(known.ok_or_else(|| missing(name))?)
    }

    /// Begins a subscription: it is seen once [`LogService::link_subscription`] says that it is ready. Whether
    /// there was none.
    pub(crate) fn begin_subscription(
        self: &Rc<Self>,
        name: String,
        options: SubscriptionOptions,
        nonce: u64,
        answer: Answer<bool>,
    ) {
        self.decide(answer, move |service| {
            check_options(&name, &options)?;
            {
                let feeds = service.feeds.borrow();
                if feeds.subscriptions.ready(&name).is_some() {
                    return Ok(false);
                }
                let count = feeds.subscriptions.count();
                let new = feeds.subscriptions.get(&name).is_none();
                over("subscriptions", count + usize::from(new), SUBSCRIPTIONS_MAX)?;
            }
            let time_ms = service.env.realtime_ms();
            let created = SubscriptionChange::Created {
                options,
                nonce,
                time_ms,
            };
            service.subscription_change(&name, created);
            Ok(true)
        });
    }

    /// Sets first links of the subscription that `nonce` began.
    pub(crate) fn first_links(
        self: &Rc<Self>,
        (name, nonce): (String, u64),
        links: Vec<LinkRow>,
        ready: bool,
        answer: Answer<()>,
    ) {
        // Many of them take as much of the log as a batch.
        let bytes = links.iter().map(|row| row.name.len() + 32).sum();
        self.queue_write(bytes, move |service, room| {
            let decided = room.and_then(|()| {
                let feeds = service.feeds.borrow();
                let known = feeds.subscriptions.get(&name);
                let ours = known.filter(|known| !known.ready && known.nonce == nonce);
                let replaced = || Refusal::Replaced { name: name.clone() };
                let known = ours.ok_or_else(replaced)?;
                over("links", known.links.len() + links.len(), LINKS_MAX)?;
                drop(feeds);
                service.subscription_change(&name, SubscriptionChange::Linked { links, ready });
                service.tails.watch.note_subscription(&name);
                Ok(())
            });
            service.settled(move |durable| answer(durable.and(decided)));
        });
    }

    /// Links feeds by name: those that were not linked at their tail, as far as they are in `tails`.
    pub(crate) fn link_feeds(
        self: &Rc<Self>,
        name: String,
        feeds: Vec<String>,
        tails: Vec<Tail>,
        answer: Answer<()>,
    ) {
        self.decide(answer, move |service| {
            let tails = tails.into_iter().map(|tail| (tail.name.clone(), tail));
            let tails: BTreeMap<String, Tail> = tails.collect();
            let links = service.with_subscription(&name, |known| {
                let rows = feeds.iter().filter(|feed| {
                    let link = known.links.get(*feed);
                    link.is_none_or(|link| !link.explicit)
                });
                let rows: Vec<LinkRow> =
                    rows.map(|feed| known.explicit_row(feed, &tails)).collect();
                over("links", known.links.len() + rows.len(), LINKS_MAX)?;
                Ok(rows)
            })?;
            if !links.is_empty() {
                let ready = true;
                service.subscription_change(&name, SubscriptionChange::Linked { links, ready });
                service.tails.watch.note_subscription(&name);
            }
            Ok(())
        });
    }

    /// Takes back that a feed was linked by name; the pattern may link it still.
    pub(crate) fn unlink_feed(self: &Rc<Self>, name: String, feed: String, answer: Answer<()>) {
        self.decide(answer, move |service| {
            let change = service.with_subscription(&name, |known| {
                let link = known.links.get(&feed).filter(|link| link.explicit);
                Ok(link.map(|link| match known.pattern_links(&feed) {
                    true => SubscriptionChange::Linked {
                        links: vec![LinkRow {
                            name: feed.clone(),
                            link: Link {
                                explicit: false,
                                ..*link
                            },
                        }],
                        ready: true,
                    },
                    false => SubscriptionChange::Unlinked {
                        feeds: vec![feed.clone()],
                    },
                }))
            })?;
            if let Some(change) = change {
                service.subscription_change(&name, change);
                service.tails.watch.note_subscription(&name);
            }
            Ok(())
        });
    }

    /// Deletes a subscription, ready or not; whether there was one.
    pub(crate) fn delete_subscription(self: &Rc<Self>, name: String, answer: Answer<bool>) {
        self.decide(answer, move |service| {
            let known = service.feeds.borrow().subscriptions.get(&name).is_some();
            if known {
                service.subscription_change(&name, SubscriptionChange::Deleted);
                service.tails.watch.note_subscription(&name);
            }
            Ok(known)
        });
    }

    /// Takes note of tails and of feeds that are gone, and wakes.
    pub(crate) fn note_tails(
        self: &Rc<Self>,
        name: String,
        tails: Vec<Tail>,
        gone: Vec<(String, FeedId)>,
        answer: Answer<()>,
    ) {
        // Not kept in the log: noted also where that has no room, so that the wake follows when it has.
        self.note_now(&name, &tails);
        self.decide(answer, move |service| {
            service.forget_feeds(&name, &gone);
            service.wake_now(&name);
            Ok(())
        });
    }

    fn note_now(&self, name: &str, tails: &[Tail]) {
        let mut feeds = self.feeds.borrow_mut();
        if let Some(known) = feeds.subscriptions.get_mut(name) {
            tails.iter().for_each(|tail| {
                known.note(tail);
            });
        }
    }

    /// A deleted feed is not pending any more; what was kept of it for the pattern's sake goes.
    fn forget_feeds(&self, name: &str, gone: &[(String, FeedId)]) {
        let mut stale = Vec::new();
        if let Some(known) = self.feeds.borrow_mut().subscriptions.get_mut(name) {
            for (feed, id) in gone {
                if known.pending.get(feed).is_some_and(|at| at.feed == *id) {
                    known.pending.remove(feed);
                }
                let link = known.links.get(feed);
                if link.is_some_and(|link| !link.explicit && link.feed == Some(*id)) {
                    stale.push(feed.clone());
                }
            }
        }
        if !stale.is_empty() {
            self.subscription_change(name, SubscriptionChange::Unlinked { feeds: stale });
        }
    }

    /// Decides a wake, if one is due; whether it was.
    fn wake_now(&self, name: &str) -> bool {
        let high = u128::from(self.env.random_u64());
        let wake = WakeId((high << 64) | u128::from(self.env.random_u64()));
        let step = {
            let feeds = self.feeds.borrow();
            let known = feeds.subscriptions.ready(name);
            known.and_then(|known| known.decide_wake(wake))
        };
        let woken = step.is_some();
        if let Some(step) = step {
            self.subscription_step(name, step, Vec::new());
        }
        woken
    }

    /// Gives the wake to `holder`; its fence and what it is about.
    pub(crate) fn claim(self: &Rc<Self>, name: String, holder: String, answer: Answer<DueWake>) {
        self.decide(answer, move |service| {
            over("holder bytes", holder.len(), HOLDER_BYTES_MAX)?;
            service.wake_now(&name);
            let now_ms = service.env.realtime_ms();
            let step = service.with_subscription(&name, |known| {
                known.decide_claim(&holder, now_ms).map_err(Error::from)
            })?;
            service.subscription_step(&name, step, Vec::new());
            service.with_subscription(&name, |known| {
                Ok(DueWake {
                    fence: known.fence(),
                    subscription: info(&name, known),
                    attempts: 0,
                })
            })
        });
    }

    /// Acknowledges, and ends the wake or lengthens its lease. Whether another wake follows at once.
    pub(crate) fn acknowledge(
        self: &Rc<Self>,
        (name, fence): (String, Fence),
        request: AckRequest,
        tails: Vec<Tail>,
        answer: Answer<bool>,
    ) {
        let asked = request.acks.iter().map(|ack| ack.name.len() + ACK_BYTES);
        let told = request.told.iter().map(|tail| tail.name.len() + ACK_BYTES);
        let bytes = asked.chain(told).sum();
        let decide = move |service: &Rc<Self>| {
            // They are one entry of the log, as a batch is.
            let limit = service.config.frame.batch_bytes_max;
            over("acknowledgement bytes", bytes, limit)?;
            over("holder bytes", request.holder.len(), HOLDER_BYTES_MAX)?;
            let now_ms = service.env.realtime_ms();
            let (step, acks) = service.with_subscription(&name, |known| {
                let held = known.decide_hold(fence, &request.holder, now_ms)?;
                let mut acks = known.decide_acks(&request.acks, &tails)?;
                acks.extend(known.acks_of(&request.told));
                over("links", known.links.len() + acks.len(), LINKS_MAX)?;
                let step = match request.ended {
                    true => Step::Ended,
                    false => held,
                };
                Ok((step, acks))
            })?;
            service.subscription_step(&name, step, acks);
            Ok(request.ended && service.wake_now(&name))
        };
        self.queue_write(bytes, move |service, room| {
            let decided = room.and_then(|()| decide(service));
            service.settled(move |durable| answer(durable.and(decided)));
        });
    }

    /// Nobody could be told of the wake; the next try is at `due_ms`.
    pub(crate) fn fail_wake(
        self: &Rc<Self>,
        (name, fence): (String, Fence),
        due_ms: u64,
        answer: Answer<()>,
    ) {
        self.decide(answer, move |service| {
            let step = service.with_subscription(&name, |known| {
                known.decide_fail(fence, due_ms).map_err(Error::from)
            })?;
            service.subscription_step(&name, step, Vec::new());
            Ok(())
        });
    }

    /// Ends leases that are over, and wakes where something is pending.
    fn turn_subscriptions(&self) {
        let now_ms = self.env.realtime_ms();
        let (over, idle): (Vec<_>, Vec<_>) = {
            let feeds = self.feeds.borrow();
            let all = feeds.subscriptions.iter();
            let due = all.filter_map(|(name, known)| {
                let step = known.decide_expiry(now_ms);
                let idle = known.phase == Phase::Idle && !known.pending.is_empty();
                (step.is_some() || idle).then(|| (name.to_owned(), step))
            });
            due.partition(|(_, step)| step.is_some())
        };
        for (name, step) in over.into_iter().chain(idle) {
            if let Some(step) = step {
                self.subscription_step(&name, step, Vec::new());
            }
            self.wake_now(&name);
        }
    }

    /// Waits for leases to be over, and ends them.
    pub(super) async fn run_subscriptions(self: Rc<Self>) {
        loop {
            let moved = self.subscribed.listen();
            if self.is_stopping() {
                return;
            }
            let (expiry_ms, unwoken) = {
                let feeds = self.feeds.borrow();
                let known = &feeds.subscriptions;
                (known.next_expiry_ms(), known.has_unwoken())
            };
            let now_ms = self.env.realtime_ms();
            if unwoken || expiry_ms.is_some_and(|at| at <= now_ms) {
                let (done, decided) = flume::bounded(1);
                let told = move |outcome: Result<()>| drop(done.send(outcome));
                self.decide(told, |service| {
                    service.turn_subscriptions();
                    Ok(())
                });
                if !matches!(decided.recv_async().await, Ok(Ok(()))) {
                    self.env.sleep(RETRY).await;
                }
                continue;
            }
            match expiry_ms {
                Some(at) => {
                    let left = Duration::from_millis(at.saturating_sub(now_ms));
                    race(moved, self.env.sleep(left)).await;
                }
                None => moved.await,
            }
        }
    }
}

impl Subscription {
    /// Whoever acts for the wake in force.
    pub(super) fn fence(&self) -> Fence {
        Fence {
            wake: self.wake().unwrap_or_default(),
            generation: self.generation,
        }
    }

    /// The row of a feed that is linked by name: acknowledged as it is, or to its tail.
    fn explicit_row(&self, name: &str, tails: &BTreeMap<String, Tail>) -> LinkRow {
        let tail = tails.get(name);
        let acked = tail.map_or(0, |tail| match self.is_linked(name) {
            true => self.acked(name, tail.feed, tail.first),
            false => tail.next,
        });
        LinkRow {
            name: name.to_owned(),
            link: Link {
                feed: tail.map(|tail| tail.feed),
                acked,
                explicit: true,
            },
        }
    }
}
