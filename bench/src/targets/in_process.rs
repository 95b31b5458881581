//! In process: an engine in this process, a session and a feed per client.
//!
//! **Invariants**
//! - One record is one batch, framed inside the measured time, as an application would; batches of many
//!   records are built beforehand, as the yardstick's blocks are.
//! - The log was written before and is recycled, as in a store that has run for a while.
//!
//! **Not here**: the load (`generator`).

use std::ops::Range;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::{Duration, Instant};

use futures::StreamExt;
use futures::executor::block_on;
use futures::stream::FuturesUnordered;
use sealog_engine::{
    AppendSession, Engine, EngineConfig, FeedOptions, ProductionEnv, SessionOptions,
};
use sealog_frame::{Batch, BatchBuilder, FrameLimits, Record};

use crate::Result;
use crate::generator::{CLIENTS_MAX, Caller, PayloadPool, Plan, Share, Target, sooner};
use crate::load::{EngineHandle, delete_feeds, feed_names};
use crate::process::wake_on_time;

/// Longest sleep without a look at the clock.
const PARK_MAX: Duration = Duration::from_millis(100);
/// Unacknowledged payload a session allows: never what bounds the load, the window is.
const UNACKED_BYTES_MAX: usize = 1 << 30;

/// The engine under test.
pub struct InProcess {
    engine: Engine,
}

impl InProcess {
    /// Opens the data directory of `config`.
    ///
    /// # Errors
    /// The engine's.
    pub fn open(config: EngineConfig) -> Result<Self> {
        let engine = Engine::open(config)?;
        Ok(Self { engine })
    }

    fn handle(&self) -> &EngineHandle {
        self.engine.handle()
    }
}

impl Target for InProcess {
    fn empty(&self, plan: &Plan) -> Result<()> {
        let there = block_on(self.handle().list_feeds("", "", CLIENTS_MAX))?;
        let there: Vec<String> = there.into_iter().map(|feed| feed.name).collect();
        delete_feeds(self.handle(), &there)?;
        let options = FeedOptions {
            keys: plan.spec.keyed,
            exclusive: false,
            ..FeedOptions::default()
        };
        for feed in feed_names("load", plan.spec.clients) {
            block_on(self.handle().create_feed(&feed, options.clone()))?;
        }
        Ok(())
    }

    fn connect<'a>(
        &'a self,
        plan: &Plan,
        pool: &'a PayloadPool,
        clients: Range<usize>,
    ) -> Result<Box<dyn Share + Send + 'a>> {
        let feeds = feed_names("load", plan.spec.clients);
        let options = SessionOptions {
            max_unacked_bytes: UNACKED_BYTES_MAX,
        };
        let limits = self.handle().frame_limits();
        let mut writers = Vec::new();
        for client in clients {
            let session = block_on(self.handle().open_session(&feeds[client], options))?;
            let mut writer = Writer::new(session, plan, pool, limits);
            if plan.spec.records > 1 {
                writer.prebuilt = Some(writer.frame(client, 0)?);
            }
            writers.push(writer);
        }
        Ok(Box::new(EngineShare { writers }))
    }
}

/// One client's session, and how it frames.
struct Writer<'a> {
    session: AppendSession<ProductionEnv>,
    pool: &'a PayloadPool,
    keyed: bool,
    records: u64,
    builder: BatchBuilder,
    prebuilt: Option<Batch>,
}

impl<'a> Writer<'a> {
    fn new(
        session: AppendSession<ProductionEnv>,
        plan: &Plan,
        pool: &'a PayloadPool,
        limits: FrameLimits,
    ) -> Self {
        Self {
            session,
            pool,
            keyed: plan.spec.keyed,
            records: plan.spec.records as u64,
            builder: BatchBuilder::new(limits),
            prebuilt: None,
        }
    }

    fn batch(&mut self, client: usize, number: u64) -> Result<Batch> {
        match &self.prebuilt {
            Some(batch) => Ok(batch.clone()),
            None => self.frame(client, number),
        }
    }

    fn frame(&mut self, client: usize, number: u64) -> Result<Batch> {
        let first = self.pool.index_of(client, number);
        for n in first..first + self.records {
            let mut record = Record::of(self.pool.payload(n));
            record.key = self.keyed.then(|| self.pool.key(n));
            self.builder.push(&record)?;
        }
        self.builder.fencing_token(self.session.lease().epoch.0);
        Ok(self.builder.build()?)
    }
}

/// The sessions that one thread drives.
struct EngineShare<'a> {
    writers: Vec<Writer<'a>>,
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

impl Share for EngineShare<'_> {
    fn run(&mut self, callers: &mut [Caller]) -> Result<()> {
        assert_eq!(callers.len(), self.writers.len());
        wake_on_time();
        let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
        let mut context = Context::from_waker(&waker);
        let mut pending = pin!(FuturesUnordered::new());
        loop {
            let mut wait = None;
            for (index, (writer, caller)) in self.writers.iter_mut().zip(&mut *callers).enumerate()
            {
                let until = caller.send_due(PARK_MAX, |client, number| {
                    let batch = writer.batch(client, number)?;
                    let sent = block_on(writer.session.append_async(batch))?;
                    pending.push(async move { (index, number, sent.await) });
                    Ok(())
                })?;
                wait = sooner(wait, until);
            }
            let Some(wait) = wait else { return Ok(()) };
            let mut answered = false;
            while let Poll::Ready(Some((index, number, result))) =
                pending.poll_next_unpin(&mut context)
            {
                result?;
                answered = true;
                callers[index].acked(number, Instant::now());
            }
            if !answered {
                std::thread::park_timeout(wait);
                let now = Instant::now();
                callers
                    .iter_mut()
                    .for_each(|caller| caller.give_up_if_late(now));
            }
        }
    }
}
