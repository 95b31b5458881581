//! Roll: an endless feed's open stream is sealed by itself, and the feed goes on in another. Spec: spec/lease.md §3.
//!
//! ```text
//!  batch -> written -> open stream large enough? -> rolled -> (lane) commit
//!  timer: oldest open stream of the log old enough? -> queue of writes -> rolled
//! ```
//!
//! **Invariants**
//! - ROLL-1: a roll is an entry: recovery finds the same streams, whatever the limits are by then.
//! - ROLL-2: only an open stream with records rolls, of a feed that is neither closed nor deleted, and has no abandoned one.
//! - ROLL-3: no answer waits for a roll.
//! - The timer sleeps until the oldest stream is due, and for good while there is none.
//!
//! **Not here**: what the entry does to the state (`feed::fold`), the commit it becomes (`lane`).

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use super::LogService;
use crate::commit::CommitKind;
use crate::env::Env;
use crate::error::Result;
use crate::feed::{Feed, Stream};
use crate::ids::{Epoch, FeedId};
use crate::limits::RollConfig;
use crate::sync::{Event, race};
use crate::wal::entry::{Change, Seal};

/// What a record counts besides its payload: its entry in the frame's table.
const RECORD_BYTES: u64 = 32;
/// Rolling for age waits while so many feeds have something to publish: publishing must keep up.
const UNPUBLISHED_MAX: usize = 64;
/// Between two tries when the log has no room, and two looks at what is published.
const RETRY: Duration = Duration::from_secs(1);

/// What the timer waits for.
#[derive(Default)]
pub(super) struct Rolls {
    /// Arrival of the first record of the stream that it waits for; `None`: there is none.
    awaited_ms: Cell<Option<u64>>,
    /// Notified when an older one came up, and when the service stops.
    pub(super) moved: Event,
}

/// Whether an open stream is due.
fn is_due(stream: &Stream, limits: &RollConfig, now_ms: u64) -> bool {
    let bytes = stream.totals.payload_bytes + stream.totals.records * RECORD_BYTES;
    bytes >= limits.bytes || due_ms(stream.first_arrival_ms, limits) <= now_ms
}

/// When a stream is due whose first record arrived at `first_arrival_ms`.
fn due_ms(first_arrival_ms: u64, limits: &RollConfig) -> u64 {
    let after_ms = u64::try_from(limits.after.as_millis()).unwrap_or(u64::MAX);
    first_arrival_ms.saturating_add(after_ms)
}

/// The entry that rolls a feed. One that never had a lease has nobody to keep a stream open for: its next
/// batch opens one, and no empty stream is left behind by a feed that is quiet, or closed.
fn entry_of(feed: &Feed, time_ms: u64) -> Change {
    let seal = Seal {
        number: feed.next_commit,
        kind: CommitKind::Sealed,
        time_ms,
        message: String::new(),
    };
    match feed.epoch {
        Epoch(0) => Change::StreamSealed(seal),
        _ => Change::Rolled(seal),
    }
}

impl<E: Env> LogService<E> {
    /// Rolls a feed if that is due.
    pub(super) fn roll_if_due(&self, id: FeedId) {
        let entry = {
            let feeds = self.feeds.borrow();
            let Some(feed) = feeds.get(id).filter(|feed| feed.options.rolling) else {
                return;
            };
            let now_ms = self.env.realtime_ms();
            let due = feed
                .rolling_stream()
                .filter(|stream| is_due(stream, &self.config.roll, now_ms));
            due.map(|stream| (stream.id, entry_of(feed, now_ms)))
        };
        if let Some((stream, entry)) = entry {
            self.change(id, stream, &entry);
            self.tails.notify(id);
            self.lane.press();
        }
        self.watch_rolling();
    }

    /// Wakes the timer if there is a stream that is older than what it waits for.
    pub(super) fn watch_rolling(&self) {
        let oldest = self.feeds.borrow().rolling().next();
        let awaited = self.rolls.awaited_ms.get();
        if oldest.is_some_and(|(at, _)| awaited.is_none_or(|awaited| at < awaited)) {
            self.rolls.moved.notify();
        }
    }

    /// Rolls feeds whose open streams are old enough, until the service stops.
    pub(super) async fn run_rolls(self: Rc<Self>) {
        loop {
            let moved = self.rolls.moved.listen();
            let oldest = self.feeds.borrow().rolling().next().map(|(at, _)| at);
            self.rolls.awaited_ms.set(oldest);
            if self.is_stopping() {
                return;
            }
            let now_ms = self.env.realtime_ms();
            match oldest.map(|at| due_ms(at, &self.config.roll)) {
                None => moved.await,
                Some(due) if due > now_ms => {
                    let left = Duration::from_millis(due - now_ms);
                    race(moved, self.env.sleep(left)).await;
                }
                Some(_) => self.roll_old().await,
            }
        }
    }

    /// Rolls as many of them as the lane is ready for, once it is.
    async fn roll_old(self: &Rc<Self>) {
        let published = self.lane.published().listen();
        let unpublished = self.feeds.borrow().sealed_len();
        if unpublished >= UNPUBLISHED_MAX {
            race(published, self.env.sleep(RETRY)).await;
            return;
        }
        let room = UNPUBLISHED_MAX - unpublished;
        let (done, decided) = flume::bounded(1);
        self.queue_write(0, move |service, ready: Result<()>| {
            if ready.is_ok() {
                service.roll_oldest(room);
            }
            let _ = done.send(ready.is_ok());
        });
        if !matches!(decided.recv_async().await, Ok(true)) {
            self.env.sleep(RETRY).await;
        }
    }

    fn roll_oldest(&self, count: usize) {
        let now_ms = self.env.realtime_ms();
        let old: Vec<FeedId> = {
            let feeds = self.feeds.borrow();
            let old = feeds
                .rolling()
                .take_while(|(at, _)| due_ms(*at, &self.config.roll) <= now_ms);
            old.take(count).map(|(_, id)| id).collect()
        };
        old.into_iter().for_each(|id| self.roll_if_due(id));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::feed::Totals;
    use crate::ids::StreamId;

    const LIMITS: RollConfig = RollConfig {
        bytes: 1000,
        after: Duration::from_millis(500),
    };

    fn stream(records: u64, payload_bytes: u64) -> Stream {
        Stream {
            id: StreamId(1),
            epoch: Epoch(0),
            first: 7,
            end: 7 + records,
            totals: Totals {
                records,
                payload_bytes,
                // A client's word: nothing goes by it.
                first_timestamp_ms: 1,
                max_timestamp_ms: u64::MAX,
            },
            first_arrival_ms: 10_000,
            seal: None,
            manifest: None,
            packs: Vec::new(),
            index: Vec::new(),
        }
    }

    #[test]
    fn stream_is_due_by_bytes_and_records_count_as_some() {
        let due = |records, bytes| is_due(&stream(records, bytes), &LIMITS, 10_000);
        assert!(!due(1, 1000 - 32 - 1));
        assert!(due(1, 1000 - 32));
        assert!(!due(31, 0), "records without payload");
        assert!(due(32, 0));
    }

    #[test]
    fn stream_is_due_by_the_arrival_of_its_first_record() {
        let due = |now_ms| is_due(&stream(1, 1), &LIMITS, now_ms);
        assert!(!due(0), "the clock was set back");
        assert!(!due(10_499));
        assert!(due(10_500));
        assert!(due(u64::MAX));
        let endless = RollConfig {
            after: Duration::MAX,
            ..LIMITS
        };
        assert!(!is_due(&stream(1, 1), &endless, u64::MAX - 1));
    }
}
