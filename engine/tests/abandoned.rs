//! Calls that nobody waits for any more: they hold nobody up.
#![allow(missing_docs, clippy::unwrap_used)]

mod common;

use std::time::{Duration, Instant};

use common::{close, open, payload, put, scratch, small};
use futures_lite::future::{block_on, or, yield_now};
use sealog_engine::{Budget, FeedOptions, ReadRequest};

/// Longest wait for anything.
const DEADLINE: Duration = Duration::from_secs(30);

#[test]
fn abandoned_read_gives_up_its_place_among_those_that_wait_for_memory() {
    let dir = scratch();
    let (engine, handle) = open(small(dir.path()));
    block_on(handle.create_feed("f", FeedOptions::default())).unwrap();
    put(&handle, "f", &payload(1, 100));
    let budget = Budget::new(1 << 20);
    let held = budget.try_acquire(1 << 20).unwrap();
    let read = async {
        let read = handle.read_within(ReadRequest::new("f"), &budget).await;
        panic!("without memory: {read:?}");
    };
    let waits = async {
        while !budget.is_contended() {
            yield_now().await;
        }
    };
    block_on(or(read, waits));
    let begun = Instant::now();
    while budget.is_contended() {
        assert!(begun.elapsed() < DEADLINE, "it still waits");
        std::thread::sleep(Duration::from_millis(1));
    }
    drop(held);
    let chunk = block_on(handle.read_within(ReadRequest::new("f"), &budget)).unwrap();
    assert_eq!(chunk.held.bytes(), chunk.frames.len());
    assert!(chunk.next == 1 && budget.used() == chunk.frames.len());
    close(engine);
}
