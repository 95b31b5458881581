//! Checkpoints: every root and every chunk file of a log, also those that are not used.
//!
//! **Invariants**
//! - CKPT-1: each file is whole and the one its name says; what a kept root names is there.
//!
//! **Not here**: whether the state fits the log (`recovery`, `log`).

use super::Check;
use crate::checkpoint::root::decode_chunk;
use crate::checkpoint::{Root, checkpoint_dir, chunk_name, chunk_of_name, read_root, root_number};
use crate::env::{Disk, Env};
use crate::error::{Error, Result};
use crate::feed::Feeds;
use crate::files::read_whole;
use crate::recovery::LogPlace;

/// Longest chunk file that is read.
const CHUNK_FILE_BYTES_MAX: u64 = 4 << 30;

impl<E: Env> Check<'_, E> {
    /// Checks all files of the log's checkpoint folder; the roots, oldest first.
    pub(super) async fn checkpoints(&mut self, place: &LogPlace) -> Result<Vec<Root>> {
        let dir = checkpoint_dir(&place.data_dir, place.log);
        let names = self.env.disk().list(&dir).await;
        let names = names.map_err(|e| Error::io("list", &dir, &e))?;
        let mut roots = Vec::new();
        for name in &names {
            let path = dir.join(name);
            self.reading(path.display());
            if let Some(number) = root_number(name) {
                roots.push(read_root(&self.env, &dir, number, place.log).await?);
                self.report.roots += 1;
            } else if let Some((chunk, generation)) = chunk_of_name(name) {
                let bytes = read_whole(self.env.disk(), &path, CHUNK_FILE_BYTES_MAX).await?;
                let bytes = bytes.unwrap_or_default();
                let decoded = decode_chunk(&bytes, chunk, generation).and_then(|body| {
                    Feeds::new(place.log, place.geometry()).decode_chunk(chunk, body)
                });
                decoded.map_err(|error| Error::decode(path.display(), 0, error))?;
                self.report.chunks += 1;
            }
            self.env.yield_if_needed().await;
        }
        roots.sort_by_key(|root| root.number);
        let kept = roots.len().saturating_sub(2);
        for root in &roots[kept..] {
            for chunk in &root.chunks {
                let name = chunk_name(chunk.chunk, chunk.generation);
                if !names.contains(&name) {
                    let path = dir.join(name);
                    return Err(Error::corrupt(path.display(), 0, "chunk is gone"));
                }
            }
        }
        Ok(roots)
    }
}
