//! HTTP/1: a connection's requests by hyper; answers that come bit by bit are sent here once their head is out.
//!
//! ```text
//!  hyper: request, head of the answer -> it is live? -> hyper and its buffers go -> chunks -> hyper ...
//! ```
//!
//! **Invariants**
//! - A connection that sends as it comes keeps no buffers: hyper's are 16 KiB, and most connections wait for events.
//! - Hyper is left only when all that it wrote has been taken; what it has read and not used is read again.
//!
//! **Not here**: what is sent (`body`), HTTP/2 (`connection`).

use std::cell::Cell;
use std::convert::Infallible;
use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::Poll;

use hyper::body::{Buf, Bytes, Incoming};
use hyper::header::{CONNECTION, HeaderMap};
use hyper::rt::Write;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response, Version};

use super::{Body, HttpService, Pulse, answer};
use crate::net::HyperIo;

/// Bytes of a request's head.
const HEAD_BYTES_MAX: usize = 64 << 10;
/// Behind a chunk.
const CHUNK_END: &[u8] = b"\r\n";
/// Behind all chunks.
const LAST_CHUNK: &[u8] = b"0\r\n\r\n";

/// What is to be sent when hyper has written the head.
struct Live {
    body: Body,
    /// The connection ends with it.
    closes: bool,
}

impl HttpService {
    pub(super) async fn http1(self: &Rc<Self>, mut io: HyperIo, pulse: &Rc<Pulse>) {
        loop {
            // Boxed: what hyper keeps is gone while the rest is sent.
            let Some((back, live)) = Box::pin(self.until_live(io, pulse)).await else {
                return;
            };
            io = back;
            let closes = live.closes;
            if send(&mut io, live.body).await.is_err() || closes || self.draining.get() {
                // The client may have gone already.
                let _ = poll_fn(|cx| Pin::new(&mut io).poll_shutdown(cx)).await;
                return;
            }
        }
    }

    /// Answers requests until one's answer is to be sent as it comes; `None`: the connection has ended.
    async fn until_live(
        self: &Rc<Self>,
        io: HyperIo,
        pulse: &Rc<Pulse>,
    ) -> Option<(HyperIo, Live)> {
        let found: Rc<Cell<Option<Live>>> = Rc::default();
        let answer = service_fn(|request| self.answer_or_live(request, pulse, &found));
        let mut connection = http1::Builder::new()
            .max_buf_size(HEAD_BYTES_MAX)
            .serve_connection(io, answer);
        let mut draining = pin!(self.until_draining());
        let mut told = false;
        let live = poll_fn(|cx| {
            if !told && draining.as_mut().poll(cx).is_ready() {
                told = true;
                Pin::new(&mut connection).graceful_shutdown();
            }
            // If it ends: what was wrong with it only its client could mend.
            if Pin::new(&mut connection).poll(cx).is_ready() {
                return Poll::Ready(None);
            }
            // Hyper writes a head as soon as it is answered, and goes on to flush it.
            match found.take() {
                Some(live) if !pulse.is_stalled() => Poll::Ready(Some(live)),
                later => {
                    found.set(later);
                    Poll::Pending
                }
            }
        });
        let live = live.await?;
        let parts = connection.into_parts();
        let mut io = parts.io;
        io.put_back(&parts.read_buf);
        Some((io, live))
    }

    /// The answer, of which `found` is told if its body is live.
    async fn answer_or_live(
        self: &Rc<Self>,
        request: Request<Incoming>,
        pulse: &Rc<Pulse>,
        found: &Cell<Option<Live>>,
    ) -> Result<Response<Body>, Infallible> {
        // What has no chunks ends with the connection: hyper does that.
        let has_chunks = request.version() == Version::HTTP_11;
        let closes = is_last(request.headers());
        let mut response = answer(self.clone(), request, pulse.clone()).await?;
        if has_chunks && let Some(body) = response.body_mut().take_live() {
            let closes = closes || is_last(response.headers());
            found.set(Some(Live { body, closes }));
        }
        Ok(response)
    }
}

/// Whether the connection is to end behind this message.
fn is_last(headers: &HeaderMap) -> bool {
    let values = headers.get_all(CONNECTION).iter();
    let mut words = values.flat_map(|value| value.as_bytes().split(|byte| *byte == b','));
    words.any(|word| word.trim_ascii().eq_ignore_ascii_case(b"close"))
}

/// Sends a body in chunks, to its end.
async fn send(io: &mut HyperIo, mut body: Body) -> io::Result<()> {
    loop {
        let next = poll_fn(|cx| match io.poll_gone(cx) {
            Poll::Ready(()) => Poll::Ready(Err(io::ErrorKind::ConnectionAborted)),
            Poll::Pending => body.poll_bytes(cx).map(Ok),
        });
        match next.await? {
            Some(bytes) => send_chunk(io, bytes).await?,
            None => return send_all(io, LAST_CHUNK).await,
        }
    }
}

async fn send_chunk(io: &mut HyperIo, bytes: Bytes) -> io::Result<()> {
    if bytes.is_empty() {
        return Ok(()); // It would be the last.
    }
    let head = format!("{:x}\r\n", bytes.len());
    send_all(io, head.as_bytes().chain(bytes).chain(CHUNK_END)).await
}

/// Sends all of `bytes`, without copying them.
async fn send_all(io: &mut HyperIo, mut bytes: impl Buf) -> io::Result<()> {
    poll_fn(|cx| {
        while bytes.has_remaining() {
            let mut pieces = [IoSlice::new(&[]); 3];
            let count = bytes.chunks_vectored(&mut pieces);
            let writing = Pin::new(&mut *io).poll_write_vectored(cx, &pieces[..count]);
            match std::task::ready!(writing)? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                written => bytes.advance(written),
            }
        }
        Pin::new(&mut *io).poll_flush(cx)
    })
    .await
}
