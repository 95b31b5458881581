//! Service: what all native connections of a shard share.
//!
//! **Invariants**
//! - At most `connections_max` connections per shard are welcomed; one more is told so and closed.
//! - Handshake and hello have [`HELLO_TIMEOUT`] together, and a bounded number of places (`opening`).
//! - After `drain` no connection is begun, and `drained` answers when the last one has ended.
//!
//! **Not here**: what a connection does (`connection`).

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustls::ServerConfig;
use sealog_engine::{Budget, Event, ShardSide};
use sealog_frame::FrameLimits;
use sealog_protocol::{Features, HEADER_BYTES, PROTOCOL_VERSION, ShardAddress, Welcome};

use super::connection::{Connection, Phase};
use super::memory::Memory;
use super::meters::Meters;
use super::opening::{Opening, Place};
use super::refused::Refused;
use crate::net::{Listener, Stream};

/// What the operator sets.
#[derive(Debug, Clone)]
pub(crate) struct NativeOptions {
    /// Connections per shard.
    pub(crate) connections_max: usize,
    /// Bytes of requests that a connection may leave unanswered.
    pub(crate) credit_bytes: u32,
    /// Who may connect; none: anybody.
    pub(crate) token: Option<Vec<u8>>,
    /// Connections are under TLS.
    pub(crate) tls: Option<Arc<ServerConfig>>,
    /// Ports of the shards, as they come to be known.
    pub(crate) shard_ports: Arc<Mutex<BTreeMap<usize, u16>>>,
    /// Random, of this start of the server.
    pub(crate) server: u64,
}

impl NativeOptions {
    /// Shard `shard` listens on `port`.
    pub(crate) fn note_port(&self, shard: usize, port: u16) {
        self.ports().insert(shard, port);
    }

    fn ports(&self) -> MutexGuard<'_, BTreeMap<usize, u16>> {
        self.shard_ports
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

/// A connection that has not been welcomed after so long, handshake included, is closed.
pub(super) const HELLO_TIMEOUT: Duration = Duration::from_secs(10);

/// Why one is closed before that.
pub(super) const CROWDED: &str = "others wait for a place, and no hello came";

/// Requests of all connections that may run as tasks at once, beyond the number of connections: each
/// takes some 20 KiB.
const RUNNING_MORE: usize = 256;

/// Bytes taken from a socket at once.
const SCRATCH_BYTES: usize = 256 << 10;

/// The native front end on one shard.
pub(crate) struct NativeService {
    pub(crate) side: ShardSide,
    pub(super) options: NativeOptions,
    pub(super) limits: FrameLimits,
    /// Requests that run as tasks, of all connections.
    pub(super) running: Cell<usize>,
    /// Memory for what waits.
    pub(super) memory: Memory,
    /// Where bytes from sockets land; whoever reads has it for the length of one read.
    pub(super) scratch: RefCell<Vec<u8>>,
    /// What is counted.
    pub(crate) meters: Arc<Meters>,
    refused: Refused,
    connections: RefCell<BTreeMap<u64, Rc<Connection>>>,
    opening: Opening,
    /// How many of the connections were welcomed.
    welcomed: Cell<usize>,
    next: Cell<u64>,
    draining: Cell<bool>,
    /// Notified when draining begins, and when a connection ends.
    changed: Event,
    /// Notified when the shard drains and the last connection has ended. Not `changed`: as many tasks
    /// wait for it as there are connections.
    over: Event,
}

impl NativeService {
    pub(crate) fn new(side: ShardSide, options: NativeOptions) -> Rc<Self> {
        let limits = side.handle().frame_limits();
        let shard = side.shard();
        let memory = Memory::new(shard, message_bytes_max(&limits));
        Rc::new(Self {
            side,
            options,
            limits,
            running: Cell::new(0),
            scratch: RefCell::new(vec![0; SCRATCH_BYTES]),
            meters: memory.meters(),
            memory,
            refused: Refused::default(),
            connections: RefCell::new(BTreeMap::new()),
            opening: Opening::default(),
            welcomed: Cell::new(0),
            next: Cell::new(0),
            draining: Cell::new(false),
            changed: Event::new(),
            over: Event::new(),
        })
    }

    /// What bounds long messages that come, and records that leave, for all front ends of the shard.
    pub(crate) fn budgets(&self) -> (Budget, Budget) {
        (self.memory.receiving.clone(), self.memory.sending.clone())
    }

    /// Serves what `listener` accepts, until the shard drains.
    pub(crate) fn serve(self: &Rc<Self>, listener: Listener) {
        let service = self.clone();
        self.side.spawn("native accept", async move {
            while let Some(stream) = service.next(&listener).await {
                service.begin(stream);
            }
        });
    }

    async fn next(&self, listener: &Listener) -> Option<Stream> {
        loop {
            let accepted = async { Some(listener.accept().await) };
            match futures_lite::future::or(accepted, self.draining()).await? {
                Ok(stream) => {
                    // Only now somebody waits for a place.
                    let placed = async {
                        while let Some(wait) = self.opening.wait(self.side.monotonic_ns()) {
                            let gone = self.opening.gone.listen();
                            futures_lite::future::or(gone, self.side.sleep(wait)).await;
                        }
                        Some(stream)
                    };
                    return futures_lite::future::or(placed, self.draining()).await;
                }
                // No descriptor left, or the caller has gone: others may do better.
                Err(_) => self.side.sleep(Duration::from_millis(10)).await,
            }
        }
    }

    /// Waits until the shard drains.
    async fn draining<T>(&self) -> Option<T> {
        let draining = || self.draining.get().then_some(());
        self.changed.until(draining).await;
        None
    }

    fn begin(self: &Rc<Self>, stream: Stream) {
        let service = self.clone();
        let number = self.next.replace(self.next.get() + 1);
        let now_ns = self.side.monotonic_ns();
        let place = self.opening.enter(number, now_ns);
        self.side.spawn("native connection", async move {
            let Some(stream) = service.shaken(stream, &place).await else {
                service.opening.leave(number);
                return;
            };
            let connection = Connection::new(service.clone(), stream, number);
            service.enter(number, &connection);
            if service.is_draining() {
                connection.set_phase(Phase::Closing);
            }
            connection.limit_hello(place, now_ns);
            connection.clone().run().await;
            service.opening.leave(number);
            service.leave(number, &connection);
            service.changed.notify();
            if service.is_over() {
                service.over.notify();
            }
        });
    }

    fn enter(&self, number: u64, connection: &Rc<Connection>) {
        let mut connections = self.connections.borrow_mut();
        connections.insert(number, connection.clone());
        self.meters.accepted.add(1);
        self.meters.open.set(connections.len() as u64);
    }

    fn leave(&self, number: u64, connection: &Connection) {
        if connection.was_welcomed() {
            self.welcomed.set(self.welcomed.get() - 1);
        }
        let mut connections = self.connections.borrow_mut();
        connections.remove(&number);
        self.meters.open.set(connections.len() as u64);
    }

    /// The connection under TLS, if that is asked for and the handshake succeeds in time.
    async fn shaken(&self, stream: Stream, place: &Place) -> Option<Stream> {
        let Some(config) = self.options.tls.clone() else {
            return Some(stream);
        };
        let peer = stream.peer;
        let late = async {
            self.sleep(HELLO_TIMEOUT).await;
            Err(std::io::ErrorKind::TimedOut.into())
        };
        let lost = async {
            place.lost().await;
            Err(std::io::Error::other(CROWDED))
        };
        let given_up = futures_lite::future::or(late, lost);
        match futures_lite::future::or(stream.shake_hands(config), given_up).await {
            Ok(stream) => Some(stream),
            Err(_) if self.is_over() => None,
            Err(error) => {
                self.note_refused(peer, &format!("TLS: {error}"));
                None
            }
        }
    }

    /// A connection of `peer` was refused.
    pub(super) fn note_refused(&self, peer: Option<SocketAddr>, reason: &str) {
        self.meters.refused.add(1);
        self.refused.note(self.side.monotonic_ns(), peer, reason);
    }

    /// Makes the connection with this number one that was welcomed; `false`: there are as many as may be.
    pub(super) fn welcome_one(&self, number: u64) -> bool {
        let room = self.welcomed.get() < self.options.connections_max;
        if room {
            self.welcomed.set(self.welcomed.get() + 1);
            self.opening.leave(number);
        }
        room
    }

    /// Requests that may run as tasks at once: one of every connection, and some more, some of
    /// which are not for those that may last.
    pub(super) fn running_max(&self, may_wait: bool) -> usize {
        let more = match may_wait {
            true => RUNNING_MORE / 2,
            false => RUNNING_MORE,
        };
        self.options.connections_max.saturating_add(more)
    }

    /// Ends accepting; connections answer what they have taken in, say goodbye and close.
    pub(crate) fn drain(&self) {
        self.draining.set(true);
        self.changed.notify();
        for connection in self.connections.borrow().values() {
            connection.set_phase(Phase::Closing);
            // Also who was leaving already must hurry.
            connection.ending.notify();
        }
        if self.is_over() {
            self.over.notify();
        }
    }

    /// The time to answer is over: what still waits is told so.
    pub(crate) fn end_waiting(&self) {
        for connection in self.connections.borrow().values() {
            connection.set_phase(Phase::Late);
        }
    }

    pub(super) fn is_draining(&self) -> bool {
        self.draining.get()
    }

    /// Waits until no connection is left.
    pub(crate) async fn drained(&self) {
        self.changed.until(|| self.is_over().then_some(())).await;
    }

    /// Whether the last connection has ended, and none will begin.
    fn is_over(&self) -> bool {
        self.draining.get() && self.connections.borrow().is_empty()
    }

    /// Completes after `duration`, or when no connection is left for good: tasks that wait for time to
    /// pass would hold up the shard's end.
    pub(super) async fn sleep(&self, duration: Duration) {
        let over = self.over.until(|| self.is_over().then_some(()));
        futures_lite::future::or(over, self.side.sleep(duration)).await;
    }

    /// Longest request.
    pub(super) fn message_bytes_max(&self) -> usize {
        message_bytes_max(&self.limits)
    }

    pub(super) fn welcome(&self) -> Welcome {
        let u32_of = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        let ports = self.options.ports();
        let port = |shard| ports.get(&shard).copied().unwrap_or(0);
        Welcome {
            version: PROTOCOL_VERSION,
            features: Features(0),
            server: self.options.server,
            agent: concat!("sealog/", env!("CARGO_PKG_VERSION")).to_owned(),
            message_bytes_max: u32_of(self.message_bytes_max()),
            credit_bytes: self.options.credit_bytes,
            producer_batches_max: u32_of(sealog_engine::PRODUCER_RANGES_MAX),
            batch_bytes_max: u32_of(self.limits.batch_bytes_max),
            record_bytes_max: u32_of(self.limits.record_bytes_max),
            records_max: u32_of(self.limits.records_max),
            logs: u32_of(self.side.handle().logs()),
            shard: u32_of(self.side.shard()),
            shards: (0..self.side.shards())
                .map(|shard| ShardAddress { port: port(shard) })
                .collect(),
        }
    }
}

/// The frame of an append, and what stands before it.
fn message_bytes_max(limits: &FrameLimits) -> usize {
    HEADER_BYTES + 4 + limits.frame_bytes_max() + 4096
}
