//! Store: all feeds of one log, by id and by name, and which checkpoint chunks they dirtied.
//!
//! **Invariants**
//! - Every feed is in both maps; names are unique.
//! - A chunk is dirty when an entry of one of its feeds was folded since the chunk was taken.
//!
//! **Not here**: bytes of chunks (`codec`), writing them (`checkpoint`).

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use super::fold::Misfit;
use super::{Feed, FeedOptions, Head};
use crate::ids::{CommitNumber, Epoch, FeedId, LogId, StreamId};
use crate::limits::CHUNK_FEEDS;
use crate::subscription::Subscriptions;
use crate::wal::entry::{Change, Forked};
use crate::wal::log::Position;
use crate::wal::segment::Geometry;

const COUNTER_BITS: u32 = 48;

/// A deleted feed whose objects are still in the bucket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Doomed {
    /// The name it had.
    pub name: Rc<str>,
    /// When it was deleted.
    pub time_ms: u64,
}

/// All feeds of one log.
#[derive(Debug)]
pub struct Feeds {
    log: LogId,
    pub(super) geometry: Geometry,
    pub(super) by_id: BTreeMap<FeedId, Box<Feed>>,
    by_name: BTreeMap<Rc<str>, FeedId>,
    pub(super) doomed: BTreeMap<FeedId, Doomed>,
    pub(super) next_counter: u64,
    dirty: BTreeSet<u64>,
    ranges: usize,
    /// Feeds whose oldest unpublished stream is sealed: the lane's work.
    sealed: BTreeSet<FeedId>,
    /// Feeds by the log offset from which they need the log.
    needed: BTreeSet<(u64, FeedId)>,
    /// Feeds whose open stream rolls once it is due, by the arrival of its first record.
    rolling: BTreeSet<(u64, FeedId)>,
    /// What is subscribed to: not feeds, but of this log's state.
    pub(crate) subscriptions: Subscriptions,
}

impl Feeds {
    /// No feeds.
    #[must_use]
    pub fn new(log: LogId, geometry: Geometry) -> Self {
        Self {
            log,
            geometry,
            by_id: BTreeMap::new(),
            by_name: BTreeMap::new(),
            doomed: BTreeMap::new(),
            next_counter: 0,
            dirty: BTreeSet::new(),
            ranges: 0,
            sealed: BTreeSet::new(),
            needed: BTreeSet::new(),
            rolling: BTreeSet::new(),
            subscriptions: Subscriptions::default(),
        }
    }

    /// The feed named `name`.
    #[must_use]
    pub fn named(&self, name: &str) -> Option<&Feed> {
        self.get(*self.by_name.get(name)?)
    }

    /// The feed with this id.
    #[must_use]
    pub fn get(&self, id: FeedId) -> Option<&Feed> {
        self.by_id.get(&id).map(|feed| &**feed)
    }

    pub(crate) fn get_mut(&mut self, id: FeedId) -> Option<&mut Feed> {
        self.by_id.get_mut(&id).map(|feed| &mut **feed)
    }

    /// Feeds whose name is at or after `from`, in name order.
    pub fn names_from(&self, from: &str) -> impl Iterator<Item = &Feed> {
        let range = (std::ops::Bound::Included(from), std::ops::Bound::Unbounded);
        self.by_name
            .range::<str, _>(range)
            .filter_map(|(_, id)| self.get(*id))
    }

    /// All feeds, in id order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Feed> {
        self.by_id.values().map(|feed| &**feed)
    }

    /// Deleted feeds whose objects are still there.
    pub fn doomed(&self) -> impl Iterator<Item = (FeedId, &Doomed)> {
        self.doomed.iter().map(|(id, doomed)| (*id, doomed))
    }

    /// How many feeds there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.by_id.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.by_id.is_empty()
    }

    /// The id that the next feed gets.
    #[must_use]
    pub fn next_id(&self) -> FeedId {
        FeedId((self.log.0 << COUNTER_BITS) | self.next_counter)
    }

    /// The checkpoint chunk of a feed.
    #[must_use]
    pub fn chunk_of(id: FeedId) -> u64 {
        let log = id.0 >> COUNTER_BITS;
        let counter = id.0 & ((1 << COUNTER_BITS) - 1);
        (log << (COUNTER_BITS - 8)) | (counter / CHUNK_FEEDS)
    }

    pub(crate) fn producer_ranges(&self) -> usize {
        self.ranges
    }

    pub(super) fn count_ranges(&mut self, before: usize, after: usize) {
        self.ranges = self.ranges + after - before;
    }

    pub(super) fn mark(&mut self, id: FeedId) {
        self.dirty.insert(Self::chunk_of(id));
    }

    /// Chunks dirtied since they were last taken.
    pub(crate) fn dirty_chunks(&self) -> Vec<u64> {
        self.dirty.iter().copied().collect()
    }

    pub(crate) fn chunk_taken(&mut self, chunk: u64) {
        self.dirty.remove(&chunk);
    }

    pub(crate) fn chunk_failed(&mut self, chunk: u64) {
        self.dirty.insert(chunk);
    }

    /// A feed whose oldest unpublished stream is sealed.
    #[must_use]
    pub fn next_sealed(&self) -> Option<&Feed> {
        self.get(*self.sealed.first()?)
    }

    /// Commits that are sealed and not published.
    #[must_use]
    pub fn unpublished(&self) -> u64 {
        let feeds = self.sealed.iter().filter_map(|id| self.get(*id));
        let sealed = feeds.flat_map(|feed| feed.streams.iter().filter(|s| s.is_sealed()));
        sealed.count() as u64
    }

    /// Lowest log offset that any stream needs.
    #[must_use]
    pub fn needed_from(&self) -> Option<u64> {
        self.needed.first().map(|(offset, _)| *offset)
    }

    /// Feeds that need the log below `bound`.
    pub fn needing_below(&self, bound: u64) -> impl Iterator<Item = &Feed> {
        let range = self.needed.range(..(bound, FeedId(0)));
        range.filter_map(|(_, id)| self.get(*id))
    }

    /// Feeds whose oldest unpublished stream is sealed.
    pub(crate) fn sealed_len(&self) -> usize {
        self.sealed.len()
    }

    /// Feeds whose open stream rolls once it is due, oldest first: when its first record arrived.
    pub(crate) fn rolling(&self) -> impl Iterator<Item = (u64, FeedId)> {
        self.rolling.iter().copied()
    }

    /// Brings the derived sets in line with feed `id`.
    pub(super) fn refresh(&mut self, id: FeedId) {
        let Some(feed) = self.by_id.get_mut(&id) else {
            return;
        };
        let needed = feed.needed_from();
        let before = std::mem::replace(&mut feed.needed_cached, needed);
        let rolling = feed.rolling_stream().map(|stream| stream.first_arrival_ms);
        let rolled = std::mem::replace(&mut feed.rolling_cached, rolling);
        let sealed = feed.streams.first().is_some_and(super::Stream::is_sealed);
        move_in_index(&mut self.needed, id, before, needed);
        move_in_index(&mut self.rolling, id, rolled, rolling);
        if sealed {
            self.sealed.insert(id);
        } else {
            self.sealed.remove(&id);
        }
    }

    pub(super) fn fold_target(&mut self, id: FeedId, at: Position) -> Result<&mut Feed, Misfit> {
        self.mark(id);
        match self.by_id.get_mut(&id) {
            Some(feed) => {
                feed.last_group = at.group;
                Ok(feed)
            }
            None => Err(Misfit(format!("no feed id {id}"))),
        }
    }

    pub(super) fn create(
        &mut self,
        id: FeedId,
        change: &Change,
        at: Position,
    ) -> Result<(), Misfit> {
        let Change::FeedCreated {
            name,
            options,
            time_ms,
        } = change
        else {
            return Err(Misfit("not a creation".to_owned()));
        };
        self.make(new_feed(id, name, options.clone(), *time_ms), at)
    }

    /// A feed that goes on from another: FORK-1.
    pub(super) fn fork(&mut self, id: FeedId, forked: &Forked, at: Position) -> Result<(), Misfit> {
        let Forked { ground, base, .. } = forked;
        let mut feed = new_feed(id, &forked.name, forked.options.clone(), forked.time_ms);
        feed.next_sequence = base.sequence;
        feed.head.end = base.sequence;
        feed.last_arrival_ms = ground.last_arrival_ms;
        feed.last_timestamp_ms = ground.last_timestamp_ms;
        feed.lineage.get_or_insert_default().base = Some(base.clone());
        self.make(feed, at)
    }

    fn make(&mut self, mut feed: Feed, at: Position) -> Result<(), Misfit> {
        let id = feed.id;
        let counter = id.0 & ((1 << COUNTER_BITS) - 1);
        if self.by_id.contains_key(&id) || self.by_name.contains_key(&feed.name) {
            return Err(Misfit(format!("feed {:?} created twice", feed.name)));
        }
        if id.0 >> COUNTER_BITS == self.log.0 {
            self.next_counter = self.next_counter.max(counter + 1);
        }
        feed.last_group = at.group;
        self.insert(feed);
        self.mark(id);
        Ok(())
    }

    pub(crate) fn insert(&mut self, feed: Feed) {
        self.ranges += feed.producers.as_ref().map_or(0, |p| p.ranges());
        let id = feed.id;
        self.by_name.insert(feed.name.clone(), id);
        self.by_id.insert(id, Box::new(feed));
        self.refresh(id);
    }

    pub(super) fn remove(&mut self, id: FeedId, time_ms: u64) -> Result<(), Misfit> {
        self.mark(id);
        let Some(feed) = self.by_id.remove(&id) else {
            return Err(Misfit(format!("feed id {id} deleted but not there")));
        };
        self.by_name.remove(&feed.name);
        self.sealed.remove(&id);
        move_in_index(&mut self.needed, id, feed.needed_cached, None);
        move_in_index(&mut self.rolling, id, feed.rolling_cached, None);
        self.ranges -= feed.producers.as_ref().map_or(0, |p| p.ranges());
        self.doomed.insert(
            id,
            Doomed {
                name: feed.name,
                time_ms,
            },
        );
        Ok(())
    }

    pub(super) fn cleaned(&mut self, id: FeedId, _at: Position) -> Result<(), Misfit> {
        self.mark(id);
        match self.doomed.remove(&id) {
            Some(_) => Ok(()),
            None => Err(Misfit(format!("feed id {id} cleaned but not deleted"))),
        }
    }
}

/// Moves feed `id` within an index from where it was to where it is now.
fn move_in_index(
    index: &mut BTreeSet<(u64, FeedId)>,
    id: FeedId,
    before: Option<u64>,
    now: Option<u64>,
) {
    if before == now {
        return;
    }
    if let Some(at) = before {
        index.remove(&(at, id));
    }
    if let Some(at) = now {
        index.insert((at, id));
    }
}

fn new_feed(id: FeedId, name: &str, options: FeedOptions, created_ms: u64) -> Feed {
    Feed {
        id,
        name: name.into(),
        options,
        created_ms,
        epoch: Epoch(0),
        next_sequence: 0,
        next_stream: StreamId(1),
        last_arrival_ms: 0,
        last_timestamp_ms: 0,
        next_commit: CommitNumber(0),
        head: Head::default(),
        streams: Vec::new(),
        closed: None,
        order: None,
        producers: None,
        lineage: None,
        last_group: 0,
        needed_cached: None,
        rolling_cached: None,
    }
}
