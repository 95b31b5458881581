//! Book: what the callers of a script know, across processes.
//!
//! **Invariants**
//! - What a batch was refused for by design is in the history as refused before it is sent: found in
//!   the data, it is a breach, whatever its caller was told.
//! - A producer has one call in flight on a feed, so that what it may be told follows from what it
//!   knows.
//!
//! **Not here**: calling the engine (`work`).

use crate::history::{BatchId, History, Tag, payload, record};
use crate::subject::Range;
use sealog_frame::{Batch, BatchBuilder};
use std::collections::BTreeMap;

use super::op::FEEDS;

/// Bytes of payload that a script may send; then records are small. Keeps runs fast.
const PAYLOAD_BYTES_MAX: u64 = 256 << 10;

/// A batch of a producer.
#[derive(Debug, Clone)]
pub(super) struct Sent {
    pub(super) id: BatchId,
    pub(super) batch: Batch,
    pub(super) sequence: u64,
}

/// Where a producer stands on one feed, as far as it knows.
#[derive(Debug, Clone)]
pub(super) struct Writer {
    /// Its producer epoch.
    pub(super) epoch: u64,
    /// Producer sequence of its next batch, or of the one it owes.
    pub(super) next: u64,
    /// Sent, and not known what came of it.
    pub(super) owed: Option<Sent>,
    /// Acknowledged in this epoch.
    pub(super) acked: Vec<(Sent, Range)>,
    /// Highest producer epoch of which a batch was acknowledged.
    pub(super) proven: Option<u64>,
    /// A call of its is in flight.
    pub(super) flies: bool,
}

impl Default for Writer {
    fn default() -> Self {
        Self {
            epoch: 1,
            next: 0,
            owed: None,
            acked: Vec::new(),
            proven: None,
            flies: false,
        }
    }
}

/// A token that was handed out.
#[derive(Debug, Clone, Copy)]
pub(super) struct Lease {
    pub(super) epoch: u64,
    /// How many calls that raise the epoch had been sent when it was asked for, itself included.
    pub(super) raisers: u64,
}

/// What is known of one name.
#[derive(Debug, Default)]
pub(super) struct Slot {
    /// Something was ever done with it.
    pub(super) used: bool,
    /// A deletion was ever sent.
    pub(super) deleted: bool,
    /// The feed of that name, as clients call it.
    pub(super) known: Option<String>,
    /// Calls in flight.
    pub(super) busy: u64,
    /// A deletion is in flight: nobody knows which feed is there.
    pub(super) unsettled: bool,
}

/// What all callers know.
#[derive(Debug, Default)]
pub(super) struct Book {
    pub(super) history: History,
    pub(super) slots: [Slot; FEEDS],
    pub(super) writers: BTreeMap<(String, usize), Writer>,
    pub(super) leases: BTreeMap<String, Vec<Lease>>,
    /// Calls sent that may raise a feed's epoch.
    pub(super) raisers: BTreeMap<String, u64>,
    /// Highest sequence acknowledged, by feed.
    pub(super) newest: BTreeMap<String, u64>,
    payload_bytes: u64,
}

/// Name of a feed.
pub(super) fn name(slot: usize) -> String {
    format!("feed-{slot}")
}

/// Id of a producer.
pub(super) fn producer_id(number: usize) -> String {
    format!("producer-{number}")
}

impl Book {
    /// Tells of a breach.
    pub(super) fn breach(&mut self, words: String) {
        self.history.breaches.push(words);
    }

    /// A batch, in the history; `build` adds what it carries beside records.
    pub(super) fn batch(
        &mut self,
        feed: &str,
        records: u32,
        filler: u32,
        tag: Option<Tag>,
        build: impl FnOnce(&mut BatchBuilder),
    ) -> (BatchId, Batch) {
        let spent = self.payload_bytes >= PAYLOAD_BYTES_MAX;
        let filler = if spent { 0 } else { filler };
        self.payload_bytes += u64::from(records) * u64::from(filler);
        let mut builder = BatchBuilder::default();
        if let Some((producer, epoch, sequence)) = &tag {
            builder
                .producer(producer.as_bytes(), *epoch, *sequence)
                .expect("a short producer id");
        }
        let id = self.history.issue(feed, records, tag);
        for index in 0..records {
            let bytes = payload(id, index, filler);
            let mut key = String::new();
            let record = record(id, index, &bytes, &mut key);
            builder.push(&record).expect("a small record");
        }
        build(&mut builder);
        (id, builder.build().expect("a batch of some records"))
    }

    /// What producer `number` knows of `feed`.
    pub(super) fn writer(&mut self, feed: &str, number: usize) -> &mut Writer {
        self.writers.entry((feed.to_owned(), number)).or_default()
    }

    /// A call that may raise the epoch of `feed` is about to be sent; how many there were with it.
    pub(super) fn raises(&mut self, feed: &str) -> u64 {
        let raisers = self.raisers.entry(feed.to_owned()).or_default();
        *raisers += 1;
        *raisers
    }

    /// A discard is about to be sent: from now on records may be missing.
    pub(super) fn discards(&mut self, feed: &str) {
        self.raises(feed);
        let sent = self.history.tick();
        let discarding = &mut self.history.discarding;
        discarding.entry(feed.to_owned()).or_insert(sent);
    }

    /// A batch was acknowledged.
    pub(super) fn acked(&mut self, feed: &str, id: BatchId, range: Range) {
        self.history.acked(id, range);
        let newest = self.newest.entry(feed.to_owned()).or_default();
        *newest = (*newest).max(range.last);
    }

    /// The process ended, and all calls in flight with it.
    pub(super) fn process_ended(&mut self) {
        for slot in &mut self.slots {
            (slot.busy, slot.unsettled) = (0, false);
        }
        for writer in self.writers.values_mut() {
            writer.flies = false;
        }
    }
}
