//! Key merge: many sorted runs into one, newest record per key. Spec: spec/key-index.md §4.
//!
//! **Invariants**
//! - An entry comes out only when every run that has not ended shows its next key.
//! - Memory: one block per run.
//!
//! **Not here**: fetching the blocks. The merge says which run it needs; the caller fetches.

use super::block::KeyBlock;
use super::{KeyEntry, KeyState};
use crate::codec::DecodeError;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

/// What the merge came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MergeStep {
    /// The next key in order, and its newest record over all runs.
    Entry(KeyEntry),
    /// Supply the next block of this run, or say that it has ended.
    Need(usize),
    /// All runs have ended and all keys are out.
    Done,
}

/// A k-way merge that is fed block by block.
#[derive(Debug)]
pub struct KeyMerge {
    runs: Vec<Run>,
    /// Next key of every run that has one, smallest first.
    heads: BinaryHeap<Reverse<(Vec<u8>, usize)>>,
    /// Runs that are empty and have not ended.
    hungry: Vec<usize>,
    /// The key being gathered and its newest record so far.
    open: Option<KeyEntry>,
}

#[derive(Debug, Default)]
struct Run {
    /// State of the entry in `heads`.
    head: Option<KeyState>,
    rest: VecDeque<KeyEntry>,
    last: Option<Vec<u8>>,
}

impl KeyMerge {
    /// A merge of `runs` runs, numbered from 0.
    #[must_use]
    pub fn new(runs: usize) -> Self {
        Self {
            runs: (0..runs).map(|_| Run::default()).collect(),
            heads: BinaryHeap::new(),
            hungry: (0..runs).rev().collect(),
            open: None,
        }
    }

    /// Supplies the next block of `run`, which [`MergeStep::Need`] asked for.
    ///
    /// # Errors
    /// [`DecodeError`] when the block does not continue the run in key order.
    ///
    /// # Panics
    /// When the run was not asked for.
    pub fn supply(&mut self, run: usize, block: &KeyBlock<'_>) -> Result<(), DecodeError> {
        self.fed(run);
        let own = |(key, state): (&[u8], KeyState)| KeyEntry {
            key: key.to_vec(),
            state,
        };
        let rest: VecDeque<_> = block.entries().map(own).collect();
        let state = &mut self.runs[run];
        let (first, last) = (rest.front(), rest.back());
        if let (Some(first), Some(last)) = (first, last) {
            if state
                .last
                .as_ref()
                .is_some_and(|before| *before >= first.key)
            {
                return Err(crate::pack::layout::invalid("key order", run as u64));
            }
            state.last = Some(last.key.clone());
        }
        state.rest = rest;
        self.advance(run);
        Ok(())
    }

    /// Says that `run`, which [`MergeStep::Need`] asked for, has no more blocks.
    ///
    /// # Panics
    /// When the run was not asked for.
    pub fn end(&mut self, run: usize) {
        self.fed(run);
    }

    /// The next entry, or what is missing to know it.
    pub fn step(&mut self) -> MergeStep {
        loop {
            if let Some(run) = self.hungry.last() {
                return MergeStep::Need(*run);
            }
            let head_key = self.heads.peek().map(|Reverse((key, _))| key);
            if let Some(open) = &self.open
                && head_key != Some(&open.key)
            {
                return self.open.take().map_or(MergeStep::Done, MergeStep::Entry);
            }
            let Some(Reverse((key, run))) = self.heads.pop() else {
                return MergeStep::Done;
            };
            self.gather(key, run);
            self.advance(run);
        }
    }

    fn gather(&mut self, key: Vec<u8>, run: usize) {
        let Some(state) = self.runs[run].head.take() else {
            return;
        };
        match &mut self.open {
            Some(open) if state.is_newer_than(&open.state) => open.state = state,
            Some(_) => {}
            None => self.open = Some(KeyEntry { key, state }),
        }
    }

    /// Puts the next entry of `run` among the heads, or asks for its next block.
    fn advance(&mut self, run: usize) {
        match self.runs[run].rest.pop_front() {
            Some(entry) => {
                self.runs[run].head = Some(entry.state);
                self.heads.push(Reverse((entry.key, run)));
            }
            None => self.hungry.push(run),
        }
    }

    fn fed(&mut self, run: usize) {
        let asked = self.hungry.pop();
        assert_eq!(asked, Some(run), "the merge asked for another run");
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::super::KeyRun;
    use super::super::block::KeyBlockBuilder;
    use super::*;

    fn blocks(run: KeyRun, target: usize) -> VecDeque<Vec<u8>> {
        let mut builder = KeyBlockBuilder::new(target);
        let mut out = VecDeque::new();
        for (key, state) in run.sorted().iter() {
            if builder.is_full_for(key) {
                out.extend(builder.finish());
            }
            builder.push(key, state);
        }
        out.extend(builder.finish());
        out
    }

    fn drive(mut runs: Vec<VecDeque<Vec<u8>>>) -> Vec<KeyEntry> {
        let mut merge = KeyMerge::new(runs.len());
        let mut out = Vec::new();
        loop {
            match merge.step() {
                MergeStep::Entry(entry) => out.push(entry),
                MergeStep::Done => return out,
                MergeStep::Need(run) => match runs[run].pop_front() {
                    Some(bytes) => merge
                        .supply(run, &KeyBlock::parse(&bytes).unwrap().0)
                        .unwrap(),
                    None => merge.end(run),
                },
            }
        }
    }

    /// A cheap generator: the tests need variety, not quality.
    fn next(seed: &mut u64) -> u64 {
        *seed ^= *seed << 13;
        *seed ^= *seed >> 7;
        *seed ^= *seed << 17;
        *seed
    }

    #[test]
    fn merge_equals_one_run_over_all_records() {
        let mut seed = 0x5ea1;
        for runs in 0..6u64 {
            let mut whole = KeyRun::default();
            let mut parts = Vec::new();
            for run in 0..runs {
                let mut part = KeyRun::default();
                for n in 0..next(&mut seed) % 60 {
                    let key = (next(&mut seed) % 40).to_be_bytes();
                    let key = &key[8 - (n % 8) as usize..];
                    let state = KeyState {
                        version: (next(&mut seed) % 3) as i64,
                        sequence: run * 100 + n,
                        tombstone: n % 5 == 0,
                    };
                    part.add(key, state);
                    whole.add(key, state);
                }
                parts.push(blocks(part, 150));
            }
            let own = |(key, state): (&[u8], KeyState)| KeyEntry {
                key: key.to_vec(),
                state,
            };
            let whole = whole.sorted();
            assert_eq!(drive(parts), whole.iter().map(own).collect::<Vec<_>>());
        }
    }

    #[test]
    fn merge_same_key_in_all_runs_comes_out_once_with_the_newest() {
        let part = |version, sequence| {
            let mut run = KeyRun::default();
            let tombstone = false;
            run.add(
                b"",
                KeyState {
                    version,
                    sequence,
                    tombstone,
                },
            );
            blocks(run, 100)
        };
        let out = drive(vec![
            part(2, 1),
            part(3, 0),
            part(1, 9),
            part(3, 5),
            part(3, 4),
        ]);
        assert_eq!(out.len(), 1);
        assert_eq!((out[0].state.version, out[0].state.sequence), (3, 5));
    }

    #[test]
    fn supply_block_that_goes_back_is_refused() {
        let part = |key: &[u8]| {
            let mut run = KeyRun::default();
            let state = KeyState {
                version: 0,
                sequence: 0,
                tombstone: false,
            };
            run.add(key, state);
            blocks(run, 100).pop_front().unwrap()
        };
        let (b, a) = (part(b"b"), part(b"a"));
        let mut merge = KeyMerge::new(1);
        assert_eq!(merge.step(), MergeStep::Need(0));
        merge.supply(0, &KeyBlock::parse(&b).unwrap().0).unwrap();
        assert_eq!(merge.step(), MergeStep::Need(0));
        assert!(merge.supply(0, &KeyBlock::parse(&a).unwrap().0).is_err());
    }
}
