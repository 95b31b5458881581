//! State: checkpoint roots, chunks and the data directory's marker.
//!
//! **Not here**: whether a root's chunks are there (`verify`).

use super::log::{base_node, link_node, seal_node};
use super::tree::fields;
use super::{Input, Node};
use crate::checkpoint::Root;
use crate::checkpoint::root::{decode_chunk, peek_chunk};
use crate::datadir::Marker;
use crate::error::Result;
use crate::feed::{Feed, Feeds, Stream};
use crate::ids::LogId;
use crate::wal::segment::Geometry;

pub(super) fn root(input: &Input) -> Result<Node> {
    let root = Root::decode(&input.whole()?).map_err(input.at(0))?;
    Ok(fields! {
        format: "checkpoint root",
        log: root.log.0,
        number: root.number,
        incarnation: root.incarnation,
        durable_end: root.durable_end,
        predecessor: format!("{:08x}", root.predecessor),
        replay_from: root.replay_from,
        retain_from: root.retain_from,
        next_counter: root.next_counter,
        chunk_count: root.chunks.len(),
        chunks: input.list(root.chunks.iter(), |chunk| fields! {
            chunk: chunk.chunk,
            generation: chunk.generation,
            as_of_offset: chunk.as_of_offset,
            as_of_index: chunk.as_of_index,
        }),
    })
}

pub(super) fn chunk(input: &Input) -> Result<Node> {
    let bytes = input.whole()?;
    let (chunk, generation) = peek_chunk(&bytes).map_err(input.at(0))?;
    let body = decode_chunk(&bytes, chunk, generation).map_err(input.at(0))?;
    let geometry = Geometry {
        segment_bytes: 1 << 20,
    };
    let mut feeds = Feeds::new(LogId(0), geometry);
    feeds.decode_chunk(chunk, body).map_err(input.at(0))?;
    let all: Vec<&Feed> = feeds.iter().collect();
    let doomed: Vec<_> = feeds.doomed().collect();
    let subscriptions: Vec<_> = feeds.subscriptions.iter().collect();
    Ok(fields! {
        format: "checkpoint chunk",
        chunk: chunk,
        generation: generation,
        feed_count: all.len(),
        feeds: input.list(all.into_iter(), |feed| feed_node(input, feed)),
        deleted: input.list(doomed.into_iter(), |(id, doomed)| fields! {
            id: id.0, name: &*doomed.name, time_ms: doomed.time_ms,
        }),
        subscriptions: input.list(subscriptions.into_iter(), |(name, known)| fields! {
            name: name,
            created_ms: known.created_ms,
            ready: known.ready,
            generation: known.generation,
            phase: format!("{:?}", known.phase).to_lowercase(),
            links: input.list(known.links.iter(), |(name, link)| link_node(name, link)),
        }),
    })
}

fn feed_node(input: &Input, feed: &Feed) -> Node {
    let mut node = plain_feed_node(input, feed);
    if let (Node::Map(content), Some(base)) = (&mut node, feed.base()) {
        content.push(("base", base_node(base)));
    }
    node
}

fn plain_feed_node(input: &Input, feed: &Feed) -> Node {
    fields! {
        id: feed.id.0,
        name: &*feed.name,
        keys: feed.options.keys,
        exclusive: feed.options.exclusive,
        rolling: feed.options.rolling,
        attributes: input.preview(&feed.options.attributes),
        closed: feed.closed.is_some(),
        order: input.preview(feed.order.as_deref().unwrap_or_default()),
        deleted: feed.is_gone(),
        pins: input.list(feed.pins().collect::<Vec<_>>().into_iter(), |(id, pin)| fields! {
            pin: id.0, sequence: pin.sequence, fork: &*pin.fork,
        }),
        created_ms: feed.created_ms,
        epoch: feed.epoch.0,
        next_sequence: feed.next_sequence,
        next_stream: feed.next_stream.0,
        next_commit: feed.next_commit.0,
        commits: feed.head.commits,
        head: feed.head.digest.to_string(),
        head_end: feed.head.end,
        producers: feed.producers.as_ref().map_or(0, |p| p.len()),
        streams: input.list(feed.streams.iter(), |stream| stream_node(input, stream)),
    }
}

fn stream_node(input: &Input, stream: &Stream) -> Node {
    let mut content = vec![
        ("id", Node::from(stream.id.0)),
        ("epoch", stream.epoch.0.into()),
        ("first", stream.first.into()),
        ("end", stream.end.into()),
        ("packed_end", stream.packed_end().into()),
        ("records", stream.totals.records.into()),
        ("payload_bytes", stream.totals.payload_bytes.into()),
    ];
    if let Some(seal) = &stream.seal {
        content.push(("seal", seal_node(input, seal)));
    }
    if let Some(manifest) = &stream.manifest {
        content.push(("manifest", manifest.to_string().into()));
    }
    let packs = input.list(stream.packs.iter(), super::objects::pack_row);
    content.push(("packs", packs));
    let index = input.list(stream.index.iter(), |entry| {
        fields! { sequence: entry.sequence, log_offset: entry.offset }
    });
    content.push(("log_index", index));
    Node::Map(content)
}

pub(super) fn marker(input: &Input) -> Result<Node> {
    let marker = Marker::decode(&input.whole()?).map_err(input.at(0))?;
    Ok(fields! {
        format: "data directory",
        segment_bytes: marker.segment_bytes,
        group_bytes_max: marker.group_bytes_max,
        next_log: marker.next_log,
        logs: input.list(marker.logs.iter(), |log| Node::from(log.0)),
    })
}
