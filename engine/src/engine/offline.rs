//! Offline: what is done to a data directory that no engine has open: reshard and accept loss.
//!
//! **Invariants**
//! - Both lock the directory first; both leave it as it was when they refuse.
//!
//! **Not here**: everything an open engine does by itself.
