//! Tests of the simulator: scheduling, time, determinism, bucket, process life.

use super::*;
use sealog_engine::env::{Bucket, BucketError, Disk, Env, File, PutOutcome, SwapOutcome, Upload};
use std::cell::RefCell;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

const ALWAYS: u32 = 1_000_000;

/// A little of everything, with all survivable faults: what the determinism tests run.
fn busy(seed: u64) -> Vec<u8> {
    let mut sim = Sim::new(seed, FaultPlan::rough());
    sim.keep_trace();
    for round in 0..3 {
        sim.run_for(400, async |env| {
            let (tx, rx) = flume::bounded(2);
            for n in 0..4u64 {
                let (env2, tx) = (env.clone(), tx.clone());
                env.spawn("producer", async move {
                    env2.sleep(Duration::from_micros(env2.random_u64() % 500))
                        .await;
                    let _ = env2
                        .bucket()
                        .put_if_absent(&format!("k{n}"), vec![0; 10])
                        .await;
                    env2.realtime_ms();
                    let _ = tx.send_async(n).await;
                });
            }
            drop(tx);
            let disk = env.disk();
            disk.create_dir_all(Path::new("d")).await.unwrap();
            let path = format!("d/{round}");
            let file = disk.create(Path::new(&path)).await.unwrap();
            while let Ok(n) = rx.recv_async().await {
                env.yield_if_needed().await;
                let hash = env.offload(move || n * 2).await;
                let buf = Arc::new(sealog_engine::env::AlignedBuf::zeroed(4096));
                let _ = file.commit(buf, hash * 4096).await;
            }
        });
        if round % 2 == 0 {
            sim.crash()
        } else {
            sim.kill()
        };
    }
    sim.trace().bytes().to_vec()
}

#[test]
fn same_seed_same_trace() {
    for seed in 0..20 {
        let (first, second) = (busy(seed), busy(seed));
        assert!(first.len() > 5_000, "{} bytes say little", first.len());
        assert!(first == second, "seed {seed} ran two ways");
    }
}

#[test]
fn other_seed_other_trace() {
    assert!(busy(1) != busy(2));
}

#[test]
fn executor_order_of_ready_tasks_depends_on_the_seed() {
    let mut orders = std::collections::BTreeSet::new();
    for seed in 0..60 {
        let order = Rc::new(RefCell::new(Vec::new()));
        let seen = order.clone();
        Sim::new(seed, FaultPlan::none()).run(async move |env| {
            for n in 0..3 {
                let seen = seen.clone();
                env.spawn("task", async move { seen.borrow_mut().push(n) });
            }
            env.sleep(Duration::from_millis(1)).await;
        });
        orders.insert(order.take());
    }
    assert_eq!(orders.len(), 6, "{orders:?}");
}

#[test]
fn executor_sleep_skips_virtual_time() {
    let mut sim = Sim::new(1, FaultPlan::none());
    sim.run(async |env| {
        let (mono, real) = (env.monotonic_ns(), env.realtime_ms());
        env.sleep(Duration::from_secs(86_400)).await;
        assert!(env.monotonic_ns() - mono >= 86_400_000_000_000);
        assert_eq!((env.realtime_ms() - real) / 1_000, 86_400);
    });
}

#[test]
fn executor_dropped_sleep_leaves_no_timer() {
    let mut sim = Sim::new(1, FaultPlan::none());
    sim.run(async |env| {
        let mut sleep = Box::pin(env.sleep(Duration::from_secs(5)));
        std::future::poll_fn(|cx| {
            assert!(sleep.as_mut().poll(cx).is_pending());
            Poll::Ready(())
        })
        .await;
    });
    assert_eq!(sim.world.executor.next_due(), None);
}

#[test]
#[should_panic(expected = "seed 9: deadlock, nothing ready and nothing due; tasks [\"main\"]")]
fn sim_deadlock_panics_with_the_seed() {
    Sim::new(9, FaultPlan::none()).run(async |_| std::future::pending::<()>().await);
}

#[test]
#[should_panic(expected = "seed 9: livelock")]
fn sim_livelock_panics_with_the_seed() {
    let mut sim = Sim::new(9, FaultPlan::none());
    sim.set_steps_max(1_000);
    sim.run(async |env| {
        loop {
            env.yield_now().await;
        }
    });
}

#[test]
#[should_panic(expected = "environment of process 1 used in process 2")]
fn sim_env_of_a_dead_process_panics() {
    let mut sim = Sim::new(9, FaultPlan::none());
    let old = sim.env();
    sim.kill();
    old.monotonic_ns();
}

#[test]
fn sim_tasks_outlive_run_and_die_with_the_process() {
    let ticks = Rc::new(std::cell::Cell::new(0));
    let mut sim = Sim::new(9, FaultPlan::none());
    let theirs = ticks.clone();
    sim.run(async move |env| {
        let env2 = env.clone();
        env.spawn("ticker", async move {
            loop {
                env2.sleep(Duration::from_millis(1)).await;
                theirs.set(theirs.get() + 1);
            }
        });
    });
    sim.run(async |env| env.sleep(Duration::from_millis(10)).await);
    let alive = ticks.get();
    assert!(alive >= 5, "{alive}");
    sim.kill();
    sim.run(async |env| env.sleep(Duration::from_millis(10)).await);
    assert_eq!(ticks.get(), alive);
}

#[test]
fn device_dropped_write_lands_or_not() {
    let mut landed = 0;
    for seed in 0..100 {
        let mut sim = Sim::new(seed, FaultPlan::none());
        landed += sim.run(async |env| {
            env.disk().create_dir_all(Path::new("d")).await.unwrap();
            let file = env.disk().create(Path::new("d/a")).await.unwrap();
            let buf = Arc::new(sealog_engine::env::AlignedBuf::copy_of(&[1; 4096]));
            let mut write = Box::pin(file.write_at(buf, 0));
            std::future::poll_fn(|cx| {
                assert!(write.as_mut().poll(cx).is_pending());
                Poll::Ready(())
            })
            .await;
            drop(write);
            env.sleep(Duration::from_secs(1)).await;
            u32::from(file.len().await.unwrap() == 4096)
        });
    }
    assert!((20..80).contains(&landed), "{landed}");
}

#[test]
fn executor_pause_moves_time_while_nobody_runs() {
    let mut sim = Sim::new(3, FaultPlan::none().with(Fault::Pause, 100_000));
    let longest = sim.run(async |env| {
        let mut longest = 0;
        for _ in 0..200 {
            let before = env.monotonic_ns();
            env.yield_now().await;
            longest = longest.max(env.monotonic_ns() - before);
        }
        longest
    });
    assert!(longest >= 100_000_000, "{longest}");
    assert!(sim.faults().fired(Fault::Pause) > 5);
}

#[test]
fn bucket_conditions_hold_without_faults() {
    let mut sim = Sim::new(1, FaultPlan::none());
    sim.run(async |env| {
        let bucket = env.bucket();
        let first = bucket.put_if_absent("a/b", b"one".to_vec()).await.unwrap();
        assert_eq!(first, PutOutcome::Created);
        let again = bucket.put_if_absent("a/b", b"two".to_vec()).await.unwrap();
        assert_eq!(again, PutOutcome::Exists);
        let (data, tag) = bucket.get("a/b").await.unwrap();
        assert_eq!(data, b"one");
        let swapped = bucket.put_if_match("a/b", &tag, b"three".to_vec()).await;
        assert!(matches!(swapped, Ok(SwapOutcome::Swapped(ref new)) if *new != tag));
        let stale = bucket.put_if_match("a/b", &tag, b"four".to_vec()).await;
        assert_eq!(stale.unwrap(), SwapOutcome::Mismatch);
        assert_eq!(bucket.get_range("a/b", 2, 100).await.unwrap(), b"ree");
        assert_eq!(bucket.head("a/b").await.unwrap(), Some(5));
        bucket.delete("a/b").await.unwrap();
        bucket.delete("a/b").await.unwrap();
        assert_eq!(bucket.head("a/b").await.unwrap(), None);
        let gone = bucket.get("a/b").await.unwrap_err();
        assert!(matches!(gone, BucketError::NotFound { .. }), "{gone}");
    });
}

#[test]
fn bucket_list_pages_in_key_order() {
    Sim::new(1, FaultPlan::none()).run(async |env| {
        let bucket = env.bucket();
        for key in ["p/3", "p/1", "q/1", "p/2"] {
            bucket.put_if_absent(key, vec![0]).await.unwrap();
        }
        let keys = |rows: Vec<sealog_engine::env::ObjectMeta>| {
            rows.into_iter().map(|row| row.key).collect::<Vec<_>>()
        };
        assert_eq!(
            keys(bucket.list("p/", "", 2).await.unwrap()),
            ["p/1", "p/2"]
        );
        assert_eq!(keys(bucket.list("p/", "p/2", 9).await.unwrap()), ["p/3"]);
    });
}

#[test]
fn bucket_lost_response_has_taken_effect() {
    let mut sim = Sim::new(1, FaultPlan::none().with(Fault::LostResponse, ALWAYS));
    sim.run(async |env| {
        let put = env.bucket().put_if_absent("k", b"mine".to_vec()).await;
        assert!(
            matches!(put, Err(BucketError::Unavailable { .. })),
            "{put:?}"
        );
        assert_eq!(env.bucket().get("k").await.unwrap().0, b"mine");
    });
}

#[test]
fn bucket_errors_before_have_none_and_after_have_some_effect() {
    for (fault, there) in [
        (Fault::BucketErrorBefore, false),
        (Fault::ResetMidBody, false),
        (Fault::BucketErrorAfter, true),
    ] {
        let mut sim = Sim::new(1, FaultPlan::none().with(fault, ALWAYS));
        let put = sim.run(async |env| env.bucket().put_if_absent("k", vec![1]).await);
        assert!(put.is_err());
        assert_eq!(
            !sim.bucket_inventory().is_empty(),
            there,
            "{}",
            fault.name()
        );
    }
}

#[test]
fn bucket_stale_list_misses_the_new_and_shows_the_dead() {
    let mut sim = Sim::new(1, FaultPlan::none().with(Fault::StaleList, ALWAYS));
    sim.run(async |env| {
        let bucket = env.bucket();
        bucket.put_if_absent("dead", vec![1]).await.unwrap();
        bucket.delete("dead").await.unwrap();
        bucket.put_if_absent("new", vec![1]).await.unwrap();
        let stale = bucket.list("", "", 10).await.unwrap();
        assert_eq!(stale.len(), 1);
        assert_eq!(stale[0].key, "dead");
        env.sleep(Duration::from_secs(20)).await;
        let fresh = bucket.list("", "", 10).await.unwrap();
        assert_eq!(fresh[0].key, "new");
    });
}

#[test]
fn bucket_upload_is_invisible_until_finished() {
    let mut sim = Sim::new(1, FaultPlan::none());
    sim.run(async |env| {
        let bucket = env.bucket();
        let part = |byte| Arc::new(sealog_engine::env::AlignedBuf::copy_of(&[byte; 4096]));
        let mut upload = bucket.upload().await.unwrap();
        upload.part(part(1)).await.unwrap();
        upload.part(part(2)).await.unwrap();
        assert_eq!(bucket.list("", "", 10).await.unwrap(), []);
        upload.finish("pack").await.unwrap();
        assert_eq!(bucket.head("pack").await.unwrap(), Some(8192));
        drop(bucket.upload().await.unwrap());
    });
    assert_eq!(sim.abandoned_uploads(), 1);
}

#[test]
fn bucket_full_is_its_own_error() {
    let mut plan = FaultPlan::none();
    plan.bucket_capacity_bytes = 10;
    Sim::new(1, plan).run(async |env| {
        let full = env.bucket().put_if_absent("k", vec![0; 11]).await;
        assert!(matches!(full, Err(BucketError::Full { .. })), "{full:?}");
    });
}

#[test]
fn bucket_survives_crashes_and_zombie_puts_may_land_later() {
    let mut late = 0;
    for seed in 0..200 {
        let mut sim = Sim::new(seed, FaultPlan::none().with(Fault::BucketSlow, ALWAYS));
        sim.run_for(1, async |env| {
            let _ = env.bucket().put_if_absent("k", vec![1]).await;
        });
        sim.crash();
        let before = sim.bucket_inventory().len();
        sim.run(async |env| env.sleep(Duration::from_secs(100)).await);
        late += sim.bucket_inventory().len() - before;
    }
    assert!(late > 20, "{late}");
}
