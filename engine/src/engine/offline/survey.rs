//! Survey: what whole groups of a damaged log still tell: which records are there, which were.
//!
//! **Invariants**
//! - A group counts if its header, its body and its place fit; it need not follow another.
//! - Nothing is written. Memory: one group, and a row per group, feed and unpacked stream.
//!
//! **Not here**: what is done about it (`accept_loss`).

use std::collections::BTreeMap;
use std::path::PathBuf;

use sealog_frame::FrameView;

use crate::commit::CommitKind;
use crate::env::Env;
use crate::error::Result;
use crate::feed::{Feeds, Seen, Totals};
use crate::ids::{Epoch, FeedId, StreamId};
use crate::recovery::{Examined, LogPlace};
use crate::subscription::{Step, SubscriptionChange};
use crate::wal::entry::{Change, Entry};
use crate::wal::reader::Group;
use crate::wal::scan::{Link, Scanner, each_header};

/// Log offsets of everything in `from..to` that has the header of a group in its place, in order.
pub(super) async fn group_offsets<E: Env>(
    place: &LogPlace,
    examined: &Examined<E>,
    (from, to): (u64, u64),
) -> Result<Vec<u64>> {
    let (geometry, found) = (place.geometry(), &examined.found);
    let mut offsets = Vec::new();
    for (number, segment) in found.by_number.range(geometry.segment_of(from)..) {
        let first = geometry.first_offset(*number);
        let range = from.max(first)..to.min(geometry.end_offset(*number));
        let position = geometry.position_of(first);
        each_header(found, segment, geometry, place.log, position, |header| {
            if range.contains(&header.offset) {
                offsets.push(header.offset);
            }
        })
        .await?;
    }
    Ok(offsets)
}

/// Shows `see` every whole group of the live segments at log offsets `from..to`, in order.
pub(super) async fn whole_groups<E: Env>(
    env: &E,
    place: &LogPlace,
    examined: &Examined<E>,
    range: (u64, u64),
    mut see: impl FnMut(&Group),
) -> Result<()> {
    let mut scanner = Scanner::new(&examined.found, place.geometry(), place.log);
    for offset in group_offsets(place, examined, range).await? {
        if let Some(group) = scanner.group_at(offset).await? {
            see(&group);
        }
        env.yield_if_needed().await;
    }
    Ok(())
}

/// File and position of the first group of the live segments that is not whole, or does not follow the one
/// before; groups that recovery need not read among them.
pub(super) async fn first_damage<E: Env>(
    env: &E,
    place: &LogPlace,
    examined: &Examined<E>,
) -> Result<Option<(PathBuf, u64)>> {
    let geometry = place.geometry();
    let mut scanner = Scanner::new(&examined.found, geometry, place.log);
    let oldest = geometry.segment_of(examined.loaded.retain_from);
    let mut at = geometry.first_offset(oldest);
    let mut link: Option<Link> = None;
    while at < examined.report.end {
        let Some(group) = scanner.next(at, link).await? else {
            return scanner.damage_at(at, link).await.map(Some);
        };
        at = group.header.end();
        link = Some(Link {
            crc: group.header.crc(),
            incarnation: group.header.incarnation,
        });
        env.yield_if_needed().await;
    }
    Ok(None)
}

/// What lies behind the damage, by feed, and the names of feeds made there.
#[derive(Debug, Default)]
pub(super) struct Behind {
    pub(super) feeds: BTreeMap<FeedId, Seen>,
    pub(super) names: BTreeMap<FeedId, String>,
    /// Highest generation of subscriptions.
    pub(super) generations: BTreeMap<String, u64>,
    /// End of the last whole group.
    pub(super) end: u64,
}

impl Behind {
    /// Takes note of a group behind the damage.
    pub(super) fn group(&mut self, group: &Group) {
        self.end = self.end.max(group.header.end());
        for entry in group.entries().map_while(std::result::Result::ok) {
            if let Ok(Entry::Change(Change::Subscription { name, change })) = entry.decode() {
                self.subscription(&name, &change);
                continue;
            }
            let seen = self.feeds.entry(entry.feed).or_default();
            seen.stream = seen.stream.max(entry.stream);
            match entry.decode() {
                Ok(Entry::Batch(frame)) => {
                    if let Ok(view) = FrameView::trusted(frame) {
                        seen.end = seen.end.max(view.end_sequence());
                        seen.epoch = seen.epoch.max(Epoch(view.epoch()));
                    }
                }
                Ok(Entry::Change(
                    Change::StreamOpened { epoch } | Change::EpochRaised { epoch },
                )) => {
                    seen.epoch = seen.epoch.max(epoch);
                }
                Ok(Entry::Change(Change::Rolled(_))) => {
                    seen.stream = seen.stream.max(StreamId(entry.stream.0 + 1));
                }
                Ok(Entry::Change(Change::FeedCreated { name, .. })) => {
                    self.names.insert(entry.feed, name);
                }
                Ok(Entry::Change(Change::FeedForked(forked))) => {
                    self.names.insert(entry.feed, forked.name);
                }
                _ => {}
            }
        }
    }

    fn subscription(&mut self, name: &str, change: &SubscriptionChange) {
        if let SubscriptionChange::Stepped {
            step: Step::Woken { generation, .. },
            ..
        } = change
        {
            self.wake(name, *generation);
        }
    }

    fn wake(&mut self, name: &str, generation: u64) {
        let seen = self.generations.entry(name.to_owned()).or_default();
        *seen = generation.max(*seen);
    }

    /// Takes note of a newer state, which a checkpoint kept.
    pub(super) fn state(&mut self, feeds: &Feeds) {
        for (name, subscription) in feeds.subscriptions.iter() {
            self.wake(name, subscription.generation);
        }
        for feed in feeds.iter() {
            let seen = self.feeds.entry(feed.id).or_default();
            seen.end = seen.end.max(feed.next_sequence);
            seen.epoch = seen.epoch.max(feed.epoch);
            seen.stream = seen.stream.max(StreamId(feed.next_stream.0 - 1));
            self.names.insert(feed.id, feed.name.to_string());
        }
    }
}

/// How far the unpacked records of a stream are there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Reach {
    /// One past the last record that is there without a gap.
    pub(super) next: u64,
    /// Where the stream ends.
    pub(super) end: u64,
    /// Counts over packs and what is there.
    pub(super) totals: Totals,
}

/// The unpacked records of all unpublished streams.
#[derive(Debug, Default)]
pub(super) struct Unpacked(pub(super) BTreeMap<(FeedId, StreamId), Reach>);

impl Unpacked {
    /// What the state says should be in the log.
    pub(super) fn of(feeds: &Feeds) -> Self {
        let mut all = BTreeMap::new();
        for (feed, stream) in feeds
            .iter()
            .flat_map(|feed| feed.streams.iter().map(|stream| (feed.id, stream)))
        {
            let discarded = stream
                .seal
                .as_ref()
                .is_some_and(|seal| seal.kind == CommitKind::Discarded);
            if discarded || stream.packed_end() == stream.end {
                continue;
            }
            let sum = |field: fn(&crate::commit::PackRef) -> u64| {
                stream.packs.iter().map(field).sum::<u64>()
            };
            let packs = stream.packs.iter();
            let reach = Reach {
                next: stream.packed_end(),
                end: stream.end,
                totals: Totals {
                    records: sum(|pack| pack.records),
                    payload_bytes: sum(|pack| pack.payload_bytes),
                    first_timestamp_ms: stream.totals.first_timestamp_ms,
                    max_timestamp_ms: packs.map(|p| p.max_timestamp_ms).max().unwrap_or(0),
                },
            };
            all.insert((feed, stream.id), reach);
        }
        Self(all)
    }

    /// Takes note of a group.
    pub(super) fn group(&mut self, group: &Group) {
        for entry in group.entries().map_while(std::result::Result::ok) {
            let Some(reach) = self.0.get_mut(&(entry.feed, entry.stream)) else {
                continue;
            };
            let view = entry
                .frame()
                .and_then(|frame| FrameView::trusted(frame).ok());
            let Some(view) = view.filter(|view| view.base_sequence() == reach.next) else {
                continue;
            };
            reach.next = view.end_sequence();
            reach.totals.records += view.record_count() as u64;
            reach.totals.payload_bytes += view.payload_bytes();
            reach.totals.max_timestamp_ms =
                reach.totals.max_timestamp_ms.max(view.last_timestamp_ms());
        }
    }
}
