//! History: what clients asked for and were told, across all processes of a run.
//!
//! **Invariants**
//! - Ticks order events as an outside observer saw them; they never repeat.
//! - A batch that was once unknown stays possible for ever, whatever a later try was told.
//! - Payloads name their batch and place, and are checked whole: a record can't be mistaken.
//!
//! **Not here**: judging (`oracle`), asking (`workload`).

use crate::sim::rng::mix;
use crate::subject::{CommitView, Range};
use sealog_frame::{Record, RecordView};
use std::collections::{BTreeMap, BTreeSet};

/// Number of a batch within a run.
pub type BatchId = u64;

/// Who sent a batch: producer id, producer epoch, producer sequence.
pub type Tag = (String, u64, u64);

/// What is known of one batch.
#[derive(Debug, Clone)]
pub struct BatchInfo {
    /// Its feed.
    pub feed: String,
    /// Its records.
    pub records: u32,
    /// Its producer, if any.
    pub tag: Option<Tag>,
    /// Tick of its first sending.
    pub issued: u64,
    /// The range it was acknowledged with, and when.
    pub acked: Option<(Range, u64)>,
    /// Whether an answer was missing or unknown at any time.
    pub possible: bool,
}

/// All that clients know.
#[derive(Debug, Default)]
pub struct History {
    tick: u64,
    /// Every batch ever sent.
    pub batches: BTreeMap<BatchId, BatchInfo>,
    /// Feed and epoch of every acknowledged open or resume, and when it was acknowledged.
    pub epochs: Vec<(String, u64, u64)>,
    /// Commits that a seal or discard was acknowledged with, or that were read, by feed.
    pub commits: BTreeMap<String, BTreeMap<u64, CommitView>>,
    /// Feeds on which a discard was ever sent.
    pub discarding: BTreeMap<String, u64>,
    /// What readers were given, by feed and sequence: batch and place.
    pub observed: BTreeMap<String, BTreeMap<u64, (BatchId, u32)>>,
    /// Feeds that are gone for good: their deletion was acknowledged.
    pub deleted: BTreeSet<String>,
    /// Breaches found while the workload ran.
    pub breaches: Vec<String>,
}

/// What clients call a feed that may be deleted and made again: its name and its id.
#[must_use]
pub fn feed_of(name: &str, id: u64) -> String {
    format!("{name}#{id}")
}

/// What the store calls a feed.
#[must_use]
pub fn name_of(feed: &str) -> &str {
    feed.split_once('#').map_or(feed, |(name, _)| name)
}

impl History {
    /// The next moment.
    pub fn tick(&mut self) -> u64 {
        self.tick += 1;
        self.tick
    }

    /// A batch is about to be sent for the first time. It counts as possible until an answer comes.
    pub fn issue(&mut self, feed: &str, records: u32, tag: Option<Tag>) -> BatchId {
        let issued = self.tick();
        let id = self.batches.len() as u64;
        let info = BatchInfo {
            feed: feed.to_owned(),
            records,
            tag,
            issued,
            acked: None,
            possible: true,
        };
        self.batches.insert(id, info);
        id
    }

    /// The feed `name` was made, or found, with this id.
    pub fn made(&mut self, name: &str, id: u64) -> String {
        self.tick();
        let feed = feed_of(name, id);
        if self.deleted.contains(&feed) {
            self.breaches
                .push(format!("{feed} was deleted and is there"));
        }
        feed
    }

    /// The batch was acknowledged. A second time it must be told the same range.
    pub fn acked(&mut self, id: BatchId, range: Range) {
        let at = self.tick();
        let Some(info) = self.batches.get_mut(&id) else {
            return;
        };
        if range.last.wrapping_sub(range.first) != u64::from(info.records) - 1 {
            let records = info.records;
            self.breaches
                .push(format!("batch {id} of {records} acknowledged as {range:?}"));
            return;
        }
        if let Some((before, _)) = info.acked.filter(|(before, _)| *before != range) {
            self.breaches.push(format!(
                "batch {id} acknowledged as {before:?}, then {range:?}"
            ));
            return;
        }
        info.acked.get_or_insert((range, at));
    }

    /// The first and only try of the batch was refused without effects.
    pub fn refused(&mut self, id: BatchId) {
        self.tick();
        if let Some(info) = self.batches.get_mut(&id) {
            info.possible = false;
        }
    }

    /// An open or resume was acknowledged; `sent` is the tick before it was asked.
    pub fn opened(&mut self, feed: &str, epoch: u64, sent: u64) {
        let at = self.tick();
        for (other, earlier, acked) in &self.epochs {
            let stale = *acked < sent && *earlier >= epoch;
            if other == feed && (stale || *earlier == epoch) {
                self.breaches
                    .push(format!("{feed}: epoch {epoch} given after {earlier}"));
            }
        }
        self.epochs.push((feed.to_owned(), epoch, at));
    }

    /// A batch that carried `token` was acknowledged; it was sent at `sent`.
    pub fn acked_under(&mut self, feed: &str, token: u64, sent: u64) {
        let newer = |(other, epoch, at): &&(String, u64, u64)| {
            other == feed && *epoch > token && *at < sent
        };
        if let Some((_, epoch, _)) = self.epochs.iter().find(newer) {
            self.breaches.push(format!(
                "{feed}: append under epoch {token} acknowledged after {epoch} was given"
            ));
        }
    }

    /// A commit was seen; it must never look different.
    pub fn saw_commit(&mut self, feed: &str, commit: &CommitView) {
        let seen = self.commits.entry(feed.to_owned()).or_default();
        let before = seen.entry(commit.number).or_insert_with(|| commit.clone());
        if before != commit {
            self.breaches.push(format!(
                "{feed}: commit changed from {before:?} to {commit:?}"
            ));
        }
    }
}

/// What goes with a payload: it follows from the name of the record.
#[must_use]
pub fn record<'a>(id: BatchId, index: u32, payload: &'a [u8], key: &'a mut String) -> Record<'a> {
    let lot = mix(id ^ (u64::from(index) << 40));
    let mut record = Record::of(payload);
    if lot.is_multiple_of(2) {
        *key = format!("key-{}", (lot >> 8) % 16);
        record.key = Some(key.as_bytes());
        record.version = i64::try_from((lot >> 16) % 4).expect("a small number");
        record.tombstone = (lot >> 24).is_multiple_of(5);
    }
    if (lot >> 32).is_multiple_of(4) {
        record.headers = vec![(&b"name"[..], &payload[4..12])];
    }
    record
}

/// Whether key, version, tombstone mark and headers are those that go with the payload.
#[must_use]
pub fn is_as_sent(seen: &RecordView<'_>) -> bool {
    let mut key = String::new();
    identify(seen.payload).is_some_and(|(id, index)| {
        let sent = record(id, index, seen.payload, &mut key);
        let same =
            (sent.key, sent.version, sent.tombstone) == (seen.key, seen.version, seen.tombstone);
        same && seen.headers().eq(sent.headers)
    })
}

const HEADER_BYTES: usize = 28;

/// The payload of record `index` of a batch: a name, and filler that follows from it.
#[must_use]
pub fn payload(id: BatchId, index: u32, filler: u32) -> Vec<u8> {
    let whole = HEADER_BYTES + filler as usize;
    let mut out = Vec::with_capacity(whole + 8);
    out.extend_from_slice(b"SIMR");
    out.extend_from_slice(&id.to_le_bytes());
    out.extend_from_slice(&index.to_le_bytes());
    out.extend_from_slice(&filler.to_le_bytes());
    let mut x = filler_seed(id, index, filler);
    while out.len() < whole {
        out.extend_from_slice(&x.to_le_bytes());
        x = mix(x);
    }
    out.truncate(whole);
    out
}

fn filler_seed(id: BatchId, index: u32, filler: u32) -> u64 {
    mix(mix(id) ^ (u64::from(index) << 32) ^ u64::from(filler))
}

/// Which record a payload is; `None` when a single byte is off. Readers ask this of every record
/// again and again, so it compares in place.
#[must_use]
pub fn identify(bytes: &[u8]) -> Option<(BatchId, u32)> {
    let id = u64::from_le_bytes(bytes.get(4..12)?.try_into().ok()?);
    let index = u32::from_le_bytes(bytes.get(12..16)?.try_into().ok()?);
    let filler = u32::from_le_bytes(bytes.get(16..20)?.try_into().ok()?);
    let named = bytes.starts_with(b"SIMR");
    if !named || bytes.len().checked_sub(HEADER_BYTES) != Some(filler as usize) {
        return None;
    }
    let mut x = filler_seed(id, index, filler);
    for word in bytes[20..].chunks(8) {
        if word != &x.to_le_bytes()[..word.len()] {
            return None;
        }
        x = mix(x);
    }
    Some((id, index))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn payload_roundtrips_and_any_flip_is_seen() {
        let bytes = payload(77, 3, 50);
        assert_eq!(identify(&bytes), Some((77, 3)));
        for at in 0..bytes.len() {
            let mut bad = bytes.clone();
            bad[at] ^= 1;
            assert_eq!(identify(&bad), None, "flip at {at}");
        }
        assert_eq!(identify(&bytes[..77]), None);
        assert_eq!(identify(&[]), None);
    }

    #[test]
    fn history_epoch_given_twice_is_a_breach() {
        let mut history = History::default();
        history.opened("f", 1, 0);
        let sent = history.tick();
        history.opened("f", 2, sent);
        assert!(history.breaches.is_empty());
        history.opened("f", 2, sent);
        assert_eq!(history.breaches.len(), 1);
    }

    #[test]
    fn history_fenced_writer_acknowledged_is_a_breach() {
        let mut history = History::default();
        history.opened("f", 5, 0);
        let sent = history.tick();
        history.acked_under("f", 5, sent);
        history.acked_under("g", 4, sent);
        history.acked_under("f", 4, 0);
        assert!(history.breaches.is_empty(), "{:?}", history.breaches);
        history.acked_under("f", 4, sent);
        assert_eq!(history.breaches.len(), 1);
    }
}
