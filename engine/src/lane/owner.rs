//! Owner: whether the bucket is the one that this data directory published into.
//!
//! **Invariants**
//! - Nothing is published beside a history: a bucket that doesn't know a commit of ours is refused at
//!   the start, before anything is written to it.
//! - A bucket that is out of reach, or holds damage, is not another bucket.
//!
//! **Not here**: what is wrong inside the right bucket (`verify`, reads).

use super::publish::feed_json;
use crate::commit::{Commit, paths};
use crate::env::{Bucket, BucketError, Env};
use crate::error::{Error, Result};
use crate::feed::{Feed, Feeds};
use crate::ids::CommitNumber;

/// Looks for the newest commit of one feed that has any.
pub(crate) async fn check<E: Env>(env: &E, feeds: &Feeds) -> Result<()> {
    let Some(feed) = feeds.iter().find(|feed| feed.head.commits > 0) else {
        return Ok(());
    };
    let number = CommitNumber(feed.head.commits - 1);
    let path = paths::commit(&feed.name, feed.id, number);
    let same = match env.bucket().get(&path).await {
        Ok((bytes, _)) => {
            Commit::decode(&bytes).map_or(true, |commit| commit.digest() == feed.head.digest)
        }
        Err(BucketError::NotFound { .. }) => false,
        Err(_) => true,
    };
    let known = same || knows_feed(env, feed).await;
    if known {
        return Ok(());
    }
    Err(Error::Unusable(format!(
        "the bucket does not hold commit {number} of feed {:?} (object {path}), which this data \
         directory published: it is another bucket, or not mounted; give the one used before",
        feed.name
    )))
}

/// A commit that is lost or not ours is damage, if the bucket describes the feed as we do.
async fn knows_feed<E: Env>(env: &E, feed: &Feed) -> bool {
    match env
        .bucket()
        .get(&paths::feed_json(&feed.name, feed.id))
        .await
    {
        Ok((bytes, _)) => bytes == feed_json(feed).into_bytes(),
        Err(BucketError::NotFound { .. }) => false,
        Err(_) => true,
    }
}
