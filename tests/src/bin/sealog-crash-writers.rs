//! The process that the crash test kills. Usage: `sealog-crash-writers DIRECTORY SEED [open]`
//!
//! **Invariants**
//! - Ends only by being killed, or with a panic that the parent reports.

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let seed = arguments
        .get(2)
        .and_then(|text| text.parse().ok())
        .unwrap_or(0);
    let only_open = arguments.get(3).is_some_and(|word| word == "open");
    let dir = arguments.get(1).expect("a directory");
    sealog_tests::crash::writers::run(std::path::Path::new(dir), seed, only_open);
}
