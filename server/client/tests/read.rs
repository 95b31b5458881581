//! Read: answers, follows, credit; the other operations; connections by shard.
//!
//! **Invariants**
//! - Every test ends within its deadline.
//!
//! **Not here**: cuts (`cuts.rs`), appends (`session.rs`).

#![allow(clippy::unwrap_used, reason = "tests report by panicking")]

mod common;

use std::sync::atomic::Ordering;
use std::time::Duration;

use common::fake::{Act, Fake};
use common::proxy::{Plan, Proxy};
use common::{quick, within};
use futures_util::StreamExt;
use sealog_client::{
    Client, ClientOptions, Effects, ErrorKind, FeedOptions, ReadFrom, ReadOptions, RetryPolicy,
    SessionOptions,
};

async fn connected(fake: &Fake) -> Client {
    let client = Client::connect_with(&fake.address.to_string(), quick())
        .await
        .unwrap();
    client
        .create_feed("f", FeedOptions::default())
        .await
        .unwrap();
    client
}

async fn filled(fake: &Fake, records: u64) -> Client {
    let client = connected(fake).await;
    let session = client.join("f", SessionOptions::default()).await.unwrap();
    for number in 0..records {
        drop(session.submit(number.to_le_bytes().as_slice()));
    }
    session.close().await.unwrap();
    client
}

fn number(payload: &[u8]) -> u64 {
    u64::from_le_bytes(payload.try_into().unwrap())
}

#[tokio::test]
async fn read_answers_what_was_asked_for_only() {
    within(10, async {
        let fake = Fake::start().await;
        let client = filled(&fake, 10).await;
        let options = ReadOptions {
            end: 7,
            ..ReadOptions::from_sequence(4)
        };
        let batch = client.read("f", &options).await.unwrap();
        let records: Vec<u64> = batch.records().map(|r| number(r.payload)).collect();
        assert_eq!(records, [4, 5, 6]);
        assert_eq!((batch.first(), batch.next(), batch.tail()), (4, 7, 10));
        assert!(batch.is_end());
        let none = client
            .read("f", &ReadOptions::from_sequence(10))
            .await
            .unwrap();
        assert!(none.is_empty() && !none.is_end());
        let missing = client.read("g", &options).await.unwrap_err();
        assert!(matches!(missing.kind(), ErrorKind::FeedNotFound { .. }));
        assert_eq!(missing.effects(), Effects::None);
    })
    .await;
}

#[tokio::test]
async fn follow_waits_at_the_tail_for_more() {
    within(10, async {
        let fake = Fake::start().await;
        let client = filled(&fake, 3).await;
        let session = client.join("f", SessionOptions::default()).await.unwrap();
        let mut follow = client.follow("f", ReadOptions::from_tail());
        let none = tokio::time::timeout(Duration::from_millis(50), follow.next()).await;
        assert!(none.is_err(), "cancelled at the tail");
        assert_eq!(follow.position(), Some(3));
        // The tail moves on while there is no connection: what came meanwhile is not skipped.
        fake.cut();
        session
            .append(3_u64.to_le_bytes().as_slice())
            .await
            .unwrap();
        fake.cut();
        session
            .append(4_u64.to_le_bytes().as_slice())
            .await
            .unwrap();
        let mut due = 3;
        while due < 5 {
            let batch = follow.next().await.unwrap().unwrap();
            for record in batch.records() {
                assert_eq!(number(record.payload), due);
                due += 1;
            }
        }
    })
    .await;
}

#[tokio::test]
async fn follow_is_bounded_by_its_buffer_and_goes_on_when_batches_are_taken() {
    within(20, async {
        let fake = Fake::start().await;
        let client = filled(&fake, 2_000).await;
        let proxy = Proxy::start(fake.address, []).await;
        let reader = Client::connect_with(&proxy.address.to_string(), quick())
            .await
            .unwrap();
        let options = ReadOptions {
            bytes_max: 1,
            buffer_bytes: 4_096,
            ..ReadOptions::default()
        };
        let mut follow = reader.follow("f", options);
        let mut due = 0;
        let first = follow.next().await.unwrap().unwrap();
        due += first.records().count() as u64;
        tokio::time::sleep(Duration::from_millis(100)).await;
        let passed = proxy.passed[1].lock().unwrap().len();
        assert!(
            passed < 3 * 4_096,
            "{passed} bytes were sent to a reader that takes none"
        );
        while due < 2_000 {
            let batch = follow.next().await.unwrap().unwrap();
            for record in batch.records() {
                assert_eq!(number(record.payload), due);
                due += 1;
            }
        }
        drop(client);
    })
    .await;
}

#[tokio::test]
async fn follow_as_a_stream_ends_with_its_scope_or_its_error() {
    within(10, async {
        let fake = Fake::start().await;
        let client = filled(&fake, 20).await;
        let options = ReadOptions {
            end: 15,
            bytes_max: 1,
            ..ReadOptions::default()
        };
        let batches: Vec<_> = client.follow("f", options).into_stream().collect().await;
        let records = batches
            .iter()
            .flat_map(|batch| batch.as_ref().unwrap().records());
        assert!(records.map(|r| number(r.payload)).eq(0..15));
        let mut stream = client.follow("none", ReadOptions::default()).into_stream();
        assert!(stream.next().await.unwrap().is_err());
        assert!(stream.next().await.is_none());
    })
    .await;
}

#[tokio::test]
async fn follow_of_a_feed_that_was_replaced_ends() {
    within(10, async {
        let fake = Fake::start().await;
        let client = filled(&fake, 2).await;
        let mut follow = client.follow("f", ReadOptions::default());
        while follow.position() != Some(2) {
            follow.next().await.unwrap();
        }
        client.delete_feed("f").await.unwrap();
        client
            .create_feed("f", FeedOptions::default())
            .await
            .unwrap();
        fake.cut();
        let error = follow.next().await.unwrap_err();
        assert!(matches!(
            error.kind(),
            ErrorKind::FeedReplaced {
                before: 1,
                now: 2,
                ..
            }
        ));
    })
    .await;
}

#[tokio::test]
async fn follow_of_a_feed_that_is_replaced_as_it_begins_is_not_of_the_new_one() {
    within(10, async {
        let fake = Fake::start().await;
        let client = filled(&fake, 2).await;
        for options in [ReadOptions::default(), ReadOptions::from_tail()] {
            fake.lock().replace_described = 1;
            let mut follow = client.follow("f", options);
            let error = follow.next().await.unwrap_err();
            let ErrorKind::FeedReplaced { before, now, .. } = error.kind() else {
                panic!("{error}");
            };
            assert_eq!(*now, before + 1);
        }
    })
    .await;
}

#[tokio::test]
async fn operations_ask_again_over_a_lost_connection() {
    within(10, async {
        let fake = Fake::start().await;
        let client = filled(&fake, 3).await;
        for _ in 0..5 {
            fake.cut();
            assert_eq!(client.feed("f").await.unwrap().next_sequence, 3);
        }
        assert_eq!(client.list_feeds("", "", 10).await.unwrap().len(), 1);
        let commit = client.seal("f", "by hand").await.unwrap();
        assert_eq!(client.list_commits("f", 0, 10).await.unwrap(), [commit]);
        assert_eq!(client.list_streams("f", 0, 10).await.unwrap().len(), 1);
        assert_eq!(client.producer("f", b"nobody").await.unwrap(), None);
        assert_eq!(client.repair("f").await.unwrap(), 0);
        assert_eq!(client.stats().await.unwrap().len(), 1);
        fake.lock().lose_seals = 1;
        let session = client.join("f", SessionOptions::default()).await.unwrap();
        session.append("x").await.unwrap();
        let unknown = client.seal("f", "").await.unwrap_err();
        assert_eq!(unknown.effects(), Effects::Unknown);
        let from = ReadFrom::Tail(1);
        let options = ReadOptions {
            from,
            ..ReadOptions::default()
        };
        assert_eq!(
            client.read("f", &options).await.unwrap().records().count(),
            1
        );
    })
    .await;
}

#[tokio::test]
async fn request_that_the_server_would_not_take_is_refused_here() {
    within(10, async {
        let fake = Fake::start().await;
        fake.lock().message_bytes_max = 1_000;
        let client = connected(&fake).await;
        let error = client.seal("f", &"m".repeat(1_000)).await.unwrap_err();
        let ErrorKind::OverLimit { value, limit, .. } = *error.kind() else {
            panic!("{error:?}");
        };
        assert!(value > 1_000 && limit == 1_000);
        assert_eq!(error.effects(), Effects::None);
        assert_eq!(client.feed("f").await.unwrap().id, 1);
        assert_eq!(fake.lock().hellos, 1, "the connection is still the first");
    })
    .await;
}

#[tokio::test]
async fn token_is_sent_and_a_wrong_one_is_told_at_once() {
    within(10, async {
        let fake = Fake::start().await;
        fake.lock().token = Some(b"secret".to_vec());
        let address = fake.address.to_string();
        let error = Client::connect_with(&address, quick()).await.err().unwrap();
        assert_eq!(*error.kind(), ErrorKind::Unauthorized);
        assert!(!error.is_retryable());
        assert_eq!(fake.lock().hellos, 1);
        let options = ClientOptions {
            token: Some("secret".into()),
            ..quick()
        };
        Client::connect_with(&address, options).await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn server_that_is_not_there_is_tried_within_the_policy() {
    within(10, async {
        let fake = Fake::start().await;
        let address = fake.address.to_string();
        drop(fake);
        let options = ClientOptions {
            retry: RetryPolicy {
                attempts_max: Some(3),
                ..quick().retry
            },
            ..quick()
        };
        let error = Client::connect_with(&address, options).await.err().unwrap();
        assert!(matches!(error.kind(), ErrorKind::Connect { .. }));
        assert!(error.to_string().contains(&address) && error.is_retryable());
        let options = ClientOptions {
            request_timeout: Duration::from_millis(200),
            ..quick()
        };
        let error = Client::connect_with(&address, options).await.err().unwrap();
        assert!(matches!(error.kind(), ErrorKind::Connect { .. }));
    })
    .await;
}

#[tokio::test]
async fn server_that_says_nothing_is_given_up_in_time() {
    within(10, async {
        let fake = Fake::start().await;
        let plan = Plan {
            stall_down: Some(0),
            ..Plan::default()
        };
        let proxy = Proxy::start(fake.address, [plan; 2]).await;
        let options = ClientOptions {
            connect_timeout: Duration::from_millis(100),
            ..quick()
        };
        Client::connect_with(&proxy.address.to_string(), options)
            .await
            .unwrap();
        assert_eq!(proxy.connections.load(Ordering::SeqCst), 3);
    })
    .await;
}

/// A name whose feed belongs to `shard` of two.
fn name_on(shard: u32) -> String {
    let mut names = (0..).map(|n| format!("feed {n}"));
    names
        .find(|name| sealog_protocol::shard_of(name, 2, 2) == shard)
        .unwrap()
}

#[tokio::test]
async fn feeds_are_asked_at_their_shard_and_over_the_shared_port_when_that_is_out_of_reach() {
    within(20, async {
        let fake = Fake::start().await;
        let own = fake.also().await;
        let to_shard = Proxy::start(own, []).await;
        fake.lock().ports = vec![0, to_shard.address.port()];
        let client = connected(&fake).await;
        let (here, there) = (name_on(0), name_on(1));
        for feed in [&here, &there] {
            client
                .create_feed(feed, FeedOptions::default())
                .await
                .unwrap();
            let session = client.open(feed).await.unwrap();
            session.append("x").await.unwrap();
        }
        assert_eq!(
            to_shard.connections.load(Ordering::SeqCst),
            1,
            "one connection per shard"
        );
        // Nobody listens there any more.
        drop(to_shard);
        fake.cut();
        let session = client.resume(&there).await.unwrap();
        fake.act([Act::LoseAnswer]);
        session.append("y").await.unwrap();
        assert_eq!(fake.payloads(&there).len(), 2);
    })
    .await;
}
