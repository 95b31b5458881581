//! Reader: durable groups back from memory or disk, in log order. Spec: spec/wal.md §7.
//!
//! **Invariants**
//! - Only groups below the durable frontier are returned, each with both checksums checked.
//! - A group read while its segment was being recycled is never returned: its offset would not match.
//!
//! **Not here**: repair and verdicts (`recovery`), which must not trust the frontier.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use crate::env::{AlignedBuf, BLOCK_BYTES, BufPool, Env, File, round_up};
use crate::error::{Error, Result};
use crate::sync::{Budget, Permit};
use crate::wal::entry::Entries;
use crate::wal::group::{GROUP_HEADER_BYTES, GroupHeader, checksums_of_damaged};
use crate::wal::log::Wal;

/// One read of the disk.
const CHUNK_BYTES: usize = 256 << 10;
/// And where groups are long: the longest but those of a single batch.
const CHUNK_BYTES_MAX: usize = (1 << 20) + BLOCK_BYTES;

/// A durable group, in memory.
#[derive(Clone)]
pub struct Group {
    /// Its header.
    pub header: GroupHeader,
    /// What was written or read with it; neighbours in a read share that.
    buf: Arc<AlignedBuf>,
    range: Range<usize>,
}

impl Group {
    pub(crate) fn read(header: GroupHeader, bytes: &[u8]) -> Self {
        Self::whole(header, Arc::new(AlignedBuf::copy_of(bytes)))
    }

    /// The group that all of `buf` is.
    pub(crate) fn whole(header: GroupHeader, buf: Arc<AlignedBuf>) -> Self {
        let range = 0..buf.len();
        Self { header, buf, range }
    }

    /// All bytes of the group.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        self.buf.get(self.range.clone()).unwrap_or(&[])
    }

    /// The memory that [`Group::bytes`] lie in.
    pub(crate) fn memory(&self) -> &Arc<AlignedBuf> {
        &self.buf
    }

    /// The entries, in order.
    #[must_use]
    pub fn entries(&self) -> Entries<'_> {
        let end = GROUP_HEADER_BYTES + self.header.body_bytes as usize;
        Entries::new(self.bytes().get(GROUP_HEADER_BYTES..end).unwrap_or(&[]))
    }
}

/// The groups added last, bounded in bytes: the newest durable ones, or those that answers were read from.
pub struct GroupCache {
    groups: VecDeque<Group>,
    bytes: usize,
    bytes_max: usize,
}

impl GroupCache {
    pub(crate) fn new(bytes_max: usize) -> Self {
        Self {
            groups: VecDeque::new(),
            bytes: 0,
            bytes_max,
        }
    }

    /// Adds a group; those added longest ago make room for it. Neighbours that share memory are counted as
    /// if they did not.
    pub(crate) fn push(&mut self, group: Group) {
        self.bytes += group.buf.capacity();
        self.groups.push_back(group);
        while self.bytes > self.bytes_max
            && let Some(oldest) = self.groups.pop_front()
        {
            self.bytes -= oldest.buf.capacity();
        }
    }

    /// The group at exactly `offset`, in whatever order they were added.
    fn exactly_at(&self, offset: u64) -> Option<Group> {
        let mut newest_first = self.groups.iter().rev();
        newest_first.find(|g| g.header.offset == offset).cloned()
    }

    /// Bytes of the group that was added last.
    fn last_bytes(&self) -> usize {
        self.groups.back().map_or(0, |group| group.range.len())
    }

    /// The first group at or after `offset`, if the cache reaches back that far; of groups added in log order.
    fn at(&self, offset: u64) -> Option<Group> {
        if self.groups.front()?.header.offset > offset {
            return None;
        }
        let at = self.groups.partition_point(|g| g.header.offset < offset);
        self.groups.get(at).cloned()
    }
}

/// Why a reader found no group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Missing {
    /// The offset is the durable frontier: nothing there yet.
    AtEnd,
    /// The segment was retired: what it held is in packs now.
    Retired,
}

/// Reads groups forwards, a chunk of the disk at a time.
pub struct LogReader<E: Env> {
    wal: Wal<E>,
    chunk: Arc<AlignedBuf>,
    chunk_bytes: usize,
    pool: BufPool,
    chunk_offset: u64,
    /// End and header checksum of the group given last.
    previous: Option<(u64, u32)>,
    /// Where the memory of chunks is taken from, and what was.
    budget: Option<Budget>,
    permit: Option<Permit>,
}

impl<E: Env> LogReader<E> {
    /// A reader of `wal`.
    #[must_use]
    pub fn new(wal: Wal<E>) -> Self {
        Self::in_chunks(wal, CHUNK_BYTES, 1)
    }

    /// A reader that takes the memory of its chunks from `budget`; the caller keeps no group beyond the
    /// next call.
    pub(crate) fn within(wal: Wal<E>, budget: Budget) -> Self {
        // A group longer than its chunk would be begun twice.
        let like_last = wal.recent().borrow().last_bytes();
        let chunk_bytes = like_last.clamp(CHUNK_BYTES, CHUNK_BYTES_MAX);
        let mut reader = Self::in_chunks(wal, chunk_bytes, 1);
        reader.budget = Some(budget);
        reader
    }

    /// A reader that reads at least `chunk_bytes` of the disk at a time; groups keep what was read
    /// with them in memory, and up to `kept_max` such chunks are used again when they are gone.
    pub(crate) fn in_chunks(wal: Wal<E>, chunk_bytes: usize, kept_max: usize) -> Self {
        // Who starts at the tail of now finds what comes next even if it moved on to a new segment.
        let previous = Some(wal.durable_tail());
        Self {
            wal,
            chunk: Arc::new(AlignedBuf::with_capacity(0)),
            chunk_bytes: round_up(chunk_bytes),
            pool: BufPool::new(chunk_bytes, kept_max),
            chunk_offset: 0,
            previous,
            budget: None,
            permit: None,
        }
    }

    /// The first group at or after `offset`, which must be the start of a group or the end of the
    /// one this reader gave last.
    ///
    /// # Errors
    /// [`Error::Corrupt`] naming segment and offset; [`Error::Io`].
    ///
    /// # Cancel safety
    /// Cancel safe: only reads.
    pub async fn group(&mut self, offset: u64) -> Result<std::result::Result<Group, Missing>> {
        let found = self.find(offset).await?;
        if let Ok(group) = &found {
            self.previous = Some((group.header.end(), group.header.crc()));
        }
        Ok(found)
    }

    /// Where the group behind the damaged one at `offset` starts, if that can be told: by the length
    /// of a header that is whole, else as the group that names the damaged header's checksum (WAL-3).
    /// Bytes that only look like a group, in somebody's payload, cannot know that checksum.
    pub(crate) async fn behind_damage(&mut self, offset: u64) -> Result<Option<u64>> {
        let geometry = self.wal.geometry();
        let at = geometry.place(offset, 1);
        let Some(head) = self.bytes(at, GROUP_HEADER_BYTES).await? else {
            return Ok(None);
        };
        let Ok(head) = <[u8; GROUP_HEADER_BYTES]>::try_from(head) else {
            return Ok(None);
        };
        let log = self.wal.params().log;
        if let Ok(header) = GroupHeader::decode(&head)
            && header.offset == at
            && header.log == log
        {
            self.previous = Some((header.end(), header.crc()));
            return Ok(Some(header.end()));
        }
        let checksums = checksums_of_damaged(&head);
        let segment = geometry.segment_of(at);
        let blocks = (at + BLOCK_BYTES as u64..geometry.end_offset(segment)).step_by(BLOCK_BYTES);
        for place in blocks.chain([geometry.first_offset(segment + 1)]) {
            if place >= self.wal.durable_end() {
                break;
            }
            let Some(bytes) = self.bytes(place, GROUP_HEADER_BYTES).await? else {
                break;
            };
            let follows = GroupHeader::decode(bytes).is_ok_and(|header| {
                header.offset == place
                    && header.log == log
                    && checksums.contains(&header.predecessor)
            });
            if follows {
                return Ok(Some(place));
            }
        }
        Ok(None)
    }

    async fn find(&mut self, offset: u64) -> Result<std::result::Result<Group, Missing>> {
        let cached = self.wal.cache().borrow().at(offset);
        if let Some(group) = cached {
            return Ok(Ok(group));
        }
        let geometry = self.wal.geometry();
        let at = geometry.place(offset, 1);
        if at >= self.wal.durable_end() {
            return Ok(Err(Missing::AtEnd));
        }
        let answers = self.budget.is_some();
        if answers && let Some(group) = self.wal.recent().borrow().exactly_at(at) {
            return Ok(Ok(group));
        }
        let damage = match self.read_at(at).await? {
            Ok(group) => {
                if answers {
                    self.wal.recent().borrow_mut().push(group.clone());
                }
                return Ok(Ok(group));
            }
            Err(None) => return Ok(Err(Missing::Retired)),
            // Recycled while it was read: what it held is in packs.
            Err(Some(_)) if !self.is_live(at) => return Ok(Err(Missing::Retired)),
            Err(Some(damage)) => damage,
        };
        // The group before may have been the last that fitted into its segment: WAL-3 tells.
        let next = geometry.first_offset(geometry.segment_of(at) + 1);
        if next >= self.wal.durable_end() {
            return Err(damage);
        }
        match (self.read_at(next).await?, self.previous) {
            (Ok(group), Some((end, crc))) if end == at && group.header.predecessor == crc => {
                Ok(Ok(group))
            }
            _ => Err(damage),
        }
    }

    /// The group at exactly `offset`; the inner error is the damage found, or `None` when retired.
    async fn read_at(&mut self, offset: u64) -> Result<std::result::Result<Group, Option<Error>>> {
        let head = match self.bytes(offset, GROUP_HEADER_BYTES).await? {
            Some(head) => head.to_vec(),
            None => return Ok(Err(None)),
        };
        let name = self.segment_name(offset);
        let position = self.wal.geometry().position_of(offset);
        let damage = |detail: String| Some(Error::corrupt(&name, position, detail));
        let header = match GroupHeader::decode(&head) {
            Ok(header) => header,
            Err(error) => return Ok(Err(damage(error.to_string()))),
        };
        if header.offset != offset || header.log != self.wal.params().log {
            return Ok(Err(damage(format!(
                "group of log offset {} found",
                header.offset
            ))));
        }
        let Some(range) = self.fetch(offset, header.group_bytes as usize).await? else {
            return Ok(Err(None));
        };
        let buf = self.chunk.clone();
        let group = Group { header, buf, range };
        match header.check_body(group.bytes().get(GROUP_HEADER_BYTES..).unwrap_or(&[])) {
            Ok(()) => Ok(Ok(group)),
            Err(error) => Ok(Err(damage(error.to_string()))),
        }
    }

    fn is_live(&self, offset: u64) -> bool {
        let number = self.wal.geometry().segment_of(offset);
        self.wal.space().is_ready(number)
    }

    fn segment_name(&self, offset: u64) -> String {
        let number = self.wal.geometry().segment_of(offset);
        match self.wal.space().file(number) {
            Some(segment) => self
                .wal
                .params()
                .dir
                .join(&*segment.name)
                .display()
                .to_string(),
            None => format!("segment {number}"),
        }
    }

    /// `len` bytes at `offset`, `None` when the segment is gone.
    async fn bytes(&mut self, offset: u64, len: usize) -> Result<Option<&[u8]>> {
        let range = self.fetch(offset, len).await?;
        Ok(range.map(|range| self.chunk.get(range).unwrap_or(&[])))
    }

    /// Gives the memory of chunks back; the next read takes new one.
    pub(crate) fn release(&mut self) {
        self.pool.clear();
        self.chunk = Arc::new(AlignedBuf::with_capacity(0));
    }

    /// Where in the chunk the `len` bytes at `offset` are, fewer at the end of the file; `None` when
    /// the segment is gone.
    async fn fetch(&mut self, offset: u64, len: usize) -> Result<Option<Range<usize>>> {
        let end = offset + len as u64;
        let chunk_end = self.chunk_offset + self.chunk.len() as u64;
        if offset < self.chunk_offset || end > chunk_end {
            let geometry = self.wal.geometry();
            let Some(segment) = self.wal.space().file(geometry.segment_of(offset)) else {
                return Ok(None);
            };
            let position = geometry.position_of(offset);
            let left = usize::try_from(geometry.segment_bytes - position).unwrap_or(usize::MAX);
            let durable = self.wal.durable_end().saturating_sub(offset);
            let want = chunk_len(len, self.chunk_bytes, durable).min(left);
            // The memory of the chunk before, if no group is left in it.
            self.chunk = Arc::new(AlignedBuf::with_capacity(0));
            self.permit = None;
            if let Some(budget) = &self.budget {
                self.permit = budget.acquire(want).await;
            }
            let buf = self.pool.take(want);
            let read = segment.file.read_into(position, want, buf).await;
            let path = self.wal.params().dir.join(&*segment.name);
            self.chunk = Arc::new(read.map_err(|e| Error::io("read", &path, &e))?);
            self.chunk_offset = offset;
        }
        let from = usize::try_from(offset - self.chunk_offset).unwrap_or(usize::MAX);
        let to = (from + len).min(self.chunk.len());
        Ok(Some(from..to.max(from)))
    }
}

/// How much is read at once for `len` bytes with `durable` bytes ahead that are: nothing behind the
/// durable end is kept, for by the time it is asked for it will have been written.
fn chunk_len(len: usize, chunk_bytes: usize, durable: u64) -> usize {
    let durable = usize::try_from(durable).unwrap_or(usize::MAX);
    round_up(len.max(chunk_bytes.min(durable)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unit_recent_groups_are_found_until_newer_ones_push_them_out() {
        let group = |offset: u64| {
            let seal = crate::wal::group::GroupSeal {
                flags: 0,
                log: crate::ids::LogId(1),
                incarnation: 1,
                offset,
                entries: 0,
                predecessor: 0,
                durable_end: 0,
            };
            let mut buf = AlignedBuf::zeroed(GROUP_HEADER_BYTES);
            let header = crate::wal::group::seal_group(&mut buf, &seal);
            Group::read(header, &buf)
        };
        let mut recent = GroupCache::new(2 * BLOCK_BYTES);
        for offset in [0, 4096, 8192] {
            recent.push(group(offset));
        }
        let found = |offset| recent.exactly_at(offset).map(|group| group.header.offset);
        assert_eq!(
            [0, 4096, 8192, 1].map(found),
            [None, Some(4096), Some(8192), None]
        );
        let mut none = GroupCache::new(BLOCK_BYTES - 1);
        none.push(group(0));
        assert!(none.exactly_at(0).is_none() && none.bytes == 0);
    }

    #[test]
    fn unit_chunk_ends_at_the_durable_end() {
        const BLOCK: usize = BLOCK_BYTES;
        assert_eq!(chunk_len(64, 16 * BLOCK, 5 * BLOCK as u64), 5 * BLOCK);
        assert_eq!(chunk_len(64, 16 * BLOCK, u64::MAX), 16 * BLOCK);
        assert_eq!(chunk_len(20 * BLOCK, 16 * BLOCK, u64::MAX), 20 * BLOCK);
        assert_eq!(chunk_len(64, 16 * BLOCK, 0), BLOCK, "damage is looked at");
    }
}
