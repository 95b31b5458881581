//! Fan-out: one stream followed by many over server-sent events; how long each message takes to each of them.
//!
//! **Invariants**
//! - Messages are sent when they are due, and their time runs from then: a slow answer to the writer hides nothing.
//! - Every reader of ours has every message once, or the run is an error. A peer's reader that doesn't within ten
//!   seconds of the last counts as one that has the message then.
//! - The first second isn't measured.
//!
//! **Not here**: the form of events: a message ends with a byte that stands nowhere else in what a server says.

use std::time::{Duration, Instant};

use serde_json::json;

use super::crowd::{Crowd, SILENCE_MAX};
use super::parts::{Column, Part, Run, Want};
use super::sides::Side;
use super::{Measure, Options};
use crate::Result;
use crate::compare::peers::Peer;
use crate::stats::Latencies;
use crate::targets::answer::{head, parse};
use crate::targets::http::request;
use crate::targets::wire::POLL_MAX;

/// Longest wait for messages, from when the last of them is due.
const LATE_MAX: Duration = Duration::from_secs(10);
/// Messages a second.
const PER_SECOND: u32 = 25;
/// Bytes of a message.
const MESSAGE_BYTES: usize = 100;
/// What it ends with: neither heads, nor lengths of chunks, nor control events have it.
const END: u8 = b'~';
/// What a follower is told when it has all there is.
const CAUGHT_UP: &[u8] = b"upToDate";
/// What may be told before that.
const HELLO_BYTES_MAX: usize = 64 << 10;

/// What is measured.
pub static PART: Part = Part {
    name: "fan-out",
    columns: &[
        Column::time("p50 us"),
        Column::time("p99 us"),
        Column::time("p99.9 us"),
        Column::rate("% delivered"),
        Column::time("server CPU us/delivery"),
    ],
    wants: &[
        Want::limit(0, Some(Peer::DurableStreams), 0.5),
        Want::limit(1, Some(Peer::DurableStreams), 0.5),
        Want::goal(0, Some(Peer::DurableStreamsNode), 0.5),
        Want::goal(1, Some(Peer::DurableStreamsNode), 0.5),
    ],
};

/// Many readers of one stream.
pub struct FanOut<'a>(pub &'a Options);

impl Measure for FanOut<'_> {
    fn part(&self) -> &'static Part {
        &PART
    }

    fn title(&self) -> String {
        let Options {
            subscribers,
            seconds,
            ..
        } = self.0;
        format!(
            "{subscribers} followers, {PER_SECOND} messages/s of {MESSAGE_BYTES} B for {seconds} s, from sent to received"
        )
    }

    fn run(&mut self, side: &mut Side) -> Result<Run> {
        let readers = self.0.subscribers;
        let path = side.create("text/plain")?;
        let mut crowd = Crowd::dial(side.address, readers + 1)?;
        subscribe(&mut crowd, readers, &path)?;
        let warmup = PER_SECOND as usize;
        let count = warmup + (self.0.seconds * f64::from(PER_SECOND)) as usize;
        let mut broadcast = Broadcast {
            request: append(&path),
            count,
            warmup,
            sent: 0,
            start: Instant::now(),
            got: vec![0; readers],
            missing: readers * count,
            latencies: Latencies::new(),
        };
        let cpu = side.cpu();
        broadcast.run(&mut crowd)?;
        let cpu = side.cpu().saturating_sub(cpu).as_secs_f64();
        let (all, missing) = (readers * count, broadcast.missing);
        if missing > 0 && side.is_own() {
            return Err(format!("{missing} messages of {all} did not arrive").into());
        }
        broadcast.give_up(Instant::now());
        let latencies = &broadcast.latencies;
        Ok(Run {
            figures: vec![
                latencies.us(0.5),
                latencies.us(0.99),
                latencies.us(0.999),
                100.0 * (all - missing) as f64 / all as f64,
                cpu * 1e6 / (all - missing) as f64,
            ],
            acks: 0,
            data: json!({ "missing": missing, "latency": latencies.json() }),
        })
    }
}

/// The append of a message.
fn append(path: &str) -> Vec<u8> {
    let headers = format!("Content-Type: text/plain\r\nContent-Length: {MESSAGE_BYTES}\r\n");
    let mut request = request("POST", path, &headers).into_bytes();
    request.extend_from_slice(&[b'm'; MESSAGE_BYTES - 1]);
    request.push(END);
    request
}

/// Has the first `readers` of the crowd follow the stream from now; returns when all of them do.
fn subscribe(crowd: &mut Crowd, readers: usize, path: &str) -> Result<()> {
    let asked = request(
        "GET",
        &format!("{path}?offset=now&live=sse"),
        "Accept: text/event-stream\r\n",
    );
    for who in 0..readers {
        crowd.send(who, |out| out.extend_from_slice(asked.as_bytes()))?;
    }
    let start = Instant::now();
    let mut hellos: Vec<Vec<u8>> = vec![Vec::new(); readers];
    let (mut open, mut ready) = (readers, Vec::new());
    while open > 0 {
        crowd.wait(POLL_MAX, &mut ready)?;
        for &who in &ready {
            let hello = &mut hellos[who];
            let was = is_caught_up(hello)?;
            hello.extend_from_slice(crowd.read(who)?);
            open -= usize::from(!was && is_caught_up(hello)?);
            if hello.len() > HELLO_BYTES_MAX {
                return Err("a follower of an empty stream is told too much".into());
            }
        }
        if start.elapsed() > SILENCE_MAX {
            return Err(format!("{open} followers were not told that they are up to date").into());
        }
    }
    Ok(())
}

/// Whether a follower that was told this has all there is.
fn is_caught_up(hello: &[u8]) -> Result<bool> {
    match head(hello)? {
        Some(head) if head.status == 200 => {
            let events = &hello[head.bytes..];
            Ok(events.windows(CAUGHT_UP.len()).any(|at| at == CAUGHT_UP))
        }
        Some(head) => Err(format!("a follower was answered {}", head.status).into()),
        None => Ok(false),
    }
}

/// Messages on their way.
struct Broadcast {
    request: Vec<u8>,
    count: usize,
    /// The first so many aren't measured.
    warmup: usize,
    /// How many were sent.
    sent: usize,
    /// When the first was due.
    start: Instant,
    /// How many each reader has.
    got: Vec<usize>,
    /// How many have yet to come, of all readers.
    missing: usize,
    latencies: Latencies,
}

impl Broadcast {
    fn run(&mut self, crowd: &mut Crowd) -> Result<()> {
        let writer = self.got.len();
        self.start = Instant::now();
        let end = self.due(self.count) + LATE_MAX;
        let (mut ready, mut answer, mut is_answered) = (Vec::new(), Vec::new(), true);
        while self.missing > 0 || !is_answered {
            let mut wait = POLL_MAX;
            if self.sent < self.count && is_answered {
                let due = self.due(self.sent);
                wait = due.saturating_duration_since(Instant::now());
                if wait.is_zero() {
                    let request = &self.request;
                    crowd.send(writer, |out| out.extend_from_slice(request))?;
                    self.sent += 1;
                    is_answered = false;
                }
            }
            crowd.wait(wait, &mut ready)?;
            for &who in &ready {
                let bytes = crowd.read(who)?;
                if who < writer {
                    self.received(who, bytes, Instant::now())?;
                    continue;
                }
                answer.extend_from_slice(bytes);
                if let Some((status, text, used)) = parse(&answer)? {
                    if !matches!(status, 200 | 204) {
                        return Err(format!("an append was answered {status} {text}").into());
                    }
                    answer.drain(..used);
                    is_answered = true;
                }
            }
            // Events that only keep connections alive go on for ever.
            if Instant::now() > end {
                break;
            }
        }
        Ok(())
    }

    /// When a message is due.
    fn due(&self, number: usize) -> Instant {
        self.start + Duration::from_secs(1) * number as u32 / PER_SECOND
    }

    /// Takes what came to reader `who`.
    fn received(&mut self, who: usize, bytes: &[u8], now: Instant) -> Result<()> {
        for _ in bytes.iter().filter(|byte| **byte == END) {
            let number = self.got[who];
            if number >= self.sent {
                return Err("a reader has a message that was not sent, or one twice".into());
            }
            self.has(number, now);
            self.got[who] += 1;
            self.missing -= 1;
        }
        Ok(())
    }

    /// Counts what has not come as if it came now.
    fn give_up(&mut self, now: Instant) {
        for who in 0..self.got.len() {
            for number in self.got[who]..self.count {
                self.has(number, now);
            }
        }
    }

    fn has(&mut self, number: usize, now: Instant) {
        if number >= self.warmup {
            let took = now.saturating_duration_since(self.due(number));
            self.latencies.record(took);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn follower_is_caught_up_when_it_is_told_so() {
        let mut told = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n".to_vec();
        assert!(!is_caught_up(&told).expect("HTTP"));
        told.extend_from_slice(b"\r\nevent: control\ndata: {\"streamNextOffset\":\"0_0\"");
        assert!(!is_caught_up(&told).expect("HTTP"));
        told.extend_from_slice(b",\"upToDate\":true}\n\n");
        assert!(is_caught_up(&told).expect("HTTP"));
        assert!(is_caught_up(b"HTTP/1.1 404 Not Found\r\n\r\n").is_err());
    }

    #[test]
    fn messages_are_counted_however_they_are_cut_and_only_those_that_were_sent() {
        let now = Instant::now();
        let mut broadcast = Broadcast {
            request: append("/s"),
            count: 3,
            warmup: 1,
            sent: 2,
            start: now,
            got: vec![0; 2],
            missing: 6,
            latencies: Latencies::new(),
        };
        assert_eq!(broadcast.request.iter().filter(|b| **b == END).count(), 1);
        let later = broadcast.due(1) + Duration::from_millis(1);
        for piece in ["data:mm", "m~\n\nevent: data\ndata:mmm~", "\n\n"] {
            let received = broadcast.received(1, piece.as_bytes(), later);
            received.expect("both were sent");
        }
        assert_eq!((broadcast.got[1], broadcast.missing), (2, 4));
        assert_eq!(broadcast.latencies.count(), 1);
        assert!(broadcast.latencies.us(1.0) < 1100.0);
        assert!(broadcast.received(1, b"m~", later).is_err());
        // One of the first reader's comes under the warm-up.
        broadcast.give_up(broadcast.due(3));
        assert_eq!(broadcast.latencies.count(), 1 + 1 + 2);
    }
}
