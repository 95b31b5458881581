//! EngineSubject: the engine, as the workload sees it, on a simulated process.
//!
//! **Invariants**
//! - Small limits: segments, packs and checkpoints turn over many times in one run.
//! - The engine's own error tells what an answer was: nothing is guessed from text.
//!
//! **Not here**: threads and io_uring; the crash and embedded tests have those.

use crate::scenario::Scenario;
use crate::sim::SimEnv;
use crate::subject::{
    CommitView, Opened, Outcome, Part, ProducerView, Range, Refusal, Seen, StartError, Subject,
};
use crate::workload::Mix;
use sealog_engine::commit::{Commit, CommitKind};
use sealog_engine::{
    Effects, EngineConfig, Error, FeedOptions, Handle, ReadFrom, ReadRequest, Result as Answer,
    verify_in,
};
use sealog_frame::{Batch, FrameView};
use std::time::Duration;

/// The engine in one simulated process.
#[derive(Clone)]
pub struct EngineSubject {
    handle: Handle<SimEnv>,
}

/// Limits that make a small run meet every boundary.
#[must_use]
pub fn config(logs: u16) -> EngineConfig {
    scaled(logs, 4)
}

/// A quarter of [`config`]: for runs of a few operations, of which there are many a second.
#[must_use]
pub fn tiny(logs: u16) -> EngineConfig {
    scaled(logs, 1)
}

fn scaled(logs: u16, scale: usize) -> EngineConfig {
    let kib = |kib: usize| (kib * scale) << 10;
    let mut config = EngineConfig::new("/data");
    config.logs = logs;
    // Short beside a run. What a stale listing leaves out stays as an orphan.
    config.gc_grace = Duration::from_millis(20);
    config.frame.record_bytes_max = kib(2);
    config.frame.batch_bytes_max = kib(12);
    config.frame.records_max = 16 * scale;
    config.frame.headers_max = 16 * scale;
    config.wal.flush_bytes = kib(4);
    // Room for two groups, with what a group takes beside its frame, and six segments.
    config.wal.segment_bytes = kib(64).max(128 << 10) as u64;
    config.wal.disk_bytes_max = kib(512).max(768 << 10) as u64;
    config.wal.lane_start_bytes = kib(16) as u64;
    config.wal.checkpoint_bytes = kib(24) as u64;
    config.wal.cache_bytes = kib(8);
    config.wal.full_wait = Duration::from_secs(5);
    config.pack_bytes = kib(16) as u64;
    config.inflight_bytes_max = kib(64);
    config
}

fn outcome<T>(answer: Answer<T>) -> Outcome<T> {
    match answer {
        Ok(value) => Outcome::Acked(value),
        Err(error) if error.effects() == Effects::Unknown => Outcome::Unknown(error.to_string()),
        Err(Error::Fenced { .. }) => Outcome::Refused(Refusal::Fenced),
        Err(Error::ProducerGap { .. }) => Outcome::Refused(Refusal::ProducerGap),
        Err(Error::ProducerFenced { .. } | Error::ProducerEpochStart { .. }) => {
            Outcome::Refused(Refusal::ProducerFenced)
        }
        Err(Error::FeedNotFound { .. }) => Outcome::Refused(Refusal::NotFound),
        Err(Error::StorageFull { .. }) => Outcome::Refused(Refusal::Full),
        Err(other) => Outcome::Refused(Refusal::Other(other.to_string())),
    }
}

fn commit_view(commit: &Commit) -> CommitView {
    CommitView {
        number: commit.number.0,
        digest: commit.digest().0,
        parent: commit.parent.0,
        discarded: commit.kind == CommitKind::Discarded,
        first: commit.first.0,
        end: commit.end.0,
        records: commit.records,
    }
}

/// Records of an answer that are part of it.
fn records(frames: &[u8], first: u64, next: u64, into: &mut Vec<Seen>) -> Result<(), String> {
    let mut rest = frames;
    while !rest.is_empty() {
        let split = FrameView::split_trusted(rest);
        let (frame, tail) = split.map_err(|e| format!("unreadable frame: {e}"))?;
        let asked = frame
            .records()
            .filter(|r| (first..next).contains(&r.sequence));
        into.extend(asked.map(|record| Seen::of(&record)));
        rest = tail;
    }
    Ok(())
}

impl EngineSubject {
    /// Starts with the limits of `config`.
    ///
    /// # Errors
    /// Damage, or what failed.
    ///
    /// # Cancel safety
    /// Dropped midway the process must end: what it spawned goes on.
    pub async fn start_with(env: &SimEnv, config: &EngineConfig) -> Result<Self, StartError> {
        match Handle::start_on(env, config).await {
            Ok(handle) => Ok(Self { handle }),
            Err(error @ (Error::Corrupt { .. } | Error::NewerFormat { .. })) => {
                Err(StartError::Corrupt(error.to_string()))
            }
            Err(error) => Err(StartError::Failed(error.to_string())),
        }
    }

    /// Checks what a process with the limits of `config` left.
    ///
    /// # Errors
    /// The damage, in words.
    ///
    /// # Cancel safety
    /// Cancel safe: only reads.
    pub async fn verify_with(env: &SimEnv, config: &EngineConfig) -> Result<(), String> {
        let verified = verify_in(env, config, &|_| ()).await;
        verified.map(|_| ()).map_err(|error| error.to_string())
    }

    /// One answer to `request`.
    ///
    /// # Errors
    /// The engine's own error, in words.
    ///
    /// # Cancel safety
    /// Cancel safe: only reads.
    pub async fn read_part(&self, request: ReadRequest) -> Result<Part, String> {
        let chunk = self.handle.read(request).await.map_err(|e| e.to_string())?;
        let mut seen = Vec::new();
        records(&chunk.frames, chunk.first, chunk.next, &mut seen)?;
        Ok(Part {
            records: seen,
            first: chunk.first,
            next: chunk.next,
            tail: chunk.tail,
        })
    }
}

impl Subject for EngineSubject {
    async fn start(env: SimEnv) -> Result<Self, StartError> {
        Self::start_with(&env, &config(env.logs())).await
    }

    async fn create_feed(&self, feed: &str) -> Outcome<u64> {
        let options = FeedOptions {
            keys: true,
            exclusive: false,
            ..FeedOptions::default()
        };
        outcome(self.handle.create_feed(feed, options).await).map(|id| id.0)
    }

    async fn delete_feed(&self, feed: &str) -> Outcome<()> {
        outcome(self.handle.delete_feed(feed).await)
    }

    async fn verify(env: SimEnv) -> Result<(), String> {
        Self::verify_with(&env, &config(env.logs())).await
    }

    async fn append(&self, feed: &str, batch: Batch) -> Outcome<Range> {
        let appended = outcome(self.handle.append(feed, batch).await);
        appended.map(|result| Range {
            first: result.first,
            last: result.last,
        })
    }

    async fn open(&self, feed: &str) -> Outcome<Opened> {
        outcome(self.handle.open(feed).await).map(|lease| Opened {
            stream: lease.stream.0,
            epoch: lease.epoch.0,
        })
    }

    async fn resume(&self, feed: &str) -> Outcome<Opened> {
        outcome(self.handle.resume(feed).await).map(|lease| Opened {
            stream: lease.stream.0,
            epoch: lease.epoch.0,
        })
    }

    async fn seal(&self, feed: &str) -> Outcome<CommitView> {
        let sealed = match self.handle.seal(feed, None, "sealed").await {
            Err(Error::AbandonedStream { stream, .. }) => {
                let kind = CommitKind::Sealed;
                let settled = self
                    .handle
                    .settle_stream(feed, Some(stream), kind, "as it stands");
                settled.await
            }
            answer => answer,
        };
        outcome(sealed).map(|commit| commit_view(&commit))
    }

    async fn discard(&self, feed: &str) -> Outcome<CommitView> {
        let kind = CommitKind::Discarded;
        let settled = self.handle.settle_stream(feed, None, kind, "").await;
        outcome(settled).map(|commit| commit_view(&commit))
    }

    async fn read_all(&self, feed: &str) -> Result<Vec<Seen>, String> {
        let mut all = Vec::new();
        let mut next = 0;
        loop {
            let mut request = ReadRequest::new(feed);
            request.from = ReadFrom::Sequence(next);
            request.bytes_max = 20 << 10;
            let chunk = self.handle.read(request).await.map_err(|e| e.to_string())?;
            records(&chunk.frames, chunk.first, chunk.next, &mut all)?;
            if chunk.next <= next {
                return Ok(all);
            }
            next = chunk.next;
        }
    }

    async fn commits(&self, feed: &str) -> Result<Vec<CommitView>, String> {
        let listed = self
            .handle
            .list_commits(feed, Default::default(), usize::MAX);
        let listed = listed.await.map_err(|e| e.to_string())?;
        Ok(listed.iter().map(commit_view).collect())
    }

    async fn producer(&self, feed: &str, id: &str) -> Result<Option<ProducerView>, String> {
        let known = self.handle.producer(feed, id.as_bytes()).await;
        let known = known.map_err(|e| e.to_string())?;
        Ok(known.map(|state| ProducerView {
            epoch: state.epoch,
            sequence: state.last_sequence,
        }))
    }

    fn commits_prefix(feed: &str) -> String {
        format!("feeds/{feed}/")
    }

    async fn settle(&self) {
        let Ok(feeds) = self.handle.list_feeds("", "", usize::MAX).await else {
            return;
        };
        for feed in feeds {
            let _ = self.handle.repair(&feed.name).await;
        }
    }

    async fn close(&self) {
        let _ = self.handle.close().await;
    }
}

/// Rounds that are long enough for the engine to turn segments and packs over.
#[must_use]
pub fn scenario(mix: Mix) -> Scenario {
    Scenario {
        mix: Mix {
            filler_max: 2_500,
            ..mix
        },
        clients: 4,
        steps_max: 4_000,
        operations: 50,
        ..Scenario::appends()
    }
}
