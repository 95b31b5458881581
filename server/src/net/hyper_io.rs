//! Hyper: a connection of a shard as hyper reads and writes it.
//!
//! **Invariants**
//! - Whatever comes, leaves or does not is noted in the connection's pulse.
//!
//! **Not here**: which protocol it is (`http`).

use std::cell::RefCell;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use hyper::rt::{Read, ReadBufCursor, Write};
use sealog_engine::ShardSide;

use super::Stream;
use crate::http::Pulse;

/// Bytes taken from a socket at once.
const READ_BYTES: usize = 16 << 10;

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
        }
    }
}

impl Read for HyperIo {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        mut buf: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
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

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stream.poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stream.poll_finish(cx)
    }
}
