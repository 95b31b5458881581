//! Common: a fake server, a proxy that cuts and stalls, and deadlines.
//!
//! **Invariants**
//! - The fake judges producers, tokens and match sequences as the server's spec says, in its order.
//!
//! **Not here**: tests.
#![allow(dead_code, reason = "each test file uses a part of it")]

pub mod fake;
pub mod proxy;

use std::time::Duration;

use sealog_client::{ClientOptions, RetryPolicy};

/// Runs `test`, or fails when it takes too long.
pub async fn within<T>(seconds: u64, test: impl Future<Output = T>) -> T {
    let limit = Duration::from_secs(seconds);
    match tokio::time::timeout(limit, test).await {
        Ok(done) => done,
        Err(_) => panic!("still running after {limit:?}"),
    }
}

/// Options that retry quickly and notice silence within a third of a second.
pub fn quick() -> ClientOptions {
    ClientOptions {
        connect_timeout: Duration::from_secs(2),
        request_timeout: Duration::from_secs(10),
        heartbeat: Duration::from_millis(100),
        retry: RetryPolicy {
            base: Duration::from_millis(2),
            cap: Duration::from_millis(20),
            attempts_max: None,
            elapsed_max: Duration::from_secs(10),
        },
        ..ClientOptions::default()
    }
}
