//! Traits: what a stream is made with, as headers say it and as its feed keeps it.
//!
//! **Invariants**
//! - A feed without attributes is a stream of bytes that does not end by itself.
//! - A lifetime that slides begins anew with what touches the stream, and with the server's start.
//!
//! **Not here**: what touches a stream (`read`, `append`).

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;
use std::sync::{Mutex, MutexGuard, PoisonError};

use hyper::header::{CONTENT_TYPE, HeaderMap};
use sealog_engine::{FeedInfo, FeedOptions};
use serde::{Deserialize, Serialize};

use super::fork::Origin;
use super::{Refused, names, text_of};
use crate::cli::time;

const DEFAULT_TYPE: &str = "application/octet-stream";
/// Feeds whose traits are known at once.
const KNOWN_MAX: usize = 1024;
/// Longest content type.
const TYPE_BYTES_MAX: usize = 1024;

/// What a stream is made with.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Traits {
    /// As its maker wrote it.
    pub(super) content_type: String,
    /// Seconds that it lives after it was last touched.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) ttl_s: Option<u64>,
    /// When it ends, as its maker wrote it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) expires_at: Option<String>,
    /// Of a fork: what was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) fork: Option<Origin>,
}

impl Traits {
    /// Those that a request to make a stream asks for.
    pub(super) fn asked(headers: &HeaderMap) -> Result<Self, Refused> {
        let content_type = text_of(headers, &CONTENT_TYPE)?.unwrap_or(DEFAULT_TYPE);
        if content_type.len() > TYPE_BYTES_MAX {
            return Err(Refused::bad("Content-Type is longer than 1024 bytes"));
        }
        let ttl_s = text_of(headers, &names::STREAM_TTL)?.map(ttl).transpose()?;
        let expires_at = text_of(headers, &names::STREAM_EXPIRES_AT)?;
        if let Some(text) = expires_at {
            expiry(text)?;
        }
        if ttl_s.is_some() && expires_at.is_some() {
            return Err(Refused::bad("Stream-TTL or Stream-Expires-At, not both"));
        }
        Ok(Self {
            content_type: content_type.to_owned(),
            ttl_s,
            expires_at: expires_at.map(str::to_owned),
            fork: None,
        })
    }

    /// Those that a feed has.
    pub(super) fn of(info: &FeedInfo) -> Self {
        let kept = serde_json::from_slice(&info.options.attributes).ok();
        kept.unwrap_or_else(|| Self {
            content_type: DEFAULT_TYPE.to_owned(),
            ttl_s: None,
            expires_at: None,
            fork: None,
        })
    }

    /// How a feed is made that has them.
    pub(super) fn options(&self) -> FeedOptions {
        FeedOptions {
            keys: true,
            exclusive: false,
            rolling: true,
            attributes: serde_json::to_vec(self).unwrap_or_default().into(),
        }
    }

    /// Whether the same was asked for, whatever the case of types and the zone of times.
    pub(super) fn is_like(&self, other: &Self) -> bool {
        let at = |traits: &Self| traits.expires_at.as_deref().and_then(|at| expiry(at).ok());
        is_same_type(&self.content_type, &other.content_type)
            && self.ttl_s == other.ttl_s
            && at(self) == at(other)
    }

    /// Whether its records are JSON values.
    pub(super) fn is_json(&self) -> bool {
        is_same_type(&self.content_type, "application/json")
    }

    /// Whether its bytes are text.
    pub(super) fn is_text(&self) -> bool {
        let kind = media_type(&self.content_type).get(..5);
        kind.is_some_and(|kind| kind.eq_ignore_ascii_case("text/")) || self.is_json()
    }
}

/// Traits of feeds that a shard was asked for, by feed id: they never change, so they are read once.
#[derive(Default)]
pub(in crate::http) struct Known(RefCell<HashMap<u64, Rc<Traits>>>);

impl Known {
    pub(super) fn of(&self, info: &FeedInfo) -> Rc<Traits> {
        let known = self.0.borrow().get(&info.id.0).cloned();
        known.unwrap_or_else(|| {
            let traits = Rc::new(Traits::of(info));
            let mut all = self.0.borrow_mut();
            if all.len() >= KNOWN_MAX {
                all.clear();
            }
            all.insert(info.id.0, traits.clone());
            traits
        })
    }
}

/// Whether two content types name the same media type.
pub(super) fn is_same_type(a: &str, b: &str) -> bool {
    media_type(a).eq_ignore_ascii_case(media_type(b))
}

fn media_type(content_type: &str) -> &str {
    let media = content_type.split(';').next().unwrap_or_default();
    media.trim()
}

/// Digits without a leading zero, or 0.
pub(super) fn ttl(text: &str) -> Result<u64, Refused> {
    let plain = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    let leading = text.len() > 1 && text.starts_with('0');
    let seconds = text.parse().ok().filter(|_| plain && !leading);
    seconds.ok_or_else(|| Refused::bad(&format!("Stream-TTL {text:?} is no number of seconds")))
}

fn expiry(text: &str) -> Result<u64, Refused> {
    let bad = || Refused::bad(&format!("Stream-Expires-At {text:?} is not RFC 3339"));
    time::rfc3339_ms(text.as_bytes()).ok_or_else(bad)
}

/// When streams with a lifetime were last touched, for all shards, by feed id.
pub(crate) struct Lifetimes {
    began_ms: u64,
    touched: Mutex<BTreeMap<u64, u64>>,
}

impl Default for Lifetimes {
    fn default() -> Self {
        Self {
            began_ms: time::now_ms(),
            touched: Mutex::default(),
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Lifetimes {
    /// Something was asked of the stream: its lifetime begins anew, if it slides.
    pub(super) fn touch(&self, info: &FeedInfo, traits: &Traits) {
        if traits.ttl_s.is_some() {
            lock(&self.touched).insert(info.id.0, time::now_ms());
        }
    }

    /// Whether the stream has ended by itself.
    pub(super) fn is_over(&self, info: &FeedInfo, traits: &Traits) -> bool {
        let now_ms = time::now_ms();
        if let Some(ttl_s) = traits.ttl_s {
            let touched = lock(&self.touched).get(&info.id.0).copied();
            let since = touched.unwrap_or_else(|| info.created_ms.max(self.began_ms));
            return now_ms >= since.saturating_add(ttl_s.saturating_mul(1000));
        }
        let at = traits.expires_at.as_deref().and_then(|at| expiry(at).ok());
        at.is_some_and(|at| now_ms >= at)
    }
}
