//! Rounds: kill -9 under eight concurrent writers, round after round on one directory.
//!
//! **Invariants**
//! - Every round has acknowledgements before its kill; nothing acknowledged is lost, nothing is
//!   doubled, and every open succeeds without a manual step.
//!
//! **Not here**: a missing sync, which no process kill can show: the simulator does.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use futures_lite::future::block_on;
use sealog_engine::Engine;

use super::check::Ledger;
use super::note::Note;
use super::{Place, WRITERS};
use crate::sim::rng::Rng;

/// Where kills came, and what had been done by then.
#[derive(Debug, Default)]
pub struct Landed {
    /// With a batch sent and not answered.
    pub in_group_write: u64,
    /// With a seal sent and not answered.
    pub in_seal: u64,
    /// While the directory was being opened.
    pub in_recovery: u64,
    /// Leaving a tail that was not proven durable.
    pub unproven_tail: u64,
    /// Batches acknowledged in all rounds.
    pub acked: u64,
    /// Batches sent and not answered when a kill came.
    pub in_flight: u64,
}

/// A number of rounds out of the environment.
#[must_use]
pub fn from_env(name: &str, default: u64) -> u64 {
    let given = std::env::var(name).ok().and_then(|n| n.parse().ok());
    given.unwrap_or(default)
}

fn start(writers: &str, place: &Place, seed: u64, only_open: bool) -> Child {
    let mut command = Command::new(writers);
    command.arg(&place.dir).arg(seed.to_string());
    command.arg(if only_open { "open" } else { "write" });
    if let Some(store) = &place.store {
        command.arg(store.url()).args(&store.endpoint);
    }
    command.stdout(Stdio::piped()).spawn().unwrap()
}

/// Reads notes until `enough` says so, then kills, and takes in what was noted before the kill.
fn kill_when(
    mut child: Child,
    ledger: &mut Ledger,
    mut enough: impl FnMut(Note) -> bool,
) -> Vec<Note> {
    let mut lines = BufReader::new(child.stdout.take().unwrap());
    let mut notes = Vec::new();
    loop {
        let mut line = String::new();
        let read = lines.read_line(&mut line).unwrap();
        assert!(
            read > 0,
            "the writers ended by themselves: {:?}",
            child.wait()
        );
        let note: Note = line.trim_end().parse().unwrap();
        notes.push(note);
        if enough(note) {
            break;
        }
    }
    child.kill().unwrap();
    child.wait().unwrap();
    let mut rest = String::new();
    lines.read_to_string(&mut rest).unwrap();
    let whole = rest.rfind('\n').map_or("", |end| &rest[..end]);
    notes.extend(whole.lines().map(|line| line.parse::<Note>().unwrap()));
    notes.iter().for_each(|note| ledger.note(*note));
    notes
}

fn count(notes: &[Note], landed: &mut Landed) {
    let mut sending = [false; WRITERS];
    let mut sealing = [false; WRITERS];
    for note in notes {
        match *note {
            Note::Sending { writer, .. } => sending[writer] = true,
            Note::Acked { writer, .. } | Note::Refused { writer, .. } => sending[writer] = false,
            Note::Sealing { writer } => sealing[writer] = true,
            Note::Sealed { writer, .. } => sealing[writer] = false,
            Note::Opening | Note::Opened => {}
        }
    }
    landed.in_group_write += u64::from(sending.contains(&true));
    landed.in_seal += u64::from(sealing.contains(&true));
}

/// Kills an open that is recovering, after a random part of the time it takes.
fn kill_in_recovery(writers: &str, place: &Place, random: &mut Rng, landed: &mut Landed) {
    let mut child = start(writers, place, 0, true);
    let mut first = [0u8; 8];
    child
        .stdout
        .as_mut()
        .unwrap()
        .read_exact(&mut first)
        .unwrap();
    std::thread::sleep(Duration::from_micros(random.below(60_000)));
    child.kill().unwrap();
    child.wait().unwrap();
    let mut rest = String::new();
    child
        .stdout
        .take()
        .unwrap()
        .read_to_string(&mut rest)
        .unwrap();
    if !rest.contains("opened") {
        landed.in_recovery += 1;
    }
}

/// Kills the program `writers` again and again at `place`, and checks after each kill.
#[must_use]
pub fn run(writers: &str, place: &Place, seed: u64, rounds: u64) -> Landed {
    let mut random = Rng::derive(seed, "crash");
    let mut ledger = Ledger::default();
    let mut landed = Landed::default();
    for round in 0..rounds {
        let wanted = 1 + random.below(200);
        let in_seal = random.below(3) == 0;
        let mut acks = 0;
        let child = start(writers, place, seed * 1000 + round, false);
        let notes = kill_when(child, &mut ledger, |note| {
            acks += u64::from(matches!(note, Note::Acked { .. }));
            acks >= wanted && (!in_seal || matches!(note, Note::Sealing { .. }))
        });
        count(&notes, &mut landed);
        while random.below(2) == 0 {
            kill_in_recovery(writers, place, &mut random, &mut landed);
        }
        let engine = Engine::open(place.config()).unwrap();
        let reports = block_on(engine.handle().recovery_reports()).unwrap();
        landed.unproven_tail +=
            u64::from(reports[0].end > reports[0].proven_end && !reports[0].clean);
        let checked = ledger.check(engine.handle());
        checked.unwrap_or_else(|lost| panic!("seed {seed}, round {round}: {lost}"));
        block_on(engine.close()).unwrap();
    }
    let engine = Engine::open(place.config()).unwrap();
    ledger.rewind();
    ledger.check(engine.handle()).unwrap();
    block_on(engine.close()).unwrap();
    landed.acked = ledger.acked_total;
    landed.in_flight = ledger.in_flight_total;
    assert!(landed.acked >= rounds && landed.in_flight > 0);
    landed
}
