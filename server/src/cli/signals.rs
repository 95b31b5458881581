//! Signals: SIGINT, SIGTERM and SIGHUP as something that long verbs look at, so that they end where it is
//! clean.
//!
//! **Invariants**
//! - The first signal asks; a second one of the same kind ends the process as if nobody had listened.
//! - A SIGHUP that is ignored (`nohup`) stays ignored.
//!
//! **Not here**: what is done when one has come (the verbs).

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;

use super::exit::{CliError, Exit};

/// The signals that ask a process to end, with the statuses of verbs that they ended.
const ASKING: [(i32, Exit); 3] = [
    (SIGINT, Exit::Interrupted),
    (SIGTERM, Exit::Terminated),
    (SIGHUP, Exit::HungUp),
];

/// Those of them to listen for: whoever started the process may want it to outlive its terminal.
pub(crate) fn heeded() -> impl Iterator<Item = i32> {
    let signals = ASKING.iter().map(|(signal, _)| *signal);
    signals.filter(|signal| *signal != SIGHUP || !is_ignored(SIGHUP))
}

fn is_ignored(signal: i32) -> bool {
    // SAFETY: all-zero bytes are a valid `sigaction`, which the call only writes.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: asks only; the structure outlives the call.
    let asked = unsafe { libc::sigaction(signal, std::ptr::null(), &mut action) };
    asked == 0 && action.sa_sigaction == libc::SIG_IGN
}

/// Whether the process was asked to end.
#[derive(Debug, Clone, Default)]
pub(super) struct Signals([Arc<AtomicBool>; ASKING.len()]);

impl Signals {
    /// Listens from now on.
    pub(super) fn listen() -> Result<Self, CliError> {
        let signals = Self::default();
        let flags = ASKING.iter().zip(&signals.0);
        for signal in heeded() {
            let asked = flags.clone().find(|((asking, _), _)| *asking == signal);
            asked
                .map_or(Ok(()), |(_, asked)| heed(signal, asked))
                .map_err(|error| CliError::io("listening for signals", &error))?;
        }
        Ok(signals)
    }

    fn first(&self) -> Option<Exit> {
        let mut flags = ASKING.iter().zip(&self.0);
        let came = flags.find(|(_, asked)| asked.load(Ordering::Relaxed));
        came.map(|((_, exit), _)| *exit)
    }

    /// Whether one has come.
    pub(super) fn came(&self) -> bool {
        self.first().is_some()
    }

    /// Fails if one has come.
    pub(super) fn check(&self) -> Result<(), CliError> {
        self.first()
            .map_or(Ok(()), |exit| Err(CliError::interrupted(exit)))
    }
}

fn heed(signal: i32, asked: &Arc<AtomicBool>) -> io::Result<()> {
    // In this order: the first one finds the flag down.
    flag::register_conditional_default(signal, asked.clone())?;
    flag::register(signal, asked.clone()).map(drop)
}
