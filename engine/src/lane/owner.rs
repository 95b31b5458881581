//! Owner: whether the bucket is the one that this data directory published into.
//!
//! **Invariants**
//! - Nothing is published beside a history: a bucket that doesn't know a commit of ours is refused at
//!   the start, before anything is written to it; one that was out of reach then, before the lane works.
//! - A bucket that is out of reach, or holds damage, is not another bucket.
//!
//! **Not here**: what is wrong inside the right bucket (`verify`, reads).

use std::rc::Rc;

use super::claim::{Claim, Standing};
use super::publish::feed_json;
use crate::commit::{Commit, paths};
use crate::env::{Bucket, BucketError, Env};
use crate::error::{Error, Result};
use crate::feed::Feeds;
use crate::ids::{CommitNumber, Digest, FeedId};
use crate::limits::EngineConfig;

/// The newest commit of one feed that has any: what the right bucket knows.
pub(crate) struct Witness {
    name: Rc<str>,
    feed: FeedId,
    number: CommitNumber,
    digest: Digest,
    json: String,
}

/// Finds out whether the bucket is this directory's, and claims it if it is nobody's.
///
/// # Errors
/// [`Error::Unusable`]: it is another bucket, or another's.
pub(crate) async fn settle<E: Env>(
    env: &E,
    config: &EngineConfig,
    witness: Option<Witness>,
) -> Result<Standing> {
    let shares_history = witness.is_some();
    if let Some(witness) = witness
        && !witness.check(env).await?
    {
        let text = "out of reach: not known yet to be the bucket of this data directory";
        return Ok(Standing::Unknown(Error::Bucket(text.to_owned())));
    }
    match Claim::of(env, config).await? {
        Some(claim) => claim.settle(env, shares_history).await,
        None => Ok(Standing::Ours),
    }
}

impl Witness {
    /// One out of `feeds`; `None` if nothing was published yet, to whatever bucket.
    pub(crate) fn of(feeds: &Feeds) -> Option<Self> {
        let feed = feeds.iter().find(|feed| feed.head.commits > 0)?;
        Some(Self {
            name: feed.name.clone(),
            feed: feed.id,
            number: CommitNumber(feed.head.commits - 1),
            digest: feed.head.digest,
            json: feed_json(feed),
        })
    }

    /// Looks for it; `false` when the bucket is out of reach.
    ///
    /// # Errors
    /// [`Error::Unusable`]: it is another bucket.
    pub(crate) async fn check<E: Env>(&self, env: &E) -> Result<bool> {
        let path = paths::commit(&self.name, self.feed, self.number);
        match env.bucket().get(&path).await {
            Ok((bytes, _)) => {
                let found = Commit::decode(&bytes);
                // One that can't be read is damage.
                if found.map_or(true, |commit| commit.digest() == self.digest) {
                    return Ok(true);
                }
            }
            Err(BucketError::NotFound { .. }) => {}
            Err(_) => return Ok(false),
        }
        // A commit that is lost or not ours is damage, if the bucket describes the feed as we do.
        let described = paths::feed_json(&self.name, self.feed);
        match env.bucket().get(&described).await {
            Ok((bytes, _)) if bytes == self.json.as_bytes() => return Ok(true),
            Ok(_) | Err(BucketError::NotFound { .. }) => {}
            Err(_) => return Ok(false),
        }
        Err(Error::Unusable(format!(
            "the bucket does not hold commit {} of feed {:?} (object {path}), which this data \
             directory published: it is another bucket, or not mounted; give the one used before",
            self.number, self.name
        )))
    }
}
