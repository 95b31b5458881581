//! Cuts: the connection ends at every boundary of a message, beside it and inside, in both directions.
//!
//! **Invariants**
//! - Whatever is cut, every record is stored once and in order, every ack is right, and nothing hangs.
//!
//! **Not here**: the real server (its own tests).

#![allow(clippy::unwrap_used, reason = "tests report by panicking")]

mod common;

use std::collections::BTreeSet;

use common::fake::Fake;
use common::proxy::{Plan, Proxy};
use common::{quick, within};
use sealog_client::{AppendSession, Client, Effects, ErrorKind, FeedOptions, ReadOptions, Record};
use sealog_protocol::MessageHeader;

const BATCHES: u64 = 6;

/// Offsets of interest in a stream of messages: their boundaries, beside them, and inside.
fn places(bytes: &[u8]) -> BTreeSet<usize> {
    let (mut places, mut at) = (BTreeSet::new(), 0);
    while let Some(header) = MessageHeader::peek(&bytes[at..], 64 << 20).unwrap() {
        let end = at + header.message_bytes;
        places.extend([
            at + 1,
            at + 8,
            at + 16,
            at + 20,
            (at + end) / 2,
            end - 1,
            end,
        ]);
        at = end;
    }
    assert_eq!(at, bytes.len(), "whole messages");
    places
}

/// As a user would: an open whose outcome is unknown is followed by a resume.
async fn opened(client: &Client, feed: &str) -> AppendSession {
    loop {
        match client.open(feed).await {
            Ok(session) => return session,
            Err(error) => assert_eq!(error.effects(), Effects::Unknown, "{error}"),
        }
        match client.resume(feed).await {
            Ok(session) => return session,
            Err(error) => {
                assert!(
                    matches!(error.kind(), ErrorKind::NoOpenStream { .. }),
                    "{error}"
                );
            }
        }
    }
}

/// Connects, opens, appends, seals, and checks every answer.
async fn write_all(address: &str, feed: &str) {
    let client = Client::connect_with(address, quick()).await.unwrap();
    let session = opened(&client, feed).await;
    let payloads: Vec<[u8; 24]> = (0..).map(|n| [n; 24]).take(2 * 6).collect();
    let tickets: Vec<_> = payloads
        .chunks(2)
        .map(|pair| session.submit(&[Record::of(&pair[0]), Record::of(&pair[1])]))
        .collect();
    for (number, ticket) in (0..).zip(tickets) {
        let ack = ticket.await.unwrap();
        assert_eq!(
            (ack.first, ack.last, ack.records),
            (2 * number, 2 * number + 1, 2)
        );
    }
    let commit = session.seal("cut").await.unwrap();
    assert_eq!((commit.number, commit.records), (0, 2 * BATCHES));
}

fn check(fake: &Fake, feed: &str) {
    let payloads = fake.payloads(feed);
    let expected: Vec<Vec<u8>> = (0..12).map(|n| vec![n; 24]).collect();
    assert_eq!(payloads, expected);
}

/// What passes, both ways, when nothing is cut.
async fn recorded(fake: &Fake) -> [Vec<u8>; 2] {
    let direct = Client::connect_with(&fake.address.to_string(), quick())
        .await
        .unwrap();
    direct
        .create_feed("plain", FeedOptions::default())
        .await
        .unwrap();
    let proxy = Proxy::start(fake.address, []).await;
    write_all(&proxy.address.to_string(), "plain").await;
    check(fake, "plain");
    [0, 1].map(|way: usize| proxy.passed[way].lock().unwrap().clone())
}

async fn writes_survive(way: usize) {
    let fake = Fake::start().await;
    fake.lock().heartbeat = false;
    let bytes = recorded(&fake).await;
    let places = places(&bytes[way]);
    assert!(places.len() > 40, "{}", places.len());
    for &place in &places {
        let feed = format!("cut {way} at {place}");
        fake.lock().create(&feed, false);
        let plan = match way {
            0 => Plan {
                cut_up: Some(place),
                ..Plan::default()
            },
            _ => Plan {
                cut_down: Some(place),
                ..Plan::default()
            },
        };
        // Once, then twice in a row.
        let proxy = Proxy::start(fake.address, [plan]).await;
        if place % 3 == 0 {
            proxy.plan(plan);
        }
        write_all(&proxy.address.to_string(), &feed).await;
        check(&fake, &feed);
    }
}

#[tokio::test]
async fn session_survives_cuts_of_what_it_sends() {
    within(60, writes_survive(0)).await;
}

#[tokio::test]
async fn session_survives_cuts_of_what_it_is_answered() {
    within(60, writes_survive(1)).await;
}

#[tokio::test]
async fn follow_survives_cuts_without_gap_and_without_repeat() {
    within(60, async {
        let fake = Fake::start().await;
        fake.lock().heartbeat = false;
        recorded(&fake).await;
        // Small answers: many messages.
        let options = ReadOptions {
            end: 11,
            bytes_max: 1,
            buffer_bytes: 600,
            ..ReadOptions::from_sequence(3)
        };
        let read = async |proxy: &Proxy| {
            let client = Client::connect_with(&proxy.address.to_string(), quick())
                .await
                .unwrap();
            let mut follow = client.follow("plain", options.clone());
            let mut due = 3;
            while let Some(batch) = follow.next().await.unwrap() {
                for record in batch.records() {
                    assert_eq!(record.sequence, due);
                    assert_eq!(record.payload, vec![u8::try_from(due).unwrap(); 24]);
                    due += 1;
                }
                assert_eq!(follow.position(), Some(due));
            }
            assert_eq!(due, 11);
        };
        let proxy = Proxy::start(fake.address, []).await;
        read(&proxy).await;
        let bytes = [0, 1].map(|way: usize| proxy.passed[way].lock().unwrap().clone());
        for way in [0, 1] {
            for place in places(&bytes[way]) {
                let plan = match way {
                    0 => Plan {
                        cut_up: Some(place),
                        ..Plan::default()
                    },
                    _ => Plan {
                        cut_down: Some(place),
                        ..Plan::default()
                    },
                };
                let proxy = Proxy::start(fake.address, [plan, plan]).await;
                read(&proxy).await;
            }
        }
    })
    .await;
}
