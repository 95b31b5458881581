//! Net: sockets of the shards.
//!
//! **Invariants**
//! - Here alone the server names glommio: the executor that waits for the sockets (`poller`).
//! - A port is claimed at start and listened on only once the logs behind it serve.
//! - Reading and writing go on independently of each other; both are cancel safe.
//!
//! **Not here**: what is said (`native`), tasks and timers (the engine's shards have them).

mod hyper_io;
mod poller;
mod tls;

use std::cell::Cell;
use std::future::poll_fn;
use std::io::{self, IoSlice, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

pub(crate) use hyper_io::{HyperIo, Scratch};
pub(crate) use poller::Poller;
use poller::Watched;
use rustls::ServerConfig;
use socket2::{Domain, Protocol, Type};
use tls::TlsStream;
pub(crate) use tls::{TlsError, TlsFiles};

/// Connections that may wait to be accepted, per listener.
const BACKLOG: i32 = 1024;

/// An address that is taken, and not listened on yet.
pub(crate) struct Claim {
    socket: socket2::Socket,
    /// The address, with the port that the system chose if 0 was asked for.
    pub(crate) address: SocketAddr,
}

impl Claim {
    /// Takes `address`; other claims of this process may share it if all are `shared`. Its connections have
    /// `buffer_bytes` of the system's per direction, and as much again for its own needs.
    pub(crate) fn take(address: SocketAddr, shared: bool, buffer_bytes: usize) -> io::Result<Self> {
        let socket = socket2::Socket::new(
            Domain::for_address(address),
            Type::STREAM,
            Some(Protocol::TCP),
        )?;
        // A restart finds connections of the process before in their last wait.
        socket.set_reuse_address(true)?;
        socket.set_reuse_port(shared)?;
        socket.set_nonblocking(true)?;
        // A peer that is gone without a word is noticed, in time.
        socket.set_keepalive(true)?;
        // Connections inherit them. Left alone, the system grows each to megabytes, and what clients
        // that stall leave in them is this process's memory as cgroups count it.
        socket.set_send_buffer_size(buffer_bytes)?;
        socket.set_recv_buffer_size(buffer_bytes)?;
        socket.bind(&address.into())?;
        let address = socket.local_addr()?.as_socket().unwrap_or(address);
        Ok(Self { socket, address })
    }

    /// Listens, on the poller's shard.
    pub(crate) fn listen(self, poller: &Rc<Poller>) -> io::Result<Listener> {
        self.socket.listen(BACKLOG)?;
        let watched = poller.watch(&self.socket)?;
        Ok(Listener {
            listener: self.socket.into(),
            watched,
            poller: poller.clone(),
        })
    }
}

/// Accepts connections on one shard.
pub(crate) struct Listener {
    listener: TcpListener,
    watched: Watched,
    poller: Rc<Poller>,
}

impl Listener {
    /// The next connection.
    ///
    /// # Cancel safety
    /// Cancel safe: a connection that arrived meanwhile waits for the next call.
    pub(crate) async fn accept(&self) -> io::Result<Stream> {
        let accept = || self.listener.accept();
        let (stream, peer) = poll_fn(|cx| self.watched.read.poll(cx, accept)).await?;
        stream.set_nonblocking(true)?;
        stream.set_nodelay(true)?;
        Ok(Stream {
            peer: Some(peer),
            socket: Socket {
                watched: self.poller.watch(&stream)?,
                stream,
                written: Cell::new(0),
            },
            tls: None,
        })
    }
}

/// A TCP connection.
struct Socket {
    stream: TcpStream,
    watched: Watched,
    /// Bytes that the system has taken to be sent.
    written: Cell<u64>,
}

impl Socket {
    fn poll_read(&self, cx: &mut Context<'_>, buf: &mut [u8]) -> Poll<io::Result<usize>> {
        let read = || (&self.stream).read(&mut *buf);
        self.watched.read.poll(cx, read)
    }

    fn poll_write(&self, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(cx, &[IoSlice::new(buf)])
    }

    fn poll_write_vectored(
        &self,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let write = || (&self.stream).write_vectored(bufs);
        let written = ready!(self.watched.write.poll(cx, write))?;
        self.written.set(self.written.get() + written as u64);
        Poll::Ready(Ok(written))
    }

    /// Says that nothing more will be written.
    fn close(&self) -> io::Result<()> {
        self.stream.shutdown(Shutdown::Write)
    }

    async fn write_all(&self, mut buf: &[u8]) -> io::Result<()> {
        while !buf.is_empty() {
            match poll_fn(|cx| self.poll_write(cx, buf)).await? {
                0 => return Err(io::ErrorKind::WriteZero.into()),
                bytes => buf = &buf[bytes..],
            }
        }
        Ok(())
    }
}

/// A connection. Reader and writer share it.
pub(crate) struct Stream {
    /// Who is on the other side, as far as the system knows.
    pub(crate) peer: Option<SocketAddr>,
    socket: Socket,
    /// Boxed: it is large, and most have none.
    tls: Option<Box<TlsStream>>,
}

impl Stream {
    /// Makes it a TLS connection, before anything is read or written.
    ///
    /// # Cancel safety
    /// Not cancel safe: the connection is of no use afterwards.
    pub(crate) async fn shake_hands(mut self, config: Arc<ServerConfig>) -> io::Result<Self> {
        let tls = TlsStream::accept(config, &self.socket).await?;
        self.tls = Some(Box::new(tls));
        Ok(self)
    }

    /// Bytes into `buf`; 0: the other side has ended.
    pub(crate) fn poll_read(
        &self,
        cx: &mut Context<'_>,
        buf: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        match &self.tls {
            Some(tls) => tls.poll_read(&self.socket, cx, buf),
            None => self.socket.poll_read(cx, buf),
        }
    }

    /// Writes all of `buf`.
    ///
    /// # Cancel safety
    /// Not cancel safe: part of `buf` may have left.
    pub(crate) async fn write_all(&self, buf: &[u8]) -> io::Result<()> {
        match &self.tls {
            Some(tls) => tls.write_all(&self.socket, buf).await,
            None => self.socket.write_all(buf).await,
        }
    }

    /// Takes bytes of `buf` to be written; how many.
    pub(crate) fn poll_write(&self, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        match &self.tls {
            Some(tls) => tls.poll_write(&self.socket, cx, buf),
            None => self.socket.poll_write(cx, buf),
        }
    }

    /// As [`Stream::poll_write`], of several one behind the other.
    pub(crate) fn poll_write_vectored(
        &self,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match &self.tls {
            Some(tls) => tls.poll_write_vectored(&self.socket, cx, bufs),
            None => self.socket.poll_write_vectored(cx, bufs),
        }
    }

    /// Has everything taken leave.
    pub(crate) fn poll_flush(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &self.tls {
            Some(tls) => tls.poll_flush(&self.socket, cx),
            None => Poll::Ready(Ok(())),
        }
    }

    /// Says that nothing more will be written.
    pub(crate) fn poll_finish(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if let Some(tls) = &self.tls {
            ready!(tls.poll_finish(&self.socket, cx))?;
        }
        Poll::Ready(self.socket.close())
    }

    /// Bytes that the system has taken so far: as long as they grow, the other side takes something.
    pub(crate) fn written(&self) -> u64 {
        self.socket.written.get()
    }

    /// Says that nothing more will be written.
    pub(crate) async fn finish(&self) {
        if let Some(tls) = &self.tls {
            tls.finish(&self.socket).await;
        }
        // The other side may be gone already.
        let _ = self.socket.close();
    }
}
