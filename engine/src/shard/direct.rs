//! Direct: appends by tasks of the log's own shard: no queue, no allocation, one copy.
//!
//! **Invariants**
//! - A direct append never overtakes a write that waits in the queue.
//! - What it answers rests on the group it names: nobody is told before that group is durable (WAL-11).
//!
//! **Not here**: what is decided (`write`), sockets (the server's).

use std::cell::RefCell;
use std::future::poll_fn;
use std::rc::{Rc, Weak};
use std::task::{Poll, Waker};

use sealog_frame::{Batch, FrameView};

use super::{FeedRef, LogService, OrderKey};
use crate::append::AppendResult;
use crate::env::Env;
use crate::error::{Error, Result};
use crate::sync::{Event, Permit};
use crate::wal::log::{Room, RoomClass};

/// What a direct append came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Direct {
    /// It was decided; the outcome may be told once this group is durable.
    Decided(Result<AppendResult>, u64),
    /// Others wait before it, or the log has no room now: queue it.
    Queue,
}

impl<E: Env> LogService<E> {
    /// Decides about a batch at once, if nothing waits before it. `batch` was checked against the limits.
    #[must_use]
    pub fn append_direct(self: &Rc<Self>, feed: &FeedRef, batch: &FrameView<'_>) -> Direct {
        let bytes = batch.frame_bytes();
        let first = self.undecided.get() == 0 && !self.is_stopping();
        if !first || self.wal.room(bytes, RoomClass::Batch) != Room::Ready {
            return Direct::Queue;
        }
        let decided = self.append_now(feed, batch);
        let group = self.wal.accepted().group;
        let decided = decided.map(|(id, result)| {
            self.roll_if_due(id);
            result
        });
        Direct::Decided(decided, group)
    }

    /// Appends a batch that was checked against the limits, if its order key is above the last; completes when it is durable.
    ///
    /// # Errors
    /// As [`Handle::append`](crate::Handle::append).
    ///
    /// # Cancel safety
    /// Dropped after it was polled, the batch may be stored: effects unknown.
    pub async fn append_settled(
        self: &Rc<Self>,
        feed: FeedRef,
        (batch, order): (Batch, Option<OrderKey>),
        permit: Permit,
    ) -> Result<AppendResult> {
        let direct = match &order {
            None => self.append_direct(&feed, &batch.view()),
            Some(_) => Direct::Queue,
        };
        match direct {
            Direct::Decided(decided, group) => {
                drop((batch, permit));
                let (told, outcome) = told();
                self.wal.on_durable(group, told);
                outcome.await.unwrap_or(Err(Error::Closed)).and(decided)
            }
            Direct::Queue => {
                let (told, outcome) = told();
                self.append(feed, (batch, order), permit, told);
                outcome.await.unwrap_or(Err(Error::Closed))
            }
        }
    }

    /// Whether group `group` is durable: `None` while it is under way, an error once it never will be.
    #[must_use]
    pub fn outcome(&self, group: u64) -> Option<Result<()>> {
        self.wal.outcome(group)
    }

    /// Notified whenever a group became durable, and when the log stopped or was closed.
    #[must_use]
    pub fn progress(&self) -> &Event {
        self.wal.progress()
    }
}

/// What is told once to one task of the same shard.
struct Told<T> {
    value: Option<T>,
    waker: Option<Waker>,
}

/// How to tell it, and the future that hears it; `None`: it never will be told.
fn told<T: 'static>() -> (impl FnOnce(T), impl Future<Output = Option<T>>) {
    let place = Rc::new(RefCell::new(Told {
        value: None,
        waker: None,
    }));
    let teller = Teller(Rc::downgrade(&place));
    let tell = move |value| teller.tell(value);
    let heard = poll_fn(move |cx| {
        let mut told = place.borrow_mut();
        match told.value.take() {
            Some(value) => Poll::Ready(Some(value)),
            None if Rc::weak_count(&place) == 0 => Poll::Ready(None),
            None => {
                told.waker = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    });
    (tell, heard)
}

struct Teller<T>(Weak<RefCell<Told<T>>>);

impl<T> Teller<T> {
    fn tell(self, value: T) {
        if let Some(place) = self.0.upgrade() {
            place.borrow_mut().value = Some(value);
        }
    }
}

impl<T> Drop for Teller<T> {
    fn drop(&mut self) {
        // Told or never to be: the listener looks, and finds which.
        let Some(place) = std::mem::take(&mut self.0).upgrade() else {
            return;
        };
        let waker = place.borrow_mut().waker.take();
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_lite::future::{block_on, poll_once};

    use super::*;

    #[test]
    fn what_is_told_is_heard_and_what_never_will_be_too() {
        let (tell, heard) = told();
        tell(5);
        assert_eq!(block_on(heard), Some(5));
        let (tell, mut heard) = told::<u8>();
        assert_eq!(block_on(poll_once(&mut heard)), None);
        drop(tell);
        assert_eq!(block_on(heard), None);
        let (tell, heard) = told();
        drop(heard);
        tell(5);
    }
}
