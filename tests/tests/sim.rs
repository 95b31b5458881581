//! Simulation of the engine: seeded rounds of work, crashes and faults, judged by the oracle.
//!
//! **Invariants**
//! - A failing seed is printed with the faults that fired and the end of its trace; `SIM_SEED=n`
//!   runs that seed alone, `SIM_SEEDS=n` that many of each scenario.
//!
//! **Not here**: planted bugs, see `sim_bugs.rs`.

use sealog_tests::engine_subject::EngineSubject;
use sealog_tests::scenario::{End, Report, Scenario, run, run_all};
use sealog_tests::sim::{Fault, FaultPlan};
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

#[test]
fn sim_same_seed_same_trace() {
    let mut scenario = Scenario::life_cycle();
    scenario.plan = FaultPlan::rough().with(Fault::SyncEio, 2_000);
    for seed in seeds(5) {
        let first = run::<EngineSubject>(seed, &scenario);
        assert_eq!(first, run::<EngineSubject>(seed, &scenario));
    }
}

#[test]
fn sim_quiet_world() {
    let mut scenario = Scenario::life_cycle();
    scenario.plan = FaultPlan::none();
    let reports = all(20, &scenario);
    assert!(reports.iter().any(|report| report.commits > 2));
}

#[test]
fn sim_power_loss() {
    let mut scenario = Scenario::appends();
    scenario.end = End::Crash;
    all(50, &scenario);
}

#[test]
fn sim_kill_then_power_loss() {
    let mut scenario = Scenario::appends();
    scenario.end = End::Kill;
    scenario.mix.read = 15;
    all(50, &scenario);
}

#[test]
fn sim_life_cycle() {
    all(50, &Scenario::life_cycle());
}
