//! Sides: who takes part in a workload, each made ready in a folder of its own.
//!
//! **Invariants**
//! - The target is the first contestant.
//! - A peer that isn't here is named in the report, never silently left out.
//!
//! **Not here**: their runs (`contest`).

use std::time::Duration;

use super::contest::{Contestant, Runner};
use super::peers::Peer;
use super::workloads::{Shape, Workload};
use super::{Options, own};
use crate::Result;
use crate::generator::{LoadSpec, Pace, PayloadPool, Plan, drive};
use crate::plain::PlainFile;
use crate::report::Report;
use crate::targets::TargetUrl;
use crate::targets::plain_group::PlainGroup;
use crate::workdir::Workdir;

/// Seed of all payloads.
pub const SEED: u64 = 0x5ea1;
/// Files that the plain yardsticks overwrite.
const PLAIN_BYTES: u64 = 1 << 30;
/// Longest measured run of the `wal` workloads: the log takes all of them together.
const BLOCKS_SECONDS_MAX: f64 = 1.5;
/// Runs that find the peak, the middle one counts.
const PEAK_RUNS: usize = 3;
/// In flight per client in the open loop: as good as unbounded.
const OPEN_WINDOW: usize = 4096;
/// Plain runs beside `sustained`.
const SUSTAINED_PLAIN: Duration = Duration::from_secs(5);

/// What all workloads share.
pub struct Bench<'a> {
    /// The measured folder.
    pub workdir: &'a Workdir,
    /// What was asked for.
    pub options: &'a Options,
    /// Peers by URL.
    pub extra: Vec<Peer>,
}

/// Who takes part, and with what.
pub struct Sides<'a> {
    /// The target first.
    pub contestants: Vec<Contestant<'a>>,
    /// Everybody's payloads.
    pub pool: PayloadPool,
}

impl<'a> Bench<'a> {
    /// Makes everybody ready; with one contestant there is nothing to compare.
    ///
    /// # Errors
    /// One can't be made ready.
    pub fn sides(&'a self, workload: &Workload, report: &mut Report) -> Result<Sides<'a>> {
        let spec = workload.shape.spec();
        let pool = PayloadPool::new(spec.record_bytes, SEED);
        let mut peers = Vec::new();
        for check in workload.checks {
            if peers.contains(&check.peer) {
                continue;
            }
            match check.peer.absent() {
                None => peers.push(check.peer.clone()),
                Some(why) => {
                    let (workload, peer) = (workload.name, check.peer.name());
                    report
                        .skipped
                        .push(format!("{workload} beside {peer}: {why}"));
                }
            }
        }
        if matches!(workload.shape, Shape::Records(_)) {
            peers.extend(self.extra.iter().cloned());
        }
        let mut contestants = Vec::new();
        if !peers.is_empty() {
            let url = workload.shape.target(&self.options.target);
            let target = own::runner(self, &workload.shape)?;
            let plan = self.plan(&workload.shape, &target, &pool)?;
            contestants.push(Contestant {
                name: url.to_string(),
                claims: match url {
                    TargetUrl::Redis(_)
                    | TargetUrl::Nats(_)
                    | TargetUrl::DurableStreams(_)
                    | TargetUrl::DurableStreamsProducers(_) => None,
                    _ => Some(true),
                },
                plan,
                runner: target,
            });
            for peer in peers {
                let runner = self.peer(&peer, plan.spec)?;
                contestants.push(Contestant {
                    name: peer.name(),
                    claims: peer.claims_durability(),
                    plan: peer_plan(&workload.shape, plan),
                    runner,
                });
            }
        }
        Ok(Sides { contestants, pool })
    }

    /// Removes what a workload left.
    ///
    /// # Errors
    /// The file system's.
    pub fn clear(&self) -> Result<()> {
        self.workdir.empty()
    }

    fn plan(&self, shape: &Shape, target: &Runner<'_>, pool: &PayloadPool) -> Result<Plan> {
        let options = self.options;
        let spec = shape.spec();
        let mut plan = Plan::closed(spec, options.seconds);
        plan.threads = options.threads;
        match shape {
            Shape::Records(_) | Shape::Http(..) | Shape::Shards => {}
            Shape::Blocks(_) => {
                plan = Plan::closed(spec, options.seconds.min(BLOCKS_SECONDS_MAX));
                plan.threads = options.threads;
                let bytes = (options.log_mib << 20) / 10 * 8 / options.pairs.max(1) as u64;
                plan.appends_max = Some(bytes / spec.append_bytes().max(1));
            }
            Shape::Sustained(_) => {
                plan.warmup = Duration::ZERO;
                plan.measure = Duration::from_secs(3600);
                plan.appends_max = Some(options.budgets * (1 << 30) / spec.append_bytes().max(1));
            }
            Shape::OpenHalf(_) => {
                let Runner::Load(target) = target else {
                    return Err("an open loop needs a target that stays".into());
                };
                let mut peaks = Vec::new();
                for _ in 0..PEAK_RUNS {
                    target.empty(&plan)?;
                    peaks.push(drive(target.as_ref(), &plan, pool)?.records_per_s());
                }
                let peak = crate::stats::median(&peaks);
                eprintln!("sealog-bench: peak of {spec} is {peak:.0} records/s");
                plan.pace = Pace::Open {
                    per_second: peak / 2.0,
                };
                plan.spec.window = OPEN_WINDOW;
            }
        }
        Ok(plan)
    }

    fn peer(&self, peer: &Peer, spec: LoadSpec) -> Result<Runner<'a>> {
        let dir = self.workdir.path(&peer.name().replace(['/', ':'], "-"));
        Ok(match peer {
            Peer::Plain => Runner::Blocks(PlainFile::create(&dir, PLAIN_BYTES)?),
            Peer::PlainGroup => Runner::Load(Box::new(PlainGroup::create(&dir, PLAIN_BYTES)?)),
            server => {
                if let Some(version) = server.version() {
                    eprintln!("sealog-bench: {} is {version}", server.name());
                }
                Runner::Load(server.start(&dir, spec.clients)?)
            }
        })
    }
}

fn peer_plan(shape: &Shape, target: Plan) -> Plan {
    match shape {
        Shape::Sustained(_) => Plan {
            measure: SUSTAINED_PLAIN,
            appends_max: None,
            ..target
        },
        _ => target,
    }
}
