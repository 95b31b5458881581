//! Requests: everything but appends and reads: each is a task of the shard that answers when it is done.
//!
//! **Invariants**
//! - A request is answered once, whatever happens to it, unless its client is gone.
//!
//! **Not here**: appends (`reader`, `appends`), records (`follow`).

use std::rc::Rc;

use sealog_engine::commit::CommitKind;
use sealog_engine::ids::{CommitNumber, Epoch, StreamId};
use sealog_engine::{Error, FeedOptions, Handle, Held, ProducerInfo, ProductionEnv, Result};
use sealog_frame::Batch;
use sealog_protocol::{Answer, Effects, ErrorCode, LogInfo, Refusal, Request, Settling};

use super::connection::{Connection, Phase};
use super::convert;
use super::refuse::{bad_message, own, refusal};

/// Request id, and how many bytes it took.
pub(super) type Asks = (u64, usize);
type Engine = Handle<ProductionEnv>;

/// What a request that runs as a task does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// It changes something.
    Change,
    /// It asks for something.
    Query,
    /// It asks for records: for as long, and as many, as there may be.
    Records,
}

/// Why a task is not gone on with.
enum Waiting {
    /// Nobody waits for what it comes to.
    Nobody,
    /// Its client has waited as long as it may.
    TooLong,
}

/// Requests that run as tasks of one connection at once, follows among them. One more is refused: were
/// reading to stop instead, what ends a follow could not be read.
const RUNNING_MAX: usize = 256;

/// Entries of a page, at most.
const PAGE_MAX: u32 = 1000;
/// Bytes reserved for a page while it is made: as many entries of the longest kind, feeds, or of
/// commits as the engine gives at once.
const PAGE_BYTES_MAX: usize = 1200 << 10;

fn page(limit: u32) -> usize {
    usize::try_from(limit.clamp(1, PAGE_MAX)).unwrap_or(1)
}

impl Connection {
    /// Begins what `request` asks for.
    pub(super) fn request(self: &Rc<Self>, request: Request<'_>, asks: Asks) {
        self.outbox.take_in(asks.1);
        match request {
            Request::Ping {} => self.answer(&Answer::Pong {}, asks.0, asks.1),
            Request::Goodbye {} => self.set_phase(Phase::Closing),
            Request::Credit { bytes } => {
                self.outbox.answered(asks.1);
                self.follows.credit(asks.0, bytes);
            }
            Request::Cancel {} => {
                self.outbox.answered(asks.1);
                self.follows.cancel(asks.0);
            }
            _ if self.running.get() >= RUNNING_MAX => {
                self.refuse_running("as many requests as may run at once", RUNNING_MAX, asks);
            }
            // The first of a connection is always taken: others' follows must not shut it out.
            _ if self.running.get() > 0
                && self.service.running.get() >= self.service.running_max(may_wait(&request)) =>
            {
                let text = "as many requests as all connections of a shard may run at once";
                self.refuse_running(text, self.service.running_max(may_wait(&request)), asks);
            }
            Request::Read { scope, wait_ms } => {
                self.read_once(convert::read(&scope), wait_ms, asks);
            }
            Request::Follow {
                scope,
                credit_bytes,
            } => self.follow(convert::read(&scope), credit_bytes, asks),
            Request::Bind { feed } => self.bind_named(feed.to_owned(), asks),
            Request::Open { feed } => self.lease(feed.to_owned(), false, asks),
            Request::Resume { feed } => self.lease(feed.to_owned(), true, asks),
            Request::Hello { .. } | Request::Append { .. } => {
                self.fail(bad_message("not a request of its own"));
            }
            request => self.ask(request, asks),
        }
    }

    fn refuse_running(&self, text: &str, limit: usize, asks: Asks) {
        let mut refusal = own(ErrorCode::Overloaded, text);
        refusal.limit = Some(limit as u64);
        refusal.retryable = true;
        self.answer_refused(refusal, asks.0, asks.1);
    }

    /// Answers that `refusal` was the outcome.
    pub(super) fn answer_refused(&self, refusal: Refusal<'_>, request: u64, bytes: usize) {
        self.service.meters.refuse(refusal.code);
        self.answer(&Answer::Refused { refusal }, request, bytes);
    }

    /// Answers with `result`.
    pub(super) fn answer_result(&self, result: Result<Answer<'_>>, (request, bytes): Asks) {
        match result {
            Ok(answer) => self.answer(&answer, request, bytes),
            Err(error) => {
                let text = error.to_string();
                self.answer_refused(refusal(&error, &text), request, bytes);
            }
        }
    }

    /// Runs `work`, which changes something, as a task and answers with what it comes to.
    fn change<F>(self: &Rc<Self>, asks: Asks, work: impl FnOnce(Engine) -> F + 'static)
    where
        F: Future<Output = Result<Answer<'static>>> + 'static,
    {
        self.task(asks, Kind::Change, work);
    }

    /// Runs `work`, which changes nothing, as a task and answers with what it comes to.
    fn query<F>(self: &Rc<Self>, asks: Asks, work: impl FnOnce(Engine) -> F + 'static)
    where
        F: Future<Output = Result<Answer<'static>>> + 'static,
    {
        self.task(asks, Kind::Query, work);
    }

    fn task<F>(self: &Rc<Self>, asks: Asks, kind: Kind, work: impl FnOnce(Engine) -> F + 'static)
    where
        F: Future<Output = Result<Answer<'static>>> + 'static,
    {
        let future = work(self.service.side.handle().clone());
        self.run_task(asks, kind, async move |connection| {
            connection.answer_result(future.await, asks);
        });
    }

    /// Runs `work`, which answers, as a task that counts as one of the connection's. It is dropped when
    /// nobody waits for its answer any more, and when the time for it is over.
    pub(super) fn run_task<F>(self: &Rc<Self>, asks: Asks, kind: Kind, work: F)
    where
        F: AsyncFnOnce(&Rc<Self>) + 'static,
    {
        for count in [&self.running, &self.service.running] {
            count.set(count.get() + 1);
        }
        let connection = self.clone();
        self.service.side.spawn("native request", async move {
            let done = async {
                work(&connection).await;
                None
            };
            let given_up = async { Some(connection.given_up(kind).await) };
            match futures_lite::future::or(done, given_up).await {
                None => {}
                Some(Waiting::Nobody) => connection.outbox.answered(asks.1),
                Some(Waiting::TooLong) => connection.answer_late(asks, kind),
            }
            for count in [&connection.running, &connection.service.running] {
                count.set(count.get() - 1);
            }
            connection.outbox.filled.notify();
            connection.outbox.emptied.notify();
        });
    }

    /// Runs `work`, which makes a page, as a task once there is room for it, and answers with it.
    fn page<F>(self: &Rc<Self>, asks: Asks, work: impl FnOnce(Engine) -> F + 'static)
    where
        F: Future<Output = Result<Answer<'static>>> + 'static,
    {
        self.run_task(asks, Kind::Query, async move |connection| {
            let sending = &connection.service.memory.sending;
            let room = sending.acquire(PAGE_BYTES_MAX).await;
            match work(connection.service.side.handle().clone()).await {
                Ok(answer) => {
                    let mut bytes = Vec::new();
                    answer.encode(asks.0, 0, &mut bytes);
                    let held = room.map_or_else(Held::default, |mut room| {
                        room.shrink(bytes.len());
                        room.into()
                    });
                    connection.outbox.put_whole(bytes, asks.1, held);
                }
                Err(error) => connection.answer_result(Err(error), asks),
            }
        });
    }

    /// Waits until there is no use in going on with a task of this kind.
    async fn given_up(&self, kind: Kind) -> Waiting {
        let given_up = || match self.phase() {
            Phase::Ended => Some(Waiting::Nobody),
            _ if self.has_left() && kind == Kind::Records => Some(Waiting::Nobody),
            Phase::Late => Some(Waiting::TooLong),
            Phase::New | Phase::Open | Phase::Closing => None,
        };
        self.ending.until(given_up).await
    }

    /// Answers that what was asked for is not known to have happened, or not.
    fn answer_late(&self, (request, bytes): Asks, kind: Kind) {
        let text = Error::Closed.to_string();
        let mut refusal = refusal(&Error::Closed, &text);
        if kind != Kind::Change {
            refusal.effects = Effects::None;
        }
        self.answer_refused(refusal, request, bytes);
    }

    fn bind_named(self: &Rc<Self>, name: String, asks: Asks) {
        self.run_task(asks, Kind::Query, async move |connection| {
            let bound = connection.bind_now(&name).await;
            connection.answer_result(bound, asks);
        });
    }

    async fn bind_now(&self, name: &str) -> Result<Answer<'static>> {
        let info = self.service.side.handle().feed(name).await?;
        self.bindings.check(info.id)?;
        Ok(Answer::Bound {
            binding: self.bind(name, info.id),
            feed: info.id.0,
            next_sequence: info.next_sequence,
        })
    }

    fn lease(self: &Rc<Self>, name: String, resume: bool, asks: Asks) {
        self.run_task(asks, Kind::Change, async move |connection| {
            let leased = connection.take_lease(&name, resume).await;
            connection.answer_result(leased, asks);
        });
    }

    async fn take_lease(&self, name: &str, resume: bool) -> Result<Answer<'static>> {
        let engine = self.service.side.handle();
        if self.bindings.is_full() {
            // Before anybody is fenced for it.
            self.bindings.check(engine.feed(name).await?.id)?;
        }
        let lease = match resume {
            false => engine.open(name).await?,
            true => engine.resume(name).await?,
        };
        Ok(Answer::Leased {
            binding: self.bind(name, lease.feed),
            feed: lease.feed.0,
            epoch: lease.epoch.0,
            stream: lease.stream.0,
            next_sequence: lease.next_sequence,
        })
    }

    /// What is asked of the engine as it stands.
    fn ask(self: &Rc<Self>, request: Request<'_>, asks: Asks) {
        match request {
            Request::CreateFeed {
                feed,
                keys,
                exclusive,
            } => {
                let (feed, options) = (
                    feed.to_owned(),
                    FeedOptions {
                        keys,
                        exclusive,
                        ..FeedOptions::default()
                    },
                );
                self.change(asks, async move |engine: Engine| {
                    let feed = engine.create_feed(&feed, options).await?.0;
                    Ok(Answer::Created { feed })
                });
            }
            Request::DeleteFeed { feed } => {
                let feed = feed.to_owned();
                self.change(asks, async move |engine: Engine| {
                    engine.delete_feed(&feed).await?;
                    Ok(Answer::Done {})
                });
            }
            Request::DescribeFeed { feed } => {
                let feed = feed.to_owned();
                self.query(asks, async move |engine: Engine| {
                    let feed = convert::feed(engine.feed(&feed).await?);
                    Ok(Answer::Feed { feed })
                });
            }
            Request::ListFeeds {
                prefix,
                after,
                limit,
            } => {
                let (prefix, after) = (prefix.to_owned(), after.to_owned());
                self.page(asks, async move |engine: Engine| {
                    let feeds = engine.list_feeds(&prefix, &after, page(limit)).await?;
                    let feeds = feeds.into_iter().map(convert::feed).collect();
                    Ok(Answer::Feeds { feeds })
                });
            }
            Request::Foresee {
                feed,
                message,
                frame,
            } => self.foresee(feed, message, frame.0, asks),
            Request::Stats {} => self.query(asks, stats),
            Request::Usage {} => self.query(asks, usage),
            request => self.ask_streams(request, asks),
        }
    }

    fn foresee(self: &Rc<Self>, feed: &str, message: Option<&str>, frame: &[u8], asks: Asks) {
        let (feed, message) = (feed.to_owned(), message.map(str::to_owned));
        let batch = Batch::from_bytes(frame.to_vec(), &self.service.limits);
        let batch = batch.map_err(|error| Error::Batch(error.to_string()));
        self.query(asks, async move |engine: Engine| {
            let duplicate = engine.foresee(&feed, &batch?, message.as_deref()).await?;
            Ok(Answer::Foreseen { duplicate })
        });
    }

    fn ask_streams(self: &Rc<Self>, request: Request<'_>, asks: Asks) {
        match request {
            Request::Seal {
                feed,
                token,
                message,
            } => {
                let (feed, message) = (feed.to_owned(), message.to_owned());
                self.change(asks, async move |engine: Engine| {
                    let commit = engine.seal(&feed, token.map(Epoch), &message).await?;
                    Ok(committed(commit))
                });
            }
            Request::Settle {
                feed,
                stream,
                settling,
                message,
            } => {
                let (feed, message) = (feed.to_owned(), message.to_owned());
                let kind = match settling {
                    Settling::Seal => CommitKind::Sealed,
                    Settling::Discard => CommitKind::Discarded,
                };
                self.change(asks, async move |engine: Engine| {
                    let stream = stream.map(StreamId);
                    let settled = engine.settle_stream(&feed, stream, kind, &message);
                    Ok(committed(settled.await?))
                });
            }
            Request::Repair { feed } => {
                let feed = feed.to_owned();
                self.query(asks, async move |engine: Engine| {
                    let commits = engine.repair(&feed).await?;
                    Ok(Answer::Repaired { commits })
                });
            }
            Request::ListStreams { feed, after, limit } => {
                let feed = feed.to_owned();
                self.page(asks, async move |engine: Engine| {
                    let after = StreamId(after);
                    let streams = engine.list_streams(&feed, after, page(limit)).await?;
                    let streams = streams.into_iter().map(convert::stream).collect();
                    Ok(Answer::Streams { streams })
                });
            }
            Request::ListCommits { feed, from, limit } => {
                let feed = feed.to_owned();
                self.page(asks, async move |engine: Engine| {
                    let from = CommitNumber(from);
                    let commits = engine.list_commits(&feed, from, page(limit)).await?;
                    let commits = commits.into_iter().map(convert::commit).collect();
                    Ok(Answer::Commits { commits })
                });
            }
            request => self.ask_producers(request, asks),
        }
    }

    fn ask_producers(self: &Rc<Self>, request: Request<'_>, asks: Asks) {
        match request {
            Request::ListProducers { feed, after, limit } => {
                let (feed, after) = (feed.to_owned(), after.map(<[u8]>::to_vec));
                self.page(asks, async move |engine: Engine| {
                    let after = after.as_deref();
                    let producers = engine.list_producers(&feed, after, page(limit)).await?;
                    let producers = producers.into_iter().map(convert::producer).collect();
                    Ok(Answer::Producers { producers })
                });
            }
            Request::DescribeProducer { feed, id } => {
                let (feed, id) = (feed.to_owned(), id.to_vec());
                self.query(asks, async move |engine: Engine| {
                    let state = engine.producer(&feed, &id).await?;
                    let info = state.map(|state| ProducerInfo { id, state });
                    let producer = info.map(convert::producer);
                    Ok(Answer::Producer { producer })
                });
            }
            _ => self.fail(bad_message("a message that is not served")),
        }
    }
}

/// Whether a request may last, since its answer waits for records or for memory.
fn may_wait(request: &Request<'_>) -> bool {
    matches!(
        request,
        Request::Read { .. }
            | Request::Follow { .. }
            | Request::ListFeeds { .. }
            | Request::ListStreams { .. }
            | Request::ListCommits { .. }
            | Request::ListProducers { .. }
    )
}

fn committed(commit: sealog_engine::commit::Commit) -> Answer<'static> {
    let commit = convert::commit(commit);
    Answer::Committed { commit }
}

async fn usage(engine: Engine) -> Result<Answer<'static>> {
    let usage = engine.usage().await?;
    Ok(Answer::Usage {
        logs: usage.logs.into_iter().map(convert::log_usage).collect(),
        bucket: convert::bucket_usage(usage.bucket),
    })
}

async fn stats(engine: Engine) -> Result<Answer<'static>> {
    let logs = engine.stats().await?.into_iter().map(|stats| LogInfo {
        groups: stats.groups,
        group_bytes: stats.bytes,
        poisoned: None,
    });
    Ok(Answer::Stats {
        logs: logs.collect(),
    })
}
