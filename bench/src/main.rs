//! `sealog-bench`.
fn main() {}
