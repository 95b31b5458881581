//! Signals: SIGINT and SIGTERM as something that long verbs look at, so that they end where it is clean.
//!
//! **Invariants**
//! - The first signal asks; a second one of the same kind ends the process as if nobody had listened.
//!
//! **Not here**: what is done when one has come (the verbs).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;

use super::exit::CliError;

/// Whether the process was asked to end.
#[derive(Debug, Clone, Default)]
pub(super) struct Signals {
    interrupt: Arc<AtomicBool>,
    terminate: Arc<AtomicBool>,
}

impl Signals {
    /// Listens from now on.
    pub(super) fn listen() -> Result<Self, CliError> {
        let signals = Self::default();
        for (signal, asked) in [(SIGINT, &signals.interrupt), (SIGTERM, &signals.terminate)] {
            // In this order: the first one finds the flag down.
            flag::register_conditional_default(signal, asked.clone())
                .and_then(|_| flag::register(signal, asked.clone()))
                .map_err(|error| CliError::io("listening for signals", &error))?;
        }
        Ok(signals)
    }

    /// Whether one has come.
    pub(super) fn came(&self) -> bool {
        self.interrupt.load(Ordering::Relaxed) || self.terminate.load(Ordering::Relaxed)
    }

    /// Fails if one has come.
    pub(super) fn check(&self) -> Result<(), CliError> {
        match self.came() {
            true => Err(CliError::interrupted(
                !self.interrupt.load(Ordering::Relaxed),
            )),
            false => Ok(()),
        }
    }
}
