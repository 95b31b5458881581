//! Process: what this process uses: memory and CPU time.
//!
//! **Invariants**
//! - Figures are the kernel's own.
//!
//! **Not here**: limits on them (edge.sh sets those).

use std::time::Duration;

/// Resident memory in bytes; 0 where the kernel doesn't say.
pub fn resident_bytes() -> u64 {
    status_bytes("VmRSS:")
}

/// Most resident memory so far, in bytes; 0 where the kernel doesn't say.
pub fn resident_peak_bytes() -> u64 {
    status_bytes("VmHWM:")
}

fn status_bytes(field: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix(field));
    let kib = line.and_then(|rest| rest.trim().trim_end_matches(" kB").parse::<u64>().ok());
    kib.unwrap_or(0) * 1024
}

/// CPU time used so far by all threads, user and system.
pub fn cpu_time() -> Duration {
    // SAFETY: all-zero bytes are a valid `rusage`.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: `usage` outlives the call, which only writes it.
    let status = unsafe { libc::getrusage(libc::RUSAGE_SELF, &mut usage) };
    if status != 0 {
        return Duration::ZERO;
    }
    let part = |time: libc::timeval| {
        let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
        let micros = u64::try_from(time.tv_usec).unwrap_or(0);
        Duration::from_secs(seconds) + Duration::from_micros(micros)
    };
    part(usage.ru_utime) + part(usage.ru_stime)
}

/// CPU time that the calling thread has used so far.
pub fn thread_cpu_time() -> Duration {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `time` outlives the call, which only writes it.
    let status = unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    if status != 0 {
        return Duration::ZERO;
    }
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    let nanos = u64::try_from(time.tv_nsec).unwrap_or(0);
    Duration::from_secs(seconds) + Duration::from_nanos(nanos)
}

/// CPU time that process `pid` has used so far, user and system; `None` if there is none or it isn't told.
pub fn cpu_time_of(pid: u32) -> Option<Duration> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // SAFETY: a plain call.
    let ticks_per_s = u64::try_from(unsafe { libc::sysconf(libc::_SC_CLK_TCK) }).ok()?;
    let ticks = stat_cpu_ticks(&stat)?;
    Some(Duration::from_nanos(
        ticks * (1_000_000_000 / ticks_per_s.max(1)),
    ))
}

/// User and system ticks of a line of /proc/PID/stat, whose second field may hold blanks and brackets.
fn stat_cpu_ticks(stat: &str) -> Option<u64> {
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let tick = |n: usize| fields.get(n)?.parse::<u64>().ok();
    Some(tick(11)? + tick(12)?)
}

/// Lets this thread's timed waits end within a microsecond of their time instead of the default 50.
pub fn wake_on_time() {
    // SAFETY: sets a number of the calling thread; failure leaves the default.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1_000u64) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_ticks_of_a_name_with_brackets_are_found() {
        let stat = "7 (a) b) S 1 7 7 0 -1 4194560 1 2 3 4 50 60 7 8 20 0 1 0 9 10 11";
        assert_eq!(stat_cpu_ticks(stat), Some(110));
        assert_eq!(stat_cpu_ticks("7 (a) S 1"), None);
    }

    #[test]
    fn cpu_time_of_this_process_is_known_and_of_none_is_not() {
        assert!(cpu_time_of(std::process::id()).is_some());
        assert_eq!(cpu_time_of(u32::MAX), None);
    }
}
