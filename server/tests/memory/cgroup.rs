//! Cgroup: a limit on the memory of the process under test, where one can be set.
//!
//! **Not here**: what is measured without one.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

static MADE: AtomicU32 = AtomicU32::new(0);

/// A memory cgroup, of version 2 or 1.
pub struct Cgroup(PathBuf);

impl Cgroup {
    /// One of `bytes`; `None` where that is not allowed.
    pub fn make(bytes: u64) -> Option<Self> {
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        let name = format!("sealog-test-{}-{number}", std::process::id());
        let root = Path::new("/sys/fs/cgroup");
        let controllers = fs::read_to_string(root.join("cgroup.controllers")).unwrap_or_default();
        let (dir, limit) = match controllers.split_whitespace().any(|name| name == "memory") {
            true => (root.join(name), "memory.max"),
            false => (root.join("memory").join(name), "memory.limit_in_bytes"),
        };
        fs::create_dir(&dir).ok()?;
        let cgroup = Self(dir);
        fs::write(cgroup.0.join(limit), bytes.to_string()).ok()?;
        let _ = fs::write(cgroup.0.join("memory.swap.max"), "0");
        Some(cgroup)
    }

    /// The file that a process's number goes into.
    pub fn procs(&self) -> PathBuf {
        self.0.join("cgroup.procs")
    }

    /// What it says of itself, for people.
    pub fn told(&self) -> Vec<(&'static str, String)> {
        let files = [
            "memory.events",
            "memory.peak",
            "memory.failcnt",
            "memory.max_usage_in_bytes",
        ];
        let told = files.map(|file| (file, fs::read_to_string(self.0.join(file)).ok()));
        let said = |(file, text): (_, Option<String>)| Some((file, text?.trim().to_owned()));
        told.into_iter().filter_map(said).collect()
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        // It is busy until its process is gone, which the server's drop waited for.
        let _ = fs::remove_dir(&self.0);
    }
}
