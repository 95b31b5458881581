//! Fan: one follower of a stream for all its readers of a shard.
//!
//! ```text
//!  log -> follower reads, and tells once -> seats -> readers' connections
//! ```
//!
//! **Invariants**
//! - A follower is there as long as a seat with it is taken, and no longer.
//! - A seat keeps at most [`SEAT_BYTES`] and what was told last; who leaves more is let go of all and reads
//!   for itself again.
//! - Everybody hears something every [`QUIET_MAX`], and a reader whose time is over then.
//!
//! **Not here**: who has a seat (`sse`).

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;
use std::rc::Rc;
use std::time::Duration;

use futures_lite::future::{or, yield_now};
use sealog_engine::Event;
use sealog_engine::ids::FeedId;

use super::sse::Source;
use super::tell::{Teller, Told};

/// Readers with nothing to read hear something this often.
const QUIET_MAX: Duration = Duration::from_secs(15);
/// What a reader may leave in its seat.
const SEAT_BYTES: usize = 64 << 10;
/// Readers woken at once: others of the shard come between.
const WAKES_MAX: usize = 64;

/// Which stream: one of the same name that is made later is another.
type Stream = (Rc<str>, FeedId);

/// The followers of a shard.
#[derive(Default)]
pub(crate) struct Fans(RefCell<BTreeMap<Stream, Rc<Fan>>>);

/// A reader's: when its time is over, and a number.
type Place = (u64, u64);

/// One stream's follower, and who listens to it.
struct Fan {
    seats: RefCell<BTreeMap<Place, Rc<Queue>>>,
    /// Numbers given to seats.
    numbers: Cell<u64>,
    /// Where what was told ends.
    told: Cell<u64>,
    /// Nothing will be told any more.
    over: Cell<bool>,
    /// Notified when the last seat is given up.
    left: Event,
}

/// What one reader has not taken yet.
#[derive(Default)]
struct Queue {
    told: RefCell<VecDeque<Rc<Told>>>,
    changed: Event,
}

impl Queue {
    fn put(&self, told: &Rc<Told>) {
        let mut queue = self.told.borrow_mut();
        let kept: usize = queue.iter().map(|told| told.bytes()).sum();
        match kept > SEAT_BYTES {
            true => queue.clear(),
            false => queue.push_back(told.clone()),
        }
        drop(queue);
        self.changed.notify();
    }
}

/// A reader's place with a follower.
pub(super) struct Seat {
    source: Source,
    fan: Rc<Fan>,
    place: Place,
    queue: Rc<Queue>,
}

impl Seat {
    /// A seat for a reader that has been told what `teller` told, until `ends_ns`.
    pub(super) fn take(source: &Source, teller: &Teller, ends_ns: u64) -> Self {
        let fans = &source.service.fans;
        let key = (source.name.clone(), source.id);
        let found = fans.0.borrow().get(&key).cloned();
        let fan = found
            .clone()
            .unwrap_or_else(|| Rc::new(Fan::at(teller.told)));
        let place = (ends_ns, fan.numbers.replace(fan.numbers.get() + 1));
        let queue = Rc::<Queue>::default();
        fan.seats.borrow_mut().insert(place, queue.clone());
        // Only now: a task may run at once, and this one ends when nobody listens.
        if found.is_none() {
            fans.0.borrow_mut().insert(key, fan.clone());
            let follow = Box::pin(fan.clone().follow(source.clone(), teller.again()));
            source.service.side.spawn("http events", follow);
        }
        Self {
            source: source.clone(),
            fan,
            place,
            queue,
        }
    }

    /// Whether others were told more than what lies before `read_to`, and it is not to be had here.
    pub(super) fn is_behind(&self, read_to: u64) -> bool {
        self.queue.told.borrow().is_empty() && self.fan.told.get() > read_to
    }

    /// What is told next; `None`: nothing any more.
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub(super) async fn next(&self) -> Option<Rc<Told>> {
        let next = || match self.queue.told.borrow_mut().pop_front() {
            Some(told) => Some(Some(told)),
            None => self.fan.over.get().then_some(None),
        };
        self.queue.changed.until(next).await
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut seats = self.fan.seats.borrow_mut();
        seats.remove(&self.place);
        if seats.is_empty() {
            self.fan.forget(&self.source);
            self.fan.left.notify();
        }
    }
}

impl Fan {
    fn at(told: u64) -> Self {
        Self {
            seats: RefCell::default(),
            numbers: Cell::new(0),
            told: Cell::new(told),
            over: Cell::new(false),
            left: Event::new(),
        }
    }

    /// Whoever comes from here on gets another.
    fn forget(&self, source: &Source) {
        let key = (source.name.clone(), source.id);
        let mut fans = source.service.fans.0.borrow_mut();
        if fans.get(&key).is_some_and(|fan| std::ptr::eq(&**fan, self)) {
            fans.remove(&key);
        }
    }

    /// Tells what comes, until nothing does or nobody listens.
    async fn follow(self: Rc<Self>, source: Source, teller: Teller) {
        let left = self
            .left
            .until(|| self.seats.borrow().is_empty().then_some(()));
        or(self.tell_all(&source, teller), left).await;
        self.forget(&source);
        self.over.set(true);
        for queue in self.seats.borrow().values() {
            queue.changed.notify();
        }
    }

    async fn tell_all(&self, source: &Source, mut teller: Teller) {
        let side = &source.service.side;
        let quiet_ns = u64::try_from(QUIET_MAX.as_nanos()).unwrap_or(u64::MAX);
        let mut spoke_ns = side.monotonic_ns();
        let mut ended_ns = spoke_ns;
        loop {
            let due_ns = spoke_ns.saturating_add(quiet_ns);
            let due_ns = due_ns.min(self.first_end(ended_ns));
            let wait = due_ns.saturating_sub(side.monotonic_ns());
            let chunk = source.read(teller.next, Duration::from_nanos(wait));
            let Some(chunk) = chunk.await else { return };
            let is_empty = chunk.frames.is_empty();
            let Some(told) = teller.tell(chunk) else {
                return;
            };
            let now_ns = side.monotonic_ns();
            ended_ns = now_ns;
            let is_new = told.has_data() || told.ended;
            if is_new || (is_empty && now_ns >= spoke_ns.saturating_add(quiet_ns)) {
                spoke_ns = now_ns;
                self.told.set(told.next);
                let ended = told.ended;
                self.put(Rc::new(told), u64::MAX).await;
                if ended {
                    return;
                }
            } else if is_empty {
                self.put(Rc::new(told), now_ns).await;
            }
        }
    }

    /// When the first of the readers is to end that does so later than `after_ns`.
    fn first_end(&self, after_ns: u64) -> u64 {
        let seats = self.seats.borrow();
        let later = (Bound::Excluded((after_ns, u64::MAX)), Bound::Unbounded);
        let first = seats.range(later).next();
        first.map_or(u64::MAX, |((ends_ns, _), _)| *ends_ns)
    }

    /// Tells those whose time ends by `ends_ns`.
    async fn put(&self, told: Rc<Told>, ends_ns: u64) {
        let mut from = Bound::Unbounded;
        loop {
            let some: Vec<_> = {
                let seats = self.seats.borrow();
                let some = seats.range((from, Bound::Included((ends_ns, u64::MAX))));
                let some = some.take(WAKES_MAX);
                some.map(|(place, queue)| (*place, queue.clone())).collect()
            };
            let Some((last, _)) = some.last() else { return };
            from = Bound::Excluded(*last);
            for (_, queue) in &some {
                queue.put(&told);
            }
            yield_now().await;
        }
    }
}
