//! Reshard: a cleanly closed data directory with another number of logs. Spec: spec/checkpoint.md §5.
//!
//! **Invariants**
//! - RESHARD-1: until the marker is replaced the old logs are in force, untouched; from then on the new.
//! - RESHARD-2: every feed keeps its id, its state and its unpacked records; every subscription its state.
//! - DIR-2: the ids of the new logs are spent before anything is written under them.
//!
//! **Not here**: objects in the bucket, which stay where they are.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::PathBuf;

use sealog_frame::FrameView;

use super::{Offline, marker_of};
use crate::checkpoint::checkpoint_dir;
use crate::commit::CommitKind;
use crate::datadir::{Marker, create_log, write_marker};
use crate::env::{Disk, Env};
use crate::error::{Error, Result};
use crate::feed::{Feed, Feeds};
use crate::ids::{FeedId, LogId, StreamId};
use crate::limits::EngineConfig;
use crate::recovery::{Examined, LogPlace, Recovered, examine, examine_drained, revive, wal_dir};
use crate::wal::entry::entry_bytes;
use crate::wal::log::{Room, RoomClass};
use crate::wal::reader::Group;
use crate::wal::scan::Scanner;

/// Most logs that a directory ever had: feed ids keep 16 bits for them.
const LOGS_EVER_MAX: u64 = 1 << 16;
/// Memory for recent groups of a log being filled.
const CACHE_BYTES: usize = 1 << 20;

/// What resharding did.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ReshardReport {
    /// The logs before.
    pub before: Vec<LogId>,
    /// The logs now.
    pub logs: Vec<LogId>,
    /// Feeds moved.
    pub feeds: u64,
    /// Batches copied.
    pub batches: u64,
    /// Files of earlier, interrupted runs that were removed.
    pub leftovers: u64,
}

/// Gives a cleanly closed data directory `logs` logs. Blocks. `step` is called before every step; an
/// error of it stops there, as a crash would.
///
/// # Errors
/// [`Error::Unusable`] (locked, not a data directory, not cleanly closed), [`Error::Config`]
/// (number of logs), [`Error::StorageFull`] (`wal.disk_bytes_max` does not hold what has to be
/// copied), [`Error::Corrupt`], [`Error::Io`]. The directory then has its old logs or its new ones.
pub fn reshard(
    config: &EngineConfig,
    logs: u16,
    step: impl Fn(&str) -> Result<()> + Clone + Send + 'static,
) -> Result<ReshardReport> {
    let offline = Offline::enter(config)?;
    let owned = config.clone();
    let main = move |env| async move { reshard_in(&env, &owned, logs, &step).await };
    let report = offline.run(main, || {})?;
    for log in &report.before {
        for folder in folders(config, *log) {
            // Empty now; staying is harmless.
            let _ = crate::env::fs_ops::remove_empty_dir(&folder);
        }
    }
    Ok(report)
}

/// As [`reshard`], through the seams of `env`; the caller holds the directory's lock.
///
/// # Errors
/// As [`reshard`].
///
/// # Cancel safety
/// Not cancel safe in effect: as a crash, the directory has its old logs or its new ones.
pub async fn reshard_in<E: Env>(
    env: &E,
    config: &EngineConfig,
    logs: u16,
    step: &dyn Fn(&str) -> Result<()>,
) -> Result<ReshardReport> {
    let marker = marker_of(env, &config.data_dir).await?;
    if logs == 0 {
        return Err(Error::Config(format!(
            "logs = 0, 1 to {} are possible",
            u16::MAX
        )));
    }
    let mut report = ReshardReport {
        leftovers: remove_leftovers(env, config, &marker).await?,
        ..ReshardReport::default()
    };
    for log in &marker.logs {
        let examined = examine(env, &LogPlace::new(config, &marker, *log)).await?;
        if !examined.report.clean {
            let text = format!("log {log} was not closed cleanly: open the directory and close it");
            return Err(Error::Unusable(text));
        }
    }
    let first = marker.next_log;
    let ids: Vec<LogId> = (first..first + u64::from(logs)).map(LogId).collect();
    if first + u64::from(logs) > LOGS_EVER_MAX {
        let text = format!(
            "logs = {logs}: {first} logs were made here before, {LOGS_EVER_MAX} in all is the limit"
        );
        return Err(Error::Config(text));
    }
    step("spend ids")?;
    let spent = Marker {
        next_log: first + u64::from(logs),
        ..marker.clone()
    };
    write_marker(env, &config.data_dir, &spent).await?;
    step("make logs")?;
    let mut mover = Mover::start(env, config, &spent, &ids).await?;
    for log in &marker.logs {
        step("move feeds")?;
        let place = LogPlace::new(config, &marker, *log);
        mover.log(&place).await?;
    }
    step("close logs")?;
    mover.close().await?;
    step("switch")?;
    let switched = Marker {
        logs: ids.clone(),
        ..spent
    };
    write_marker(env, &config.data_dir, &switched).await?;
    step("remove old logs")?;
    remove_leftovers(env, config, &switched).await?;
    step("done")?;
    (report.feeds, report.batches) = (mover.moved, mover.copied);
    (report.before, report.logs) = (marker.logs, ids);
    Ok(report)
}

fn folders(config: &EngineConfig, log: LogId) -> [PathBuf; 2] {
    let dir = &config.data_dir;
    [wal_dir(dir, log), checkpoint_dir(dir, log)]
}

/// Removes the files of logs that the marker does not name.
pub(super) async fn remove_leftovers<E: Env>(
    env: &E,
    config: &EngineConfig,
    marker: &Marker,
) -> Result<u64> {
    let mut removed = 0;
    let gone = (0..marker.next_log).map(LogId);
    for log in gone.filter(|log| !marker.logs.contains(log)) {
        for folder in folders(config, log) {
            let Ok(names) = env.disk().list(&folder).await else {
                continue;
            };
            for name in &names {
                let path = folder.join(name);
                let done = env.disk().remove(&path).await;
                done.map_err(|e| Error::io("remove", &path, &e))?;
                removed += 1;
            }
            if !names.is_empty() {
                let synced = env.disk().sync_dir(&folder).await;
                synced.map_err(|e| Error::io("sync", &folder, &e))?;
            }
        }
    }
    Ok(removed)
}

/// A new log being filled.
struct Target<E: Env> {
    wal: crate::wal::Wal<E>,
    feeds: RefCell<Feeds>,
    checkpoints: crate::checkpoint::Checkpoints<E>,
}

type WantedBatches = BTreeMap<(FeedId, StreamId), Wanted>;

/// Batches that still have to be copied of a stream: where to, and from which sequence on.
pub(super) struct Wanted {
    target: usize,
    next: u64,
    end: u64,
}

pub(super) struct Mover<E: Env> {
    env: E,
    targets: Vec<Target<E>>,
    moved: u64,
    copied: u64,
}

impl<E: Env> Mover<E> {
    pub(super) async fn start(
        env: &E,
        config: &EngineConfig,
        marker: &Marker,
        ids: &[LogId],
    ) -> Result<Self> {
        let mut targets = Vec::new();
        for id in ids {
            create_log(env, &config.data_dir, *id, marker.segment_bytes).await?;
            let mut place = LogPlace::new(config, marker, *id);
            place.wal.cache_bytes = CACHE_BYTES;
            let examined = examine_drained(env, &place).await?;
            let Recovered {
                wal,
                feeds,
                checkpoints,
                ..
            } = revive(env, &place, examined).await?;
            targets.push(Target {
                wal,
                feeds: RefCell::new(feeds),
                checkpoints,
            });
        }
        Ok(Self {
            env: env.clone(),
            targets,
            moved: 0,
            copied: 0,
        })
    }

    /// Takes over the state of an old log; what still has to be copied.
    pub(super) fn feeds(&mut self, feeds: Feeds) -> WantedBatches {
        let mut wanted = BTreeMap::new();
        let (feeds, doomed, subscriptions) = feeds.take_apart();
        for feed in feeds {
            let target = Marker::log_of(&feed.name, self.targets.len());
            want(&feed, target, &mut wanted);
            self.targets[target].feeds.borrow_mut().move_in(feed);
            self.moved += 1;
        }
        for (id, doomed) in doomed {
            let target = Marker::log_of(&doomed.name, self.targets.len());
            let mut feeds = self.targets[target].feeds.borrow_mut();
            feeds.move_in_doomed(id, doomed);
        }
        for (name, subscription) in subscriptions.into_iter() {
            let target = Marker::log_of(&name, self.targets.len());
            let mut feeds = self.targets[target].feeds.borrow_mut();
            feeds.move_in_subscription(&name, subscription);
        }
        wanted
    }

    /// Moves everything of one old log.
    async fn log(&mut self, place: &LogPlace) -> Result<()> {
        let Examined {
            loaded,
            found,
            report,
            ..
        } = examine(&self.env, place).await?;
        let geometry = place.geometry();
        let needed = loaded.feeds.needed_from();
        let mut wanted = self.feeds(loaded.feeds);
        let mut at = needed.unwrap_or(report.end);
        let mut scanner = Scanner::new(&found, geometry, place.log);
        while at < report.end {
            let Some(group) = scanner.next(at, None).await? else {
                let (path, position) = scanner.damage_at(at, None).await?;
                return Err(Error::corrupt(path.display(), position, "no whole group"));
            };
            self.group(&group, &mut wanted).await?;
            at = group.header.end();
            self.env.yield_if_needed().await;
        }
        match wanted.iter().find(|(_, wanted)| wanted.next < wanted.end) {
            None => Ok(()),
            Some(((feed, stream), Wanted { next, end, .. })) => {
                let detail = format!(
                    "records {next}..{end} of stream {stream} of feed id {feed} are missing"
                );
                Err(Error::corrupt(place.wal_dir().display(), 0, detail))
            }
        }
    }

    /// Copies the batches of a group that are wanted.
    pub(super) async fn group(&mut self, group: &Group, wanted: &mut WantedBatches) -> Result<()> {
        let corrupt = |detail: &dyn ToString| {
            Error::corrupt("log group", group.header.offset, detail.to_string())
        };
        for entry in group.entries() {
            let entry = entry.map_err(|error| corrupt(&error))?;
            let key = (entry.feed, entry.stream);
            let (Some(frame), Some(wanted)) = (entry.frame(), wanted.get_mut(&key)) else {
                continue;
            };
            let view = FrameView::trusted(frame).map_err(|error| corrupt(&error))?;
            if view.base_sequence() != wanted.next {
                continue;
            }
            let target = &self.targets[wanted.target];
            wait_room(target, entry_bytes(frame.len())).await?;
            let at = target.wal.append_batch(key.0, key.1, frame);
            let mut feeds = target.feeds.borrow_mut();
            feeds.place_batch(key.0, key.1, view.base_sequence(), at.offset);
            wanted.next = view.end_sequence();
            self.copied += 1;
        }
        Ok(())
    }

    /// Makes the new logs durable, checkpoints them twice and closes them cleanly.
    pub(super) async fn close(&mut self) -> Result<()> {
        for target in &mut self.targets {
            for _ in 0..2 {
                target.checkpoints.take(&target.wal, &target.feeds).await?;
            }
            target.wal.close().await?;
        }
        Ok(())
    }
}

/// Notes the unpacked records of a feed's streams.
fn want(feed: &Feed, target: usize, wanted: &mut WantedBatches) {
    for stream in &feed.streams {
        let discarded = stream
            .seal
            .as_ref()
            .is_some_and(|seal| seal.kind == CommitKind::Discarded);
        let (next, end) = (stream.packed_end(), stream.end);
        if !discarded && next < end {
            wanted.insert((feed.id, stream.id), Wanted { target, next, end });
        }
    }
}

async fn wait_room<E: Env>(target: &Target<E>, bytes: usize) -> Result<()> {
    loop {
        if let Some(error) = target.wal.poisoned() {
            return Err(error);
        }
        let moved = target.wal.progress().listen();
        match target.wal.room(bytes, RoomClass::Batch) {
            Room::Ready => return Ok(()),
            Room::Wait => moved.await,
            Room::Bound => {
                let detail = "a new log is at wal.disk_bytes_max: raise it, or seal streams first";
                return Err(Error::StorageFull {
                    detail: detail.to_owned(),
                });
            }
            Room::Full(detail) => return Err(Error::StorageFull { detail }),
        }
    }
}
