//! Registry: which subscriptions a name of a feed is of interest to.
//!
//! **Invariants**
//! - It is a copy: who keeps it hears of every change of what subscriptions are linked to.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::{Subscription, glob};

/// What feeds a subscription is linked to.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Selector {
    /// By pattern.
    pub pattern: Option<String>,
    /// But not this one.
    pub except: Option<String>,
    /// By name.
    pub names: BTreeSet<String>,
}

impl Selector {
    pub(crate) fn of(subscription: &Subscription) -> Self {
        let explicit = subscription.links.iter().filter(|(_, link)| link.explicit);
        Self {
            pattern: subscription.options.pattern.clone(),
            except: subscription.options.except.clone(),
            names: explicit.map(|(name, _)| name.clone()).collect(),
        }
    }

    /// Whether feeds of this name are linked.
    #[must_use]
    pub fn selects(&self, name: &str) -> bool {
        let matched = self.pattern.as_deref();
        let matched = matched.is_some_and(|pattern| glob::matches(pattern, name));
        self.names.contains(name) || (matched && self.except.as_deref() != Some(name))
    }
}

/// The selectors of all subscriptions.
#[derive(Debug, Default)]
pub struct Registry(Mutex<BTreeMap<String, Selector>>);

impl Registry {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Selector>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes note of a subscription, or that it is gone.
    pub(crate) fn set(&self, name: &str, selector: Option<Selector>) {
        match selector {
            Some(selector) => self.lock().insert(name.to_owned(), selector),
            None => self.lock().remove(name),
        };
    }

    /// By subscription: which of `names` are of interest to it, as indexes.
    pub(crate) fn interested(&self, names: &[&str]) -> Vec<(String, Vec<usize>)> {
        let known = self.lock();
        let of = |selector: &Selector| -> Vec<usize> {
            let hits = names.iter().enumerate();
            hits.filter(|(_, name)| selector.selects(name))
                .map(|(at, _)| at)
                .collect()
        };
        let all = known.iter().map(|(name, s)| (name.clone(), of(s)));
        all.filter(|(_, hits)| !hits.is_empty()).collect()
    }
}
