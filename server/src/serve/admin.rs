//! Admin: health, readiness and metrics over HTTP, on a thread of its own. Reference: `docs/serve.md`.
//!
//! **Invariants**
//! - Shards are asked as any caller asks; nothing of theirs is locked, and a slow scraper costs them nothing.
//! - Nothing can be changed through it, and nothing of records or tokens be seen.
//! - It answers from before recovery to after the last log was closed.
//!
//! **Not here**: what is counted (`metrics`), who may reach the address (the operator chooses it).

use std::convert::Infallible;
use std::net::{SocketAddr, TcpListener};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{ALLOW, CONTENT_TYPE};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::sync::Semaphore;
use tracing::warn;

use super::log::Log;
use super::metrics;
use super::state::State;
use crate::cli::CliError;

/// Connections at once; one more waits.
const CONNECTIONS_MAX: usize = 32;
/// A request that has not come whole after so long is given up.
const HEADER_WAIT: Duration = Duration::from_secs(5);
/// A connection ends after so long, whatever it does.
const CONNECTION_TIME: Duration = Duration::from_secs(60);
/// Shards that have not answered after so long do not turn.
const TURN_WAIT: Duration = Duration::from_secs(5);

/// The admin address, claimed.
pub(super) struct Admin {
    listener: TcpListener,
    /// With the port that the system chose if 0 was asked for.
    pub(super) address: SocketAddr,
}

/// What requests are answered from.
struct Source {
    state: Arc<State>,
    log: Log,
}

type Answer = Response<Full<Bytes>>;

impl Admin {
    /// Takes `address`.
    pub(super) fn claim(address: SocketAddr) -> Result<Self, CliError> {
        let taken = |error: std::io::Error| {
            CliError::unusable(format!(
                "admin address {address}: {error}; --admin-listen names another, or none"
            ))
        };
        let listener = TcpListener::bind(address).map_err(taken)?;
        listener.set_nonblocking(true).map_err(taken)?;
        let address = listener.local_addr().map_err(taken)?;
        Ok(Self { listener, address })
    }

    /// Answers from now on, until the process ends.
    pub(super) fn begin(self, state: Arc<State>, log: Log) -> Result<(), CliError> {
        let failed = |error| CliError::io("starting the admin thread", &error);
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(failed)?;
        let source = Source { state, log };
        let serve = move || {
            let local = tokio::task::LocalSet::new();
            if let Err(error) = local.block_on(&runtime, self.serve(source)) {
                warn!("the admin address is not served any more: {error}");
            }
        };
        let thread = std::thread::Builder::new().name("sealog-admin".to_owned());
        thread.spawn(serve).map(drop).map_err(failed)
    }

    async fn serve(self, source: Source) -> std::io::Result<()> {
        let listener = tokio::net::TcpListener::from_std(self.listener)?;
        let source = Rc::new(source);
        let places = Rc::new(Semaphore::new(CONNECTIONS_MAX));
        loop {
            // Never closed.
            let Ok(_) = places
                .acquire()
                .await
                .map(tokio::sync::SemaphorePermit::forget)
            else {
                return Ok(());
            };
            let stream = match listener.accept().await {
                Ok((stream, _)) => stream,
                Err(_) => {
                    // No descriptor left, or the caller has gone.
                    places.add_permits(1);
                    tokio::time::sleep(Duration::from_millis(100)).await;
                    continue;
                }
            };
            let (source, places) = (source.clone(), places.clone());
            tokio::task::spawn_local(async move {
                let answer = service_fn(move |request| answer(source.clone(), request));
                let connection = http1::Builder::new()
                    .timer(TokioTimer::new())
                    .header_read_timeout(HEADER_WAIT)
                    .max_buf_size(16 << 10)
                    .serve_connection(TokioIo::new(stream), answer);
                // Who leaves early, or speaks no HTTP, is told so by hyper.
                let _ = tokio::time::timeout(CONNECTION_TIME, connection).await;
                places.add_permits(1);
            });
        }
    }
}

async fn answer(source: Rc<Source>, request: Request<Incoming>) -> Result<Answer, Infallible> {
    let is_read = matches!(*request.method(), Method::GET | Method::HEAD);
    let mut answer = match request.uri().path() {
        "/healthz" | "/readyz" | "/metrics" if !is_read => {
            let mut answer = plain(StatusCode::METHOD_NOT_ALLOWED, "GET and HEAD are answered");
            let allow = hyper::header::HeaderValue::from_static("GET, HEAD");
            answer.headers_mut().insert(ALLOW, allow);
            answer
        }
        "/healthz" => health(&source.state).await,
        "/readyz" => match source.state.unready() {
            None => plain(StatusCode::OK, "ready"),
            Some(reason) => plain(StatusCode::SERVICE_UNAVAILABLE, &reason),
        },
        "/metrics" => numbers(&source).await,
        _ => plain(
            StatusCode::NOT_FOUND,
            "/healthz, /readyz and /metrics are here",
        ),
    };
    if answer.headers().get(CONTENT_TYPE).is_none() {
        let text = hyper::header::HeaderValue::from_static("text/plain; charset=utf-8");
        answer.headers_mut().insert(CONTENT_TYPE, text);
    }
    Ok(answer)
}

/// Whether the process turns: every shard answers, whatever it answers.
async fn health(state: &State) -> Answer {
    let Some(engine) = state.engine.get() else {
        return plain(StatusCode::OK, "ok: starting");
    };
    match tokio::time::timeout(TURN_WAIT, engine.recovery_reports()).await {
        Ok(_) => plain(StatusCode::OK, "ok"),
        Err(_) => {
            let text = format!("a shard has not answered for {} s", TURN_WAIT.as_secs());
            plain(StatusCode::SERVICE_UNAVAILABLE, &text)
        }
    }
}

async fn numbers(source: &Source) -> Answer {
    let text = metrics::text(&source.state, source.log.dropped());
    match tokio::time::timeout(TURN_WAIT, text).await {
        Ok(Ok(text)) => {
            let mut answer = Response::new(Full::new(Bytes::from(text)));
            let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
            let kind = hyper::header::HeaderValue::from_static(kind);
            answer.headers_mut().insert(CONTENT_TYPE, kind);
            answer
        }
        Ok(Err(_)) | Err(_) => plain(
            StatusCode::SERVICE_UNAVAILABLE,
            "the shards have not told their numbers in time",
        ),
    }
}

fn plain(status: StatusCode, text: &str) -> Answer {
    let mut answer = Response::new(Full::new(Bytes::from(format!("{text}\n"))));
    *answer.status_mut() = status;
    answer
}
