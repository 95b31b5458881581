//! Alarm: wakes a task at a time, to some microseconds: a runtime's own timers tick in milliseconds, too
//! coarse for the arrivals of an open loop.
//!
//! **Invariants**
//! - One alarm is set at a time; setting another replaces it.
//!
//! **Not here**: sockets and tasks.

use std::pin::Pin;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::Result;
use crate::process::wake_on_time;

/// Longest sleep of the thread.
const SLEEP_MAX: Duration = Duration::from_secs(1);

/// A thread that wakes.
pub struct Alarm {
    inner: Arc<Inner>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Inner {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    set: Option<(Instant, Waker)>,
    stop: bool,
}

impl Inner {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Alarm {
    /// Starts the thread.
    ///
    /// # Errors
    /// There is no room for one.
    pub fn start() -> Result<Self> {
        let inner = Arc::<Inner>::default();
        let thread = std::thread::Builder::new().name("alarm".to_owned());
        let thread = thread.spawn({
            let inner = Arc::clone(&inner);
            move || ring(&inner)
        })?;
        Ok(Self {
            inner,
            thread: Some(thread),
        })
    }

    /// Completes at `at`.
    pub fn at(&self, at: Instant) -> Ring<'_> {
        Ring { alarm: self, at }
    }
}

impl Drop for Alarm {
    fn drop(&mut self) {
        self.inner.lock().stop = true;
        self.inner.changed.notify_one();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn ring(inner: &Inner) {
    wake_on_time();
    let mut state = inner.lock();
    while !state.stop {
        let now = Instant::now();
        let due = state.set.as_ref().map(|(at, _)| *at);
        if due.is_some_and(|at| at <= now) {
            if let Some((_, waker)) = state.set.take() {
                drop(state);
                waker.wake();
                state = inner.lock();
            }
            continue;
        }
        let sleep = due.map_or(SLEEP_MAX, |at| at.saturating_duration_since(now));
        let woken = inner.changed.wait_timeout(state, sleep);
        state = woken.unwrap_or_else(PoisonError::into_inner).0;
    }
}

/// An alarm that is set.
pub struct Ring<'a> {
    alarm: &'a Alarm,
    at: Instant,
}

impl Future for Ring<'_> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if Instant::now() >= self.at {
            return Poll::Ready(());
        }
        let mut state = self.alarm.inner.lock();
        let earlier = state.set.as_ref().is_none_or(|(at, _)| self.at < *at);
        state.set = Some((self.at, context.waker().clone()));
        drop(state);
        if earlier {
            self.alarm.inner.changed.notify_one();
        }
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn alarm_rings_no_sooner_than_it_is_set_to() {
        let alarm = Alarm::start().expect("a thread");
        for millis in [0, 1, 5] {
            let at = Instant::now() + Duration::from_millis(millis);
            futures::executor::block_on(alarm.at(at));
            assert!(Instant::now() >= at);
        }
    }

    #[test]
    fn alarm_that_is_set_again_rings_at_the_new_time() {
        let alarm = Alarm::start().expect("a thread");
        let later = alarm.at(Instant::now() + Duration::from_secs(100));
        let soon = alarm.at(Instant::now() + Duration::from_millis(2));
        // The first is polled once and given up, as after an answer.
        let first = futures::future::select(later, futures::future::ready(()));
        futures::executor::block_on(first);
        futures::executor::block_on(soon);
    }
}
