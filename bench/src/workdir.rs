//! Workdir: the folder that is measured: data directories with a log that was written before.
//!
//! **Invariants**
//! - A prepared log has spare segments for a whole run, as the yardstick has a file written before:
//!   nothing is zero-filled while the clock runs. [`Workdir::segments`] shows whether that held.
//!
//! **Not here**: the load (`load`).

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use futures::executor::block_on;
use sealog_engine::{Engine, EngineConfig};

use crate::Result;
use crate::load::{
    Crew, Shape, Until, create_feeds, delete_feeds, drive, feed_names, open_sessions,
};

/// Longest wait for retired segments.
const RECYCLE_MAX: Duration = Duration::from_secs(60);

/// A folder that is removed when this is dropped.
pub struct Workdir {
    root: PathBuf,
}

impl Workdir {
    /// An empty folder below `dir`.
    pub fn create(dir: &Path) -> Result<Self> {
        let root = dir.join("sealog-bench");
        match std::fs::remove_dir_all(&root) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error.into()),
            _ => std::fs::create_dir_all(&root)?,
        }
        Ok(Self { root })
    }

    /// A path in it.
    pub fn path(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }

    /// The data directory.
    pub fn data(&self) -> PathBuf {
        self.path("data")
    }

    /// Number of segment files.
    pub fn segments(&self) -> usize {
        let logs = std::fs::read_dir(self.data().join("wal"));
        let logs = logs.into_iter().flatten().flatten();
        let files = logs.filter_map(|log| std::fs::read_dir(log.path()).ok());
        let files = files.flatten().flatten();
        files
            .filter(|file| file.path().extension().is_some_and(|e| e == "seg"))
            .count()
    }

    /// Removes the data directory.
    pub fn clear(&self) -> Result<()> {
        match std::fs::remove_dir_all(self.data()) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error.into()),
            _ => Ok(()),
        }
    }

    /// Removes all that is in it.
    pub fn empty(&self) -> Result<()> {
        std::fs::remove_dir_all(&self.root)?;
        std::fs::create_dir_all(&self.root)?;
        Ok(())
    }
}

impl Drop for Workdir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.root);
    }
}

/// The standard profile with the lane idle for `log_bytes` of log.
pub fn idle_lane(workdir: &Workdir, log_bytes: u64) -> EngineConfig {
    let mut config = EngineConfig::new(workdir.data());
    config.wal.disk_bytes_max = log_bytes;
    config.wal.lane_start_bytes = u64::MAX / 2;
    config
}

/// Writes `bytes` of log and frees it all again, so that later runs find written segments.
pub fn prewrite(config: &EngineConfig, bytes: u64) -> Result<()> {
    let feeds = feed_names("prewrite", 8);
    let crew = Crew {
        producers: 8,
        threads: 1,
        depth: 2,
    };
    let shape = Shape {
        records: 100,
        record_bytes: 4096,
    };
    let until = Until {
        warmup: Duration::ZERO,
        measure: Duration::from_secs(3600),
        log_bytes_max: bytes,
    };
    let engine = Engine::open(config.clone())?;
    create_feeds(engine.handle(), &feeds)?;
    let sessions = open_sessions(engine.handle(), &feeds, crew)?;
    drive(engine.handle(), &sessions, crew, shape, until)?;
    delete_feeds(engine.handle(), &feeds)?;
    block_on(engine.close())?;
    recycle(config)
}

/// Opens the directory so that it frees every segment that holds nothing any more, and waits for it.
pub fn recycle(config: &EngineConfig) -> Result<()> {
    let mut config = config.clone();
    config.wal.lane_start_bytes = 0;
    let engine = Engine::open(config.clone())?;
    let checkpoints = config.data_dir.join("checkpoint");
    let start = Instant::now();
    let mut calm_since = Instant::now();
    let mut seen = newest_change(&checkpoints);
    // Checkpoints follow each other while they free something; then they stop.
    while calm_since.elapsed() < Duration::from_millis(2500) && start.elapsed() < RECYCLE_MAX {
        std::thread::sleep(Duration::from_millis(100));
        let now = newest_change(&checkpoints);
        if now != seen {
            seen = now;
            calm_since = Instant::now();
        }
    }
    block_on(engine.close())?;
    Ok(())
}

fn newest_change(dir: &Path) -> Option<std::time::SystemTime> {
    let entries = std::fs::read_dir(dir).ok()?.flatten();
    let nested = entries.flat_map(|entry| {
        let inner = std::fs::read_dir(entry.path())
            .into_iter()
            .flatten()
            .flatten();
        std::iter::once(entry.path())
            .chain(inner.map(|e| e.path()))
            .collect::<Vec<_>>()
    });
    nested
        .filter_map(|path| path.metadata().and_then(|m| m.modified()).ok())
        .max()
}
