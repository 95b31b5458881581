//! Sim: a seeded world to run the engine in, process after process, on one disk and one bucket.
//!
//! **Invariants**
//! - A seed and a plan determine every event; the seed is printed first and in every panic.
//! - Nothing ready and nothing due while the main future waits is a deadlock, and panics.
//! - `crash` and `kill` drop every task of the process before the next one starts.
//!
//! **Not here**: HTTP, TLS, the kernel and real io_uring ordering; the crash and conformance suites
//! have those.

mod bucket;
mod clock;
mod device;
mod disk;
mod env;
mod executor;
pub mod faults;
pub mod rng;
#[cfg(test)]
mod tests;
pub mod trace;
mod world;

pub use bucket::{SimBucket, SimUpload};
pub use disk::{SimDisk, SimFile};
pub use env::SimEnv;
pub use faults::{Fault, FaultPlan, Strike};
pub use rng::Rng;

use executor::{TaskId, Turn};
use faults::Faults;

use std::cell::{Ref, RefMut};
use std::future::Future;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll};
use trace::{Kind, Trace};
use world::World;

/// Polls one call of [`Sim::run`] may take before it counts as a livelock.
const STEPS_MAX: u64 = 1_000_000;

/// One simulation.
pub struct Sim {
    world: Rc<World>,
    steps_max: u64,
}

impl Sim {
    /// A world of `seed` in which goes wrong what `plan` says.
    #[must_use]
    pub fn new(seed: u64, plan: FaultPlan) -> Self {
        println!("seed {seed}");
        Self {
            world: World::new(seed, plan),
            steps_max: STEPS_MAX,
        }
    }

    /// The seed, for messages.
    #[must_use]
    pub fn seed(&self) -> u64 {
        self.world.seed
    }

    /// A stream of chance for the test itself.
    #[must_use]
    pub fn rng(&self, salt: &str) -> Rng {
        Rng::derive(self.world.seed, salt)
    }

    /// Tells processes to make their data directory with so many logs.
    pub fn set_logs(&mut self, logs: u16) {
        self.world.logs.set(logs);
    }

    /// Limits the polls of one [`Sim::run`].
    pub fn set_steps_max(&mut self, steps: u64) {
        self.steps_max = steps;
    }

    /// The environment of the running process.
    #[must_use]
    pub fn env(&self) -> SimEnv {
        SimEnv::new(self.world.clone())
    }

    /// Runs `main` to its end. Tasks it spawned stay, and go on at the next `run`.
    ///
    /// # Panics
    /// On deadlock and livelock, with the seed.
    pub fn run<T>(&mut self, main: impl AsyncFnOnce(SimEnv) -> T) -> T {
        self.run_for(u64::MAX, main)
            .expect("without a budget main runs to its end")
    }

    /// Runs `main` for at most `steps` polls; `None` when it was stopped, and dropped, by then. The
    /// caller goes on with [`Sim::crash`] or [`Sim::kill`].
    ///
    /// # Panics
    /// On deadlock and livelock, with the seed.
    pub fn run_for<T>(&mut self, steps: u64, main: impl AsyncFnOnce(SimEnv) -> T) -> Option<T> {
        let mut future = pin!(main(self.env()));
        let id = self.world.executor.spawn("main", None);
        let mut taken = 0;
        let out = loop {
            if taken >= steps {
                break None;
            }
            assert!(
                taken < self.steps_max,
                "seed {}: livelock, {taken} polls and main still waits, with {:?}",
                self.seed(),
                self.world.executor.waiting()
            );
            taken += 1;
            if let Poll::Ready(out) = self.step(id, future.as_mut()) {
                break Some(out);
            }
        };
        self.world.executor.remove(id);
        out
    }

    /// Polls one ready task, or moves time to the next event.
    fn step<T>(&self, main: TaskId, future: Pin<&mut impl Future<Output = T>>) -> Poll<T> {
        let world = &self.world;
        if world.fires(Fault::Pause, &world.streams.sched) {
            let mut rng = world.streams.sched.borrow_mut();
            let pause_ns = rng.between(100_000_000, 30_000_000_000);
            drop(rng);
            world.advance_to(world.now_ns() + pause_ns);
        }
        let turn = world.executor.turn(main, |ready| {
            let at = world.streams.sched.borrow_mut().index(ready);
            world.note(Kind::Poll, "pick", "", at as u64, ready as u64);
            at
        });
        let mut out = Poll::Pending;
        match turn {
            Turn::Main(waker) => out = future.poll(&mut Context::from_waker(&waker)),
            Turn::Polled { id, name, ended } => {
                world.note(Kind::Poll, "polled", name, id, u64::from(ended));
            }
            Turn::Idle => {
                let due = world.executor.next_due().unwrap_or_else(|| {
                    panic!(
                        "seed {}: deadlock, nothing ready and nothing due; tasks {:?}",
                        self.seed(),
                        world.executor.task_names()
                    )
                });
                world.note(Kind::Time, "skip", "", due - world.now_ns(), 0);
                world.advance_to(due);
                return Poll::Pending;
            }
        }
        let cost_ns = world.streams.sched.borrow_mut().below(2_000);
        world.advance_to(world.now_ns() + cost_ns);
        out
    }

    /// Power loss: the process ends, and of what was not synced a seeded part is gone.
    pub fn crash(&mut self) -> SimEnv {
        self.world.end(Fault::Crash);
        self.env()
    }

    /// The process dies; what it wrote stays readable, and unsynced.
    pub fn kill(&mut self) -> SimEnv {
        self.world.end(Fault::Kill);
        self.env()
    }

    /// Rates and counters of faults.
    pub fn faults(&mut self) -> RefMut<'_, Faults> {
        self.world.faults.borrow_mut()
    }

    /// How often `fault` fired so far.
    #[must_use]
    pub fn fired(&self, fault: Fault) -> u64 {
        self.world.faults.borrow().fired(fault)
    }

    /// What has happened so far.
    #[must_use]
    pub fn trace(&self) -> Ref<'_, Trace> {
        self.world.trace.borrow()
    }

    /// Keeps the trace's bytes from now on.
    pub fn keep_trace(&mut self) {
        self.world.trace.borrow_mut().keep_bytes();
    }

    /// Virtual time.
    #[must_use]
    pub fn now_ns(&self) -> u64 {
        self.world.now_ns()
    }

    /// Keys and lengths of all objects, without faults or delay: for oracles.
    #[must_use]
    pub fn bucket_inventory(&self) -> Vec<(String, u64)> {
        self.world.bucket.borrow().inventory()
    }

    /// Uploads that were dropped before they finished, so far.
    #[must_use]
    pub fn abandoned_uploads(&self) -> u64 {
        self.world.bucket.borrow().abandoned_uploads()
    }

    /// Flips one bit of the object `key`; false when it has none.
    pub fn rot_object(&mut self, key: &str) -> bool {
        let mut rng = self.world.streams.bucket.borrow_mut();
        self.world.bucket.borrow_mut().rot(key, &mut rng)
    }

    /// Cuts an object short; false when it is empty already.
    pub fn cut_object(&mut self, key: &str) -> bool {
        let mut rng = self.world.streams.bucket.borrow_mut();
        self.world.bucket.borrow_mut().cut(key, &mut rng)
    }

    /// Path of the file below `dir` that was written last.
    #[must_use]
    pub fn newest_file(&self, dir: &str) -> Option<String> {
        self.world.disk.borrow().newest(dir.as_ref())
    }

    /// Flips one bit of the file at `path`, at rest; false when it has none.
    pub fn rot_file(&mut self, path: &str) -> bool {
        let mut rng = self.world.streams.disk.borrow_mut();
        self.world.disk.borrow_mut().rot(path.as_ref(), &mut rng)
    }
}

impl Drop for Sim {
    fn drop(&mut self) {
        if std::thread::panicking() {
            // Destructors of half-polled tasks may panic again: leak them.
            let seed = self.world.seed;
            match (
                self.world.trace.try_borrow(),
                self.world.faults.try_borrow(),
            ) {
                (Ok(trace), Ok(faults)) => {
                    eprintln!("seed {seed} failed; faults: {faults}\n{}", trace.table());
                }
                _ => eprintln!("seed {seed} failed"),
            }
            return;
        }
        println!(
            "seed {}: {} events, faults: {}",
            self.world.seed,
            self.world.trace.borrow().len(),
            self.world.faults.borrow()
        );
        self.world.dismantle();
    }
}
