//! Place: whether a folder is a data directory, or may become one, before anything is written to it.
//!
//! **Invariants**
//! - A folder that holds what is not ours is never made a data directory.
//! - A folder that is no data directory, and may not become one, is left as it is.
//! - A bucket does not lie in another data directory, nor where its own has its log.
//!
//! **Not here**: what the marker says (`datadir`), the lock (`env::lock`).

use std::ffi::OsStr;
use std::io;
use std::path::Path;

use crate::datadir::{CACHE_DIR, MARKER_FILE, SETTINGS_FILE};
use crate::env::LOCK_FILE;
use crate::env::host::names_in;
use crate::error::{Error, Result};
use crate::lane::claim::OWNER;
use crate::limits::EngineConfig;

/// What a data directory in the making may hold: its marker comes last (DIR-1). The last is made by
/// the filesystem itself, at the root of a mount.
const IN_THE_MAKING: [&str; 11] = [
    LOCK_FILE,
    "wal",
    "checkpoint",
    "bucket",
    CACHE_DIR,
    SETTINGS_FILE,
    "settings.toml.tmp",
    OWNER,
    "owner.tmp",
    "format.tmp",
    "lost+found",
];

/// Checks the folder of `config` before it is locked.
pub(super) fn check(config: &EngineConfig) -> Result<()> {
    check_bucket(config)?;
    let dir = &config.data_dir;
    let names = match names_in(dir) {
        Ok(names) => names,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return match config.create {
                true => Ok(()),
                false => Err(unusable(dir, "does not exist")),
            };
        }
        Err(error) => return Err(Error::io("list", dir, &error)),
    };
    if names.iter().any(|name| name == MARKER_FILE) {
        return Ok(());
    }
    if !config.create {
        return Err(unusable(
            dir,
            &format!("is not a data directory: no file {MARKER_FILE:?}"),
        ));
    }
    let bucket = config.bucket_dir.as_deref();
    let ours = |name: &OsStr| {
        IN_THE_MAKING.iter().any(|ours| name == *ours) || bucket == Some(&dir.join(name))
    };
    match names.iter().find(|name| !ours(name)) {
        None => Ok(()),
        Some(foreign) => Err(unusable(
            dir,
            &format!(
                "is not a data directory and holds {foreign:?}: only an empty or a new folder is made one"
            ),
        )),
    }
}

/// Refuses a bucket folder that is part of a data directory otherwise.
fn check_bucket(config: &EngineConfig) -> Result<()> {
    let Some(bucket) = &config.bucket_dir else {
        return Ok(());
    };
    let failed = |error: &io::Error| Error::io("find", bucket, error);
    let bucket = std::path::absolute(bucket).map_err(|error| failed(&error))?;
    let own = std::path::absolute(&config.data_dir).map_err(|error| failed(&error))?;
    let real = |path: &Path| path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let (bucket, own) = (real(&bucket), real(&own));
    let in_log = ["wal", "checkpoint"]
        .iter()
        .any(|part| bucket.starts_with(own.join(part)));
    let is_other = |dir: &&Path| {
        **dir != own && dir.join(MARKER_FILE).is_file() && dir.join(LOCK_FILE).exists()
    };
    let other = bucket.ancestors().find(is_other);
    match other.or(in_log.then_some(&*own)) {
        None => Ok(()),
        Some(dir) => Err(unusable(
            &bucket,
            &format!(
                "can't be a bucket: it lies in data directory {}, whose own it is; give a folder outside",
                dir.display()
            ),
        )),
    }
}

fn unusable(dir: &Path, text: &str) -> Error {
    Error::Unusable(format!("{} {text}", dir.display()))
}
