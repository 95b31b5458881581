//! Folder_list: objects of a folder in key order.
//!
//! **Invariants**
//! - Rows come in byte order of the whole key, which is not the order of a plain directory walk
//!   (`a-b` sorts before `a/b`): a directory sorts as its name with a `/`.
//! - Only regular files are objects: names that aren't UTF-8, links and our own corner are not.
//!
//! **Not here**: threads and errors' types (`folder`).

use std::io;
use std::path::Path;

use super::key::{TMP_DIR, dir_of_prefix};
use crate::env::ObjectMeta;

/// Up to `limit` objects whose keys begin with `prefix` and come after `start_after`.
pub(super) fn list(
    root: &Path,
    prefix: &str,
    start_after: &str,
    limit: usize,
) -> io::Result<Vec<ObjectMeta>> {
    let dir = dir_of_prefix(prefix)?;
    let mut walk = Walk {
        root,
        prefix,
        start_after,
        limit,
        rows: Vec::new(),
    };
    if limit > 0 {
        let dir_key = if dir.is_empty() {
            String::new()
        } else {
            format!("{dir}/")
        };
        walk.dir(&dir_key)?;
    }
    Ok(walk.rows)
}

struct Walk<'a> {
    root: &'a Path,
    prefix: &'a str,
    start_after: &'a str,
    limit: usize,
    rows: Vec<ObjectMeta>,
}

impl Walk<'_> {
    /// Lists below `dir_key`, which is empty or ends in `/`. Stops when the limit is reached.
    fn dir(&mut self, dir_key: &str) -> io::Result<()> {
        for name in self.names(dir_key)? {
            let key = format!("{dir_key}{name}");
            if key.ends_with('/') {
                self.dir(&key)?;
            } else {
                self.object(key)?;
            }
            if self.rows.len() >= self.limit {
                break;
            }
        }
        Ok(())
    }

    /// Names worth a look, in key order; directories end in `/`.
    fn names(&self, dir_key: &str) -> io::Result<Vec<String>> {
        let entries = match std::fs::read_dir(self.root.join(dir_key)) {
            Ok(entries) => entries,
            Err(error) if is_absent(&error) => return Ok(Vec::new()),
            Err(error) => return Err(error),
        };
        let mut names = Vec::new();
        for entry in entries {
            let entry = entry?;
            let Ok(mut name) = entry.file_name().into_string() else {
                continue;
            };
            if dir_key.is_empty() && name == TMP_DIR {
                continue;
            }
            let kind = entry.file_type()?;
            if kind.is_dir() {
                name.push('/');
            } else if !kind.is_file() {
                continue;
            }
            if self.may_hold(&format!("{dir_key}{name}")) {
                names.push(name);
            }
        }
        names.sort_unstable();
        Ok(names)
    }

    /// Whether `key` (an object, or a directory ending in `/`) can contribute a row.
    fn may_hold(&self, key: &str) -> bool {
        let below_prefix = key.starts_with(self.prefix);
        if key.ends_with('/') {
            (below_prefix || self.prefix.starts_with(key))
                && (key > self.start_after || self.start_after.starts_with(key))
        } else {
            below_prefix && key > self.start_after
        }
    }

    fn object(&mut self, key: String) -> io::Result<()> {
        match std::fs::symlink_metadata(self.root.join(&key)) {
            Ok(meta) => self.rows.push(ObjectMeta {
                key,
                len: meta.len(),
            }),
            // Deleted since the directory was read.
            Err(error) if is_absent(&error) => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }
}

/// Nothing of that name: not there, or a file where a directory would have to be.
pub(super) fn is_absent(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
    )
}
