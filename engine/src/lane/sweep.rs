//! Sweep: removes the objects of deleted feeds, once their grace time has passed.
//!
//! **Invariants**
//! - Only objects below the deleted feed's own prefix go: a feed of the same name has another id.
//!
//! **Not here**: shared packs (they hold other feeds' records, too), and single objects that nobody
//! names (`orphans`).

use std::rc::Rc;

use crate::commit::paths;
use crate::env::{Bucket, Env};
use crate::error::Result;
use crate::ids::{FeedId, StreamId};
use crate::shard::LogService;
use crate::wal::entry::Change;

/// Objects removed between two looks at other work.
const BATCH: usize = 256;

/// Removes some objects of one deleted feed; `false` when none is due.
pub(super) async fn sweep_one<E: Env>(service: &Rc<LogService<E>>) -> Result<bool> {
    let grace_ms = u64::try_from(service.config.gc_grace.as_millis()).unwrap_or(u64::MAX);
    let now_ms = service.env.realtime_ms();
    let due: Option<(FeedId, Rc<str>)> = service
        .feeds
        .borrow()
        .doomed()
        .find(|(_, doomed)| doomed.time_ms.saturating_add(grace_ms) <= now_ms)
        .map(|(id, doomed)| (id, doomed.name.clone()));
    let Some((feed, name)) = due else {
        return Ok(false);
    };
    let prefix = paths::feed_prefix(&name, feed);
    let bucket = service.env.bucket();
    let objects = bucket.list(&prefix, "", BATCH).await?;
    for object in &objects {
        bucket.delete(&object.key).await?;
    }
    if objects.len() < BATCH {
        service.change(feed, StreamId(0), &Change::FeedCleaned);
        service.lane.littered.set(true);
    }
    Ok(true)
}
