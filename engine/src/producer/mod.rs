//! Producer: idempotent writers of a feed: who they are, where they stand, what a batch of theirs
//! is. Spec: spec/producer.md §1.
//!
//! **Invariants**
//! - PROD-1: state moves only by folding a batch that is in the log, so it is never ahead of data.
//! - PROD-2: a producer never seen must start at sequence 0, and so must a new producer epoch.
//! - PROD-3: judging changes nothing.
//!
//! **Not here**: waiting for the original of a duplicate to be durable (`append`).

use std::collections::{BTreeMap, VecDeque};

use crate::codec::{DecodeError, Reader, Writer};
use crate::limits::{PRODUCER_IDLE, PRODUCER_RANGES_MAX};

/// Where a producer stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProducerState {
    /// Its epoch.
    pub epoch: u64,
    /// Highest producer sequence accepted in that epoch.
    pub last_sequence: u64,
    /// Arrival time of its last batch, in milliseconds since the Unix epoch.
    pub last_updated_ms: u64,
    /// First and last record sequence of its last batch.
    pub last_range: (u64, u64),
}

/// What a batch of a producer is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// The next one.
    Accepted {
        /// The producer was not known.
        is_new: bool,
    },
    /// It, or a later one, is in the log.
    Duplicate {
        /// Highest producer sequence accepted.
        last_sequence: u64,
        /// First and last record sequence of the original, while still remembered.
        range: Option<(u64, u64)>,
    },
    /// A newer epoch of this producer exists.
    StaleEpoch {
        /// The newer one.
        current: u64,
    },
    /// A new epoch that does not start at 0.
    InvalidEpochStart,
    /// Something is missing in between.
    Gap {
        /// The sequence that must come next.
        expected: u64,
    },
}

#[derive(Debug, Clone)]
struct Known {
    state: ProducerState,
    /// Ranges of earlier batches of this epoch, oldest first: (producer sequence, first, last).
    #[expect(
        clippy::box_collection,
        reason = "8 bytes for the many producers without, not 32"
    )]
    earlier: Option<Box<VecDeque<(u64, u64, u64)>>>,
}

/// All producers of a feed.
#[derive(Debug, Clone, Default)]
pub struct Producers {
    known: BTreeMap<Box<[u8]>, Known>,
    ranges: usize,
    /// No producer was updated before this: a lower bound that only a full scan raises.
    oldest_ms: u64,
}

impl Producers {
    /// How many are known.
    #[must_use]
    pub fn len(&self) -> usize {
        self.known.len()
    }

    /// Whether none is known.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.known.is_empty()
    }

    /// Earlier ranges remembered, over all producers.
    #[must_use]
    pub fn ranges(&self) -> usize {
        self.ranges
    }

    /// The state of producer `id`.
    #[must_use]
    pub fn get(&self, id: &[u8]) -> Option<&ProducerState> {
        self.known.get(id).map(|known| &known.state)
    }

    /// Producers with ids after `after`, in id order.
    pub fn iter_after(
        &self,
        after: Option<&[u8]>,
    ) -> impl Iterator<Item = (&[u8], &ProducerState)> {
        use std::ops::Bound::{Excluded, Unbounded};
        let from = after.map_or(Unbounded, Excluded);
        let range = self.known.range::<[u8], _>((from, Unbounded));
        range.map(|(id, known)| (&**id, &known.state))
    }

    /// What a batch (`epoch`, `sequence`) of producer `id` is. PROD-2, PROD-3.
    #[must_use]
    pub fn judge(&self, id: &[u8], epoch: u64, sequence: u64) -> Verdict {
        let Some(known) = self.known.get(id) else {
            let first = Verdict::Accepted { is_new: true };
            return if sequence == 0 {
                first
            } else {
                Verdict::Gap { expected: 0 }
            };
        };
        let state = &known.state;
        if epoch < state.epoch {
            return Verdict::StaleEpoch {
                current: state.epoch,
            };
        }
        if epoch > state.epoch {
            let start = Verdict::Accepted { is_new: false };
            return if sequence == 0 {
                start
            } else {
                Verdict::InvalidEpochStart
            };
        }
        if sequence <= state.last_sequence {
            let range = known.range_of(sequence);
            return Verdict::Duplicate {
                last_sequence: state.last_sequence,
                range,
            };
        }
        if sequence == state.last_sequence + 1 {
            return Verdict::Accepted { is_new: false };
        }
        Verdict::Gap {
            expected: state.last_sequence + 1,
        }
    }

    /// Folds an accepted batch. `remember` allows keeping the range of the batch before it.
    pub fn accept(&mut self, id: &[u8], state: ProducerState, remember: bool) {
        let Some(known) = self.known.get_mut(id) else {
            if self.known.is_empty() {
                self.oldest_ms = state.last_updated_ms;
            }
            self.oldest_ms = self.oldest_ms.min(state.last_updated_ms);
            self.known.insert(
                id.into(),
                Known {
                    state,
                    earlier: None,
                },
            );
            return;
        };
        let old = std::mem::replace(&mut known.state, state);
        if old.epoch != known.state.epoch {
            self.ranges -= known.earlier.take().map_or(0, |ranges| ranges.len());
            return;
        }
        if remember {
            let ranges = known.earlier.get_or_insert_default();
            ranges.push_back((old.last_sequence, old.last_range.0, old.last_range.1));
            self.ranges += 1;
            if ranges.len() >= PRODUCER_RANGES_MAX {
                ranges.pop_front();
                self.ranges -= 1;
            }
        }
    }

    /// Folds an eviction.
    pub fn evict(&mut self, id: &[u8]) {
        if let Some(known) = self.known.remove(id) {
            self.ranges -= known.earlier.map_or(0, |ranges| ranges.len());
        }
    }

    /// Whether some producer has been idle long enough to be forgotten.
    #[must_use]
    pub fn has_idle(&self, now_ms: u64) -> bool {
        let idle_ms = u64::try_from(PRODUCER_IDLE.as_millis()).unwrap_or(u64::MAX);
        let updated = self.known.values().map(|known| known.state.last_updated_ms);
        updated
            .min()
            .is_some_and(|oldest| now_ms >= oldest.saturating_add(idle_ms))
    }

    /// A producer that may be forgotten at `now_ms`: the one idle longest, if idle long enough.
    /// Cheap to ask again: a full scan is made only when the answer can have changed.
    pub fn evictable(&mut self, now_ms: u64) -> Option<Vec<u8>> {
        let idle_ms = u64::try_from(PRODUCER_IDLE.as_millis()).unwrap_or(u64::MAX);
        if now_ms < self.oldest_ms.saturating_add(idle_ms) {
            return None;
        }
        let oldest = self
            .known
            .iter()
            .min_by_key(|(_, known)| known.state.last_updated_ms)?;
        self.oldest_ms = oldest.1.state.last_updated_ms;
        (now_ms >= self.oldest_ms.saturating_add(idle_ms)).then(|| oldest.0.to_vec())
    }

    pub(crate) fn encode(&self, w: &mut Writer) {
        w.u64(self.known.len() as u64);
        for (id, known) in &self.known {
            let state = &known.state;
            w.bytes(id)
                .u64(state.epoch)
                .u64(state.last_sequence)
                .u64(state.last_updated_ms);
            w.u64(state.last_range.0).u64(state.last_range.1);
            let earlier = known.earlier.as_deref();
            w.u16(u16::try_from(earlier.map_or(0, VecDeque::len)).expect("bounded"));
            for (sequence, first, last) in earlier.into_iter().flatten() {
                w.u64(*sequence).u64(*first).u64(*last);
            }
        }
    }

    pub(crate) fn decode(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let mut producers = Self {
            oldest_ms: u64::MAX,
            ..Self::default()
        };
        for _ in 0..r.u64()? {
            let id: Box<[u8]> = r.bytes()?.into();
            let last = producers.known.last_key_value();
            if last.is_some_and(|(last, _)| *last >= id) {
                return Err(DecodeError::Invalid {
                    field: "producer order",
                    value: producers.known.len() as u64,
                });
            }
            let state = ProducerState {
                epoch: r.u64()?,
                last_sequence: r.u64()?,
                last_updated_ms: r.u64()?,
                last_range: (r.u64()?, r.u64()?),
            };
            let mut earlier = VecDeque::new();
            for _ in 0..r.u16()? {
                earlier.push_back((r.u64()?, r.u64()?, r.u64()?));
            }
            producers.ranges += earlier.len();
            producers.oldest_ms = producers.oldest_ms.min(state.last_updated_ms);
            let earlier = (!earlier.is_empty()).then(|| Box::new(earlier));
            producers.known.insert(id, Known { state, earlier });
        }
        Ok(producers)
    }
}

impl Known {
    fn range_of(&self, sequence: u64) -> Option<(u64, u64)> {
        if sequence == self.state.last_sequence {
            return Some(self.state.last_range);
        }
        let ranges = self.earlier.as_deref()?;
        let at = ranges
            .binary_search_by_key(&sequence, |range| range.0)
            .ok()?;
        Some((ranges[at].1, ranges[at].2))
    }
}

#[cfg(test)]
mod tests;
