//! Net: `sealog serve` over the native protocol, from the outside.

mod protocol;
mod secure;
mod server;
