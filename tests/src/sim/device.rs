//! Device: an operation in flight at the disk or the bucket.
//!
//! **Invariants**
//! - The effect takes place at one point of virtual time, whether or not its future still lives.
//! - Dropping the future before that cancels the effect or doesn't, by a seeded coin: exactly what a
//!   cancelled io_uring request or an abandoned HTTP call may come to.
//!
//! **Not here**: the effects.

use super::executor::{Class, Event, EventKey};
use super::world::World;
use std::cell::RefCell;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

struct Slot<T> {
    result: Option<T>,
    waker: Option<Waker>,
}

/// The caller's side of an operation in flight.
pub(super) struct DeviceOp<T> {
    world: Rc<World>,
    key: EventKey,
    slot: Rc<RefCell<Slot<T>>>,
    done: bool,
}

impl World {
    /// Submits an operation whose effect takes place after `delay_ns`.
    pub(super) fn device<T: 'static>(
        self: &Rc<Self>,
        class: Class,
        delay_ns: u64,
        effect: impl FnOnce(&Rc<World>) -> T + 'static,
    ) -> DeviceOp<T> {
        let slot = Rc::new(RefCell::new(Slot {
            result: None,
            waker: None,
        }));
        let theirs = slot.clone();
        let action = Box::new(move |world: &Rc<World>| {
            let result = effect(world);
            let waker = {
                let mut slot = theirs.borrow_mut();
                slot.result = Some(result);
                slot.waker.take()
            };
            if let Some(waker) = waker {
                waker.wake();
            }
        });
        let due = self.now_ns() + delay_ns.max(1);
        let key = self.executor.at(due, Event { class, action });
        DeviceOp {
            world: self.clone(),
            key,
            slot,
            done: false,
        }
    }
}

impl<T> Future for DeviceOp<T> {
    type Output = T;
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        let result = {
            let mut slot = self.slot.borrow_mut();
            slot.waker = Some(cx.waker().clone());
            slot.result.take()
        };
        match result {
            Some(result) => {
                self.done = true;
                Poll::Ready(result)
            }
            None => Poll::Pending,
        }
    }
}

impl<T> Drop for DeviceOp<T> {
    fn drop(&mut self) {
        // At the end of the process `World::end` decides about all that is in flight.
        if self.done || self.world.is_ending() {
            return;
        }
        if self.world.streams.sched.borrow_mut().coin() {
            self.world.executor.cancel(self.key);
        }
    }
}
