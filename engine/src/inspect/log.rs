//! Log: segments, groups, entries and frames, as they lie there.
//!
//! **Invariants**
//! - A segment's groups are walked while each follows the one before; what lies behind is not guessed at.
//!
//! **Not here**: whether the log as a whole is sound (`recovery`, `verify`).

use sealog_frame::{FrameLimits, FrameView, RecordView};

use super::tree::fields;
use super::{Input, Node};
use crate::env::BLOCK_BYTES;
use crate::error::{Error, Result};
use crate::feed::Base;
use crate::subscription::{Link, SubscriptionChange};
use crate::wal::entry::{Change, Entries, Entry, EntryRef, Forked, Seal};
use crate::wal::group::{FLAG_CLEAN, FLAG_MARKER, GROUP_HEADER_BYTES, GroupHeader};
use crate::wal::segment::SegmentHeader;

/// Longest group that is looked into.
const GROUP_BYTES_MAX: usize = 64 << 20;

pub(super) fn segment(input: &Input) -> Result<Node> {
    let block = input.bytes(0, BLOCK_BYTES)?;
    let header = SegmentHeader::decode(&block).map_err(input.at(0))?;
    let base = header.number.saturating_mul(header.segment_bytes);
    let (mut at, mut count, mut entries) = (BLOCK_BYTES as u64, 0u64, 0u64);
    let mut groups = Vec::new();
    let mut before: Option<GroupHeader> = None;
    loop {
        let head = input.bytes(at, GROUP_HEADER_BYTES)?;
        let Ok(group) = GroupHeader::decode(&head) else {
            break;
        };
        let follows = before.is_none_or(|before| group.predecessor == before.crc());
        if group.offset != base + at || group.log != header.log || !follows {
            break;
        }
        let bytes = input.bytes(at, (group.group_bytes as usize).min(GROUP_BYTES_MAX))?;
        if group
            .check_body(bytes.get(GROUP_HEADER_BYTES..).unwrap_or(&[]))
            .is_err()
        {
            break;
        }
        if groups.len() < input.options.items {
            groups.push(group_node(input, at, &group, &bytes)?);
        }
        count += 1;
        entries += u64::from(group.entries);
        at += u64::from(group.group_bytes);
        before = Some(group);
    }
    if count > groups.len() as u64 {
        groups.push(Node::more(
            usize::try_from(count).unwrap_or(0) - groups.len(),
        ));
    }
    Ok(fields! {
        format: "segment",
        log: header.log.0,
        number: header.number,
        segment_bytes: header.segment_bytes,
        incarnation: header.incarnation,
        log_offset: base,
        group_count: count,
        entry_count: entries,
        used_to: at,
        groups: Node::List(groups),
    })
}

pub(super) fn bare_group(input: &Input) -> Result<Node> {
    let bytes = input.whole()?;
    let group = GroupHeader::decode(&bytes).map_err(input.at(0))?;
    let bytes = bytes.get(..group.group_bytes as usize).unwrap_or(&bytes);
    let rest = bytes.get(GROUP_HEADER_BYTES..).unwrap_or(&[]);
    group.check_body(rest).map_err(input.at(0))?;
    group_node(input, 0, &group, bytes)
}

fn group_node(input: &Input, at: u64, group: &GroupHeader, bytes: &[u8]) -> Result<Node> {
    let end = GROUP_HEADER_BYTES + group.body_bytes as usize;
    let body = bytes.get(GROUP_HEADER_BYTES..end).unwrap_or(&[]);
    let mut entries = Vec::new();
    for entry in Entries::new(body).take(input.options.items) {
        let entry = entry.map_err(input.at(at))?;
        entries.push(entry_node(input, at, &entry)?);
    }
    if group.entries as usize > entries.len() {
        entries.push(Node::more(group.entries as usize - entries.len()));
    }
    Ok(fields! {
        format: "group",
        at: at,
        log_offset: group.offset,
        group_bytes: group.group_bytes,
        incarnation: group.incarnation,
        durable_end: group.durable_end,
        predecessor: format!("{:08x}", group.predecessor),
        header_crc: format!("{:08x}", group.crc()),
        marker: group.flags & FLAG_MARKER != 0,
        clean: group.flags & FLAG_CLEAN != 0,
        entry_count: group.entries,
        entries: Node::List(entries),
    })
}

fn entry_node(input: &Input, at: u64, entry: &EntryRef<'_>) -> Result<Node> {
    let decoded = entry.decode().map_err(input.at(at))?;
    let (kind, content) = match decoded {
        Entry::Batch(frame) => ("batch", frame_node(input, at, frame)?),
        Entry::Change(change) => change_node(input, &change),
    };
    Ok(fields! {
        entry: kind,
        feed: entry.feed.0,
        stream: entry.stream.0,
        content: content,
    })
}

fn change_node(input: &Input, change: &Change) -> (&'static str, Node) {
    match change {
        Change::FeedCreated {
            name,
            options,
            time_ms,
        } => {
            let content = fields! {
                name: name.clone(), keys: options.keys, exclusive: options.exclusive, rolling: options.rolling,
                attributes: input.preview(&options.attributes), time_ms: *time_ms,
            };
            ("feed created", content)
        }
        Change::FeedForked(forked) => ("feed forked", forked_node(input, forked)),
        Change::Pinned { id, pin } => (
            "pinned",
            fields! { pin: id.0, sequence: pin.sequence, fork: &*pin.fork },
        ),
        Change::Unpinned { id, time_ms } => ("unpinned", fields! { pin: id.0, time_ms: *time_ms }),
        Change::FeedDeleted { time_ms } => ("feed deleted", fields! { time_ms: *time_ms }),
        Change::FeedClosed { note, time_ms } => (
            "feed closed",
            fields! { note: input.preview(note), time_ms: *time_ms },
        ),
        Change::Ordered { key } => ("ordered", fields! { key: input.preview(key) }),
        Change::FeedCleaned => ("feed cleaned", fields! {}),
        Change::StreamOpened { epoch } => ("stream opened", fields! { epoch: epoch.0 }),
        Change::EpochRaised { epoch } => ("epoch raised", fields! { epoch: epoch.0 }),
        Change::StreamSealed(seal) => ("stream sealed", seal_node(input, seal)),
        Change::Rolled(seal) => ("rolled", seal_node(input, seal)),
        Change::PackStaged(pack) => ("pack staged", super::objects::pack_row(pack)),
        Change::ManifestLogged { digest } => {
            ("manifest logged", fields! { digest: digest.to_string() })
        }
        Change::Published { digest } => ("published", fields! { digest: digest.to_string() }),
        Change::ProducerEvicted { id } => {
            ("producer evicted", fields! { producer: input.preview(id) })
        }
        Change::Subscription { name, change } => subscription_node(input, name, change),
    }
}

fn subscription_node(
    input: &Input,
    name: &str,
    change: &SubscriptionChange,
) -> (&'static str, Node) {
    match change {
        SubscriptionChange::Created {
            options,
            nonce,
            time_ms,
        } => {
            let content = fields! {
                subscription: name, pattern: options.pattern.as_deref().unwrap_or_default(),
                except: options.except.as_deref().unwrap_or_default(), lease_ttl_ms: options.lease_ttl_ms,
                config: input.preview(&options.config), nonce: *nonce, time_ms: *time_ms,
            };
            ("subscription created", content)
        }
        SubscriptionChange::Deleted => ("subscription deleted", fields! { subscription: name }),
        SubscriptionChange::Linked { links, ready } => {
            let rows = input.list(links.iter(), |row| link_node(&row.name, &row.link));
            let content = fields! { subscription: name, ready: *ready, links: rows };
            ("subscription linked", content)
        }
        SubscriptionChange::Unlinked { feeds } => {
            let feeds = input.list(feeds.iter(), |feed| Node::from(feed.as_str()));
            let content = fields! { subscription: name, feeds: feeds };
            ("subscription unlinked", content)
        }
        SubscriptionChange::Stepped { step, acks } => {
            let acks = input.list(acks.iter(), |ack| {
                fields! { feed: &*ack.name, id: ack.feed.0, acked: ack.acked }
            });
            let content = fields! { subscription: name, step: format!("{step:?}").to_lowercase(), acks: acks };
            ("subscription stepped", content)
        }
    }
}

pub(super) fn link_node(name: &str, link: &Link) -> Node {
    fields! {
        feed: name,
        id: link.feed.map_or(0, |feed| feed.0),
        acked: link.acked,
        explicit: link.explicit,
    }
}

fn forked_node(input: &Input, forked: &Forked) -> Node {
    fields! {
        name: forked.name.clone(),
        keys: forked.options.keys,
        exclusive: forked.options.exclusive,
        rolling: forked.options.rolling,
        attributes: input.preview(&forked.options.attributes),
        time_ms: forked.time_ms,
        base: base_node(&forked.base),
        last_arrival_ms: forked.ground.last_arrival_ms,
        last_timestamp_ms: forked.ground.last_timestamp_ms,
    }
}

pub(super) fn base_node(base: &Base) -> Node {
    fields! {
        feed: base.feed.0, name: &*base.name, sequence: base.sequence, pin: base.pin.0,
    }
}

pub(super) fn seal_node(input: &Input, seal: &Seal) -> Node {
    fields! {
        commit: seal.number.0,
        kind: format!("{:?}", seal.kind).to_lowercase(),
        time_ms: seal.time_ms,
        message: input.preview(seal.message.as_bytes()),
    }
}

pub(super) fn bare_frame(input: &Input) -> Result<Node> {
    frame_node(input, 0, &input.whole()?)
}

fn frame_node(input: &Input, at: u64, frame: &[u8]) -> Result<Node> {
    let view = FrameView::parse(frame, &FrameLimits::DEFAULT)
        .map_err(|error| Error::corrupt(&input.path, at, error))?;
    let mut content = vec![
        ("format", Node::from("frame")),
        ("kind", format!("{:?}", view.kind()).to_lowercase().into()),
        ("frame_bytes", view.frame_bytes().into()),
        ("base_sequence", view.base_sequence().into()),
        ("record_count", view.record_count().into()),
        ("arrival_ms", view.arrival_ms().into()),
        ("timestamp_floor_ms", view.timestamp_floor_ms().into()),
        ("epoch", view.epoch().into()),
    ];
    if let Some(token) = view.fencing_token() {
        content.push(("fencing_token", token.into()));
    }
    if let Some(expected) = view.match_sequence() {
        content.push(("match_sequence", format!("{expected:?}").into()));
    }
    if let Some(producer) = view.producer() {
        let tag = fields! {
            id: input.preview(producer.id), epoch: producer.epoch, sequence: producer.sequence,
        };
        content.push(("producer", tag));
    }
    let mut records: Vec<Node> = view
        .records()
        .take(input.options.items)
        .map(|record| record_node(input, &record))
        .collect();
    if view.record_count() > records.len() {
        records.push(Node::more(view.record_count() - records.len()));
    }
    content.push(("records", Node::List(records)));
    Ok(Node::Map(content))
}

fn record_node(input: &Input, record: &RecordView<'_>) -> Node {
    let mut content = vec![
        ("sequence", Node::from(record.sequence)),
        ("timestamp_ms", record.timestamp_ms.into()),
    ];
    if let Some(key) = record.key {
        content.push(("key", input.preview(key)));
        content.push(("version", record.version.into()));
        content.push(("tombstone", record.tombstone.into()));
    }
    let headers = record.headers().count();
    if headers > 0 {
        content.push(("headers", headers.into()));
    }
    content.push(("payload_bytes", record.payload.len().into()));
    content.push(("payload", input.preview(record.payload)));
    Node::Map(content)
}
