//! Poller: which sockets of a shard are ready, learnt in one call for all of them.
//!
//! ```text
//!  sockets -> epoll, edge-triggered -> one task of the shard -> wakers of readers and writers
//! ```
//!
//! **Invariants**
//! - A socket is tried until the system says that it would block, and then not before it tells. A read that
//!   stops short does not mean that: work of the ring interrupts it, and an end behind the bytes is not told again.
//! - While a socket is tried nothing else of its shard runs, so what the system tells later is not lost.
//! - The executor is asked to wait for the poller only when a look found nothing: however many sockets
//!   become ready meanwhile, the shard is interrupted once.
//!
//! **Not here**: reading and writing (`net`).

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::pin::pin;
use std::rc::{Rc, Weak};
use std::task::{Context, Poll, Waker};

use glommio::io::PollableFd;
use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use sealog_engine::{Event, ShardSide};

/// Sockets told of by one call.
const EVENTS_MAX: usize = 256;
/// A look, without waiting.
const AT_ONCE: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 0,
};

/// One direction of a socket.
#[derive(Default)]
pub(super) struct Side {
    ready: Cell<bool>,
    waker: RefCell<Option<Waker>>,
}

impl Side {
    /// Tries `work` if it may succeed now; otherwise it is tried when the system tells.
    pub(super) fn poll<T>(
        &self,
        cx: &Context<'_>,
        mut work: impl FnMut() -> io::Result<T>,
    ) -> Poll<io::Result<T>> {
        while self.ready.get() {
            match work() {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.ready.set(false),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                done => return Poll::Ready(done),
            }
        }
        let mut waker = self.waker.borrow_mut();
        match &mut *waker {
            Some(kept) => kept.clone_from(cx.waker()),
            none => *none = Some(cx.waker().clone()),
        }
        Poll::Pending
    }

    fn tell(&self) {
        self.ready.set(true);
        let waker = self.waker.borrow_mut().take();
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

/// What the poller knows of a socket.
#[derive(Default)]
pub(super) struct Sides {
    pub(super) read: Side,
    pub(super) write: Side,
}

/// A place for a socket, used again when it has gone.
#[derive(Default)]
struct Place {
    /// Which of those that had it: what is told of former ones is for nobody.
    turn: u32,
    sides: Option<Rc<Sides>>,
}

#[derive(Default)]
struct Places {
    all: Vec<Place>,
    free: Vec<u32>,
}

impl Places {
    /// A place, and the number that the system is to tell it by.
    fn take(&mut self, sides: &Rc<Sides>) -> u64 {
        let at = self.free.pop().unwrap_or_else(|| {
            self.all.push(Place::default());
            self.all.len() as u32 - 1
        });
        let place = &mut self.all[at as usize];
        place.sides = Some(sides.clone());
        u64::from(place.turn) << 32 | u64::from(at)
    }

    fn find(&self, number: u64) -> Option<Rc<Sides>> {
        let place = self.all.get(number as u32 as usize)?;
        let is_own = u64::from(place.turn) == number >> 32;
        place.sides.clone().filter(|_| is_own)
    }

    fn free(&mut self, number: u64) {
        let at = number as u32;
        if let Some(place) = self.all.get_mut(at as usize) {
            place.turn = place.turn.wrapping_add(1);
            place.sides = None;
            self.free.push(at);
        }
    }
}

/// The sockets of a shard.
pub(crate) struct Poller {
    epoll: OwnedFd,
    places: RefCell<Places>,
    /// Notified when the last socket and the last owner have gone.
    gone: Rc<Event>,
}

impl Poller {
    /// One for the shard that calls. It works until nobody has it any more.
    pub(crate) fn start(side: &ShardSide) -> io::Result<Rc<Self>> {
        let this = Rc::new(Self {
            epoll: epoll::create(CreateFlags::CLOEXEC)?,
            places: RefCell::default(),
            gone: Rc::default(),
        });
        let waiter = PollableFd::new(this.epoll.try_clone()?).map_err(io::Error::from)?;
        side.spawn(
            "sockets",
            work(Rc::downgrade(&this), this.gone.clone(), waiter),
        );
        Ok(this)
    }

    /// Watches `socket`, which does not block.
    pub(super) fn watch(self: &Rc<Self>, socket: impl AsFd) -> io::Result<Watched> {
        let sides = Rc::new(Sides::default());
        let number = self.places.borrow_mut().take(&sides);
        let watched = Watched {
            sides,
            number,
            poller: self.clone(),
        };
        let flags = EventFlags::IN | EventFlags::OUT | EventFlags::RDHUP | EventFlags::ET;
        epoll::add(&self.epoll, socket, EventData::new_u64(number), flags)?;
        // The first look may be soon enough for what comes; what leaves need not wait for it.
        watched.sides.write.ready.set(true);
        Ok(watched)
    }

    /// Tells those that are ready; whether there were any.
    fn look(&self, events: &mut Vec<epoll::Event>) -> io::Result<bool> {
        events.clear();
        epoll::wait(
            &self.epoll,
            rustix::buffer::spare_capacity(events),
            Some(&AT_ONCE),
        )?;
        for event in &*events {
            let Some(sides) = self.places.borrow().find(event.data.u64()) else {
                continue;
            };
            let flags = event.flags;
            let over = EventFlags::ERR | EventFlags::HUP;
            if flags.intersects(EventFlags::IN | EventFlags::RDHUP | over) {
                sides.read.tell();
            }
            if flags.intersects(EventFlags::OUT | over) {
                sides.write.tell();
            }
        }
        Ok(!events.is_empty())
    }
}

impl Drop for Poller {
    fn drop(&mut self) {
        self.gone.notify();
    }
}

/// Looks again and again, for as long as somebody has the poller.
async fn work(poller: Weak<Poller>, gone: Rc<Event>, waiter: PollableFd<OwnedFd>) {
    let mut events = Vec::with_capacity(EVENTS_MAX);
    let mut over = pin!(gone.until(|| (poller.strong_count() == 0).then_some(())));
    loop {
        let found = match poller.upgrade() {
            Some(poller) => poller.look(&mut events),
            None => return,
        };
        match found {
            Ok(true) => futures_lite::future::yield_now().await,
            // Interrupted: looked again.
            Err(_) => futures_lite::future::yield_now().await,
            Ok(false) => {
                let mut readable = pin!(waiter.readable());
                let wait = poll_fn(|cx| match over.as_mut().poll(cx) {
                    Poll::Ready(()) => Poll::Ready(false),
                    Poll::Pending => readable.as_mut().poll(cx).map(|_| true),
                });
                if !wait.await {
                    return;
                }
            }
        }
    }
}

/// A socket's place with the poller.
pub(super) struct Watched {
    sides: Rc<Sides>,
    number: u64,
    poller: Rc<Poller>,
}

impl std::ops::Deref for Watched {
    type Target = Sides;

    fn deref(&self) -> &Sides {
        &self.sides
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        // The system forgets the socket by itself when it is closed.
        self.poller.places.borrow_mut().free(self.number);
    }
}
