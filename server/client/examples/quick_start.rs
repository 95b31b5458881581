//! Quick start: make a feed, append to it, seal it, read it back.
//!
//! **Invariants**
//! - Runs against a server whose feed `orders` has no records yet.
//!
//! **Not here**: what can go wrong (`failures.rs`).

use sealog_client::{Client, FeedOptions, ReadOptions, Record, Result};

pub(crate) async fn run(address: &str) -> Result<()> {
    let client = Client::connect(address).await?;
    client.create_feed("orders", FeedOptions::default()).await?;

    let session = client.open("orders").await?;
    // A batch is one record or many: stored whole, or not at all.
    let ack = session.append("hello").await?;
    assert_eq!((ack.first, ack.last), (0, 0));
    let ack = session
        .append(&[Record::of(b"a"), Record::keyed(b"k", 1, b"b")])
        .await?;
    assert_eq!((ack.first, ack.last), (1, 2));
    let commit = session.seal("hourly poll").await?;
    assert_eq!((commit.number, commit.records), (0, 3));

    let batch = client.read("orders", &ReadOptions::default()).await?;
    let payloads: Vec<&[u8]> = batch.records().map(|record| record.payload).collect();
    assert_eq!(payloads, [&b"hello"[..], b"a", b"b"]);
    Ok(())
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    run(&std::env::args()
        .nth(1)
        .unwrap_or("127.0.0.1:4436".to_owned()))
    .await
}
