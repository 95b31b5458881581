//! Hello: what both sides tell each other first. Spec: server/spec/native-protocol.md §4.
//!
//! **Invariants**
//! - The version spoken is the highest that both know; features are those that both name.
//!
//! **Not here**: who is let in (the server compares the token).

use crate::wire::{Input, Wire, WireError, put_list, take_list, wire_struct};

/// The version this crate speaks.
pub const PROTOCOL_VERSION: u16 = 1;
/// Feeds that one connection may bind.
pub const BINDINGS_MAX: u32 = 16_384;

/// Optional abilities, as bits. None is defined in version 1; unknown bits are ignored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Features(pub u64);

impl<'a> Wire<'a> for Features {
    fn put(&self, out: &mut Vec<u8>) {
        self.0.put(out);
    }
    fn take(input: &mut Input<'a>) -> Result<Self, WireError> {
        u64::take(input).map(Self)
    }
}

wire_struct! {
    /// What a client says first.
    pub struct Hello<'a> {
        /// `SLNP`: so that a stray connection is told apart.
        pub magic: u32,
        /// Lowest version it speaks.
        pub version_min: u16,
        /// Highest version it speaks.
        pub version_max: u16,
        /// What else it can do.
        pub features: Features,
        /// After this many milliseconds without a message of its own it sends a ping, and expects the
        /// server to; 0: no heartbeat.
        pub heartbeat_ms: u32,
        /// The bearer token, if it has one.
        pub token: Option<&'a [u8]>,
        /// Program and version, for the server's logs.
        pub agent: &'a str,
    }
}

impl Hello<'_> {
    /// The magic number: the bytes `SLNP`.
    pub const MAGIC: u32 = u32::from_le_bytes(*b"SLNP");
}

wire_struct! {
    /// Where a shard listens.
    pub struct ShardAddress {
        /// Port of the shard's own listener, on the address that the client came by; 0: none.
        pub port: u16,
    }
}

/// What the server answers to a hello.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Welcome {
    /// The version spoken from here on.
    pub version: u16,
    /// Abilities that both have.
    pub features: Features,
    /// Random, new with every start of the server.
    pub server: u64,
    /// Program and version.
    pub agent: String,
    /// Longest request, header included.
    pub message_bytes_max: u32,
    /// Bytes of requests that may be unanswered; one request alone may be longer.
    pub credit_bytes: u32,
    /// Batches of one producer that may be unanswered: the ranges of so many are remembered.
    pub producer_batches_max: u32,
    /// Metered bytes of a batch at most.
    pub batch_bytes_max: u32,
    /// Payload and headers of a record at most.
    pub record_bytes_max: u32,
    /// Records of a batch at most.
    pub records_max: u32,
    /// Number of logs: see [`log_of`](crate::log_of).
    pub logs: u32,
    /// The shard that answers here.
    pub shard: u32,
    /// Where each shard listens.
    pub shards: Vec<ShardAddress>,
}

impl<'a> Wire<'a> for Welcome {
    fn put(&self, out: &mut Vec<u8>) {
        self.version.put(out);
        self.features.put(out);
        self.server.put(out);
        self.agent.put(out);
        self.message_bytes_max.put(out);
        self.credit_bytes.put(out);
        self.producer_batches_max.put(out);
        self.batch_bytes_max.put(out);
        self.record_bytes_max.put(out);
        self.records_max.put(out);
        self.logs.put(out);
        self.shard.put(out);
        put_list(&self.shards, out);
    }
    fn take(input: &mut Input<'a>) -> Result<Self, WireError> {
        Ok(Self {
            version: Wire::take(input)?,
            features: Wire::take(input)?,
            server: Wire::take(input)?,
            agent: Wire::take(input)?,
            message_bytes_max: Wire::take(input)?,
            credit_bytes: Wire::take(input)?,
            producer_batches_max: Wire::take(input)?,
            batch_bytes_max: Wire::take(input)?,
            record_bytes_max: Wire::take(input)?,
            records_max: Wire::take(input)?,
            logs: Wire::take(input)?,
            shard: Wire::take(input)?,
            shards: take_list(input)?,
        })
    }
}
