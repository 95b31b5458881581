//! Key: what an object key must look like to be a path below a folder.
//!
//! **Invariants**
//! - A checked key names a place strictly below the root, outside our own [`TMP_DIR`].

use std::io;
use std::path::{Path, PathBuf};

/// The folder's own corner: files in the making, and locks. No key begins with it.
pub(super) const TMP_DIR: &str = ".tmp";

/// Where `key` lives below `root`.
pub(super) fn path_of(root: &Path, key: &str) -> io::Result<PathBuf> {
    check(key)?;
    Ok(root.join(key))
}

/// The directory part of a listing prefix (up to its last `/`), checked like a key.
pub(super) fn dir_of_prefix(prefix: &str) -> io::Result<&str> {
    match prefix.rsplit_once('/') {
        None => Ok(""),
        Some((dir, _)) => check(dir).map(|()| dir),
    }
}

pub(super) fn check(key: &str) -> io::Result<()> {
    let bad = |what: &str| {
        let message = format!("bucket key {key:?} {what}");
        Err(io::Error::new(io::ErrorKind::InvalidInput, message))
    };
    if key.contains('\0') {
        return bad("contains a NUL");
    }
    for (at, part) in key.split('/').enumerate() {
        match part {
            "" => return bad("has an empty component"),
            "." | ".." => return bad("has a relative component"),
            TMP_DIR if at == 0 => return bad("is reserved"),
            _ => {}
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn path_of_keys_outside_the_root_are_refused() {
        let root = Path::new("/r");
        for key in [
            "", "/", "/a", "a/", "a//b", "..", "a/../b", "./a", "a/.", "a\0b", ".tmp", ".tmp/x",
        ] {
            let refused = path_of(root, key).unwrap_err();
            assert_eq!(refused.kind(), io::ErrorKind::InvalidInput, "{key:?}");
        }
    }

    #[test]
    fn path_of_ordinary_keys_lie_below_the_root() {
        let root = Path::new("/r");
        assert_eq!(path_of(root, "a/b.c").unwrap(), Path::new("/r/a/b.c"));
        assert_eq!(path_of(root, "a/.tmp").unwrap(), Path::new("/r/a/.tmp"));
        assert_eq!(path_of(root, "...").unwrap(), Path::new("/r/..."));
    }

    #[test]
    fn dir_of_prefix_cuts_at_the_last_slash() {
        assert_eq!(dir_of_prefix("a/b/c").unwrap(), "a/b");
        assert_eq!(dir_of_prefix("a").unwrap(), "");
        assert!(dir_of_prefix("../").is_err());
        assert!(dir_of_prefix("/").is_err());
    }
}
