//! Connection: one socket, its outbox, and who waits for which answer.
//!
//! ```text
//!  requests ──> outbox ──> writer task ──> socket ──> reader task ──> request id ──> who asked
//! ```
//!
//! **Invariants**
//! - Sending and receiving are tasks of their own: answers are read whatever waits to be sent.
//! - A small append waits for company while many are in flight: until an answer comes, enough has gathered,
//!   or a millisecond has passed.
//! - Appends in flight stay within the server's credit; one alone may be larger than it.
//! - When a connection ends, everybody who waits on it is told, once.
//! - Locks: a session's before the connection's, never the other way round.
//!
//! **Not here**: making a connection (`dial`), making another one (`link`).

mod dial;
mod io;
mod outbox;

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use sealog_frame::Batch;
use sealog_protocol::{Answer, BINDINGS_MAX, Effects, MORE, MessageHeader, Request, Welcome};
use tokio::sync::{Notify, oneshot};
use tokio::time::{Instant, timeout};

use self::outbox::Outbox;
use crate::error::{Error, Result};
use crate::follow::Inbox;
use crate::session::Core;

pub(crate) use self::dial::{Address, dial};

/// Request ids are `slot << ORDINAL_BITS | ordinal`: who asked, and which of its requests. Slot 0 is that
/// of single requests, whose ordinals are unique on the connection.
const ORDINAL_BITS: u32 = 40;
/// A connection whose slots are used up is not used for more: they are never given twice. Nor is one that has
/// bound as many feeds as it may.
const SLOTS_MAX: u64 = 1 << (64 - ORDINAL_BITS);

/// From this many bytes on appends don't wait for company.
const HELD_BYTES_MAX: u64 = 4 << 10;
/// Nor do they from this part of what is in flight on.
const HELD_PART: u64 = 4;

/// A message of the server, whole.
#[derive(Debug, Clone)]
pub(crate) struct Message {
    pub(crate) header: MessageHeader,
    pub(crate) body: Bytes,
}

impl Message {
    pub(crate) fn answer(&self) -> Result<Answer<'_>> {
        Ok(Answer::decode(self.header.kind, &self.body)?)
    }

    /// More answers to the same request follow.
    pub(crate) fn has_more(&self) -> bool {
        self.header.flags & MORE != 0
    }
}

/// Who gets the answers of a slot.
#[derive(Clone)]
pub(crate) enum Route {
    Session(Arc<Core>),
    Follow(Arc<Inbox>),
}

/// A connection. Alive until it was told to fail.
pub(crate) struct Conn {
    pub(crate) welcome: Welcome,
    state: Mutex<State>,
    wake_writer: Notify,
    ended: Notify,
    /// It answered something: the next connection may be made without waiting.
    useful: AtomicBool,
    /// How often the server said that it reads nothing now.
    busy: AtomicU64,
}

struct State {
    dead: Option<Error>,
    outbox: Outbox,
    replies: HashMap<u64, oneshot::Sender<Result<Message>>>,
    routes: HashMap<u64, Route>,
    /// Sessions that have more to send than the credit allowed.
    starved: VecDeque<u64>,
    next_reply: u64,
    next_slot: u64,
    /// As many feeds are bound as may be.
    bound_up: bool,
    unanswered_bytes: u64,
    /// What waits may leave, few as it is: something was answered since the last write, or it is not
    /// appends alone.
    may_write: bool,
    /// The writer waits for an answer, or for more to send.
    held: bool,
    /// When the oldest ping was sent that has no pong.
    pinged: Option<Instant>,
}

/// What the writer got.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Taken {
    All,
    Nothing,
    /// Something waits for company.
    Held,
    Dead,
}

/// The connection, locked to send appends.
pub(crate) struct Sending<'a> {
    conn: &'a Conn,
    state: MutexGuard<'a, State>,
    slot: u64,
    was_idle: bool,
}

impl Conn {
    fn new(welcome: Welcome) -> Self {
        Self {
            welcome,
            state: Mutex::new(State {
                dead: None,
                outbox: Outbox::default(),
                replies: HashMap::new(),
                routes: HashMap::new(),
                starved: VecDeque::new(),
                next_reply: 1,
                next_slot: 1,
                bound_up: false,
                unanswered_bytes: 0,
                may_write: true,
                held: false,
                pinged: None,
            }),
            wake_writer: Notify::new(),
            ended: Notify::new(),
            useful: AtomicBool::new(false),
            busy: AtomicU64::new(0),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Why it ended, if it did.
    pub(crate) fn end(&self) -> Option<Error> {
        self.lock().dead.clone()
    }

    /// Whether it takes further sessions and requests.
    pub(crate) fn is_usable(&self) -> bool {
        let state = self.lock();
        state.dead.is_none() && state.next_slot < SLOTS_MAX && !state.bound_up
    }

    pub(crate) fn was_useful(&self) -> bool {
        self.useful.load(Ordering::Relaxed)
    }

    /// Asks something that has one answer; refusals are errors.
    ///
    /// The effects of an error of the connection are *unknown*, unless nothing was sent.
    pub(crate) async fn ask(&self, request: &Request<'_>, within: Duration) -> Result<Message> {
        let (id, reply) = self.send_for_reply(request)?;
        let _forget = Forget { conn: self, id };
        let message = match timeout(within, reply).await {
            Ok(Ok(message)) => message?,
            Ok(Err(_)) => return Err(self.end().unwrap_or_else(|| Error::disconnected(""))),
            Err(_) => return Err(Error::timed_out(within, "no answer")),
        };
        if let Answer::Refused { refusal } = message.answer()? {
            return Err(Error::from(&refusal));
        }
        Ok(message)
    }

    fn send_for_reply(
        &self,
        request: &Request<'_>,
    ) -> Result<(u64, oneshot::Receiver<Result<Message>>)> {
        let (sender, reply) = oneshot::channel();
        let mut state = self.lock();
        state.alive()?;
        let id = state.next_reply;
        state.next_reply += 1;
        let limit = u64::from(self.welcome.message_bytes_max);
        let bytes = state.outbox.push_within(request, id, limit);
        if bytes > limit {
            return Err(Error::over("request", bytes, limit));
        }
        state.replies.insert(id, sender);
        state.may_write = true;
        drop(state);
        self.wake_writer.notify_one();
        Ok((id, reply))
    }

    /// Sends something that has no answer, for a slot.
    pub(crate) fn tell(&self, request: &Request<'_>, slot: u64) {
        let mut state = self.lock();
        if state.dead.is_none() {
            state.push_now(request, slot << ORDINAL_BITS);
            drop(state);
            self.wake_writer.notify_one();
        }
    }

    /// A slot whose answers go to `route`.
    pub(crate) fn attach(&self, route: Route) -> Result<u64> {
        let mut state = self.lock();
        state.alive()?;
        let slot = state.next_slot;
        state.next_slot += 1;
        state.routes.insert(slot, route);
        Ok(slot)
    }

    /// The slot's answers are nobody's from here on.
    pub(crate) fn detach(&self, slot: u64) {
        self.lock().routes.remove(&slot);
    }

    /// The connection, to send appends of `slot`; `answered` bytes of requests have been answered.
    pub(crate) fn sending(&self, slot: u64, answered: u64) -> Sending<'_> {
        let mut state = self.lock();
        state.unanswered_bytes = state.unanswered_bytes.saturating_sub(answered);
        Sending {
            conn: self,
            was_idle: state.outbox.is_empty(),
            state,
            slot,
        }
    }

    /// Ends it: whoever waits gets `error`; the tasks stop.
    pub(crate) fn fail(self: &Arc<Self>, error: Error) {
        let (replies, routes) = {
            let mut state = self.lock();
            if state.dead.is_some() {
                return;
            }
            state.dead = Some(error.clone());
            state.outbox = Outbox::default();
            let replies = std::mem::take(&mut state.replies);
            (replies, std::mem::take(&mut state.routes))
        };
        self.wake_writer.notify_one();
        self.ended.notify_one();
        for (_, reply) in replies {
            let _ = reply.send(Err(error.clone()));
        }
        for (_, route) in routes {
            match route {
                Route::Session(core) => core.on_end(self, &error),
                Route::Follow(inbox) => inbox.fail(error.clone()),
            }
        }
    }

    /// Nothing more will be asked: tells the server, and lets go of the socket once that is written.
    pub(crate) fn goodbye(&self) {
        let mut state = self.lock();
        if state.dead.is_none() {
            state.push_now(&Request::Goodbye {}, 0);
            drop(state);
            self.wake_writer.notify_one();
        }
    }

    /// The server reads nothing now, and says so: what is on its way waits, and is not lost.
    fn on_busy(&self) {
        self.busy.fetch_add(1, Ordering::Relaxed);
        let mut state = self.lock();
        state.pinged = state.pinged.map(|_| Instant::now());
    }

    /// An answer to a single request, or to none that anybody waits for any more.
    fn on_reply(&self, message: Message) {
        let mut state = self.lock();
        match message.answer() {
            Ok(Answer::Pong {}) => state.pinged = None,
            Ok(Answer::Bound { binding, .. } | Answer::Leased { binding, .. }) => {
                state.bound_up |= binding + 1 >= BINDINGS_MAX;
            }
            _ => {}
        }
        let reply = state.replies.remove(&message.header.request);
        drop(state);
        if let Some(reply) = reply {
            let _ = reply.send(Ok(message));
        }
    }

    fn route(&self, slot: u64) -> Option<Route> {
        self.lock().routes.get(&slot).cloned()
    }

    /// Whether appends are at the server besides those that wait to be written.
    fn is_pipelined(&self) -> bool {
        self.lock().is_pipelined()
    }

    /// Takes what waits to be written, unless it should wait for company; `spent` as in [`Outbox::take`].
    fn take_outbox(&self, spent: &mut Outbox) -> Taken {
        let mut state = self.lock();
        if state.dead.is_some() {
            return Taken::Dead;
        }
        state.held = state.holds();
        if state.held {
            return Taken::Held;
        }
        state.outbox.take(spent);
        match spent.is_empty() {
            true => Taken::Nothing,
            false => {
                state.may_write = false;
                Taken::All
            }
        }
    }

    /// Something was answered, or it took too long: what was held may go.
    fn release(&self) {
        let mut state = self.lock();
        state.may_write = true;
        if std::mem::take(&mut state.held) {
            drop(state);
            self.wake_writer.notify_one();
        }
    }

    /// Lets sessions go on that had waited for credit.
    fn feed_starved(self: &Arc<Self>) {
        let starved = std::mem::take(&mut self.lock().starved);
        for slot in starved {
            if let Some(Route::Session(core)) = self.route(slot) {
                core.go_on();
            }
        }
    }
}

impl State {
    fn alive(&self) -> Result<()> {
        match &self.dead {
            // Nothing of the request has left.
            Some(error) => Err(error.with_effects(Effects::None)),
            None => Ok(()),
        }
    }

    fn is_pipelined(&self) -> bool {
        self.unanswered_bytes > self.outbox.bytes()
    }

    /// Adds a request that nothing holds back.
    fn push_now(&mut self, request: &Request<'_>, id: u64) {
        self.outbox.push(request, id);
        self.may_write = true;
    }

    /// Whether what waits should wait for company: each write costs both sides more than a small append.
    fn holds(&self) -> bool {
        !self.may_write && !self.outbox.is_empty() && !self.is_worth_a_write()
    }

    /// Enough waits, for itself or beside what is in flight.
    fn is_worth_a_write(&self) -> bool {
        let waiting = self.outbox.bytes();
        let in_flight = self.unanswered_bytes.saturating_sub(waiting);
        waiting >= HELD_BYTES_MAX.min(in_flight / HELD_PART)
    }
}

impl Sending<'_> {
    /// Puts an append into the outbox, if the credit allows it.
    pub(crate) fn append(&mut self, binding: u32, batch: &Batch, ordinal: u64) -> bool {
        let state = &mut *self.state;
        if state.dead.is_some() {
            return false;
        }
        let bytes = request_bytes(batch);
        let after = state.unanswered_bytes + bytes;
        if state.unanswered_bytes > 0 && after > u64::from(self.conn.welcome.credit_bytes) {
            if !state.starved.contains(&self.slot) {
                state.starved.push_back(self.slot);
            }
            return false;
        }
        state.unanswered_bytes = after;
        let id = (self.slot << ORDINAL_BITS) | ordinal;
        state.outbox.push_append(binding, batch, id);
        true
    }
}

impl Drop for Sending<'_> {
    fn drop(&mut self) {
        let enough = self.state.held && self.state.is_worth_a_write();
        if enough || (self.was_idle && !self.state.outbox.is_empty()) {
            self.state.held = false;
            self.conn.wake_writer.notify_one();
        }
    }
}

/// What an append counts against the credit.
pub(crate) fn request_bytes(batch: &Batch) -> u64 {
    const HEAD: usize = sealog_protocol::HEADER_BYTES + 4;
    (HEAD + batch.as_bytes().len()) as u64
}

/// Forgets who waited for an answer when the waiting is over, one way or another.
struct Forget<'a> {
    conn: &'a Conn,
    id: u64,
}

impl Drop for Forget<'_> {
    fn drop(&mut self) {
        self.conn.lock().replies.remove(&self.id);
    }
}

#[cfg(test)]
mod tests;
