//! Body: what an answer carries: nothing, some bytes, or bytes as they come.
//!
//! **Invariants**
//! - Bytes as they come are asked for only when those before have been taken.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use futures_lite::Stream;
use hyper::body::{Bytes, Frame, SizeHint};

/// The body of an answer.
pub(crate) enum Body {
    /// All of it, once.
    Whole(Bytes),
    /// As it comes.
    Live(Pin<Box<dyn Stream<Item = Bytes>>>),
}

impl Body {
    /// No bytes.
    pub(crate) fn empty() -> Self {
        Self::Whole(Bytes::new())
    }
}

impl hyper::body::Body for Body {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        match &mut *self {
            Self::Whole(bytes) if bytes.is_empty() => Poll::Ready(None),
            Self::Whole(bytes) => Poll::Ready(Some(Ok(Frame::data(std::mem::take(bytes))))),
            Self::Live(stream) => stream
                .as_mut()
                .poll_next(cx)
                .map(|next| next.map(|bytes| Ok(Frame::data(bytes)))),
        }
    }

    fn is_end_stream(&self) -> bool {
        matches!(self, Self::Whole(bytes) if bytes.is_empty())
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Whole(bytes) => SizeHint::with_exact(bytes.len() as u64),
            Self::Live(_) => SizeHint::default(),
        }
    }
}
