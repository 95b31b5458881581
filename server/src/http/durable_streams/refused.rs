//! Refused: an answer that is not success: its status, a line for people, its headers.
//!
//! **Invariants**
//! - Every error of the engine has a status here, and only here.

use hyper::header::{self, HeaderName};
use hyper::{Response, StatusCode};
use sealog_engine::Error;

use super::{names, put};
use crate::http::Body;

/// Why a request is not done.
#[derive(Debug)]
pub(super) struct Refused {
    status: StatusCode,
    text: String,
    headers: Vec<(HeaderName, String)>,
}

impl Refused {
    pub(super) fn new(status: StatusCode, text: impl Into<String>) -> Self {
        Self {
            status,
            text: text.into(),
            headers: Vec::new(),
        }
    }

    /// The request makes no sense.
    pub(super) fn bad(text: &str) -> Self {
        Self::new(StatusCode::BAD_REQUEST, text)
    }

    /// It contradicts what is there.
    pub(super) fn conflict(text: impl Into<String>) -> Self {
        Self::new(StatusCode::CONFLICT, text)
    }

    /// As the answer to a PUT: what was deleted and is kept for its forks is in the way.
    pub(super) fn in_the_way(mut self) -> Self {
        if self.status == StatusCode::GONE {
            self.status = StatusCode::CONFLICT;
        }
        self
    }

    pub(super) fn status(&self) -> StatusCode {
        self.status
    }

    pub(super) fn with(mut self, name: HeaderName, value: impl Into<String>) -> Self {
        self.headers.push((name, value.into()));
        self
    }

    pub(super) fn into_response(self) -> Response<Body> {
        let mut response = Response::new(Body::whole(format!("{}\n", self.text)));
        *response.status_mut() = self.status;
        put(
            &mut response,
            header::CONTENT_TYPE,
            "text/plain; charset=utf-8",
        );
        put(&mut response, header::CACHE_CONTROL, "no-store");
        for (name, value) in self.headers {
            put(&mut response, name, &value);
        }
        response
    }
}

impl From<Error> for Refused {
    fn from(error: Error) -> Self {
        let text = error.to_string();
        let of = |status| Self::new(status, text.clone());
        match error {
            Error::FeedNotFound { .. } => of(StatusCode::NOT_FOUND),
            Error::FeedGone { .. } => of(StatusCode::GONE),
            Error::FeedName { .. } | Error::Batch(_) => of(StatusCode::BAD_REQUEST),
            Error::OverLimit { .. } => of(StatusCode::PAYLOAD_TOO_LARGE),
            Error::ProducerFenced { current, .. } => {
                of(StatusCode::FORBIDDEN).with(names::PRODUCER_EPOCH, current.to_string())
            }
            Error::ProducerEpochStart { .. } => of(StatusCode::BAD_REQUEST),
            Error::ProducerGap { expected, received } => of(StatusCode::CONFLICT)
                .with(names::PRODUCER_EXPECTED_SEQ, expected.to_string())
                .with(names::PRODUCER_RECEIVED_SEQ, received.to_string()),
            Error::FeedClosed { .. } => of(StatusCode::CONFLICT).with(names::STREAM_CLOSED, "true"),
            Error::FeedExists { .. }
            | Error::OutOfOrder { .. }
            | Error::Subscription(_)
            | Error::SequenceMismatch { .. }
            | Error::TokenRequired { .. }
            | Error::Fenced { .. } => of(StatusCode::CONFLICT),
            Error::FeedsFull { .. } | Error::ProducersFull { .. } => {
                of(StatusCode::TOO_MANY_REQUESTS)
            }
            Error::StorageFull { .. } => {
                of(StatusCode::SERVICE_UNAVAILABLE).with(header::RETRY_AFTER, "1")
            }
            Error::Closed | Error::Poisoned { .. } | Error::Bucket { .. } => {
                of(StatusCode::SERVICE_UNAVAILABLE)
            }
            _ => of(StatusCode::INTERNAL_SERVER_ERROR),
        }
    }
}
