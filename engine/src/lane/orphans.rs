//! Orphans: finds and removes objects of the bucket that nothing names any more. Spec: spec/commit.md §3.
//!
//! What was uploaded and never staged because the process ended, packs of discarded streams, and
//! shared packs that held nothing but deleted feeds. After every start, and whenever something may
//! have been left, the lane walks through its log's shared packs and its feeds' published streams,
//! a few objects at a time while there is nothing better to do.
//!
//! **Invariants**
//! - Only in the data directory's own bucket: in one that was configured, objects of the same names
//!   may be somebody else's.
//! - An object goes when no commit, manifest or stream names it, twice: when it is found, and when
//!   the grace time has passed and both kept checkpoints were taken after it was found.
//! - No pack is on its way meanwhile: the lane's one task walks between rounds of packing.
//! - Nothing is remembered across a crash; the next walk finds it again.
//!
//! **Not here**: deleted feeds (`sweep`).

use std::collections::{BTreeSet, VecDeque};
use std::rc::Rc;

use super::is_short_of_space;
use crate::commit::{Commit, CommitKind, PackPlace, PackRef, paths};
use crate::env::{Bucket, Env};
use crate::error::Result;
use crate::ids::{CommitNumber, Digest, FeedId, LogId, StreamId};
use crate::shard::LogService;

/// Objects looked at between two looks at other work.
const BATCH: usize = 64;
/// Objects that wait for their grace time at most; the next walk finds the others.
const SUSPECTS_MAX: usize = 1024;

/// Where a walk is.
enum Walk {
    /// Among the shared packs, after this key.
    Shared(String),
    /// Among the published streams, at this commit of this feed.
    Streams(FeedId, u64),
}

/// Who would name an object.
#[derive(Clone, Copy)]
enum Owner {
    Shared,
    Commit(FeedId, CommitNumber),
}

struct Suspect {
    key: String,
    bytes: u64,
    owner: Owner,
    found_ns: u64,
    /// Where the log ended when it was found.
    found_at: u64,
}

/// Remembers what was found and is not removed yet.
pub(super) struct Orphans {
    walk: Option<Walk>,
    suspects: VecDeque<Suspect>,
}

impl Orphans {
    /// A walk is due.
    pub(super) fn new() -> Self {
        Self {
            walk: Some(Walk::Shared(String::new())),
            suspects: VecDeque::new(),
        }
    }

    /// Goes on with the walk, if one is due, and removes what has been found long enough ago.
    /// What cannot be read is left for another walk, or for `verify` to complain about.
    pub(super) async fn step<E: Env>(&mut self, service: &Rc<LogService<E>>) {
        if service.config.bucket_dir.is_some() || service.config.s3.is_some() {
            return;
        }
        if self.walk.is_none() && service.lane.littered.take() {
            self.walk = Some(Walk::Shared(String::new()));
        }
        let stepped = match self.walk.take() {
            None => Ok(None),
            Some(Walk::Shared(after)) => self.walk_shared(service, after).await,
            Some(Walk::Streams(feed, commit)) => self.walk_streams(service, feed, commit).await,
        };
        match stepped {
            Ok(walk) => self.walk = walk,
            Err(_) => service.lane.littered.set(true),
        }
        if self.remove_due(service).await.is_err() {
            service.lane.littered.set(true);
        }
    }

    async fn walk_shared<E: Env>(
        &mut self,
        service: &Rc<LogService<E>>,
        after: String,
    ) -> Result<Option<Walk>> {
        let prefix = paths::shared_prefix(service.wal.params().log);
        let objects = service.env.bucket().list(&prefix, &after, BATCH).await?;
        let last = objects.len() < BATCH;
        let mut reached = after;
        for object in objects {
            if is_short_of_space(service) {
                return Ok(Some(Walk::Shared(reached)));
            }
            if shared_is_named(service, &object.key, object.len).await == Some(false) {
                self.suspect(service, object.key.clone(), object.len, Owner::Shared);
            }
            reached = object.key;
        }
        Ok(Some(match last {
            true => Walk::Streams(FeedId(0), 0),
            false => Walk::Shared(reached),
        }))
    }

    async fn walk_streams<E: Env>(
        &mut self,
        service: &Rc<LogService<E>>,
        mut feed: FeedId,
        mut number: u64,
    ) -> Result<Option<Walk>> {
        for _ in 0..BATCH {
            let found = {
                let feeds = service.feeds.borrow();
                let found = feeds.iter().find(|found| found.id >= feed);
                found.map(|found| (found.id, found.name.clone(), found.head.commits))
            };
            let Some((id, name, commits)) = found else {
                return Ok(None);
            };
            if id != feed {
                (feed, number) = (id, 0);
            }
            if number >= commits {
                (feed, number) = (FeedId(id.0.saturating_add(1)), 0);
                continue;
            }
            for (key, bytes) in garbage_of(service, &name, id, CommitNumber(number)).await? {
                self.suspect(service, key, bytes, Owner::Commit(id, CommitNumber(number)));
            }
            number += 1;
        }
        Ok(Some(Walk::Streams(feed, number)))
    }

    fn suspect<E: Env>(&mut self, service: &LogService<E>, key: String, bytes: u64, owner: Owner) {
        if self.suspects.iter().any(|suspect| suspect.key == key) {
            return;
        }
        if self.suspects.len() >= SUSPECTS_MAX {
            service.lane.littered.set(true);
            return;
        }
        self.suspects.push_back(Suspect {
            key,
            bytes,
            owner,
            found_ns: service.env.monotonic_ns(),
            found_at: service.wal.durable_end(),
        });
    }

    async fn remove_due<E: Env>(&mut self, service: &Rc<LogService<E>>) -> Result<()> {
        let grace_ns = u64::try_from(service.config.gc_grace.as_nanos()).unwrap_or(u64::MAX);
        for _ in 0..BATCH {
            let now_ns = service.env.monotonic_ns();
            let due = self.suspects.front().filter(|suspect| {
                suspect.found_ns.saturating_add(grace_ns) <= now_ns && !is_short_of_space(service)
            });
            let Some(found_at) = due.map(|suspect| suspect.found_at) else {
                return Ok(());
            };
            if !forgotten_by_checkpoints(service, found_at).await? {
                return Ok(());
            }
            let Some(suspect) = self.suspects.pop_front() else {
                return Ok(());
            };
            if is_garbage(service, &suspect).await? {
                service.env.bucket().delete(&suspect.key).await?;
            }
        }
        Ok(())
    }
}

/// Whether both kept checkpoints were taken when the log had reached `offset`; takes those it needs.
async fn forgotten_by_checkpoints<E: Env>(service: &LogService<E>, offset: u64) -> Result<bool> {
    let covered = || {
        let checkpoints = service.checkpoints.borrow();
        let older = checkpoints.as_ref().map(|kept| kept.older_replay_from());
        older.is_some_and(|older| older >= offset)
    };
    for _ in 0..2 {
        if covered() {
            return Ok(true);
        }
        service.checkpoint().await?;
    }
    Ok(covered())
}

async fn is_garbage<E: Env>(service: &Rc<LogService<E>>, suspect: &Suspect) -> Result<bool> {
    match suspect.owner {
        Owner::Shared => {
            let named = shared_is_named(service, &suspect.key, suspect.bytes).await;
            Ok(named == Some(false))
        }
        Owner::Commit(feed, number) => {
            let name = {
                let feeds = service.feeds.borrow();
                feeds.get(feed).map(|feed| feed.name.clone())
            };
            // Deleted meanwhile: all of it goes, by `sweep`.
            let Some(name) = name else { return Ok(false) };
            let garbage = garbage_of(service, &name, feed, number).await?;
            Ok(garbage.iter().any(|(key, _)| *key == suspect.key))
        }
    }
}

/// Whether anything names the shared pack at `key`; `None` when that cannot be told now.
async fn shared_is_named<E: Env>(
    service: &Rc<LogService<E>>,
    key: &str,
    bytes: u64,
) -> Option<bool> {
    let (paths::ObjectKind::Pack, digest) = paths::digest_object(key)? else {
        return None;
    };
    let log = service.wal.params().log;
    let index = service.shared_index(log, &digest, bytes).await.ok()?;
    for section in index.sections() {
        if is_short_of_space(service) {
            return None;
        }
        let named = section_is_named(service, section.feed, section.stream, (log, digest)).await;
        if named.ok()? {
            return Some(true);
        }
    }
    Some(false)
}

async fn section_is_named<E: Env>(
    service: &Rc<LogService<E>>,
    feed: FeedId,
    stream: StreamId,
    (log, digest): (LogId, Digest),
) -> Result<bool> {
    let names = |packs: &[PackRef]| {
        let place = PackPlace::Shared(log);
        packs
            .iter()
            .any(|pack| pack.place == place && pack.digest == digest)
    };
    let name = {
        let feeds = service.feeds.borrow();
        let Some(found) = feeds.get(feed) else {
            return Ok(false);
        };
        if let Some(open) = found.stream(stream) {
            return Ok(names(&open.packs));
        }
        found.name.clone()
    };
    let commit = service
        .bisect(feed, &name, |commit| commit.stream < stream)
        .await?;
    match commit {
        Some(commit) if commit.stream == stream && commit.kind != CommitKind::Discarded => {
            Ok(names(&service.manifest(&name, &commit).await?.packs))
        }
        _ => Ok(false),
    }
}

/// Objects of the stream that commit `number` published which it does not name.
async fn garbage_of<E: Env>(
    service: &Rc<LogService<E>>,
    name: &str,
    feed: FeedId,
    number: CommitNumber,
) -> Result<Vec<(String, u64)>> {
    let commit = service.read_commit(name, feed, number).await?;
    let named = named_by(service, name, &commit).await?;
    let prefix = paths::stream_prefix(name, feed, commit.stream);
    let mut garbage = Vec::new();
    let mut after = String::new();
    loop {
        let objects = service.env.bucket().list(&prefix, &after, BATCH).await?;
        let last = objects.len() < BATCH;
        for object in objects {
            let ours = paths::digest_object(&object.key).is_some();
            if ours && !named.contains(&object.key) && garbage.len() < BATCH {
                garbage.push((object.key.clone(), object.len));
            }
            after = object.key;
        }
        if last {
            return Ok(garbage);
        }
    }
}

async fn named_by<E: Env>(
    service: &Rc<LogService<E>>,
    name: &str,
    commit: &Commit,
) -> Result<BTreeSet<String>> {
    let mut named = BTreeSet::new();
    if commit.kind == CommitKind::Discarded {
        return Ok(named);
    }
    let (feed, stream) = (commit.feed, commit.stream);
    let manifest = service.manifest(name, commit).await?;
    named.insert(paths::manifest(name, feed, stream, &commit.manifest));
    let packs = manifest
        .packs
        .iter()
        .filter(|pack| pack.place == PackPlace::Stream);
    named.extend(packs.map(|pack| paths::stream_pack(name, feed, stream, &pack.digest)));
    let keys = manifest.key_index.iter();
    named.extend(keys.map(|keys| paths::key_index(name, feed, stream, &keys.digest)));
    Ok(named)
}
