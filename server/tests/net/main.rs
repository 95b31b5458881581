//! Net: `sealog serve` over the native protocol, from the outside.

mod cases;
mod protocol;
mod secure;
mod server;
