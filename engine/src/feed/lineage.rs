//! Lineage: where a feed's records begin to be its own, and which feeds go on from it. Spec: spec/lease.md §6.
//!
//! **Invariants**
//! - FORK-1: a base never changes: below it the source answers, from it on the feed itself.
//! - FORK-2: a feed with pins is never gone: deleted, it keeps its name, its id and what it holds.
//! - FORK-3: a pin is dropped once, and the last one of a deleted feed takes the feed with it.
//!
//! **Not here**: when pins are put and dropped (`shard::fork`), how reads go down (`read`).

use std::collections::BTreeMap;

use super::{Feed, Feeds, Misfit};
use crate::codec::{DecodeError, Reader, Writer};
use crate::ids::{FeedId, PinId};
use crate::wal::entry::text;
use crate::wal::log::Position;

/// Bits of the byte that says what of a lineage follows.
const HAS_BASE: u8 = 1;
const IS_DELETED: u8 = 2;

/// Where a fork goes on from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Base {
    /// The source.
    pub feed: FeedId,
    /// Its name: which log it is in.
    pub name: Box<str>,
    /// First sequence that is the fork's own.
    pub sequence: u64,
    /// What keeps the source's range.
    pub pin: PinId,
}

/// What keeps a feed's range for a fork.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pin {
    /// What lies below is kept.
    pub sequence: u64,
    /// Name of the fork.
    pub fork: Box<str>,
}

/// Of the few feeds that have one.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Lineage {
    pub(super) base: Option<Base>,
    pub(super) pins: BTreeMap<PinId, Pin>,
    /// When it was deleted, in milliseconds since the Unix epoch.
    pub(super) deleted_ms: Option<u64>,
}

impl Base {
    pub(crate) fn encode(&self, w: &mut Writer) {
        w.u64(self.feed.0)
            .u64(self.pin.0)
            .u64(self.sequence)
            .bytes(self.name.as_bytes());
    }

    pub(crate) fn decode(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(Self {
            feed: FeedId(r.u64()?),
            pin: PinId(r.u64()?),
            sequence: r.u64()?,
            name: text(r)?.into(),
        })
    }
}

impl Pin {
    pub(crate) fn encode(&self, w: &mut Writer) {
        w.u64(self.sequence).bytes(self.fork.as_bytes());
    }

    pub(crate) fn decode(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(Self {
            sequence: r.u64()?,
            fork: text(r)?.into(),
        })
    }
}

impl Lineage {
    pub(super) fn encode(&self, w: &mut Writer) {
        let base = u8::from(self.base.is_some()) * HAS_BASE;
        let deleted = u8::from(self.deleted_ms.is_some()) * IS_DELETED;
        w.u8(base | deleted);
        if let Some(base) = &self.base {
            base.encode(w);
        }
        if let Some(time_ms) = self.deleted_ms {
            w.u64(time_ms);
        }
        w.u64(self.pins.len() as u64);
        for (id, pin) in &self.pins {
            w.u64(id.0);
            pin.encode(w);
        }
    }

    pub(super) fn decode(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let flags = r.u8()?;
        let invalid = |field, value| Err(DecodeError::Invalid { field, value });
        if flags & !(HAS_BASE | IS_DELETED) != 0 {
            return invalid("flag", flags.into());
        }
        let mut lineage = Self::default();
        if flags & HAS_BASE != 0 {
            lineage.base = Some(Base::decode(r)?);
        }
        if flags & IS_DELETED != 0 {
            lineage.deleted_ms = Some(r.u64()?);
        }
        for _ in 0..r.u64()? {
            let id = PinId(r.u64()?);
            if lineage
                .pins
                .last_key_value()
                .is_some_and(|(last, _)| *last >= id)
            {
                return invalid("pin id", id.0);
            }
            lineage.pins.insert(id, Pin::decode(r)?);
        }
        // A deleted feed is there for its pins only: FORK-2.
        if lineage.deleted_ms.is_some() && lineage.pins.is_empty() {
            return invalid("pins", 0);
        }
        Ok(lineage)
    }
}

impl Feed {
    /// Where it goes on from, if it is a fork.
    #[must_use]
    pub fn base(&self) -> Option<&Base> {
        self.lineage.as_ref()?.base.as_ref()
    }

    /// First sequence that is its own.
    #[must_use]
    pub fn own_from(&self) -> u64 {
        self.base().map_or(0, |base| base.sequence)
    }

    /// What keeps its range for forks.
    pub fn pins(&self) -> impl Iterator<Item = (PinId, &Pin)> {
        let pins = self.lineage.iter().flat_map(|lineage| &lineage.pins);
        pins.map(|(id, pin)| (*id, pin))
    }

    /// Whether this pin is on it.
    #[must_use]
    pub fn has_pin(&self, pin: PinId) -> bool {
        let lineage = self.lineage.as_ref();
        lineage.is_some_and(|lineage| lineage.pins.contains_key(&pin))
    }

    /// What lies below is kept for forks, whatever becomes of the feed.
    #[must_use]
    pub fn pinned_end(&self) -> u64 {
        self.pins().map(|(_, pin)| pin.sequence).max().unwrap_or(0)
    }

    /// It was deleted, and is there for its forks only.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        let lineage = self.lineage.as_ref();
        lineage.is_some_and(|lineage| lineage.deleted_ms.is_some())
    }
}

impl Feeds {
    /// The feed named `name`, unless it is there for its forks only.
    #[must_use]
    pub fn living(&self, name: &str) -> Option<&Feed> {
        self.named(name).filter(|feed| !feed.is_gone())
    }

    pub(super) fn pin(
        &mut self,
        id: FeedId,
        (pin, what): (PinId, &Pin),
        at: Position,
    ) -> Result<(), Misfit> {
        let feed = self.fold_target(id, at)?;
        if what.sequence > feed.next_sequence {
            return Err(Misfit(format!(
                "pin at {} of feed id {id}, which ends at {}",
                what.sequence, feed.next_sequence
            )));
        }
        let lineage = feed.lineage.get_or_insert_default();
        match lineage.pins.insert(pin, what.clone()) {
            None => Ok(()),
            Some(_) => Err(Misfit(format!("pin {pin} of feed id {id} put twice"))),
        }
    }

    pub(super) fn unpin(
        &mut self,
        id: FeedId,
        pin: PinId,
        time_ms: u64,
        at: Position,
    ) -> Result<(), Misfit> {
        let feed = self.fold_target(id, at)?;
        let lineage = feed.lineage.as_deref_mut();
        let missing = || Misfit(format!("no pin {pin} on feed id {id}"));
        let lineage = lineage.ok_or_else(missing)?;
        lineage.pins.remove(&pin).ok_or_else(missing)?;
        let last = lineage.pins.is_empty();
        if last && lineage.deleted_ms.is_some() {
            return self.remove(id, time_ms);
        }
        if *lineage == Lineage::default() {
            feed.lineage = None;
        }
        Ok(())
    }

    /// Deletes a feed, or only says so of one with pins: FORK-2.
    pub(super) fn delete(&mut self, id: FeedId, time_ms: u64, at: Position) -> Result<(), Misfit> {
        let feed = self.fold_target(id, at)?;
        if feed.is_gone() {
            return Err(Misfit(format!("feed id {id} deleted twice")));
        }
        let lineage = feed.lineage.as_deref_mut();
        let Some(lineage) = lineage.filter(|lineage| !lineage.pins.is_empty()) else {
            return self.remove(id, time_ms);
        };
        lineage.deleted_ms = Some(time_ms);
        // Nobody writes to it any more.
        let producers = feed.producers.take();
        self.count_ranges(producers.map_or(0, |p| p.ranges()), 0);
        self.refresh(id);
        Ok(())
    }
}
