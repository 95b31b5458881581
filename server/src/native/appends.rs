//! Appends: batches that were taken in and wait for their group, in the order they came.
//!
//! ```text
//!  reader ──> [ decided, group 7 ][ decided, group 8 ][ queued ] ──> writer: those up to the durable group
//! ```
//!
//! **Invariants**
//! - NATIVE-3: answers of one log leave in the order the batches came.
//! - NATIVE-4: none leaves before its group is durable, unless it says that the outcome is not known.
//!
//! **Not here**: how a batch is decided (the engine).

use std::cell::RefCell;
use std::collections::VecDeque;

use sealog_engine::{AppendResult, Error, Listen, LocalLog, Result};
use sealog_protocol::Answer;

use super::meters::Meters;
use super::outbox::Outbox;
use super::refuse::refusal;

/// What is known of a batch.
enum Outcome {
    /// Nothing yet.
    Queued,
    /// This, once the group is durable.
    Decided(Result<AppendResult>, u64),
    /// This.
    Settled(Result<AppendResult>),
}

struct Pending {
    request: u64,
    bytes: usize,
    outcome: Outcome,
}

/// Batches that a connection without any keeps the memory for.
const PENDING_KEPT_MAX: usize = 256;

/// Batches of one log.
#[derive(Default)]
struct Lane {
    /// The log, if it is this shard's and was written to.
    log: Option<LocalLog>,
    pending: VecDeque<Pending>,
    /// How many were answered before the first of `pending`.
    answered: u64,
}

/// All batches of a connection.
pub(super) struct Appends(RefCell<Vec<Lane>>);

/// A batch that was queued: where its outcome is to be put.
#[derive(Debug, Clone, Copy)]
pub(super) struct Slot {
    lane: usize,
    number: u64,
}

impl Appends {
    pub(super) fn new(lanes: usize) -> Self {
        let lanes = (0..lanes.max(1)).map(|_| Lane::default());
        Self(RefCell::new(lanes.collect()))
    }

    /// Memory of batches that are not answered.
    pub(super) fn bytes(&self) -> usize {
        let pending: usize = self.0.borrow().iter().map(|lane| lane.pending.len()).sum();
        pending * size_of::<Pending>()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.borrow().iter().all(|lane| lane.pending.is_empty())
    }

    fn push(&self, lane: usize, log: Option<&LocalLog>, pending: Pending) -> Slot {
        let mut lanes = self.0.borrow_mut();
        let index = lane.min(lanes.len() - 1);
        let lane = &mut lanes[index];
        if lane.log.is_none() {
            lane.log = log.cloned();
        }
        lane.pending.push_back(pending);
        Slot {
            lane: index,
            number: lane.answered + lane.pending.len() as u64 - 1,
        }
    }

    /// Adds a batch that was decided and rests on `group` of `log`.
    pub(super) fn decided(
        &self,
        (lane, log): (usize, &LocalLog),
        (request, bytes): (u64, usize),
        (result, group): (Result<AppendResult>, u64),
    ) {
        let outcome = Outcome::Decided(result, group);
        let pending = Pending {
            request,
            bytes,
            outcome,
        };
        self.push(lane, Some(log), pending);
    }

    /// Adds a batch whose outcome comes later.
    pub(super) fn queued(&self, lane: usize, (request, bytes): (u64, usize)) -> Slot {
        let outcome = Outcome::Queued;
        let pending = Pending {
            request,
            bytes,
            outcome,
        };
        self.push(lane, None, pending)
    }

    /// The outcome of a queued batch.
    pub(super) fn fill(&self, slot: Slot, result: Result<AppendResult>) {
        let mut lanes = self.0.borrow_mut();
        let lane = &mut lanes[slot.lane];
        let index = slot.number.checked_sub(lane.answered);
        let index = index.and_then(|index| usize::try_from(index).ok());
        if let Some(pending) = index.and_then(|index| lane.pending.get_mut(index)) {
            pending.outcome = Outcome::Settled(result);
        }
    }

    /// Listens to every log that a batch waits for.
    pub(super) fn listen(&self, listens: &mut Vec<Listen>) {
        let lanes = self.0.borrow();
        let waiting = lanes.iter().filter(|lane| !lane.pending.is_empty());
        listens.extend(
            waiting
                .filter_map(|lane| lane.log.as_ref())
                .map(|log| log.progress().listen()),
        );
    }

    /// Answers what may be answered; if it is `late`, everything, though the outcome is not known.
    pub(super) fn settle(&self, late: bool, outbox: &Outbox, meters: &Meters) {
        for lane in self.0.borrow_mut().iter_mut() {
            let due = |first: &mut Pending| late || is_due(first, lane.log.as_ref());
            while let Some(pending) = lane.pending.pop_front_if(due) {
                lane.answered += 1;
                let durable = durability(&pending.outcome, lane.log.as_ref());
                let result = match pending.outcome {
                    Outcome::Decided(result, _) => durable.and(result),
                    Outcome::Settled(result) => result,
                    Outcome::Queued => Err(Error::Closed),
                };
                meters.appended(&result, pending.bytes);
                outbox.put_with(pending.bytes, |out| encode(&result, pending.request, out));
            }
            if lane.pending.is_empty() {
                lane.pending.shrink_to(PENDING_KEPT_MAX);
            }
        }
    }
}

fn is_due(pending: &Pending, log: Option<&LocalLog>) -> bool {
    match &pending.outcome {
        Outcome::Queued => false,
        Outcome::Settled(_) => true,
        Outcome::Decided(_, group) => log.is_none_or(|log| log.outcome(*group).is_some()),
    }
}

fn durability(outcome: &Outcome, log: Option<&LocalLog>) -> Result<()> {
    match (outcome, log) {
        (Outcome::Decided(_, group), Some(log)) => {
            log.outcome(*group).unwrap_or(Err(Error::Closed))
        }
        _ => Ok(()),
    }
}

fn encode(result: &Result<AppendResult>, request: u64, out: &mut Vec<u8>) {
    let error = match result {
        Ok(result) => {
            let answer = Answer::Appended {
                first: result.first,
                last: result.last,
                records: u32::try_from(result.record_count).unwrap_or(u32::MAX),
                duplicate: result.duplicate,
                producer_sequence: result.producer_sequence,
            };
            return answer.encode(request, 0, out);
        }
        Err(error) => error,
    };
    let text = error.to_string();
    let answer = Answer::Refused {
        refusal: refusal(error, &text),
    };
    answer.encode(request, 0, out);
}
