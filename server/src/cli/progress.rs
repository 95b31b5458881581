//! Progress: a bar on standard error for long work, when it is a terminal.
//!
//! **Invariants**
//! - Nothing is drawn when standard error is no terminal, and nothing stays behind on it.
//!
//! **Not here**: what is counted.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::signals::Signals;

/// A bar, or nothing.
pub(super) struct Progress(ProgressBar);

impl Progress {
    /// Counts records; how many there will be is not known.
    pub(super) fn records() -> Self {
        Self::with("{spinner} {human_pos} records, {per_sec}, {msg}")
    }

    /// Counts bytes; how many there will be is not known.
    pub(super) fn bytes() -> Self {
        Self::with("{spinner} {bytes}, {bytes_per_sec}, {msg}")
    }

    /// Says which step is under way.
    pub(super) fn steps() -> Self {
        Self::with("{spinner} {msg}")
    }

    /// What the engine calls before each step; fails once a signal has come.
    pub(super) fn step(
        &self,
        signals: &Signals,
    ) -> impl Fn(&str) -> sealog_engine::Result<()> + Clone + Send + 'static {
        let (bar, signals) = (self.0.clone(), signals.clone());
        move |step| {
            bar.set_message(step.to_owned());
            match signals.came() {
                true => Err(sealog_engine::Error::Closed),
                false => Ok(()),
            }
        }
    }

    /// Draws nothing.
    pub(super) fn hidden() -> Self {
        Self(ProgressBar::hidden())
    }

    fn with(template: &str) -> Self {
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style);
        }
        bar.enable_steady_tick(Duration::from_millis(200));
        Self(bar)
    }

    /// So many bytes in all, and what is being read.
    pub(super) fn at(&self, bytes: u64, reading: &str) {
        if !self.0.is_hidden() {
            self.0.set_position(bytes);
            self.0.set_message(reading.to_owned());
        }
    }

    /// So many more records; `bytes` of the input so far.
    pub(super) fn add(&self, records: u64, bytes: u64) {
        self.0.inc(records);
        if !self.0.is_hidden() {
            self.0
                .set_message(format!("{}", indicatif::HumanBytes(bytes)));
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
