//! Sessions: many batches on their way at once, with and without backpressure.
//!
//! **Invariants**
//! - Runs against a server whose feed `numbers` has no records yet.
//!
//! **Not here**: what can go wrong (`failures.rs`).

use futures_util::{SinkExt, StreamExt};
use sealog_client::{
    BatchBuilder, Client, FeedOptions, FrameLimits, Record, Result, SessionOptions,
};

pub(crate) async fn run(address: &str) -> Result<()> {
    let client = Client::connect(address).await?;
    client
        .create_feed("numbers", FeedOptions::default())
        .await?;
    let options = SessionOptions {
        max_unacked_bytes: 4 << 20,
        ..SessionOptions::default()
    };
    let session = client.open_with("numbers", options).await?;

    // Every acknowledgement from here on, in order, whichever way its batch went in.
    let acks = session.acks();

    // Waits for room in the window, not for the acknowledgement.
    for number in 0..1_000_u32 {
        let ticket = session
            .append_async(number.to_le_bytes().as_slice())
            .await?;
        drop(ticket); // the ack stream has it, too
    }

    // Never waits: whoever submits bounds what is on its way.
    let ticket = session.submit("one more");
    assert_eq!(ticket.await?.first, 1_000);

    // A sink applies the window to a stream of batches; flushed is acknowledged.
    let mut builder = BatchBuilder::new(FrameLimits::DEFAULT);
    let mut sink = session.sink();
    for _ in 0..10 {
        builder.push(&Record::of(b"x"))?;
        builder.push(&Record::of(b"y"))?;
        sink.feed(builder.build()?).await?;
    }
    sink.flush().await?;
    assert_eq!(
        session.last_acked_position().map(|ack| ack.last),
        Some(1_020)
    );

    // Waits for everything on its way, then seals.
    let commit = session.seal("numbers").await?;
    assert_eq!(commit.records, 1_021);
    assert_eq!(acks.count().await, 1_011);

    // After a restart of the writer, or instead of one that is gone: the unsealed stream goes on.
    let first = client.open("numbers").await?;
    first.append("before").await?;
    drop(first);
    let second = client.resume("numbers").await?;
    second.append("after").await?;
    assert_eq!(second.seal("both").await?.records, 2);
    Ok(())
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    run(&std::env::args()
        .nth(1)
        .unwrap_or("127.0.0.1:4436".to_owned()))
    .await
}
