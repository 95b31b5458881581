//! Scan: groups off the disk when nothing can be trusted yet: recovery and verification.
//! Spec: spec/wal.md §8.
//!
//! **Invariants**
//! - A group counts only if its header, its body, its place, its log and its predecessor all fit.
//! - Nothing is written.
//! - Memory is one chunk and one group, whatever a length field says.
//!
//! **Not here**: what to do about damage (`recovery`).

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use crate::codec::DecodeError;
use crate::env::{BLOCK_BYTES, Disk, Env, File};
use crate::error::{Error, Result};
use crate::ids::LogId;
use crate::wal::group::{GROUP_HEADER_BYTES, GroupHeader};
use crate::wal::reader::Group;
use crate::wal::segment::{Geometry, SEGMENT_HEADER_BYTES, SegmentHeader};
use crate::wal::space::{FileOf, SegmentFile, slot_of};

/// One read of the disk.
const CHUNK_BYTES: usize = 1 << 20;

/// The segment files of a log as they lie in its folder.
pub(crate) struct Found<E: Env> {
    pub(crate) dir: PathBuf,
    pub(crate) by_number: BTreeMap<u64, SegmentFile<FileOf<E>>>,
    /// Files without a readable header of this log.
    pub(crate) unknown: Vec<SegmentFile<FileOf<E>>>,
    /// Which of them hold a segment all the same, told by their first group: WAL-8.
    pub(crate) headless: BTreeMap<u64, Rc<str>>,
    pub(crate) next_slot: u64,
    /// Highest incarnation in any header.
    pub(crate) incarnation: u64,
}

/// Opens every segment file of the folder and reads its header.
pub(crate) async fn find_segments<E: Env>(
    env: &E,
    dir: &Path,
    log: LogId,
    geometry: Geometry,
) -> Result<Found<E>> {
    let disk = env.disk();
    let names = disk
        .list(dir)
        .await
        .map_err(|e| Error::io("list", dir, &e))?;
    let mut found = Found {
        dir: dir.to_owned(),
        by_number: BTreeMap::new(),
        unknown: Vec::new(),
        headless: BTreeMap::new(),
        next_slot: 0,
        incarnation: 0,
    };
    let mut ranks = BTreeMap::new();
    for name in names {
        let Some(slot) = slot_of(&name) else { continue };
        found.next_slot = found.next_slot.max(slot + 1);
        let path = dir.join(&name);
        let file = disk
            .open(&path)
            .await
            .map_err(|e| Error::io("open", &path, &e))?;
        let head = file
            .read_at(0, BLOCK_BYTES)
            .await
            .map_err(|e| Error::io("read", &path, &e))?;
        let segment = SegmentFile {
            name: name.into(),
            file,
        };
        let header = match SegmentHeader::decode(&head) {
            Ok(header) if header.log == log && header.segment_bytes == geometry.segment_bytes => {
                header
            }
            Err(error @ DecodeError::Version { .. }) => {
                return Err(Error::decode(path.display(), 0, error));
            }
            _ => {
                let number = headless_number(&segment, &path, log, geometry).await?;
                found
                    .headless
                    .extend(number.map(|number| (number, segment.name.clone())));
                found.unknown.push(segment);
                continue;
            }
        };
        found.incarnation = found.incarnation.max(header.incarnation);
        let rank = (
            header.incarnation,
            begins_with_group(&segment, &path, header.number, geometry).await?,
        );
        let best = ranks.entry(header.number).or_insert(rank);
        let replaced = if rank >= *best {
            *best = rank;
            found.by_number.insert(header.number, segment)
        } else {
            Some(segment)
        };
        found.unknown.extend(replaced);
    }
    Ok(found)
}

/// Waits out the writes that a process before left in flight to any segment. WAL-24.
pub(crate) async fn drain_segments<E: Env>(env: &E, dir: &Path) -> Result<()> {
    let names = env.disk().list(dir).await;
    let names = names.map_err(|e| Error::io("list", dir, &e))?;
    for name in names.iter().filter(|name| slot_of(name).is_some()) {
        let path = dir.join(name);
        let file = env.disk().open(&path).await;
        let file = file.map_err(|e| Error::io("open", &path, &e))?;
        let drained = file.drain().await;
        drained.map_err(|e| Error::io("drain", &path, &e))?;
    }
    Ok(())
}

/// The segment that a file without a header holds, if its first group tells.
async fn headless_number<F: File>(
    segment: &SegmentFile<F>,
    path: &Path,
    log: LogId,
    geometry: Geometry,
) -> Result<Option<u64>> {
    let head = segment
        .file
        .read_at(BLOCK_BYTES as u64, GROUP_HEADER_BYTES)
        .await
        .map_err(|e| Error::io("read", path, &e))?;
    let header = GroupHeader::decode(&head).ok();
    let header = header.filter(|header| {
        header.log == log && geometry.position_of(header.offset) == BLOCK_BYTES as u64
    });
    Ok(header.map(|header| geometry.segment_of(header.offset)))
}

/// Whether the first group of segment `number` lies in this file: of two files that claim a number
/// under one incarnation, after a header write that failed, the other was never used.
async fn begins_with_group<F: File>(
    segment: &SegmentFile<F>,
    path: &Path,
    number: u64,
    geometry: Geometry,
) -> Result<bool> {
    let read = segment
        .file
        .read_at(SEGMENT_HEADER_BYTES, BLOCK_BYTES)
        .await;
    let block = read.map_err(|e| Error::io("read", path, &e))?;
    let header = GroupHeader::decode(&block);
    Ok(header.is_ok_and(|header| header.offset == geometry.first_offset(number)))
}

impl<E: Env> Found<E> {
    /// Path of the file that holds segment `number`.
    pub(crate) fn path(&self, number: u64) -> PathBuf {
        self.place(number, 0).0
    }

    /// The file that holds segment `number`, and where to look in it: at `position`, or at its
    /// header if that is what is wrong with it.
    pub(crate) fn place(&self, number: u64, position: u64) -> (PathBuf, u64) {
        match (self.by_number.get(&number), self.headless.get(&number)) {
            (Some(segment), _) => (self.dir.join(&*segment.name), position),
            (None, Some(name)) => (self.dir.join(&**name), 0),
            (None, None) => (self.dir.join(format!("(segment {number})")), 0),
        }
    }
}

/// What a scan knows of the group before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Link {
    pub(crate) crc: u32,
    pub(crate) incarnation: u64,
}

/// Walks groups forwards.
pub(crate) struct Scanner<'a, E: Env> {
    found: &'a Found<E>,
    geometry: Geometry,
    log: LogId,
    chunk: Vec<u8>,
    chunk_at: (u64, u64),
}

impl<'a, E: Env> Scanner<'a, E> {
    pub(crate) fn new(found: &'a Found<E>, geometry: Geometry, log: LogId) -> Self {
        Self {
            found,
            geometry,
            log,
            chunk: Vec::new(),
            chunk_at: (u64::MAX, 0),
        }
    }

    /// The group that follows `link` and starts at `at`, or at the next segment if none fits at `at`.
    pub(crate) async fn next(&mut self, at: u64, link: Option<Link>) -> Result<Option<Group>> {
        let here = self.geometry.place(at, 1);
        let mut places = vec![here];
        let first = self.geometry.first_offset(self.geometry.segment_of(here));
        if here != first {
            places.push(
                self.geometry
                    .first_offset(self.geometry.segment_of(here) + 1),
            );
        }
        for place in places {
            if let Some(group) = self.group_at(place).await?
                && follows(&group.header, link)
            {
                return Ok(Some(group));
            }
        }
        Ok(None)
    }

    /// The group at exactly `offset`, if there is a whole one.
    pub(crate) async fn group_at(&mut self, offset: u64) -> Result<Option<Group>> {
        let Some(header) = self.header_at(offset).await? else {
            return Ok(None);
        };
        if header.offset != offset && !crate::bug!("ghost_group") {
            return Ok(None);
        }
        let number = self.geometry.segment_of(offset);
        let position = self.geometry.position_of(offset);
        let len = header.group_bytes as usize;
        if position + len as u64 > self.geometry.segment_bytes {
            return Ok(None);
        }
        let bytes = self.bytes(number, position, len).await?.to_vec();
        if bytes.len() < len || header.check_body(&bytes[GROUP_HEADER_BYTES..]).is_err() {
            return Ok(None);
        }
        Ok(Some(Group::read(header, &bytes)))
    }

    /// The header at the place of `offset`, whatever offset it claims.
    pub(crate) async fn header_at(&mut self, offset: u64) -> Result<Option<GroupHeader>> {
        let number = self.geometry.segment_of(offset);
        let position = self.geometry.position_of(offset);
        let head = self.bytes(number, position, GROUP_HEADER_BYTES).await?;
        match GroupHeader::decode(head) {
            Ok(header) => Ok((header.log == self.log).then_some(header)),
            // Not damage, and nothing that this program may drop.
            Err(error @ DecodeError::Version { .. }) => {
                let path = self.found.path(number);
                Err(Error::decode(path.display(), position, error))
            }
            Err(_) => Ok(None),
        }
    }

    async fn bytes(&mut self, number: u64, position: u64, len: usize) -> Result<&[u8]> {
        let Some(segment) = self.found.by_number.get(&number) else {
            return Ok(&[]);
        };
        let (have_number, have_position) = self.chunk_at;
        let inside = number == have_number
            && position >= have_position
            && position + len as u64 <= have_position + self.chunk.len() as u64;
        if !inside {
            let left = usize::try_from(self.geometry.segment_bytes.saturating_sub(position));
            let want = len.max(CHUNK_BYTES).min(left.unwrap_or(usize::MAX));
            let path = self.found.dir.join(&*segment.name);
            let read = segment.file.read_at(position, want).await;
            self.chunk = read.map_err(|e| Error::io("read", &path, &e))?;
            self.chunk_at = (number, position);
        }
        let from = usize::try_from(position - self.chunk_at.1).unwrap_or(usize::MAX);
        let to = from.saturating_add(len).min(self.chunk.len());
        Ok(self.chunk.get(from..to).unwrap_or(&[]))
    }
}

fn follows(header: &GroupHeader, link: Option<Link>) -> bool {
    let Some(link) = link else { return true };
    if crate::bug!("ghost_group") {
        return true;
    }
    header.predecessor == link.crc && header.incarnation >= link.incarnation
}

/// The highest `durable_end` that any group header in `segment` from `position` on claims, among
/// groups of this log that lie at or behind `offset_min`.
pub(crate) async fn claimed_durable_end<E: Env>(
    found: &Found<E>,
    segment: &SegmentFile<FileOf<E>>,
    geometry: Geometry,
    log: LogId,
    position: u64,
    offset_min: u64,
) -> Result<u64> {
    let mut claimed = 0;
    each_header(found, segment, geometry, log, position, |header| {
        if header.offset >= offset_min {
            claimed = claimed.max(header.durable_end);
        }
    })
    .await?;
    Ok(claimed)
}

/// Shows `see` every group header of this log in `segment` from `position` on that is in its place.
pub(crate) async fn each_header<E: Env>(
    found: &Found<E>,
    segment: &SegmentFile<FileOf<E>>,
    geometry: Geometry,
    log: LogId,
    position: u64,
    mut see: impl FnMut(&GroupHeader),
) -> Result<()> {
    let path = found.dir.join(&*segment.name);
    let mut at = position;
    while at < geometry.segment_bytes {
        let read = segment.file.read_at(at, CHUNK_BYTES).await;
        let chunk = read.map_err(|e| Error::io("read", &path, &e))?;
        for (index, block) in chunk.chunks(BLOCK_BYTES).enumerate() {
            let here = at + (index * BLOCK_BYTES) as u64;
            let Ok(header) = GroupHeader::decode(block) else {
                continue;
            };
            if header.log == log && geometry.position_of(header.offset) == here {
                see(&header);
            }
        }
        if chunk.len() < CHUNK_BYTES {
            break;
        }
        at += CHUNK_BYTES as u64;
    }
    Ok(())
}

impl<E: Env> Scanner<'_, E> {
    /// Where the group lies that should follow `link` at `at` and does not: there, or at the start
    /// of the next segment when it did not fit.
    pub(crate) async fn damage_at(
        &mut self,
        at: u64,
        link: Option<Link>,
    ) -> Result<(PathBuf, u64)> {
        let here = self.geometry.place(at, 1);
        let number = self.geometry.segment_of(here);
        let position = self.geometry.position_of(here);
        if !self.found.by_number.contains_key(&number) {
            return Ok(self.found.place(number, position));
        }
        let stays = match self.header_at(here).await? {
            Some(header) if header.offset == here => true,
            _ => self.any_group_from(number, position, here).await?,
        };
        if !stays && self.begins_next(number + 1, link).await? {
            let first = self.geometry.first_offset(number + 1);
            return Ok(self
                .found
                .place(number + 1, self.geometry.position_of(first)));
        }
        Ok(self.found.place(number, position))
    }

    /// Whether segment `number` goes on with what follows `link`, as far as can be told.
    async fn begins_next(&mut self, number: u64, link: Option<Link>) -> Result<bool> {
        let first = self.geometry.first_offset(number);
        if self.found.headless.contains_key(&number) {
            return Ok(true);
        }
        match self.header_at(first).await? {
            Some(header) if header.offset == first => {
                Ok(link.is_none_or(|link| header.predecessor == link.crc))
            }
            _ => {
                let position = self.geometry.position_of(first);
                self.any_group_from(number, position, first).await
            }
        }
    }

    /// Whether a group at or behind log offset `offset` lies in segment `number` from `position` on.
    async fn any_group_from(&mut self, number: u64, position: u64, offset: u64) -> Result<bool> {
        let found = self.found;
        let Some(segment) = found.by_number.get(&number) else {
            return Ok(false);
        };
        let mut any = false;
        each_header(
            found,
            segment,
            self.geometry,
            self.log,
            position,
            |header| {
                any |= header.offset >= offset;
            },
        )
        .await?;
        Ok(any)
    }
}
