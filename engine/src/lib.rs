//! The engine of Sealog: a durable stream store for one machine, embeddable in any process.

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
pub mod ids;
mod lane;
mod limits;
pub mod pack;
pub mod producer;
mod read;
mod recovery;
mod shard;
mod sync;
pub mod wal;

pub use engine::{AppendSession, Engine, Handle, ProductionEnv, SessionOptions, Ticket};
pub use error::{Effects, Error, Result};
pub use feed::FeedOptions;
pub use limits::{EngineConfig, WalConfig};
pub use read::{ReadChunk, ReadFrom, ReadRequest};
pub use recovery::Report;
pub use shard::{FeedInfo, LogService, ProducerInfo, StreamInfo, StreamPhase};
