//! Reply: what a store's answer means, whoever asked.
//!
//! **Invariants**
//! - What an answer means is read from its status and its error code, never from a message.
//! - An attempt without an answer, or with a server's failure, may have taken effect.
//!
//! **Not here**: what is done about it (`attempt`, `client`).

use std::cell::Cell;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpRequest, HttpResponse, HttpService, ReqwestConnector,
};
use object_store::{ClientOptions, Error as StoreError};

/// Longest wait that a store may ask for; beyond it we ask again ourselves.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(60);

/// What the last answer of the attempt that runs in this task said beside its body.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Heard {
    /// HTTP status; `None` if there was no answer.
    pub(super) status: Option<u16>,
    /// How long the store asked us to wait.
    pub(super) retry_after: Option<Duration>,
}

tokio::task_local! {
    /// Written by [`Listener`], read by whoever made the attempt.
    static HEARD: Cell<Heard>;
}

/// Runs an attempt; its result, and what its last answer said.
pub(super) async fn listen<T>(attempt: impl Future<Output = T>) -> (T, Heard) {
    let scope = async {
        let done = attempt.await;
        (done, HEARD.with(Cell::get))
    };
    HEARD.scope(Cell::new(Heard::default()), scope).await
}

/// Makes HTTP clients whose answers are listened to.
#[derive(Debug, Default)]
pub(super) struct Listening;

impl HttpConnector for Listening {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        let inner = ReqwestConnector::default().connect(options)?;
        Ok(HttpClient::new(Listener(inner)))
    }
}

#[derive(Debug)]
struct Listener(HttpClient);

impl HttpService for Listener {
    fn call<'a, 'b>(
        &'a self,
        request: HttpRequest,
    ) -> Pin<Box<dyn Future<Output = Result<HttpResponse, HttpError>> + Send + 'b>>
    where
        'a: 'b,
        Self: 'b,
    {
        Box::pin(async move {
            let _ = HEARD.try_with(|heard| heard.set(Heard::default()));
            let answer = self.0.execute(request).await?;
            let seconds = answer.headers().get("retry-after");
            let seconds = seconds.and_then(|value| value.to_str().ok()?.trim().parse().ok());
            let heard = Heard {
                status: Some(answer.status().as_u16()),
                retry_after: seconds.map(|s| Duration::from_secs(s).min(RETRY_AFTER_MAX)),
            };
            let _ = HEARD.try_with(|cell| cell.set(heard));
            Ok(answer)
        })
    }
}

/// What an attempt that did not succeed came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// The object, or the upload, is not there.
    NotFound,
    /// The condition of a conditional write does not hold.
    Condition,
    /// Another write of the same key is under way: whose the object is will show.
    Conflict,
    /// The range begins beyond the object's end.
    Range,
    /// The store does not know this kind of request.
    Unsupported,
    /// The store has no room.
    Full,
    /// The store won't have us: credentials, permissions, no such bucket.
    Denied,
    /// No answer, or a server's failure: worth another try. It may have taken effect.
    Transient,
}

/// An attempt that did not succeed.
#[derive(Debug, Clone)]
pub(super) struct Failure {
    /// What it means.
    pub(super) kind: Kind,
    /// How long the store asked us to wait.
    pub(super) retry_after: Option<Duration>,
    text: String,
}

impl Failure {
    /// One that we found ourselves.
    pub(super) fn of(kind: Kind, text: impl Into<String>) -> Self {
        Self {
            kind,
            retry_after: None,
            text: text.into(),
        }
    }

    /// The same, of a write whose fate will show if it is tried again.
    pub(super) fn undecided(self) -> Self {
        Self {
            kind: Kind::Conflict,
            ..self
        }
    }

    /// What `error` means, after an answer with this status.
    pub(super) fn read(error: &StoreError, heard: Heard) -> Self {
        let text = chain(error);
        let code = code_of(&text);
        let kind = match (heard.status, error, code) {
            (_, _, Some("NoSuchBucket")) => Kind::Denied,
            (_, _, Some("SlowDown" | "RequestTimeout" | "InternalError")) => Kind::Transient,
            (None, StoreError::InvalidPath { .. }, _) => Kind::Denied,
            (None, ..) => Kind::Transient,
            (Some(404), ..) => Kind::NotFound,
            (Some(304 | 412), ..) => Kind::Condition,
            (Some(409), ..) => Kind::Conflict,
            (Some(416), ..) => Kind::Range,
            (Some(501), ..) => Kind::Unsupported,
            (Some(507), ..) => Kind::Full,
            // Neither is the last word of a store that is well.
            (Some(408 | 429 | 500..), ..) => Kind::Transient,
            (Some(300..), ..) => Kind::Denied,
            // A body that broke off, or that says something else than its status.
            (Some(_), ..) => Kind::Transient,
        };
        Self {
            kind,
            retry_after: heard.retry_after,
            text,
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// The error and what it says of its causes, in one line.
fn chain(error: &StoreError) -> String {
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(error) = cause {
        let more = error.to_string();
        if !text.contains(&more) {
            text += ": ";
            text += &more;
        }
        cause = error.source();
    }
    let words: Vec<&str> = text.split_whitespace().collect();
    words.join(" ")
}

/// The error code in an answer's body.
fn code_of(text: &str) -> Option<&str> {
    let (_, rest) = text.split_once("<Code>")?;
    rest.split_once("</Code>").map(|(code, _)| code.trim())
}
