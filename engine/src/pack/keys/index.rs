//! Key index: builds the object that names the newest record of every key of a stream. Spec: spec/key-index.md §1.
//!
//! **Invariants**
//! - KEYS-4: keys go in strictly rising, whatever block they fall into.
//! - Memory: one block, the filter, the first key of every block, and one part.
//! - Same entries and same expected count, same bytes.
//!
//! **Not here**: reading it (`reader`), merging the runs of the packs (`merge`).

use super::block::{KEY_BLOCK_BYTES_MAX, KEY_BLOCK_BYTES_TARGET, KeyBlockBuilder};
use super::filter::KeyFilter;
use super::reader::{FOOTER_END, HEADER, HEADER_BYTES, KeyIndexFooter};
use super::{KEY_BYTES_MAX, KeyEntry};
use crate::codec::{DecodeError, Writer};
use crate::env::AlignedBuf;
use crate::ids::{Digest, FeedId, StreamId};
use crate::pack::layout::{self, invalid};
use crate::pack::parts::PartWriter;
use sha2::{Digest as _, Sha256};

/// Bytes of one part handed to the uploader.
const PART_BYTES: usize = 1 << 20;

/// What the new index is about.
#[derive(Debug, Clone, Copy)]
pub struct KeyIndexOptions {
    /// The feed.
    pub feed: FeedId,
    /// The stream.
    pub stream: StreamId,
    /// At least as many keys as there will be: the sum over the runs. Sizes the filter.
    pub keys_expected: u64,
    /// Bytes at which a block is full; [`KEY_BLOCK_BYTES_TARGET`] but in tests.
    pub block_bytes: usize,
}

impl KeyIndexOptions {
    /// Options with the default block size.
    #[must_use]
    pub fn new(feed: FeedId, stream: StreamId, keys_expected: u64) -> Self {
        Self {
            feed,
            stream,
            keys_expected,
            block_bytes: KEY_BLOCK_BYTES_TARGET,
        }
    }
}

/// The rest of a finished key index.
#[derive(Debug)]
pub struct FinishedObject {
    /// The parts that were not drained before; every one but the last is a whole number of disk blocks.
    pub parts: Vec<AlignedBuf>,
    /// SHA-256 of the whole object: its name.
    pub digest: Digest,
    /// Length of the whole object.
    pub bytes: u64,
}

/// Writes a key index from sorted entries.
pub struct KeyIndexBuilder {
    options: KeyIndexOptions,
    out: PartWriter,
    hash: Sha256,
    block: KeyBlockBuilder,
    filter: KeyFilter,
    top: Writer,
    block_count: u32,
    key_count: u64,
    tombstone_count: u64,
    /// First key of the open block.
    first_key: Vec<u8>,
    last_key: Option<Vec<u8>>,
}

impl KeyIndexBuilder {
    /// Begins an index.
    #[must_use]
    pub fn new(options: KeyIndexOptions) -> Self {
        let mut out = PartWriter::new(PART_BYTES, KEY_BLOCK_BYTES_MAX);
        let mut header = Writer::new();
        header.raw(&HEADER.magic).u16(HEADER.version).u16(0).u32(0);
        header.u64(options.feed.0).u64(options.stream.0);
        header.raw(&[0; 32]);
        debug_assert_eq!(header.0.len(), HEADER_BYTES);
        layout::seal(&mut header.0, layout::PREAMBLE_CRC_AT);
        out.write(&header.0);
        Self {
            options,
            out,
            hash: Sha256::new(),
            block: KeyBlockBuilder::new(options.block_bytes),
            filter: KeyFilter::for_keys(options.keys_expected),
            top: Writer::new(),
            block_count: 0,
            key_count: 0,
            tombstone_count: 0,
            first_key: Vec::new(),
            last_key: None,
        }
    }

    /// Appends the next key.
    ///
    /// # Errors
    /// [`DecodeError::Invalid`] when the key does not come after the one before it or is too long:
    /// runs come from the bucket, so disorder is damage and no bug. The index is to be given up.
    pub fn push(&mut self, entry: &KeyEntry) -> Result<(), DecodeError> {
        if entry.key.len() > KEY_BYTES_MAX {
            return Err(invalid("key_bytes", entry.key.len() as u64));
        }
        if self
            .last_key
            .as_ref()
            .is_some_and(|last| *last >= entry.key)
        {
            return Err(invalid("key order", self.key_count));
        }
        if self.block.is_full_for(&entry.key) {
            self.close_block();
        }
        if self.block.is_empty() {
            self.first_key.clone_from(&entry.key);
        }
        self.block.push(&entry.key, entry.state);
        self.filter.add(&entry.key);
        self.key_count += 1;
        self.tombstone_count += u64::from(entry.state.tombstone);
        self.last_key.get_or_insert_default().clone_from(&entry.key);
        Ok(())
    }

    /// The next part of the object that is ready, a multiple of the disk's block long.
    pub fn drain(&mut self) -> Option<AlignedBuf> {
        self.out.drain()
    }

    /// Memory in use, in bytes, roughly.
    #[must_use]
    pub fn buffered_bytes(&self) -> usize {
        self.out.buffered_bytes()
            + self.block.buffered_bytes()
            + self.filter.as_bytes().len()
            + self.top.0.capacity()
    }

    /// Ends the index: its last parts, digest and length.
    #[must_use]
    pub fn finish(mut self) -> FinishedObject {
        self.close_block();
        let filter_offset = self.out.position();
        self.out.write(self.filter.as_bytes());
        let top_offset = self.out.position();
        self.out.write(&self.top.0);
        let footer = KeyIndexFooter {
            feed: self.options.feed,
            stream: self.options.stream,
            key_count: self.key_count,
            tombstone_count: self.tombstone_count,
            block_count: self.block_count,
            filter_offset,
            top_offset,
            object_bytes: self.out.position() + layout::FOOTER_BYTES as u64,
            filter_crc: crc32c::crc32c(self.filter.as_bytes()),
            top_crc: crc32c::crc32c(&self.top.0),
        };
        self.out.write(&footer.encode(FOOTER_END));
        let bytes = self.out.position();
        let parts = self.out.finish();
        // What was cut before has been hashed when it was cut.
        let rest = parts.last().map_or(&[][..], |last| &last[..]);
        self.hash.update(rest);
        FinishedObject {
            parts,
            digest: Digest(self.hash.finalize().into()),
            bytes,
        }
    }

    fn close_block(&mut self) {
        let Some(bytes) = self.block.finish() else {
            return;
        };
        self.top.u64(self.out.position());
        self.top.u32(layout::stored_u32(bytes.len()));
        self.top.bytes(&self.first_key);
        self.block_count += 1;
        self.out.write(&bytes);
        if let Some(part) = self.out.settle() {
            self.hash.update(part);
        }
    }
}
