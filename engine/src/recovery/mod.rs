//! Recovery: from what is on disk to a log that serves, as one ordered function of named steps.
//! Spec: spec/wal.md §9.
//!
//! ```text
//!  drain -> load checkpoint -> find segments -> replay -> verdict -> settle the tail -> raise incarnation -> serve
//!           '------------------- examine (reads only) -----------'   '-------- revive (writes) ---------'
//! ```
//!
//! **Invariants**
//! - WAL-20: nothing is written before the verdict, nothing at all if it is corruption.
//! - WAL-21: damage at P is corruption if the checkpoint or any later group header has
//!   `durable_end` > P; anything else from P on is not proven durable and goes.
//! - WAL-22: kept groups beyond the proven end are rewritten and synced before anything is served.
//! - WAL-23: the length of two largest groups behind the tail is zeroed and synced before the next write.
//! - WAL-25: the headers of segments that the log goes on in are rewritten and synced likewise.
//! - WAL-24: nothing is read before the writes that a process before left in flight have ended.
//!
//! **Not here**: the lane's leftovers in the bucket (they are found by content digest).

mod settle;

use std::collections::VecDeque;
use std::path::{Path, PathBuf};

use crate::checkpoint::{Checkpoints, Loaded, checkpoint_dir};
use crate::datadir::Marker;
use crate::env::Env;
use crate::error::{Error, Result};
use crate::feed::Feeds;
use crate::ids::{FeedId, LogId};
use crate::limits::{EngineConfig, WalConfig};
use crate::wal::entry::EntryRef;
use crate::wal::group::{FLAG_CLEAN, GroupHeader};
use crate::wal::log::{Position, Wal};
use crate::wal::reader::Group;
use crate::wal::scan::{Found, Link, Scanner, claimed_durable_end, drain_segments, find_segments};
use crate::wal::segment::Geometry;

/// Where a log lies and what bounds it.
#[derive(Debug, Clone)]
pub(crate) struct LogPlace {
    pub(crate) data_dir: PathBuf,
    pub(crate) log: LogId,
    pub(crate) wal: WalConfig,
    pub(crate) group_bytes_max: usize,
    /// Drop a proven tail rather than refuse: `admin accept-loss`.
    pub(crate) accept_loss: bool,
}

impl LogPlace {
    /// The place of `log` in the directory that `config` and `marker` describe.
    pub(crate) fn new(config: &EngineConfig, marker: &Marker, log: LogId) -> Self {
        let mut wal = config.wal.clone();
        wal.segment_bytes = marker.segment_bytes;
        Self {
            data_dir: config.data_dir.clone(),
            log,
            wal,
            group_bytes_max: usize::try_from(marker.group_bytes_max)
                .unwrap_or(usize::MAX)
                .max(config.group_bytes_max()),
            accept_loss: false,
        }
    }

    pub(crate) fn wal_dir(&self) -> PathBuf {
        wal_dir(&self.data_dir, self.log)
    }

    pub(crate) fn geometry(&self) -> Geometry {
        Geometry {
            segment_bytes: self.wal.segment_bytes,
        }
    }
}

/// Folder of a log's segments.
pub(crate) fn wal_dir(data_dir: &Path, log: LogId) -> PathBuf {
    data_dir.join("wal").join(log.to_string())
}

/// What recovery found, for logs and tests.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Report {
    /// Groups replayed after the checkpoint.
    pub groups_replayed: u64,
    /// Log offset where the log ends.
    pub end: u64,
    /// Proven durable before recovery made the rest so.
    pub proven_end: u64,
    /// The log had been closed cleanly.
    pub clean: bool,
    /// It was never served before: made just now, or by a start that did not get further.
    pub created: bool,
}

/// Everything that reading alone tells.
pub(crate) struct Examined<E: Env> {
    pub(crate) loaded: Loaded<E>,
    pub(crate) found: Found<E>,
    pub(crate) report: Report,
    pub(crate) link: Link,
    /// Groups that are kept but not proven durable.
    unproven: VecDeque<Group>,
}

/// A log that is ready to serve.
pub(crate) struct Recovered<E: Env> {
    pub(crate) wal: Wal<E>,
    pub(crate) feeds: Feeds,
    pub(crate) checkpoints: Checkpoints<E>,
    pub(crate) report: Report,
}

/// Reads checkpoint and log and gives the verdict; writes nothing. WAL-20.
pub(crate) async fn examine<E: Env>(env: &E, place: &LogPlace) -> Result<Examined<E>> {
    examine_from(env, place, 0).await
}

/// As [`examine`], but starting from an older checkpoint: `skip` readable roots are left out.
pub(crate) async fn examine_from<E: Env>(
    env: &E,
    place: &LogPlace,
    skip: usize,
) -> Result<Examined<E>> {
    let dir = checkpoint_dir(&place.data_dir, place.log);
    let geometry = place.geometry();
    let mut loaded = Checkpoints::load(env.clone(), dir, place.log, geometry, skip).await?;
    let found = find_segments(env, &place.wal_dir(), place.log, place.geometry()).await?;
    let replayed = replay(env, place, &mut loaded, &found).await?;
    let examined = Examined {
        loaded,
        found,
        report: replayed.report,
        link: replayed.link,
        unproven: replayed.unproven,
    };
    if !place.accept_loss && !crate::bug!("verdict_without_durable_end") {
        verdict(place, &examined).await?;
    }
    Ok(examined)
}

/// As [`examine`], for a log that is to serve again: first waits out what is still in flight. WAL-24.
pub(crate) async fn examine_drained<E: Env>(env: &E, place: &LogPlace) -> Result<Examined<E>> {
    if !crate::bug!("late_write") {
        drain_segments(env, &place.wal_dir()).await?;
    }
    examine(env, place).await
}

/// Makes the examined log serve again.
pub(crate) async fn revive<E: Env>(
    env: &E,
    place: &LogPlace,
    examined: Examined<E>,
) -> Result<Recovered<E>> {
    settle::settle_tail(env, place, &examined).await?;
    let report = examined.report.clone();
    let (wal, feeds, mut checkpoints) = settle::start(env, place, examined);
    let feeds = std::cell::RefCell::new(feeds);
    if let Err(error) = checkpoints.take(&wal, &feeds).await {
        let full = matches!(error, Error::StorageFull { .. });
        // On a full disk a marker says the same: the log is durable to its end, and this is its
        // incarnation. The checkpoints before stand; the next one is taken when there is space.
        if !full || !wal.mark().await? {
            return Err(error);
        }
    }
    let oldest = place.geometry().segment_of(checkpoints.retain_from());
    wal.space().retire_below(oldest);
    Ok(Recovered {
        wal,
        feeds: feeds.into_inner(),
        checkpoints,
        report,
    })
}

struct Replayed {
    report: Report,
    link: Link,
    unproven: VecDeque<Group>,
}

async fn replay<E: Env>(
    env: &E,
    place: &LogPlace,
    loaded: &mut Loaded<E>,
    found: &Found<E>,
) -> Result<Replayed> {
    let root = loaded.root.clone();
    let mut scanner = Scanner::new(found, place.geometry(), place.log);
    let mut at = root.replay_from;
    let opened = loaded.incarnation;
    let known = Link {
        crc: root.predecessor,
        incarnation: 0,
    };
    let mut link = (root.replay_from == root.durable_end).then_some(known);
    let mut report = Report {
        proven_end: loaded.durable_end,
        ..Report::default()
    };
    let mut unproven: VecDeque<Group> = VecDeque::new();
    while let Some(group) = scanner.next(at, link).await? {
        fold_group(place, loaded, found, &group)?;
        let header = group.header;
        at = header.end();
        link = Some(Link {
            crc: header.crc(),
            incarnation: header.incarnation,
        });
        loaded.incarnation = loaded.incarnation.max(header.incarnation);
        report.proven_end = report.proven_end.max(header.durable_end);
        report.groups_replayed += 1;
        // Every open raises the incarnation before it writes: nothing was written after this marker.
        report.clean = header.flags & FLAG_CLEAN != 0 && header.incarnation >= opened;
        unproven.push_back(group);
        while unproven
            .front()
            .is_some_and(|g| g.header.end() <= report.proven_end)
        {
            unproven.pop_front();
        }
        env.yield_if_needed().await;
    }
    if at == root.replay_from && root.durable_end > at {
        // Nothing was replayed although the log was durable further on: the verdict will say so.
        link = Some(known);
    }
    report.end = at;
    // Every open raises the incarnation, in the first checkpoint that it takes.
    report.created = loaded.incarnation == 0 && report.groups_replayed == 0;
    Ok(Replayed {
        report,
        link: link.unwrap_or(known),
        unproven,
    })
}

fn fold_group<E: Env>(
    place: &LogPlace,
    loaded: &mut Loaded<E>,
    found: &Found<E>,
    group: &Group,
) -> Result<()> {
    let GroupHeader { offset, .. } = group.header;
    let geometry = place.geometry();
    let corrupt = |detail: String| {
        let path = found.path(geometry.segment_of(offset));
        Error::corrupt(path.display(), geometry.position_of(offset), detail)
    };
    for (index, entry) in (0u32..).zip(group.entries()) {
        let entry = entry.map_err(|error| corrupt(error.to_string()))?;
        if is_in_chunk(loaded, &entry, offset, index) {
            continue;
        }
        let at = Position {
            offset,
            index,
            group: 0,
        };
        loaded
            .feeds
            .apply(&entry, at)
            .map_err(|misfit| corrupt(misfit.to_string()))?;
    }
    Ok(())
}

/// Whether the checkpoint's chunk of the entry's feed holds the entry already. CKPT-2.
fn is_in_chunk<E: Env>(loaded: &Loaded<E>, entry: &EntryRef<'_>, offset: u64, index: u32) -> bool {
    let chunk = Feeds::chunk_of(FeedId(entry.feed.0));
    let chunks = &loaded.root.chunks;
    match chunks.binary_search_by_key(&chunk, |c| c.chunk) {
        Ok(at) => (offset, index) < (chunks[at].as_of_offset, chunks[at].as_of_index),
        Err(_) => false,
    }
}

/// WAL-21.
async fn verdict<E: Env>(place: &LogPlace, examined: &Examined<E>) -> Result<()> {
    let (loaded, found) = (&examined.loaded, &examined.found);
    let geometry = place.geometry();
    let end = examined.report.end;
    check_presence(place, examined)?;
    let mut claimed = loaded.durable_end;
    let current = geometry.segment_of(end);
    if examined.report.clean && claimed <= end {
        // The marker is whole and nothing was written after it: there is nothing to look for.
        return Ok(());
    }
    for (number, segment) in found.by_number.range(current..) {
        let from = if *number == current {
            geometry.position_of(end)
        } else {
            0
        };
        let from = from.max(crate::wal::segment::SEGMENT_HEADER_BYTES);
        let here = claimed_durable_end(found, segment, geometry, place.log, from, end).await?;
        claimed = claimed.max(here);
    }
    for segment in &found.unknown {
        let here = claimed_durable_end(found, segment, geometry, place.log, 0, end).await?;
        claimed = claimed.max(here);
    }
    if claimed <= end {
        return Ok(());
    }
    let mut scanner = Scanner::new(found, geometry, place.log);
    let (path, position) = scanner.damage_at(end, Some(examined.link)).await?;
    let detail = format!("the log is durable to offset {claimed} but no whole group is at {end}");
    Err(Error::corrupt(path.display(), position, detail))
}

/// Every segment that the state points into must be there, and the one that the replay begins in.
fn check_presence<E: Env>(place: &LogPlace, examined: &Examined<E>) -> Result<()> {
    let geometry = place.geometry();
    let found = &examined.found;
    let from = examined.loaded.root.replay_from;
    let first = geometry.segment_of(from);
    let missing = |number| {
        let (path, position) = found.place(number, 0);
        let detail = format!("segment {number} is missing, or its header is damaged");
        Err(Error::corrupt(path.display(), position, detail))
    };
    if !found.by_number.contains_key(&first) {
        // Segments are made one after the other, each durable before the next, and this one is not
        // retired: it is gone if something was in it, or if there is a later one.
        let used = geometry.position_of(from) > crate::wal::segment::SEGMENT_HEADER_BYTES;
        if used || found.by_number.range(first..).next().is_some() {
            return missing(first);
        }
    }
    let feeds = &examined.loaded.feeds;
    let Some(needed) = feeds.needed_from() else {
        return Ok(());
    };
    let last = geometry.segment_of(examined.report.end.saturating_sub(1));
    for number in geometry.segment_of(needed)..=last {
        if !found.by_number.contains_key(&number) {
            return missing(number);
        }
    }
    Ok(())
}
