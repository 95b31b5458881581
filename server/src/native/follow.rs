//! Follow: records to readers: one answer, or one after another as credit and the socket allow.
//!
//! **Invariants**
//! - A reader that takes nothing holds one answer of at most [`SMALL_BYTES`] (or one batch): the next is
//!   read only when the last has left and credit is there. Answers are within the shard's budget.
//! - NATIVE-7: where to go on is the answer's `next`: no gap, no repeat.
//! - What waits, waits for the feed that had the name when it began, from the sequence that was meant then.
//!
//! **Not here**: where records come from (the engine).

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use sealog_engine::{Event, ReadChunk, ReadFrom, ReadRequest, Result};
use sealog_protocol::{Answer, MORE, Records, Rest};

use super::connection::{Connection, Phase};
use super::requests::{Asks, Kind};

/// Bytes of an answer to one of several readers, or to a follow: it may not be read, and longer ones are no
/// faster.
const SMALL_BYTES: usize = 64 << 10;
/// Bytes of an answer to a read that is alone on its connection.
const LARGE_BYTES: usize = 1 << 20;
/// A reader at the tail looks at its connection this often.
const LOOK: Duration = Duration::from_secs(5);

/// A follow under way.
struct Follow {
    /// Below 0 after a batch that was larger than what was left: the debt is paid first.
    credit: Cell<i64>,
    ended: Cell<bool>,
    changed: Event,
}

/// The follows of a connection, by request id.
#[derive(Default)]
pub(super) struct Follows(RefCell<BTreeMap<u64, Rc<Follow>>>);

impl Follows {
    pub(super) fn is_empty(&self) -> bool {
        self.0.borrow().is_empty()
    }

    pub(super) fn credit(&self, request: u64, bytes: u64) {
        if let Some(follow) = self.0.borrow().get(&request) {
            let bytes = i64::try_from(bytes).unwrap_or(i64::MAX);
            follow.credit.set(follow.credit.get().saturating_add(bytes));
            follow.changed.notify();
        }
    }

    pub(super) fn cancel(&self, request: u64) {
        if let Some(follow) = self.0.borrow().get(&request) {
            follow.ended.set(true);
            follow.changed.notify();
        }
    }

    /// Has all of them look at the connection's phase.
    pub(super) fn look(&self) {
        for follow in self.0.borrow().values() {
            follow.changed.notify();
        }
    }
}

impl Connection {
    /// One answer's worth.
    pub(super) fn read_once(self: &Rc<Self>, mut request: ReadRequest, wait_ms: u32, asks: Asks) {
        request.wait = Duration::from_millis(wait_ms.into());
        self.run_task(asks, Kind::Records, async move |connection| {
            connection.wait_for_socket().await;
            // Beside others the answers that are ready at the same time must be small.
            let most = match connection.running.get() {
                0 | 1 => LARGE_BYTES,
                _ => SMALL_BYTES,
            };
            request.bytes_max = request.bytes_max.clamp(1, most);
            match connection.read_until_closing(request).await {
                Ok(chunk) => {
                    connection.outbox.answered(asks.1);
                    connection.send(chunk, (asks.0, 0));
                }
                Err(error) => connection.answer_result(Err(error), asks),
            }
        });
    }

    /// Reads; what waits for records stops waiting when the connection is to end: the server drains.
    async fn read_until_closing(&self, mut request: ReadRequest) -> Result<ReadChunk> {
        let engine = self.service.side.handle();
        let sending = &self.service.memory.sending;
        if request.wait.is_zero() {
            return engine.read_within(request, sending).await;
        }
        self.pin(&mut request).await?;
        let at_once = ReadRequest {
            wait: Duration::ZERO,
            ..request.clone()
        };
        let closing = async {
            let closing = || (self.phase() >= Phase::Closing).then_some(());
            self.ending.until(closing).await;
            engine.read_within(at_once, sending).await
        };
        futures_lite::future::or(engine.read_within(request, sending), closing).await
    }

    /// Makes `request` one for this feed from this sequence on, whatever becomes of name and tail; gives
    /// what an answer without records is.
    async fn pin(&self, request: &mut ReadRequest) -> Result<ReadChunk> {
        let engine = self.service.side.handle();
        let place = ReadRequest {
            bytes_max: 0,
            wait: Duration::ZERO,
            ..request.clone()
        };
        let chunk = engine.read(place).await?;
        request.id = Some(chunk.feed);
        request.from = ReadFrom::Sequence(chunk.next);
        Ok(chunk)
    }

    /// Records as they come.
    pub(super) fn follow(self: &Rc<Self>, request: ReadRequest, credit: u64, asks: Asks) {
        let follow = Rc::new(Follow {
            credit: Cell::new(i64::try_from(credit).unwrap_or(i64::MAX)),
            ended: Cell::new(false),
            changed: Event::new(),
        });
        // Before it is put in: the one under way must stay where its end is looked for.
        if self.follows.0.borrow().contains_key(&asks.0) {
            self.fail(super::refuse::bad_message(
                "a follow with this request id is under way",
            ));
            return;
        }
        self.follows.0.borrow_mut().insert(asks.0, follow.clone());
        self.run_task(asks, Kind::Records, async move |connection| {
            let known = Known(connection, asks.0);
            let done = connection.send_records(request, &follow, asks.0).await;
            drop(known);
            connection.outbox.answered(asks.1);
            match done {
                Ok(last) => connection.send(last, (asks.0, 0)),
                Err(error) => connection.answer_result(Err(error), (asks.0, 0)),
            }
        });
    }

    /// Sends answers until the scope, or the follow, ends; gives the last one, without [`MORE`].
    async fn send_records(
        &self,
        mut request: ReadRequest,
        follow: &Follow,
        id: u64,
    ) -> Result<ReadChunk> {
        self.pin(&mut request).await?;
        let bytes_max = request.bytes_max.clamp(1, SMALL_BYTES);
        request.wait = LOOK;
        loop {
            self.wait_for_credit(follow).await;
            self.wait_for_socket().await;
            if self.is_over(follow) {
                return self.pin(&mut request).await;
            }
            let credit = usize::try_from(follow.credit.get()).unwrap_or(usize::MAX);
            request.bytes_max = bytes_max.min(credit);
            let chunk = self.read_unless_over(&request, follow).await?;
            let Some(chunk) = chunk else {
                return self.pin(&mut request).await;
            };
            request.from = ReadFrom::Sequence(chunk.next);
            if chunk.ended {
                return Ok(chunk);
            }
            // An answer that only goes over a gap is one, too: each begins where the one before ended.
            if chunk.frames.is_empty() && chunk.next == chunk.first {
                continue;
            }
            let bytes = i64::try_from(chunk.frames.len()).unwrap_or(i64::MAX);
            follow.credit.set(follow.credit.get().saturating_sub(bytes));
            self.send(chunk, (id, MORE));
        }
    }

    /// Reads; `None` if the follow ended meanwhile.
    async fn read_unless_over(
        &self,
        request: &ReadRequest,
        follow: &Follow,
    ) -> Result<Option<ReadChunk>> {
        let read = async {
            let engine = self.service.side.handle();
            let sending = &self.service.memory.sending;
            engine.read_within(request.clone(), sending).await.map(Some)
        };
        let over = async {
            let over = || self.is_over(follow).then_some(());
            follow.changed.until(over).await;
            Ok(None)
        };
        futures_lite::future::or(read, over).await
    }

    fn is_over(&self, follow: &Follow) -> bool {
        follow.ended.get() || self.phase() >= Phase::Closing
    }

    async fn wait_for_credit(&self, follow: &Follow) {
        let free = || (follow.credit.get() > 0 || self.is_over(follow)).then_some(());
        follow.changed.until(free).await;
    }

    /// Waits until what was put out has left.
    async fn wait_for_socket(&self) {
        let free = || (self.outbox.waiting() == 0 || self.phase() == Phase::Ended).then_some(());
        self.outbox.emptied.until(free).await;
    }

    fn send(&self, chunk: ReadChunk, (request, flags): (u64, u8)) {
        let records = Records {
            first: chunk.first,
            next: chunk.next,
            tail: chunk.tail,
            ended: chunk.ended,
            fingerprints: chunk.fingerprints,
            frames: Rest(&[]),
        };
        let bytes = chunk.frames.len();
        self.service.meters.sent_bytes.add(bytes as u64);
        self.outbox.put_with(0, |out| {
            Answer::encode_records_head(&records, bytes, (request, flags), out);
        });
        self.outbox.put_whole(chunk.frames, 0, chunk.held);
        self.outbox.filled.notify();
    }
}

/// A follow that credit and cancel find, for as long as it runs.
struct Known<'a>(&'a Connection, u64);

impl Drop for Known<'_> {
    fn drop(&mut self) {
        self.0.follows.0.borrow_mut().remove(&self.1);
    }
}
