//! Target commit: bytes as they come and sealed again, and the names of objects. Spec: spec/commit.md.
//!
//! **Invariants**
//! - No bytes panic; what decodes is canonical: encoded again, it is the same bytes.
//! - An escaped name is one harmless path component, and reads back unless it was cut (COMMIT-7).
#![no_main]

use libfuzzer_sys::fuzz_target;
use sealog_engine::commit::{Commit, paths};
use sealog_fuzz::resealed;

fuzz_target!(|input: &[u8]| {
    for bytes in [input, &resealed(input, 12)] {
        if let Ok(commit) = Commit::decode(bytes) {
            assert_eq!(commit.encode(), bytes);
        }
    }
    let Ok(name) = std::str::from_utf8(input) else {
        return;
    };
    let component = paths::escape_name(name);
    assert!(!component.is_empty() && component.len() <= paths::COMPONENT_BYTES_MAX);
    assert!(!component.contains('/') && !component.starts_with('.'));
    if !component.contains('~') && !name.is_empty() {
        assert_eq!(paths::unescape_name(&component).as_deref(), Some(name));
    }
    let _ = (paths::commit_number(name), paths::digest_object(name));
});
