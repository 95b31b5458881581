//! Hyper: a connection of a shard as hyper reads and writes it.
//!
//! **Invariants**
//! - Whatever comes, leaves or does not is noted in the connection's pulse.
//! - Bytes that were looked at ahead are read again, in their order.
//!
//! **Not here**: which protocol it is (`http`).

use std::cell::RefCell;
use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use hyper::rt::{Read, ReadBufCursor, Write};
use sealog_engine::ShardSide;

use super::Stream;
use crate::http::Pulse;

/// Bytes taken from a socket at once.
const READ_BYTES: usize = 16 << 10;
/// What an HTTP/2 client begins with.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Where bytes land first, for all connections of a shard.
#[derive(Clone)]
pub(crate) struct Scratch(Rc<RefCell<Vec<u8>>>);

impl Default for Scratch {
    fn default() -> Self {
        Self(Rc::new(RefCell::new(vec![0; READ_BYTES])))
    }
}

/// A connection.
pub(crate) struct HyperIo {
    stream: Stream,
    pulse: Rc<Pulse>,
    side: ShardSide,
    scratch: Scratch,
    /// Bytes that came and are still to be read.
    ahead: Vec<u8>,
}

impl HyperIo {
    pub(crate) fn new(
        stream: Stream,
        (pulse, side): (Rc<Pulse>, ShardSide),
        scratch: Scratch,
    ) -> Self {
        Self {
            stream,
            pulse,
            side,
            scratch,
            ahead: Vec::new(),
        }
    }

    /// Whether the client speaks HTTP/2 with prior knowledge; waits for as many bytes as that takes.
    ///
    /// # Cancel safety
    /// Cancel safe: what came is still to be read.
    pub(crate) async fn is_http2(&mut self) -> io::Result<bool> {
        loop {
            let seen = self.ahead.len().min(PREFACE.len());
            if self.ahead[..seen] != PREFACE[..seen] {
                return Ok(false);
            }
            if seen == PREFACE.len() {
                return Ok(true);
            }
            if poll_fn(|cx| self.poll_ahead(cx)).await? == 0 {
                return Ok(false);
            }
        }
    }

    /// Puts bytes back that were read and not used.
    pub(crate) fn put_back(&mut self, bytes: &[u8]) {
        self.ahead.splice(..0, bytes.iter().copied());
    }

    /// Ready when the client has gone. What it sends meanwhile is still to be read, and a going behind it is
    /// not seen.
    pub(crate) fn poll_gone(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        match self.ahead.is_empty() {
            false => Poll::Pending,
            true => match ready!(self.poll_ahead(cx)) {
                Ok(0) | Err(_) => Poll::Ready(()),
                Ok(_) => Poll::Pending,
            },
        }
    }

    /// Takes more bytes from the socket; how many, 0 at the end.
    fn poll_ahead(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        let scratch = &mut *self.scratch.0.borrow_mut();
        let read = ready!(self.stream.poll_read(cx, scratch))?;
        if read > 0 {
            self.pulse.received(|| self.side.monotonic_ns());
        }
        self.ahead.extend_from_slice(&scratch[..read]);
        Poll::Ready(Ok(read))
    }
}

impl Read for HyperIo {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        mut buf: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        if !self.ahead.is_empty() {
            let most = self.ahead.len().min(buf.remaining());
            buf.put_slice(&self.ahead[..most]);
            self.ahead.drain(..most);
            if self.ahead.is_empty() {
                self.ahead = Vec::new();
            }
            return Poll::Ready(Ok(()));
        }
        let mut scratch = self.scratch.0.borrow_mut();
        let most = scratch.len().min(buf.remaining());
        let bytes = &mut scratch[..most];
        let read = ready!(self.stream.poll_read(cx, bytes))?;
        if read > 0 {
            self.pulse.received(|| self.side.monotonic_ns());
        }
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
        let written = self.stream.poll_write(cx, buf);
        let is_taken = written.is_ready();
        self.pulse.sent(is_taken, || self.side.monotonic_ns());
        written
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = self.stream.poll_write_vectored(cx, bufs);
        let is_taken = written.is_ready();
        self.pulse.sent(is_taken, || self.side.monotonic_ns());
        written
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = self.stream.poll_flush(cx);
        let is_taken = flushed.is_ready();
        self.pulse.sent(is_taken, || self.side.monotonic_ns());
        flushed
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stream.poll_finish(cx)
    }
}
