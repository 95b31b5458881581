//! Net: `sealog serve` over the native protocol, from the outside.

mod cases;
mod client;
#[allow(dead_code, reason = "programs have a `main` of their own")]
mod guide;
mod ops;
mod protocol;
mod secure;
mod server;
