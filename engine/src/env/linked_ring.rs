//! LinkedRing: an io_uring of a shard's own that writes and syncs as one linked pair.
//!
//! **Invariants**
//! - An operation owns its buffer and descriptor in a slot until both completions of its pair have
//!   been reaped, whether or not its caller still waits.
//! - A commit answers `Ok` only if the whole buffer was written and the sync linked behind the last
//!   part of it succeeded. A short write breaks the link; the rest is submitted as a new pair.
//! - Entries in the kernel never exceed what the completion queue holds.
//! - Dropping the ring waits for all it has submitted. If even that fails, the memory is leaked
//!   rather than freed under the device.
//!
//! **Not here**: the executor task that waits on [`LinkedRing::event_fd`] and calls
//! [`LinkedRing::reap`] (`glommio_env`).

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::Arc;

use io_uring::{IoUring, opcode, squeue, types};

use super::{AlignedBuf, BLOCK_BYTES};

/// Operations in the kernel at once; more wait here.
const SLOTS: usize = 32;

/// A pair per slot; the kernel makes the completion queue twice as long.
const ENTRIES: u32 = 2 * SLOTS as u32;

/// One write request's length is 32 bits; far below it, whole blocks.
const WRITE_MAX: usize = 1 << 30;

/// Where an operation's result goes, with room for it; nobody may be listening.
pub(crate) type Reply = flume::Sender<io::Result<()>>;

struct Op {
    file: Arc<File>,
    /// What to write, and where; without it the operation is a mere sync.
    write: Option<(Arc<AlignedBuf>, u64)>,
    /// Whether a sync follows the write.
    sync: bool,
    /// Bytes known to be written.
    done: usize,
    reply: Reply,
    pending: u8,
    wrote: Option<i32>,
    synced: i32,
}

/// The ring. `!Sync`; belongs to one shard.
pub(crate) struct LinkedRing {
    ring: IoUring,
    event: OwnedFd,
    slots: Vec<Option<Op>>,
    waiting: VecDeque<Op>,
    /// Set once the kernel refuses submissions in a way that retrying can't cure.
    broken: bool,
}

/// The half of a pair a completion belongs to.
const WRITE: u64 = 0;
const SYNC: u64 = 1;

impl LinkedRing {
    /// Makes the ring and the event descriptor that tells of completions.
    ///
    /// # Errors
    /// The kernel refuses io_uring, or descriptors have run out.
    pub(crate) fn new() -> io::Result<Self> {
        let ring = IoUring::new(ENTRIES)?;
        // SAFETY: no pointers; the flags are valid.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: a fresh descriptor nobody else owns.
        let event = unsafe { OwnedFd::from_raw_fd(fd) };
        ring.submitter().register_eventfd(event.as_raw_fd())?;
        let slots = (0..SLOTS).map(|_| None).collect();
        Ok(Self {
            ring,
            event,
            slots,
            waiting: VecDeque::new(),
            broken: false,
        })
    }

    /// A descriptor of the event counter: readable when there is something to reap.
    pub(crate) fn event_fd(&self) -> io::Result<OwnedFd> {
        self.event.try_clone()
    }

    /// Makes the event counter readable, to wake whoever waits on it.
    pub(crate) fn notify(&self) {
        let one = 1u64.to_ne_bytes();
        // SAFETY: the pointer and length describe `one`.
        unsafe { libc::write(self.event.as_raw_fd(), one.as_ptr().cast(), one.len()) };
    }

    /// Operations not yet done; none counts once the ring has failed.
    pub(crate) fn in_flight(&self) -> usize {
        if self.broken {
            return 0;
        }
        self.waiting.len() + self.slots.iter().flatten().count()
    }

    /// Starts writing all of `buf` at `offset` and syncing the file's data behind it.
    pub(crate) fn commit(
        &mut self,
        file: Arc<File>,
        buf: Arc<AlignedBuf>,
        offset: u64,
        reply: Reply,
    ) {
        self.start(file, Some((buf, offset)), true, reply);
    }

    /// Starts writing all of `buf` at `offset`, not durably.
    pub(crate) fn write(
        &mut self,
        file: Arc<File>,
        buf: Arc<AlignedBuf>,
        offset: u64,
        reply: Reply,
    ) {
        self.start(file, Some((buf, offset)), false, reply);
    }

    /// Starts syncing the file's data: every write that has completed by now.
    pub(crate) fn sync_data(&mut self, file: Arc<File>, reply: Reply) {
        self.start(file, None, true, reply);
    }

    /// Collects completions, answers finished operations and submits waiting ones.
    pub(crate) fn reap(&mut self) {
        self.clear_event();
        let completed: Vec<_> = self
            .ring
            .completion()
            .map(|c| (c.user_data(), c.result()))
            .collect();
        for (tag, result) in completed {
            self.complete(tag, result);
        }
        if !self.broken && !self.ring.submission().is_empty() {
            self.enter();
        }
        while self.slots.iter().any(Option::is_none)
            && let Some(op) = self.waiting.pop_front()
        {
            self.submit(op);
        }
    }

    fn start(
        &mut self,
        file: Arc<File>,
        write: Option<(Arc<AlignedBuf>, u64)>,
        sync: bool,
        reply: Reply,
    ) {
        let op = Op {
            file,
            write,
            sync,
            done: 0,
            reply,
            pending: 0,
            wrote: None,
            synced: 0,
        };
        // Behind those who came before, even if a slot is free for a moment.
        if self.waiting.is_empty() {
            self.submit(op);
        } else {
            self.waiting.push_back(op);
        }
    }

    fn submit(&mut self, mut op: Op) {
        if self.broken {
            answer(op, Err(broken()));
            return;
        }
        let Some(slot) = self.slots.iter().position(Option::is_none) else {
            self.waiting.push_back(op);
            return;
        };
        let entries = op.entries(slot as u64);
        self.slots[slot] = Some(op);
        // SAFETY: buffer and descriptor live in the slot until both completions are reaped, which
        // `drop` waits for too; the buffer is shared, so nobody writes to it meanwhile.
        let pushed = unsafe { self.ring.submission().push_multiple(&entries) };
        // Every slot's pair fits the queue, and each slot has one pair at a time.
        assert!(pushed.is_ok(), "a free slot implies room in the queue");
        self.enter();
    }

    /// Hands queued entries to the kernel.
    fn enter(&mut self) {
        loop {
            match self.ring.submit() {
                Ok(_) => return,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // Short of memory for the moment: the entries stay queued, the next reap tries again.
                Err(error) if matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EBUSY)) => {
                    self.notify();
                    return;
                }
                Err(_) => {
                    self.fail();
                    return;
                }
            }
        }
    }

    /// Gives up: every operation, now and later, is answered with an error. What the kernel has keeps
    /// its memory.
    pub(crate) fn fail(&mut self) {
        self.broken = true;
        for op in self.slots.iter().flatten() {
            let _ = op.reply.try_send(Err(broken()));
        }
        for op in self.waiting.drain(..) {
            answer(op, Err(broken()));
        }
    }

    fn complete(&mut self, tag: u64, result: i32) {
        let slot = (tag >> 1) as usize;
        let Some(op) = self.slots.get_mut(slot).and_then(Option::as_mut) else {
            return;
        };
        match tag & 1 {
            WRITE => op.wrote = Some(result),
            _ => op.synced = result,
        }
        op.pending -= 1;
        if op.pending > 0 {
            return;
        }
        let Some(mut op) = self.slots[slot].take() else {
            return;
        };
        match op.outcome() {
            Outcome::Answer(result) => answer(op, result),
            Outcome::Again => self.submit(op),
        }
    }

    fn clear_event(&self) {
        let mut count = [0u8; 8];
        // SAFETY: the pointer and length describe `count`; the descriptor doesn't block.
        unsafe {
            libc::read(
                self.event.as_raw_fd(),
                count.as_mut_ptr().cast(),
                count.len(),
            )
        };
    }
}

enum Outcome {
    Answer(io::Result<()>),
    /// Only a part was written; the rest needs another pair.
    Again,
}

impl Op {
    /// The entries that take the operation on from where it is.
    fn entries(&mut self, slot: u64) -> Vec<squeue::Entry> {
        let fd = types::Fd(self.file.as_raw_fd());
        let sync = opcode::Fsync::new(fd)
            .flags(types::FsyncFlags::DATASYNC)
            .build()
            .user_data((slot << 1) | SYNC);
        (self.wrote, self.synced) = (None, 0);
        let Some((buf, offset)) = &self.write else {
            self.pending = 1;
            return vec![sync];
        };
        let rest = &buf[self.done..];
        let len = rest.len().min(WRITE_MAX);
        let write = opcode::Write::new(fd, rest.as_ptr(), len as u32)
            .offset(offset + self.done as u64)
            .build()
            .user_data((slot << 1) | WRITE);
        if !self.sync {
            self.pending = 1;
            return vec![write];
        }
        self.pending = 2;
        vec![write.flags(squeue::Flags::IO_LINK), sync]
    }

    /// What the completed pair means. The write's own error counts first: the sync behind a failed
    /// or short write is cancelled.
    fn outcome(&mut self) -> Outcome {
        if let (Some((buf, _)), Some(wrote)) = (&self.write, self.wrote) {
            let Ok(n) = usize::try_from(wrote) else {
                return Outcome::Answer(Err(io::Error::from_raw_os_error(-wrote)));
            };
            self.done += n;
            if self.done < buf.len() {
                if n == 0 || n % BLOCK_BYTES != 0 {
                    let message = format!("short write: {} of {} bytes", self.done, buf.len());
                    return Outcome::Answer(Err(io::Error::new(io::ErrorKind::WriteZero, message)));
                }
                return Outcome::Again;
            }
        }
        if self.synced < 0 {
            return Outcome::Answer(Err(io::Error::from_raw_os_error(-self.synced)));
        }
        Outcome::Answer(Ok(()))
    }
}

/// Lets go of the buffer before the caller hears, so that it finds itself the only owner.
fn answer(op: Op, result: io::Result<()>) {
    let Op { reply, write, .. } = op;
    drop(write);
    let _ = reply.try_send(result);
}

fn broken() -> io::Error {
    io::Error::other("the shard's ring is broken")
}

impl Drop for LinkedRing {
    fn drop(&mut self) {
        while self.in_flight() > 0 {
            match self.ring.submit_and_wait(1) {
                Ok(_) => self.reap(),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EBUSY)) => {
                    self.reap();
                }
                Err(_) => break,
            }
        }
        // Whatever the device may still read from is never freed.
        self.slots
            .iter_mut()
            .filter_map(Option::take)
            .for_each(std::mem::forget);
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{FileExt, OpenOptionsExt};

    use super::*;

    fn direct_file(dir: &tempfile::TempDir) -> Arc<File> {
        let mut options = File::options();
        options
            .read(true)
            .write(true)
            .create(true)
            .custom_flags(libc::O_DIRECT);
        Arc::new(options.open(dir.path().join("f")).unwrap())
    }

    fn wait(ring: &mut LinkedRing) {
        while ring.in_flight() > 0 {
            ring.ring.submit_and_wait(1).unwrap();
            ring.reap();
        }
    }

    #[test]
    fn commit_more_than_slots_all_land() {
        let dir = tempfile::tempdir().unwrap();
        let file = direct_file(&dir);
        let mut ring = LinkedRing::new().unwrap();
        let (reply, answers) = flume::unbounded();
        let count = 3 * SLOTS;
        for at in 0..count {
            let mut buf = AlignedBuf::zeroed(BLOCK_BYTES);
            buf.fill(at as u8);
            let offset = (at * BLOCK_BYTES) as u64;
            ring.commit(Arc::clone(&file), Arc::new(buf), offset, reply.clone());
        }
        wait(&mut ring);
        assert_eq!(answers.len(), count);
        assert!(answers.drain().all(|answer| answer.is_ok()));
        let bytes = std::fs::read(dir.path().join("f")).unwrap();
        assert_eq!(bytes.len(), count * BLOCK_BYTES);
        for (at, block) in bytes.chunks(BLOCK_BYTES).enumerate() {
            assert!(block.iter().all(|b| *b == at as u8));
        }
    }

    #[test]
    fn commit_write_fails_gives_the_writes_error() {
        let dir = tempfile::tempdir().unwrap();
        direct_file(&dir)
            .write_all_at(&AlignedBuf::zeroed(BLOCK_BYTES), 0)
            .unwrap();
        let read_only = Arc::new(File::open(dir.path().join("f")).unwrap());
        let mut ring = LinkedRing::new().unwrap();
        let (reply, answers) = flume::unbounded();
        ring.commit(
            read_only,
            Arc::new(AlignedBuf::zeroed(BLOCK_BYTES)),
            0,
            reply,
        );
        wait(&mut ring);
        let error = answers.try_recv().unwrap().unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EBADF));
    }

    #[test]
    fn sync_data_alone_is_answered() {
        let dir = tempfile::tempdir().unwrap();
        let mut ring = LinkedRing::new().unwrap();
        let (reply, answers) = flume::unbounded();
        ring.sync_data(direct_file(&dir), reply);
        wait(&mut ring);
        assert!(answers.try_recv().unwrap().is_ok());
    }

    #[test]
    fn fail_ring_answers_everyone_and_refuses_more() {
        let dir = tempfile::tempdir().unwrap();
        let file = direct_file(&dir);
        let mut ring = LinkedRing::new().unwrap();
        let (reply, answers) = flume::unbounded();
        let buf = Arc::new(AlignedBuf::zeroed(BLOCK_BYTES));
        for _ in 0..SLOTS + 1 {
            ring.commit(Arc::clone(&file), Arc::clone(&buf), 0, reply.clone());
        }
        ring.fail();
        ring.sync_data(file, reply);
        assert_eq!(answers.len(), SLOTS + 2);
        assert!(answers.drain().all(|answer| answer.is_err()));
        assert_eq!(ring.in_flight(), 0);
        drop(ring);
        // Those in the kernel may still be read by the device.
        assert_eq!(Arc::strong_count(&buf), SLOTS + 1);
    }

    #[test]
    fn drop_ring_waits_for_what_is_in_flight() {
        let dir = tempfile::tempdir().unwrap();
        let file = direct_file(&dir);
        let mut ring = LinkedRing::new().unwrap();
        let (reply, answers) = flume::unbounded();
        let buf = Arc::new(AlignedBuf::copy_of(&vec![7; 256 * BLOCK_BYTES]));
        for _ in 0..2 * SLOTS {
            ring.commit(Arc::clone(&file), Arc::clone(&buf), 0, reply.clone());
        }
        drop(ring);
        assert_eq!(answers.len(), 2 * SLOTS);
        assert_eq!(Arc::strong_count(&buf), 1);
        assert_eq!(Arc::strong_count(&file), 1);
    }

    #[test]
    fn outcome_of_every_kind_of_pair() {
        let op = |len: usize, wrote: i32, synced: i32| Op {
            file: Arc::new(File::open("/dev/null").unwrap()),
            write: Some((Arc::new(AlignedBuf::zeroed(len)), 0)),
            sync: true,
            done: 0,
            reply: flume::bounded(1).0,
            pending: 0,
            wrote: Some(wrote),
            synced,
        };
        let block = BLOCK_BYTES as i32;
        let two = 2 * BLOCK_BYTES;
        assert!(matches!(
            op(two, 2 * block, 0).outcome(),
            Outcome::Answer(Ok(()))
        ));
        assert!(matches!(
            op(two, 2 * block, -libc::EIO).outcome(),
            Outcome::Answer(Err(_))
        ));
        assert!(matches!(
            op(two, block, -libc::ECANCELED).outcome(),
            Outcome::Again
        ));
        assert!(matches!(
            op(two, 100, -libc::ECANCELED).outcome(),
            Outcome::Answer(Err(_))
        ));
        assert!(matches!(
            op(two, 0, -libc::ECANCELED).outcome(),
            Outcome::Answer(Err(_))
        ));
        assert!(matches!(
            op(two, -libc::ENOSPC, -libc::ECANCELED).outcome(),
            Outcome::Answer(Err(_))
        ));
    }
}
