//! GlommioEnv: the production surroundings of a shard, on glommio executors and io_uring.
//!
//! **Invariants**
//! - This is the only file of the engine that names glommio.
//! - A panic in a task, in `main` or in the executor reaches [`ShardHooks::on_panic`]; it never
//!   takes another task with it and never ends the process.
//! - Every write keeps its own memory until the device has answered, and a shard's end waits for that.
//! - A read never returns bytes from beyond the end of the file.
//!
//! **Not here**: sockets (the server's), the watchdog (`watchdog`), commit methods' insides
//! (`commit_thread`, `linked_ring`).

use std::cell::{Cell, RefCell};
use std::fs::File as StdFile;
use std::future::Future;
use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use glommio::io::{DmaFile, OpenOptions, PollableFd};
use glommio::timer::Timer;
use glommio::{
    GlommioError, Latency, LocalExecutorBuilder, Placement, PoolPlacement, Shares, TaskQueueHandle,
};

use super::commit_thread::{CommitQueue, write_durably};
use super::linked_ring::LinkedRing;
use super::shards::{CommitMethod, ShardHooks, ShardSeed};
use super::side_threads::SideThreads;
use super::unwind::CatchUnwind;
use super::{AlignedBuf, BLOCK_BYTES, Bucket, Disk, Env, File, fs_ops, sys};

/// Registered I/O memory per executor: small enough for an 8 MiB memlock limit and a 64 MiB cgroup.
const IO_MEMORY_BYTES: usize = 512 * 1024;

/// Below 1 ms the executor can park while work is runnable; far above it, timers and wakes are late.
const PREEMPT_TIMER: Duration = Duration::from_millis(1);

/// One transfer of a long read or write: bounds the memory an operation holds.
const TRANSFER_BYTES: usize = 1024 * 1024;

/// How often a healthy shard ticks its heartbeat.
const HEARTBEAT: Duration = Duration::from_millis(50);

/// How long a shard waits, after `main` has returned, for tasks that still run.
const DRAIN_MAX: Duration = Duration::from_secs(1);

/// Production implementation of [`Env`], one per shard.
pub struct GlommioEnv<B: Bucket> {
    inner: Rc<Inner<B>>,
}

struct Inner<B: Bucket> {
    shard: usize,
    disk: GlommioDisk,
    bucket: B,
    hooks: ShardHooks,
    offload: SideThreads,
    tasks: Rc<Cell<usize>>,
    busy: Cell<Duration>,
    urgent: TaskQueueHandle,
}

impl<B: Bucket> Clone for GlommioEnv<B> {
    fn clone(&self) -> Self {
        Self {
            inner: Rc::clone(&self.inner),
        }
    }
}

impl<B: Bucket> GlommioEnv<B> {
    /// `future` as a counted task whose panic reaches the hook.
    fn guarded(
        &self,
        name: &'static str,
        future: impl Future<Output = ()> + 'static,
    ) -> impl Future<Output = ()> + 'static {
        let hooks = self.inner.hooks.clone();
        let shard = self.inner.shard;
        let running = TaskCount::enter(&self.inner.tasks);
        // Boxed before it is moved: the task would keep room for it in both places.
        let future = CatchUnwind::new(future);
        async move {
            let _running = running;
            if let Err(message) = future.await {
                hooks.panicked(shard, name, message);
            }
        }
    }

    /// The shard this environment belongs to.
    #[must_use]
    pub fn shard(&self) -> usize {
        self.inner.shard
    }

    /// Waits until no spawned task is left, or [`DRAIN_MAX`] has passed; then, however long it takes,
    /// until no write or sync is in flight.
    async fn drain(&self) {
        let give_up = sys::monotonic_ns() + DRAIN_MAX.as_nanos() as u64;
        while self.inner.tasks.get() > 0 && sys::monotonic_ns() < give_up {
            Timer::new(Duration::from_millis(1)).await;
        }
        let io = &self.inner.disk.io;
        io.closed.set(true);
        while io.transfers.get() > 0 {
            Timer::new(Duration::from_millis(1)).await;
        }
        io.ring.stop().await;
    }
}

impl<B: Bucket> Env for GlommioEnv<B> {
    type Disk = GlommioDisk;
    type Bucket = B;

    fn disk(&self) -> &GlommioDisk {
        &self.inner.disk
    }

    fn bucket(&self) -> &B {
        &self.inner.bucket
    }

    fn monotonic_ns(&self) -> u64 {
        sys::monotonic_ns()
    }

    fn realtime_ms(&self) -> u64 {
        sys::realtime_ms()
    }

    async fn sleep(&self, duration: Duration) {
        Timer::new(duration).await;
    }

    fn spawn(&self, name: &'static str, future: impl Future<Output = ()> + 'static) {
        glommio::spawn_local(self.guarded(name, future)).detach();
    }

    fn spawn_urgent(&self, name: &'static str, future: impl Future<Output = ()> + 'static) {
        let task = self.guarded(name, future);
        match glommio::spawn_local_into(task, self.inner.urgent) {
            Ok(task) => drop(task.detach()),
            // The queue lives as long as the executor: not seen.
            Err(error) => {
                let reason = format!("could not be started: {error}");
                self.inner.hooks.panicked(self.inner.shard, name, reason);
            }
        }
    }

    fn busy_ns(&self) -> u64 {
        // Asking begins the executor's count anew.
        let since = glommio::executor().executor_stats().total_runtime();
        let busy = self.inner.busy.get() + since;
        self.inner.busy.set(busy);
        u64::try_from(busy.as_nanos()).unwrap_or(u64::MAX)
    }

    fn random_u64(&self) -> u64 {
        sys::random_u64()
    }

    async fn yield_if_needed(&self) {
        glommio::yield_if_needed().await;
    }

    async fn offload<T: Send + 'static>(&self, job: impl FnOnce() -> T + Send + 'static) -> T {
        self.inner.offload.run(job).await
    }
}

/// Counts a task while it lives.
struct TaskCount(Rc<Cell<usize>>);

impl TaskCount {
    fn enter(tasks: &Rc<Cell<usize>>) -> Self {
        tasks.set(tasks.get() + 1);
        Self(Rc::clone(tasks))
    }
}

impl Drop for TaskCount {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

/// An executor made on this thread, not yet running. Made before any shard's `main` starts, so that a
/// machine that can't run them all runs none.
pub(super) struct ShardExecutor(glommio::LocalExecutor);

impl ShardExecutor {
    /// Makes the executor and, with `cpu`, binds this thread to that CPU. Without work it looks for
    /// `spin` before it sleeps.
    pub(super) fn make(cpu: Option<usize>, spin: Duration) -> io::Result<Self> {
        let placement = cpu.map_or(Placement::Unbound, Placement::Fixed);
        LocalExecutorBuilder::new(placement)
            .io_memory(IO_MEMORY_BYTES)
            .preempt_timer(PREEMPT_TIMER)
            .spin_before_park(spin)
            .blocking_thread_pool_placement(PoolPlacement::Unbound(1))
            .make()
            .map(Self)
            .map_err(into_io)
    }

    /// Runs `main` to its end; `None` if it panicked (the hook has then been called).
    pub(super) fn run<B, F, T>(
        self,
        seed: ShardSeed<B>,
        main: impl FnOnce(usize, GlommioEnv<B>) -> F,
    ) -> Option<T>
    where
        B: Bucket,
        F: Future<Output = T>,
    {
        self.0.run(async move {
            let shard = seed.shard;
            let hooks = seed.hooks.clone();
            let heartbeat = Arc::clone(&seed.heartbeat);
            let life = Arc::clone(&heartbeat);
            glommio::spawn_local(async move {
                loop {
                    heartbeat.tick();
                    Timer::new(HEARTBEAT).await;
                }
            })
            .detach();
            let env = match make_env(seed) {
                Ok(env) => env,
                Err(error) => {
                    hooks.panicked(shard, "main", format!("shard could not start: {error}"));
                    life.end();
                    return None;
                }
            };
            let main = main(shard, env.clone());
            let result = match CatchUnwind::new(main).await {
                Ok(value) => Some(value),
                Err(message) => {
                    hooks.panicked(shard, "main", message);
                    None
                }
            };
            env.drain().await;
            life.end();
            result
        })
    }
}

fn make_env<B: Bucket>(seed: ShardSeed<B>) -> io::Result<GlommioEnv<B>> {
    let io = DiskIo {
        method: seed.commit_method,
        queue: seed.commit_queue,
        ring: CommitRing::start()?,
        transfers: Rc::default(),
        closed: Cell::new(false),
    };
    Ok(GlommioEnv {
        inner: Rc::new(Inner {
            shard: seed.shard,
            disk: GlommioDisk {
                io: Rc::new(io),
                chores: seed.chores,
            },
            bucket: seed.bucket,
            hooks: seed.hooks,
            offload: seed.offload,
            tasks: Rc::default(),
            busy: Cell::default(),
            // A wake of a task of this queue interrupts the others. Its latency is that of the
            // preempt timer: a shorter one would shorten the timer, see there.
            urgent: glommio::executor().create_task_queue(
                Shares::default(),
                Latency::Matters(PREEMPT_TIMER),
                "urgent",
            ),
        }),
    })
}

/// A shard's ways to its disk beside the executor's own ring.
struct DiskIo {
    method: CommitMethod,
    queue: CommitQueue,
    ring: CommitRing,
    /// Commits on the executor's ring that run.
    transfers: Rc<Cell<usize>>,
    /// Set at the shard's end: tasks that outlive `main` write no more.
    closed: Cell<bool>,
}

impl DiskIo {
    fn check_open(&self) -> io::Result<()> {
        if self.closed.get() {
            return Err(io::Error::new(
                io::ErrorKind::BrokenPipe,
                "the shard has ended",
            ));
        }
        Ok(())
    }
}

/// The shard's linked ring and the task that reaps it.
struct CommitRing {
    ring: Rc<RefCell<LinkedRing>>,
    stop: Rc<Cell<bool>>,
    reaper: Cell<Option<glommio::Task<()>>>,
}

impl CommitRing {
    fn start() -> io::Result<Self> {
        let ring = LinkedRing::new()?;
        let event = PollableFd::new(ring.event_fd()?).map_err(into_io)?;
        let ring = Rc::new(RefCell::new(ring));
        let stop = Rc::new(Cell::new(false));
        let (reaped, stopped) = (Rc::clone(&ring), Rc::clone(&stop));
        let reaper = glommio::spawn_local(async move {
            while !stopped.get() {
                if event.readable().await.is_err() {
                    // Nobody would hear of completions any more.
                    reaped.borrow_mut().fail();
                    return;
                }
                reaped.borrow_mut().reap();
            }
        });
        Ok(Self {
            ring,
            stop,
            reaper: Cell::new(Some(reaper)),
        })
    }

    async fn commit(
        &self,
        file: Arc<StdFile>,
        buf: Arc<AlignedBuf>,
        offset: u64,
    ) -> io::Result<()> {
        let (reply, answer) = flume::bounded(1);
        self.ring.borrow_mut().commit(file, buf, offset, reply);
        received(answer.recv_async().await)
    }

    async fn write(&self, file: Arc<StdFile>, buf: Arc<AlignedBuf>, offset: u64) -> io::Result<()> {
        let (reply, answer) = flume::bounded(1);
        self.ring.borrow_mut().write(file, buf, offset, reply);
        received(answer.recv_async().await)
    }

    async fn sync_data(&self, file: Arc<StdFile>) -> io::Result<()> {
        let (reply, answer) = flume::bounded(1);
        self.ring.borrow_mut().sync_data(file, reply);
        received(answer.recv_async().await)
    }

    /// Waits for everything in flight, then ends the reaper.
    async fn stop(&self) {
        while self.ring.borrow().in_flight() > 0 {
            Timer::new(Duration::from_millis(1)).await;
        }
        self.stop.set(true);
        self.ring.borrow().notify();
        if let Some(reaper) = self.reaper.take() {
            reaper.await;
        }
    }
}

/// The answer of an operation that always gives one.
fn received(answer: Result<io::Result<()>, flume::RecvError>) -> io::Result<()> {
    answer.unwrap_or_else(|_| Err(io::Error::other("the operation was lost")))
}

/// The data directory through glommio; operations on names run on a side thread.
#[derive(Clone)]
pub struct GlommioDisk {
    io: Rc<DiskIo>,
    chores: SideThreads,
}

impl GlommioDisk {
    async fn open_with(&self, options: &OpenOptions, path: &Path) -> io::Result<GlommioFile> {
        let dma = options.dma_open(path).await.map_err(into_io)?;
        // A second descriptor of the same open file (O_DIRECT included) for the paths beside glommio.
        let std = StdFile::from(dma.as_fd().try_clone_to_owned()?);
        Ok(GlommioFile {
            inner: Rc::new(OpenFile {
                dma,
                std: Arc::new(std),
                io: Rc::clone(&self.io),
                chores: self.chores.clone(),
            }),
        })
    }
}

impl Disk for GlommioDisk {
    type File = GlommioFile;

    async fn create(&self, path: &Path) -> io::Result<GlommioFile> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create_new(true).mode(0o640);
        self.open_with(&options, path).await
    }

    async fn open(&self, path: &Path) -> io::Result<GlommioFile> {
        let mut options = OpenOptions::new();
        options.read(true).write(true);
        self.open_with(&options, path).await
    }

    async fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let (from, to) = (from.to_owned(), to.to_owned());
        self.chores.run(move || std::fs::rename(from, to)).await
    }

    async fn remove(&self, path: &Path) -> io::Result<()> {
        let path = path.to_owned();
        self.chores.run(move || std::fs::remove_file(path)).await
    }

    async fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        let dir = dir.to_owned();
        self.chores.run(move || fs_ops::list_files(&dir)).await
    }

    async fn free_bytes(&self, dir: &Path) -> io::Result<Option<u64>> {
        let dir = dir.to_owned();
        let free = move || fs_ops::free_bytes(&dir);
        self.chores.run(free).await.map(Some)
    }

    async fn create_dir_all(&self, dir: &Path) -> io::Result<()> {
        let dir = dir.to_owned();
        self.chores
            .run(move || fs_ops::create_dir_all_synced(&dir))
            .await
    }

    async fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        // Not glommio's `Directory::sync`: that is an fdatasync, which a filesystem may answer
        // without writing an entry that left the directory's size as it was.
        let dir: PathBuf = dir.to_owned();
        self.chores.run(move || fs_ops::sync_dir(&dir)).await
    }
}

/// An open file of the data directory.
#[derive(Clone)]
pub struct GlommioFile {
    inner: Rc<OpenFile>,
}

struct OpenFile {
    dma: DmaFile,
    std: Arc<StdFile>,
    io: Rc<DiskIo>,
    chores: SideThreads,
}

impl OpenFile {
    /// Runs a write to its end even if its caller is dropped, and makes the shard's end wait for it:
    /// the executor itself would free the memory under a write in flight.
    async fn to_the_end(
        &self,
        work: impl Future<Output = io::Result<()>> + 'static,
    ) -> io::Result<()> {
        let running = TaskCount::enter(&self.io.transfers);
        let (reply, answer) = flume::bounded(1);
        glommio::spawn_local(async move {
            let _running = running;
            let result = CatchUnwind::new(work).await;
            let _ = reply.send(result.unwrap_or_else(|message| Err(io::Error::other(message))));
        })
        .detach();
        received(answer.recv_async().await)
    }

    /// Copies into executor memory and writes through the executor's ring.
    async fn ring_write(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        let mut done = 0;
        while done < buf.len() {
            let n = TRANSFER_BYTES.min(buf.len() - done);
            let mut dma = self.dma.alloc_dma_buffer(n);
            dma.as_bytes_mut()[..n].copy_from_slice(&buf[done..done + n]);
            let wrote = self
                .dma
                .write_at(dma, offset + done as u64)
                .await
                .map_err(into_io)?;
            if wrote == 0 || wrote % BLOCK_BYTES != 0 {
                return Err(short_write(wrote, n));
            }
            done += wrote;
        }
        Ok(())
    }

    async fn ring_sync(&self) -> io::Result<()> {
        self.dma.fdatasync().await.map_err(into_io)
    }
}

impl File for GlommioFile {
    async fn len(&self) -> io::Result<u64> {
        self.inner.dma.file_size().await.map_err(into_io)
    }

    async fn write_at(&self, buf: Arc<AlignedBuf>, offset: u64) -> io::Result<()> {
        check_write(&buf, offset)?;
        self.inner.io.check_open()?;
        // Through the ring whatever the commit method is: a long background write must not stand in
        // front of a group on a commit thread.
        let std = Arc::clone(&self.inner.std);
        self.inner.io.ring.write(std, buf, offset).await
    }

    async fn read_at(&self, offset: u64, len: usize) -> io::Result<Vec<u8>> {
        let block = BLOCK_BYTES as u64;
        let end = offset
            .checked_add(len as u64)
            .filter(|end| *end <= i64::MAX as u64 - block)
            .ok_or_else(|| {
                io::Error::new(io::ErrorKind::InvalidInput, "read beyond the last offset")
            })?;
        let mut out = Vec::with_capacity(len.min(TRANSFER_BYTES));
        let mut pos = offset - offset % block;
        while pos < end {
            let want = (end - pos)
                .next_multiple_of(block)
                .min(TRANSFER_BYTES as u64);
            // Not glommio's `read_at`: near the end of the file it counts the bytes before an
            // unaligned start as bytes read.
            let got = self
                .inner
                .dma
                .read_at_aligned(pos, want as usize)
                .await
                .map_err(into_io)?;
            let skip = (offset + out.len() as u64 - pos) as usize;
            let take_end = got.len().min((end - pos) as usize);
            if skip < take_end {
                out.extend_from_slice(&got[skip..take_end]);
            }
            if got.is_empty() || got.len() % BLOCK_BYTES != 0 {
                break;
            }
            pos += got.len() as u64;
        }
        Ok(out)
    }

    /// On a side thread: the executor is spared the submission, the memory of the read, and a copy.
    async fn read_into(
        &self,
        offset: u64,
        len: usize,
        mut buf: AlignedBuf,
    ) -> io::Result<AlignedBuf> {
        let std = Arc::clone(&self.inner.std);
        let read = move || buf.read_from(&std, offset, len).map(|()| buf);
        self.inner.chores.run(read).await
    }

    async fn sync_data(&self) -> io::Result<()> {
        self.inner.io.check_open()?;
        let std = Arc::clone(&self.inner.std);
        match self.inner.io.method {
            CommitMethod::Executor => self.inner.ring_sync().await,
            CommitMethod::Thread => self.inner.io.queue.sync_data(std).await,
            CommitMethod::LinkedRing => self.inner.io.ring.sync_data(std).await,
        }
    }

    async fn commit(&self, buf: Arc<AlignedBuf>, offset: u64) -> io::Result<()> {
        check_write(&buf, offset)?;
        self.inner.io.check_open()?;
        let std = Arc::clone(&self.inner.std);
        match self.inner.io.method {
            CommitMethod::Executor => {
                let file = Rc::clone(&self.inner);
                let commit = async move {
                    file.ring_write(&buf, offset).await?;
                    file.ring_sync().await
                };
                self.inner.to_the_end(commit).await
            }
            CommitMethod::Thread => self.inner.io.queue.commit(std, buf, offset).await,
            CommitMethod::LinkedRing => self.inner.io.ring.commit(std, buf, offset).await,
        }
    }

    async fn commit_alone(&self, buf: Arc<AlignedBuf>, offset: u64) -> io::Result<()> {
        if self.inner.io.method != CommitMethod::Thread {
            return self.commit(buf, offset).await;
        }
        check_write(&buf, offset)?;
        self.inner.io.check_open()?;
        write_durably(&self.inner.std, &buf, offset)
    }

    async fn drain(&self) -> io::Result<()> {
        let file = Arc::clone(&self.inner.std);
        let drained = move || fs_ops::drain(&file);
        self.inner.chores.run(drained).await
    }

    async fn set_len(&self, len: u64) -> io::Result<()> {
        let file = Arc::clone(&self.inner.std);
        self.inner.chores.run(move || file.set_len(len)).await
    }
}

fn check_write(buf: &AlignedBuf, offset: u64) -> io::Result<()> {
    let aligned =
        buf.len().is_multiple_of(BLOCK_BYTES) && offset.is_multiple_of(BLOCK_BYTES as u64);
    if aligned && offset <= i64::MAX as u64 - buf.len() as u64 {
        return Ok(());
    }
    let message = format!("unaligned write of {} bytes at {offset}", buf.len());
    Err(io::Error::new(io::ErrorKind::InvalidInput, message))
}

fn short_write(wrote: usize, len: usize) -> io::Error {
    let message = format!("short write: {wrote} of {len} bytes");
    io::Error::new(io::ErrorKind::WriteZero, message)
}

/// Keeps the system's own error, whose number callers branch on.
fn into_io<T: std::fmt::Debug>(error: GlommioError<T>) -> io::Error
where
    io::Error: From<GlommioError<T>>,
{
    match error {
        GlommioError::IoError(source) | GlommioError::EnhancedIoError { source, .. } => source,
        other => io::Error::from(other),
    }
}
