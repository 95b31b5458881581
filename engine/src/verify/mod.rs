//! Verify: reads everything a data directory keeps and proves it is what was written; changes nothing.
//! Spec: spec/wal.md §13.
//!
//! ```text
//!  marker -> per log: roots, chunks -> verdict -> live segments, every group, every batch
//!                     -> per feed: commits, manifests, key indexes, staged packs, feed.json
//!         -> every object of the bucket by its digest
//! ```
//!
//! **Invariants**
//! - VERIFY-1: one changed byte at or below the durable end of a log, or anywhere in a checkpoint,
//!   the marker or the bucket, is an error that names the file or object.
//! - VERIFY-2: nothing beyond the durable end and nothing in spare segments changes the answer.
//! - A bucket that is another one, or not mounted, is not called damaged.
//! - VERIFY-3: nothing is repaired or written (the lock file and the bucket's own corner aside).
//! - Memory: one log's feeds, one part of a pack or of the log, one manifest.
//!
//! **Not here**: what to do about damage (`engine::offline`), formats.

mod checkpoints;
mod history;
mod keys;
mod log;
mod objects;

use crate::engine::offline::{Offline, marker_of};
use crate::env::Env;
use crate::error::Result;
use crate::ids::LogId;
use crate::lane::claim;
use crate::lane::owner::Witness;
use crate::limits::EngineConfig;
use crate::recovery::{LogPlace, examine};

/// What verification read and found whole.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct VerifyReport {
    /// Per log, in the order of the marker.
    pub logs: Vec<LogVerified>,
    /// Checkpoint roots.
    pub roots: u64,
    /// Checkpoint chunks.
    pub chunks: u64,
    /// Feeds.
    pub feeds: u64,
    /// Commits, over all feeds.
    pub commits: u64,
    /// Manifests.
    pub manifests: u64,
    /// Packs.
    pub packs: u64,
    /// Records in the packs.
    pub packed_records: u64,
    /// Key indexes.
    pub key_indexes: u64,
    /// Objects of feeds that no log knows: left over from deleted feeds, or from a lost log.
    pub orphans: u64,
    /// Objects in the bucket that are none of ours.
    pub foreign: u64,
    /// Bytes read of packs and log.
    pub bytes: u64,
}

/// What verification found in one log.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LogVerified {
    /// Its id.
    pub log: LogId,
    /// Live segments.
    pub segments: u64,
    /// Groups in them.
    pub groups: u64,
    /// Batches in those.
    pub batches: u64,
    /// Log offset where the log ends.
    pub end: u64,
    /// Everything before this is proven durable.
    pub proven_end: u64,
    /// The log was closed cleanly.
    pub clean: bool,
}

/// How far verification is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VerifyProgress {
    /// File or object being read.
    pub reading: String,
    /// Bytes read so far of packs and log.
    pub bytes: u64,
}

/// Progress kept for a slow listener before it is dropped.
const PROGRESS_KEPT: usize = 256;

/// Verifies a data directory that no engine has open. Blocks.
///
/// # Errors
/// [`crate::Error::Corrupt`] naming file or object and byte offset, [`crate::Error::NewerFormat`],
/// [`crate::Error::Unusable`] (directory missing, locked or not ours), [`crate::Error::Io`], [`crate::Error::Bucket`].
/// Nothing is ever changed.
pub fn verify(
    config: &EngineConfig,
    progress: &mut dyn FnMut(&VerifyProgress),
) -> Result<VerifyReport> {
    let offline = Offline::enter(config)?;
    let (tell, told) = flume::bounded(PROGRESS_KEPT);
    let config = config.clone();
    let main = move |env| async move {
        let sink = move |progress: VerifyProgress| {
            let _ = tell.try_send(progress);
        };
        verify_in(&env, &config, &sink).await
    };
    offline.run(main, || told.iter().for_each(|step| progress(&step)))
}

/// Verifies a data directory through the seams of `env`; the caller holds the directory's lock.
///
/// # Errors
/// As [`verify`].
///
/// # Cancel safety
/// Cancel safe: only reads.
pub async fn verify_in<E: Env>(
    env: &E,
    config: &EngineConfig,
    progress: &dyn Fn(VerifyProgress),
) -> Result<VerifyReport> {
    let dir = &config.data_dir;
    let marker = marker_of(env, dir).await?;
    let mut check = Check {
        env: env.clone(),
        progress,
        report: VerifyReport::default(),
        indexes: Vec::new(),
        known: Vec::new(),
    };
    for log in &marker.logs {
        let place = LogPlace::new(config, &marker, *log);
        let roots = check.checkpoints(&place).await?;
        check.reading(place.wal_dir().display());
        let examined = examine(env, &place).await?;
        if let Some(witness) = Witness::of(&examined.loaded.feeds) {
            witness.check(env).await?;
        }
        check.log(&place, &examined, &roots).await?;
        for feed in examined.loaded.feeds.iter() {
            check.feed(feed).await?;
            check.known.push(feed.id);
        }
    }
    claim::check(env, config).await?;
    check.known.sort_unstable();
    check.objects().await?;
    Ok(check.report)
}

/// A verification under way.
struct Check<'a, E: Env> {
    env: E,
    progress: &'a dyn Fn(VerifyProgress),
    report: VerifyReport,
    /// The pack indexes looked at last: packs that streams share are asked for again and again.
    indexes: Vec<(String, std::rc::Rc<crate::pack::PackIndex>)>,
    /// Ids of all living feeds.
    known: Vec<crate::ids::FeedId>,
}

impl<E: Env> Check<'_, E> {
    fn reading(&self, what: impl ToString) {
        (self.progress)(VerifyProgress {
            reading: what.to_string(),
            bytes: self.report.bytes,
        });
    }
}
