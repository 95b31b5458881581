//! Meta tests of the simulation: it repeats, and it finds what is planted.
//!
//! **Invariants**
//! - Each planted bug of the toy is caught in a good part of the seeds, the right order in none.
//!
//! **Not here**: the engine, see `sim.rs`.

use sealog_tests::scenario::{End, Scenario, caught, run, run_all};
use sealog_tests::sim::{Fault, FaultPlan};
use sealog_tests::toy::{self, Toy};

const SEEDS: std::ops::Range<u64> = 0..200;

#[test]
fn same_seed_same_trace_of_a_whole_scenario() {
    let mut scenario = Scenario::appends();
    scenario.plan = FaultPlan::rough().with(Fault::SyncEio, 5_000);
    for seed in 0..10 {
        let first = run::<Toy<{ toy::RIGHT }>>(seed, &scenario);
        assert_eq!(first, run::<Toy<{ toy::RIGHT }>>(seed, &scenario));
    }
}

/// Rounds that are long enough for much to be on its way when they end.
fn long() -> Scenario {
    Scenario {
        clients: 4,
        steps_max: 400,
        operations: 30,
        ..Scenario::appends()
    }
}

#[test]
fn toy_right_order_is_never_caught() {
    let reports = run_all::<Toy<{ toy::RIGHT }>>(SEEDS, &long());
    let acked: usize = reports.iter().map(|r| r.acked).sum();
    let unknown: usize = reports.iter().map(|r| r.unknown).sum();
    assert!(acked > 10_000 && unknown > 500, "{acked} {unknown}");
}

#[test]
fn toy_right_order_survives_device_errors() {
    let mut scenario = Scenario::appends();
    scenario.plan = FaultPlan::rough()
        .with(Fault::SyncEio, 10_000)
        .with(Fault::WriteEio, 10_000)
        .with(Fault::NoSpace, 10_000)
        .with(Fault::ReadEio, 10_000);
    run_all::<Toy<{ toy::RIGHT }>>(SEEDS, &scenario);
}

#[test]
fn toy_ack_before_sync_is_caught_in_most_seeds() {
    let mut scenario = Scenario::appends();
    scenario.end = End::Crash;
    scenario.rounds = 6;
    let found = caught::<Toy<{ toy::ACK_BEFORE_SYNC }>>(SEEDS, &scenario);
    assert!(found > 150, "caught in {found} of {SEEDS:?}");
}

#[test]
fn toy_missing_directory_sync_is_caught() {
    let found = caught::<Toy<{ toy::NO_DIRECTORY_SYNC }>>(SEEDS, &Scenario::appends());
    assert!(found > 50, "caught in {found} of {SEEDS:?}");
}

#[test]
fn toy_serving_before_sync_is_caught() {
    let mut scenario = Scenario::appends();
    scenario.end = End::Kill;
    scenario.mix.read = 20;
    let found = caught::<Toy<{ toy::SERVE_BEFORE_SYNC }>>(SEEDS, &scenario);
    assert!(found > 5, "caught in {found} of {SEEDS:?}");
}

#[test]
fn toy_forgotten_producers_are_caught() {
    let found = caught::<Toy<{ toy::FORGETS_PRODUCERS }>>(SEEDS, &Scenario::appends());
    assert!(found > 150, "caught in {found} of {SEEDS:?}");
}

#[test]
fn toy_missing_checksum_is_caught() {
    let mut scenario = Scenario::appends();
    scenario.end = End::Crash;
    scenario.plan = scenario.plan.with(Fault::TornWrite, 1_000_000);
    let found = caught::<Toy<{ toy::NO_CHECKSUM }>>(SEEDS, &scenario);
    assert!(found > 5, "caught in {found} of {SEEDS:?}");
}

#[test]
fn toy_retried_sync_is_caught() {
    let mut scenario = long();
    scenario.plan = scenario.plan.with(Fault::SyncEio, 20_000);
    let found = caught::<Toy<{ toy::SYNC_RETRY }>>(SEEDS, &scenario);
    assert!(found > 50, "caught in {found} of {SEEDS:?}");
}
