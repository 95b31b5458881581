//! Codec: subscriptions and their changes as bytes. Spec: spec/subscription.md §3.
//!
//! **Invariants**
//! - CKPT-4: decode(encode(state)) gives the same state, volatile fields aside.
//! - What is over a limit is refused: the encoder never writes it.

use std::collections::BTreeMap;

use super::{
    Ack, CONFIG_BYTES_MAX, Link, LinkRow, Phase, Step, Subscription, SubscriptionChange,
    SubscriptionOptions, Subscriptions, WakeId,
};
use crate::codec::{DecodeError, Reader, Writer};
use crate::ids::FeedId;
use crate::wal::entry::{flag, text};

/// Kind of the first of the five changes.
pub(crate) const KIND_FIRST: u16 = 20;
/// Kind of the last.
pub(crate) const KIND_LAST: u16 = 24;
/// In place of a feed's id: there was no feed.
const NO_FEED: u64 = u64::MAX;

const HAS_PATTERN: u8 = 1;
const HAS_EXCEPT: u8 = 2;

fn invalid<T>(field: &'static str, value: u64) -> Result<T, DecodeError> {
    Err(DecodeError::Invalid { field, value })
}

fn put_options(w: &mut Writer, options: &SubscriptionOptions) {
    let (pattern, except) = (&options.pattern, &options.except);
    let bit = |name: &Option<String>, bit| u8::from(name.is_some()) * bit;
    w.u8(bit(pattern, HAS_PATTERN) | bit(except, HAS_EXCEPT));
    for name in [pattern, except].into_iter().flatten() {
        w.bytes(name.as_bytes());
    }
    w.u64(options.lease_ttl_ms).bytes(&options.config);
}

fn take_options(r: &mut Reader<'_>) -> Result<SubscriptionOptions, DecodeError> {
    let flags = r.u8()?;
    if flags & !(HAS_PATTERN | HAS_EXCEPT) != 0 {
        return invalid("subscription flags", flags.into());
    }
    let mut next = |bit| (flags & bit != 0).then(|| text(r)).transpose();
    let (pattern, except) = (next(HAS_PATTERN)?, next(HAS_EXCEPT)?);
    let (lease_ttl_ms, config) = (r.u64()?, r.bytes()?);
    if config.len() > CONFIG_BYTES_MAX {
        return invalid("subscription config bytes", config.len() as u64);
    }
    Ok(SubscriptionOptions {
        pattern,
        except,
        lease_ttl_ms,
        config: config.into(),
    })
}

fn put_link(w: &mut Writer, name: &str, link: &Link) {
    w.bytes(name.as_bytes())
        .u64(link.feed.map_or(NO_FEED, |feed| feed.0))
        .u64(link.acked)
        .u8(u8::from(link.explicit));
}

fn take_link(r: &mut Reader<'_>) -> Result<LinkRow, DecodeError> {
    let name = text(r)?;
    let feed = Some(r.u64()?).filter(|id| *id != NO_FEED).map(FeedId);
    let link = Link {
        feed,
        acked: r.u64()?,
        explicit: flag(r)?,
    };
    Ok(LinkRow { name, link })
}

fn put_wake(w: &mut Writer, wake: WakeId) {
    w.raw(&wake.0.to_le_bytes());
}

fn take_wake(r: &mut Reader<'_>) -> Result<WakeId, DecodeError> {
    Ok(WakeId(u128::from_le_bytes(r.array()?)))
}

fn put_step(w: &mut Writer, step: &Step) {
    match step {
        Step::Woken { wake, generation } => {
            w.u8(0).u64(*generation);
            put_wake(w, *wake);
        }
        Step::Leased { holder, expires_ms } => {
            w.u8(1).u64(*expires_ms).bytes(holder.as_bytes());
        }
        Step::Failed { attempts, due_ms } => {
            w.u8(2).u64(*due_ms).u32(*attempts);
        }
        Step::Ended => {
            w.u8(3);
        }
    }
}

fn take_step(r: &mut Reader<'_>) -> Result<Step, DecodeError> {
    Ok(match r.u8()? {
        0 => Step::Woken {
            generation: r.u64()?,
            wake: take_wake(r)?,
        },
        1 => Step::Leased {
            expires_ms: r.u64()?,
            holder: text(r)?,
        },
        2 => Step::Failed {
            due_ms: r.u64()?,
            attempts: r.u32()?,
        },
        3 => Step::Ended,
        other => return invalid("subscription step", other.into()),
    })
}

/// As many as a count says; nothing is reserved for it, for it comes from outside.
fn take_rows<T>(
    r: &mut Reader<'_>,
    mut take: impl FnMut(&mut Reader<'_>) -> Result<T, DecodeError>,
) -> Result<Vec<T>, DecodeError> {
    let mut rows = Vec::new();
    for _ in 0..r.u32()? {
        rows.push(take(r)?);
    }
    Ok(rows)
}

fn put_count(w: &mut Writer, count: usize) {
    w.u32(u32::try_from(count).expect("rows of an entry are bounded"));
}

impl SubscriptionChange {
    /// Appends name and change; the entry's kind.
    pub(crate) fn encode(&self, name: &str, w: &mut Writer) -> u16 {
        w.bytes(name.as_bytes());
        let at = match self {
            Self::Created {
                options,
                nonce,
                time_ms,
            } => {
                w.u64(*nonce).u64(*time_ms);
                put_options(w, options);
                0
            }
            Self::Deleted => 1,
            Self::Linked { links, ready } => {
                w.u8(u8::from(*ready));
                put_count(w, links.len());
                for LinkRow { name, link } in links {
                    put_link(w, name, link);
                }
                2
            }
            Self::Unlinked { feeds } => {
                put_count(w, feeds.len());
                for feed in feeds {
                    w.bytes(feed.as_bytes());
                }
                3
            }
            Self::Stepped { step, acks } => {
                put_step(w, step);
                put_count(w, acks.len());
                for ack in acks {
                    w.bytes(ack.name.as_bytes()).u64(ack.feed.0).u64(ack.acked);
                }
                4
            }
        };
        KIND_FIRST + at
    }

    /// Reads name and change of an entry of `kind`.
    pub(crate) fn decode(kind: u16, r: &mut Reader<'_>) -> Result<(String, Self), DecodeError> {
        let name = text(r)?;
        let change = match kind.wrapping_sub(KIND_FIRST) {
            0 => Self::Created {
                nonce: r.u64()?,
                time_ms: r.u64()?,
                options: take_options(r)?,
            },
            1 => Self::Deleted,
            2 => Self::Linked {
                ready: flag(r)?,
                links: take_rows(r, take_link)?,
            },
            3 => Self::Unlinked {
                feeds: take_rows(r, text)?,
            },
            4 => Self::Stepped {
                step: take_step(r)?,
                acks: take_rows(r, |r| {
                    Ok(Ack {
                        name: text(r)?,
                        feed: FeedId(r.u64()?),
                        acked: r.u64()?,
                    })
                })?,
            },
            _ => return invalid("entry kind", kind.into()),
        };
        Ok((name, change))
    }
}

impl Subscriptions {
    /// Appends all of them.
    pub(crate) fn encode(&self, w: &mut Writer) {
        w.u64(self.count() as u64);
        for (name, subscription) in self.iter() {
            w.bytes(name.as_bytes());
            subscription.encode(w);
        }
    }

    /// Reads what [`Subscriptions::encode`] wrote.
    pub(crate) fn decode(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let mut all = Self::default();
        let mut last = None;
        for at in 0..r.u64()? {
            let name = text(r)?;
            if last.as_ref().is_some_and(|last| *last >= name) {
                return invalid("subscription order", at);
            }
            all.insert(&name, Subscription::decode(r)?);
            last = Some(name);
        }
        Ok(all)
    }
}

impl Subscription {
    fn encode(&self, w: &mut Writer) {
        put_options(w, &self.options);
        w.u64(self.nonce)
            .u64(self.created_ms)
            .u8(u8::from(self.ready))
            .u64(self.generation);
        match &self.phase {
            Phase::Idle => {
                w.u8(0);
            }
            Phase::Woken {
                wake,
                attempts,
                due_ms,
            } => {
                w.u8(1);
                put_wake(w, *wake);
                w.u32(*attempts).u64(*due_ms);
            }
            Phase::Leased {
                wake,
                holder,
                expires_ms,
            } => {
                w.u8(2);
                put_wake(w, *wake);
                w.u64(*expires_ms).bytes(holder.as_bytes());
            }
        }
        put_count(w, self.links.len());
        for (name, link) in &self.links {
            put_link(w, name, link);
        }
    }

    fn decode(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let mut subscription = Self {
            options: take_options(r)?,
            nonce: r.u64()?,
            created_ms: r.u64()?,
            ready: flag(r)?,
            generation: r.u64()?,
            phase: match r.u8()? {
                0 => Phase::Idle,
                1 => Phase::Woken {
                    wake: take_wake(r)?,
                    attempts: r.u32()?,
                    due_ms: r.u64()?,
                },
                2 => Phase::Leased {
                    wake: take_wake(r)?,
                    expires_ms: r.u64()?,
                    holder: text(r)?,
                },
                other => return invalid("subscription phase", other.into()),
            },
            links: BTreeMap::new(),
            pending: BTreeMap::new(),
            handed: None,
        };
        for at in 0..r.u32()? {
            let LinkRow { name, link } = take_link(r)?;
            let last = subscription.links.last_key_value();
            if last.is_some_and(|(last, _)| *last >= name) {
                return invalid("link order", at.into());
            }
            subscription.links.insert(name, link);
        }
        Ok(subscription)
    }
}
