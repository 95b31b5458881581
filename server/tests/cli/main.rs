//! Tests of the command, run as users run it.
//!
//! **Not here**: what the engine promises (its own tests); the main job at full scale (by hand).

#![allow(clippy::unwrap_used)] // Tests report by panicking, their helpers too.

mod append;
mod bench;
mod errors;
mod places;
mod read;
mod refused;
mod signals;
mod statuses;
mod store;
mod verbs;
mod waits;
