//! Output: what goes to standard output: lines for people or JSON for programs.
//!
//! **Invariants**
//! - Output is buffered and flushed once, or before a wait.
//! - What was changed is said on standard error if standard output does not take it.
//! - With `--json` every line is one JSON object.
//!
//! **Not here**: the shapes (`shapes`), errors (`exit`).

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::os::fd::AsFd;
use std::os::fd::AsRawFd;

use serde::Serialize;

use super::closed;
use super::exit::CliError;

const BUFFER_BYTES: usize = 256 << 10;

/// Standard output.
pub(super) struct Output {
    // Not `Stdout`: its line buffer would write at every newline.
    writer: BufWriter<File>,
    json: bool,
    /// What was changed, once something was: a failure to print it is not a failure to do it.
    done: Option<String>,
}

impl Output {
    /// Standard output, JSON or not.
    pub(super) fn new(json: bool) -> Result<Self, CliError> {
        let stdout = match closed::stdout() {
            // One that takes nothing, as a closed one does.
            true => File::open("/dev/null"),
            false => io::stdout().as_fd().try_clone_to_owned().map(File::from),
        };
        let file = stdout.map_err(|error| CliError::stdout(&error))?;
        Ok(Self {
            writer: BufWriter::with_capacity(BUFFER_BYTES, file),
            json,
            done: None,
        })
    }

    /// Whether JSON was asked for.
    pub(super) fn is_json(&self) -> bool {
        self.json
    }

    /// One answer: a line of JSON, or what `text` makes of it.
    pub(super) fn line<T: Serialize>(
        &mut self,
        shape: &T,
        text: impl FnOnce(&T) -> String,
    ) -> Result<(), CliError> {
        let written = if self.json {
            serde_json::to_writer(&mut self.writer, shape)
                .map_err(io::Error::from)
                .and_then(|()| self.writer.write_all(b"\n"))
        } else {
            writeln!(self.writer, "{}", text(shape))
        };
        written.map_err(|error| self.failed(&error))
    }

    /// The answer of a verb that changed something, durably.
    pub(super) fn done<T: Serialize>(
        &mut self,
        shape: &T,
        text: impl Fn(&T) -> String,
    ) -> Result<(), CliError> {
        self.done = Some(text(shape));
        self.line(shape, text)
    }

    fn failed(&self, error: &io::Error) -> CliError {
        match &self.done {
            Some(done) => CliError::unprinted(done, error),
            None => CliError::stdout(error),
        }
    }

    /// Writes by hand.
    pub(super) fn write(
        &mut self,
        write: impl FnOnce(&mut BufWriter<File>) -> io::Result<()>,
    ) -> Result<(), CliError> {
        write(&mut self.writer).map_err(|error| self.failed(&error))
    }

    /// Sends everything on its way.
    pub(super) fn flush(&mut self) -> Result<(), CliError> {
        let flushed = self.writer.flush();
        flushed.map_err(|error| self.failed(&error))
    }

    /// Fails as a write would if the reader of a pipe has left. For whoever waits with nothing to write.
    pub(super) fn check_reader(&self) -> Result<(), CliError> {
        let mut poll = libc::pollfd {
            fd: self.writer.get_ref().as_raw_fd(),
            events: 0,
            revents: 0,
        };
        // SAFETY: one valid pollfd, alive for the call, of a descriptor that `self` owns.
        let ready = unsafe { libc::poll(&mut poll, 1, 0) };
        if ready > 0 && poll.revents & libc::POLLERR != 0 {
            return Err(CliError::stdout(&io::ErrorKind::BrokenPipe.into()));
        }
        Ok(())
    }
}
