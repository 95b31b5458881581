//! Publish: a sealed stream's way into the feed's history. Spec: spec/commit.md §3.
//!
//! **Invariants**
//! - LANE-3; every step is idempotent: interrupted anywhere, the next round finishes it.
//! - A commit object that is there already is ours if its bytes are ours, else somebody else's.
//!
//! **Not here**: packs (`packer`), answering the caller of `seal` (`shard`).

use std::rc::Rc;
use std::time::Duration;

use super::packer::Packer;
use super::{keys, stopping};
use crate::commit::{Commit, CommitKind, Manifest, paths};
use crate::env::{Bucket, Env, PutOutcome};
use crate::error::{Error, Result};
use crate::feed::{Feed, Stream};
use crate::ids::{CommitNumber, Digest, FeedId, Sequence};
use crate::shard::LogService;
use crate::sync::race;
use crate::wal::entry::Change;

/// How often a seal that waits looks whether the lane is in trouble.
const TROUBLE_LOOK: Duration = Duration::from_secs(1);

/// A sealed stream on its way.
struct Sealed {
    name: Rc<str>,
    feed: FeedId,
    keyed: bool,
    options_json: String,
    epoch: crate::ids::Epoch,
    parent: Digest,
    published: u64,
    stream: Stream,
}

/// Publishes the oldest sealed stream of one feed; `false` when no feed has one.
pub(super) async fn publish_next<E: Env>(
    service: &Rc<LogService<E>>,
    packer: &mut Packer<E>,
) -> Result<bool> {
    let sealed = service.feeds.borrow().next_sealed().and_then(sealed_of);
    let Some(sealed) = sealed else {
        return Ok(false);
    };
    publish(service, packer, sealed).await?;
    Ok(true)
}

fn sealed_of(feed: &Feed) -> Option<Sealed> {
    let stream = feed.streams.first().filter(|stream| stream.is_sealed())?;
    Some(Sealed {
        name: feed.name.clone(),
        feed: feed.id,
        keyed: feed.options.keys,
        options_json: feed_json(feed),
        epoch: stream.epoch,
        parent: feed.head.digest,
        published: feed.head.commits,
        stream: stream.clone(),
    })
}

/// The content of a feed's feed.json. Fields are in alphabetical order, so that the bytes are the
/// same however the JSON library keeps its maps.
pub(crate) fn feed_json(feed: &Feed) -> String {
    let attributes: String = feed
        .options
        .attributes
        .iter()
        .map(|b| format!("{b:02x}"))
        .collect();
    let mut json = serde_json::json!({
        "created_ms": feed.created_ms,
        "exclusive": feed.options.exclusive,
        "feed_id": feed.id.0,
        "format": 1,
        "keys": feed.options.keys,
        "name": &*feed.name,
    });
    if feed.options.rolling {
        json["rolling"] = true.into();
    }
    if !attributes.is_empty() {
        json["attributes_hex"] = attributes.into();
    }
    if let Some(base) = feed.base() {
        json["base"] = serde_json::json!({
            "feed_id": base.feed.0,
            "name": &*base.name,
            "sequence": base.sequence,
        });
    }
    format!("{json}\n")
}

/// The commit that a sealed stream of `feed` becomes, as the state stands.
pub(crate) fn next_commit(feed: &Feed) -> Option<Commit> {
    let sealed = sealed_of(feed)?;
    let manifest = sealed.stream.manifest;
    let discarded = seal_kind(&sealed.stream) == CommitKind::Discarded;
    if manifest.is_none() && !discarded {
        return None;
    }
    let manifest = manifest.unwrap_or_default();
    Some(commit_of(&sealed, &sealed.stream, manifest))
}

async fn publish<E: Env>(
    service: &Rc<LogService<E>>,
    packer: &mut Packer<E>,
    sealed: Sealed,
) -> Result<()> {
    let key = (sealed.feed, sealed.stream.id);
    let discarded = seal_kind(&sealed.stream) == CommitKind::Discarded;
    let mut manifest = sealed.stream.manifest;
    if !discarded && manifest.is_none() {
        packer.complete(key, sealed.stream.end).await?;
        manifest = write_manifest(service, &sealed).await?;
        let Some(digest) = manifest else {
            return Ok(());
        };
        service.change(key.0, key.1, &Change::ManifestLogged { digest });
    }
    // The seal and the manifest digest are durable before the commit exists: LANE-3.
    service.settle().await?;
    let Some(stream) = current(service, &sealed) else {
        return Ok(());
    };
    let commit = commit_of(&sealed, &stream, manifest.unwrap_or_default());
    create_feed_object(service, &sealed).await?;
    let digest = create_commit(service, &sealed, &commit).await?;
    if current(service, &sealed).is_none() {
        return Ok(());
    }
    service.change(key.0, key.1, &Change::Published { digest });
    if discarded {
        service.lane.littered.set(true);
    }
    service.settle().await?;
    service.lane.published().notify();
    Ok(())
}

fn seal_kind(stream: &Stream) -> CommitKind {
    stream
        .seal
        .as_ref()
        .map_or(CommitKind::Sealed, |seal| seal.kind)
}

/// The stream as it stands now; `None` when its feed was deleted meanwhile.
fn current<E: Env>(service: &LogService<E>, sealed: &Sealed) -> Option<Stream> {
    let feeds = service.feeds.borrow();
    feeds.get(sealed.feed)?.stream(sealed.stream.id).cloned()
}

fn commit_of(sealed: &Sealed, stream: &Stream, manifest: Digest) -> Commit {
    let (number, kind, time_ms, message) = match &stream.seal {
        Some(seal) => (seal.number, seal.kind, seal.time_ms, seal.message.clone()),
        None => (
            CommitNumber(sealed.published),
            CommitKind::Sealed,
            0,
            String::new(),
        ),
    };
    Commit {
        number,
        kind,
        feed: sealed.feed,
        stream: stream.id,
        epoch: sealed.epoch,
        parent: sealed.parent,
        first: Sequence(stream.first),
        end: Sequence(stream.end),
        records: stream.totals.records,
        payload_bytes: stream.totals.payload_bytes,
        message,
        time_ms,
        manifest,
    }
}

/// Writes key index and manifest; `None` when the feed was deleted meanwhile.
async fn write_manifest<E: Env>(
    service: &Rc<LogService<E>>,
    sealed: &Sealed,
) -> Result<Option<Digest>> {
    let Some(stream) = current(service, sealed) else {
        return Ok(None);
    };
    if stream.packed_end() != stream.end {
        let detail = format!(
            "packed to {}, sealed at {}",
            stream.packed_end(),
            stream.end
        );
        return Err(Error::corrupt(format!("stream {}", stream.id), 0, detail));
    }
    let key_index = match sealed.keyed && !stream.packs.is_empty() {
        true => Some(keys::build(service, &sealed.name, sealed.feed, &stream).await?),
        false => None,
    };
    let manifest = Manifest {
        feed: sealed.feed,
        stream: stream.id,
        first: Sequence(stream.first),
        end: Sequence(stream.end),
        packs: stream.packs,
        key_index,
    };
    let bytes = manifest.encode();
    let digest = Digest::of(&bytes);
    let path = paths::manifest(&sealed.name, sealed.feed, stream.id, &digest);
    // The name is the content's digest: one that exists holds the same bytes.
    service.env.bucket().put_if_absent(&path, bytes).await?;
    // The bucket took its time: what is logged now must fit the state as it is now.
    Ok(current(service, sealed).map(|_| digest))
}

/// feed.json is written with the first commit: creating a feed costs no object.
async fn create_feed_object<E: Env>(service: &LogService<E>, sealed: &Sealed) -> Result<()> {
    if sealed.published > 0 {
        return Ok(());
    }
    let path = paths::feed_json(&sealed.name, sealed.feed);
    let bytes = sealed.options_json.clone().into_bytes();
    service.env.bucket().put_if_absent(&path, bytes).await?;
    Ok(())
}

/// Creates the commit object, or recognises it as ours.
async fn create_commit<E: Env>(
    service: &LogService<E>,
    sealed: &Sealed,
    commit: &Commit,
) -> Result<Digest> {
    if service.is_stopping() {
        return Err(stopping(service));
    }
    let bytes = commit.encode();
    let digest = Digest::of(&bytes);
    let path = paths::commit(&sealed.name, sealed.feed, commit.number);
    let bucket = service.env.bucket();
    if bucket.put_if_absent(&path, bytes.clone()).await? == PutOutcome::Created {
        return Ok(digest);
    }
    let (found, _) = bucket.get(&path).await?;
    if crate::bug!("published_twice") {
        let next = CommitNumber(commit.number.0 + 1);
        let again = Commit {
            number: next,
            ..commit.clone()
        };
        let path = paths::commit(&sealed.name, sealed.feed, next);
        bucket.put_if_absent(&path, again.encode()).await?;
    }
    if found == bytes {
        return Ok(digest);
    }
    Err(Error::corrupt(
        path,
        0,
        "a commit of this number exists and is not ours",
    ))
}

impl<E: Env> LogService<E> {
    /// Waits until commit `number` of `feed` is published, and reads it back.
    pub(crate) async fn published(
        self: &Rc<Self>,
        feed: FeedId,
        number: CommitNumber,
    ) -> Result<Commit> {
        let mut trouble_since = None;
        let name = loop {
            let changed = self.lane.published().listen();
            if let Some(done) = self.publication(feed, number) {
                if done.is_err() {
                    // That the feed is gone is told once it lasts.
                    self.settle().await?;
                }
                break done?;
            }
            let now = self.env.monotonic_ns();
            let trouble = self.lane.trouble();
            trouble_since = trouble.as_ref().map(|_| trouble_since.unwrap_or(now));
            let waited = trouble_since.map_or(0, |since| now - since);
            if u128::from(waited) >= self.config.wal.full_wait.as_nanos()
                && let Some(trouble) = trouble
            {
                return Err(Error::Unpublished {
                    commit: number,
                    full: trouble.full,
                    trouble: trouble.text,
                });
            }
            race(changed, self.env.sleep(TROUBLE_LOOK)).await;
        };
        self.settle().await?;
        self.read_commit(&name, feed, number).await
    }

    /// The feed's name once the commit is published; an error if it will not be.
    fn publication(&self, feed: FeedId, number: CommitNumber) -> Option<Result<Rc<str>>> {
        let feeds = self.feeds.borrow();
        let Some(found) = feeds.get(feed) else {
            return Some(Err(Error::FeedNotFound {
                feed: crate::error::feed_label(feed),
            }));
        };
        if found.head.commits > number.0 {
            return Some(Ok(found.name.clone()));
        }
        self.is_stopping().then(|| Err(stopping(self)))
    }
}
