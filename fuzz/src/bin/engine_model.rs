//! Target engine_model: bytes spell calls, faults and ends of processes; the engine runs them over the
//! simulator, and the simulator's oracle judges what it answers and keeps.
//!
//! **Invariants**
//! - No script breaches the model, hangs or panics; the same bytes are the same run.
//! - Built with `--cfg sealog_bugs`, the bug named by `FUZZ_BUG` is switched on: it must be found.
//!
//! **Not here**: what the bytes mean (`sealog_tests::script`), bytes that nobody framed (`frame`).
#![no_main]

use libfuzzer_sys::{Corpus, fuzz_target};
use sealog_tests::script::{SCRIPT_BYTES_MAX, run};

fuzz_target!(|input: &[u8]| -> Corpus {
    if input.len() > SCRIPT_BYTES_MAX {
        return Corpus::Reject;
    }
    #[cfg(sealog_bugs)]
    plant();
    if let Err(breach) = run(input) {
        panic!("{breach}");
    }
    Corpus::Keep
});

/// Switches the planted bug on that the environment names.
#[cfg(sealog_bugs)]
fn plant() {
    use sealog_engine::bugs::{NAMES, activate};
    let wanted = std::env::var("FUZZ_BUG").expect("FUZZ_BUG names a planted bug");
    let name = NAMES.iter().find(|name| **name == wanted);
    activate(name.expect("FUZZ_BUG is one of sealog_engine::bugs::NAMES"));
}
