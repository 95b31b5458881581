//! Net: `sealog serve` over the native protocol, from the outside.

mod client;
mod protocol;
#[path = "../../client/tests/common/proxy.rs"]
mod proxy;
mod server;
