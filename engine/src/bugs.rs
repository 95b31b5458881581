//! Bugs: planted faults that the simulator must find. Compiled to nothing without `--cfg sealog_bugs`.
//!
//! **Invariants**
//! - Without the cfg, `bug!` is the constant `false`: no code, no cost.

/// Names of all planted bugs.
pub const NAMES: [&str; 9] = [
    "ack_before_sync",
    "missing_directory_sync",
    "ghost_group",
    "verdict_without_durable_end",
    "serve_before_sync",
    "retire_too_early",
    "producer_ahead_of_data",
    "published_twice",
    "late_write",
];

#[cfg(sealog_bugs)]
thread_local! {
    static ACTIVE: std::cell::Cell<&'static str> = const { std::cell::Cell::new("") };
}

/// Switches one planted bug on for this thread, all others off; `""` switches all off.
#[cfg(sealog_bugs)]
pub fn activate(name: &'static str) {
    ACTIVE.with(|active| active.set(name));
}

/// Whether the planted bug `name` is on.
#[cfg(sealog_bugs)]
#[must_use]
pub fn active(name: &str) -> bool {
    ACTIVE.with(|active| active.get() == name)
}

/// Whether a planted bug is on; the constant `false` in ordinary builds.
#[macro_export]
macro_rules! bug {
    ($name:literal) => {{
        #[cfg(sealog_bugs)]
        {
            $crate::bugs::active($name)
        }
        #[cfg(not(sealog_bugs))]
        {
            false
        }
    }};
}
