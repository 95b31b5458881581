//! Settle: the writing half of recovery: what is kept becomes durable, what is dropped is wiped.
//! Spec: spec/wal.md §10.
//!
//! **Invariants**
//! - WAL-22, WAL-23 and WAL-25, see `recovery`.
//! - Rewriting is byte for byte and in place: an interruption leaves what was there.
//!
//! **Not here**: the decision what to keep (`recovery`).

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use super::{Examined, LogPlace};
use crate::checkpoint::Checkpoints;
use crate::env::{AlignedBuf, BLOCK_BYTES, Disk, Env, File, round_up};
use crate::error::{Error, Result};
use crate::feed::Feeds;
use crate::wal::log::{Wal, WalParams};
use crate::wal::space::{SpaceStart, fill};

/// Rewrites what is kept unproven, wipes what is dropped, syncs.
pub(super) async fn settle_tail<E: Env>(
    env: &E,
    place: &LogPlace,
    examined: &Examined<E>,
) -> Result<()> {
    if crate::bug!("serve_before_sync") {
        return Ok(());
    }
    sync_names(env, &examined.found.dir).await?;
    extend_short(place, examined).await?;
    rewrite_headers(place, examined).await?;
    rewrite(place, examined).await?;
    if examined.report.clean {
        // Nothing was in flight when the marker was written: nothing lies behind it.
        return Ok(());
    }
    wipe(place, examined).await
}

/// A killed process can have made segment files whose names are not durable yet.
async fn sync_names<E: Env>(env: &E, dir: &Path) -> Result<()> {
    let synced = env.disk().sync_dir(dir).await;
    synced.map_err(|e| Error::io("sync", dir, &e))
}

/// WAL-25. The header of a segment that no durable group lies in yet may be in the page cache only:
/// its process may have ended before, or because of, the header's sync.
async fn rewrite_headers<E: Env>(place: &LogPlace, examined: &Examined<E>) -> Result<()> {
    let current = place.geometry().segment_of(examined.report.end);
    for (number, segment) in examined.found.by_number.range(current..) {
        let path = examined.found.path(*number);
        let head = segment.file.read_at(0, BLOCK_BYTES).await;
        let head = head.map_err(|e| Error::io("read", &path, &e))?;
        let head = Arc::new(AlignedBuf::copy_of(&head));
        let written = segment.file.commit(head, 0).await;
        written.map_err(|e| Error::io("rewrite", &path, &e))?;
    }
    Ok(())
}

/// WAL-22. The marker of a clean log is no exception: its process may have ended before its sync.
async fn rewrite<E: Env>(place: &LogPlace, examined: &Examined<E>) -> Result<()> {
    let geometry = place.geometry();
    let mut touched = BTreeSet::new();
    for group in &examined.unproven {
        let number = geometry.segment_of(group.header.offset);
        let position = geometry.position_of(group.header.offset);
        if let Some(segment) = examined.found.by_number.get(&number) {
            let buf = Arc::new(AlignedBuf::copy_of(group.bytes()));
            let written = segment.file.write_at(buf, position).await;
            written.map_err(|e| Error::io("rewrite", &examined.found.path(number), &e))?;
            touched.insert(number);
        }
    }
    for number in touched {
        if let Some(segment) = examined.found.by_number.get(&number) {
            let synced = segment.file.sync_data().await;
            synced.map_err(|e| Error::io("sync", &examined.found.path(number), &e))?;
        }
    }
    Ok(())
}

/// WAL-23.
async fn wipe<E: Env>(place: &LogPlace, examined: &Examined<E>) -> Result<()> {
    let geometry = place.geometry();
    let mut left = 2 * place.group_bytes_max as u64;
    let mut at = examined.report.end;
    while left > 0 {
        let number = geometry.segment_of(at);
        let Some(segment) = examined.found.by_number.get(&number) else {
            break;
        };
        let from = geometry.position_of(at).max(BLOCK_BYTES as u64);
        let to = (from + left).min(geometry.segment_bytes);
        let filled = fill(&segment.file, from, to).await;
        filled.map_err(|e| Error::io("wipe", &examined.found.path(number), &e))?;
        left -= to - from;
        at = geometry.first_offset(number + 1);
    }
    Ok(())
}

/// A segment that somebody cut short gets its length back, as zeros behind the log's end.
async fn extend_short<E: Env>(place: &LogPlace, examined: &Examined<E>) -> Result<()> {
    let segment_bytes = place.wal.segment_bytes;
    for (number, segment) in &examined.found.by_number {
        let path = examined.found.path(*number);
        let len = segment
            .file
            .len()
            .await
            .map_err(|e| Error::io("stat", &path, &e))?;
        if len >= segment_bytes {
            continue;
        }
        let floor = len - len % BLOCK_BYTES as u64;
        let end = examined.report.end;
        let keep = match place.geometry().segment_of(end) {
            current if current == *number => place.geometry().position_of(end),
            _ => floor,
        };
        let from = floor.min(round_up(usize::try_from(keep).unwrap_or(0)) as u64);
        let from = from.max(BLOCK_BYTES as u64);
        let filled = fill(&segment.file, from, segment_bytes).await;
        filled.map_err(|e| Error::io("extend", &path, &e))?;
    }
    Ok(())
}

/// Starts the log under a raised incarnation on what was found.
pub(super) fn start<E: Env>(
    env: &E,
    place: &LogPlace,
    examined: Examined<E>,
) -> (Wal<E>, Feeds, Checkpoints<E>) {
    let Examined {
        loaded,
        found,
        report,
        link,
        ..
    } = examined;
    let geometry = place.geometry();
    let current = geometry.segment_of(report.end);
    let oldest = geometry.segment_of(loaded.retain_from);
    let mut ready_end = current;
    while found.by_number.contains_key(&ready_end) {
        ready_end += 1;
    }
    let mut live = BTreeMap::new();
    let mut spare = found.unknown;
    for (number, segment) in found.by_number {
        if number >= oldest && number < ready_end {
            live.insert(number, segment);
        } else {
            spare.push(segment);
        }
    }
    let params = WalParams {
        log: place.log,
        dir: place.wal_dir(),
        config: place.wal.clone(),
        incarnation: loaded.incarnation.max(found.incarnation) + 1,
        end: report.end,
        predecessor: link.crc,
    };
    let start = SpaceStart {
        live,
        spare,
        next_slot: found.next_slot,
        first: current,
    };
    (
        Wal::start(env.clone(), params, start),
        loaded.feeds,
        loaded.store,
    )
}
