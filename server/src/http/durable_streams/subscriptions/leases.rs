//! Leases: what workers and receivers of webhooks say about a wake: claim, acknowledge, keep, give back.
//!
//! **Invariants**
//! - Who has no token of this subscription changes nothing; whose token is of an older wake is fenced.
//! - A webhook's wake is settled by callbacks, a pulled one by `ack` and `release`.

use hyper::StatusCode;
use sealog_engine::subscription::{AckTo, Fence, WakeId};
use sealog_engine::{AckRequest, SubscriptionInfo};
use serde::Deserialize;
use serde_json::json;

use super::super::offset::{self, Offset};
use super::config::{Config, Kind};
use super::record::pending;
use super::routes::{Action, plain};
use super::wrong::Wrong;
use super::{Answered, Control, Keys, bearer, json as answer};

/// Who holds the wake of a webhook.
pub(super) const RECEIVER: &str = "webhook";
/// Acknowledgements in one request.
const ACKS_MAX: usize = 10_000;

/// The body of a claim.
#[derive(Deserialize)]
pub(super) struct Claiming {
    worker: Option<String>,
}

/// What is said about a wake.
#[derive(Deserialize)]
pub(super) struct Said {
    wake_id: Option<String>,
    generation: Option<u64>,
    #[serde(default)]
    acks: Option<Vec<SaidAck>>,
    #[serde(default)]
    done: Option<bool>,
}

#[derive(Deserialize)]
struct SaidAck {
    #[serde(alias = "path")]
    stream: Option<String>,
    offset: Option<String>,
}

/// A wake's id as text.
pub(super) fn wake_id(wake: WakeId) -> String {
    format!("wake_{wake}")
}

fn parse_wake(text: &str) -> Option<WakeId> {
    let hex = text.strip_prefix("wake_").filter(|hex| hex.len() == 32)?;
    u128::from_str_radix(hex, 16).ok().map(WakeId)
}

impl Control {
    pub(super) async fn claim(&self, id: &str, claiming: Claiming, keys: &Keys) -> Answered {
        let worker = claiming.worker.filter(|worker| !worker.is_empty());
        let worker = worker.ok_or_else(|| Wrong::bad("worker is needed"))?;
        self.known(id, Kind::PullWake).await?;
        let wake = self.handle().claim(id, &worker).await?;
        let known = &wake.subscription;
        let generation = wake.fence.generation;
        let value = json!({
            "wake_id": wake_id(wake.fence.wake),
            "generation": generation,
            "token": keys.token(id, known.created_ms, generation),
            "streams": pending(&known.pending),
            "lease_ttl_ms": known.options.lease_ttl_ms,
        });
        Ok(answer(StatusCode::OK, &value))
    }

    /// Callback, ack and release.
    pub(super) async fn settle(
        &self,
        id: &str,
        action: &Action,
        said: Said,
        keys: &Keys,
    ) -> Answered {
        let token = bearer(&self.head.headers)?;
        let kind = match action {
            Action::Callback => Kind::Webhook,
            _ => Kind::PullWake,
        };
        let known = self.known(id, kind).await?;
        let fence = fence(&known, &said, keys, token)?;
        let released = *action == Action::Release;
        let acks = match released {
            true => Vec::new(),
            false => acks(said.acks.unwrap_or_default())?,
        };
        let request = AckRequest {
            acks,
            ended: released || said.done == Some(true),
            holder: RECEIVER.to_owned(),
            ..AckRequest::default()
        };
        let next_wake = self.handle().acknowledge(id, fence, request).await?;
        Ok(match released {
            true => super::super::empty(StatusCode::NO_CONTENT),
            false => answer(
                StatusCode::OK,
                &json!({ "ok": true, "next_wake": next_wake }),
            ),
        })
    }

    /// The subscription, which must be there, and tell of its wakes in this way.
    async fn known(&self, id: &str, kind: Kind) -> Result<SubscriptionInfo, Wrong> {
        let found = self.handle().subscription(id).await?;
        let found = found.ok_or_else(Wrong::not_found)?;
        match Config::of(&found).map(|config| config.kind) {
            Some(known) if known == kind => Ok(found),
            Some(Kind::Webhook) => Err(Wrong::bad("the subscription is a webhook's")),
            Some(Kind::PullWake) => Err(Wrong::bad("the subscription is pull-wake")),
            None => Err(Wrong::not_found()),
        }
    }
}

/// For which wake somebody speaks, if the token proves it.
fn fence(known: &SubscriptionInfo, said: &Said, keys: &Keys, token: &str) -> Result<Fence, Wrong> {
    let proven = keys.generation(&known.name, known.created_ms, token);
    let proven = proven.ok_or_else(|| Wrong::token("the token is not one of this subscription"))?;
    let wake = said.wake_id.as_deref().and_then(parse_wake);
    match (wake, said.generation) {
        (Some(wake), Some(generation)) if generation == proven => Ok(Fence { wake, generation }),
        (None, _) | (_, None) if said.wake_id.is_none() || said.generation.is_none() => {
            Err(Wrong::bad("wake_id and generation are needed"))
        }
        _ => Err(Wrong::fenced()),
    }
}

fn acks(said: Vec<SaidAck>) -> Result<Vec<AckTo>, Wrong> {
    if said.len() > ACKS_MAX {
        return Err(Wrong::bad(format!("more than {ACKS_MAX} acks")));
    }
    let ack = |said: SaidAck| {
        let (Some(stream), Some(text)) = (said.stream, said.offset) else {
            return Err(Wrong::bad("an ack needs a stream and an offset"));
        };
        let parsed = match text.as_str() {
            "-1" | "now" => None,
            text => offset::parse(text).ok(),
        };
        let next = match parsed {
            Some(Offset::At(next)) => next,
            Some(Offset::Beyond) => u64::MAX,
            _ => return Err(Wrong::offset(format!("{text:?} is no offset of a stream"))),
        };
        let name = plain(&stream).to_owned();
        Ok(AckTo { name, next })
    };
    said.into_iter().map(ack).collect()
}
