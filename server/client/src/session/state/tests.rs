//! State against a model: a log that judges producers, behind connections that end anywhere.
//!
//! **Invariants**
//! - Whatever the order of events: every batch has one outcome, acks are in order and true, the log has
//!   each acknowledged batch once, and effects are never better than the truth.
//!
//! **Not here**: sockets (the crate's tests).

use std::collections::VecDeque;

use proptest::prelude::*;
use sealog_frame::{BatchBuilder, FrameLimits, Record};

use super::*;

/// What a batch is to the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mood {
    Fine,
    /// Refused as *not now*, so often.
    Full(u8),
    /// Refused for what it is.
    Bad,
}

/// The server: what it stored, by number of the batch, and the producer's next sequence.
#[derive(Default)]
struct Log {
    stored: Vec<u64>,
    next: u64,
    /// Somebody else took the feed: said before the producer is looked at.
    fenced: bool,
}

struct World {
    state: State,
    log: Log,
    moods: Vec<Mood>,
    connected: bool,
    /// Sent on this connection and not judged yet; then answers not received yet.
    to_server: VecDeque<u64>,
    to_client: VecDeque<Result<Ack>>,
    tickets: Vec<oneshot::Receiver<Result<Ack>>>,
    outcomes: Vec<Option<Result<Ack>>>,
    batches_max: usize,
}

impl World {
    fn new(identity: bool, batches_max: usize) -> Self {
        Self {
            state: State::new(identity.then_some(0)),
            log: Log::default(),
            moods: Vec::new(),
            connected: true,
            to_server: VecDeque::new(),
            to_client: VecDeque::new(),
            tickets: Vec::new(),
            outcomes: Vec::new(),
            batches_max,
        }
    }

    fn push(&mut self, mood: Mood) {
        if self.state.refusal().is_some() {
            return;
        }
        let mut builder = BatchBuilder::new(FrameLimits::DEFAULT);
        builder.push(&Record::of(b"x")).unwrap();
        let (done, ticket) = oneshot::channel();
        let number = self.state.push(builder.build().unwrap(), 1, Some(done));
        assert_eq!(number, self.moods.len() as u64);
        self.moods.push(mood);
        self.tickets.push(ticket);
        self.outcomes.push(None);
    }

    fn send(&mut self) {
        if !self.connected {
            return;
        }
        while let Some(entry) = self.state.to_send(self.batches_max) {
            self.to_server.push_back(entry.number);
            self.state.mark_sent();
        }
        assert!(
            self.state.next_producer_sequence.is_none() || self.to_server.len() <= self.batches_max
        );
    }

    /// The server judges its oldest batch.
    fn judge(&mut self) {
        let Some(number) = self.to_server.pop_front() else {
            return;
        };
        let entry = self.state.queue.iter().find(|entry| entry.number == number);
        let sequence = entry.and_then(|entry| entry.producer_sequence);
        let answer = self.verdict(number, sequence);
        self.to_client.push_back(answer);
    }

    fn verdict(&mut self, number: u64, sequence: Option<u64>) -> Result<Ack> {
        let refuse = |kind| Err(Error::new(kind, Effects::None, ""));
        if self.log.fenced {
            return refuse(ErrorKind::Fenced {
                epoch: 1,
                current: 2,
            });
        }
        if let Some(sequence) = sequence {
            if sequence < self.log.next {
                let at = self.log.stored.iter().position(|stored| *stored == number);
                let at = at.expect("only what is stored is a duplicate") as u64;
                return Ok(ack(at, true));
            }
            if sequence > self.log.next {
                return refuse(ErrorKind::ProducerGap {
                    sent: sequence,
                    expected: self.log.next,
                });
            }
        }
        let index = usize::try_from(number).unwrap();
        match &mut self.moods[index] {
            Mood::Bad => {
                return refuse(ErrorKind::SequenceMismatch {
                    expected: None,
                    actual: Some(0),
                });
            }
            Mood::Full(left @ 1..) => {
                *left -= 1;
                return Err(full());
            }
            _ => {}
        }
        self.log.next += 1;
        self.log.stored.push(number);
        Ok(ack(self.log.stored.len() as u64 - 1, false))
    }

    /// The client gets its oldest answer.
    fn receive(&mut self) {
        let Some(answer) = self.to_client.pop_front() else {
            return;
        };
        let mut out = Vec::new();
        let step = self.state.on_answer(answer, &mut out);
        tell(out);
        match step {
            Step::Moved => {}
            Step::Rewound => {
                assert!(self.to_server.is_empty() && self.to_client.is_empty());
                self.state.send_again();
            }
            Step::Stopped => self.leave(),
        }
    }

    fn leave(&mut self) {
        self.connected = false;
        self.to_server.clear();
        self.to_client.clear();
    }

    fn cut(&mut self) {
        self.leave();
        let mut out = Vec::new();
        self.state.on_end(&Error::disconnected("cut"), &mut out);
        tell(out);
    }

    fn connect(&mut self) {
        self.connected = self.state.failure.is_none();
    }

    /// Takes outcomes that have come, in any order.
    fn look(&mut self) {
        for (ticket, outcome) in self.tickets.iter_mut().zip(&mut self.outcomes) {
            if let Ok(result) = ticket.try_recv() {
                assert!(outcome.replace(result).is_none(), "one outcome each");
            }
        }
        let waiting = self.outcomes.iter().filter(|outcome| outcome.is_none());
        assert_eq!(waiting.count(), self.state.queue.len());
        assert_eq!(self.state.unacked_bytes, self.state.queue.len() as u64);
    }

    fn check(&self) {
        let mut once = self.log.stored.clone();
        once.sort_unstable();
        assert_eq!(once, self.log.stored, "in order");
        once.dedup();
        assert_eq!(once.len(), self.log.stored.len(), "once");
        for (number, outcome) in (0_u64..).zip(&self.outcomes) {
            let at = self.log.stored.iter().position(|stored| *stored == number);
            match outcome {
                Some(Ok(ack)) => assert_eq!(at, Some(usize::try_from(ack.first).unwrap())),
                Some(Err(error)) if error.effects() == Effects::None => {
                    assert_eq!(at, None, "batch {number}: {error:?}");
                }
                Some(Err(_)) | None => {}
            }
        }
    }
}

fn tell(out: Vec<Outcome>) {
    for outcome in out {
        let _ = outcome.done.unwrap().send(outcome.result);
    }
}

fn ack(at: u64, duplicate: bool) -> Ack {
    Ack {
        first: at,
        last: at,
        records: 1,
        duplicate,
        producer_sequence: None,
    }
}

fn full() -> Error {
    let refusal = sealog_protocol::Refusal {
        code: sealog_protocol::ErrorCode::StorageFull,
        effects: Effects::None,
        retryable: true,
        retry_after_ms: 0,
        value: None,
        limit: None,
        subject: "",
        text: "",
    };
    Error::from(&refusal)
}

#[derive(Debug, Clone, Copy)]
enum Event {
    Push(Mood),
    Send,
    Judge,
    Receive,
    Cut,
    Connect,
    Fence,
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        6 => Just(Event::Push(Mood::Fine)),
        1 => (1_u8..3).prop_map(|times| Event::Push(Mood::Full(times))),
        1 => Just(Event::Push(Mood::Bad)),
        6 => Just(Event::Send),
        8 => Just(Event::Judge),
        8 => Just(Event::Receive),
        1 => Just(Event::Cut),
        3 => Just(Event::Connect),
        1 => Just(Event::Fence),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]

    #[test]
    fn every_batch_is_stored_once_and_told_the_truth(
        identity in any::<bool>(),
        batches_max in 1_usize..6,
        events in proptest::collection::vec(event(), 0..120),
    ) {
        let mut world = World::new(identity, batches_max);
        for event in events {
            match event {
                Event::Push(mood) => world.push(mood),
                Event::Send => world.send(),
                Event::Judge => world.judge(),
                Event::Receive => world.receive(),
                Event::Cut => world.cut(),
                Event::Connect => world.connect(),
                // Mostly late, so that most runs are of a feed that is not taken over.
                Event::Fence => world.log.fenced = world.moods.len() > 8,
            }
            world.look();
            world.check();
        }
        // Once all is well, everything settles.
        for _ in 0..1_000 {
            world.connect();
            world.send();
            world.judge();
            world.receive();
        }
        world.look();
        world.check();
        prop_assert!(world.state.queue.is_empty());
        if let Some(cause) = &world.state.failure {
            let expected = matches!(
                cause.kind(),
                ErrorKind::SequenceMismatch { .. } | ErrorKind::Fenced { .. } | ErrorKind::Disconnected
            );
            prop_assert!(expected, "{cause:?}");
        }
        let clean = world.state.failure.is_none() && identity;
        let good = world.moods.iter().filter(|mood| **mood != Mood::Bad).count();
        prop_assert!(!clean || world.log.stored.len() == good);
    }
}
