//! Session: a writer's hold on a feed, over whatever connections it takes.
//!
//! ```text
//!  submit ─> builder ─> queue ─> connection ─> ... ─> answers ─> tickets, ack stream
//!                         ^ driver: reconnect, bind, send again
//! ```
//!
//! **Invariants**
//! - A batch is built once, with the session's producer tag, and sent as often as it takes: stored once.
//! - Locks: the builder's, then the session's, then the connection's.
//!
//! **Not here**: the moves (`state`, `core`), the task behind it (`driver`).

mod acks;
mod core;
mod driver;
mod input;
mod seal;
mod sink;
mod state;
mod ticket;

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use sealog_frame::{BatchBuilder, FrameLimits};
use sealog_protocol::{Answer, Effects, Request, Welcome};
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout_at};

use self::acks::AckQueue;
use self::core::{Built, Pushed};
use self::driver::Driver;
use self::state::{Done, State};
use crate::client::{Again, Client};
use crate::conn::Conn;
use crate::error::{Error, ErrorKind, Result};
use crate::options::{Identity, Producer, SessionOptions};

pub use self::acks::Acks;
pub(crate) use self::core::Core;
pub(crate) use self::driver::replaced;
pub use self::input::{IntoBatch, Matching};
pub use self::sink::AppendSink;
pub use self::state::Ack;
pub use self::ticket::Ticket;

/// Producer id of all sessions under a lease: the lease's epoch is the producer epoch, so that a feed
/// remembers one producer for all of them.
const LEASED_PRODUCER: &[u8] = b"sealog.session";
/// Length of a random producer id.
const RANDOM_ID_BYTES: usize = 16;

/// The right to write that `open` and `resume` gave.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lease {
    /// The writer epoch: the fencing token of the session's batches.
    pub epoch: u64,
    /// The stream that is open.
    pub stream: u64,
    /// Sequence that the next record got when the lease was given.
    pub next_sequence: u64,
}

/// A writer's session on one feed. Dropping it only stops sending: the stream stays unsealed.
pub struct AppendSession {
    shared: Arc<Shared>,
}

/// What the session shares with its sinks.
pub(crate) struct Shared {
    client: Client,
    feed: String,
    lease: Option<Lease>,
    options: SessionOptions,
    producer: Option<(Vec<u8>, u64)>,
    core: Arc<Core>,
    builder: Mutex<BatchBuilder>,
    /// Who waits for room waits in line.
    line: tokio::sync::Mutex<()>,
}

/// How a session comes to its feed.
enum Entrance {
    Open,
    Resume,
    Join,
}

/// Batches whose outcome [`AppendSession::close`] could not wait for.
#[derive(Debug, Clone)]
pub struct Unsettled {
    /// Why it did not wait longer.
    pub cause: Error,
    /// Numbers of batches (see [`Ticket::number`]) that may be stored, and may be not.
    pub unknown: Vec<u64>,
    /// Numbers of batches that are certainly not stored.
    pub unsent: Vec<u64>,
}

impl std::fmt::Display for Unsettled {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (unknown, unsent) = (self.unknown.len(), self.unsent.len());
        write!(
            f,
            "{}: {unknown} batches with unknown outcome, {unsent} not sent",
            self.cause
        )
    }
}

impl std::error::Error for Unsettled {}

impl Client {
    /// Takes the feed's writer lease, opens a new stream, and a session on it. A stream that is unsealed
    /// is abandoned by this: [`Client::resume`] goes on with it instead.
    ///
    /// # Errors
    /// [`ErrorKind::FeedNotFound`]; those of the connection. When the answer was lost the effects are
    /// unknown: a stream may be open, and [`Client::resume`] takes it.
    ///
    /// # Cancel safety
    /// Dropped after it was sent, the lease may be taken.
    pub async fn open(&self, feed: &str) -> Result<AppendSession> {
        self.open_with(feed, SessionOptions::default()).await
    }

    /// As [`Client::open`], with options.
    ///
    /// # Errors
    /// As [`Client::open`], and [`ErrorKind::Invalid`] for options that cannot work.
    ///
    /// # Cancel safety
    /// As [`Client::open`].
    pub async fn open_with(&self, feed: &str, options: SessionOptions) -> Result<AppendSession> {
        self.enter(Entrance::Open, feed, options).await
    }

    /// Takes the feed's writer lease over the newest unsealed stream, and a session on it: after a restart
    /// of the writer, or instead of a writer that is gone.
    ///
    /// # Errors
    /// [`ErrorKind::FeedNotFound`], [`ErrorKind::NoOpenStream`]; those of the connection.
    ///
    /// # Cancel safety
    /// Dropped after it was sent, the lease may be taken.
    pub async fn resume(&self, feed: &str) -> Result<AppendSession> {
        self.resume_with(feed, SessionOptions::default()).await
    }

    /// As [`Client::resume`], with options.
    ///
    /// # Errors
    /// As [`Client::resume`], and [`ErrorKind::Invalid`] for options that cannot work.
    ///
    /// # Cancel safety
    /// As [`Client::resume`].
    pub async fn resume_with(&self, feed: &str, options: SessionOptions) -> Result<AppendSession> {
        self.enter(Entrance::Resume, feed, options).await
    }

    /// A session without a lease, beside other writers of the feed. It opens a stream if none is open.
    ///
    /// # Errors
    /// [`ErrorKind::FeedNotFound`], [`ErrorKind::Invalid`], [`ErrorKind::ProducerFenced`] (the options' own
    /// producer has a newer epoch already); those of the connection. There are no effects.
    ///
    /// # Cancel safety
    /// Cancel safe: there are no effects.
    pub async fn join(&self, feed: &str, options: SessionOptions) -> Result<AppendSession> {
        self.enter(Entrance::Join, feed, options).await
    }

    async fn enter(
        &self,
        entrance: Entrance,
        feed: &str,
        options: SessionOptions,
    ) -> Result<AppendSession> {
        if options.max_unacked_bytes == 0 || options.max_unacked_batches == 0 {
            return Err(Error::invalid("a session needs a window above 0"));
        }
        let (request, again) = match entrance {
            // Twice would abandon the stream that the first one opened.
            Entrance::Open => (Request::Open { feed }, Again::Unsent),
            Entrance::Resume => (Request::Resume { feed }, Again::Always),
            Entrance::Join => (Request::Bind { feed }, Again::Always),
        };
        let entered = self
            .call(Some(feed), &request, again, |conn, answer| {
                Entered::of(conn, &answer)
            })
            .await?;
        let (producer, first) = self.identify(feed, &entered, &options.identity).await?;
        let core = Arc::new(Core::new(State::new(producer.is_some().then_some(first))));
        // When the connection is gone already, the driver makes another one once there is a batch.
        let _ = core.attach(&entered.conn, entered.binding);
        let driver = Driver {
            core: core.clone(),
            client: self.clone(),
            feed: feed.to_owned(),
            feed_id: entered.feed,
            stall_timeout: options.stall_timeout,
        };
        tokio::spawn(driver.run());
        let shared = Shared {
            client: self.clone(),
            feed: feed.to_owned(),
            lease: entered.lease,
            options,
            producer,
            core,
            builder: Mutex::new(BatchBuilder::new(limits_of(&entered.conn.welcome))),
            line: tokio::sync::Mutex::default(),
        };
        Ok(AppendSession {
            shared: Arc::new(shared),
        })
    }

    /// The producer's id and epoch, and the sequence to begin with.
    async fn identify(
        &self,
        feed: &str,
        entered: &Entered,
        identity: &Identity,
    ) -> Result<(Option<(Vec<u8>, u64)>, u64)> {
        match (identity, &entered.lease) {
            (Identity::Off, _) => Ok((None, 0)),
            (Identity::Automatic, Some(lease)) => {
                Ok((Some((LEASED_PRODUCER.to_vec(), lease.epoch)), 0))
            }
            (Identity::Automatic, None) => {
                let mut id = vec![0; RANDOM_ID_BYTES];
                getrandom::fill(&mut id).map_err(|e| Error::invalid(e.to_string()))?;
                Ok((Some((id, 0)), 0))
            }
            (Identity::Producer(producer), _) => {
                let first = self.first_sequence(feed, producer).await?;
                Ok((Some((producer.id.clone(), producer.epoch)), first))
            }
        }
    }

    async fn first_sequence(&self, feed: &str, producer: &Producer) -> Result<u64> {
        if let Some(first) = producer.next_sequence {
            return Ok(first);
        }
        let epoch = producer.epoch;
        match self.producer(feed, &producer.id).await? {
            Some(known) if known.epoch == epoch => Ok(known.last_sequence + 1),
            Some(known) if known.epoch > epoch => {
                let current = known.epoch;
                let kind = ErrorKind::ProducerFenced { epoch, current };
                Err(Error::new(kind, Effects::None, ""))
            }
            _ => Ok(0),
        }
    }
}

/// What the server gave for an entrance.
struct Entered {
    conn: Arc<Conn>,
    binding: u32,
    feed: u64,
    lease: Option<Lease>,
}

impl Entered {
    fn of(conn: &Arc<Conn>, answer: &Answer<'_>) -> Option<Self> {
        let conn = conn.clone();
        match *answer {
            Answer::Leased {
                binding,
                feed,
                epoch,
                stream,
                next_sequence,
            } => Some(Self {
                conn,
                binding,
                feed,
                lease: Some(Lease {
                    epoch,
                    stream,
                    next_sequence,
                }),
            }),
            Answer::Bound { binding, feed, .. } => Some(Self {
                conn,
                binding,
                feed,
                lease: None,
            }),
            _ => None,
        }
    }
}

/// What a batch may be for this server.
fn limits_of(welcome: &Welcome) -> FrameLimits {
    let lowered = |limit: u32| usize::try_from(limit).unwrap_or(usize::MAX);
    FrameLimits {
        batch_bytes_max: lowered(welcome.batch_bytes_max),
        record_bytes_max: lowered(welcome.record_bytes_max),
        records_max: lowered(welcome.records_max),
        ..FrameLimits::DEFAULT
    }
    .lowered()
}

impl AppendSession {
    /// Name of the feed.
    #[must_use]
    pub fn feed(&self) -> &str {
        &self.shared.feed
    }

    /// The lease; `None` for a session that joined.
    #[must_use]
    pub fn lease(&self) -> Option<&Lease> {
        self.shared.lease.as_ref()
    }

    /// The window: metered bytes that may be unacknowledged.
    #[must_use]
    pub fn max_unacked_bytes(&self) -> u64 {
        self.shared.options.max_unacked_bytes
    }

    /// Metered bytes that are unacknowledged now.
    #[must_use]
    pub fn unacked_bytes(&self) -> u64 {
        self.shared.core.lock().state.unacked_bytes
    }

    /// Appends a batch and waits until it is durable.
    ///
    /// # Errors
    /// As [`AppendSession::append_async`], and what the batch came to.
    ///
    /// # Cancel safety
    /// Dropped while it waits for the window, nothing was taken; later, the batch stays on its way.
    pub async fn append(&self, batch: impl IntoBatch) -> Result<Ack> {
        self.append_async(batch).await?.await
    }

    /// Waits for room in the window, then takes a batch and returns its ticket. Callers are served in the
    /// order in which they came.
    ///
    /// # Errors
    /// [`ErrorKind::OverLimit`] at once for a batch over a limit of the server, or over the window, which
    /// it could never fit in; [`ErrorKind::Stopped`] and [`ErrorKind::SessionClosed`]. There are no
    /// effects.
    ///
    /// # Cancel safety
    /// Dropped while it waits, nothing was taken.
    pub async fn append_async(&self, batch: impl IntoBatch) -> Result<Ticket> {
        let bytes = batch.metered_bytes();
        self.shared.check_window(bytes)?;
        self.shared.wait_for_room(bytes).await;
        self.shared.try_submit(&batch)
    }

    /// Takes a batch and returns its ticket, however much is on its way already: no backpressure. What is
    /// wrong with the batch, the ticket says. There is no place to hand in the batch's size: it is known
    /// without another pass over the records.
    pub fn submit(&self, batch: impl IntoBatch) -> Ticket {
        self.shared.submit(&batch)
    }

    /// Takes a batch as [`AppendSession::submit`] does, without a ticket; its number. What becomes of it,
    /// [`AppendSession::acks`] tells, if that was asked for before: the least work per batch.
    ///
    /// # Errors
    /// As [`AppendSession::append_async`], at once. There are no effects, and nothing of it in the acks.
    pub fn send(&self, batch: impl IntoBatch) -> Result<u64> {
        self.shared.check_window(batch.metered_bytes())?;
        self.shared.take(&batch, None)
    }

    /// A sink of batches, with backpressure.
    #[must_use]
    pub fn sink(&self) -> AppendSink {
        AppendSink {
            session: self.shared.clone(),
            held: None,
            room: None,
            in_flight: VecDeque::new(),
            failed: None,
        }
    }

    /// The outcomes of all batches from now on, in order of submission. It ends when the session is closed
    /// and everything is answered, or behind the error that stopped it. There is one such stream at a
    /// time: an earlier one ends.
    #[must_use]
    pub fn acks(&self) -> Acks {
        let queue = Arc::new(AckQueue::default());
        let before = self.shared.core.acks_to(queue.clone());
        if let Some(before) = before {
            before.end();
        }
        Acks {
            queue,
            core: self.shared.core.clone(),
        }
    }

    /// The newest acknowledgement.
    #[must_use]
    pub fn last_acked_position(&self) -> Option<Ack> {
        self.shared.core.lock().state.last_acked
    }

    /// Why the session stopped, if it did.
    #[must_use]
    pub fn failure_cause(&self) -> Option<Error> {
        self.shared.core.lock().state.failure.clone()
    }

    /// Takes no more batches and waits for all that are on their way, up to the options' close time-out.
    /// The stream stays unsealed.
    ///
    /// # Errors
    /// The session stopped, or the time-out came first: what is left is given up, and listed.
    ///
    /// # Cancel safety
    /// Dropped, the session stays closed and its batches on their way.
    pub async fn close(&self) -> Result<(), Unsettled> {
        let core = &self.shared.core;
        core.close();
        let within = self.shared.options.close_timeout;
        if !core.wait_drained(Instant::now() + within).await {
            return core.give_up(Error::timed_out(within, "close"));
        }
        core.unsettled()
    }
}

impl Drop for AppendSession {
    fn drop(&mut self) {
        self.shared.core.abandon();
    }
}

impl Shared {
    /// Refuses a batch that the window could never take.
    pub(crate) fn check_window(&self, bytes: u64) -> Result<()> {
        let limit = self.options.max_unacked_bytes;
        match bytes > limit {
            true => Err(Error::over(
                "batch bytes in the window of unacknowledged bytes",
                bytes,
                limit,
            )),
            false => Ok(()),
        }
    }

    /// Whether a batch of so many bytes may be taken now; also when the session stopped, to be told so.
    pub(crate) fn has_room(&self, bytes: u64) -> bool {
        let mut inner = self.core.lock();
        let state = &inner.state;
        let untaken = inner.acks.as_ref().map_or(0, |acks| acks.len());
        let room = state.refusal().is_some()
            || (state.unacked_bytes + bytes <= self.options.max_unacked_bytes
                && state.queue.len() + untaken < self.options.max_unacked_batches);
        inner.room_wanted |= !room;
        room
    }

    pub(crate) async fn wait_for_room(&self, bytes: u64) {
        let _turn = self.line.lock().await;
        while !self.has_room(bytes) {
            self.core.room.notified().await;
        }
    }

    pub(crate) fn submit(&self, batch: &impl IntoBatch) -> Ticket {
        let taken = self
            .check_window(batch.metered_bytes())
            .and_then(|()| self.try_submit(batch));
        taken.unwrap_or_else(Ticket::refused)
    }

    fn try_submit(&self, input: &impl IntoBatch) -> Result<Ticket> {
        let (done, outcome) = oneshot::channel();
        let number = self.take(input, Some(done))?;
        Ok(Ticket::new(number, outcome))
    }

    /// Takes a batch whose outcome `done` waits for; its number.
    fn take(&self, input: &impl IntoBatch, mut done: Done) -> Result<u64> {
        let mut builder = self.builder.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            let producer_sequence = {
                let inner = self.core.lock();
                if let Some(error) = inner.state.refusal() {
                    return Err(error);
                }
                inner.state.next_producer_sequence
            };
            let built = self.build(&mut builder, input, producer_sequence);
            let built = built.inspect_err(|_| builder.reset())?;
            match self.core.push(built, done)? {
                Pushed::Taken(number) => return Ok(number),
                Pushed::Stale(again) => done = again,
            }
        }
    }

    fn build(
        &self,
        builder: &mut BatchBuilder,
        input: &impl IntoBatch,
        producer_sequence: Option<u64>,
    ) -> Result<Built> {
        input.fill(builder)?;
        if let Some(lease) = &self.lease {
            builder.fencing_token(lease.epoch);
        }
        if let (Some((id, epoch)), Some(sequence)) = (&self.producer, producer_sequence) {
            builder.producer(id, *epoch, sequence)?;
        }
        let metered_bytes = builder.metered_bytes();
        Ok(Built {
            batch: builder.build()?,
            metered_bytes,
            producer_sequence,
        })
    }
}

impl Core {
    /// Waits until nothing is on its way, or the session stopped.
    async fn wait_drained(&self, deadline: Instant) -> bool {
        self.lock().drain_wanted += 1;
        let drained = timeout_at(deadline, async {
            loop {
                let mut notified = std::pin::pin!(self.drained.notified());
                notified.as_mut().enable();
                if self.lock().state.queue.is_empty() {
                    return;
                }
                notified.await;
            }
        });
        let drained = drained.await.is_ok();
        self.lock().drain_wanted -= 1;
        drained
    }

    /// Makes `queue` the one that outcomes go to; the one before.
    fn acks_to(&self, queue: Arc<AckQueue>) -> Option<Arc<AckQueue>> {
        let mut inner = self.lock();
        if inner.state.failure.is_some() {
            queue.end();
        }
        inner.acks.replace(queue)
    }

    /// Nobody takes from `queue` any more.
    fn forget_acks(&self, queue: &Arc<AckQueue>) {
        let mut inner = self.lock();
        if inner
            .acks
            .as_ref()
            .is_some_and(|acks| Arc::ptr_eq(acks, queue))
        {
            inner.acks = None;
        }
        let room = std::mem::take(&mut inner.room_wanted);
        drop(inner);
        if room {
            self.room.notify_one();
        }
    }

    /// An outcome was taken from the ack stream.
    fn taken(&self) {
        let room = std::mem::take(&mut self.lock().room_wanted);
        if room {
            self.room.notify_one();
        }
    }
}
