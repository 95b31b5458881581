//! SimDisk: the data directory, with a cache that a power loss takes and a kill doesn't.
//!
//! **Invariants**
//! - Every operation takes effect at one point of virtual time, at its file or directory.
//! - Errors are the operating system's own (`from_raw_os_error`), never a text.
//! - A write that isn't block-aligned panics: the engine must not rely on a kind kernel.
//!
//! **Not here**: content and directories (`content.rs`, `inode.rs`, `dirs.rs`), files (`file.rs`).

mod content;
mod dirs;
mod file;
mod inode;
#[cfg(test)]
mod tests;

pub use file::SimFile;

use super::device::DeviceOp;
use super::executor::Class;
use super::faults::Fault;
use super::rng::Rng;
use super::trace::Kind;
use super::world::World;
use dirs::{Change, Dir, InodeRef};
use sealog_engine::env::{BLOCK_BYTES, Disk};
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::rc::Rc;

pub(super) const ENOENT: i32 = 2;
pub(super) const EIO: i32 = 5;
pub(super) const EEXIST: i32 = 17;
pub(super) const ENOSPC: i32 = 28;

pub(super) fn os_error(code: i32) -> io::Error {
    io::Error::from_raw_os_error(code)
}

/// All directories by path. What is on the platters and in the cache, across processes.
#[derive(Debug)]
pub(super) struct DiskState {
    dirs: BTreeMap<PathBuf, Dir>,
}

impl Default for DiskState {
    fn default() -> Self {
        let roots = ["", "/"].map(|root| (PathBuf::from(root), Dir::default()));
        Self { dirs: roots.into() }
    }
}

impl DiskState {
    fn dir(&mut self, path: &Path) -> io::Result<&mut Dir> {
        self.dirs.get_mut(path).ok_or_else(|| os_error(ENOENT))
    }

    fn find(&mut self, path: &Path) -> io::Result<InodeRef> {
        let (dir, name) = split(path);
        let found = self.dir(dir)?.cache.get(&name).cloned();
        found.ok_or_else(|| os_error(ENOENT))
    }

    fn create(&mut self, path: &Path) -> io::Result<InodeRef> {
        let (dir, name) = split(path);
        let dir = self.dir(dir)?;
        if dir.cache.contains_key(&name) {
            return Err(os_error(EEXIST));
        }
        let inode = InodeRef::default();
        dir.apply(Change::Set(name, inode.clone()));
        Ok(inode)
    }

    fn remove(&mut self, path: &Path) -> io::Result<()> {
        self.find(path)?;
        let (dir, name) = split(path);
        self.dir(dir)?.apply(Change::Remove(name));
        Ok(())
    }

    fn rename(&mut self, from: &Path, to: &Path) -> io::Result<()> {
        let inode = self.find(from)?;
        let (from_dir, from_name) = split(from);
        let (to_dir, to_name) = split(to);
        if from_dir == to_dir {
            self.dir(from_dir)?.apply(Change::Rename {
                from: from_name,
                to: to_name,
                inode,
            });
        } else {
            self.dir(to_dir)?.apply(Change::Set(to_name, inode));
            self.dir(from_dir)?.apply(Change::Remove(from_name));
        }
        Ok(())
    }

    fn create_dirs(&mut self, path: &Path) {
        for part in path.ancestors() {
            self.dirs.entry(part.to_owned()).or_default();
        }
    }

    /// Bytes of blocks that files with names take.
    fn used_bytes(&self) -> u64 {
        let files = self.dirs.values().flat_map(|dir| dir.cache.values());
        let blocks: u64 = files.map(|file| file.borrow().cache.blocks()).sum();
        blocks * BLOCK_BYTES as u64
    }

    /// Power is gone: decides for every unsynced write and name whether it survives.
    pub(super) fn power_loss(world: &World) {
        let mut rng = world.streams.disk.borrow_mut();
        let mut faults = world.faults.borrow_mut();
        let sector_bytes = faults.plan.sector_bytes;
        let mut fires = |fault, rng: &mut _| faults.fires(fault, rng);
        let mut disk = world.disk.borrow_mut();
        let files: Vec<InodeRef> = disk.files();
        for dir in disk.dirs.values_mut() {
            dir.power_loss(&mut rng, &mut fires);
        }
        for file in files {
            file.borrow_mut()
                .power_loss(sector_bytes, &mut rng, &mut fires);
        }
    }

    /// Path of the file below `dir` that was written last.
    pub(super) fn newest(&self, dir: &Path) -> Option<String> {
        let below = self.dirs.iter().filter(|(path, _)| path.starts_with(dir));
        let files = below.flat_map(|(path, dir)| dir.cache.iter().map(move |file| (path, file)));
        let newest = files.max_by_key(|(_, (_, inode))| inode.borrow().modified_ns)?;
        let (path, (name, _)) = newest;
        Some(path.join(name).display().to_string())
    }

    /// Flips one bit of the file at `path`; false when it has none.
    pub(super) fn rot(&mut self, path: &Path, rng: &mut Rng) -> bool {
        let file = self.find(path);
        file.is_ok_and(|file| file.borrow_mut().rot(rng).is_some())
    }

    /// Every file that a name leads to or may lead to after a power loss, once.
    fn files(&self) -> Vec<InodeRef> {
        let mut files: Vec<InodeRef> = Vec::new();
        for file in self.dirs.values().flat_map(Dir::files) {
            if !files.iter().any(|seen| Rc::ptr_eq(seen, file)) {
                files.push(file.clone());
            }
        }
        files
    }
}

impl Dir {
    fn files(&self) -> impl Iterator<Item = &InodeRef> {
        self.cache.values().chain(self.uncached_files())
    }
}

/// Directory and name of a path.
fn split(path: &Path) -> (&Path, String) {
    let name = path.file_name().expect("a path of a file");
    let dir = path.parent().unwrap_or(Path::new(""));
    (dir, name.to_string_lossy().into_owned())
}

/// The disk as one process sees it.
#[derive(Clone)]
pub struct SimDisk {
    world: Rc<World>,
    incarnation: u64,
}

impl SimDisk {
    pub(super) fn new(world: Rc<World>, incarnation: u64) -> Self {
        Self { world, incarnation }
    }

    /// Submits a metadata operation on `path`; `fault` is the error it may fail with, without effect.
    fn submit<T: 'static>(
        &self,
        what: &'static str,
        path: &Path,
        effect: impl FnOnce(&mut DiskState) -> io::Result<T> + 'static,
    ) -> DeviceOp<io::Result<T>> {
        self.world.check(self.incarnation);
        let name = path.display().to_string();
        let delay = file::delay_ns(&self.world, &name, 5_000, 100_000);
        self.world.device(Class::Disk, delay, move |world| {
            let result = effect(&mut world.disk.borrow_mut());
            world.note(Kind::Disk, what, &name, 0, u64::from(result.is_ok()));
            result
        })
    }
}

impl Disk for SimDisk {
    type File = SimFile;

    async fn create(&self, path: &Path) -> io::Result<SimFile> {
        let owned = path.to_owned();
        if file::error_fires(&self.world, Fault::NoSpace, &owned.display().to_string()) {
            return Err(os_error(ENOSPC));
        }
        let op = self.submit("create", path, move |disk| disk.create(&owned));
        Ok(SimFile::new(self, path, op.await?))
    }

    async fn open(&self, path: &Path) -> io::Result<SimFile> {
        let owned = path.to_owned();
        let op = self.submit("open", path, move |disk| disk.find(&owned));
        Ok(SimFile::new(self, path, op.await?))
    }

    async fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let (from, owned) = (from.to_owned(), to.to_owned());
        self.submit("rename", to, move |disk| disk.rename(&from, &owned))
            .await
    }

    async fn remove(&self, path: &Path) -> io::Result<()> {
        let owned = path.to_owned();
        self.submit("remove", path, move |disk| disk.remove(&owned))
            .await
    }

    async fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        let owned = dir.to_owned();
        self.submit("list", dir, move |disk| {
            Ok(disk.dir(&owned)?.cache.keys().cloned().collect())
        })
        .await
    }

    async fn create_dir_all(&self, dir: &Path) -> io::Result<()> {
        let owned = dir.to_owned();
        self.submit("mkdir", dir, move |disk| {
            disk.create_dirs(&owned);
            Ok(())
        })
        .await
    }

    async fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        self.world.check(self.incarnation);
        let name = dir.display().to_string();
        let mark = self.world.disk.borrow_mut().dir(dir)?.mark();
        let (world, owned) = (self.world.clone(), dir.to_owned());
        let shown = name.clone();
        let fails = move |disk: &mut DiskState| {
            if file::error_fires(&world, Fault::SyncEio, &name) {
                return Err(os_error(EIO));
            }
            disk.dir(&owned)?.sync(mark);
            Ok(())
        };
        self.submit("sync_dir", Path::new(&shown), fails).await
    }
}
