//! Pack builder: frames in, an object's parts out. Spec: spec/pack.md §1.
//!
//! **Invariants**
//! - PACK-3: sections rise by (feed, stream); a stream pack has exactly the section it is named for.
//! - A frame is copied once, into the buffer that goes to the uploader.
//! - Memory: a part, a block and its column, the key run of the open section, a row per block and per section.
//!
//! **Not here**: when to cut: the caller watches [`PackBuilder::position`] and [`PackBuilder::buffered_bytes`].

use super::PackError;
use super::block::{BLOCK_BYTES_MAX, BLOCK_BYTES_TARGET, BLOCK_HEADER_BYTES, BlockHeader, LIMITS};
use super::column::Column;
use super::digest::PackDigest;
use super::fold::{FrameSpan, SectionFold};
use super::keys::block::{KEY_BLOCK_BYTES_TARGET, KeyBlockBuilder};
use super::layout::{self, align, invalid};
use super::parts::PartWriter;
use super::table::{self, IndexEntry, PACK_FOOTER_BYTES, PackFooter, PackKind, SectionSummary};
use crate::env::{AlignedBuf, BufPool};
use crate::ids::{Digest, FeedId, Sequence, StreamId};
use sealog_frame::FrameView;

/// How a pack is laid out.
#[derive(Debug, Clone, Copy)]
pub struct PackOptions {
    /// A block is closed when the next frame would take it beyond this many bytes.
    pub block_bytes: usize,
    /// Parts are cut at about this many bytes.
    pub part_bytes: usize,
}

impl PackOptions {
    /// Memory of a part: what is behind its end when it is cut may take a block.
    #[must_use]
    pub fn part_room_bytes(&self) -> usize {
        self.part_bytes + self.block_bytes
    }
}

impl Default for PackOptions {
    fn default() -> Self {
        Self {
            block_bytes: BLOCK_BYTES_TARGET,
            part_bytes: 1 << 20,
        }
    }
}

/// What a finished pack is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PackSummary {
    /// Its content's digest (`pack.md` §6): its name.
    pub digest: Digest,
    /// Length of the whole object.
    pub bytes: u64,
    /// What it holds, in order of (feed, stream).
    pub sections: Vec<SectionSummary>,
}

/// Writes a pack. `Send`, so that it can run on a side thread.
pub struct PackBuilder {
    kind: PackKind,
    options: PackOptions,
    out: PartWriter,
    digest: PackDigest,
    index: Vec<IndexEntry>,
    sections: Vec<SectionSummary>,
    section: Option<Section>,
    /// Of the open block.
    column: Column,
}

struct Section {
    feed: FeedId,
    stream: StreamId,
    keyed: bool,
    first_row: usize,
    blocks_at: u64,
    fold: SectionFold,
    block: Option<OpenBlock>,
}

struct OpenBlock {
    at: u64,
    first_record: u64,
    span: Option<FrameSpan>,
}

const fn assert_send<T: Send>() {}
const _: () = assert_send::<PackBuilder>();

impl PackBuilder {
    /// Begins a pack.
    #[must_use]
    pub fn new(kind: PackKind, options: PackOptions) -> Self {
        let block_bytes = options.block_bytes.min(BLOCK_BYTES_MAX);
        let mut out = PartWriter::new(options.part_bytes, block_bytes);
        let mut digest = PackDigest::default();
        let header = table::encode_header(kind);
        out.write(&header);
        digest.part(&header);
        Self {
            kind,
            options: PackOptions {
                block_bytes,
                ..options
            },
            out,
            digest,
            index: Vec::new(),
            sections: Vec::new(),
            section: None,
            column: Column::default(),
        }
    }

    /// The same pack, with memory for its parts from `pool`.
    #[must_use]
    pub fn in_memory_of(mut self, pool: BufPool) -> Self {
        self.out.set_pool(pool);
        self
    }

    /// Ends the section before, if there is one, and begins that of a stream; `keyed` says whether
    /// its feed allows keys. A section that gets no frame leaves no trace.
    ///
    /// # Errors
    /// [`PackError::Pack`] unless (feed, stream) is after the one before, or the one of a stream pack.
    pub fn begin_section(
        &mut self,
        feed: FeedId,
        stream: StreamId,
        keyed: bool,
    ) -> Result<(), PackError> {
        self.end_section();
        let last = self.sections.last();
        let in_order = last.is_none_or(|last| (last.feed, last.stream) < (feed, stream));
        let fits = match self.kind {
            PackKind::Stream { feed: f, stream: s } => (f, s) == (feed, stream),
            PackKind::Shared { .. } => true,
        };
        if !in_order || !fits {
            return Err(invalid("section", stream.0).into());
        }
        self.section = Some(Section {
            feed,
            stream,
            keyed,
            first_row: self.index.len(),
            blocks_at: self.out.position(),
            fold: SectionFold::default(),
            block: None,
        });
        Ok(())
    }

    /// Appends a stamped frame to the section, after validating it whole.
    ///
    /// # Errors
    /// [`PackError::Frame`] when the frame is damaged; [`PackError::Pack`] when no section was begun,
    /// its sequence does not rise, or it has keys where none are allowed. The pack is as it was before.
    pub fn push_frame(&mut self, frame: &[u8]) -> Result<(), PackError> {
        let view = FrameView::parse(frame, &LIMITS)?;
        let section = self.section.as_mut().ok_or(invalid("section", 0))?;
        if view.is_keyed() && !section.keyed {
            return Err(invalid("keyed", view.base_sequence()).into());
        }
        let records_before = section.fold.span.map_or(0, |span| span.records);
        let span = section.fold.span_of(&view)?;
        let taken = section
            .block
            .as_ref()
            .map(|block| self.out.position() - block.at);
        if taken.is_some_and(|taken| taken as usize + align(frame.len()) > self.options.block_bytes)
        {
            Self::close_block(section, &mut self.column, &mut self.out, &mut self.index);
        }
        section.fold.frame(&view, span, &mut self.column);
        self.digest.frame(&view);
        let block = section.block.get_or_insert_with(|| {
            let at = self.out.position();
            self.out.zeros(BLOCK_HEADER_BYTES);
            OpenBlock {
                at,
                first_record: records_before,
                span: None,
            }
        });
        self.out.write(frame);
        self.out.zeros(align(frame.len()) - frame.len());
        block.span = Some(FrameSpan::then(block.span, span));
        Ok(())
    }

    /// The next part of the object that is ready, a multiple of the disk's block long.
    pub fn drain(&mut self) -> Option<AlignedBuf> {
        self.out.drain()
    }

    /// Bytes of the object so far, without the key run and the open block's column that are still to come.
    #[must_use]
    pub fn position(&self) -> u64 {
        self.out.position()
    }

    /// Memory in use, in bytes, roughly; parts count until they are drained.
    #[must_use]
    pub fn buffered_bytes(&self) -> usize {
        let open = self
            .section
            .as_ref()
            .map_or(0, |section| section.fold.buffered_bytes());
        self.out.buffered_bytes()
            + open
            + self.column.buffered_bytes()
            + self.index.capacity() * size_of::<IndexEntry>()
            + self.sections.capacity() * size_of::<SectionSummary>()
    }

    /// Ends the pack: the parts that were not drained, and what the pack is.
    ///
    /// # Errors
    /// [`PackError::Pack`] when no frame was pushed: a pack holds something.
    pub fn finish(mut self) -> Result<(Vec<AlignedBuf>, PackSummary), PackError> {
        self.end_section();
        if self.sections.is_empty() {
            return Err(invalid("section_count", 0).into());
        }
        let index_offset = self.out.position();
        let index = table::encode_index(&self.index);
        self.write_part(&index);
        let table_offset = self.out.position();
        let rows = table::encode_table(&self.sections);
        self.write_part(&rows);
        let sum = |field: fn(&SectionSummary) -> u64| self.sections.iter().map(field).sum();
        let footer = PackFooter {
            kind: self.kind,
            object_bytes: self.out.position() + PACK_FOOTER_BYTES as u64,
            records: sum(|section| section.records),
            payload_bytes: sum(|section| section.payload_bytes),
            index_offset,
            table_offset,
            index_crc: table::part_crc(&index)?,
            table_crc: table::part_crc(&rows)?,
        };
        self.write_part(&footer.encode());
        let summary = PackSummary {
            digest: self.digest.finish(),
            bytes: self.out.position(),
            sections: self.sections,
        };
        Ok((self.out.finish(), summary))
    }

    fn close_block(
        section: &mut Section,
        column: &mut Column,
        out: &mut PartWriter,
        index: &mut Vec<IndexEntry>,
    ) {
        let Some(block) = section.block.take() else {
            return;
        };
        let Some(span) = block.span else { return };
        let header = BlockHeader {
            block_bytes: layout::stored_u32((out.position() - block.at) as usize),
            frame_count: span.frames,
            feed: section.feed,
            stream: section.stream,
            first: Sequence(span.first),
            end: Sequence(span.end),
            records: span.records,
            first_record: block.first_record,
        };
        out.patch(block.at)[..BLOCK_HEADER_BYTES].copy_from_slice(&header.encode());
        out.settle();
        out.write(column.seal());
        out.settle();
        column.clear();
        index.push(row(&header, block.at, &span));
    }

    fn end_section(&mut self) {
        let Some(mut section) = self.section.take() else {
            return;
        };
        Self::close_block(
            &mut section,
            &mut self.column,
            &mut self.out,
            &mut self.index,
        );
        let Some(span) = section.fold.span else {
            return;
        };
        let blocks = section.blocks_at..self.out.position();
        let sorted = section.fold.keys.sorted();
        let keys_at = self.out.position();
        let mut block = KeyBlockBuilder::new(KEY_BLOCK_BYTES_TARGET);
        for (key, state) in sorted.iter() {
            if block.is_full_for(key) {
                self.write_key_block(&mut block);
            }
            block.push(key, state);
        }
        self.write_key_block(&mut block);
        let keys = keys_at..self.out.position();
        self.sections.push(SectionSummary {
            feed: section.feed,
            stream: section.stream,
            first: Sequence(span.first),
            end: Sequence(span.end),
            records: span.records,
            payload_bytes: span.payload_bytes,
            first_timestamp_ms: span.first_timestamp_ms,
            max_timestamp_ms: span.max_timestamp_ms,
            merkle_root: section.fold.tree.root(),
            index_rows: layout::stored_u32(section.first_row)..layout::stored_u32(self.index.len()),
            blocks,
            keys,
            key_count: sorted.len() as u64,
            keyed: section.keyed,
        });
    }

    fn write_key_block(&mut self, block: &mut KeyBlockBuilder) {
        if let Some(bytes) = block.finish() {
            self.write_part(&bytes);
            self.out.settle();
        }
    }

    fn write_part(&mut self, bytes: &[u8]) {
        self.out.write(bytes);
        self.digest.part(bytes);
    }
}

/// The sparse index's row of a block.
pub(super) fn row(header: &BlockHeader, offset: u64, span: &FrameSpan) -> IndexEntry {
    IndexEntry {
        offset,
        bytes: header.block_bytes,
        frame_count: header.frame_count,
        feed: header.feed.0,
        stream: header.stream.0,
        first: header.first.0,
        end: header.end.0,
        first_record: header.first_record,
        records: header.records,
        first_timestamp_ms: span.first_timestamp_ms,
        max_timestamp_ms: span.max_timestamp_ms,
    }
}
