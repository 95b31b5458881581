//! HTTP: the shards' second front end: HTTP/1.1, and HTTP/2 with prior knowledge, on one port.
//!
//! ```text
//!  socket -> TLS? -> "PRI "? -> hyper -> path: /v1/stream/... -> durable_streams -> engine
//! ```
//!
//! **Invariants**
//! - A connection lives and dies on the shard that accepted it; streams of other shards are asked by channel.
//! - After `drain` no connection is begun; those there are finish what they were asked and close.
//!
//! **Not here**: what a protocol says (`durable_streams`), sockets (`net`).

mod body;
mod durable_streams;

use std::cell::Cell;
use std::convert::Infallible;
use std::future::poll_fn;
use std::pin::pin;
use std::rc::Rc;
use std::sync::{Arc, OnceLock};
use std::task::Poll;
use std::time::Duration;

use hyper::body::Incoming;
use hyper::header::AUTHORIZATION;
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use rustls::ServerConfig;
use sealog_engine::{Event, ShardSide};

pub(crate) use self::body::Body;
pub(crate) use self::durable_streams::{Courier, CourierOptions, Keys, Lifetimes};
use crate::native::same_token;
use crate::net::{HyperIo, Listener, Stream};

/// Bytes of a request's head.
const HEAD_BYTES_MAX: usize = 64 << 10;
/// Streams of an HTTP/2 connection at once.
const H2_STREAMS_MAX: u32 = 256;
/// What HTTP/2 begins with.
const H2_PREFACE: &[u8] = b"PRI ";
/// Until the first bytes of a connection, handshake included.
const FIRST_BYTES_TIMEOUT: Duration = Duration::from_secs(10);

/// What the operator sets.
#[derive(Clone)]
pub(crate) struct HttpOptions {
    /// Connections per shard.
    pub(crate) connections_max: usize,
    /// Who may ask; none: anybody.
    pub(crate) token: Option<Vec<u8>>,
    /// Connections are under TLS.
    pub(crate) tls: Option<Arc<ServerConfig>>,
    /// What all shards know of streams that end by themselves.
    pub(crate) lifetimes: Arc<Lifetimes>,
    /// What signs webhooks and proves tokens, once the engine is open.
    pub(crate) keys: Arc<OnceLock<Arc<Keys>>>,
    /// Webhooks may be on this machine.
    pub(crate) loopback_webhooks: bool,
}

/// The front end on one shard.
pub(crate) struct HttpService {
    side: ShardSide,
    options: HttpOptions,
    open: Cell<usize>,
    draining: Cell<bool>,
    /// Notified when draining begins, and when a connection ends.
    changed: Event,
}

impl HttpService {
    pub(crate) fn new(side: ShardSide, options: HttpOptions) -> Rc<Self> {
        Rc::new(Self {
            side,
            options,
            open: Cell::new(0),
            draining: Cell::new(false),
            changed: Event::new(),
        })
    }

    /// Serves what `listener` accepts, until the shard drains.
    pub(crate) fn serve(self: &Rc<Self>, listener: Listener) {
        let service = self.clone();
        self.side.spawn("http accept", async move {
            while let Some(stream) = service.next(&listener).await {
                let service = service.clone();
                service.open.set(service.open.get() + 1);
                service.side.clone().spawn("http connection", async move {
                    service.clone().connection(stream).await;
                    service.open.set(service.open.get() - 1);
                    service.changed.notify();
                });
            }
        });
    }

    async fn next(&self, listener: &Listener) -> Option<Stream> {
        loop {
            let room = || {
                let room = self.open.get() < self.options.connections_max;
                (room || self.draining.get()).then_some(())
            };
            self.changed.until(room).await;
            let accepted = async { Some(listener.accept().await) };
            let draining = async {
                self.until_draining().await;
                None
            };
            match futures_lite::future::or(accepted, draining).await? {
                Ok(stream) => return Some(stream),
                // No descriptor left, or the caller has gone.
                Err(_) => self.side.sleep(Duration::from_millis(10)).await,
            }
        }
    }

    /// Completes when the shard drains.
    async fn until_draining(&self) {
        let draining = || self.draining.get().then_some(());
        self.changed.until(draining).await;
    }

    async fn connection(self: Rc<Self>, stream: Stream) {
        let late = async {
            self.side.sleep(FIRST_BYTES_TIMEOUT).await;
            None
        };
        let draining = async {
            self.until_draining().await;
            None
        };
        let begun =
            futures_lite::future::or(self.begin(stream), futures_lite::future::or(late, draining));
        let Some((stream, ahead)) = begun.await else {
            return;
        };
        let is_h2 = ahead.starts_with(H2_PREFACE);
        let io = HyperIo::new(stream, ahead);
        let service = self.clone();
        let answer = service_fn(move |request| answer(service.clone(), request));
        if is_h2 {
            let mut builder = http2::Builder::new(OnShard(self.side.clone()));
            builder.max_concurrent_streams(H2_STREAMS_MAX);
            let mut connection = pin!(builder.serve_connection(io, answer));
            let ended = poll_fn(|cx| connection.as_mut().poll(cx).map(drop));
            if self.ended_or_draining(ended).await {
                connection.as_mut().graceful_shutdown();
                let _ = connection.await;
            }
        } else {
            let mut builder = http1::Builder::new();
            builder.max_buf_size(HEAD_BYTES_MAX);
            let mut connection = pin!(builder.serve_connection(io, answer));
            let ended = poll_fn(|cx| connection.as_mut().poll(cx).map(drop));
            if self.ended_or_draining(ended).await {
                connection.as_mut().graceful_shutdown();
                let _ = connection.await;
            }
        }
    }

    /// Whether draining began before `ended` did.
    async fn ended_or_draining(&self, ended: impl Future<Output = ()>) -> bool {
        let ended = async {
            ended.await;
            false
        };
        let draining = async {
            self.until_draining().await;
            true
        };
        futures_lite::future::or(ended, draining).await
    }

    /// TLS, and the bytes that tell HTTP/2 from what was before.
    async fn begin(&self, stream: Stream) -> Option<(Stream, Vec<u8>)> {
        let stream = match &self.options.tls {
            Some(config) => stream.shake_hands(config.clone()).await.ok()?,
            None => stream,
        };
        let mut ahead = Vec::new();
        while H2_PREFACE.starts_with(&ahead) && ahead.len() < H2_PREFACE.len() {
            let mut bytes = [0; 512];
            let read = poll_fn(|cx| stream.poll_read(cx, &mut bytes)).await.ok()?;
            if read == 0 {
                return None;
            }
            ahead.extend_from_slice(&bytes[..read]);
        }
        Some((stream, ahead))
    }

    /// Ends accepting; connections finish what they were asked, and close.
    pub(crate) fn drain(&self) {
        self.draining.set(true);
        self.changed.notify();
    }

    /// Waits until no connection is left.
    pub(crate) async fn drained(&self) {
        let ended = || (self.draining.get() && self.open.get() == 0).then_some(());
        self.changed.until(ended).await;
    }
}

/// Starts hyper's tasks on the shard.
#[derive(Clone)]
struct OnShard(ShardSide);

impl<F: Future<Output = ()> + 'static> hyper::rt::Executor<F> for OnShard {
    fn execute(&self, future: F) {
        self.0.spawn("http stream", future);
    }
}

async fn answer(
    service: Rc<HttpService>,
    request: Request<Incoming>,
) -> Result<Response<Body>, Infallible> {
    if !service.is_allowed(&request) {
        let refused = "a bearer token is needed: Authorization: Bearer TOKEN";
        return Ok(durable_streams::refusal(StatusCode::UNAUTHORIZED, refused));
    }
    let is_stream = durable_streams::is_route(request.uri().path());
    Ok(match is_stream {
        true => durable_streams::answer(service, request).await,
        false => durable_streams::refusal(StatusCode::NOT_FOUND, "streams are at /v1/stream/NAME"),
    })
}

impl HttpService {
    /// Whether who asks has the server's token, if it has one. Browsers ask without it what they may send.
    fn is_allowed(&self, request: &Request<Incoming>) -> bool {
        let Some(token) = &self.options.token else {
            return true;
        };
        let given = request.headers().get(AUTHORIZATION);
        let given = given.and_then(|value| value.as_bytes().strip_prefix(b"Bearer "));
        request.method() == Method::OPTIONS
            || durable_streams::has_own_token(request.uri().path())
            || given.is_some_and(|given| same_token(given, token))
    }

    /// Runs `work` unless the shard drains first.
    pub(crate) async fn unless_draining<T>(&self, work: impl Future<Output = T>) -> Poll<T> {
        let work = async { Poll::Ready(work.await) };
        let draining = async {
            self.until_draining().await;
            Poll::Pending
        };
        futures_lite::future::or(work, draining).await
    }
}
