//! Faults: the menu of what may go wrong, each with a toggle, a policy and a counter.
//!
//! **Invariants**
//! - A fault at rate 0 draws nothing, so switching one off doesn't reshuffle the others' streams
//!   beyond its own draws.
//! - Every fault that fired is counted; a scenario can assert that what it asked for took place.
//!
//! **Not here**: what each fault does, the disk, bucket, clock and executor do that.

use super::rng::Rng;
use std::fmt;

macro_rules! menu {
    ($($(#[doc = $doc:literal])* $name:ident = $text:literal,)*) => {
        /// Everything that may go wrong.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
        #[repr(usize)]
        pub enum Fault { $($(#[doc = $doc])* $name,)* }

        impl Fault {
            /// All of them, in order.
            pub const ALL: &'static [Fault] = &[$(Fault::$name,)*];
            /// Name in traces and counters.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self { $(Fault::$name => $text,)* }
            }
        }
    };
}

menu! {
    /// Policy: `EIO` from the device; nothing is returned, later reads of the range may work.
    ReadEio = "read-eio",
    /// Policy: `EIO`; of the range any sectors, or none, have landed, unsynced.
    WriteEio = "write-eio",
    /// Policy: `EIO`; of the unsynced writes some are durable, some will be after the next sync, and
    /// some look written but no later sync saves them: whoever retries a sync loses data.
    SyncEio = "sync-eio",
    /// Policy: `ENOSPC` though there is room (a quota, a thin volume); sectors may have landed.
    NoSpace = "no-space",
    /// Policy: the device hands over fewer bytes; half are hidden by a retry below the seam (late),
    /// half surface as `UnexpectedEof`.
    ShortRead = "short-read",
    /// Policy: a write that was in the cache when power went survives in some sectors only.
    TornWrite = "torn-write",
    /// Policy: the device writes the right bytes at another block of the same file and says `Ok`.
    /// Breaks acknowledged data for good: assert detection, not survival.
    Misdirected = "misdirected",
    /// Policy: one bit of durable content flips, at rest. Assert detection, not survival.
    BitRot = "bit-rot",
    /// Policy: on power loss each unsynced write is lost on its own: any subset survives.
    LostWrite = "lost-write",
    /// Policy: on power loss unsynced directory changes are lost: a tail of them, or any subset.
    LostEntry = "lost-entry",
    /// Policy: one disk operation takes 0.1 to 20 s.
    DiskStall = "disk-stall",
    /// Policy: the bucket answers 5xx and did nothing.
    BucketErrorBefore = "bucket-5xx-before",
    /// Policy: the bucket did it and answers 5xx.
    BucketErrorAfter = "bucket-5xx-after",
    /// Policy: one call takes 1 to 60 s.
    BucketSlow = "bucket-slow",
    /// Policy: a listing misses objects of the last 10 s and shows ones deleted in it.
    StaleList = "stale-list",
    /// Policy: a conditional put took effect and its answer never comes: an error after 30 s.
    LostResponse = "lost-response",
    /// Policy: the connection breaks in the body: a read gives nothing, a write has no effect.
    ResetMidBody = "reset-mid-body",
    /// Policy: realtime runs up to 20 % fast or slow from here on.
    ClockSkew = "clock-skew",
    /// Policy: realtime jumps by up to two days, either way.
    ClockJump = "clock-jump",
    /// Policy: realtime stands still for up to a minute, then catches up.
    ClockFreeze = "clock-freeze",
    /// Policy: realtime falls to 1970 and counts from there.
    Clock1970 = "clock-1970",
    /// Policy: power loss: see `LostWrite`, `TornWrite`, `LostEntry`. Fired by the harness.
    Crash = "crash",
    /// Policy: the process dies; what was written stays in the cache, unsynced. By the harness.
    Kill = "kill",
    /// Policy: a write that was in flight when the process was killed lands up to 3 s later, while the
    /// next process runs. A power loss takes it.
    LateWrite = "late-write",
    /// Policy: the process doesn't run for 0.1 to 30 s while time and devices go on.
    Pause = "pause",
}

const FAULTS: usize = Fault::ALL.len();

/// A disk fault that fires at chosen operations instead of by chance.
#[derive(Debug, Clone, Copy)]
pub struct Strike {
    /// What happens.
    pub fault: Fault,
    /// At files and directories whose path ends so.
    pub path: &'static str,
    /// Operations that are spared first.
    pub after: u64,
    /// Operations that are hit then.
    pub times: u64,
}

/// How often each fault fires, and the sizes of things that can fill up.
#[derive(Debug, Clone)]
pub struct FaultPlan {
    /// Fires beside what chance brings.
    pub strike: Option<Strike>,
    ppm: [u32; FAULTS],
    /// Bytes of blocks the disk can hold.
    pub disk_capacity_bytes: u64,
    /// Bytes of objects the bucket can hold.
    pub bucket_capacity_bytes: u64,
    /// Unit in which a write tears: 512 (a sector) or 4096 (a drive that writes blocks whole).
    pub sector_bytes: usize,
    /// Path part that disk faults are limited to: errors elsewhere would only repeat a scenario.
    pub disk_only: Option<&'static str>,
}

impl FaultPlan {
    /// Nothing goes wrong, not even at a power loss: every write survives it.
    #[must_use]
    pub fn none() -> Self {
        Self {
            strike: None,
            ppm: [0; FAULTS],
            disk_capacity_bytes: u64::MAX,
            bucket_capacity_bytes: u64::MAX,
            sector_bytes: 512,
            disk_only: None,
        }
    }

    /// An honest disk that loses what was not synced: half of the unsynced writes, torn at sectors,
    /// and half of the unsynced names.
    #[must_use]
    pub fn power_loss() -> Self {
        Self::none()
            .with(Fault::LostWrite, 500_000)
            .with(Fault::TornWrite, 300_000)
            .with(Fault::LostEntry, 500_000)
    }

    /// As [`FaultPlan::power_loss`], and a bucket and a clock that misbehave in every way that loses
    /// nothing.
    #[must_use]
    pub fn rough() -> Self {
        Self::power_loss()
            .with(Fault::ShortRead, 1_000)
            .with(Fault::DiskStall, 500)
            .with(Fault::BucketErrorBefore, 30_000)
            .with(Fault::BucketErrorAfter, 30_000)
            .with(Fault::BucketSlow, 10_000)
            .with(Fault::StaleList, 200_000)
            .with(Fault::LostResponse, 20_000)
            .with(Fault::ResetMidBody, 20_000)
            .with(Fault::ClockSkew, 5_000)
            .with(Fault::ClockJump, 5_000)
            .with(Fault::ClockFreeze, 5_000)
            .with(Fault::Clock1970, 1_000)
            .with(Fault::Pause, 20)
    }

    /// Sets the rate of one fault, in events per million chances.
    #[must_use]
    pub fn with(mut self, fault: Fault, ppm: u32) -> Self {
        self.ppm[fault as usize] = ppm;
        self
    }

    /// Limits disk errors to paths that contain `part`.
    #[must_use]
    pub fn on_paths(mut self, part: &'static str) -> Self {
        self.disk_only = Some(part);
        self
    }

    /// Swarm testing: each fault of this plan stays, or is off, by a draw of its own; what is left
    /// is hit more often together.
    #[must_use]
    pub fn swarm(mut self, rng: &mut Rng) -> Self {
        for ppm in &mut self.ppm {
            let keep = rng.coin();
            *ppm = if keep { *ppm } else { 0 };
        }
        self
    }

    /// The rate of one fault.
    #[must_use]
    pub fn rate_ppm(&self, fault: Fault) -> u32 {
        self.ppm[fault as usize]
    }
}

/// A plan at work: rates, counters and whether it has been healed.
#[derive(Debug)]
pub struct Faults {
    /// The plan; may be changed between steps of a scenario.
    pub plan: FaultPlan,
    healed: bool,
    counts: [u64; FAULTS],
    /// Operations that the plan's strike has looked at.
    struck: u64,
}

impl Faults {
    pub(super) fn new(plan: FaultPlan) -> Self {
        Self {
            plan,
            healed: false,
            counts: [0; FAULTS],
            struck: 0,
        }
    }

    /// From here on errors stop (what a power loss loses stays as planned): the part of a scenario
    /// that asserts liveness.
    pub fn heal(&mut self) {
        self.healed = true;
    }

    /// Undoes [`Faults::heal`].
    pub fn resume(&mut self) {
        self.healed = false;
    }

    /// Draws from `rng` whether `fault` fires now, and counts it.
    pub(super) fn fires(&mut self, fault: Fault, rng: &mut Rng) -> bool {
        let power = matches!(
            fault,
            Fault::LostWrite | Fault::TornWrite | Fault::LostEntry
        );
        if self.healed && !power {
            return false;
        }
        let fired = rng.chance_ppm(self.plan.rate_ppm(fault));
        if fired {
            self.count(fault);
        }
        fired
    }

    /// Whether the plan's strike hits this operation on the file `name`, and counts it.
    pub(super) fn strikes(&mut self, fault: Fault, name: &str) -> bool {
        let Some(strike) = self.plan.strike else {
            return false;
        };
        if self.healed || strike.fault != fault || !name.ends_with(strike.path) {
            return false;
        }
        self.struck += 1;
        let hit =
            (strike.after..strike.after.saturating_add(strike.times)).contains(&(self.struck - 1));
        if hit {
            self.count(fault);
        }
        hit
    }

    /// Arms `strike`, or disarms with `None`; operations count from here on.
    pub fn strike(&mut self, strike: Option<Strike>) {
        self.plan.strike = strike;
        self.struck = 0;
    }

    pub(super) fn count(&mut self, fault: Fault) {
        self.counts[fault as usize] += 1;
    }

    /// How often `fault` fired.
    #[must_use]
    pub fn fired(&self, fault: Fault) -> u64 {
        self.counts[fault as usize]
    }
}

impl fmt::Display for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut any = false;
        for &fault in Fault::ALL {
            let n = self.fired(fault);
            if n > 0 {
                write!(f, "{}{}={n}", if any { " " } else { "" }, fault.name())?;
                any = true;
            }
        }
        if any { Ok(()) } else { f.write_str("none") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_off_never_fire_and_draw_nothing() {
        let mut rng = Rng::derive(1, "disk");
        let before = format!("{rng:?}");
        let mut faults = Faults::new(FaultPlan::none());
        for &fault in Fault::ALL {
            assert!(!faults.fires(fault, &mut rng));
        }
        assert_eq!(before, format!("{rng:?}"));
        assert_eq!(faults.to_string(), "none");
    }

    #[test]
    fn faults_fired_are_counted_by_name() {
        let mut rng = Rng::derive(1, "disk");
        let mut faults = Faults::new(FaultPlan::none().with(Fault::SyncEio, 1_000_000));
        assert!(faults.fires(Fault::SyncEio, &mut rng));
        assert_eq!(faults.to_string(), "sync-eio=1");
    }

    #[test]
    fn faults_strike_armed_anew_counts_from_there() {
        let strike = Strike {
            fault: Fault::SyncEio,
            path: ".seg",
            after: 1,
            times: 1,
        };
        let mut faults = Faults::new(FaultPlan::none());
        for _ in 0..2 {
            faults.strike(Some(strike));
            let hits = [(); 3].map(|()| faults.strikes(Fault::SyncEio, "1.seg"));
            assert_eq!(hits, [false, true, false]);
        }
        faults.strike(None);
        assert!(!faults.strikes(Fault::SyncEio, "1.seg"));
    }

    #[test]
    fn faults_healed_stop_errors_but_not_power_loss() {
        let plan = FaultPlan::power_loss()
            .with(Fault::SyncEio, 1_000_000)
            .with(Fault::LostWrite, 1_000_000);
        let mut rng = Rng::derive(1, "disk");
        let mut faults = Faults::new(plan);
        faults.heal();
        assert!(!faults.fires(Fault::SyncEio, &mut rng));
        assert!(faults.fires(Fault::LostWrite, &mut rng));
    }
}
