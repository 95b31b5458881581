//! Outcome: what a run of the generator came to.
//!
//! **Invariants**
//! - Throughput counts acknowledgements inside the measured time only.
//! - An arrival without an answer is in the histogram with the time it has waited so far.
//!
//! **Not here**: ratios of runs (`compare::report`).

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::{LoadSpec, Pace, Plan};
use crate::stats::{Latencies, mb_per_s};

/// What one client counted.
#[derive(Clone)]
pub struct Tally {
    /// Appends acknowledged in the measured time.
    pub acks: u64,
    /// Appends acknowledged at all, warm-up included.
    pub acks_all: u64,
    /// Arrivals of the measured time that were not answered before the run was given up.
    pub unanswered: u64,
    /// Latencies of the measured time.
    pub latencies: Latencies,
    /// When the client had used up its appends, if it had.
    pub used_up: Option<Instant>,
}

impl Tally {
    /// Nothing yet.
    pub fn new() -> Self {
        Self {
            acks: 0,
            acks_all: 0,
            unanswered: 0,
            latencies: Latencies::new(),
            used_up: None,
        }
    }
}

/// What a run came to.
#[derive(Clone)]
pub struct Outcome {
    /// What was asked for.
    pub spec: LoadSpec,
    /// And how.
    pub pace: Pace,
    /// Measured time.
    pub seconds: f64,
    /// All clients together.
    pub tally: Tally,
    /// CPU time of this process: the generator, and the target if it is in it.
    pub own_cpu: Duration,
    /// CPU time of the target's own process.
    pub server_cpu: Option<Duration>,
}

impl Outcome {
    pub(super) fn new(plan: &Plan, own_cpu: Duration, server_cpu: Option<Duration>) -> Self {
        Self {
            spec: plan.spec,
            pace: plan.pace,
            seconds: plan.measure.as_secs_f64(),
            tally: Tally::new(),
            own_cpu,
            server_cpu,
        }
    }

    pub(super) fn add(&mut self, tally: Tally) {
        self.tally.acks += tally.acks;
        self.tally.acks_all += tally.acks_all;
        self.tally.unanswered += tally.unanswered;
        self.tally.latencies.merge(&tally.latencies);
        self.tally.used_up = self.tally.used_up.max(tally.used_up);
    }

    /// If the clients had used up their appends before the time was over, that was the end.
    pub(super) fn end_early(&mut self, begin: Instant) {
        if let Some(end) = self.tally.used_up {
            let seconds = end.saturating_duration_since(begin).as_secs_f64();
            self.seconds = self.seconds.min(seconds.max(1e-9));
        }
    }

    /// Records acknowledged per second.
    pub fn records_per_s(&self) -> f64 {
        self.tally.acks as f64 * self.spec.records as f64 / self.seconds
    }

    /// Payload acknowledged per second.
    pub fn mb_per_s(&self) -> f64 {
        mb_per_s(self.tally.acks * self.spec.append_bytes(), self.seconds)
    }

    /// CPU microseconds a record: of this process, and of the target's own if it has one.
    pub fn cpu_us(&self) -> (f64, Option<f64>) {
        let records = (self.tally.acks * self.spec.records as u64).max(1) as f64;
        let each = |cpu: Duration| cpu.as_secs_f64() * 1e6 / records;
        (each(self.own_cpu), self.server_cpu.map(each))
    }

    /// Latencies of the measured time.
    pub fn latencies(&self) -> &Latencies {
        &self.tally.latencies
    }

    /// What the latencies don't say.
    pub fn correction(&self) -> &'static str {
        match self.pace {
            Pace::Closed => "closed loop: not corrected for coordinated omission",
            Pace::Open { .. } => "open loop: from the intended arrival",
        }
    }

    /// For JSON.
    pub fn json(&self) -> Value {
        let offered = match self.pace {
            Pace::Closed => None,
            Pace::Open { per_second } => Some(per_second),
        };
        json!({
            "spec": self.spec.to_string(), "keyed": self.spec.keyed, "seconds": self.seconds,
            "offered_appends_per_s": offered, "records_per_s": self.records_per_s(),
            "payload_mb_per_s": self.mb_per_s(), "acks": self.tally.acks,
            "acks_with_warmup": self.tally.acks_all, "unanswered": self.tally.unanswered,
            "latency": self.tally.latencies.json(), "latency_is": self.correction(),
            "own_cpu_seconds": self.own_cpu.as_secs_f64(),
            "server_cpu_seconds": self.server_cpu.map(|cpu| cpu.as_secs_f64()),
        })
    }
}
