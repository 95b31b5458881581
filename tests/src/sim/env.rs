//! SimEnv: the engine's view of the simulated world, for one process.
//!
//! **Invariants**
//! - Cheap to clone; all clones share one world.
//! - Used after its process ended it panics with the seed.
//!
//! **Not here**: disk and bucket effects.

use super::bucket::SimBucket;
use super::disk::SimDisk;
use super::executor::{Sleep, YieldOnce};
use super::trace::Kind;
use super::world::World;
use sealog_engine::env::Env;
use std::rc::Rc;
use std::time::Duration;

/// The environment of one simulated process.
#[derive(Clone)]
pub struct SimEnv {
    world: Rc<World>,
    incarnation: u64,
    disk: SimDisk,
    bucket: SimBucket,
}

impl SimEnv {
    pub(super) fn new(world: Rc<World>) -> Self {
        let incarnation = world.incarnation();
        Self {
            disk: SimDisk::new(world.clone(), incarnation),
            bucket: SimBucket::new(world.clone(), incarnation),
            incarnation,
            world,
        }
    }

    /// Puts a mark of the test's own into the trace.
    pub fn note(&self, what: &'static str, name: &str, a: u64, b: u64) {
        self.world.note(Kind::Note, what, name, a, b);
    }

    /// Number of logs that the process is told to make a data directory with.
    #[must_use]
    pub fn logs(&self) -> u16 {
        self.world.logs.get()
    }

    /// Yields to other tasks unconditionally.
    pub fn yield_now(&self) -> impl Future<Output = ()> + use<> {
        YieldOnce::default()
    }
}

impl Env for SimEnv {
    type Disk = SimDisk;
    type Bucket = SimBucket;

    fn disk(&self) -> &SimDisk {
        &self.disk
    }

    fn bucket(&self) -> &SimBucket {
        &self.bucket
    }

    fn monotonic_ns(&self) -> u64 {
        self.world.check(self.incarnation);
        self.world.now_ns()
    }

    fn realtime_ms(&self) -> u64 {
        self.world.check(self.incarnation);
        self.world.realtime_ms()
    }

    fn sleep(&self, duration: Duration) -> impl Future<Output = ()> {
        self.world.check(self.incarnation);
        let wait_ns = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        let due = self.world.now_ns().saturating_add(wait_ns);
        Sleep::until(self.world.clone(), due)
    }

    fn spawn(&self, name: &'static str, future: impl Future<Output = ()> + 'static) {
        self.world.check(self.incarnation);
        if self.world.is_ending() {
            return;
        }
        let id = self.world.executor.spawn(name, Some(Box::pin(future)));
        self.world.note(Kind::Spawn, "spawn", name, id, 0);
    }

    fn random_u64(&self) -> u64 {
        self.world.check(self.incarnation);
        self.world.streams.random.borrow_mut().next_u64()
    }

    async fn yield_if_needed(&self) {
        self.world.check(self.incarnation);
        let yields = self.world.streams.sched.borrow_mut().below(4) == 0;
        if yields {
            YieldOnce::default().await;
        }
    }

    async fn offload<T: Send + 'static>(&self, job: impl FnOnce() -> T + Send + 'static) -> T {
        self.world.check(self.incarnation);
        let (turns, wait_ns) = {
            let mut rng = self.world.streams.sched.borrow_mut();
            (rng.below(3), rng.below(500_000))
        };
        for _ in 0..turns {
            YieldOnce::default().await;
        }
        if wait_ns.is_multiple_of(2) {
            Sleep::until(self.world.clone(), self.world.now_ns() + wait_ns).await;
        }
        job()
    }
}
