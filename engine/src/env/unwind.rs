//! CatchUnwind: a future whose panic becomes a value.
//!
//! **Invariants**
//! - After a panic the inner future is never polled again.
//!
//! **Not here**: what to do about a panic (the shard's hooks decide).

use std::any::Any;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::task::{Context, Poll};

/// Wraps a future; resolves to its output, or to the message of its panic.
pub(crate) struct CatchUnwind<F> {
    future: Pin<Box<F>>,
}

impl<F: Future> CatchUnwind<F> {
    pub(crate) fn new(future: F) -> Self {
        Self {
            future: Box::pin(future),
        }
    }
}

impl<F: Future> Future for CatchUnwind<F> {
    type Output = Result<F::Output, String>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let future = self.future.as_mut();
        match catch_unwind(AssertUnwindSafe(|| future.poll(cx))) {
            Ok(Poll::Pending) => Poll::Pending,
            Ok(Poll::Ready(value)) => Poll::Ready(Ok(value)),
            Err(panic) => Poll::Ready(Err(panic_message(&*panic))),
        }
    }
}

/// What a panic said.
pub(crate) fn panic_message(panic: &(dyn Any + Send)) -> String {
    if let Some(message) = panic.downcast_ref::<String>() {
        return message.clone();
    }
    if let Some(message) = panic.downcast_ref::<&'static str>() {
        return (*message).to_owned();
    }
    "panic without a message".to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::env::testing::block_on;

    #[test]
    fn catch_unwind_future_panics_gives_the_message() {
        let future = CatchUnwind::new(async { panic!("at {}", 7) });
        assert_eq!(block_on::<Result<(), _>>(future), Err("at 7".to_owned()));
    }

    #[test]
    fn catch_unwind_future_ends_gives_the_value() {
        assert_eq!(block_on(CatchUnwind::new(async { 5 })), Ok(5));
    }
}
