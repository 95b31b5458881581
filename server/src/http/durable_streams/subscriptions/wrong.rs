//! Wrong: a control answer that is not success: status, code, a line for people.
//!
//! **Invariants**
//! - Every refusal of a subscription has a status and a code here, and only here.

use hyper::{Response, StatusCode, header};
use sealog_engine::Error;
use sealog_engine::subscription::Refusal;
use serde_json::{Value, json};

use super::super::{Refused, put};
use super::{Body, json as answer};

/// Why a control request is not done.
#[derive(Debug)]
pub(super) struct Wrong {
    status: StatusCode,
    code: &'static str,
    message: String,
    /// Further fields of the error.
    more: Vec<(&'static str, Value)>,
    headers: Vec<(header::HeaderName, String)>,
}

impl Wrong {
    pub(super) fn new(status: StatusCode, code: &'static str, message: impl Into<String>) -> Self {
        Self {
            status,
            code,
            message: message.into(),
            more: Vec::new(),
            headers: Vec::new(),
        }
    }

    /// The request makes no sense.
    pub(super) fn bad(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "INVALID_REQUEST", message)
    }

    /// No token, or not one of ours.
    pub(super) fn token(message: &str) -> Self {
        Self::new(StatusCode::UNAUTHORIZED, "TOKEN_INVALID", message)
    }

    pub(super) fn fenced() -> Self {
        let text = "the wake is over, or another's";
        Self::new(StatusCode::CONFLICT, "FENCED", text)
    }

    pub(super) fn offset(message: impl Into<String>) -> Self {
        Self::new(StatusCode::CONFLICT, "INVALID_OFFSET", message)
    }

    pub(super) fn method(allowed: &str) -> Self {
        let text = format!("{allowed} are answered");
        let status = StatusCode::METHOD_NOT_ALLOWED;
        let mut wrong = Self::new(status, "METHOD_NOT_ALLOWED", text);
        wrong.headers.push((header::ALLOW, allowed.to_owned()));
        wrong
    }

    /// The server is not ready yet.
    pub(super) fn starting() -> Self {
        let status = StatusCode::SERVICE_UNAVAILABLE;
        let mut wrong = Self::new(status, "UNAVAILABLE", "the server is starting");
        wrong.headers.push((header::RETRY_AFTER, "1".to_owned()));
        wrong
    }

    pub(super) fn not_found() -> Self {
        let text = "no such subscription";
        Self::new(StatusCode::NOT_FOUND, "SUBSCRIPTION_NOT_FOUND", text)
    }

    fn with(mut self, name: &'static str, value: impl Into<Value>) -> Self {
        self.more.push((name, value.into()));
        self
    }

    pub(super) fn into_response(self) -> Response<Body> {
        let mut error = json!({ "code": self.code, "message": self.message });
        for (name, value) in self.more {
            error[name] = value;
        }
        let mut response = answer(self.status, &json!({ "error": error }));
        for (name, value) in self.headers {
            put(&mut response, name, &value);
        }
        response
    }
}

impl From<Refusal> for Wrong {
    fn from(refusal: Refusal) -> Self {
        let message = refusal.to_string();
        let of = |code| Self::new(StatusCode::CONFLICT, code, message.clone());
        match refusal {
            Refusal::NotFound { .. } => Self::not_found(),
            Refusal::Fenced { generation } => of("FENCED").with("generation", generation),
            Refusal::Claimed { holder, generation } => of("ALREADY_CLAIMED")
                .with("current_holder", holder)
                .with("generation", generation),
            Refusal::NothingPending => of("NO_PENDING_WORK"),
            Refusal::Ack { .. } => Self::offset(message),
            Refusal::Replaced { .. } => of("SUBSCRIPTION_ALREADY_EXISTS"),
        }
    }
}

impl From<Error> for Wrong {
    fn from(error: Error) -> Self {
        let message = error.to_string();
        match error {
            Error::Subscription(refusal) => refusal.into(),
            Error::OverLimit { .. } | Error::FeedName { .. } | Error::Invalid(_) => {
                Self::bad(message)
            }
            other => {
                let refused = Refused::from(other);
                let code = match refused.status() {
                    StatusCode::SERVICE_UNAVAILABLE => "UNAVAILABLE",
                    StatusCode::NOT_FOUND => "NOT_FOUND",
                    status if status.is_client_error() => "INVALID_REQUEST",
                    _ => "INTERNAL",
                };
                let mut wrong = Self::new(refused.status(), code, message);
                if refused.status() == StatusCode::SERVICE_UNAVAILABLE {
                    wrong.headers.push((header::RETRY_AFTER, "1".to_owned()));
                }
                wrong
            }
        }
    }
}
