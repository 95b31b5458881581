//! Read: records out, in the format asked for.
//!
//! **Invariants**
//! - The next answer is asked for before the one at hand is written: disk and pipe overlap.
//! - Two answers are in memory, whatever the size of the feed.
//! - With `payload`, exactly the payload and one newline per record.
//!
//! **Not here**: finding records (the engine).

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::pin::pin;
use std::time::Duration;

use futures_lite::future::poll_once;
use sealog_engine::ids::{CommitNumber, StreamId};
use sealog_engine::{ReadChunk, ReadFrom, ReadRequest};
use sealog_frame::{FrameView, RecordView};

use super::access::{Access, Place, with_access};
use super::args::{Format, ReadArgs};
use super::encode;
use super::exit::CliError;
use super::output::Output;
use super::shapes::{RecordShape, when};
use super::signals::Signals;

/// How long a follower waits before it looks whether its reader is still there.
const FOLLOW_WAIT: Duration = Duration::from_millis(500);

/// Runs `read`.
pub(super) fn run(place: Place, args: &ReadArgs, out: &mut Output) -> Result<(), CliError> {
    let format = match (args.format, out.is_json()) {
        (None | Some(Format::Json), true) => Format::Json,
        (Some(format), true) => {
            let name = format!("{format:?}").to_lowercase();
            return Err(CliError::usage(format!(
                "--json and --format {name} exclude each other"
            )));
        }
        (format, false) => format.unwrap_or(Format::Text),
    };
    if args.fingerprints && format == Format::Payload {
        return Err(CliError::usage(
            "--fingerprints needs --format text or json",
        ));
    }
    let signals = Signals::listen()?;
    with_access(place, false, async |handle| {
        let mut reader = Reader {
            signals,
            format,
            left: args.limit.unwrap_or(u64::MAX),
        };
        reader.run(&handle, args, out).await
    })
}

fn request(args: &ReadArgs) -> ReadRequest {
    let start = &args.start;
    let from = [
        start.from.map(ReadFrom::Sequence),
        start.since.map(ReadFrom::Timestamp),
        start
            .commit
            .map(|number| ReadFrom::Commit(CommitNumber(number))),
        start.tail.map(ReadFrom::Tail),
    ];
    ReadRequest {
        stream: args.stream.map(StreamId),
        fingerprints: args.fingerprints,
        from: from
            .into_iter()
            .flatten()
            .next()
            .unwrap_or(ReadFrom::Sequence(0)),
        wait: if args.follow {
            FOLLOW_WAIT
        } else {
            Duration::ZERO
        },
        ..ReadRequest::new(&args.feed)
    }
}

struct Reader {
    signals: Signals,
    format: Format,
    left: u64,
}

impl Reader {
    async fn run(
        &mut self,
        handle: &Access,
        args: &ReadArgs,
        out: &mut Output,
    ) -> Result<(), CliError> {
        let mut request = request(args);
        // One of this name that is made meanwhile is another feed.
        request.id = Some(handle.feed(&args.feed).await?.id);
        let mut chunk = handle.read(request.clone()).await?;
        loop {
            let idle = chunk.frames.is_empty() && chunk.next == chunk.first;
            let at_tail = chunk.ended || idle || chunk.next >= chunk.tail;
            if chunk.ended || (at_tail && !args.follow) {
                return self.write(&chunk, out);
            }
            request.from = ReadFrom::Sequence(chunk.next);
            let mut next = pin!(handle.read(request.clone()));
            let early = poll_once(&mut next).await;
            self.write(&chunk, out)?;
            if self.left == 0 {
                return Ok(());
            }
            self.signals.check()?;
            if at_tail {
                out.flush()?;
                out.check_reader()?;
            }
            chunk = match early {
                Some(early) => early?,
                None => next.await?,
            };
        }
    }

    fn write(&mut self, chunk: &ReadChunk, out: &mut Output) -> Result<(), CliError> {
        let mut rest = &chunk.frames[..];
        let mut prints = chunk.fingerprints.iter();
        while !rest.is_empty() && self.left > 0 {
            let (frame, after) = FrameView::split_trusted(rest).map_err(|error| {
                CliError::corrupt(format!("records from {}: {error}", chunk.first))
            })?;
            rest = after;
            out.write(|writer| {
                let asked = |record: &RecordView<'_>| {
                    record.sequence >= chunk.first && record.sequence < chunk.next
                };
                for record in frame.records() {
                    let print = prints.next();
                    if !asked(&record) {
                        continue;
                    }
                    if self.left == 0 {
                        break;
                    }
                    self.left -= 1;
                    self.write_record(&record, print, writer)?;
                }
                Ok(())
            })?;
        }
        Ok(())
    }

    fn write_record(
        &self,
        record: &RecordView<'_>,
        print: Option<&[u8; 32]>,
        to: &mut BufWriter<File>,
    ) -> io::Result<()> {
        match self.format {
            Format::Payload => to.write_all(record.payload)?,
            Format::Json => {
                let shape = RecordShape::of(record, print);
                serde_json::to_writer(&mut *to, &shape)?;
            }
            Format::Text => write_text(record, print, to)?,
        }
        to.write_all(b"\n")
    }
}

fn write_text(
    record: &RecordView<'_>,
    print: Option<&[u8; 32]>,
    to: &mut BufWriter<File>,
) -> io::Result<()> {
    write!(to, "{}\t{}\t", record.sequence, when(record.timestamp_ms))?;
    escape(record.key.unwrap_or_default(), to)?;
    to.write_all(b"\t")?;
    escape(record.payload, to)?;
    if record.version != 0 {
        write!(to, "\tversion={}", record.version)?;
    }
    if record.tombstone {
        to.write_all(b"\ttombstone")?;
    }
    for (name, value) in record.headers() {
        to.write_all(b"\theader ")?;
        escape(name, to)?;
        to.write_all(b"=")?;
        escape(value, to)?;
    }
    if let Some(print) = print {
        write!(to, "\tfingerprint={}", encode::hex(print))?;
    }
    Ok(())
}

/// Writes bytes so that they stay on their line: what is not printable UTF-8 as `\n`, `\t`, `\\`, `\xNN`.
fn escape(bytes: &[u8], to: &mut impl Write) -> io::Result<()> {
    for chunk in bytes.utf8_chunks() {
        for c in chunk.valid().chars() {
            match c {
                '\n' => to.write_all(b"\\n")?,
                '\t' => to.write_all(b"\\t")?,
                '\r' => to.write_all(b"\\r")?,
                '\\' => to.write_all(b"\\\\")?,
                c if c.is_control() => write!(to, "{}", c.escape_unicode())?,
                c => to.write_all(c.encode_utf8(&mut [0; 4]).as_bytes())?,
            }
        }
        for byte in chunk.invalid() {
            write!(to, "\\x{byte:02x}")?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escape_odd_bytes_stay_on_one_line() {
        let mut line = Vec::new();
        escape("a\tb\nc\\d\u{7}é\u{9b}".as_bytes(), &mut line).unwrap();
        escape(b"\xff\xc3", &mut line).unwrap();
        let expected = "a\\tb\\nc\\\\d\\u{7}é\\u{9b}\\xff\\xc3";
        assert_eq!(String::from_utf8(line).unwrap(), expected);
    }
}
