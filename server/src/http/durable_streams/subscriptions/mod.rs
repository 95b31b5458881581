//! Subscriptions: the control routes below `__ds/`: who is woken when streams get messages, by webhook or by
//! an event in a stream. What the protocol leaves open is decided in `spec/durable-streams.md`.
//!
//! ```text
//!  PUT subscriptions/ID ----> engine: subscription ----> wake ----> courier: webhook, or event in a stream
//!  POST callback, ack ------> engine: fenced by wake and generation
//! ```
//!
//! **Invariants**
//! - Subscriptions, what is acknowledged, leases and tries are the engine's, durable before they are answered.
//! - Every refusal is JSON: `{"error": {"code", "message"}}`.
//! - Keys and tokens are in no log line.
//!
//! **Not here**: the lease machine (`sealog_engine::subscription`), who delivers (`courier`).

mod address;
mod config;
mod courier;
mod deliver;
mod keys;
mod leases;
mod record;
mod routes;
mod wrong;

use std::rc::Rc;
use std::sync::Arc;

use hyper::body::Incoming;
use hyper::header::{self, HeaderMap};
use hyper::http::request::Parts;
use hyper::{Method, Response, StatusCode};
use serde::de::DeserializeOwned;

pub(crate) use self::courier::{Courier, CourierOptions};
pub(crate) use self::keys::Keys;
use self::routes::Route;
use self::wrong::Wrong;
use super::{Body, HttpService, preflight, put};
use crate::http::intake;

/// Longest body of a control request.
const BODY_BYTES_MAX: usize = 1 << 20;

type Answered = Result<Response<Body>, Wrong>;

/// Whether what is below the streams' root is a control route.
pub(super) fn is_control(path: &str) -> bool {
    path == super::RESERVED || path.starts_with("__ds/")
}

/// Whether the route is let in by a token of its own, or by none: what is fenced, and public keys.
pub(crate) fn has_own_token(path: &str) -> bool {
    let below = path.strip_prefix(super::ROOT).unwrap_or_default();
    match routes::parse(below) {
        Ok(Route::Jwks) => true,
        Ok(Route::Of(_, action)) => action.is_fenced(),
        Err(_) => false,
    }
}

/// Answers a control request.
pub(super) async fn answer(
    service: Rc<HttpService>,
    head: Parts,
    body: &mut Incoming,
) -> Response<Body> {
    if head.method == Method::OPTIONS {
        return preflight();
    }
    let below = &head.uri.path()[super::ROOT.len()..];
    let answered = match routes::parse(below) {
        Ok(route) => Control { service, head }.answer(route, body).await,
        Err(wrong) => Err(wrong),
    };
    answered.unwrap_or_else(Wrong::into_response)
}

/// One control request.
struct Control {
    service: Rc<HttpService>,
    head: Parts,
}

impl Control {
    async fn answer(&self, route: Route, body: &mut Incoming) -> Answered {
        let keys = self.keys()?;
        let (id, action) = match route {
            Route::Jwks => {
                self.only(&[Method::GET, Method::HEAD])?;
                return Ok(jwks(&keys));
            }
            Route::Of(id, action) => (id, action),
        };
        use routes::Action as A;
        match action {
            A::Whole => match self.head.method {
                Method::PUT => self.make(&id, self.read(body).await?, &keys).await,
                Method::GET | Method::HEAD => self.describe(&id, &keys).await,
                Method::DELETE => {
                    self.handle().unsubscribe(&id).await?;
                    Ok(super::empty(StatusCode::NO_CONTENT))
                }
                _ => Err(Wrong::method("PUT, GET, HEAD, DELETE")),
            },
            A::Streams => {
                self.only(&[Method::POST])?;
                self.link(&id, self.read(body).await?).await
            }
            A::Stream(stream) => {
                self.only(&[Method::DELETE])?;
                self.handle().unlink_feed(&id, &stream).await?;
                Ok(super::empty(StatusCode::NO_CONTENT))
            }
            A::Claim => {
                self.only(&[Method::POST])?;
                self.claim(&id, self.read(body).await?, &keys).await
            }
            A::Callback | A::Ack | A::Release => {
                self.only(&[Method::POST])?;
                let said = self.read(body).await?;
                self.settle(&id, &action, said, &keys).await
            }
        }
    }

    fn handle(&self) -> &sealog_engine::Handle<sealog_engine::ProductionEnv> {
        self.service.side.handle()
    }

    /// What signs and proves; the server has it before it says that it is ready.
    fn keys(&self) -> Result<Arc<Keys>, Wrong> {
        let keys = self.service.options.keys.get();
        keys.cloned().ok_or_else(Wrong::starting)
    }

    fn only(&self, methods: &[Method]) -> Result<(), Wrong> {
        let names: Vec<&str> = methods.iter().map(Method::as_str).collect();
        match methods.contains(&self.head.method) {
            true => Ok(()),
            false => Err(Wrong::method(&names.join(", "))),
        }
    }

    /// The body, as JSON; none is an empty object.
    async fn read<T: DeserializeOwned>(&self, body: &mut Incoming) -> Result<T, Wrong> {
        let waits = self.head.headers.contains_key(header::EXPECT);
        let place = (&self.service.side, &self.service.receiving);
        let taken = intake::take(body, (BODY_BYTES_MAX, waits), place).await;
        let whole = taken.map_err(|why| {
            let (status, text) = why.told(BODY_BYTES_MAX);
            Wrong::new(status, "INVALID_REQUEST", text)
        })?;
        let text: &[u8] = match whole.is_empty() {
            true => b"{}",
            false => &whole,
        };
        serde_json::from_slice(text).map_err(|error| Wrong::bad(format!("the body: {error}")))
    }

    /// The streams' root, as the client reached it.
    fn base(&self) -> String {
        let root = super::ROOT.trim_end_matches('/');
        format!("{}{root}", super::origin(&self.service, &self.head))
    }
}

/// What an `Authorization` header bears.
fn bearer(headers: &HeaderMap) -> Result<&str, Wrong> {
    let value = headers.get(header::AUTHORIZATION);
    let text = value.and_then(|value| value.to_str().ok());
    let token = text.and_then(|text| text.strip_prefix("Bearer "));
    token.ok_or_else(|| Wrong::token("Authorization: Bearer TOKEN is missing"))
}

fn jwks(keys: &Keys) -> Response<Body> {
    let mut response = Response::new(Body::whole(keys.jwks()));
    put(
        &mut response,
        header::CONTENT_TYPE,
        "application/jwk-set+json",
    );
    put(&mut response, header::CACHE_CONTROL, "public, max-age=300");
    response
}

fn json(status: StatusCode, value: &serde_json::Value) -> Response<Body> {
    let mut response = Response::new(Body::whole(value.to_string()));
    *response.status_mut() = status;
    put(&mut response, header::CONTENT_TYPE, "application/json");
    put(&mut response, header::CACHE_CONTROL, "no-store");
    response
}
