//! Store: an object store that speaks S3's protocol on loopback, and a proxy that breaks what passes it.
//!
//! ```text
//!  bucket under test ──> Proxy (faults) ──> FakeStore, or a real store
//! ```
//!
//! **Invariants**
//! - What the fake does, Amazon's own store does; it is stricter where stores differ.
//! - A fault strikes as often as its rule says, then never again.
//!
//! **Not here**: signatures: nobody checks them.

mod fake;
mod http;
mod proxy;

use std::path::Path;
use std::time::Duration;

use sealog_engine::{EngineConfig, S3Options};

pub use fake::FakeStore;
pub use http::{Reply, Request};
pub use proxy::{Fault, Proxy};

/// Gives this process credentials that every store here takes, unless it has some.
pub fn credentials() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        if std::env::var_os("AWS_ACCESS_KEY_ID").is_none() {
            // SAFETY: tests call this before anything of theirs reads the environment, and those that
            // run beside wait here; the standard library locks around its own readers.
            unsafe {
                std::env::set_var("AWS_ACCESS_KEY_ID", "testkey123");
                std::env::set_var("AWS_SECRET_ACCESS_KEY", "testsecret123");
            }
        }
    });
}

/// An engine on a store, with limits so small that all turns over soon and a full log is told at once.
#[must_use]
pub fn config(dir: &Path, endpoint: &str, prefix: &str) -> EngineConfig {
    credentials();
    let mut config = crate::crash::config(dir);
    config.wal.full_wait = Duration::from_millis(300);
    config.s3 = Some(S3Options {
        endpoint: Some(endpoint.to_owned()),
        ..S3Options::of_url(&format!("s3://bucket/{prefix}")).expect("a bucket")
    });
    config
}

/// Name and endpoint of every real store that `tests/s3/run.sh` started, each with a bucket `sealog`.
#[must_use]
pub fn real_stores() -> Vec<(String, String)> {
    let text = std::env::var("SEALOG_S3_ENDPOINTS").unwrap_or_default();
    let rows = text
        .split_whitespace()
        .filter_map(|row| row.split_once('='));
    rows.map(|(name, endpoint)| (name.to_owned(), endpoint.to_owned()))
        .collect()
}
