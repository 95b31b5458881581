//! Cases of the host: forbidden io_uring, filesystems without direct I/O, small limits, full disks.
#![allow(missing_docs, clippy::unwrap_used)]

mod common;

use std::path::Path;
use std::time::{Duration, Instant};

use common::mounts::{Mount, can_mount, free_bytes};
use common::{
    assert_holds, batch, child, close, image, open, payload, put, scale, scratch, seccomp, small,
};
use futures_lite::future::block_on;
use sealog_engine::{Effects, Engine, EngineConfig, Error, FeedOptions, Handle, ProductionEnv};

const FEED: &str = "host";

/// A store of a few commits, closed cleanly.
fn good_store(dir: &Path) -> Vec<Vec<u8>> {
    let (engine, handle) = open(small(dir));
    block_on(handle.create_feed(FEED, FeedOptions::default())).unwrap();
    let payloads: Vec<_> = (0..20).map(|number| payload(number, 3000)).collect();
    payloads.iter().for_each(|bytes| {
        put(&handle, FEED, bytes);
    });
    close(engine);
    payloads
}

fn threads() -> usize {
    std::fs::read_dir("/proc/self/task").unwrap().count()
}

/// In a child: opens, says how it was refused and how long that took, and that nothing is left running.
fn try_open(config: EngineConfig) {
    let (before, started) = (threads(), Instant::now());
    match Engine::open(config) {
        Ok(engine) => {
            close(engine);
            child::say("opened");
        }
        Err(error) => {
            let kind = if matches!(error, Error::Unusable(_)) {
                "unusable"
            } else {
                "other"
            };
            assert!(
                !error.to_string().contains('\n'),
                "more than one line: {error}"
            );
            child::say(format!("{kind} {} {error}", started.elapsed().as_millis()));
        }
    }
    say_when_back_to(before);
}

/// In a child: waits until no more threads than `before` run, and says so.
fn say_when_back_to(before: usize) {
    for _ in 0..500 {
        if threads() <= before {
            child::say("nothing left running");
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    child::say(format!("{} threads left running", threads() - before));
}

#[test]
fn child_role() {
    let Some((role, argument)) = child::role() else {
        return;
    };
    let uring = [
        libc::SYS_io_uring_setup,
        libc::SYS_io_uring_enter,
        libc::SYS_io_uring_register,
    ];
    let dir = Path::new(&argument);
    let mut config = small(dir);
    match role.as_str() {
        "no io_uring (EPERM)" => seccomp::forbid(&uring, libc::EPERM),
        "no io_uring (ENOSYS)" => seccomp::forbid(&uring, libc::ENOSYS),
        "no direct I/O" => seccomp::forbid_direct_io(),
        "memlock 64 KiB" => child::set_limit(libc::RLIMIT_MEMLOCK, 64 << 10),
        "memlock for one" => {
            child::set_limit(libc::RLIMIT_MEMLOCK, 512 << 10);
            (config.logs, config.shards) = (4, 4);
        }
        "few descriptors" => {
            child::set_limit(libc::RLIMIT_NOFILE, 30);
            (config.logs, config.shards) = (16, 16);
        }
        "cycles" => return cycles(dir),
        "fill" => return fill_and_wait(dir),
        "short spare" => return short_spare(dir),
        other => panic!("{other}"),
    }
    try_open(config);
}

/// Runs a child that must be refused, on a good store and on nothing; answers what it said.
fn refused(role: &str) -> String {
    let parent = scratch();
    let store = parent.path().join("store");
    let payloads = good_store(&store);
    let before = image::tree(&store);
    let said = child::run(role, &store);
    assert!(
        image::tree(&store) == before,
        "{role}: the store was changed"
    );
    let [word, left] = &said[..] else {
        panic!("{role}: {said:?}")
    };
    assert_eq!(left, "nothing left running", "{role}");
    let mut words = word.splitn(3, ' ');
    assert_eq!(words.next(), Some("unusable"), "{role}: {word}");
    let millis: u64 = words.next().unwrap().parse().unwrap();
    assert!(millis < 5000, "{role}: refused after {millis} ms");
    let absent = parent.path().join("absent");
    let said = child::run(role, &absent);
    assert!(said[0].starts_with("unusable"), "{role}: {said:?}");
    assert!(
        !absent.join("format").exists(),
        "{role}: half a store was made"
    );
    let (engine, handle) = open(small(&store));
    assert_holds(&handle, FEED, &payloads, role);
    close(engine);
    words.next().unwrap().to_owned()
}

#[test]
fn case_d23_io_uring_forbidden_is_said_in_one_line() {
    for role in ["no io_uring (EPERM)", "no io_uring (ENOSYS)"] {
        let message = refused(role);
        for word in ["io_uring", "seccomp", "allow"] {
            assert!(message.contains(word), "{role}: {message}");
        }
    }
}

/// Works on `dir`, empty and holding a good store, or refuses by name and touches nothing.
fn works_or_refuses(dir: &Path, filesystem: &str) {
    let source = scratch();
    let payloads = good_store(source.path());
    let store = dir.join("store");
    image::copy_tree(source.path(), &store);
    let before = image::tree(&store);
    match Engine::open(small(&store)) {
        Ok(engine) => {
            println!("works on {filesystem}");
            assert_holds(engine.handle(), FEED, &payloads, filesystem);
            put(engine.handle(), FEED, b"more");
            close(engine);
            let (engine, handle) = open(small(&store));
            assert_eq!(put(&handle, FEED, b"more"), payloads.len() as u64 + 1);
            close(engine);
            good_store(&dir.join("empty"));
        }
        Err(Error::Unusable(message)) => {
            println!("refuses {filesystem}: {message}");
            assert!(message.contains(&*store.to_string_lossy()), "{message}");
            assert!(message.contains(filesystem), "{message}");
            assert!(
                image::tree(&store) == before,
                "{filesystem}: the store was changed"
            );
            assert!(Engine::open(small(&dir.join("empty"))).is_err());
            assert!(!dir.join("empty/format").exists());
        }
        Err(other) => panic!("{filesystem}: {other}"),
    }
}

#[test]
fn case_d24_tmpfs_works_or_is_refused_by_name() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    works_or_refuses(dir.path(), "tmpfs");
}

#[test]
fn case_d24_overlayfs_works_or_is_refused_by_name() {
    let case = "case_d24_overlayfs_works_or_is_refused_by_name";
    if !can_mount(case) {
        return;
    }
    let lower = scratch();
    let Some(mount) = Mount::overlay(case, lower.path()) else {
        return;
    };
    works_or_refuses(&mount.dir, "overlayfs");
    // The store in the layer below: nothing may begin anew above it.
    drop(mount);
    let payloads = good_store(&lower.path().join("store"));
    let Some(mount) = Mount::overlay(case, lower.path()) else {
        return;
    };
    match Engine::open(small(&mount.dir.join("store"))) {
        Ok(engine) => {
            assert_holds(engine.handle(), FEED, &payloads, "lower layer");
            close(engine);
        }
        Err(error) => assert!(matches!(error, Error::Unusable(_)), "{error}"),
    }
}

#[test]
fn case_d24_no_direct_io_is_refused_by_path_and_name() {
    let message = refused("no direct I/O");
    for word in ["direct I/O", "store", "ext4", "keep the data directory on"] {
        assert!(message.contains(word), "{message}");
    }
}

#[test]
fn case_r14_locked_memory_too_small_names_limit_have_and_need() {
    let message = refused("memlock 64 KiB");
    for word in ["memlock", "65536", "524288", "ulimit -l"] {
        assert!(message.contains(word), "{message}");
    }
}

#[test]
fn case_r14_locked_memory_for_one_is_enough_or_refused_whole() {
    let dir = scratch();
    let said = child::run("memlock for one", dir.path());
    assert_eq!(said.len(), 2, "{said:?}");
    assert_eq!(said[1], "nothing left running");
    let opened = said[0] == "opened";
    assert!(opened || said[0].contains("memlock"), "{said:?}");
    assert_eq!(opened, dir.path().join("format").exists());
}

#[test]
fn case_r14_executors_that_cannot_all_be_made_leave_none() {
    let dir = scratch();
    let said = child::run("few descriptors", dir.path());
    assert!(
        said[0].starts_with("unusable") || said[0].starts_with("other"),
        "{said:?}"
    );
    assert_eq!(said[1], "nothing left running");
    // Nothing holds the directory, and it can still become a store.
    good_store(dir.path());
}

#[test]
fn case_r14_quick_stop_and_start_cycles_work() {
    let dir = scratch();
    let said = child::run("cycles", dir.path());
    assert_eq!(said, ["nothing left running"]);
}

/// In a child, for a process of tests has threads of other tests: stops and starts, again and again.
fn cycles(dir: &Path) {
    let mut payloads = good_store(dir);
    let before = threads();
    for _ in 0..scale(15, 100) {
        let (engine, handle) = open(small(dir));
        payloads.push(payload(payloads.len() as u64, 500));
        put(&handle, FEED, payloads.last().unwrap());
        close(engine);
    }
    let (engine, handle) = open(small(dir));
    assert_holds(&handle, FEED, &payloads, "after the cycles");
    close(engine);
    say_when_back_to(before);
}

/// Nothing is packed: the log alone fills the disk.
fn log_only(dir: &Path) -> EngineConfig {
    let mut config = small(dir);
    config.wal.disk_bytes_max = 1 << 30;
    config.wal.lane_start_bytes = 1 << 30;
    config.wal.full_wait = Duration::from_millis(200);
    config
}

/// The log is packed: packs fill the disk, and then the log cannot go on.
fn packing(dir: &Path) -> EngineConfig {
    let mut config = small(dir);
    config.wal.full_wait = Duration::from_secs(2);
    config
}

/// Appends commits of 60 KiB until one is refused.
fn fill(handle: &Handle<ProductionEnv>, payloads: &mut Vec<Vec<u8>>) -> Error {
    loop {
        let bytes = payload(payloads.len() as u64, 60 << 10);
        match block_on(handle.append(FEED, batch(&[&bytes]))) {
            Ok(done) => {
                assert_eq!(done.first, payloads.len() as u64);
                payloads.push(bytes);
            }
            Err(error) => return error,
        }
    }
}

fn is_storage_full(error: &Error, about: &str) {
    assert!(
        matches!(error, Error::StorageFull { .. }),
        "{about}: {error:?}"
    );
    assert!(error.is_retryable(), "{about}");
    assert_eq!(error.effects(), Effects::None, "{about}");
}

/// Appends at the full disk for a while: each is stored or refused as full; reads go on.
fn keep_appending(handle: &Handle<ProductionEnv>, payloads: &mut Vec<Vec<u8>>, about: &str) {
    let until = Instant::now() + Duration::from_secs(scale(2, 10));
    while Instant::now() < until {
        is_storage_full(&fill(handle, payloads), about);
        assert_holds(handle, FEED, payloads, about);
    }
}

/// Waits for an append to succeed by itself; the case allows 5 s, a busy machine more.
fn resumes(handle: &Handle<ProductionEnv>, payloads: &mut Vec<Vec<u8>>, about: &str) {
    let until = Instant::now() + Duration::from_secs(15);
    let bytes = payload(payloads.len() as u64, 60 << 10);
    loop {
        match block_on(handle.append(FEED, batch(&[&bytes]))) {
            Ok(done) => {
                assert_eq!(
                    done.first,
                    payloads.len() as u64,
                    "{about}: the sequence was reset"
                );
                payloads.push(bytes);
                return;
            }
            Err(error) => is_storage_full(&error, about),
        }
        assert!(
            Instant::now() < until,
            "{about}: still refused after space was freed"
        );
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn disk_full(case: &str, config: fn(&Path) -> EngineConfig) {
    let Some(mount) = Mount::ext4(case, 64) else {
        return;
    };
    let dir = mount.dir.join("store");
    let filler = mount.dir.join("filler");
    std::fs::write(&filler, vec![1; 16 << 20]).unwrap();
    let mut payloads = Vec::new();
    let (engine, handle) = open(config(&dir));
    block_on(handle.create_feed(FEED, FeedOptions::default())).unwrap();
    // The log at its bound while packing is slow is refused too; that is not this case.
    while free_bytes(&mount.dir) > 2 << 20 {
        is_storage_full(&fill(&handle, &mut payloads), case);
    }
    assert!(!payloads.is_empty());
    println!(
        "{case}: full after {} commits, {} bytes free",
        payloads.len(),
        free_bytes(&mount.dir)
    );
    keep_appending(&handle, &mut payloads, case);
    close(engine);
    let (engine, handle) = open(config(&dir));
    assert_holds(&handle, FEED, &payloads, "restarted on the full disk");
    keep_appending(&handle, &mut payloads, "restarted on the full disk");
    std::fs::remove_file(&filler).unwrap();
    resumes(&handle, &mut payloads, case);
    for _ in 0..20 {
        resumes(&handle, &mut payloads, case);
    }
    assert_holds(&handle, FEED, &payloads, case);
    close(engine);
    let (engine, handle) = open(config(&dir));
    assert_holds(&handle, FEED, &payloads, "after it all");
    close(engine);
}

#[test]
fn case_d06_disk_full_of_log_refuses_reads_and_resumes() {
    let case = "case_d06_disk_full_of_log_refuses_reads_and_resumes";
    if can_mount(case) {
        disk_full(case, log_only);
    }
}

#[test]
fn case_d06_disk_full_of_packs_refuses_reads_and_resumes() {
    let case = "case_d06_disk_full_of_packs_refuses_reads_and_resumes";
    if can_mount(case) {
        disk_full(case, packing);
    }
}

/// In a child: fills the disk, says how many commits are in, and waits to be killed.
fn fill_and_wait(dir: &Path) {
    let (_engine, handle) = open(log_only(dir));
    block_on(handle.create_feed(FEED, FeedOptions::default())).unwrap();
    let mut payloads = Vec::new();
    is_storage_full(&fill(&handle, &mut payloads), "in the child");
    child::say(payloads.len());
    loop {
        std::thread::sleep(Duration::from_secs(60));
    }
}

#[test]
fn case_d06_killed_on_a_full_disk_opens_and_resumes() {
    let case = "case_d06_killed_on_a_full_disk_opens_and_resumes";
    if !can_mount(case) {
        return;
    }
    let Some(mount) = Mount::ext4(case, 64) else {
        return;
    };
    let dir = mount.dir.join("store");
    let filler = mount.dir.join("filler");
    std::fs::write(&filler, vec![1; 16 << 20]).unwrap();
    let mut running = child::spawn("fill", &dir);
    let count: u64 = running.hear().expect("the child failed").parse().unwrap();
    running.kill();
    let mut payloads: Vec<_> = (0..count).map(|number| payload(number, 60 << 10)).collect();
    let (engine, handle) = open(log_only(&dir));
    assert_holds(&handle, FEED, &payloads, case);
    keep_appending(&handle, &mut payloads, case);
    std::fs::remove_file(&filler).unwrap();
    resumes(&handle, &mut payloads, case);
    close(engine);
    let (engine, handle) = open(log_only(&dir));
    assert_holds(&handle, FEED, &payloads, case);
    close(engine);
}

/// In a child on a full disk with a segment that was being made when the process was killed: the
/// log must not take the short file for space it has.
fn short_spare(dir: &Path) {
    let (engine, handle) = open(log_only(dir));
    let count = block_on(handle.feed(FEED)).unwrap().next_sequence;
    let mut payloads: Vec<_> = (0..count).map(|number| payload(number, 60 << 10)).collect();
    keep_appending(&handle, &mut payloads, "short spare");
    close(engine);
    child::say("well");
}

#[test]
fn case_d06_segment_cut_short_by_a_full_disk_is_no_space() {
    let case = "case_d06_segment_cut_short_by_a_full_disk_is_no_space";
    if !can_mount(case) {
        return;
    }
    let Some(mount) = Mount::ext4(case, 64) else {
        return;
    };
    let dir = mount.dir.join("store");
    let mut running = child::spawn("fill", &dir);
    running.hear().expect("the child failed");
    running.kill();
    let short = dir.join("wal/0/00000500.seg");
    let made = std::fs::write(&short, vec![0; 8192]);
    assert!(made.is_ok() || free_bytes(&mount.dir) < 8192);
    assert_eq!(child::run("short spare", &dir), ["well"]);
}

#[test]
fn case_r18_own_store_fills_most_of_the_disk_opens() {
    let case = "case_r18_own_store_fills_most_of_the_disk_opens";
    if !can_mount(case) {
        return;
    }
    let Some(mount) = Mount::ext4(case, scale(96, 8 << 10)) else {
        return;
    };
    let dir = mount.dir.join("store");
    let (engine, handle) = open(small(&dir));
    block_on(handle.create_feed(FEED, FeedOptions::default())).unwrap();
    let mut payloads = Vec::new();
    let total = free_bytes(&mount.dir);
    while free_bytes(&mount.dir) > total / 8 {
        payloads.push(payload(payloads.len() as u64, 60 << 10));
        put(&handle, FEED, payloads.last().unwrap());
    }
    close(engine);
    for _ in 0..2 {
        let (engine, handle) = open(small(&dir));
        assert_holds(&handle, FEED, &payloads, "own store fills the disk");
        payloads.push(payload(payloads.len() as u64, 1000));
        put(&handle, FEED, payloads.last().unwrap());
        close(engine);
    }
}
