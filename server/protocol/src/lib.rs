//! The native protocol: what client and server of Sealog say to each other. Spec: server/spec/native-protocol.md.
//!
//! A connection carries *messages*: a header of 16 bytes and a body. The client speaks first
//! ([`Hello`]); from then on it sends [`Request`]s, each with an id of its own, as many as the credit
//! allows, and the server sends [`Answer`]s with the id of the request they belong to.
//!
//! **Invariants**
//! - Pure: bytes in, values out. No function panics on bytes from outside.
//! - Decoding allocates no more than a small multiple of the bytes it was given, whatever they announce.
//! - Encoding is canonical: what decodes encodes again to the same bytes.
//!
//! **Not here**: sockets, batches (`sealog-frame`), who may do what (the server).

mod answer;
mod header;
mod hello;
mod info;
mod place;
mod refusal;
mod request;
mod wire;

pub use answer::{Answer, Records};
pub use header::{
    CONNECTION, HEADER_BYTES, HELLO_BYTES_MAX, MESSAGE_BYTES_MAX, MORE, MessageHeader,
};
pub use hello::{BINDINGS_MAX, Features, Hello, PROTOCOL_VERSION, ShardAddress, Welcome};
pub use info::{
    BucketUsage, CommitInfo, FeedInfo, LogInfo, LogUsage, ProducerInfo, StreamInfo, StreamPhase,
    Trouble,
};
pub use place::{log_of, shard_of};
pub use refusal::{Effects, ErrorCode, Refusal};
pub use request::{ReadFrom, ReadScope, Request, Settling};
pub use wire::{Rest, WireError};
