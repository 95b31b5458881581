//! Cases of memory: damaged lengths that ask for gigabytes, and a great many producers.
#![allow(missing_docs, clippy::unwrap_used)]

#[path = "common/alloc.rs"]
mod alloc;
mod common;

use std::collections::VecDeque;
use std::path::Path;
use std::sync::Mutex;

use common::image::{self, GroupAt};
use common::{assert_holds, close, open, payload, produced, put, quick, scale, small};
use futures_lite::future::block_on;
use sealog_engine::{
    Engine, EngineConfig, Error, FeedOptions, Handle, ProductionEnv, SessionOptions,
};
use tempfile::TempDir;

#[global_allocator]
static COUNTING: alloc::Counting = alloc::Counting;

/// What is measured is the whole process: one test at a time.
static ALONE: Mutex<()> = Mutex::new(());

const FEED: &str = "lengths";
/// The case's bound on extra memory.
const EXTRA_BYTES_MAX: usize = 32 << 20;

struct Killed {
    image: TempDir,
    payloads: Vec<Vec<u8>>,
}

fn killed() -> Killed {
    let payloads: Vec<_> = [1, 511, 4096, 9000, 9000]
        .iter()
        .zip(0u64..)
        .map(|(len, number)| payload(number, *len))
        .collect();
    for _ in 0..10 {
        let dir = quick();
        let (engine, handle) = open(small(dir.path()));
        block_on(handle.create_feed(FEED, FeedOptions::default())).unwrap();
        payloads.iter().for_each(|bytes| {
            put(&handle, FEED, bytes);
        });
        let image = image::image(dir.path());
        close(engine);
        if !image::groups(image.path(), 0).last().unwrap().is_marker() {
            return Killed { image, payloads };
        }
    }
    panic!("the log wrote its idle marker before it could be copied, ten times");
}

/// Length fields of a group: of the whole, of its body, of its entry, of the frame in the entry.
const LENGTHS: [(&str, usize); 4] = [
    ("group bytes", 40),
    ("body bytes", 44),
    ("entry length", 128),
    ("frame bytes", 152 + FRAME_BYTES_AT),
];

/// Where a frame keeps its length.
const FRAME_BYTES_AT: usize = 8;

/// Opens the damaged copy and returns how many records it holds, or `None` if it was refused.
fn open_damaged(dir: &Path, kept: &[Vec<u8>], about: &str) -> Option<usize> {
    let before = image::tree(dir);
    let (peak, opened) = alloc::peak_of(|| Engine::open(small(dir)));
    assert!(peak < EXTRA_BYTES_MAX, "{about}: {peak} bytes");
    match opened {
        Ok(engine) => {
            let handle = engine.handle().clone();
            let count = common::read_all(&handle, FEED).len();
            assert_holds(&handle, FEED, &kept[..count], about);
            assert_eq!(put(&handle, FEED, b"more"), count as u64, "{about}");
            close(engine);
            Some(count)
        }
        Err(error) => {
            assert!(matches!(error, Error::Corrupt { .. }), "{about}: {error}");
            assert!(image::tree(dir) == before, "{about}: something was changed");
            None
        }
    }
}

fn damaged_length(killed: &Killed, from_end: usize, sealed: bool) {
    let pick = |dir: &Path| -> GroupAt {
        let groups = image::data_groups(dir, 0);
        groups[groups.len() - 1 - from_end].clone()
    };
    let remaining = (1 << 20) - pick(killed.image.path()).position as u32;
    let values = [
        0,
        1,
        4096,
        0x7FFF_F000,
        0x7FFF_FFFF,
        0x8000_0000,
        0xFFFF_F000,
        0xFFFF_FFFF,
        remaining,
        remaining + 1,
        remaining + 4096,
    ];
    for (what, at) in LENGTHS {
        for value in values {
            let copy = image::image(killed.image.path());
            let group = pick(copy.path());
            let mut bytes = group.bytes();
            bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
            if bytes == group.bytes() {
                continue;
            }
            if sealed {
                group.write_sealed(&mut bytes);
            } else {
                image::write_at(&group.path, group.position, &bytes);
            }
            let about = format!("{what} = {value:#x}, {from_end} from the end, sealed: {sealed}");
            let held = open_damaged(copy.path(), &killed.payloads, &about);
            match (sealed, from_end) {
                (false, 0) => assert_eq!(held, Some(4), "{about}"),
                (false, _) => assert_eq!(held, None, "{about}"),
                // Checksums that fit say that it was meant: dropped as unproven, or refused, never
                // fewer than what lies before.
                (true, 0) => assert!(held.is_none_or(|count| count >= 4), "{about}: {held:?}"),
                (true, _) => assert_eq!(held, None, "{about}"),
            }
        }
    }
}

#[test]
fn case_d05_last_length_damaged_is_a_torn_tail() {
    let _alone = ALONE.lock();
    damaged_length(&killed(), 0, false);
}

#[test]
fn case_d05_inner_length_damaged_is_refused() {
    let _alone = ALONE.lock();
    damaged_length(&killed(), 2, false);
}

#[test]
fn case_d05_length_under_a_fitting_checksum_takes_no_memory() {
    let _alone = ALONE.lock();
    let killed = killed();
    damaged_length(&killed, 0, true);
    damaged_length(&killed, 2, true);
}

/// A configuration in which little memory is used for anything but producers.
fn many_producers(dir: &Path, cap: u64) -> EngineConfig {
    let mut config = small(dir);
    config.wal.checkpoint_bytes = 32 << 20;
    config.wal.disk_bytes_max = 64 << 20;
    config.producers_max = cap;
    config
}

fn id_of(number: u64) -> [u8; 16] {
    let mut id = *b"producer--------";
    id[8..].copy_from_slice(&number.to_le_bytes());
    id
}

/// One append each of producers `from..to`, many in flight.
fn append_each(handle: &Handle<ProductionEnv>, from: u64, to: u64) {
    block_on(async {
        let session = handle
            .resume_session(FEED, SessionOptions::default())
            .await
            .unwrap();
        let mut tickets = VecDeque::new();
        for number in from..to {
            let batch = produced(&id_of(number), 0, 0, b"one");
            tickets.push_back(session.append_async(batch).await.unwrap());
            if tickets.len() >= 512 {
                let ticket = tickets.pop_front().unwrap();
                assert!(!ticket.await.unwrap().duplicate);
            }
        }
        for ticket in tickets {
            ticket.await.unwrap();
        }
    });
}

/// CPU time of this process in microseconds: a count of work, whoever else is busy.
fn cpu_us() -> u64 {
    // SAFETY: all-zero bytes are a valid rusage.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: `usage` is the structure the call fills.
    assert_eq!(unsafe { libc::getrusage(libc::RUSAGE_SELF, &mut usage) }, 0);
    let us = |time: libc::timeval| (time.tv_sec * 1_000_000 + time.tv_usec) as u64;
    us(usage.ru_utime) + us(usage.ru_stime)
}

/// Documented bound on what a producer that is remembered takes.
const PRODUCER_MEMORY_BYTES_MAX: usize = 512;

/// As many producers as the cap allows, one append each; the next is refused; so after a restart.
fn up_to_the_cap(cap: u64) {
    let dir = quick();
    let (engine, handle) = open(many_producers(dir.path(), cap));
    block_on(handle.create_feed(FEED, FeedOptions::default())).unwrap();
    block_on(handle.open(FEED)).unwrap();
    append_each(&handle, 0, 1000);
    let before = alloc::live();
    let tenth = cap / 10;
    let measured = |from: u64, to: u64| {
        let (calls, cpu) = (alloc::calls(), cpu_us());
        append_each(&handle, from, to);
        (alloc::calls() - calls, cpu_us() - cpu)
    };
    let first = measured(1000, tenth);
    append_each(&handle, tenth, cap - tenth);
    let last = measured(cap - tenth, cap);
    let taken = alloc::live().saturating_sub(before) / (cap as usize - 1000);
    println!(
        "{cap} producers: {taken} bytes each; first tenth {first:?}, last {last:?} (allocations, CPU us)"
    );
    assert!(
        taken <= PRODUCER_MEMORY_BYTES_MAX,
        "{taken} bytes per producer"
    );
    // Orders of growth, not speed: something that looks at every producer would be off by far more.
    assert!(last.0 < 2 * first.0, "allocations {first:?} {last:?}");
    assert!(last.1 < 10 * first.1, "work {first:?} {last:?}");
    refuses_one_more(&handle, cap);
    close(engine);
    let (engine, handle) = open(many_producers(dir.path(), cap));
    refuses_one_more(&handle, cap);
    close(engine);
}

fn refuses_one_more(handle: &Handle<ProductionEnv>, cap: u64) {
    let info = block_on(handle.feed(FEED)).unwrap();
    assert_eq!(info.producers, cap);
    let refused = block_on(handle.append(FEED, produced(&id_of(cap), 0, 0, b"late")));
    assert_eq!(refused, Err(Error::ProducersFull { limit: cap }));
    let again = block_on(handle.append(FEED, produced(&id_of(cap / 2), 0, 0, b"one"))).unwrap();
    assert!(again.duplicate);
    let after = block_on(handle.feed(FEED)).unwrap();
    assert_eq!(
        (after.producers, after.next_sequence),
        (cap, info.next_sequence)
    );
}

#[test]
fn case_r05_producers_up_to_the_default_cap_and_no_more() {
    let _alone = ALONE.lock();
    let default = EngineConfig::new("").producers_max;
    assert_eq!(default, 100_000);
    up_to_the_cap(default);
}

#[test]
fn case_r05_a_million_producers_under_a_raised_cap() {
    let _alone = ALONE.lock();
    up_to_the_cap(scale(120_000, 1_000_000));
}
