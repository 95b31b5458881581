//! The batch frame: one byte layout for the wire, the log, packs and reads. Spec: spec/frame.md.
//!
//! **Invariants**
//! - No function panics on bytes from outside: [`FrameView::parse`] refuses, a trusted view ends early.
//! - The body is written once by whoever seals it; a server only rewrites the first 64 bytes ([`stamp`]).
//! - The effective timestamp is one pure function of header and record ([`TimestampRule`]).
//!
//! **Not here**: I/O, admission (who may append), sequences of a feed, fingerprints of payloads.

mod batch;
mod builder;
mod error;
mod layout;
mod limits;
mod record;
mod sparse;
mod stamp;
mod timestamp;
mod validate;
mod view;

pub use batch::Batch;
pub use builder::BatchBuilder;
pub use error::FrameError;
pub use layout::{FORMAT_VERSION, FRAME_HEADER_BYTES, FrameKind, SERVER_SECTION_BYTES};
pub use limits::FrameLimits;
pub use record::{Headers, MatchSequence, ProducerTag, Record, RecordView};
pub use sparse::seal_sparse;
pub use stamp::{Stamp, peek_frame_bytes, stamp};
pub use timestamp::{TimestampMode, TimestampRule};
pub use view::{FrameView, Records};
