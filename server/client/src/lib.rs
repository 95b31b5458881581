//! The client of Sealog: append sessions, readers and administration over the native protocol.
//!
//! A [`Client`] is a handle to one server; it keeps one connection per shard that it talks to, makes them again when they
//! end, and is cheap to clone. Everything runs on tokio: call it within a runtime. There is no engine inside.
//!
//! The programs below are whole: they are the crate's examples, and the server's tests run them.
//!
//! # Quick start
//!
//! ```no_run
#![doc = include_str!("../examples/quick_start.rs")]
//! ```
//!
//! # Sessions
//!
//! An [`AppendSession`] is a writer's hold on a feed. [`Client::open`] takes the writer lease and opens a stream,
//! [`Client::resume`] takes the lease over the newest unsealed one, [`Client::join`] writes beside others without a lease.
//!
//! | call | waits for | backpressure |
//! |---|---|---|
//! | [`append`](AppendSession::append) | the acknowledgement | yes |
//! | [`append_async`](AppendSession::append_async) | room in the window; its [`Ticket`] is the acknowledgement | yes |
//! | [`submit`](AppendSession::submit) | nothing; its [`Ticket`] is the acknowledgement | no |
//! | [`send`](AppendSession::send) | nothing, and has no ticket: [`acks`](AppendSession::acks) tell; the least work per batch | no |
//! | [`sink`](AppendSession::sink) | as a `Sink`: room; flushed means acknowledged | yes |
//! | [`acks`](AppendSession::acks) | as a `Stream`: every outcome, in order | |
//! | [`seal`](AppendSession::seal) | all of the above, then the commit | |
//! | [`close`](AppendSession::close) | all of the above, or its time-out, with a list of what is unknown | |
//!
//! `close().await` stands for a destructor that could wait; dropping a session only stops sending. What was sent is
//! acknowledged to its tickets nevertheless. A batch's size need not be handed in: it is known without another pass
//! over the records.
//!
//! ```no_run
#![doc = include_str!("../examples/sessions.rs")]
//! ```
//!
//! # Failure handling
//!
//! There is one [`Error`]. Its [`kind`](Error::kind) keeps the values, [`is_retryable`](Error::is_retryable) says whether
//! the same call may succeed later, and [`effects`](Error::effects) whether what was asked for may have happened.
//!
//! *Lost connections* are the session's business. Every batch carries a producer tag (unless [`Identity::Off`]), so it can be
//! sent again on the next connection and is stored once; acknowledgements stay in order. A conditional append whose answer was
//! lost is answered by the original's sequence, not by a mismatch. Without a tag an append whose answer was lost has
//! [`Effects::Unknown`], and stops the session: what comes behind must not be stored without it.
//!
//! *Refusals for now* (storage full, overload) are waited out, and everything from the refused batch on is sent again in order.
//!
//! *Refusals of a batch* (a condition that does not hold, a key where none may be) leave the session as it was if nothing was
//! submitted behind the batch. Otherwise the session stops: with a tag, nothing behind the refused batch is stored.
//! [`failure_cause`](AppendSession::failure_cause) says why, and every ticket what became of its batch.
//!
//! *Refusals of a session* ([`Fenced`](ErrorKind::Fenced) and such) stop it. Open or resume again, or leave the feed to the
//! other writer.
//!
//! | call | its answer is lost |
//! |---|---|
//! | appends with a tag | sent again, exactly once |
//! | appends without | effects unknown, the session stops |
//! | [`AppendSession::seal`] under a lease | looked up: sealed once, and told |
//! | [`Client::open`] | effects unknown: [`Client::resume`] takes the stream if it was opened |
//! | [`delete_feed`](Client::delete_feed), [`settle`](Client::settle), [`Client::seal`] | effects unknown: look |
//! | everything else | asked again |
//!
//! ```no_run
#![doc = include_str!("../examples/failures.rs")]
//! ```
//!
//! # Reading
//!
//! [`Client::read`] gives one answer; a [`Follow`] goes on at the tail, and over lost connections at the exact sequence. Records
//! are views into the frames as they came; frames are checked, checksums too, before they are shown.
//!
//! ```no_run
#![doc = include_str!("../examples/following.rs")]
//! ```
//!
//! # Tuning
//!
//! - *Throughput* comes from batches on their way: [`SessionOptions::max_unacked_bytes`] is the window. At most 256 batches
//!   per session are at the server at once, so that it remembers each; very small records go further in batches of several.
//! - *Latency* of one append is one round trip and one device sync. Many sessions of one client share writes and syncs.
//! - *Memory*: a session holds its window, a follow its [`buffer_bytes`](ReadOptions::buffer_bytes) and one answer.
//!   [`submit`](AppendSession::submit) and [`send`](AppendSession::send) are outside of the window: bound it yourself.
//! - *A herd* of clients whose server was away comes back spread over the whole back-off, which is jittered behind its cap.
//!
//! ```no_run
#![doc = include_str!("../examples/tuning.rs")]
//! ```
//!
//! **Invariants**
//! - No engine inside: what is known of a server comes over its connection.
//!
//! **Not here**: the protocol's bytes (`sealog-protocol`), the batch's (`sealog-frame`).

mod backoff;
mod built;
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
pub use ops::{FeedOptions, Usage};
pub use options::{ClientOptions, Identity, Producer, SessionOptions, Tls, Token};
pub use read::{ReadOptions, RecordBatch};
pub use session::{
    Ack, Acks, AppendSession, AppendSink, IntoBatch, Lease, Matching, Ticket, Unsettled,
};

pub use sealog_frame::{Batch, BatchBuilder, FrameLimits, MatchSequence, Record, RecordView};
pub use sealog_protocol::{
    BucketUsage, CommitInfo, FeedInfo, LogInfo, LogUsage, ProducerInfo, ReadFrom, Settling,
    StreamInfo, StreamPhase, Trouble, Welcome,
};
