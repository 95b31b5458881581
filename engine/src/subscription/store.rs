//! Store: all subscriptions of one log, by name.
//!
//! **Invariants**
//! - One that is not ready is seen by nobody but who makes it.

use std::collections::BTreeMap;

use super::{Phase, Subscription};
use crate::ids::FeedId;

/// The feed that entries of subscriptions name: no feed has it, and its checkpoint chunk is theirs alone.
pub(crate) const SUBSCRIPTIONS_ID: FeedId = FeedId(u64::MAX);

/// All subscriptions of one log.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Subscriptions {
    by_name: BTreeMap<String, Box<Subscription>>,
}

impl Subscriptions {
    /// The subscription of that name, also if it is not ready.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Subscription> {
        self.by_name.get(name).map(|subscription| &**subscription)
    }

    /// The subscription of that name, if it is ready.
    #[must_use]
    pub fn ready(&self, name: &str) -> Option<&Subscription> {
        self.get(name).filter(|subscription| subscription.ready)
    }

    pub(crate) fn get_mut(&mut self, name: &str) -> Option<&mut Subscription> {
        self.by_name.get_mut(name).map(|known| &mut **known)
    }

    pub(super) fn target(&mut self, name: &str) -> Result<&mut Subscription, String> {
        let missing = || format!("no subscription {name:?}");
        self.get_mut(name).ok_or_else(missing)
    }

    pub(crate) fn insert(&mut self, name: &str, subscription: Subscription) {
        self.by_name.insert(name.to_owned(), Box::new(subscription));
    }

    pub(super) fn remove(&mut self, name: &str) -> Option<Box<Subscription>> {
        self.by_name.remove(name)
    }

    /// All of them, in order of names.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Subscription)> {
        let all = self.by_name.iter();
        all.map(|(name, subscription)| (name.as_str(), &**subscription))
    }

    pub(crate) fn into_iter(self) -> impl Iterator<Item = (String, Subscription)> {
        let all = self.by_name.into_iter();
        all.map(|(name, subscription)| (name, *subscription))
    }

    /// How many there are.
    pub(crate) fn count(&self) -> usize {
        self.by_name.len()
    }

    /// When the next lease is over.
    pub(crate) fn next_expiry_ms(&self) -> Option<u64> {
        let leases = self.iter().filter_map(|(_, known)| match known.phase {
            Phase::Leased { expires_ms, .. } => Some(expires_ms),
            _ => None,
        });
        leases.min()
    }

    /// Whether a wake is to be decided.
    pub(crate) fn has_unwoken(&self) -> bool {
        let idle = |known: &Subscription| known.ready && known.phase == Phase::Idle;
        self.iter()
            .any(|(_, known)| idle(known) && !known.pending.is_empty())
    }

    /// When the next try to tell of a wake is due.
    pub(crate) fn next_due_ms(&self) -> Option<u64> {
        let due = self.iter().filter_map(|(_, known)| known.undelivered());
        due.map(|(_, due_ms)| due_ms).min()
    }
}

impl Subscription {
    /// The try that is to be given to a front end, and when.
    pub(crate) fn undelivered(&self) -> Option<((u64, u32), u64)> {
        match self.phase {
            Phase::Woken {
                attempts, due_ms, ..
            } if self.ready => {
                let attempt = (self.generation, attempts);
                (self.handed != Some(attempt)).then_some((attempt, due_ms))
            }
            _ => None,
        }
    }
}
