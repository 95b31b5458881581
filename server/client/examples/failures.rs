//! Failures: what an error says, and what to do about it.
//!
//! **Invariants**
//! - Runs against a server whose feed `ledger` has no records yet.
//!
//! **Not here**: retries over lost connections: sessions do those themselves.

use sealog_client::{
    Client, Effects, ErrorKind, FeedOptions, Identity, Matching, Producer, Result, SessionOptions,
};

pub(crate) async fn run(address: &str) -> Result<()> {
    let client = Client::connect(address).await?;
    client.create_feed("ledger", FeedOptions::default()).await?;
    let session = client.open("ledger").await?;
    session.append(Matching::empty("opening balance")).await?;

    // A condition that does not hold: the error has the values, and nothing was stored.
    let error = match session.append(Matching::at(41, "debit")).await {
        Ok(ack) => panic!("taken at {}", ack.first),
        Err(error) => error,
    };
    assert_eq!(error.effects(), Effects::None);
    if let ErrorKind::SequenceMismatch {
        actual: Some(last), ..
    } = error.kind()
    {
        // Nothing was submitted behind it, so the session goes on.
        session.append(Matching::at(*last, "debit")).await?;
    }

    // Somebody takes the feed over: the first writer is fenced, and its session stops.
    let taken = client.resume("ledger").await?;
    if let Err(error) = session.append("late").await {
        assert!(matches!(error.kind(), ErrorKind::Fenced { .. }));
        assert!(!error.is_retryable());
    }
    assert!(session.failure_cause().is_some());

    // What is left when a session is closed in trouble is listed: what may be stored, and what is not.
    if let Err(unsettled) = session.close().await {
        assert!(unsettled.unknown.is_empty());
    }
    taken.close().await.ok();

    // Exactly once across restarts of the writer: an identity of its own, and the numbers it keeps.
    let own = |next_sequence| SessionOptions {
        identity: Identity::Producer(Producer {
            id: b"billing-7".to_vec(),
            epoch: 1,
            next_sequence: Some(next_sequence),
        }),
        ..SessionOptions::default()
    };
    let run = client.join("ledger", own(0)).await?;
    let ack = run.append("invoice 1").await?;
    drop(run);
    let again = client.join("ledger", own(0)).await?;
    let same = again.append("invoice 1").await?;
    assert!(same.duplicate && same.first == ack.first);
    Ok(())
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    run(&std::env::args()
        .nth(1)
        .unwrap_or("127.0.0.1:4436".to_owned()))
    .await
}
