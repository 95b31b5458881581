//! Keys: newest record per key, as runs inside packs and as one index per stream. Spec: spec/key-index.md.
//!
//! **Invariants**
//! - KEYS-1: of two records of a key the newer has the higher version, ties go to the later sequence.
//! - KEYS-2: keys are any bytes, also none, up to [`KEY_BYTES_MAX`], in the order of their bytes.
//!
//! **Not here**: I/O; `latest` over several streams (`read`).

pub mod block;
pub mod filter;
pub mod index;
pub mod merge;
pub mod reader;
mod run;

pub use run::{KeyRun, SortedKeys};

/// Longest key in bytes.
pub const KEY_BYTES_MAX: usize = 64 * 1024;

/// The newest record of a key, without the key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeyState {
    /// Version of the record.
    pub version: i64,
    /// Its position in the feed.
    pub sequence: u64,
    /// Whether it hides the key.
    pub tombstone: bool,
}

impl KeyState {
    /// Whether this record, and not `other`, is the newest of their key (KEYS-1).
    #[must_use]
    pub fn is_newer_than(&self, other: &Self) -> bool {
        self.age() > other.age()
    }

    fn age(&self) -> (i64, u64) {
        (self.version, self.sequence)
    }
}

/// A key and its newest record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyEntry {
    /// The key.
    pub key: Vec<u8>,
    /// Its newest record.
    pub state: KeyState,
}
