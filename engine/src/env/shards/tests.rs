//! Tests of shards and the glommio environment on a real disk.

use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use super::*;
use crate::bucket::FolderBucket;
use crate::env::{AlignedBuf, BLOCK_BYTES, Disk, Env, File};

const METHODS: [CommitMethod; 3] = [
    CommitMethod::Executor,
    CommitMethod::Thread,
    CommitMethod::LinkedRing,
];

type Panics = Arc<Mutex<Vec<(usize, &'static str, String)>>>;

struct Scratch {
    dir: tempfile::TempDir,
    bucket: FolderBucket,
    panics: Panics,
    stalls: Arc<AtomicUsize>,
}

impl Scratch {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let bucket = FolderBucket::open(dir.path().join("bucket")).unwrap();
        Self {
            dir,
            bucket,
            panics: Panics::default(),
            stalls: Arc::default(),
        }
    }

    fn options(&self, shards: usize) -> ShardOptions {
        let (panics, stalls) = (Arc::clone(&self.panics), Arc::clone(&self.stalls));
        let hooks = ShardHooks {
            on_panic: Arc::new(move |shard, task, message| {
                panics.lock().unwrap().push((shard, task, message));
            }),
            on_stall: Arc::new(move |_| {
                stalls.fetch_add(1, Ordering::Relaxed);
            }),
        };
        ShardOptions {
            pin: false,
            ..ShardOptions::new(shards, hooks)
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn panics(&self) -> Vec<(usize, &'static str, String)> {
        self.panics.lock().unwrap().clone()
    }
}

/// `blocks` blocks, each filled with its own number.
fn pattern(first: u8, blocks: usize) -> AlignedBuf {
    let mut buf = AlignedBuf::zeroed(blocks * BLOCK_BYTES);
    for (at, block) in buf.chunks_mut(BLOCK_BYTES).enumerate() {
        block.fill(first.wrapping_add(at as u8));
    }
    buf
}

#[test]
fn commit_every_method_reads_back() {
    for method in METHODS {
        let scratch = Scratch::new();
        let options = ShardOptions {
            commit_method: method,
            ..scratch.options(1)
        };
        let path = scratch.path("f");
        let read = run_shard(&options, &scratch.bucket, move |_, env| async move {
            let file = env.disk().create(&path).await.unwrap();
            // Longer than one transfer.
            let big = Arc::new(pattern(0, 300));
            file.commit(Arc::clone(&big), 0).await.unwrap();
            file.commit(Arc::new(pattern(77, 1)), 2 * BLOCK_BYTES as u64)
                .await
                .unwrap();
            file.sync_data().await.unwrap();
            file.read_at(0, big.len() + 5).await.unwrap()
        })
        .unwrap();
        let mut expected = pattern(0, 300).to_vec();
        expected[2 * BLOCK_BYTES..3 * BLOCK_BYTES].fill(77);
        assert!(read == expected, "{method:?}");
    }
}

#[test]
fn commit_two_in_flight_both_land() {
    for method in METHODS {
        let scratch = Scratch::new();
        let options = ShardOptions {
            commit_method: method,
            ..scratch.options(1)
        };
        let path = scratch.path("f");
        let read = run_shard(&options, &scratch.bucket, move |_, env| async move {
            let file = env.disk().create(&path).await.unwrap();
            let (done, both) = flume::unbounded();
            for at in 0..16u8 {
                let (file, done) = (file.clone(), done.clone());
                env.spawn("commit", async move {
                    let offset = u64::from(at) * BLOCK_BYTES as u64;
                    done.send(file.commit(Arc::new(pattern(at, 1)), offset).await)
                        .unwrap();
                });
            }
            for _ in 0..16 {
                both.recv_async().await.unwrap().unwrap();
            }
            file.read_at(0, 16 * BLOCK_BYTES).await.unwrap()
        })
        .unwrap();
        assert!(read == pattern(0, 16).to_vec(), "{method:?}");
    }
}

#[test]
fn commit_future_dropped_buffer_still_lands() {
    for method in METHODS {
        let scratch = Scratch::new();
        let options = ShardOptions {
            commit_method: method,
            ..scratch.options(1)
        };
        let path = scratch.path("f");
        let shard_path = path.clone();
        run_shard(&options, &scratch.bucket, move |_, env| async move {
            let file = env.disk().create(&shard_path).await.unwrap();
            for round in 0..50u64 {
                let buf = Arc::new(pattern(round as u8, 4));
                let mut commit = Box::pin(file.commit(buf, round * 4 * BLOCK_BYTES as u64));
                let polled =
                    std::future::poll_fn(|cx| std::task::Poll::Ready(commit.as_mut().poll(cx)));
                let _ = polled.await;
                drop(commit);
            }
            file.sync_data().await.unwrap();
        })
        .unwrap();
        // The shard has ended, so nothing is in flight: what landed is whole blocks of one round.
        let bytes = std::fs::read(&path).unwrap();
        for (at, block) in bytes.chunks(BLOCK_BYTES).enumerate() {
            let round = (at / 4) as u8;
            let expected = round.wrapping_add((at % 4) as u8);
            assert!(
                block.iter().all(|b| *b == expected || *b == 0),
                "{method:?} block {at}"
            );
        }
    }
}

#[test]
fn read_at_unaligned_ranges_match_the_content() {
    let scratch = Scratch::new();
    let path = scratch.path("f");
    let content: Vec<u8> = (0..3 * BLOCK_BYTES + 100)
        .map(|n| (n % 251) as u8)
        .collect();
    std::fs::write(&path, &content).unwrap();
    std::fs::File::open(&path).unwrap().sync_all().unwrap();
    let expected = content.clone();
    run_shard(
        &scratch.options(1),
        &scratch.bucket,
        move |_, env| async move {
            let file = env.disk().open(&path).await.unwrap();
            assert_eq!(file.len().await.unwrap(), expected.len() as u64);
            let edges = [
                0, 1, 511, 512, 4095, 4096, 4097, 12_287, 12_288, 12_300, 12_388, 12_389, 20_000,
            ];
            for start in edges {
                for len in [0, 1, 100, 4096, 5000, 100_000] {
                    let read = file.read_at(start as u64, len).await.unwrap();
                    let end = (start + len).min(expected.len());
                    let want = expected.get(start..end).unwrap_or_default();
                    assert!(
                        read == want,
                        "{start}+{len}: {} of {}",
                        read.len(),
                        want.len()
                    );
                }
            }
            assert!(file.read_at(u64::MAX, 1).await.is_err());
        },
    )
    .unwrap();
}

#[test]
fn create_existing_file_is_already_exists_and_untouched() {
    let scratch = Scratch::new();
    let path = scratch.path("f");
    std::fs::write(&path, b"mine").unwrap();
    let shard_path = path.clone();
    run_shard(
        &scratch.options(1),
        &scratch.bucket,
        move |_, env| async move {
            let error = env.disk().create(&shard_path).await.err().unwrap();
            assert_eq!(error.kind(), io::ErrorKind::AlreadyExists);
            let error = env
                .disk()
                .open(&shard_path.with_extension("none"))
                .await
                .err()
                .unwrap();
            assert_eq!(error.kind(), io::ErrorKind::NotFound);
        },
    )
    .unwrap();
    assert_eq!(std::fs::read(&path).unwrap(), b"mine");
}

#[test]
fn write_at_unaligned_is_invalid_input() {
    let scratch = Scratch::new();
    let path = scratch.path("f");
    run_shard(
        &scratch.options(1),
        &scratch.bucket,
        move |_, env| async move {
            let file = env.disk().create(&path).await.unwrap();
            for (len, offset) in [(100, 0), (BLOCK_BYTES, 100), (BLOCK_BYTES, u64::MAX - 4095)] {
                let buf = Arc::new(AlignedBuf::zeroed(len));
                let error = file.write_at(Arc::clone(&buf), offset).await.unwrap_err();
                assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
                let error = file.commit(buf, offset).await.unwrap_err();
                assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
            }
            assert_eq!(file.len().await.unwrap(), 0);
        },
    )
    .unwrap();
}

#[test]
fn names_created_renamed_listed_removed() {
    let scratch = Scratch::new();
    let dir = scratch.path("a/b");
    run_shard(
        &scratch.options(1),
        &scratch.bucket,
        move |_, env| async move {
            let disk = env.disk();
            disk.create_dir_all(&dir).await.unwrap();
            let file = disk.create(&dir.join("one")).await.unwrap();
            file.write_at(Arc::new(pattern(1, 1)), 0).await.unwrap();
            file.set_len(10).await.unwrap();
            disk.create(&dir.join("two")).await.unwrap();
            disk.rename(&dir.join("two"), &dir.join("three"))
                .await
                .unwrap();
            disk.sync_dir(&dir).await.unwrap();
            assert_eq!(disk.list(&dir).await.unwrap(), ["one", "three"]);
            assert_eq!(file.read_at(0, 100).await.unwrap(), [1; 10]);
            disk.remove(&dir.join("one")).await.unwrap();
            assert_eq!(disk.list(&dir).await.unwrap(), ["three"]);
            assert!(disk.remove(&dir.join("one")).await.is_err());
        },
    )
    .unwrap();
}

#[test]
fn spawn_task_panics_shard_lives_and_hook_hears() {
    let scratch = Scratch::new();
    let value = run_shard(&scratch.options(1), &scratch.bucket, |_, env| async move {
        env.spawn("doomed", async { panic!("planted {}", 1) });
        env.sleep(Duration::from_millis(5)).await;
        env.offload(|| 21 * 2).await
    });
    assert_eq!(value.unwrap(), 42);
    assert_eq!(scratch.panics(), [(0, "doomed", "planted 1".to_owned())]);
}

#[test]
fn main_panics_hook_hears_and_thread_ends() {
    let scratch = Scratch::new();
    let main = |_, _env: GlommioEnv<FolderBucket>| async move { panic!("planted") };
    let result = run_shard::<_, _, _, ()>(&scratch.options(1), &scratch.bucket, main);
    assert!(result.is_err());
    assert_eq!(scratch.panics(), [(0, "main", "planted".to_owned())]);
}

#[test]
fn offload_job_panics_caller_task_panics() {
    let scratch = Scratch::new();
    run_shard(&scratch.options(1), &scratch.bucket, |_, env| async move {
        let inner = env.clone();
        env.spawn("caller", async move {
            inner.offload(|| panic!("planted")).await
        });
        env.sleep(Duration::from_millis(50)).await;
    })
    .unwrap();
    assert_eq!(scratch.panics(), [(0, "caller", "planted".to_owned())]);
}

#[test]
fn start_shards_pinned_each_runs_once() {
    let scratch = Scratch::new();
    let options = ShardOptions {
        pin: true,
        ..scratch.options(2)
    };
    let threads = start_shards(&options, &scratch.bucket, |shard, env| async move {
        env.sleep(Duration::from_millis(1)).await;
        assert_eq!(env.shard(), shard);
        shard
    })
    .unwrap();
    let shards: Vec<_> = threads
        .into_iter()
        .map(|thread| thread.join().unwrap())
        .collect();
    assert_eq!(shards, [Some(0), Some(1)]);
}

#[test]
fn bucket_used_from_a_shard_wakes_it() {
    let scratch = Scratch::new();
    run_shard(&scratch.options(1), &scratch.bucket, |_, env| async move {
        use crate::env::{Bucket, PutOutcome};
        let put = env
            .bucket()
            .put_if_absent("a/b", b"x".to_vec())
            .await
            .unwrap();
        assert_eq!(put, PutOutcome::Created);
    })
    .unwrap();
}

#[test]
fn stalled_shard_is_reported_once() {
    let scratch = Scratch::new();
    let options = ShardOptions {
        stall_limit: Duration::from_millis(600),
        ..scratch.options(1)
    };
    run_shard(&options, &scratch.bucket, |_, env| async move {
        env.sleep(Duration::from_millis(10)).await;
        // A task that never yields.
        std::thread::sleep(Duration::from_millis(2000));
        env.sleep(Duration::from_millis(300)).await;
    })
    .unwrap();
    assert_eq!(scratch.stalls.load(Ordering::Relaxed), 1);
    assert!(scratch.panics().is_empty());
}

#[test]
fn turning_shard_is_never_stalled() {
    let scratch = Scratch::new();
    let options = ShardOptions {
        stall_limit: Duration::from_secs(2),
        ..scratch.options(1)
    };
    run_shard(&options, &scratch.bucket, |_, env| async move {
        let end = Instant::now() + Duration::from_secs(3);
        while Instant::now() < end {
            env.yield_if_needed().await;
        }
    })
    .unwrap();
    assert_eq!(scratch.stalls.load(Ordering::Relaxed), 0);
}

#[test]
fn tasks_still_running_after_main_are_waited_for() {
    let scratch = Scratch::new();
    let ended = Arc::new(AtomicUsize::new(0));
    let seen = Arc::clone(&ended);
    run_shard(
        &scratch.options(1),
        &scratch.bucket,
        move |_, env| async move {
            let inner = env.clone();
            env.spawn("late", async move {
                inner.sleep(Duration::from_millis(50)).await;
                seen.fetch_add(1, Ordering::Relaxed);
            });
        },
    )
    .unwrap();
    assert_eq!(ended.load(Ordering::Relaxed), 1);
}

#[test]
fn task_abandoned_at_the_end_late_answer_is_harmless() {
    let scratch = Scratch::new();
    for _ in 0..3 {
        run_shard(&scratch.options(1), &scratch.bucket, |_, env| async move {
            let inner = env.clone();
            env.spawn("waits", async move {
                // Answered after the shard has given up waiting and its executor is gone.
                inner
                    .offload(|| std::thread::sleep(Duration::from_millis(1300)))
                    .await;
            });
            env.sleep(Duration::from_millis(5)).await;
        })
        .unwrap();
        std::thread::sleep(Duration::from_millis(600));
    }
    assert!(scratch.panics().is_empty(), "{:?}", scratch.panics());
}

#[test]
fn task_that_never_ends_writes_no_more_after_the_end() {
    for method in METHODS {
        let scratch = Scratch::new();
        let options = ShardOptions {
            commit_method: method,
            ..scratch.options(1)
        };
        let path = scratch.path("f");
        let shard_path = path.clone();
        run_shard(&options, &scratch.bucket, move |_, env| async move {
            let file = env.disk().create(&shard_path).await.unwrap();
            env.spawn("writes", async move {
                let mut at = 0;
                while file.commit(Arc::new(pattern(1, 1)), at).await.is_ok() {
                    at += BLOCK_BYTES as u64;
                }
                std::future::pending::<()>().await;
            });
        })
        .unwrap();
        let len = std::fs::metadata(&path).unwrap().len();
        assert!(len > 0, "{method:?}");
        std::thread::sleep(Duration::from_millis(50));
        assert_eq!(std::fs::metadata(&path).unwrap().len(), len, "{method:?}");
    }
}
