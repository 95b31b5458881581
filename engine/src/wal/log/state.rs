//! State: the groups of a log between open and durable, and who waits for them.
//!
//! **Invariants**
//! - WAL-1, WAL-11, WAL-13 are kept here: where a group may start, in which order groups become
//!   durable, how many are in flight.
//!
//! **Not here**: tasks, files and events (`log`).

use std::collections::VecDeque;
use std::sync::Arc;

use super::{Inner, WalStats};
use crate::env::{AlignedBuf, BLOCK_BYTES, BufPool, Env, round_up};
use crate::error::{Error, Result};
use crate::frontier::Frontiers;
use crate::limits::PIPELINE_BYTES_MIN;
use crate::wal::group::{GROUP_HEADER_BYTES, GroupHeader};

/// Group sizes remembered for [`super::Wal::stats`].
const SIZES_KEPT: usize = 4096;

pub(super) type Completion = Box<dyn FnOnce(Result<()>)>;

pub(super) struct OpenGroup {
    pub(super) buf: AlignedBuf,
    /// Checksum of the entries, taken while each is in the processor's cache.
    pub(super) crc: u32,
    pub(super) offset: u64,
    /// It may grow to so many bytes, whatever `wal.flush_bytes` says: what is decided in one step is one group.
    pub(super) together: usize,
    pub(super) entries: u32,
    pub(super) number: u64,
    pub(super) flags: u16,
}

pub(super) struct InFlight {
    pub(super) header: GroupHeader,
    pub(super) buf: Arc<AlignedBuf>,
    pub(super) number: u64,
    /// When it was submitted.
    pub(super) begun_ns: u64,
    pub(super) done: bool,
}

pub(super) struct State {
    pub(super) open: Option<OpenGroup>,
    pub(super) full: VecDeque<OpenGroup>,
    pub(super) in_flight: VecDeque<InFlight>,
    pub(super) completions: VecDeque<(u64, Completion)>,
    /// Completions whose group is durable, to be run.
    pub(super) due: VecDeque<Completion>,
    pub(super) pool: BufPool,
    /// Bytes of the group submitted last: the next will be like it.
    pub(super) last_bytes: usize,
    pub(super) frontiers: Frontiers,
    pub(super) next_group: u64,
    pub(super) predecessor: u32,
    pub(super) durable_groups: u64,
    pub(super) durable_predecessor: u32,
    pub(super) last_is_marker: bool,
    pub(super) marker_due: Option<u16>,
    pub(super) poisoned: Option<Error>,
    pub(super) closed: bool,
    pub(super) stats: WalStats,
}

impl State {
    pub(super) fn stopped(&self) -> bool {
        self.closed || self.poisoned.is_some()
    }

    pub(super) fn is_drained(&self) -> bool {
        self.open.is_none() && self.full.is_empty() && self.in_flight.is_empty()
    }

    /// Makes sure the open group can take `bytes` more: WAL-1.
    pub(super) fn make_open<E: Env>(&mut self, inner: &Inner<E>, bytes: usize) {
        let flush_bytes = inner.params.config.flush_bytes;
        if let Some(open) = &self.open {
            let grown = round_up(open.buf.len() + bytes) as u64;
            let most = open.together.max(flush_bytes + GROUP_HEADER_BYTES);
            let over = open.buf.len() + bytes > most;
            if over || inner.geometry.place(open.offset, grown) != open.offset {
                self.close_open();
            }
        }
        if self.open.is_some() {
            return;
        }
        let whole = round_up(GROUP_HEADER_BYTES + bytes);
        let offset = inner
            .geometry
            .place(self.frontiers.accepted().0, whole as u64);
        let like_last = self.last_bytes + self.last_bytes / 4;
        let expected = like_last.min(flush_bytes + BLOCK_BYTES);
        let mut buf = self.pool.take(expected.max(GROUP_HEADER_BYTES + bytes));
        buf.resize(GROUP_HEADER_BYTES);
        self.open = Some(OpenGroup {
            buf,
            crc: 0,
            offset,
            together: 0,
            entries: 0,
            number: self.next_group,
            flags: 0,
        });
        self.next_group += 1;
    }

    /// Fixes the end of the open group; it waits for its turn to be submitted.
    pub(super) fn close_open(&mut self) {
        if let Some(open) = self.open.take() {
            self.frontiers
                .accept(open.offset + round_up(open.buf.len()) as u64);
            self.full.push_back(open);
        }
    }

    pub(super) fn take_submittable<E: Env>(&mut self, inner: &Inner<E>) -> Option<OpenGroup> {
        let idle = self.in_flight.is_empty();
        if self.in_flight.len() >= 2 {
            return None;
        }
        if self.full.is_empty() {
            let pending = self.open.as_ref().map_or(0, |open| open.buf.len());
            if pending > 0 && (idle || pending >= PIPELINE_BYTES_MIN) {
                self.close_open();
            }
        }
        if let Some(group) = self.full.pop_front() {
            return Some(group);
        }
        if idle && let Some(flags) = self.marker_due.take() {
            self.make_open(inner, 0);
            let open = self.open.as_mut().expect("just made");
            open.flags = flags;
            self.close_open();
            return self.full.pop_front();
        }
        None
    }

    pub(super) fn advance(&mut self, group: &InFlight, now_ns: u64) {
        let header = &group.header;

        assert_eq!(
            group.number,
            self.durable_groups + 1,
            "WAL-11: none is skipped"
        );
        self.durable_groups = group.number;
        self.frontiers.sync(header.end());
        self.durable_predecessor = header.crc();
        self.stats.groups += 1;
        self.stats.bytes += u64::from(header.group_bytes);
        let took_ns = now_ns.saturating_sub(group.begun_ns);
        self.stats.commit_times.count(took_ns);
        self.stats.commit_sizes.count(u64::from(header.group_bytes));
        if self.stats.group_sizes.len() == SIZES_KEPT {
            self.stats.group_sizes.pop_front();
        }
        self.stats.group_sizes.push_back(header.group_bytes);
    }
}
