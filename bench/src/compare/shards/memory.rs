//! Memory: a production environment whose disk is in memory and forgets what segments hold.
//!
//! **Invariants**
//! - A write takes no CPU beyond the call, as with a device; a sync takes as long as a good one's.
//! - Files but segments read back what was written; segments read back zeros, and the lane is idle, so
//!   nothing reads them.
//!
//! **Not here**: faults and crashes (the simulator in `tests`).

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use sealog_engine::bucket::FolderBucket;
use sealog_engine::env::{AlignedBuf, Disk, Env, File, GlommioEnv};

/// How long a sync takes.
const SYNC: Duration = Duration::from_micros(100);

/// The environment of a shard.
#[derive(Clone)]
pub struct MemoryEnv {
    real: GlommioEnv<FolderBucket>,
    disk: MemoryDisk,
}

impl MemoryEnv {
    /// An empty disk beside everything else of `real`.
    pub fn new(real: GlommioEnv<FolderBucket>) -> Self {
        let disk = MemoryDisk {
            env: real.clone(),
            files: Rc::default(),
        };
        Self { real, disk }
    }
}

impl Env for MemoryEnv {
    type Disk = MemoryDisk;
    type Bucket = FolderBucket;

    fn disk(&self) -> &MemoryDisk {
        &self.disk
    }

    fn bucket(&self) -> &FolderBucket {
        self.real.bucket()
    }

    fn monotonic_ns(&self) -> u64 {
        self.real.monotonic_ns()
    }

    fn realtime_ms(&self) -> u64 {
        self.real.realtime_ms()
    }

    async fn sleep(&self, duration: Duration) {
        self.real.sleep(duration).await;
    }

    fn spawn(&self, name: &'static str, future: impl Future<Output = ()> + 'static) {
        self.real.spawn(name, future);
    }

    fn spawn_urgent(&self, name: &'static str, future: impl Future<Output = ()> + 'static) {
        self.real.spawn_urgent(name, future);
    }

    fn random_u64(&self) -> u64 {
        self.real.random_u64()
    }

    async fn yield_if_needed(&self) {
        self.real.yield_if_needed().await;
    }

    async fn offload<T: Send + 'static>(&self, job: impl FnOnce() -> T + Send + 'static) -> T {
        self.real.offload(job).await
    }
}

/// Files by path.
#[derive(Clone)]
pub struct MemoryDisk {
    env: GlommioEnv<FolderBucket>,
    files: Rc<RefCell<BTreeMap<PathBuf, MemoryFile>>>,
}

/// One file.
#[derive(Clone)]
pub struct MemoryFile {
    env: GlommioEnv<FolderBucket>,
    forgets: bool,
    content: Rc<RefCell<Content>>,
}

#[derive(Default)]
struct Content {
    bytes: Vec<u8>,
    /// Length of a file that forgets.
    len: usize,
}

fn not_found(path: &Path) -> io::Error {
    io::Error::new(io::ErrorKind::NotFound, path.display().to_string())
}

impl Disk for MemoryDisk {
    type File = MemoryFile;

    async fn create(&self, path: &Path) -> io::Result<MemoryFile> {
        let mut files = self.files.borrow_mut();
        if files.contains_key(path) {
            let text = path.display().to_string();
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, text));
        }
        let file = MemoryFile {
            env: self.env.clone(),
            forgets: path.extension().is_some_and(|kind| kind == "seg"),
            content: Rc::default(),
        };
        files.insert(path.to_owned(), file.clone());
        Ok(file)
    }

    async fn open(&self, path: &Path) -> io::Result<MemoryFile> {
        let file = self.files.borrow().get(path).cloned();
        file.ok_or_else(|| not_found(path))
    }

    async fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut files = self.files.borrow_mut();
        let file = files.remove(from).ok_or_else(|| not_found(from))?;
        files.insert(to.to_owned(), file);
        Ok(())
    }

    async fn remove(&self, path: &Path) -> io::Result<()> {
        let removed = self.files.borrow_mut().remove(path);
        removed.map(drop).ok_or_else(|| not_found(path))
    }

    async fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        let files = self.files.borrow();
        let inside = files.keys().filter(|path| path.parent() == Some(dir));
        let name = |path: &PathBuf| Some(path.file_name()?.to_str()?.to_owned());
        Ok(inside.filter_map(name).collect())
    }

    async fn create_dir_all(&self, _: &Path) -> io::Result<()> {
        Ok(())
    }

    async fn sync_dir(&self, _: &Path) -> io::Result<()> {
        Ok(())
    }
}

impl File for MemoryFile {
    async fn len(&self) -> io::Result<u64> {
        let content = self.content.borrow();
        Ok(content.bytes.len().max(content.len) as u64)
    }

    async fn write_at(&self, buf: Arc<AlignedBuf>, offset: u64) -> io::Result<()> {
        let mut content = self.content.borrow_mut();
        let at = usize::try_from(offset).map_err(io::Error::other)?;
        let end = at + buf.len();
        if self.forgets {
            content.len = content.len.max(end);
            return Ok(());
        }
        if content.bytes.len() < end {
            content.bytes.resize(end, 0);
        }
        content.bytes[at..end].copy_from_slice(&buf);
        Ok(())
    }

    async fn read_at(&self, offset: u64, len: usize) -> io::Result<Vec<u8>> {
        let content = self.content.borrow();
        let at = usize::try_from(offset).map_err(io::Error::other)?;
        if self.forgets {
            return Ok(vec![0; len.min(content.len.saturating_sub(at))]);
        }
        let end = content.bytes.len().min(at.saturating_add(len));
        Ok(content.bytes.get(at..end).unwrap_or_default().to_vec())
    }

    async fn sync_data(&self) -> io::Result<()> {
        self.env.sleep(SYNC).await;
        Ok(())
    }

    async fn commit(&self, buf: Arc<AlignedBuf>, offset: u64) -> io::Result<()> {
        self.write_at(buf, offset).await?;
        self.sync_data().await
    }

    async fn drain(&self) -> io::Result<()> {
        Ok(())
    }

    async fn set_len(&self, len: u64) -> io::Result<()> {
        let mut content = self.content.borrow_mut();
        let len = usize::try_from(len).map_err(io::Error::other)?;
        match self.forgets {
            true => content.len = len,
            false => content.bytes.resize(len, 0),
        }
        Ok(())
    }
}
