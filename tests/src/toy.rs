//! Toy: the smallest store that keeps the promises of appends, and planted ways to break them.
//!
//! It proves that simulator, workload and oracle find what they are there to find: each planted bug
//! must be caught, the right order never.
//!
//! **Invariants**
//! - One group is in flight; a group is acknowledged when its commit returned, and poisons on error.
//! - Recovery rewrites and syncs what it found before it serves it.
//!
//! **Not here**: streams, seals, commits; they are refused.

use crate::sim::SimEnv;
use crate::subject::{
    CommitView, Opened, Outcome, ProducerView, Range, Refusal, Seen, StartError, Subject,
};
use sealog_engine::codec::{Reader, Writer};
use sealog_engine::env::{AlignedBuf, Disk, Env, File};
use sealog_frame::{Batch, FrameLimits, FrameView};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;

/// No bug: the right order.
pub const RIGHT: u8 = 0;
/// Acknowledges when the write returned; the sync comes with the next group.
pub const ACK_BEFORE_SYNC: u8 = 1;
/// Doesn't sync the directory of the log.
pub const NO_DIRECTORY_SYNC: u8 = 2;
/// Serves what recovery read without making it durable.
pub const SERVE_BEFORE_SYNC: u8 = 3;
/// Recovery forgets producers: repeats are taken twice.
pub const FORGETS_PRODUCERS: u8 = 4;
/// Takes a group without its checksum.
pub const NO_CHECKSUM: u8 = 5;
/// Retries a failed sync and believes the second answer.
pub const SYNC_RETRY: u8 = 6;

const MAGIC: u32 = 0x544f_5931;
const LOG: &str = "data/log";

#[derive(Debug, Default)]
struct Feed {
    next: u64,
    records: Vec<Seen>,
    producers: BTreeMap<Vec<u8>, (u64, u64)>,
    ranges: BTreeMap<(Vec<u8>, u64, u64), Range>,
}

#[derive(Debug, Default)]
struct State {
    feeds: BTreeMap<String, Feed>,
    end: u64,
    groups: u64,
    poisoned: bool,
}

struct Waiting {
    feed: String,
    batch: Batch,
    reply: flume::Sender<Outcome<Range>>,
}

/// The toy store, with the bug that `BUG` names.
#[derive(Clone)]
pub struct Toy<const BUG: u8> {
    state: Rc<RefCell<State>>,
    queue: flume::Sender<Waiting>,
}

impl State {
    /// Takes the batch into the state; sequences follow from order alone.
    fn fold(&mut self, feed: &str, frame: &FrameView<'_>) -> Range {
        let feed = self.feeds.entry(feed.to_owned()).or_default();
        let first = feed.next;
        for record in frame.records() {
            let sequence = feed.next;
            let seen = Seen::of(&record);
            feed.records.push(Seen { sequence, ..seen });
            feed.next += 1;
        }
        let last = feed.next - 1;
        let range = Range { first, last };
        if let Some(tag) = frame.producer() {
            feed.producers
                .insert(tag.id.to_vec(), (tag.epoch, tag.sequence));
            feed.ranges
                .insert((tag.id.to_vec(), tag.epoch, tag.sequence), range);
        }
        range
    }

    /// What a producer's batch is answered without being taken; `None` when it is the next one.
    fn refuse(&self, feed: &str, frame: &FrameView<'_>) -> Option<Outcome<Range>> {
        let tag = frame.producer()?;
        let feed = self.feeds.get(feed)?;
        let known = feed.producers.get(tag.id).copied();
        let key = (tag.id.to_vec(), tag.epoch, tag.sequence);
        if let Some(range) = feed.ranges.get(&key) {
            return Some(Outcome::Acked(*range));
        }
        match known {
            Some((epoch, _)) if epoch > tag.epoch => {
                Some(Outcome::Refused(Refusal::ProducerFenced))
            }
            Some((epoch, sequence)) if epoch == tag.epoch && tag.sequence == sequence + 1 => None,
            Some((epoch, _)) if epoch == tag.epoch => Some(Outcome::Refused(Refusal::ProducerGap)),
            _ if tag.sequence == 0 => None,
            _ => Some(Outcome::Refused(Refusal::ProducerGap)),
        }
    }
}

fn encode(group: u64, batches: &[&Waiting]) -> AlignedBuf {
    let mut body = Writer::new();
    for waiting in batches {
        body.bytes(waiting.feed.as_bytes());
        body.bytes(waiting.batch.as_bytes());
    }
    let mut head = Writer::new();
    let len = u32::try_from(body.0.len()).expect("a small group");
    head.u32(MAGIC).u64(group).u32(len);
    head.u32(checksum(&body.0));
    let mut buf = AlignedBuf::copy_of(&head.0);
    buf.extend_from_slice(&body.0);
    buf.pad_to_block();
    buf
}

fn checksum(bytes: &[u8]) -> u32 {
    let mix = |sum: u64, byte: &u8| crate::sim::rng::mix(sum ^ u64::from(*byte));
    let [a, b, c, d, ..] = bytes.iter().fold(7, mix).to_le_bytes();
    u32::from_le_bytes([a, b, c, d])
}

/// The body of the group at the front and the bytes it takes, if it is whole and the `group`-th.
fn decode(bytes: &[u8], group: u64, checked: bool) -> Option<(&[u8], usize)> {
    let mut r = Reader(bytes);
    let (magic, number) = (r.u32().ok()?, r.u64().ok()?);
    let (len, sum) = (r.u32().ok()?, r.u32().ok()?);
    let body = r.raw(len as usize).ok()?;
    let good = magic == MAGIC && number == group && (!checked || checksum(body) == sum);
    let taken = (bytes.len() - r.0.len()).next_multiple_of(4096);
    good.then_some((body, taken))
}

impl<const BUG: u8> Toy<BUG> {
    async fn recover(env: &SimEnv) -> io::Result<(State, <crate::sim::SimDisk as Disk>::File)> {
        let disk = env.disk();
        disk.create_dir_all(Path::new("data")).await?;
        let file = match disk.open(Path::new(LOG)).await {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                disk.create(Path::new(LOG)).await?
            }
            opened => opened?,
        };
        if BUG != NO_DIRECTORY_SYNC {
            disk.sync_dir(Path::new("data")).await?;
        }
        let len = usize::try_from(file.len().await?).unwrap_or(usize::MAX);
        let bytes = file.read_at(0, len).await?;
        let mut state = State::default();
        let mut at = 0;
        while let Some((body, taken)) = decode(&bytes[at..], state.groups, BUG != NO_CHECKSUM) {
            let mut r = Reader(body);
            while let (Ok(feed), Ok(frame)) = (r.bytes(), r.bytes()) {
                let parsed = match BUG {
                    NO_CHECKSUM => FrameView::trusted(frame),
                    _ => FrameView::parse(frame, &FrameLimits::default()),
                };
                let Ok(view) = parsed else {
                    break;
                };
                state.fold(&String::from_utf8_lossy(feed), &view);
            }
            state.groups += 1;
            at += taken;
            if at > bytes.len() {
                break;
            }
        }
        state.end = at as u64;
        if BUG == FORGETS_PRODUCERS {
            for feed in state.feeds.values_mut() {
                feed.producers.clear();
                feed.ranges.clear();
            }
        }
        if BUG != SERVE_BEFORE_SYNC && at > 0 {
            let mut kept = AlignedBuf::copy_of(&bytes[..at.min(bytes.len())]);
            kept.pad_to_block();
            file.commit(Arc::new(kept), 0).await?;
        }
        Ok((state, file))
    }

    async fn write(
        file: &<crate::sim::SimDisk as Disk>::File,
        buf: Arc<AlignedBuf>,
        at: u64,
    ) -> io::Result<()> {
        if BUG == ACK_BEFORE_SYNC {
            file.sync_data().await?;
            return file.write_at(buf, at).await;
        }
        if BUG == SYNC_RETRY {
            file.write_at(buf, at).await?;
            while file.sync_data().await.is_err() {}
            return Ok(());
        }
        file.commit(buf, at).await
    }

    /// Commits whatever has arrived while the commit before it ran.
    async fn commit_loop(
        state: Rc<RefCell<State>>,
        file: <crate::sim::SimDisk as Disk>::File,
        queue: flume::Receiver<Waiting>,
    ) {
        while let Ok(first) = queue.recv_async().await {
            let mut taken = vec![first];
            taken.extend(queue.drain());
            let mut group: Vec<Waiting> = Vec::new();
            for waiting in taken {
                let refused = state.borrow().refuse(&waiting.feed, &waiting.batch.view());
                let poisoned = state.borrow().poisoned;
                let mut tags = group.iter().filter_map(|w| w.batch.view().producer());
                let mine = waiting.batch.view().producer().map(|t| t.id.to_vec());
                let again = tags.any(|tag| Some(tag.id) == mine.as_deref());
                if poisoned || again {
                    let _ = waiting.reply.send(Outcome::Unknown("not taken".to_owned()));
                } else if let Some(answer) = refused {
                    let _ = waiting.reply.send(answer);
                } else {
                    group.push(waiting);
                }
            }
            if group.is_empty() {
                continue;
            }
            let (number, at) = (state.borrow().groups, state.borrow().end);
            let buf = Arc::new(encode(number, &group.iter().collect::<Vec<_>>()));
            let len = buf.len() as u64;
            let written = Self::write(&file, buf, at).await;
            let mut state = state.borrow_mut();
            if let Err(error) = written {
                state.poisoned = true;
                for waiting in group {
                    let _ = waiting.reply.send(Outcome::Unknown(error.to_string()));
                }
                continue;
            }
            state.groups += 1;
            state.end += len;
            for waiting in group {
                let range = state.fold(&waiting.feed, &waiting.batch.view());
                let _ = waiting.reply.send(Outcome::Acked(range));
            }
        }
    }
}

fn unsupported<T>() -> Outcome<T> {
    Outcome::Refused(Refusal::Other("a toy has no streams".to_owned()))
}

impl<const BUG: u8> Subject for Toy<BUG> {
    async fn start(env: SimEnv) -> Result<Self, StartError> {
        let recovered = Self::recover(&env).await;
        let (state, file) = recovered.map_err(|e| StartError::Failed(e.to_string()))?;
        let state = Rc::new(RefCell::new(state));
        let (queue, receiver) = flume::unbounded();
        env.spawn("commit", Self::commit_loop(state.clone(), file, receiver));
        Ok(Self { state, queue })
    }

    async fn create_feed(&self, _: &str) -> Outcome<u64> {
        Outcome::Acked(0)
    }

    async fn delete_feed(&self, _: &str) -> Outcome<()> {
        unsupported()
    }

    async fn verify(_: SimEnv) -> Result<(), String> {
        Ok(())
    }

    async fn append(&self, feed: &str, batch: Batch) -> Outcome<Range> {
        let (reply, answer) = flume::bounded(1);
        let feed = feed.to_owned();
        let _ = self.queue.send(Waiting { feed, batch, reply });
        let closed = |_| Outcome::Unknown("closed".to_owned());
        answer.recv_async().await.unwrap_or_else(closed)
    }

    async fn open(&self, _: &str) -> Outcome<Opened> {
        unsupported()
    }

    async fn resume(&self, _: &str) -> Outcome<Opened> {
        unsupported()
    }

    async fn seal(&self, _: &str) -> Outcome<CommitView> {
        unsupported()
    }

    async fn discard(&self, _: &str) -> Outcome<CommitView> {
        unsupported()
    }

    async fn read_all(&self, feed: &str) -> Result<Vec<Seen>, String> {
        let state = self.state.borrow();
        let records = state.feeds.get(feed).map(|feed| feed.records.clone());
        Ok(records.unwrap_or_default())
    }

    async fn commits(&self, _: &str) -> Result<Vec<CommitView>, String> {
        Ok(Vec::new())
    }

    async fn producer(&self, feed: &str, id: &str) -> Result<Option<ProducerView>, String> {
        let state = self.state.borrow();
        let known = state
            .feeds
            .get(feed)
            .and_then(|feed| feed.producers.get(id.as_bytes()));
        Ok(known.map(|&(epoch, sequence)| ProducerView { epoch, sequence }))
    }

    fn commits_prefix(_: &str) -> String {
        "none/".to_owned()
    }

    async fn settle(&self) {}

    async fn close(&self) {}
}
