//! Trace: what happened in a run, as bytes to compare and as a table to read.
//!
//! **Invariants**
//! - Every scheduling decision, I/O effect and fault is one event; two runs of a seed give the same
//!   bytes, so the first difference is the first non-determinism.
//! - The digest covers all events, also those the kept window has dropped.
//!
//! **Not here**: reading it back; the table is for people.

use super::rng::mix;
use std::collections::VecDeque;
use std::fmt::Write as _;

/// What an event is about. The letters are the table's legend.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// A task was polled: a = task, b = how many were ready.
    Poll = b'P',
    /// A task was spawned: a = task.
    Spawn = b'S',
    /// A task ended: a = task.
    End = b'E',
    /// Virtual time moved: a = nanoseconds skipped.
    Time = b'T',
    /// A disk effect: a = offset, b = length or result.
    Disk = b'D',
    /// A bucket effect: a = length, b = 0 or the fault.
    Bucket = b'B',
    /// A fault fired: a = its number.
    Fault = b'F',
    /// The process ended or started: a = incarnation.
    Process = b'X',
    /// A mark of the test's own.
    Note = b'N',
}

/// One event.
#[derive(Debug, Clone)]
pub struct Event {
    /// Virtual time.
    pub at_ns: u64,
    /// What it is about.
    pub kind: Kind,
    /// Short name of the action.
    pub what: &'static str,
    /// The file, key or task name.
    pub name: String,
    /// First number, see [`Kind`].
    pub a: u64,
    /// Second number, see [`Kind`].
    pub b: u64,
}

/// Events kept for the table that a failing run prints.
const WINDOW_EVENTS: usize = 120;

/// Marks kept beside them.
const NOTES: usize = 60;

fn keep(kept: &mut VecDeque<Event>, event: Event, most: usize) {
    if kept.len() == most {
        kept.pop_front();
    }
    kept.push_back(event);
}

/// The trace of one run.
#[derive(Debug, Default)]
pub struct Trace {
    digest: u64,
    events: u64,
    window: VecDeque<Event>,
    /// The last marks of the test, which busy loops would push out of the window.
    notes: VecDeque<Event>,
    bytes: Option<Vec<u8>>,
}

impl Trace {
    /// Keeps all bytes from now on (they are dropped otherwise; digest and window always exist).
    pub fn keep_bytes(&mut self) {
        self.bytes.get_or_insert_default();
    }

    /// Appends one event.
    pub fn push(&mut self, event: Event) {
        let mut line = Vec::with_capacity(40 + event.name.len());
        line.push(event.kind as u8);
        for number in [event.at_ns, event.a, event.b] {
            line.extend_from_slice(&number.to_le_bytes());
        }
        line.extend_from_slice(event.what.as_bytes());
        line.push(0);
        line.extend_from_slice(event.name.as_bytes());
        line.push(b'\n');
        for chunk in line.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.digest = mix(self.digest ^ u64::from_le_bytes(word));
        }
        self.events += 1;
        if let Some(bytes) = &mut self.bytes {
            bytes.extend_from_slice(&line);
        }
        if event.kind == Kind::Note {
            keep(&mut self.notes, event.clone(), NOTES);
        }
        keep(&mut self.window, event, WINDOW_EVENTS);
    }

    /// Digest over all events so far.
    #[must_use]
    pub fn digest(&self) -> u64 {
        self.digest
    }

    /// Number of events so far.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.events
    }

    /// True before the first event.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.events == 0
    }

    /// All bytes since [`Trace::keep_bytes`].
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        self.bytes.as_deref().unwrap_or_default()
    }

    /// The last events as a table, one line each.
    #[must_use]
    pub fn table(&self) -> String {
        let mut out = String::from(
            "      time_us k what       a            b          name   \
             (k: P poll S spawn E end T time D disk B bucket F fault X process N note)\n",
        );
        for e in self.notes.iter().chain(&self.window) {
            let us = e.at_ns / 1_000;
            let _ = writeln!(
                out,
                "{us:>13} {} {:<10} {:<12} {:<10} {}",
                e.kind as u8 as char, e.what, e.a, e.b, e.name
            );
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(a: u64) -> Event {
        Event {
            at_ns: 5,
            kind: Kind::Disk,
            what: "write",
            name: "wal/1".into(),
            a,
            b: 4096,
        }
    }

    #[test]
    fn trace_one_number_off_changes_digest_and_bytes() {
        let mut a = Trace::default();
        let mut b = Trace::default();
        a.keep_bytes();
        b.keep_bytes();
        a.push(event(1));
        b.push(event(2));
        assert_ne!(a.digest(), b.digest());
        assert_ne!(a.bytes(), b.bytes());
    }

    #[test]
    fn trace_window_is_bounded_and_table_names_the_file() {
        let mut trace = Trace::default();
        for n in 0..1000 {
            trace.push(event(n));
        }
        assert_eq!(trace.len(), 1000);
        let table = trace.table();
        assert_eq!(table.lines().count(), 1 + WINDOW_EVENTS);
        assert!(table.contains("wal/1"));
        assert!(trace.bytes().is_empty());
    }
}
