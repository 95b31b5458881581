//! Cache: decoded commits, manifests and pack indexes, bounded in bytes.
//!
//! **Invariants**
//! - Everything cached is immutable and named by what it is, so nothing is ever stale.
//!
//! **Not here**: record bytes (the log keeps its newest groups; packs are read by range).

use std::collections::BTreeMap;
use std::rc::Rc;

use crate::commit::{Commit, Manifest};
use crate::pack::PackIndex;

/// A decoded object.
#[derive(Clone)]
pub(super) enum Cached {
    Commit(Rc<Commit>),
    Manifest(Rc<Manifest>),
    Pack(Rc<PackIndex>),
}

struct Slot {
    object: Cached,
    bytes: usize,
    used: u64,
}

/// Least-recently-used cache over object paths.
pub struct ReadCache {
    slots: BTreeMap<String, Slot>,
    bytes: usize,
    bytes_max: usize,
    clock: u64,
}

impl ReadCache {
    pub(crate) fn new(bytes_max: usize) -> Self {
        Self {
            slots: BTreeMap::new(),
            bytes: 0,
            bytes_max,
            clock: 0,
        }
    }

    pub(super) fn get(&mut self, path: &str) -> Option<Cached> {
        self.clock += 1;
        let slot = self.slots.get_mut(path)?;
        slot.used = self.clock;
        Some(slot.object.clone())
    }

    pub(super) fn put(&mut self, path: &str, object: Cached) {
        let payload = match &object {
            Cached::Commit(commit) => size_of::<Commit>() + commit.message.len(),
            Cached::Manifest(manifest) => size_of::<Manifest>() + manifest.packs.len() * 160,
            Cached::Pack(index) => index.memory_bytes(),
        };
        let bytes = payload + path.len() + size_of::<Slot>() + 64;
        self.clock += 1;
        let slot = Slot {
            object,
            bytes,
            used: self.clock,
        };
        self.bytes += bytes;
        if let Some(old) = self.slots.insert(path.to_owned(), slot) {
            self.bytes -= old.bytes;
        }
        while self.bytes > self.bytes_max && self.slots.len() > 1 {
            self.evict_some();
        }
    }

    /// Drops the older half: rare, so that each use stays cheap.
    fn evict_some(&mut self) {
        let mut uses: Vec<u64> = self.slots.values().map(|slot| slot.used).collect();
        let middle = uses.len() / 2;
        let (_, median, _) = uses.select_nth_unstable(middle);
        let median = *median;
        let bytes = &mut self.bytes;
        self.slots.retain(|_, slot| {
            let keep = slot.used >= median;
            if !keep {
                *bytes -= slot.bytes;
            }
            keep
        });
    }
}
