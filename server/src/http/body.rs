//! Body: what an answer carries: nothing, some bytes, or bytes as they come.
//!
//! **Invariants**
//! - Bytes as they come are asked for only when those before have been taken.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use futures_lite::Stream;
use hyper::body::{Bytes, Frame, SizeHint};

use super::pulse::Running;

/// The body of an answer, and its request, which runs until it has been handed over.
pub(crate) struct Body {
    content: Content,
    running: Option<Running>,
}

enum Content {
    /// All of it, once.
    Whole(Bytes),
    /// As it comes.
    Live(Pin<Box<dyn Stream<Item = Bytes>>>),
    /// As it comes, from elsewhere.
    Taken,
}

impl Body {
    /// No bytes.
    pub(crate) fn empty() -> Self {
        Self::whole(Bytes::new())
    }

    /// These bytes.
    pub(crate) fn whole(bytes: impl Into<Bytes>) -> Self {
        let content = Content::Whole(bytes.into());
        Self {
            content,
            running: None,
        }
    }

    /// Bytes as they come.
    pub(crate) fn live(stream: impl Stream<Item = Bytes> + 'static) -> Self {
        let content = Content::Live(Box::pin(stream));
        Self {
            content,
            running: None,
        }
    }

    /// Bytes as they come are taken to be sent by who takes them; what is left comes to no byte and no end.
    pub(super) fn take_live(&mut self) -> Option<Self> {
        let left = Self {
            content: Content::Taken,
            running: None,
        };
        let is_live = matches!(self.content, Content::Live(_));
        is_live.then(|| std::mem::replace(self, left))
    }

    /// The next bytes; `None` at the end.
    pub(super) fn poll_bytes(&mut self, cx: &mut Context<'_>) -> Poll<Option<Bytes>> {
        match &mut self.content {
            Content::Whole(bytes) if bytes.is_empty() => Poll::Ready(None),
            Content::Whole(bytes) => Poll::Ready(Some(std::mem::take(bytes))),
            Content::Live(stream) => stream.as_mut().poll_next(cx),
            Content::Taken => Poll::Pending,
        }
    }

    /// Keeps the request running until the body has been handed over.
    pub(super) fn until_sent(mut self, running: Running) -> Self {
        self.running = Some(running);
        self
    }
}

impl hyper::body::Body for Body {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let next = self.poll_bytes(cx);
        next.map(|next| next.map(|bytes| Ok(Frame::data(bytes))))
    }

    fn is_end_stream(&self) -> bool {
        matches!(&self.content, Content::Whole(bytes) if bytes.is_empty())
    }

    fn size_hint(&self) -> SizeHint {
        match &self.content {
            Content::Whole(bytes) => SizeHint::with_exact(bytes.len() as u64),
            Content::Live(_) | Content::Taken => SizeHint::default(),
        }
    }
}
