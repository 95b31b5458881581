//! Pack digest: the name of a pack, over all of its bytes but hashing records once. Spec: spec/pack.md §6.
//!
//! **Invariants**
//! - PACK-8: what is not hashed here is in the Merkle roots of the section table, or follows from what is.
//!
//! **Not here**: the roots (`fold`), names of other objects (plain SHA-256).

use crate::ids::Digest;
use sealog_frame::FrameView;
use sha2::{Digest as _, Sha256};

/// Takes a pack in from the front.
#[derive(Debug, Default)]
pub(crate) struct PackDigest(Sha256);

impl PackDigest {
    /// Header, key block, index, section table or footer.
    pub fn part(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// A frame. Its records are left to the Merkle tree.
    pub fn frame(&mut self, frame: &FrameView<'_>) {
        frame
            .around_records()
            .into_iter()
            .for_each(|bytes| self.0.update(bytes));
    }

    pub fn finish(self) -> Digest {
        Digest(self.0.finalize().into())
    }
}
