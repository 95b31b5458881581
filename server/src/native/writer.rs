//! Writer: sends answers as soon as what they rest on is durable, as many as there are in one write.
//!
//! **Invariants**
//! - It waits for logs, the outbox and the socket, never for the reader: acknowledgements flow though
//!   nothing can be read (NATIVE-5).
//! - A client that does not take what others wait for the memory of is cut off, in time.
//!
//! **Not here**: what is sent (`appends`, `outbox`).

use std::future::poll_fn;
use std::pin::Pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use sealog_engine::Listen;
use sealog_protocol::{Answer, CONNECTION};

use super::connection::{Connection, Phase};
use super::long::patience;

/// How long a connection that is closed from here waits for the other side's end.
const LINGER: Duration = Duration::from_secs(1);

/// How often a client that stalls is looked at.
const LOOK: Duration = Duration::from_secs(1);

impl Connection {
    /// Sends until the connection has ended.
    pub(super) async fn write(self: &Rc<Self>) {
        let mut listens = Vec::new();
        loop {
            listens.clear();
            listens.push(self.outbox.filled.listen());
            self.appends.listen(&mut listens);
            self.appends.settle(&self.outbox, &self.service.meters);
            while let Some(parcel) = self.outbox.next() {
                let sent = self.stream.write_all(&parcel.bytes);
                let stalled = self.stalled(parcel.bytes.len());
                if futures_lite::future::or(sent, stalled).await.is_err() {
                    return;
                }
                self.outbox.left(parcel);
                self.spoke_ns.set(self.service.side.monotonic_ns());
            }
            match self.phase() {
                Phase::Ended => return,
                Phase::Closing if self.is_settled() && self.outbox.waiting() == 0 => {
                    self.part().await;
                    return;
                }
                _ => any(&mut listens).await,
            }
        }
    }

    /// Ends when the client has had its time for `bytes` and holds what others wait for.
    async fn stalled(&self, bytes: usize) -> std::io::Result<()> {
        let side = &self.service.side;
        side.sleep(patience(bytes)).await;
        let holds = || self.outbox.waiting() > self.outbox.small();
        while !(holds() && self.service.memory.sending.is_contended()) {
            side.sleep(LOOK).await;
        }
        self.service.meters.cut.add(1);
        Err(std::io::ErrorKind::TimedOut.into())
    }

    /// The last words.
    async fn part(&self) {
        if self.service.is_draining() {
            let mut bytes = Vec::new();
            let answer = Answer::Goodbye {
                reason: "the server is going down",
            };
            answer.encode(CONNECTION, 0, &mut bytes);
            let _ = self.stream.write_all(&bytes).await;
        }
        self.stream.finish().await;
        // A socket that is closed with bytes unread takes back what it sent and the peer has not yet got.
        let rest = async { while self.discard().await {} };
        let enough = self.service.side.sleep(LINGER);
        futures_lite::future::or(rest, enough).await;
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
