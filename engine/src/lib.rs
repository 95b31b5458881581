//! The engine of Sealog: a durable stream store for one machine, embeddable in any process.
//!
//! [`Engine::open`] starts the executors on threads of their own; a [`Handle`] can be cloned to any
//! thread and used from any runtime or none. The programs in `examples/` are the quick start:
//! `append_and_seal`, `idempotent_producer`, `following_reader`.
//!
//! **Invariants** are numbered in `spec/`; `docs/ARCHITECTURE.md` walks through append, read and recovery.

pub mod append;
pub mod bucket;
pub mod bugs;
mod checkpoint;
pub mod codec;
pub mod commit;
mod datadir;
mod engine;
pub mod env;
mod error;
mod feed;
mod files;
#[doc(hidden)]
pub mod formats;
mod frontier;
pub mod ids;
mod inspect;
mod lane;
mod limits;
pub mod pack;
pub mod producer;
mod read;
mod recovery;
mod reserve;
mod shard;
pub mod subscription;
mod sync;
mod verify;
pub mod wal;

pub use append::{AppendResult, Lease};
pub use bucket::S3Options;
pub use datadir::{Fixed, MARKER_FILE, SETTINGS_FILE, fixed};
pub use engine::offline::{
    FeedLoss, LogLoss, LossReport, ReshardReport, accept_loss, accept_loss_in, reshard, reshard_in,
};
pub use engine::{
    AppendSession, Engine, ForkRequest, Handle, LinkedFeed, LocalLog, ProductionEnv,
    SessionOptions, ShardSide, SubscribeRequest, Subscribed, Ticket,
};
pub use error::{Effects, Error, Result};
pub use feed::{Base, Closing, FeedOptions, Pin};
#[cfg(feature = "s3")]
pub use inspect::inspect_object;
pub use inspect::{InspectOptions, Node, inspect};
pub use limits::{
    EngineConfig, PRODUCER_ID_BYTES_MAX, PRODUCER_RANGES_MAX, RollConfig, WalConfig,
    check_commit_message,
};
pub use read::{Held, ReadChunk, ReadFrom, ReadRequest, fingerprint};
pub use recovery::Report;
pub use shard::{
    AckRequest, CloseRequest, Closed, Direct, DueWake, FeedInfo, FeedRef, LogService, LogUsage,
    Made, MakeRequest, OrderKey, PendingFeed, ProducerInfo, StreamInfo, StreamPhase,
    SubscriptionInfo, Usage,
};
pub use sync::{Budget, Event, Listen, Permit};
pub use verify::{LogVerified, VerifyProgress, VerifyReport, verify, verify_in};
