//! Objects: every object of the bucket, by its name: what carries a digest has it.
//!
//! **Invariants**
//! - PACK-13: packs are read whole and computed again, also those that nothing names (any more).
//! - Objects that no format of ours names are counted, never judged.
//!
//! **Not here**: whether the right objects are there (`history`).

use super::Check;
use crate::commit::paths::{self, ObjectKind};
use crate::commit::{Commit, Manifest};
use crate::env::{Bucket, Env};
use crate::error::{Error, Result};
use crate::ids::{Digest, FeedId};
use crate::lane::claim::OWNER;
use crate::pack::{PackError, PackVerifier};

/// Objects listed at a time.
const PAGE: usize = 256;
/// One ranged read.
const READ_BYTES: u64 = 1 << 20;

impl<E: Env> Check<'_, E> {
    /// Reads every object of the bucket.
    pub(super) async fn objects(&mut self) -> Result<()> {
        let mut after = String::new();
        loop {
            let page = self.env.bucket().list("", &after, PAGE).await?;
            let Some(last) = page.last() else {
                return Ok(());
            };
            after.clone_from(&last.key);
            for object in page {
                self.one(&object.key, object.len).await?;
                self.env.yield_if_needed().await;
            }
        }
    }

    async fn one(&mut self, key: &str, len: u64) -> Result<()> {
        let owner = feed_of(key);
        if owner.is_some_and(|feed| self.known.binary_search(&feed).is_err()) {
            self.report.orphans += 1;
        }
        if let Some((kind, digest)) = paths::digest_object(key) {
            self.reading(key);
            let found = match kind {
                ObjectKind::Pack => self.pack(key, len).await?,
                ObjectKind::Manifest => self.loose_manifest(key).await?,
                ObjectKind::KeyIndex => {
                    self.report.key_indexes += 1;
                    self.key_index_object(key, len).await?
                }
            };
            if found != digest {
                return Err(Error::corrupt(key, 0, "digest is not the name's"));
            }
        } else if paths::commit_number(key).is_some() {
            let bytes = self.object(key).await?;
            Commit::decode(&bytes).map_err(|e| Error::decode(key, 0, e))?;
        } else if key == OWNER {
            // Judged with the data directory's own: `claim`.
        } else if owner.is_none() || !key.ends_with("/feed.json") {
            self.report.foreign += 1;
        }
        Ok(())
    }

    async fn loose_manifest(&mut self, key: &str) -> Result<Digest> {
        let bytes = self.object(key).await?;
        Manifest::decode(&bytes).map_err(|e| Error::decode(key, 0, e))?;
        self.report.manifests += 1;
        Ok(Digest::of(&bytes))
    }

    async fn pack(&mut self, key: &str, len: u64) -> Result<Digest> {
        let mut verifier = PackVerifier::new();
        let mut at = 0;
        while at < len {
            let bytes = self.range(key, at..len.min(at + READ_BYTES)).await?;
            at += bytes.len() as u64;
            self.report.bytes += bytes.len() as u64;
            // Hashing and checking is work for the side thread; the shard stays responsive.
            let (back, pushed) = self
                .env
                .offload(move || {
                    let pushed = verifier.push(&bytes);
                    (verifier, pushed)
                })
                .await;
            verifier = back;
            pushed.map_err(|damage| damaged(key, damage.offset, damage.error))?;
        }
        let summary = verifier.finish();
        let summary = summary.map_err(|damage| damaged(key, damage.offset, damage.error))?;
        self.report.packs += 1;
        self.report.packed_records += summary
            .sections
            .iter()
            .map(|section| section.records)
            .sum::<u64>();
        Ok(summary.digest)
    }
}

fn damaged(key: &str, offset: u64, error: PackError) -> Error {
    match error {
        PackError::Pack(error) => Error::decode(key, offset, error),
        PackError::Frame(error) => Error::corrupt(key, offset, error),
    }
}

/// The feed that an object key lies below.
fn feed_of(key: &str) -> Option<FeedId> {
    let mut parts = key.strip_prefix("feeds/")?.split('/');
    let _name = parts.next()?;
    parts.next()?.parse().ok().map(FeedId)
}
