//! Clock: realtime as a bad clock shows it, apart from the monotonic time of the executor.
//!
//! **Invariants**
//! - Monotonic time is never touched from here.
//! - Without faults realtime is the start time plus monotonic time.
//!
//! **Not here**: timers; they go by monotonic time.

use super::faults::Fault;
use super::rng::Rng;

const START_MS: u64 = 1_750_000_000_000;
const DAY_MS: u64 = 86_400_000;

/// State of the realtime clock: a line through an anchor.
#[derive(Debug)]
pub(super) struct Clock {
    anchor_ns: u64,
    anchor_ms: u64,
    /// Parts per million of monotonic speed.
    speed_ppm: u64,
    frozen_until_ns: u64,
}

impl Default for Clock {
    fn default() -> Self {
        Self {
            anchor_ns: 0,
            anchor_ms: START_MS,
            speed_ppm: 1_000_000,
            frozen_until_ns: 0,
        }
    }
}

impl Clock {
    /// What the clock shows at monotonic `now_ns`.
    pub(super) fn read(&self, now_ns: u64) -> u64 {
        if now_ns < self.frozen_until_ns {
            return self.anchor_ms;
        }
        let ms = (now_ns - self.anchor_ns) / 1_000_000;
        self.anchor_ms + ms * self.speed_ppm / 1_000_000
    }

    /// Lets `fault` happen to the clock at `now_ns`.
    pub(super) fn disturb(&mut self, fault: Fault, now_ns: u64, rng: &mut Rng) {
        let shown = self.read(now_ns);
        self.anchor_ns = now_ns;
        self.anchor_ms = shown;
        self.frozen_until_ns = 0;
        match fault {
            Fault::ClockSkew => self.speed_ppm = rng.between(800_000, 1_200_000),
            Fault::ClockJump => {
                let far = rng.below(2 * DAY_MS);
                self.anchor_ms = if rng.coin() {
                    shown + far
                } else {
                    shown.saturating_sub(far)
                };
            }
            Fault::ClockFreeze => self.frozen_until_ns = now_ns + rng.below(60_000_000_000),
            Fault::Clock1970 => self.anchor_ms = rng.below(1_000),
            other => unreachable!("{} is no clock fault", other.name()),
        }
    }
}

/// The faults that [`Clock::disturb`] knows.
pub(super) const CLOCK_FAULTS: [Fault; 4] = [
    Fault::ClockSkew,
    Fault::ClockJump,
    Fault::ClockFreeze,
    Fault::Clock1970,
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clock_undisturbed_follows_monotonic_time() {
        let clock = Clock::default();
        assert_eq!(clock.read(0), START_MS);
        assert_eq!(clock.read(5_000_000), START_MS + 5);
    }

    #[test]
    fn clock_frozen_stands_then_catches_up() {
        let mut rng = Rng::derive(1, "clock");
        let mut clock = Clock::default();
        clock.disturb(Fault::ClockFreeze, 1_000_000, &mut rng);
        let end_ns = clock.frozen_until_ns;
        assert_eq!(clock.read(end_ns - 1), START_MS + 1);
        assert_eq!(clock.read(end_ns), START_MS + end_ns / 1_000_000);
    }

    #[test]
    fn clock_1970_shows_the_first_second() {
        let mut rng = Rng::derive(1, "clock");
        let mut clock = Clock::default();
        clock.disturb(Fault::Clock1970, 9_000_000, &mut rng);
        assert!(clock.read(9_000_000) < 1_000);
    }

    #[test]
    fn clock_jump_goes_either_way() {
        let mut rng = Rng::derive(1, "clock");
        let mut back = 0;
        for _ in 0..100 {
            let mut clock = Clock::default();
            clock.disturb(Fault::ClockJump, 0, &mut rng);
            back += u32::from(clock.read(0) < START_MS);
        }
        assert!((30..70).contains(&back), "{back}");
    }
}
