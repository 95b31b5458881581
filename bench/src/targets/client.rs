//! Client: a Sealog server through `sealog-client`, as producers use it: sessions with retries and identities.
//!
//! **Invariants**
//! - A client of the load is a client of the crate: a connection and a session of its own.
//! - All clients of a share live on one thread, that of its runtime.
//!
//! **Not here**: the protocol by hand (`native`).

use std::ops::Range;
use std::time::{Duration, Instant};

use futures::future::{Either, FutureExt, select};
use futures::stream::{FuturesUnordered, StreamExt};
use sealog_client::{AppendSession, Client, Record, SessionOptions};
use tokio::runtime::Runtime;

use super::alarm::Alarm;
use super::native::NativeTarget;
use crate::Result;
use crate::generator::{Caller, PayloadPool, Plan, Share, Target, Turn};
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
        let sessions = runtime.block_on(async {
            let mut sessions = Vec::new();
            for client in clients {
                let connection = Client::connect(&address).await?;
                let session = connection
                    .open_with(&feeds[client], options.clone())
                    .await?;
                sessions.push(session);
            }
            Ok::<_, sealog_client::Error>(sessions)
        })?;
        Ok(Box::new(ClientShare {
            runtime,
            sessions,
            pool,
            keyed: plan.spec.keyed,
            records: plan.spec.records as u64,
        }))
    }

    fn server_cpu(&self) -> Option<Duration> {
        self.server.server_cpu()
    }
}

/// The sessions that one thread drives.
struct ClientShare<'a> {
    runtime: Runtime,
    sessions: Vec<AppendSession>,
    pool: &'a PayloadPool,
    keyed: bool,
    records: u64,
}

impl Share for ClientShare<'_> {
    fn run(&mut self, callers: &mut [Caller]) -> Result<()> {
        assert_eq!(callers.len(), self.sessions.len());
        let alarm = Alarm::start()?;
        self.runtime.block_on(self.produce(callers, &alarm))
    }
}

impl ClientShare<'_> {
    async fn produce(&self, callers: &mut [Caller], alarm: &Alarm) -> Result<()> {
        let mut pending = FuturesUnordered::new();
        loop {
            let mut wait = None;
            for (index, (session, caller)) in self.sessions.iter().zip(&mut *callers).enumerate() {
                let turn = loop {
                    let now = Instant::now();
                    match caller.turn(now) {
                        Turn::Send => {
                            let number = caller.sent(now);
                            let first = self.pool.index_of(caller.number, number);
                            let ticket = session.submit(self.records(first).as_slice());
                            pending.push(ticket.map(move |ack| (index, number, ack)));
                        }
                        turn => break turn,
                    }
                };
                let until = match turn {
                    Turn::Done => continue,
                    Turn::WaitUntil(at) => at.saturating_duration_since(Instant::now()),
                    Turn::Send | Turn::WaitForAck => WAIT_MAX,
                };
                wait = Some(wait.unwrap_or(WAIT_MAX).min(until));
            }
            let Some(wait) = wait else { return Ok(()) };
            let rung = alarm.at(Instant::now() + wait);
            let first = match pending.is_empty() {
                true => {
                    rung.await;
                    None
                }
                false => match select(pending.next(), rung).await {
                    Either::Left((answered, _)) => answered,
                    Either::Right(((), _)) => None,
                },
            };
            let (mut answered, mut left) = (first, ACKS_PER_TURN);
            while let Some((index, number, ack)) = answered {
                ack?;
                callers[index].acked(number, Instant::now());
                left -= 1;
                let next = (left > 0).then(|| pending.next().now_or_never());
                answered = next.flatten().flatten();
            }
            if left == 0 {
                // The sessions live on this thread, too: they send in between.
                tokio::task::yield_now().await;
            }
            let now = Instant::now();
            callers
                .iter_mut()
                .for_each(|caller| caller.give_up_if_late(now));
        }
    }

    fn records(&self, first: u64) -> Vec<Record<'_>> {
        let record = |n| {
            let mut record = Record::of(self.pool.payload(n));
            record.key = self.keyed.then(|| self.pool.key(n));
            record
        };
        (first..first + self.records).map(record).collect()
    }
}
