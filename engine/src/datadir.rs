//! Datadir: the marker that makes a folder a data directory: which logs, which geometry.
//! Spec: spec/checkpoint.md §4.
//!
//! **Invariants**
//! - DIR-1: the marker is written last; a folder without one, but with segments, is never touched.
//! - DIR-2: log ids are never reused within a directory.
//!
//! **Not here**: the lock (`env::lock`), what is in the logs.

use std::path::Path;

use crate::checkpoint::root::{open_file, seal_file};
use crate::checkpoint::{Checkpoints, checkpoint_dir};
use crate::codec::{DecodeError, Reader, Writer};
use crate::env::host::read_file;
use crate::env::{Disk, Env};
use crate::error::{Error, Result};
use crate::files::{read_whole, write_whole};
use crate::ids::LogId;
use crate::lane::claim::make_identity;
use crate::limits::EngineConfig;
use crate::recovery::wal_dir;
use crate::wal::segment::Geometry;

const MARKER_MAGIC: u64 = u64::from_le_bytes(*b"SLFORMAT");
const MARKER_VERSION: u16 = 1;
const MARKER_BYTES_MAX: u64 = 1 << 20;
/// File name of the marker.
pub const MARKER_FILE: &str = "format";

/// File name of what a directory's maker wants the next opener to know.
pub const SETTINGS_FILE: &str = "settings.toml";

/// Folder of what a bucket elsewhere needs of the local disk; may be deleted at any time.
pub const CACHE_DIR: &str = "cache";

/// What a data directory is made of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Marker {
    /// Size of every segment.
    pub segment_bytes: u64,
    /// Largest group that any log may hold.
    pub group_bytes_max: u64,
    /// Id that the next log gets.
    pub next_log: u64,
    /// The logs; a feed's is found by the hash of its name.
    pub logs: Vec<LogId>,
}

impl Marker {
    /// The file's bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut w = Writer::new();
        w.u64(self.segment_bytes)
            .u64(self.group_bytes_max)
            .u64(self.next_log);
        w.u64(self.logs.len() as u64);
        for log in &self.logs {
            w.u64(log.0);
        }
        seal_file(MARKER_MAGIC, MARKER_VERSION, &w.0)
    }

    /// Reads and checks a marker. Any bytes may be given.
    ///
    /// # Errors
    /// [`DecodeError`] naming what is wrong.
    pub fn decode(bytes: &[u8]) -> std::result::Result<Self, DecodeError> {
        let mut r = Reader(open_file(
            bytes,
            "data directory",
            MARKER_MAGIC,
            MARKER_VERSION,
        )?);
        let (segment_bytes, group_bytes_max, next_log) = (r.u64()?, r.u64()?, r.u64()?);
        let mut logs = Vec::new();
        for _ in 0..r.u64()? {
            logs.push(LogId(r.u64()?));
        }
        r.finish()?;
        if logs.is_empty() || segment_bytes == 0 {
            return Err(DecodeError::Invalid {
                field: "logs",
                value: logs.len() as u64,
            });
        }
        Ok(Self {
            segment_bytes,
            group_bytes_max,
            next_log,
            logs,
        })
    }

    /// Index of the log that a feed of this name lives in.
    #[must_use]
    pub fn log_of(name: &str, logs: usize) -> usize {
        let hash = u64::from(crc32c::crc32c(name.as_bytes()));
        usize::try_from((hash * logs as u64) >> 32).unwrap_or(0)
    }
}

/// What of the configuration was fixed when a data directory was made: its own values count, whatever
/// the configuration says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fixed {
    /// Number of its logs.
    pub logs: usize,
    /// Size of every segment.
    pub segment_bytes: u64,
}

/// What is fixed in the data directory `dir`; `None` if it is none. Opens and locks nothing; blocks.
///
/// # Errors
/// [`Error::Corrupt`], [`Error::NewerFormat`], [`Error::Io`] of its marker.
pub fn fixed(dir: &Path) -> Result<Option<Fixed>> {
    let path = dir.join(MARKER_FILE);
    let read = read_file(&path, MARKER_BYTES_MAX).map_err(|e| Error::io("read", &path, &e))?;
    let Some(bytes) = read else { return Ok(None) };
    let marker = Marker::decode(&bytes).map_err(|e| Error::decode(path.display(), 0, e))?;
    Ok(Some(Fixed {
        logs: marker.logs.len(),
        segment_bytes: marker.segment_bytes,
    }))
}

/// Reads the marker of a data directory; `None` if there is none.
pub(crate) async fn read_marker<E: Env>(env: &E, dir: &Path) -> Result<Option<Marker>> {
    let path = dir.join(MARKER_FILE);
    let bytes = read_whole(env.disk(), &path, MARKER_BYTES_MAX).await?;
    let decode = |bytes: Vec<u8>| Marker::decode(&bytes);
    bytes
        .map(decode)
        .transpose()
        .map_err(|error| Error::decode(path.display(), 0, error))
}

/// Opens a data directory, or makes it if it is not there and may be made.
pub(crate) async fn open_or_create<E: Env>(env: &E, config: &EngineConfig) -> Result<Marker> {
    config.validate()?;
    let dir = &config.data_dir;
    if let Some(marker) = read_marker(env, dir).await? {
        check_fits(&marker, config)?;
        // Whoever put it there may have been killed before its name was durable.
        sync_dir(env, dir).await?;
        make_identity(env, config).await?;
        return Ok(marker);
    }
    if !config.create {
        let text = format!("{} is not a data directory", dir.display());
        return Err(Error::Unusable(text));
    }
    let marker = Marker {
        segment_bytes: config.wal.segment_bytes,
        group_bytes_max: config.group_bytes_max() as u64,
        next_log: u64::from(config.logs),
        logs: (0..u64::from(config.logs)).map(LogId).collect(),
    };
    for log in &marker.logs {
        create_log(env, dir, *log, marker.segment_bytes).await?;
    }
    if let Some(settings) = &config.settings {
        write_whole(env.disk(), dir, SETTINGS_FILE, settings.as_bytes()).await?;
    }
    make_identity(env, config).await?;
    write_marker(env, dir, &marker).await?;
    Ok(marker)
}

/// Replaces the marker, durably.
pub(crate) async fn write_marker<E: Env>(env: &E, dir: &Path, marker: &Marker) -> Result<()> {
    write_whole(env.disk(), dir, MARKER_FILE, &marker.encode()).await?;
    sync_dir(env, dir).await
}

async fn sync_dir<E: Env>(env: &E, dir: &Path) -> Result<()> {
    let synced = env.disk().sync_dir(dir).await;
    synced.map_err(|e| Error::io("sync", dir, &e))
}

/// Makes the folders and the first checkpoint of a log. DIR-1.
pub(crate) async fn create_log<E: Env>(
    env: &E,
    dir: &Path,
    log: LogId,
    segment_bytes: u64,
) -> Result<()> {
    let wal = wal_dir(dir, log);
    let disk = env.disk();
    disk.create_dir_all(&wal)
        .await
        .map_err(|e| Error::io("create", &wal, &e))?;
    let files = disk
        .list(&wal)
        .await
        .map_err(|e| Error::io("list", &wal, &e))?;
    if !files.is_empty() {
        let text = format!(
            "{} holds {} files but {} has no marker file {MARKER_FILE:?}: nothing was touched",
            wal.display(),
            files.len(),
            dir.display()
        );
        return Err(Error::Unusable(text));
    }
    let end = Geometry { segment_bytes }.first_offset(0);
    Checkpoints::create(env, &checkpoint_dir(dir, log), log, end).await
}

fn check_fits(marker: &Marker, config: &EngineConfig) -> Result<()> {
    let group = config.group_bytes_max() as u64;
    let fits = 2 * group.max(marker.group_bytes_max) + 4096 <= marker.segment_bytes;
    if fits {
        return Ok(());
    }
    Err(Error::Config(format!(
        "batches of up to {group} bytes do not fit the directory's segments of {} bytes",
        marker.segment_bytes
    )))
}
