//! Crash: kill -9 under eight concurrent writers, round after round on one directory.
//!
//! **Invariants**
//! - Every round has acknowledgements before its kill; nothing acknowledged is lost, nothing is
//!   doubled, and every open succeeds without a manual step.
//! - `SEALOG_CRASH_ROUNDS=300` runs the long form, which also demands 30 kills in each phase.
//!
//! **Not here**: a missing sync, which no process kill can show: the simulator does.
#![allow(missing_docs, clippy::unwrap_used)]

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use futures_lite::future::block_on;
use sealog_engine::Engine;
use sealog_tests::crash::check::Ledger;
use sealog_tests::crash::note::Note;
use sealog_tests::crash::{WRITERS, config};
use sealog_tests::sim::rng::Rng;

#[derive(Debug, Default)]
struct Landed {
    in_group_write: u64,
    in_seal: u64,
    in_recovery: u64,
    unproven_tail: u64,
}

fn start(dir: &Path, seed: u64, only_open: bool) -> Child {
    let mut command = Command::new(env!("CARGO_BIN_EXE_sealog-crash-writers"));
    command.arg(dir).arg(seed.to_string());
    if only_open {
        command.arg("open");
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
fn kill_in_recovery(dir: &Path, ledger: &mut Ledger, random: &mut Rng, landed: &mut Landed) {
    let mut child = start(dir, 0, true);
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
    let _ = ledger;
}

#[test]
fn crash_kill_under_writers() {
    let rounds: u64 = std::env::var("SEALOG_CRASH_ROUNDS")
        .ok()
        .and_then(|n| n.parse().ok())
        .unwrap_or(25);
    let seed: u64 = std::env::var("SEALOG_CRASH_SEED")
        .ok()
        .and_then(|n| n.parse().ok())
        .unwrap_or(1);
    println!("seed {seed}, {rounds} rounds");
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let mut random = Rng::derive(seed, "crash");
    let mut ledger = Ledger::default();
    let mut landed = Landed::default();
    for round in 0..rounds {
        let wanted = 1 + random.below(200);
        let in_seal = random.below(3) == 0;
        let mut acks = 0;
        let child = start(dir.path(), seed * 1000 + round, false);
        let notes = kill_when(child, &mut ledger, |note| {
            acks += u64::from(matches!(note, Note::Acked { .. }));
            acks >= wanted && (!in_seal || matches!(note, Note::Sealing { .. }))
        });
        count(&notes, &mut landed);
        while random.below(2) == 0 {
            kill_in_recovery(dir.path(), &mut ledger, &mut random, &mut landed);
        }
        let engine = Engine::open(config(dir.path())).unwrap();
        let reports = block_on(engine.handle().recovery_reports()).unwrap();
        landed.unproven_tail +=
            u64::from(reports[0].end > reports[0].proven_end && !reports[0].clean);
        let checked = ledger.check(engine.handle());
        checked.unwrap_or_else(|lost| panic!("seed {seed}, round {round}: {lost}"));
        block_on(engine.close()).unwrap();
    }
    let engine = Engine::open(config(dir.path())).unwrap();
    ledger.rewind();
    ledger.check(engine.handle()).unwrap();
    block_on(engine.close()).unwrap();
    println!(
        "{rounds} kills: {} batches acknowledged, {} in flight; {landed:?}",
        ledger.acked_total, ledger.in_flight_total
    );
    assert!(ledger.acked_total >= rounds && ledger.in_flight_total > 0);
    if rounds >= 300 {
        let least = landed
            .in_group_write
            .min(landed.in_seal)
            .min(landed.in_recovery);
        assert!(least >= 30, "each phase must be hit 30 times: {landed:?}");
    }
}
