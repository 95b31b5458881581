//! Nats: the NATS protocol, as far as appending to JetStream and awaiting its `PubAck` needs it.
//!
//! **Invariants**
//! - An append counts when its `PubAck` names a sequence; an error in it, `-ERR`, or no responder ends the run.
//!
//! **Not here**: sockets (`wire`).

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::ops::Range;
use std::time::Duration;

use serde_json::{Value, json};

use super::resp::line_end;
use super::wire::{Answers, Wire, WireShare, dial};
use crate::Result;
use crate::generator::{PayloadPool, Plan, Share, Target};
use crate::process::cpu_time_of;

/// Longest message that is believed.
const MESSAGE_BYTES_MAX: usize = 64 << 20;

/// A server that speaks NATS.
pub struct NatsTarget {
    /// Where it listens.
    pub address: SocketAddr,
    /// Its process, if this one started it.
    pub pid: Option<u32>,
    /// Streams that the clients share: its syncs are per stream.
    pub streams: usize,
}

impl NatsTarget {
    /// Whether it answers.
    pub fn is_up(&self) -> bool {
        hello(self.address, "_INBOX.up").is_ok()
    }
}

impl Target for NatsTarget {
    /// Deletes the streams of this benchmark and makes them anew.
    fn empty(&self, _: &Plan) -> Result<()> {
        let mut admin = Admin::connect(self.address)?;
        for stream in 0..self.streams.max(1) {
            let name = stream_name(stream);
            // An error says that it isn't there.
            admin.ask(&format!("STREAM.DELETE.{name}"), &json!({}))?;
            let options = json!({
                "name": name, "subjects": [format!("{name}.>")], "storage": "file",
                "num_replicas": 1, "retention": "limits", "discard": "old",
            });
            let answer = admin.ask(&format!("STREAM.CREATE.{name}"), &options)?;
            if answer.get("error").is_some() || answer.get("config").is_none() {
                return Err(format!("nats made no stream: {answer}").into());
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
        if plan.spec.records > 1 {
            return Err("an append to NATS is one record".into());
        }
        let mut dialled = Vec::new();
        for client in clients {
            let inbox = format!("_INBOX.bench.{client}");
            let stream = stream_name(client % self.streams.max(1));
            let keyed = plan.spec.keyed;
            let socket = hello(self.address, &inbox)?;
            let nats = Nats {
                stream,
                inbox,
                keyed,
            };
            dialled.push((socket, nats));
        }
        Ok(Box::new(WireShare::new(pool, dialled)?))
    }

    fn server_cpu(&self) -> Option<Duration> {
        cpu_time_of(self.pid?)
    }
}

fn stream_name(n: usize) -> String {
    format!("BENCH{n}")
}

/// One client's side.
struct Nats {
    stream: String,
    inbox: String,
    keyed: bool,
}

impl Nats {
    fn put(&self, key: &[u8], payload: &[u8], out: &mut Vec<u8>) {
        out.extend_from_slice(b"PUB ");
        out.extend_from_slice(self.stream.as_bytes());
        out.push(b'.');
        out.extend_from_slice(if self.keyed { key } else { b"r" });
        out.push(b' ');
        out.extend_from_slice(self.inbox.as_bytes());
        // Writing into a vector does not fail.
        let _ = write!(out, " {}\r\n", payload.len());
        out.extend_from_slice(payload);
        out.extend_from_slice(b"\r\n");
    }
}

impl Wire for Nats {
    fn append(&mut self, pool: &PayloadPool, n: u64, out: &mut Vec<u8>) -> Result<()> {
        self.put(pool.key(n), pool.payload(n), out);
        Ok(())
    }

    fn answers(&mut self, bytes: &[u8], out: &mut Vec<u8>) -> Result<Answers> {
        let mut answers = Answers::default();
        while let Some((said, used)) = parse(&bytes[answers.used..])? {
            match said {
                Said::Message { headers: [], body } => {
                    check_ack(body)?;
                    answers.acks += 1;
                }
                Said::Message { headers, .. } => {
                    let headers = String::from_utf8_lossy(headers);
                    return Err(format!("nats refused: {}", headers.trim()).into());
                }
                Said::Ping => out.extend_from_slice(b"PONG\r\n"),
                Said::Other => {}
                Said::Error(text) => return Err(format!("nats refused: {text}").into()),
            }
            answers.used += used;
        }
        Ok(answers)
    }
}

/// A `PubAck` holds `"seq"` and, unless all is well, `"error"`.
fn check_ack(body: &[u8]) -> Result<()> {
    let has = |word: &[u8]| body.windows(word.len()).any(|bytes| bytes == word);
    if has(b"\"seq\"") && !has(b"\"error\"") {
        return Ok(());
    }
    let body = String::from_utf8_lossy(body);
    Err(format!("nats did not store it: {body}").into())
}

/// One whole thing a server says.
#[derive(Debug, PartialEq, Eq)]
enum Said<'a> {
    /// `MSG` or `HMSG`.
    Message { headers: &'a [u8], body: &'a [u8] },
    /// Wants a `PONG`.
    Ping,
    /// `-ERR`.
    Error(&'a str),
    /// `INFO`, `PONG`, `+OK`.
    Other,
}

/// The first thing said in `bytes` and its length, `None` while it isn't whole.
fn parse(bytes: &[u8]) -> Result<Option<(Said<'_>, usize)>> {
    let Some(end) = line_end(bytes) else {
        return Ok(None);
    };
    let head = end + 2;
    let line = std::str::from_utf8(&bytes[..end])?;
    let word = line.split(' ').next().unwrap_or("");
    let bytes_after = |headers: usize, total: usize| {
        if headers > total || total > MESSAGE_BYTES_MAX {
            return Err(format!("nats sent {line:?}"));
        }
        let Some(message) = bytes[head..].get(..total + 2) else {
            return Ok(None);
        };
        let said = Said::Message {
            headers: &message[..headers],
            body: &message[headers..total],
        };
        Ok(Some((said, head + total + 2)))
    };
    let number_back = |n: usize| {
        let number = line.rsplit(' ').nth(n).and_then(|word| word.parse().ok());
        number.ok_or_else(|| format!("nats sent {line:?}"))
    };
    match word {
        "MSG" => Ok(bytes_after(0, number_back(0)?)?),
        "HMSG" => Ok(bytes_after(number_back(1)?, number_back(0)?)?),
        "PING" => Ok(Some((Said::Ping, head))),
        "-ERR" => Ok(Some((Said::Error(line[4..].trim()), head))),
        "INFO" | "PONG" | "+OK" => Ok(Some((Said::Other, head))),
        _ => Err(format!("nats sent {line:?}").into()),
    }
}

/// A connection that is subscribed to `inbox`.
fn hello(address: SocketAddr, inbox: &str) -> Result<TcpStream> {
    let mut stream = dial(address)?;
    let connect =
        r#"CONNECT {"verbose":false,"pedantic":false,"headers":true,"no_responders":true}"#;
    stream.write_all(format!("{connect}\r\nSUB {inbox} 1\r\nPING\r\n").as_bytes())?;
    let mut input = Vec::new();
    while !input.ends_with(b"PONG\r\n") {
        if let Some((Said::Error(text), _)) = parse(&input)? {
            return Err(format!("nats refused: {text}").into());
        }
        read_more(&mut stream, &mut input)?;
    }
    Ok(stream)
}

fn read_more(stream: &mut TcpStream, input: &mut Vec<u8>) -> Result<()> {
    let mut chunk = [0; 16 << 10];
    match stream.read(&mut chunk)? {
        0 => Err("nats closed the connection".into()),
        length => {
            input.extend_from_slice(&chunk[..length]);
            Ok(())
        }
    }
}

/// Questions to JetStream, one at a time.
struct Admin(TcpStream);

impl Admin {
    const INBOX: &'static str = "_INBOX.admin";

    fn connect(address: SocketAddr) -> Result<Self> {
        Ok(Self(hello(address, Self::INBOX)?))
    }

    fn ask(&mut self, what: &str, question: &Value) -> Result<Value> {
        let body = question.to_string();
        let (inbox, length) = (Self::INBOX, body.len());
        let question = format!("PUB $JS.API.{what} {inbox} {length}\r\n{body}\r\n");
        self.0.write_all(question.as_bytes())?;
        let mut input = Vec::new();
        loop {
            let used = match parse(&input)? {
                None => 0,
                Some((Said::Message { headers: [], body }, _)) => {
                    return Ok(serde_json::from_slice(body)?);
                }
                Some((Said::Message { .. }, _)) => return Err("nats has no JetStream".into()),
                Some((Said::Error(text), _)) => return Err(format!("nats refused: {text}").into()),
                Some((Said::Ping, used)) => {
                    self.0.write_all(b"PONG\r\n")?;
                    used
                }
                Some((Said::Other, used)) => used,
            };
            input.drain(..used);
            if used == 0 {
                read_more(&mut self.0, &mut input)?;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nats(keyed: bool) -> Nats {
        Nats {
            stream: "BENCH0".to_owned(),
            inbox: "_INBOX.bench.0".to_owned(),
            keyed,
        }
    }

    fn ack() -> Vec<u8> {
        let body = br#"{"stream":"BENCH0","seq":1}"#;
        let mut ack = format!("MSG _INBOX.bench.0 1 {}\r\n", body.len()).into_bytes();
        ack.extend_from_slice(body);
        ack.extend_from_slice(b"\r\n");
        ack
    }

    #[test]
    fn acks_are_counted_whole_and_pings_are_answered() {
        let mut bytes = b"INFO {}\r\n+OK\r\n".to_vec();
        bytes.extend(ack());
        bytes.extend_from_slice(b"PING\r\nPONG\r\n");
        bytes.extend(ack());
        let whole = bytes.len();
        bytes.extend_from_slice(&ack()[..30]);
        let mut out = Vec::new();
        let answers = nats(false).answers(&bytes, &mut out).expect("acks");
        assert_eq!(
            answers,
            Answers {
                acks: 2,
                used: whole
            }
        );
        assert_eq!(out, b"PONG\r\n");
    }

    #[test]
    fn whole_is_told_from_cut() {
        let ack = ack();
        for cut in 0..ack.len() {
            assert_eq!(parse(&ack[..cut]).expect("no error"), None, "cut {cut}");
        }
        let used = parse(&ack).expect("an ack").map(|(_, used)| used);
        assert_eq!(used, Some(ack.len()));
    }

    #[test]
    fn refusals_are_never_acks() {
        let mut out = Vec::new();
        for (bytes, says) in [
            (&b"-ERR 'Unknown Protocol'\r\n"[..], "Unknown Protocol"),
            (
                b"HMSG _INBOX.bench.0 1 16 16\r\nNATS/1.0 503\r\n\r\n\r\n",
                "503",
            ),
            (
                b"MSG i 1 21\r\n{\"error\":{\"code\":503}}\r\n",
                "did not store",
            ),
            (
                b"MSG i 1 29\r\n{\"seq\":0,\"error\":{\"code\":503}}\r\n",
                "did not store",
            ),
            (b"MSG i 1 x\r\n", "nats sent"),
            (b"HMSG i 1 9 3\r\nabc\r\n", "nats sent"),
            (b"$5\r\n", "nats sent"),
        ] {
            let error = nats(false)
                .answers(bytes, &mut out)
                .expect_err(says)
                .to_string();
            assert!(error.contains(says), "{error}");
        }
    }

    #[test]
    fn append_is_written_as_nats_reads_it() {
        let mut out = Vec::new();
        nats(false).put(b"k1", b"pay", &mut out);
        nats(true).put(b"k1", b"", &mut out);
        let text = "PUB BENCH0.r _INBOX.bench.0 3\r\npay\r\nPUB BENCH0.k1 _INBOX.bench.0 0\r\n\r\n";
        assert_eq!(String::from_utf8_lossy(&out), text);
    }
}
