//! HTTP: the shards' second front end: HTTP/1.1, and HTTP/2 with prior knowledge, on one port.
//!
//! ```text
//!  socket -> TLS? -> hyper [pulse] -> path: /v1/stream/... -> durable_streams -> engine
//!                                                 body [intake]
//! ```
//!
//! **Invariants**
//! - A connection lives and dies on the shard that accepted it; streams of other shards are asked by channel.
//! - After `drain` no connection is begun; those there are finish what they were asked and close.
//!
//! **Not here**: what a protocol says (`durable_streams`), sockets (`net`).

mod body;
mod connection;
mod durable_streams;
mod http1;
mod intake;
mod pulse;

use std::cell::Cell;
use std::convert::Infallible;
use std::rc::Rc;
use std::sync::{Arc, OnceLock};
use std::task::Poll;

use hyper::body::{Body as _, Incoming};
use hyper::header::{AUTHORIZATION, CONNECTION, EXPECT, HeaderValue};
use hyper::http::request::Parts;
use hyper::{Method, Request, Response, StatusCode, Version};
use rustls::ServerConfig;
use sealog_engine::{Budget, Event, ShardSide};

pub(crate) use self::body::Body;
pub(crate) use self::durable_streams::{Courier, CourierOptions, Keys, Lifetimes};
use self::durable_streams::{Fans, Known};
use self::intake::hear_out;
pub(crate) use self::pulse::Pulse;
use self::pulse::{Pulses, Running};
use crate::native::same_token;
use crate::net::Scratch;

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
    /// Bodies of requests.
    receiving: Budget,
    /// Records on their way out.
    sending: Budget,
    pulses: Pulses,
    traits: Known,
    scratch: Scratch,
    fans: Fans,
    draining: Cell<bool>,
    /// Notified when draining begins.
    drains: Event,
    /// Notified when draining begins, and when a connection ends.
    changed: Event,
}

impl HttpService {
    /// `budgets` are of what comes and of what leaves; other front ends of the shard may share them.
    pub(crate) fn new(
        side: ShardSide,
        options: HttpOptions,
        (receiving, sending): (Budget, Budget),
    ) -> Rc<Self> {
        Rc::new(Self {
            side,
            options,
            receiving,
            sending,
            pulses: Pulses::default(),
            traits: Known::default(),
            scratch: Scratch::default(),
            fans: Fans::default(),
            draining: Cell::new(false),
            drains: Event::new(),
            changed: Event::new(),
        })
    }

    /// Ends accepting; connections finish what they were asked, and close.
    pub(crate) fn drain(&self) {
        self.draining.set(true);
        self.drains.notify();
        self.changed.notify();
    }

    /// Completes when the shard drains.
    async fn until_draining(&self) {
        let draining = || self.draining.get().then_some(());
        self.drains.until(draining).await;
    }

    /// Waits until no connection is left.
    pub(crate) async fn drained(&self) {
        let ended = || (self.draining.get() && self.pulses.count() == 0).then_some(());
        self.changed.until(ended).await;
    }
}

/// Answers a request of the connection that `pulse` is of.
async fn answer(
    service: Rc<HttpService>,
    request: Request<Incoming>,
    pulse: Rc<Pulse>,
) -> Result<Response<Body>, Infallible> {
    if request.version() == Version::HTTP_2 {
        pulse.is_multiplexed();
    }
    let running = Running::begin(&pulse, &service.side);
    let answer = service.answer(request).await;
    Ok(answer.map(|body| body.until_sent(running)))
}

impl HttpService {
    async fn answer(self: Rc<Self>, request: Request<Incoming>) -> Response<Body> {
        let (head, mut body) = request.into_parts();
        let is_shared = head.version == Version::HTTP_2;
        let waits = head.headers.contains_key(EXPECT);
        let mut answer = self.clone().answer_head(head, &mut body).await;
        let closes = is_shared || answer.headers().contains_key(CONNECTION);
        // Of these the body was the reason: it had its time.
        let had = [StatusCode::REQUEST_TIMEOUT, StatusCode::PAYLOAD_TOO_LARGE];
        let rests = waits || had.contains(&answer.status());
        if !closes && !body.is_end_stream() && (rests || !hear_out(&mut body, &self.side).await) {
            let close = HeaderValue::from_static("close");
            answer.headers_mut().insert(CONNECTION, close);
        }
        answer
    }

    async fn answer_head(self: Rc<Self>, head: Parts, body: &mut Incoming) -> Response<Body> {
        if !self.is_allowed(&head) {
            let refused = "a bearer token is needed: Authorization: Bearer TOKEN";
            return durable_streams::refusal(StatusCode::UNAUTHORIZED, refused);
        }
        match durable_streams::is_route(head.uri.path()) {
            true => durable_streams::answer(self, head, body).await,
            false => {
                let text = "streams are at /v1/stream/NAME";
                durable_streams::refusal(StatusCode::NOT_FOUND, text)
            }
        }
    }

    /// Whether who asks has the server's token, if it has one. Browsers ask without it what they may send.
    fn is_allowed(&self, head: &Parts) -> bool {
        let Some(token) = &self.options.token else {
            return true;
        };
        let given = head.headers.get(AUTHORIZATION);
        let given = given.and_then(|value| value.as_bytes().strip_prefix(b"Bearer "));
        head.method == Method::OPTIONS
            || durable_streams::has_own_token(head.uri.path())
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
