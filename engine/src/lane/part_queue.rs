//! PartQueue: the parts of a pack on their way to the bucket, one at a time and in order.
//!
//! **Invariants**
//! - A part is sent only after the one before it was taken.
//! - After an error nothing more is sent.
//!
//! **Not here**: what the parts hold (`pack_writer`).

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use flume::r#async::RecvFut;

use crate::env::{AlignedBuf, BucketError, Upload};
use crate::error::{Error, Result};

type Sending<U> = Pin<Box<dyn Future<Output = (U, std::result::Result<(), BucketError>)>>>;

/// Takes parts from any thread; sends them while its owner waits for something in it.
pub(super) struct PartQueue<U: Upload> {
    entrance: flume::Sender<AlignedBuf>,
    waiting: flume::Receiver<AlignedBuf>,
    next: Option<RecvFut<'static, AlignedBuf>>,
    /// The upload, unless a part is being sent or one failed.
    upload: Option<U>,
    sending: Option<Sending<U>>,
}

impl<U: Upload> PartQueue<U> {
    pub(super) fn new(upload: U) -> Self {
        let (entrance, waiting) = flume::unbounded();
        Self {
            entrance,
            waiting,
            next: None,
            upload: Some(upload),
            sending: None,
        }
    }

    /// Parts that wait.
    pub(super) fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Where parts go in.
    pub(super) fn entrance(&self) -> flume::Sender<AlignedBuf> {
        self.entrance.clone()
    }

    /// Waits for `work`; sends meanwhile.
    pub(super) async fn beside<T>(&mut self, work: impl Future<Output = T>) -> (T, Result<()>) {
        let mut work = pin!(work);
        let mut sent = Ok(());
        poll_fn(|cx| {
            if sent.is_ok()
                && let Poll::Ready(Err(error)) = self.poll_send(cx)
            {
                sent = Err(error);
            }
            let done = ready!(work.as_mut().poll(cx));
            Poll::Ready((done, std::mem::replace(&mut sent, Ok(()))))
        })
        .await
    }

    /// Waits until no more than `left` parts wait.
    pub(super) async fn drain_to(&mut self, left: usize) -> Result<()> {
        poll_fn(|cx| match self.poll_send(cx) {
            Poll::Pending if self.len() <= left => Poll::Ready(Ok(())),
            polled => polled,
        })
        .await
    }

    /// Sends all that is left; the upload, to be finished.
    pub(super) async fn finish(mut self) -> Result<U> {
        poll_fn(|cx| match self.poll_send(cx) {
            Poll::Pending if self.upload.is_some() => Poll::Ready(Ok(())),
            polled => polled,
        })
        .await?;
        self.upload.take().ok_or(Error::Closed)
    }

    /// Sends what there is; pending until there is more, or an error. Nothing is being sent, and
    /// nothing waits, if it is pending with the upload at home.
    fn poll_send(&mut self, cx: &mut Context<'_>) -> Poll<Result<()>> {
        loop {
            if let Some(sending) = &mut self.sending {
                let (upload, sent) = ready!(sending.as_mut().poll(cx));
                self.sending = None;
                sent?;
                self.upload = Some(upload);
            }
            let waiting = &self.waiting;
            let next = self
                .next
                .get_or_insert_with(|| waiting.clone().into_recv_async());
            let part = ready!(Pin::new(next).poll(cx));
            self.next = None;
            let (Ok(part), Some(mut upload)) = (part, self.upload.take()) else {
                return Poll::Ready(Err(Error::Closed));
            };
            self.sending = Some(Box::pin(async move {
                let sent = upload.part(Arc::new(part)).await;
                (upload, sent)
            }));
        }
    }
}
