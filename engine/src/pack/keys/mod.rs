//! Keys: newest record per key, as runs inside packs and as one index per stream. Spec: spec/key-index.md.
//!
//! **Invariants**
//! - KEYS-1: of two records of a key the newer has the higher version, ties go to the later sequence.
//! - KEYS-2: keys are any bytes, also none, up to [`KEY_BYTES_MAX`], in the order of their bytes.
//!
//! **Not here**: I/O; `latest` over several streams (`read`).

use std::collections::BTreeMap;

pub mod block;
pub mod filter;
pub mod index;
pub mod merge;
pub mod reader;

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
        (self.version, self.sequence) > (other.version, other.sequence)
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

/// Collects the newest record per key of one section, in memory.
#[derive(Debug, Default)]
pub struct KeyRun {
    newest: BTreeMap<Vec<u8>, KeyState>,
    bytes: usize,
}

/// What a map entry takes beside the key's own bytes; an estimate, for the caller's budget.
const ENTRY_OVERHEAD_BYTES: usize = 80;

impl KeyRun {
    /// Takes note of a record.
    pub fn add(&mut self, key: &[u8], state: KeyState) {
        if let Some(newest) = self.newest.get_mut(key) {
            if state.is_newer_than(newest) {
                *newest = state;
            }
            return;
        }
        self.bytes += key.len() + ENTRY_OVERHEAD_BYTES;
        self.newest.insert(key.to_vec(), state);
    }

    /// Memory in use, in bytes, roughly.
    #[must_use]
    pub fn buffered_bytes(&self) -> usize {
        self.bytes
    }

    /// Distinct keys.
    #[must_use]
    pub fn len(&self) -> usize {
        self.newest.len()
    }

    /// Whether no record was noted.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.newest.is_empty()
    }

    /// The entries in key order.
    pub fn into_entries(self) -> impl Iterator<Item = KeyEntry> {
        let entry = |(key, state)| KeyEntry { key, state };
        self.newest.into_iter().map(entry)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(version: i64, sequence: u64) -> KeyState {
        KeyState {
            version,
            sequence,
            tombstone: sequence % 2 == 0,
        }
    }

    #[test]
    fn key_run_keeps_highest_version_then_latest_sequence() {
        let mut run = KeyRun::default();
        run.add(b"b", state(5, 1));
        run.add(b"b", state(4, 9));
        run.add(b"a", state(-1, 2));
        run.add(b"a", state(-1, 3));
        run.add(b"", state(i64::MIN, 4));
        let entries: Vec<_> = run.into_entries().collect();
        let pairs: Vec<_> = entries
            .iter()
            .map(|e| (e.key.as_slice(), e.state.sequence))
            .collect();
        assert_eq!(pairs, [(&b""[..], 4), (b"a", 3), (b"b", 1)]);
    }

    #[test]
    fn key_run_repeated_key_takes_no_more_memory() {
        let mut run = KeyRun::default();
        run.add(b"key", state(0, 1));
        let once = run.buffered_bytes();
        run.add(b"key", state(0, 2));
        assert_eq!((run.buffered_bytes(), run.len()), (once, 1));
    }
}
