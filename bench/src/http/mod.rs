//! Http: what Durable Streams' users do besides appending to a few streams: create, follow in crowds, catch up, have
//! very many streams. Sealog beside the Durable Streams project's own servers, in alternation.
//!
//! **Invariants**
//! - All sides get the same requests from one thread with non-blocking sockets, which costs them as little as can be.
//! - A peer that isn't here is skipped aloud.
//!
//! **Not here**: appends at full rate (`compare`).

mod catch_up;
mod creates;
mod crowd;
mod fan_out;
mod parts;
mod sides;
mod streams;

use std::path::Path;
use std::time::Duration;

use serde_json::json;

use crate::Result;
use crate::compare::flushes::Device;
use crate::compare::peers::Peer;
use crate::report::{Report, progress};
use crate::workdir::Workdir;
use catch_up::CatchUp;
use creates::Creates;
use fan_out::FanOut;
use parts::{Judged, Part, Run, Series, tell};
use sides::{PEERS, Side};
use streams::Streams;

/// Options of `http`.
#[derive(clap::Args)]
pub struct Options {
    /// Only this part; repeat for several.
    #[arg(long = "part", value_name = "PART")]
    pub parts: Vec<PartName>,
    /// Beside this peer only; repeat for several.
    #[arg(long = "beside", value_name = "PEER")]
    pub beside: Vec<String>,
    /// Runs of each side.
    #[arg(long, default_value_t = 3)]
    pub pairs: usize,
    /// Seconds of rest before each run.
    #[arg(long, default_value_t = 1.0)]
    pub rest: f64,
    /// Streams that are created at once.
    #[arg(long, default_value_t = 300)]
    pub creates: usize,
    /// How often in each run.
    #[arg(long, default_value_t = 5)]
    pub rounds: usize,
    /// Followers of the stream that is fanned out.
    #[arg(long, default_value_t = 200)]
    pub subscribers: usize,
    /// Seconds of messages to them.
    #[arg(long, default_value_t = 8.0)]
    pub seconds: f64,
    /// Payload of the stream that is caught up with, in MiB.
    #[arg(long, default_value_t = 256)]
    pub mib: u64,
    /// Streams with an append each.
    #[arg(long, default_value_t = 100_000)]
    pub streams: usize,
    /// Seconds after which no more of them are begun.
    #[arg(long, default_value_t = 60.0)]
    pub streams_seconds: f64,
}

/// What can be measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum PartName {
    /// Many new streams at once.
    Creates,
    /// One stream followed by many.
    FanOut,
    /// A long stream read whole.
    CatchUp,
    /// Very many streams.
    Streams,
}

/// A part as it is run.
trait Measure {
    fn part(&self) -> &'static Part;
    /// For its table.
    fn title(&self) -> String;
    /// Most that waits for an acknowledgement at a time, if there are any.
    fn in_flight_max(&self) -> Option<u64> {
        None
    }
    /// Whether each run needs a server with nothing in it.
    fn starts_anew(&self) -> bool {
        false
    }
    /// What must be there before the clock starts.
    fn prepare(&mut self, _: &mut Side) -> Result<()> {
        Ok(())
    }
    fn run(&mut self, side: &mut Side) -> Result<Run>;
}

/// Runs the benchmark.
pub fn run(dir: &Path, options: &Options) -> Result<Report> {
    let beside = options.beside.iter().map(|name| Peer::named(name));
    let beside: Vec<Peer> = beside.collect::<std::result::Result<_, _>>()?;
    if let Some(other) = beside.iter().find(|peer| !PEERS.contains(peer)) {
        let known = PEERS.map(|peer| peer.name()).join(", ");
        return Err(format!("peer {:?} is not one of {known}", other.name()).into());
    }
    let is_asked_for = |part| options.parts.is_empty() || options.parts.contains(&part);
    let mut report = Report::default();
    let mut peers = Vec::new();
    for peer in PEERS {
        match peer.absent() {
            _ if !beside.is_empty() && !beside.contains(&peer) => {}
            None => peers.push(peer),
            Some(why) => report.skipped.push(format!("{}: {why}", peer.name())),
        }
    }
    let workdir = Workdir::create(dir)?;
    let bench = Bench {
        workdir: &workdir,
        device: Device::under(dir),
        peers,
        options,
    };
    let disk = bench.device.describe();
    eprintln!("sealog-bench: disk {disk}");
    report.data.insert("disk".to_owned(), json!(disk));
    if is_asked_for(PartName::Creates) {
        bench.measure(&mut [&mut Creates(options)], &mut report)?;
    }
    if is_asked_for(PartName::FanOut) {
        bench.measure(&mut [&mut FanOut(options)], &mut report)?;
    }
    if is_asked_for(PartName::CatchUp) {
        let catch_up = |readers| CatchUp { options, readers };
        let (mut alone, mut together) = (catch_up(1), catch_up(catch_up::READERS));
        bench.measure(&mut [&mut alone, &mut together], &mut report)?;
    }
    if is_asked_for(PartName::Streams) {
        bench.measure(&mut [&mut Streams(options)], &mut report)?;
    }
    Ok(report)
}

/// What all parts share.
struct Bench<'a> {
    workdir: &'a Workdir,
    device: Device,
    peers: Vec<Peer>,
    options: &'a Options,
}

impl Bench<'_> {
    /// Starts all sides and lets them take turns at each of these.
    fn measure(&self, parts: &mut [&mut dyn Measure], report: &mut Report) -> Result<()> {
        let peers = self.peers.iter().cloned().map(Some);
        let mut sides = Vec::new();
        for peer in std::iter::once(None).chain(peers) {
            sides.push(Side::start(self.workdir, peer)?);
        }
        for measure in parts {
            for side in &mut sides {
                measure.prepare(side).map_err(|error| named(side, &error))?;
            }
            let all;
            (all, sides) = self.alternate(*measure, sides)?;
            tell(report, measure.part(), &measure.title(), &all);
        }
        drop(sides);
        self.workdir.empty()
    }

    fn alternate(
        &self,
        measure: &mut dyn Measure,
        mut sides: Vec<Side>,
    ) -> Result<(Vec<Series>, Vec<Side>)> {
        let series = |side: &Side| Series {
            name: side.name.clone(),
            runs: Vec::new(),
        };
        let mut all: Vec<Series> = sides.iter().map(series).collect();
        let pairs = self.options.pairs.max(1);
        for pair in 1..=pairs {
            progress(measure.part().name, pair, pairs);
            let mut kept = Vec::new();
            for (mut side, series) in sides.into_iter().zip(&mut all) {
                if pair > 1 && measure.starts_anew() {
                    side = side.start_anew(self.workdir)?;
                }
                std::thread::sleep(Duration::from_secs_f64(self.options.rest));
                let before = self.device.flushes();
                let run = measure
                    .run(&mut side)
                    .map_err(|error| named(&side, &error))?;
                let flushes = self.device.flushes().zip(before);
                let flushes = flushes.map(|(after, before)| after.saturating_sub(before));
                let judged = |most| (flushes, self.device.judge(flushes, run.acks, most));
                let flushes = measure.in_flight_max().map(judged);
                series.runs.push(Judged { run, flushes });
                kept.push(side);
            }
            sides = kept;
        }
        Ok((all, sides))
    }
}

/// Whose error it is.
fn named(side: &Side, error: &impl std::fmt::Display) -> String {
    format!("{}: {error}", side.name)
}
