//! The process that the crash test kills. Usage: `sealog-crash-writers DIRECTORY SEED open|write [BUCKET [ENDPOINT]]`
//!
//! **Invariants**
//! - Ends only by being killed, or with a panic that the parent reports.

use sealog_engine::S3Options;
use sealog_tests::crash::Place;

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let seed = arguments
        .get(2)
        .and_then(|text| text.parse().ok())
        .unwrap_or(0);
    let only_open = arguments.get(3).is_some_and(|word| word == "open");
    let place = Place {
        dir: arguments.get(1).expect("a directory").into(),
        store: arguments.get(4).map(|url| S3Options {
            endpoint: arguments.get(5).cloned(),
            ..S3Options::of_url(url).expect("a bucket")
        }),
    };
    sealog_tests::crash::writers::run(&place, seed, only_open);
}
