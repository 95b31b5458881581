//! S3_faults: the bucket in a store, against a store in memory behind a proxy that breaks what passes.
//!
//! **Invariants**
//! - A fault that a bucket can survive costs nothing but time; what it cannot survive it names.
//!
//! **Not here**: real stores (`s3`), the engine above (`s3_engine`).
#![allow(missing_docs, clippy::unwrap_used)]

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_lite::future::block_on;
use sealog_engine::S3Options;
use sealog_engine::bucket::{S3Bucket, S3Local};
use sealog_engine::env::{AlignedBuf, Bucket, BucketError, PutOutcome, SwapOutcome, Upload};
use sealog_tests::store::{FakeStore, Fault, Proxy, Reply, Request, credentials};

/// A pack's key, whatever it holds: those are cached.
const PACK: &str = concat!(
    "feeds/f/1/streams/00000000000000000001/",
    "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef.pack"
);

struct Place {
    store: FakeStore,
    proxy: Proxy,
    dir: tempfile::TempDir,
}

impl Place {
    fn new() -> Self {
        credentials();
        let store = FakeStore::start();
        Self {
            proxy: Proxy::start(&store.endpoint()),
            store,
            dir: tempfile::tempdir().unwrap(),
        }
    }

    fn options(&self) -> S3Options {
        S3Options {
            endpoint: Some(self.proxy.endpoint()),
            region: Some("us-east-1".to_owned()),
            ..S3Options::of_url("s3://bucket/pre/fix").unwrap()
        }
    }

    fn try_open(&self, options: &S3Options) -> Result<S3Bucket, String> {
        S3Bucket::open(options, local(self.dir.path())).map_err(|error| error.to_string())
    }

    fn open(&self) -> S3Bucket {
        self.try_open(&self.options()).unwrap()
    }
}

fn local(dir: &Path) -> S3Local {
    S3Local {
        dir: dir.to_owned(),
        cache_bytes_max: 32 << 20,
        upload_memory: 16 << 20,
        writes_after: Some(Duration::from_secs(3600)),
    }
}

fn is_put(key: &'static str) -> impl Fn(&Request) -> bool + Send {
    move |request| request.method == "PUT" && request.key().ends_with(key)
}

fn is(method: &'static str) -> impl Fn(&Request) -> bool + Send {
    move |request| request.method == method
}

fn put(bucket: &S3Bucket, key: &str, data: &[u8]) -> PutOutcome {
    block_on(bucket.put_if_absent(key, data.to_vec())).unwrap()
}

/// Uploads `len` bytes in parts of 1 MiB.
fn upload(bucket: &S3Bucket, key: &str, len: usize) -> Result<(), BucketError> {
    block_on(async {
        let mut upload = bucket.upload().await?;
        for part in bytes_of(len).chunks(1 << 20) {
            upload.part(Arc::new(AlignedBuf::copy_of(part))).await?;
        }
        upload.finish(key).await
    })
}

fn bytes_of(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at / 7 + at / 4099) as u8).collect()
}

#[test]
fn unit_objects_are_what_they_should_be() {
    let place = Place::new();
    let bucket = place.open();
    assert_eq!(put(&bucket, "a/b%2Fc", b"one"), PutOutcome::Created);
    assert_eq!(put(&bucket, "a/b%2Fc", b"two"), PutOutcome::Exists);
    assert_eq!(place.store.object("pre/fix/a/b%2Fc").unwrap(), b"one");
    let (found, tag) = block_on(bucket.get("a/b%2Fc")).unwrap();
    assert_eq!(found, b"one");
    let swapped = block_on(bucket.put_if_match("a/b%2Fc", &tag, b"three".to_vec()));
    let SwapOutcome::Swapped(newer) = swapped.unwrap() else {
        panic!("not swapped");
    };
    assert_ne!(newer, tag);
    for (key, tag) in [("a/b%2Fc", &tag), ("absent", &newer)] {
        let again = block_on(bucket.put_if_match(key, tag, b"four".to_vec()));
        assert_eq!(again.unwrap(), SwapOutcome::Mismatch, "{key}");
    }
    let range = |offset, len| block_on(bucket.get_range("a/b%2Fc", offset, len)).unwrap();
    assert_eq!(range(1, 2), b"hr");
    assert_eq!(range(3, 100), b"ee");
    assert_eq!(range(5, 1), b"");
    assert_eq!(range(0, 0), b"");
    assert_eq!(block_on(bucket.head("a/b%2Fc")).unwrap(), Some(5));
    assert_eq!(block_on(bucket.head("a/b")).unwrap(), None);
    block_on(bucket.delete("a/b%2Fc")).unwrap();
    block_on(bucket.delete("a/b%2Fc")).unwrap();
    let gone = block_on(bucket.get("a/b%2Fc")).unwrap_err();
    assert!(matches!(gone, BucketError::NotFound { .. }), "{gone}");
    for key in ["", "/a", "a//b", "../a", ".tmp/x"] {
        assert!(
            block_on(bucket.put_if_absent(key, vec![1])).is_err(),
            "{key:?}"
        );
    }
}

#[test]
fn unit_list_pages_are_whole_and_in_order() {
    let place = Place::new();
    let bucket = place.open();
    place.store.set("pre/fixed", b"not ours");
    let mut keys: Vec<String> = (0..25).map(|n| format!("l/{n:02}-x")).collect();
    keys.extend(["l/a/b".to_owned(), "l/a-b".to_owned(), "m".to_owned()]);
    for key in &keys {
        put(&bucket, key, b"x");
    }
    keys.sort_unstable();
    let list = |prefix, after, limit| {
        let rows = block_on(bucket.list(prefix, after, limit)).unwrap();
        rows.into_iter().map(|row| row.key).collect::<Vec<_>>()
    };
    assert_eq!(list("", "", 1000), keys);
    assert_eq!(list("l/0", "", 1000), keys[..10]);
    assert_eq!(list("l/", "l/23-x", 2), ["l/24-x", "l/a-b"]);
    assert_eq!(list("l/", "", 7), keys[..7]);
    assert_eq!(list("none/", "", 7), Vec::<String>::new());
}

#[test]
fn regression_create_whose_reply_is_lost_is_our_own() {
    let faults = [
        Fault::LoseReply,
        Fault::ChangeReply(Reply::error(500, "InternalError")),
        Fault::ChangeReply(Reply::error(503, "SlowDown")),
    ];
    for fault in faults {
        let place = Place::new();
        let bucket = place.open();
        place.proxy.rule(1, fault.clone(), is_put("/ours"));
        assert_eq!(
            put(&bucket, "ours", b"mine"),
            PutOutcome::Created,
            "{fault:?}"
        );
        place.store.set("pre/fix/theirs", b"theirs");
        place.proxy.rule(1, fault.clone(), is_put("/theirs"));
        assert_eq!(
            put(&bucket, "theirs", b"mine"),
            PutOutcome::Exists,
            "{fault:?}"
        );
        assert_eq!(place.store.object("pre/fix/theirs").unwrap(), b"theirs");
        assert_eq!(place.proxy.heal(), [1, 1], "{fault:?}");
        assert!(bucket.health().retries >= 2);
    }
}

#[test]
fn regression_swap_whose_reply_is_lost_is_our_own() {
    let place = Place::new();
    let bucket = place.open();
    put(&bucket, "k", b"one");
    let (_, tag) = block_on(bucket.get("k")).unwrap();
    place.proxy.rule(1, Fault::LoseReply, is_put("/k"));
    let swapped = block_on(bucket.put_if_match("k", &tag, b"two".to_vec())).unwrap();
    let SwapOutcome::Swapped(now) = swapped else {
        panic!("{swapped:?}");
    };
    assert_eq!(
        block_on(bucket.get("k")).unwrap(),
        (b"two".to_vec(), now.clone())
    );
    // Somebody else's came first: nothing was lost of ours.
    place.store.set("pre/fix/k", b"theirs");
    place.proxy.rule(1, Fault::LoseReply, is_put("/k"));
    let late = block_on(bucket.put_if_match("k", &now, b"three".to_vec())).unwrap();
    assert_eq!(late, SwapOutcome::Mismatch);
    assert_eq!(place.proxy.heal(), [1, 1]);
}

#[test]
fn unit_statuses_mean_what_they_mean_on_a_conditional_write() {
    let place = Place::new();
    let bucket = place.open();
    put(&bucket, "k", b"theirs");
    place
        .proxy
        .rule(9, Fault::ChangeStatus(412, 304), is_put("/k"));
    assert_eq!(put(&bucket, "k", b"mine"), PutOutcome::Exists);
    place.proxy.heal();
    // Another write is under way; it turns out to have been nobody's.
    let conflict = Fault::Answer(Reply::error(409, "ConditionalRequestConflict"));
    place.proxy.rule(2, conflict.clone(), is_put("/new"));
    assert_eq!(put(&bucket, "new", b"mine"), PutOutcome::Created);
    place.proxy.rule(1, conflict, is_put("/k"));
    assert_eq!(put(&bucket, "k", b"mine"), PutOutcome::Exists);
}

#[test]
fn unit_slow_down_is_waited_out_as_asked() {
    let place = Place::new();
    let bucket = place.open();
    let slow = Reply::error(503, "SlowDown").with("retry-after", 1);
    place.proxy.rule(2, Fault::Answer(slow), is_put("/k"));
    let began = Instant::now();
    assert_eq!(put(&bucket, "k", b"x"), PutOutcome::Created);
    assert!(
        began.elapsed() >= Duration::from_secs(2),
        "{:?}",
        began.elapsed()
    );
    // Longer than a call may take: it fails at once, and says why.
    let slow = Reply::error(503, "SlowDown").with("retry-after", 3600);
    place.proxy.rule(1, Fault::Answer(slow), is("GET"));
    let began = Instant::now();
    let failed = block_on(bucket.get("k")).unwrap_err().to_string();
    assert!(failed.contains("SlowDown"), "{failed}");
    assert!(began.elapsed() < Duration::from_secs(2));
    let (text, _) = bucket.health().trouble.unwrap();
    assert!(text.contains("SlowDown"), "{text}");
    block_on(bucket.get("k")).unwrap();
    assert_eq!(bucket.health().trouble, None);
}

#[test]
fn unit_reads_that_break_off_are_read_again() {
    let place = Place::new();
    let bucket = place.open();
    let data = bytes_of(300_000);
    put(&bucket, "k", &data);
    for fault in [Fault::CutReply, Fault::Drop, Fault::LoseReply] {
        place.proxy.rule(2, fault.clone(), is("GET"));
        assert_eq!(block_on(bucket.get("k")).unwrap().0, data, "{fault:?}");
        place.proxy.rule(1, fault, is("GET"));
        let part = block_on(bucket.get_range("k", 1000, 200_000)).unwrap();
        assert_eq!(part, data[1000..201_000]);
    }
    assert_eq!(place.proxy.heal(), [2, 1, 2, 1, 2, 1]);
}

#[test]
fn regression_store_without_conditions_is_refused() {
    let conditions = |name: &'static str| {
        move |request: &Request| request.method == "PUT" && request.header(name).is_some()
    };
    let unknown = Fault::Answer(Reply::error(501, "NotImplemented"));
    for (fault, header, lack) in [
        (Fault::StripConditions, "if-none-match", "If-None-Match"),
        (Fault::StripConditions, "if-match", "If-Match"),
        (unknown.clone(), "if-none-match", "If-None-Match"),
        (unknown, "if-match", "If-Match"),
    ] {
        let place = Place::new();
        place.proxy.rule(usize::MAX, fault, conditions(header));
        let began = Instant::now();
        let refused = place.try_open(&place.options()).err().unwrap();
        assert!(refused.contains(lack), "{refused}");
        assert!(began.elapsed() < Duration::from_secs(10));
        assert_eq!(
            place.store.keys(""),
            Vec::<String>::new(),
            "the probe is gone"
        );
        // Told to use it all the same: what is there is at least not overwritten knowingly.
        let bucket = place.try_open(&S3Options {
            ignore_missing_conditions: true,
            ..place.options()
        });
        let bucket = bucket.unwrap();
        assert_eq!(put(&bucket, "k", b"one"), PutOutcome::Created);
        assert_eq!(put(&bucket, "k", b"two"), PutOutcome::Exists);
    }
}

#[test]
fn unit_store_that_says_not_modified_is_taken() {
    let place = Place::new();
    place
        .proxy
        .rule(usize::MAX, Fault::ChangeStatus(412, 304), is("PUT"));
    let bucket = place.open();
    assert_eq!(put(&bucket, "k", b"one"), PutOutcome::Created);
    assert_eq!(put(&bucket, "k", b"two"), PutOutcome::Exists);
}

#[test]
fn unit_store_that_wont_have_us_is_named() {
    for (status, code) in [(403, "AccessDenied"), (404, "NoSuchBucket")] {
        let place = Place::new();
        let denied = Fault::Answer(Reply::error(status, code));
        place.proxy.rule(usize::MAX, denied, |_| true);
        let began = Instant::now();
        let refused = place.try_open(&place.options()).err().unwrap();
        assert!(refused.contains(code), "{refused}");
        assert!(refused.contains("s3://bucket/pre/fix"), "{refused}");
        assert!(began.elapsed() < Duration::from_secs(10));
    }
}

#[test]
fn regression_bucket_that_is_gone_is_not_an_absent_object() {
    let place = Place::new();
    let bucket = place.open();
    let gone = Fault::Answer(Reply::error(404, "NoSuchBucket"));
    place.proxy.rule(usize::MAX, gone, is("GET"));
    let bare = Fault::Answer(Reply::new(404, ""));
    place.proxy.rule(usize::MAX, bare, is("HEAD"));
    let failures = [
        block_on(bucket.get("k")).map(drop),
        block_on(bucket.get_range("k", 0, 9)).map(drop),
        block_on(bucket.head("k")).map(drop),
        block_on(bucket.list("", "", 9)).map(drop),
    ];
    for failure in failures {
        let failure = failure.unwrap_err();
        let refused = matches!(failure, BucketError::Denied { .. });
        assert!(refused, "{failure}");
    }
}

#[test]
fn unit_store_that_is_away_at_the_start_is_waited_for() {
    let place = Place::new();
    let slow = Fault::Answer(Reply::error(503, "SlowDown"));
    place.proxy.rule(usize::MAX, slow, |_| true);
    let bucket = place.open();
    let away = block_on(bucket.put_if_absent("k", vec![1]))
        .unwrap_err()
        .to_string();
    assert!(away.contains("SlowDown"), "{away}");
    assert_eq!(place.store.requests(), Vec::<String>::new());
    place.proxy.heal();
    let began = Instant::now();
    while block_on(bucket.put_if_absent("k", vec![1])).is_err() {
        assert!(began.elapsed() < Duration::from_secs(30));
        std::thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(bucket.health().trouble, None);
}

#[test]
fn unit_uploads_small_and_large_arrive_whole() {
    let place = Place::new();
    let bucket = place.open();
    for (key, len) in [("small", 10), ("empty", 0), ("large", 21 << 20)] {
        upload(&bucket, key, len).unwrap();
        let name = format!("pre/fix/{key}");
        assert_eq!(place.store.object(&name).unwrap(), bytes_of(len), "{key}");
    }
    assert_eq!(place.store.open_uploads(), Vec::<String>::new());
    // A dropped upload leaves nothing behind.
    let mut given_up = block_on(bucket.upload()).unwrap();
    block_on(given_up.part(Arc::new(AlignedBuf::copy_of(&[1; 4096])))).unwrap();
    drop(given_up);
    assert_eq!(place.store.keys("pre/fix/").len(), 3);
}

#[test]
fn regression_upload_survives_lost_replies_and_a_forgetful_store() {
    let is_part = |request: &Request| request.query("partNumber").is_some();
    let is_end =
        |request: &Request| request.method == "POST" && request.query("uploadId").is_some();
    let forgotten = Fault::Answer(Reply::error(404, "NoSuchUpload"));
    let slow = Fault::Answer(Reply::error(503, "SlowDown"));
    let place = Place::new();
    let bucket = place.open();
    place.proxy.rule(1, Fault::LoseReply, is_part);
    place.proxy.rule(1, Fault::Drop, is_part);
    place.proxy.rule(1, slow, is_part);
    place.proxy.rule(1, forgotten, is_part);
    place.proxy.rule(1, Fault::LoseReply, is_end);
    upload(&bucket, "k", 21 << 20).unwrap();
    assert_eq!(place.store.object("pre/fix/k").unwrap(), bytes_of(21 << 20));
    assert_eq!(place.proxy.heal(), [1, 1, 1, 1, 1]);
    let began = Instant::now();
    while bucket.health().leftovers > 0 || !place.store.open_uploads().is_empty() {
        assert!(began.elapsed() < Duration::from_secs(10));
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn regression_abort_that_fails_is_tried_again() {
    let place = Place::new();
    let bucket = place.open();
    let denied = Fault::Answer(Reply::error(403, "AccessDenied"));
    place
        .proxy
        .rule(1, denied, |r| r.query("partNumber").as_deref() == Some("2"));
    place.proxy.rule(3, Fault::Drop, is("DELETE"));
    upload(&bucket, "k", 21 << 20).unwrap_err();
    let began = Instant::now();
    while !place.store.open_uploads().is_empty() {
        assert!(began.elapsed() < Duration::from_secs(20));
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(place.proxy.heal(), [1, 3]);
}

#[test]
fn regression_uploads_that_a_crash_left_are_aborted_at_the_start() {
    let place = Place::new();
    let old = "2020-01-01T00:00:00.000Z";
    place.store.leave_upload("pre/fix/feeds/x", old);
    let fresh = place
        .store
        .leave_upload("pre/fix/feeds/x", "2999-01-01T00:00:00Z");
    let foreign = place.store.leave_upload("pre/fixed/x", old);
    let bucket = place.open();
    let began = Instant::now();
    while place.store.open_uploads().len() > 2 {
        assert!(began.elapsed() < Duration::from_secs(10));
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(place.store.open_uploads(), [fresh, foreign]);
    drop(bucket);
}

#[test]
fn unit_pack_read_again_comes_from_the_cache() {
    let place = Place::new();
    let bucket = place.open();
    let data = bytes_of(3_000_000);
    place.store.set(&format!("pre/fix/{PACK}"), &data);
    let read = |offset: usize, len: usize| {
        let part = block_on(bucket.get_range(PACK, offset as u64, len)).unwrap();
        let end = (offset + len).min(data.len());
        assert_eq!(part, data[offset.min(end)..end], "{offset} {len}");
    };
    let asked = || place.store.requests().len();
    read(100, 10);
    let before = asked();
    read(0, 5000);
    assert_eq!(asked(), before, "the same piece");
    read(2_500_000, 900_000);
    read(0, 3_000_000);
    read(2_999_999, 1);
    let before = asked();
    read(0, 3_000_000);
    read(3_000_000, 5);
    assert_eq!(asked(), before, "all of it is here");
    assert!(bucket.health().cache_bytes >= 3_000_000);
    // Other objects may change: they are asked for.
    put(&bucket, "k", b"one");
    let before = asked();
    block_on(bucket.get_range("k", 0, 2)).unwrap();
    block_on(bucket.get_range("k", 0, 2)).unwrap();
    assert_eq!(asked(), before + 2);
}

#[test]
fn regression_damage_in_the_cache_is_fetched_anew() {
    let place = Place::new();
    let bucket = place.open();
    let data = bytes_of(1_000_000);
    place.store.set(&format!("pre/fix/{PACK}"), &data);
    let read = || block_on(bucket.get_range(PACK, 0, 1_000_000)).unwrap();
    assert_eq!(read(), data);
    let files = || std::fs::read_dir(place.dir.path()).unwrap().flatten();
    for file in files() {
        let mut bytes = std::fs::read(file.path()).unwrap();
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
        std::fs::write(file.path(), bytes).unwrap();
    }
    let before = place.store.requests().len();
    assert_eq!(read(), data);
    assert!(place.store.requests().len() > before);
    // Gone, folder and all.
    std::fs::remove_dir_all(place.dir.path()).unwrap();
    assert_eq!(read(), data);
    assert_eq!(read(), data);
    assert!(files().count() > 0);
}

#[test]
fn unit_upload_rate_is_bounded() {
    let place = Place::new();
    let bucket = place.try_open(&S3Options {
        upload_bytes_per_s: 4 << 20,
        ..place.options()
    });
    let bucket = bucket.unwrap();
    let began = Instant::now();
    upload(&bucket, "k", 21 << 20).unwrap();
    // The first part goes at once.
    let least = Duration::from_secs_f64((21.0 - 8.0) / 4.0);
    assert!(began.elapsed() >= least, "{:?}", began.elapsed());
}
