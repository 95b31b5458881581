//! Checkpoint: the state of a log on disk, so that the log before it can go. Spec: spec/checkpoint.md §1.
//!
//! **Invariants**
//! - CKPT-5: a root is written only when every chunk it names is synced and every entry those chunks
//!   hold is durable in the log.
//! - CKPT-6: the two newest roots, their chunks, and the log since the older one are kept.
//! - CKPT-7: a number is used for one try only, also when it fails: no file that a root names is
//!   ever written again.
//! - Both newest roots damaged: refuse. They are not derived data.
//!
//! **Not here**: replay and the verdict (`recovery`).

pub mod root;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

pub use root::{ChunkRef, Root};

use crate::codec::DecodeError;
use crate::env::{Disk, Env};
use crate::error::{Error, Result};
use crate::feed::Feeds;
use crate::files::{read_whole, write_whole};
use crate::ids::LogId;
use crate::reserve::Reserve;
use crate::wal::Wal;
use crate::wal::segment::Geometry;

/// Least space claimed ahead for the next checkpoint.
const RESERVE_BYTES_MIN: u64 = 64 << 10;
const RESERVE_FILE: &str = "reserve";
/// What claims space for a pack of the log.
const PACK_RESERVE_FILE: &str = "reserve.pack";
/// Longest root or chunk file that is read back.
const FILE_BYTES_MAX: u64 = 4 << 30;

/// The checkpoints of one log on disk.
pub struct Checkpoints<E: Env> {
    env: E,
    dir: PathBuf,
    chunks: BTreeMap<u64, ChunkRef>,
    /// The two newest roots, older first.
    kept: Vec<Root>,
    next_number: u64,
    reserve: Reserve<E>,
    /// Bytes that the last checkpoint wrote: the next will need about as many.
    written: u64,
}

/// What a log's state was loaded from.
pub(crate) struct Loaded<E: Env> {
    pub(crate) store: Checkpoints<E>,
    pub(crate) feeds: Feeds,
    /// The root that was used.
    pub(crate) root: Root,
    /// Highest `durable_end` of all readable roots, and highest incarnation.
    pub(crate) durable_end: u64,
    pub(crate) incarnation: u64,
    /// Lowest `retain_from` of all readable roots: CKPT-6.
    pub(crate) retain_from: u64,
}

pub(crate) fn root_name(number: u64) -> String {
    format!("root-{number:016x}")
}

pub(crate) fn chunk_name(chunk: u64, generation: u64) -> String {
    format!("chunk-{chunk:014x}-{generation:016x}")
}

/// Folder of a log's checkpoints.
pub(crate) fn checkpoint_dir(data_dir: &Path, log: LogId) -> PathBuf {
    data_dir.join("checkpoint").join(log.to_string())
}

impl<E: Env> Checkpoints<E> {
    /// Makes the folder and the first, empty checkpoint of a new log.
    pub(crate) async fn create(env: &E, dir: &Path, log: LogId, end: u64) -> Result<()> {
        let disk = env.disk();
        disk.create_dir_all(dir)
            .await
            .map_err(|e| Error::io("create", dir, &e))?;
        let root = Root {
            log,
            number: 1,
            incarnation: 0,
            durable_end: end,
            predecessor: 0,
            replay_from: end,
            retain_from: end,
            next_counter: 0,
            chunks: Vec::new(),
        };
        write_whole(disk, dir, &root_name(1), &root.encode()).await?;
        Reserve::new(env.clone(), dir.join(RESERVE_FILE))
            .claim(RESERVE_BYTES_MIN)
            .await;
        disk.sync_dir(dir)
            .await
            .map_err(|e| Error::io("sync", dir, &e))
    }

    /// Loads the newest checkpoint that is whole, leaving out the `skip` newest readable roots.
    pub(crate) async fn load(
        env: E,
        dir: PathBuf,
        log: LogId,
        geometry: Geometry,
        skip: usize,
    ) -> Result<Loaded<E>> {
        let disk = env.disk();
        let names = disk
            .list(&dir)
            .await
            .map_err(|e| Error::io("list", &dir, &e))?;
        let mut numbers: Vec<u64> = names.iter().filter_map(|name| root_number(name)).collect();
        numbers.sort_unstable();
        let newest: Vec<u64> = numbers.iter().rev().take(2).copied().collect();
        let mut roots = Vec::new();
        let mut damage = None;
        for number in &newest {
            match read_root(&env, &dir, *number, log).await {
                Ok(root) => roots.push(root),
                Err(error @ Error::NewerFormat { .. }) => return Err(error),
                Err(error) => damage = damage.or(Some(error)),
            }
        }
        let durable_end = roots.iter().map(|root| root.durable_end).max().unwrap_or(0);
        let incarnation = roots.iter().map(|root| root.incarnation).max().unwrap_or(0);
        let retain_from = roots.iter().map(|root| root.retain_from).min().unwrap_or(0);
        for root in roots.iter().skip(skip) {
            match load_chunks(&env, &dir, root, geometry).await {
                Ok(feeds) => {
                    let chunks = root
                        .chunks
                        .iter()
                        .map(|chunk| (chunk.chunk, *chunk))
                        .collect();
                    let next_number = numbers.last().map_or(1, |number| number + 1);
                    let reserve = Reserve::new(env.clone(), dir.join(RESERVE_FILE));
                    let kept = vec![root.clone()];
                    let store = Self {
                        env,
                        dir,
                        chunks,
                        kept,
                        next_number,
                        reserve,
                        written: 0,
                    };
                    let root = root.clone();
                    return Ok(Loaded {
                        store,
                        feeds,
                        root,
                        durable_end,
                        incarnation,
                        retain_from,
                    });
                }
                Err(error @ Error::NewerFormat { .. }) => return Err(error),
                Err(error) => damage = damage.or(Some(error)),
            }
        }
        Err(damage.unwrap_or_else(|| Error::corrupt(dir.display(), 0, "no checkpoint root")))
    }

    /// Log offset below which nothing is needed: CKPT-6.
    pub(crate) fn retain_from(&self) -> u64 {
        match self.kept.as_slice() {
            [older, _] => older.retain_from,
            _ => 0,
        }
    }

    /// Where replay after the newest root would start.
    pub(crate) fn replay_from(&self) -> u64 {
        self.kept.last().map_or(0, |root| root.replay_from)
    }

    /// Where replay after the older root would start; 0 while only one is kept.
    pub(crate) fn older_replay_from(&self) -> u64 {
        match self.kept.as_slice() {
            [older, _] => older.replay_from,
            _ => 0,
        }
    }

    /// Whether both kept checkpoints are as good as the newest: another one would free nothing more.
    pub(crate) fn older_caught_up(&self) -> bool {
        matches!(self.kept.as_slice(), [older, newer] if older.retain_from == newer.retain_from)
    }

    /// Takes a checkpoint of `feeds` as `wal` has them. CKPT-5.
    ///
    /// # Errors
    /// [`Error::StorageFull`] or [`Error::Io`]: the checkpoints before stand, nothing was lost.
    /// [`Error::Poisoned`].
    pub(crate) async fn take(
        &mut self,
        wal: &Wal<E>,
        feeds: &std::cell::RefCell<Feeds>,
    ) -> Result<()> {
        self.written = 0;
        let mut taken = self.try_take(wal, feeds).await;
        if matches!(taken, Err(Error::StorageFull { .. })) && self.reserve.release().await {
            self.written = 0;
            taken = self.try_take(wal, feeds).await;
        }
        if taken.is_ok() {
            self.reserve
                .claim((2 * self.written).max(RESERVE_BYTES_MIN))
                .await;
        }
        taken
    }

    /// One try, under a number of its own: a failed one may have left its root behind. CKPT-7.
    async fn try_take(&mut self, wal: &Wal<E>, feeds: &std::cell::RefCell<Feeds>) -> Result<()> {
        let number = self.next_number;
        self.next_number += 1;
        let taken = self.write(number, wal, feeds).await;
        if taken.is_err() {
            self.drop_failed(number).await;
        }
        taken
    }

    async fn write(
        &mut self,
        number: u64,
        wal: &Wal<E>,
        feeds: &std::cell::RefCell<Feeds>,
    ) -> Result<()> {
        let start = wal.accepted();
        let (dirty, retain_from) = {
            let feeds = feeds.borrow();
            let needed = feeds.needed_from().unwrap_or(u64::MAX);
            (feeds.dirty_chunks(), needed.min(start.offset))
        };
        let mut chunks = self.chunks.clone();
        for chunk in chunks.values_mut() {
            chunk.as_of_offset = start.offset;
            chunk.as_of_index = start.index;
        }
        let mut last_group = start.group;
        for (done, chunk) in dirty.iter().enumerate() {
            let (body, as_of) = {
                let mut feeds = feeds.borrow_mut();
                feeds.chunk_taken(*chunk);
                (feeds.encode_chunk(*chunk), wal.accepted())
            };
            last_group = last_group.max(as_of.group);
            let bytes = root::encode_chunk(*chunk, number, &body);
            self.written += bytes.len() as u64;
            let name = chunk_name(*chunk, number);
            if let Err(error) = write_whole(self.env.disk(), &self.dir, &name, &bytes).await {
                dirty[..=done]
                    .iter()
                    .for_each(|chunk| feeds.borrow_mut().chunk_failed(*chunk));
                return Err(error);
            }
            let (as_of_offset, as_of_index) = (as_of.offset, as_of.index);
            chunks.insert(
                *chunk,
                ChunkRef {
                    chunk: *chunk,
                    generation: number,
                    as_of_offset,
                    as_of_index,
                },
            );
            self.env.yield_if_needed().await;
        }
        let places = (start.offset, retain_from);
        let written = self
            .finish(number, wal, feeds, chunks, places, last_group)
            .await;
        if written.is_err() {
            dirty
                .iter()
                .for_each(|chunk| feeds.borrow_mut().chunk_failed(*chunk));
        }
        written
    }

    async fn finish(
        &mut self,
        number: u64,
        wal: &Wal<E>,
        feeds: &std::cell::RefCell<Feeds>,
        chunks: BTreeMap<u64, ChunkRef>,
        (replay_from, retain_from): (u64, u64),
        last_group: u64,
    ) -> Result<()> {
        wal.durable(last_group).await?;
        let (durable_end, predecessor) = wal.durable_tail();
        let root = Root {
            log: wal.params().log,
            number,
            incarnation: wal.params().incarnation,
            durable_end,
            predecessor,
            replay_from,
            retain_from,
            next_counter: feeds.borrow().next_counter(),
            chunks: chunks.values().copied().collect(),
        };
        self.written += root.chunks.len() as u64 * 32;
        let disk = self.env.disk();
        disk.sync_dir(&self.dir)
            .await
            .map_err(|e| Error::io("sync", &self.dir, &e))?;
        write_whole(disk, &self.dir, &root_name(root.number), &root.encode()).await?;
        disk.sync_dir(&self.dir)
            .await
            .map_err(|e| Error::io("sync", &self.dir, &e))?;
        self.chunks = chunks;
        self.kept.push(root);
        if self.kept.len() > 2 {
            self.kept.remove(0);
        }
        self.sweep().await;
        Ok(())
    }

    /// Removes the chunks of a try that got no root, so that a full disk isn't filled by trying.
    async fn drop_failed(&self, number: u64) {
        let Ok(names) = self.env.disk().list(&self.dir).await else {
            return;
        };
        if names.contains(&root_name(number)) {
            return;
        }
        for name in names {
            if chunk_of_name(&name).is_some_and(|(_, generation)| generation == number) {
                let _ = self.env.disk().remove(&self.dir.join(name)).await;
            }
        }
    }

    /// Removes files that neither kept root names, roots before their chunks. Failing is harmless:
    /// the next one tries again.
    async fn sweep(&self) {
        let Ok(names) = self.env.disk().list(&self.dir).await else {
            return;
        };
        let [older, _] = self.kept.as_slice() else {
            return;
        };
        let mut needed = BTreeSet::from([RESERVE_FILE, PACK_RESERVE_FILE].map(str::to_owned));
        for root in &self.kept {
            needed.insert(root_name(root.number));
            needed.extend(
                root.chunks
                    .iter()
                    .map(|c| chunk_name(c.chunk, c.generation)),
            );
        }
        let unneeded = names.iter().filter(|name| !needed.contains(*name));
        let (roots, others): (Vec<_>, Vec<_>) =
            unneeded.partition(|name| root_number(name).is_some());
        for name in &roots {
            let _ = self.env.disk().remove(&self.dir.join(name)).await;
        }
        // A failed try's root is among the two newest if a power loss brings it back: not without
        // its chunks. CKPT-6.
        let newer = |name: &&String| root_number(name).is_some_and(|n| n > older.number);
        if roots.iter().any(newer) && self.env.disk().sync_dir(&self.dir).await.is_err() {
            return;
        }
        for name in others {
            let _ = self.env.disk().remove(&self.dir.join(name)).await;
        }
    }
}

/// The file that claims space for one pack of `log`. It lies with the log's checkpoints, so that it
/// goes when the log does.
pub(crate) fn pack_reserve(data_dir: &Path, log: LogId) -> PathBuf {
    checkpoint_dir(data_dir, log).join(PACK_RESERVE_FILE)
}

/// The number in a root's file name.
pub(crate) fn root_number(name: &str) -> Option<u64> {
    u64::from_str_radix(name.strip_prefix("root-")?, 16).ok()
}

/// Chunk and generation in a chunk's file name.
pub(crate) fn chunk_of_name(name: &str) -> Option<(u64, u64)> {
    let (chunk, generation) = name.strip_prefix("chunk-")?.split_once('-')?;
    Some((
        u64::from_str_radix(chunk, 16).ok()?,
        u64::from_str_radix(generation, 16).ok()?,
    ))
}

pub(crate) async fn read_root<E: Env>(
    env: &E,
    dir: &Path,
    number: u64,
    log: LogId,
) -> Result<Root> {
    let path = dir.join(root_name(number));
    let bytes = read_whole(env.disk(), &path, FILE_BYTES_MAX).await?;
    let bytes = bytes.ok_or_else(|| Error::corrupt(path.display(), 0, "root is gone"))?;
    let root = Root::decode(&bytes).map_err(|e| Error::decode(path.display(), 0, e))?;
    if root.log != log || root.number != number {
        let detail = format!("root {} of log {} found", root.number, root.log);
        return Err(Error::corrupt(path.display(), 0, detail));
    }
    Ok(root)
}

async fn load_chunks<E: Env>(
    env: &E,
    dir: &Path,
    root: &Root,
    geometry: Geometry,
) -> Result<Feeds> {
    let mut feeds = Feeds::new(root.log, geometry);
    feeds.set_next_counter(root.next_counter);
    for chunk in &root.chunks {
        let path = dir.join(chunk_name(chunk.chunk, chunk.generation));
        let bytes = read_whole(env.disk(), &path, FILE_BYTES_MAX).await?;
        let bytes = bytes.ok_or_else(|| Error::corrupt(path.display(), 0, "chunk is gone"))?;
        let decode = |error: DecodeError| Error::decode(path.display(), 0, error);
        let body = root::decode_chunk(&bytes, chunk.chunk, chunk.generation).map_err(decode)?;
        feeds.decode_chunk(chunk.chunk, body).map_err(decode)?;
    }
    Ok(feeds)
}
