//! Keys: merges the key runs of a stream's packs into its key index object. Spec: spec/key-index.md §1.
//!
//! **Invariants**
//! - Memory is one key block per pack and one part of the index.
//!
//! **Not here**: the merge and the format (`pack::keys`).

use std::collections::VecDeque;
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;

use super::packs::BESIDE_BYTES;
use super::unless_hopeless;
use crate::commit::{KeyIndexRef, paths};
use crate::env::{Bucket, Env, Upload};
use crate::error::{Error, Result};
use crate::feed::Stream;
use crate::ids::FeedId;
use crate::pack::keys::block::KeyBlock;
use crate::pack::keys::index::{KeyIndexBuilder, KeyIndexOptions};
use crate::pack::keys::merge::{KeyMerge, MergeStep};
use crate::shard::LogService;

/// One ranged read of a key run.
const READ_BYTES: usize = 256 << 10;

/// The key run of one pack, read block by block.
pub(crate) struct Run {
    path: String,
    range: Range<u64>,
    buffered: Vec<u8>,
}

impl Run {
    /// The run in `range` of the pack at `path`.
    pub(crate) fn new(path: String, range: Range<u64>) -> Self {
        Self {
            path,
            range,
            buffered: Vec::new(),
        }
    }

    fn bytes(&self) -> u64 {
        self.range.end - self.range.start
    }

    /// Where in the pack the next block begins.
    fn position(&self) -> u64 {
        self.range.start - self.buffered.len() as u64
    }
}

/// Builds the key index of a wholly packed stream.
pub(super) async fn build<E: Env>(
    service: &Rc<LogService<E>>,
    name: &str,
    feed: FeedId,
    stream: &Stream,
) -> Result<KeyIndexRef> {
    let mut runs = Vec::new();
    let mut keys_expected = 0;
    for pack in &stream.packs {
        let (path, index) = service.pack_index(name, feed, stream.id, pack).await?;
        let section = index.section(feed, stream.id).ok_or_else(|| {
            Error::corrupt(&path, 0, format!("no section of stream {}", stream.id))
        })?;
        keys_expected += section.key_count;
        runs.push(Run::new(path, section.keys.clone()));
    }
    let mut merge = KeyMerge::new(runs.len());
    let options = KeyIndexOptions::new(feed, stream.id, keys_expected);
    let mut builder = KeyIndexBuilder::new(options);
    let bytes: u64 = runs.iter().map(Run::bytes).sum();
    let bucket = service.env.bucket();
    bucket.check_room(bytes + BESIDE_BYTES).await?;
    let mut upload = bucket.upload().await?;
    let corrupt = |error: crate::codec::DecodeError| Error::corrupt("key run", 0, error);
    loop {
        match merge.step() {
            MergeStep::Entry(entry) => builder.push(&entry).map_err(corrupt)?,
            MergeStep::Need(run) => {
                let ended = supply(service.env.bucket(), &mut merge, run, &mut runs[run]).await?;
                if ended {
                    merge.end(run);
                }
            }
            MergeStep::Done => break,
        }
        while let Some(part) = builder.drain() {
            upload.part(Arc::new(part)).await?;
        }
    }
    let done = builder.finish();
    let mut parts: VecDeque<_> = done.parts.into();
    while let Some(part) = parts.pop_front() {
        upload.part(Arc::new(part)).await?;
    }
    let path = paths::key_index(name, feed, stream.id, &done.digest);
    unless_hopeless(service, upload.finish(&path)).await?;
    Ok(KeyIndexRef {
        digest: done.digest,
        bytes: done.bytes,
    })
}

/// Gives the merge the next block of `run`; `true` when the run has none left.
pub(crate) async fn supply<B: Bucket>(
    bucket: &B,
    merge: &mut KeyMerge,
    number: usize,
    run: &mut Run,
) -> Result<bool> {
    loop {
        if run.buffered.is_empty() && run.range.is_empty() {
            return Ok(true);
        }
        let parsed = KeyBlock::parse(&run.buffered);
        if let Ok((block, rest)) = parsed {
            let taken = run.buffered.len() - rest.len();
            let at = run.position();
            let corrupt = |error| Error::corrupt(&run.path, at, error);
            merge.supply(number, &block).map_err(corrupt)?;
            run.buffered.drain(..taken);
            return Ok(false);
        }
        if run.range.is_empty() {
            let error = parsed
                .err()
                .map_or_else(String::new, |error| error.to_string());
            return Err(Error::corrupt(&run.path, run.position(), error));
        }
        let left = usize::try_from(run.range.end - run.range.start).unwrap_or(usize::MAX);
        let want = left.min(READ_BYTES);
        let bytes = bucket.get_range(&run.path, run.range.start, want).await?;
        if bytes.is_empty() {
            return Err(Error::corrupt(
                &run.path,
                run.range.start,
                "object ends early",
            ));
        }
        run.range.start += bytes.len() as u64;
        run.buffered.extend_from_slice(&bytes);
    }
}
