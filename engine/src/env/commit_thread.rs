//! CommitThreads: threads that write and sync for one shard, off its executor.
//!
//! **Invariants**
//! - A request owns its buffer and descriptor until the device has answered, whether or not its
//!   caller still waits.
//! - A commit answers `Ok` only after its own sync, begun after its own write completed.
//! - With two threads two commits may be in flight; their answers may come in either order.
//! - [`CommitThreads::join`] returns only when nothing is in flight any more.
//!
//! **Not here**: the order of acknowledgements (the log's), and what a failure means (it poisons).

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::thread::JoinHandle;

use super::AlignedBuf;

/// Threads per shard: as many as a log keeps groups in flight.
pub const COMMIT_THREADS: usize = 2;

/// Requests waiting for a thread, at most; a shard's log never has more than its groups in flight.
const QUEUE_MAX: usize = 64;

/// These threads call the kernel and nothing else.
const STACK_BYTES: usize = 128 * 1024;

enum Work {
    Commit { buf: Arc<AlignedBuf>, offset: u64 },
    Sync,
    Stop,
}

struct Request {
    file: Option<Arc<File>>,
    work: Work,
    reply: Option<flume::Sender<io::Result<()>>>,
}

/// The threads themselves, held by whoever must wait for their end.
pub struct CommitThreads {
    queue: flume::Sender<Request>,
    threads: Vec<JoinHandle<()>>,
}

/// A shard's way to its commit threads.
#[derive(Clone)]
pub struct CommitQueue {
    queue: flume::Sender<Request>,
}

impl CommitThreads {
    /// Starts `threads` threads for shard `shard`. Call it from an unpinned thread: the new threads
    /// inherit the caller's CPU mask, and must not share a busy executor's CPU.
    ///
    /// # Errors
    /// The process can't make more threads.
    pub fn start(shard: usize, threads: usize) -> io::Result<Self> {
        let (queue, requests) = flume::bounded::<Request>(QUEUE_MAX);
        let mut this = Self {
            queue,
            threads: Vec::with_capacity(threads),
        };
        for _ in 0..threads {
            let requests = requests.clone();
            let thread = std::thread::Builder::new()
                .name(format!("sealog-commit-{shard}"))
                .stack_size(STACK_BYTES)
                .spawn(move || serve(&requests))?;
            this.threads.push(thread);
        }
        Ok(this)
    }

    /// The queue to hand to the shard.
    #[must_use]
    pub fn queue(&self) -> CommitQueue {
        CommitQueue {
            queue: self.queue.clone(),
        }
    }

    /// Waits until everything queued so far is done and the threads have ended. Requests queued
    /// afterwards fail.
    pub fn join(self) {
        for _ in &self.threads {
            let _ = self.queue.send(Request {
                file: None,
                work: Work::Stop,
                reply: None,
            });
        }
        for thread in self.threads {
            // `serve` cannot panic; were it to, there would be nothing left to wait for.
            let _ = thread.join();
        }
    }
}

impl CommitQueue {
    /// Writes all of `buf` at `offset`, then syncs the file's data.
    ///
    /// # Errors
    /// Of the write or the sync: the range holds anything, nothing is known to be durable.
    ///
    /// # Cancel safety
    /// Once polled the commit may happen, whether or not the future is dropped.
    pub async fn commit(
        &self,
        file: Arc<File>,
        buf: Arc<AlignedBuf>,
        offset: u64,
    ) -> io::Result<()> {
        self.request(file, Work::Commit { buf, offset }).await
    }

    /// Makes every write that completed before this call durable.
    ///
    /// # Errors
    /// Of the sync; it must not be retried.
    ///
    /// # Cancel safety
    /// Safe: a sync whose answer is lost promises nothing.
    pub async fn sync_data(&self, file: Arc<File>) -> io::Result<()> {
        self.request(file, Work::Sync).await
    }

    async fn request(&self, file: Arc<File>, work: Work) -> io::Result<()> {
        let (reply, answer) = flume::bounded(1);
        let request = Request {
            file: Some(file),
            work,
            reply: Some(reply),
        };
        if self.queue.send_async(request).await.is_err() {
            return Err(gone());
        }
        answer.recv_async().await.unwrap_or_else(|_| Err(gone()))
    }
}

fn serve(requests: &flume::Receiver<Request>) {
    for request in requests {
        let (Some(file), Some(reply)) = (request.file, request.reply) else {
            return;
        };
        let result = match &request.work {
            Work::Commit { buf, offset } => write_durably(&file, buf, *offset),
            Work::Sync => file.sync_data(),
            Work::Stop => return,
        };
        // The buffer goes first, so that a caller that was answered finds itself its only owner.
        drop(request.work);
        let _ = reply.send(result);
    }
}

/// Writes all of `buf` and syncs it, as one call: `RWF_DSYNC` is an fdatasync of what was written
/// (pwritev2(2)), and saves a small group a tenth of its time.
pub(super) fn write_durably(file: &File, buf: &[u8], offset: u64) -> io::Result<()> {
    let mut done = 0;
    // A short write goes on; the rest of a direct write that is no longer aligned fails with EINVAL,
    // never silently.
    while done < buf.len() {
        let rest = &buf[done..];
        let part = libc::iovec {
            iov_base: rest.as_ptr().cast_mut().cast(),
            iov_len: rest.len(),
        };
        let at = libc::off_t::try_from(offset + done as u64).map_err(io::Error::other)?;
        // SAFETY: the vector describes `rest`, which the call only reads.
        let n = unsafe { libc::pwritev2(file.as_raw_fd(), &part, 1, at, libc::RWF_DSYNC) };
        match usize::try_from(n) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(n) => done += n,
            Err(_) => {
                let error = io::Error::last_os_error();
                if error.kind() != io::ErrorKind::Interrupted {
                    return Err(error);
                }
            }
        }
    }
    Ok(())
}

fn gone() -> io::Error {
    io::Error::new(io::ErrorKind::BrokenPipe, "commit threads have ended")
}
