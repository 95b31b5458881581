//! Planted bugs of the engine: each must be caught, or the simulation proves nothing.
//!
//! Run with `RUSTFLAGS="--cfg sealog_bugs"`; without it this file is empty.
//!
//! **Invariants**
//! - Every name in `sealog_engine::bugs::NAMES` has a test here.
//! - With no bug switched on the same scenarios pass: see `sim.rs`.
//!
//! **Not here**: the bugs; they sit in the engine where the right code is.
#![cfg(sealog_bugs)]

use sealog_engine::bugs::activate;
use sealog_tests::engine_subject::{EngineSubject, scenario};
use sealog_tests::scenario::{End, Scenario, caught};
use sealog_tests::sim::{Fault, FaultPlan};
use sealog_tests::workload::Mix;

#[track_caller]
fn must_catch(bug: &'static str, seeds: u64, least: usize, scenario: &Scenario) {
    activate(bug);
    let found = caught::<EngineSubject>(0..seeds, scenario);
    activate("");
    eprintln!("{bug}: caught in {found} of {seeds}");
    assert!(
        found >= least,
        "{bug}: caught in {found} of {seeds}, {least} at least"
    );
}

fn appends(end: End) -> Scenario {
    let mut scenario = scenario(Mix::appends());
    scenario.end = end;
    scenario.mix.filler_max = 300;
    scenario.mix.read = 6;
    scenario.operations = 30;
    scenario.steps_max = 1_500;
    scenario
}

#[test]
fn bug_ack_before_sync_is_caught() {
    must_catch("ack_before_sync", 20, 10, &appends(End::Crash));
}

#[test]
fn bug_missing_directory_sync_is_caught() {
    let mut scenario = appends(End::Crash);
    scenario.plan = FaultPlan::power_loss().with(Fault::LostEntry, 800_000);
    must_catch("missing_directory_sync", 40, 1, &scenario);
}

#[test]
fn bug_ghost_group_is_caught() {
    let mut scenario = appends(End::Crash);
    scenario.mix.records_max = 12;
    must_catch("ghost_group", 60, 1, &scenario);
}

#[test]
fn bug_verdict_without_durable_end_is_caught() {
    let mut scenario = appends(End::Either);
    scenario.corruption_allowed = true;
    scenario.rot_after_close = Some("/data/wal");
    scenario.rounds = 2;
    must_catch("verdict_without_durable_end", 60, 2, &scenario);
}

#[test]
fn bug_serve_before_sync_is_caught() {
    let mut scenario = appends(End::Either);
    scenario.mix.read = 20;
    scenario.rounds = 8;
    must_catch("serve_before_sync", 60, 1, &scenario);
}

#[test]
fn bug_retire_too_early_is_caught() {
    must_catch("retire_too_early", 20, 5, &scenario(Mix::life_cycle()));
}

#[test]
fn bug_producer_ahead_of_data_is_caught() {
    let mut scenario = appends(End::Crash);
    scenario.mix.produce = 200;
    scenario.mix.abort_ppm = 600_000;
    scenario.rounds = 10;
    must_catch("producer_ahead_of_data", 40, 1, &scenario);
}

#[test]
fn bug_published_twice_is_caught() {
    let mut scenario = scenario(Mix::life_cycle());
    scenario.plan = FaultPlan::rough().with(Fault::LostResponse, 300_000);
    must_catch("published_twice", 10, 3, &scenario);
}
