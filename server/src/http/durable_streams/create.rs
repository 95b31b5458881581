//! Create: PUT: a stream and what it begins with, or the same stream again.
//!
//! **Invariants**
//! - A stream that is there is not written to.
//! - Stream, first messages and closing become durable together.

use hyper::body::Incoming;
use hyper::header;
use hyper::{Response, StatusCode};
use sealog_engine::{FeedInfo, Made, MakeRequest};

use super::append::messages;
use super::{Answered, Call, ROOT, Refused, Traits, empty, fork, names, offset, origin, put};
use crate::http::Body;
use crate::http::intake::Taken;

impl Call {
    pub(super) async fn create(&self, body: &mut Incoming) -> Answered {
        let answered = self.create_now(body).await;
        self.settled(answered).await
    }

    async fn create_now(&self, body: &mut Incoming) -> Answered {
        let asked = Traits::asked(&self.head.headers)?;
        let closed = self.says(&names::STREAM_CLOSED);
        let fork = self.asked_fork()?;
        if let Some((info, traits)) = self.stream_now().await? {
            self.service.side.settle(&self.name).await?;
            return self.found(&info, &traits, &asked, (closed, fork.as_ref()));
        }
        let body = self.collect(body).await?;
        let made = match &fork {
            Some(fork) => self.fork(fork, &asked, closed, &body).await?,
            None => self.make(&asked, closed, body).await?,
        };
        let traits = self.service.traits.of(&made.feed);
        if !made.now {
            return self.found(&made.feed, &traits, &asked, (closed, fork.as_ref()));
        }
        self.lifetimes().touch(&made.feed, &traits);
        let mut response = self.described(StatusCode::CREATED, &made.feed, &traits);
        put(&mut response, header::LOCATION, &self.location());
        Ok(response)
    }

    /// Makes a stream that begins with `body`.
    async fn make(&self, asked: &Traits, closed: bool, body: Taken) -> Result<Made, Refused> {
        let messages = messages(&body, asked.is_json(), true)?;
        let batch = match messages.is_empty() {
            true => None,
            false => Some(self.batch(&messages, None)?),
        };
        let _place = body.release();
        let request = MakeRequest {
            options: asked.options(),
            batch,
            closed,
        };
        let handle = self.service.side.handle();
        Ok(handle.make_feed(&self.name, request).await?)
    }

    fn found(
        &self,
        info: &FeedInfo,
        traits: &Traits,
        asked: &Traits,
        (closed, fork): (bool, Option<&fork::Asked>),
    ) -> Answered {
        if !fork::is_same((info, traits), asked, fork) || info.closed.is_some() != closed {
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
        put(&mut response, names::STREAM_NEXT_OFFSET, &next);
        if info.closed.is_some() {
            put(&mut response, names::STREAM_CLOSED, "true");
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
            put(&mut response, names::STREAM_TTL, &ttl_s.to_string());
        }
        if let Some(expires_at) = &traits.expires_at {
            put(&mut response, names::STREAM_EXPIRES_AT, expires_at);
        }
        Ok(response)
    }
}
