//! Following: records as they come, from an exact place, over whatever connections it takes.
//!
//! **Invariants**
//! - Runs against a server whose feed `events` has no records yet.
//!
//! **Not here**: what can go wrong (`failures.rs`).

use sealog_client::{Client, FeedOptions, ReadFrom, ReadOptions, Result};

pub(crate) async fn run(address: &str) -> Result<()> {
    let client = Client::connect(address).await?;
    client.create_feed("events", FeedOptions::default()).await?;
    let session = client.open("events").await?;
    for number in 0..100_u32 {
        session.append(number.to_le_bytes().as_slice()).await?;
    }

    // What is there, and then what comes. `position` is where another follow would go on.
    let mut follow = client.follow("events", ReadOptions::from_sequence(90));
    let mut seen = 0;
    while seen < 10 {
        let Some(batch) = follow.next().await? else {
            break;
        };
        seen += batch.records().count();
    }
    assert_eq!(follow.position(), Some(100));

    // One stream of the feed ends when it is sealed and read; so does an end that was asked for.
    let stream = session.lease().map(|lease| lease.stream);
    session.seal("events").await?;
    let options = ReadOptions {
        stream,
        from: ReadFrom::Sequence(0),
        ..ReadOptions::default()
    };
    let mut follow = client.follow("events", options);
    let mut records = 0;
    while let Some(batch) = follow.next().await? {
        records += batch.records().count();
    }
    assert_eq!(records, 100);
    Ok(())
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    run(&std::env::args()
        .nth(1)
        .unwrap_or("127.0.0.1:4436".to_owned()))
    .await
}
