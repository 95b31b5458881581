//! Closing: a feed that is closed for good, and what its maker keeps with it.
#![allow(missing_docs, clippy::unwrap_used)]

mod common;

use std::time::Duration;

use common::{batch, close, open, payload, produced, put, quick, read_all, small};
use futures_lite::future::block_on;
use sealog_engine::{
    CloseRequest, Error, FeedOptions, Handle, MakeRequest, ProductionEnv, ReadFrom, ReadRequest,
};

type Engine = Handle<ProductionEnv>;

fn with_note(note: &[u8]) -> CloseRequest {
    CloseRequest {
        note: note.into(),
        ..CloseRequest::default()
    }
}

fn kept(attributes: &[u8]) -> FeedOptions {
    FeedOptions {
        keys: true,
        attributes: attributes.into(),
        ..FeedOptions::default()
    }
}

/// A reader that stands at the tail, and how its answer says it ended.
fn tail_of(handle: &Engine, feed: &str, next: u64) -> (bool, u64) {
    let request = ReadRequest {
        from: ReadFrom::Sequence(next),
        wait: Duration::from_millis(50),
        ..ReadRequest::new(feed)
    };
    let chunk = block_on(handle.read(request)).unwrap();
    (chunk.ended, chunk.next)
}

#[test]
fn attributes_are_of_the_feed_for_good() {
    let dir = quick();
    let (engine, handle) = open(small(dir.path()));
    let made = block_on(handle.create_feed("f", kept(b"text/plain"))).unwrap();
    let again = block_on(handle.create_feed("f", kept(b"text/plain"))).unwrap();
    assert_eq!(made, again);
    for other in [b"".as_slice(), b"text/html"] {
        let refused = block_on(handle.create_feed("f", kept(other))).unwrap_err();
        assert!(matches!(refused, Error::FeedExists { .. }), "{refused}");
    }
    let refused = block_on(handle.create_feed("g", kept(&[0; 4097]))).unwrap_err();
    assert_eq!(
        refused.to_string(),
        "attribute bytes of 4097 over the limit of 4096"
    );
    close(engine);
    let (engine, handle) = open(small(dir.path()));
    let info = block_on(handle.feed("f")).unwrap();
    assert_eq!(info.options, kept(b"text/plain"));
    close(engine);
}

#[test]
fn closed_feed_takes_no_batch_and_no_stream_and_tells_its_readers() {
    let dir = quick();
    let (engine, handle) = open(small(dir.path()));
    block_on(handle.create_feed("f", FeedOptions::default())).unwrap();
    put(&handle, "f", b"one");
    assert_eq!(tail_of(&handle, "f", 1), (false, 1));
    let request = CloseRequest {
        batch: Some(batch(&[b"two", b"three"])),
        ..with_note(b"me")
    };
    let closed = block_on(handle.close_feed("f", None, request)).unwrap();
    assert_eq!(closed.appended.unwrap().first, 1);
    assert_eq!((closed.next_sequence, closed.now), (3, true));
    for _ in 0..2 {
        let refused = block_on(handle.append("f", batch(&[b"four"]))).unwrap_err();
        assert!(matches!(refused, Error::FeedClosed { .. }), "{refused}");
        let refused = block_on(handle.open("f")).unwrap_err();
        assert!(matches!(refused, Error::FeedClosed { .. }), "{refused}");
        let again = block_on(handle.close_feed("f", None, with_note(b"you"))).unwrap();
        assert!(!again.now);
        assert_eq!(&*again.closing.unwrap().note, b"me");
    }
    assert_eq!(tail_of(&handle, "f", 3), (true, 3));
    assert_eq!(read_all(&handle, "f").len(), 3);
    close(engine);
}

#[test]
fn reader_at_the_tail_gets_the_last_records_and_then_the_end() {
    let dir = quick();
    let (engine, handle) = open(small(dir.path()));
    block_on(handle.create_feed("f", FeedOptions::default())).unwrap();
    put(&handle, "f", b"one");
    let reading = handle.clone();
    let reader = std::thread::spawn(move || {
        let (mut next, mut got) = (1, Vec::new());
        loop {
            let request = ReadRequest {
                from: ReadFrom::Sequence(next),
                wait: Duration::from_secs(20),
                ..ReadRequest::new("f")
            };
            let chunk = block_on(reading.read(request)).unwrap();
            got.extend(chunk.next.gt(&next).then_some(chunk.next));
            next = chunk.next;
            if chunk.ended {
                return got;
            }
        }
    });
    std::thread::sleep(Duration::from_millis(30));
    let request = CloseRequest {
        batch: Some(batch(&[b"last"])),
        ..CloseRequest::default()
    };
    block_on(handle.close_feed("f", None, request)).unwrap();
    assert_eq!(reader.join().unwrap(), [2]);
    close(engine);
}

#[test]
fn closing_outlives_restarts_and_checkpoints() {
    let dir = quick();
    let (engine, handle) = open(small(dir.path()));
    for feed in ["empty", "full", "open"] {
        block_on(handle.create_feed(feed, kept(feed.as_bytes()))).unwrap();
    }
    put(&handle, "full", b"one");
    for feed in ["empty", "full"] {
        block_on(handle.close_feed(feed, None, with_note(feed.as_bytes()))).unwrap();
    }
    // Enough for several checkpoints.
    for number in 0..60 {
        put(&handle, "open", &payload(number, 60_000));
    }
    close(engine);
    for _ in 0..2 {
        let (engine, handle) = open(small(dir.path()));
        for (feed, next) in [("empty", 0), ("full", 1)] {
            let info = block_on(handle.feed(feed)).unwrap();
            assert_eq!(&*info.closed.unwrap().note, feed.as_bytes());
            assert_eq!(info.options, kept(feed.as_bytes()));
            assert_eq!(tail_of(&handle, feed, next), (true, next));
            let refused = block_on(handle.append(feed, batch(&[b"x"]))).unwrap_err();
            assert!(matches!(refused, Error::FeedClosed { .. }), "{refused}");
        }
        assert_eq!(block_on(handle.feed("open")).unwrap().closed, None);
        close(engine);
    }
}

#[test]
fn closing_of_a_producer_is_judged_as_a_batch_and_repeated_at_will() {
    let dir = quick();
    let (engine, handle) = open(small(dir.path()));
    block_on(handle.create_feed("f", FeedOptions::default())).unwrap();
    block_on(handle.append("f", produced(b"p", 3, 0, b"one"))).unwrap();
    let by = |epoch, sequence| CloseRequest {
        producer: Some((b"p".to_vec(), epoch, sequence)),
        ..CloseRequest::default()
    };
    let asked = |request| block_on(handle.close_feed("f", None, request));
    assert!(matches!(
        asked(by(2, 0)),
        Err(Error::ProducerFenced { current: 3, .. })
    ));
    assert!(matches!(
        asked(by(3, 2)),
        Err(Error::ProducerGap { expected: 1, .. })
    ));
    assert!(matches!(
        asked(by(4, 1)),
        Err(Error::ProducerEpochStart { .. })
    ));
    // What was done before closes nothing.
    let before = asked(by(3, 0)).unwrap();
    assert_eq!((before.now, before.closing), (false, None));
    let last = CloseRequest {
        batch: Some(produced(b"p", 3, 1, b"two")),
        ..CloseRequest::default()
    };
    assert!(asked(last.clone()).unwrap().now);
    // The same again is its duplicate, of whatever a retry carries.
    let again = asked(last).unwrap();
    assert!(!again.now && again.appended.unwrap().duplicate);
    let refused = block_on(handle.append("f", produced(b"p", 3, 2, b"three"))).unwrap_err();
    assert!(matches!(refused, Error::FeedClosed { .. }), "{refused}");
    close(engine);
}

#[test]
fn exclusive_feed_is_closed_by_its_writer_only() {
    let dir = quick();
    let (engine, handle) = open(small(dir.path()));
    let options = FeedOptions {
        exclusive: true,
        ..FeedOptions::default()
    };
    block_on(handle.create_feed("f", options)).unwrap();
    let lease = block_on(handle.open("f")).unwrap();
    let asked = |token| {
        let request = CloseRequest {
            token,
            ..CloseRequest::default()
        };
        block_on(handle.close_feed("f", None, request))
    };
    assert!(matches!(asked(None), Err(Error::TokenRequired { .. })));
    let newer = block_on(handle.resume("f")).unwrap();
    assert!(matches!(
        asked(Some(lease.epoch)),
        Err(Error::Fenced { .. })
    ));
    assert!(asked(Some(newer.epoch)).unwrap().now);
    close(engine);
}

#[test]
fn feed_is_made_with_its_first_records_once() {
    let dir = quick();
    let (engine, handle) = open(small(dir.path()));
    let request = |closed| MakeRequest {
        options: kept(b"a"),
        batch: Some(batch(&[b"one", b"two"])),
        closed,
    };
    let made = block_on(handle.make_feed("f", request(false))).unwrap();
    assert!(made.now);
    assert_eq!((made.feed.next_sequence, made.feed.closed), (2, None));
    let found = block_on(handle.make_feed("f", request(true))).unwrap();
    assert!(!found.now);
    assert_eq!((found.feed.next_sequence, found.feed.closed), (2, None));
    let made = block_on(handle.make_feed("g", request(true))).unwrap();
    assert!(made.now && made.feed.closed.is_some());
    assert_eq!(tail_of(&handle, "g", 2), (true, 2));
    let refused = MakeRequest {
        batch: Some(produced(b"p", 0, 1, b"gap")),
        ..MakeRequest::default()
    };
    let refused = block_on(handle.make_feed("h", refused)).unwrap_err();
    assert!(matches!(refused, Error::ProducerGap { .. }), "{refused}");
    let missing = block_on(handle.feed("h")).unwrap_err();
    assert!(matches!(missing, Error::FeedNotFound { .. }), "{missing}");
    close(engine);
}
