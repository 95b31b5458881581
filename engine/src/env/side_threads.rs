//! SideThreads: a few threads that run blocking or CPU-heavy jobs for the shards.
//!
//! **Invariants**
//! - A job once queued runs to its end, whether or not its caller still waits: a dropped future
//!   undoes nothing.
//! - A panic inside a job never ends a thread; it surfaces where the job was awaited.
//! - The queue is bounded; callers wait for room.
//!
//! **Not here**: what the jobs do; group commits (see `commit_thread`).

use std::any::Any;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

/// Jobs waiting for a thread, at most; further callers wait.
const QUEUE_MAX: usize = 256;

type Job = Box<dyn FnOnce() + Send>;

/// Threads that take jobs from one queue; they end when the last clone is dropped and the queue is empty.
#[derive(Clone)]
pub(crate) struct SideThreads {
    queue: flume::Sender<Job>,
}

impl SideThreads {
    /// Starts `threads` threads named `name`.
    ///
    /// # Errors
    /// The process can't make more threads; none is left running.
    pub(crate) fn start(name: &str, threads: usize) -> io::Result<Self> {
        let (queue, jobs) = flume::bounded::<Job>(QUEUE_MAX);
        for _ in 0..threads {
            let jobs = jobs.clone();
            std::thread::Builder::new()
                .name(name.to_owned())
                .spawn(move || jobs.iter().for_each(|job| job()))?;
        }
        Ok(Self { queue })
    }

    /// Runs `job` on one of the threads and returns what it returned.
    ///
    /// # Panics
    /// With the job's own panic, if it panics.
    ///
    /// # Cancel safety
    /// Dropped before the job is queued, nothing happens; afterwards the job runs and its result is lost.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        job: impl FnOnce() -> T + Send + 'static,
    ) -> T {
        let (reply, answer) = flume::bounded(1);
        let job: Job = Box::new(move || {
            let result: Result<T, Box<dyn Any + Send>> = catch_unwind(AssertUnwindSafe(job));
            // The caller may be gone; its result is then nobody's.
            let _ = reply.send(result);
        });
        // Both can only fail once every thread is gone, and threads outlive their senders.
        assert!(
            self.queue.send_async(job).await.is_ok(),
            "side threads end last"
        );
        match answer
            .recv_async()
            .await
            .expect("a queued job always answers")
        {
            Ok(value) => value,
            Err(panic) => resume_unwind(panic),
        }
    }

    /// Blocks until every job queued so far has ended, also those whose callers are gone. Only true of
    /// a single thread, which takes jobs in order.
    pub(crate) fn finish_queued(&self) {
        let (reply, answer) = flume::bounded(1);
        let last: Job = Box::new(move || {
            let _ = reply.send(());
        });
        if self.queue.send(last).is_ok() {
            let _ = answer.recv();
        }
    }

    /// Queues a job nobody waits for; returns whether there was room.
    pub(crate) fn run_detached(&self, job: impl FnOnce() + Send + 'static) -> bool {
        let job: Job = Box::new(move || {
            // A detached job has nobody to report to; the thread must survive it all the same.
            let _ = catch_unwind(AssertUnwindSafe(job));
        });
        self.queue.try_send(job).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::env::testing::block_on;

    #[test]
    fn run_job_returns_its_value() {
        let threads = SideThreads::start("t", 1).unwrap();
        assert_eq!(block_on(threads.run(|| 6 * 7)), 42);
    }

    #[test]
    fn run_job_panics_thread_survives_and_caller_sees_it() {
        let threads = SideThreads::start("t", 1).unwrap();
        let job = threads.run(|| panic!("planted"));
        let seen = catch_unwind(AssertUnwindSafe(|| block_on::<()>(job)));
        assert_eq!(
            *seen.unwrap_err().downcast_ref::<&str>().unwrap(),
            "planted"
        );
        assert_eq!(block_on(threads.run(|| 1)), 1);
    }

    #[test]
    fn finish_queued_abandoned_job_has_ended() {
        use std::sync::Arc;
        use std::sync::atomic::{AtomicBool, Ordering};
        let threads = SideThreads::start("t", 1).unwrap();
        let ended = Arc::new(AtomicBool::new(false));
        let seen = Arc::clone(&ended);
        assert!(threads.run_detached(move || {
            std::thread::sleep(std::time::Duration::from_millis(30));
            seen.store(true, Ordering::SeqCst);
        }));
        threads.finish_queued();
        assert!(ended.load(Ordering::SeqCst));
    }

    #[test]
    fn run_detached_panic_thread_survives() {
        let threads = SideThreads::start("t", 1).unwrap();
        assert!(threads.run_detached(|| panic!("planted")));
        assert_eq!(block_on(threads.run(|| 2)), 2);
    }
}
