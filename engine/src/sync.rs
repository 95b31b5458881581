//! Sync: the two ways to wait inside a shard and the one across threads.
//!
//! **Invariants**
//! - [`Event`] is level-free: a listener made before a notification is woken by it, one made after is not.
//! - [`Budget`] is first come, first served; a dropped waiter gives its place up. Its lock is held for
//!   some arithmetic, never while waiting.
//!
//! **Not here**: channels (`flume`).

use std::cell::RefCell;
use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

#[derive(Default)]
struct EventState {
    generation: u64,
    wakers: Vec<Option<Waker>>,
    /// Places in `wakers` that listeners gave up: used again, so that an event which is listened to
    /// often and seldom notified does not grow.
    free: Vec<usize>,
}

/// Wakes every task that listens. Runtime-neutral, for one thread.
#[derive(Clone, Default)]
pub struct Event(Rc<RefCell<EventState>>);

impl Event {
    /// A new event without listeners.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Wakes everyone who listens now.
    pub fn notify(&self) {
        let wakers = {
            let mut state = self.0.borrow_mut();
            state.generation += 1;
            state.free.clear();
            std::mem::take(&mut state.wakers)
        };
        wakers.into_iter().flatten().for_each(Waker::wake);
    }

    /// Resolves at the next [`Event::notify`] after this call. Cancel safe.
    #[must_use]
    pub fn listen(&self) -> Listen {
        let generation = self.0.borrow().generation;
        Listen {
            event: self.clone(),
            generation,
            slot: None,
        }
    }

    /// Whether nobody listens, or could: this is the only one of it.
    pub(crate) fn is_unheard(&self) -> bool {
        Rc::strong_count(&self.0) == 1
    }

    /// Waits until `ready` answers `Some`, looking again after every notification.
    ///
    /// # Cancel safety
    /// Cancel safe: only waits.
    pub async fn until<T>(&self, mut ready: impl FnMut() -> Option<T>) -> T {
        loop {
            let listen = self.listen();
            if let Some(value) = ready() {
                return value;
            }
            listen.await;
        }
    }
}

/// Future of [`Event::listen`].
pub struct Listen {
    event: Event,
    generation: u64,
    slot: Option<usize>,
}

impl Future for Listen {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let event = self.event.clone();
        let mut state = event.0.borrow_mut();
        if state.generation != self.generation {
            return Poll::Ready(());
        }
        let waker = Some(cx.waker().clone());
        match self.slot.or_else(|| state.free.pop()) {
            Some(slot) => {
                state.wakers[slot] = waker;
                self.slot = Some(slot);
            }
            None => {
                self.slot = Some(state.wakers.len());
                state.wakers.push(waker);
            }
        }
        Poll::Pending
    }
}

impl Drop for Listen {
    fn drop(&mut self) {
        let mut state = self.event.0.borrow_mut();
        if state.generation == self.generation
            && let Some(slot) = self.slot
        {
            state.wakers[slot] = None;
            state.free.push(slot);
        }
    }
}

/// Waits for both. Cancel safe if both are.
pub(crate) async fn both<A, B>(a: impl Future<Output = A>, b: impl Future<Output = B>) -> (A, B) {
    let (mut a, mut b) = (std::pin::pin!(a), std::pin::pin!(b));
    let (mut first, mut second) = (None, None);
    std::future::poll_fn(|cx| {
        if first.is_none()
            && let Poll::Ready(value) = a.as_mut().poll(cx)
        {
            first = Some(value);
        }
        if second.is_none()
            && let Poll::Ready(value) = b.as_mut().poll(cx)
        {
            second = Some(value);
        }
        match (first.take(), second.take()) {
            (Some(first), Some(second)) => Poll::Ready((first, second)),
            (one, other) => {
                (first, second) = (one, other);
                Poll::Pending
            }
        }
    })
    .await
}

/// Waits for whichever comes first. Cancel safe if both are.
pub(crate) async fn race(a: impl Future<Output = ()>, b: impl Future<Output = ()>) {
    let (mut a, mut b) = (std::pin::pin!(a), std::pin::pin!(b));
    std::future::poll_fn(|cx| {
        let done = a.as_mut().poll(cx).is_ready() || b.as_mut().poll(cx).is_ready();
        if done { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
}

struct Waiter {
    id: u64,
    bytes: usize,
    waker: Waker,
    granted: bool,
}

struct BudgetState {
    available: usize,
    next_id: u64,
    waiters: VecDeque<Waiter>,
    closed: bool,
}

impl BudgetState {
    /// Whether `bytes` are there, and nobody waits for theirs: who was granted them and has not looked
    /// yet holds nobody up.
    fn is_free(&self, bytes: usize) -> bool {
        let waits = self.waiters.back().is_some_and(|last| !last.granted);
        !waits && self.available >= bytes
    }
}

/// A byte budget shared by threads: whole amounts, first come first served.
#[derive(Clone)]
pub struct Budget {
    limit: usize,
    state: Arc<Mutex<BudgetState>>,
}

impl Budget {
    /// A budget of `limit` bytes.
    #[must_use]
    pub fn new(limit: usize) -> Self {
        let state = BudgetState {
            available: limit,
            next_id: 0,
            waiters: VecDeque::new(),
            closed: false,
        };
        Self {
            limit,
            state: Arc::new(Mutex::new(state)),
        }
    }

    /// All of it.
    #[must_use]
    pub fn limit(&self) -> usize {
        self.limit
    }

    /// How much of it is taken.
    #[must_use]
    pub fn used(&self) -> usize {
        self.limit - self.lock().available.min(self.limit)
    }

    /// Takes `bytes`, waiting for its turn; more than the limit is cut to the limit.
    /// `None` after [`Budget::close`]. Cancel safe.
    pub fn acquire(&self, bytes: usize) -> Acquire {
        Acquire {
            budget: self.clone(),
            bytes: bytes.min(self.limit),
            id: None,
        }
    }

    /// Takes `bytes` if nobody waits and they are there. More than the limit is cut to the limit.
    #[must_use]
    pub fn try_acquire(&self, bytes: usize) -> Option<Permit> {
        let bytes = bytes.min(self.limit);
        let mut state = self.lock();
        let free = !state.closed && state.is_free(bytes);
        free.then(|| {
            state.available -= bytes;
            let budget = self.clone();
            Permit { budget, bytes }
        })
    }

    /// Whether somebody waits for bytes that others hold.
    #[must_use]
    pub fn is_contended(&self) -> bool {
        self.lock().waiters.iter().any(|waiter| !waiter.granted)
    }

    /// Wakes all waiters with a refusal; later calls are refused at once.
    pub fn close(&self) {
        let mut state = self.lock();
        state.closed = true;
        for waiter in state.waiters.drain(..) {
            waiter.waker.wake();
        }
    }

    fn lock(&self) -> MutexGuard<'_, BudgetState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn release(&self, bytes: usize) {
        let mut state = self.lock();
        state.available += bytes;
        grant(&mut state);
    }
}

fn grant(state: &mut BudgetState) {
    let BudgetState {
        available, waiters, ..
    } = state;
    for waiter in waiters.iter_mut().filter(|w| !w.granted) {
        if waiter.bytes > *available {
            break;
        }
        *available -= waiter.bytes;
        waiter.granted = true;
        waiter.waker.wake_by_ref();
    }
}

/// Future of [`Budget::acquire`].
pub struct Acquire {
    budget: Budget,
    bytes: usize,
    id: Option<u64>,
}

impl Future for Acquire {
    type Output = Option<Permit>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let budget = self.budget.clone();
        let mut state = budget.lock();
        if state.closed {
            self.id = None;
            return Poll::Ready(None);
        }
        let permit = |budget: &Budget, bytes| Permit {
            budget: budget.clone(),
            bytes,
        };
        let Some(id) = self.id else {
            if state.is_free(self.bytes) {
                state.available -= self.bytes;
                return Poll::Ready(Some(permit(&budget, self.bytes)));
            }
            let id = state.next_id;
            state.next_id += 1;
            let waker = cx.waker().clone();
            state.waiters.push_back(Waiter {
                id,
                bytes: self.bytes,
                waker,
                granted: false,
            });
            self.id = Some(id);
            return Poll::Pending;
        };
        let Some(at) = state.waiters.iter().position(|w| w.id == id) else {
            return Poll::Ready(None);
        };
        if state.waiters[at].granted {
            state.waiters.remove(at);
            self.id = None;
            return Poll::Ready(Some(permit(&budget, self.bytes)));
        }
        state.waiters[at].waker = cx.waker().clone();
        Poll::Pending
    }
}

impl Drop for Acquire {
    fn drop(&mut self) {
        let Some(id) = self.id else { return };
        let mut state = self.budget.lock();
        if let Some(at) = state.waiters.iter().position(|w| w.id == id)
            && let Some(waiter) = state.waiters.remove(at)
        {
            if waiter.granted {
                state.available += waiter.bytes;
            }
            grant(&mut state);
        }
    }
}

/// Bytes taken from a [`Budget`]; given back on drop.
pub struct Permit {
    budget: Budget,
    bytes: usize,
}

impl Permit {
    /// How much it holds.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Takes `bytes` more, if nobody waits and they are there.
    #[must_use]
    pub fn grow(&mut self, bytes: usize) -> bool {
        let more = self
            .budget
            .try_acquire(bytes)
            .filter(|more| more.bytes == bytes);
        let Some(mut more) = more else { return false };
        self.bytes += std::mem::take(&mut more.bytes);
        true
    }

    /// Gives back what it holds beyond `bytes`.
    pub fn shrink(&mut self, bytes: usize) {
        let over = self.bytes.saturating_sub(bytes);
        self.bytes -= over;
        self.budget.release(over);
    }
}

impl std::fmt::Debug for Permit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Permit").field(&self.bytes).finish()
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.budget.release(self.bytes);
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use super::*;

    #[test]
    fn unit_permit_grows_and_shrinks_within_the_budget() {
        let budget = Budget::new(10);
        let mut permit = budget.try_acquire(4).unwrap();
        assert!(permit.grow(6));
        assert!(!permit.grow(1), "there is no more");
        assert!(budget.try_acquire(1).is_none());
        permit.shrink(3);
        assert_eq!((permit.bytes(), budget.used()), (3, 3));
        drop(permit);
        assert_eq!(budget.used(), 0);
    }

    #[test]
    fn unit_budget_gives_what_is_left_behind_one_that_was_granted() {
        let budget = Budget::new(10);
        let held = budget.try_acquire(8).unwrap();
        let mut granted = pin!(budget.acquire(4));
        let mut cx = Context::from_waker(Waker::noop());
        assert!(granted.as_mut().poll(&mut cx).is_pending());
        drop(held);
        // It has not looked yet, and may hold them for long: nothing would wake the next one.
        let next = pin!(budget.acquire(3)).poll(&mut cx);
        assert!(matches!(next, Poll::Ready(Some(_))));
        assert!(budget.try_acquire(3).is_some());
        assert!(matches!(
            granted.as_mut().poll(&mut cx),
            Poll::Ready(Some(_))
        ));
    }

    #[test]
    fn unit_try_acquire_does_not_overtake_who_waits() {
        let budget = Budget::new(10);
        let mut held = budget.try_acquire(6).unwrap();
        let mut waiting = pin!(budget.acquire(8));
        let mut cx = Context::from_waker(Waker::noop());
        assert!(waiting.as_mut().poll(&mut cx).is_pending());
        assert!(budget.is_contended());
        assert!(budget.try_acquire(1).is_none());
        assert!(!held.grow(1));
        held.shrink(2);
        assert!(!budget.is_contended(), "it was granted");
        assert!(matches!(
            waiting.as_mut().poll(&mut cx),
            Poll::Ready(Some(_))
        ));
    }
}
