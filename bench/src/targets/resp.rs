//! Resp: Redis' protocol, as far as appending to streams needs it.
//!
//! **Invariants**
//! - An error reply ends the run with the server's own text; it never counts as an acknowledgement.
//! - Appends are `XADD key * d PAYLOAD` (and `k KEY` before it if keyed), one key per client.
//!
//! **Not here**: sockets (`wire`).

use std::io::{Read, Write};
use std::net::SocketAddr;
use std::ops::Range;
use std::time::Duration;

use super::wire::{Answers, Wire, WireShare, dial};
use crate::Result;
use crate::generator::{PayloadPool, Plan, Share, Target};
use crate::process::cpu_time_of;

/// Deepest array in a reply.
const DEPTH_MAX: usize = 4;

/// A server that speaks RESP.
pub struct RedisTarget {
    /// Where it listens.
    pub address: SocketAddr,
    /// Its process, if this one started it.
    pub pid: Option<u32>,
}

impl RedisTarget {
    /// Whether it answers.
    pub fn is_up(&self) -> bool {
        command(self.address, &[b"PING"]).is_ok()
    }
}

impl Target for RedisTarget {
    fn empty(&self, _: &Plan) -> Result<()> {
        command(self.address, &[b"FLUSHALL"]).map(|_| ())
    }

    fn connect<'a>(
        &'a self,
        plan: &Plan,
        pool: &'a PayloadPool,
        clients: Range<usize>,
    ) -> Result<Box<dyn Share + Send + 'a>> {
        if plan.spec.records > 1 {
            return Err("an append to Redis is one record".into());
        }
        let mut dialled = Vec::new();
        for client in clients {
            let redis = Redis::new(client, plan.spec.keyed);
            dialled.push((dial(self.address)?, redis));
        }
        Ok(Box::new(WireShare::new(pool, dialled)?))
    }

    fn server_cpu(&self) -> Option<Duration> {
        cpu_time_of(self.pid?)
    }
}

/// One client's side.
struct Redis {
    head: Vec<u8>,
    keyed: bool,
}

impl Redis {
    fn new(client: usize, keyed: bool) -> Self {
        let parts = if keyed { 7 } else { 5 };
        let mut head = format!("*{parts}\r\n").into_bytes();
        put_bulk(b"XADD", &mut head);
        put_bulk(format!("bench:{client}").as_bytes(), &mut head);
        put_bulk(b"*", &mut head);
        Self { head, keyed }
    }

    fn put(&self, key: &[u8], payload: &[u8], out: &mut Vec<u8>) {
        out.extend_from_slice(&self.head);
        if self.keyed {
            put_bulk(b"k", out);
            put_bulk(key, out);
        }
        put_bulk(b"d", out);
        put_bulk(payload, out);
    }
}

impl Wire for Redis {
    fn append(&mut self, pool: &PayloadPool, n: u64, out: &mut Vec<u8>) -> Result<()> {
        self.put(pool.key(n), pool.payload(n), out);
        Ok(())
    }

    fn answers(&mut self, bytes: &[u8], _: &mut Vec<u8>) -> Result<Answers> {
        let mut answers = Answers::default();
        while let Some((reply, used)) = parse(&bytes[answers.used..])? {
            match reply {
                Reply::Bulk(Some(_)) => answers.acks += 1,
                Reply::Error(text) => return Err(format!("redis refused: {text}").into()),
                other => return Err(format!("redis answered {other:?} to XADD").into()),
            }
            answers.used += used;
        }
        Ok(answers)
    }
}

fn put_bulk(bytes: &[u8], out: &mut Vec<u8>) {
    // Formatting machinery would cost more than the copy.
    let mut digits = [0; 20];
    let (mut at, mut rest) = (digits.len(), bytes.len());
    loop {
        at -= 1;
        digits[at] = b'0' + (rest % 10) as u8;
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    out.push(b'$');
    out.extend_from_slice(&digits[at..]);
    out.extend_from_slice(b"\r\n");
    out.extend_from_slice(bytes);
    out.extend_from_slice(b"\r\n");
}

/// One whole reply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reply<'a> {
    /// `+text`.
    Simple(&'a str),
    /// `-text`.
    Error(&'a str),
    /// `:number`.
    Integer(i64),
    /// `$length`, or none.
    Bulk(Option<&'a [u8]>),
    /// `*count`.
    Array(Vec<Reply<'a>>),
}

/// The first reply in `bytes` and its length, `None` while it isn't whole.
///
/// # Errors
/// Not RESP.
pub fn parse(bytes: &[u8]) -> Result<Option<(Reply<'_>, usize)>> {
    parse_at(bytes, 0)
}

fn parse_at(bytes: &[u8], depth: usize) -> Result<Option<(Reply<'_>, usize)>> {
    let Some(end) = line_end(bytes) else {
        return Ok(None);
    };
    let head = end + 2;
    let (kind, line) = (bytes[0], std::str::from_utf8(&bytes[1.min(end)..end])?);
    let number = || {
        line.parse::<i64>()
            .map_err(|_| format!("redis sent {line:?} for a number"))
    };
    let whole = match kind {
        b'+' => (Reply::Simple(line), head),
        b'-' => (Reply::Error(line), head),
        b':' => (Reply::Integer(number()?), head),
        b'$' => match usize::try_from(number()?) {
            Err(_) => (Reply::Bulk(None), head),
            Ok(length) => {
                let Some(bulk) = bytes[head..].get(..length.saturating_add(2)) else {
                    return Ok(None);
                };
                (Reply::Bulk(Some(&bulk[..length])), head + length + 2)
            }
        },
        b'*' if depth < DEPTH_MAX => {
            let (mut items, mut at) = (Vec::new(), head);
            for _ in 0..number()?.max(0) {
                let Some((item, used)) = parse_at(&bytes[at..], depth + 1)? else {
                    return Ok(None);
                };
                items.push(item);
                at += used;
            }
            (Reply::Array(items), at)
        }
        _ => return Err(format!("{line:?} is not a reply of Redis").into()),
    };
    Ok(Some(whole))
}

/// Where the first line ends.
pub fn line_end(bytes: &[u8]) -> Option<usize> {
    let mut from = 0;
    loop {
        let at = from + bytes[from..].iter().position(|b| *b == b'\r')?;
        match bytes.get(at + 1) {
            Some(b'\n') => return Some(at),
            Some(_) => from = at + 1,
            None => return None,
        }
    }
}

/// Sends one command on a connection of its own; the reply's text.
fn command(address: SocketAddr, parts: &[&[u8]]) -> Result<String> {
    let mut stream = dial(address)?;
    let mut bytes = format!("*{}\r\n", parts.len()).into_bytes();
    parts.iter().for_each(|part| put_bulk(part, &mut bytes));
    stream.write_all(&bytes)?;
    let (mut input, mut chunk) = (Vec::new(), [0; 4096]);
    loop {
        if let Some((reply, _)) = parse(&input)? {
            return match reply {
                Reply::Error(text) => Err(format!("redis refused: {text}").into()),
                reply => Ok(format!("{reply:?}")),
            };
        }
        match stream.read(&mut chunk)? {
            0 => return Err("redis closed the connection".into()),
            length => input.extend_from_slice(&chunk[..length]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replies_of_every_kind_are_parsed_with_their_length() {
        let cases: [(&[u8], Reply<'_>); 7] = [
            (b"+OK\r\n", Reply::Simple("OK")),
            (b"-ERR no\r\n", Reply::Error("ERR no")),
            (b":-7\r\n", Reply::Integer(-7)),
            (b"$3\r\na\rb\r\n", Reply::Bulk(Some(b"a\rb"))),
            (b"$-1\r\n", Reply::Bulk(None)),
            (b"*0\r\n", Reply::Array(vec![])),
            (
                b"*2\r\n$1\r\na\r\n:1\r\n",
                Reply::Array(vec![Reply::Bulk(Some(b"a")), Reply::Integer(1)]),
            ),
        ];
        for (bytes, reply) in cases {
            let mut more = bytes.to_vec();
            more.extend_from_slice(b"+rest");
            assert_eq!(
                parse(&more).expect("a reply"),
                Some((reply, bytes.len())),
                "{bytes:?}"
            );
            for cut in 0..bytes.len() {
                assert_eq!(parse(&bytes[..cut]).expect("no error"), None, "cut {cut}");
            }
        }
        assert!(parse(b"HTTP/1.1 400\r\n").is_err());
        assert!(parse(b"$x\r\n").is_err());
        assert!(parse(b"\r\n").is_err());
    }

    #[test]
    fn appends_are_acknowledged_by_ids_and_by_nothing_else() {
        let mut redis = Redis::new(0, false);
        let mut out = Vec::new();
        let ids = b"$5\r\n123-0\r\n$5\r\n123-1\r\n$5\r\n12";
        let answers = redis.answers(ids, &mut out).expect("ids");
        assert_eq!(answers, Answers { acks: 2, used: 22 });
        let refused = redis.answers(b"$5\r\n123-0\r\n-OOM full\r\n", &mut out);
        let text = refused.expect_err("an error reply").to_string();
        assert_eq!(text, "redis refused: OOM full");
        assert!(redis.answers(b"$-1\r\n", &mut out).is_err());
        assert!(redis.answers(b"+OK\r\n", &mut out).is_err());
        assert!(out.is_empty());
    }

    #[test]
    fn append_is_written_as_redis_reads_it() {
        let mut out = Vec::new();
        Redis::new(3, false).put(b"key", b"pay", &mut out);
        let plain = "*5\r\n$4\r\nXADD\r\n$7\r\nbench:3\r\n$1\r\n*\r\n$1\r\nd\r\n$3\r\npay\r\n";
        assert_eq!(String::from_utf8_lossy(&out), plain);
        out.clear();
        Redis::new(3, true).put(b"key", &[b'p'; 1024], &mut out);
        let head = "*7\r\n$4\r\nXADD\r\n$7\r\nbench:3\r\n$1\r\n*\r\n$1\r\nk\r\n$3\r\nkey\r\n$1\r\nd\r\n$1024\r\np";
        assert!(String::from_utf8_lossy(&out).starts_with(head));
    }
}
