//! Script: a run of the engine over the simulator, spelt out by bytes, against a model.
//!
//! ```text
//!  bytes ─> setup, operations ─> calls, faults, ends of processes ─> book ─> oracle ─> breach
//! ```
//!
//! **Invariants**
//! - The same bytes are the same run: the simulator's seed is among them.
//! - After every end of a process the next one is judged, and once more at the script's end, with all
//!   faults healed, everything published, and after another restart that must change nothing.
//! - Short: `OPS_MAX` operations and 256 KiB of payload, so that a fuzzer does many.
//!
//! **Not here**: draws of clients (`workload`, `scenario`); the bytes make every choice.

mod book;
mod op;
mod work;

pub use op::{Op, SCRIPT_BYTES_MAX, Setup, decode};

use crate::engine_subject::{EngineSubject, tiny};
use crate::oracle::{Observation, judge, observe};
use crate::scenario::{SETTLE, within};
use crate::sim::{Fault, FaultPlan, Sim, SimEnv};
use crate::subject::{Outcome, StartError, Subject};
use book::{Book, name, producer_id};
use op::{Action, Ending, FEEDS, PRODUCERS};
use sealog_engine::env::Env;
use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;
use work::Callers;

/// Longest that an operation is waited for; then it goes on beside the next ones.
const PATIENCE: Duration = Duration::from_secs(20);

/// What a script came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// Operations done.
    pub ops: usize,
    /// Processes that were started, or not quite.
    pub processes: u64,
    /// Batches sent.
    pub sent: usize,
    /// Batches acknowledged.
    pub acked: usize,
    /// Commits at the end.
    pub commits: usize,
    /// Faults that fired.
    pub faults: String,
    /// Digest of the trace.
    pub digest: u64,
}

/// Runs a script.
///
/// # Errors
/// The first breach, in words, with the operations, the faults that fired and the end of the trace.
///
/// # Panics
/// On a bug of the engine that asserts, on deadlock and livelock.
pub fn run(script: &[u8]) -> Result<Report, String> {
    let (setup, ops) = decode(script);
    let mut play = Play::new(&setup);
    let done = play.all(&ops, setup.ends_in_kill);
    done.map_err(|breach| {
        let hex: String = script.iter().map(|byte| format!("{byte:02x}")).collect();
        let faults = play.sim.faults().to_string();
        let table = play.sim.trace().table();
        let ops: String = ops.iter().map(|op| format!("  {op:?}\n")).collect();
        format!("{breach}\nscript {hex}\n{setup:?}\n{ops}faults: {faults}\n{table}{breach}")
    })
}

struct Play {
    sim: Sim,
    /// What always goes wrong.
    plan: FaultPlan,
    book: Rc<RefCell<Book>>,
    /// The running store.
    subject: Option<EngineSubject>,
    processes: u64,
    /// A store was made: from then on there is something to verify.
    made: bool,
}

impl Play {
    fn new(setup: &Setup) -> Self {
        let mut plan = match setup.rough {
            true => FaultPlan::rough(),
            false => FaultPlan::power_loss(),
        };
        if setup.late_writes {
            plan = plan.with(Fault::LateWrite, 1_000_000);
        }
        if setup.whole_blocks {
            plan.sector_bytes = 4096;
        }
        let mut sim = Sim::new(setup.seed, plan.clone());
        sim.set_logs(setup.logs);
        Self {
            sim,
            plan,
            book: Rc::default(),
            subject: None,
            processes: 0,
            made: false,
        }
    }

    fn all(&mut self, ops: &[Op], ends_in_kill: bool) -> Result<Report, String> {
        for (number, op) in ops.iter().enumerate() {
            self.op(op)
                .map_err(|breach| format!("operation {number}: {breach}"))?;
        }
        self.end_process(!ends_in_kill);
        let before = self.look()?;
        self.end_process(ends_in_kill);
        let after = self.look()?;
        if before != after {
            return Err(format!("a restart changed {before:?} to {after:?}"));
        }
        self.judge_bucket(&after)?;
        self.end_process(false);
        self.verify()?;
        let faults = self.sim.faults().to_string();
        let book = self.book.borrow();
        let batches = &book.history.batches;
        Ok(Report {
            ops: ops.len(),
            processes: self.processes,
            sent: batches.len(),
            acked: batches.values().filter(|b| b.acked.is_some()).count(),
            commits: after.iter().map(|seen| seen.commits.len()).sum(),
            faults,
            digest: self.sim.trace().digest(),
        })
    }

    fn op(&mut self, op: &Op) -> Result<(), String> {
        match *op {
            Op::Act {
                feed,
                action,
                waits,
                patience,
            } => self.act(feed, action, waits, patience)?,
            Op::Rest(ms) => {
                let rest = Duration::from_millis(ms);
                self.sim.run(async |env: SimEnv| env.sleep(rest).await);
            }
            Op::Strike(strike) => self.sim.faults().strike(Some(strike)),
            Op::Rate(fault, ppm) => {
                let plan = self.sim.faults().plan.clone();
                self.sim.faults().plan = plan.with(fault, ppm);
            }
            Op::DiskRoom(bytes) => self.sim.faults().plan.disk_capacity_bytes = bytes,
            Op::BucketRoom(bytes) => self.sim.faults().plan.bucket_capacity_bytes = bytes,
            Op::Heal => {
                let mut faults = self.sim.faults();
                faults.plan = self.plan.clone();
                faults.strike(None);
            }
            Op::End(ending) => self.restart(&ending)?,
        }
        let book = self.book.borrow();
        book.history
            .breaches
            .first()
            .map_or(Ok(()), |b| Err(b.clone()))
    }

    fn act(
        &mut self,
        feed: usize,
        action: Action,
        waits: bool,
        patience: Option<u64>,
    ) -> Result<(), String> {
        if !self.start()? {
            return Ok(());
        }
        let Some(callers) = self.callers() else {
            return Ok(());
        };
        self.sim.run(async |env: SimEnv| {
            env.note("begins", action.name(), feed as u64, 0);
            let (told, done) = flume::bounded(1);
            env.spawn("caller", async move {
                callers.act(feed, action, patience).await;
                let _ = told.send(());
            });
            if waits {
                let answered = async {
                    let _ = done.recv_async().await;
                };
                within(&env, PATIENCE, answered).await;
            }
            env.note("goes on", action.name(), feed as u64, 0);
        });
        Ok(())
    }

    fn callers(&self) -> Option<Callers> {
        Some(Callers {
            subject: self.subject.clone()?,
            env: self.sim.env(),
            book: self.book.clone(),
        })
    }

    /// Starts the store unless it runs; false when a fault was in the way.
    fn start(&mut self) -> Result<bool, String> {
        if self.subject.is_some() {
            return Ok(true);
        }
        self.processes += 1;
        match self.sim.run(async |env| start(env).await) {
            Ok(subject) => {
                self.subject = Some(subject);
                self.made = true;
            }
            Err(StartError::Corrupt(place)) => return Err(format!("refused to start: {place}")),
            Err(StartError::Failed(why)) => {
                self.sim.env().note("failed", &why, 0, 0);
                self.end_process(false);
            }
        }
        Ok(self.subject.is_some())
    }

    fn end_process(&mut self, crash: bool) {
        if crash {
            self.sim.crash();
        } else {
            self.sim.kill();
        }
        self.subject = None;
        self.book.borrow_mut().process_ended();
    }

    /// Ends the process as `ending` says, and judges the next one.
    fn restart(&mut self, ending: &Ending) -> Result<(), String> {
        if let Some(subject) = self.subject.clone() {
            let polls = match (ending.polls, ending.closes) {
                (Some(polls), _) => polls,
                (None, true) => u64::MAX,
                (None, false) => 0,
            };
            let closes = ending.closes;
            self.sim.run_for(polls, async |env: SimEnv| {
                if closes {
                    within(&env, PATIENCE, subject.close()).await;
                } else {
                    env.sleep(PATIENCE).await;
                }
            });
        }
        self.end_process(ending.crash);
        if ending.verifies && self.made {
            self.sim.faults().heal();
            self.verify()?;
            self.sim.faults().resume();
        }
        if let Some(polls) = ending.cut_start {
            self.processes += 1;
            let started = self.sim.run_for(polls, async |env| start(env).await.err());
            if let Some(Some(StartError::Corrupt(place))) = started {
                return Err(format!("refused to start: {place}"));
            }
            self.end_process(!ending.crash);
        }
        if ending.judged {
            self.look()?;
            self.sim.faults().resume();
            return Ok(());
        }
        if !self.start()? {
            return Ok(());
        }
        let Some(callers) = self.callers() else {
            return Ok(());
        };
        self.sim.run(async |_| {
            for slot in 0..FEEDS {
                let known = callers.book.borrow().slots[slot].known.clone();
                if let Some(feed) = known {
                    // An error is a fault's; what is read is judged.
                    let _ = callers.read_all(&name(slot), &feed).await;
                }
            }
        });
        Ok(())
    }

    /// Heals, publishes everything, asks for everything and judges it.
    fn look(&mut self) -> Result<Vec<Observation>, String> {
        {
            let mut faults = self.sim.faults();
            faults.heal();
            faults.plan.disk_capacity_bytes = u64::MAX;
            faults.plan.bucket_capacity_bytes = u64::MAX;
        }
        let started = self.start()?;
        let callers = self.callers().filter(|_| started);
        let callers = callers.ok_or("does not start, and nothing is wrong any more")?;
        let book = self.book.clone();
        let seen = self
            .sim
            .run(async |env: SimEnv| ask(&env, &callers).await)?;
        let mut book = book.borrow_mut();
        for observation in &seen {
            judge(&mut book.history, &observation.feed, observation)?;
        }
        Ok(seen)
    }

    /// The bucket holds as many commit objects as there are commits, where no feed was deleted.
    fn judge_bucket(&self, seen: &[Observation]) -> Result<(), String> {
        let inventory = self.sim.bucket_inventory();
        let book = self.book.borrow();
        for (number, slot) in book.slots.iter().enumerate().filter(|(_, s)| !s.deleted) {
            let prefix = EngineSubject::commits_prefix(&name(number));
            let objects = inventory.iter().filter(|(key, _)| key.starts_with(&prefix));
            let objects = objects.filter(|(key, _)| key.ends_with(".commit")).count();
            let shown = seen.iter().find(|o| Some(&o.feed) == slot.known.as_ref());
            let commits = shown.map_or(0, |o| o.commits.len());
            if objects != commits {
                return Err(format!(
                    "feed-{number}: {commits} commits, {objects} objects"
                ));
            }
        }
        Ok(())
    }

    /// What the ended process left is what was written.
    fn verify(&mut self) -> Result<(), String> {
        let verified = self
            .sim
            .run(async |env: SimEnv| EngineSubject::verify_with(&env, &tiny(env.logs())).await);
        self.end_process(false);
        verified.map_err(|damage| format!("verify: {damage}"))
    }
}

async fn start(env: SimEnv) -> Result<EngineSubject, StartError> {
    EngineSubject::start_with(&env, &tiny(env.logs())).await
}

/// Everything that a healthy store shows of the feeds that were ever used.
async fn ask(env: &SimEnv, callers: &Callers) -> Result<Vec<Observation>, String> {
    let mut feeds = Vec::new();
    for slot in 0..FEEDS {
        if !callers.book.borrow().slots[slot].used {
            continue;
        }
        let name = name(slot);
        match callers.subject.create_feed(&name).await {
            Outcome::Acked(id) => {
                let mut book = callers.book.borrow_mut();
                let feed = book.history.made(&name, id);
                let known = book.slots[slot].known.replace(feed.clone());
                if let Some(before) = known.filter(|before| *before != feed) {
                    return Err(format!("{before} was made, now {feed} is there"));
                }
                feeds.push(feed);
            }
            other => return Err(format!("{name}: {other:?}")),
        }
    }
    if !within(env, SETTLE, callers.subject.settle()).await {
        return Err(format!("not all is published after {SETTLE:?}"));
    }
    let producers: Vec<String> = (0..PRODUCERS).map(producer_id).collect();
    let mut seen = Vec::new();
    for feed in &feeds {
        let observed = observe(&callers.subject, feed, &producers).await;
        seen.push(observed.map_err(|why| format!("{feed} is not readable: {why}"))?);
    }
    Ok(seen)
}
