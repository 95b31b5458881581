//! Opening: connections that were not welcomed yet, so that those who never say a word shut nobody out.
//!
//! **Invariants**
//! - There are at most [`OPENING_MAX`] per shard (and one per listener more); they do not count as connections.
//! - One more that was accepted takes the place of the oldest, once that had [`OPENING_MIN`]; until then it
//!   waits, and those behind it wait to be accepted. While nobody waits, nobody loses a place.
//!
//! **Not here**: what they say (`net::tls`, `reader`).

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use sealog_engine::Event;

/// Connections that may be on their way to the welcome.
pub(crate) const OPENING_MAX: usize = 1024;
/// Time that each has for it, whoever else comes.
pub(super) const OPENING_MIN: Duration = Duration::from_secs(1);

/// One that is on its way.
pub(super) struct Place {
    since_ns: u64,
    given_up: Cell<bool>,
    changed: Event,
}

impl Place {
    /// Waits until another one takes its place.
    pub(super) async fn lost(&self) {
        let lost = || self.given_up.get().then_some(());
        self.changed.until(lost).await;
    }
}

/// Those that are on their way, by number: the oldest first.
#[derive(Default)]
pub(super) struct Opening {
    places: RefCell<BTreeMap<u64, Rc<Place>>>,
    /// Notified when one has gone.
    pub(super) gone: Event,
}

impl Opening {
    /// Takes a place at `now_ns`.
    pub(super) fn enter(&self, number: u64, now_ns: u64) -> Rc<Place> {
        let place = Rc::new(Place {
            since_ns: now_ns,
            given_up: Cell::new(false),
            changed: Event::new(),
        });
        self.places.borrow_mut().insert(number, place.clone());
        place
    }

    /// Gives the place back; `false`: it was given up before.
    pub(super) fn leave(&self, number: u64) -> bool {
        let left = self.places.borrow_mut().remove(&number).is_some();
        self.gone.notify();
        left
    }

    /// How long one that was accepted has to wait for a place, if there is none: the oldest gives up its own to
    /// it when its time is over.
    pub(super) fn wait(&self, now_ns: u64) -> Option<Duration> {
        let mut places = self.places.borrow_mut();
        if places.len() < OPENING_MAX {
            return None;
        }
        let oldest = places.first_entry()?;
        let had = Duration::from_nanos(now_ns.saturating_sub(oldest.get().since_ns));
        let left = OPENING_MIN.saturating_sub(had);
        if !left.is_zero() {
            return Some(left);
        }
        let place = oldest.remove();
        place.given_up.set(true);
        place.changed.notify();
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn opening_oldest_gives_way_once_it_had_its_time() {
        let opening = Opening::default();
        let places: Vec<_> = (0..OPENING_MAX as u64)
            .map(|n| {
                assert_eq!(opening.wait(n), None);
                opening.enter(n, n)
            })
            .collect();
        let min_ns = 1_000_000_000;
        assert_eq!(opening.wait(min_ns - 1), Some(Duration::from_nanos(1)));
        assert!(places.iter().all(|place| !place.given_up.get()));
        assert_eq!(opening.wait(min_ns), None);
        assert!(places[0].given_up.get() && !places[1].given_up.get());
        assert!(!opening.leave(0), "its place was taken");
        opening.enter(5_000, min_ns);
        assert_eq!(opening.wait(min_ns), Some(Duration::from_nanos(1)));
        assert!(opening.leave(1));
        assert_eq!(opening.wait(min_ns), None);
        assert!(!places[2].given_up.get(), "there was room");
    }
}
