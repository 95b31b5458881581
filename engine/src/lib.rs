//! The engine of Sealog: a durable stream store for one machine, embeddable in any process.

pub mod bucket;
pub mod codec;
pub mod commit;
pub mod env;
pub mod ids;
pub mod pack;
