//! Create: PUT: a stream and what it begins with, or the same stream again.
//!
//! **Invariants**
//! - A stream that is there is not written to.
//! - Stream, first messages and closing become durable together.

use hyper::body::Incoming;
use hyper::header;
use hyper::{Response, StatusCode};
use sealog_engine::{FeedInfo, MakeRequest};

use super::append::messages;
use super::{Answered, Call, ROOT, Refused, Traits, empty, named, offset, origin, put};
use crate::http::Body;

impl Call {
    pub(super) async fn create(&self, body: Incoming) -> Answered {
        let asked = Traits::asked(&self.head.headers)?;
        let closed = self.says("stream-closed");
        if self.header("stream-forked-from")?.is_some() {
            let text = "forks are not served yet";
            return Err(Refused::new(StatusCode::NOT_IMPLEMENTED, text));
        }
        if let Some((info, traits)) = self.stream().await? {
            return self.found(&info, &traits, &asked, closed);
        }
        let body = self.collect(body).await?;
        let messages = messages(&body, asked.is_json(), true)?;
        let batch = match messages.is_empty() {
            true => None,
            false => Some(self.batch(&messages, None)?),
        };
        let request = MakeRequest {
            options: asked.options(),
            batch,
            closed,
        };
        let made = self.service.side.handle();
        let made = made.make_feed(&self.name, request).await?;
        let traits = Traits::of(&made.feed);
        if !made.now {
            return self.found(&made.feed, &traits, &asked, closed);
        }
        self.lifetimes().touch(&made.feed, &traits);
        let mut response = self.described(StatusCode::CREATED, &made.feed, &traits);
        put(&mut response, header::LOCATION, &self.location());
        Ok(response)
    }

    fn found(&self, info: &FeedInfo, traits: &Traits, asked: &Traits, closed: bool) -> Answered {
        if !traits.is_like(asked) || info.closed.is_some() != closed {
            return Err(Refused::conflict(
                "the stream exists with another configuration",
            ));
        }
        self.lifetimes().touch(info, traits);
        Ok(self.described(StatusCode::OK, info, traits))
    }

    fn described(&self, status: StatusCode, info: &FeedInfo, traits: &Traits) -> Response<Body> {
        let mut response = empty(status);
        put(&mut response, header::CONTENT_TYPE, &traits.content_type);
        let next = offset::format(info.next_sequence);
        put(&mut response, named("stream-next-offset"), &next);
        if info.closed.is_some() {
            put(&mut response, named("stream-closed"), "true");
        }
        response
    }

    /// Where the stream is, as the client reached it.
    fn location(&self) -> String {
        let path = &self.head.uri.path()[ROOT.len()..];
        let origin = origin(&self.service, &self.head);
        format!("{origin}{ROOT}{path}")
    }

    /// HEAD: what a stream is, without touching it.
    pub(super) async fn describe(&self) -> Answered {
        let (info, traits) = self.known_stream().await?;
        let mut response = self.described(StatusCode::OK, &info, &traits);
        put(&mut response, header::CACHE_CONTROL, "no-store");
        if let Some(ttl_s) = traits.ttl_s {
            put(&mut response, named("stream-ttl"), &ttl_s.to_string());
        }
        if let Some(expires_at) = &traits.expires_at {
            put(&mut response, named("stream-expires-at"), expires_at);
        }
        Ok(response)
    }
}
