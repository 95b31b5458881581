//! Bindings: the numbers that stand for feeds on one connection. Spec: server/spec/native-protocol.md §8.
//!
//! **Invariants**
//! - A feed has one number, whatever it was bound by; numbers are never taken back.
//! - There are at most [`BINDINGS_MAX`], and those that requests under way had been let in for.
//!
//! **Not here**: what is done with a number (`reader`).

use std::cell::{Ref, RefCell};
use std::collections::BTreeMap;

use sealog_engine::ids::FeedId;
use sealog_engine::{Error, FeedRef, LocalLog, Result};
use sealog_protocol::BINDINGS_MAX;

/// A feed by number.
#[derive(Clone)]
pub(super) struct Binding {
    pub(super) feed: FeedRef,
    /// Its log, if it is this shard's.
    pub(super) log: Option<LocalLog>,
    /// Number of its log.
    pub(super) lane: usize,
}

/// The bindings of a connection.
#[derive(Default)]
pub(super) struct Bindings {
    list: RefCell<Vec<Binding>>,
    numbers: RefCell<BTreeMap<FeedId, u32>>,
}

impl Bindings {
    pub(super) fn get(&self, number: u32) -> Option<Ref<'_, Binding>> {
        let index = usize::try_from(number).ok()?;
        Ref::filter_map(self.list.borrow(), |list| list.get(index)).ok()
    }

    /// The number of the feed with this id; `make` is asked what it is if it has none yet.
    pub(super) fn bind(&self, id: FeedId, make: impl FnOnce() -> Binding) -> u32 {
        let mut list = self.list.borrow_mut();
        let mut numbers = self.numbers.borrow_mut();
        *numbers.entry(id).or_insert_with(|| {
            list.push(make());
            u32::try_from(list.len() - 1).unwrap_or(u32::MAX)
        })
    }

    /// Whether there is no room for another one.
    pub(super) fn is_full(&self) -> bool {
        self.list.borrow().len() as u64 >= u64::from(BINDINGS_MAX)
    }

    /// Refuses the feed with this id if it would be one too many.
    pub(super) fn check(&self, id: FeedId) -> Result<()> {
        match self.is_full() && !self.numbers.borrow().contains_key(&id) {
            false => Ok(()),
            true => Err(Error::OverLimit {
                what: "bindings of a connection",
                value: u64::from(BINDINGS_MAX) + 1,
                limit: u64::from(BINDINGS_MAX),
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bind(bindings: &Bindings, id: u64) -> u32 {
        let id = FeedId(id);
        bindings.bind(id, || Binding {
            feed: FeedRef {
                name: "f".into(),
                id: Some(id),
            },
            log: None,
            lane: 0,
        })
    }

    #[test]
    fn bindings_keep_their_numbers_and_are_refused_beyond_the_limit() {
        let bindings = Bindings::default();
        for n in 0..u64::from(BINDINGS_MAX) {
            bindings.check(FeedId(n + 5)).unwrap();
            assert_eq!(u64::from(bind(&bindings, n + 5)), n);
        }
        assert_eq!(bind(&bindings, 6), 1);
        assert_eq!(bindings.get(1).unwrap().feed.id, Some(FeedId(6)));
        assert!(bindings.get(16_384).is_none());
        assert_eq!(bindings.check(FeedId(6)), Ok(()));
        let over = bindings.check(FeedId(4));
        let told = matches!(
            over,
            Err(Error::OverLimit {
                value: 16_385,
                limit: 16_384,
                ..
            })
        );
        assert!(told, "{over:?}");
    }
}
