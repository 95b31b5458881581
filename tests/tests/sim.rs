//! Simulation of the engine: seeded rounds of work, crashes and faults, judged by the oracle.
//!
//! **Invariants**
//! - A failing seed is printed with the faults that fired and the end of its trace; `SIM_SEED=n`
//!   runs that seed alone, `SIM_SEEDS=n` that many of each scenario.
//!
//! **Not here**: planted bugs, see `sim_bugs.rs`.

use sealog_tests::engine_subject::{EngineSubject, scenario};
use sealog_tests::scenario::{End, Report, Scenario, run, run_all, totals};
use sealog_tests::sim::{Fault, FaultPlan};
use sealog_tests::workload::Mix;
use std::ops::Range;

fn seeds(default: u64) -> Range<u64> {
    let number = |name| std::env::var(name).ok().and_then(|text| text.parse().ok());
    if let Some(seed) = number("SIM_SEED") {
        return seed..seed + 1;
    }
    0..number("SIM_SEEDS").unwrap_or(default)
}

fn all(default: u64, scenario: &Scenario) -> Vec<Report> {
    run_all::<EngineSubject>(seeds(default), scenario)
}

/// Proves that runs did something: on average this many batches acknowledged and commits made.
#[track_caller]
fn assert_busy(reports: &[Report], acked: usize, commits: usize) {
    let runs = reports.len();
    let total: usize = reports.iter().map(|report| report.acked).sum();
    assert!(total >= acked * runs, "{total} acknowledged in {runs} runs");
    let total: usize = reports.iter().map(|report| report.commits).sum();
    assert!(total >= commits * runs, "{total} commits in {runs} runs");
}

#[test]
fn sim_same_seed_same_trace() {
    let mut scenario = scenario(Mix::life_cycle());
    scenario.plan = FaultPlan::rough().with(Fault::SyncEio, 2_000);
    for seed in seeds(3) {
        let first = run::<EngineSubject>(seed, &scenario);
        assert_eq!(first, run::<EngineSubject>(seed, &scenario));
    }
}

#[test]
fn sim_quiet_world() {
    let mut scenario = scenario(Mix::life_cycle());
    scenario.plan = FaultPlan::none();
    assert_busy(&all(10, &scenario), 100, 5);
}

#[test]
fn sim_power_loss() {
    let mut scenario = scenario(Mix::appends());
    scenario.end = End::Crash;
    assert_busy(&all(12, &scenario), 100, 0);
}

#[test]
fn sim_kill_then_power_loss() {
    let mut scenario = scenario(Mix::appends());
    scenario.end = End::Kill;
    scenario.mix.read = 10;
    assert_busy(&all(12, &scenario), 100, 0);
}

#[test]
fn sim_crash_in_recovery() {
    let mut scenario = scenario(Mix::appends());
    scenario.rounds = 8;
    scenario.operations = 20;
    scenario.steps_max = 500;
    assert_busy(&all(12, &scenario), 20, 0);
}

#[test]
fn sim_whole_blocks_tear_only_between_blocks() {
    let mut scenario = scenario(Mix::appends());
    scenario.plan = FaultPlan::power_loss().with(Fault::TornWrite, 900_000);
    scenario.plan.sector_bytes = 4096;
    scenario.mix.records_max = 12;
    assert_busy(&all(10, &scenario), 80, 0);
}

#[test]
fn sim_life_cycle() {
    assert_busy(&all(12, &scenario(Mix::life_cycle())), 60, 3);
}

#[test]
fn sim_rough_bucket_and_clock() {
    let mut scenario = scenario(Mix::life_cycle());
    scenario.plan = FaultPlan::rough();
    assert_busy(&all(12, &scenario), 40, 1);
}

#[test]
fn sim_device_errors_poison_and_recovery_leads_back() {
    let mut scenario = scenario(Mix::life_cycle());
    scenario.rounds = 6;
    scenario.plan = FaultPlan::rough()
        .with(Fault::SyncEio, 3_000)
        .with(Fault::WriteEio, 3_000)
        .with(Fault::ReadEio, 3_000);
    assert_busy(&all(12, &scenario), 20, 1);
}

#[test]
fn sim_no_space_now_and_then() {
    let mut scenario = scenario(Mix::life_cycle());
    scenario.rounds = 6;
    scenario.plan = FaultPlan::power_loss().with(Fault::NoSpace, 10_000);
    assert_busy(&all(12, &scenario), 20, 1);
}

#[test]
fn sim_small_disk_and_full_bucket() {
    let mut scenario = scenario(Mix::life_cycle());
    scenario.plan.disk_capacity_bytes = 1_600 << 10;
    scenario.plan.bucket_capacity_bytes = 400 << 10;
    scenario.plan = scenario.plan.with(Fault::BucketErrorBefore, 100_000);
    scenario.heals_room = true;
    assert_busy(&all(12, &scenario), 20, 1);
}

#[test]
fn sim_flipped_bit_of_a_closed_log_is_found_or_harmless() {
    let mut scenario = scenario(Mix::life_cycle());
    scenario.corruption_allowed = true;
    scenario.rot_after_close = Some("/data/wal");
    scenario.rounds = 2;
    let reports = all(12, &scenario);
    let found = reports.iter().filter(|report| report.corrupt).count();
    assert!(
        found > 0,
        "no flipped bit was ever found in {} runs",
        reports.len()
    );
}

#[test]
fn sim_many_small_feeds() {
    let mut scenario = scenario(Mix::life_cycle());
    scenario.feeds = 24;
    scenario.mix.filler_max = 100;
    assert_busy(&all(10, &scenario), 60, 5);
}

#[test]
fn sim_rot_and_misdirected_writes_give_no_wrong_data() {
    let mut scenario = scenario(Mix::damaged());
    scenario.plan = damage();
    scenario.damaged = true;
    scenario.corruption_allowed = true;
    let reports = all(20, &scenario);
    let fired = |fault| reports.iter().map(|r| r.fired(fault)).sum::<u64>();
    let (rot, misdirected) = (fired(Fault::BitRot), fired(Fault::Misdirected));
    let found = reports.iter().filter(|report| report.corrupt).count();
    let records: usize = reports.iter().map(|report| report.records).sum();
    println!("rot {rot}, misdirected {misdirected}, {found} found, {records} records");
    if reports.len() >= 20 {
        assert!(rot >= 10 && misdirected >= 10, "{rot} {misdirected}");
        assert!(found >= 5, "{found} of {} found", reports.len());
    }
}

/// What changes data on the device.
fn damage() -> FaultPlan {
    FaultPlan::power_loss()
        .with(Fault::BitRot, 5_000)
        .with(Fault::Misdirected, 5_000)
        .on_paths("/wal/")
}

/// Everything that loses nothing, for draws to leave some of it out.
fn everything() -> FaultPlan {
    FaultPlan::rough()
        .with(Fault::SyncEio, 2_000)
        .with(Fault::WriteEio, 2_000)
        .with(Fault::ReadEio, 2_000)
        .with(Fault::NoSpace, 5_000)
        .with(Fault::Pause, 200)
        .with(Fault::LateWrite, 1_000_000)
}

fn swarm(seed: u64) -> Scenario {
    let mut rng = sealog_tests::sim::rng::Rng::derive(seed, "swarm");
    let mut scenario = scenario(Mix::life_cycle());
    scenario.plan = everything().swarm(&mut rng);
    scenario.feeds = 1 + rng.index(5);
    scenario.clients = 1 + rng.index(8);
    scenario.mix.filler_max = [50, 600, 4_000][rng.index(3)];
    scenario.logs = [1, 1, 2, 3][rng.index(4)];
    scenario.rots_bucket = rng.coin();
    scenario.batches_min = SWARM_BATCHES;
    scenario.damaged_last = (seed % 8 == 7).then(damage);
    scenario
}

/// Least number of batches that a run of the swarm sends.
const SWARM_BATCHES: usize = 200;
/// From so many runs on every kind of fault has its turn.
const SWARM_MANY: usize = 200;

#[test]
fn sim_swarm() {
    let mut reports = Vec::new();
    for seed in seeds(24) {
        let scenario = swarm(seed);
        let report =
            run::<EngineSubject>(seed, &scenario).unwrap_or_else(|breach| panic!("{breach}"));
        let crashes = report.fired(Fault::Crash);
        assert!(
            report.sent >= SWARM_BATCHES && crashes >= 1,
            "seed {seed}: {} batches sent, {crashes} crashes",
            report.sent
        );
        if seed % 20 == 0 {
            assert_eq!(run::<EngineSubject>(seed, &scenario).as_ref(), Ok(&report));
        }
        reports.push(report);
    }
    println!("{}", totals(&reports));
    if reports.len() < SWARM_MANY {
        return;
    }
    for fault in Fault::ALL {
        let fired: u64 = reports.iter().map(|report| report.fired(*fault)).sum();
        assert!(fired > 0, "{} never fired", fault.name());
    }
}
