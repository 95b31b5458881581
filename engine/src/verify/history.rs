//! History: what the state of a feed says is in the bucket: commits, manifests, packs, feed.json.
//!
//! **Invariants**
//! - COMMIT-2: commits 0 to the head chain by digest, and the last one's digest is the state's.
//! - FORK-1: the history of a fork begins at its base.
//! - Ranges follow each other; each manifest is the one its commit names and holds what it says.
//! - A commit beyond the head is the one that publication would write now, or damage.
//!
//! **Not here**: the content of packs (`objects` reads all of it).

use std::rc::Rc;

use super::Check;
use crate::commit::{Commit, CommitKind, Manifest, PackPlace, PackRef, paths};
use crate::env::{Bucket, BucketError, Env};
use crate::error::{Error, Result};
use crate::feed::{Feed, Stream};
use crate::ids::{CommitNumber, Digest, StreamId};
use crate::lane::publish::{feed_json, next_commit};
use crate::pack::{PACK_FOOTER_BYTES, PackFooter, PackIndex, PackSummary};

/// Pack indexes kept.
const INDEXES: usize = 8;

impl<E: Env> Check<'_, E> {
    /// Checks all that belongs to a feed.
    pub(super) async fn feed(&mut self, feed: &Feed) -> Result<()> {
        self.report.feeds += 1;
        let end = self.commits(feed).await?;
        let mut reached = end;
        for stream in &feed.streams {
            if stream.first < reached || stream.end < stream.first {
                let detail = format!(
                    "stream {} holds {}..{}, the one before ends at {reached}",
                    stream.id, stream.first, stream.end
                );
                return Err(Error::corrupt(format!("feed {:?}", feed.name), 0, detail));
            }
            reached = stream.end;
            self.unpublished(feed, stream).await?;
        }
        self.ahead(feed).await?;
        self.feed_json(feed).await
    }

    async fn commits(&mut self, feed: &Feed) -> Result<u64> {
        let (mut parent, mut end) = (Digest::default(), feed.own_from());
        let mut before = StreamId(0);
        let mut path = paths::commits_prefix(&feed.name, feed.id);
        for number in 0..feed.head.commits {
            path = paths::commit(&feed.name, feed.id, CommitNumber(number));
            self.reading(&path);
            let bytes = self.object(&path).await?;
            let commit = Commit::decode(&bytes).map_err(|e| Error::decode(&path, 0, e))?;
            let misfit = |what: &str| Err(Error::corrupt(&path, 0, format!("{what} does not fit")));
            if (commit.number.0, commit.feed) != (number, feed.id) {
                return misfit("number or feed");
            }
            if commit.parent != parent {
                return misfit("parent digest");
            }
            if commit.first.0 < end || commit.stream <= before {
                return misfit("range or stream");
            }
            if commit.kind == CommitKind::Sealed {
                self.manifest(feed, &commit).await?;
            }
            parent = Digest::of(&bytes);
            (end, before) = (commit.end.0, commit.stream);
            self.report.commits += 1;
        }
        if (parent, end, before) != (feed.head.digest, feed.head.end, feed.head.stream) {
            let detail = format!("the feed's last commit is not {}", feed.head.digest);
            return Err(Error::corrupt(path, 0, detail));
        }
        Ok(end)
    }

    async fn manifest(&mut self, feed: &Feed, commit: &Commit) -> Result<()> {
        let path = paths::manifest(&feed.name, feed.id, commit.stream, &commit.manifest);
        let manifest = self.read_manifest(&path, commit.manifest).await?;
        let totals = manifest.totals();
        let said = (commit.feed, commit.stream, commit.first, commit.end);
        let counts = (commit.records, commit.payload_bytes);
        let holds = (manifest.feed, manifest.stream, manifest.first, manifest.end);
        if said != holds || counts != (totals.records, totals.payload_bytes) {
            return Err(Error::corrupt(path, 0, "does not fit its commit"));
        }
        self.manifest_content(feed, &path, &manifest).await
    }

    async fn read_manifest(&mut self, path: &str, digest: Digest) -> Result<Manifest> {
        self.reading(path);
        let bytes = self.object(path).await?;
        let manifest = Manifest::decode(&bytes).map_err(|e| Error::decode(path, 0, e))?;
        if Digest::of(&bytes) != digest {
            return Err(Error::corrupt(path, 0, "digest is not the name's"));
        }
        Ok(manifest)
    }

    async fn manifest_content(
        &mut self,
        feed: &Feed,
        path: &str,
        manifest: &Manifest,
    ) -> Result<()> {
        for pack in &manifest.packs {
            self.pack_ref(feed, manifest.stream, pack).await?;
        }
        let expected = feed.options.keys && !manifest.packs.is_empty();
        match &manifest.key_index {
            Some(keys) if expected => self.key_index(feed, manifest, keys).await,
            None if !expected => Ok(()),
            _ => Err(Error::corrupt(path, 0, "key index and feed do not fit")),
        }
    }

    /// A stream that is not published: its staged packs, and its manifest if that is logged.
    async fn unpublished(&mut self, feed: &Feed, stream: &Stream) -> Result<()> {
        for pack in &stream.packs {
            self.pack_ref(feed, stream.id, pack).await?;
        }
        let Some(digest) = stream.manifest else {
            return Ok(());
        };
        let path = paths::manifest(&feed.name, feed.id, stream.id, &digest);
        let manifest = self.read_manifest(&path, digest).await?;
        let holds = (manifest.first.0, manifest.end.0);
        if manifest.packs != stream.packs || holds != (stream.first, stream.end) {
            return Err(Error::corrupt(path, 0, "does not fit its stream"));
        }
        self.manifest_content(feed, &path, &manifest).await
    }

    /// Whether the section that `pack` names is what it says.
    async fn pack_ref(&mut self, feed: &Feed, stream: StreamId, pack: &PackRef) -> Result<()> {
        let path = pack_path(feed, stream, pack);
        let index = self.pack_index(&path, pack.pack_bytes).await?;
        let Some(section) = index.section(feed.id, stream) else {
            let detail = format!("no section of stream {stream} of feed id {}", feed.id);
            return Err(Error::corrupt(path, 0, detail));
        };
        let whole = PackSummary {
            digest: pack.digest,
            bytes: pack.pack_bytes,
            sections: Vec::new(),
        };
        let fits = PackRef::of(pack.place, &whole, section) == *pack;
        if !fits || section.keyed != feed.options.keys {
            let detail = format!("section of stream {stream} is not what its manifest says");
            return Err(Error::corrupt(path, 0, detail));
        }
        Ok(())
    }

    pub(super) async fn pack_index(&mut self, path: &str, bytes: u64) -> Result<Rc<PackIndex>> {
        if let Some(at) = self.indexes.iter().position(|(known, _)| known == path) {
            let found = self.indexes.remove(at);
            self.indexes.push(found.clone());
            return Ok(found.1);
        }
        let len = self.length(path).await?;
        if len != bytes {
            let detail = format!("{len} bytes long, {bytes} expected");
            return Err(Error::corrupt(path, len.min(bytes), detail));
        }
        let footer_at = bytes.saturating_sub(PACK_FOOTER_BYTES as u64);
        let tail = self.range(path, footer_at..bytes).await?;
        let footer =
            PackFooter::decode(&tail, bytes).map_err(|e| Error::decode(path, footer_at, e))?;
        let parts = self.range(path, footer.index_range()).await?;
        let index = PackIndex::decode(&footer, &parts)
            .map_err(|error| Error::decode(path, footer.index_range().start, error))?;
        let index = Rc::new(index);
        if self.indexes.len() == INDEXES {
            self.indexes.remove(0);
        }
        self.indexes.push((path.to_owned(), index.clone()));
        Ok(index)
    }

    /// Commit objects beyond the head.
    async fn ahead(&mut self, feed: &Feed) -> Result<()> {
        let prefix = paths::commits_prefix(&feed.name, feed.id);
        let after = match feed.head.commits.checked_sub(1) {
            Some(last) => paths::commit(&feed.name, feed.id, CommitNumber(last)),
            None => String::new(),
        };
        let ahead = self.env.bucket().list(&prefix, &after, 2).await?;
        let next = paths::commit(&feed.name, feed.id, CommitNumber(feed.head.commits));
        for object in ahead {
            let bytes = self.object(&object.key).await?;
            let expected = next_commit(feed).map(|commit| commit.encode());
            if object.key != next || expected.as_ref() != Some(&bytes) {
                Commit::decode(&bytes).map_err(|e| Error::decode(&object.key, 0, e))?;
                let detail = "not a commit that this feed has published or is about to";
                return Err(Error::corrupt(object.key, 0, detail));
            }
        }
        Ok(())
    }

    async fn feed_json(&mut self, feed: &Feed) -> Result<()> {
        let path = paths::feed_json(&feed.name, feed.id);
        if feed.head.commits == 0 && self.env.bucket().head(&path).await?.is_none() {
            return Ok(());
        }
        let (found, expected) = (self.object(&path).await?, feed_json(feed).into_bytes());
        if found == expected {
            return Ok(());
        }
        let same = found.iter().zip(&expected).take_while(|(a, b)| a == b);
        let at = same.count() as u64;
        Err(Error::corrupt(path, at, "not what the feed's state says"))
    }

    /// A whole object that must be there.
    pub(super) async fn object(&self, path: &str) -> Result<Vec<u8>> {
        match self.env.bucket().get(path).await {
            Ok((bytes, _)) => Ok(bytes),
            Err(BucketError::NotFound { key }) => Err(Error::corrupt(key, 0, "object is gone")),
            Err(error) => Err(error.into()),
        }
    }

    pub(super) async fn length(&self, path: &str) -> Result<u64> {
        let len = self.env.bucket().head(path).await?;
        len.ok_or_else(|| Error::corrupt(path, 0, "object is gone"))
    }

    pub(super) async fn range(&self, path: &str, range: std::ops::Range<u64>) -> Result<Vec<u8>> {
        let len = usize::try_from(range.end.saturating_sub(range.start)).unwrap_or(usize::MAX);
        match self.env.bucket().get_range(path, range.start, len).await {
            Ok(bytes) if bytes.len() == len => Ok(bytes),
            Ok(bytes) => {
                let at = range.start + bytes.len() as u64;
                Err(Error::corrupt(path, at, "object ends early"))
            }
            Err(BucketError::NotFound { key }) => Err(Error::corrupt(key, 0, "object is gone")),
            Err(error) => Err(error.into()),
        }
    }
}

/// Where a pack of a stream lies.
pub(super) fn pack_path(feed: &Feed, stream: StreamId, pack: &PackRef) -> String {
    match pack.place {
        PackPlace::Stream => paths::stream_pack(&feed.name, feed.id, stream, &pack.digest),
        PackPlace::Shared(log) => paths::shared_pack(log, &pack.digest),
    }
}
