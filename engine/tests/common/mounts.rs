//! Mounts: small filesystems made for one test, gone with it. Needs root.
//!
//! **Invariants**
//! - Dropping one unmounts it and frees its loop device, also when the test failed.
//! - Without root the test is told so, and says that it was skipped.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Whether mounting is possible; prints why not.
pub fn can_mount(case: &str) -> bool {
    // SAFETY: takes nothing, cannot fail.
    let root = unsafe { libc::geteuid() } == 0;
    let tools = ["mount", "umount", "mkfs.ext4", "losetup"];
    let missing: Vec<_> = tools.into_iter().filter(|tool| !has(tool)).collect();
    if root && missing.is_empty() {
        return true;
    }
    println!("SKIPPED {case}: root: {root}, missing tools: {missing:?}");
    false
}

fn has(tool: &str) -> bool {
    ["/sbin", "/usr/sbin", "/bin", "/usr/bin"]
        .iter()
        .any(|dir| Path::new(dir).join(tool).exists())
}

fn run(command: &mut Command) -> Result<String, String> {
    command.env("PATH", "/usr/sbin:/sbin:/usr/bin:/bin");
    let output = command.output().map_err(|e| e.to_string())?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned());
    }
    Err(String::from_utf8_lossy(&output.stderr).into_owned())
}

/// A mounted filesystem.
pub struct Mount {
    /// Where it is mounted.
    pub dir: PathBuf,
    device: Option<String>,
    _scratch: tempfile::TempDir,
}

impl Mount {
    /// An ext4 of `mib` MiB on a loop device; `None`, with the reason printed, if that cannot be had.
    pub fn ext4(case: &str, mib: u64) -> Option<Self> {
        let scratch = super::scratch();
        let file = scratch.path().join("disk");
        std::fs::File::create(&file)
            .unwrap()
            .set_len(mib << 20)
            .unwrap();
        let made = run(Command::new("mkfs.ext4")
            .args(["-q", "-F", "-m", "0"])
            .arg(&file));
        made.expect("mkfs.ext4");
        let device = match run(Command::new("losetup").args(["-f", "--show"]).arg(&file)) {
            Ok(device) => device,
            Err(error) => {
                println!("SKIPPED {case}: losetup: {error}");
                return None;
            }
        };
        let dir = scratch.path().join("mnt");
        std::fs::create_dir(&dir).unwrap();
        let mut mount = Self {
            dir,
            device: Some(device.clone()),
            _scratch: scratch,
        };
        match run(Command::new("mount").arg(&device).arg(&mount.dir)) {
            Ok(_) => Some(mount),
            Err(error) => {
                println!("SKIPPED {case}: mount: {error}");
                mount.dir = PathBuf::new();
                None
            }
        }
    }

    /// Bytes written to its device so far, those of the filesystem's own among them.
    #[allow(dead_code, reason = "one test looks")]
    pub fn written(&self) -> u64 {
        let device = self.device.as_deref().unwrap().trim_start_matches("/dev/");
        let stat = std::fs::read_to_string(format!("/sys/block/{device}/stat")).unwrap();
        stat.split_whitespace()
            .nth(6)
            .unwrap()
            .parse::<u64>()
            .unwrap()
            * 512
    }

    /// An overlay over an empty folder of the test's own disk.
    pub fn overlay(case: &str, lower: &Path) -> Option<Self> {
        let scratch = super::scratch();
        let [upper, work, dir] = ["upper", "work", "mnt"].map(|name| scratch.path().join(name));
        for made in [&upper, &work, &dir] {
            std::fs::create_dir(made).unwrap();
        }
        let options = format!(
            "lowerdir={},upperdir={},workdir={}",
            lower.display(),
            upper.display(),
            work.display()
        );
        let mounted = run(Command::new("mount")
            .args(["-t", "overlay", "overlay", "-o", &options])
            .arg(&dir));
        if let Err(error) = mounted {
            println!("SKIPPED {case}: overlay: {error}");
            return None;
        }
        Some(Self {
            dir,
            device: None,
            _scratch: scratch,
        })
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        if self.dir.exists() {
            let plain = run(Command::new("umount").arg(&self.dir));
            if plain.is_err() {
                // A test that failed may still hold files there.
                let _ = run(Command::new("umount").arg("-l").arg(&self.dir));
            }
        }
        if let Some(device) = &self.device {
            let _ = run(Command::new("losetup").args(["-d", device]));
        }
    }
}

/// Bytes that anyone may still write there.
pub fn free_bytes(dir: &Path) -> u64 {
    use std::os::unix::ffi::OsStrExt;
    let path = std::ffi::CString::new(dir.as_os_str().as_bytes()).unwrap();
    // SAFETY: all-zero bytes are a valid statvfs.
    let mut stat: libc::statvfs = unsafe { std::mem::zeroed() };
    // SAFETY: the path is NUL-terminated, `stat` is the structure the call fills.
    assert_eq!(unsafe { libc::statvfs(path.as_ptr(), &mut stat) }, 0);
    stat.f_bavail * stat.f_frsize
}
