//! Session: verbs, windows, order, refusals, and exactly once over connections that end.
//!
//! **Invariants**
//! - Every test ends within its deadline.
//!
//! **Not here**: cuts at every byte (`cuts.rs`), reading (`read.rs`).

#![allow(clippy::unwrap_used, reason = "tests report by panicking")]

mod common;

use std::time::Duration;

use common::fake::{Act, Fake};
use common::proxy::{Plan, Proxy};
use common::{quick, within};
use futures_util::{SinkExt, StreamExt};
use sealog_client::{
    AppendSession, BatchBuilder, Client, Effects, ErrorKind, FeedOptions, FrameLimits, Identity,
    Matching, Producer, Record, SessionOptions,
};
use sealog_protocol::ErrorCode;

async fn client_of(fake: &Fake) -> Client {
    let client = Client::connect_with(&fake.address.to_string(), quick())
        .await
        .unwrap();
    client
        .create_feed("f", FeedOptions::default())
        .await
        .unwrap();
    client
}

fn payload(number: u64) -> Vec<u8> {
    format!("payload {number}").into_bytes()
}

/// Submits payloads `from..to` and expects their acks in order.
async fn appended(session: &AppendSession, from: u64, to: u64) {
    let tickets: Vec<_> = (from..to)
        .map(|number| session.submit(payload(number).as_slice()))
        .collect();
    for (number, ticket) in (from..to).zip(tickets) {
        let ack = ticket.await.unwrap();
        assert_eq!((ack.first, ack.last), (number, number));
    }
}

fn expected(count: u64) -> Vec<Vec<u8>> {
    (0..count).map(payload).collect()
}

#[tokio::test]
async fn session_opens_appends_seals_and_is_over() {
    within(10, async {
        let fake = Fake::start().await;
        let client = client_of(&fake).await;
        let session = client.open("f").await.unwrap();
        assert_eq!(session.lease().unwrap().epoch, 1);
        assert_eq!(session.last_acked_position(), None);
        let one = session.append("one").await.unwrap();
        assert_eq!((one.first, one.last, one.records), (0, 0, 1));
        let many = [Record::of(b"two"), Record::keyed(b"k", 1, b"three")];
        let many = session.append(&many).await.unwrap();
        assert_eq!((many.first, many.last, many.records), (1, 2, 2));
        assert_eq!(session.last_acked_position(), Some(many));
        let commit = session.seal("done").await.unwrap();
        assert_eq!((commit.records, commit.message.as_str()), (3, "done"));
        let refused = session.append("more").await.unwrap_err();
        assert_eq!(*refused.kind(), ErrorKind::SessionClosed);
        assert_eq!(refused.effects(), Effects::None);
        assert!(session.failure_cause().is_none());
        let batch = &fake.lock().feeds["f"].stored[0].batch;
        let view = batch.view();
        assert_eq!(view.fencing_token(), Some(1));
        let tag = view.producer().unwrap();
        assert_eq!(
            (tag.id, tag.epoch, tag.sequence),
            (&b"sealog.session"[..], 1, 0)
        );
    })
    .await;
}

#[tokio::test]
async fn resumed_session_goes_on_in_the_stream() {
    within(10, async {
        let fake = Fake::start().await;
        let client = client_of(&fake).await;
        let first = client.open("f").await.unwrap();
        appended(&first, 0, 3).await;
        let second = client.resume("f").await.unwrap();
        assert_eq!(
            second.lease().unwrap().stream,
            first.lease().unwrap().stream
        );
        appended(&second, 3, 5).await;
        let fenced = first.append("late").await.unwrap_err();
        let kind = ErrorKind::Fenced {
            epoch: 1,
            current: 2,
        };
        assert_eq!((fenced.kind(), fenced.effects()), (&kind, Effects::None));
        assert_eq!(*first.failure_cause().unwrap().kind(), kind);
        let stopped = first.append("later").await.unwrap_err();
        assert_eq!(*stopped.kind(), ErrorKind::Stopped);
        assert_eq!(second.seal("").await.unwrap().records, 5);
        assert_eq!(fake.payloads("f"), expected(5));
        // One producer for both sessions.
        assert_eq!(client.feed("f").await.unwrap().producers, 1);
    })
    .await;
}

#[tokio::test]
async fn lost_answer_of_a_conditional_append_is_success() {
    // D13: the append lands, its answer is lost, the try after it must not say "mismatch".
    within(10, async {
        let fake = Fake::start().await;
        let client = client_of(&fake).await;
        let session = client.open("f").await.unwrap();
        appended(&session, 0, 6).await;
        fake.act([Act::LoseAnswer]);
        let ack = session.append(Matching::at(5, "x")).await.unwrap();
        assert_eq!((ack.first, ack.duplicate), (6, true));
        assert_eq!(fake.payloads("f").len(), 7);
        let off = SessionOptions {
            identity: Identity::Off,
            ..SessionOptions::default()
        };
        let plain = client.join("f", off.clone()).await.unwrap();
        fake.act([Act::LoseAnswer]);
        let lost = plain.append(Matching::at(6, "y")).await.unwrap_err();
        assert_eq!(*lost.kind(), ErrorKind::Disconnected);
        assert_eq!(lost.effects(), Effects::Unknown);
        assert!(plain.failure_cause().is_some());
        assert_eq!(fake.payloads("f").len(), 8);
        let plain = client.join("f", off).await.unwrap();
        let mismatch = plain.append(Matching::at(6, "z")).await.unwrap_err();
        let kind = ErrorKind::SequenceMismatch {
            expected: Some(6),
            actual: Some(7),
        };
        assert_eq!(
            (mismatch.kind(), mismatch.effects()),
            (&kind, Effects::None)
        );
        // A refusal is one batch's own where no sequences chain them.
        plain.append("w").await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn answers_lost_again_and_again_store_everything_once() {
    within(30, async {
        let fake = Fake::start().await;
        let client = client_of(&fake).await;
        let session = client.open("f").await.unwrap();
        let acks = session.acks();
        for round in 0..20 {
            let bad = if round % 2 == 0 {
                Act::LoseAnswer
            } else {
                Act::Lose
            };
            let before = (0..round).map(|_| Act::Fair);
            fake.act(before.chain([bad]));
            appended(&session, round * 20, round * 20 + 20).await;
        }
        session.close().await.unwrap();
        assert_eq!(fake.payloads("f"), expected(400));
        let acks: Vec<_> = acks.collect().await;
        for (number, ack) in acks.iter().enumerate() {
            assert_eq!(ack.as_ref().unwrap().first, number as u64);
        }
        assert_eq!(acks.len(), 400);
    })
    .await;
}

#[tokio::test]
async fn refusal_for_now_is_sent_again_with_all_behind_it() {
    within(10, async {
        let fake = Fake::start().await;
        let client = client_of(&fake).await;
        let session = client.open("f").await.unwrap();
        let full = || Act::Refuse(ErrorCode::StorageFull, Effects::None, true);
        fake.act([Act::Fair, full(), Act::Fair, Act::Fair, full(), full()]);
        appended(&session, 0, 40).await;
        assert_eq!(fake.payloads("f"), expected(40));
        assert!(session.failure_cause().is_none());
    })
    .await;
}

#[tokio::test]
async fn refused_batch_alone_leaves_the_session_and_its_sequence() {
    within(10, async {
        let fake = Fake::start().await;
        let client = client_of(&fake).await;
        let session = client.open("f").await.unwrap();
        for at in 0..3 {
            let mismatch = session.append(Matching::at(90, "x")).await.unwrap_err();
            assert!(matches!(
                mismatch.kind(),
                ErrorKind::SequenceMismatch { .. }
            ));
            assert_eq!(
                session.append(payload(at).as_slice()).await.unwrap().first,
                at
            );
        }
        assert_eq!(fake.payloads("f"), expected(3));
    })
    .await;
}

#[tokio::test]
async fn refused_batch_stops_the_session_and_nothing_behind_it_is_stored() {
    within(10, async {
        let fake = Fake::start().await;
        let client = client_of(&fake).await;
        let session = client.open("f").await.unwrap();
        let acks = session.acks();
        let good = session.submit("payload 0");
        let bad = session.submit(Matching::at(90, "x"));
        let behind: Vec<_> = (0..50).map(|_| session.submit("y")).collect();
        good.await.unwrap();
        let cause = bad.await.unwrap_err();
        assert!(matches!(cause.kind(), ErrorKind::SequenceMismatch { .. }));
        for ticket in behind {
            let stopped = ticket.await.unwrap_err();
            assert_eq!(*stopped.kind(), ErrorKind::Stopped);
            assert_eq!(stopped.effects(), Effects::None);
        }
        assert_eq!(session.failure_cause().unwrap().kind(), cause.kind());
        let acks: Vec<_> = acks.collect().await;
        assert_eq!(acks.len(), 2, "one ack, then the cause");
        assert!(acks[0].is_ok() && acks[1].is_err());
        let unsettled = session.close().await.unwrap_err();
        assert_eq!((unsettled.unknown.len(), unsettled.unsent.len()), (0, 51));
        assert!(session.seal("").await.is_err());
        assert_eq!(fake.payloads("f"), expected(1));
    })
    .await;
}

#[tokio::test]
async fn fenced_after_a_lost_answer_is_unknown() {
    within(10, async {
        let fake = Fake::start().await;
        let client = client_of(&fake).await;
        let session = client.open("f").await.unwrap();
        appended(&session, 0, 2).await;
        // The append lands; while the session is away somebody else takes the feed.
        fake.act([Act::LoseAnswer]);
        let ticket = session.submit("payload 2");
        while fake.lock().feeds["f"].stored.len() < 3 {
            tokio::task::yield_now().await;
        }
        fake.lock().feeds.get_mut("f").unwrap().epoch = 9;
        let error = ticket.await.unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::Fenced { current: 9, .. }));
        assert_eq!(error.effects(), Effects::Unknown);
        assert_eq!(fake.payloads("f"), expected(3));
    })
    .await;
}

#[tokio::test]
async fn feed_that_was_replaced_stops_the_session() {
    within(10, async {
        let fake = Fake::start().await;
        let client = client_of(&fake).await;
        let session = client.open("f").await.unwrap();
        appended(&session, 0, 2).await;
        client.delete_feed("f").await.unwrap();
        client
            .create_feed("f", FeedOptions::default())
            .await
            .unwrap();
        fake.cut();
        let error = session.append("x").await.unwrap_err();
        let replaced = ErrorKind::FeedReplaced {
            feed: "f".to_owned(),
            before: 1,
            now: 2,
        };
        assert_eq!(*error.kind(), replaced);
        assert!(fake.payloads("f").is_empty());
    })
    .await;
}

#[tokio::test]
async fn window_takes_a_batch_as_large_as_it_and_refuses_a_larger_one_at_once() {
    within(10, async {
        let fake = Fake::start().await;
        let client = client_of(&fake).await;
        let options = SessionOptions {
            max_unacked_bytes: 65_536,
            ..SessionOptions::default()
        };
        let session = client.open_with("f", options).await.unwrap();
        let (fits, over) = (vec![1; 65_536], vec![1; 65_537]);
        session.append(fits.as_slice()).await.unwrap();
        let limit = |error: &sealog_client::Error| match error.kind() {
            ErrorKind::OverLimit { value, limit, .. } => (*value, *limit),
            other => panic!("{other:?}"),
        };
        let error = session.append_async(over.as_slice()).await.unwrap_err();
        assert_eq!(limit(&error), (65_537, 65_536));
        assert!(error.to_string().contains("65537") && error.to_string().contains("65536"));
        let error = session.submit(over.as_slice()).await.unwrap_err();
        assert_eq!(limit(&error), (65_537, 65_536));
        session.append(fits.as_slice()).await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn window_bounds_what_is_unacked_and_opens_again_after_a_reconnect() {
    within(20, async {
        let fake = Fake::start().await;
        let client = client_of(&fake).await;
        let options = SessionOptions {
            max_unacked_bytes: 64 << 10,
            ..SessionOptions::default()
        };
        let session = client.open_with("f", options).await.unwrap();
        // The server reads and says nothing; the window fills; the connection dies; all goes on.
        fake.act((0..64).map(|_| Act::Silent));
        let block = vec![7; 1 << 10];
        let mut tickets = Vec::new();
        for _ in 0..64 {
            tickets.push(session.append_async(block.as_slice()).await.unwrap());
        }
        assert_eq!(session.unacked_bytes(), 64 << 10);
        let wait = Duration::from_millis(50);
        let more = tokio::time::timeout(wait, session.append_async(block.as_slice())).await;
        assert!(more.is_err(), "the window is full");
        assert_eq!(session.unacked_bytes(), 64 << 10);
        fake.cut();
        for ticket in tickets {
            assert!(
                ticket.await.unwrap().duplicate,
                "it was stored before the cut"
            );
        }
        assert_eq!(session.unacked_bytes(), 0);
        session.append(block.as_slice()).await.unwrap();
        assert_eq!(fake.payloads("f").len(), 65);
    })
    .await;
}

#[tokio::test]
async fn batches_sent_without_tickets_are_told_by_the_acks() {
    within(10, async {
        let fake = Fake::start().await;
        let client = client_of(&fake).await;
        let options = SessionOptions {
            max_unacked_bytes: 64,
            ..SessionOptions::default()
        };
        let session = client.open_with("f", options).await.unwrap();
        let acks = session.acks();
        for number in 0..300 {
            assert_eq!(session.send(payload(number).as_slice()).unwrap(), number);
        }
        let over = session.send([0; 65].as_slice()).unwrap_err();
        assert!(matches!(
            over.kind(),
            ErrorKind::OverLimit {
                value: 65,
                limit: 64,
                ..
            }
        ));
        session.close().await.unwrap();
        let closed = session.send("x").unwrap_err();
        assert_eq!(*closed.kind(), ErrorKind::SessionClosed);
        let acks: Vec<_> = acks.map(|ack| ack.unwrap().first).collect().await;
        assert_eq!(acks, (0..300).collect::<Vec<u64>>());
        assert_eq!(fake.payloads("f"), expected(300));
    })
    .await;
}

#[tokio::test]
async fn ten_thousand_batches_nobody_awaits_are_acked_in_order() {
    within(30, async {
        let fake = Fake::start().await;
        let client = client_of(&fake).await;
        let options = SessionOptions {
            max_unacked_bytes: 64 << 10,
            ..SessionOptions::default()
        };
        let session = client.open_with("f", options).await.unwrap();
        let acks = session.acks();
        for number in 0..10_000 {
            drop(
                session
                    .append_async(payload(number).as_slice())
                    .await
                    .unwrap(),
            );
            assert!(session.unacked_bytes() <= 64 << 10);
        }
        session.close().await.unwrap();
        let acks: Vec<u64> = acks.map(|ack| ack.unwrap().first).collect().await;
        assert!(acks.into_iter().eq(0..10_000));
        assert_eq!(fake.payloads("f"), expected(10_000));
    })
    .await;
}

#[tokio::test]
async fn acks_not_taken_hold_back_who_appends_with_backpressure() {
    within(20, async {
        let fake = Fake::start().await;
        let client = client_of(&fake).await;
        let options = SessionOptions {
            max_unacked_batches: 8,
            ..SessionOptions::default()
        };
        let session = client.open_with("f", options).await.unwrap();
        let mut acks = session.acks();
        for number in 0..8 {
            session.append(payload(number).as_slice()).await.unwrap();
        }
        let wait = Duration::from_millis(50);
        let ninth = payload(8);
        let full = tokio::time::timeout(wait, session.append_async(ninth.as_slice())).await;
        assert!(full.is_err(), "eight acks are not taken");
        let (taken, appended) = tokio::join!(acks.next(), session.append(ninth.as_slice()));
        assert_eq!(
            (taken.unwrap().unwrap().first, appended.unwrap().first),
            (0, 8)
        );
        drop(acks);
        for number in 9..30 {
            session.append(payload(number).as_slice()).await.unwrap();
        }
    })
    .await;
}

#[tokio::test]
async fn close_with_a_full_window_returns_in_time_and_lists_what_is_unknown() {
    within(10, async {
        let fake = Fake::start().await;
        fake.lock().producer_batches_max = 4;
        let client = client_of(&fake).await;
        let options = SessionOptions {
            close_timeout: Duration::from_millis(200),
            ..SessionOptions::default()
        };
        let session = client.open_with("f", options).await.unwrap();
        appended(&session, 0, 2).await;
        fake.act((0..4).map(|_| Act::Silent));
        let tickets: Vec<_> = (2..10)
            .map(|n| session.submit(payload(n).as_slice()))
            .collect();
        let began = std::time::Instant::now();
        let unsettled = session.close().await.unwrap_err();
        assert!(began.elapsed() < Duration::from_secs(2));
        assert!(matches!(unsettled.cause.kind(), ErrorKind::TimedOut { .. }));
        assert_eq!(unsettled.unknown, [2, 3, 4, 5]);
        assert_eq!(unsettled.unsent, [6, 7, 8, 9]);
        for (number, ticket) in (2..).zip(tickets) {
            let effects = if number < 6 {
                Effects::Unknown
            } else {
                Effects::None
            };
            assert_eq!(ticket.await.unwrap_err().effects(), effects, "{number}");
        }
    })
    .await;
}

#[tokio::test]
async fn close_with_a_full_window_waits_for_the_acks() {
    within(20, async {
        let fake = Fake::start().await;
        let client = client_of(&fake).await;
        let session = client.open("f").await.unwrap();
        fake.act((0..50).map(|_| Act::Slow(Duration::from_millis(2))));
        for number in 0..400 {
            drop(session.submit(payload(number).as_slice()));
        }
        session.close().await.unwrap();
        assert_eq!(fake.payloads("f"), expected(400));
        assert_eq!(session.last_acked_position().unwrap().last, 399);
    })
    .await;
}

#[tokio::test]
async fn no_more_than_the_announced_batches_are_in_flight() {
    within(10, async {
        let fake = Fake::start().await;
        fake.lock().producer_batches_max = 3;
        let client = client_of(&fake).await;
        let session = client.open("f").await.unwrap();
        fake.act([Act::Silent, Act::Silent, Act::Silent]);
        let tickets: Vec<_> = (0..10)
            .map(|n| session.submit(payload(n).as_slice()))
            .collect();
        tokio::time::sleep(Duration::from_millis(50)).await;
        assert_eq!(fake.lock().appends, 3);
        fake.cut();
        for ticket in tickets {
            ticket.await.unwrap();
        }
        assert_eq!(fake.payloads("f"), expected(10));
    })
    .await;
}

#[tokio::test]
async fn credit_bounds_the_bytes_in_flight_of_all_sessions() {
    within(20, async {
        let fake = Fake::start().await;
        fake.lock().credit_bytes = 4_000;
        let client = client_of(&fake).await;
        client
            .create_feed("g", FeedOptions::default())
            .await
            .unwrap();
        let (f, g) = (
            client.open("f").await.unwrap(),
            client.open("g").await.unwrap(),
        );
        let block = vec![1; 1_000];
        // One request alone may be larger than the credit.
        f.append(vec![2; 10_000].as_slice()).await.unwrap();
        fake.act([Act::Slow(Duration::from_millis(100))]);
        let of_f: Vec<_> = (0..20).map(|_| f.submit(block.as_slice())).collect();
        let of_g: Vec<_> = (0..20).map(|_| g.submit(block.as_slice())).collect();
        tokio::time::sleep(Duration::from_millis(50)).await;
        assert!(fake.lock().appends <= 1 + 3, "{}", fake.lock().appends);
        for ticket in of_g.into_iter().chain(of_f) {
            ticket.await.unwrap();
        }
    })
    .await;
}

#[tokio::test]
async fn silent_server_is_given_up_and_another_connection_made() {
    within(20, async {
        let fake = Fake::start().await;
        let client = client_of(&fake).await;
        drop(client);
        // Everything passes but what comes down after the first answers.
        let proxy = Proxy::start(fake.address, []).await;
        proxy.plan(Plan {
            stall_down: Some(700),
            ..Plan::default()
        });
        proxy.plan(Plan {
            stall_up: Some(3_000),
            ..Plan::default()
        });
        let client = Client::connect_with(&proxy.address.to_string(), quick())
            .await
            .unwrap();
        let session = client.open("f").await.unwrap();
        appended(&session, 0, 100).await;
        assert_eq!(fake.payloads("f"), expected(100));
        assert!(proxy.connections.load(std::sync::atomic::Ordering::SeqCst) >= 3);
    })
    .await;
}

#[tokio::test]
async fn batches_that_do_not_move_stop_the_session() {
    within(10, async {
        let fake = Fake::start().await;
        let client = client_of(&fake).await;
        let options = SessionOptions {
            stall_timeout: Duration::from_millis(200),
            ..SessionOptions::default()
        };
        let session = client.open_with("f", options).await.unwrap();
        fake.act([Act::Silent]);
        let error = session.append("x").await.unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::TimedOut { .. }));
        assert_eq!(error.effects(), Effects::Unknown);
    })
    .await;
}

#[tokio::test]
async fn server_that_does_not_come_back_ends_the_session() {
    within(10, async {
        let fake = Fake::start().await;
        let mut options = quick();
        options.retry.elapsed_max = Duration::from_millis(300);
        let client = Client::connect_with(&fake.address.to_string(), options)
            .await
            .unwrap();
        client
            .create_feed("f", FeedOptions::default())
            .await
            .unwrap();
        let session = client.open("f").await.unwrap();
        fake.act([Act::Silent, Act::Silent]);
        let (sent, waiting) = (session.submit("x"), session.submit("y"));
        tokio::time::sleep(Duration::from_millis(30)).await;
        drop(fake);
        let error = sent.await.unwrap_err();
        assert_eq!(error.effects(), Effects::Unknown);
        assert!(waiting.await.is_err());
        assert!(session.failure_cause().is_some());
    })
    .await;
}

#[tokio::test]
async fn seal_whose_answer_was_lost_is_looked_up() {
    within(10, async {
        let fake = Fake::start().await;
        let client = client_of(&fake).await;
        let session = client.open("f").await.unwrap();
        appended(&session, 0, 5).await;
        fake.lock().lose_seals = 1;
        let commit = session.seal("once").await.unwrap();
        assert_eq!((commit.number, commit.records), (0, 5));
        assert_eq!(fake.lock().feeds["f"].commits.len(), 1);
    })
    .await;
}

#[tokio::test]
async fn seal_that_was_dropped_is_found_out_by_the_next() {
    within(20, async {
        let fake = Fake::start().await;
        let client = client_of(&fake).await;
        let session = client.open("f").await.unwrap();
        appended(&session, 0, 5).await;
        session.close().await.unwrap();
        // Done, its answer lost, and nobody waits for what comes of it.
        fake.lock().lose_seals = 1;
        let done = async {
            while fake.lock().feeds["f"].commits.is_empty() {
                tokio::task::yield_now().await;
            }
        };
        tokio::select! {
            biased;
            () = done => {}
            sealed = session.seal("once") => panic!("answered: {sealed:?}"),
        }
        let commit = session.seal("once").await.unwrap();
        assert_eq!((commit.number, commit.records), (0, 5));
        assert!(session.seal("twice").await.is_err());
        assert_eq!(fake.lock().feeds["f"].commits.len(), 1);
        assert_eq!(
            session.append("x").await.unwrap_err().effects(),
            Effects::None
        );
    })
    .await;
}

#[tokio::test]
async fn open_whose_answer_was_lost_is_not_done_twice() {
    within(10, async {
        let fake = Fake::start().await;
        let client = client_of(&fake).await;
        fake.lock().lose_opens = 1;
        let error = client.open("f").await.err().unwrap();
        assert_eq!(error.effects(), Effects::Unknown);
        assert_eq!(fake.lock().feeds["f"].streams.len(), 1);
        let session = client.resume("f").await.unwrap();
        session.append("x").await.unwrap();
        assert_eq!(session.seal("").await.unwrap().number, 0);
    })
    .await;
}

#[tokio::test]
async fn own_producer_goes_on_where_it_was_and_is_fenced_by_a_newer_epoch() {
    within(10, async {
        let fake = Fake::start().await;
        let client = client_of(&fake).await;
        let options = |epoch, next_sequence| SessionOptions {
            identity: Identity::Producer(Producer {
                id: b"p".to_vec(),
                epoch,
                next_sequence,
            }),
            ..SessionOptions::default()
        };
        let session = client.join("f", options(3, None)).await.unwrap();
        appended(&session, 0, 3).await;
        drop(session);
        // A restart that sends its last two again, and one more.
        let session = client.join("f", options(3, Some(1))).await.unwrap();
        let again = session.append("payload 1").await.unwrap();
        assert_eq!((again.first, again.duplicate), (1, true));
        assert_eq!(session.append("payload 2").await.unwrap().first, 2);
        assert_eq!(session.append("payload 3").await.unwrap().first, 3);
        let session = client.join("f", options(3, None)).await.unwrap();
        assert_eq!(session.append("payload 4").await.unwrap().first, 4);
        let newer = client.join("f", options(4, None)).await.unwrap();
        assert_eq!(newer.append("payload 5").await.unwrap().first, 5);
        let fenced = client.join("f", options(3, None)).await.err().unwrap();
        assert!(matches!(
            fenced.kind(),
            ErrorKind::ProducerFenced { current: 4, .. }
        ));
        assert_eq!(fake.payloads("f"), expected(6));
    })
    .await;
}

#[tokio::test]
async fn sink_applies_backpressure_and_flushes_when_all_is_acked() {
    within(20, async {
        let fake = Fake::start().await;
        let client = client_of(&fake).await;
        let options = SessionOptions {
            max_unacked_bytes: 100,
            ..SessionOptions::default()
        };
        let session = client.open_with("f", options).await.unwrap();
        let mut builder = BatchBuilder::new(FrameLimits::DEFAULT);
        let mut batch = |bytes: &[u8]| {
            builder.push(&Record::of(bytes)).unwrap();
            builder.build().unwrap()
        };
        let batches: Vec<_> = (0..300).map(|n| batch(&payload(n))).collect();
        let mut sink = session.sink();
        let mut stream = futures_util::stream::iter(batches).map(Ok);
        sink.send_all(&mut stream).await.unwrap();
        assert_eq!(session.unacked_bytes(), 0);
        assert_eq!(fake.payloads("f"), expected(300));
        let large = batch(&[0; 101]);
        assert!(sink.send(large).await.is_err(), "over the window");
        fake.act([Act::Refuse(ErrorCode::KeysNotAllowed, Effects::None, false)]);
        assert!(sink.send(batch(b"x")).await.is_err());
        assert!(
            sink.send(batch(b"y")).await.is_err(),
            "nothing behind a hole"
        );
        assert_eq!(fake.payloads("f"), expected(300));
    })
    .await;
}

#[tokio::test]
async fn dropped_session_stops_sending_and_what_was_sent_is_acked() {
    within(10, async {
        let fake = Fake::start().await;
        fake.lock().producer_batches_max = 2;
        let client = client_of(&fake).await;
        let session = client.open("f").await.unwrap();
        fake.act([Act::Slow(Duration::from_millis(50))]);
        let tickets: Vec<_> = (0..4)
            .map(|n| session.submit(payload(n).as_slice()))
            .collect();
        drop(session);
        let mut outcomes = Vec::new();
        for ticket in tickets {
            outcomes.push(ticket.await.map(|ack| ack.first).map_err(|e| e.effects()));
        }
        assert_eq!(
            outcomes,
            [Ok(0), Ok(1), Err(Effects::None), Err(Effects::None)]
        );
        assert_eq!(fake.payloads("f"), expected(2));
        assert_eq!(client.feed("f").await.unwrap().open_stream, Some(1));
    })
    .await;
}

#[tokio::test]
async fn connection_that_has_bound_all_it_may_is_kept_for_those_and_another_one_made() {
    within(10, async {
        let fake = Fake::start().await;
        fake.lock().first_binding = sealog_protocol::BINDINGS_MAX - 2;
        let client = client_of(&fake).await;
        let mut sessions = Vec::new();
        for (number, hellos) in [1, 1, 2, 2, 3].into_iter().enumerate() {
            let feed = format!("f{number}");
            fake.lock().create(&feed, false);
            let session = client.join(&feed, SessionOptions::default()).await.unwrap();
            assert_eq!(fake.lock().hellos, hellos, "{feed}");
            sessions.push((feed, session));
        }
        for (feed, session) in &sessions {
            session.submit(payload(7).as_slice()).await.unwrap();
            assert_eq!(fake.payloads(feed), [payload(7)], "{feed}");
        }
        assert_eq!(fake.lock().hellos, 3, "they keep theirs");
        // Bound again after a cut: in as many connections as it takes.
        fake.cut();
        for (feed, session) in &sessions {
            session.submit(payload(8).as_slice()).await.unwrap();
            assert_eq!(fake.payloads(feed).len(), 2, "{feed}");
        }
    })
    .await;
}

#[tokio::test]
async fn server_that_says_it_is_busy_is_waited_for() {
    within(20, async {
        let fake = Fake::start().await;
        fake.lock().credit_bytes = 64 << 20;
        let client = client_of(&fake).await;
        let session = client.open("f").await.unwrap();
        session.submit(payload(0).as_slice()).await.unwrap();
        let hellos = fake.lock().hellos;
        fake.lock().busy = true;
        // More than sockets hold: pings wait behind it, and writes do not move.
        let large: Vec<_> = (0..24)
            .map(|_| session.submit(vec![1; 1 << 20].as_slice()))
            .collect();
        // Ten heartbeats.
        let waiting = tokio::time::timeout(Duration::from_secs(1), client.feed("f")).await;
        assert!(waiting.is_err(), "it reads");
        fake.lock().busy = false;
        for ticket in large {
            ticket.await.unwrap();
        }
        assert_eq!(fake.lock().hellos, hellos, "another connection was made");
    })
    .await;
}
