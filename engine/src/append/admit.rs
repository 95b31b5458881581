//! Admit: whether a batch may enter the log, as a pure function of the feed and the batch.
//! Spec: spec/lease.md §2.
//!
//! **Invariants**
//! - LEASE-1: a batch with a token must carry the current epoch.
//! - LEASE-2: a batch without one never raises the epoch; an exclusive feed refuses it.
//! - LEASE-3: a duplicate is recognised before the match sequence is looked at, so that a retry of an
//!   accepted batch never answers a mismatch.
//! - LEASE-6: a closed feed answers duplicates and refuses everything else.
//! - LEASE-5: what a writer foresees is what it is answered, as long as nobody else writes in between.
//!
//! **Not here**: limits of the frame (its own crate), room in the log (`wal`).

use sealog_frame::{FrameView, MatchSequence};

use super::AppendResult;
use crate::error::Error;
use crate::feed::{Feed, FeedOptions};
use crate::ids::Epoch;
use crate::producer::{Producers, Verdict};
use crate::shard::check_feed_name;

/// What to do with a batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    /// Write it.
    Accept {
        /// Open a stream first, under the epoch in force.
        open: bool,
        /// The producer is not known yet: mind the cap.
        new_producer: bool,
    },
    /// It is in the log already.
    Duplicate(AppendResult),
    /// Answer this.
    Refuse(Error),
}

/// Judges `batch` against `feed`.
#[must_use]
pub fn judge(feed: &Feed, batch: &FrameView<'_>) -> Decision {
    match check(feed, batch) {
        Ok(decision) => decision,
        Err(refusal) => Decision::Refuse(refusal),
    }
}

/// Judges `batch` as if its writer had taken the lease of `feed`: neither its token nor whether a
/// stream is open is looked at. LEASE-5.
#[must_use]
pub(crate) fn foresee(feed: &Feed, batch: &FrameView<'_>) -> Decision {
    check_content(&Ground::of(feed), batch).unwrap_or_else(Decision::Refuse)
}

/// What the first batch of a feed that is not made yet would be refused for. LEASE-5.
///
/// # Errors
/// [`Error::FeedName`], [`Error::SequenceMismatch`], [`Error::ProducerGap`],
/// [`Error::KeysNotAllowed`]; there are no effects.
pub fn foresee_first(
    name: &str,
    options: &FeedOptions,
    batch: &FrameView<'_>,
) -> Result<(), Error> {
    foresee_first_after(None, name, options, batch)
}

/// As [`foresee_first`], of a feed that goes on behind sequence `last`.
pub(crate) fn foresee_first_after(
    last: Option<u64>,
    name: &str,
    options: &FeedOptions,
    batch: &FrameView<'_>,
) -> Result<(), Error> {
    check_feed_name(name)?;
    let ground = Ground {
        name,
        keys: options.keys,
        last,
        producers: None,
        open: true,
        closed: false,
    };
    check_content(&ground, batch).map(drop)
}

/// What of a feed the content of a batch is judged against.
struct Ground<'a> {
    name: &'a str,
    keys: bool,
    last: Option<u64>,
    producers: Option<&'a Producers>,
    /// No stream is open: the batch would open one.
    open: bool,
    closed: bool,
}

impl<'a> Ground<'a> {
    fn of(feed: &'a Feed) -> Self {
        Self {
            name: &feed.name,
            keys: feed.options.keys,
            last: feed.last_sequence(),
            producers: feed.producers.as_deref(),
            open: feed.open_stream().is_none(),
            closed: feed.closed.is_some(),
        }
    }
}

fn check(feed: &Feed, batch: &FrameView<'_>) -> Result<Decision, Error> {
    check_token(feed, batch.fencing_token().map(Epoch))?;
    let decision = check_content(&Ground::of(feed), batch)?;
    if matches!(decision, Decision::Accept { open: true, .. }) && batch.fencing_token().is_some() {
        return Err(Error::NoOpenStream {
            feed: feed.name.to_string(),
        });
    }
    Ok(decision)
}

fn check_content(ground: &Ground<'_>, batch: &FrameView<'_>) -> Result<Decision, Error> {
    match check_producer(ground, batch) {
        Ok(Decision::Accept { .. }) | Err(_) if ground.closed => Err(Error::FeedClosed {
            feed: ground.name.to_owned(),
        }),
        decision => decision,
    }
}

fn check_producer(ground: &Ground<'_>, batch: &FrameView<'_>) -> Result<Decision, Error> {
    let mut new_producer = false;
    if let Some(producer) = batch.producer() {
        let verdict = match ground.producers {
            Some(known) => known.judge(producer.id, producer.epoch, producer.sequence),
            None if producer.sequence == 0 => Verdict::Accepted { is_new: true },
            None => Verdict::Gap { expected: 0 },
        };
        match verdict {
            Verdict::Accepted { is_new } => new_producer = is_new,
            Verdict::Duplicate {
                last_sequence,
                range,
            } => {
                let newest = ground.producers.and_then(|p| p.get(producer.id));
                let last = newest.map_or(0, |state| state.last_range.1);
                return Ok(Decision::Duplicate(duplicate(range, last, last_sequence)));
            }
            refused => is_duplicate(refused, producer.epoch, producer.sequence).map(drop)?,
        }
    }
    check_match(ground.last, batch)?;
    if batch.is_keyed() && !ground.keys {
        return Err(Error::KeysNotAllowed {
            feed: ground.name.to_owned(),
        });
    }
    Ok(Decision::Accept {
        open: ground.open,
        new_producer,
    })
}

/// Whether a producer's request was done before; what it is refused for, if it is.
pub(crate) fn is_duplicate(verdict: Verdict, epoch: u64, sequence: u64) -> Result<bool, Error> {
    match verdict {
        Verdict::Accepted { .. } => Ok(false),
        Verdict::Duplicate { .. } => Ok(true),
        Verdict::StaleEpoch { current } => Err(Error::ProducerFenced { epoch, current }),
        Verdict::InvalidEpochStart => Err(Error::ProducerEpochStart { epoch, sequence }),
        Verdict::Gap { expected } => Err(Error::ProducerGap {
            expected,
            received: sequence,
        }),
    }
}

/// LEASE-1, LEASE-2: of whatever a writer asks for.
pub(crate) fn check_token(feed: &Feed, token: Option<Epoch>) -> Result<(), Error> {
    match token {
        Some(token) if token != feed.epoch => Err(Error::Fenced {
            token,
            current: feed.epoch,
        }),
        None if feed.options.exclusive => Err(Error::TokenRequired {
            feed: feed.name.to_string(),
        }),
        _ => Ok(()),
    }
}

fn check_match(actual: Option<u64>, batch: &FrameView<'_>) -> Result<(), Error> {
    let expected = match batch.match_sequence() {
        None => return Ok(()),
        Some(MatchSequence::Empty) => None,
        Some(MatchSequence::At(last)) => Some(last),
    };
    if expected == actual {
        return Ok(());
    }
    Err(Error::SequenceMismatch { expected, actual })
}

fn duplicate(range: Option<(u64, u64)>, last: u64, producer_sequence: u64) -> AppendResult {
    let producer_sequence = Some(producer_sequence);
    match range {
        Some((first, last)) => AppendResult {
            first,
            last,
            record_count: last - first + 1,
            duplicate: true,
            producer_sequence,
        },
        None => AppendResult {
            first: last,
            last,
            record_count: 0,
            duplicate: true,
            producer_sequence,
        },
    }
}
