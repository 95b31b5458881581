//! Folder_store: the blocking half of the folder bucket; each call is one object operation.
//!
//! **Invariants**
//! - A file reaches its key only whole and synced, by one atomic step (link, or rename).
//! - `Created`, `Exists` and `Swapped` are answered after the key's directory, and every directory
//!   above it, has been synced: the one who is told `Exists` may rely on it as on `Created`.
//! - Compare-and-swap and delete exclude each other, across processes too (a lock on [`CAS_LOCK`]).
//! - A file whose sync failed is thrown away, never synced again.
//!
//! A `get` promises nothing about durability: it may see an object whose writer hasn't synced the
//! name yet. Who must know asks `put_if_absent` again and is told `Exists`.
//!
//! **Not here**: threads (`folder`), listing (`folder_list`).

use std::collections::HashSet;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use sha2::{Digest, Sha256};

use super::folder_list::is_absent;
use super::key::{TMP_DIR, path_of};
use crate::env::fs_ops::{
    create_dir_all_synced, drop_cache, make_dir, rename_no_replace, sync_dir,
};
use crate::env::{AlignedBuf, BLOCK_BYTES, ETag, PutOutcome, SwapOutcome, random_u64};

/// Held shared by everyone who has the folder open; held alone, leftovers may be removed.
const OPEN_LOCK: &str = "OPEN";
/// Held around compare-and-swap and delete.
const CAS_LOCK: &str = "CAS";
/// Directories remembered as durable, at most; beyond it they are synced anew.
const DURABLE_DIRS_MAX: usize = 4096;
/// Reads from here on leave nothing in the page cache.
const CACHED_READ_MAX: usize = 256 * 1024;
/// Without direct I/O, so much is written before it is pushed out of the page cache.
const DIRTY_MAX: u64 = 8 * 1024 * 1024;

/// One folder, opened.
pub(super) struct FolderStore {
    root: PathBuf,
    tmp: PathBuf,
    _open: File,
    cas: Mutex<File>,
    durable_dirs: Mutex<HashSet<PathBuf>>,
}

impl FolderStore {
    /// Opens `root`, made if absent; removes what a crash left in the making, unless another process
    /// has the folder open too.
    pub(super) fn open(root: &Path) -> io::Result<Self> {
        let tmp = root.join(TMP_DIR);
        create_dir_all_synced(&tmp)?;
        let open = lock_file(&tmp.join(OPEN_LOCK))?;
        if open.try_lock().is_ok() {
            remove_leftovers(&tmp)?;
        }
        open.lock_shared()?;
        Ok(Self {
            root: root.to_owned(),
            cas: Mutex::new(lock_file(&tmp.join(CAS_LOCK))?),
            tmp,
            _open: open,
            durable_dirs: Mutex::default(),
        })
    }

    pub(super) fn root(&self) -> &Path {
        &self.root
    }

    pub(super) fn put_if_absent(&self, key: &str, data: &[u8]) -> io::Result<PutOutcome> {
        let path = path_of(&self.root, key)?;
        let outcome = match fs::symlink_metadata(&path) {
            Ok(meta) if meta.is_dir() => return Err(io::ErrorKind::IsADirectory.into()),
            Ok(_) => PutOutcome::Exists,
            Err(error) if is_absent(&error) => {
                let temp = self.temp_with(data)?;
                match self.in_dir(&path, |path| temp.publish_new(path)) {
                    Ok(()) => PutOutcome::Created,
                    Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                        PutOutcome::Exists
                    }
                    Err(error) => return Err(error),
                }
            }
            Err(error) => return Err(error),
        };
        self.sync_name(&path)?;
        Ok(outcome)
    }

    pub(super) fn put_if_match(
        &self,
        key: &str,
        tag: &ETag,
        data: &[u8],
    ) -> io::Result<SwapOutcome> {
        let path = path_of(&self.root, key)?;
        // Outside the lock: only the decision and the rename need it.
        let temp = self.temp_with(data)?;
        let _excluded = self.exclude()?;
        match read_all(&path) {
            Ok(current) if tag_of(&current) == *tag => {}
            Ok(_) => return Ok(SwapOutcome::Mismatch),
            Err(error) if is_absent(&error) => return Ok(SwapOutcome::Mismatch),
            Err(error) => return Err(error),
        }
        temp.publish_over(&path)?;
        self.sync_name(&path)?;
        Ok(SwapOutcome::Swapped(tag_of(data)))
    }

    /// Whether bucket and `dir` lie on one file system.
    pub(super) fn shares_disk(&self, dir: &Path) -> bool {
        let device = |path: &Path| fs::metadata(path).map(|meta| meta.dev());
        matches!((device(&self.root), device(dir)), (Ok(own), Ok(other)) if own == other)
    }

    /// An object that is absent because the whole bucket is (moved, not mounted) is not known to be absent.
    fn present<T>(&self, found: io::Result<T>) -> io::Result<T> {
        match found {
            Err(error) if is_absent(&error) && !self.tmp.is_dir() => {
                let root = self.root.display();
                let text = format!("the bucket folder {root} is gone, or not mounted");
                Err(io::Error::new(io::ErrorKind::NotConnected, text))
            }
            found => found,
        }
    }

    pub(super) fn get(&self, key: &str) -> io::Result<(Vec<u8>, ETag)> {
        let data = self.present(read_all(&path_of(&self.root, key)?))?;
        let tag = tag_of(&data);
        Ok((data, tag))
    }

    pub(super) fn get_range(&self, key: &str, offset: u64, len: usize) -> io::Result<Vec<u8>> {
        let file = self.present(File::open(path_of(&self.root, key)?))?;
        let left = object_len(&file)?.saturating_sub(offset);
        let want = usize::try_from(left).unwrap_or(usize::MAX).min(len);
        let mut data = vec![0; want];
        file.read_exact_at(&mut data, offset)?;
        if want >= CACHED_READ_MAX {
            drop_cache(&file);
        }
        Ok(data)
    }

    pub(super) fn head(&self, key: &str) -> io::Result<Option<u64>> {
        match self.present(fs::metadata(path_of(&self.root, key)?)) {
            Ok(meta) => Ok(meta.is_file().then_some(meta.len())),
            Err(error) if is_absent(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }

    pub(super) fn delete(&self, key: &str) -> io::Result<()> {
        let path = path_of(&self.root, key)?;
        let _excluded = self.exclude()?;
        match fs::remove_file(&path) {
            Ok(()) => sync_dir(parent_of(&path)),
            // A directory is no object, so that one is absent too.
            Err(error) if is_absent(&error) || error.kind() == io::ErrorKind::IsADirectory => {
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    pub(super) fn upload(&self) -> io::Result<UploadFile> {
        UploadFile::create(self.temp_path())
    }

    pub(super) fn finish(&self, mut upload: UploadFile, key: &str) -> io::Result<()> {
        let path = path_of(&self.root, key)?;
        upload.complete()?;
        self.in_dir(&path, |path| upload.temp.publish_over(path))?;
        self.sync_name(&path)
    }

    /// A synced file of our own, holding `data`, not yet under any key.
    fn temp_with(&self, data: &[u8]) -> io::Result<Temp> {
        let temp = Temp::new(self.temp_path());
        let mut file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o640)
            .open(&temp.path)?;
        file.write_all(data)?;
        file.sync_all()?;
        drop_cache(&file);
        Ok(temp)
    }

    fn temp_path(&self) -> PathBuf {
        self.tmp
            .join(format!("{:016x}{:016x}", random_u64(), random_u64()))
    }

    /// Runs `publish` with the directories of `path` in place.
    fn in_dir(&self, path: &Path, publish: impl Fn(&Path) -> io::Result<()>) -> io::Result<()> {
        self.ensure_dirs(path)?;
        match publish(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                // A directory we had seen is gone: somebody tidied up.
                self.durable_dirs().clear();
                self.ensure_dirs(path)?;
                publish(path)
            }
            result => result,
        }
    }

    /// Makes the directories of `path` and makes each durable in its parent. One that exists is
    /// synced too, once: another thread or a crashed process may have made it and not yet synced it.
    fn ensure_dirs(&self, path: &Path) -> io::Result<()> {
        let mut dirs: Vec<&Path> = path
            .ancestors()
            .skip(1)
            .take_while(|dir| *dir != self.root)
            .collect();
        dirs.reverse();
        for dir in dirs {
            if self.durable_dirs().contains(dir) {
                continue;
            }
            make_dir(dir)?;
            sync_dir(parent_of(dir))?;
            let mut durable = self.durable_dirs();
            if durable.len() >= DURABLE_DIRS_MAX {
                durable.clear();
            }
            durable.insert(dir.to_owned());
        }
        Ok(())
    }

    /// Makes the name of an object that is there durable.
    fn sync_name(&self, path: &Path) -> io::Result<()> {
        self.ensure_dirs(path)?;
        sync_dir(parent_of(path))
    }

    fn durable_dirs(&self) -> std::sync::MutexGuard<'_, HashSet<PathBuf>> {
        // A set of paths is whole between any two operations on it.
        self.durable_dirs
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn exclude(&self) -> io::Result<Excluded<'_>> {
        let file = self.cas.lock().unwrap_or_else(PoisonError::into_inner);
        file.lock()?;
        Ok(Excluded(file))
    }
}

/// The right to swap or delete.
struct Excluded<'a>(std::sync::MutexGuard<'a, File>);

impl Drop for Excluded<'_> {
    fn drop(&mut self) {
        // Cannot fail on a lock we hold; if it did, closing the file at the end would release it.
        let _ = self.0.unlock();
    }
}

/// A file in the making; removed on drop unless published.
struct Temp {
    path: PathBuf,
}

impl Temp {
    fn new(path: PathBuf) -> Self {
        Self { path }
    }

    /// Gives the file its name if that is free.
    fn publish_new(&self, to: &Path) -> io::Result<()> {
        match fs::hard_link(&self.path, to) {
            Err(error) if no_links(&error) => rename_no_replace(&self.path, to),
            result => result,
        }
    }

    /// Gives the file its name, whatever had it.
    fn publish_over(&self, to: &Path) -> io::Result<()> {
        fs::rename(&self.path, to)
    }
}

impl Drop for Temp {
    fn drop(&mut self) {
        // Published by rename it is gone already; otherwise the next open removes it.
        let _ = fs::remove_file(&self.path);
    }
}

/// The filesystem has no hard links (or no more for this file).
fn no_links(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::EPERM | libc::EOPNOTSUPP | libc::ENOSYS | libc::EMLINK)
    )
}

/// A big object in the making.
pub(super) struct UploadFile {
    temp: Temp,
    file: File,
    direct: bool,
    len: u64,
    dirty: u64,
    failed: bool,
}

impl UploadFile {
    fn create(path: PathBuf) -> io::Result<Self> {
        let temp = Temp::new(path);
        let mut options = OpenOptions::new();
        options.write(true).create_new(true).mode(0o640);
        let (file, direct) = match options
            .clone()
            .custom_flags(libc::O_DIRECT)
            .open(&temp.path)
        {
            Ok(file) => (file, true),
            Err(error) if no_direct(&error) => {
                // Some filesystems make the file before they refuse the flag.
                let _ = fs::remove_file(&temp.path);
                (options.open(&temp.path)?, false)
            }
            Err(error) => return Err(error),
        };
        Ok(Self {
            temp,
            file,
            direct,
            len: 0,
            dirty: 0,
            failed: false,
        })
    }

    pub(super) fn part(&mut self, data: &AlignedBuf) -> io::Result<()> {
        if self.failed || !self.len.is_multiple_of(BLOCK_BYTES as u64) {
            let message = "a part after a failed or an unaligned one";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
        }
        self.failed = true;
        self.write(data)?;
        self.failed = false;
        Ok(())
    }

    fn write(&mut self, data: &AlignedBuf) -> io::Result<()> {
        let whole = data.len() - data.len() % BLOCK_BYTES;
        self.file.write_all_at(&data[..whole], self.len)?;
        if whole < data.len() {
            let mut tail = AlignedBuf::copy_of(&data[whole..]);
            tail.pad_to_block();
            self.file.write_all_at(&tail, self.len + whole as u64)?;
        }
        self.len += data.len() as u64;
        if !self.direct {
            self.dirty += data.len() as u64;
            if self.dirty >= DIRTY_MAX {
                self.file.sync_data()?;
                drop_cache(&self.file);
                self.dirty = 0;
            }
        }
        Ok(())
    }

    /// Cuts the padding off and makes the content durable.
    fn complete(&mut self) -> io::Result<()> {
        if self.failed {
            return Err(io::Error::other("a part of this upload failed"));
        }
        if !self.len.is_multiple_of(BLOCK_BYTES as u64) {
            self.file.set_len(self.len)?;
        }
        self.file.sync_all()?;
        drop_cache(&self.file);
        Ok(())
    }
}

fn no_direct(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EINVAL | libc::EOPNOTSUPP))
}

fn lock_file(path: &Path) -> io::Result<File> {
    OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o640)
        .open(path)
}

fn remove_leftovers(tmp: &Path) -> io::Result<()> {
    for entry in fs::read_dir(tmp)? {
        let entry = entry?;
        let name = entry.file_name();
        if name != OPEN_LOCK && name != CAS_LOCK && entry.file_type()?.is_file() {
            fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

fn read_all(path: &Path) -> io::Result<Vec<u8>> {
    let mut file = File::open(path)?;
    let len = object_len(&file)?;
    let mut data = Vec::with_capacity(usize::try_from(len).unwrap_or(0));
    file.read_to_end(&mut data)?;
    if data.len() >= CACHED_READ_MAX {
        drop_cache(&file);
    }
    Ok(data)
}

/// Length of an object; a directory is none.
fn object_len(file: &File) -> io::Result<u64> {
    let meta = file.metadata()?;
    if meta.is_file() {
        Ok(meta.len())
    } else {
        Err(io::ErrorKind::NotFound.into())
    }
}

fn parent_of(path: &Path) -> &Path {
    path.parent().unwrap_or(Path::new("."))
}

fn tag_of(data: &[u8]) -> ETag {
    use std::fmt::Write as _;
    let mut hex = String::with_capacity(64);
    for byte in Sha256::digest(data) {
        // Writing to a string cannot fail.
        let _ = write!(hex, "{byte:02x}");
    }
    ETag(hex)
}
