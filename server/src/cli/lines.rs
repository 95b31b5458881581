//! Lines: a file or pipe cut into lines, and lines packed into batches.
//!
//! **Invariants**
//! - A line is what stands before a newline, byte for byte; the last one may lack its newline.
//! - A batch is cut at [`BATCH_RECORDS`] records or [`BATCH_BYTES`] bytes, and, unless the input is
//!   *steady*, where the input pauses for [`PAUSE`]: a slow pipe's records don't wait for more.
//! - A steady input gives the same batches each time: an idempotent producer's retry depends on it.
//! - Memory is bounded by the longest line allowed and a few blocks.
//!
//! **Not here**: what a line means (`input`, `ndjson`).

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::Duration;

use sealog_frame::BatchBuilder;

use super::exit::CliError;
use super::signals::Signals;

/// Records after which a batch is cut.
pub(super) const BATCH_RECORDS: usize = 4096;
/// Payload bytes after which a batch is cut.
pub(super) const BATCH_BYTES: u64 = 256 << 10;
const PAUSE: Duration = Duration::from_millis(5);
/// How long a wait for input goes on before it looks for a signal.
const SIGNAL_WAIT: Duration = Duration::from_millis(100);
const BLOCK_BYTES: usize = 64 << 10;
const BLOCKS_AHEAD: usize = 16;

/// Lines on their way into batches.
pub(super) struct LineInput {
    name: String,
    blocks: Receiver<io::Result<Vec<u8>>>,
    block: Vec<u8>,
    at: usize,
    /// The beginning of a line whose end has not come yet.
    partial: Vec<u8>,
    /// A whole line that did not fit the batch before.
    held: bool,
    line_max: usize,
    steady: bool,
    lines: u64,
    bytes: u64,
    ended: bool,
    signals: Signals,
}

enum Next {
    Line,
    Pause,
    End,
}

impl LineInput {
    /// Opens a file, or standard input, and begins to read ahead.
    pub(super) fn open(
        path: Option<&Path>,
        line_max: usize,
        steady: bool,
        signals: Signals,
    ) -> Result<Self, CliError> {
        let path = path.filter(|path| path.as_os_str() != "-");
        let name = path.map_or("standard input".to_owned(), |path| {
            path.display().to_string()
        });
        let source: Box<dyn Read + Send> = match path {
            None => Box::new(io::stdin()),
            Some(path) => Box::new(open_file(path)?),
        };
        let mut input = Self::new(name, source, line_max, steady);
        input.signals = signals;
        Ok(input)
    }

    fn new(name: String, source: Box<dyn Read + Send>, line_max: usize, steady: bool) -> Self {
        let (sender, blocks) = sync_channel(BLOCKS_AHEAD);
        // Reading ahead overlaps the pipe with framing, and lets a pause be noticed.
        std::thread::spawn(move || read_ahead(source, &sender));
        Self {
            name,
            blocks,
            block: Vec::new(),
            at: 0,
            partial: Vec::new(),
            held: false,
            line_max,
            steady,
            lines: 0,
            bytes: 0,
            ended: false,
            signals: Signals::default(),
        }
    }

    /// Bytes taken so far.
    pub(super) fn bytes_read(&self) -> u64 {
        self.bytes
    }

    /// Pushes lines by `push` until a batch is full; `false` when there was none left.
    pub(super) fn fill(
        &mut self,
        builder: &mut BatchBuilder,
        push: impl Fn(&[u8], &mut BatchBuilder) -> Result<(), CliError>,
    ) -> Result<bool, CliError> {
        self.signals.check()?;
        while builder.len() < BATCH_RECORDS && builder.metered_bytes() < BATCH_BYTES {
            match self.next(!builder.is_empty())? {
                Next::Line => {}
                Next::Pause => break,
                Next::End => return Ok(!builder.is_empty()),
            }
            let before = builder.len();
            match push(&self.partial, builder) {
                Ok(()) => {
                    self.partial.clear();
                    self.held = false;
                }
                // It may fit an empty batch; if not, the next call says so.
                Err(_) if before > 0 => {
                    self.held = true;
                    break;
                }
                Err(error) => return Err(error.at(self.place())),
            }
        }
        Ok(true)
    }

    fn place(&self) -> String {
        format!("{} line {}", self.name, self.lines)
    }

    /// Puts the next whole line into `partial`.
    fn next(&mut self, may_pause: bool) -> Result<Next, CliError> {
        if self.held {
            return Ok(Next::Line);
        }
        loop {
            let rest = self.block.get(self.at..).unwrap_or_default();
            let newline = rest.iter().position(|byte| *byte == b'\n');
            let taken = newline.unwrap_or(rest.len());
            let length = self.partial.len() + taken;
            if length > self.line_max {
                self.lines += 1;
                let text = format!(
                    "more than {length} bytes, over the limit of {}",
                    self.line_max
                );
                return Err(CliError::refused("OverLimit", text).at(self.place()));
            }
            self.partial.extend_from_slice(&rest[..taken]);
            self.at += taken;
            if newline.is_some() {
                self.at += 1;
                self.lines += 1;
                return Ok(Next::Line);
            }
            match self.next_block(may_pause && !self.steady)? {
                Next::Line => {}
                Next::Pause => return Ok(Next::Pause),
                Next::End if self.partial.is_empty() => return Ok(Next::End),
                Next::End => {
                    self.lines += 1;
                    return Ok(Next::Line);
                }
            }
        }
    }

    /// Takes the next block; `Next::Line` when there is one.
    fn next_block(&mut self, may_pause: bool) -> Result<Next, CliError> {
        if self.ended {
            return Ok(Next::End);
        }
        let wait = if may_pause { PAUSE } else { SIGNAL_WAIT };
        let block = loop {
            match self.blocks.recv_timeout(wait) {
                Ok(block) => break Some(block),
                Err(RecvTimeoutError::Timeout) if may_pause => return Ok(Next::Pause),
                Err(RecvTimeoutError::Timeout) => self.signals.check()?,
                Err(RecvTimeoutError::Disconnected) => break None,
            }
        };
        match block {
            Some(Ok(block)) => {
                self.bytes += block.len() as u64;
                (self.block, self.at) = (block, 0);
                Ok(Next::Line)
            }
            Some(Err(error)) => Err(CliError::io(&format!("reading {}", self.name), &error)),
            None => {
                (self.ended, self.at) = (true, 0);
                self.block.clear();
                Ok(Next::End)
            }
        }
    }
}

/// A file to read; a missing one is not found, a directory is none.
pub(super) fn open_file(path: &Path) -> Result<File, CliError> {
    let failed = |error: io::Error| CliError::file("opening", path, &error);
    let file = File::open(path).map_err(failed)?;
    if file.metadata().map_err(failed)?.is_dir() {
        return Err(failed(io::ErrorKind::IsADirectory.into()));
    }
    Ok(file)
}

fn read_ahead(
    mut source: Box<dyn Read + Send>,
    blocks: &std::sync::mpsc::SyncSender<io::Result<Vec<u8>>>,
) {
    loop {
        let mut block = vec![0; BLOCK_BYTES];
        let sent = match source.read(&mut block) {
            Ok(0) => return,
            Ok(count) => {
                block.truncate(count);
                blocks.send(Ok(block))
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => {
                let _ = blocks.send(Err(error));
                return;
            }
        };
        if sent.is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests;
