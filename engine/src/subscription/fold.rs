//! Fold: applies a change to a log's subscriptions: the same function at admission and in recovery.
//! Spec: spec/subscription.md §3.
//!
//! **Invariants**
//! - WAL-5: no clock, no chance.
//! - SUB-1, SUB-2, SUB-3: a change that breaks one does not fit: from disk it is damage, else a bug.

use std::collections::BTreeMap;

use super::{Ack, Link, LinkRow, Pending, Phase, Step, Subscription, SubscriptionChange, Tail};
use super::{Subscriptions, WakeId};

type Fold = Result<(), String>;

impl Subscriptions {
    /// Applies a change of subscription `name`.
    ///
    /// # Errors
    /// Why it does not fit.
    pub fn apply(&mut self, name: &str, change: &SubscriptionChange) -> Fold {
        match change {
            SubscriptionChange::Created {
                options,
                nonce,
                time_ms,
            } => {
                if self.get(name).is_some_and(|known| known.ready) {
                    return Err(format!("subscription {name:?} created twice"));
                }
                let made = Subscription {
                    options: options.clone(),
                    nonce: *nonce,
                    created_ms: *time_ms,
                    ready: false,
                    generation: 0,
                    phase: Phase::Idle,
                    links: BTreeMap::new(),
                    pending: BTreeMap::new(),
                    handed: None,
                };
                self.insert(name, made);
                Ok(())
            }
            SubscriptionChange::Deleted => match self.remove(name) {
                Some(_) => Ok(()),
                None => Err(format!("subscription {name:?} deleted but not there")),
            },
            SubscriptionChange::Linked { links, ready } => {
                let subscription = self.target(name)?;
                links.iter().for_each(|row| subscription.link(row));
                subscription.ready |= *ready;
                Ok(())
            }
            SubscriptionChange::Unlinked { feeds } => {
                let subscription = self.target(name)?;
                feeds.iter().for_each(|feed| subscription.unlink(feed));
                Ok(())
            }
            SubscriptionChange::Stepped { step, acks } => {
                let subscription = self.target(name)?;
                for ack in acks {
                    subscription.take_ack(ack)?;
                }
                subscription.step(step)
            }
        }
    }
}

impl Subscription {
    fn link(&mut self, row: &LinkRow) {
        self.links.insert(row.name.clone(), row.link);
        self.forget_done(&row.name);
    }

    fn unlink(&mut self, name: &str) {
        self.links.remove(name);
        if !self.is_linked(name) {
            self.pending.remove(name);
        }
    }

    fn take_ack(&mut self, ack: &Ack) -> Fold {
        let link = self.links.entry(ack.name.clone()).or_insert(Link {
            feed: None,
            acked: 0,
            explicit: false,
        });
        if link.feed == Some(ack.feed) && ack.acked < link.acked {
            return Err(format!(
                "feed {:?} acknowledged at {} after {}",
                ack.name, ack.acked, link.acked
            ));
        }
        (link.feed, link.acked) = (Some(ack.feed), ack.acked);
        self.forget_done(&ack.name);
        Ok(())
    }

    fn step(&mut self, step: &Step) -> Fold {
        let wake = self.wake();
        let of_wake = |wake: Option<WakeId>| wake.ok_or("a step of no wake".to_owned());
        self.phase = match step {
            Step::Woken { wake, generation } => {
                if self.phase != Phase::Idle || *generation != self.generation + 1 {
                    return Err(format!(
                        "wake of generation {generation} after {}",
                        self.generation
                    ));
                }
                self.generation = *generation;
                Phase::Woken {
                    wake: *wake,
                    attempts: 0,
                    due_ms: 0,
                }
            }
            Step::Leased { holder, expires_ms } => Phase::Leased {
                wake: of_wake(wake)?,
                holder: holder.clone(),
                expires_ms: *expires_ms,
            },
            Step::Failed { attempts, due_ms } => Phase::Woken {
                wake: of_wake(wake)?,
                attempts: *attempts,
                due_ms: *due_ms,
            },
            Step::Ended => {
                of_wake(wake)?;
                Phase::Idle
            }
        };
        Ok(())
    }

    /// Takes note of a tail. Whether there is something to do because of it.
    pub fn note(&mut self, tail: &Tail) -> bool {
        let linked = self.is_linked(&tail.name);
        let known = self.pending.get(&tail.name);
        let link = self.links.get(&tail.name).and_then(|link| link.feed);
        // A name's feeds have rising ids: this is about one that is not there any more.
        if link.max(known.map(|known| known.feed)) > Some(tail.feed) {
            return false;
        }
        // What was heard of the same feed later says more.
        let next = known
            .filter(|known| known.feed == tail.feed)
            .map_or(tail.next, |known| known.next.max(tail.next));
        if !linked || next <= self.acked(&tail.name, tail.feed, tail.first) {
            return false;
        }
        let pending = Pending {
            feed: tail.feed,
            first: tail.first,
            next,
        };
        self.pending.insert(tail.name.clone(), pending);
        true
    }

    fn forget_done(&mut self, name: &str) {
        let link = self.links.get(name).and_then(|link| link.feed);
        let done = self
            .pending
            .get(name)
            .is_some_and(|p| link > Some(p.feed) || p.next <= self.acked(name, p.feed, p.first));
        if done {
            self.pending.remove(name);
        }
    }
}
