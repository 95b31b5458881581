//! Subscription: who wants to be woken for records of which feeds, how far they have acknowledged, and who
//! holds the wake. Spec: spec/subscription.md §1.
//!
//! ```text
//!          pending                claimed, delivered              done, released, expired
//!   Idle ----------> Woken (g+1) -------------------> Leased (g) --------------------------> Idle
//!                      |  failed: next attempt   ^ |  heartbeat: later expiry
//!                      '-------------------------' '--------------------------
//! ```
//!
//! **Invariants**
//! - SUB-1: the generation never falls, and rises by one with each wake.
//! - SUB-2: there is one wake at a time, and one holder of it.
//! - SUB-3: what is acknowledged of a feed never falls and is never beyond its tail.
//! - SUB-4: who acts for a wake names its id and generation; any other is fenced. Clocks decide only when a
//!   lease is over, never who is right.
//!
//! **Not here**: the log and who is asked (`shard`), how a wake reaches anybody (front ends).

mod codec;
mod fold;
mod glob;
mod machine;
mod registry;
mod store;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt;

pub(crate) use codec::{KIND_FIRST, KIND_LAST};
pub use glob::matches as glob_matches;
pub(crate) use glob::prefix as glob_prefix;
pub use machine::{AckTo, Fence, Refusal};
pub use registry::{Registry, Selector};
pub(crate) use store::{SUBSCRIPTIONS_ID, Subscriptions};

use crate::ids::FeedId;

/// Subscriptions per log.
pub const SUBSCRIPTIONS_MAX: usize = 10_000;
/// Longest configuration that a subscription's maker keeps with it, in bytes.
pub const CONFIG_BYTES_MAX: usize = 16 << 10;
/// Longest pattern in bytes.
pub const PATTERN_BYTES_MAX: usize = 1024;
/// Longest name of a holder in bytes.
pub const HOLDER_BYTES_MAX: usize = 256;
/// Links of a subscription that are kept, at most.
pub const LINKS_MAX: usize = 1 << 18;
/// Shortest and longest lease, in milliseconds.
pub const LEASE_TTL_MS: std::ops::RangeInclusive<u64> = 1_000..=600_000;
/// Feeds that a wake tells of, at most: the rest follow with the next.
pub const WAKE_FEEDS_MAX: usize = 1_000;

/// Unguessable name of a wake.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct WakeId(pub u128);

impl fmt::Display for WakeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl fmt::Debug for WakeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "WakeId({self})")
    }
}

/// How a subscription is made.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SubscriptionOptions {
    /// Feeds whose names match are linked: `*` is any run without a slash, `**` any run of segments.
    pub pattern: Option<String>,
    /// A feed that the pattern never links.
    pub except: Option<String>,
    /// How long a holder may be silent.
    pub lease_ttl_ms: u64,
    /// What the maker keeps with it: the engine doesn't look at it.
    pub config: Box<[u8]>,
}

/// What is kept of a feed that a subscription is linked to. A feed that matches the pattern and has no row
/// here is linked at its first sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Link {
    /// The feed that `acked` is about; none of that name was there if none. Another feed that came to the
    /// name is linked at its first sequence.
    pub feed: Option<FeedId>,
    /// Sequence after the last one acknowledged.
    pub acked: u64,
    /// Linked by name, not only by the pattern.
    pub explicit: bool,
}

/// Where a subscription stands.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Phase {
    /// Nobody is to be woken.
    #[default]
    Idle,
    /// Somebody is to be woken.
    Woken {
        /// Which wake.
        wake: WakeId,
        /// Tries that failed.
        attempts: u32,
        /// No try before, in milliseconds since the Unix epoch.
        due_ms: u64,
    },
    /// Somebody works on it.
    Leased {
        /// Which wake.
        wake: WakeId,
        /// Who.
        holder: String,
        /// When it is taken from who stays silent, in milliseconds since the Unix epoch.
        expires_ms: u64,
    },
}

/// A feed's tail, as a subscription is told of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tail {
    /// Name of the feed.
    pub name: String,
    /// Its id.
    pub feed: FeedId,
    /// Its first sequence.
    pub first: u64,
    /// Sequence after its last durable record.
    pub next: u64,
}

/// What is known to be unacknowledged of a feed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pending {
    /// The feed.
    pub feed: FeedId,
    /// Its first sequence.
    pub first: u64,
    /// Its tail when it was last heard of.
    pub next: u64,
}

/// A subscription.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Subscription {
    /// How it was made.
    pub options: SubscriptionOptions,
    /// Tells it from others of its name.
    pub nonce: u64,
    /// When it was made, in milliseconds since the Unix epoch.
    pub created_ms: u64,
    /// All its first links are there; until then nobody sees it.
    pub ready: bool,
    /// Number of its last wake; 0 before the first.
    pub generation: u64,
    /// Where it stands.
    pub phase: Phase,
    /// What is kept of feeds, by name.
    pub links: BTreeMap<String, Link>,
    /// Feeds with unacknowledged records, as far as known (not persisted).
    pub pending: BTreeMap<String, Pending>,
    /// The try that was given to a front end: generation and failures before it (not persisted).
    pub handed: Option<(u64, u32)>,
}

/// A row of links, as the log carries it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LinkRow {
    /// Name of the feed.
    pub name: String,
    /// What is kept of it.
    pub link: Link,
}

/// What is acknowledged of a feed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ack {
    /// Name of the feed.
    pub name: String,
    /// The feed.
    pub feed: FeedId,
    /// Sequence after the last one acknowledged.
    pub acked: u64,
}

/// A step of a subscription's phase.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// A wake: the generation is one higher.
    Woken {
        /// Its id.
        wake: WakeId,
        /// Its generation.
        generation: u64,
    },
    /// The wake has a holder, or has it for longer.
    Leased {
        /// Who.
        holder: String,
        /// Until when.
        expires_ms: u64,
    },
    /// A try to tell somebody of the wake failed.
    Failed {
        /// Tries that failed so far.
        attempts: u32,
        /// When the next is due.
        due_ms: u64,
    },
    /// The wake is over: done, given back or expired.
    Ended,
}

/// Every change of a subscription, as the log carries it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SubscriptionChange {
    /// It is there from here on, seen once it is ready.
    Created {
        /// How it is made.
        options: SubscriptionOptions,
        /// Tells it from others of its name.
        nonce: u64,
        /// When.
        time_ms: u64,
    },
    /// It is gone.
    Deleted,
    /// Rows of links are set.
    Linked {
        /// The rows.
        links: Vec<LinkRow>,
        /// All first links are there.
        ready: bool,
    },
    /// Rows of links are taken away.
    Unlinked {
        /// Names of the feeds.
        feeds: Vec<String>,
    },
    /// Its phase changes, and with it what is acknowledged.
    Stepped {
        /// How.
        step: Step,
        /// What is acknowledged.
        acks: Vec<Ack>,
    },
}
