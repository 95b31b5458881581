//! Tests of the command, run as users run it.
//!
//! **Not here**: what the engine promises (its own tests); the main job at full scale (by hand).

mod append;
mod bench;
mod errors;
mod places;
mod read;
mod verbs;
