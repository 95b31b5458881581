//! Executor: one thread, `!Send` tasks, virtual time, every choice seeded.
//!
//! **Invariants**
//! - Which ready task runs next is a draw of the scheduler's stream; nothing else decides it.
//! - Time stands still for a task while it runs; a poll costs up to 2 us, and when nothing is ready
//!   time jumps to the next event.
//! - A task that is dropped is never polled again; a waker of it does nothing.
//!
//! **Not here**: what events do to disk and bucket.

use super::world::World;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

/// Number of a task, never reused within a run.
pub(super) type TaskId = u64;
/// When an event is due, and its number: unique, ordered.
pub(super) type EventKey = (u64, u64);

/// Whose event it is: decides what the end of the process does to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Class {
    /// Dies with the process.
    Timer,
    /// Lands or not.
    Disk,
    /// As `Disk`, or lands while the next process runs; the number tells the file.
    Write(u64),
    /// Lands now, never, or while the next process runs.
    Bucket,
}

/// What an event does to the world.
type Action = Box<dyn FnOnce(&Rc<World>)>;
type TaskFuture = Pin<Box<dyn Future<Output = ()>>>;

/// Something that happens at a point of virtual time.
pub(super) struct Event {
    pub(super) class: Class,
    pub(super) action: Action,
}

type ReadyQueue = Arc<Mutex<Vec<TaskId>>>;

/// Puts its task into the ready queue once, until the task is polled.
struct TaskWaker {
    id: TaskId,
    queued: AtomicBool,
    ready: ReadyQueue,
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }
    fn wake_by_ref(self: &Arc<Self>) {
        if !self.queued.swap(true, Ordering::Relaxed) {
            let mut ready = self.ready.lock().unwrap_or_else(PoisonError::into_inner);
            ready.push(self.id);
        }
    }
}

struct Task {
    name: &'static str,
    waker: Arc<TaskWaker>,
    /// `None` for the main future, which lives on the stack of `Sim::run`, and while being polled.
    future: Option<TaskFuture>,
}

/// Tasks and events of the running process.
#[derive(Default)]
pub(super) struct Executor {
    tasks: RefCell<BTreeMap<TaskId, Task>>,
    ready: RefCell<ReadyQueue>,
    next_id: Cell<u64>,
    pub(super) events: RefCell<BTreeMap<EventKey, Event>>,
    next_event: Cell<u64>,
}

/// What the executor chose to run.
pub(super) enum Turn {
    /// The main future; the caller polls it with this waker.
    Main(Waker),
    /// A task, polled already: its number and name, how many were ready, whether it ended.
    Polled {
        /// Which.
        id: TaskId,
        /// Its name.
        name: &'static str,
        /// True when it is over.
        ended: bool,
    },
    /// Nothing is ready.
    Idle,
}

impl Executor {
    /// Names of the tasks that have not ended, for the message of a run that hangs.
    pub(super) fn waiting(&self) -> Vec<&'static str> {
        self.tasks.borrow().values().map(|task| task.name).collect()
    }

    /// Adds a task; `None` makes the entry for the main future. It is ready at once.
    pub(super) fn spawn(&self, name: &'static str, future: Option<TaskFuture>) -> TaskId {
        let id = self.next_id.get() + 1;
        self.next_id.set(id);
        let waker = Arc::new(TaskWaker {
            id,
            queued: AtomicBool::new(false),
            ready: self.ready.borrow().clone(),
        });
        let task = Task {
            name,
            waker: waker.clone(),
            future,
        };
        self.tasks.borrow_mut().insert(id, task);
        waker.wake();
        id
    }

    /// Takes a ready task by `pick` (given how many there are) and polls it.
    pub(super) fn turn(&self, main: TaskId, pick: impl FnOnce(usize) -> usize) -> Turn {
        let id = {
            let queue = self.ready.borrow();
            let mut ready = queue.lock().unwrap_or_else(PoisonError::into_inner);
            if ready.is_empty() {
                return Turn::Idle;
            }
            // Woken order is kept for the others, so that a pick moves nothing but itself.
            let at = pick(ready.len());
            ready.remove(at)
        };
        let taken = self.tasks.borrow_mut().get_mut(&id).map(|task| {
            task.waker.queued.store(false, Ordering::Relaxed);
            (task.name, task.waker.clone(), task.future.take())
        });
        let Some((name, waker, future)) = taken else {
            let name = "(gone)";
            return Turn::Polled {
                id,
                name,
                ended: false,
            };
        };
        let waker = Waker::from(waker);
        if id == main {
            return Turn::Main(waker);
        }
        let mut future = future.expect("a ready task is not being polled");
        let ended = future
            .as_mut()
            .poll(&mut Context::from_waker(&waker))
            .is_ready();
        if ended {
            self.tasks.borrow_mut().remove(&id);
        } else if let Some(task) = self.tasks.borrow_mut().get_mut(&id) {
            task.future = Some(future);
        }
        Turn::Polled { id, name, ended }
    }

    /// Forgets a task (the main future's entry, once it is over).
    pub(super) fn remove(&self, id: TaskId) {
        let task = self.tasks.borrow_mut().remove(&id);
        drop(task);
    }

    /// Drops every task, oldest first, and the ready queue with them.
    pub(super) fn drop_tasks(&self) {
        *self.ready.borrow_mut() = ReadyQueue::default();
        let tasks = std::mem::take(&mut *self.tasks.borrow_mut());
        for (_, task) in tasks {
            drop(task);
        }
    }

    /// Names of the tasks that are alive, for a deadlock's message.
    pub(super) fn task_names(&self) -> Vec<&'static str> {
        self.tasks.borrow().values().map(|t| t.name).collect()
    }

    /// Schedules an event.
    pub(super) fn at(&self, due_ns: u64, event: Event) -> EventKey {
        let key = (due_ns, self.next_event.get());
        self.next_event.set(key.1 + 1);
        self.events.borrow_mut().insert(key, event);
        key
    }

    /// Removes an event that has not happened yet.
    pub(super) fn cancel(&self, key: EventKey) -> bool {
        let event = self.events.borrow_mut().remove(&key);
        event.is_some()
    }

    /// Takes the first event if it is due.
    pub(super) fn take_due(&self, now_ns: u64) -> Option<Event> {
        let mut events = self.events.borrow_mut();
        let first = events.first_entry()?;
        (first.key().0 <= now_ns).then(|| first.remove())
    }

    /// When the first event is due.
    pub(super) fn next_due(&self) -> Option<u64> {
        self.events.borrow().keys().next().map(|key| key.0)
    }
}

/// Completes at a point of virtual time.
pub(super) struct Sleep {
    world: Rc<World>,
    due_ns: u64,
    timer: Option<(EventKey, Waker)>,
}

impl Sleep {
    pub(super) fn until(world: Rc<World>, due_ns: u64) -> Self {
        Self {
            world,
            due_ns,
            timer: None,
        }
    }
}

impl Future for Sleep {
    type Output = ();
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if self.world.now_ns() >= self.due_ns {
            return Poll::Ready(());
        }
        if let Some((key, waker)) = &self.timer {
            if waker.will_wake(cx.waker()) {
                return Poll::Pending;
            }
            self.world.executor.cancel(*key);
        }
        let waker = cx.waker().clone();
        let action = Box::new(move |_: &Rc<World>| waker.wake());
        let class = Class::Timer;
        let key = self.world.executor.at(self.due_ns, Event { class, action });
        self.timer = Some((key, cx.waker().clone()));
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        if let Some((key, _)) = self.timer.take() {
            self.world.executor.cancel(key);
        }
    }
}

/// Gives others a turn once.
#[derive(Default)]
pub(super) struct YieldOnce(bool);

impl Future for YieldOnce {
    type Output = ();
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if std::mem::replace(&mut self.0, true) {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}
