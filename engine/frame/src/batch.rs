//! Batches: an owned frame that has been validated whole.
//!
//! **Invariants**
//! - The bytes of a [`Batch`] parse: it is made by the builder, or from bytes that were checked.
//! - The bytes never change: a clone, such as a retry keeps, shares them.
//! - A batch is PLAIN: SPARSE frames are the compactor's and are refused from a client (FRAME-12).
//!
//! **Not here**: how it is put together (`builder`), the server's fields (`stamp`).

use std::sync::Arc;

use zerocopy::FromBytes;

use crate::error::FrameError;
use crate::layout::{FrameHeader, SERVER_SECTION_BYTES, flag};
use crate::limits::FrameLimits;
use crate::view::FrameView;

/// An owned, validated, client-sealed frame of kind PLAIN. Cloning it copies no bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Batch {
    bytes: Arc<Vec<u8>>,
}

impl Batch {
    /// Bytes that the builder has just sealed.
    pub(crate) fn sealed(bytes: Vec<u8>) -> Self {
        debug_assert!(FrameView::trusted(&bytes).is_ok());
        Self {
            bytes: Arc::new(bytes),
        }
    }

    /// Takes bytes from outside, and validates all of them.
    ///
    /// # Errors
    /// Those of [`FrameView::parse_plain`].
    pub fn from_bytes(bytes: Vec<u8>, limits: &FrameLimits) -> Result<Self, FrameError> {
        FrameView::parse_plain(&bytes, limits)?;
        Ok(Self {
            bytes: Arc::new(bytes),
        })
    }

    /// The frame.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The frame, without a copy unless a clone of the batch is about.
    #[must_use]
    pub fn into_bytes(self) -> Vec<u8> {
        Arc::unwrap_or_clone(self.bytes)
    }

    /// A view of it; nothing is validated again.
    #[must_use]
    pub fn view(&self) -> FrameView<'_> {
        FrameView::trusted(&self.bytes).expect("a batch was validated when it was made")
    }

    /// The same batch, bound to the feed epoch `token`, sealed again: its body is checksummed anew.
    #[must_use]
    pub fn with_fencing_token(mut self, token: u64) -> Self {
        let bytes = Arc::make_mut(&mut self.bytes);
        let (header, _) =
            FrameHeader::mut_from_prefix(bytes).expect("a batch is longer than its header");
        header.client.fencing_token = token.into();
        header.client.flags |= flag::FENCED;
        seal(bytes);
        self
    }
}

/// Sets both checksums of a whole frame.
pub(crate) fn seal(frame: &mut [u8]) {
    let body_crc = crc32c::crc32c(&frame[SERVER_SECTION_BYTES..]);
    let (header, _) = FrameHeader::mut_from_prefix(frame).expect("only whole frames are sealed");
    header.server.body_crc = body_crc.into();
    header.server.seal();
}
