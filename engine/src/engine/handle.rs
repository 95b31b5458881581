//! Handle: calls from any thread, with any runtime or none, carried to the log that owns the feed.
//!
//! **Invariants**
//! - A batch's bytes are reserved from the log's budget before it is sent, first come first served,
//!   so that waiting callers cost no memory of the engine's.
//! - A call whose shard is gone answers an error; it never hangs.
//!
//! **Not here**: threads (`engine`), decisions (`shard`), reads (`reads`), forks (`fork`), what else may be done (`ops`).

mod carry;
mod fork;
mod ops;
mod reads;
mod subscriptions;

pub use fork::ForkRequest;
pub use subscriptions::{LinkedFeed, SubscribeRequest, Subscribed};

use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use sealog_frame::{Batch, FrameLimits};

use crate::append::AppendResult;
use crate::datadir::Marker;
use crate::env::Env;
use crate::error::{Error, Result};
use crate::ids::FeedId;
use crate::limits::EngineConfig;
use crate::recovery::Report;
use crate::shard::{Answer, FeedRef, LogService, OrderKey};
use crate::sync::{Budget, Permit, race};
use crate::wal::log::WalStats;

/// A call on its way to a log.
pub(crate) type Job<E> = Box<dyn FnOnce(&Rc<LogService<E>>) + Send>;

/// Calls that may wait in front of a log.
const JOBS_MAX: usize = 1024;

/// The way to one log.
pub(crate) struct LogPort<E: Env> {
    jobs: flume::Sender<Job<E>>,
    budget: Budget,
}

pub(crate) type Inboxes<E> = Arc<Mutex<Vec<Option<flume::Receiver<Job<E>>>>>>;

/// `count` ports, and the inboxes behind them.
pub(crate) fn ports<E: Env>(count: usize, config: &EngineConfig) -> (Vec<LogPort<E>>, Inboxes<E>) {
    let mut ports = Vec::new();
    let mut inboxes = Vec::new();
    for _ in 0..count {
        let (jobs, inbox) = flume::bounded(JOBS_MAX);
        ports.push(LogPort {
            jobs,
            budget: Budget::new(config.inflight_bytes_max),
        });
        inboxes.push(Some(inbox));
    }
    (ports, Arc::new(Mutex::new(inboxes)))
}

struct Shared<E: Env> {
    ports: RwLock<Vec<LogPort<E>>>,
    config: EngineConfig,
    poisoned: Mutex<Option<String>>,
    /// Dropped when calls are taken no more.
    life: Mutex<Option<flume::Sender<()>>>,
    over: flume::Receiver<()>,
}

/// A way to call the engine. Clones share it.
pub struct Handle<E: Env>(Arc<Shared<E>>);

impl<E: Env> Clone for Handle<E> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

/// A way to call the engine that does not keep it from ending.
pub(crate) struct WeakHandle<E: Env>(std::sync::Weak<Shared<E>>);

impl<E: Env> WeakHandle<E> {
    pub(crate) fn upgrade(&self) -> Option<Handle<E>> {
        self.0.upgrade().map(Handle)
    }
}

/// Poisons every log of an engine, from any thread.
pub(crate) struct Poisoner<E: Env>(std::sync::Weak<Shared<E>>);

impl<E: Env> Poisoner<E> {
    pub(crate) fn poison(&self, reason: &str) {
        let Some(shared) = self.0.upgrade() else {
            return;
        };
        let mut poisoned = shared
            .poisoned
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        poisoned.get_or_insert_with(|| reason.to_owned());
        drop(poisoned);
        let ports = shared.ports.read().unwrap_or_else(PoisonError::into_inner);
        for port in ports.iter() {
            port.budget.close();
            let reason = reason.to_owned();
            let _ = port
                .jobs
                .try_send(Box::new(move |service| service.poison(&reason)));
        }
    }
}

impl<E: Env> Handle<E> {
    pub(crate) fn new(ports: Vec<LogPort<E>>, config: EngineConfig) -> Self {
        let ports = RwLock::new(ports);
        let (life, over) = flume::bounded(0);
        Self(Arc::new(Shared {
            ports,
            config,
            poisoned: Mutex::new(None),
            life: Mutex::new(Some(life)),
            over,
        }))
    }

    /// Ends when calls are taken no more.
    pub(super) fn over(&self) -> flume::Receiver<()> {
        self.0.over.clone()
    }

    pub(crate) fn downgrade(&self) -> WeakHandle<E> {
        WeakHandle(Arc::downgrade(&self.0))
    }

    pub(crate) fn poisoner(&self) -> Poisoner<E> {
        Poisoner(Arc::downgrade(&self.0))
    }

    /// A handle to logs that somebody else runs: the simulator.
    #[must_use]
    pub fn attach(services: &[Rc<LogService<E>>], config: &EngineConfig) -> Self {
        let (ports, inboxes) = ports::<E>(services.len(), config);
        let mut inboxes = inboxes.lock().unwrap_or_else(PoisonError::into_inner);
        for (service, inbox) in services.iter().zip(inboxes.iter_mut()) {
            if let Some(inbox) = inbox.take() {
                service
                    .env
                    .spawn("inbox", super::serve(service.clone(), inbox));
            }
        }
        let handle = Self::new(ports, config.clone());
        for service in services {
            super::forks::start(service, handle.downgrade());
        }
        handle
    }

    /// What a batch may hold here.
    #[must_use]
    pub fn frame_limits(&self) -> FrameLimits {
        self.0.config.frame
    }

    /// Number of logs.
    #[must_use]
    pub fn logs(&self) -> usize {
        self.0
            .ports
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .len()
    }

    /// Drops the ports beyond the logs that the directory has.
    pub(super) fn keep(&self, logs: usize) {
        self.0
            .ports
            .write()
            .unwrap_or_else(PoisonError::into_inner)
            .truncate(logs);
    }

    pub(super) fn disconnect(&self) {
        let mut ports = self.0.ports.write().unwrap_or_else(PoisonError::into_inner);
        for port in ports.drain(..) {
            port.budget.close();
        }
        let life = self.0.life.lock();
        life.unwrap_or_else(PoisonError::into_inner).take();
    }

    pub(super) fn gone_error(&self) -> Error {
        self.gone()
    }

    fn gone(&self) -> Error {
        let poisoned = self
            .0
            .poisoned
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        match &*poisoned {
            Some(reason) => Error::Poisoned {
                log: 0,
                reason: reason.clone(),
            },
            None => Error::Closed,
        }
    }

    pub(super) fn port(&self, log: usize) -> Result<(flume::Sender<Job<E>>, Budget)> {
        let ports = self.0.ports.read().unwrap_or_else(PoisonError::into_inner);
        let port = ports
            .get(log)
            .map(|port| (port.jobs.clone(), port.budget.clone()));
        drop(ports);
        port.ok_or_else(|| self.gone())
    }

    /// Number of the log that the feed is in, or would be.
    #[must_use]
    pub fn log_of(&self, feed: &str) -> usize {
        Marker::log_of(feed, self.logs().max(1))
    }

    /// Sends a job and waits for its answer.
    async fn call<T: Send + 'static>(
        &self,
        log: usize,
        job: impl FnOnce(&Rc<LogService<E>>, Answer<T>) + Send + 'static,
    ) -> Result<T> {
        let answer = self.send(log, job).await?;
        answer
            .recv_async()
            .await
            .unwrap_or_else(|_| Err(self.gone()))
    }

    async fn send<T: Send + 'static>(
        &self,
        log: usize,
        job: impl FnOnce(&Rc<LogService<E>>, Answer<T>) + Send + 'static,
    ) -> Result<flume::Receiver<Result<T>>> {
        let (jobs, _) = self.port(log)?;
        let (reply, answer) = flume::bounded(1);
        let reply: Answer<T> = Box::new(move |result| {
            let _ = reply.send(result);
        });
        let job: Job<E> = Box::new(move |service| job(service, reply));
        jobs.send_async(job).await.map_err(|_| self.gone())?;
        Ok(answer)
    }

    /// Runs a query or a read as a task of the shard, which ends when nobody waits for its answer any
    /// more: others may wait for the memory it would take.
    pub(super) async fn ask<T: Send + 'static, F: Future<Output = Result<T>> + 'static>(
        &self,
        log: usize,
        question: impl FnOnce(Rc<LogService<E>>) -> F + Send + 'static,
    ) -> Result<T> {
        // The caller's seat: it is free when the caller has gone.
        let seat = Budget::new(1);
        let _taken = seat.try_acquire(1);
        let job = move |service: &Rc<LogService<E>>, answer: Answer<T>| {
            // Boxed: a task keeps room for what is moved inside it, for each place it is at.
            let future = Box::pin(question(service.clone()));
            service.env.spawn("question", async move {
                let mut outcome = None;
                let asked = async { outcome = Some(future.await) };
                race(asked, async { drop(seat.acquire(1).await) }).await;
                if let Some(outcome) = outcome {
                    answer(outcome);
                }
            });
        };
        self.call(log, job).await
    }

    /// Appends a batch; returns when it is durable.
    ///
    /// # Errors
    /// Refusals of admission (no effects): [`Error::Fenced`], [`Error::SequenceMismatch`],
    /// [`Error::ProducerGap`] and its kin, [`Error::KeysNotAllowed`], [`Error::StorageFull`]
    /// (retryable). Failures (effects unknown): [`Error::Poisoned`], [`Error::Closed`].
    ///
    /// # Cancel safety
    /// Dropped after it was sent, the batch may be stored: effects unknown.
    pub async fn append(&self, feed: &str, batch: Batch) -> Result<AppendResult> {
        let answer = self.submit(feed, batch, |_| {}).await?;
        answer
            .recv_async()
            .await
            .unwrap_or_else(|_| Err(self.gone()))
    }

    /// As [`Handle::append`], of a batch that is taken only if its key is above that of every batch of the feed
    /// that came with one.
    ///
    /// # Errors
    /// As [`Handle::append`], and [`Error::OutOfOrder`] (no effects).
    ///
    /// # Cancel safety
    /// As [`Handle::append`].
    pub async fn append_ordered(
        &self,
        feed: &str,
        batch: Batch,
        order: OrderKey,
    ) -> Result<AppendResult> {
        let sent = (batch, Some(order));
        let answer = self.submit_to((feed, None), sent, |_| {}).await?;
        let answered = answer.recv_async().await;
        answered.unwrap_or_else(|_| Err(self.gone()))
    }

    /// Sends a batch on its way; `done` runs on the shard when it is settled.
    pub(super) async fn submit(
        &self,
        feed: &str,
        batch: Batch,
        done: impl FnOnce(&Result<AppendResult>) + Send + 'static,
    ) -> Result<flume::Receiver<Result<AppendResult>>> {
        self.submit_to((feed, None), (batch, None), done).await
    }

    /// As [`Handle::submit`], to the feed with this id if one is given, and in order if a key is.
    pub(super) async fn submit_to(
        &self,
        (feed, id): (&str, Option<FeedId>),
        (batch, order): (Batch, Option<OrderKey>),
        done: impl FnOnce(&Result<AppendResult>) + Send + 'static,
    ) -> Result<flume::Receiver<Result<AppendResult>>> {
        let log = self.log_of(feed);
        let permit = self.permit(log, &batch).await?;
        let name = feed.to_owned();
        self.send(log, move |s, answer: Answer<AppendResult>| {
            let answer = Box::new(move |result: Result<AppendResult>| {
                done(&result);
                answer(result);
            });
            let feed = FeedRef {
                id,
                ..FeedRef::named(&name)
            };
            s.append(feed, (batch, order), permit, answer);
        })
        .await
    }

    /// Room for a batch that is within the limits.
    pub(super) async fn permit(&self, log: usize, batch: &Batch) -> Result<Permit> {
        self.check_limits(batch)?;
        let (_, budget) = self.port(log)?;
        let permit = budget.acquire(batch.as_bytes().len()).await;
        permit.ok_or_else(|| self.gone())
    }

    pub(super) fn check_limits(&self, batch: &Batch) -> Result<()> {
        let limits = &self.0.config.frame;
        let over = |what, value: u64, limit: usize| {
            let limit = limit as u64;
            if value > limit {
                Err(Error::OverLimit { what, value, limit })
            } else {
                Ok(())
            }
        };
        let view = batch.view();
        over("batch bytes", view.metered_bytes(), limits.batch_bytes_max)?;
        over(
            "batch records",
            view.record_count() as u64,
            limits.records_max,
        )?;
        over(
            "batch frame bytes",
            batch.as_bytes().len() as u64,
            limits.frame_bytes_max(),
        )
    }

    /// Counters of every log.
    ///
    /// # Errors
    /// [`Error::Closed`].
    ///
    /// # Cancel safety
    /// Cancel safe: only reads.
    pub async fn stats(&self) -> Result<Vec<WalStats>> {
        let mut all = Vec::new();
        for log in 0..self.logs() {
            all.push(self.ask(log, |s| async move { Ok(s.wal.stats()) }).await?);
        }
        Ok(all)
    }

    /// Of every log's budget for what is in flight: how much is taken, and all of it, in bytes.
    #[must_use]
    pub fn budgets(&self) -> Vec<(usize, usize)> {
        let ports = self.0.ports.read().unwrap_or_else(PoisonError::into_inner);
        let budgets = ports.iter().map(|port| &port.budget);
        budgets
            .map(|budget| (budget.used(), budget.limit()))
            .collect()
    }

    /// What recovery found in every log.
    ///
    /// # Errors
    /// [`Error::Closed`].
    ///
    /// # Cancel safety
    /// Cancel safe: only reads.
    pub async fn recovery_reports(&self) -> Result<Vec<Report>> {
        let mut all = Vec::new();
        for log in 0..self.logs() {
            all.push(
                self.ask(log, |s| async move { Ok(s.report.clone()) })
                    .await?,
            );
        }
        Ok(all)
    }

    /// Closes every log: see [`crate::Engine::close`].
    ///
    /// # Errors
    /// [`Error::Poisoned`] of the first log that had failed.
    ///
    /// # Cancel safety
    /// Dropped midway, some logs may be closed and others not.
    pub async fn close(&self) -> Result<()> {
        let mut outcome = Ok(());
        for log in 0..self.logs() {
            let job = |service: &Rc<LogService<E>>, answer: Answer<()>| {
                let closing = service.clone();
                let close = async move { answer(closing.close().await) };
                service.env.spawn("close", close);
            };
            let closed = self.call(log, job).await;
            outcome = outcome.and(closed);
        }
        outcome
    }
}
