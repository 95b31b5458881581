//! Tests: the seeded simulator, the workload and oracle that run in it, and what they share.
//!
//! **Invariants**
//! - Nothing here is part of the product; nothing of the product depends on it.
//!
//! **Not here**: unit tests, they sit beside their code.

// Tests panic: that is how they report.
#![allow(clippy::unwrap_used, clippy::missing_panics_doc)]

mod brief;
pub mod crash;
pub mod engine_subject;
pub mod history;
pub mod oracle;
pub mod scenario;
pub mod script;
pub mod sim;
pub mod store;
pub mod subject;
pub mod tidy;
pub mod toy;
pub mod workload;
