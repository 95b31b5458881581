//! Objects: what lies in the bucket: commits, manifests, packs, key indexes.
//!
//! **Not here**: whether their digests are their names (`verify`).

use super::tree::fields;
use super::{Input, Node};
use crate::commit::{Commit, Manifest, PackPlace, PackRef};
use crate::error::Result;
use crate::pack::keys::block::KeyBlock;
use crate::pack::keys::reader::{KeyIndex, KeyIndexFooter};
use crate::pack::layout::FOOTER_BYTES;
use crate::pack::{IndexEntry, PACK_FOOTER_BYTES, PackFooter, PackIndex, PackKind, SectionSummary};

pub(super) fn commit(input: &Input) -> Result<Node> {
    let commit = Commit::decode(&input.whole()?).map_err(input.at(0))?;
    Ok(fields! {
        format: "commit",
        number: commit.number.0,
        kind: format!("{:?}", commit.kind).to_lowercase(),
        feed: commit.feed.0,
        stream: commit.stream.0,
        epoch: commit.epoch.0,
        first: commit.first.0,
        end: commit.end.0,
        records: commit.records,
        payload_bytes: commit.payload_bytes,
        time_ms: commit.time_ms,
        message: input.preview(commit.message.as_bytes()),
        digest: commit.digest().to_string(),
        parent: commit.parent.to_string(),
        manifest: commit.manifest.to_string(),
    })
}

pub(super) fn manifest(input: &Input) -> Result<Node> {
    let manifest = Manifest::decode(&input.whole()?).map_err(input.at(0))?;
    let totals = manifest.totals();
    let mut content = vec![
        ("format", Node::from("manifest")),
        ("feed", manifest.feed.0.into()),
        ("stream", manifest.stream.0.into()),
        ("first", manifest.first.0.into()),
        ("end", manifest.end.0.into()),
        ("records", totals.records.into()),
        ("payload_bytes", totals.payload_bytes.into()),
        ("first_timestamp_ms", totals.first_timestamp_ms.into()),
        ("max_timestamp_ms", totals.max_timestamp_ms.into()),
        ("merkle_root", hex(&totals.merkle_root)),
        ("digest", manifest.digest().to_string().into()),
    ];
    if let Some(keys) = &manifest.key_index {
        let index = fields! { digest: keys.digest.to_string(), bytes: keys.bytes };
        content.push(("key_index", index));
    }
    content.push(("pack_count", manifest.packs.len().into()));
    content.push(("packs", input.list(manifest.packs.iter(), pack_row)));
    Ok(Node::Map(content))
}

/// A pack as state and manifests name it.
pub(super) fn pack_row(pack: &PackRef) -> Node {
    let place = match pack.place {
        PackPlace::Stream => "stream".to_owned(),
        PackPlace::Shared(log) => format!("shared by log {log}"),
    };
    fields! {
        digest: pack.digest.to_string(),
        place: place,
        pack_bytes: pack.pack_bytes,
        first: pack.first.0,
        end: pack.end.0,
        records: pack.records,
        payload_bytes: pack.payload_bytes,
        max_timestamp_ms: pack.max_timestamp_ms,
    }
}

pub(super) fn pack(input: &Input) -> Result<Node> {
    let len = input.len();
    let footer_at = len.saturating_sub(PACK_FOOTER_BYTES as u64);
    let tail = input.range(footer_at..len)?;
    let footer = PackFooter::decode(&tail, len).map_err(input.at(footer_at))?;
    let parts_at = footer.index_range().start;
    let parts = input.range(footer.index_range())?;
    let index = PackIndex::decode(&footer, &parts).map_err(input.at(parts_at))?;
    let kind = match footer.kind {
        PackKind::Stream { feed, stream } => format!("stream {stream} of feed id {feed}"),
        PackKind::Shared { log } => format!("shared by log {log}"),
    };
    Ok(fields! {
        format: "pack",
        holds: kind,
        pack_bytes: footer.object_bytes,
        records: footer.records,
        payload_bytes: footer.payload_bytes,
        section_count: index.sections().len(),
        sections: input.list(index.sections().iter(), |section| {
            section_node(input, &index, section)
        }),
    })
}

fn section_node(input: &Input, index: &PackIndex, section: &SectionSummary) -> Node {
    let blocks = index.blocks(section);
    fields! {
        feed: section.feed.0,
        stream: section.stream.0,
        first: section.first.0,
        end: section.end.0,
        records: section.records,
        payload_bytes: section.payload_bytes,
        first_timestamp_ms: section.first_timestamp_ms,
        max_timestamp_ms: section.max_timestamp_ms,
        keyed: section.keyed,
        key_count: section.key_count,
        merkle_root: hex(&section.merkle_root),
        block_count: blocks.len(),
        blocks: input.list(blocks.iter(), block_node),
    }
}

fn block_node(block: &IndexEntry) -> Node {
    fields! {
        at: block.range().start,
        bytes: block.range().end - block.range().start,
        frames: block.frame_count(),
        first: block.first().0,
        end: block.end().0,
        records: block.records(),
        column_at: block.column_range().start,
    }
}

pub(super) fn key_index(input: &Input) -> Result<Node> {
    let len = input.len();
    let footer_at = len.saturating_sub(FOOTER_BYTES as u64);
    let tail = input.range(footer_at..len)?;
    let footer = KeyIndexFooter::decode(&tail, len).map_err(input.at(footer_at))?;
    let parts_at = footer.parts_range().start;
    let parts = input.range(footer.parts_range())?;
    let index = KeyIndex::decode(&footer, &parts).map_err(input.at(parts_at))?;
    let mut keys = Vec::new();
    for range in index.blocks() {
        if keys.len() >= input.options.items {
            break;
        }
        let at = range.start;
        let bytes = input.range(range)?;
        let (block, _) = KeyBlock::parse(&bytes).map_err(input.at(at))?;
        let left = input.options.items - keys.len();
        keys.extend(block.entries().take(left).map(|(key, state)| {
            fields! {
                key: input.preview(key),
                version: state.version,
                sequence: state.sequence,
                tombstone: state.tombstone,
            }
        }));
    }
    let count = usize::try_from(footer.key_count).unwrap_or(usize::MAX);
    if count > keys.len() {
        keys.push(Node::more(count - keys.len()));
    }
    Ok(fields! {
        format: "key index",
        feed: footer.feed.0,
        stream: footer.stream.0,
        key_count: footer.key_count,
        tombstone_count: footer.tombstone_count,
        block_count: footer.block_count,
        keys: Node::List(keys),
    })
}

fn hex(bytes: &[u8; 32]) -> Node {
    Node::Text(crate::ids::Digest(*bytes).to_string())
}
