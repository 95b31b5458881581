//! Fs_ops: blocking operations on names and directories, durable where they say so.
//!
//! **Invariants**
//! - A directory made here is durable when the call returns: its parent's entries are synced.
//!
//! **Not here**: who calls them from where (side threads only; they block).

use std::ffi::CString;
use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// What ext4 keeps free for itself is a 50th, and so many blocks at most: for root it counts among those
/// that are free, and can't be had.
const FS_OWN_PART: u64 = 50;
const FS_OWN_BLOCKS_MAX: u64 = 4096;

/// Bytes that this process may still write on the disk that holds `dir`: for root, what is kept for it too.
pub(crate) fn free_bytes(dir: &Path) -> io::Result<u64> {
    let path = CString::new(or_here(dir).as_os_str().as_bytes())?;
    // SAFETY: all-zero bytes are a valid `statvfs`.
    let mut of: libc::statvfs = unsafe { std::mem::zeroed() };
    // SAFETY: `path` ends with a zero byte, and `of` outlives the call, which only writes it.
    if unsafe { libc::statvfs(path.as_ptr(), &mut of) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a plain call.
    let blocks = match unsafe { libc::geteuid() } {
        0 => {
            let own = (of.f_blocks / FS_OWN_PART).min(FS_OWN_BLOCKS_MAX);
            of.f_bavail.max(of.f_bfree.saturating_sub(own))
        }
        _ => of.f_bavail,
    };
    Ok(blocks.saturating_mul(of.f_frsize))
}

/// Refuses what the disk that holds `dir` has no room for, before any of it is written.
pub(crate) fn check_room(dir: &Path, bytes: u64) -> io::Result<()> {
    // Where it cannot be told, writing tells.
    match free_bytes(dir) {
        Ok(free) if free < bytes => Err(no_room(free, bytes)),
        _ => Ok(()),
    }
}

/// The error of what the disk has no room for.
pub(crate) fn no_room(free: u64, bytes: u64) -> io::Error {
    let text = format!("{free} bytes are free on the disk, {bytes} are needed");
    io::Error::new(io::ErrorKind::StorageFull, text)
}

/// Makes the entries of `dir` durable: a full fsync, since fdatasync may leave entries out.
pub(crate) fn sync_dir(dir: &Path) -> io::Result<()> {
    File::open(or_here(dir))?.sync_all()
}

/// Creates `dir` and its missing parents, each made durable in its parent; an existing `dir` is made
/// durable too, since whoever made it may have crashed before it was.
pub(crate) fn create_dir_all_synced(dir: &Path) -> io::Result<()> {
    let mut missing = Vec::new();
    let mut at = dir;
    while !or_here(at).is_dir() {
        missing.push(at);
        match at.parent() {
            Some(parent) => at = parent,
            None => break,
        }
    }
    if missing.is_empty() {
        return dir.parent().map_or(Ok(()), sync_dir);
    }
    for dir in missing.into_iter().rev() {
        make_dir(dir)?;
        if let Some(parent) = dir.parent() {
            sync_dir(parent)?;
        }
    }
    Ok(())
}

/// Makes one directory; one that is there will do, anything else of that name is `NotADirectory`.
pub(crate) fn make_dir(dir: &Path) -> io::Result<()> {
    match fs::create_dir(dir) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            if dir.is_dir() {
                Ok(())
            } else {
                Err(io::ErrorKind::NotADirectory.into())
            }
        }
        result => result,
    }
}

/// A file that tools look into, without an executor.
pub(crate) struct FileReader {
    file: File,
    len: u64,
}

impl FileReader {
    /// Opens a file for reading.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        let file = File::open(path)?;
        let len = file.metadata()?.len();
        Ok(Self { file, len })
    }

    /// Its length when it was opened.
    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    /// Up to `len` bytes at `offset`; fewer only at the end.
    pub(crate) fn read_at(&self, offset: u64, len: usize) -> io::Result<Vec<u8>> {
        use std::os::unix::fs::FileExt;
        let left = usize::try_from(self.len.saturating_sub(offset)).unwrap_or(usize::MAX);
        let mut bytes = vec![0; len.min(left)];
        self.file.read_exact_at(&mut bytes, offset)?;
        Ok(bytes)
    }
}

/// Removes a directory that has nothing in it.
pub(crate) fn remove_empty_dir(dir: &Path) -> io::Result<()> {
    fs::remove_dir(dir)
}

/// Names of the files directly in `dir`, sorted. Names that aren't UTF-8 are left out: we make none.
pub(crate) fn list_files(dir: &Path) -> io::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        if entry.file_type()?.is_file()
            && let Ok(name) = entry.file_name().into_string()
        {
            names.push(name);
        }
    }
    names.sort_unstable();
    Ok(names)
}

/// Renames `from` to `to`; an existing `to` is `AlreadyExists`.
pub(crate) fn rename_no_replace(from: &Path, to: &Path) -> io::Result<()> {
    let from = CString::new(from.as_os_str().as_bytes())?;
    let to = CString::new(to.as_os_str().as_bytes())?;
    // By number, since not every C library has the wrapper.
    // SAFETY: both paths are NUL-terminated and outlive the call.
    let status = unsafe {
        libc::syscall(
            libc::SYS_renameat2,
            libc::AT_FDCWD,
            from.as_ptr(),
            libc::AT_FDCWD,
            to.as_ptr(),
            libc::RENAME_NOREPLACE,
        )
    };
    if status == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Waits for direct writes in flight to the file, whoever submitted them: a ring of a killed process
/// is taken down only after its files and locks are released. Allocating what is allocated changes
/// nothing, and file systems wait for direct I/O before they do it (ext4, XFS: `inode_dio_wait`).
pub(crate) fn drain(file: &File) -> io::Result<()> {
    let len = i64::try_from(file.metadata()?.len()).unwrap_or(i64::MAX);
    if len == 0 {
        return Ok(());
    }
    // SAFETY: the descriptor is open; the call touches no memory of ours.
    let status = unsafe { libc::fallocate(file.as_raw_fd(), libc::FALLOC_FL_KEEP_SIZE, 0, len) };
    if status == 0 {
        return Ok(());
    }
    let error = io::Error::last_os_error();
    match error.raw_os_error() {
        // The wait came first, or the file system has no such call: a sync is the next best.
        Some(libc::ENOSPC | libc::EDQUOT | libc::EOPNOTSUPP) => file.sync_all(),
        Some(libc::EINTR) => drain(file),
        _ => Err(error),
    }
}

/// Asks the kernel to forget the file's clean pages; only advice, so it can't fail.
pub(crate) fn drop_cache(file: &File) {
    // SAFETY: the descriptor is open; the call touches no memory of ours.
    unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) };
}

/// The parent of a bare name is the empty path, which means the working directory.
fn or_here(path: &Path) -> &Path {
    if path.as_os_str().is_empty() {
        Path::new(".")
    } else {
        path
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn free_bytes_are_told_of_what_is_there() {
        let root = tempfile::tempdir().unwrap();
        assert!(free_bytes(root.path()).unwrap() > 0);
        assert!(free_bytes(&root.path().join("nothing")).is_err());
    }

    #[test]
    fn create_dir_all_synced_missing_parents_makes_them() {
        let root = tempfile::tempdir().unwrap();
        let deep = root.path().join("a/b/c");
        create_dir_all_synced(&deep).unwrap();
        assert!(deep.is_dir());
        create_dir_all_synced(&deep).unwrap();
    }

    #[test]
    fn create_dir_all_synced_file_in_the_way_is_an_error() {
        let root = tempfile::tempdir().unwrap();
        fs::write(root.path().join("a"), b"x").unwrap();
        assert!(create_dir_all_synced(&root.path().join("a")).is_err());
        assert!(create_dir_all_synced(&root.path().join("a/b")).is_err());
    }

    #[test]
    fn drain_written_file_leaves_it_as_it_was() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("a");
        for bytes in [&b""[..], &[7; 5000]] {
            fs::write(&path, bytes).unwrap();
            drain(&File::options().write(true).open(&path).unwrap()).unwrap();
            assert_eq!(fs::read(&path).unwrap(), bytes);
        }
    }

    #[test]
    fn list_files_mixed_entries_gives_sorted_files_only() {
        let root = tempfile::tempdir().unwrap();
        for name in ["b", "a", "c"] {
            fs::write(root.path().join(name), b"").unwrap();
        }
        fs::create_dir(root.path().join("d")).unwrap();
        assert_eq!(list_files(root.path()).unwrap(), ["a", "b", "c"]);
    }
}
