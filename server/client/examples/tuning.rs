//! Tuning: the options that matter, and what for.
//!
//! **Invariants**
//! - Runs against a server whose feed `tuned` has no records yet.
//!
//! **Not here**: every option: their types list them, with defaults.

use std::time::Duration;

use sealog_client::{
    Client, ClientOptions, FeedOptions, ReadOptions, Result, RetryPolicy, SessionOptions,
};

pub(crate) async fn run(address: &str) -> Result<()> {
    let options = ClientOptions {
        // `token: Some("…".into())` and `tls: Some(Tls::trusting(pem)?)` beyond this machine.
        connect_timeout: Duration::from_secs(2),
        request_timeout: Duration::from_secs(10),
        heartbeat: Duration::from_secs(1), // a dead path is noticed after three
        retry: RetryPolicy {
            cap: Duration::from_secs(1),
            elapsed_max: Duration::from_secs(30),
            ..RetryPolicy::default()
        },
        ..ClientOptions::default()
    };
    let client = Client::connect_with(address, options).await?;
    client.create_feed("tuned", FeedOptions::default()).await?;

    let session = client
        .open_with(
            "tuned",
            SessionOptions {
                max_unacked_bytes: 64 << 20, // fast disks far away want more in flight
                stall_timeout: Duration::from_secs(30),
                ..SessionOptions::default()
            },
        )
        .await?;
    session.append("x").await?;

    let options = ReadOptions {
        bytes_max: 4 << 20,     // fewer, larger answers for catching up
        buffer_bytes: 16 << 20, // and more of them ahead of the reader
        end: 1,
        ..ReadOptions::default()
    };
    let batch = client.follow("tuned", options).next().await?;
    assert_eq!(batch.map(|batch| batch.records().count()), Some(1));
    Ok(())
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    run(&std::env::args()
        .nth(1)
        .unwrap_or("127.0.0.1:4436".to_owned()))
    .await
}
