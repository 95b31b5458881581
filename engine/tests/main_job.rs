//! The main job on a real disk: records in, durable, sealed, read back, through restarts and many
//! times the log's size.
#![allow(missing_docs, clippy::unwrap_used)]

mod common;

use common::{batch, close, open, read_all, scratch, small};
use futures_lite::future::block_on;
use sealog_engine::{FeedOptions, SessionOptions};

fn payload(i: u64) -> Vec<u8> {
    let mut bytes = i.to_le_bytes().to_vec();
    bytes.resize(100 + (i % 900) as usize, (i % 251) as u8);
    bytes
}

#[test]
fn append_many_times_the_log_all_read_back() {
    let dir = scratch();
    let (engine, handle) = open(small(dir.path()));
    block_on(handle.create_feed("big", FeedOptions::default())).unwrap();
    let options = SessionOptions {
        max_unacked_bytes: 1 << 20,
    };
    let session = block_on(handle.open_session("big", options)).unwrap();
    let total = 60_000u64;
    block_on(async {
        let mut tickets = Vec::new();
        for start in (0..total).step_by(50) {
            let payloads: Vec<_> = (start..start + 50).map(payload).collect();
            let refs: Vec<&[u8]> = payloads.iter().map(|p| &p[..]).collect();
            tickets.push(session.append_async(batch(&refs)).await.unwrap());
        }
        for (i, ticket) in tickets.into_iter().enumerate() {
            assert_eq!(ticket.await.unwrap().first, i as u64 * 50);
        }
    });
    let before = read_all(&handle, "big");
    assert_eq!(before.len() as u64, total);
    let commit = block_on(session.seal("done")).unwrap();
    assert_eq!(
        (commit.first.0, commit.end.0, commit.records),
        (0, total, total)
    );
    for (i, (sequence, bytes)) in read_all(&handle, "big").into_iter().enumerate() {
        assert_eq!(sequence, i as u64);
        assert_eq!(bytes, payload(sequence), "sequence {sequence}");
    }
    let wal = std::fs::read_dir(dir.path().join("wal/0")).unwrap().count();
    assert!(wal <= 8, "{wal} segments");
    close(engine);
    let (engine, handle) = open(small(dir.path()));
    assert_eq!(read_all(&handle, "big"), before);
    close(engine);
}

#[test]
fn quiet_feeds_share_packs_and_free_the_log() {
    let dir = scratch();
    let (engine, handle) = open(small(dir.path()));
    let feeds: Vec<String> = (0..50).map(|i| format!("quiet/{i}")).collect();
    for feed in &feeds {
        block_on(handle.create_feed(feed, FeedOptions::default())).unwrap();
    }
    block_on(handle.create_feed("loud", FeedOptions::default())).unwrap();
    let filler = vec![7u8; 16 << 10];
    for round in 0..40u64 {
        for feed in &feeds {
            block_on(handle.append(feed, batch(&[&payload(round)]))).unwrap();
        }
        for _ in 0..20 {
            block_on(handle.append("loud", batch(&[&filler]))).unwrap();
        }
    }
    let check = |handle: &sealog_engine::Handle<_>| {
        for feed in &feeds {
            let records = read_all(handle, feed);
            assert_eq!(records.len(), 40, "{feed}");
            for (sequence, bytes) in records {
                assert_eq!(bytes, payload(sequence));
            }
        }
        assert_eq!(read_all(handle, "loud").len(), 800);
    };
    check(&handle);
    assert!(
        dir.path().join("bucket/shared").exists(),
        "no shared pack was made"
    );
    close(engine);
    let (engine, handle) = open(small(dir.path()));
    check(&handle);
    for feed in &feeds {
        let commit = block_on(handle.seal(feed, None, "end")).unwrap();
        assert_eq!(commit.records, 40);
    }
    check(&handle);
    close(engine);
}
