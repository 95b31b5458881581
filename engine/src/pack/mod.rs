//! Pack: immutable objects that hold whole frames of one stream or of many. Spec: spec/pack.md.
//!
//! **Invariants**
//! - Pure: bytes in, bytes out; no I/O, no clock.
//! - Same frames, same bytes: a retry is byte-identical, so its digest is too.
//!
//! **Not here**: when a pack is cut and where it goes (`lane`), names (`commit::paths`).

use crate::codec::DecodeError;
use sealog_frame::FrameError;

mod block;
mod builder;
mod column;
mod digest;
mod fold;
mod index;
pub mod keys;
pub(crate) mod layout;
pub mod merkle;
mod parts;
mod table;
mod verify;

pub use block::{
    BLOCK_BYTES_MAX, BLOCK_BYTES_TARGET, BLOCK_HEADER_BYTES, BlockHeader, BlockView, Frames,
};
pub use builder::{PackBuilder, PackOptions, PackSummary};
pub use column::{COLUMN_ENTRY_BYTES, ColumnView};
pub use index::PackIndex;
pub use keys::index::FinishedObject;
pub use table::{
    IndexEntry, PACK_FOOTER_BYTES, PACK_HEADER_BYTES, PackFooter, PackKind, SectionSummary,
};
pub use verify::{PackDamage, PackVerifier};

/// Why a frame was not taken into a pack, or bytes are no pack.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PackError {
    /// A part of the pack itself.
    #[error(transparent)]
    Pack(#[from] DecodeError),
    /// A frame in it.
    #[error("frame: {0}")]
    Frame(#[from] FrameError),
}

#[cfg(test)]
mod tests;
