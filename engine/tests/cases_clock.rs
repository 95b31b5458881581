//! Cases of the clock: it goes back, to 1970, across restarts; times in the store never do.
#![allow(missing_docs, clippy::unwrap_used)]

mod common;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use common::{batch, payload, quick, small};
use sealog_engine::bucket::{AnyBucket, FolderBucket};
use sealog_engine::env::{Env, GlommioDisk, GlommioEnv, ShardHooks, ShardOptions, run_shard};
use sealog_engine::ids::CommitNumber;
use sealog_engine::{FeedOptions, Handle, ProductionEnv, ReadFrom, ReadRequest};
use sealog_frame::FrameView;

const FEED: &str = "clock";
const DAY_MS: i64 = 24 * 3600 * 1000;

/// The production environment under a wall clock that the test sets.
#[derive(Clone)]
struct Skewed {
    env: ProductionEnv,
    /// What the clock shows; it stands still in between.
    now_ms: Arc<AtomicI64>,
}

impl Env for Skewed {
    type Disk = GlommioDisk;
    type Bucket = AnyBucket;

    fn disk(&self) -> &Self::Disk {
        self.env.disk()
    }
    fn bucket(&self) -> &Self::Bucket {
        self.env.bucket()
    }
    fn monotonic_ns(&self) -> u64 {
        self.env.monotonic_ns()
    }
    fn realtime_ms(&self) -> u64 {
        self.now_ms.load(Ordering::SeqCst).unsigned_abs()
    }
    fn sleep(&self, duration: Duration) -> impl Future<Output = ()> {
        self.env.sleep(duration)
    }
    fn spawn(&self, name: &'static str, future: impl Future<Output = ()> + 'static) {
        self.env.spawn(name, future);
    }
    fn random_u64(&self) -> u64 {
        self.env.random_u64()
    }
    fn yield_if_needed(&self) -> impl Future<Output = ()> {
        self.env.yield_if_needed()
    }
    fn offload<T: Send + 'static>(
        &self,
        job: impl FnOnce() -> T + Send + 'static,
    ) -> impl Future<Output = T> {
        self.env.offload(job)
    }
}

/// Runs `work` on the store in `dir` while the clock shows `now_ms`, from open to close.
fn with_clock<T, F>(
    dir: &Path,
    now_ms: i64,
    work: impl FnOnce(Clock) -> F + Clone + Send + 'static,
) -> T
where
    T: Send + 'static,
    F: Future<Output = T>,
{
    let hooks = ShardHooks {
        on_panic: Arc::new(|_, task, message| panic!("task {task}: {message}")),
        on_stall: Arc::new(|_| {}),
    };
    let bucket = AnyBucket::Folder(FolderBucket::open(dir.join("bucket")).unwrap());
    let mut config = small(dir);
    config.roll.after = Duration::from_secs(1);
    let main = move |_, env: GlommioEnv<AnyBucket>| async move {
        let now_ms = Arc::new(AtomicI64::new(now_ms));
        let env = Skewed {
            env: env.clone(),
            now_ms: now_ms.clone(),
        };
        let handle = Handle::start_on(&env, &config).await.unwrap();
        let clock = Clock {
            env: env.env.clone(),
            handle: handle.clone(),
            now_ms,
        };
        let value = work(clock).await;
        handle.close().await.unwrap();
        value
    };
    run_shard(&ShardOptions::new(1, hooks), &bucket, main).unwrap()
}

/// An open store and the clock it sees.
#[derive(Clone)]
struct Clock {
    env: ProductionEnv,
    handle: Handle<Skewed>,
    now_ms: Arc<AtomicI64>,
}

impl Clock {
    fn set(&self, now_ms: i64) {
        self.now_ms.store(now_ms, Ordering::SeqCst);
    }

    /// Real time goes by; the clock stands still.
    async fn pause(&self, ms: u64) {
        self.env.sleep(Duration::from_millis(ms)).await;
    }

    /// Appends `count` commits, each accepted, with the sequences that follow `from`.
    async fn append(&self, from: u64, count: u64) {
        for number in from..from + count {
            let done = self
                .handle
                .append(FEED, batch(&[&payload(number, 900)]))
                .await;
            assert_eq!(done.unwrap().first, number);
        }
    }

    /// Arrival and effective time of every record.
    async fn times(&self) -> Vec<(u64, u64)> {
        let mut times = Vec::new();
        let mut request = ReadRequest::new(FEED);
        loop {
            let chunk = self.handle.read(request.clone()).await.unwrap();
            let mut rest = &chunk.frames[..];
            while !rest.is_empty() {
                let (frame, after) = FrameView::split_trusted(rest).unwrap();
                for record in frame.records() {
                    assert_eq!(record.sequence, times.len() as u64);
                    times.push((frame.arrival_ms(), record.timestamp_ms));
                }
                rest = after;
            }
            if chunk.next == chunk.first {
                return times;
            }
            request.from = ReadFrom::Sequence(chunk.next);
        }
    }

    /// First sequence that reading from `time_ms` gives.
    async fn first_at(&self, time_ms: u64) -> u64 {
        let mut request = ReadRequest::new(FEED);
        request.from = ReadFrom::Timestamp(time_ms);
        self.handle.read(request).await.unwrap().first
    }
}

const T: i64 = 1_900_000_000_000;

#[test]
fn case_d27_clock_goes_back_times_in_the_store_never_do() {
    let dir = quick();
    with_clock(dir.path(), T, |clock| async move {
        let created = clock.handle.create_feed(FEED, FeedOptions::default()).await;
        created.unwrap();
        clock.append(0, 10).await;
        clock.set(T - DAY_MS);
        clock.append(10, 10).await;
        // A commit sealed under the wrong clock is one like any other.
        clock.handle.seal(FEED, None, "yesterday").await.unwrap();
        clock.set(5);
        clock.append(20, 10).await;
    });
    with_clock(dir.path(), 7, |clock| async move {
        clock.append(30, 10).await;
        clock.handle.seal(FEED, None, "1970").await.unwrap();
        clock.append(40, 10).await;
    });
    let times = with_clock(dir.path(), T + 1000, |clock| async move {
        clock.append(50, 10).await;
        let times = clock.times().await;
        for (time_ms, expected) in [
            (0, 0),
            (T as u64 - 1, 0),
            (T as u64, 0),
            (T as u64 + 1, 50),
            (T as u64 + 1000, 50),
            (T as u64 + 1001, 60),
        ] {
            assert_eq!(
                clock.first_at(time_ms).await,
                expected,
                "reading from {time_ms}"
            );
        }
        times
    });
    assert_eq!(times.len(), 60);
    assert!(times.is_sorted(), "{times:?}");
    assert_eq!(times[0], (T as u64, T as u64));
    assert_eq!(
        times[49],
        (T as u64, T as u64),
        "the clock's step back shows"
    );
    assert_eq!(times[50], (T as u64 + 1000, T as u64 + 1000));
}

#[test]
fn case_d09_epoch_rises_whatever_the_clock_says() {
    let dir = quick();
    let mut highest = 0;
    for (round, now_ms) in [T, T + 3_600_000, T - 3_600_000, 3, T]
        .into_iter()
        .enumerate()
    {
        let epochs = with_clock(dir.path(), now_ms, move |clock| async move {
            if round == 0 {
                let created = clock.handle.create_feed(FEED, FeedOptions::default()).await;
                created.unwrap();
            }
            let first = clock.handle.open(FEED).await.unwrap().epoch.0;
            clock.set(now_ms - DAY_MS);
            let second = clock.handle.resume(FEED).await.unwrap().epoch.0;
            (first, second)
        });
        assert!(
            highest < epochs.0 && epochs.0 < epochs.1,
            "{round}: {epochs:?}, {highest} before"
        );
        highest = epochs.1;
    }
}

/// Waits until the feed has this many commits.
async fn committed(clock: &Clock, commits: u64) {
    while clock.handle.feed(FEED).await.unwrap().commits < commits {
        clock.pause(20).await;
    }
}

#[test]
fn parts_grow_old_by_the_clock_and_not_by_what_clients_say() {
    let dir = quick();
    with_clock(dir.path(), T, |clock| async move {
        let rolling = FeedOptions {
            rolling: true,
            ..FeedOptions::default()
        };
        clock.handle.create_feed(FEED, rolling).await.unwrap();
        clock.append(0, 1).await;
        // The timer looks again, and finds that no time has passed.
        clock.pause(1500).await;
        clock.set(T - DAY_MS);
        clock.append(1, 1).await;
        clock.set(T + 999);
        clock.append(2, 1).await;
        clock.pause(1500).await;
        assert_eq!(clock.handle.feed(FEED).await.unwrap().commits, 0);
    });
    with_clock(dir.path(), T + 1000, |clock| async move {
        // Nobody appends: the timer finds it due at the start.
        committed(&clock, 1).await;
        clock.append(3, 1).await;
        clock.set(T + DAY_MS);
        committed(&clock, 2).await;
        let listed = clock.handle.list_commits(FEED, CommitNumber(0), 9).await;
        let ranges: Vec<_> = listed
            .unwrap()
            .iter()
            .map(|c| (c.first.0, c.end.0))
            .collect();
        assert_eq!(ranges, [(0, 3), (3, 4)]);
    });
}
