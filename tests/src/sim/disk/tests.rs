//! Tests of SimDisk: what survives a power loss, a kill, and an error.

use crate::sim::{Fault, FaultPlan, Sim, SimEnv};
use sealog_engine::env::{AlignedBuf, BLOCK_BYTES, Disk, Env, File};
use std::path::Path;
use std::sync::Arc;

const ALWAYS: u32 = 1_000_000;

fn block(byte: u8) -> Arc<AlignedBuf> {
    Arc::new(AlignedBuf::copy_of(&[byte; BLOCK_BYTES]))
}

async fn file(env: &SimEnv, name: &str) -> super::SimFile {
    let disk = env.disk();
    disk.create_dir_all(Path::new("data")).await.unwrap();
    disk.create(&Path::new("data").join(name)).await.unwrap()
}

async fn durable_file(env: &SimEnv, name: &str) -> super::SimFile {
    let file = file(env, name).await;
    env.disk().sync_dir(Path::new("data")).await.unwrap();
    file
}

async fn first_bytes(env: SimEnv) -> Vec<u8> {
    let file = env.disk().open(Path::new("data/a")).await.unwrap();
    file.read_at(0, BLOCK_BYTES).await.unwrap()
}

#[test]
fn disk_synced_write_survives_every_crash() {
    for seed in 0..50 {
        let mut sim = Sim::new(seed, FaultPlan::power_loss().with(Fault::LostWrite, ALWAYS));
        sim.run(async |env| {
            let file = durable_file(&env, "a").await;
            file.commit(block(7), 0).await.unwrap();
            file.write_at(block(8), 4096).await.unwrap();
        });
        sim.crash();
        sim.run(async |env| {
            assert_eq!(first_bytes(env.clone()).await, vec![7; BLOCK_BYTES]);
            let file = env.disk().open(Path::new("data/a")).await.unwrap();
            let second = file.read_at(4096, BLOCK_BYTES).await.unwrap();
            assert!(second.iter().all(|&b| b == 0), "unsynced bytes survived");
        });
    }
}

#[test]
fn disk_unsynced_writes_survive_as_any_subset() {
    let mut seen = std::collections::BTreeSet::new();
    for seed in 0..200 {
        let mut sim = Sim::new(seed, FaultPlan::none().with(Fault::LostWrite, 500_000));
        sim.run(async |env| {
            let file = durable_file(&env, "a").await;
            file.commit(Arc::new(AlignedBuf::zeroed(3 * BLOCK_BYTES)), 0)
                .await
                .unwrap();
            for n in 0..3u8 {
                let offset = u64::from(n) * BLOCK_BYTES as u64;
                file.write_at(block(n + 1), offset).await.unwrap();
            }
        });
        sim.crash();
        seen.insert(sim.run(async |env| {
            let file = env.disk().open(Path::new("data/a")).await.unwrap();
            let all = file.read_at(0, 3 * BLOCK_BYTES).await.unwrap();
            [0, 1, 2].map(|n| all[n * BLOCK_BYTES] != 0)
        }));
    }
    assert_eq!(seen.len(), 8, "{seen:?}");
}

#[test]
fn disk_torn_write_mixes_whole_sectors() {
    let mut mixed = 0;
    for seed in 0..50 {
        let mut sim = Sim::new(seed, FaultPlan::none().with(Fault::TornWrite, ALWAYS));
        sim.run(async |env| {
            let file = durable_file(&env, "a").await;
            file.commit(block(1), 0).await.unwrap();
            file.write_at(block(2), 0).await.unwrap();
        });
        sim.crash();
        let bytes = sim.run(async |env| first_bytes(env).await);
        for sector in bytes.chunks(512) {
            assert!(
                sector.iter().all(|b| b == &sector[0]),
                "torn within a sector"
            );
        }
        mixed += u32::from(bytes.contains(&1) && bytes.contains(&2));
    }
    assert!(mixed > 25, "{mixed}");
}

#[test]
fn disk_kill_keeps_writes_readable_but_unsynced() {
    let mut lost = 0;
    for seed in 0..50 {
        let mut sim = Sim::new(seed, FaultPlan::power_loss());
        sim.run(async |env| {
            let file = durable_file(&env, "a").await;
            file.commit(block(0), 0).await.unwrap();
            file.write_at(block(7), 0).await.unwrap();
        });
        sim.kill();
        let seen = sim.run(async |env| first_bytes(env).await);
        assert_eq!(seen, vec![7; BLOCK_BYTES]);
        sim.crash();
        let left = sim.run(async |env| first_bytes(env).await);
        lost += u32::from(left != seen);
    }
    assert!(lost > 10, "served bytes were never lost: {lost}");
}

#[test]
fn disk_sync_after_kill_makes_old_writes_durable() {
    for seed in 0..50 {
        let mut sim = Sim::new(seed, FaultPlan::power_loss().with(Fault::LostWrite, ALWAYS));
        sim.run(async |env| {
            let file = durable_file(&env, "a").await;
            file.write_at(block(7), 0).await.unwrap();
        });
        sim.kill();
        sim.run(async |env| {
            let file = env.disk().open(Path::new("data/a")).await.unwrap();
            assert_eq!(file.unsynced(), 1);
            file.sync_data().await.unwrap();
        });
        sim.crash();
        let left = sim.run(async |env| first_bytes(env).await);
        assert_eq!(left, vec![7; BLOCK_BYTES]);
    }
}

#[test]
fn disk_sync_covers_only_what_completed_before_it() {
    let mut lost = 0;
    for seed in 0..100 {
        let mut sim = Sim::new(seed, FaultPlan::none().with(Fault::LostWrite, ALWAYS));
        sim.run(async |env| {
            let file = durable_file(&env, "a").await;
            file.commit(block(1), 0).await.unwrap();
            let (theirs, done) = (file.clone(), std::rc::Rc::new(std::cell::Cell::new(false)));
            let flag = done.clone();
            env.spawn("writer", async move {
                theirs.write_at(block(2), 0).await.unwrap();
                flag.set(true);
            });
            file.sync_data().await.unwrap();
            while !done.get() {
                env.sleep(std::time::Duration::from_micros(50)).await;
            }
        });
        sim.crash();
        lost += u32::from(sim.run(async |env| first_bytes(env).await)[0] == 1);
    }
    assert!(
        lost > 50,
        "a write after the sync's submission was covered: {lost}"
    );
}

#[test]
fn disk_names_are_durable_only_after_sync_dir() {
    let mut outcomes = std::collections::BTreeSet::new();
    for seed in 0..100 {
        let mut sim = Sim::new(seed, FaultPlan::power_loss());
        sim.run(async |env| {
            durable_file(&env, "old").await;
            let fresh = file(&env, "tmp").await;
            fresh.commit(block(1), 0).await.unwrap();
            let disk = env.disk();
            let data = Path::new("data");
            disk.rename(&data.join("tmp"), &data.join("new"))
                .await
                .unwrap();
            disk.remove(&data.join("old")).await.unwrap();
            let names = disk.list(data).await.unwrap();
            assert_eq!(names, ["new"]);
        });
        sim.crash();
        outcomes.insert(sim.run(async |env| env.disk().list(Path::new("data")).await.unwrap()));
    }
    let outcomes: Vec<_> = outcomes.iter().map(|names| names.join(" ")).collect();
    for expected in ["", "new", "new old", "old", "old tmp"] {
        assert!(
            outcomes.iter().any(|o| o == expected),
            "{expected:?} in {outcomes:?}"
        );
    }
}

#[test]
fn disk_errors_are_the_operating_systems() {
    let cases = [
        (Fault::ReadEio, 5),
        (Fault::WriteEio, 5),
        (Fault::SyncEio, 5),
        (Fault::NoSpace, 28),
    ];
    for (fault, code) in cases {
        let mut sim = Sim::new(1, FaultPlan::none());
        let file = sim.run(async |env| durable_file(&env, "a").await);
        sim.faults().plan = FaultPlan::none().with(fault, ALWAYS);
        let error = sim.run(async |_| match fault {
            Fault::ReadEio => file.read_at(0, 10).await.map(drop).unwrap_err(),
            Fault::SyncEio => file.sync_data().await.unwrap_err(),
            _ => file.write_at(block(1), 0).await.unwrap_err(),
        });
        assert_eq!(error.raw_os_error(), Some(code), "{}", fault.name());
    }
    let mut sim = Sim::new(1, FaultPlan::none());
    sim.run(async |env| {
        let missing = env.disk().open(Path::new("data/none")).await.err().unwrap();
        assert_eq!(missing.raw_os_error(), Some(2));
        durable_file(&env, "a").await;
        let twice = env.disk().create(Path::new("data/a")).await.err().unwrap();
        assert_eq!(twice.kind(), std::io::ErrorKind::AlreadyExists);
    });
}

#[test]
fn disk_full_refuses_new_blocks_and_takes_old_ones() {
    let mut plan = FaultPlan::none();
    plan.disk_capacity_bytes = 2 * BLOCK_BYTES as u64;
    Sim::new(1, plan).run(async |env| {
        let file = durable_file(&env, "a").await;
        file.write_at(block(1), 0).await.unwrap();
        file.write_at(block(1), 4096).await.unwrap();
        let full = file.write_at(block(1), 8192).await.unwrap_err();
        assert_eq!(full.kind(), std::io::ErrorKind::StorageFull);
        file.write_at(block(2), 4096).await.unwrap();
        file.set_len(4096).await.unwrap();
        file.write_at(block(1), 4096).await.unwrap();
    });
}

#[test]
fn disk_failed_sync_cannot_be_repaired_by_another() {
    let mut lost = 0;
    for seed in 0..60 {
        let mut sim = Sim::new(seed, FaultPlan::none().with(Fault::LostWrite, ALWAYS));
        sim.run(async |env| {
            let file = durable_file(&env, "a").await;
            file.commit(block(1), 0).await.unwrap();
            file.write_at(block(2), 0).await.unwrap();
        });
        sim.faults().plan = FaultPlan::power_loss().with(Fault::SyncEio, ALWAYS);
        sim.run(async |env| {
            let file = env.disk().open(Path::new("data/a")).await.unwrap();
            assert!(file.sync_data().await.is_err());
        });
        sim.faults().heal();
        sim.run(async |env| {
            let file = env.disk().open(Path::new("data/a")).await.unwrap();
            file.sync_data().await.unwrap();
        });
        sim.crash();
        lost += u32::from(sim.run(async |env| first_bytes(env).await)[0] == 1);
    }
    assert!(lost > 5, "a retried sync saved everything: {lost}");
}

#[test]
#[should_panic(expected = "seed 4: write of 100 bytes at 0 of data/a is not block-aligned")]
fn disk_unaligned_write_panics_with_the_seed() {
    Sim::new(4, FaultPlan::none()).run(async |env| {
        let file = file(&env, "a").await;
        let odd = Arc::new(AlignedBuf::copy_of(&[1; 100]));
        let _ = file.write_at(odd, 0).await;
    });
}

#[test]
fn disk_short_read_surfaces_or_is_retried() {
    let (mut surfaced, mut retried) = (0, 0);
    let mut sim = Sim::new(1, FaultPlan::none());
    let file = sim.run(async |env| {
        let file = durable_file(&env, "a").await;
        file.commit(block(3), 0).await.unwrap();
        file
    });
    sim.faults().plan = FaultPlan::none().with(Fault::ShortRead, ALWAYS);
    sim.run(async |_| {
        for _ in 0..40 {
            match file.read_at(0, 10).await {
                Ok(bytes) => {
                    assert_eq!(bytes, [3; 10]);
                    retried += 1;
                }
                Err(error) => {
                    assert_eq!(error.kind(), std::io::ErrorKind::UnexpectedEof);
                    surfaced += 1;
                }
            }
        }
    });
    assert!(surfaced > 5 && retried > 5, "{surfaced} {retried}");
}

#[test]
fn disk_rot_and_misdirection_change_bytes() {
    let mut sim = Sim::new(1, FaultPlan::none());
    let file = sim.run(async |env| {
        let file = durable_file(&env, "a").await;
        let zeros = Arc::new(AlignedBuf::zeroed(64 * BLOCK_BYTES));
        file.commit(zeros, 0).await.unwrap();
        file
    });
    assert!(sim.rot_file("data/a"));
    let ones = |bytes: &[u8]| bytes.iter().map(|b| b.count_ones()).sum::<u32>();
    let all = sim.run(async |_| file.read_at(0, 64 * BLOCK_BYTES).await.unwrap());
    assert_eq!(ones(&all), 1);
    sim.faults().plan = FaultPlan::none().with(Fault::Misdirected, ALWAYS);
    sim.run(async |_| file.write_at(block(0xff), 0).await.unwrap());
    let all = sim.run(async |_| file.read_at(0, 64 * BLOCK_BYTES).await.unwrap());
    let whole = all
        .chunks(BLOCK_BYTES)
        .filter(|b| b.iter().all(|&x| x == 0xff));
    assert_eq!(whole.count(), 1);
}
