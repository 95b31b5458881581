//! Http: a server of Durable Streams, spoken to over HTTP/1.1: a connection a client, an append a request.
//!
//! **Invariants**
//! - An append counts when its answer is 200 or 204; any other ends the run with the server's text.
//! - What is the same in every request is made before the clock starts.
//!
//! **Not here**: sockets (`wire`), answers (`answer`).

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::answer::parse;
use super::wire::{Answers, Wire, WireShare, dial};
use crate::Result;
use crate::generator::{PayloadPool, Plan, Share, Target};
use crate::load::feed_names;
use crate::process::cpu_time_of;

/// A server of Durable Streams.
pub struct HttpTarget {
    address: SocketAddr,
    /// Its process, if this one started it.
    pid: Option<u32>,
    /// Appends carry a producer's headers.
    producers: bool,
    /// Streams of each run have names of their own.
    run: AtomicU64,
}

impl HttpTarget {
    /// The one that listens at `address`; appends carry a producer's headers if `producers`.
    pub fn new(address: SocketAddr, pid: Option<u32>, producers: bool) -> Self {
        Self {
            address,
            pid,
            producers,
            run: AtomicU64::new(0),
        }
    }

    /// Whether it answers.
    pub fn is_up(&self) -> bool {
        let asked = request("GET", "/v1/stream/none", "");
        exchange(self.address, &asked).is_ok()
    }

    /// The streams of the run that was made ready last.
    fn streams(&self, count: usize) -> Vec<String> {
        let run = self.run.load(Ordering::Relaxed);
        let prefix = format!("load-{}-{run}", std::process::id());
        feed_names(&prefix, count)
    }
}

impl Target for HttpTarget {
    fn empty(&self, plan: &Plan) -> Result<()> {
        let old = self.streams(plan.spec.clients);
        let new = self.run.load(Ordering::Relaxed) + 1;
        for stream in old.iter().filter(|_| new > 1) {
            exchange(self.address, &request("DELETE", &path(stream), ""))?;
        }
        self.run.store(new, Ordering::Relaxed);
        for stream in self.streams(plan.spec.clients) {
            let kind = "Content-Type: application/octet-stream\r\n";
            let (status, text) = exchange(self.address, &request("PUT", &path(&stream), kind))?;
            if status != 201 {
                return Err(format!("{stream} was not made: {status} {text}").into());
            }
        }
        Ok(())
    }

    fn connect<'a>(
        &'a self,
        plan: &Plan,
        pool: &'a PayloadPool,
        clients: Range<usize>,
    ) -> Result<Box<dyn Share + Send + 'a>> {
        if plan.spec.records > 1 || plan.spec.keyed {
            return Err("an append over HTTP is one record without a key".into());
        }
        let streams = self.streams(plan.spec.clients);
        let mut dialled = Vec::new();
        for client in clients {
            let http = Http::new(&streams[client], plan.spec.record_bytes, self.producers);
            dialled.push((dial(self.address)?, http));
        }
        Ok(Box::new(WireShare::new(pool, dialled)?))
    }

    fn server_cpu(&self) -> Option<Duration> {
        cpu_time_of(self.pid?)
    }
}

/// One client's side.
struct Http {
    head: Vec<u8>,
    /// The producer's next sequence, if there is a producer.
    sequence: Option<u64>,
}

impl Http {
    fn new(stream: &str, bytes: usize, producers: bool) -> Self {
        let mut headers =
            format!("Content-Type: application/octet-stream\r\nContent-Length: {bytes}\r\n");
        if producers {
            headers.push_str("Producer-Id: bench\r\nProducer-Epoch: 0\r\n");
        }
        let mut head = request("POST", &path(stream), &headers).into_bytes();
        head.truncate(head.len() - 2);
        Self {
            head,
            sequence: producers.then_some(0),
        }
    }
}

impl Wire for Http {
    fn append(&mut self, pool: &PayloadPool, n: u64, out: &mut Vec<u8>) -> Result<()> {
        out.extend_from_slice(&self.head);
        if let Some(sequence) = &mut self.sequence {
            write!(out, "Producer-Seq: {sequence}\r\n")?;
            *sequence += 1;
        }
        out.extend_from_slice(b"\r\n");
        out.extend_from_slice(pool.payload(n));
        Ok(())
    }

    fn answers(&mut self, bytes: &[u8], _: &mut Vec<u8>) -> Result<Answers> {
        let mut answers = Answers::default();
        while let Some((status, text, used)) = parse(&bytes[answers.used..])? {
            if !matches!(status, 200 | 204) {
                return Err(format!("the server answered {status} {text}").into());
            }
            answers.acks += 1;
            answers.used += used;
        }
        Ok(answers)
    }
}

/// Where a stream is.
pub fn path(stream: &str) -> String {
    format!("/v1/stream/{stream}")
}

/// A request without a body; `headers` end with a line break each.
pub fn request(method: &str, path: &str, headers: &str) -> String {
    format!("{method} {path} HTTP/1.1\r\nHost: sealog\r\n{headers}\r\n")
}

/// Asks on a connection of its own; status and text of the answer.
///
/// # Errors
/// There is no answer.
pub fn exchange(address: SocketAddr, request: &str) -> Result<(u16, String)> {
    let mut stream: TcpStream = dial(address)?;
    stream.write_all(request.as_bytes())?;
    let (mut input, mut chunk) = (Vec::new(), [0; 4096]);
    loop {
        if let Some((status, text, _)) = parse(&input)? {
            return Ok((status, text));
        }
        match stream.read(&mut chunk)? {
            0 => return Err("the server closed the connection".into()),
            length => input.extend_from_slice(&chunk[..length]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_carry_the_producers_sequence() {
        let pool = PayloadPool::new(4, 1);
        let mut http = Http::new("s", 4, true);
        let mut out = Vec::new();
        for n in 0..2 {
            http.append(&pool, n, &mut out).expect("framed");
        }
        let text = String::from_utf8_lossy(&out);
        assert_eq!(text.matches("POST /v1/stream/s HTTP/1.1").count(), 2);
        for n in 0..2 {
            assert!(
                text.contains(&format!("Producer-Seq: {n}\r\n\r\n")),
                "{text}"
            );
        }
    }
}
