//! State: how far the server is, as its main thread tells and its admin address answers.
//!
//! **Invariants**
//! - A server is ready only between the last log's recovery and the first word of its end.
//! - Shards never touch it.
//!
//! **Not here**: HTTP (`admin`).

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use sealog_engine::{Handle, ProductionEnv};

use crate::native::Meters;

/// How far the server is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) enum Stage {
    /// Logs are being recovered.
    #[default]
    Starting,
    /// Every log serves.
    Ready,
    /// It was asked to end.
    Draining,
    /// A log has stopped: why.
    Stopped(String),
}

/// What main thread, shards at their start, and admin thread share.
#[derive(Default)]
pub(super) struct State {
    stage: Mutex<Stage>,
    /// The way to the logs, once they are open.
    pub(super) engine: OnceLock<Handle<ProductionEnv>>,
    meters: Mutex<Vec<Arc<Meters>>>,
}

impl State {
    pub(super) fn stage(&self) -> Stage {
        lock(&self.stage).clone()
    }

    /// Goes on to `stage`; a stopped log stays the reason.
    pub(super) fn go_on(&self, stage: Stage) {
        let mut now = lock(&self.stage);
        if !matches!(*now, Stage::Stopped(_)) {
            *now = stage;
        }
    }

    /// Why the server is not ready; `None`: it is.
    pub(super) fn unready(&self) -> Option<String> {
        match self.stage() {
            Stage::Ready => None,
            Stage::Starting => Some("starting: logs are being recovered".to_owned()),
            Stage::Draining => Some("draining: the server is going down".to_owned()),
            Stage::Stopped(reason) => Some(format!("a log stopped: {reason}")),
        }
    }

    /// A shard has begun to count.
    pub(super) fn note_meters(&self, meters: Arc<Meters>) {
        let mut all = lock(&self.meters);
        all.push(meters);
        all.sort_by_key(|meters| meters.shard);
    }

    pub(super) fn meters(&self) -> Vec<Arc<Meters>> {
        lock(&self.meters).clone()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unready_but_between_recovery_and_end() {
        let state = State::default();
        assert!(state.unready().unwrap().starts_with("starting"));
        state.go_on(Stage::Ready);
        assert_eq!(state.unready(), None);
        state.go_on(Stage::Stopped("log 0: no".to_owned()));
        state.go_on(Stage::Draining);
        assert_eq!(state.unready().unwrap(), "a log stopped: log 0: no");
    }
}
