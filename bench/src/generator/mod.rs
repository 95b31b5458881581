//! Generator: drives a target with many clients, each keeping its appends in flight, and measures.
//!
//! **Invariants**
//! - Payloads are made before the clock starts; so are connections.
//! - What is counted was acknowledged inside the measured time.
//! - Open loop: an append's latency runs from its intended arrival, and every arrival of the measured
//!   time is in the histogram, also those that were sent or answered later (no coordinated omission).
//!   Closed loop: from the moment it was sent; a stall holds the next sends back, which isn't corrected.
//!
//! **Not here**: what a target speaks (`targets`), which targets are set beside each other (`compare`).

mod caller;
mod outcome;
mod payload;
mod spec;

use std::time::{Duration, Instant};

pub use caller::{Caller, Phases};
pub use outcome::{Outcome, Tally};
pub use payload::PayloadPool;
pub use spec::{CLIENTS_MAX, LoadSpec, Pace};

use crate::Result;
use crate::process::cpu_time;

/// Time between connecting and the first append, so that all threads are there.
const LEAD: Duration = Duration::from_millis(20);
/// Time between looks at whether a run has ended early.
const LOOK: Duration = Duration::from_millis(50);

/// One run to make.
#[derive(Debug, Clone, Copy)]
pub struct Plan {
    /// Clients, windows, batches, records.
    pub spec: LoadSpec,
    /// Closed or open loop.
    pub pace: Pace,
    /// Not measured.
    pub warmup: Duration,
    /// Measured.
    pub measure: Duration,
    /// The run ends when so many appends are answered, warm-up included, if that is sooner.
    pub appends_max: Option<u64>,
    /// Threads that share the clients.
    pub threads: usize,
}

impl Plan {
    /// A closed loop on one thread, `seconds` long after a warm-up of a fifth of it.
    pub fn closed(spec: LoadSpec, seconds: f64) -> Self {
        let measure = Duration::from_secs_f64(seconds);
        Self {
            spec,
            pace: Pace::Closed,
            warmup: (measure / 5).min(Duration::from_secs(2)),
            measure,
            appends_max: None,
            threads: 1,
        }
    }
}

/// What is appended to: an engine in this process, a server, a yardstick.
pub trait Target {
    /// Drops what former runs left and makes ready for `plan`; not timed.
    ///
    /// # Errors
    /// The target can't be reached, or refuses.
    fn empty(&self, plan: &Plan) -> Result<()>;
    /// Makes ready what `clients` need; not timed.
    ///
    /// # Errors
    /// The target can't be reached, or can't do what the plan asks for.
    fn connect<'a>(
        &'a self,
        plan: &Plan,
        pool: &'a PayloadPool,
        clients: std::ops::Range<usize>,
    ) -> Result<Box<dyn Share + Send + 'a>>;
    /// CPU seconds that a server of its own has used so far, `None` if it has none or it isn't known.
    fn server_cpu(&self) -> Option<Duration> {
        None
    }
}

/// The connections of some clients, driven by one thread.
pub trait Share {
    /// Lets every caller have its turns until all are done; callers are those of the share's clients, in order.
    ///
    /// # Errors
    /// The target refused an append or went away.
    fn run(&mut self, callers: &mut [Caller]) -> Result<()>;
}

/// Runs the plan on a target that was made ready for it.
///
/// # Errors
/// The target's own; a run is whole or an error.
pub fn drive(target: &dyn Target, plan: &Plan, pool: &PayloadPool) -> Result<Outcome> {
    let clients = plan.spec.clients;
    let threads = plan.threads.clamp(1, clients);
    let bound = |n: usize| n * clients / threads;
    let mut shares = Vec::new();
    for n in 0..threads {
        let range = bound(n)..bound(n + 1);
        shares.push((range.clone(), target.connect(plan, pool, range)?));
    }
    let phases = Phases::starting_at(Instant::now() + LEAD, plan);
    let mut runs = Vec::new();
    for (range, share) in shares {
        let callers: Vec<Caller> = range.map(|n| Caller::new(n, plan, phases)).collect();
        runs.push((share, callers));
    }
    std::thread::scope(|scope| {
        let run = |(mut share, mut callers): (Box<dyn Share + Send>, Vec<Caller>)| {
            scope.spawn(move || share.run(&mut callers).map(|()| callers))
        };
        let workers: Vec<_> = runs.into_iter().map(run).collect();
        let ended = || workers.iter().all(|worker| worker.is_finished());
        sleep_until(phases.begin, &ended);
        let cpu = (cpu_time(), target.server_cpu());
        sleep_until(phases.end, &ended);
        let own = cpu_time().saturating_sub(cpu.0);
        let server = target
            .server_cpu()
            .zip(cpu.1)
            .map(|(after, before)| after.saturating_sub(before));
        let mut outcome = Outcome::new(plan, own, server);
        for worker in workers {
            let callers = worker.join().map_err(|_| "a client's thread panicked")??;
            callers
                .into_iter()
                .for_each(|caller| outcome.add(caller.tally));
        }
        outcome.end_early(phases.begin);
        let unanswered = outcome.tally.unanswered;
        match plan.pace {
            // Who waits for answers cannot be ahead of them: the target stopped answering.
            Pace::Closed if unanswered > 0 => {
                Err(format!("{unanswered} appends were not answered: the run says nothing").into())
            }
            _ => Ok(outcome),
        }
    })
}

/// The shorter of two waits, each of which may be none.
pub fn sooner(a: Option<Duration>, b: Option<Duration>) -> Option<Duration> {
    a.into_iter().chain(b).min()
}

fn sleep_until(at: Instant, ended: &dyn Fn() -> bool) {
    while Instant::now() < at && !ended() {
        let left = at.saturating_duration_since(Instant::now());
        std::thread::sleep(left.min(LOOK));
    }
}
