//! Writer: sends answers as soon as what they rest on is durable, as many as there are in one write.
//!
//! **Invariants**
//! - It waits for logs, the outbox and the socket, never for the reader: acknowledgements flow though
//!   nothing can be read (NATIVE-5).
//! - It waits for the socket only while the other side takes something: one that stalls is given up, sooner
//!   when the server drains.
//! - One that takes too little of what others wait for the memory of is cut off, in time.
//!
//! **Not here**: what is sent (`appends`, `outbox`).

use std::future::poll_fn;
use std::pin::Pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use sealog_engine::Listen;
use sealog_protocol::{Answer, CONNECTION, ErrorCode};

use super::connection::{Connection, Phase};
use super::long::patience;
use super::pulse::MISSED_MAX;

/// The other side is given up when it has taken nothing for so long: nobody waits for it meanwhile.
const STALL: Duration = Duration::from_secs(60);
/// And when the server drains, or the client may be gone: others wait for the end.
const STALL_DRAINING: Duration = Duration::from_secs(2);
/// And when its time is over.
const STALL_LATE: Duration = Duration::from_secs(1);
/// How long a connection that is closed from here waits for the other side's end.
const LINGER: Duration = Duration::from_secs(1);

/// How often one that had its time is looked at: whether others wait.
const LOOK: Duration = Duration::from_secs(1);

impl Connection {
    /// Sends until the connection has ended.
    pub(super) async fn write(self: &Rc<Self>) {
        let mut listens = Vec::new();
        loop {
            listens.clear();
            listens.push(self.outbox.filled.listen());
            self.appends.listen(&mut listens);
            let late = self.phase() >= Phase::Late;
            self.appends
                .settle(late, &self.outbox, &self.service.meters);
            while let Some(parcel) = self.outbox.next() {
                if !self.put_out(&parcel.bytes).await {
                    return;
                }
                self.outbox.left(parcel);
                self.spoke_ns.set(self.service.side.monotonic_ns());
            }
            match self.phase() {
                Phase::Ended => return,
                Phase::Closing | Phase::Late if self.is_settled() && self.outbox.waiting() == 0 => {
                    self.part().await;
                    return;
                }
                _ => any(&mut listens).await,
            }
        }
    }

    /// Writes `bytes`; `false`: there is no use in writing more.
    async fn put_out(&self, bytes: &[u8]) -> bool {
        let written = async { self.stream.write_all(bytes).await.is_ok() };
        let given_up = async {
            futures_lite::future::or(self.stalled(), self.in_the_way(bytes.len())).await;
            false
        };
        futures_lite::future::or(written, given_up).await
    }

    /// Waits until the client has had its time for `bytes` and holds what others wait for.
    async fn in_the_way(&self, bytes: usize) {
        let side = &self.service.side;
        side.sleep(patience(bytes)).await;
        let holds = || self.outbox.waiting() > self.outbox.small();
        while !(holds() && self.service.memory.sending.is_contended()) {
            side.sleep(LOOK).await;
        }
        self.service.meters.cut.add(1);
    }

    /// Waits until the other side has taken nothing for as long as it may, or the connection has ended.
    async fn stalled(&self) {
        loop {
            let haste = || (self.phase(), self.service.is_draining());
            let (before, written) = (haste(), self.stream.written());
            let changed = async {
                let changed = || (haste() != before).then_some(());
                self.ending.until(changed).await;
                false
            };
            let late = async {
                self.service.side.sleep(self.stall()).await;
                true
            };
            let late = futures_lite::future::or(changed, late).await;
            if late && self.stream.written() == written {
                self.service.meters.refuse(ErrorCode::TimedOut);
                return;
            }
            if self.phase() == Phase::Ended {
                return;
            }
        }
    }

    /// How long the other side may take nothing.
    fn stall(&self) -> Duration {
        match self.heartbeat.get() {
            _ if self.phase() == Phase::Late => STALL_LATE,
            _ if self.service.is_draining() || self.has_left() => STALL_DRAINING,
            Some(beat) => beat * MISSED_MAX,
            None => STALL,
        }
    }

    /// The last words.
    async fn part(&self) {
        futures_lite::future::or(self.say_goodbye(), self.stalled()).await;
        // A socket that is closed with bytes unread takes back what it sent and the peer has not yet got.
        let rest = async { while self.discard().await {} };
        let enough = self.service.side.sleep(LINGER);
        futures_lite::future::or(rest, enough).await;
    }

    async fn say_goodbye(&self) {
        if self.service.is_draining() {
            let mut bytes = Vec::new();
            let answer = Answer::Goodbye {
                reason: "the server is going down",
            };
            answer.encode(CONNECTION, 0, &mut bytes);
            let _ = self.stream.write_all(&bytes).await;
        }
        self.stream.finish().await;
    }

    /// Reads and forgets; `false` at the end.
    async fn discard(&self) -> bool {
        let read = poll_fn(|cx| {
            let mut scratch = self.service.scratch.borrow_mut();
            self.stream.poll_read(cx, &mut scratch)
        });
        matches!(read.await, Ok(bytes) if bytes > 0)
    }
}

/// Waits for the first of `listens`.
async fn any(listens: &mut [Listen]) {
    poll_fn(|cx| {
        let ready = |listen: &mut Listen| Pin::new(listen).poll(cx).is_ready();
        match listens.iter_mut().any(ready) {
            true => Poll::Ready(()),
            false => Poll::Pending,
        }
    })
    .await;
}
