//! Flushes: how often the measured disk was told to empty its cache, and what that says about acknowledgements.
//!
//! **Invariants**
//! - A peer is called not durable only if no order of its writes and flushes explains its answers: one
//!   flush can settle no more appends than were in flight.
//! - The converse isn't claimed: other processes' flushes count too, so "explained" is no proof.
//!
//! **Not here**: which peers claim to be durable (`peers`).

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Flushes may fall short of the need by this much: the first and last appends of a run.
const SLACK: f64 = 0.95;
/// Field of /sys/block/*/stat, counted from 0: flush requests completed.
const STAT_FLUSHES: usize = 15;

/// The disk below a folder.
pub struct Device {
    sysfs: Option<PathBuf>,
    untold: Option<String>,
}

impl Device {
    /// The disk that `dir` lies on.
    pub fn under(dir: &Path) -> Self {
        match sysfs_of(dir) {
            None => Self {
                sysfs: None,
                untold: Some("no block device is known for the folder".to_owned()),
            },
            Some(sysfs) => {
                let read = |name: &str| std::fs::read_to_string(sysfs.join("queue").join(name));
                let cache = read("write_cache").unwrap_or_default();
                let fua = read("fua").unwrap_or_default();
                Self {
                    untold: untold(&cache, &fua),
                    sysfs: Some(sysfs),
                }
            }
        }
    }

    /// For the head of a report.
    pub fn describe(&self) -> String {
        let name = self.sysfs.as_ref().and_then(|path| path.file_name());
        let name = name.map_or("unknown", |name| name.to_str().unwrap_or("unknown"));
        match &self.untold {
            None => format!("{name}, flushes counted"),
            Some(why) => format!("{name}, durability can't be checked: {why}"),
        }
    }

    /// Flushes completed since it was attached.
    pub fn flushes(&self) -> Option<u64> {
        let stat = std::fs::read_to_string(self.sysfs.as_ref()?.join("stat")).ok()?;
        stat.split_whitespace().nth(STAT_FLUSHES)?.parse().ok()
    }

    /// What `flushes` say about `acks` given while up to `in_flight_max` were on their way.
    pub fn judge(&self, flushes: Option<u64>, acks: u64, in_flight_max: u64) -> Verdict {
        match (&self.untold, flushes) {
            (Some(why), _) => Verdict::Untold(why.clone()),
            (None, None) => Verdict::Untold("the disk tells no flushes".to_owned()),
            (None, Some(flushes)) => judge(flushes, acks, in_flight_max),
        }
    }
}

/// What flushes say about acknowledgements.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// There were enough of them.
    Explained,
    /// Appends were acknowledged that no flush can have settled.
    NotDurable,
    /// Nothing, and why.
    Untold(String),
}

impl Verdict {
    /// For a table cell.
    pub fn cell(&self) -> &'static str {
        match self {
            Self::Explained => "explained",
            Self::NotDurable => "NOT DURABLE",
            Self::Untold(_) => "untold",
        }
    }
}

/// Between two flushes no more can be settled than is in flight.
fn judge(flushes: u64, acks: u64, in_flight_max: u64) -> Verdict {
    let needed = acks.div_ceil(in_flight_max.max(1));
    if flushes as f64 >= needed as f64 * SLACK {
        Verdict::Explained
    } else {
        Verdict::NotDurable
    }
}

/// Why flushes would prove nothing on a disk with this cache mode and FUA setting.
fn untold(write_cache: &str, fua: &str) -> Option<String> {
    match (write_cache.trim(), fua.trim()) {
        ("write back", "0") => None,
        ("write back", _) => Some("the disk takes writes past its cache (FUA)".to_owned()),
        ("write through", _) => Some("the disk has no cache that loses anything".to_owned()),
        _ => Some("the kernel doesn't say how the disk caches".to_owned()),
    }
}

/// The whole disk's folder in sysfs: flushes are counted for it, not for its partitions.
fn sysfs_of(dir: &Path) -> Option<PathBuf> {
    let number = std::fs::metadata(dir).ok()?.dev();
    let (major, minor) = (libc::major(number), libc::minor(number));
    let path = match std::fs::canonicalize(format!("/sys/dev/block/{major}:{minor}")) {
        Ok(path) => path,
        // File systems of several disks have numbers of their own; the mount says which one it is.
        Err(_) => {
            let mounts = std::fs::read_to_string("/proc/self/mountinfo").ok()?;
            let source = mount_source(&mounts, &format!("{major}:{minor}"))?;
            let name = Path::new(source).file_name()?.to_owned();
            std::fs::canonicalize(Path::new("/sys/class/block").join(name)).ok()?
        }
    };
    if path.join("partition").exists() {
        return path.parent().map(Path::to_path_buf);
    }
    Some(path)
}

/// The device of the mount with this number, if it is a file below /dev.
fn mount_source<'a>(mountinfo: &'a str, number: &str) -> Option<&'a str> {
    let mut lines = mountinfo.lines();
    let line = lines.find(|line| line.split(' ').nth(2) == Some(number))?;
    let (_, rest) = line.split_once(" - ")?;
    let source = rest.split(' ').nth(1)?;
    source.starts_with("/dev/").then_some(source)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_at_a_time_needs_a_flush_each() {
        assert_eq!(judge(1000, 1000, 1), Verdict::Explained);
        assert_eq!(judge(960, 1000, 1), Verdict::Explained);
        assert_eq!(judge(900, 1000, 1), Verdict::NotDurable);
        // A server that said yes 8,000 times over 241 flushes.
        assert_eq!(judge(241, 8000, 1), Verdict::NotDurable);
    }

    #[test]
    fn a_flush_settles_no_more_than_was_in_flight() {
        assert_eq!(judge(1000, 256_000, 256), Verdict::Explained);
        assert_eq!(judge(500, 256_000, 256), Verdict::NotDurable);
        assert_eq!(judge(3, 300_000, 256), Verdict::NotDurable);
        assert_eq!(judge(1, 10, 256), Verdict::Explained);
        assert_eq!(judge(0, 10, 256), Verdict::NotDurable);
        assert_eq!(judge(0, 0, 256), Verdict::Explained);
    }

    #[test]
    fn a_disk_without_a_lossy_cache_tells_nothing() {
        assert_eq!(untold("write back\n", "0\n"), None);
        assert!(untold("write through\n", "0\n").is_some());
        assert!(untold("write back\n", "1\n").is_some());
        assert!(untold("", "").is_some());
        let device = Device {
            sysfs: None,
            untold: Some("why".to_owned()),
        };
        let verdict = device.judge(Some(0), 1000, 1);
        assert_eq!(verdict, Verdict::Untold("why".to_owned()));
    }

    #[test]
    fn mount_source_is_found_by_number() {
        let text = "29 1 0:26 / /sys rw - sysfs sysfs rw\n\
                    30 1 0:44 /@ / rw,noatime shared:1 - btrfs /dev/nvme0n1p2 rw\n";
        assert_eq!(mount_source(text, "0:44"), Some("/dev/nvme0n1p2"));
        assert_eq!(mount_source(text, "0:26"), None);
        assert_eq!(mount_source(text, "8:1"), None);
    }
}
