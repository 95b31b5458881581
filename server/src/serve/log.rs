//! Log: what `serve` says on standard error, as lines of text or of JSON. Reference: `docs/serve.md`.
//!
//! ```text
//!  any thread ──> event ──> line ──> queue of LINES_MAX ──> one thread ──> standard error
//! ```
//!
//! **Invariants**
//! - Nobody waits for standard error: a line that finds the queue full is dropped, and counted.
//! - What was said before the process ends is written, unless standard error takes nothing.
//! - Neither tokens nor what records hold is ever part of an event.
//!
//! **Not here**: what is said (whoever does it), the one line that a failure ends with (`cli::exit`).

use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::prelude::*;

use crate::cli::{CliError, LogFormat};

/// Lines that may wait to be written.
const LINES_MAX: usize = 1024;
/// How long the end of the process waits for lines to be written.
const FLUSH_WAIT: Duration = Duration::from_millis(500);

enum Item {
    Line(Vec<u8>),
    /// Answered when everything before it is written.
    Flush(flume::Sender<()>),
}

/// The way to standard error. Clones share it.
#[derive(Clone)]
pub(super) struct Log {
    items: flume::Sender<Item>,
    dropped: Arc<AtomicU64>,
}

impl Log {
    /// Starts the log of this process: events that `filter` lets through, as `format` says.
    pub(super) fn begin(filter: &str, format: LogFormat) -> Result<Self, CliError> {
        let targets = targets(filter).ok_or_else(|| {
            CliError::usage(format!(
                "--log {filter}: a level is needed (off, error, warn, info, debug, trace), or TARGET=LEVEL,..."
            ))
        })?;
        let (items, queue) = flume::bounded(LINES_MAX);
        let thread = std::thread::Builder::new().name("sealog-log".to_owned());
        let written = thread.spawn(move || write_all(&queue));
        written.map_err(|error| CliError::io("starting the log", &error))?;
        let log = Self {
            items,
            dropped: Arc::default(),
        };
        let lines = tracing_subscriber::fmt::layer()
            .with_ansi(false)
            .with_writer(log.clone());
        let registry = tracing_subscriber::registry().with(targets);
        let begun = match format {
            LogFormat::Text => registry.with(lines).try_init(),
            LogFormat::Json => registry.with(lines.json().flatten_event(true)).try_init(),
        };
        begun.map_err(|error| CliError::unusable(format!("starting the log: {error}")))?;
        Ok(log)
    }

    /// Lines that were dropped.
    pub(super) fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    /// Waits until what was said is written, a moment at most.
    pub(super) fn flush(&self) {
        let (done, written) = flume::bounded(1);
        if self
            .items
            .send_timeout(Item::Flush(done), FLUSH_WAIT)
            .is_ok()
        {
            let _ = written.recv_timeout(FLUSH_WAIT);
        }
    }
}

/// What `filter` lets through; `None` if it makes no sense.
fn targets(filter: &str) -> Option<Targets> {
    // A word alone would be taken for a target, of which everything is shown.
    let is_said = |part: &str| {
        part.contains('=') || (!part.is_empty() && part.parse::<LevelFilter>().is_ok())
    };
    match filter.split(',').all(is_said) {
        true => filter.parse().ok(),
        false => None,
    }
}

impl<'a> MakeWriter<'a> for Log {
    type Writer = Line<'a>;

    fn make_writer(&'a self) -> Line<'a> {
        Line {
            log: self,
            bytes: Vec::new(),
        }
    }
}

/// A line in the making; it is queued when it is dropped.
pub(super) struct Line<'a> {
    log: &'a Log,
    bytes: Vec<u8>,
}

impl Write for Line<'_> {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        self.bytes.extend_from_slice(buf);
        Ok(buf.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for Line<'_> {
    fn drop(&mut self) {
        let line = Item::Line(std::mem::take(&mut self.bytes));
        if self.log.items.try_send(line).is_err() {
            self.log.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }
}

fn write_all(queue: &flume::Receiver<Item>) {
    let mut stderr = io::stderr();
    for item in queue {
        match item {
            // Nobody is left to tell when it fails.
            Item::Line(line) => drop(stderr.write_all(&line)),
            Item::Flush(done) => drop(done.send(())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_levels_or_pairs() {
        for filter in ["info", "off", "warn,sealog=debug", "sealog::serve=trace"] {
            assert!(targets(filter).is_some(), "{filter}");
        }
        for filter in ["loud", "", "info,loud", "sealog=loud"] {
            assert!(targets(filter).is_none(), "{filter}");
        }
    }

    #[test]
    fn line_a_full_queue_drops_and_counts() {
        let (items, queue) = flume::bounded(1);
        let log = Log {
            items,
            dropped: Arc::default(),
        };
        for text in ["a", "b", "c"] {
            log.make_writer().write_all(text.as_bytes()).unwrap();
        }
        assert_eq!(log.dropped.load(Ordering::Relaxed), 2);
        let Item::Line(line) = queue.recv().unwrap() else {
            panic!("no line");
        };
        assert_eq!(line, b"a");
    }
}
