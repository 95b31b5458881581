//! Exit: the status a command ends with, and the one line that says why. Reference: `docs/cli.md`.
//!
//! **Invariants**
//! - Every variant of the engine's error has a status; a test reads the engine's source for new ones.
//! - A report is one line, whatever text it is made of.
//! - A broken pipe is silent, unless what could not be told is that something was changed.
//!
//! **Not here**: what to do about an error (its own text says it).

use std::io;
use std::path::Path;
use std::process::ExitCode;

use sealog_engine::{Effects, Error};
use serde::Serialize;

/// Status of the process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Exit {
    /// Done.
    Ok = 0,
    /// Something failed that has no status of its own.
    Failure = 1,
    /// The arguments, the configuration or the input make no sense.
    Usage = 2,
    /// The engine refused: fenced, mismatch, gap, over a limit, not allowed.
    Refused = 3,
    /// No such feed, stream, commit, file or data directory.
    NotFound = 4,
    /// Damaged data.
    Corrupt = 5,
    /// No space; appends may succeed later.
    StorageFull = 6,
    /// This machine or directory can't be used: locked, io_uring forbidden, newer format.
    Unusable = 7,
    /// Done and durable, but standard output did not take the answer.
    Unprinted = 8,
    /// `serve`: a log stopped after a failed write; a restart recovers it.
    Stopped = 9,
    /// SIGHUP came and it ended where it is clean: 128 + 1, as a shell shows it.
    HungUp = 129,
    /// So did SIGINT: 128 + 2.
    Interrupted = 130,
    /// And SIGTERM: 128 + 15.
    Terminated = 143,
    /// Standard output was closed by its reader: 128 + SIGPIPE, as a shell shows it for others.
    BrokenPipe = 141,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}

/// Names of failures that are the command's own, with their statuses; the others are the engine's.
const OWN_NAMES: [(Exit, &str); 16] = [
    (Exit::Failure, "Io"),
    (Exit::Usage, "Usage"),
    (Exit::Usage, "Config"),
    (Exit::Refused, "OverLimit"),
    (Exit::Refused, "Batch"),
    (Exit::NotFound, "FileNotFound"),
    (Exit::NotFound, "DataDirNotFound"),
    (Exit::NotFound, "ProducerNotFound"),
    (Exit::Corrupt, "Corrupt"),
    (Exit::Unusable, "Unusable"),
    (Exit::Unprinted, "Unprinted"),
    (Exit::Stopped, "LogStopped"),
    (Exit::HungUp, "HungUp"),
    (Exit::Interrupted, "Interrupted"),
    (Exit::Terminated, "Terminated"),
    (Exit::BrokenPipe, "BrokenPipe"),
];

/// Why the command did not do what was asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CliError {
    /// Status to end with.
    pub(crate) exit: Exit,
    /// One line.
    pub(crate) message: String,
    kind: &'static str,
    retryable: bool,
    effects: Effects,
}

impl CliError {
    fn new(exit: Exit, kind: &'static str, message: impl Into<String>) -> Self {
        debug_assert!(OWN_NAMES.contains(&(exit, kind)), "{kind} is not listed");
        Self {
            exit,
            message: message.into(),
            kind,
            retryable: false,
            effects: Effects::None,
        }
    }

    /// The arguments or the input make no sense.
    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Self::new(Exit::Usage, "Usage", message)
    }

    /// The configuration makes no sense.
    pub(crate) fn config(message: impl Into<String>) -> Self {
        Self::new(Exit::Usage, "Config", message)
    }

    /// Something that is over a limit or against a rule.
    pub(crate) fn refused(kind: &'static str, message: impl Into<String>) -> Self {
        Self::new(Exit::Refused, kind, message)
    }

    /// Something is not there.
    pub(crate) fn not_found(kind: &'static str, message: impl Into<String>) -> Self {
        Self::new(Exit::NotFound, kind, message)
    }

    /// Bytes that the engine gave are not what they must be.
    pub(crate) fn corrupt(message: impl Into<String>) -> Self {
        Self::new(Exit::Corrupt, "Corrupt", message)
    }

    /// This place can't be used.
    pub(crate) fn unusable(message: impl Into<String>) -> Self {
        Self::new(Exit::Unusable, "Unusable", message)
    }

    /// Reading or writing failed outside the engine.
    pub(crate) fn io(what: &str, error: &io::Error) -> Self {
        Self::new(Exit::Failure, "Io", format!("{what}: {error}"))
    }

    /// A file that was named can't be read: missing, not a file, not permitted.
    pub(crate) fn file(what: &str, path: &Path, error: &io::Error) -> Self {
        let text = format!("{what} {}: {error}", path.display());
        match error.kind() {
            io::ErrorKind::NotFound => {
                Self::not_found("FileNotFound", format!("{} does not exist", path.display()))
            }
            io::ErrorKind::IsADirectory => {
                Self::usage(format!("{} is a directory, not a file", path.display()))
            }
            io::ErrorKind::InvalidData => Self::usage(text),
            io::ErrorKind::PermissionDenied | io::ErrorKind::NotADirectory => Self::unusable(text),
            _ => Self::new(Exit::Failure, "Io", text),
        }
    }

    /// Writing to standard output failed.
    pub(crate) fn stdout(error: &io::Error) -> Self {
        if error.kind() == io::ErrorKind::BrokenPipe {
            return Self::new(Exit::BrokenPipe, "BrokenPipe", "");
        }
        Self::io("writing to standard output", error)
    }

    /// A signal asked to end.
    pub(crate) fn interrupted(exit: Exit) -> Self {
        match exit {
            Exit::Terminated => Self::new(exit, "Terminated", "terminated"),
            Exit::HungUp => Self::new(exit, "HungUp", "hung up"),
            _ => Self::new(Exit::Interrupted, "Interrupted", "interrupted"),
        }
    }

    /// What was asked is done and durable; only the answer, `done`, could not be printed.
    pub(crate) fn unprinted(done: &str, error: &io::Error) -> Self {
        let text = format!("done, but not printed: {done}; writing to standard output: {error}");
        Self::new(Exit::Unprinted, "Unprinted", text)
    }

    /// Puts `place` in front: a line of the input, for instance.
    pub(crate) fn at(mut self, place: impl std::fmt::Display) -> Self {
        self.message = format!("{place}: {}", self.message);
        self
    }

    /// A log stopped while it was served: recovery leads back.
    pub(crate) fn log_stopped(message: impl Into<String>) -> Self {
        Self::new(Exit::Stopped, "LogStopped", message)
    }

    /// Adds what else there is to know.
    pub(crate) fn and(mut self, more: impl std::fmt::Display) -> Self {
        self.message = format!("{}; {more}", self.message);
        self
    }

    /// Shows what it is about.
    pub(crate) fn within(mut self, what: impl std::fmt::Display) -> Self {
        self.message = format!("{} in {what}", self.message);
        self
    }

    /// Whether arguments or input make no sense.
    pub(crate) fn is_usage(&self) -> bool {
        self.kind == "Usage"
    }

    /// Whether the feed is not there.
    pub(crate) fn is_feed_not_found(&self) -> bool {
        self.kind == "FeedNotFound"
    }

    /// Whether a signal asked to end.
    pub(crate) fn is_interrupt(&self) -> bool {
        matches!(
            self.exit,
            Exit::Interrupted | Exit::Terminated | Exit::HungUp
        )
    }

    /// Whether the stream is sealed, and only its publication waits for the bucket.
    pub(crate) fn is_unpublished(&self) -> bool {
        let full = self.kind == "StorageFull" && self.effects == Effects::Unknown;
        self.kind == "Bucket" || full
    }

    /// Whether the engine refused its configuration.
    pub(crate) fn is_config(&self) -> bool {
        self.kind == "Config"
    }

    /// Whether nobody knows what became of it.
    pub(super) fn is_unknown(&self) -> bool {
        self.effects == Effects::Unknown
    }

    /// The same, of a command that did part of what it was asked for: it is not to be done again unseen.
    pub(super) fn with_effects(self) -> Self {
        let effects = Effects::Unknown;
        Self { effects, ..self }
    }

    /// Tells standard error, and gives the status.
    pub(crate) fn report(&self, json: bool) -> ExitCode {
        if self.exit != Exit::BrokenPipe {
            if json {
                let shape = ErrorShape {
                    error: self.kind,
                    message: &self.message,
                    exit: self.exit as u8,
                    retryable: self.retryable,
                    effects: match self.effects {
                        Effects::None => "none",
                        Effects::Unknown => "unknown",
                    },
                };
                eprintln!("{}", serde_json::to_string(&shape).unwrap_or_default());
            } else {
                eprintln!("sealog: {}", one_line(&self.message));
            }
        }
        self.exit.into()
    }
}

#[derive(Serialize)]
struct ErrorShape<'a> {
    error: &'a str,
    message: &'a str,
    exit: u8,
    retryable: bool,
    effects: &'a str,
}

/// Joins lines and runs of blanks.
pub(crate) fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Status and name of each kind of engine error.
fn classify(error: &Error) -> (Exit, &'static str) {
    match error {
        Error::FeedNotFound { .. } => (Exit::NotFound, "FeedNotFound"),
        Error::FeedClosed { .. } => (Exit::Refused, "FeedClosed"),
        Error::FeedGone { .. } => (Exit::Refused, "FeedGone"),
        Error::Pinned { .. } => (Exit::Refused, "Pinned"),
        Error::FeedExists { .. } => (Exit::Refused, "FeedExists"),
        Error::FeedName { .. } => (Exit::Usage, "FeedName"),
        Error::FeedsFull { .. } => (Exit::Refused, "FeedsFull"),
        Error::Fenced { .. } => (Exit::Refused, "Fenced"),
        Error::TokenRequired { .. } => (Exit::Refused, "TokenRequired"),
        Error::SequenceMismatch { .. } => (Exit::Refused, "SequenceMismatch"),
        Error::ProducerFenced { .. } => (Exit::Refused, "ProducerFenced"),
        Error::ProducerEpochStart { .. } => (Exit::Refused, "ProducerEpochStart"),
        Error::ProducerGap { .. } => (Exit::Refused, "ProducerGap"),
        Error::ProducersFull { .. } => (Exit::Refused, "ProducersFull"),
        Error::KeysNotAllowed { .. } => (Exit::Refused, "KeysNotAllowed"),
        Error::NoOpenStream { .. } => (Exit::Refused, "NoOpenStream"),
        Error::StreamNotFound { .. } => (Exit::NotFound, "StreamNotFound"),
        Error::StreamSettled { .. } => (Exit::Refused, "StreamSettled"),
        Error::AbandonedStream { .. } => (Exit::Refused, "AbandonedStream"),
        Error::CommitNotFound { .. } => (Exit::NotFound, "CommitNotFound"),
        Error::OverLimit { .. } => (Exit::Refused, "OverLimit"),
        Error::OutOfOrder { .. } => (Exit::Refused, "OutOfOrder"),
        Error::Subscription(_) => (Exit::Refused, "Subscription"),
        Error::Batch(_) => (Exit::Refused, "Batch"),
        Error::Invalid(_) => (Exit::Usage, "Invalid"),
        Error::Config(_) => (Exit::Usage, "Config"),
        Error::StorageFull { .. } => (Exit::StorageFull, "StorageFull"),
        Error::Poisoned { .. } => (Exit::Failure, "Poisoned"),
        Error::Closed => (Exit::Failure, "Closed"),
        Error::Corrupt { .. } => (Exit::Corrupt, "Corrupt"),
        Error::NewerFormat { .. } => (Exit::Unusable, "NewerFormat"),
        Error::Unpublished { full: true, .. } => (Exit::StorageFull, "StorageFull"),
        Error::Bucket(_) | Error::Unpublished { .. } => (Exit::Failure, "Bucket"),
        Error::Io { .. } => (Exit::Failure, "Io"),
        Error::Unusable(_) => (Exit::Unusable, "Unusable"),
    }
}

impl From<Error> for CliError {
    fn from(error: Error) -> Self {
        let (exit, kind) = classify(&error);
        Self {
            exit,
            kind,
            message: error.to_string(),
            retryable: error.is_retryable(),
            effects: error.effects(),
        }
    }
}

impl From<sealog_client::Error> for CliError {
    fn from(error: sealog_client::Error) -> Self {
        let (exit, kind) = super::remote_errors::classify(error.kind());
        Self {
            exit,
            kind,
            message: error.to_string(),
            retryable: error.is_retryable(),
            effects: match error.effects() {
                sealog_client::Effects::None => Effects::None,
                _ => Effects::Unknown,
            },
        }
    }
}

impl From<sealog_frame::FrameError> for CliError {
    fn from(error: sealog_frame::FrameError) -> Self {
        use sealog_frame::FrameError as F;
        match error {
            F::TooLarge { .. } | F::TooMany { .. } => Self::refused("OverLimit", error.to_string()),
            _ => Self::refused("Batch", error.to_string()),
        }
    }
}

#[cfg(test)]
mod tests;
