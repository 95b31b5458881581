//! Commit: what publishing a stream leaves in the bucket beside its packs: manifest, commit, names.
//!
//! **Invariants**
//! - Pure: bytes in, values out; the lane does the I/O.
//! - Same values, same bytes: a retry is byte-identical, so its digest is too.
//!
//! **Not here**: packs and key indexes (`pack`), when any of it is written (`lane`).

mod entry;
pub mod manifest;
pub mod paths;

pub use entry::{Commit, CommitKind, MESSAGE_BYTES_MAX};
pub use manifest::{KeyIndexRef, Manifest, PackPlace, PackRef};
