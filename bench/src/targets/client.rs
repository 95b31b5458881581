//! Client: a Sealog server through `sealog-client`, as producers use it: sessions with retries and identities.
//!
//! **Invariants**
//! - A client of the load is a client of the crate: a connection and a session of its own.
//! - All clients of a share live on one thread, that of its runtime.
//!
//! **Not here**: the protocol by hand (`native`).

use std::future::poll_fn;
use std::ops::Range;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use futures::future::{Either, select};
use futures::stream::StreamExt;
use sealog_client::{Acks, AppendSession, Client, Record, SessionOptions};
use tokio::runtime::Runtime;

use super::alarm::Alarm;
use super::native::NativeTarget;
use crate::Result;
use crate::generator::{Caller, PayloadPool, Plan, Share, Target, sooner};
use crate::load::feed_names;

/// Longest wait without a look at the clock.
const WAIT_MAX: Duration = Duration::from_millis(100);
/// Acknowledgements taken before what they make room for is sent: a producer does not wait for all.
const ACKS_PER_TURN: u32 = 128;
/// Unacknowledged payload that a session allows: never what bounds the load, the window is.
const UNACKED_BYTES_MAX: u64 = 1 << 30;

/// A Sealog server, reached through the client crate.
pub struct ClientTarget {
    /// Where it is; makes it ready, too.
    pub server: NativeTarget,
}

impl Target for ClientTarget {
    fn empty(&self, plan: &Plan) -> Result<()> {
        self.server.empty(plan)
    }

    fn connect<'a>(
        &'a self,
        plan: &Plan,
        pool: &'a PayloadPool,
        clients: Range<usize>,
    ) -> Result<Box<dyn Share + Send + 'a>> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let feeds = feed_names(super::native::FEEDS, plan.spec.clients);
        let options = SessionOptions {
            max_unacked_bytes: UNACKED_BYTES_MAX,
            ..SessionOptions::default()
        };
        let address = self.server.address.to_string();
        let producers = runtime.block_on(async {
            let mut producers = Vec::new();
            for client in clients {
                let connection = Client::connect(&address).await?;
                let session = connection
                    .open_with(&feeds[client], options.clone())
                    .await?;
                let acks = session.acks();
                producers.push(Producer { session, acks });
            }
            Ok::<_, sealog_client::Error>(producers)
        })?;
        Ok(Box::new(ClientShare {
            runtime,
            producers,
            records: Records {
                pool,
                keyed: plan.spec.keyed,
                per_batch: plan.spec.records as u64,
            },
        }))
    }

    fn server_cpu(&self) -> Option<Duration> {
        self.server.server_cpu()
    }
}

/// A session, and the stream of its acknowledgements.
struct Producer {
    session: AppendSession,
    acks: Acks,
}

/// The sessions that one thread drives.
struct ClientShare<'a> {
    runtime: Runtime,
    producers: Vec<Producer>,
    records: Records<'a>,
}

/// What is appended.
struct Records<'a> {
    pool: &'a PayloadPool,
    keyed: bool,
    per_batch: u64,
}

impl Share for ClientShare<'_> {
    fn run(&mut self, callers: &mut [Caller]) -> Result<()> {
        assert_eq!(callers.len(), self.producers.len());
        let alarm = Alarm::start()?;
        let produce = produce(&mut self.producers, callers, &self.records, &alarm);
        self.runtime.block_on(produce)
    }
}

async fn produce(
    producers: &mut [Producer],
    callers: &mut [Caller],
    records: &Records<'_>,
    alarm: &Alarm,
) -> Result<()> {
    loop {
        let mut wait = None;
        for (producer, caller) in producers.iter().zip(&mut *callers) {
            let until = caller.send_due(WAIT_MAX, |client, number| {
                records.send(&producer.session, client, number)
            })?;
            wait = sooner(wait, until);
        }
        let Some(wait) = wait else { return Ok(()) };
        let rung = alarm.at(Instant::now() + wait);
        let taken = poll_fn(|cx| take_acks(producers, callers, cx));
        let taken = match select(taken, rung).await {
            Either::Left((taken, _)) => taken?,
            Either::Right(((), _)) => 0,
        };
        if taken == ACKS_PER_TURN {
            // The sessions live on this thread, too: they send in between.
            tokio::task::yield_now().await;
        }
        let now = Instant::now();
        callers
            .iter_mut()
            .for_each(|caller| caller.give_up_if_late(now));
    }
}

/// Takes the acknowledgements that are there, up to [`ACKS_PER_TURN`]; how many.
fn take_acks(
    producers: &mut [Producer],
    callers: &mut [Caller],
    cx: &mut Context<'_>,
) -> Poll<Result<u32>> {
    let (mut taken, now) = (0, Instant::now());
    for (producer, caller) in producers.iter_mut().zip(callers) {
        while taken < ACKS_PER_TURN {
            match producer.acks.poll_next_unpin(cx) {
                Poll::Ready(Some(Ok(_))) if caller.acked_oldest(now) => taken += 1,
                Poll::Ready(Some(Ok(_))) => {
                    return Poll::Ready(Err("an acknowledgement of nothing".into()));
                }
                Poll::Ready(Some(Err(error))) => return Poll::Ready(Err(error.into())),
                Poll::Ready(None) => return Poll::Ready(Err("the acknowledgements ended".into())),
                Poll::Pending => break,
            }
        }
    }
    match taken {
        0 => Poll::Pending,
        _ => Poll::Ready(Ok(taken)),
    }
}

impl Records<'_> {
    /// Appends the batch with this number of this client.
    fn send(&self, session: &AppendSession, client: usize, number: u64) -> Result<()> {
        let first = self.pool.index_of(client, number);
        let mut records = (first..first + self.per_batch).map(|n| self.record(n));
        match (self.per_batch, records.next()) {
            (1, Some(only)) => session.send(only)?,
            (_, first) => session.send(first.into_iter().chain(records).collect::<Vec<_>>())?,
        };
        Ok(())
    }

    fn record(&self, n: u64) -> Record<'_> {
        let mut record = Record::of(self.pool.payload(n));
        record.key = self.keyed.then(|| self.pool.key(n));
        record
    }
}
