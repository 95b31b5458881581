//! DirLock: one data directory, one process.
//!
//! **Invariants**
//! - Held as a lock on the open file `LOCK`, so it ends with its holder however that ends; the file
//!   stays, since removing it would let two holders in.
//! - What the file says about the holder is information only, never what decides.
//!
//! **Not here**: the directory's format and identity (the core's).

use std::fs::{File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Name of the lock file in a data directory.
pub const LOCK_FILE: &str = "LOCK";

/// As much of the command line as the lock file keeps.
const COMMAND_BYTES_MAX: usize = 512;

/// How often, 10 ms apart, a loser looks for the holder's lines: it may just be writing them.
const HOLDER_READS: u32 = 10;

/// Who holds a data directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holder {
    /// Its process id, in its own namespace.
    pub pid: u32,
    /// Its command line, perhaps cut short.
    pub command: String,
    /// Where it serves, if it does.
    pub address: Option<String>,
}

/// Why a data directory could not be locked.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// Somebody else has it; nothing was touched.
    #[error("data directory {} is in use by {}", dir.display(), describe(holder.as_ref()))]
    Held {
        /// The directory.
        dir: PathBuf,
        /// Who, if the lock file says.
        holder: Option<Holder>,
    },
    /// The lock file can't be made or locked.
    #[error("data directory {} can't be locked: {source}", dir.display())]
    Io {
        /// The directory.
        dir: PathBuf,
        /// The system's own error.
        #[source]
        source: io::Error,
    },
}

/// The lock on a data directory; let go of on drop.
#[derive(Debug)]
pub struct DirLock {
    file: File,
    command: String,
}

impl DirLock {
    /// Locks `dir`, which must exist, for this process. Blocks for up to 100 ms to name a holder.
    ///
    /// # Errors
    /// [`LockError::Held`] if another process, or this one, has it; [`LockError::Io`].
    pub fn acquire(dir: &Path) -> Result<Self, LockError> {
        let failed = |source| LockError::Io {
            dir: dir.to_owned(),
            source,
        };
        let mut options = OpenOptions::new();
        options
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o644);
        let file = options.open(dir.join(LOCK_FILE)).map_err(failed)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(LockError::Held {
                    dir: dir.to_owned(),
                    holder: read_holder(&file),
                });
            }
            Err(TryLockError::Error(source)) => return Err(failed(source)),
        }
        let lock = Self {
            file,
            command: own_command(),
        };
        lock.write(None).map_err(failed)?;
        Ok(lock)
    }

    /// Who has `dir` open, if anybody has and the lock file says; changes nothing.
    #[must_use]
    pub fn holder(dir: &Path) -> Option<Holder> {
        let file = File::open(dir.join(LOCK_FILE)).ok()?;
        match file.try_lock_shared() {
            Ok(()) => None,
            Err(_) => read_holder(&file),
        }
    }

    /// Says in the lock file where this process serves.
    ///
    /// # Errors
    /// Of the write; the lock itself holds.
    pub fn set_address(&self, address: &str) -> io::Result<()> {
        self.write(Some(address))
    }

    fn write(&self, address: Option<&str>) -> io::Result<()> {
        let mut lines = format!("pid={}\ncommand={}\n", std::process::id(), self.command);
        if let Some(address) = address {
            lines.push_str(&format!("address={}\n", one_line(address)));
        }
        self.file.set_len(0)?;
        self.file.write_all_at(lines.as_bytes(), 0)
    }
}

impl Drop for DirLock {
    fn drop(&mut self) {
        // Stale lines would name a holder that is none; without them the next reader names nobody.
        let _ = self.file.set_len(0);
        // Closing is not enough: a child that the host is just starting holds a copy of the
        // descriptor until it becomes another program.
        let _ = self.file.unlock();
    }
}

fn describe(holder: Option<&Holder>) -> String {
    match holder {
        None => "another process".to_owned(),
        Some(Holder {
            pid,
            command,
            address: None,
        }) => format!("process {pid} ({command})"),
        Some(Holder {
            pid,
            command,
            address: Some(address),
        }) => {
            format!("process {pid} ({command}), serving at {address}")
        }
    }
}

fn own_command() -> String {
    let words: Vec<String> = std::env::args_os()
        .map(|word| word.to_string_lossy().into_owned())
        .collect();
    let mut command = one_line(&words.join(" "));
    command.truncate(command.floor_char_boundary(COMMAND_BYTES_MAX));
    command
}

fn one_line(text: &str) -> String {
    text.replace(char::is_control, " ")
}

fn read_holder(file: &File) -> Option<Holder> {
    for _ in 0..HOLDER_READS {
        let mut bytes = vec![0; 4 * COMMAND_BYTES_MAX];
        let n = file.read_at(&mut bytes, 0).unwrap_or(0);
        if let Some(holder) = parse(&String::from_utf8_lossy(&bytes[..n])) {
            return Some(holder);
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    None
}

fn parse(lines: &str) -> Option<Holder> {
    let value = |name: &str| {
        lines.lines().find_map(|line| {
            line.strip_prefix(name)?
                .strip_prefix('=')
                .map(str::to_owned)
        })
    };
    Some(Holder {
        pid: value("pid")?.parse().ok()?,
        command: value("command")?,
        address: value("address"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn acquire_twice_names_the_holder() {
        let dir = tempfile::tempdir().unwrap();
        let first = DirLock::acquire(dir.path()).unwrap();
        first.set_address("127.0.0.1:4436").unwrap();
        let error = DirLock::acquire(dir.path()).unwrap_err();
        let LockError::Held {
            holder: Some(holder),
            ..
        } = &error
        else {
            panic!("{error}");
        };
        assert_eq!(holder.pid, std::process::id());
        assert_eq!(holder.address.as_deref(), Some("127.0.0.1:4436"));
        assert_eq!(holder.command, own_command());
        let text = error.to_string();
        assert!(
            text.contains(&format!("process {}", std::process::id())),
            "{text}"
        );
        assert!(text.contains(&*dir.path().to_string_lossy()), "{text}");
    }

    #[test]
    fn acquire_after_release_succeeds() {
        let dir = tempfile::tempdir().unwrap();
        drop(DirLock::acquire(dir.path()).unwrap());
        DirLock::acquire(dir.path()).unwrap();
    }

    #[test]
    fn acquire_after_release_with_a_copied_descriptor_succeeds() {
        let dir = tempfile::tempdir().unwrap();
        let first = DirLock::acquire(dir.path()).unwrap();
        // What a child holds between fork and exec.
        let copy = first.file.try_clone().unwrap();
        drop(first);
        DirLock::acquire(dir.path()).unwrap();
        drop(copy);
    }

    #[test]
    fn acquire_holder_says_nonsense_is_held_by_another_process() {
        let dir = tempfile::tempdir().unwrap();
        let lock = DirLock::acquire(dir.path()).unwrap();
        std::fs::write(dir.path().join(LOCK_FILE), b"\xff\xfe pid=x").unwrap();
        let error = DirLock::acquire(dir.path()).unwrap_err();
        assert!(
            matches!(error, LockError::Held { holder: None, .. }),
            "{error}"
        );
        drop(lock);
    }

    #[test]
    fn acquire_missing_directory_names_it() {
        let dir = tempfile::tempdir().unwrap();
        let error = DirLock::acquire(&dir.path().join("none")).unwrap_err();
        assert!(error.to_string().contains("none"), "{error}");
    }

    #[test]
    fn one_line_control_characters_become_spaces() {
        assert_eq!(one_line("a\nb\tc\0d"), "a b c d");
    }
}
