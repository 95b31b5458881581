//! Write: the calls that change a feed: create, delete, open, resume, append, seal, roll.
//! Spec: spec/lease.md §3.
//!
//! **Invariants**
//! - LEASE-4: only `open` and `resume` (and the admin verbs) raise the epoch, and it is durable
//!   before it is handed out.
//! - Each decision and the log entry for it happen without a pause in between.
//!
//! **Not here**: what the entries do to the state (`feed::fold`).

use std::rc::Rc;

use sealog_frame::{Batch, FrameView, Stamp, TimestampMode};

use super::LogService;
use super::fork::{Pinned, gone};
use crate::append::{AppendResult, Decision, Lease, check_token, judge};
use crate::commit::{Commit, CommitKind};
use crate::env::Env;
use crate::error::{Error, Result};
use crate::feed::{Feed, FeedOptions, Feeds, Misfit};
use crate::ids::{CommitNumber, Epoch, FeedId, StreamId};
use crate::limits::{
    ATTRIBUTES_BYTES_MAX, FEED_NAME_BYTES_MAX, GROUP_OVERHEAD_BYTES, ORDER_BYTES_MAX,
    check_commit_message,
};
use crate::sync::Permit;
use crate::wal::entry::{Change, Forked, Seal, entry_bytes};

/// What a batch with an order key takes beside itself: an eviction, its stream, its key.
const ORDERED_BYTES_MAX: usize = ORDER_BYTES_MAX + 1024;
const _: () = assert!(ORDERED_BYTES_MAX <= GROUP_OVERHEAD_BYTES);

/// How to answer a call from another thread.
pub(crate) type Answer<T> = Box<dyn FnOnce(Result<T>) + Send>;

/// Checks a feed name: 1 to 1,024 bytes of UTF-8 without NUL.
///
/// # Errors
/// [`Error::FeedName`].
pub fn check_feed_name(name: &str) -> Result<()> {
    let rule = match name.len() {
        0 => "at least 1 byte",
        1..=FEED_NAME_BYTES_MAX if !name.contains('\0') => return Ok(()),
        1..=FEED_NAME_BYTES_MAX => "no NUL",
        _ => "at most 1024 bytes",
    };
    Err(Error::FeedName {
        bytes: name.len(),
        rule,
    })
}

fn check_attributes(options: &FeedOptions) -> Result<()> {
    let value = options.attributes.len() as u64;
    let limit = ATTRIBUTES_BYTES_MAX as u64;
    if value > limit {
        let what = "attribute bytes";
        return Err(Error::OverLimit { what, value, limit });
    }
    Ok(())
}

/// Which feed an append is meant for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FeedRef {
    /// Its name.
    pub name: Rc<str>,
    /// Its id, if the caller holds on to that feed: one that was deleted and made again is another.
    pub id: Option<FeedId>,
}

/// What orders the batches of a feed that come with one: each is above the one before, byte by byte.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OrderKey(Box<[u8]>);

impl OrderKey {
    /// A key of up to 1,024 bytes.
    ///
    /// # Errors
    /// [`Error::OverLimit`].
    pub fn new(key: &[u8]) -> Result<Self> {
        let (what, value, limit) = ("order key bytes", key.len(), ORDER_BYTES_MAX);
        if value > limit {
            let (value, limit) = (value as u64, limit as u64);
            return Err(Error::OverLimit { what, value, limit });
        }
        Ok(Self(key.into()))
    }

    /// LEASE-7: it must be above the feed's last.
    pub(super) fn check(&self, feed: &Feed) -> Result<()> {
        match feed.order.as_deref() {
            Some(last) if *self.0 <= *last => Err(Error::OutOfOrder {
                given: String::from_utf8_lossy(&self.0).into_owned(),
                last: String::from_utf8_lossy(last).into_owned(),
            }),
            _ => Ok(()),
        }
    }
}

impl FeedRef {
    /// Whatever feed has this name now.
    pub(crate) fn named(name: &str) -> Self {
        let name = name.into();
        Self { name, id: None }
    }

    pub(super) fn find<'a>(&self, feeds: &'a Feeds) -> Result<&'a Feed> {
        match self.id {
            None => living(feeds, &self.name),
            Some(id) => match feeds.get(id) {
                Some(feed) if feed.is_gone() => Err(gone(&self.name)),
                found => found.ok_or_else(|| not_found(&self.name)),
            },
        }
    }
}

/// Refuses to seal a feed's newest stream past an abandoned one: FEED-3.
pub(super) fn check_abandoned(feed: &Feed) -> Result<()> {
    feed.abandoned().map_or(Ok(()), |older| {
        Err(Error::AbandonedStream {
            feed: feed.name.to_string(),
            stream: older.id,
        })
    })
}

/// The feed of this name, unless it is there for its forks only.
pub(crate) fn living<'a>(feeds: &'a Feeds, name: &str) -> Result<&'a Feed> {
    match feeds.named(name) {
        Some(feed) if feed.is_gone() => Err(gone(name)),
        found => found.ok_or_else(|| not_found(name)),
    }
}

pub(super) fn not_found(name: &str) -> Error {
    Error::FeedNotFound {
        feed: name.to_owned(),
    }
}

impl<E: Env> LogService<E> {
    /// Logs and folds a change in one step.
    pub(crate) fn change(&self, feed: FeedId, stream: StreamId, change: &Change) {
        let at = self.wal.append_change(feed, stream, change);
        let folded = self
            .feeds
            .borrow_mut()
            .apply_change(feed, stream, change, at);
        if let Err(misfit) = folded {
            // A bug: what was just decided does not fit the state it was decided on.
            self.wal.poison(&misfit.to_string());
        }
        self.watch_rolling();
    }

    /// Runs a decision in write order and answers when what it rests on is durable.
    pub(super) fn decide<T: 'static>(
        self: &Rc<Self>,
        answer: impl FnOnce(Result<T>) + 'static,
        decision: impl FnOnce(&Rc<Self>) -> Result<T> + 'static,
    ) {
        self.queue_write(0, move |service, room| {
            let decided = room.and_then(|()| decision(service));
            service.settled(move |durable| answer(durable.and(decided)));
        });
    }

    /// Creates a feed; the same options again are success.
    pub(crate) fn create_feed(
        self: &Rc<Self>,
        name: String,
        options: FeedOptions,
        answer: Answer<FeedId>,
    ) {
        self.decide(answer, move |service| {
            service.create_now(&name, options, None)
        });
    }

    /// `pinned`: it goes on from another.
    pub(super) fn create_now(
        &self,
        name: &str,
        options: FeedOptions,
        pinned: Option<Pinned>,
    ) -> Result<FeedId> {
        check_feed_name(name)?;
        check_attributes(&options)?;
        let feeds = self.feeds.borrow();
        if feeds.named(name).is_some() {
            let feed = living(&feeds, name)?;
            let same = feed.options == options;
            let exists = Error::FeedExists {
                feed: name.to_owned(),
            };
            return if same { Ok(feed.id) } else { Err(exists) };
        }
        let id = feeds.next_id();
        drop(feeds);
        self.check_new(name, &options)?;
        let (name, time_ms) = (name.to_owned(), self.env.realtime_ms());
        let change = match pinned {
            Some(Pinned { base, ground }) => Change::FeedForked(Box::new(Forked {
                name,
                options,
                time_ms,
                base,
                ground,
            })),
            None => Change::FeedCreated {
                name,
                options,
                time_ms,
            },
        };
        self.change(id, StreamId(0), &change);
        Ok(id)
    }

    /// What a feed that is not there would not be made for.
    pub(super) fn check_new(&self, name: &str, options: &FeedOptions) -> Result<()> {
        check_feed_name(name)?;
        check_attributes(options)?;
        let limit = self.config.feeds_max;
        match self.feeds.borrow().len() as u64 >= limit {
            true => Err(Error::FeedsFull { limit }),
            false => Ok(()),
        }
    }

    /// Fences the writer before, opens a new stream.
    pub(crate) fn open(self: &Rc<Self>, name: String, answer: Answer<Lease>) {
        self.decide(answer, move |service| {
            let (id, stream, epoch) = {
                let feeds = service.feeds.borrow();
                let feed = living(&feeds, &name)?;
                if feed.closed.is_some() {
                    return Err(Error::FeedClosed { feed: name });
                }
                (feed.id, feed.next_stream, Epoch(feed.epoch.0 + 1))
            };
            service.change(id, stream, &Change::StreamOpened { epoch });
            service.lease(id)
        });
    }

    /// Fences the writer before, takes over the newest unsealed stream.
    pub(crate) fn resume(self: &Rc<Self>, name: String, answer: Answer<Lease>) {
        self.decide(answer, move |service| {
            let (id, stream, epoch) = {
                let feeds = service.feeds.borrow();
                let feed = living(&feeds, &name)?;
                let open = feed.open_stream();
                let open = open.ok_or_else(|| Error::NoOpenStream { feed: name.clone() })?;
                (feed.id, open.id, Epoch(feed.epoch.0 + 1))
            };
            service.change(id, stream, &Change::EpochRaised { epoch });
            service.lease(id)
        });
    }

    fn lease(&self, id: FeedId) -> Result<Lease> {
        let feeds = self.feeds.borrow();
        let feed = feeds.get(id).ok_or(Error::Closed)?;
        let stream = feed.open_stream().map_or(StreamId(0), |stream| stream.id);
        Ok(Lease {
            feed: id,
            epoch: feed.epoch,
            stream,
            next_sequence: feed.next_sequence,
        })
    }

    /// Appends a batch; the answer comes when it is durable.
    pub(crate) fn append(
        self: &Rc<Self>,
        feed: FeedRef,
        (batch, order): (Batch, Option<OrderKey>),
        permit: Permit,
        answer: impl FnOnce(Result<AppendResult>) + 'static,
    ) {
        self.queue_write(batch.as_bytes().len(), move |service, room| {
            let decided =
                room.and_then(|()| service.append_ordered(&feed, &batch.view(), order.as_ref()));
            drop(permit);
            match decided {
                Ok((id, result)) => {
                    let group = service.wal.accepted().group;
                    service.roll_if_due(id);
                    let early = crate::bug!("producer_ahead_of_data") && result.duplicate;
                    if early {
                        answer(Ok(result));
                        return;
                    }
                    let durable = move |durable: Result<()>| answer(durable.map(|()| result));
                    service.wal.on_durable(group, durable);
                }
                Err(error) => service.settled(move |durable| answer(durable.and(Err(error)))),
            }
        });
    }

    /// As [`LogService::append_now`], of a batch that may come with an order key: LEASE-7.
    pub(super) fn append_ordered(
        self: &Rc<Self>,
        feed: &FeedRef,
        batch: &FrameView<'_>,
        order: Option<&OrderKey>,
    ) -> Result<(FeedId, AppendResult)> {
        let Some(order) = order else {
            return self.append_now(feed, batch);
        };
        let (id, decision) = {
            let feeds = self.feeds.borrow();
            let feed = feed.find(&feeds)?;
            let decision = judge(feed, batch);
            if matches!(decision, Decision::Accept { .. }) {
                order.check(feed)?;
            }
            (feed.id, decision)
        };
        if matches!(decision, Decision::Accept { .. }) {
            // A crash leaves both or neither.
            self.wal
                .keep_together(entry_bytes(batch.frame_bytes()) + ORDERED_BYTES_MAX);
        }
        let (_, result) = self.append_now(feed, batch)?;
        if !result.duplicate {
            let key = order.0.clone();
            self.change(id, StreamId(0), &Change::Ordered { key });
        }
        Ok((id, result))
    }

    /// Decides about a batch and, if it is taken, puts it into the open group; its answer must wait
    /// until the log's accepted group is durable. Whose it is, and what became of it.
    pub(super) fn append_now(
        self: &Rc<Self>,
        feed: &FeedRef,
        batch: &FrameView<'_>,
    ) -> Result<(FeedId, AppendResult)> {
        let (id, decision) = {
            let feeds = self.feeds.borrow();
            let feed = feed.find(&feeds)?;
            (feed.id, judge(feed, batch))
        };
        match decision {
            Decision::Refuse(error) => Err(error),
            Decision::Duplicate(result) => Ok((id, result)),
            Decision::Accept { open, new_producer } => {
                if new_producer {
                    self.make_room_for_producer(id)?;
                }
                if open {
                    let (stream, epoch) = self.next_stream(id)?;
                    self.change(id, stream, &Change::StreamOpened { epoch });
                }
                let result = self.write_batch(id, batch.as_bytes())?;
                self.announce_tail(id, result.first);
                Ok((id, result))
            }
        }
    }

    fn next_stream(&self, id: FeedId) -> Result<(StreamId, Epoch)> {
        let feeds = self.feeds.borrow();
        let feed = feeds.get(id).ok_or(Error::Closed)?;
        Ok((feed.next_stream, feed.epoch))
    }

    /// Evicts an idle producer if the feed is at its cap.
    fn make_room_for_producer(&self, id: FeedId) -> Result<()> {
        let limit = self.config.producers_max;
        let now_ms = self.env.realtime_ms();
        let evicted = {
            let mut feeds = self.feeds.borrow_mut();
            let Some(producers) = feeds.get_mut(id).and_then(|feed| feed.producers.as_mut()) else {
                return Ok(());
            };
            if (producers.len() as u64) < limit {
                return Ok(());
            }
            producers
                .evictable(now_ms)
                .ok_or(Error::ProducersFull { limit })?
        };
        self.change(id, StreamId(0), &Change::ProducerEvicted { id: evicted });
        Ok(())
    }

    /// Stamps and logs an accepted batch.
    fn write_batch(&self, id: FeedId, frame: &[u8]) -> Result<AppendResult> {
        let (stream, stamp) = {
            let feeds = self.feeds.borrow();
            let feed = feeds.get(id).ok_or(Error::Closed)?;
            let stream = feed
                .open_stream()
                .map(|stream| stream.id)
                .ok_or(Error::Closed)?;
            (stream, self.stamp(feed))
        };
        let fold = |stamped: &[u8], at| {
            let view = FrameView::trusted(stamped).map_err(|e| Misfit(e.to_string()))?;
            let mut feeds = self.feeds.borrow_mut();
            feeds.apply_batch(id, stream, &view, at)?;
            Ok(AppendResult {
                first: view.base_sequence(),
                last: view.last_sequence(),
                record_count: view.record_count() as u64,
                duplicate: false,
                producer_sequence: view.producer().map(|producer| producer.sequence),
            })
        };
        let folded = self.wal.append_stamped((id, stream), frame, &stamp, fold);
        folded.map_err(|misfit: Misfit| {
            // A bug: what was just decided does not fit the state it was decided on.
            self.wal.poison(&misfit.to_string());
            self.wal.poisoned().unwrap_or(Error::Closed)
        })
    }

    fn stamp(&self, feed: &Feed) -> Stamp {
        Stamp {
            base_sequence: feed.next_sequence,
            arrival_ms: self.env.realtime_ms().max(feed.last_arrival_ms),
            timestamp_floor_ms: feed.last_timestamp_ms,
            epoch: feed.epoch.0,
            mode: TimestampMode::ClientPrefer,
            cap: false,
        }
    }

    /// Seals the open stream; the answer comes when its commit is published.
    pub(crate) fn seal(
        self: &Rc<Self>,
        name: String,
        token: Option<Epoch>,
        message: String,
        answer: Answer<Commit>,
    ) {
        let service = self.clone();
        let sealed = move |decided: Result<(FeedId, CommitNumber)>| match decided {
            Ok((feed, number)) => service.answer_published(feed, number, answer),
            Err(error) => answer(Err(error)),
        };
        self.decide(sealed, move |service| {
            service.seal_now(&name, token, message)
        });
    }

    fn seal_now(
        &self,
        name: &str,
        token: Option<Epoch>,
        message: String,
    ) -> Result<(FeedId, CommitNumber)> {
        let stream = {
            let feeds = self.feeds.borrow();
            let feed = living(&feeds, name)?;
            check_token(feed, token)?;
            let open = feed.open_stream().map(|stream| stream.id);
            open.ok_or_else(|| Error::NoOpenStream {
                feed: name.to_owned(),
            })?
        };
        self.seal_stream(name, stream, CommitKind::Sealed, message)
    }

    /// Logs the seal of `stream` as the feed's next commit.
    pub(super) fn seal_stream(
        &self,
        name: &str,
        stream: StreamId,
        kind: CommitKind,
        message: String,
    ) -> Result<(FeedId, CommitNumber)> {
        check_commit_message(&message)?;
        let (id, number) = {
            let feeds = self.feeds.borrow();
            let feed = living(&feeds, name)?;
            let older = feed
                .streams
                .iter()
                .find(|s| !s.is_sealed() && s.id < stream);
            if let Some(older) = older {
                let (feed, stream) = (name.to_owned(), older.id);
                return Err(Error::AbandonedStream { feed, stream });
            }
            (feed.id, feed.next_commit)
        };
        let time_ms = self.env.realtime_ms();
        self.change(
            id,
            stream,
            &Change::StreamSealed(Seal {
                number,
                kind,
                time_ms,
                message,
            }),
        );
        self.tails.notify(id);
        self.lane.press();
        Ok((id, number))
    }

    pub(super) fn answer_published(
        self: &Rc<Self>,
        feed: FeedId,
        number: CommitNumber,
        answer: Answer<Commit>,
    ) {
        let service = self.clone();
        self.env.spawn("await publication", async move {
            answer(service.published(feed, number).await);
        });
    }
}
