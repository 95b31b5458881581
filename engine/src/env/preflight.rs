//! Preflight: whether this machine can run the engine, said in one line before anything is touched.
//!
//! **Invariants**
//! - Nothing that exists is altered, and nothing is left behind: the probe file has no name, or has
//!   lost it before it is written.
//! - Every refusal names what is missing, the likely cause and the remedy.
//!
//! **Not here**: the lock (`lock`), what the data directory holds (the core).

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use super::{AlignedBuf, BLOCK_BYTES, random_u64};

/// What the executors insist on, even for root; checked against the limit, not summed over shards.
const MEMLOCK_MIN_BYTES: u64 = 512 * 1024;

/// Why this machine can't run the engine.
#[derive(Debug, thiserror::Error)]
pub enum PreflightError {
    /// No io_uring.
    #[error("io_uring is not available ({source}): {cause}; {remedy}")]
    IoUring {
        /// The system's own error.
        source: io::Error,
        /// Why, most likely.
        cause: String,
        /// What to do.
        remedy: &'static str,
    },
    /// Too little memory may be locked.
    #[error(
        "the locked-memory limit (memlock) is {have_bytes} bytes, {shards} shards need \
         {need_bytes}; raise it with `ulimit -l`, systemd's LimitMEMLOCK or docker's --ulimit memlock"
    )]
    MemLock {
        /// The soft limit.
        have_bytes: u64,
        /// What it must be.
        need_bytes: u64,
        /// Shards to be started.
        shards: usize,
    },
    /// The data directory can't be made or written.
    #[error("data directory {} is not usable: {source}", path.display())]
    DataDir {
        /// The directory, or the existing one it would be made in.
        path: PathBuf,
        /// The system's own error.
        #[source]
        source: io::Error,
    },
    /// The filesystem can't do direct I/O.
    #[error(
        "direct I/O fails in {} on {filesystem} ({source}); keep the data directory on a local \
         disk's ext4, xfs or btrfs",
        path.display()
    )]
    DirectIo {
        /// Where it was tried.
        path: PathBuf,
        /// The filesystem's name.
        filesystem: String,
        /// The system's own error.
        source: io::Error,
    },
}

/// Checks that this machine can run `shards` shards on `data_dir`, which need not exist yet. Blocks.
///
/// # Errors
/// The first thing that is missing; nothing has been touched.
pub fn preflight(data_dir: &Path, shards: usize) -> Result<(), PreflightError> {
    probe_io_uring().map_err(io_uring_error)?;
    check_memlock(memlock_limit(), shards)?;
    probe_direct_io(data_dir)
}

/// Makes and closes the smallest ring.
fn probe_io_uring() -> io::Result<()> {
    // struct io_uring_params, all zero: no flags.
    let mut params = [0u64; 15];
    // SAFETY: `params` is as big as the structure (120 bytes) and outlives the call.
    let fd = unsafe { libc::syscall(libc::SYS_io_uring_setup, 1u32, params.as_mut_ptr()) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a fresh descriptor nobody else owns.
    unsafe { libc::close(fd as i32) };
    Ok(())
}

fn io_uring_error(source: io::Error) -> PreflightError {
    let disabled =
        std::fs::read_to_string("/proc/sys/kernel/io_uring_disabled").unwrap_or_default();
    let (cause, remedy) = io_uring_cause(source.raw_os_error(), disabled.trim());
    PreflightError::IoUring {
        source,
        cause,
        remedy,
    }
}

fn io_uring_cause(errno: Option<i32>, disabled: &str) -> (String, &'static str) {
    const ALLOW: &str = "allow io_uring_setup, io_uring_enter and io_uring_register in the \
                         container's seccomp profile";
    match (errno, disabled) {
        (Some(libc::EPERM), "1" | "2") => (
            format!("the sysctl kernel.io_uring_disabled is {disabled}"),
            "set it to 0",
        ),
        (Some(libc::EPERM | libc::EACCES), _) => (
            "a security policy forbids it, as docker's default seccomp profile does".to_owned(),
            ALLOW,
        ),
        (Some(libc::ENOSYS), "") => (
            "the kernel is older than 5.8 or built without it, or a seccomp profile hides it"
                .to_owned(),
            "use a newer kernel, or allow the io_uring system calls",
        ),
        (Some(libc::ENOSYS), _) => ("a seccomp profile hides it".to_owned(), ALLOW),
        (Some(libc::ENOMEM), _) => (
            format!(
                "the locked-memory limit (memlock) of {} bytes, which all processes of a user \
                 share, or the memory limit is too small",
                memlock_limit()
            ),
            "raise memlock to 524288 bytes and more (`ulimit -l`), or the memory limit",
        ),
        (Some(libc::EMFILE | libc::ENFILE), _) => (
            "no file descriptors are left".to_owned(),
            "raise `ulimit -n`",
        ),
        _ => ("the kernel refused it".to_owned(), "see the error"),
    }
}

/// The soft limit on locked memory.
fn memlock_limit() -> u64 {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: `limit` is the structure the call fills.
    let status = unsafe { libc::getrlimit(libc::RLIMIT_MEMLOCK, &mut limit) };
    // It can't fail with these arguments; if it did, the executors would still check for themselves.
    if status == 0 {
        limit.rlim_cur
    } else {
        u64::MAX
    }
}

fn check_memlock(have_bytes: u64, shards: usize) -> Result<(), PreflightError> {
    if have_bytes >= MEMLOCK_MIN_BYTES {
        return Ok(());
    }
    Err(PreflightError::MemLock {
        have_bytes,
        need_bytes: MEMLOCK_MIN_BYTES,
        shards,
    })
}

fn probe_direct_io(data_dir: &Path) -> Result<(), PreflightError> {
    let dir = existing_dir(data_dir)?;
    let refused = |source: io::Error| match source.raw_os_error() {
        // The directory's fault, not direct I/O's.
        Some(libc::EACCES | libc::EPERM | libc::EROFS | libc::ENOENT | libc::EMFILE) => {
            PreflightError::DataDir {
                path: dir.clone(),
                source,
            }
        }
        _ => {
            let filesystem = filesystem_name(&dir);
            PreflightError::DirectIo {
                path: dir.clone(),
                filesystem,
                source,
            }
        }
    };
    let file = unnamed_file(&dir).map_err(refused)?;
    let mut block = AlignedBuf::zeroed(BLOCK_BYTES);
    block.fill(0xA5);
    match file.write_all_at(&block, 0) {
        // A full disk says nothing against direct I/O, and reading must still be possible.
        Err(error) if is_full(&error) => return Ok(()),
        result => result.map_err(refused)?,
    }
    let mut back = AlignedBuf::zeroed(BLOCK_BYTES);
    file.read_exact_at(&mut back, 0).map_err(refused)?;
    if *back != *block {
        return Err(refused(io::Error::other("a block came back changed")));
    }
    Ok(())
}

/// `data_dir`, or the nearest directory above it that exists.
fn existing_dir(data_dir: &Path) -> Result<PathBuf, PreflightError> {
    let unusable = |path: &Path, source| PreflightError::DataDir {
        path: path.to_owned(),
        source,
    };
    let absolute = std::path::absolute(data_dir).map_err(|source| unusable(data_dir, source))?;
    for dir in absolute.ancestors() {
        match std::fs::metadata(dir) {
            Ok(meta) if meta.is_dir() => return Ok(dir.to_owned()),
            Ok(_) => return Err(unusable(dir, io::ErrorKind::NotADirectory.into())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            // A file further up; its own turn names it.
            Err(error) if error.kind() == io::ErrorKind::NotADirectory => {}
            Err(error) => return Err(unusable(dir, error)),
        }
    }
    Err(unusable(&absolute, io::ErrorKind::NotFound.into()))
}

/// A direct file in `dir` that nobody else can see.
fn unnamed_file(dir: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).mode(0o600);
    match options
        .clone()
        .custom_flags(libc::O_TMPFILE | libc::O_DIRECT)
        .open(dir)
    {
        // The filesystem can't do unnamed files, or not direct ones: the named try tells which.
        Err(error)
            if matches!(
                error.raw_os_error(),
                Some(libc::EOPNOTSUPP | libc::EISDIR | libc::EINVAL | libc::ENOENT)
            ) => {}
        result => return result,
    }
    let path = dir.join(format!(".sealog-probe-{:016x}", random_u64()));
    let file = options
        .create_new(true)
        .custom_flags(libc::O_DIRECT)
        .open(&path);
    if file
        .as_ref()
        .err()
        .is_none_or(|error| error.kind() != io::ErrorKind::AlreadyExists)
    {
        // Also after a failure: some filesystems make the file before they refuse the flag.
        let _ = std::fs::remove_file(&path);
    }
    file
}

fn is_full(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded
    )
}

/// What `dir` lies on, by the number the system gives it.
pub(crate) fn filesystem_name(dir: &Path) -> String {
    let Ok(path) = std::ffi::CString::new(dir.as_os_str().as_bytes()) else {
        return "an unknown filesystem".to_owned();
    };
    // SAFETY: all-zero bytes are a valid statfs.
    let mut stat: libc::statfs = unsafe { std::mem::zeroed() };
    // SAFETY: the path is NUL-terminated, `stat` is the structure the call fills.
    if unsafe { libc::statfs(path.as_ptr(), &mut stat) } != 0 {
        return "an unknown filesystem".to_owned();
    }
    let name = match stat.f_type as u32 {
        0xEF53 => "ext4",
        0x5846_5342 => "xfs",
        0x9123_683E => "btrfs",
        0x0102_1994 => "tmpfs",
        0x8584_58F6 => "ramfs",
        0x794C_7630 => "overlayfs",
        0x6969 => "nfs",
        0xFF53_4D42 | 0xFE53_4D42 => "smb",
        0x6573_5546 => "fuse",
        0x2FC1_2FC1 => "zfs",
        0xF2F5_2010 => "f2fs",
        0xCA45_1A4E => "bcachefs",
        0x0102_1997 => "9p",
        0x4D44 => "vfat",
        0x2011_BAB0 => "exfat",
        0xF15F => "ecryptfs",
        0x00C3_6400 => "ceph",
        other => return format!("filesystem type {other:#x}"),
    };
    name.to_owned()
}

#[cfg(test)]
mod tests;
