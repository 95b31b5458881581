//! Native: a Sealog server's own protocol, spoken raw as the peers' are, to the feed's own shard.
//!
//! **Invariants**
//! - An append counts when its answer is `Appended`; a refusal ends the run with the server's text.
//! - One record is one batch, framed inside the measured time; batches of many records are built beforehand.
//!
//! **Not here**: sockets (`wire`); sessions with retries (the client crate's).

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::ops::Range;
use std::time::Duration;

use sealog_frame::{Batch, BatchBuilder, FrameLimits, Record};
use sealog_protocol::{
    Answer, Features, HEADER_BYTES, Hello, MESSAGE_BYTES_MAX, MessageHeader, PROTOCOL_VERSION,
    Request, Rest, Welcome, shard_of,
};

use super::wire::{Answers, Wire, WireShare, dial};
use crate::Result;
use crate::generator::{CLIENTS_MAX, PayloadPool, Plan, Share, Target};
use crate::load::feed_names;
use crate::process::cpu_time_of;

/// Names of this benchmark's feeds begin with it.
pub const FEEDS: &str = "load";

/// A Sealog server.
pub struct NativeTarget {
    /// Where it listens.
    pub address: SocketAddr,
    /// Its process, if this one started it.
    pub pid: Option<u32>,
}

impl NativeTarget {
    /// Whether it answers.
    pub fn is_up(&self) -> bool {
        Calls::connect(self.address).is_ok()
    }
}

impl Target for NativeTarget {
    fn empty(&self, plan: &Plan) -> Result<()> {
        let mut calls = Calls::connect(self.address)?;
        for feed in calls.feeds()? {
            calls.call(&Request::DeleteFeed { feed: &feed }, |_| Some(()))?;
        }
        for feed in feed_names(FEEDS, plan.spec.clients) {
            let create = Request::CreateFeed {
                feed: &feed,
                keys: plan.spec.keyed,
                exclusive: false,
            };
            calls.call(&create, |answer| {
                matches!(answer, Answer::Created { .. }).then_some(())
            })?;
        }
        Ok(())
    }

    fn connect<'a>(
        &'a self,
        plan: &Plan,
        pool: &'a PayloadPool,
        clients: Range<usize>,
    ) -> Result<Box<dyn Share + Send + 'a>> {
        let feeds = feed_names(FEEDS, plan.spec.clients);
        let mut dialled = Vec::new();
        for client in clients {
            let (calls, binding, epoch) = self.open(&feeds[client])?;
            let framer = Framer {
                builder: BatchBuilder::new(FrameLimits::default()),
                epoch,
                keyed: plan.spec.keyed,
                records: plan.spec.records as u64,
            };
            let mut native = Native {
                binding,
                framer,
                prebuilt: None,
                request: calls.request,
            };
            if plan.spec.records > 1 {
                let first = pool.index_of(client, 0);
                native.prebuilt = Some(native.framer.batch(pool, first)?);
            }
            dialled.push((calls.stream, native));
        }
        Ok(Box::new(WireShare::new(pool, dialled)?))
    }

    fn server_cpu(&self) -> Option<Duration> {
        cpu_time_of(self.pid?)
    }
}

impl NativeTarget {
    /// A connection to the feed's shard that holds its lease.
    fn open(&self, feed: &str) -> Result<(Calls, u32, u64)> {
        let mut calls = Calls::connect(self.address)?;
        let shards = u32::try_from(calls.welcome.shards.len())?;
        let shard = shard_of(feed, calls.welcome.logs, shards);
        let own = calls.welcome.shards.get(shard as usize);
        if let Some(port) = own.map(|own| own.port).filter(|port| *port != 0) {
            calls = Calls::connect(SocketAddr::new(self.address.ip(), port))?;
        }
        let (binding, epoch) = calls.call(&Request::Open { feed }, |answer| match answer {
            Answer::Leased { binding, epoch, .. } => Some((*binding, *epoch)),
            _ => None,
        })?;
        Ok((calls, binding, epoch))
    }
}

/// Makes batches of one client's records.
struct Framer {
    builder: BatchBuilder,
    epoch: u64,
    keyed: bool,
    records: u64,
}

impl Framer {
    fn batch(&mut self, pool: &PayloadPool, first: u64) -> Result<Batch> {
        for n in first..first + self.records {
            let mut record = Record::of(pool.payload(n));
            record.key = self.keyed.then(|| pool.key(n));
            self.builder.push(&record)?;
        }
        self.builder.fencing_token(self.epoch);
        Ok(self.builder.build()?)
    }
}

/// One client's side.
struct Native {
    binding: u32,
    framer: Framer,
    prebuilt: Option<Batch>,
    request: u64,
}

impl Native {
    fn put(&mut self, batch: &Batch, out: &mut Vec<u8>) {
        self.request += 1;
        let append = Request::Append {
            binding: self.binding,
            frame: Rest(batch.as_bytes()),
        };
        append.encode(self.request, 0, out);
    }
}

impl Wire for Native {
    fn append(&mut self, pool: &PayloadPool, n: u64, out: &mut Vec<u8>) -> Result<()> {
        let batch = match &self.prebuilt {
            Some(batch) => batch.clone(),
            None => self.framer.batch(pool, n)?,
        };
        self.put(&batch, out);
        Ok(())
    }

    fn answers(&mut self, bytes: &[u8], _: &mut Vec<u8>) -> Result<Answers> {
        let mut answers = Answers::default();
        while let Some((answer, used)) = parse(&bytes[answers.used..])? {
            match answer {
                Answer::Appended { .. } => answers.acks += 1,
                Answer::Alive {} | Answer::Busy {} => {}
                other => return Err(unexpected(&other).into()),
            }
            answers.used += used;
        }
        Ok(answers)
    }
}

/// The first whole answer in `bytes` and its length.
fn parse(bytes: &[u8]) -> Result<Option<(Answer<'_>, usize)>> {
    let Some(header) = MessageHeader::peek(bytes, MESSAGE_BYTES_MAX)? else {
        return Ok(None);
    };
    let Some(body) = bytes.get(HEADER_BYTES..header.message_bytes) else {
        return Ok(None);
    };
    let answer = Answer::decode(header.kind, body)?;
    Ok(Some((answer, header.message_bytes)))
}

fn unexpected(answer: &Answer<'_>) -> String {
    match answer {
        Answer::Refused { refusal } => format!("sealog refused: {}", refusal.text),
        Answer::Goodbye { reason } => format!("sealog said goodbye: {reason}"),
        other => format!("sealog answered {other:?}"),
    }
}

/// A connection that asks one thing at a time.
struct Calls {
    stream: TcpStream,
    welcome: Welcome,
    request: u64,
}

impl Calls {
    fn connect(address: SocketAddr) -> Result<Self> {
        let mut stream = dial(address)?;
        let hello = Hello {
            magic: Hello::MAGIC,
            version_min: PROTOCOL_VERSION,
            version_max: PROTOCOL_VERSION,
            features: Features(0),
            heartbeat_ms: 0,
            token: None,
            agent: concat!("sealog-bench/", env!("CARGO_PKG_VERSION")),
        };
        let welcome = ask(
            &mut stream,
            1,
            &Request::Hello { hello },
            |answer| match answer {
                Answer::Welcome { welcome } => Some(welcome.clone()),
                _ => None,
            },
        )?;
        Ok(Self {
            stream,
            welcome,
            request: 1,
        })
    }

    fn call<T>(
        &mut self,
        request: &Request<'_>,
        take: impl Fn(&Answer<'_>) -> Option<T>,
    ) -> Result<T> {
        self.request += 1;
        ask(&mut self.stream, self.request, request, take)
    }

    /// Names of the benchmark's feeds.
    fn feeds(&mut self) -> Result<Vec<String>> {
        let list = Request::ListFeeds {
            prefix: FEEDS,
            after: "",
            limit: u32::try_from(CLIENTS_MAX)?,
        };
        self.call(&list, |answer| match answer {
            Answer::Feeds { feeds } => Some(feeds.iter().map(|feed| feed.name.clone()).collect()),
            _ => None,
        })
    }
}

fn ask<T>(
    stream: &mut TcpStream,
    id: u64,
    request: &Request<'_>,
    take: impl Fn(&Answer<'_>) -> Option<T>,
) -> Result<T> {
    let mut out = Vec::new();
    request.encode(id, 0, &mut out);
    stream.write_all(&out)?;
    let (mut input, mut chunk) = (Vec::new(), vec![0; 16 << 10]);
    loop {
        let used = match parse(&input)? {
            None => 0,
            Some((Answer::Alive {} | Answer::Busy {}, used)) => used,
            Some((answer, _)) => return take(&answer).ok_or_else(|| unexpected(&answer).into()),
        };
        input.drain(..used);
        if used == 0 {
            match stream.read(&mut chunk)? {
                0 => return Err("sealog closed the connection".into()),
                length => input.extend_from_slice(&chunk[..length]),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sealog_protocol::{Effects, ErrorCode, Refusal};

    fn native() -> Native {
        let framer = Framer {
            builder: BatchBuilder::new(FrameLimits::default()),
            epoch: 5,
            keyed: true,
            records: 1,
        };
        Native {
            binding: 3,
            framer,
            prebuilt: None,
            request: 1,
        }
    }

    fn appended(request: u64) -> Vec<u8> {
        let mut out = Vec::new();
        let answer = Answer::Appended {
            first: 1,
            last: 1,
            records: 1,
            duplicate: false,
            producer_sequence: None,
        };
        answer.encode(request, 0, &mut out);
        out
    }

    #[test]
    fn append_is_a_request_with_the_epoch_and_the_key() {
        let (mut native, mut out) = (native(), Vec::new());
        let pool = PayloadPool::new(100, 1);
        native.append(&pool, 7, &mut out).expect("a request");
        let header = MessageHeader::peek(&out, MESSAGE_BYTES_MAX).expect("a header");
        let header = header.expect("whole");
        assert_eq!((header.message_bytes, header.request), (out.len(), 2));
        let request = Request::decode(header.kind, &out[HEADER_BYTES..]).expect("a request");
        let Request::Append { binding, frame } = request else {
            panic!("{request:?}");
        };
        assert_eq!(binding, 3);
        let batch = Batch::from_bytes(frame.0.to_vec(), &FrameLimits::default()).expect("a batch");
        assert_eq!(batch.view().fencing_token(), Some(5));
        let record = batch
            .view()
            .records()
            .next()
            .expect("a record")
            .payload
            .to_vec();
        assert_eq!(record, pool.payload(7));
        assert!(batch.view().is_keyed());
    }

    #[test]
    fn answers_are_counted_whole() {
        let mut bytes = appended(2);
        bytes.extend(appended(3));
        let whole = bytes.len();
        bytes.extend_from_slice(&appended(4)[..20]);
        let answers = native().answers(&bytes, &mut Vec::new()).expect("answers");
        assert_eq!((answers.acks, answers.used), (2, whole));
    }

    #[test]
    fn refusal_is_never_an_ack() {
        let mut bytes = Vec::new();
        let refusal = Refusal {
            code: ErrorCode::Fenced,
            effects: Effects::None,
            retryable: false,
            retry_after_ms: 0,
            value: Some(1),
            limit: Some(2),
            subject: "",
            text: "fenced: our epoch 1, current 2",
        };
        Answer::Refused { refusal }.encode(2, 0, &mut bytes);
        let error = native()
            .answers(&bytes, &mut Vec::new())
            .expect_err("refused");
        assert!(error.to_string().contains("current 2"), "{error}");
    }
}
