//! Host: the few things the engine asks of the process it lives in while it opens.
//!
//! **Invariants**
//! - Blocking; called on the opener's thread or a side thread, never on a shard.

use std::io;
use std::path::Path;

/// The thread that a shard runs on.
pub(crate) type ShardThread<T> = std::thread::JoinHandle<T>;

/// Makes a directory and its parents.
pub(crate) fn make_dir(path: &Path) -> io::Result<()> {
    std::fs::create_dir_all(path)
}

/// Names of all that is directly in a directory, sorted.
pub(crate) fn names_in(dir: &Path) -> io::Result<Vec<std::ffi::OsString>> {
    let entries = std::fs::read_dir(dir)?;
    let mut names = entries
        .map(|entry| entry.map(|entry| entry.file_name()))
        .collect::<io::Result<Vec<_>>>()?;
    names.sort_unstable();
    Ok(names)
}

/// A small file, up to its first `bytes_max` bytes; `None` if it, or its directory, is not there.
pub(crate) fn read_file(path: &Path, bytes_max: u64) -> io::Result<Option<Vec<u8>>> {
    let file = match std::fs::File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let mut bytes = Vec::new();
    io::Read::read_to_end(&mut io::Read::take(file, bytes_max), &mut bytes)?;
    Ok(Some(bytes))
}

/// The path from the root, as text.
pub(crate) fn absolute(path: &Path) -> String {
    let absolute = std::path::absolute(path);
    absolute.as_deref().unwrap_or(path).display().to_string()
}

/// What this machine calls itself.
pub(crate) fn host_name() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname");
    name.map_or_else(
        |_| "an unnamed machine".to_owned(),
        |name| name.trim().to_owned(),
    )
}

/// Cores this process may use.
pub(crate) fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}
