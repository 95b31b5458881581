//! Check: what the notes say against what the engine gives back after a kill.
//!
//! **Invariants**
//! - Acknowledged batches are there once, whole, in producer order, at the sequence that was acknowledged.
//! - A batch that was only sent is there whole, or not at all.
//! - Sequences have no gap; producer state agrees with the records; commits chain from number 0.
//!
//! **Not here**: killing.

use std::collections::BTreeMap;

use futures_lite::future::block_on;
use sealog_engine::ids::{CommitNumber, Digest};
use sealog_engine::{Error, Handle, ProductionEnv, ReadFrom, ReadRequest};
use sealog_frame::FrameView;

use super::note::Note;
use super::writers::producer_id;
use super::{FEEDS, WRITERS, feed_name};

/// What is known of all rounds so far.
#[derive(Debug, Default)]
pub struct Ledger {
    /// Acknowledged batches: (writer, producer sequence) to first record sequence.
    acked: BTreeMap<(usize, u64), u64>,
    /// Sent, not answered: (writer, producer sequence) to number of records.
    in_flight: BTreeMap<(usize, u64), u64>,
    records: BTreeMap<(usize, u64), u64>,
    /// Next sequence to check of each feed, and next producer sequence of each writer.
    next: [u64; FEEDS],
    producers: [u64; WRITERS],
    commits: [u64; FEEDS],
    /// Acknowledged batches in all rounds.
    pub acked_total: u64,
    /// Batches that were sent and not answered when a kill came.
    pub in_flight_total: u64,
}

impl Ledger {
    /// Takes a note in.
    pub fn note(&mut self, note: Note) {
        match note {
            Note::Sending {
                writer,
                sequence,
                records,
                ..
            } => {
                self.in_flight.insert((writer, sequence), records);
                self.records.insert((writer, sequence), records);
            }
            Note::Acked {
                writer,
                sequence,
                first,
            } => {
                self.in_flight.remove(&(writer, sequence));
                self.acked.insert((writer, sequence), first);
                self.acked_total += 1;
            }
            Note::Refused { writer, sequence } => {
                self.in_flight.remove(&(writer, sequence));
            }
            Note::Sealed {
                feed,
                commit: Some(number),
                ..
            } => {
                self.commits[feed] = self.commits[feed].max(number + 1);
            }
            Note::Opening | Note::Opened | Note::Sealing { .. } | Note::Sealed { .. } => {}
        }
    }

    /// Checks everything that came since the last check.
    ///
    /// # Errors
    /// A sentence naming what is lost, doubled, partial or out of order.
    pub fn check(&mut self, handle: &Handle<ProductionEnv>) -> Result<(), String> {
        for feed in 0..FEEDS {
            self.check_feed(handle, feed)?;
            self.check_commits(handle, feed)?;
        }
        for writer in 0..WRITERS {
            let state = block_on(handle.producer(&feed_name(writer % FEEDS), &producer_id(writer)));
            let next = match state {
                Ok(state) => state.map_or(0, |state| state.last_sequence + 1),
                Err(Error::FeedNotFound { .. }) => 0,
                Err(error) => return Err(error.to_string()),
            };
            if next != self.producers[writer] {
                let found = self.producers[writer];
                return Err(format!(
                    "writer {writer}: producer at {next}, records at {found}"
                ));
            }
        }
        if let Some(((writer, sequence), first)) = self.acked.first_key_value() {
            return Err(format!(
                "writer {writer}: batch {sequence} acked at {first} is lost"
            ));
        }
        self.in_flight_total += self.in_flight.len() as u64;
        self.in_flight.clear();
        self.records.clear();
        Ok(())
    }

    fn check_feed(&mut self, handle: &Handle<ProductionEnv>, feed: usize) -> Result<(), String> {
        let mut request = ReadRequest::new(feed_name(feed));
        loop {
            request.from = ReadFrom::Sequence(self.next[feed]);
            let chunk = match block_on(handle.read(request.clone())) {
                Ok(chunk) => chunk,
                Err(Error::FeedNotFound { .. }) => return Ok(()),
                Err(error) => return Err(format!("feed {feed}: {error}")),
            };
            if chunk.frames.is_empty() {
                return Ok(());
            }
            let mut rest = &chunk.frames[..];
            while !rest.is_empty() {
                let (frame, after) = FrameView::split_trusted(rest).map_err(|e| e.to_string())?;
                self.check_batch(feed, &frame)?;
                rest = after;
            }
        }
    }

    fn check_batch(&mut self, feed: usize, frame: &FrameView<'_>) -> Result<(), String> {
        let next = self.next[feed];
        if frame.base_sequence() != next {
            return Err(format!(
                "feed {feed}: batch at {}, expected {next}",
                frame.base_sequence()
            ));
        }
        self.next[feed] = frame.end_sequence();
        let mut whose = None;
        for (index, record) in frame.records().enumerate() {
            let text = String::from_utf8_lossy(record.payload);
            let words: Vec<u64> = text
                .split(' ')
                .map_while(|word| word.parse().ok())
                .collect();
            let [writer, sequence, at, records] = words[..] else {
                return Err(format!("feed {feed}: strange payload {text:?}"));
            };
            if at != index as u64 || records != frame.record_count() as u64 {
                return Err(format!(
                    "feed {feed}: record {at} of {records} at place {index}"
                ));
            }
            whose = Some((usize::try_from(writer).unwrap_or(usize::MAX), sequence));
        }
        let Some((writer, sequence)) = whose else {
            return Err("empty batch".to_owned());
        };
        let expected = self.producers.get_mut(writer).ok_or("unknown writer")?;
        if sequence != *expected {
            return Err(format!(
                "writer {writer}: batch {sequence} stored, {expected} is next"
            ));
        }
        *expected += 1;
        let sent = self.records.get(&(writer, sequence)).copied();
        if sent.is_some_and(|records| records != frame.record_count() as u64) {
            return Err(format!(
                "writer {writer}: batch {sequence} is stored in part"
            ));
        }
        if let Some(first) = self.acked.remove(&(writer, sequence))
            && first != frame.base_sequence()
        {
            let at = frame.base_sequence();
            return Err(format!(
                "writer {writer}: batch {sequence} acked at {first}, is at {at}"
            ));
        }
        Ok(())
    }

    fn check_commits(&mut self, handle: &Handle<ProductionEnv>, feed: usize) -> Result<(), String> {
        let commits = block_on(handle.list_commits(&feed_name(feed), CommitNumber(0), usize::MAX));
        let commits = match commits {
            Ok(commits) => commits,
            Err(Error::FeedNotFound { .. }) => return Ok(()),
            Err(error) => return Err(format!("feed {feed}: {error}")),
        };
        let (mut parent, mut end) = (Digest::default(), 0);
        for (number, commit) in commits.iter().enumerate() {
            let chained = commit.number.0 == number as u64 && commit.parent == parent;
            if !chained || commit.first.0 != end {
                return Err(format!(
                    "feed {feed}: commit {number} does not follow: {commit:?}"
                ));
            }
            parent = commit.digest();
            end = commit.end.0;
        }
        if (commits.len() as u64) < self.commits[feed] {
            let (have, want) = (commits.len(), self.commits[feed]);
            return Err(format!(
                "feed {feed}: {have} commits, {want} were acknowledged"
            ));
        }
        Ok(())
    }

    /// Forgets how far checking got, so that the next check looks at everything again.
    pub fn rewind(&mut self) {
        self.next = [0; FEEDS];
        self.producers = [0; WRITERS];
    }
}
