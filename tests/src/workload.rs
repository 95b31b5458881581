//! Workload: clients that append, seal, open, read and give up, by seeded draws.
//!
//! **Invariants**
//! - A client's producer sends its batches in order and repeats one until it knows what came of it,
//!   across processes: a gap or a stale epoch answered to it is data loss.
//! - What a client does depends on its own stream of chance and the answers, on nothing else.
//!
//! **Not here**: crashes (`scenario`), judging at quiescence (`oracle`).

use crate::history::{BatchId, History, Tag, identify, name_of, payload, record};
use crate::oracle::{judge_damaged, judge_read};
use crate::sim::SimEnv;
use crate::sim::rng::Rng;
use crate::subject::{Outcome, Refusal, Subject};
use sealog_engine::env::Env;
use sealog_frame::{Batch, BatchBuilder};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::future::Future;
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

/// How often clients do what, in parts of the sum.
#[derive(Debug, Clone, Copy)]
pub struct Mix {
    /// Append without a producer.
    pub append: u64,
    /// Append as a producer.
    pub produce: u64,
    /// Open a stream.
    pub open: u64,
    /// Take the newest stream up again.
    pub resume: u64,
    /// Seal.
    pub seal: u64,
    /// Discard the oldest unsealed stream.
    pub discard: u64,
    /// Read everything.
    pub read: u64,
    /// Something with the client's own feed, which it also deletes and makes again.
    pub brief: u64,
    /// Do nothing for a while.
    pub rest: u64,
    /// Appends whose future is dropped on the way, per million.
    pub abort_ppm: u32,
    /// Most records of a batch.
    pub records_max: u32,
    /// Most filler bytes of a record.
    pub filler_max: u32,
}

impl Mix {
    /// Appends and reads only.
    #[must_use]
    pub fn appends() -> Self {
        Self {
            append: 50,
            produce: 30,
            open: 0,
            resume: 0,
            seal: 0,
            discard: 0,
            read: 5,
            brief: 0,
            rest: 15,
            abort_ppm: 50_000,
            records_max: 5,
            filler_max: 600,
        }
    }

    /// Appends and many reads, for a device that loses data: nobody counts on what was promised, all
    /// count on what they are given.
    #[must_use]
    pub fn damaged() -> Self {
        Self {
            produce: 0,
            read: 20,
            ..Self::appends()
        }
    }

    /// Everything.
    #[must_use]
    pub fn life_cycle() -> Self {
        Self {
            open: 4,
            resume: 3,
            seal: 6,
            discard: 2,
            brief: 10,
            ..Self::appends()
        }
    }
}

/// A producer's batch whose outcome isn't known yet.
#[derive(Debug, Clone)]
struct Owed {
    id: BatchId,
    batch: Batch,
    sequence: u64,
}

/// One client; outlives the store's processes.
#[derive(Debug)]
pub struct Client {
    pub(crate) number: usize,
    pub(crate) rng: Rng,
    /// Per feed: producer epoch and next sequence.
    stands: BTreeMap<String, (u64, u64)>,
    owed: BTreeMap<String, Owed>,
    tokens: BTreeMap<String, u64>,
    /// Its own feed, while it knows that there is one.
    pub(crate) brief: Option<String>,
}

impl Client {
    /// Client `number` of the run of `seed`.
    #[must_use]
    pub fn new(seed: u64, number: usize) -> Self {
        Self {
            number,
            rng: Rng::derive(seed, &format!("client {number}")),
            stands: BTreeMap::new(),
            owed: BTreeMap::new(),
            tokens: BTreeMap::new(),
            brief: None,
        }
    }

    /// Its producer id.
    #[must_use]
    pub fn producer_id(number: usize) -> String {
        format!("producer-{number}")
    }
}

const OPERATIONS: [&str; 9] = [
    "append", "produce", "open", "resume", "seal", "discard", "read", "brief", "rest",
];

/// A client at work on a running store.
pub struct Session<S> {
    /// The store.
    pub subject: S,
    /// The process.
    pub env: SimEnv,
    /// What all clients know.
    pub history: Rc<RefCell<History>>,
    /// Names of the feeds.
    pub feeds: Rc<Vec<String>>,
    /// How often what.
    pub mix: Mix,
    /// The device changes what it was given: data may be missing, but never be wrong.
    pub damaged: bool,
}

impl<S: Subject> Session<S> {
    /// Does `operations` things, one after the other.
    pub async fn work(&self, client: &Rc<RefCell<Client>>, operations: u64) {
        for _ in 0..operations {
            let (feed, lot, rest_us) = {
                let mut client = client.borrow_mut();
                let at = client.rng.index(self.feeds.len());
                let sum = self.weights().iter().sum();
                let lot = client.rng.below(sum);
                (self.feeds[at].clone(), lot, client.rng.below(5_000))
            };
            let choice = self.choice(lot);
            let number = client.borrow().number as u64;
            self.env.note("begins", OPERATIONS[choice], number, 0);
            match choice {
                0 => self.append(client, &feed).await,
                1 => self.produce(client, &feed).await,
                2 => self.open(client, &feed, false).await,
                3 => self.open(client, &feed, true).await,
                4 => self.seal(&feed).await,
                5 => self.discard(&feed).await,
                6 => self.read(&feed).await,
                7 => self.brief(client).await,
                _ => self.env.sleep(Duration::from_micros(rest_us)).await,
            }
            self.env.note("ends", OPERATIONS[choice], number, 0);
        }
    }

    fn weights(&self) -> [u64; 9] {
        let m = &self.mix;
        [
            m.append, m.produce, m.open, m.resume, m.seal, m.discard, m.read, m.brief, m.rest,
        ]
    }

    fn choice(&self, lot: u64) -> usize {
        let mut left = lot;
        for (number, weight) in self.weights().into_iter().enumerate() {
            if left < weight {
                return number;
            }
            left -= weight;
        }
        unreachable!("a lot is below the sum of the weights")
    }

    /// A batch in the history and as a frame.
    fn batch(&self, client: &mut Client, feed: &str, tag: Option<Tag>) -> (BatchId, Batch) {
        let many = client.rng.below(20) == 0;
        let records_max = if many {
            self.mix.records_max * 8
        } else {
            self.mix.records_max
        };
        let records = 1 + client.rng.below(u64::from(records_max)) as u32;
        let id = self.history.borrow_mut().issue(feed, records, tag.clone());
        let mut builder = BatchBuilder::default();
        for index in 0..records {
            let filler = client.rng.below(u64::from(self.mix.filler_max) + 1) as u32;
            let bytes = payload(id, index, filler);
            let mut key = String::new();
            let record = record(id, index, &bytes, &mut key);
            builder.push(&record).expect("a small record");
        }
        if let Some((producer, epoch, sequence)) = &tag {
            builder
                .producer(producer.as_bytes(), *epoch, *sequence)
                .expect("a short producer id");
        }
        (id, builder.build().expect("a batch of some records"))
    }

    /// Half of the time under the client's token, if it has one.
    fn with_token(client: &mut Client, feed: &str, batch: Batch) -> (Batch, Option<u64>) {
        let token = client.tokens.get(feed).copied();
        match token.filter(|_| client.rng.coin()) {
            Some(token) => (batch.with_fencing_token(token), Some(token)),
            None => (batch, None),
        }
    }

    async fn append(&self, client: &Rc<RefCell<Client>>, feed: &str) {
        let (id, batch, token, polls) = {
            let mut client = client.borrow_mut();
            let (id, batch) = self.batch(&mut client, feed, None);
            let (batch, token) = Self::with_token(&mut client, feed, batch);
            (id, batch, token, self.patience(&mut client))
        };
        let sent = self.history.borrow_mut().tick();
        let outcome = give_up_after(polls, self.subject.append(name_of(feed), batch)).await;
        let mut history = self.history.borrow_mut();
        match outcome {
            Outcome::Acked(range) => {
                history.acked(id, range);
                if let Some(token) = token {
                    history.acked_under(feed, token, sent);
                }
            }
            Outcome::Refused(refusal) => {
                history.refused(id);
                drop(history);
                self.forget_token(client, feed, &refusal);
            }
            Outcome::Unknown(_) => {}
        }
    }

    fn forget_token(&self, client: &Rc<RefCell<Client>>, feed: &str, refusal: &Refusal) {
        if *refusal == Refusal::Fenced {
            client.borrow_mut().tokens.remove(feed);
        }
    }

    /// How many polls the client waits for an answer.
    fn patience(&self, client: &mut Client) -> u64 {
        let gives_up = client.rng.chance_ppm(self.mix.abort_ppm);
        if gives_up {
            client.rng.below(6)
        } else {
            u64::MAX
        }
    }

    /// Sends the batch owed to this feed, or the next one.
    pub(crate) async fn produce(&self, client: &Rc<RefCell<Client>>, feed: &str) {
        let (owed, first_try, polls) = {
            let mut client = client.borrow_mut();
            let polls = self.patience(&mut client);
            match client.owed.get(feed) {
                Some(owed) => (owed.clone(), false, polls),
                None => (self.next_owed(&mut client, feed), true, polls),
            }
        };
        let outcome = give_up_after(
            polls,
            self.subject.append(name_of(feed), owed.batch.clone()),
        )
        .await;
        let mut history = self.history.borrow_mut();
        let mut client = client.borrow_mut();
        match outcome {
            Outcome::Acked(range) => {
                history.acked(owed.id, range);
                client.owed.remove(feed);
                if let Some(stands) = client.stands.get_mut(feed) {
                    stands.1 = owed.sequence + 1;
                }
            }
            Outcome::Refused(refusal @ (Refusal::ProducerGap | Refusal::ProducerFenced)) => {
                let number = client.number;
                history.breaches.push(format!(
                    "{feed}: orderly producer {number} was answered {refusal:?} at {}",
                    owed.sequence
                ));
            }
            Outcome::Refused(Refusal::NotFound) if client.brief.as_deref() == Some(feed) => {
                history
                    .breaches
                    .push(format!("{feed} was made and is not found"));
            }
            Outcome::Refused(_) if first_try => {
                // Nothing happened: the same sequence is free for another batch.
                history.refused(owed.id);
                client.owed.remove(feed);
            }
            Outcome::Refused(_) | Outcome::Unknown(_) => {}
        }
    }

    fn next_owed(&self, client: &mut Client, feed: &str) -> Owed {
        let raises = client.rng.below(30) == 0;
        let stands = client.stands.entry(feed.to_owned()).or_insert((1, 0));
        if raises && stands.1 > 0 {
            *stands = (stands.0 + 1, 0);
        }
        let (epoch, sequence) = *stands;
        let tag = (Client::producer_id(client.number), epoch, sequence);
        let (id, batch) = self.batch(client, feed, Some(tag));
        let owed = Owed {
            id,
            batch,
            sequence,
        };
        client.owed.insert(feed.to_owned(), owed.clone());
        owed
    }

    async fn open(&self, client: &Rc<RefCell<Client>>, feed: &str, resume: bool) {
        let sent = self.history.borrow_mut().tick();
        let outcome = if resume {
            self.subject.resume(feed).await
        } else {
            self.subject.open(feed).await
        };
        if let Outcome::Acked(opened) = outcome {
            self.history.borrow_mut().opened(feed, opened.epoch, sent);
            let mut client = client.borrow_mut();
            client.tokens.insert(feed.to_owned(), opened.epoch);
        }
    }

    pub(crate) async fn seal(&self, feed: &str) {
        if let Outcome::Acked(commit) = self.subject.seal(name_of(feed)).await {
            self.history.borrow_mut().saw_commit(feed, &commit);
        }
    }

    async fn discard(&self, feed: &str) {
        {
            let mut history = self.history.borrow_mut();
            let sent = history.tick();
            history.discarding.entry(feed.to_owned()).or_insert(sent);
        }
        if let Outcome::Acked(commit) = self.subject.discard(feed).await {
            self.history.borrow_mut().saw_commit(feed, &commit);
        }
    }

    pub(crate) async fn read(&self, feed: &str) {
        let since = self.history.borrow_mut().tick();
        let Ok(records) = self.subject.read_all(name_of(feed)).await else {
            return;
        };
        let mut history = self.history.borrow_mut();
        if self.damaged {
            let judged = judge_damaged(&history, feed, &records);
            history.breaches.extend(judged.err());
            return;
        }
        let discarding = history.discarding.contains_key(feed);
        if let Err(breach) = judge_read(&history, feed, &records, since, &|_| discarding) {
            history.breaches.push(format!("while reading: {breach}"));
            return;
        }
        let observed = history.observed.entry(feed.to_owned()).or_default();
        for seen in &records {
            if let Some(what) = identify(&seen.payload) {
                observed.insert(seen.sequence, what);
            }
        }
    }
}

/// Polls `call` to its end, or drops it after `polls`: then nothing is known.
pub(crate) async fn give_up_after<T>(
    polls: u64,
    call: impl Future<Output = Outcome<T>>,
) -> Outcome<T> {
    let mut call = pin!(call);
    let mut left = polls;
    std::future::poll_fn(move |cx| {
        if let Poll::Ready(outcome) = call.as_mut().poll(cx) {
            return Poll::Ready(outcome);
        }
        if left == 0 {
            return Poll::Ready(Outcome::Unknown("given up".to_owned()));
        }
        left -= 1;
        Poll::Pending
    })
    .await
}
