//! Inode: one file as the cache shows it and as a power loss leaves it.
//!
//! **Invariants**
//! - `cache` = `durable` with every pending operation applied in order (a doomed one too).
//! - Only a sync moves an operation from pending to durable, and only one that had completed when the
//!   sync was submitted.
//!
//! **Not here**: names (`dirs.rs`), errors and delays (`file.rs`).

use super::content::Content;
use crate::sim::faults::Fault;
use crate::sim::rng::Rng;
use sealog_engine::env::AlignedBuf;
use std::sync::Arc;

/// An operation that is in the cache but not durable.
#[derive(Debug, Clone)]
pub(super) enum Op {
    /// Bytes `data` at `offset`.
    Write { offset: u64, data: Bytes },
    /// The length becomes this.
    SetLen(u64),
}

/// Bytes of a write: shared with the caller, or what a tear left of them.
#[derive(Debug, Clone)]
pub(super) enum Bytes {
    Whole(Arc<AlignedBuf>),
    Part(Arc<Vec<u8>>),
}

impl std::ops::Deref for Bytes {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        match self {
            Bytes::Whole(buf) => buf,
            Bytes::Part(part) => part,
        }
    }
}

#[derive(Debug, Clone)]
struct Pending {
    number: u64,
    op: Op,
    /// Looks written, but no sync will save it.
    doomed: bool,
}

/// One file.
#[derive(Debug, Default)]
pub(super) struct Inode {
    pub(super) cache: Content,
    /// Virtual time of the last write.
    pub(super) modified_ns: u64,
    durable: Content,
    pending: Vec<Pending>,
    completed: u64,
}

impl Op {
    fn apply(&self, content: &mut Content) {
        match self {
            Op::Write { offset, data } => content.write(*offset, data),
            Op::SetLen(len) => content.set_len(*len),
        }
    }

    fn overlaps(&self, later: &Op) -> bool {
        match (self, later) {
            (Op::Write { offset: a, data: x }, Op::Write { offset: b, data: y }) => {
                *a < *b + y.len() as u64 && *b < *a + x.len() as u64
            }
            _ => true,
        }
    }
}

impl Inode {
    /// Applies an operation to the cache; it is pending from now on.
    pub(super) fn apply(&mut self, op: Op) {
        op.apply(&mut self.cache);
        self.completed += 1;
        self.pending.push(Pending {
            number: self.completed,
            op,
            doomed: false,
        });
    }

    /// Number of the last operation that completed: what a sync submitted now covers.
    pub(super) fn mark(&self) -> u64 {
        self.completed
    }

    /// Operations that a power loss could take.
    pub(super) fn pending(&self) -> usize {
        self.pending.len()
    }

    /// A sync that worked: what completed by `mark` is durable.
    pub(super) fn sync(&mut self, mark: u64) {
        let durable = &mut self.durable;
        self.pending.retain(|p| {
            let covered = p.number <= mark && !p.doomed;
            if covered {
                p.op.apply(durable);
            }
            !covered
        });
    }

    /// A sync that failed: each covered operation became durable, stays pending, or is doomed.
    pub(super) fn sync_failed(&mut self, mark: u64, rng: &mut Rng) {
        let mut lots: Vec<u64> = self
            .pending
            .iter()
            .map(|p| if p.number <= mark { rng.below(3) } else { 1 })
            .collect();
        // What a durable one overwrites can't come back over it later.
        for at in (0..lots.len()).rev() {
            let op = &self.pending[at].op;
            let later = at + 1..lots.len();
            if later
                .into_iter()
                .any(|l| lots[l] == 0 && op.overlaps(&self.pending[l].op))
            {
                lots[at] = 0;
            }
        }
        let mut lots = lots.into_iter();
        let durable = &mut self.durable;
        self.pending.retain_mut(|p| {
            let lot = lots.next().unwrap_or(1);
            if lot == 0 {
                p.op.apply(durable);
            }
            p.doomed |= lot == 2;
            lot != 0
        });
    }

    /// Power is gone: of the pending operations a subset survives, some of them torn.
    pub(super) fn power_loss(
        &mut self,
        sector_bytes: usize,
        rng: &mut Rng,
        fires: &mut dyn FnMut(Fault, &mut Rng) -> bool,
    ) {
        for pending in std::mem::take(&mut self.pending) {
            if pending.doomed {
                continue;
            }
            if fires(Fault::LostWrite, rng) {
                // The length is metadata and may have been journaled without the bytes.
                if let Op::Write { offset, data } = &pending.op
                    && rng.coin()
                {
                    let end = offset + data.len() as u64;
                    let len = self.durable.len().max(end);
                    self.durable.set_len(len);
                }
                continue;
            }
            match &pending.op {
                Op::Write { offset, data } if fires(Fault::TornWrite, rng) => {
                    tear(&mut self.durable, *offset, data, sector_bytes, rng);
                }
                op => op.apply(&mut self.durable),
            }
        }
        self.cache = self.durable.clone();
    }

    /// One bit flips where the file has bytes, in cache and on the device alike.
    pub(super) fn rot(&mut self, rng: &mut Rng) -> Option<u64> {
        let bit = u32::try_from(rng.below(8)).expect("below 8");
        let at = self.cache.flip(rng.next_u64(), bit)?;
        self.durable.flip_at(at, bit);
        for pending in &mut self.pending {
            if let Op::Write { offset, data } = &mut pending.op
                && (*offset..*offset + data.len() as u64).contains(&at)
            {
                let mut part = data.to_vec();
                let inside = usize::try_from(at - *offset).expect("within a write");
                part[inside] ^= 1 << bit;
                *data = Bytes::Part(Arc::new(part));
            }
        }
        Some(at)
    }
}

/// Writes some sectors of `data`: a prefix, or any subset.
pub(super) fn tear(
    content: &mut Content,
    offset: u64,
    data: &[u8],
    sector_bytes: usize,
    rng: &mut Rng,
) {
    let sectors = data.len().div_ceil(sector_bytes);
    let prefix = rng.coin().then(|| rng.index(sectors.max(1)));
    for (number, sector) in data.chunks(sector_bytes).enumerate() {
        let lands = match prefix {
            Some(kept) => number < kept,
            None => rng.coin(),
        };
        if lands {
            content.write(offset + (number * sector_bytes) as u64, sector);
        }
    }
}
