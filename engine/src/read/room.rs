//! Room: the memory of an answer's frames, and of their fingerprints, taken from the caller's budget before they are copied.
//!
//! **Invariants**
//! - An answer never waits for room, nor for the bucket, while its frames fill some: it is given as it is,
//!   or starts again. A store that stalls keeps nobody else from reading what is here.
//!
//! **Not here**: memory that reading itself takes (`LogService::reading`, `LogService::fetching`).

use crate::sync::{Budget, Permit};

/// What a [`ReadChunk`](super::ReadChunk) holds of a budget; given back on drop.
///
/// It is no part of the answer: a clone holds nothing, and all are equal.
#[derive(Debug, Default)]
pub struct Held(Option<Permit>);

impl Held {
    /// Holds `bytes` more, if they are there and nobody waits; what is within no budget has room.
    pub(crate) fn grow(&mut self, bytes: usize) -> bool {
        self.0.as_mut().is_none_or(|permit| permit.grow(bytes))
    }

    /// How much it is.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.0.as_ref().map_or(0, Permit::bytes)
    }
}

impl From<Permit> for Held {
    fn from(permit: Permit) -> Self {
        Self(Some(permit))
    }
}

impl Clone for Held {
    fn clone(&self) -> Self {
        Self(None)
    }
}

impl PartialEq for Held {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for Held {}

/// Room for the frames of one answer.
pub(super) struct Room<'a> {
    budget: Option<&'a Budget>,
    permit: Option<Permit>,
    used: usize,
    /// Bytes of the frame that did not fit.
    short: Option<usize>,
}

impl<'a> Room<'a> {
    pub(super) fn of(budget: Option<&'a Budget>) -> Self {
        Self {
            budget,
            permit: None,
            used: 0,
            short: None,
        }
    }

    /// Whether frames fill some of it, that others may wait for.
    pub(super) fn is_filled(&self) -> bool {
        self.used > 0
    }

    /// Takes room for `bytes` more; `false`: the answer must end before them.
    pub(super) fn add(&mut self, bytes: usize) -> bool {
        let Some(budget) = self.budget else {
            return true;
        };
        let had = self.permit.as_ref().map_or(0, Permit::bytes);
        let missing = (self.used + bytes).saturating_sub(had);
        // A frame larger than the budget is read alone, with all of it.
        let alone = self.used == 0 && had == budget.limit();
        let grown = missing == 0
            || alone
            || match &mut self.permit {
                Some(permit) => permit.grow(missing),
                None => {
                    self.permit = budget.try_acquire(missing);
                    let got = self.permit.as_ref().map_or(0, Permit::bytes);
                    got == missing.min(budget.limit()) && got > 0
                }
            };
        match grown {
            true => self.used += bytes,
            false => self.short = Some(bytes),
        }
        grown
    }

    /// Whether something did not fit.
    pub(super) fn is_short(&self) -> bool {
        self.short.is_some()
    }

    /// Waits for the room that was missing; `false`: none was.
    pub(super) async fn make(&mut self) -> bool {
        let (Some(bytes), Some(budget)) = (self.short.take(), self.budget) else {
            return false;
        };
        self.permit = None;
        self.used = 0;
        self.permit = budget.acquire(bytes).await;
        // A budget that was closed holds nobody back: its owner is on the way down.
        if self.permit.is_none() {
            self.budget = None;
        }
        true
    }

    /// What frames of `bytes` hold; the room is empty then.
    pub(super) fn take(&mut self, bytes: usize) -> Held {
        let mut permit = self.permit.take();
        self.used = 0;
        self.short = None;
        if let Some(permit) = &mut permit {
            permit.shrink(bytes);
        }
        Held(permit.filter(|_| bytes > 0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::env::testing::block_on;

    #[test]
    fn unit_room_ends_an_answer_where_the_budget_ends() {
        let budget = Budget::new(10);
        let mut room = Room::of(Some(&budget));
        assert!(!room.is_filled() && room.add(6) && room.add(4) && room.is_filled());
        assert!(!room.add(1) && room.is_short());
        let held = room.take(10);
        assert_eq!((held.bytes(), budget.used()), (10, 10));
        drop(held);
        assert_eq!(budget.used(), 0);
    }

    #[test]
    fn unit_room_waits_for_one_frame_with_nothing_in_hand() {
        let budget = Budget::new(10);
        let other = budget.try_acquire(8).unwrap();
        let mut room = Room::of(Some(&budget));
        assert!(!room.add(6));
        assert_eq!(budget.used(), 8);
        drop(other);
        assert!(block_on(room.make()));
        assert_eq!(budget.used(), 6);
        assert!(room.add(6));
        assert_eq!(room.take(6).bytes(), 6);
        assert!(!block_on(room.make()), "nothing is missing");
    }

    #[test]
    fn unit_room_takes_a_frame_beyond_the_budget_alone() {
        let budget = Budget::new(10);
        let mut room = Room::of(Some(&budget));
        assert!(room.add(16), "all of the budget");
        assert!(!room.add(1));
        assert_eq!(room.take(16).bytes(), 10);
        let other = budget.try_acquire(1).unwrap();
        let mut room = Room::of(Some(&budget));
        assert!(!room.add(16));
        drop(other);
        assert!(block_on(room.make()) && room.add(16));
    }

    #[test]
    fn unit_room_without_a_budget_is_boundless() {
        let mut room = Room::of(None);
        assert!(room.add(usize::MAX / 2));
        assert_eq!(room.take(1).bytes(), 0);
    }
}
