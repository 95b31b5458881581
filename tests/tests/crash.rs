//! Crash: kill -9 under eight concurrent writers, on a local bucket.
//!
//! **Invariants**
//! - `SEALOG_CRASH_ROUNDS=300` runs the long form, which also demands 30 kills in each phase.
//!
//! **Not here**: the rounds themselves (`sealog_tests::crash`), buckets in a store (`s3`).
#![allow(missing_docs, clippy::unwrap_used)]

use sealog_tests::crash::{Place, rounds};

#[test]
fn crash_kill_under_writers() {
    let count = rounds::from_env("SEALOG_CRASH_ROUNDS", 25);
    let seed = rounds::from_env("SEALOG_CRASH_SEED", 1);
    println!("seed {seed}, {count} rounds");
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let place = Place {
        dir: dir.path().to_owned(),
        store: None,
    };
    let writers = env!("CARGO_BIN_EXE_sealog-crash-writers");
    let landed = rounds::run(writers, &place, seed, count);
    println!("{count} kills: {landed:?}");
    if count >= 300 {
        let least = landed
            .in_group_write
            .min(landed.in_seal)
            .min(landed.in_recovery);
        assert!(least >= 30, "each phase must be hit 30 times: {landed:?}");
    }
}
