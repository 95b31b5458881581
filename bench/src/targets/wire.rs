//! Wire: any number of connections of one thread, spoken raw over non-blocking sockets and `poll`.
//!
//! **Invariants**
//! - All that fits a window goes out in one write; all that has come is read in one read: the client
//!   costs as little of the shared cores as can be, so that a peer looks its best.
//! - Writing never blocks reading: a full socket buffer can't lock both sides.
//!
//! **Not here**: what the bytes mean (`resp`, `nats`).

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use crate::Result;
use crate::generator::{Caller, PayloadPool, Share, sooner};
use crate::process::wake_on_time;

/// Longest wait in one `poll`: then the end of the run is looked at again.
pub const POLL_MAX: Duration = Duration::from_millis(100);
/// Read at a time.
const READ_BYTES: usize = 256 << 10;

/// What a protocol must be able to say.
pub trait Wire: Send {
    /// Adds the append of payload `n` (and those after it, if it is a batch) to what goes out.
    ///
    /// # Errors
    /// It can't be framed.
    fn append(&mut self, pool: &PayloadPool, n: u64, out: &mut Vec<u8>) -> Result<()>;
    /// Takes all whole answers off the front of `bytes`; what must be said in return goes to `out`.
    ///
    /// # Errors
    /// The peer refused something, or doesn't speak the protocol.
    fn answers(&mut self, bytes: &[u8], out: &mut Vec<u8>) -> Result<Answers>;
}

/// What was taken off.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Answers {
    /// Appends acknowledged, the oldest first.
    pub acks: usize,
    /// Bytes they took.
    pub used: usize,
}

/// A socket without delay, blocking for now.
pub fn dial(address: SocketAddr) -> Result<TcpStream> {
    let stream = TcpStream::connect_timeout(&address, Duration::from_secs(5))
        .map_err(|error| format!("connecting to {address}: {error}"))?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(Duration::from_secs(30)))?;
    Ok(stream)
}

/// Connections of one thread.
pub struct WireShare<'a, W> {
    pool: &'a PayloadPool,
    connections: Vec<Connection<W>>,
}

struct Connection<W> {
    stream: TcpStream,
    wire: W,
    out: Vec<u8>,
    out_sent: usize,
    input: Vec<u8>,
}

impl<'a, W: Wire> WireShare<'a, W> {
    /// Connections that have said hello.
    pub fn new(pool: &'a PayloadPool, dialled: Vec<(TcpStream, W)>) -> Result<Self> {
        let mut connections = Vec::new();
        for (stream, wire) in dialled {
            stream.set_nonblocking(true)?;
            connections.push(Connection {
                stream,
                wire,
                out: Vec::new(),
                out_sent: 0,
                input: Vec::new(),
            });
        }
        Ok(Self { pool, connections })
    }
}

impl<W: Wire> Share for WireShare<'_, W> {
    fn run(&mut self, callers: &mut [Caller]) -> Result<()> {
        assert_eq!(callers.len(), self.connections.len());
        wake_on_time();
        let mut scratch = vec![0; READ_BYTES];
        let mut polled: Vec<libc::pollfd> = Vec::new();
        loop {
            let mut wait = None;
            for (connection, caller) in self.connections.iter_mut().zip(&mut *callers) {
                let until = connection.fill(caller, self.pool)?;
                connection.write()?;
                wait = sooner(wait, until);
            }
            let Some(wait) = wait else { return Ok(()) };
            polled.clear();
            polled.extend(self.connections.iter().map(Connection::interest));
            poll(&mut polled, wait)?;
            for ((connection, caller), polled) in
                self.connections.iter_mut().zip(&mut *callers).zip(&polled)
            {
                if polled.revents & !libc::POLLOUT != 0 {
                    connection.read(caller, &mut scratch)?;
                }
                caller.give_up_if_late(Instant::now());
            }
        }
    }
}

impl<W: Wire> Connection<W> {
    /// Puts all that may be sent into the buffer; how long until there may be more, if ever.
    fn fill(&mut self, caller: &mut Caller, pool: &PayloadPool) -> Result<Option<Duration>> {
        caller.send_due(POLL_MAX, |client, number| {
            let n = pool.index_of(client, number);
            self.wire.append(pool, n, &mut self.out)
        })
    }

    fn write(&mut self) -> Result<()> {
        while self.out_sent < self.out.len() {
            match self.stream.write(&self.out[self.out_sent..]) {
                Ok(0) => return Err("the server closed the connection".into()),
                Ok(sent) => self.out_sent += sent,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
        self.out.clear();
        self.out_sent = 0;
        Ok(())
    }

    fn interest(&self) -> libc::pollfd {
        let unsent = if self.out.is_empty() {
            0
        } else {
            libc::POLLOUT
        };
        libc::pollfd {
            fd: self.stream.as_raw_fd(),
            events: libc::POLLIN | unsent,
            revents: 0,
        }
    }

    fn read(&mut self, caller: &mut Caller, scratch: &mut [u8]) -> Result<()> {
        let length = match self.stream.read(scratch) {
            Ok(0) => return Err("the server closed the connection".into()),
            Ok(length) => length,
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
            Err(error) if error.kind() == ErrorKind::Interrupted => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        let Self { wire, out, .. } = self;
        let got = &scratch[..length];
        let answers = if self.input.is_empty() {
            let answers = wire.answers(got, out)?;
            self.input.extend_from_slice(&got[answers.used..]);
            answers
        } else {
            self.input.extend_from_slice(got);
            let answers = wire.answers(&self.input, out)?;
            self.input.drain(..answers.used);
            answers
        };
        let now = Instant::now();
        for _ in 0..answers.acks {
            if !caller.acked_oldest(now) {
                return Err("an answer to nothing that was sent".into());
            }
        }
        Ok(())
    }
}

/// Waits until something happens to one of `polled`, as long as `wait` and [`POLL_MAX`] at most.
///
/// # Errors
/// The system's.
pub fn poll(polled: &mut [libc::pollfd], wait: Duration) -> Result<()> {
    let timeout = libc::timespec {
        tv_sec: 0,
        tv_nsec: i64::from(wait.min(POLL_MAX).subsec_nanos()),
    };
    let count = polled.len() as libc::nfds_t;
    // SAFETY: the slice holds `count` entries and, like `timeout`, outlives the call; no signal mask.
    let status = unsafe { libc::ppoll(polled.as_mut_ptr(), count, &timeout, std::ptr::null()) };
    if status < 0 {
        let error = std::io::Error::last_os_error();
        if error.kind() != ErrorKind::Interrupted {
            return Err(error.into());
        }
    }
    Ok(())
}
