//! Device errors at chosen operations, one run for each: what chance rarely meets.
//!
//! **Invariants**
//! - The operation struck is counted up until a run has no such operation any more: none is left out.
//!
//! **Not here**: errors by chance and the rest of the workload, see `sim.rs`.

use sealog_frame::{BatchBuilder, Record};
use sealog_tests::engine_subject::EngineSubject;
use sealog_tests::history::{History, payload};
use sealog_tests::oracle::{judge, observe};
use sealog_tests::sim::{Fault, FaultPlan, Sim, SimEnv, Strike};
use sealog_tests::subject::{Outcome, Subject};

const FEED: &str = "feed";

/// What a process came to that appended until it had enough or was refused.
#[derive(Debug, Default)]
struct Work {
    acked: u64,
    failed: u64,
    /// Acknowledged after another append had failed.
    late: u64,
}

/// Appends `batches` one after the other, whatever the answers are.
async fn append(subject: &EngineSubject, history: &mut History, batches: u64) -> Work {
    let mut work = Work::default();
    for _ in 0..batches {
        let records = 3;
        let id = history.issue(FEED, records, None);
        let mut builder = BatchBuilder::default();
        for index in 0..records {
            builder
                .push(&Record::of(&payload(id, index, 2_500)))
                .expect("a small record");
        }
        let batch = builder.build().expect("a batch");
        match subject.append(FEED, batch).await {
            Outcome::Acked(range) => {
                history.acked(id, range);
                work.acked += 1;
                work.late += u64::from(work.failed > 0);
            }
            Outcome::Refused(_) => {
                history.refused(id);
                work.failed += 1;
            }
            Outcome::Unknown(_) => work.failed += 1,
        }
    }
    work
}

/// Runs a process of `batches` appends in a world with `strike`, ends it, heals, and has the oracle
/// judge what the next process shows. `None` when the strike met nothing.
fn run(seed: u64, strike: Strike, batches: u64) -> Option<Work> {
    let mut plan = FaultPlan::power_loss();
    plan.strike = Some(strike);
    let mut sim = Sim::new(seed, plan);
    let mut history = History::default();
    let worked = sim.run(async |env: SimEnv| {
        let Ok(subject) = EngineSubject::start(env).await else {
            return Work::default();
        };
        let _ = subject.create_feed(FEED).await;
        append(&subject, &mut history, batches).await
    });
    let fired = sim.faults().fired(strike.fault) > 0;
    if seed % 2 == 0 {
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
fn at_every_operation(strike: Strike, batches: u64) -> Vec<Work> {
    let mut all = Vec::new();
    loop {
        let after = all.len() as u64 / 2;
        let strike = Strike { after, ..strike };
        match run(all.len() as u64, strike, batches) {
            Some(work) => all.push(work),
            None => return all,
        }
    }
}

#[test]
fn sync_eio_at_every_sync_of_the_log_poisons_and_loses_nothing() {
    let strike = Strike {
        fault: Fault::SyncEio,
        path: ".seg",
        after: 0,
        times: 1,
    };
    let all = at_every_operation(strike, 40);
    let poisoned = all.iter().filter(|work| work.failed > 0).count();
    for (number, work) in all.iter().enumerate() {
        assert_eq!(
            work.late, 0,
            "run {number} acknowledged after a failed sync: {work:?}"
        );
    }
    assert!(
        all.len() >= 80 && poisoned >= 60,
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
    let all = at_every_operation(strike, 120);
    assert!(all.len() >= 8, "{} runs", all.len());
}
