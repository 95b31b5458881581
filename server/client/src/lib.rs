//! The client of Sealog: append sessions, readers and administration over the native protocol.
//!
//! **Invariants**
//! - No engine inside: what is known of a server comes over its connection.
//!
//! **Not here**: the protocol's bytes (`sealog-protocol`), the batch's (`sealog-frame`).

mod backoff;
mod client;
mod conn;
mod error;
mod follow;
mod link;
mod ops;
mod options;
mod read;
mod session;

pub use backoff::RetryPolicy;
pub use client::Client;
pub use error::{Effects, Error, ErrorKind, Result};
pub use follow::{Follow, FollowStream};
pub use ops::FeedOptions;
pub use options::{ClientOptions, Identity, Producer, SessionOptions, Tls, Token};
pub use read::{ReadOptions, RecordBatch};
pub use session::{
    Ack, Acks, AppendSession, AppendSink, IntoBatch, Lease, Matching, Ticket, Unsettled,
};

pub use sealog_frame::{Batch, BatchBuilder, FrameLimits, MatchSequence, Record, RecordView};
pub use sealog_protocol::{
    CommitInfo, FeedInfo, LogInfo, ProducerInfo, ReadFrom, Settling, StreamInfo, StreamPhase,
    Welcome,
};
