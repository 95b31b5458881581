//! Direct: appends by tasks of the log's own shard: no queue, no allocation, one copy.
//!
//! **Invariants**
//! - A direct append never overtakes a write that waits in the queue.
//! - What it answers rests on the group it names: nobody is told before that group is durable (WAL-11).
//!
//! **Not here**: what is decided (`write`), sockets (the server's).

use std::rc::Rc;

use sealog_frame::FrameView;

use super::{FeedRef, LogService};
use crate::append::AppendResult;
use crate::env::Env;
use crate::error::Result;
use crate::sync::Event;
use crate::wal::log::{Room, RoomClass};

/// What a direct append came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Direct {
    /// It was decided; the outcome may be told once this group is durable.
    Decided(Result<AppendResult>, u64),
    /// Others wait before it, or the log has no room now: queue it.
    Queue,
}

impl<E: Env> LogService<E> {
    /// Decides about a batch at once, if nothing waits before it. `batch` was checked against the limits.
    #[must_use]
    pub fn append_direct(self: &Rc<Self>, feed: &FeedRef, batch: &FrameView<'_>) -> Direct {
        let bytes = batch.frame_bytes();
        let first = self.undecided.get() == 0 && !self.is_stopping();
        if !first || self.wal.room(bytes, RoomClass::Batch) != Room::Ready {
            return Direct::Queue;
        }
        let decided = self.append_now(feed, batch);
        Direct::Decided(decided, self.wal.accepted().group)
    }

    /// Whether group `group` is durable: `None` while it is under way, an error once it never will be.
    #[must_use]
    pub fn outcome(&self, group: u64) -> Option<Result<()>> {
        self.wal.outcome(group)
    }

    /// Notified whenever a group became durable, and when the log stopped or was closed.
    #[must_use]
    pub fn progress(&self) -> &Event {
        self.wal.progress()
    }
}
