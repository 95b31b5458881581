//! Net: `sealog serve` over the native protocol, from the outside.
#![allow(clippy::unwrap_used, reason = "tests report by panicking")]

mod cases;
mod client;
mod command;
mod ends;
mod events;
mod forks;
#[allow(dead_code, reason = "programs have a `main` of their own")]
mod guide;
mod herd;
mod http;
mod http_cases;
mod ops;
mod protocol;
#[path = "../../client/tests/common/proxy.rs"]
mod proxy;
mod rolls;
mod secure;
mod server;
mod stores;
mod subscriptions;
