//! S3: the bucket, and kill -9 under writers, against real stores that `tests/s3/run.sh` starts.
//!
//! **Invariants**
//! - Without stores (`SEALOG_S3_ENDPOINTS`) every test says so, and passes.
//! - Each test works below a prefix of its own.
//!
//! **Not here**: faults (`s3_faults`), the command's main job (the server's tests).
#![allow(missing_docs, clippy::unwrap_used)]

use std::sync::Arc;
use std::time::Duration;

use futures_lite::future::block_on;
use sealog_engine::S3Options;
use sealog_engine::bucket::{S3Bucket, S3Local};
use sealog_engine::env::{AlignedBuf, Bucket, BucketError, PutOutcome, SwapOutcome, Upload};
use sealog_tests::crash;
use sealog_tests::store::real_stores;

/// Options for every store there is, below a prefix named after the test.
fn stores(test: &str) -> Vec<(String, S3Options)> {
    let stores = real_stores();
    if stores.is_empty() {
        println!("skipped: no stores; tests/s3/run.sh starts some");
    }
    let options = stores.into_iter().map(|(name, endpoint)| {
        let url = format!("s3://sealog/{test}-{}", std::process::id());
        let options = S3Options {
            endpoint: Some(endpoint),
            ..S3Options::of_url(&url).unwrap()
        };
        (name, options)
    });
    options.collect()
}

fn open(options: &S3Options, dir: &tempfile::TempDir) -> S3Bucket {
    let local = S3Local {
        dir: dir.path().to_owned(),
        cache_bytes_max: 0,
        upload_memory: 16 << 20,
        writes_after: Some(Duration::from_secs(3600)),
    };
    S3Bucket::open(options, local).unwrap()
}

async fn upload(bucket: &S3Bucket, key: &str, data: &[u8]) -> Result<(), BucketError> {
    let mut upload = bucket.upload().await?;
    for part in data.chunks(1 << 20) {
        upload.part(Arc::new(AlignedBuf::copy_of(part))).await?;
    }
    upload.finish(key).await
}

#[test]
fn s3_keeps_the_promises_of_a_bucket() {
    for (name, options) in stores("promises") {
        let dir = tempfile::tempdir().unwrap();
        let bucket = open(&options, &dir);
        block_on(async {
            let key = "feeds/a%2Fb~x/1/feed.json";
            let put = |data: &'static [u8]| bucket.put_if_absent(key, data.to_vec());
            assert_eq!(put(b"one").await.unwrap(), PutOutcome::Created, "{name}");
            assert_eq!(put(b"two").await.unwrap(), PutOutcome::Exists, "{name}");
            let (found, tag) = bucket.get(key).await.unwrap();
            assert_eq!(found, b"one", "{name}");
            let swap = |tag| bucket.put_if_match(key, tag, b"three".to_vec());
            let swapped = swap(&tag).await.unwrap();
            assert!(matches!(swapped, SwapOutcome::Swapped(_)), "{name}");
            assert_eq!(swap(&tag).await.unwrap(), SwapOutcome::Mismatch, "{name}");
            let absent = bucket.put_if_match("absent", &tag, vec![1]).await.unwrap();
            assert_eq!(absent, SwapOutcome::Mismatch, "{name}");
            assert_eq!(bucket.get_range(key, 1, 3).await.unwrap(), b"hre", "{name}");
            assert_eq!(bucket.get_range(key, 3, 99).await.unwrap(), b"ee", "{name}");
            assert_eq!(bucket.get_range(key, 9, 9).await.unwrap(), b"", "{name}");
            assert_eq!(bucket.head(key).await.unwrap(), Some(5), "{name}");
            assert_eq!(bucket.head("absent").await.unwrap(), None, "{name}");
            let gone = bucket.get("absent").await.unwrap_err();
            assert!(
                matches!(gone, BucketError::NotFound { .. }),
                "{name}: {gone}"
            );
            bucket.delete(key).await.unwrap();
            bucket.delete(key).await.unwrap();
            assert_eq!(bucket.head(key).await.unwrap(), None, "{name}");
        });
    }
}

#[test]
fn s3_pages_of_a_list_miss_nothing_and_repeat_nothing() {
    for (name, options) in stores("lists") {
        let dir = tempfile::tempdir().unwrap();
        let bucket = open(&options, &dir);
        let mut keys: Vec<String> = (0..12).map(|n| format!("l/{n:020}.commit")).collect();
        keys.extend(
            ["l/a/b", "l/a/c", "l/a-b/c", "l/a%2Fb/c", "l/a%2Fb/d", "m"].map(str::to_owned),
        );
        block_on(async {
            for key in &keys {
                bucket.put_if_absent(key, vec![0]).await.unwrap();
            }
            keys.sort_unstable();
            let list = async |prefix: &str, after: &str, limit| {
                let rows = bucket.list(prefix, after, limit).await.unwrap();
                rows.into_iter().map(|row| row.key).collect::<Vec<_>>()
            };
            for limit in [1, 2, 5, 100] {
                let (mut all, mut after) = (Vec::new(), String::new());
                loop {
                    let page = list("", &after, limit).await;
                    assert!(page.len() <= limit, "{name}");
                    let Some(last) = page.last() else { break };
                    after.clone_from(last);
                    all.extend(page);
                }
                all.sort_unstable();
                assert_eq!(all, keys, "{name}: pages of {limit}");
            }
            // Names in one folder come in order.
            assert_eq!(list("l/0", "", 5).await, keys[..5], "{name}");
            assert_eq!(list("l/0", &keys[4], 5).await, keys[5..10], "{name}");
            assert_eq!(list("l/a/", "", 9).await, ["l/a/b", "l/a/c"], "{name}");
        });
    }
}

#[test]
fn s3_uploads_arrive_whole() {
    for (name, options) in stores("uploads") {
        let dir = tempfile::tempdir().unwrap();
        let bucket = open(&options, &dir);
        let data: Vec<u8> = (0..21 << 20).map(|at: usize| (at / 4099) as u8).collect();
        block_on(async {
            for (key, len) in [("small", 100), ("large", data.len()), ("large", data.len())] {
                upload(&bucket, key, &data[..len]).await.unwrap();
                let (found, _) = bucket.get(key).await.unwrap();
                assert!(found == data[..len], "{name}: {key}");
            }
            let part = bucket.get_range("large", 8_388_000, 2000).await.unwrap();
            assert_eq!(part, data[8_388_000..8_390_000], "{name}");
        });
    }
}

#[test]
fn s3_one_of_many_creates_wins() {
    for (name, options) in stores("race") {
        let dir = tempfile::tempdir().unwrap();
        let bucket = open(&options, &dir);
        let racers: Vec<_> = (0..6u8)
            .map(|n| {
                let bucket = bucket.clone();
                std::thread::spawn(move || {
                    block_on(bucket.put_if_absent("k", vec![n; 100])).unwrap()
                })
            })
            .collect();
        let outcomes: Vec<PutOutcome> = racers.into_iter().map(|r| r.join().unwrap()).collect();
        let won = outcomes.iter().position(|o| *o == PutOutcome::Created);
        let winners = outcomes.iter().filter(|o| **o == PutOutcome::Created);
        assert_eq!(winners.count(), 1, "{name}");
        let (found, _) = block_on(bucket.get("k")).unwrap();
        assert_eq!(found, vec![won.unwrap() as u8; 100], "{name}");
    }
}

#[test]
fn s3_kill_under_writers() {
    let rounds = crash::rounds::from_env("SEALOG_S3_CRASH_ROUNDS", 8);
    for (name, options) in stores("crash") {
        println!("{name}");
        let writers = env!("CARGO_BIN_EXE_sealog-crash-writers");
        let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let place = crash::Place {
            dir: dir.path().to_owned(),
            store: Some(options),
        };
        let landed = crash::rounds::run(writers, &place, 7, rounds);
        println!("{name}: {landed:?}");
        // Every commit is there, once and in order, and so is all that it names.
        let report = sealog_engine::verify(&place.config(), &mut |_| {}).unwrap();
        assert!(report.commits > 0 && report.packs > 0, "{name}: {report:?}");
        println!("{name}: {report:?}");
    }
}
