//! Scenario: rounds of work that end in crashes, then judgement.
//!
//! **Invariants**
//! - Judged after the last round with errors healed, then once more after another restart, which
//!   must change nothing.
//! - A breach panics with the seed.
//!
//! **Not here**: which scenarios there are; `tests/sim.rs` names them.

mod report;

pub use report::{Report, totals};

use crate::history::History;
use crate::oracle::{Observation, judge, judge_damaged, observe};
use crate::sim::rng::Rng;
use crate::sim::{Fault, FaultPlan, Sim, SimEnv};
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
    /// Number of logs in the data directory.
    pub logs: u16,
    /// At the end an object of the bucket is damaged or cut short: what is read from then on is right
    /// or an error that names the object.
    pub rots_bucket: bool,
    /// Processes that work before the judgement.
    pub rounds: u64,
    /// More of them follow until so many batches were sent and one process ended in a power loss.
    pub batches_min: usize,
    /// Most polls of a process that is ended at work; a third may finish theirs.
    pub steps_max: u64,
    /// Operations a client does per process, if it isn't ended before.
    pub operations: u64,
    /// Damage that the plan plants may be found at a start; the run then ends well.
    pub corruption_allowed: bool,
    /// The device changes what it was given: data may be missing, but never be wrong.
    pub damaged: bool,
    /// Three more processes work when all others did, on a device that begins to change what it is
    /// given as this plan says.
    pub damaged_last: Option<FaultPlan>,
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
            clients: 3,
            logs: 1,
            rots_bucket: false,
            rounds: 4,
            batches_min: 0,
            steps_max: 250,
            operations: 20,
            corruption_allowed: false,
            damaged: false,
            damaged_last: None,
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

/// Processes of a run that has to go on, at most: it would hang otherwise if nothing can be sent.
const ROUNDS_MAX: u64 = 100;

struct Run {
    scenario: Scenario,
    sim: Sim,
    rng: Rng,
    history: Rc<RefCell<History>>,
    clients: Vec<Rc<RefCell<Client>>>,
    feeds: Rc<Vec<String>>,
    /// Feeds that answered with an error after the bucket was damaged.
    rotten: usize,
}

/// Runs `scenario` with `seed`.
///
/// # Errors
/// The first breach, in words, with the seed, the faults that fired and the end of the trace.
pub fn run<S: Subject>(seed: u64, scenario: &Scenario) -> Result<Report, String> {
    let mut sim = Sim::new(seed, scenario.plan.clone());
    sim.set_logs(scenario.logs);
    let mut run = Run {
        rng: sim.rng("scenario"),
        sim,
        history: Rc::default(),
        clients: (0..scenario.clients)
            .map(|number| Rc::new(RefCell::new(Client::new(seed, number))))
            .collect(),
        feeds: Rc::new((0..scenario.feeds).map(|n| format!("feed-{n}")).collect()),
        scenario: scenario.clone(),
        rotten: 0,
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
        let mut round = 0;
        while round < self.scenario.rounds || (self.falls_short() && round < ROUNDS_MAX) {
            round += 1;
            if self.round::<S>()? == Worked::Corrupt {
                return Ok(self.report(&[], true));
            }
        }
        if let Some(plan) = self.scenario.damaged_last.take() {
            self.begin_damage(plan);
            for _ in 0..3 {
                if self.round::<S>()? == Worked::Corrupt {
                    return Ok(self.report(&[], true));
                }
            }
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
        if self.scenario.damaged {
            let history = self.history.borrow();
            for seen in &before {
                judge_damaged(&history, &seen.feed, &seen.records)?;
            }
            drop(history);
            return Ok(self.report(&before, false));
        }
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
        self.sim.kill();
        if let Err(damage) = self.verify::<S>() {
            if self.scenario.corruption_allowed {
                return Ok(self.report(&after, true));
            }
            return Err(format!("verify: {damage}"));
        }
        if self.scenario.rots_bucket {
            self.rot_bucket::<S>(&after)?;
        }
        Ok(self.report(&after, false))
    }

    /// One process, from its start to its end.
    fn round<S: Subject>(&mut self) -> Result<Worked, String> {
        let cut = self.rng.below(3) > 0;
        let steps = 1 + self.rng.below(self.scenario.steps_max);
        let steps = match (cut, self.scenario.heals_room) {
            (true, _) => steps,
            // A seal waits for as long as the bucket is full.
            (false, true) => 60_000,
            (false, false) => u64::MAX,
        };
        let closes = self.rng.coin();
        let worked = self.work::<S>(steps, closes)?;
        if worked == Worked::Fine {
            self.end();
            self.breach()?;
        }
        Ok(worked)
    }

    /// From now on data may be missing, but never be wrong.
    fn begin_damage(&mut self, plan: FaultPlan) {
        self.sim.faults().plan = plan;
        self.scenario.damaged = true;
        self.scenario.corruption_allowed = true;
        self.scenario.mix = Mix::damaged();
    }

    /// Whether the run did less than its scenario asks for.
    fn falls_short(&self) -> bool {
        let least = self.scenario.batches_min;
        let crashed = self.sim.fired(Fault::Crash) > 0;
        least > 0 && (self.history.borrow().batches.len() < least || !crashed)
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
        let (operations, damaged) = (self.scenario.operations, self.scenario.damaged);
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
                    damaged,
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
        let (feeds, history) = (self.feeds.clone(), self.history.clone());
        let own = if self.scenario.mix.brief > 0 {
            self.clients.len()
        } else {
            0
        };
        let own: Vec<String> = (0..own).map(Client::brief_name).collect();
        let looked = self.sim.run(async move |env: SimEnv| {
            let subject = S::start(env.clone()).await?;
            let mut all = Vec::new();
            let mut all_feeds = feeds.to_vec();
            for feed in feeds.iter() {
                let made = subject.create_feed(feed).await;
                if let Outcome::Unknown(why) = made {
                    return Ok(Err(format!("{feed}: {why}")));
                }
            }
            for feed in &own {
                match subject.create_feed(feed).await {
                    Outcome::Acked(id) => all_feeds.push(history.borrow_mut().made(feed, id)),
                    other => return Ok(Err(format!("{feed}: {other:?}"))),
                }
            }
            if !within(&env, SETTLE, subject.settle()).await {
                return Ok(Err(format!("not all is published after {SETTLE:?}")));
            }
            for feed in &all_feeds {
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
        for observation in seen {
            judge(&mut history, &observation.feed, observation)?;
        }
        Ok(())
    }

    /// Whether all that the ended process kept is what was written.
    fn verify<S: Subject>(&mut self) -> Result<(), String> {
        let verified = self.sim.run(S::verify);
        self.sim.kill();
        verified
    }

    /// Damages one object; nothing but errors that name it may come of it.
    fn rot_bucket<S: Subject>(&mut self, before: &[Observation]) -> Result<(), String> {
        let mut objects = self.sim.bucket_inventory();
        objects.retain(|(_, len)| *len > 0);
        if objects.is_empty() {
            return Ok(());
        }
        let (key, _) = objects.swap_remove(self.rng.index(objects.len()));
        let cut = self.rng.coin();
        let done = if cut {
            self.sim.cut_object(&key)
        } else {
            self.sim.rot_object(&key)
        };
        let how = if cut { "cut" } else { "flipped" };
        self.sim.env().note(how, &key, 0, u64::from(done));
        match self.verify::<S>() {
            Err(damage) if damage.contains(&key) => {}
            Ok(()) if key.ends_with("/feed.json") => {}
            other => return Err(format!("{how} {key}, verify says {other:?}")),
        }
        let ids: Vec<String> = (0..self.clients.len()).map(Client::producer_id).collect();
        let looked = self.sim.run(async |env: SimEnv| {
            let subject = S::start(env).await?;
            let mut all = Vec::new();
            for observation in before {
                all.push(observe(&subject, &observation.feed, &ids).await);
            }
            Ok::<_, StartError>(all)
        });
        let looked = looked.map_err(|e| format!("{how} {key}: does not start: {e:?}"))?;
        for (before, now) in before.iter().zip(looked) {
            match now {
                Ok(now) if now == *before => {}
                Err(error) if error.contains(&key) => self.rotten += 1,
                other => {
                    let feed = &before.feed;
                    return Err(format!("{how} {key}: {feed} shows {other:?}"));
                }
            }
        }
        Ok(())
    }

    fn report(&mut self, seen: &[Observation], corrupt: bool) -> Report {
        let history = self.history.borrow();
        let batches = || history.batches.values();
        let report = Report {
            sent: history.batches.len(),
            acked: batches().filter(|b| b.acked.is_some()).count(),
            unknown: batches()
                .filter(|b| b.possible && b.acked.is_none())
                .count(),
            records: seen.iter().map(|o| o.records.len()).sum(),
            commits: seen.iter().map(|o| o.commits.len()).sum(),
            corrupt,
            rotten: self.rotten,
            fired: Fault::ALL.iter().map(|f| self.sim.fired(*f)).collect(),
            digest: self.sim.trace().digest(),
        };
        println!(
            "seed {}: {} sent, {} acknowledged, {} unknown, {} records, {} commits, corrupt {}, trace {:016x}",
            self.sim.seed(),
            report.sent,
            report.acked,
            report.unknown,
            report.records,
            report.commits,
            report.corrupt,
            report.digest
        );
        report
    }
}

/// How long publication may take once errors are healed.
pub(crate) const SETTLE: Duration = Duration::from_secs(600);

/// Whether `work` ends within `longest` of virtual time.
pub(crate) async fn within(
    env: &SimEnv,
    longest: Duration,
    work: impl Future<Output = ()>,
) -> bool {
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

/// What came of a planted bug: the seed and the words of its first finding, and of the first that the
/// oracle made rather than a panic or a hang.
#[derive(Debug, Default)]
pub struct Found {
    /// Whatever came first.
    pub first: Option<(u64, String)>,
    /// A breach that the oracle told.
    pub breach: Option<(u64, String)>,
}

/// Runs `seeds` until the oracle tells of a breach.
pub fn hunt<S: Subject>(seeds: std::ops::Range<u64>, scenario: &Scenario) -> Found {
    let mut found = Found::default();
    for seed in seeds {
        let run = std::panic::AssertUnwindSafe(|| run::<S>(seed, scenario));
        let (words, told) = match std::panic::catch_unwind(run) {
            Ok(Ok(_)) => continue,
            Ok(Err(breach)) => (breach, true),
            Err(panic) => {
                let words = panic.downcast_ref::<String>().cloned();
                (words.unwrap_or_else(|| "a panic".to_owned()), false)
            }
        };
        let words: String = words
            .lines()
            .next()
            .unwrap_or_default()
            .chars()
            .take(160)
            .collect();
        found.first.get_or_insert((seed, words.clone()));
        if told {
            found.breach = Some((seed, words));
            break;
        }
    }
    found
}

/// How many of `seeds` breach, or hang, or panic.
pub fn caught<S: Subject>(seeds: std::ops::Range<u64>, scenario: &Scenario) -> usize {
    let breaches = |seed: &u64| {
        let run = std::panic::AssertUnwindSafe(|| run::<S>(*seed, scenario));
        !matches!(std::panic::catch_unwind(run), Ok(Ok(_)))
    };
    seeds.filter(breaches).count()
}
