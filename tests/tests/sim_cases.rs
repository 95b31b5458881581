//! Simulated cases: one chosen thing happens, device errors at every operation of a kind in turn.
//!
//! **Invariants**
//! - The operation struck is counted up until a run has no such operation any more: none is left out.
//!
//! **Not here**: errors by chance and the rest of the workload, see `sim.rs`.

use sealog_engine::ReadRequest;
use sealog_engine::env::Env;
use sealog_frame::{Batch, BatchBuilder};
use sealog_tests::engine_subject::EngineSubject;
use sealog_tests::history::{BatchId, History, payload, record};
use sealog_tests::oracle::{judge, observe};
use sealog_tests::sim::{Fault, FaultPlan, Sim, SimEnv, Strike};
use sealog_tests::subject::{Outcome, Subject};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

const FEED: &str = "feed";
/// Rate of what always happens, in parts per million.
const ALWAYS: u32 = 1_000_000;

/// What a process came to that appended until it had enough or was refused.
#[derive(Debug, Default)]
struct Work {
    acked: u64,
    failed: u64,
    /// Acknowledged although sent when another append had failed already.
    late: u64,
}

/// A batch of the history.
fn batch(history: &mut History) -> (BatchId, Batch) {
    let records = 3;
    let id = history.issue(FEED, records, None);
    let mut builder = BatchBuilder::default();
    for index in 0..records {
        let (payload, mut key) = (payload(id, index, 2_500), String::new());
        let record = record(id, index, &payload, &mut key);
        builder.push(&record).expect("a small record");
    }
    (id, builder.build().expect("a batch"))
}

/// Appends in waves of eight at once, which share groups, whatever the answers are.
async fn append(env: &SimEnv, subject: &EngineSubject, history: &mut History, waves: u64) -> Work {
    let mut work = Work::default();
    for _ in 0..waves {
        let (told, answers) = flume::unbounded();
        let failed_before = work.failed > 0;
        for _ in 0..8 {
            let (id, batch) = batch(history);
            let (subject, told) = (subject.clone(), told.clone());
            env.spawn("append", async move {
                let _ = told.send((id, subject.append(FEED, batch).await));
            });
        }
        drop(told);
        while let Ok((id, outcome)) = answers.recv_async().await {
            match outcome {
                Outcome::Acked(range) => {
                    history.acked(id, range);
                    work.acked += 1;
                    work.late += u64::from(failed_before);
                }
                Outcome::Refused(_) => {
                    history.refused(id);
                    work.failed += 1;
                }
                Outcome::Unknown(_) => work.failed += 1,
            }
        }
    }
    work
}

/// Runs a process of `waves` of appends in a world with `strike`, ends it, heals, and has the oracle
/// judge what the next process shows. `None` when the strike met nothing.
fn run(seed: u64, strike: Strike, waves: u64) -> Option<Work> {
    let mut plan = FaultPlan::power_loss();
    plan.strike = Some(strike);
    let mut sim = Sim::new(seed, plan);
    let mut history = History::default();
    let worked = sim.run(async |env: SimEnv| {
        let Ok(subject) = EngineSubject::start(env.clone()).await else {
            return Work::default();
        };
        let _ = subject.create_feed(FEED).await;
        append(&env, &subject, &mut history, waves).await
    });
    let fired = sim.faults().fired(strike.fault) > 0;
    if seed.is_multiple_of(2) {
        sim.crash();
    } else {
        sim.kill();
    }
    sim.faults().heal();
    let seen = sim.run(async |env: SimEnv| {
        let subject = EngineSubject::start(env).await;
        let subject = subject.unwrap_or_else(|e| panic!("{strike:?}, seed {seed}: {e:?}"));
        let _ = subject.create_feed(FEED).await;
        observe(&subject, FEED, &[]).await
    });
    let seen = seen.unwrap_or_else(|e| panic!("{strike:?}, seed {seed}: {e}"));
    judge(&mut history, FEED, &seen).unwrap_or_else(|e| panic!("{strike:?}, seed {seed}: {e}"));
    fired.then_some(worked)
}

/// Runs with `strike` at every operation that there is; tells what each run came to.
fn at_every_operation(strike: Strike, waves: u64) -> Vec<Work> {
    let mut all = Vec::new();
    loop {
        let after = all.len() as u64 / 2;
        let strike = Strike { after, ..strike };
        match run(all.len() as u64, strike, waves) {
            Some(work) => all.push(work),
            None => return all,
        }
    }
}

#[test]
fn d07_eio_at_every_sync_of_the_log_poisons_and_loses_nothing() {
    let strike = Strike {
        fault: Fault::SyncEio,
        path: ".seg",
        after: 0,
        times: 1,
    };
    let all = at_every_operation(strike, 10);
    let poisoned = all.iter().filter(|work| work.failed > 0).count();
    for (number, work) in all.iter().enumerate() {
        assert_eq!(
            work.late, 0,
            "run {number} acknowledged after a failed sync: {work:?}"
        );
    }
    assert!(
        all.len() >= 40 && poisoned >= 30,
        "{} runs, {poisoned} poisoned",
        all.len()
    );
}

#[test]
fn checkpoint_folder_that_cannot_be_synced_leaves_the_checkpoints_before_whole() {
    let strike = Strike {
        fault: Fault::SyncEio,
        path: "/checkpoint/0",
        after: 0,
        times: u64::MAX,
    };
    let all = at_every_operation(strike, 15);
    assert!(all.len() >= 8, "{} runs", all.len());
}

#[test]
fn clean_marker_whose_sync_failed_is_durable_before_the_log_goes_on() {
    for seed in 0..8 {
        let mut sim = Sim::new(seed, FaultPlan::none().with(Fault::LostWrite, ALWAYS));
        let mut history = History::default();
        let subject = sim.run(async |env: SimEnv| {
            let subject = EngineSubject::start(env.clone()).await.expect("starts");
            subject.create_feed(FEED).await;
            append(&env, &subject, &mut history, 1).await;
            // Long enough for the marker of an idle log: only the clean one is left to write.
            env.sleep(Duration::from_secs(5)).await;
            subject
        });
        sim.faults().plan.strike = Some(Strike {
            fault: Fault::SyncEio,
            path: ".seg",
            after: 0,
            times: 1,
        });
        sim.run(async |_| subject.close().await);
        assert_eq!(sim.fired(Fault::SyncEio), 1, "seed {seed}");
        sim.kill();
        sim.faults().heal();
        sim.run(async |env: SimEnv| {
            let subject = EngineSubject::start(env.clone()).await.expect("starts");
            assert_eq!(append(&env, &subject, &mut history, 1).await.acked, 8);
        });
        sim.crash();
        let seen = sim.run(async |env: SimEnv| {
            let subject = EngineSubject::start(env).await.expect("starts");
            observe(&subject, FEED, &[]).await
        });
        let seen = seen.unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        judge(&mut history, FEED, &seen).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
    }
}

#[test]
fn sync_that_failed_is_made_up_for_before_the_next_process_goes_on() {
    let mut struck = 0;
    for after in 0.. {
        let strike = Strike {
            fault: Fault::SyncEio,
            path: ".seg",
            after,
            times: 1,
        };
        let mut plan = FaultPlan::none().with(Fault::LostWrite, ALWAYS);
        plan.strike = Some(strike);
        let mut sim = Sim::new(after, plan);
        let mut history = History::default();
        sim.run(async |env: SimEnv| {
            if let Ok(subject) = EngineSubject::start(env.clone()).await {
                subject.create_feed(FEED).await;
                append(&env, &subject, &mut history, 6).await;
            }
        });
        if sim.fired(Fault::SyncEio) == 0 {
            break;
        }
        struck += 1;
        sim.kill();
        sim.faults().heal();
        sim.run(async |env: SimEnv| {
            let subject = EngineSubject::start(env.clone()).await.expect("starts");
            subject.create_feed(FEED).await;
            // Long enough to leave the segments that were ready.
            let work = append(&env, &subject, &mut history, 12).await;
            assert_eq!(work.failed, 0, "sync {after}: {work:?}");
        });
        sim.crash();
        let seen = sim.run(async |env: SimEnv| {
            let subject = EngineSubject::start(env).await;
            let subject = subject.unwrap_or_else(|e| panic!("sync {after}: {e:?}"));
            observe(&subject, FEED, &[]).await
        });
        let seen = seen.unwrap_or_else(|e| panic!("sync {after}: {e}"));
        let judged = judge(&mut history, FEED, &seen);
        judged.unwrap_or_else(|e| panic!("sync {after}: {e}"));
    }
    assert!(struck > 20, "only {struck} syncs");
}

#[test]
fn start_that_is_killed_anywhere_leaves_no_name_that_a_power_loss_takes_later() {
    for steps in 1.. {
        let plan = FaultPlan::none().with(Fault::LostEntry, ALWAYS);
        let mut sim = Sim::new(steps, plan);
        let mut history = History::default();
        let whole = sim.run_for(steps, async |env: SimEnv| {
            let _subject = EngineSubject::start(env.clone()).await.expect("starts");
            // Long enough for the segments that are made ahead.
            env.sleep(Duration::from_millis(200)).await;
        });
        sim.kill();
        sim.run(async |env: SimEnv| {
            let subject = EngineSubject::start(env.clone()).await.expect("starts");
            subject.create_feed(FEED).await;
            assert!(append(&env, &subject, &mut history, 5).await.acked > 0);
        });
        sim.crash();
        let seen = sim.run(async |env: SimEnv| {
            let subject = EngineSubject::start(env).await;
            let subject = subject.unwrap_or_else(|e| panic!("killed at step {steps}: {e:?}"));
            observe(&subject, FEED, &[]).await
        });
        let seen = seen.unwrap_or_else(|e| panic!("killed at step {steps}: {e}"));
        let judged = judge(&mut history, FEED, &seen);
        judged.unwrap_or_else(|e| panic!("killed at step {steps}: {e}"));
        if whole.is_some() {
            assert!(steps > 40, "only {steps} steps");
            return;
        }
    }
}

/// Found by the fuzz target `engine_model`: a root that a failed checkpoint left is swept with its
/// chunks later, and a power loss then brought the root back without them.
#[test]
fn root_of_a_failed_checkpoint_does_not_outlive_its_chunks() {
    let mut struck = 0;
    for seed in 0..100 {
        let mut sim = Sim::new(seed, FaultPlan::none().with(Fault::LostEntry, 500_000));
        let mut history = History::default();
        let subject = sim.run(async |env: SimEnv| {
            let subject = EngineSubject::start(env).await.expect("starts");
            subject.create_feed(FEED).await;
            subject
        });
        // The second of a checkpoint's two: its root is there already.
        sim.faults().strike(Some(Strike {
            fault: Fault::SyncEio,
            path: "/checkpoint/0",
            after: 1 + 2 * (seed % 3),
            times: 1,
        }));
        let mut waves_left = 1 + seed % 4;
        while waves_left > 0 {
            sim.run(async |env: SimEnv| append(&env, &subject, &mut history, 1).await);
            waves_left -= u64::from(sim.fired(Fault::SyncEio) > 0);
        }
        struck += sim.fired(Fault::SyncEio);
        sim.crash();
        let verified = sim.run(EngineSubject::verify);
        assert_eq!(verified, Ok(()), "seed {seed}");
        sim.kill();
    }
    assert_eq!(struck, 100);
}

#[test]
fn append_whose_group_is_in_flight_when_its_process_ends_is_let_go() {
    let mut let_go = 0;
    for steps in 0.. {
        let mut sim = Sim::new(1, FaultPlan::none());
        let subject = sim.run(async |env: SimEnv| {
            let subject = EngineSubject::start(env).await.expect("starts");
            subject.create_feed(FEED).await;
            subject
        });
        let (_, batch) = batch(&mut History::default());
        let mut call = Box::pin(async move { subject.append(FEED, batch).await });
        if sim.run_for(steps, async |_| call.as_mut().await).is_some() {
            assert!(let_go > 8, "{let_go} of {steps}");
            return;
        }
        sim.kill();
        let told = call.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        // Before, it is in a queue that ends with its handle.
        let_go += u64::from(matches!(told, Poll::Ready(Outcome::Unknown(_))));
    }
}

#[test]
fn deleted_feed_of_a_log_under_pressure_leaves_the_bucket() {
    let mut sim = Sim::new(1, FaultPlan::none());
    let mut history = History::default();
    let prefix = EngineSubject::commits_prefix(FEED);
    let objects = |sim: &Sim| {
        let all = sim.bucket_inventory();
        all.iter()
            .filter(|(key, _)| key.starts_with(&prefix))
            .count()
    };
    let subject = sim.run(async |env: SimEnv| {
        let subject = EngineSubject::start(env.clone()).await.expect("starts");
        subject.create_feed(FEED).await;
        let work = append(&env, &subject, &mut history, 8).await;
        assert_eq!(work.acked, 64);
        assert!(matches!(subject.seal(FEED).await, Outcome::Acked(_)));
        subject
    });
    assert!(objects(&sim) > 0);
    sim.run(async |env: SimEnv| {
        // Segments are made ahead: with limits this small the log is always under pressure.
        subject.delete_feed(FEED).await;
        env.sleep(Duration::from_secs(30)).await;
    });
    assert_eq!(objects(&sim), 0);
}

/// What `told` says before the next group is durable must still hold when the power fails right then.
fn told_lasts(told: impl AsyncFn(&SimEnv, &EngineSubject), holds: impl AsyncFn(&EngineSubject)) {
    for seed in 0..8 {
        let mut sim = Sim::new(seed, FaultPlan::power_loss());
        sim.run(async |env: SimEnv| {
            let mut config = sealog_tests::engine_subject::config(1);
            // Long enough for everything to be asked meanwhile.
            config.wal.flush_interval = Duration::from_secs(1);
            let subject = EngineSubject::start_with(&env, &config).await;
            let subject = subject.expect("starts");
            subject.create_feed(FEED).await;
            told(&env, &subject).await;
        });
        sim.crash();
        sim.run(async |env: SimEnv| {
            let subject = EngineSubject::start(env).await.expect("starts");
            holds(&subject).await;
        });
    }
}

#[test]
fn read_that_finds_no_feed_says_so_once_that_lasts() {
    let told = async |env: &SimEnv, subject: &EngineSubject| {
        let deleting = subject.clone();
        env.spawn("delete", async move {
            deleting.delete_feed(FEED).await;
        });
        while subject.read_part(ReadRequest::new(FEED)).await.is_ok() {
            env.sleep(Duration::from_millis(10)).await;
        }
    };
    told_lasts(told, async |subject| {
        let found = subject.read_part(ReadRequest::new(FEED)).await;
        assert!(found.is_err(), "the feed is back: {found:?}");
    });
}

#[test]
fn read_tells_no_tail_that_may_be_lost() {
    let told = async |env: &SimEnv, subject: &EngineSubject| {
        let appending = subject.clone();
        env.spawn("append", async move {
            let (_, batch) = batch(&mut History::default());
            appending.append(FEED, batch).await;
        });
        let tail = async || {
            let read = subject.read_part(ReadRequest::new(FEED)).await;
            read.expect("a part").tail
        };
        while tail().await == 0 {
            env.sleep(Duration::from_millis(10)).await;
        }
    };
    told_lasts(told, async |subject| {
        let found = subject.read_part(ReadRequest::new(FEED)).await;
        assert_eq!(found.map(|part| part.tail), Ok(3));
    });
}
