//! Files: small files written whole and replaced atomically.
//!
//! **Invariants**
//! - A name never shows half a file: temporary file, sync, rename; the caller syncs the directory.
//!
//! **Not here**: segments (`wal::space`), which are written in place.

use std::path::Path;
use std::sync::Arc;

use crate::env::{AlignedBuf, Disk, File};
use crate::error::{Error, Result};

/// One read or write of a whole-file transfer.
const PART_BYTES: usize = 1 << 20;

/// Writes `bytes` as `dir/name`, replacing what was there. Durable after `sync_dir(dir)`.
pub(crate) async fn write_whole<D: Disk>(
    disk: &D,
    dir: &Path,
    name: &str,
    bytes: &[u8],
) -> Result<()> {
    let path = dir.join(name);
    let temporary = dir.join(format!("{name}.tmp"));
    let written = write_temporary(disk, &path, &temporary, bytes).await;
    if written.is_err() {
        // What a full disk refused must not keep the space that it got.
        let _ = disk.remove(&temporary).await;
        return written;
    }
    disk.rename(&temporary, &path)
        .await
        .map_err(|e| Error::io("rename", &path, &e))
}

async fn write_temporary<D: Disk>(
    disk: &D,
    path: &Path,
    temporary: &Path,
    bytes: &[u8],
) -> Result<()> {
    let fail = |op, error: &std::io::Error| Error::io(op, path, error);
    let file = match disk.create(temporary).await {
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {
            disk.remove(temporary)
                .await
                .map_err(|e| fail("replace", &e))?;
            disk.create(temporary).await
        }
        other => other,
    };
    let file = file.map_err(|e| fail("create", &e))?;
    for (index, part) in bytes.chunks(PART_BYTES).enumerate() {
        let mut buf = AlignedBuf::copy_of(part);
        buf.pad_to_block();
        let offset = (index * PART_BYTES) as u64;
        file.write_at(Arc::new(buf), offset)
            .await
            .map_err(|e| fail("write", &e))?;
    }
    file.set_len(bytes.len() as u64)
        .await
        .map_err(|e| fail("truncate", &e))?;
    file.sync_data().await.map_err(|e| fail("sync", &e))
}

/// Reads `dir/name` whole; `None` if it is not there.
pub(crate) async fn read_whole<D: Disk>(
    disk: &D,
    path: &Path,
    bytes_max: u64,
) -> Result<Option<Vec<u8>>> {
    let fail = |op, error: &std::io::Error| Error::io(op, path, error);
    let file = match disk.open(path).await {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(fail("open", &error)),
    };
    let len = file.len().await.map_err(|e| fail("stat", &e))?;
    if len > bytes_max {
        return Err(Error::corrupt(
            path.display(),
            0,
            format!("{len} bytes long, {bytes_max} at most"),
        ));
    }
    let mut bytes = Vec::new();
    while (bytes.len() as u64) < len {
        let part = file
            .read_at(bytes.len() as u64, PART_BYTES)
            .await
            .map_err(|e| fail("read", &e))?;
        if part.is_empty() {
            return Err(Error::corrupt(
                path.display(),
                bytes.len() as u64,
                "file ends early",
            ));
        }
        bytes.extend_from_slice(&part);
    }
    Ok(Some(bytes))
}
