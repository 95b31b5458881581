//! Client: the handle to a server, and the loop around every request.
//!
//! **Invariants**
//! - A request is sent again only when that is harmless: it changes nothing, is the same when done
//!   twice, or never left.
//! - Every call ends within its time-out.
//!
//! **Not here**: the requests themselves (`ops`), appends (`session`), follows (`follow`).

use std::sync::Arc;
use std::time::Duration;

use sealog_protocol::{Answer, Effects, Request, Welcome};
use tokio::time::{Instant, sleep_until, timeout_at};

use crate::backoff::Tries;
use crate::conn::{Address, Conn, Message};
use crate::error::{Error, ErrorKind, Result};
use crate::link::Links;
use crate::options::ClientOptions;

/// A client of one server. Cheap to clone; all clones share its connections.
#[derive(Clone)]
pub struct Client(Arc<Shared>);

struct Shared {
    options: Arc<ClientOptions>,
    links: Links,
}

/// Whether a request may be sent again when its answer was lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Again {
    /// It changes nothing, or nothing more the second time.
    Always,
    /// Only if it never left, or was refused without effects.
    Unsent,
}

impl Client {
    /// Connects to the server at `address`, `HOST:PORT`, with the default options.
    ///
    /// # Errors
    /// As [`Client::connect_with`].
    ///
    /// # Cancel safety
    /// Cancel safe: there are no effects.
    pub async fn connect(address: &str) -> Result<Self> {
        Self::connect_with(address, ClientOptions::default()).await
    }

    /// Connects to the server at `address`, `HOST:PORT`. Must be called within a tokio runtime; so must
    /// everything else of the client.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] for an address that is none; [`ErrorKind::Connect`] when the server could not
    /// be reached within the request time-out; [`ErrorKind::Unauthorized`], [`ErrorKind::Version`]. There
    /// are no effects.
    ///
    /// # Cancel safety
    /// Cancel safe: there are no effects.
    pub async fn connect_with(address: &str, options: ClientOptions) -> Result<Self> {
        let options = Arc::new(options);
        let links = Links::new(Address::parse(address)?, options.clone());
        let client = Self(Arc::new(Shared { options, links }));
        client
            .call(None, &Request::Ping {}, Again::Always, |_, answer| {
                matches!(answer, Answer::Pong {}).then_some(())
            })
            .await?;
        Ok(client)
    }

    /// How this client was told to behave.
    #[must_use]
    pub fn options(&self) -> &ClientOptions {
        &self.0.options
    }

    /// What the server said when the connection was made: version, limits, shards.
    ///
    /// # Errors
    /// [`ErrorKind::Connect`]: there is no connection, and none could be made. There are no effects.
    ///
    /// # Cancel safety
    /// Cancel safe: there are no effects.
    pub async fn server(&self) -> Result<Welcome> {
        let conn = self.connection(None).await?;
        Ok(conn.welcome.clone())
    }

    /// A connection; one try.
    pub(crate) async fn connection(&self, feed: Option<&str>) -> Result<Arc<Conn>> {
        self.0.links.get(feed).await
    }

    /// Asks until there is an answer, within the request time-out.
    pub(crate) async fn call<T>(
        &self,
        feed: Option<&str>,
        request: &Request<'_>,
        again: Again,
        take: impl Fn(&Arc<Conn>, Answer<'_>) -> Option<T>,
    ) -> Result<T> {
        let within = self.0.options.request_timeout;
        self.call_within(within, feed, request, again, take).await
    }

    pub(crate) async fn call_within<T>(
        &self,
        within: Duration,
        feed: Option<&str>,
        request: &Request<'_>,
        again: Again,
        take: impl Fn(&Arc<Conn>, Answer<'_>) -> Option<T>,
    ) -> Result<T> {
        let (conn, message) = self.message_within(within, feed, request, again).await?;
        take(&conn, message.answer()?)
            .ok_or_else(|| Error::protocol(format!("answer of kind {}", message.header.kind)))
    }

    /// As [`Client::call_within`], and the answer is kept as it came.
    pub(crate) async fn message_within(
        &self,
        within: Duration,
        feed: Option<&str>,
        request: &Request<'_>,
        again: Again,
    ) -> Result<(Arc<Conn>, Message)> {
        let end = Instant::now() + within;
        let mut tries = Tries::new(self.0.options.retry);
        let mut last = None;
        loop {
            let error = match self.ask_once(feed, request, again, (within, end)).await {
                Ok(answered) => return Ok(answered),
                // The time ran out during a try: what the try before came to says more.
                Err(error) if Instant::now() >= end => return Err(last.unwrap_or(error)),
                Err(error) => error,
            };
            let harmless = again == Again::Always || error.effects() == Effects::None;
            let delay = match error.is_retryable() && harmless {
                true => tries.after(&error),
                false => None,
            };
            let Some(delay) = delay else {
                return Err(error);
            };
            // The link paces its own tries.
            if !matches!(
                error.kind(),
                ErrorKind::Connect { .. } | ErrorKind::Disconnected
            ) {
                let until = Instant::now() + delay;
                if until >= end {
                    return Err(error);
                }
                sleep_until(until).await;
            }
            last = Some(error);
        }
    }

    async fn ask_once(
        &self,
        feed: Option<&str>,
        request: &Request<'_>,
        again: Again,
        (within, end): (Duration, Instant),
    ) -> Result<(Arc<Conn>, Message)> {
        let late = |_| Error::timed_out(within, "no connection").with_effects(Effects::None);
        let conn = timeout_at(end, self.connection(feed))
            .await
            .map_err(late)??;
        let left = end.saturating_duration_since(Instant::now());
        let asked = conn.ask(request, left).await;
        let message = asked.map_err(|error| match again {
            // Nothing that matters happened, whether it arrived or not.
            Again::Always => error.with_effects(Effects::None),
            Again::Unsent => error,
        })?;
        Ok((conn, message))
    }
}
