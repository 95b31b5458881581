//! Troubles: says in the log when packing, or the bucket, begins to fail, and when it goes on.
//!
//! **Invariants**
//! - One line when trouble begins and one when it ends, however often it is tried meanwhile.
//!
//! **Not here**: figures (`metrics`), what waits (`sealog usage`).

use std::collections::BTreeSet;
use std::time::Duration;

use futures_lite::future::block_on;
use sealog_engine::{Handle, ProductionEnv};
use tracing::{info, warn};

/// How often it is looked at.
const LOOK: Duration = Duration::from_secs(5);

/// Watches until the engine closes.
pub(super) fn watch(engine: Handle<ProductionEnv>) {
    let watch = move || {
        let mut told = Told::default();
        while let Ok(usage) = block_on(engine.usage()) {
            for log in &usage.logs {
                told.tell(
                    format!("packing of log {}", log.log.0),
                    log.trouble.as_ref(),
                );
            }
            told.tell("the bucket".to_owned(), usage.bucket.trouble.as_ref());
            std::thread::sleep(LOOK);
        }
    };
    let thread = std::thread::Builder::new().name("sealog-troubles".to_owned());
    if let Err(error) = thread.spawn(watch) {
        warn!(%error, "troubles of the bucket will not be told");
    }
}

/// What is in trouble, as far as it was told.
#[derive(Default)]
struct Told(BTreeSet<String>);

impl Told {
    /// Tells of a change; whether there was one.
    fn tell(&mut self, what: String, trouble: Option<&(String, Duration)>) -> bool {
        match (trouble, self.0.contains(&what)) {
            (Some((text, time)), false) => {
                let seconds = time.as_secs();
                warn!(seconds, "{what} is in trouble, and is tried again: {text}");
                self.0.insert(what)
            }
            (None, true) => {
                info!("{what} goes on");
                self.0.remove(&what)
            }
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trouble_is_told_once_when_it_begins_and_once_when_it_ends() {
        let mut told = Told::default();
        let trouble = ("no answer".to_owned(), Duration::from_secs(1));
        let mut tell = |trouble| told.tell("the bucket".to_owned(), trouble);
        let changes = [
            None,
            Some(&trouble),
            Some(&trouble),
            None,
            None,
            Some(&trouble),
        ];
        assert_eq!(
            changes.map(&mut tell),
            [false, true, false, true, false, true]
        );
    }
}
