//! Key run: collects the newest record per key of one section, in memory.
//!
//! **Invariants**
//! - KEYS-1 decides between records of a key, whenever it is that they meet.
//! - Memory goes with the distinct keys, at most twice as many slots, whatever number of records there is.
//!
//! **Not here**: the blocks that a run is stored in (`block`).

use super::KeyState;

/// Records noted before the first compaction.
const RECORDS_MIN: usize = 1024;

/// Keys and records as they come; sorted now and then, and at the end. A map would be simpler, and
/// spends most of a pack's time on scattered inserts.
#[derive(Debug, Default)]
pub struct KeyRun {
    keys: Vec<u8>,
    slots: Vec<Slot>,
    /// Slots left by the last compaction.
    distinct: usize,
}

#[derive(Debug, Clone, Copy)]
struct Slot {
    /// The key's first eight bytes, padded with zeros: decides most comparisons.
    prefix: u64,
    at: usize,
    len: usize,
    state: KeyState,
}

impl Slot {
    fn key<'a>(&self, keys: &'a [u8]) -> &'a [u8] {
        &keys[self.at..self.at + self.len]
    }
}

impl KeyRun {
    /// Takes note of a record.
    pub fn add(&mut self, key: &[u8], state: KeyState) {
        if self.slots.len() >= RECORDS_MIN.max(2 * self.distinct) {
            self.compact();
        }
        let mut prefix = [0; 8];
        prefix
            .iter_mut()
            .zip(key)
            .for_each(|(to, from)| *to = *from);
        self.slots.push(Slot {
            prefix: u64::from_be_bytes(prefix),
            at: self.keys.len(),
            len: key.len(),
            state,
        });
        self.keys.extend_from_slice(key);
    }

    /// Memory in use, in bytes.
    #[must_use]
    pub fn buffered_bytes(&self) -> usize {
        self.keys.capacity() + self.slots.capacity() * size_of::<Slot>()
    }

    /// The newest records in key order.
    #[must_use]
    pub fn sorted(mut self) -> SortedKeys {
        self.compact();
        SortedKeys {
            keys: self.keys,
            slots: self.slots,
        }
    }

    /// Sorts, keeps the newest record of every key, and drops the keys of the others.
    fn compact(&mut self) {
        let keys = &self.keys;
        self.slots.sort_unstable_by(|a, b| {
            let by_key = || a.key(keys).cmp(b.key(keys));
            let newest_first = || b.state.age().cmp(&a.state.age());
            a.prefix
                .cmp(&b.prefix)
                .then_with(by_key)
                .then_with(newest_first)
        });
        self.slots
            .dedup_by(|next, kept| next.key(keys) == kept.key(keys));
        self.distinct = self.slots.len();
        let bytes = self.slots.iter().map(|slot| slot.len).sum();
        if bytes == self.keys.len() {
            return;
        }
        let mut kept = Vec::with_capacity(bytes);
        for slot in &mut self.slots {
            let key = slot.key(&self.keys);
            slot.at = kept.len();
            kept.extend_from_slice(key);
        }
        self.keys = kept;
    }
}

/// Distinct keys in order, each with its newest record.
#[derive(Debug, Default)]
pub struct SortedKeys {
    keys: Vec<u8>,
    slots: Vec<Slot>,
}

impl SortedKeys {
    /// How many keys there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// The key at this place in the order.
    #[must_use]
    pub fn get(&self, at: usize) -> Option<(&[u8], KeyState)> {
        let slot = self.slots.get(at)?;
        Some((slot.key(&self.keys), slot.state))
    }

    /// All keys in order.
    pub fn iter(&self) -> impl Iterator<Item = (&[u8], KeyState)> {
        let pair = |slot: &Slot| (slot.key(&self.keys), slot.state);
        self.slots.iter().map(pair)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use std::collections::BTreeMap;

    fn state(version: i64, sequence: u64) -> KeyState {
        KeyState {
            version,
            sequence,
            tombstone: sequence.is_multiple_of(2),
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
        let sorted = run.sorted();
        let pairs: Vec<_> = sorted.iter().map(|(key, s)| (key, s.sequence)).collect();
        assert_eq!(pairs, [(&b""[..], 4), (b"a", 3), (b"b", 1)]);
        assert_eq!(sorted.get(1), Some((&b"a"[..], state(-1, 3))));
        assert_eq!(sorted.get(3), None);
    }

    #[test]
    fn key_run_equals_a_map_over_many_compactions() {
        let mut seed = 7u64;
        let mut random = move || {
            seed ^= seed << 13;
            seed ^= seed >> 7;
            seed ^= seed << 17;
            seed
        };
        // Prefixes that tie, zero bytes against padding, and few keys against many.
        for distinct in [1, 50, 40_000] {
            let (mut run, mut map) = (KeyRun::default(), BTreeMap::new());
            for sequence in 0..20_000 {
                let n = random() % distinct;
                let mut key = [&b"longprefix"[..], &n.to_be_bytes()[6..]].concat();
                if n % 3 == 0 {
                    key = vec![0; n as usize % 20];
                }
                let state = state((random() % 5) as i64, sequence);
                run.add(&key, state);
                let newest = map.entry(key).or_insert(state);
                if state.is_newer_than(newest) {
                    *newest = state;
                }
            }
            let sorted = run.sorted();
            let found: Vec<_> = sorted.iter().map(|(key, s)| (key.to_vec(), s)).collect();
            assert_eq!(found, map.into_iter().collect::<Vec<_>>());
        }
    }

    #[test]
    fn key_run_repeated_key_takes_bounded_memory() {
        let mut run = KeyRun::default();
        (0..100_000).for_each(|n| run.add(b"key", state(0, n)));
        assert!(run.buffered_bytes() < 256 << 10, "{}", run.buffered_bytes());
        assert_eq!(run.sorted().len(), 1);
    }
}
