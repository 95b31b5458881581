//! Keys: a stream's key index against the key runs of its packs.
//!
//! **Invariants**
//! - The index is byte for byte what the runs give: it is built again and the digests compared, so
//!   every key's newest version is the packs'.
//! - Memory: one block per pack and one part of the index.
//!
//! **Not here**: the runs themselves, which `PackVerifier` computes from the records.

use super::Check;
use super::history::pack_path;
use crate::commit::{KeyIndexRef, Manifest, paths};
use crate::env::Env;
use crate::error::{Error, Result};
use crate::feed::Feed;
use crate::ids::{Digest, FeedId, StreamId};
use crate::lane::keys::{Run, supply};
use crate::pack::keys::block::KEY_BLOCK_BYTES_MAX;
use crate::pack::keys::index::{KeyIndexBuilder, KeyIndexOptions};
use crate::pack::keys::merge::{KeyMerge, MergeStep};
use crate::pack::keys::reader::{KeyIndex, KeyIndexFooter};
use crate::pack::layout::FOOTER_BYTES;
use sha2::{Digest as _, Sha256};

const HEADER_BYTES: u64 = 64;
const _: () = assert!(KEY_BLOCK_BYTES_MAX < 1 << 20, "a block is one read");

impl<E: Env> Check<'_, E> {
    /// Builds the index of a manifest's packs again and compares.
    pub(super) async fn key_index(
        &mut self,
        feed: &Feed,
        manifest: &Manifest,
        keys: &KeyIndexRef,
    ) -> Result<()> {
        let path = paths::key_index(&feed.name, feed.id, manifest.stream, &keys.digest);
        let len = self.length(&path).await?;
        if len != keys.bytes {
            let detail = format!("{len} bytes long, {} expected", keys.bytes);
            return Err(Error::corrupt(path, len.min(keys.bytes), detail));
        }
        let (mut runs, mut keys_expected) = (Vec::new(), 0);
        for pack in &manifest.packs {
            let pack_path = pack_path(feed, manifest.stream, pack);
            let index = self.pack_index(&pack_path, pack.pack_bytes).await?;
            if let Some(section) = index.section(feed.id, manifest.stream) {
                keys_expected += section.key_count;
                runs.push(Run::new(pack_path, section.keys.clone()));
            }
        }
        let built = self
            .built_again((feed.id, manifest.stream), runs, keys_expected)
            .await?;
        if built != keys.digest {
            return Err(Error::corrupt(path, 0, "not the index of the packs' keys"));
        }
        Ok(())
    }

    async fn built_again(
        &self,
        (feed, stream): (FeedId, StreamId),
        mut runs: Vec<Run>,
        keys_expected: u64,
    ) -> Result<Digest> {
        let mut merge = KeyMerge::new(runs.len());
        let mut builder = KeyIndexBuilder::new(KeyIndexOptions::new(feed, stream, keys_expected));
        loop {
            match merge.step() {
                MergeStep::Entry(entry) => {
                    let pushed = builder.push(&entry);
                    pushed.map_err(|error| Error::corrupt("key run", 0, error))?;
                }
                MergeStep::Need(run) => {
                    let bucket = self.env.bucket();
                    if supply(bucket, &mut merge, run, &mut runs[run]).await? {
                        merge.end(run);
                    }
                }
                MergeStep::Done => break,
            }
            while builder.drain().is_some() {}
        }
        Ok(builder.finish().digest)
    }

    /// Checks a key index object by itself, part by part; its digest.
    pub(super) async fn key_index_object(&mut self, path: &str, len: u64) -> Result<Digest> {
        let mut hash = Sha256::new();
        let footer_at = len.saturating_sub(FOOTER_BYTES as u64);
        let tail = self.range(path, footer_at..len).await?;
        let footer =
            KeyIndexFooter::decode(&tail, len).map_err(|e| Error::decode(path, footer_at, e))?;
        let parts_at = footer.parts_range().start;
        let parts = self.range(path, footer.parts_range()).await?;
        let index =
            KeyIndex::decode(&footer, &parts).map_err(|e| Error::decode(path, parts_at, e))?;
        let mut checker = index.checker();
        let header = self.range(path, 0..HEADER_BYTES).await?;
        checker
            .header(&header)
            .map_err(|e| Error::decode(path, 0, e))?;
        hash.update(&header);
        for range in index.blocks() {
            let at = range.start;
            let block = self.range(path, range).await?;
            checker
                .block(&block)
                .map_err(|e| Error::decode(path, at, e))?;
            hash.update(&block);
        }
        checker
            .finish()
            .map_err(|e| Error::decode(path, footer_at, e))?;
        hash.update(&parts);
        hash.update(&tail);
        Ok(Digest(hash.finalize().into()))
    }
}
