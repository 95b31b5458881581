//! Native: the binary protocol, on the shards. Spec: server/spec/native-protocol.md.
//!
//! ```text
//!  socket ──> inbox: bytes to messages ──> append: straight into the log of this shard ──┐
//!                                     └──> requests: a task each ──────────────┐         │ durable
//!  socket <── outbox: answers in one write <───────────────────────────────────┴─────────┘
//! ```
//!
//! **Invariants**
//! - NATIVE-3, NATIVE-4, NATIVE-5 of the spec.
//! - A connection that does not read or write costs its buffers and nobody's time.
//!
//! **Not here**: bytes of messages (`sealog-protocol`), sockets (`net`), decisions (the engine).

mod appends;
mod bindings;
mod connection;
mod convert;
mod follow;
mod long;
mod memory;
mod meters;
mod opening;
mod outbox;
mod pulse;
mod reader;
mod refuse;
mod refused;
mod requests;
mod service;
mod writer;

pub(crate) use meters::Meters;
pub(crate) use opening::OPENING_MAX;
pub(crate) use reader::same_token;
pub(crate) use service::{NativeOptions, NativeService};
