//! Tests of the folder bucket: conditional writes, races, order of listing, leftovers, refusals.

use std::fs;
use std::path::Path;

use super::*;
use crate::env::BLOCK_BYTES;
use crate::env::testing::block_on;

fn open(root: &Path) -> FolderBucket {
    FolderBucket::open(root).unwrap()
}

fn put(bucket: &FolderBucket, key: &str, data: &[u8]) -> PutOutcome {
    block_on(bucket.put_if_absent(key, data.to_vec())).unwrap()
}

fn keys(rows: &[ObjectMeta]) -> Vec<&str> {
    rows.iter().map(|row| row.key.as_str()).collect()
}

fn tmp_files(root: &Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(root.join(".tmp"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name != "OPEN" && name != "CAS")
        .collect();
    names.sort();
    names
}

#[test]
fn put_if_absent_twice_keeps_the_first() {
    let root = tempfile::tempdir().unwrap();
    let bucket = open(root.path());
    assert_eq!(put(&bucket, "a/b/c", b"one"), PutOutcome::Created);
    assert_eq!(put(&bucket, "a/b/c", b"two"), PutOutcome::Exists);
    assert_eq!(block_on(bucket.get("a/b/c")).unwrap().0, b"one");
    assert_eq!(block_on(bucket.head("a/b/c")).unwrap(), Some(3));
    assert!(tmp_files(root.path()).is_empty());
}

#[test]
fn put_if_absent_raced_by_threads_has_one_winner() {
    let root = tempfile::tempdir().unwrap();
    let winners: Vec<u8> = std::thread::scope(|scope| {
        let racers: Vec<_> = (0..8u8)
            .map(|me| {
                // Every racer opens the folder for itself, as another process would.
                let bucket = open(root.path());
                scope.spawn(move || put(&bucket, "one/name", &[me; 1000]))
            })
            .collect();
        (0..8u8)
            .zip(racers)
            .filter_map(|(me, racer)| (racer.join().unwrap() == PutOutcome::Created).then_some(me))
            .collect()
    });
    assert_eq!(winners.len(), 1);
    let (data, _) = block_on(open(root.path()).get("one/name")).unwrap();
    assert_eq!(data, [winners[0]; 1000]);
}

#[test]
fn put_if_match_stale_tag_is_a_mismatch() {
    let root = tempfile::tempdir().unwrap();
    let bucket = open(root.path());
    put(&bucket, "k", b"v1");
    let (_, old) = block_on(bucket.get("k")).unwrap();
    let SwapOutcome::Swapped(new) =
        block_on(bucket.put_if_match("k", &old, b"v2".to_vec())).unwrap()
    else {
        panic!("a current tag must swap");
    };
    let stale = block_on(bucket.put_if_match("k", &old, b"v3".to_vec())).unwrap();
    assert_eq!(stale, SwapOutcome::Mismatch);
    assert_eq!(
        block_on(bucket.get("k")).unwrap(),
        (b"v2".to_vec(), new.clone())
    );
    let absent = block_on(bucket.put_if_match("no/such", &new, b"x".to_vec())).unwrap();
    assert_eq!(absent, SwapOutcome::Mismatch);
    assert_eq!(block_on(bucket.head("no/such")).unwrap(), None);
    assert!(tmp_files(root.path()).is_empty());
}

#[test]
fn put_if_match_raced_by_threads_loses_no_increment() {
    const RACERS: usize = 4;
    const ROUNDS: usize = 10;
    let root = tempfile::tempdir().unwrap();
    put(&open(root.path()), "counter", b"0");
    std::thread::scope(|scope| {
        for _ in 0..RACERS {
            let bucket = open(root.path());
            scope.spawn(move || {
                for _ in 0..ROUNDS {
                    loop {
                        let (data, tag) = block_on(bucket.get("counter")).unwrap();
                        let n: usize = String::from_utf8(data).unwrap().parse().unwrap();
                        let next = (n + 1).to_string().into_bytes();
                        let swap = block_on(bucket.put_if_match("counter", &tag, next)).unwrap();
                        if swap != SwapOutcome::Mismatch {
                            break;
                        }
                    }
                }
            });
        }
    });
    let (data, _) = block_on(open(root.path()).get("counter")).unwrap();
    assert_eq!(
        String::from_utf8(data).unwrap(),
        (RACERS * ROUNDS).to_string()
    );
}

#[test]
fn get_range_beyond_the_end_is_clamped() {
    let root = tempfile::tempdir().unwrap();
    let bucket = open(root.path());
    put(&bucket, "k", b"0123456789");
    let range = |offset, len| block_on(bucket.get_range("k", offset, len)).unwrap();
    assert_eq!(range(2, 3), b"234");
    assert_eq!(range(8, 100), b"89");
    assert_eq!(range(10, 1), b"");
    assert_eq!(range(u64::MAX, usize::MAX), b"");
}

#[test]
fn get_absent_or_directory_is_not_found() {
    let root = tempfile::tempdir().unwrap();
    let bucket = open(root.path());
    put(&bucket, "dir/file", b"x");
    for key in ["none", "dir", "dir/none", "dir/file/below"] {
        let error = block_on(bucket.get(key)).unwrap_err();
        assert!(
            matches!(error, BucketError::NotFound { .. }),
            "{key}: {error}"
        );
        let error = block_on(bucket.get_range(key, 0, 1)).unwrap_err();
        assert!(
            matches!(error, BucketError::NotFound { .. }),
            "{key}: {error}"
        );
        assert_eq!(block_on(bucket.head(key)).unwrap(), None, "{key}");
        block_on(bucket.delete(key)).unwrap();
    }
}

#[test]
fn bucket_that_is_away_is_unavailable_not_empty() {
    let root = tempfile::tempdir().unwrap();
    let (here, away) = (root.path().join("bucket"), root.path().join("away"));
    let bucket = open(&here);
    put(&bucket, "a/k", b"data");
    fs::rename(&here, &away).unwrap();
    let gone = |error: BucketError| {
        assert!(matches!(error, BucketError::Unavailable { .. }), "{error}");
        assert!(error.to_string().contains("not mounted"), "{error}");
    };
    gone(block_on(bucket.get("a/k")).unwrap_err());
    gone(block_on(bucket.get_range("a/k", 0, 1)).unwrap_err());
    gone(block_on(bucket.head("a/k")).unwrap_err());
    fs::rename(&away, &here).unwrap();
    assert_eq!(block_on(bucket.get_range("a/k", 1, 2)).unwrap(), b"at");
}

#[test]
fn shares_disk_tells_file_systems_apart() {
    let root = tempfile::tempdir().unwrap();
    let bucket = open(&root.path().join("bucket"));
    assert!(bucket.shares_disk(root.path()));
    assert!(!bucket.shares_disk(Path::new("/proc")));
    assert!(!bucket.shares_disk(&root.path().join("absent")));
}

#[test]
fn put_if_absent_where_a_file_or_directory_is_in_the_way_is_refused() {
    let root = tempfile::tempdir().unwrap();
    let bucket = open(root.path());
    put(&bucket, "dir/file", b"x");
    for key in ["dir", "dir/file/below"] {
        let error = block_on(bucket.put_if_absent(key, vec![1])).unwrap_err();
        assert!(
            matches!(error, BucketError::Unavailable { .. }),
            "{key}: {error}"
        );
    }
}

#[test]
fn put_if_absent_directory_removed_meanwhile_is_made_again() {
    let root = tempfile::tempdir().unwrap();
    let bucket = open(root.path());
    put(&bucket, "a/b/one", b"1");
    fs::remove_dir_all(root.path().join("a")).unwrap();
    assert_eq!(put(&bucket, "a/b/two", b"2"), PutOutcome::Created);
}

#[test]
fn delete_present_and_absent_both_succeed() {
    let root = tempfile::tempdir().unwrap();
    let bucket = open(root.path());
    put(&bucket, "a/k", b"x");
    block_on(bucket.delete("a/k")).unwrap();
    assert_eq!(block_on(bucket.head("a/k")).unwrap(), None);
    block_on(bucket.delete("a/k")).unwrap();
    block_on(bucket.delete("never/was")).unwrap();
}

#[test]
fn list_keys_around_the_slash_come_in_byte_order() {
    let root = tempfile::tempdir().unwrap();
    let bucket = open(root.path());
    let mut all = vec![
        "a-b", "a.b", "a/b", "a/b0", "a/c/d", "a0", "b", "a/b-/x", "ä/x",
    ];
    for key in &all {
        put(&bucket, key, key.as_bytes());
    }
    all.sort_unstable();
    let rows = block_on(bucket.list("", "", 100)).unwrap();
    assert_eq!(keys(&rows), all);
    assert!(rows.iter().all(|row| row.len == row.key.len() as u64));
}

#[test]
fn list_every_prefix_start_and_limit_agrees_with_a_plain_filter() {
    let root = tempfile::tempdir().unwrap();
    let bucket = open(root.path());
    let mut all = vec![
        "a-b", "a.b", "a/b", "a/b0", "a/c/d", "a/c/e", "a0", "b", "a/b-/x", "c/c/c/c",
    ];
    for key in &all {
        put(&bucket, key, b"");
    }
    all.sort_unstable();
    let probes = [
        "", "a", "a/", "a/b", "a/c/", "a/c/d", "a/d", "a0", "b", "c/c", "z", "a-", "a/b-/x",
    ];
    for prefix in probes {
        for start_after in probes {
            for limit in [0, 1, 2, 100] {
                let rows = block_on(bucket.list(prefix, start_after, limit)).unwrap();
                let expected: Vec<&str> = all
                    .iter()
                    .copied()
                    .filter(|key| key.starts_with(prefix) && *key > start_after)
                    .take(limit)
                    .collect();
                assert_eq!(
                    keys(&rows),
                    expected,
                    "{prefix:?} after {start_after:?} max {limit}"
                );
            }
        }
    }
}

#[test]
fn upload_unaligned_last_part_has_its_true_length() {
    let root = tempfile::tempdir().unwrap();
    let bucket = open(root.path());
    let first = vec![1u8; 3 * BLOCK_BYTES];
    let last = vec![2u8; BLOCK_BYTES + 17];
    block_on(async {
        let mut upload = bucket.upload().await.unwrap();
        upload
            .part(Arc::new(AlignedBuf::copy_of(&first)))
            .await
            .unwrap();
        upload
            .part(Arc::new(AlignedBuf::copy_of(&last)))
            .await
            .unwrap();
        upload.finish("packs/big").await.unwrap();
    });
    let (data, _) = block_on(bucket.get("packs/big")).unwrap();
    assert_eq!(data, [first, last].concat());
    assert!(tmp_files(root.path()).is_empty());
}

#[test]
fn upload_part_after_an_unaligned_one_is_refused() {
    let root = tempfile::tempdir().unwrap();
    let bucket = open(root.path());
    block_on(async {
        let mut upload = bucket.upload().await.unwrap();
        upload
            .part(Arc::new(AlignedBuf::copy_of(b"short")))
            .await
            .unwrap();
        assert!(
            upload
                .part(Arc::new(AlignedBuf::copy_of(b"more")))
                .await
                .is_err()
        );
        assert!(upload.finish("k").await.is_err());
        assert_eq!(bucket.head("k").await.unwrap(), None);
    });
}

#[test]
fn upload_dropped_leaves_nothing() {
    let root = tempfile::tempdir().unwrap();
    let bucket = open(root.path());
    let mut upload = block_on(bucket.upload()).unwrap();
    block_on(upload.part(Arc::new(AlignedBuf::zeroed(BLOCK_BYTES)))).unwrap();
    assert_eq!(tmp_files(root.path()).len(), 1);
    drop(upload);
    // Two threads: two round trips through each make sure the removal has run.
    for _ in 0..8 {
        block_on(bucket.head("k")).unwrap();
    }
    let gone = (0..100).any(|_| {
        std::thread::sleep(std::time::Duration::from_millis(10));
        tmp_files(root.path()).is_empty()
    });
    assert!(gone);
}

#[test]
fn upload_finish_onto_an_existing_key_replaces_it() {
    let root = tempfile::tempdir().unwrap();
    let bucket = open(root.path());
    for _ in 0..2 {
        block_on(async {
            let mut upload = bucket.upload().await.unwrap();
            upload
                .part(Arc::new(AlignedBuf::copy_of(b"same")))
                .await
                .unwrap();
            upload.finish("d/digest.pack").await.unwrap();
        });
    }
    assert_eq!(block_on(bucket.get("d/digest.pack")).unwrap().0, b"same");
}

#[test]
fn open_after_a_crash_removes_leftovers_only() {
    let root = tempfile::tempdir().unwrap();
    put(&open(root.path()), "kept", b"x");
    fs::write(root.path().join(".tmp/0123"), b"half a pack").unwrap();
    let bucket = open(root.path());
    assert!(tmp_files(root.path()).is_empty());
    assert_eq!(block_on(bucket.get("kept")).unwrap().0, b"x");
}

#[test]
fn open_while_another_has_the_folder_open_spares_its_files() {
    let root = tempfile::tempdir().unwrap();
    let first = open(root.path());
    let mut upload = block_on(first.upload()).unwrap();
    block_on(upload.part(Arc::new(AlignedBuf::zeroed(BLOCK_BYTES)))).unwrap();
    let _second = open(root.path());
    block_on(upload.finish("k")).unwrap();
    assert_eq!(block_on(first.head("k")).unwrap(), Some(BLOCK_BYTES as u64));
}

#[test]
fn open_root_that_cannot_be_a_folder_names_it() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    fs::write(&file, b"").unwrap();
    for root in [
        file.clone(),
        file.join("below"),
        "/proc/sealog-test/bucket".into(),
    ] {
        let error = FolderBucket::open(&root).err().expect("must not open");
        assert!(
            error.to_string().contains(&*root.to_string_lossy()),
            "{error}"
        );
    }
    assert_eq!(fs::read(&file).unwrap(), b"");
}

#[test]
fn calls_with_keys_outside_the_root_are_refused() {
    let root = tempfile::tempdir().unwrap();
    let bucket = open(root.path());
    let outside = block_on(bucket.put_if_absent("../x", vec![])).unwrap_err();
    assert!(
        matches!(outside, BucketError::Unavailable { .. }),
        "{outside}"
    );
    assert!(block_on(bucket.get(".tmp/OPEN")).is_err());
    assert!(block_on(bucket.delete("/etc/passwd")).is_err());
    assert!(block_on(bucket.list("../", "", 1)).is_err());
}

#[test]
fn typed_full_disk_and_quota_are_full() {
    for (errno, full) in [
        (libc::ENOSPC, true),
        (libc::EDQUOT, true),
        (libc::EROFS, false),
        (libc::EACCES, false),
        (libc::EIO, false),
    ] {
        let error = typed("k", io::Error::from_raw_os_error(errno));
        assert_eq!(matches!(error, BucketError::Full { .. }), full, "{error}");
    }
}

/// A mounted tmpfs of 64 KiB; unmounted on drop.
struct SmallDisk {
    dir: tempfile::TempDir,
}

impl SmallDisk {
    fn mount() -> Self {
        let this = Self {
            dir: tempfile::tempdir().unwrap(),
        };
        this.run("mount", &["-t", "tmpfs", "-o", "size=64k", "sealog-test"]);
        this
    }

    fn remount_read_only(&self) {
        self.run("mount", &["-o", "remount,ro"]);
    }

    fn run(&self, program: &str, args: &[&str]) {
        let status = std::process::Command::new(program)
            .args(args)
            .arg(self.dir.path())
            .status();
        assert!(status.unwrap().success(), "{program}");
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        self.run("umount", &[]);
    }
}

#[test]
fn health_counts_from_the_first_failure_until_something_is_stored() {
    let mut health = Health::default();
    let full = || {
        Err::<(), _>(BucketError::Full {
            key: "k".to_owned(),
            source: io::ErrorKind::StorageFull.into(),
        })
    };
    let absent = Err::<(), _>(BucketError::NotFound {
        key: "k".to_owned(),
    });
    assert!(!health.tried);
    health.remember(Aim::Get, &absent);
    assert!(health.tried && health.reading.is_none());
    health.remember(Aim::Store, &full());
    let since = |health: &Health| health.writing.as_ref().map(|(_, since)| *since);
    let first = since(&health);
    assert!(first.is_some());
    // Reads go well, and what makes a place for data, too; the folder is full all the same.
    health.remember(Aim::Read, &Ok(()));
    health.remember(Aim::Begin, &Ok(()));
    health.remember(Aim::Begin, &full());
    assert_eq!(since(&health), first);
    health.remember(Aim::Get, &full());
    assert!(health.reading.is_some());
    health.remember(Aim::Store, &Ok(()));
    assert!(health.writing.is_none() && health.reading.is_none());
}

#[test]
fn health_of_a_folder_that_is_gone_says_so() {
    let root = tempfile::tempdir().unwrap();
    let path = root.path().join("bucket");
    let bucket = open(&path);
    assert_eq!(bucket.health(), BucketHealth::default());
    fs::rename(&path, root.path().join("away")).unwrap();
    assert!(block_on(bucket.put_if_absent("k", vec![1])).is_err());
    let (text, _) = bucket.health().trouble.expect("trouble");
    assert!(text.contains("bucket"), "{text}");
    fs::rename(root.path().join("away"), &path).unwrap();
    put(&bucket, "k", b"x");
    assert_eq!(bucket.health().trouble, None);
}

#[test]
#[ignore = "mounts a small tmpfs: needs root"]
fn writes_on_a_full_disk_are_full_and_leave_nothing() {
    let disk = SmallDisk::mount();
    let bucket = open(disk.dir.path());
    put(&bucket, "small", b"x");
    let big = vec![1u8; 100 * 1024];
    let error = block_on(bucket.put_if_absent("big", big.clone())).unwrap_err();
    assert!(matches!(error, BucketError::Full { .. }), "{error}");
    let (_, tag) = block_on(bucket.get("small")).unwrap();
    let error = block_on(bucket.put_if_match("small", &tag, big.clone())).unwrap_err();
    assert!(matches!(error, BucketError::Full { .. }), "{error}");
    let mut upload = block_on(bucket.upload()).unwrap();
    let error = block_on(upload.part(Arc::new(AlignedBuf::copy_of(&big)))).unwrap_err();
    assert!(matches!(error, BucketError::Full { .. }), "{error}");
    drop(upload);
    assert!(tmp_files(disk.dir.path()).is_empty());
    assert_eq!(block_on(bucket.get("small")).unwrap().0, b"x");
    // Room again: the same calls succeed.
    assert_eq!(put(&bucket, "big", &big[..1000]), PutOutcome::Created);
}

#[test]
#[ignore = "mounts a small tmpfs: needs root"]
fn writes_on_a_read_only_disk_are_unavailable_and_reads_go_on() {
    let disk = SmallDisk::mount();
    put(&open(disk.dir.path()), "k", b"x");
    let bucket = open(disk.dir.path());
    // The locks are held open for writing, which keeps the disk from being made read-only under them.
    drop(bucket);
    std::thread::sleep(std::time::Duration::from_millis(50));
    disk.remount_read_only();
    let error = FolderBucket::open(disk.dir.path())
        .err()
        .expect("must not open");
    assert_eq!(error.source.kind(), io::ErrorKind::ReadOnlyFilesystem);
}
