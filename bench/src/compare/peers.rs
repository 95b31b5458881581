//! Peers: servers that are set beside Sealog: found, started on loopback in a folder of their own, ended.
//!
//! **Invariants**
//! - A peer that was started is ended by its process id, also when this process is killed.
//! - Settings are the strictest that the peer's name promises, and nothing is switched on that slows it otherwise.
//!
//! **Not here**: what is measured (`workloads`), whether answers are believable (`flushes`).

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::Result;
use crate::child::{Served, Server, find_program, free_address};
use crate::generator::Target;
use crate::targets::TargetUrl;
use crate::targets::client::ClientTarget;
use crate::targets::http::HttpTarget;
use crate::targets::native::NativeTarget;
use crate::targets::nats::NatsTarget;
use crate::targets::resp::RedisTarget;

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
    /// The Durable Streams server of its own project in Rust, in its durable mode.
    DurableStreams,
    /// The same, appends with a producer's headers.
    DurableStreamsProducers,
    /// The Durable Streams server of its own project for Node, with its files in a folder.
    DurableStreamsNode,
    /// The same, appends with a producer's headers.
    DurableStreamsNodeProducers,
    /// A server that runs already.
    Url(TargetUrl),
}

/// Those with a name.
const NAMED: [(&str, Peer); 11] = [
    ("plain", Peer::Plain),
    ("plain-group", Peer::PlainGroup),
    ("redis-always", Peer::RedisAlways),
    ("redis-everysec", Peer::RedisEverysec),
    ("nats-always", Peer::NatsAlways),
    ("nats-always-each", Peer::NatsAlwaysEach),
    ("nats-default", Peer::NatsDefault),
    ("durable-streams", Peer::DurableStreams),
    ("durable-streams-producers", Peer::DurableStreamsProducers),
    ("durable-streams-node", Peer::DurableStreamsNode),
    (
        "durable-streams-node-producers",
        Peer::DurableStreamsNodeProducers,
    ),
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
            Self::DurableStreams | Self::DurableStreamsProducers => Some("durable-streams-server"),
            Self::DurableStreamsNode | Self::DurableStreamsNodeProducers => {
                Some("durable-streams-node")
            }
            Self::Plain | Self::PlainGroup | Self::Url(_) => None,
        }
    }

    /// Why it can't be had here, if so.
    pub fn absent(&self) -> Option<String> {
        let program = self.program()?;
        match find_peer(program) {
            Some(_) => None,
            None => Some(format!(
                "{program} is neither in ${PEERS_VARIABLE}/bin nor on PATH (bench/peers.sh installs it)"
            )),
        }
    }

    /// What its program calls itself.
    pub fn version(&self) -> Option<String> {
        let program = find_peer(self.program()?)?;
        if matches!(self, Self::DurableStreams | Self::DurableStreamsProducers) {
            // It would start.
            return None;
        }
        let output = Command::new(program).arg("--version").output().ok()?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        text.lines().next().map(str::to_owned)
    }

    /// Starts it in `dir`, or reaches it, for so many clients.
    ///
    /// # Errors
    /// It can't be started, or doesn't answer in time; what it said is in the error.
    pub fn start(&self, dir: &Path, clients: usize) -> Result<Box<dyn Target>> {
        match self {
            Self::RedisAlways | Self::RedisEverysec => self.start_redis(dir),
            Self::NatsAlways => self.start_nats(dir, 1),
            Self::NatsAlwaysEach | Self::NatsDefault => self.start_nats(dir, clients),
            Self::DurableStreams | Self::DurableStreamsNode => {
                self.start_durable_streams(dir, false)
            }
            Self::DurableStreamsProducers | Self::DurableStreamsNodeProducers => {
                self.start_durable_streams(dir, true)
            }
            Self::Url(url) => reach(url, clients),
            _ => Err(format!("{} is not a server", self.name()).into()),
        }
    }

    fn start_redis(&self, dir: &Path) -> Result<Box<dyn Target>> {
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
        let mut server = Server::start(command, dir)?;
        let pid = Some(server.pid());
        let target = RedisTarget { address, pid };
        server.wait_for(&|| target.is_up())?;
        Ok(Box::new(Served::new(target, server)))
    }

    fn start_nats(&self, dir: &Path, streams: usize) -> Result<Box<dyn Target>> {
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
        let mut server = Server::start(command, dir)?;
        let target = NatsTarget {
            address,
            pid: Some(server.pid()),
            streams,
        };
        server.wait_for(&|| target.is_up())?;
        Ok(Box::new(Served::new(target, server)))
    }

    fn start_durable_streams(&self, dir: &Path, producers: bool) -> Result<Box<dyn Target>> {
        let (address, server) = self.serve_durable_streams(dir)?;
        let target = HttpTarget::new(address, Some(server.pid()), producers);
        Ok(Box::new(Served::new(target, server)))
    }

    /// A server of Durable Streams of its own in `dir`, up, and where it listens.
    ///
    /// # Errors
    /// It is none, can't be started, or doesn't answer in time.
    pub fn serve_durable_streams(&self, dir: &Path) -> Result<(SocketAddr, Server)> {
        let address = free_address()?;
        let (port, data) = (address.port().to_string(), dir.join("data"));
        let mut command = self.command()?;
        match self {
            Self::DurableStreams | Self::DurableStreamsProducers => command
                .args(["--host", "127.0.0.1", "--port", &port])
                .args(["--durability", "wal", "--data-dir"])
                .arg(data),
            Self::DurableStreamsNode | Self::DurableStreamsNodeProducers => {
                command.arg(port).arg(data)
            }
            _ => return Err(format!("{} doesn't speak Durable Streams", self.name()).into()),
        };
        let mut server = Server::start(command, dir)?;
        let target = HttpTarget::new(address, None, false);
        server.wait_for(&|| target.is_up())?;
        Ok((address, server))
    }

    fn command(&self) -> Result<Command> {
        let program = self.program().and_then(find_peer);
        let absent = || self.absent().unwrap_or_default();
        Ok(Command::new(program.ok_or_else(absent)?))
    }
}

/// A server that runs already.
///
/// # Errors
/// The URL names none.
pub fn reach(url: &TargetUrl, clients: usize) -> Result<Box<dyn Target>> {
    let (url, pid) = (url.clone(), None);
    Ok(match url {
        TargetUrl::Sealog(address) => Box::new(ClientTarget {
            server: NativeTarget { address, pid },
        }),
        TargetUrl::SealogRaw(address) => Box::new(NativeTarget { address, pid }),
        TargetUrl::Redis(address) => Box::new(RedisTarget { address, pid }),
        TargetUrl::Nats(address) => Box::new(NatsTarget {
            address,
            pid,
            streams: clients,
        }),
        TargetUrl::DurableStreams(address) => Box::new(HttpTarget::new(address, pid, false)),
        TargetUrl::DurableStreamsProducers(address) => {
            Box::new(HttpTarget::new(address, pid, true))
        }
        TargetUrl::Native
        | TargetUrl::NativeRaw
        | TargetUrl::InProcess
        | TargetUrl::Http
        | TargetUrl::HttpProducers => {
            return Err(format!("{url} is not a server that runs already").into());
        }
    })
}

/// `$SEALOG_PEERS/bin`, `./bench-peers/bin`, then PATH.
fn find_peer(name: &str) -> Option<PathBuf> {
    let own = std::env::var_os(PEERS_VARIABLE).unwrap_or_else(|| "bench-peers".into());
    find_program(name, &[PathBuf::from(own).join("bin")])
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
}
