//! Runtime: the thread that talks to the store: one tokio runtime beside the shards.
//!
//! **Invariants**
//! - A job once begun runs to its end, also when its caller is gone, unless the bucket is closed.
//! - A panic inside a job ends that job alone; its caller hears of it.
//!
//! **Not here**: what the jobs do.

use std::future::Future;
use std::io;
use std::pin::Pin;

/// Jobs that wait to be begun, at most; further callers wait.
const QUEUE_MAX: usize = 256;

type Job = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The way to the thread; it ends when the last clone is dropped.
#[derive(Clone)]
pub(super) struct Runtime {
    jobs: flume::Sender<Job>,
}

impl Runtime {
    /// Starts the thread.
    pub(super) fn start() -> io::Result<Self> {
        let (jobs, inbox) = flume::bounded::<Job>(QUEUE_MAX);
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .thread_name("sealog-s3-aux")
            .build()?;
        std::thread::Builder::new()
            .name("sealog-s3".to_owned())
            .spawn(move || {
                runtime.block_on(async move {
                    while let Ok(job) = inbox.recv_async().await {
                        tokio::spawn(job);
                    }
                });
                // A name being looked up can't be interrupted: nobody waits for it.
                runtime.shutdown_background();
            })?;
        Ok(Self { jobs })
    }

    /// Runs `work` on the thread; `None` if it panicked.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        work: impl Future<Output = T> + Send + 'static,
    ) -> Option<T> {
        let (reply, answer) = flume::bounded(1);
        let job: Job = Box::pin(async move {
            // The caller may be gone; the result is then nobody's.
            let _ = reply.send(work.await);
        });
        self.jobs.send_async(job).await.ok()?;
        answer.recv_async().await.ok()
    }

    /// Begins `work`, which nobody waits for.
    pub(super) fn begin(&self, work: impl Future<Output = ()> + Send + 'static) {
        // A full queue is that of a bucket in use: the thread takes from it all the time.
        let _ = self.jobs.send(Box::pin(work));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::env::testing::block_on;
    use std::time::Duration;

    #[test]
    fn run_job_answers_and_survives_a_panic() {
        let runtime = Runtime::start().unwrap();
        let slow = async {
            tokio::time::sleep(Duration::from_millis(1)).await;
            7
        };
        assert_eq!(block_on(runtime.run(slow)), Some(7));
        let planted = async { panic!("planted") };
        assert_eq!(block_on(runtime.run::<()>(planted)), None);
        assert_eq!(block_on(runtime.run(async { 8 })), Some(8));
    }
}
