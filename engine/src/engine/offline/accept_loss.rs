//! Accept loss: makes a log serve again that recovery refuses, without what damage took.
//! Spec: spec/checkpoint.md §5.
//!
//! **Invariants**
//! - LOSS-1: what was acknowledged before the damage stays, and what is in the bucket stays.
//! - LOSS-2: sequences, stream ids, epochs and feed ids seen behind the damage are never used again.
//! - LOSS-3: what is left goes into a new log that takes the damaged one's place in the marker:
//!   interrupted anywhere, the directory refuses as before or opens with the loss accepted.
//!
//! **Not here**: whether a log is damaged (`recovery`), what is still there (`survey`).

use std::sync::Arc;

use super::reshard::{Mover, remove_leftovers};
use super::survey::{Behind, Unpacked, first_damage, group_offsets, whole_groups};
use super::{Offline, marker_of};
use crate::commit::{Commit, paths};
use crate::datadir::{Marker, write_marker};
use crate::env::{Bucket, BucketError, Env, File};
use crate::error::{Error, Result};
use crate::feed::{Feed, Feeds, Seen};
use crate::ids::{CommitNumber, Digest, FeedId, LogId};
use crate::lane::publish::next_commit;
use crate::limits::EngineConfig;
use crate::recovery::{Examined, LogPlace, examine, examine_from};
use crate::wal::scan::{Scanner, drain_segments};
use crate::wal::segment::SegmentHeader;

/// What was given up.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LossReport {
    /// The logs that were damaged; the others are untouched.
    pub logs: Vec<LogLoss>,
}

/// What was given up in one log.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LogLoss {
    /// Its id.
    pub log: LogId,
    /// Id of the log that took its place: the same if nothing was lost.
    pub now: LogId,
    /// What recovery had against it, or that records are missing; empty if nothing but headers was.
    pub damage: String,
    /// Segment files whose header was written again; nothing of them was lost.
    pub headers: Vec<String>,
    /// Log offset up to which it was whole.
    pub end: u64,
    /// Log offset that it had reached before, as far as can be told.
    pub lost_to: u64,
    /// Records lost, by feed.
    pub feeds: Vec<FeedLoss>,
    /// Commits that were in the bucket and no longer in the log, taken over.
    pub adopted: u64,
}

/// Records of one feed that are gone.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FeedLoss {
    /// Its id.
    pub feed: FeedId,
    /// Its name, if known.
    pub name: String,
    /// First sequence lost.
    pub first: u64,
    /// One past the last sequence known to be lost.
    pub end: u64,
}

/// Drops what damage took from the logs that recovery refuses, so that the directory opens again.
/// Blocks. `step` is called before every step; an error of it stops there, as a crash would.
///
/// # Errors
/// [`Error::Unusable`] (locked, not a data directory); [`Error::Corrupt`] when not even that helps:
/// both checkpoints damaged, or holding state from behind the damage. Then nothing was lost that
/// was not lost before. [`Error::Io`], [`Error::StorageFull`], [`Error::Bucket`]: run it again.
pub fn accept_loss(
    config: &EngineConfig,
    step: impl Fn(&str) -> Result<()> + Clone + Send + 'static,
) -> Result<LossReport> {
    let offline = Offline::enter(config)?;
    let config = config.clone();
    let main = move |env| async move { accept_loss_in(&env, &config, &step).await };
    offline.run(main, || {})
}

/// As [`accept_loss`], through the seams of `env`; the caller holds the directory's lock.
///
/// # Errors
/// As [`accept_loss`].
///
/// # Cancel safety
/// Not cancel safe in effect: as a crash, run it again.
pub async fn accept_loss_in<E: Env>(
    env: &E,
    config: &EngineConfig,
    step: &dyn Fn(&str) -> Result<()>,
) -> Result<LossReport> {
    let mut marker = marker_of(env, &config.data_dir).await?;
    remove_leftovers(env, config, &marker).await?;
    let mut report = LossReport::default();
    for log in marker.logs.clone() {
        let place = LogPlace::new(config, &marker, log);
        let Some(mut loss) = accept(env, &place, step).await? else {
            continue;
        };
        if !loss.damage.is_empty() {
            replace(env, config, &mut marker, step, &mut loss).await?;
        }
        report.logs.push(loss);
    }
    step("remove old logs")?;
    remove_leftovers(env, config, &marker).await?;
    step("done")?;
    Ok(report)
}

async fn accept<E: Env>(
    env: &E,
    place: &LogPlace,
    step: &dyn Fn(&str) -> Result<()>,
) -> Result<Option<LogLoss>> {
    let mut loss = LogLoss {
        log: place.log,
        now: place.log,
        ..LogLoss::default()
    };
    step("headers")?;
    drain_segments(env, &place.wal_dir()).await?;
    loss.headers = heal_headers(env, place).await?;
    match examine(env, place).await {
        Ok(examined) => {
            (loss.end, loss.lost_to) = (examined.report.end, examined.report.end);
            if missing_records(env, place, &examined).await? {
                loss.damage = "records of unpacked streams are missing".to_owned();
            } else if let Some((path, position)) = first_damage(env, place, &examined).await? {
                let path = path.display();
                loss.damage = format!(
                    "{path} at offset {position}: a group that is not whole; its records are in packs"
                );
            } else if loss.headers.is_empty() {
                return Ok(None);
            }
        }
        Err(error @ Error::Corrupt { .. }) => loss.damage = error.to_string(),
        Err(error) => return Err(error),
    }
    Ok(Some(loss))
}

/// Puts a new log with all that is left in the place of a damaged one.
async fn replace<E: Env>(
    env: &E,
    config: &EngineConfig,
    marker: &mut Marker,
    step: &dyn Fn(&str) -> Result<()>,
    loss: &mut LogLoss,
) -> Result<()> {
    let place = LogPlace {
        accept_loss: true,
        ..LogPlace::new(config, marker, loss.log)
    };
    let examined = what_is_left(env, &place, loss).await?;
    let range = (
        examined.loaded.feeds.needed_from().unwrap_or(loss.end),
        loss.end,
    );
    let offsets = group_offsets(&place, &examined, range).await?;
    step("spend id")?;
    let now = LogId(marker.next_log);
    marker.next_log += 1;
    write_marker(env, &config.data_dir, marker).await?;
    step("make log")?;
    let mut mover = Mover::start(env, config, marker, &[now]).await?;
    step("copy")?;
    let Examined { loaded, found, .. } = examined;
    let mut wanted = mover.feeds(loaded.feeds);
    let mut scanner = Scanner::new(&found, place.geometry(), place.log);
    for offset in offsets {
        if let Some(group) = scanner.group_at(offset).await? {
            mover.group(&group, &mut wanted).await?;
        }
        env.yield_if_needed().await;
    }
    step("close log")?;
    mover.close().await?;
    step("switch")?;
    let named = marker.logs.iter_mut().filter(|log| **log == loss.log);
    named.for_each(|log| *log = now);
    loss.now = now;
    write_marker(env, &config.data_dir, marker).await
}

/// The state at the damage, moved past what was lost.
async fn what_is_left<E: Env>(
    env: &E,
    place: &LogPlace,
    loss: &mut LogLoss,
) -> Result<Examined<E>> {
    let mut behind = Behind::default();
    let mut examined = examine_from(env, place, 0).await?;
    if !is_at_end(&examined) {
        behind.state(&examined.loaded.feeds);
        examined = examine_from(env, place, 1).await?;
        if !is_at_end(&examined) {
            let dir = place.data_dir.display();
            let detail = "both checkpoints hold state from behind the damage";
            return Err(Error::corrupt(dir, examined.report.end, detail));
        }
    }
    let end = examined.report.end;
    behind.end = examined.loaded.durable_end.max(end);
    let rest = (end, u64::MAX);
    whole_groups(env, place, &examined, rest, |group| behind.group(group)).await?;
    (loss.end, loss.lost_to) = (end, behind.end);
    let mut unpacked = Unpacked::of(&examined.loaded.feeds);
    let kept = (0, end);
    whole_groups(env, place, &examined, kept, |group| unpacked.group(group)).await?;
    let feeds = &mut examined.loaded.feeds;
    cut_streams(feeds, &unpacked, loss);
    loss.adopted = adopt_commits(env, feeds).await?;
    move_past(feeds, &behind, loss);
    Ok(examined)
}

/// Whether no chunk of the checkpoint holds more than the log does.
fn is_at_end<E: Env>(examined: &Examined<E>) -> bool {
    let end = examined.report.end;
    let chunks = &examined.loaded.root.chunks;
    chunks
        .iter()
        .all(|chunk| (chunk.as_of_offset, chunk.as_of_index) <= (end, 0))
}

/// A live segment whose header alone is damaged gets it written again: nothing of it is lost.
async fn heal_headers<E: Env>(env: &E, place: &LogPlace) -> Result<Vec<String>> {
    let lossy = LogPlace {
        accept_loss: true,
        ..place.clone()
    };
    let Examined { loaded, found, .. } = examine_from(env, &lossy, 0).await?;
    let oldest = place.geometry().segment_of(loaded.retain_from);
    let mut healed = Vec::new();
    for (number, name) in found.headless.range(oldest..) {
        let segment = found.unknown.iter().find(|segment| segment.name == *name);
        let Some(segment) = segment.filter(|_| !found.by_number.contains_key(number)) else {
            continue;
        };
        let header = SegmentHeader {
            log: place.log,
            number: *number,
            segment_bytes: place.wal.segment_bytes,
            incarnation: found.incarnation,
        };
        let path = found.dir.join(&**name);
        let written = segment.file.commit(Arc::new(header.encode()), 0).await;
        written.map_err(|e| Error::io("write", &path, &e))?;
        healed.push(path.display().to_string());
    }
    Ok(healed)
}

async fn missing_records<E: Env>(
    env: &E,
    place: &LogPlace,
    examined: &Examined<E>,
) -> Result<bool> {
    let mut unpacked = Unpacked::of(&examined.loaded.feeds);
    let end = examined.report.end;
    whole_groups(env, place, examined, (0, end), |group| {
        unpacked.group(group)
    })
    .await?;
    Ok(unpacked.0.values().any(|reach| reach.next < reach.end))
}

/// Streams whose records are not all in the log end where the gap begins.
fn cut_streams(feeds: &mut Feeds, unpacked: &Unpacked, loss: &mut LogLoss) {
    for ((feed, stream), reach) in &unpacked.0 {
        if reach.next >= reach.end {
            continue;
        }
        let name = feeds
            .get(*feed)
            .map_or_else(String::new, |feed| feed.name.to_string());
        loss.feeds.push(FeedLoss {
            feed: *feed,
            name,
            first: reach.next,
            end: reach.end,
        });
        feeds.cut_stream(*feed, *stream, reach.next, reach.totals);
    }
}

/// LOSS-2.
fn move_past(feeds: &mut Feeds, behind: &Behind, loss: &mut LogLoss) {
    for (id, seen) in &behind.feeds {
        let here = feeds.get(*id);
        let first = here.map_or(0, |feed| feed.next_sequence);
        let name = here.map(|feed| feed.name.to_string());
        let name = name.or_else(|| behind.names.get(id).cloned());
        if seen.end > first {
            loss.feeds.push(FeedLoss {
                feed: *id,
                name: name.unwrap_or_default(),
                first,
                end: seen.end,
            });
        }
        if here.is_some_and(|feed| is_behind(feed, seen)) {
            feeds.move_past(*id, *seen);
        }
    }
    for (name, generation) in &behind.generations {
        let known = feeds.subscriptions.get(name);
        if known.is_some_and(|known| known.generation < *generation) {
            feeds.move_subscription_past(name, *generation);
        }
    }
}

fn is_behind(feed: &Feed, seen: &Seen) -> bool {
    seen.end > feed.next_sequence || seen.epoch > feed.epoch || seen.stream >= feed.next_stream
}

/// Commits that the bucket has and the shortened log does not know.
async fn adopt_commits<E: Env>(env: &E, feeds: &mut Feeds) -> Result<u64> {
    let ids: Vec<FeedId> = feeds.iter().map(|feed| feed.id).collect();
    let mut adopted = 0;
    for id in ids {
        while let Some((commit, digest)) = next_in_bucket(env, feeds.get(id)).await? {
            feeds.adopt(id, &commit, digest);
            adopted += 1;
        }
        env.yield_if_needed().await;
    }
    Ok(adopted)
}

/// The commit object that follows the head, if it continues the history and is not on its way anyhow.
async fn next_in_bucket<E: Env>(env: &E, feed: Option<&Feed>) -> Result<Option<(Commit, Digest)>> {
    let Some(feed) = feed else { return Ok(None) };
    let path = paths::commit(&feed.name, feed.id, CommitNumber(feed.head.commits));
    let bytes = match env.bucket().get(&path).await {
        Ok((bytes, _)) => bytes,
        Err(BucketError::NotFound { .. }) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    if next_commit(feed).is_some_and(|commit| commit.encode() == bytes) {
        return Ok(None);
    }
    let commit = Commit::decode(&bytes).map_err(|error| Error::decode(&path, 0, error))?;
    let continues = commit.parent == feed.head.digest
        && commit.feed == feed.id
        && commit.first.0 >= feed.head.end
        && commit.stream > feed.head.stream;
    Ok(continues.then(|| (commit, Digest::of(&bytes))))
}
