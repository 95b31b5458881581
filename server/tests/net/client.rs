//! Client: `sealog-client` against a real server that is killed, restarted, cut off and stalled.
//!
//! **Invariants**
//! - Every record is stored exactly once and in order, whatever happened; every test has a deadline.
//!
//! **Not here**: the client against a fake (its own tests).

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use sealog_client::{
    Client, ClientOptions, Effects, ErrorKind, FeedOptions, Matching, ReadOptions, Record,
    RetryPolicy, SessionOptions, Settling, StreamPhase,
};

use crate::proxy::{Plan, Proxy};
use crate::server::Server;

/// Runs `test` on a runtime of two threads, or fails when it takes too long.
pub fn within<T>(seconds: u64, test: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime");
    runtime.block_on(async {
        let limit = Duration::from_secs(seconds);
        let done = tokio::time::timeout(limit, test).await;
        done.unwrap_or_else(|_| panic!("still running after {limit:?}"))
    })
}

fn options() -> ClientOptions {
    ClientOptions {
        request_timeout: Duration::from_secs(60),
        heartbeat: Duration::from_millis(250),
        retry: RetryPolicy {
            base: Duration::from_millis(5),
            cap: Duration::from_millis(200),
            attempts_max: None,
            elapsed_max: Duration::from_secs(60),
        },
        ..ClientOptions::default()
    }
}

async fn start(dir: &Path) -> Server {
    let dir = dir.to_owned();
    let started = tokio::task::spawn_blocking(move || Server::start(&dir, &[]));
    started.await.expect("a server")
}

/// With one shard the client has no port to go to but the proxy's.
pub async fn start_one_shard(dir: &Path) -> Server {
    let (dir, config) = (dir.to_owned(), dir.join("one-shard.toml"));
    std::fs::write(&config, "shards = 1\n").unwrap();
    let started = tokio::task::spawn_blocking(move || {
        let config = config.to_str().unwrap();
        Server::start(&dir.join("data"), &["--config", config])
    });
    started.await.expect("a server")
}

async fn connect(address: impl ToString) -> Client {
    let client = Client::connect_with(&address.to_string(), options())
        .await
        .unwrap();
    client
        .create_feed("f", FeedOptions::default())
        .await
        .unwrap();
    client
}

fn payload(number: u64) -> [u8; 100] {
    let mut payload = [u8::try_from(number % 251).unwrap(); 100];
    payload[..8].copy_from_slice(&number.to_le_bytes());
    payload
}

/// Reads the feed whole and expects payloads `0..count`, each once and in order.
async fn check(client: &Client, count: u64) {
    let options = ReadOptions {
        end: count,
        ..ReadOptions::default()
    };
    let mut follow = client.follow("f", options);
    let mut due = 0;
    while let Some(batch) = follow.next().await.unwrap() {
        for record in batch.records() {
            assert_eq!(record.sequence, due);
            assert_eq!(record.payload, payload(due));
            due += 1;
        }
    }
    assert_eq!(due, count);
    let info = client.feed("f").await.unwrap();
    assert_eq!(info.next_sequence, count, "nothing is stored twice");
}

#[test]
fn session_reads_writes_and_seals_on_every_shard() {
    let dir = tempfile::tempdir().unwrap();
    within(60, async {
        let server = start(dir.path()).await;
        let client = connect(server.address).await;
        for feed in ["f", "g", "h", "i", "j"] {
            client
                .create_feed(feed, FeedOptions::default())
                .await
                .unwrap();
            let session = client.open(feed).await.unwrap();
            let tickets: Vec<_> = (0..1_000)
                .map(|n| session.submit(payload(n).as_slice()))
                .collect();
            for (number, ticket) in (0..).zip(tickets) {
                assert_eq!(ticket.await.unwrap().first, number);
            }
            let mismatch = session.append(Matching::at(3, "x")).await.unwrap_err();
            let kind = ErrorKind::SequenceMismatch {
                expected: Some(3),
                actual: Some(999),
            };
            assert_eq!(
                (mismatch.kind(), mismatch.effects()),
                (&kind, Effects::None)
            );
            session
                .append(Matching::at(999, payload(1_000).as_slice()))
                .await
                .unwrap();
            let commit = session.seal("all of it").await.unwrap();
            assert_eq!(
                (commit.records, commit.message.as_str()),
                (1_001, "all of it")
            );
        }
        check(&client, 1_001).await;
        let streams = client.list_streams("f", 0, 10).await.unwrap();
        assert_eq!(streams[0].phase, StreamPhase::Published);
        let producers = client.list_producers("f", None, 10).await.unwrap();
        assert_eq!(producers.len(), 1);
    });
}

#[test]
fn session_and_follow_survive_kills_under_load() {
    let dir = tempfile::tempdir().unwrap();
    within(120, async {
        let mut server = start(dir.path()).await;
        let proxy = Proxy::start(server.address, []).await;
        let client = connect(proxy.address).await;
        let session = Arc::new(client.open("f").await.unwrap());
        let reader = connect(proxy.address).await;
        let following = tokio::spawn(async move { check_follow(&reader, 20_000).await });
        let writer = session.clone();
        let writing = tokio::spawn(async move {
            for number in 0..20_000 {
                if number % 50 == 0 {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
                drop(
                    writer
                        .append_async(payload(number).as_slice())
                        .await
                        .unwrap(),
                );
            }
        });
        for round in 0..4 {
            tokio::time::sleep(Duration::from_millis(300 + 100 * round)).await;
            server.signal(libc::SIGKILL);
            let gone = tokio::task::spawn_blocking(move || {
                server.wait();
                server
            });
            drop(gone.await.unwrap());
            server = start(dir.path()).await;
            proxy.aim(server.address);
        }
        writing.await.unwrap();
        let commit = session.seal("after the storm").await.unwrap();
        assert_eq!(commit.records, 20_000);
        assert_eq!(session.last_acked_position().unwrap().last, 19_999);
        following.await.unwrap();
        check(&client, 20_000).await;
    });
}

async fn check_follow(client: &Client, count: u64) {
    let options = ReadOptions {
        end: count,
        ..ReadOptions::default()
    };
    let mut follow = client.follow("f", options);
    let mut due = 0;
    while let Some(batch) = follow.next().await.unwrap() {
        for record in batch.records() {
            assert_eq!((record.sequence, record.payload), (due, &payload(due)[..]));
            due += 1;
        }
    }
    assert_eq!(due, count);
}

#[test]
fn session_survives_a_drain_and_goes_on_with_the_next_server() {
    let dir = tempfile::tempdir().unwrap();
    within(120, async {
        let mut server = start(dir.path()).await;
        let proxy = Proxy::start(server.address, []).await;
        let client = connect(proxy.address).await;
        let session = client.open("f").await.unwrap();
        let mut tickets = Vec::new();
        for number in 0..2_000 {
            tickets.push(session.submit(payload(number).as_slice()));
            if number == 1_000 {
                tokio::time::sleep(Duration::from_millis(20)).await;
                server.signal(libc::SIGTERM);
            }
        }
        let ended = tokio::task::spawn_blocking(move || server.wait().success());
        assert!(ended.await.unwrap(), "a drain ends well");
        let server = start(dir.path()).await;
        proxy.aim(server.address);
        for (number, ticket) in (0..).zip(tickets) {
            assert_eq!(ticket.await.unwrap().first, number);
        }
        check(&client, 2_000).await;
    });
}

#[test]
fn session_survives_a_proxy_that_cuts_and_stalls() {
    let dir = tempfile::tempdir().unwrap();
    within(120, async {
        let server = start_one_shard(dir.path()).await;
        let proxy = Proxy::start(server.address, []).await;
        let client = connect(proxy.address).await;
        for round in 0_usize..12 {
            let bytes = 20_000 + 7_919 * round;
            proxy.plan(match round % 4 {
                0 => Plan {
                    cut_up: Some(bytes),
                    ..Plan::default()
                },
                1 => Plan {
                    cut_down: Some(bytes / 20),
                    ..Plan::default()
                },
                2 => Plan {
                    stall_down: Some(bytes / 20),
                    ..Plan::default()
                },
                _ => Plan {
                    stall_up: Some(bytes),
                    ..Plan::default()
                },
            });
        }
        // The connection there is passes everything: a client of its own meets the plans.
        let cut = connect(proxy.address).await;
        let session = cut.open("f").await.unwrap();
        let mut number = 0;
        while number < 8_000 {
            let payloads: Vec<_> = (number..number + 4).map(payload).collect();
            let records: Vec<_> = payloads.iter().map(|p| Record::of(p)).collect();
            drop(session.append_async(&records).await.unwrap());
            number += 4;
        }
        session.close().await.unwrap();
        let connections = proxy.connections.load(std::sync::atomic::Ordering::SeqCst);
        assert!(
            connections > 12,
            "{connections} connections: some plans were not met"
        );
        check(&client, 8_000).await;
    });
}

#[test]
fn follow_goes_over_a_discarded_range_that_reaches_the_tail() {
    let dir = tempfile::tempdir().unwrap();
    within(60, async {
        let server = start(dir.path()).await;
        let client = connect(server.address).await;
        for count in [3, 2] {
            let session = client.open("f").await.unwrap();
            for number in 0..count {
                session.append(payload(number).as_slice()).await.unwrap();
            }
            if count == 3 {
                session.seal("kept").await.unwrap();
            }
        }
        client
            .settle("f", None, Settling::Discard, "")
            .await
            .unwrap();
        // One batch an answer: what is behind the third is the gap alone, when there is nothing else yet.
        let options = ReadOptions {
            end: 7,
            bytes_max: 1,
            ..ReadOptions::default()
        };
        let mut follow = client.follow("f", options);
        let mut seen = Vec::new();
        while seen.len() < 3 {
            let batch = follow.next().await.unwrap().unwrap();
            seen.extend(batch.records().map(|record| record.sequence));
        }
        let wait = Duration::from_millis(200);
        let none = tokio::time::timeout(wait, follow.next()).await;
        assert!(none.is_err(), "nothing is behind the gap yet");
        let session = client.open("f").await.unwrap();
        for number in 0..2 {
            session.append(payload(number).as_slice()).await.unwrap();
        }
        while let Some(batch) = follow.next().await.unwrap() {
            seen.extend(batch.records().map(|record| record.sequence));
        }
        assert_eq!(seen, [0, 1, 2, 5, 6]);
    });
}

#[test]
fn two_writers_without_a_lease_share_a_feed_and_lose_nothing() {
    let dir = tempfile::tempdir().unwrap();
    within(60, async {
        let server = start(dir.path()).await;
        let client = connect(server.address).await;
        let write = async || {
            let session = client.join("f", SessionOptions::default()).await.unwrap();
            for number in 0..500 {
                drop(
                    session
                        .append_async(payload(number).as_slice())
                        .await
                        .unwrap(),
                );
            }
            session.close().await.unwrap();
        };
        tokio::join!(write(), write());
        let info = client.feed("f").await.unwrap();
        assert_eq!((info.next_sequence, info.producers), (1_000, 2));
        client.seal("f", "both").await.unwrap();
    });
}
