//! Config: what a subscription is asked to be, checked, and as the engine keeps it.
//!
//! **Invariants**
//! - The same request is the same configuration, whatever the order of its streams and where it came to.

use ring::digest::{SHA256, digest};
use sealog_engine::subscription::{LEASE_TTL_MS, SubscriptionOptions};
use sealog_engine::{SubscribeRequest, SubscriptionInfo};
use serde::{Deserialize, Serialize};

use super::address;
use super::routes::plain;
use super::wrong::Wrong;

const LEASE_TTL_DEFAULT_MS: u64 = 30_000;

/// How a subscription tells of a wake.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Kind {
    #[serde(rename = "webhook")]
    Webhook,
    #[serde(rename = "pull-wake")]
    PullWake,
}

/// A request's body.
#[derive(Debug, Deserialize)]
pub(super) struct Asked {
    #[serde(rename = "type")]
    kind: Option<String>,
    pattern: Option<String>,
    #[serde(default)]
    streams: Option<Vec<String>>,
    webhook: Option<AskedWebhook>,
    wake_stream: Option<String>,
    lease_ttl_ms: Option<u64>,
    description: Option<String>,
}

#[derive(Debug, Deserialize)]
struct AskedWebhook {
    url: Option<String>,
}

/// What the engine keeps for us with a subscription.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Config {
    #[serde(rename = "type")]
    pub(super) kind: Kind,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) url: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) wake_stream: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) description: Option<String>,
    /// Tells whether the same streams were asked for at first: links change later.
    streams: String,
    /// The streams' root as the maker reached it: where callbacks are to go.
    pub(super) base: String,
}

impl Config {
    /// What the engine keeps, read back.
    pub(super) fn of(subscription: &SubscriptionInfo) -> Option<Self> {
        serde_json::from_slice(&subscription.options.config).ok()
    }

    fn is_like(&self, other: &Self) -> bool {
        let anywhere = |config: &Self| Self {
            base: String::new(),
            ..config.clone()
        };
        anywhere(self) == anywhere(other)
    }
}

/// Whether a subscription is what was asked for.
pub(super) fn is_same(subscription: &SubscriptionInfo, asked: &SubscribeRequest) -> bool {
    let of = |config: &[u8]| serde_json::from_slice::<Config>(config).ok();
    let (kept, wanted) = (&subscription.options, &asked.options);
    let configs = of(&kept.config).zip(of(&wanted.config));
    (&kept.pattern, &kept.except, kept.lease_ttl_ms)
        == (&wanted.pattern, &wanted.except, wanted.lease_ttl_ms)
        && configs.is_some_and(|(kept, wanted)| kept.is_like(&wanted))
}

impl Asked {
    /// The subscription that is asked for, by who reached the streams at `base`; webhooks may be on this
    /// machine if `loopback`.
    pub(super) fn check(self, base: String, loopback: bool) -> Result<SubscribeRequest, Wrong> {
        let kind = match self.kind.as_deref() {
            Some("webhook") => Kind::Webhook,
            Some("pull-wake") => Kind::PullWake,
            _ => return Err(Wrong::bad("type must be webhook or pull-wake")),
        };
        let named = |path: Option<String>| path.filter(|path| !plain(path).is_empty());
        let named = |path| named(path).map(|path| plain(&path).to_owned());
        let pattern = named(self.pattern);
        let feeds = streams(self.streams.unwrap_or_default())?;
        if pattern.is_none() && feeds.is_empty() {
            return Err(Wrong::bad("a pattern or streams are needed"));
        }
        let lease_ttl_ms = self.lease_ttl_ms.unwrap_or(LEASE_TTL_DEFAULT_MS);
        if !LEASE_TTL_MS.contains(&lease_ttl_ms) {
            return Err(Wrong::bad("lease_ttl_ms must be from 1000 to 600000"));
        }
        let (mut url, mut wake_stream) = (None, None);
        match kind {
            Kind::Webhook => {
                let given = self.webhook.and_then(|webhook| webhook.url);
                let given = given.ok_or_else(|| Wrong::bad("webhook.url is needed"))?;
                address::check_url(&given, loopback)?;
                url = Some(given);
            }
            Kind::PullWake => {
                let given = named(self.wake_stream);
                wake_stream = Some(given.ok_or_else(|| Wrong::bad("wake_stream is needed"))?);
            }
        }
        let config = Config {
            kind,
            url,
            wake_stream: wake_stream.clone(),
            description: self.description,
            streams: fingerprint(&feeds),
            base,
        };
        let config = serde_json::to_vec(&config).unwrap_or_default();
        Ok(SubscribeRequest {
            options: SubscriptionOptions {
                pattern,
                except: wake_stream,
                lease_ttl_ms,
                config: config.into(),
            },
            feeds,
        })
    }
}

/// Paths of streams that are named, in order, each once.
pub(super) fn streams(given: Vec<String>) -> Result<Vec<String>, Wrong> {
    let mut streams: Vec<String> = given.iter().map(|path| plain(path).to_owned()).collect();
    if streams.iter().any(String::is_empty) {
        return Err(Wrong::bad("streams must be paths"));
    }
    streams.sort_unstable();
    streams.dedup();
    Ok(streams)
}

fn fingerprint(streams: &[String]) -> String {
    let digest = digest(&SHA256, streams.join("\0").as_bytes());
    super::keys::text(&digest.as_ref()[..16])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(body: &str) -> Result<SubscribeRequest, Wrong> {
        let asked: Asked = serde_json::from_str(body).expect("JSON");
        asked.check("http://here/v1/stream".to_owned(), true)
    }

    #[test]
    fn what_is_missing_or_out_of_range_is_refused() {
        for (body, text) in [
            ("{}", "type must be"),
            (r#"{"type":"push","pattern":"a"}"#, "type must be"),
            (
                r#"{"type":"pull-wake","wake_stream":"w"}"#,
                "a pattern or streams",
            ),
            (
                r#"{"type":"pull-wake","pattern":"","streams":[],"wake_stream":"w"}"#,
                "a pattern or streams",
            ),
            (
                r#"{"type":"pull-wake","streams":["/"],"wake_stream":"w"}"#,
                "must be paths",
            ),
            (
                r#"{"type":"pull-wake","pattern":"a"}"#,
                "wake_stream is needed",
            ),
            (
                r#"{"type":"webhook","pattern":"a","webhook":{}}"#,
                "webhook.url is needed",
            ),
            (
                r#"{"type":"pull-wake","pattern":"a","wake_stream":"w","lease_ttl_ms":999}"#,
                "from 1000",
            ),
        ] {
            let refused = asked(body).expect_err(body);
            assert!(format!("{refused:?}").contains(text), "{refused:?}");
        }
    }

    #[test]
    fn order_of_streams_and_base_make_no_other_subscription() {
        let of = |streams: &str, base: &str| {
            let body = format!(r#"{{"type":"pull-wake","streams":{streams},"wake_stream":"w"}}"#);
            let asked: Asked = serde_json::from_str(&body).expect("JSON");
            asked.check(base.to_owned(), true).expect("fine")
        };
        let first = of(r#"["b","/a","b"]"#, "http://one");
        let kept = SubscriptionInfo {
            name: "s".to_owned(),
            options: first.options.clone(),
            created_ms: 0,
            generation: 0,
            phase: sealog_engine::subscription::Phase::Idle,
            pending: Vec::new(),
        };
        assert_eq!(first.feeds, ["a", "b"]);
        assert!(is_same(&kept, &of(r#"["a","b"]"#, "http://two")));
        assert!(!is_same(&kept, &of(r#"["a"]"#, "http://one")));
    }
}
