//! Machine: what may happen to a subscription next: pure decisions, each a step or a refusal.
//! Spec: spec/subscription.md §2.
//!
//! **Invariants**
//! - SUB-1 to SUB-4: a step that breaks one is not decided.
//! - All acknowledgements of a call are taken, or none.
//!
//! **Not here**: what a step does to the state (`fold`).

use std::collections::BTreeMap;

use super::{Ack, Phase, Step, Subscription, Tail, WakeId, glob};
use crate::ids::FeedId;

/// Who acts for a wake.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fence {
    /// The wake's id.
    pub wake: WakeId,
    /// Its generation.
    pub generation: u64,
}

/// An acknowledgement that is asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AckTo {
    /// Name of the feed.
    pub name: String,
    /// Sequence after the last one that is done.
    pub next: u64,
}

/// Why a subscription does not do what it is asked: without effects.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// None of that name.
    #[error("no subscription {name:?}")]
    NotFound {
        /// Name asked for.
        name: String,
    },
    /// The wake is over, or was another's.
    #[error("fenced: the subscription is at generation {generation}")]
    Fenced {
        /// Its generation.
        generation: u64,
    },
    /// Somebody else holds the wake.
    #[error("claimed by {holder:?} at generation {generation}")]
    Claimed {
        /// Who.
        holder: String,
        /// The wake's generation.
        generation: u64,
    },
    /// There is nothing to do.
    #[error("nothing is pending")]
    NothingPending,
    /// An acknowledgement that does not fit.
    #[error("acknowledgement of {name:?} at {next}: {rule}")]
    Ack {
        /// Name of the feed.
        name: String,
        /// What was to be acknowledged.
        next: u64,
        /// What it breaks.
        rule: &'static str,
    },
    /// It was deleted or made anew meanwhile.
    #[error("subscription {name:?} was made anew meanwhile")]
    Replaced {
        /// Its name.
        name: String,
    },
}

impl Subscription {
    /// Whether feeds of this name are linked.
    #[must_use]
    pub fn is_linked(&self, name: &str) -> bool {
        self.links.contains_key(name) || self.pattern_links(name)
    }

    /// Whether the pattern links feeds of this name.
    #[must_use]
    pub fn pattern_links(&self, name: &str) -> bool {
        let matched = self.options.pattern.as_deref();
        let matched = matched.is_some_and(|pattern| glob::matches(pattern, name));
        matched && self.options.except.as_deref() != Some(name)
    }

    /// Sequence after the last one acknowledged of a feed that is linked.
    #[must_use]
    pub fn acked(&self, name: &str, feed: FeedId, first: u64) -> u64 {
        let link = self.links.get(name);
        let kept = link.filter(|link| link.feed == Some(feed));
        kept.map_or(first, |link| link.acked.max(first))
    }

    /// The wake in force.
    #[must_use]
    pub fn wake(&self) -> Option<WakeId> {
        match &self.phase {
            Phase::Idle => None,
            Phase::Woken { wake, .. } | Phase::Leased { wake, .. } => Some(*wake),
        }
    }

    /// Wakes, if nobody is awake and there is something to do.
    #[must_use]
    pub fn decide_wake(&self, wake: WakeId) -> Option<Step> {
        let due = self.ready && self.phase == Phase::Idle && !self.pending.is_empty();
        let generation = self.generation + 1;
        due.then_some(Step::Woken { wake, generation })
    }

    /// Gives the wake to `holder`.
    ///
    /// # Errors
    /// [`Refusal::NothingPending`], [`Refusal::Claimed`].
    pub fn decide_claim(&self, holder: &str, now_ms: u64) -> Result<Step, Refusal> {
        match &self.phase {
            Phase::Idle => Err(Refusal::NothingPending),
            Phase::Woken { .. } => Ok(self.lease(holder, now_ms)),
            Phase::Leased { holder, .. } => Err(Refusal::Claimed {
                holder: holder.clone(),
                generation: self.generation,
            }),
        }
    }

    /// Whether `fence` is the wake in force.
    ///
    /// # Errors
    /// [`Refusal::Fenced`].
    pub fn check(&self, fence: Fence) -> Result<(), Refusal> {
        let generation = self.generation;
        match self.wake() == Some(fence.wake) && fence.generation == generation {
            true => Ok(()),
            false => Err(Refusal::Fenced { generation }),
        }
    }

    /// A sign of life: the lease begins anew; `holder` has it if nobody had.
    ///
    /// # Errors
    /// [`Refusal::Fenced`].
    pub fn decide_hold(&self, fence: Fence, holder: &str, now_ms: u64) -> Result<Step, Refusal> {
        self.check(fence)?;
        let had_by = match &self.phase {
            Phase::Leased { holder, .. } => holder,
            _ => holder,
        };
        Ok(self.lease(had_by, now_ms))
    }

    /// The wake could not be told to anybody; the next try is at `due_ms`.
    ///
    /// # Errors
    /// [`Refusal::Fenced`]; [`Refusal::Claimed`]: somebody heard of it all the same.
    pub fn decide_fail(&self, fence: Fence, due_ms: u64) -> Result<Step, Refusal> {
        self.check(fence)?;
        match &self.phase {
            Phase::Woken { attempts, .. } => Ok(Step::Failed {
                attempts: attempts.saturating_add(1),
                due_ms,
            }),
            Phase::Leased { holder, .. } => Err(Refusal::Claimed {
                holder: holder.clone(),
                generation: self.generation,
            }),
            Phase::Idle => Err(Refusal::Fenced {
                generation: self.generation,
            }),
        }
    }

    /// Ends the lease of who has been silent for too long.
    #[must_use]
    pub fn decide_expiry(&self, now_ms: u64) -> Option<Step> {
        match &self.phase {
            Phase::Leased { expires_ms, .. } if *expires_ms <= now_ms => Some(Step::Ended),
            _ => None,
        }
    }

    /// What is acknowledged by `asked`, as the feeds are in `tails`.
    ///
    /// # Errors
    /// [`Refusal::Ack`].
    pub fn decide_acks(&self, asked: &[AckTo], tails: &[Tail]) -> Result<Vec<Ack>, Refusal> {
        let tails: BTreeMap<&str, &Tail> = tails.iter().map(|tail| (&*tail.name, tail)).collect();
        let mut before: BTreeMap<&str, u64> = BTreeMap::new();
        let mut acks: Vec<Ack> = Vec::new();
        for AckTo { name, next } in asked {
            let refuse = |rule| {
                let (name, next) = (name.clone(), *next);
                Err(Refusal::Ack { name, next, rule })
            };
            let tail = tails.get(name.as_str());
            let Some(tail) = tail.filter(|_| self.is_linked(name)) else {
                return refuse("not a feed of this subscription");
            };
            let kept = self.acked(name, tail.feed, tail.first);
            let earlier = before.insert(name, *next);
            if *next < earlier.unwrap_or(kept) {
                return refuse("more is acknowledged already");
            }
            if *next > tail.next {
                return refuse("beyond the tail");
            }
            acks.push(Ack {
                name: name.clone(),
                feed: tail.feed,
                acked: *next,
            });
        }
        Ok(acks)
    }

    /// What is acknowledged by a whole wake that told of `told`: what lies behind meanwhile is left out.
    #[must_use]
    pub fn acks_of(&self, told: &[Tail]) -> Vec<Ack> {
        let linked = told.iter().filter(|tail| self.is_linked(&tail.name));
        let ahead = linked.filter(|tail| {
            let same = self.links.get(&tail.name).and_then(|link| link.feed);
            let known = self.pending.get(&tail.name).map(|pending| pending.feed);
            known.or(same).is_none_or(|feed| feed == tail.feed)
                && self.acked(&tail.name, tail.feed, tail.first) < tail.next
        });
        ahead
            .map(|tail| Ack {
                name: tail.name.clone(),
                feed: tail.feed,
                acked: tail.next,
            })
            .collect()
    }

    fn lease(&self, holder: &str, now_ms: u64) -> Step {
        Step::Leased {
            holder: holder.to_owned(),
            expires_ms: now_ms.saturating_add(self.options.lease_ttl_ms),
        }
    }
}
