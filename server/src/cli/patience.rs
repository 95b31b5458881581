//! Patience: what a verb waits for, said on standard error once it has waited long enough to wonder.
//!
//! **Invariants**
//! - Nothing is said of waits that are shorter than [`SILENCE`], nor with `--json`: lines there are failures.
//! - A cause that becomes known, or another one, is told, and at most once per [`AGAIN`].
//!
//! **Not here**: how long a wait may last (the engine, the client).

use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use futures_lite::future::block_on;

use super::exit::one_line;
use super::open::Handle;

/// How long a wait goes unsaid.
const SILENCE: Duration = Duration::from_secs(3);
/// Between two looks.
const LOOK: Duration = Duration::from_millis(500);
/// Least time between two lines.
const AGAIN: Duration = Duration::from_secs(10);

/// Watches the waits of one verb, until the last clone is dropped.
#[derive(Clone)]
pub(super) struct Patience(Option<Arc<Watch>>);

/// Ends the watching when it is dropped.
struct Watch(Arc<Shared>);

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
    /// Whom to ask for the cause, once there is somebody.
    engine: OnceLock<Handle>,
}

#[derive(Default)]
struct State {
    wait: Option<Wait>,
    ended: bool,
}

/// One wait.
struct Wait {
    what: String,
    since: Instant,
    /// It may last: only trouble makes it worth a word.
    only_trouble: bool,
    told: Option<(Instant, Option<String>)>,
}

impl Wait {
    /// Whether it has lasted long enough to ask for the cause.
    fn is_long(&self, now: Instant) -> bool {
        let told = self.told.as_ref().map(|(told, _)| *told);
        match told {
            None => now.duration_since(self.since) >= SILENCE,
            Some(told) => now.duration_since(told) >= AGAIN,
        }
    }

    /// What to say, if there is anything new.
    fn say(&mut self, now: Instant, cause: Option<String>) -> Option<String> {
        let news = match &self.told {
            None => cause.is_some() || !self.only_trouble,
            Some((_, told)) => cause.is_some() && cause != *told,
        };
        if !news {
            return None;
        }
        let text = match &cause {
            Some(cause) => format!("still waiting for {}: {cause}", self.what),
            None => format!("still waiting for {}", self.what),
        };
        self.told = Some((now, cause));
        Some(text)
    }
}

/// A wait that ends when this is dropped.
pub(super) struct Waiting<'a>(Option<&'a Shared>);

impl Patience {
    /// Watches from now on; `quiet`: says nothing ever.
    pub(super) fn begin(quiet: bool) -> Self {
        if quiet {
            return Self(None);
        }
        let shared = Arc::new(Shared::default());
        let watching = shared.clone();
        let thread = std::thread::Builder::new().name("sealog-patience".to_owned());
        // Without the thread nothing is said.
        let begun = thread.spawn(move || watching.watch()).is_ok();
        Self(begun.then(|| Arc::new(Watch(shared))))
    }

    /// From now on `engine` is asked for the cause.
    pub(super) fn ask(&self, engine: &Handle) {
        if let Some(Watch(shared)) = self.0.as_deref() {
            let _ = shared.engine.set(engine.clone());
        }
    }

    /// A wait for `what` begins.
    pub(super) fn during(&self, what: impl Into<String>) -> Waiting<'_> {
        self.enter(what.into(), false)
    }

    /// A wait begins that may well last: something is said if there is trouble.
    pub(super) fn unless_well(&self, what: impl Into<String>) -> Waiting<'_> {
        self.enter(what.into(), true)
    }

    fn enter(&self, what: String, only_trouble: bool) -> Waiting<'_> {
        let shared = self.0.as_ref().map(|watch| &*watch.0);
        if let Some(shared) = shared {
            shared.lock().wait = Some(Wait {
                what,
                since: Instant::now(),
                only_trouble,
                told: None,
            });
        }
        Waiting(shared)
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.0.lock().ended = true;
        self.0.changed.notify_all();
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if let Some(shared) = self.0 {
            shared.lock().wait = None;
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn watch(&self) {
        let mut state = self.lock();
        while !state.ended {
            let waited = self.changed.wait_timeout(state, LOOK);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
            let since = |state: &State| state.wait.as_ref().map(|wait| wait.since);
            let before = since(&state);
            let is_long = |wait: &Wait| wait.is_long(Instant::now());
            if state.ended || !state.wait.as_ref().is_some_and(is_long) {
                continue;
            }
            // Asking takes a while, if shards are slow: nobody is to wait for it.
            drop(state);
            let cause = self.cause();
            state = self.lock();
            if state.ended || since(&state) != before {
                continue;
            }
            let said = state
                .wait
                .as_mut()
                .and_then(|wait| wait.say(Instant::now(), cause));
            if let Some(text) = said {
                eprintln!("sealog: {}", one_line(&text));
            }
        }
    }

    /// What is known of it.
    fn cause(&self) -> Option<String> {
        let usage = block_on(self.engine.get()?.usage()).ok()?;
        let lanes = usage.logs.into_iter().find_map(|log| log.trouble);
        lanes.or(usage.bucket.trouble).map(|(text, _)| text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wait(only_trouble: bool) -> Wait {
        Wait {
            what: "it".to_owned(),
            since: Instant::now(),
            only_trouble,
            told: None,
        }
    }

    #[test]
    fn say_once_and_again_when_the_cause_is_another() {
        let mut wait = wait(false);
        let (begun, cause) = (wait.since, |text: &str| Some(text.to_owned()));
        assert!(!wait.is_long(begun + SILENCE / 2));
        let now = begun + SILENCE;
        assert!(wait.is_long(now));
        assert_eq!(wait.say(now, None).unwrap(), "still waiting for it");
        assert!(!wait.is_long(now + AGAIN / 2) && wait.is_long(now + AGAIN));
        assert_eq!(wait.say(now, None), None);
        let told = wait.say(now, cause("full")).unwrap();
        assert_eq!(told, "still waiting for it: full");
        assert_eq!(wait.say(now, cause("full")), None);
        assert!(wait.say(now, cause("gone")).is_some());
    }

    #[test]
    fn say_nothing_of_what_may_last_while_all_is_well() {
        let mut wait = wait(true);
        assert_eq!(wait.say(wait.since, None), None);
        assert!(wait.say(wait.since, Some("full".to_owned())).is_some());
    }
}
