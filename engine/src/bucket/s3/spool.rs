//! Spool: a big object in the making, on the local disk until its key is known.
//!
//! **Invariants**
//! - The file has no name: whatever ends the process also removes it.
//! - It holds what is still in the log, or can be made again: it is never synced.
//!
//! **Not here**: sending it (`upload`).

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use crate::env::random_u64;

/// A file without a name.
pub(super) struct Spool {
    file: File,
    len: u64,
}

impl Spool {
    /// An empty one on the disk of `dir`, which is made if need be.
    pub(super) fn create(dir: &Path) -> io::Result<Self> {
        let path = dir.join(format!("{:016x}.tmp", random_u64()));
        let mut options = OpenOptions::new();
        options.read(true).write(true).create_new(true).mode(0o600);
        let file = match options.open(&path) {
            // Whoever cleared the cache took the folder, too.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                std::fs::create_dir_all(dir)?;
                options.open(&path)?
            }
            opened => opened?,
        };
        std::fs::remove_file(&path)?;
        Ok(Self { file, len: 0 })
    }

    /// Adds to its end.
    pub(super) fn write(&mut self, data: &[u8]) -> io::Result<()> {
        self.file.write_all_at(data, self.len)?;
        self.len += data.len() as u64;
        Ok(())
    }

    /// Bytes so far.
    pub(super) fn len(&self) -> u64 {
        self.len
    }

    /// Part `number` of those that are `part_bytes` long, but the last.
    pub(super) fn part(&self, number: usize, part_bytes: usize) -> io::Result<Vec<u8>> {
        let offset = number as u64 * part_bytes as u64;
        let left = usize::try_from(self.len.saturating_sub(offset)).unwrap_or(usize::MAX);
        let mut data = vec![0; left.min(part_bytes)];
        self.file.read_exact_at(&mut data, offset)?;
        Ok(data)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spool_gives_its_parts_back_and_leaves_no_name() {
        let dir = tempfile::tempdir().unwrap();
        let below = dir.path().join("made");
        let mut spool = Spool::create(&below).unwrap();
        spool.write(b"hello ").unwrap();
        spool.write(b"world").unwrap();
        assert_eq!(std::fs::read_dir(&below).unwrap().count(), 0);
        assert_eq!(spool.len(), 11);
        assert_eq!(spool.part(0, 4).unwrap(), b"hell");
        assert_eq!(spool.part(2, 4).unwrap(), b"rld");
        assert_eq!(spool.part(3, 4).unwrap(), b"");
    }
}
