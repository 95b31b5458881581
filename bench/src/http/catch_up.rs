//! Catch-up: a long stream read whole, from its start until the server says that there is no more.
//!
//! **Invariants**
//! - A run counts every byte: one too few or too many is an error.
//! - Readers ask for what comes next only when they have all of what they asked for.
//!
//! **Not here**: catch-up through the native protocol (`crate::read`).

use std::time::{Duration, Instant};

use serde_json::json;

use super::crowd::{Crowd, SILENCE_MAX, Work};
use super::parts::{Column, Part, Run, Want};
use super::sides::Side;
use super::{Measure, Options};
use crate::Result;
use crate::compare::peers::Peer;
use crate::prng::Prng;
use crate::stats::mb_per_s;
use crate::targets::answer::{Head, head};
use crate::targets::http::request;
use crate::targets::wire::POLL_MAX;

/// Body of an append.
const BODY_BYTES: usize = 64 << 10;
/// Connections that append the history.
const WRITERS: usize = 8;
/// Readers of a run with several.
pub const READERS: usize = 4;

/// What one reader gets.
pub static ALONE: Part = Part {
    name: "catch-up",
    columns: &COLUMNS,
    wants: &WANTS,
};
/// What several readers get together.
pub static TOGETHER: Part = Part {
    name: "catch-up-4",
    columns: &COLUMNS,
    wants: &WANTS,
};
static COLUMNS: [Column; 3] = [
    Column::rate("MB/s"),
    Column::time("server CPU ms/GB"),
    Column::time("requests"),
];
static WANTS: [Want; 2] = [
    Want::limit(0, Some(Peer::DurableStreams), 1.0),
    Want::goal(0, Some(Peer::DurableStreamsNode), 1.0),
];

/// One stream of each side, read by so many readers at once.
pub struct CatchUp<'a> {
    pub options: &'a Options,
    pub readers: usize,
}

impl CatchUp<'_> {
    fn bytes(&self) -> u64 {
        self.options.mib << 20
    }

    /// The path of the history, which is appended if it isn't there.
    fn history(&self, side: &mut Side) -> Result<String> {
        if let Some(path) = &side.history {
            return Ok(path.clone());
        }
        let path = side.create("application/octet-stream")?;
        let mut body = vec![0; BODY_BYTES];
        Prng::new(1).fill(&mut body);
        let headers = format!(
            "Content-Type: application/octet-stream\r\nContent-Length: {}\r\n",
            body.len()
        );
        let mut request = request("POST", &path, &headers).into_bytes();
        request.extend_from_slice(&body);
        let left = self.bytes() / BODY_BYTES as u64;
        Crowd::dial(side.address, WRITERS)?.work(&mut Appends { request, left })?;
        side.history = Some(path.clone());
        Ok(path)
    }
}

impl Measure for CatchUp<'_> {
    fn part(&self) -> &'static Part {
        match self.readers {
            1 => &ALONE,
            _ => &TOGETHER,
        }
    }

    fn title(&self) -> String {
        let (mib, readers) = (self.options.mib, self.readers);
        format!("{mib} MiB in appends of 64 KiB read whole, readers: {readers}")
    }

    fn prepare(&mut self, side: &mut Side) -> Result<()> {
        self.history(side).map(|_| ())
    }

    fn run(&mut self, side: &mut Side) -> Result<Run> {
        let path = self.history(side)?;
        let mut crowd = Crowd::dial(side.address, self.readers)?;
        let mut readers: Vec<Reader> = (0..self.readers).map(|_| Reader::new(&path)).collect();
        let cpu = side.cpu();
        let wall = read_all(&mut crowd, &mut readers)?;
        let cpu = side.cpu().saturating_sub(cpu).as_secs_f64();
        for reader in &readers {
            if reader.content != self.bytes() {
                let (got, all) = (reader.content, self.bytes());
                return Err(format!("{got} bytes were read of {all}").into());
            }
        }
        let bytes = self.bytes() * self.readers as u64;
        let requests: u64 = readers.iter().map(|reader| reader.requests).sum();
        Ok(Run {
            figures: vec![
                mb_per_s(bytes, wall.as_secs_f64()),
                cpu * 1e3 / (bytes as f64 / 1e9),
                requests as f64 / self.readers as f64,
            ],
            acks: 0,
            data: json!({ "wall_s": wall.as_secs_f64(), "requests": requests }),
        })
    }
}

/// Lets all of them read to the end; how long that took.
fn read_all(crowd: &mut Crowd, readers: &mut [Reader]) -> Result<Duration> {
    let start = Instant::now();
    for (who, reader) in readers.iter().enumerate() {
        crowd.send(who, |out| reader.ask(out))?;
    }
    let (mut open, mut heard, mut ready) = (readers.len(), start, Vec::new());
    while open > 0 {
        crowd.wait(POLL_MAX, &mut ready)?;
        for &who in &ready {
            heard = Instant::now();
            let reader = &mut readers[who];
            match reader.take(crowd.read(who)?)? {
                Step::Waits => {}
                Step::Asks => crowd.send(who, |out| reader.ask(out))?,
                Step::Ends => open -= 1,
            }
        }
        if heard.elapsed() > SILENCE_MAX {
            return Err(format!("nothing more came for {SILENCE_MAX:?}").into());
        }
    }
    Ok(start.elapsed())
}

/// What a reader does next.
#[derive(Debug, PartialEq, Eq)]
enum Step {
    /// There is more of the answer to come.
    Waits,
    /// There is more of the stream.
    Asks,
    /// It has all.
    Ends,
}

/// Where a reader is.
struct Reader {
    path: String,
    offset: String,
    /// Of a head that isn't whole.
    input: Vec<u8>,
    /// Of the answer whose body is on its way.
    head: Option<Head>,
    content: u64,
    requests: u64,
}

impl Reader {
    fn new(path: &str) -> Self {
        Self {
            path: path.to_owned(),
            offset: "-1".to_owned(),
            input: Vec::new(),
            head: None,
            content: 0,
            requests: 0,
        }
    }

    fn ask(&self, out: &mut Vec<u8>) {
        let path = format!("{}?offset={}", self.path, self.offset);
        out.extend_from_slice(request("GET", &path, "").as_bytes());
    }

    /// Takes a piece of an answer.
    fn take(&mut self, bytes: &[u8]) -> Result<Step> {
        if self.head.is_none() {
            self.input.extend_from_slice(bytes);
            let Some(head) = head(&self.input)? else {
                return Ok(Step::Waits);
            };
            if head.status != 200 {
                let text = String::from_utf8_lossy(&self.input);
                return Err(format!("the server answered {text}").into());
            }
            let input = std::mem::take(&mut self.input);
            let body = &input[head.bytes..];
            self.head = Some(head);
            return self.take_body(body);
        }
        self.take_body(bytes)
    }

    fn take_body(&mut self, bytes: &[u8]) -> Result<Step> {
        let Some(head) = &mut self.head else {
            return Ok(Step::Waits);
        };
        let content = &mut self.content;
        let used = head
            .body
            .take(bytes, &mut |piece| *content += piece.len() as u64)?;
        if used < bytes.len() {
            return Err("the server says more than was asked".into());
        }
        if !head.body.is_whole() {
            return Ok(Step::Waits);
        }
        self.requests += 1;
        let ends = head.is_up_to_date;
        let next = head.next_offset.take();
        self.offset = next.ok_or("an answer without Stream-Next-Offset")?;
        self.head = None;
        Ok(if ends { Step::Ends } else { Step::Asks })
    }
}

/// The same append, so many times.
struct Appends {
    request: Vec<u8>,
    left: u64,
}

impl Work for Appends {
    fn ask(&mut self, _: usize, out: &mut Vec<u8>) -> bool {
        if self.left == 0 {
            return false;
        }
        self.left -= 1;
        out.extend_from_slice(&self.request);
        true
    }

    fn answered(&mut self, _: usize, answer: (u16, &str), _: Duration) -> Result<()> {
        match answer {
            (200 | 204, _) => Ok(()),
            (status, text) => Err(format!("an append was answered {status} {text}").into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reader_follows_offsets_until_it_is_up_to_date() {
        let mut reader = Reader::new("/v1/stream/s");
        let asked = |reader: &Reader| {
            let mut out = Vec::new();
            reader.ask(&mut out);
            String::from_utf8(out).expect("text")
        };
        assert!(asked(&reader).starts_with("GET /v1/stream/s?offset=-1 "));
        let first = b"HTTP/1.1 200 OK\r\nStream-Next-Offset: 0_5\r\nContent-Length: 5\r\n\r\nhello";
        for byte in &first[..first.len() - 1] {
            assert_eq!(reader.take(&[*byte]).expect("HTTP"), Step::Waits);
        }
        assert_eq!(reader.take(b"o").expect("HTTP"), Step::Asks);
        assert!(asked(&reader).starts_with("GET /v1/stream/s?offset=0_5 "));
        let last = b"HTTP/1.1 200 OK\r\nStream-Next-Offset: 0_7\r\nStream-Up-To-Date: true\r\n\
                     Transfer-Encoding: chunked\r\n\r\n2\r\nab\r\n0\r\n\r\n";
        assert_eq!(reader.take(last).expect("HTTP"), Step::Ends);
        assert_eq!((reader.content, reader.requests), (7, 2));
    }

    #[test]
    fn reader_refuses_what_it_did_not_ask_for() {
        let refused = |bytes: &[u8]| Reader::new("/s").take(bytes).is_err();
        assert!(refused(b"HTTP/1.1 404 Not Found\r\n\r\n"));
        assert!(refused(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"));
        let long = b"HTTP/1.1 200 OK\r\nStream-Next-Offset: 1\r\nContent-Length: 1\r\n\r\nab";
        assert!(refused(long));
    }
}
