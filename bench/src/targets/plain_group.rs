//! Plain group: the yardstick of latency under load: producers hand records to one thread that writes all
//! that waits with one O_DIRECT write and one fdatasync, then answers.
//!
//! **Invariants**
//! - A record is acknowledged after the sync that follows its write.
//! - The file was written before: no write allocates.
//!
//! **Not here**: a format to read back, recovery, readers: what is measured against it has those.

use std::ops::Range;
use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use sealog_engine::env::AlignedBuf;

use crate::Result;
use crate::generator::{Caller, PayloadPool, Plan, Share, Target, sooner};
use crate::plain::PlainFile;
use crate::process::wake_on_time;

/// Longest wait without a look at the clock.
const WAIT_MAX: Duration = Duration::from_millis(100);
/// Largest group: what the engine cuts its own at.
const GROUP_BYTES_MAX: usize = 1 << 20;

/// What became durable: which of the share's callers, and how many of its oldest appends.
type Acks = Vec<(usize, u64)>;

/// A writer thread and what waits for it.
pub struct PlainGroup {
    inner: Arc<Inner>,
    thread: Option<JoinHandle<Result<()>>>,
}

struct Inner {
    waiting: Mutex<Waiting>,
    changed: Condvar,
}

struct Waiting {
    group: AlignedBuf,
    /// Share, caller and number of each record of the group.
    owed: Vec<(usize, usize, u64)>,
    shares: Vec<Sender<Acks>>,
    stop: bool,
}

impl Inner {
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PlainGroup {
    /// Starts the writer on a file of `bytes`, written in full first.
    ///
    /// # Errors
    /// The file can't be made.
    pub fn create(path: &Path, bytes: u64) -> Result<Self> {
        let file = PlainFile::create(path, bytes)?;
        let waiting = Waiting {
            group: AlignedBuf::with_capacity(GROUP_BYTES_MAX),
            owed: Vec::new(),
            shares: Vec::new(),
            stop: false,
        };
        let inner = Arc::new(Inner {
            waiting: Mutex::new(waiting),
            changed: Condvar::new(),
        });
        let writer = Arc::clone(&inner);
        let thread = std::thread::Builder::new()
            .name("plain-group".to_owned())
            .spawn(move || {
                let ended = write_groups(&writer, file);
                // Whoever waits for it learns that nobody will answer.
                writer.lock().shares.clear();
                ended
            })?;
        Ok(Self {
            inner,
            thread: Some(thread),
        })
    }
}

impl Drop for PlainGroup {
    fn drop(&mut self) {
        self.inner.lock().stop = true;
        self.inner.changed.notify_all();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn write_groups(inner: &Inner, mut file: PlainFile) -> Result<()> {
    let mut group = AlignedBuf::with_capacity(GROUP_BYTES_MAX);
    let mut owed = Vec::new();
    loop {
        group.clear();
        owed.clear();
        let mut waiting = inner.lock();
        while waiting.owed.is_empty() {
            if waiting.stop {
                return Ok(());
            }
            waiting = inner
                .changed
                .wait(waiting)
                .unwrap_or_else(PoisonError::into_inner);
        }
        std::mem::swap(&mut group, &mut waiting.group);
        std::mem::swap(&mut owed, &mut waiting.owed);
        let shares = waiting.shares.clone();
        drop(waiting);
        group.pad_to_block();
        file.write_and_sync(&group)?;
        let mut acks: Vec<Acks> = shares.iter().map(|_| Vec::new()).collect();
        for (share, caller, number) in owed.drain(..) {
            acks[share].push((caller, number));
        }
        for (share, acks) in shares.iter().zip(acks) {
            if !acks.is_empty() {
                // A share that has ended is owed nothing.
                let _ = share.send(acks);
            }
        }
    }
}

impl Target for PlainGroup {
    fn empty(&self, _: &Plan) -> Result<()> {
        self.inner.lock().shares.clear();
        Ok(())
    }

    fn connect<'a>(
        &'a self,
        plan: &Plan,
        pool: &'a PayloadPool,
        _: Range<usize>,
    ) -> Result<Box<dyn Share + Send + 'a>> {
        if plan.spec.records > 1 || plan.spec.record_bytes > GROUP_BYTES_MAX / 2 {
            return Err("the plain group writer takes one small record an append".into());
        }
        let (give, take) = channel();
        let mut waiting = self.inner.lock();
        waiting.shares.push(give);
        Ok(Box::new(GroupShare {
            index: waiting.shares.len() - 1,
            inner: &self.inner,
            acks: take,
            pool,
        }))
    }
}

struct GroupShare<'a> {
    index: usize,
    inner: &'a Inner,
    acks: Receiver<Acks>,
    pool: &'a PayloadPool,
}

impl GroupShare<'_> {
    /// Hands over all that may be sent; the wait until there is more, `None` when all are done.
    fn hand_over(&self, callers: &mut [Caller]) -> Result<Option<Duration>> {
        let mut wait = None;
        let mut waiting = self.inner.lock();
        let before = waiting.owed.len();
        for (index, caller) in callers.iter_mut().enumerate() {
            let until = caller.send_due(WAIT_MAX, |client, number| {
                let payload = self.pool.payload(self.pool.index_of(client, number));
                let length = payload.len() as u32;
                waiting.group.extend_from_slice(&length.to_le_bytes());
                waiting.group.extend_from_slice(payload);
                waiting.owed.push((self.index, index, number));
                Ok(())
            })?;
            wait = sooner(wait, until);
        }
        let more = waiting.owed.len() > before;
        drop(waiting);
        if more {
            self.inner.changed.notify_one();
        }
        Ok(wait)
    }
}

impl Share for GroupShare<'_> {
    fn run(&mut self, callers: &mut [Caller]) -> Result<()> {
        wake_on_time();
        while let Some(wait) = self.hand_over(callers)? {
            let first = match self.acks.recv_timeout(wait) {
                Ok(acks) => acks,
                Err(RecvTimeoutError::Timeout) => Vec::new(),
                Err(RecvTimeoutError::Disconnected) => return Err("the writer ended".into()),
            };
            let rest: Vec<Acks> = self.acks.try_iter().collect();
            let now = Instant::now();
            for (caller, number) in std::iter::once(first).chain(rest).flatten() {
                callers[caller].acked(number, now);
            }
            callers
                .iter_mut()
                .for_each(|caller| caller.give_up_if_late(now));
        }
        Ok(())
    }
}
