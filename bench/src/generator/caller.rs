//! Caller: one client's turns: when it may send, how long what it sent took.
//!
//! **Invariants**
//! - Never more than the window in flight.
//! - In an open loop, arrivals don't depend on answers; every arrival before the end is sent, or
//!   counted as unanswered.
//! - The same client number and plan give the same arrivals, whatever the target.
//!
//! **Not here**: sockets and tasks: whoever drives it says what time it is.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::{Pace, Plan, Tally};
use crate::Result;
use crate::prng::Prng;

/// After the end, what is in flight may take this long.
const DRAIN_MAX: Duration = Duration::from_secs(20);

/// When measuring begins and ends.
#[derive(Debug, Clone, Copy)]
pub struct Phases {
    /// First append.
    pub start: Instant,
    /// End of the warm-up.
    pub begin: Instant,
    /// End of the measured time.
    pub end: Instant,
    /// What is unanswered by now is given up.
    pub give_up: Instant,
}

impl Phases {
    /// The plan's phases from `start` on.
    pub fn starting_at(start: Instant, plan: &Plan) -> Self {
        let begin = start + plan.warmup;
        let end = begin + plan.measure;
        Self {
            start,
            begin,
            end,
            give_up: end + DRAIN_MAX.min(plan.measure.max(Duration::from_secs(2))),
        }
    }

    fn measures(&self, at: Instant) -> bool {
        self.begin <= at && at < self.end
    }
}

/// Random arrivals of one client.
pub struct Arrivals {
    prng: Prng,
    gap_mean: f64,
    next: Instant,
}

impl Arrivals {
    /// Arrivals from `start` on, `per_second` on average.
    pub fn new(seed: u64, start: Instant, per_second: f64) -> Self {
        let mut arrivals = Self {
            prng: Prng::new(seed),
            gap_mean: 1.0 / per_second.max(1e-3),
            next: start,
        };
        let _ = arrivals.advance();
        arrivals
    }

    /// The time of the next arrival; the one after it comes next.
    fn advance(&mut self) -> Instant {
        let due = self.next;
        // A number in (0, 1], so that the logarithm exists.
        let unit = ((self.prng.next_u64() >> 11) + 1) as f64 / (1u64 << 53) as f64;
        let gap = -unit.ln() * self.gap_mean;
        self.next += Duration::from_secs_f64(gap.min(3600.0));
        due
    }
}

/// What a caller wants to do now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Turn {
    /// Append one more: call [`Caller::sent`].
    Send,
    /// Nothing before this time, unless an answer comes.
    WaitUntil(Instant),
    /// Nothing before an answer comes.
    WaitForAck,
    /// Nothing any more, all is answered.
    Done,
}

/// One client.
pub struct Caller {
    /// Its number, from 0.
    pub number: usize,
    /// What it counted.
    pub tally: Tally,
    window: usize,
    in_flight: VecDeque<(u64, Instant)>,
    sent: u64,
    sent_max: u64,
    phases: Phases,
    arrivals: Option<Arrivals>,
}

impl Caller {
    /// Client `number` of the plan.
    pub fn new(number: usize, plan: &Plan, phases: Phases) -> Self {
        let arrivals = match plan.pace {
            Pace::Closed => None,
            Pace::Open { per_second } => {
                let seed = 0x5ea1_0000 + number as u64;
                let each = per_second / plan.spec.clients as f64;
                Some(Arrivals::new(seed, phases.start, each))
            }
        };
        let clients = plan.spec.clients as u64;
        let share = |appends: u64| appends.div_ceil(clients).max(1);
        Self {
            number,
            tally: Tally::new(),
            window: plan.spec.window,
            in_flight: VecDeque::new(),
            sent: 0,
            sent_max: plan.appends_max.map_or(u64::MAX, share),
            phases,
            arrivals,
        }
    }

    /// What to do at `now`.
    pub fn turn(&self, now: Instant) -> Turn {
        let Phases { start, end, .. } = self.phases;
        let due = self.arrivals.as_ref().map_or(start, |a| a.next);
        let over = match self.arrivals {
            // What arrived before the end is still sent after it.
            Some(_) => due >= end,
            None => now >= end,
        };
        if over || self.sent >= self.sent_max {
            return match self.in_flight.is_empty() {
                true => Turn::Done,
                false => Turn::WaitForAck,
            };
        }
        if self.in_flight.len() >= self.window {
            Turn::WaitForAck
        } else if now < due {
            Turn::WaitUntil(due)
        } else {
            Turn::Send
        }
    }

    /// Has `send` append all that may be sent now, given this client's number and the append's. How long
    /// until there may be more, `most` at most; `None` when nothing is left to do.
    ///
    /// # Errors
    /// Those of `send`.
    pub fn send_due(
        &mut self,
        most: Duration,
        mut send: impl FnMut(usize, u64) -> Result<()>,
    ) -> Result<Option<Duration>> {
        let turn = loop {
            let now = Instant::now();
            match self.turn(now) {
                Turn::Send => {
                    let number = self.sent(now);
                    send(self.number, number)?;
                }
                turn => break turn,
            }
        };
        Ok(match turn {
            Turn::Done => None,
            Turn::WaitUntil(at) => Some(at.saturating_duration_since(Instant::now()).min(most)),
            Turn::Send | Turn::WaitForAck => Some(most),
        })
    }

    /// Counts one append as sent; its number.
    pub fn sent(&mut self, now: Instant) -> u64 {
        assert!(
            self.in_flight.len() < self.window,
            "client {} has {} in flight, its window is {}",
            self.number,
            self.in_flight.len(),
            self.window
        );
        let started = match &mut self.arrivals {
            None => now,
            Some(arrivals) => arrivals.advance(),
        };
        let number = self.sent;
        self.sent += 1;
        self.in_flight.push_back((number, started));
        number
    }

    /// Counts an answer that came at `now` to append `number`.
    pub fn acked(&mut self, number: u64, now: Instant) {
        let at = self.in_flight.iter().position(|(sent, _)| *sent == number);
        let found = at.and_then(|at| self.in_flight.remove(at));
        let Some((_, started)) = found else {
            panic!("client {}: append {number} isn't in flight", self.number);
        };
        self.count(started, now);
    }

    /// Counts an answer that came at `now` to the oldest append in flight, `false` if there is none.
    #[must_use]
    pub fn acked_oldest(&mut self, now: Instant) -> bool {
        let oldest = self.in_flight.pop_front();
        if let Some((_, started)) = oldest {
            self.count(started, now);
        }
        oldest.is_some()
    }

    fn count(&mut self, started: Instant, now: Instant) {
        self.tally.acks_all += 1;
        if self.tally.acks_all == self.sent_max {
            self.tally.used_up = Some(now);
        }
        if self.phases.measures(now) {
            self.tally.acks += 1;
        }
        let counts = match self.arrivals {
            Some(_) => self.phases.measures(started),
            None => self.phases.measures(now),
        };
        if counts {
            let latency = now.saturating_duration_since(started);
            self.tally.latencies.record(latency);
        }
    }

    /// If it is too late to wait for answers, counts what is unanswered and is done.
    pub fn give_up_if_late(&mut self, now: Instant) {
        if now < self.phases.give_up {
            return;
        }
        for (_, started) in std::mem::take(&mut self.in_flight) {
            self.unanswered(started, now);
        }
        let end = self.phases.end;
        while let Some(due) = self.arrivals.as_mut().filter(|a| a.next < end) {
            let due = due.advance();
            self.unanswered(due, now);
        }
    }

    fn unanswered(&mut self, started: Instant, now: Instant) {
        if self.phases.measures(started) {
            self.tally.unanswered += 1;
            self.tally
                .latencies
                .record(now.saturating_duration_since(started));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generator::LoadSpec;

    fn plan(pace: Pace, window: usize) -> Plan {
        Plan {
            spec: LoadSpec::of(1, window, 100),
            pace,
            warmup: Duration::from_secs(1),
            measure: Duration::from_secs(4),
            appends_max: None,
            threads: 1,
        }
    }

    /// Serves one append after the other, each taking `service`, but for one stall.
    fn simulate(pace: Pace, service: Duration, stall: Duration) -> Tally {
        let plan = plan(pace, 1);
        let start = Instant::now();
        let phases = Phases::starting_at(start, &plan);
        let mut caller = Caller::new(0, &plan, phases);
        let (mut now, mut stalled) = (start, false);
        loop {
            match caller.turn(now) {
                Turn::Send => {
                    let number = caller.sent(now);
                    now += service;
                    if !stalled && now > start + Duration::from_secs(2) {
                        stalled = true;
                        now += stall;
                    }
                    caller.acked(number, now);
                }
                Turn::WaitUntil(at) => now = at,
                Turn::WaitForAck => panic!("nothing is in flight"),
                Turn::Done => return caller.tally,
            }
        }
    }

    #[test]
    fn open_loop_counts_the_wait_behind_a_stall_and_closed_loop_does_not() {
        let (service, stall) = (Duration::from_micros(100), Duration::from_secs(1));
        let open = Pace::Open { per_second: 1000.0 };
        let open = simulate(open, service, stall);
        let closed = simulate(Pace::Closed, service, stall);
        // A quarter of the measured arrivals fell into the stall or the backlog behind it.
        let p90 = open.latencies.us(0.90);
        assert!((300_000.0..1_000_000.0).contains(&p90), "open p90 {p90} us");
        let p99 = closed.latencies.us(0.99);
        assert!((99.0..=101.0).contains(&p99), "closed p99 {p99} us");
    }

    #[test]
    fn open_loop_measures_the_arrivals_of_the_measured_time_only() {
        let open = Pace::Open { per_second: 1000.0 };
        let tally = simulate(open, Duration::from_micros(10), Duration::ZERO);
        let count = tally.latencies.count();
        assert!((3700..=4300).contains(&count), "{count} of 4 s at 1000/s");
        assert!(tally.acks_all > tally.acks);
    }

    #[test]
    fn same_client_gives_same_arrivals_and_another_gives_others() {
        let start = Instant::now();
        let times = |seed| {
            let mut arrivals = Arrivals::new(seed, start, 100.0);
            (0..100).map(|_| arrivals.advance()).collect::<Vec<_>>()
        };
        assert_eq!(times(1), times(1));
        assert_ne!(times(1), times(2));
    }

    #[test]
    fn window_bounds_what_is_in_flight() {
        let plan = plan(Pace::Closed, 2);
        let start = Instant::now();
        let mut caller = Caller::new(0, &plan, Phases::starting_at(start, &plan));
        let first = caller.sent(start);
        assert_eq!(caller.turn(start), Turn::Send);
        let second = caller.sent(start);
        assert_eq!(caller.turn(start), Turn::WaitForAck);
        caller.acked(second, start);
        assert_eq!(caller.turn(start), Turn::Send);
        let end = start + Duration::from_secs(5);
        assert_eq!(caller.turn(end), Turn::WaitForAck);
        caller.acked(first, end);
        assert_eq!(caller.turn(end), Turn::Done);
        assert!(!caller.acked_oldest(end));
        assert_eq!(caller.tally.acks, 0);
        assert_eq!(caller.tally.acks_all, 2);
    }

    #[test]
    fn appends_that_are_used_up_end_a_run() {
        let mut plan = plan(Pace::Closed, 1);
        plan.appends_max = Some(2);
        let start = Instant::now();
        let mut caller = Caller::new(0, &plan, Phases::starting_at(start, &plan));
        let second = start + Duration::from_secs(2);
        for now in [start, second] {
            assert_eq!(caller.turn(now), Turn::Send);
            assert_eq!(caller.tally.used_up, None);
            let number = caller.sent(now);
            caller.acked(number, now);
        }
        assert_eq!(caller.turn(second), Turn::Done);
        assert_eq!(caller.tally.used_up, Some(second));
    }

    #[test]
    fn given_up_arrivals_are_in_the_histogram() {
        let plan = plan(Pace::Open { per_second: 100.0 }, 1);
        let start = Instant::now();
        let phases = Phases::starting_at(start, &plan);
        let mut caller = Caller::new(0, &plan, phases);
        let Turn::WaitUntil(due) = caller.turn(start) else {
            panic!("nothing arrives at the very start");
        };
        caller.sent(due);
        caller.give_up_if_late(phases.end);
        assert_eq!(caller.turn(phases.end), Turn::WaitForAck);
        let late = phases.give_up;
        caller.give_up_if_late(late);
        assert_eq!(caller.turn(late), Turn::Done);
        let unanswered = caller.tally.unanswered;
        assert!(
            (330..=470).contains(&unanswered),
            "{unanswered} of 4 s at 100/s"
        );
        assert_eq!(caller.tally.latencies.count(), unanswered);
    }
}
