//! Place: which log, and which shard, a feed belongs to. Spec: server/spec/native-protocol.md §6.
//!
//! **Invariants**
//! - The same function as the engine's: a test of the server holds them together.
//!
//! **Not here**: where the shards listen (`hello`).

/// The log of the feed named `feed`, of `logs` logs. With one log, or none, it is 0.
#[must_use]
pub fn log_of(feed: &str, logs: u32) -> u32 {
    let hash = u64::from(crc32c::crc32c(feed.as_bytes()));
    u32::try_from((hash * u64::from(logs)) >> 32).unwrap_or(0)
}

/// The shard that hosts the feed: logs go round the shards.
#[must_use]
pub fn shard_of(feed: &str, logs: u32, shards: u32) -> u32 {
    log_of(feed, logs) % shards.max(1)
}
