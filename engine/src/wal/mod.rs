//! Wal: the write-ahead log: groups in recycled segments, one sync per group. Spec: spec/wal.md §1.
//!
//! ```text
//!  append_* -> open group -> cut -> commit (write + sync) -> durable -> completions, readers
//!              accepted             written                  durable
//! ```
//!
//! **Invariants** are numbered in spec/wal.md; code cites them as WAL-n.
//!
//! **Not here**: what entries mean (`feed` folds them), when to pack (`lane`), repair (`recovery`).

pub(crate) mod alone;
pub mod entry;
pub mod group;
mod histogram;
pub mod log;
pub(crate) mod pace;
pub mod reader;
pub mod scan;
pub mod segment;
pub(crate) mod space;

pub use entry::{Change, Entry, EntryRef};
pub use histogram::Histogram;
pub use log::{Position, Wal, WalParams};
