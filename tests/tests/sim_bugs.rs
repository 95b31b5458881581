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
use sealog_tests::scenario::{End, Scenario, hunt};
use sealog_tests::script::{SCRIPT_BYTES_MAX, run};
use sealog_tests::sim::{Fault, FaultPlan, Rng};
use sealog_tests::workload::Mix;

/// Seeds within which each must be found.
const SEEDS: u64 = 200;

#[track_caller]
fn must_catch(bug: &'static str, scenario: &Scenario) {
    activate(bug);
    let found = hunt::<EngineSubject>(0..SEEDS, scenario);
    activate("");
    let (Some((seed, words)), Some((told, breach))) = (&found.first, &found.breach) else {
        panic!("{bug}: not found in {SEEDS} seeds: {found:?}");
    };
    eprintln!("{bug}: first found at seed {seed}: {words}");
    eprintln!("{bug}: told by the oracle at seed {told}: {breach}");
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
    must_catch("ack_before_sync", &appends(End::Crash));
}

#[test]
fn bug_ack_before_sync_is_caught_by_a_script() {
    activate("ack_before_sync");
    let drawn = (0..SEEDS).map(|seed| Rng::derive(seed, "script").bytes(SCRIPT_BYTES_MAX));
    // Some scripts end sooner, in a log whose later groups say that the lost one was durable.
    let mut found = drawn.filter_map(|script| run(&script).err());
    let told = found.find(|breach| breach.contains("is lost"));
    activate("");
    told.expect("a script that tells of an acknowledged batch that is lost");
}

#[test]
fn bug_missing_directory_sync_is_caught() {
    let mut scenario = appends(End::Crash);
    scenario.plan = FaultPlan::power_loss().with(Fault::LostEntry, 800_000);
    must_catch("missing_directory_sync", &scenario);
}

#[test]
fn bug_ghost_group_is_caught() {
    let mut scenario = appends(End::Crash);
    scenario.mix.records_max = 12;
    must_catch("ghost_group", &scenario);
}

#[test]
fn bug_verdict_without_durable_end_is_caught() {
    let mut scenario = appends(End::Either);
    scenario.corruption_allowed = true;
    scenario.rot_after_close = Some("/data/wal");
    scenario.rounds = 2;
    must_catch("verdict_without_durable_end", &scenario);
}

#[test]
fn bug_serve_before_sync_is_caught() {
    let mut scenario = appends(End::Either);
    scenario.mix.read = 20;
    scenario.rounds = 8;
    must_catch("serve_before_sync", &scenario);
}

#[test]
fn bug_retire_too_early_is_caught() {
    must_catch("retire_too_early", &scenario(Mix::life_cycle()));
}

#[test]
fn bug_producer_ahead_of_data_is_caught() {
    let mut scenario = appends(End::Crash);
    scenario.mix.produce = 200;
    scenario.mix.abort_ppm = 600_000;
    scenario.rounds = 10;
    must_catch("producer_ahead_of_data", &scenario);
}

#[test]
fn bug_published_twice_is_caught() {
    let mut scenario = scenario(Mix::life_cycle());
    scenario.plan = FaultPlan::rough().with(Fault::LostResponse, 300_000);
    must_catch("published_twice", &scenario);
}

#[test]
fn bug_late_write_is_caught() {
    let mut scenario = appends(End::Kill);
    scenario.plan = scenario.plan.with(Fault::LateWrite, 1_000_000);
    scenario.rounds = 8;
    must_catch("late_write", &scenario);
}
