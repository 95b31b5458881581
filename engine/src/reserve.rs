//! Reserve: disk space claimed ahead, let go of when a write that frees space finds none.
//!
//! **Invariants**
//! - The claim is a file of written zeros: what it holds, nobody else on the disk can have.
//! - Losing the claim is never an error: it is claimed again when there is room.
//!
//! **Not here**: segments, which are claims of their own (`wal::space`).

use std::path::{Path, PathBuf};

use crate::env::{BLOCK_BYTES, Disk, Env};
use crate::wal::space::{check_room, fill};

/// A claim on disk space.
pub(crate) struct Reserve<E: Env> {
    env: E,
    path: PathBuf,
    held: u64,
}

impl<E: Env> Reserve<E> {
    /// A claim that is kept as `path`; nothing is claimed yet, but a file left from before counts
    /// again once [`Reserve::claim`] ran.
    pub(crate) fn new(env: E, path: PathBuf) -> Self {
        Self { env, path, held: 0 }
    }

    /// Claims `bytes`, if it can; keeps what it holds if that is enough, or all there is. Whether it holds
    /// so much.
    pub(crate) async fn claim(&mut self, bytes: u64) -> bool {
        if self.held >= bytes {
            return true;
        }
        let bytes = bytes.next_multiple_of(BLOCK_BYTES as u64);
        if self.held == 0 {
            self.release().await;
        }
        let dir = self.path.parent().unwrap_or(Path::new("."));
        let more = bytes - self.held;
        if check_room(self.env.disk(), dir, more).await.is_err() {
            return false;
        }
        self.release().await;
        let Ok(file) = self.env.disk().create(&self.path).await else {
            return false;
        };
        if fill(&file, 0, bytes).await.is_ok() {
            self.held = bytes;
            return true;
        }
        drop(file);
        let _ = self.env.disk().remove(&self.path).await;
        false
    }

    /// Gives the space back to the disk; `true` when there was any.
    pub(crate) async fn release(&mut self) -> bool {
        self.held = 0;
        self.env.disk().remove(&self.path).await.is_ok()
    }
}
