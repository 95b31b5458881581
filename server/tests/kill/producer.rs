//! Producer: an idempotent producer of one stream that remembers what it was told.
//!
//! **Invariants**
//! - It sends one request at a time, and the same again until it is acknowledged.

use std::net::SocketAddr;

use super::ask;
use super::wire::{Answer, Request, Wire};

pub struct Producer {
    pub stream: String,
    id: &'static str,
    /// Requests that were acknowledged: the next one's sequence.
    next: u64,
    /// The one after was sent, and what became of it is not known.
    sent: bool,
    /// Highest offset that it was told.
    pub end: String,
    /// Requests that a kill cut off, and how many of them turned out to be stored.
    pub unclear: u64,
    pub unclear_stored: u64,
}

impl Producer {
    pub fn new(stream: &str, id: &'static str) -> Self {
        Self {
            stream: stream.to_owned(),
            id,
            next: 0,
            sent: false,
            end: String::new(),
            unclear: 0,
            unclear_stored: 0,
        }
    }

    fn payload(&self, sequence: u64) -> String {
        let padding = "x".repeat((sequence % 7 * 40) as usize);
        format!("{} {sequence} {padding}", self.id)
    }

    fn request(&self, sequence: u64) -> Request {
        Request::plain("POST", &self.stream)
            .with("Content-Type", "text/plain")
            .with("Producer-Id", self.id)
            .with("Producer-Epoch", "0")
            .with("Producer-Seq", sequence.to_string())
            .body(format!("{}\n", self.payload(sequence)).into_bytes())
    }

    fn acknowledged(&mut self, answer: &Answer) {
        let place = answer.header("producer-seq");
        assert_eq!(place, Some(&*self.next.to_string()), "{answer:?}");
        let end = answer.next().to_owned();
        assert!(end > self.end, "{}: {end} after {}", self.id, self.end);
        self.end = end;
        self.next += 1;
        self.sent = false;
    }

    /// Sends until the server is gone; how many were acknowledged.
    pub fn run(&mut self, address: SocketAddr) -> u64 {
        let begun = self.next;
        let Some(mut wire) = Wire::try_connect(address) else {
            return 0;
        };
        loop {
            self.sent = true;
            let Ok(answer) = ask(&mut wire, &self.request(self.next)) else {
                self.unclear += 1;
                return self.next - begun;
            };
            assert_eq!(answer.status, 200, "{} {}: {answer:?}", self.id, self.next);
            self.acknowledged(&answer);
        }
    }

    /// After a start: the last that was acknowledged is known, the next is taken.
    pub fn come_back(&mut self, address: SocketAddr) {
        let mut wire = Wire::connect(address);
        if let Some(last) = self.next.checked_sub(1) {
            let again = ask(&mut wire, &self.request(last)).unwrap();
            assert_eq!(again.status, 204, "{} {last} again: {again:?}", self.id);
            assert!(
                again.next() >= &*self.end,
                "{} after {}",
                again.next(),
                self.end
            );
        }
        let answer = ask(&mut wire, &self.request(self.next)).unwrap();
        let stored = self.sent && answer.status == 204;
        assert!(
            stored || answer.status == 200,
            "{} {}: {answer:?}",
            self.id,
            self.next
        );
        if stored {
            // It had come through: the one behind it is the next.
            self.unclear_stored += 1;
            self.next += 1;
            self.sent = false;
            let answer = ask(&mut wire, &self.request(self.next)).unwrap();
            assert_eq!(answer.status, 200, "{} {}: {answer:?}", self.id, self.next);
            self.acknowledged(&answer);
            return;
        }
        self.acknowledged(&answer);
    }

    /// What it sent is among the lines once, in order.
    pub fn check(&self, lines: &[String]) {
        let prefix = format!("{} ", self.id);
        let own = lines.iter().filter(|line| line.starts_with(&prefix));
        let expected = (0..self.next).map(|sequence| self.payload(sequence));
        assert!(
            own.eq(expected.collect::<Vec<_>>().iter()),
            "{} of {}",
            self.id,
            self.stream
        );
    }
}
