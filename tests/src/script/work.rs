//! Work: does one action of a script on the running store and checks its answer against the book.
//!
//! **Invariants**
//! - An answer that the book rules out is a breach; one that a fault may have caused is not.
//! - Nothing is asked of a name while a deletion of it is in flight: the book wouldn't know of which
//!   feed the answer speaks.
//!
//! **Not here**: processes and their ends (`mod`).

use super::book::{Book, Lease, Sent, Writer, name, producer_id};
use super::op::{Action, From, Match, Token, Wrong};
use crate::engine_subject::EngineSubject;
use crate::history::{BatchId, identify};
use crate::oracle::{judge_part, judge_read};
use crate::sim::SimEnv;
use crate::subject::{Opened, Outcome, Range, Refusal, Seen, Subject};
use crate::workload::give_up_after;
use sealog_engine::env::Env;
use sealog_engine::ids::CommitNumber;
use sealog_engine::{ReadFrom, ReadRequest};
use sealog_frame::{Batch, MatchSequence};
use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

/// Callers of one process.
#[derive(Clone)]
pub(super) struct Callers {
    pub(super) subject: EngineSubject,
    pub(super) env: SimEnv,
    pub(super) book: Rc<RefCell<Book>>,
}

/// A batch without a producer that is ready to be sent.
struct Plain {
    id: BatchId,
    batch: Batch,
    lease: Option<Lease>,
    matching: Option<MatchSequence>,
    bogus: bool,
}

impl Callers {
    /// Does `action` with the feed of `slot`.
    pub(super) async fn act(&self, slot: usize, action: Action, patience: Option<u64>) {
        let name = name(slot);
        if action == Action::Delete {
            return self.delete(slot, &name).await;
        }
        if self.book.borrow().slots[slot].unsettled {
            return;
        }
        self.busy(slot, 1);
        if let Some(feed) = self.feed(slot, &name).await {
            self.on(&name, &feed, action, patience).await;
        }
        self.busy(slot, -1);
    }

    fn busy(&self, slot: usize, by: i64) {
        let busy = &mut self.book.borrow_mut().slots[slot].busy;
        *busy = busy.saturating_add_signed(by);
    }

    /// The feed of that name, which is made unless it is known.
    async fn feed(&self, slot: usize, name: &str) -> Option<String> {
        self.book.borrow_mut().slots[slot].used = true;
        let known = self.book.borrow().slots[slot].known.clone();
        if known.is_some() {
            return known;
        }
        let Outcome::Acked(id) = self.subject.create_feed(name).await else {
            return None;
        };
        let mut book = self.book.borrow_mut();
        let feed = book.history.made(name, id);
        book.slots[slot].known = Some(feed.clone());
        Some(feed)
    }

    async fn on(&self, name: &str, feed: &str, action: Action, patience: Option<u64>) {
        let polls = patience.unwrap_or(u64::MAX);
        match action {
            Action::Append { times, .. } => {
                let (told, done) = flume::unbounded();
                for _ in 0..times {
                    let plain = self.plain(feed, action);
                    let (callers, told) = (self.clone(), told.clone());
                    let (name, feed) = (name.to_owned(), feed.to_owned());
                    self.env.spawn("append", async move {
                        callers.append(&name, &feed, plain, polls).await;
                        let _ = told.send(());
                    });
                }
                drop(told);
                while done.recv_async().await.is_ok() {}
            }
            Action::Produce { producer, .. } => {
                if self.takes_off(feed, producer) {
                    self.produce(name, feed, action, polls).await;
                    self.lands(feed, producer);
                }
            }
            Action::Misbehave {
                producer,
                wrong,
                pick,
            } => {
                if self.takes_off(feed, producer) {
                    self.misbehave(name, feed, producer, wrong, pick).await;
                    self.lands(feed, producer);
                }
            }
            Action::Open => self.open(feed, self.subject.open(name)).await,
            Action::Resume => self.open(feed, self.subject.resume(name)).await,
            Action::Seal => {
                self.book.borrow_mut().raises(feed);
                let sealed = self.subject.seal(name).await;
                self.settled(feed, sealed);
            }
            Action::Discard => {
                self.book.borrow_mut().discards(feed);
                let discarded = self.subject.discard(name).await;
                self.settled(feed, discarded);
            }
            Action::ReadAll => {
                let _ = self.read_all(name, feed).await;
            }
            Action::ReadPart { .. } => self.read_part(name, feed, action).await,
            Action::Delete => unreachable!("a deletion has its own way"),
        }
    }

    async fn delete(&self, slot: usize, name: &str) {
        {
            let slot = &mut self.book.borrow_mut().slots[slot];
            if slot.busy > 0 || slot.unsettled {
                return;
            }
            slot.unsettled = true;
            slot.deleted = true;
        }
        let known = self.book.borrow_mut().slots[slot].known.take();
        let outcome = self.subject.delete_feed(name).await;
        let mut book = self.book.borrow_mut();
        book.slots[slot].unsettled = false;
        match (outcome, known) {
            (Outcome::Acked(()), Some(feed)) => {
                book.history.deleted.insert(feed);
            }
            (Outcome::Refused(Refusal::NotFound), Some(feed)) => {
                book.breach(format!("{feed} was made and is not found"));
            }
            _ => {}
        }
    }

    fn plain(&self, feed: &str, action: Action) -> Plain {
        let Action::Append {
            records,
            filler,
            token,
            matching,
            ..
        } = action
        else {
            unreachable!("only appends are plain")
        };
        let mut book = self.book.borrow_mut();
        let newest = book.newest.get(feed).copied();
        let matching = match matching {
            Match::None => None,
            Match::Empty => Some(MatchSequence::Empty),
            Match::Newest => newest.map(MatchSequence::At),
            Match::Bogus => Some(MatchSequence::At(newest.unwrap_or(0) + 100_000)),
        };
        let leases = book.leases.get(feed);
        let bogus = Lease {
            epoch: 1_000,
            raisers: 0,
        };
        let lease = match token {
            Token::None => None,
            Token::Newest => leases.and_then(|all| all.iter().max_by_key(|l| l.epoch).copied()),
            Token::Oldest => leases.and_then(|all| all.first().copied()),
            Token::Bogus => Some(bogus),
        };
        let (id, batch) = book.batch(feed, records, filler, None, |builder| {
            matching.map(|expected| builder.match_sequence(expected));
        });
        Plain {
            id,
            batch: match lease {
                Some(lease) => batch.with_fencing_token(lease.epoch),
                None => batch,
            },
            lease,
            matching,
            bogus: token == Token::Bogus,
        }
    }

    async fn append(&self, name: &str, feed: &str, plain: Plain, polls: u64) {
        let sent = self.book.borrow_mut().history.tick();
        let call = self.subject.append(name, plain.batch);
        let outcome = give_up_after(polls, call).await;
        let mut book = self.book.borrow_mut();
        match outcome {
            Outcome::Acked(range) => {
                book.acked(feed, plain.id, range);
                let due = match plain.matching {
                    None => range.first,
                    Some(MatchSequence::Empty) => 0,
                    Some(MatchSequence::At(last)) => last + 1,
                };
                if range.first != due {
                    let words = format!("{feed}: {range:?} acknowledged where {due} was due");
                    book.breach(words);
                }
                if plain.bogus {
                    book.breach(format!("{feed}: append under a made-up token acknowledged"));
                } else if let Some(lease) = plain.lease {
                    book.history.acked_under(feed, lease.epoch, sent);
                }
            }
            Outcome::Refused(refusal) => {
                book.history.refused(plain.id);
                self.made(&mut book, feed, &refusal);
                let raisers = book.raisers.get(feed).copied();
                let newest = plain.lease.filter(|l| Some(l.raisers) == raisers);
                if let (Some(lease), Refusal::Fenced) = (newest, refusal) {
                    let epoch = lease.epoch;
                    book.breach(format!("{feed}: epoch {epoch} fenced by nobody"));
                }
            }
            Outcome::Unknown(_) => {}
        }
    }

    /// A feed that was made is found.
    fn made(&self, book: &mut Book, feed: &str, refusal: &Refusal) {
        if *refusal == Refusal::NotFound {
            book.breach(format!("{feed} was made and is not found"));
        }
    }

    /// Claims the producer's one call in flight.
    fn takes_off(&self, feed: &str, producer: usize) -> bool {
        let mut book = self.book.borrow_mut();
        !std::mem::replace(&mut book.writer(feed, producer).flies, true)
    }

    fn lands(&self, feed: &str, producer: usize) {
        self.book.borrow_mut().writer(feed, producer).flies = false;
    }

    async fn produce(&self, name: &str, feed: &str, action: Action, polls: u64) {
        let Action::Produce {
            producer,
            records,
            filler,
            raises,
        } = action
        else {
            unreachable!("only producers produce")
        };
        let (owed, first_try) = {
            let mut book = self.book.borrow_mut();
            match book.writer(feed, producer).owed.clone() {
                Some(owed) => (owed, false),
                None => {
                    let writer = book.writer(feed, producer);
                    if raises && writer.next > 0 {
                        (writer.epoch, writer.next) = (writer.epoch + 1, 0);
                        writer.acked.clear();
                    }
                    let (epoch, sequence) = (writer.epoch, writer.next);
                    let tag = Some((producer_id(producer), epoch, sequence));
                    let (id, batch) = book.batch(feed, records, filler, tag, |_| ());
                    let sent = Sent {
                        id,
                        batch,
                        sequence,
                    };
                    book.writer(feed, producer).owed = Some(sent.clone());
                    (sent, true)
                }
            }
        };
        let call = self.subject.append(name, owed.batch.clone());
        let outcome = give_up_after(polls, call).await;
        let mut book = self.book.borrow_mut();
        match outcome {
            Outcome::Acked(range) => {
                book.acked(feed, owed.id, range);
                let writer = book.writer(feed, producer);
                writer.owed = None;
                writer.next = owed.sequence + 1;
                writer.proven = Some(writer.epoch);
                writer.acked.push((owed, range));
            }
            Outcome::Refused(refusal @ (Refusal::ProducerGap | Refusal::ProducerFenced)) => {
                let (id, at) = (producer_id(producer), owed.sequence);
                book.breach(format!("{feed}: orderly {id} told {refusal:?} at {at}"));
            }
            Outcome::Refused(refusal) => {
                self.made(&mut book, feed, &refusal);
                if first_try {
                    // Nothing happened: the same sequence is free for another batch.
                    book.history.refused(owed.id);
                    book.writer(feed, producer).owed = None;
                }
            }
            Outcome::Unknown(_) => {}
        }
    }

    async fn misbehave(&self, name: &str, feed: &str, producer: usize, wrong: Wrong, pick: usize) {
        let writer = self.book.borrow_mut().writer(feed, producer).clone();
        let earlier = writer.acked.get(pick % writer.acked.len().max(1)).cloned();
        let tag = match (wrong, &earlier) {
            (Wrong::Duplicate, Some((sent, range))) => {
                let outcome = self.subject.append(name, sent.batch.clone()).await;
                self.same_range(feed, *range, &outcome);
                return;
            }
            (Wrong::Imposter, Some((sent, _))) => (writer.epoch, sent.sequence),
            (Wrong::Duplicate | Wrong::Imposter, None) => return,
            (Wrong::Gap, _) => (writer.epoch, beyond(&writer, pick)),
            (Wrong::StaleEpoch, _) => match writer.proven {
                Some(proven) => (proven - 1, pick as u64 % 3),
                None => return,
            },
            (Wrong::EpochStart, _) => (writer.epoch + 7, 1 + pick as u64),
        };
        let batch = {
            let mut book = self.book.borrow_mut();
            let tag = Some((producer_id(producer), tag.0, tag.1));
            let (id, batch) = book.batch(feed, 1, 9, tag, |_| ());
            book.history.refused(id);
            batch
        };
        let outcome = self.subject.append(name, batch).await;
        match (outcome, earlier.filter(|_| wrong == Wrong::Imposter)) {
            (outcome, Some((_, range))) => self.same_range(feed, range, &outcome),
            (Outcome::Acked(range), None) => {
                let mut book = self.book.borrow_mut();
                book.breach(format!(
                    "{feed}: {wrong:?} {tag:?} acknowledged as {range:?}"
                ));
            }
            _ => {}
        }
    }

    /// A batch whose numbers were acknowledged before is success again, at the same place.
    fn same_range(&self, feed: &str, before: Range, outcome: &Outcome<Range>) {
        let fine = match outcome {
            Outcome::Acked(now) => *now == before,
            Outcome::Refused(refusal) => !matches!(
                refusal,
                Refusal::ProducerGap | Refusal::ProducerFenced | Refusal::NotFound
            ),
            Outcome::Unknown(_) => true,
        };
        if !fine {
            let mut book = self.book.borrow_mut();
            book.breach(format!("{feed}: duplicate of {before:?} told {outcome:?}"));
        }
    }

    async fn open(&self, feed: &str, call: impl Future<Output = Outcome<Opened>>) {
        let (raisers, sent) = {
            let mut book = self.book.borrow_mut();
            (book.raises(feed), book.history.tick())
        };
        let outcome = call.await;
        let mut book = self.book.borrow_mut();
        match outcome {
            Outcome::Acked(opened) => {
                let epoch = opened.epoch;
                book.history.opened(feed, epoch, sent);
                let leases = book.leases.entry(feed.to_owned()).or_default();
                leases.push(Lease { epoch, raisers });
            }
            Outcome::Refused(refusal) => self.made(&mut book, feed, &refusal),
            Outcome::Unknown(_) => {}
        }
    }

    fn settled(&self, feed: &str, outcome: Outcome<crate::subject::CommitView>) {
        let mut book = self.book.borrow_mut();
        match outcome {
            Outcome::Acked(commit) => book.history.saw_commit(feed, &commit),
            Outcome::Refused(refusal) => self.made(&mut book, feed, &refusal),
            Outcome::Unknown(_) => {}
        }
    }

    /// Reads all of a feed; an error may be a fault's.
    pub(super) async fn read_all(&self, name: &str, feed: &str) -> Result<(), String> {
        let since = self.book.borrow_mut().history.tick();
        let records = self.subject.read_all(name).await?;
        let mut book = self.book.borrow_mut();
        let discarding = book.history.discarding.contains_key(feed);
        match judge_read(&book.history, feed, &records, since, &|_| discarding) {
            Ok(()) => observed(&mut book, feed, &records),
            Err(breach) => book.breach(format!("while reading: {breach}")),
        }
        Ok(())
    }

    async fn read_part(&self, name: &str, feed: &str, action: Action) {
        let Action::ReadPart {
            from,
            bytes,
            most,
            wait_ms,
        } = action
        else {
            unreachable!("only reads read")
        };
        let mut request = ReadRequest::new(name);
        request.from = match from {
            From::Sequence(at) => ReadFrom::Sequence(at),
            From::Tail(back) => ReadFrom::Tail(back),
            From::Commit(number) => ReadFrom::Commit(CommitNumber(number)),
        };
        if let (From::Sequence(at), Some(most)) = (from, most) {
            request.end = at + most;
        }
        let end = request.end;
        request.bytes_max = bytes;
        request.wait = Duration::from_millis(wait_ms);
        let since = self.book.borrow_mut().history.tick();
        let Ok(part) = self.subject.read_part(request).await else {
            return;
        };
        let mut book = self.book.borrow_mut();
        let astray = match from {
            From::Sequence(at) => part.first < at,
            From::Tail(_) | From::Commit(_) => false,
        };
        if astray || part.next > end.max(part.first) {
            let (first, next) = (part.first, part.next);
            let words = format!("{feed}: {first}..{next} answered to {from:?} up to {end}");
            book.breach(words);
        }
        let discarding = book.history.discarding.contains_key(feed);
        match judge_part(&book.history, feed, &part, since, &|_| discarding) {
            Ok(()) => observed(&mut book, feed, &part.records),
            Err(breach) => book.breach(format!("while reading {from:?}: {breach}")),
        }
    }
}

/// A producer sequence that leaves one out, whatever came of the batch that is owed.
fn beyond(writer: &Writer, pick: usize) -> u64 {
    let unknown = u64::from(writer.owed.is_some());
    writer.next + unknown + 1 + pick as u64 % 3
}

/// What a reader was given must stay.
fn observed(book: &mut Book, feed: &str, records: &[Seen]) {
    let observed = book.history.observed.entry(feed.to_owned()).or_default();
    for seen in records {
        if let Some(what) = identify(&seen.payload) {
            observed.insert(seen.sequence, what);
        }
    }
}
