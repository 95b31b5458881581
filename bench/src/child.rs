//! Child: servers that a benchmark starts: on a free port of loopback, with a folder, ended with it.
//!
//! **Invariants**
//! - A server is ended by its process id, also when this process is killed.
//! - What it says is kept in its folder, and told when it doesn't come up.
//!
//! **Not here**: what it is started with (`compare::peers`, `compare::own`).

use std::fs::File;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::Result;
use crate::generator::{PayloadPool, Plan, Share, Target};

/// Longest wait for a server to answer, and to end.
const START_MAX: Duration = Duration::from_secs(30);
const END_MAX: Duration = Duration::from_secs(15);
/// Time between looks.
const LOOK: Duration = Duration::from_millis(20);
/// The end of what a server said that is told.
const TOLD_BYTES: usize = 2000;

/// A server that was started here and what is appended to; both end together.
pub struct Served<T> {
    target: T,
    // Dropped after the target.
    _server: Server,
}

impl<T: Target> Served<T> {
    /// Keeps `server` for as long as the target.
    pub fn new(target: T, server: Server) -> Self {
        Self {
            target,
            _server: server,
        }
    }
}

impl<T: Target> Target for Served<T> {
    fn empty(&self, plan: &Plan) -> Result<()> {
        self.target.empty(plan)
    }

    fn connect<'a>(
        &'a self,
        plan: &Plan,
        pool: &'a PayloadPool,
        clients: std::ops::Range<usize>,
    ) -> Result<Box<dyn Share + Send + 'a>> {
        self.target.connect(plan, pool, clients)
    }

    fn server_cpu(&self) -> Option<Duration> {
        self.target.server_cpu()
    }
}

/// A process of ours.
pub struct Server {
    child: Child,
    dir: PathBuf,
}

impl Server {
    /// Starts `command`; what it says goes to `dir`.
    ///
    /// # Errors
    /// It can't be started.
    pub fn start(mut command: Command, dir: &Path) -> Result<Self> {
        std::fs::create_dir_all(dir)?;
        let log = File::create(dir.join("log"))?;
        command
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log);
        end_with_this_process(&mut command);
        let child = command
            .spawn()
            .map_err(|error| format!("starting {command:?}: {error}"))?;
        let dir = dir.to_owned();
        Ok(Self { child, dir })
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits until it answers.
    ///
    /// # Errors
    /// It doesn't in time, or has ended; with what it said.
    pub fn wait_for(&mut self, is_up: &dyn Fn() -> bool) -> Result<()> {
        let start = Instant::now();
        while start.elapsed() < START_MAX {
            if is_up() {
                return Ok(());
            }
            if let Some(status) = self.child.try_wait()? {
                return Err(format!("a server ended, {status}: {}", self.last_words()).into());
            }
            std::thread::sleep(LOOK);
        }
        let said = self.last_words();
        Err(format!("a server did not answer in {START_MAX:?}; it said: {said}").into())
    }

    fn last_words(&self) -> String {
        let log = std::fs::read(self.dir.join("log")).unwrap_or_default();
        let from = log.len().saturating_sub(TOLD_BYTES);
        String::from_utf8_lossy(&log[from..]).into_owned()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Ok(Some(_)) = self.child.try_wait() {
            return;
        }
        let pid = self.child.id().cast_signed();
        // SAFETY: a plain call; the process isn't waited for yet, so the number is still its own.
        unsafe { libc::kill(pid, libc::SIGTERM) };
        let start = Instant::now();
        while start.elapsed() < END_MAX {
            if let Ok(Some(_)) = self.child.try_wait() {
                return;
            }
            std::thread::sleep(LOOK);
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Has the kernel end the child when the thread that starts it ends: the main thread, so the process.
fn end_with_this_process(command: &mut Command) {
    let parent = std::process::id();
    let arm = move || {
        // SAFETY: plain calls that are allowed between fork and exec.
        unsafe {
            if libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGTERM) != 0 {
                return Err(std::io::Error::last_os_error());
            }
            // It may have ended before that.
            if libc::getppid().cast_unsigned() != parent {
                libc::_exit(1);
            }
        }
        Ok(())
    };
    // SAFETY: `arm` makes system calls only; it allocates nothing and takes no lock.
    unsafe { command.pre_exec(arm) };
}

/// A port of loopback that nobody listens on.
pub fn free_address() -> Result<SocketAddr> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    Ok(listener.local_addr()?)
}

/// A program in one of `places`, or on PATH.
pub fn find_program(name: &str, places: &[PathBuf]) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let on_path = std::env::split_paths(&path);
    places
        .iter()
        .cloned()
        .chain(on_path)
        .map(|place| place.join(name))
        .find(|path| path.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(name: &str, script: &str) -> (Server, PathBuf) {
        let name = format!("sealog-bench-{name}-{}", std::process::id());
        let dir = std::env::temp_dir().join(name);
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        (Server::start(command, &dir).expect("sh"), dir)
    }

    #[test]
    fn server_is_ended_when_dropped_and_its_words_are_kept() {
        let (mut server, dir) = shell("ends", "echo hello; exec sleep 1000");
        let log = dir.join("log");
        let said = || std::fs::read_to_string(&log).is_ok_and(|text| text == "hello\n");
        server.wait_for(&said).expect("its words");
        let process = PathBuf::from(format!("/proc/{}", server.pid()));
        assert!(process.exists());
        drop(server);
        assert!(!process.exists());
        std::fs::remove_dir_all(&dir).expect("its folder");
    }

    #[test]
    fn server_that_ends_at_once_is_told_with_its_words() {
        let (mut server, dir) = shell("fails", "echo no such option; exit 3");
        let error = server.wait_for(&|| false).expect_err("it has ended");
        let said = error.to_string();
        assert!(
            said.contains("no such option") && said.contains('3'),
            "{said}"
        );
        std::fs::remove_dir_all(&dir).expect("its folder");
    }
}
