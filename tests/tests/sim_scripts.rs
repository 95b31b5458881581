//! Scripts: the fuzz target `engine_model` without a fuzzer, by scripts that are drawn or kept.
//!
//! **Invariants**
//! - `SIM_SCRIPT=hex` runs that script alone: what the fuzzer found replays in an ordinary build.
//! - Every seed input of the target holds.
//!
//! **Not here**: the fuzzer's loop, see `fuzz/`.

use sealog_tests::script::{Report, SCRIPT_BYTES_MAX, run};
use sealog_tests::sim::Rng;
use std::path::Path;

/// The script of a draw.
fn drawn(seed: u64) -> Vec<u8> {
    Rng::derive(seed, "script").bytes(SCRIPT_BYTES_MAX)
}

fn held(script: &[u8]) -> Report {
    run(script).unwrap_or_else(|breach| panic!("{breach}"))
}

#[test]
fn script_drawn_holds_and_does_something() {
    let count = std::env::var("SIM_SEEDS").ok();
    let count = count.and_then(|text| text.parse().ok()).unwrap_or(40);
    let reports: Vec<Report> = (0..count).map(|seed| held(&drawn(seed))).collect();
    let sum = |of: fn(&Report) -> usize| reports.iter().map(of).sum::<usize>();
    let (acked, commits) = (sum(|r| r.acked), sum(|r| r.commits));
    let processes: u64 = reports.iter().map(|r| r.processes).sum();
    println!("{count} scripts: {acked} acknowledged, {commits} commits, {processes} processes");
    assert!(acked >= 10 * reports.len() && commits >= reports.len() / 2);
    assert!(processes >= 4 * reports.len() as u64);
    assert!(
        reports
            .iter()
            .any(|report| report.faults.contains("sync-eio"))
    );
}

#[test]
fn script_same_bytes_same_run() {
    for seed in 0..3 {
        assert_eq!(run(&drawn(seed)), run(&drawn(seed)));
    }
}

#[test]
fn script_given_holds() {
    let Ok(hex) = std::env::var("SIM_SCRIPT") else {
        return;
    };
    let digits = hex.as_bytes().chunks(2);
    let bytes = digits.map(|pair| {
        let pair = std::str::from_utf8(pair).expect("hex digits");
        u8::from_str_radix(pair, 16).expect("hex digits")
    });
    println!("{:#?}", held(&bytes.collect::<Vec<u8>>()));
}

#[test]
fn script_seeds_of_the_fuzzer_hold() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/seeds/engine_model");
    let mut seen = 0;
    for file in std::fs::read_dir(dir).expect("the target's seeds") {
        let path = file.expect("a seed").path();
        let report = held(&std::fs::read(&path).expect("a readable seed"));
        assert!(report.acked > 0, "{path:?}: {report:?}");
        seen += 1;
    }
    assert!(seen >= 4, "{seen} seeds");
}
