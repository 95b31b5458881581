//! Pack: immutable objects that hold whole frames of one stream or of many. Spec: spec/pack.md.
//!
//! **Invariants**
//! - Pure: bytes in, bytes out; no I/O, no clock.
//! - Same frames, same bytes: a retry is byte-identical, so its digest is too.
//!
//! **Not here**: when a pack is cut and where it goes (`lane`), names (`commit::paths`).

pub mod keys;
pub(crate) mod layout;
pub mod merkle;
mod parts;

pub use parts::FinishedObject;
