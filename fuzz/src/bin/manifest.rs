//! Target manifest: bytes as they come, and sealed again. Spec: spec/manifest.md.
//!
//! **Invariants**
//! - No bytes panic; what decodes is canonical: encoded again, it is the same bytes.
#![no_main]

use libfuzzer_sys::fuzz_target;
use sealog_engine::commit::Manifest;
use sealog_engine::ids::Sequence;
use sealog_fuzz::resealed;

fuzz_target!(|input: &[u8]| {
    for bytes in [input, &resealed(input, 12)] {
        if let Ok(manifest) = Manifest::decode(bytes) {
            assert_eq!(manifest.encode(), bytes);
            let _ = manifest.packs_from(Sequence(9)).len();
            let _ = manifest.packs_from_timestamp(9).len();
        }
    }
});
