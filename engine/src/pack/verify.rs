//! Pack verifier: proves, byte by byte as they stream by, that a pack is as its builder wrote it. Spec: spec/pack.md §7.
//!
//! **Invariants**
//! - PACK-13: any changed, missing or additional byte is an error that names where the damage is.
//! - Columns, key runs, trees, index and section table are computed again from the frames and compared.
//! - Memory: one part of the pack (a block, a column, a key block, the index), a column, and the key run of one section.
//!
//! **Not here**: reading the bytes; whether the pack is the one a manifest names (compare the digest).

use super::PackError;
use super::block::{BLOCK_HEADER_BYTES, BLOCK_MAGIC, BlockHeader, BlockView};
use super::builder::{PackSummary, row};
use super::column::{self, Column};
use super::digest::PackDigest;
use super::fold::{FrameSpan, SectionFold};
use super::keys::SortedKeys;
use super::keys::block::{KEY_BLOCK_HEADER_BYTES, KEY_BLOCK_MAGIC, KeyBlock, peek_key_block_bytes};
use super::layout::{self, invalid, truncated};
use super::table::{
    self, INDEX_MAGIC, INDEX_ROW_BYTES, IndexEntry, PACK_FOOTER_BYTES, PACK_HEADER_BYTES,
    PART_HEADER_BYTES, PackFooter, PackKind, SectionSummary, TABLE_ROW_BYTES,
};
use crate::codec::DecodeError;
use crate::ids::{FeedId, Sequence, StreamId};

/// Where a pack is damaged, and how.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("pack damaged at byte {offset}: {error}")]
pub struct PackDamage {
    /// Offset in the object of the part (header, frame, padding, key block, ...) that holds the damage.
    pub offset: u64,
    /// What is wrong with it.
    pub error: PackError,
}

/// Checks a pack that streams by.
pub struct PackVerifier {
    pending: Vec<u8>,
    /// Object offset of the first pending byte.
    at: u64,
    digest: PackDigest,
    stage: Stage,
    kind: Option<PackKind>,
    section: Option<OpenSection>,
    index: Vec<IndexEntry>,
    sections: Vec<SectionSummary>,
    part_offsets: [u64; 2],
    part_crcs: [u32; 2],
    /// What the column behind the block must be.
    column: Column,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Header,
    Sections,
    Column,
    Table,
    Footer,
    Done,
}

struct OpenSection {
    feed: FeedId,
    stream: StreamId,
    first_row: usize,
    blocks_at: u64,
    fold: SectionFold,
    run: Option<KeyRunSeen>,
}

/// The key run that the blocks of a section say must follow them.
struct KeyRunSeen {
    at: u64,
    keys: SortedKeys,
    seen: usize,
}

type Step = Result<Option<usize>, PackDamage>;

impl Default for PackVerifier {
    fn default() -> Self {
        Self::new()
    }
}

impl PackVerifier {
    /// A verifier at the start of a pack.
    #[must_use]
    pub fn new() -> Self {
        Self {
            pending: Vec::new(),
            at: 0,
            digest: PackDigest::default(),
            stage: Stage::Header,
            kind: None,
            section: None,
            index: Vec::new(),
            sections: Vec::new(),
            part_offsets: [0; 2],
            part_crcs: [0; 2],
            column: Column::default(),
        }
    }

    /// Takes the next bytes of the pack, as many as there are.
    ///
    /// # Errors
    /// [`PackDamage`]; the verifier is of no more use then.
    pub fn push(&mut self, bytes: &[u8]) -> Result<(), PackDamage> {
        let mut pending = std::mem::take(&mut self.pending);
        pending.extend_from_slice(bytes);
        let mut done = 0;
        while let Some(taken) = self.step(&pending[done..])? {
            done += taken;
            self.at += taken as u64;
        }
        pending.drain(..done);
        self.pending = pending;
        Ok(())
    }

    /// Says that the pack ends here: what it is, as its builder summed it up.
    ///
    /// # Errors
    /// [`PackDamage`] when bytes are missing.
    pub fn finish(self) -> Result<PackSummary, PackDamage> {
        if self.stage != Stage::Done {
            let have = self.pending.len();
            return Err(damage(self.at, truncated(have + 1, have)));
        }
        Ok(PackSummary {
            digest: self.digest.finish(),
            bytes: self.at,
            sections: self.sections,
        })
    }

    /// Checks the part at the front of `bytes`: its length, or `None` when not all of it is there.
    fn step(&mut self, bytes: &[u8]) -> Step {
        match self.stage {
            Stage::Header => self.header(bytes),
            Stage::Sections => self.part(bytes),
            Stage::Column => self.column(bytes),
            Stage::Table => self.table(bytes),
            Stage::Footer => self.footer(bytes),
            Stage::Done if bytes.is_empty() => Ok(None),
            Stage::Done => Err(damage(
                self.at,
                invalid("trailing bytes", bytes.len() as u64),
            )),
        }
    }

    fn header(&mut self, bytes: &[u8]) -> Step {
        let Some(bytes) = bytes.get(..PACK_HEADER_BYTES) else {
            return Ok(None);
        };
        let kind = table::decode_header(bytes).map_err(|error| damage(self.at, error))?;
        self.kind = Some(kind);
        self.digest.part(bytes);
        self.stage = Stage::Sections;
        Ok(Some(PACK_HEADER_BYTES))
    }

    fn part(&mut self, bytes: &[u8]) -> Step {
        if bytes.len() < PART_HEADER_BYTES {
            return Ok(None);
        }
        let magic = layout::u32_at(bytes, 0).map_err(|error| damage(self.at, error))?;
        match magic {
            BLOCK_MAGIC => self.block(bytes),
            KEY_BLOCK_MAGIC => self.key_block(bytes),
            INDEX_MAGIC => self.index(bytes),
            found => Err(damage(
                self.at,
                DecodeError::Magic {
                    format: "part of a pack",
                    found: found.into(),
                },
            )),
        }
    }

    fn block(&mut self, bytes: &[u8]) -> Step {
        if bytes.len() < BLOCK_HEADER_BYTES {
            return Ok(None);
        }
        let header = BlockHeader::decode(bytes).map_err(|error| damage(self.at, error))?;
        if bytes.len() < header.block_bytes as usize {
            return Ok(None);
        }
        let (view, _) = BlockView::parse(bytes).map_err(|error| damage(self.at, error))?;
        self.open_section(&header)?;
        let Some(section) = &mut self.section else {
            return Err(damage(self.at, invalid("section", header.stream.0)));
        };
        let records_before = section.fold.span.map_or(0, |span| span.records);
        let fold = &mut section.fold;
        let span = fold_block(fold, &mut self.column, &mut self.digest, &view, self.at)?;
        let said = (
            header.first.0,
            header.end.0,
            header.records,
            header.first_record,
        );
        if said != (span.first, span.end, span.records, records_before) {
            return Err(damage(self.at, invalid("block range", header.first.0)));
        }
        self.index.push(row(&header, self.at, &span));
        self.stage = Stage::Column;
        Ok(Some(header.block_bytes as usize))
    }

    fn column(&mut self, bytes: &[u8]) -> Step {
        let Some(stored) = bytes.get(..self.column.part_bytes()) else {
            return Ok(None);
        };
        if let Some((at, error)) = column::first_damage(self.column.seal(), stored) {
            return Err(damage(self.at + at as u64, error));
        }
        self.column.clear();
        self.stage = Stage::Sections;
        Ok(Some(stored.len()))
    }

    /// Goes on with the open section, or ends it and begins the one of this block.
    fn open_section(&mut self, header: &BlockHeader) -> Result<(), PackDamage> {
        let id = (header.feed, header.stream);
        let goes_on = self
            .section
            .as_ref()
            .is_some_and(|open| (open.feed, open.stream) == id && open.run.is_none());
        if goes_on {
            return Ok(());
        }
        self.close_section()?;
        let last = self.sections.last();
        if last.is_some_and(|last| (last.feed, last.stream) >= id) {
            return Err(damage(self.at, invalid("section order", header.stream.0)));
        }
        self.section = Some(OpenSection {
            feed: header.feed,
            stream: header.stream,
            first_row: self.index.len(),
            blocks_at: self.at,
            fold: SectionFold::default(),
            run: None,
        });
        Ok(())
    }

    /// The open section's key run; its blocks are over now if they were not before.
    fn key_run(&mut self) -> Result<&mut KeyRunSeen, PackDamage> {
        let at = self.at;
        let section = self.section.as_mut();
        let section = section.ok_or_else(|| damage(at, invalid("section", 0)))?;
        let fold = &mut section.fold;
        Ok(section.run.get_or_insert_with(|| KeyRunSeen {
            at,
            keys: std::mem::take(&mut fold.keys).sorted(),
            seen: 0,
        }))
    }

    fn key_block(&mut self, bytes: &[u8]) -> Step {
        let at = self.at;
        if bytes.len() < KEY_BLOCK_HEADER_BYTES {
            return Ok(None);
        }
        let len = peek_key_block_bytes(bytes).map_err(|error| damage(at, error))?;
        let Some(bytes) = bytes.get(..len) else {
            return Ok(None);
        };
        let (block, _) = KeyBlock::parse(bytes).map_err(|error| damage(at, error))?;
        let run = self.key_run()?;
        for (key, state) in block.entries() {
            if run.keys.get(run.seen) != Some((key, state)) {
                return Err(damage(at, invalid("key run", state.sequence)));
            }
            run.seen += 1;
        }
        self.digest.part(bytes);
        Ok(Some(len))
    }

    fn close_section(&mut self) -> Result<(), PackDamage> {
        let at = self.at;
        if self.section.is_none() {
            return Ok(());
        }
        let run = self.key_run()?;
        if let Some((_, missing)) = run.keys.get(run.seen) {
            return Err(damage(at, invalid("key run", missing.sequence)));
        }
        let (Some(section), rows) = (self.section.take(), self.index.len()) else {
            return Ok(());
        };
        let (Some(run), Some(span)) = (section.run, section.fold.span) else {
            return Err(damage(at, invalid("section", section.stream.0)));
        };
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
            index_rows: layout::stored_u32(section.first_row)..layout::stored_u32(rows),
            blocks: section.blocks_at..run.at,
            keys: run.at..at,
            key_count: run.keys.len() as u64,
            // Whether keys were allowed is known from the section table alone; see `table`.
            keyed: !run.keys.is_empty(),
        });
        Ok(())
    }

    fn index(&mut self, bytes: &[u8]) -> Step {
        self.close_section()?;
        let at = self.at;
        let Some(part) = self.counted(bytes, self.index.len(), INDEX_ROW_BYTES)? else {
            return Ok(None);
        };
        let rows = table::decode_index(part).map_err(|error| damage(at, error))?;
        if rows != self.index {
            return Err(damage(at, invalid("index rows", rows.len() as u64)));
        }
        self.digest.part(part);
        self.part_offsets[0] = at;
        self.part_crcs[0] = table::part_crc(part).map_err(|error| damage(at, error))?;
        self.stage = Stage::Table;
        Ok(Some(part.len()))
    }

    fn table(&mut self, bytes: &[u8]) -> Step {
        let at = self.at;
        let Some(part) = self.counted(bytes, self.sections.len(), TABLE_ROW_BYTES)? else {
            return Ok(None);
        };
        let rows = table::decode_table(part).map_err(|error| damage(at, error))?;
        for (section, stored) in self.sections.iter_mut().zip(&rows) {
            section.keyed |= stored.keyed;
        }
        if rows != self.sections {
            return Err(damage(at, invalid("section table", rows.len() as u64)));
        }
        self.digest.part(part);
        self.part_offsets[1] = at;
        self.part_crcs[1] = table::part_crc(part).map_err(|error| damage(at, error))?;
        self.stage = Stage::Footer;
        Ok(Some(part.len()))
    }

    /// The part of `count` rows at the front of `bytes`, once all of it is there.
    fn counted<'a>(
        &self,
        bytes: &'a [u8],
        count: usize,
        row_bytes: usize,
    ) -> Result<Option<&'a [u8]>, PackDamage> {
        if bytes.len() < PART_HEADER_BYTES {
            return Ok(None);
        }
        let stored = layout::u32_at(bytes, 4).map_err(|error| damage(self.at, error))?;
        if stored as usize != count {
            return Err(damage(self.at, invalid("row count", stored.into())));
        }
        Ok(bytes.get(..PART_HEADER_BYTES + count * row_bytes))
    }

    fn footer(&mut self, bytes: &[u8]) -> Step {
        let Some(bytes) = bytes.get(..PACK_FOOTER_BYTES) else {
            return Ok(None);
        };
        let object_bytes = self.at + PACK_FOOTER_BYTES as u64;
        let footer = PackFooter::decode(bytes, object_bytes);
        let footer = footer.map_err(|error| damage(self.at, error))?;
        let sum = |field: fn(&SectionSummary) -> u64| self.sections.iter().map(field).sum();
        let expected = PackFooter {
            kind: self.kind.unwrap_or(footer.kind),
            object_bytes,
            records: sum(|section| section.records),
            payload_bytes: sum(|section| section.payload_bytes),
            index_offset: self.part_offsets[0],
            table_offset: self.part_offsets[1],
            index_crc: self.part_crcs[0],
            table_crc: self.part_crcs[1],
        };
        if footer != expected {
            return Err(damage(self.at, invalid("footer", footer.records)));
        }
        super::index::check_kind(footer.kind, &self.sections)
            .map_err(|error| damage(self.at, error))?;
        self.digest.part(bytes);
        self.stage = Stage::Done;
        Ok(Some(PACK_FOOTER_BYTES))
    }
}

fn fold_block(
    fold: &mut SectionFold,
    column: &mut Column,
    digest: &mut PackDigest,
    view: &BlockView<'_>,
    block_at: u64,
) -> Result<FrameSpan, PackDamage> {
    let mut block: Option<FrameSpan> = None;
    let mut frames = view.frames();
    loop {
        let at = block_at + frames.offset() as u64;
        let Some(frame) = frames.next() else { break };
        let failed_at = block_at + frames.offset() as u64;
        let frame = frame.map_err(|error| damage(failed_at, error))?;
        let span = fold.span_of(&frame).map_err(|error| damage(at, error))?;
        fold.frame(&frame, span, column);
        digest.frame(&frame);
        block = Some(FrameSpan::then(block, span));
    }
    block.ok_or(damage(block_at, invalid("frame_count", 0)))
}

fn damage(offset: u64, error: impl Into<PackError>) -> PackDamage {
    PackDamage {
        offset,
        error: error.into(),
    }
}
