//! Durable Streams: the public protocol over HTTP. What it leaves open is decided in
//! `spec/durable-streams.md`.
//!
//! **Invariants**
//! - A stream is a feed; its content type and lifetime are the feed's attributes.
//! - Every answer, refusals too, carries the headers that browsers need.
//! - One place maps the engine's errors to statuses ([`Refused`]).
//!
//! **Not here**: connections (`http`), the log (the engine).

mod append;
mod create;
mod fan;
mod fork;
mod names;
mod offset;
mod read;
mod refused;
mod sse;
mod subscriptions;
mod sweep;
mod tell;
mod traits;

use std::rc::Rc;

use hyper::body::Incoming;
use hyper::header::{self, HeaderMap, HeaderName, HeaderValue};
use hyper::http::request::Parts;
use hyper::{Method, Response, StatusCode};
use percent_encoding::percent_decode_str;
use sealog_engine::{Error, FeedInfo};

pub(crate) use self::fan::Fans;
use self::refused::Refused;
pub(crate) use self::subscriptions::{Courier, CourierOptions, Keys, has_own_token};
pub(super) use self::sweep::sweep;
pub(super) use self::traits::Known;
pub(crate) use self::traits::Lifetimes;
use self::traits::Traits;
use super::{Body, HttpService};

/// Where streams are.
const ROOT: &str = "/v1/stream/";
/// Below it: what is no stream.
const RESERVED: &str = "__ds";

type Answered = Result<Response<Body>, Refused>;

/// Whether a path is this protocol's.
pub(super) fn is_route(path: &str) -> bool {
    path.starts_with(ROOT)
}

/// An answer that refuses.
pub(super) fn refusal(status: StatusCode, text: &str) -> Response<Body> {
    finish(Refused::new(status, text).into_response())
}

/// Answers a request.
pub(super) async fn answer(
    service: Rc<HttpService>,
    head: Parts,
    body: &mut Incoming,
) -> Response<Body> {
    let path = &head.uri.path()[ROOT.len()..];
    if subscriptions::is_control(path) {
        let answered = Box::pin(subscriptions::answer(service, head, body));
        return finish(answered.await);
    }
    let call = match name_of(path) {
        Ok(name) => Call {
            service,
            name,
            head,
        },
        Err(refused) => return finish(refused.into_response()),
    };
    // Boxed: a connection keeps the room that its largest request took.
    let answered = match call.head.method {
        Method::PUT => {
            let made = Box::pin(call.create(body)).await;
            made.map_err(Refused::in_the_way)
        }
        Method::POST => Box::pin(call.append(body)).await,
        Method::GET => Box::pin(call.read()).await,
        Method::HEAD => Box::pin(call.describe()).await,
        Method::DELETE => Box::pin(call.delete()).await,
        Method::OPTIONS => Ok(preflight()),
        _ => Err(Refused::new(
            StatusCode::METHOD_NOT_ALLOWED,
            "PUT, POST, GET, HEAD, DELETE and OPTIONS are answered",
        )
        .with(header::ALLOW, "PUT, POST, GET, HEAD, DELETE, OPTIONS")),
    };
    finish(answered.unwrap_or_else(Refused::into_response))
}

/// The stream's name, as it is when taken out of the URL.
fn name_of(path: &str) -> Result<String, Refused> {
    let name = percent_decode_str(path).decode_utf8();
    let name = name.map_err(|_| Refused::bad("the stream's name is not UTF-8"))?;
    if name == RESERVED || name.starts_with("__ds/") {
        let text = "what is below __ds is no stream";
        return Err(Refused::new(StatusCode::NOT_FOUND, text));
    }
    Ok(name.into_owned())
}

/// One request.
struct Call {
    service: Rc<HttpService>,
    name: String,
    head: Parts,
}

impl Call {
    fn header(&self, name: &HeaderName) -> Result<Option<&str>, Refused> {
        text_of(&self.head.headers, name)
    }

    /// Whether the header is there and says `true`, whatever its case; any other value is none.
    fn says(&self, name: &HeaderName) -> bool {
        let value = self.head.headers.get(name);
        value.is_some_and(|value| value.as_bytes().eq_ignore_ascii_case(b"true"))
    }

    /// The stream, if it is there and has not expired; an expired one is gone from here on.
    async fn stream(&self) -> Result<Option<(FeedInfo, Rc<Traits>)>, Refused> {
        self.stream_named(&self.name).await
    }

    /// As [`Call::stream`], of another name.
    async fn stream_named(&self, name: &str) -> Result<Option<(FeedInfo, Rc<Traits>)>, Refused> {
        let found = self.service.side.handle().feed(name).await;
        self.unless_over(found).await
    }

    /// The same, whether that is durable or not: an answer that rests on it must wait until it is.
    async fn stream_now(&self) -> Result<Option<(FeedInfo, Rc<Traits>)>, Refused> {
        let found = self.service.side.peek(&self.name).await;
        self.unless_over(found).await
    }

    async fn unless_over(
        &self,
        found: Result<FeedInfo, Error>,
    ) -> Result<Option<(FeedInfo, Rc<Traits>)>, Refused> {
        let handle = self.service.side.handle();
        let info = match found {
            Ok(info) => info,
            Err(Error::FeedNotFound { .. }) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let traits = self.service.traits.of(&info);
        if self.lifetimes().is_over(&info, &traits) {
            match handle.delete_this_feed(&info.name, info.id).await {
                Ok(()) | Err(Error::FeedNotFound { .. }) => return Ok(None),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(Some((info, traits)))
    }

    /// The stream, which must be there.
    async fn known_stream(&self) -> Result<(FeedInfo, Rc<Traits>), Refused> {
        let found = self.stream().await?;
        found.ok_or_else(no_such_stream)
    }

    /// An answer of a request that looked at the stream as it is now: a refusal waits until what it rests on is
    /// durable, for nobody is told of what may still be lost.
    async fn settled(&self, answered: Answered) -> Answered {
        if answered.is_err() {
            self.service.side.settle(&self.name).await?;
        }
        answered
    }

    fn lifetimes(&self) -> &Lifetimes {
        &self.service.options.lifetimes
    }

    async fn delete(&self) -> Answered {
        let (info, _) = self.known_stream().await?;
        let handle = self.service.side.handle();
        handle.delete_this_feed(&self.name, info.id).await?;
        Ok(empty(StatusCode::NO_CONTENT))
    }
}

fn no_such_stream() -> Refused {
    Refused::new(StatusCode::NOT_FOUND, "no such stream")
}

/// Scheme and host, as the client reached the server.
fn origin(service: &HttpService, head: &Parts) -> String {
    let asked = head.uri.authority().map(|host| host.to_string());
    let host = head.headers.get(header::HOST);
    let host = host.and_then(|host| host.to_str().ok());
    let host = asked.or(host.map(str::to_owned)).unwrap_or_default();
    let scheme = match service.options.tls {
        Some(_) => "https",
        None => "http",
    };
    format!("{scheme}://{host}")
}

/// A header's text.
fn text_of<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Result<Option<&'a str>, Refused> {
    let Some(value) = headers.get(name) else {
        return Ok(None);
    };
    let text = value.to_str();
    text.map(Some)
        .map_err(|_| Refused::bad(&format!("header {name}: visible ASCII is wanted")))
}

fn empty(status: StatusCode) -> Response<Body> {
    let mut response = Response::new(Body::empty());
    response.headers_mut().reserve(HEADERS);
    *response.status_mut() = status;
    response
}

/// Headers that most answers have room for, so that their map is made once.
const HEADERS: usize = 10;

/// Adds a header whose value is made here, or was checked.
fn put(response: &mut Response<Body>, name: HeaderName, value: &str) {
    if let Ok(value) = HeaderValue::from_str(value) {
        response.headers_mut().insert(name, value);
    }
}

fn preflight() -> Response<Body> {
    let mut response = empty(StatusCode::NO_CONTENT);
    put(
        &mut response,
        header::ACCESS_CONTROL_ALLOW_METHODS,
        "GET, HEAD, POST, PUT, DELETE, OPTIONS",
    );
    put(
        &mut response,
        header::ACCESS_CONTROL_ALLOW_HEADERS,
        "Content-Type, Authorization, If-None-Match, Stream-TTL, Stream-Expires-At, Stream-Seq, Stream-Closed, \
         Stream-Forked-From, Stream-Fork-Offset, Stream-Fork-Sub-Offset, Producer-Id, Producer-Epoch, Producer-Seq",
    );
    put(&mut response, header::ACCESS_CONTROL_MAX_AGE, "86400");
    response
}

/// Headers that scripts in browsers may read.
const EXPOSED: &str = "Stream-Next-Offset, Stream-Cursor, Stream-Up-To-Date, Stream-Closed, Stream-TTL, \
    Stream-Expires-At, Stream-SSE-Data-Encoding, Producer-Epoch, Producer-Seq, Producer-Expected-Seq, \
    Producer-Received-Seq, ETag, Location, Content-Type";

/// Adds what every answer carries.
fn finish(mut response: Response<Body>) -> Response<Body> {
    let headers = response.headers_mut();
    let mut add = |name, value| {
        headers.insert(name, HeaderValue::from_static(value));
    };
    add(header::X_CONTENT_TYPE_OPTIONS, "nosniff");
    add(names::RESOURCE_POLICY, "cross-origin");
    add(header::ACCESS_CONTROL_ALLOW_ORIGIN, "*");
    add(header::ACCESS_CONTROL_EXPOSE_HEADERS, EXPOSED);
    response
}
