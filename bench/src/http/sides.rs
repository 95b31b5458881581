//! Sides: the servers that are set beside each other: Sealog first, each in a folder of its own.
//!
//! **Invariants**
//! - A server is started with what it comes with, in its durable mode, on an empty folder; Sealog's log was
//!   written before, as after some hours of service.
//! - Streams of all parts and runs have names of their own.
//!
//! **Not here**: what they are asked (`creates`, `fan_out`, `catch_up`, `streams`).

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use crate::Result;
use crate::child::{Server, free_address};
use crate::compare::own::{serve, written_before};
use crate::compare::peers::Peer;
use crate::process::cpu_time_of;
use crate::targets::http::{exchange, path, request};
use crate::workdir::Workdir;

/// Who can be set beside Sealog.
pub const PEERS: [Peer; 2] = [Peer::DurableStreams, Peer::DurableStreamsNode];
/// What Sealog is called.
pub const OWN: &str = "sealog";

/// One side, running.
pub struct Side {
    /// For tables.
    pub name: String,
    /// Where it listens.
    pub address: SocketAddr,
    peer: Option<Peer>,
    /// Of its files.
    pub folder: PathBuf,
    server: Server,
    /// Streams that were named so far.
    named: usize,
    /// The path of a long stream, if it was appended.
    pub history: Option<String>,
}

impl Side {
    /// Starts Sealog, or `peer`.
    ///
    /// # Errors
    /// It can't be started.
    pub fn start(workdir: &Workdir, peer: Option<Peer>) -> Result<Self> {
        let (name, folder, address, server) = match &peer {
            None => {
                let config = written_before(workdir)?;
                let address = free_address()?;
                let (_, server) = serve(workdir, &config, Some(address))?;
                (OWN.to_owned(), workdir.data(), address, server)
            }
            Some(peer) => {
                let folder = workdir.path(&peer.name());
                let (address, server) = peer.serve_durable_streams(&folder)?;
                (peer.name(), folder, address, server)
            }
        };
        Ok(Self {
            name,
            address,
            peer,
            folder,
            server,
            named: 0,
            history: None,
        })
    }

    /// Ends it, removes its files and starts it again.
    ///
    /// # Errors
    /// It can't be started.
    pub fn start_anew(self, workdir: &Workdir) -> Result<Self> {
        let Self {
            peer,
            folder,
            server,
            ..
        } = self;
        drop(server);
        std::fs::remove_dir_all(&folder)?;
        Self::start(workdir, peer)
    }

    /// Whether it is Sealog.
    pub fn is_own(&self) -> bool {
        self.peer.is_none()
    }

    /// The path of a stream that wasn't named before.
    pub fn new_path(&mut self) -> String {
        self.named += 1;
        path(&format!("bench-{:07}", self.named))
    }

    /// Makes a stream of a type; its path.
    ///
    /// # Errors
    /// The server doesn't.
    pub fn create(&mut self, kind: &str) -> Result<String> {
        let path = self.new_path();
        let asked = request("PUT", &path, &format!("Content-Type: {kind}\r\n"));
        match exchange(self.address, &asked)? {
            (201, _) => Ok(path),
            (status, text) => Err(format!("{path} was not made: {status} {text}").into()),
        }
    }

    /// CPU time of its process so far.
    pub fn cpu(&self) -> Duration {
        cpu_time_of(self.server.pid()).unwrap_or_default()
    }
}
