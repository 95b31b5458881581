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
