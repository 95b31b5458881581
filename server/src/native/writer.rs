//! Writer: sends answers as soon as what they rest on is durable, as many as there are in one write.
//!
//! **Invariants**
//! - It waits for logs, the outbox and the socket, never for the reader: acknowledgements flow though
//!   nothing can be read (NATIVE-5).
//!
//! **Not here**: what is sent (`appends`, `outbox`).

use std::future::poll_fn;
use std::pin::Pin;
use std::rc::Rc;
use std::task::Poll;

use sealog_engine::Listen;
use sealog_protocol::{Answer, CONNECTION};

use super::connection::{Connection, Phase};

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
                if self.stream.write_all(&parcel.bytes).await.is_err() {
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
