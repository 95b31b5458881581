//! Formats: the codecs of what lies in a data directory beside the log, for tools, tests and fuzzers.
//!
//! **Not here**: packs, commits and groups, which have public modules of their own.

pub use crate::checkpoint::root::{ChunkRef, Root, decode_chunk, encode_chunk};
pub use crate::datadir::Marker;
pub use crate::feed::{Doomed, Feed, Feeds, Head, IndexEntry, Misfit, Stream, Totals};
pub use crate::wal::segment::Geometry;
