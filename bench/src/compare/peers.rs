//! Peers: servers that are set beside Sealog: found, started on loopback in a folder of their own, ended.
//!
//! **Invariants**
//! - A peer that was started is ended by its process id, also when this process is killed.
//! - Settings are the strictest that the peer's name promises, and nothing is switched on that slows it otherwise.
//!
//! **Not here**: what is measured (`workloads`), whether answers are believable (`flushes`).

use std::fs::File;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::Result;
use crate::generator::Target;
use crate::targets::TargetUrl;
use crate::targets::nats::NatsTarget;
use crate::targets::resp::RedisTarget;

/// Longest wait for a peer to answer, and to end.
const START_MAX: Duration = Duration::from_secs(15);
const END_MAX: Duration = Duration::from_secs(15);
/// Time between looks.
const LOOK: Duration = Duration::from_millis(20);
/// The folder that bench/peers.sh fills.
pub const PEERS_VARIABLE: &str = "SEALOG_PEERS";

/// A peer by name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Peer {
    /// O_DIRECT write + fdatasync of 1 MiB blocks.
    Plain,
    /// The group-committing writer thread.
    PlainGroup,
    /// Redis Streams, `appendfsync always`.
    RedisAlways,
    /// Redis Streams, `appendfsync everysec`.
    RedisEverysec,
    /// NATS JetStream, `sync_interval: always`, one stream for all clients.
    NatsAlways,
    /// The same with a stream for each client: it syncs them side by side.
    NatsAlwaysEach,
    /// NATS JetStream as it comes, a stream for each client.
    NatsDefault,
    /// A server that runs already.
    Url(TargetUrl),
}

/// Those with a name.
const NAMED: [(&str, Peer); 7] = [
    ("plain", Peer::Plain),
    ("plain-group", Peer::PlainGroup),
    ("redis-always", Peer::RedisAlways),
    ("redis-everysec", Peer::RedisEverysec),
    ("nats-always", Peer::NatsAlways),
    ("nats-always-each", Peer::NatsAlwaysEach),
    ("nats-default", Peer::NatsDefault),
];

impl Peer {
    /// The peer of that name; `redis` and `nats` mean their durable settings.
    ///
    /// # Errors
    /// There is none.
    pub fn named(name: &str) -> std::result::Result<Self, String> {
        let name = match name {
            "redis" => "redis-always",
            "nats" => "nats-always",
            name => name,
        };
        if let Some((_, peer)) = NAMED.iter().find(|(known, _)| *known == name) {
            return Ok(peer.clone());
        }
        if name.contains("://") {
            return name.parse().map(Self::Url);
        }
        let known: Vec<&str> = NAMED.iter().map(|(name, _)| *name).collect();
        let known = known.join(", ");
        Err(format!("peer {name:?} is not one of {known} or a URL"))
    }

    /// Its name.
    pub fn name(&self) -> String {
        match self {
            Self::Url(url) => url.to_string(),
            peer => {
                let named = NAMED.iter().find(|(_, known)| known == peer);
                named.map_or_else(String::new, |(name, _)| (*name).to_owned())
            }
        }
    }

    /// Whether it is set to sync before it answers; `None` of a server whose settings aren't known.
    pub fn claims_durability(&self) -> Option<bool> {
        match self {
            Self::RedisEverysec | Self::NatsDefault => Some(false),
            Self::Url(_) => None,
            _ => Some(true),
        }
    }

    fn program(&self) -> Option<&'static str> {
        match self {
            Self::RedisAlways | Self::RedisEverysec => Some("redis-server"),
            Self::NatsAlways | Self::NatsAlwaysEach | Self::NatsDefault => Some("nats-server"),
            Self::Plain | Self::PlainGroup | Self::Url(_) => None,
        }
    }

    /// Why it can't be had here, if so.
    pub fn absent(&self) -> Option<String> {
        let program = self.program()?;
        match find_program(program) {
            Some(_) => None,
            None => Some(format!(
                "{program} is neither in ${PEERS_VARIABLE}/bin nor on PATH (bench/peers.sh installs it)"
            )),
        }
    }

    /// What its program calls itself.
    pub fn version(&self) -> Option<String> {
        let program = find_program(self.program()?)?;
        let output = Command::new(program).arg("--version").output().ok()?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        text.lines().next().map(str::to_owned)
    }

    /// Starts it in `dir`, or reaches it, for so many clients.
    ///
    /// # Errors
    /// It can't be started, or doesn't answer in time; what it said is in the error.
    pub fn start(&self, dir: &Path, clients: usize) -> Result<Started> {
        match self {
            Self::RedisAlways | Self::RedisEverysec => self.start_redis(dir),
            Self::NatsAlways => self.start_nats(dir, 1),
            Self::NatsAlwaysEach | Self::NatsDefault => self.start_nats(dir, clients),
            Self::Url(TargetUrl::Redis(address)) => Ok(Started {
                target: Box::new(redis(*address, None)),
                process: None,
            }),
            Self::Url(TargetUrl::Nats(address)) => Ok(Started {
                target: Box::new(nats(*address, None, clients)),
                process: None,
            }),
            _ => Err(format!("{} is not a server", self.name()).into()),
        }
    }

    fn start_redis(&self, dir: &Path) -> Result<Started> {
        let fsync = match self {
            Self::RedisAlways => "always",
            _ => "everysec",
        };
        let address = free_address()?;
        let mut command = self.command()?;
        command
            .args(["--bind", "127.0.0.1", "--port", &address.port().to_string()])
            .args(["--daemonize", "no", "--save", ""])
            .args(["--appendonly", "yes", "--appendfsync", fsync])
            .args(["--auto-aof-rewrite-percentage", "0", "--dir"])
            .arg(dir);
        let process = Process::start(command, dir)?;
        let target = redis(address, Some(process.pid()));
        process.wait_for(&|| target.is_up())?;
        Ok(Started {
            target: Box::new(target),
            process: Some(process),
        })
    }

    fn start_nats(&self, dir: &Path, streams: usize) -> Result<Started> {
        let sync = match self {
            Self::NatsDefault => "",
            _ => "  sync_interval: always\n",
        };
        let address = free_address()?;
        std::fs::create_dir_all(dir)?;
        let store = dir.join("jetstream");
        let text = format!(
            "listen: \"{address}\"\njetstream {{\n  store_dir: {store:?}\n  max_file_store: 1TB\n{sync}}}\n"
        );
        let settings = dir.join("nats.conf");
        std::fs::write(&settings, text)?;
        let mut command = self.command()?;
        command.arg("-c").arg(&settings);
        let process = Process::start(command, dir)?;
        let target = nats(address, Some(process.pid()), streams);
        process.wait_for(&|| target.is_up())?;
        Ok(Started {
            target: Box::new(target),
            process: Some(process),
        })
    }

    fn command(&self) -> Result<Command> {
        let program = self.program().and_then(find_program);
        let absent = || self.absent().unwrap_or_default();
        Ok(Command::new(program.ok_or_else(absent)?))
    }
}

fn redis(address: SocketAddr, pid: Option<u32>) -> RedisTarget {
    RedisTarget { address, pid }
}

fn nats(address: SocketAddr, pid: Option<u32>, streams: usize) -> NatsTarget {
    NatsTarget {
        address,
        pid,
        streams,
    }
}

/// A peer that answers; ended when dropped, if it was started here.
pub struct Started {
    /// What the generator appends to.
    pub target: Box<dyn Target>,
    #[expect(dead_code, reason = "held for its end")]
    process: Option<Process>,
}

/// A process of ours.
struct Process {
    child: Child,
    dir: PathBuf,
}

impl Process {
    fn start(mut command: Command, dir: &Path) -> Result<Self> {
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

    fn pid(&self) -> u32 {
        self.child.id()
    }

    fn wait_for(&self, is_up: &dyn Fn() -> bool) -> Result<()> {
        let start = Instant::now();
        while start.elapsed() < START_MAX {
            if is_up() {
                return Ok(());
            }
            std::thread::sleep(LOOK);
        }
        let log = std::fs::read_to_string(self.dir.join("log")).unwrap_or_default();
        let from = log.len().saturating_sub(2000);
        let tail = log.get(from..).unwrap_or(&log);
        Err(format!("a peer did not answer in {START_MAX:?}; it said: {tail}").into())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
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

fn free_address() -> Result<SocketAddr> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    Ok(listener.local_addr()?)
}

/// `$SEALOG_PEERS/bin`, `./bench-peers/bin`, then PATH.
fn find_program(name: &str) -> Option<PathBuf> {
    let own = std::env::var_os(PEERS_VARIABLE).unwrap_or_else(|| "bench-peers".into());
    let path = std::env::var_os("PATH").unwrap_or_default();
    let places = std::iter::once(PathBuf::from(own).join("bin"));
    places
        .chain(std::env::split_paths(&path))
        .map(|place| place.join(name))
        .find(|path| path.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peers_are_found_by_name_and_url() {
        for (name, peer) in NAMED {
            assert_eq!(Peer::named(name), Ok(peer.clone()));
            assert_eq!(peer.name(), name);
        }
        assert_eq!(Peer::named("redis"), Ok(Peer::RedisAlways));
        let url = "redis://127.0.0.1:6379";
        assert_eq!(Peer::named(url).map(|peer| peer.name()), Ok(url.to_owned()));
        let error = Peer::named("kafka").expect_err("no such peer");
        assert!(error.contains("redis-always"), "{error}");
        assert!(Peer::named("kafka://127.0.0.1:1").is_err());
    }

    #[test]
    fn peers_that_answer_from_memory_are_marked() {
        assert_eq!(Peer::RedisEverysec.claims_durability(), Some(false));
        assert_eq!(Peer::NatsDefault.claims_durability(), Some(false));
        assert_eq!(Peer::RedisAlways.claims_durability(), Some(true));
    }

    #[test]
    fn process_is_ended_when_dropped_and_its_words_are_kept() {
        let dir = std::env::temp_dir().join(format!("sealog-bench-peer-{}", std::process::id()));
        let mut command = Command::new("sh");
        command.args(["-c", "echo hello; exec sleep 1000"]);
        let process = Process::start(command, &dir).expect("sh");
        let pid = process.pid();
        let log = dir.join("log");
        let said = || std::fs::read_to_string(&log).is_ok_and(|text| text == "hello\n");
        process.wait_for(&said).expect("its words");
        let alive = || Path::new(&format!("/proc/{pid}")).exists();
        assert!(alive());
        drop(process);
        assert!(!alive());
        std::fs::remove_dir_all(&dir).expect("its folder");
    }
}
