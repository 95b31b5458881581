//! `sealog`: the command.
fn main() {}
