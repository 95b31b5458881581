//! Record: subscriptions as answers show them; making them, and linking streams by name.
//!
//! **Invariants**
//! - A stream that is linked both ways is shown as linked by name.

use hyper::{Response, StatusCode};
use sealog_engine::subscription::Phase;
use sealog_engine::{LinkedFeed, PendingFeed, SubscriptionInfo};
use serde::Deserialize;
use serde_json::{Value, json};

use super::super::offset;
use super::config::{Asked, Config, Kind, is_same, streams};
use super::wrong::Wrong;
use super::{Answered, Body, Control, Keys, json as answer};
use crate::cli::time;

/// Streams that an answer shows, at most.
const STREAMS_MAX: usize = 10_000;

/// The body of a request to link streams.
#[derive(Deserialize)]
pub(super) struct Named {
    streams: Option<Vec<String>>,
}

impl Control {
    pub(super) async fn make(&self, id: &str, asked: Asked, keys: &Keys) -> Answered {
        let loopback = self.service.options.loopback_webhooks;
        let request = asked.check(self.base(), loopback)?;
        let made = self.handle().subscribe(id, request.clone()).await?;
        if !made.now && !is_same(&made.subscription, &request) {
            return Err(Wrong::new(
                StatusCode::CONFLICT,
                "SUBSCRIPTION_ALREADY_EXISTS",
                "the subscription exists with another configuration",
            ));
        }
        let status = match made.now {
            true => StatusCode::CREATED,
            false => StatusCode::OK,
        };
        self.shown(status, &made.subscription, keys).await
    }

    pub(super) async fn describe(&self, id: &str, keys: &Keys) -> Answered {
        let found = self.handle().subscription(id).await?;
        let found = found.ok_or_else(Wrong::not_found)?;
        self.shown(StatusCode::OK, &found, keys).await
    }

    pub(super) async fn link(&self, id: &str, named: Named) -> Answered {
        let given = named.streams.unwrap_or_default();
        if given.is_empty() {
            return Err(Wrong::bad("streams are needed"));
        }
        self.handle().link_feeds(id, streams(given)?).await?;
        Ok(super::super::empty(StatusCode::NO_CONTENT))
    }

    async fn shown(
        &self,
        status: StatusCode,
        found: &SubscriptionInfo,
        keys: &Keys,
    ) -> Result<Response<Body>, Wrong> {
        let feeds = self.handle().linked_feeds(&found.name).await?;
        let config = Config::of(found).ok_or_else(Wrong::not_found)?;
        let jwks_url = format!("{}/__ds/jwks.json", self.base());
        let value = record(found, &config, &feeds, (keys.kid(), &jwks_url));
        Ok(answer(status, &value))
    }
}

fn link_type(explicit: bool) -> &'static str {
    match explicit {
        true => "explicit",
        false => "glob",
    }
}

fn record(
    found: &SubscriptionInfo,
    config: &Config,
    feeds: &[LinkedFeed],
    (kid, jwks_url): (&str, &str),
) -> Value {
    let shown = feeds.iter().take(STREAMS_MAX).map(|feed| {
        json!({
            "path": feed.name,
            "link_type": link_type(feed.explicit),
            "acked_offset": offset::format(feed.acked),
        })
    });
    let failed = matches!(found.phase, Phase::Woken { attempts, .. } if attempts > 0);
    let mut value = json!({
        "id": found.name,
        "subscription_id": found.name,
        "type": config.kind,
        "streams": shown.collect::<Vec<_>>(),
        "lease_ttl_ms": found.options.lease_ttl_ms,
        "created_at": time::format(found.created_ms),
        "status": if failed { "failed" } else { "active" },
    });
    if let (Kind::Webhook, Some(url)) = (config.kind, &config.url) {
        let signing = json!({ "alg": "ed25519", "kid": kid, "jwks_url": jwks_url });
        value["webhook"] = json!({ "url": url, "signing": signing });
    }
    let optional = [
        ("pattern", &found.options.pattern),
        ("wake_stream", &config.wake_stream),
        ("description", &config.description),
    ];
    for (name, text) in optional {
        if let Some(text) = text {
            value[name] = json!(text);
        }
    }
    value
}

/// Streams as a wake tells of them.
pub(super) fn pending(feeds: &[PendingFeed]) -> Value {
    let shown = feeds.iter().map(|feed| {
        json!({
            "path": feed.tail.name,
            "link_type": link_type(feed.explicit),
            "acked_offset": offset::format(feed.acked),
            "tail_offset": offset::format(feed.tail.next),
            "has_pending": true,
        })
    });
    shown.collect()
}
