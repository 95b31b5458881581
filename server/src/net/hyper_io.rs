//! Hyper: a connection of a shard as hyper reads and writes it.
//!
//! **Invariants**
//! - What was read to tell one protocol from another is given first.
//!
//! **Not here**: which protocol it is (`http`).

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use hyper::rt::{Read, ReadBufCursor, Write};

use super::Stream;

/// Bytes taken from the socket at once.
const READ_BYTES: usize = 16 << 10;

/// A connection.
pub(crate) struct HyperIo {
    stream: Stream,
    /// Read already.
    ahead: Vec<u8>,
}

impl HyperIo {
    /// `ahead` was read of `stream` already.
    pub(crate) fn new(stream: Stream, ahead: Vec<u8>) -> Self {
        Self { stream, ahead }
    }
}

impl Read for HyperIo {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        mut buf: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        if !self.ahead.is_empty() {
            let given = self.ahead.len().min(buf.remaining());
            buf.put_slice(&self.ahead[..given]);
            self.ahead.drain(..given);
            return Poll::Ready(Ok(()));
        }
        let mut bytes = [0; READ_BYTES];
        let most = bytes.len().min(buf.remaining());
        let read = ready!(self.stream.poll_read(cx, &mut bytes[..most]))?;
        buf.put_slice(&bytes[..read]);
        Poll::Ready(Ok(()))
    }
}

impl Write for HyperIo {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.stream.poll_write(cx, buf)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stream.poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stream.poll_finish(cx)
    }
}
