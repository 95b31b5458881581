//! Scenario: rounds of work that end in crashes, then judgement.
//!
//! **Invariants**
//! - Judged after the last round with errors healed, then once more after another restart, which
//!   must change nothing.
//! - A breach panics with the seed.
//!
//! **Not here**: which scenarios there are; `tests/sim.rs` names them.

use crate::history::History;
use crate::oracle::{Observation, judge, observe};
use crate::sim::rng::Rng;
use crate::sim::{FaultPlan, Sim, SimEnv};
use crate::subject::{Outcome, StartError, Subject};
use crate::workload::{Client, Mix, Session};
use sealog_engine::env::Env;
use std::cell::{Cell, RefCell};
use std::future::Future;
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

/// How a process ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// Always a power loss.
    Crash,
    /// Always a kill, but a power loss before the last judgement.
    Kill,
    /// Either, by a coin.
    Either,
}

/// What to run.
#[derive(Debug, Clone)]
pub struct Scenario {
    /// What goes wrong.
    pub plan: FaultPlan,
    /// How often clients do what.
    pub mix: Mix,
    /// How processes end.
    pub end: End,
    /// Number of feeds.
    pub feeds: usize,
    /// Number of clients.
    pub clients: usize,
    /// Processes that work before the judgement.
    pub rounds: u64,
    /// Most polls of a process that is ended at work; a third may finish theirs.
    pub steps_max: u64,
    /// Operations a client does per process, if it isn't ended before.
    pub operations: u64,
    /// Damage that the plan plants may be found at a start; the run then ends well.
    pub corruption_allowed: bool,
    /// After the last round a bit flips in the newest file below this folder, of a store closed in
    /// good order: everything in it is known to be durable, so the damage must be found.
    pub rot_after_close: Option<&'static str>,
    /// Disk and bucket grow before the judgement: what was refused for room must work by then.
    pub heals_room: bool,
}

impl Scenario {
    /// A few clients on two feeds, power losses, appends only.
    #[must_use]
    pub fn appends() -> Self {
        Self {
            plan: FaultPlan::power_loss(),
            mix: Mix::appends(),
            end: End::Either,
            feeds: 2,
            clients: 4,
            rounds: 4,
            steps_max: 400,
            operations: 30,
            corruption_allowed: false,
            rot_after_close: None,
            heals_room: false,
        }
    }

    /// Everything clients can do.
    #[must_use]
    pub fn life_cycle() -> Self {
        Self {
            mix: Mix::life_cycle(),
            ..Self::appends()
        }
    }
}

/// What a run came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// Batches acknowledged.
    pub acked: usize,
    /// Batches whose outcome clients never learnt.
    pub unknown: usize,
    /// Records read at the end.
    pub records: usize,
    /// Commits at the end.
    pub commits: usize,
    /// Whether a start found damage.
    pub corrupt: bool,
    /// Digest of the trace.
    pub digest: u64,
}

struct Run {
    scenario: Scenario,
    sim: Sim,
    rng: Rng,
    history: Rc<RefCell<History>>,
    clients: Vec<Rc<RefCell<Client>>>,
    feeds: Rc<Vec<String>>,
}

/// Runs `scenario` with `seed`.
///
/// # Errors
/// The first breach, in words, with the seed, the faults that fired and the end of the trace.
pub fn run<S: Subject>(seed: u64, scenario: &Scenario) -> Result<Report, String> {
    let sim = Sim::new(seed, scenario.plan.clone());
    let mut run = Run {
        rng: sim.rng("scenario"),
        sim,
        history: Rc::default(),
        clients: (0..scenario.clients)
            .map(|number| Rc::new(RefCell::new(Client::new(seed, number))))
            .collect(),
        feeds: Rc::new((0..scenario.feeds).map(|n| format!("feed-{n}")).collect()),
        scenario: scenario.clone(),
    };
    let result = run.rounds::<S>();
    result.map_err(|breach| {
        let faults = run.sim.faults().to_string();
        let table = run.sim.trace().table();
        format!("seed {seed}: {breach}\nfaults: {faults}\n{table}")
    })
}

/// As [`run`], for every seed of a range; panics at the first breach.
pub fn run_all<S: Subject>(seeds: std::ops::Range<u64>, scenario: &Scenario) -> Vec<Report> {
    let one = |seed| run::<S>(seed, scenario).unwrap_or_else(|breach| panic!("{breach}"));
    seeds.map(one).collect()
}

impl Run {
    fn rounds<S: Subject>(&mut self) -> Result<Report, String> {
        for _ in 0..self.scenario.rounds {
            let cut = self.rng.below(3) > 0;
            let steps = 1 + self.rng.below(self.scenario.steps_max);
            let steps = match (cut, self.scenario.heals_room) {
                (true, _) => steps,
                // A seal waits for as long as the bucket is full.
                (false, true) => 60_000,
                (false, false) => u64::MAX,
            };
            let closes = self.rng.coin();
            if self.work::<S>(steps, closes)? == Worked::Corrupt {
                return Ok(self.report(&[], true));
            }
            self.end();
            self.breach()?;
        }
        self.sim.faults().heal();
        if self.scenario.heals_room {
            let mut faults = self.sim.faults();
            faults.plan.disk_capacity_bytes = u64::MAX;
            faults.plan.bucket_capacity_bytes = u64::MAX;
        }
        if let Some(dir) = self.scenario.rot_after_close {
            self.close_and_rot::<S>(dir)?;
        }
        let Some(before) = self.look::<S>()? else {
            return Ok(self.report(&[], true));
        };
        self.judge(&before)?;
        self.judge_bucket::<S>(&before)?;
        if self.rng.coin() || self.scenario.end == End::Kill {
            self.sim.crash();
        } else {
            self.sim.kill();
        }
        let after = self.look::<S>()?.unwrap_or_default();
        self.judge(&after)?;
        if before != after {
            return Err(format!("a restart changed {before:?} to {after:?}"));
        }
        Ok(self.report(&after, false))
    }

    fn end(&mut self) {
        let crash = match self.scenario.end {
            End::Crash => true,
            End::Kill => false,
            End::Either => self.rng.coin(),
        };
        if crash {
            self.sim.crash();
        } else {
            self.sim.kill();
        }
    }

    fn breach(&self) -> Result<(), String> {
        let history = self.history.borrow();
        history.breaches.first().map_or(Ok(()), |b| Err(b.clone()))
    }

    /// One process: start, work, and close or be ended in the middle of it.
    fn work<S: Subject>(&mut self, steps: u64, closes: bool) -> Result<Worked, String> {
        let operations = self.scenario.operations;
        let (history, feeds, mix) = (self.history.clone(), self.feeds.clone(), self.scenario.mix);
        let clients = &self.clients;
        let worked = self.sim.run_for(steps, async move |env| {
            let subject = match S::start(env.clone()).await {
                Ok(subject) => subject,
                Err(error) => return Err(error),
            };
            for feed in feeds.iter() {
                let _ = subject.create_feed(feed).await;
            }
            let left = Rc::new(Cell::new(clients.len()));
            for client in clients {
                let session = Session {
                    subject: subject.clone(),
                    env: env.clone(),
                    history: history.clone(),
                    feeds: feeds.clone(),
                    mix,
                };
                let (client, left) = (client.clone(), left.clone());
                env.spawn("client", async move {
                    session.work(&client, operations).await;
                    left.set(left.get() - 1);
                });
            }
            while left.get() > 0 {
                env.sleep(Duration::from_millis(5)).await;
            }
            env.note("closing", "", 0, 0);
            if closes {
                subject.close().await;
            }
            Ok(())
        });
        match worked {
            Some(Err(StartError::Corrupt(place))) if self.scenario.corruption_allowed => {
                self.sim.env().note("corrupt", &place, 0, 0);
                Ok(Worked::Corrupt)
            }
            Some(Err(StartError::Corrupt(place))) => Err(format!("refused to start: {place}")),
            Some(Err(StartError::Failed(_)) | Ok(())) | None => Ok(Worked::Fine),
        }
    }

    /// Starts a process and asks for everything; `None` when it found damage and may have.
    fn look<S: Subject>(&mut self) -> Result<Option<Vec<Observation>>, String> {
        let ids: Vec<String> = (0..self.clients.len()).map(Client::producer_id).collect();
        let feeds = self.feeds.clone();
        let looked = self.sim.run(async move |env: SimEnv| {
            let subject = S::start(env.clone()).await?;
            let mut all = Vec::new();
            for feed in feeds.iter() {
                let made = subject.create_feed(feed).await;
                if let Outcome::Unknown(why) = made {
                    return Ok(Err(format!("{feed}: {why}")));
                }
            }
            if !within(&env, SETTLE, subject.settle()).await {
                return Ok(Err(format!("not all is published after {SETTLE:?}")));
            }
            for feed in feeds.iter() {
                match observe(&subject, feed, &ids).await {
                    Ok(observation) => all.push(observation),
                    Err(why) => return Ok(Err(format!("{feed} is not readable: {why}"))),
                }
            }
            Ok(Ok(all))
        });
        match looked {
            Ok(Ok(all)) => Ok(Some(all)),
            Ok(Err(why)) if self.scenario.corruption_allowed => {
                self.sim.env().note("corrupt", &why, 0, 0);
                Ok(None)
            }
            Err(StartError::Corrupt(_)) if self.scenario.corruption_allowed => Ok(None),
            Ok(Err(why)) => Err(why),
            Err(error) => Err(format!("does not start: {error:?}")),
        }
    }

    /// One more process that works and closes in good order, then flips a bit of the file it wrote last.
    fn close_and_rot<S: Subject>(&mut self, dir: &str) -> Result<(), String> {
        self.work::<S>(u64::MAX, true)?;
        self.sim.kill();
        let newest = self.sim.newest_file(dir);
        newest.map(|path| self.sim.rot_file(&path));
        Ok(())
    }

    /// The bucket holds as many commit objects as there are commits.
    fn judge_bucket<S: Subject>(&self, seen: &[Observation]) -> Result<(), String> {
        let inventory = self.sim.bucket_inventory();
        for (feed, observation) in self.feeds.iter().zip(seen) {
            let prefix = S::commits_prefix(feed);
            let objects = inventory.iter().filter(|(key, _)| key.starts_with(&prefix));
            let objects = objects.filter(|(key, _)| key.ends_with(".commit")).count();
            if objects != observation.commits.len() {
                let listed = observation.commits.len();
                return Err(format!(
                    "{feed}: {listed} commits, {objects} objects of them"
                ));
            }
        }
        Ok(())
    }

    fn judge(&self, seen: &[Observation]) -> Result<(), String> {
        let mut history = self.history.borrow_mut();
        for (feed, observation) in self.feeds.iter().zip(seen) {
            judge(&mut history, feed, observation)?;
        }
        Ok(())
    }

    fn report(&mut self, seen: &[Observation], corrupt: bool) -> Report {
        let history = self.history.borrow();
        let batches = || history.batches.values();
        let report = Report {
            acked: batches().filter(|b| b.acked.is_some()).count(),
            unknown: batches()
                .filter(|b| b.possible && b.acked.is_none())
                .count(),
            records: seen.iter().map(|o| o.records.len()).sum(),
            commits: seen.iter().map(|o| o.commits.len()).sum(),
            corrupt,
            digest: self.sim.trace().digest(),
        };
        println!("seed {}: {report:?}", self.sim.seed());
        report
    }
}

/// How long publication may take once errors are healed.
const SETTLE: Duration = Duration::from_secs(600);

/// Whether `work` ends within `longest` of virtual time.
async fn within(env: &SimEnv, longest: Duration, work: impl Future<Output = ()>) -> bool {
    let mut work = pin!(work);
    let mut late = pin!(env.sleep(longest));
    std::future::poll_fn(|cx| {
        if work.as_mut().poll(cx).is_ready() {
            return Poll::Ready(true);
        }
        late.as_mut().poll(cx).map(|()| false)
    })
    .await
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Worked {
    Fine,
    Corrupt,
}

/// How many of `seeds` breach, or hang, or panic: the measure of a planted bug.
pub fn caught<S: Subject>(seeds: std::ops::Range<u64>, scenario: &Scenario) -> usize {
    let breaches = |seed: &u64| {
        let run = std::panic::AssertUnwindSafe(|| run::<S>(*seed, scenario));
        !matches!(std::panic::catch_unwind(run), Ok(Ok(_)))
    };
    seeds.filter(breaches).count()
}
