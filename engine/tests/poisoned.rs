//! A log that stopped: what was durable before stays acknowledged, what waits is told.
#![allow(missing_docs, clippy::unwrap_used)]

mod common;

use std::sync::mpsc::Sender;
use std::time::Duration;

use common::{batch, scratch, small};
use futures_lite::future::block_on;
use sealog_engine::{
    Direct, Engine, Error, FeedOptions, FeedRef, LocalLog, ReadFrom, ReadRequest, Result, ShardSide,
};

/// Appends, and has a bug stop the log when that is durable: what is told of the append before and after.
async fn append_and_stop(
    side: ShardSide,
    log: LocalLog,
    told: Sender<(Result<()>, Option<Result<()>>)>,
) {
    let id = side
        .handle()
        .create_feed("f", FeedOptions::default())
        .await
        .unwrap();
    let feed = FeedRef {
        name: "f".into(),
        id: Some(id),
    };
    let batch = batch(&[b"a"]);
    let group = loop {
        match log.append_direct(&feed, &batch.view()) {
            Direct::Decided(result, group) => break result.map(|_| group).unwrap(),
            Direct::Queue => side.sleep(Duration::from_millis(1)).await,
        }
    };
    let before = log.progress().until(|| log.outcome(group)).await;
    side.spawn("bug", async { panic!("planted") });
    let stopped = log.progress().until(|| log.outcome(u64::MAX)).await;
    assert!(stopped.is_err());
    told.send((before, log.outcome(group))).unwrap();
}

#[test]
fn poisoned_log_acknowledges_what_is_durable_and_lets_no_reader_wait() {
    let dir = scratch();
    let (told, outcomes) = std::sync::mpsc::channel();
    let front = move |side: ShardSide| {
        let log = side.logs().next().cloned();
        if let Some(log) = log {
            let front = side.clone();
            side.spawn("front", append_and_stop(front, log, told));
        }
    };
    let engine = Engine::open_with(small(dir.path()), front).unwrap();
    let (before, after) = outcomes.recv().unwrap();
    assert_eq!(before, Ok(()));
    assert_eq!(after, Some(Ok(())), "durable, and not acknowledged");
    let at_tail = ReadRequest {
        from: ReadFrom::Sequence(1),
        wait: Duration::from_secs(3600),
        ..ReadRequest::new("f")
    };
    let waited = block_on(engine.handle().read(at_tail));
    assert!(matches!(waited, Err(Error::Poisoned { .. })), "{waited:?}");
    let there = block_on(engine.handle().read(ReadRequest::new("f"))).unwrap();
    assert_eq!((there.next, there.tail), (1, 1));
    drop(engine);
}
