//! Closer: makes finished packs durable and stages them, beside the packing of what comes next.
//! Spec: spec/wal.md §12.
//!
//! **Invariants**
//! - LANE-2: one pack at a time, in the order in which they were handed over.
//! - LANE-4: besides the one at work, one waits; who hands over another waits too.
//! - After a failure nothing more is staged until [`Closer::clear`].
//!
//! **Not here**: what goes into packs (`packs`).

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

use super::pack_writer::PackWriter;
use super::region::Key;
use crate::commit::{CommitKind, PackPlace, PackRef, paths};
use crate::env::Env;
use crate::error::{Error, Result};
use crate::feed::Stream;
use crate::pack::PackSummary;
use crate::shard::LogService;
use crate::sync::Event;
use crate::wal::entry::Change;

/// Packs that wait for the one at work.
const WAITING_MAX: usize = 1;

/// A pack that gets nothing more.
pub(super) struct Closing<E: Env> {
    pub writer: PackWriter<E>,
    /// The stream of a pack of its own; `None` for a shared one.
    pub stream: Option<Key>,
    /// One past the last sequence of every stream in it.
    pub ends: Vec<(Key, u64)>,
}

struct State<E: Env> {
    waiting: VecDeque<Closing<E>>,
    working: bool,
    failed: Option<Error>,
    ended: bool,
    /// Per stream, where the packs end that are handed over and not staged yet.
    ends: BTreeMap<Key, u64>,
}

/// Hands packs to the task that closes them. Dropped, the task ends.
pub(super) struct Closer<E: Env> {
    state: Rc<RefCell<State<E>>>,
    moved: Event,
}

impl<E: Env> Closer<E> {
    /// Starts the task.
    pub(super) fn start(service: &Rc<LogService<E>>) -> Self {
        let state = Rc::new(RefCell::new(State {
            waiting: VecDeque::new(),
            working: false,
            failed: None,
            ended: false,
            ends: BTreeMap::new(),
        }));
        let moved = Event::new();
        let closer = Self {
            state: state.clone(),
            moved: moved.clone(),
        };
        let service = service.clone();
        service.lane.enter();
        service.env.clone().spawn("packs", async move {
            run(&service, &state, &moved).await;
            service.lane.leave();
        });
        closer
    }

    /// One past the last sequence of `key` in packs that are handed over, if there are any.
    pub(super) fn end(&self, key: Key) -> Option<u64> {
        self.state.borrow().ends.get(&key).copied()
    }

    /// Hands a pack over, once there is room for it.
    pub(super) async fn hand(&self, pack: Closing<E>) -> Result<()> {
        let ready = |state: &State<E>| state.waiting.len() < WAITING_MAX;
        self.until(ready).await?;
        let mut state = self.state.borrow_mut();
        state.ends.extend(pack.ends.iter().copied());
        state.waiting.push_back(pack);
        drop(state);
        self.moved.notify();
        Ok(())
    }

    /// Waits until all packs are staged.
    pub(super) async fn settle(&self) -> Result<()> {
        self.until(|state| state.waiting.is_empty() && !state.working)
            .await
    }

    /// Drops what waits, and waits for what is at work.
    pub(super) async fn clear(&self) {
        self.state.borrow_mut().waiting.clear();
        self.moved
            .until(|| (!self.state.borrow().working).then_some(()))
            .await;
        let mut state = self.state.borrow_mut();
        state.failed = None;
        state.ends.clear();
    }

    async fn until(&self, ready: impl Fn(&State<E>) -> bool) -> Result<()> {
        let look = || {
            let mut state = self.state.borrow_mut();
            if let Some(error) = state.failed.take() {
                return Some(Err(error));
            }
            ready(&state).then_some(Ok(()))
        };
        self.moved.until(look).await
    }
}

impl<E: Env> Drop for Closer<E> {
    fn drop(&mut self) {
        self.state.borrow_mut().ended = true;
        self.moved.notify();
    }
}

async fn run<E: Env>(service: &Rc<LogService<E>>, state: &RefCell<State<E>>, moved: &Event) {
    loop {
        let next = moved
            .until(|| {
                let mut state = state.borrow_mut();
                if state.ended {
                    return Some(None);
                }
                let next = state.waiting.pop_front();
                state.working = next.is_some();
                next.map(Some)
            })
            .await;
        let Some(pack) = next else { return };
        // Whoever waits for room may hand over the next one now.
        moved.notify();
        let ends = pack.ends.clone();
        let closed = close(service, pack).await;
        let mut state = state.borrow_mut();
        state.working = false;
        match closed {
            Ok(()) => ends
                .iter()
                .for_each(|(key, end)| forget(&mut state.ends, *key, *end)),
            Err(error) => {
                state.waiting.clear();
                state.failed = Some(error);
            }
        }
        drop(state);
        moved.notify();
    }
}

/// Takes the end out, unless a later pack of the stream has raised it.
fn forget(ends: &mut BTreeMap<Key, u64>, key: Key, end: u64) {
    if ends.get(&key) == Some(&end) {
        ends.remove(&key);
    }
}

async fn close<E: Env>(service: &LogService<E>, pack: Closing<E>) -> Result<()> {
    let log = service.wal.params().log;
    let (place, summary) = match pack.stream {
        Some(key) => {
            let name = service
                .feeds
                .borrow()
                .get(key.0)
                .map(|feed| feed.name.clone());
            // Deleted meanwhile: nobody wants the pack.
            let Some(name) = name else { return Ok(()) };
            let path =
                |summary: &PackSummary| paths::stream_pack(&name, key.0, key.1, &summary.digest);
            (PackPlace::Stream, pack.writer.finish(service, path).await?)
        }
        None => {
            let path = |summary: &PackSummary| paths::shared_pack(log, &summary.digest);
            (
                PackPlace::Shared(log),
                pack.writer.finish(service, path).await?,
            )
        }
    };
    stage(service, place, &summary);
    Ok(())
}

/// Logs every section of a durable pack whose stream still wants it. LANE-2.
fn stage<E: Env>(service: &LogService<E>, place: PackPlace, summary: &PackSummary) {
    for section in &summary.sections {
        let pack = PackRef::of(place, summary, section);
        let wanted = {
            let feeds = service.feeds.borrow();
            let feed = feeds.get(section.feed);
            feed.and_then(|feed| feed.stream(section.stream))
                .is_some_and(|stream| wants(stream, &pack))
        };
        if wanted {
            service.change(section.feed, section.stream, &Change::PackStaged(pack));
        } else {
            service.lane.littered.set(true);
        }
    }
}

fn wants(stream: &Stream, pack: &PackRef) -> bool {
    !is_discarded(stream) && stream.packed_end() == pack.first.0 && pack.end.0 <= stream.end
}

/// Whether the stream needs no packs any more.
pub(super) fn is_discarded(stream: &Stream) -> bool {
    let seal = stream.seal.as_ref();
    seal.is_some_and(|seal| seal.kind == CommitKind::Discarded)
}
