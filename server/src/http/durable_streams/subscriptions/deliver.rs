//! Deliver: one try to tell of a wake: a signed request to a webhook, or an event in a stream.
//!
//! **Invariants**
//! - A request goes where `address` lets it, follows nothing, and ends in time; of its answer a bounded part is
//!   read.
//! - A try may be told twice, never instead of another: who hears of it knows it by wake and generation.
//!
//! **Not here**: when it is tried again (`courier`).

use std::cell::OnceCell;
use std::time::Duration;

use reqwest::header::{CONTENT_TYPE, HeaderName, HeaderValue};
use reqwest::redirect::Policy;
use reqwest::{Client, Response};
use sealog_engine::{DueWake, Error, Handle, PendingFeed, ProductionEnv};
use sealog_frame::{BatchBuilder, Record};
use serde::Deserialize;
use serde_json::json;

use super::address::{Guard, Side, check_url};
use super::config::Config;
use super::keys::Keys;
use super::leases::wake_id;
use super::record::pending;
use crate::cli::time;

/// Until a connection stands.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Until an answer is there, whole.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);
/// Of an answer, what is read.
const ANSWER_BYTES_MAX: usize = 64 << 10;
/// Streams that a wake tells of.
const STREAMS_MAX: usize = sealog_engine::subscription::WAKE_FEEDS_MAX;

/// What came of a try.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Told {
    /// Somebody works on it.
    Heard,
    /// All of it is done.
    Done,
}

/// Clients for both sides of the machine's edge, made when they are needed first: what is trusted takes memory.
pub(super) struct Clients {
    public: OnceCell<Client>,
    local: OnceCell<Client>,
    loopback: bool,
}

impl Clients {
    pub(super) fn new(loopback: bool) -> Self {
        Self {
            public: OnceCell::new(),
            local: OnceCell::new(),
            loopback,
        }
    }

    fn of(&self, side: Side) -> Result<&Client, reqwest::Error> {
        let place = match side {
            Side::Public => &self.public,
            Side::Loopback => &self.local,
        };
        if let Some(client) = place.get() {
            return Ok(client);
        }
        let client = Client::builder()
            .dns_resolver(Guard(side))
            .https_only(side == Side::Public)
            .redirect(Policy::none())
            .referer(false)
            .no_proxy()
            .connect_timeout(CONNECT_TIMEOUT)
            .timeout(ANSWER_TIMEOUT)
            .pool_max_idle_per_host(1)
            .user_agent(concat!("sealog/", env!("CARGO_PKG_VERSION")))
            .build()?;
        Ok(place.get_or_init(|| client))
    }
}

/// What a receiver may answer.
#[derive(Default, Deserialize)]
struct Reply {
    #[serde(default)]
    done: bool,
}

/// Sends the webhook; why it counts as failed.
pub(super) async fn webhook(
    clients: &Clients,
    keys: &Keys,
    config: &Config,
    wake: &DueWake,
) -> Result<Told, String> {
    let known = &wake.subscription;
    let url = config.url.as_deref().unwrap_or_default();
    // Kept by a server that may have been told otherwise.
    let checked = check_url(url, clients.loopback);
    let (url, side) = checked.map_err(|_| "its URL is not allowed here".to_owned())?;
    let generation = wake.fence.generation;
    let id = percent_encoding::utf8_percent_encode(&known.name, percent_encoding::NON_ALPHANUMERIC);
    let id = id.to_string().replace("%2D", "-").replace("%5F", "_");
    let body = json!({
        "subscription_id": known.name,
        "wake_id": wake_id(wake.fence.wake),
        "generation": generation,
        "streams": pending(&known.pending),
        "callback_url": format!("{}/__ds/subscriptions/{id}/callback", config.base),
        "callback_token": keys.token(&known.name, known.created_ms, generation),
    });
    let body = body.to_string();
    let signature = keys.signature(time::now_ms() / 1000, &body);
    let signature = HeaderValue::from_str(&signature).map_err(|error| error.to_string())?;
    let client = clients.of(side).map_err(|error| what(&error))?;
    let request = client
        .post(url)
        .header(CONTENT_TYPE, "application/json")
        .header(HeaderName::from_static("webhook-signature"), signature)
        .body(body);
    // Its text would name the URL, which may carry a secret of the receiver's.
    let sent = request.send().await.map_err(|error| what(&error))?;
    let status = sent.status();
    if !status.is_success() {
        return Err(format!("it answered {}", status.as_u16()));
    }
    let reply = begin_of(sent).await.map_err(|error| what(&error))?;
    let reply: Reply = serde_json::from_slice(&reply).unwrap_or_default();
    Ok(match reply.done {
        true => Told::Done,
        false => Told::Heard,
    })
}

fn what(error: &reqwest::Error) -> String {
    let why = match error {
        error if error.is_timeout() => "too late",
        error if error.is_connect() => "no connection",
        error if error.is_body() => "its answer broke off",
        _ => "the request failed",
    };
    why.to_owned()
}

/// The answer, or nothing if it is longer than anything we would understand.
async fn begin_of(mut answer: Response) -> Result<Vec<u8>, reqwest::Error> {
    let mut body = Vec::new();
    while let Some(chunk) = answer.chunk().await? {
        if body.len() + chunk.len() > ANSWER_BYTES_MAX {
            return Ok(Vec::new());
        }
        body.extend_from_slice(&chunk);
    }
    Ok(body)
}

/// Appends the event of a wake to the subscription's stream.
pub(super) async fn event(
    handle: &Handle<ProductionEnv>,
    config: &Config,
    wake: &DueWake,
) -> Result<Told, String> {
    let stream = config.wake_stream.as_deref().unwrap_or_default();
    // The one to look at first; more may be pending.
    let first = wake.subscription.pending.first();
    let event = json!({
        "type": "wake",
        "subscription_id": wake.subscription.name,
        "stream": first.map_or("", |feed| &feed.tail.name),
        "generation": wake.fence.generation,
        "ts": time::now_ms(),
    });
    let mut builder = BatchBuilder::new(handle.frame_limits());
    let event = event.to_string();
    let pushed = builder.push(&Record::of(event.as_bytes()));
    pushed.map_err(|error| error.to_string())?;
    let batch = builder.build().map_err(|error| error.to_string())?;
    let appended = handle.append(stream, batch).await;
    appended.map_err(|error| format!("its wake stream: {error}"))?;
    Ok(Told::Heard)
}

/// What is pending, by the streams themselves.
pub(super) async fn look_anew(
    handle: &Handle<ProductionEnv>,
    name: &str,
) -> Result<Vec<PendingFeed>, Error> {
    let feeds = handle.linked_feeds(name).await?.into_iter();
    let behind = feeds.filter_map(|feed| {
        let tail = feed.tail.filter(|tail| tail.next > feed.acked)?;
        Some(PendingFeed {
            tail,
            acked: feed.acked,
            explicit: feed.explicit,
        })
    });
    Ok(behind.take(STREAMS_MAX).collect())
}
