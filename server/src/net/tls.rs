//! Tls: the server's side of TLS, between the sockets and whoever reads and writes.
//!
//! **Invariants**
//! - The handshake is whole before a byte is handed on.
//! - Afterwards only the writer writes to the socket: what a read makes the session answer leaves with
//!   the next write.
//! - At most [`CHUNK_BYTES`] of plain bytes are encrypted ahead of the socket.
//!
//! **Not here**: which certificate (`serve`), tokens (`native`).

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io::{self, IoSlice, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ServerConfig, ServerConnection};

use super::Socket;

/// Plain bytes that are encrypted at once: half of what the session holds back at most, so that an answer
/// of its own to a new key finds room beside them.
const CHUNK_BYTES: usize = 32 << 10;

/// Where certificate and key lie, in PEM.
#[derive(Debug, Clone)]
pub(crate) struct TlsFiles {
    pub(crate) certificate: PathBuf,
    pub(crate) key: PathBuf,
}

impl TlsFiles {
    /// Reads them.
    ///
    /// # Errors
    /// [`TlsError`], which names the file and its option.
    pub(crate) fn load(&self) -> Result<Arc<ServerConfig>, TlsError> {
        let certificate = |error| TlsError::of("--tls-cert", &self.certificate, error);
        let chain: Vec<_> = CertificateDer::pem_file_iter(&self.certificate)
            .and_then(Iterator::collect)
            .map_err(certificate)?;
        if chain.is_empty() {
            return Err(certificate(pem::Error::NoItemsFound));
        }
        let key = PrivateKeyDer::from_pem_file(&self.key)
            .map_err(|error| TlsError::of("--tls-key", &self.key, error))?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .and_then(|config| config.with_no_client_auth().with_single_cert(chain, key));
        let config = config.map_err(|error| TlsError::Content {
            option: "--tls-cert",
            file: self.certificate.clone(),
            text: error.to_string(),
        })?;
        Ok(Arc::new(config))
    }
}

/// Why certificate and key can't be used.
#[derive(Debug)]
pub(crate) enum TlsError {
    /// A file can't be read.
    File {
        option: &'static str,
        file: PathBuf,
        source: io::Error,
    },
    /// What is in it is of no use.
    Content {
        option: &'static str,
        file: PathBuf,
        text: String,
    },
}

impl TlsError {
    fn of(option: &'static str, path: &Path, error: pem::Error) -> Self {
        let file = path.to_owned();
        let text = match error {
            pem::Error::Io(source) => {
                return Self::File {
                    option,
                    file,
                    source,
                };
            }
            pem::Error::NoItemsFound if option == "--tls-key" => {
                "no private key in it, as PEM".to_owned()
            }
            pem::Error::NoItemsFound => "no certificate in it, as PEM".to_owned(),
            other => other.to_string(),
        };
        Self::Content { option, file, text }
    }
}

/// A connection under TLS.
pub(super) struct TlsStream {
    session: RefCell<ServerConnection>,
    /// Encrypted bytes that [`TlsStream::poll_write`] has not given to the socket yet.
    encrypted: RefCell<VecDeque<u8>>,
}

/// The socket as something that is read without waiting.
struct Ready<'a, 'b, 'c> {
    socket: &'a Socket,
    cx: &'a mut Context<'b>,
    pending: &'c mut bool,
}

impl Read for Ready<'_, '_, '_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        match self.socket.poll_read(self.cx, buf) {
            Poll::Ready(read) => read,
            Poll::Pending => {
                *self.pending = true;
                Err(io::ErrorKind::WouldBlock.into())
            }
        }
    }
}

impl TlsStream {
    /// Shakes hands.
    ///
    /// # Cancel safety
    /// Not cancel safe: the connection is of no use afterwards.
    pub(super) async fn accept(config: Arc<ServerConfig>, socket: &Socket) -> io::Result<Self> {
        let session = ServerConnection::new(config).map_err(io::Error::other)?;
        let this = Self {
            session: RefCell::new(session),
            encrypted: RefCell::default(),
        };
        while this.session.borrow().is_handshaking() {
            let taken = std::future::poll_fn(|cx| this.poll_take(socket, cx)).await;
            // Also the alert of a handshake that failed has to leave.
            this.flush(socket).await?;
            if taken? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
        Ok(this)
    }

    /// Takes encrypted bytes in; how many, 0 at the end.
    fn poll_take(&self, socket: &Socket, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        let mut session = self.session.borrow_mut();
        let mut pending = false;
        let taken = session.read_tls(&mut Ready {
            socket,
            cx,
            pending: &mut pending,
        });
        if pending {
            return Poll::Pending;
        }
        let taken = taken?;
        session.process_new_packets().map_err(io::Error::other)?;
        Poll::Ready(Ok(taken))
    }

    /// Plain bytes into `buf`; 0 at the end.
    pub(super) fn poll_read(
        &self,
        socket: &Socket,
        cx: &mut Context<'_>,
        buf: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        loop {
            match self.session.borrow_mut().reader().read(buf) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                // A client that hung up without the words for it may have been cut off: its messages
                // say themselves whether they are whole.
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                    return Poll::Ready(Ok(0));
                }
                read => return Poll::Ready(read),
            }
            match self.poll_take(socket, cx) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Ready(Ok(_)) => {}
            }
        }
    }

    /// Writes all of `buf`.
    pub(super) async fn write_all(&self, socket: &Socket, buf: &[u8]) -> io::Result<()> {
        for chunk in buf.chunks(CHUNK_BYTES) {
            self.session.borrow_mut().writer().write_all(chunk)?;
            self.flush(socket).await?;
        }
        Ok(())
    }

    /// Takes bytes of `buf` to be written, once those before have left; how many.
    pub(super) fn poll_write(
        &self,
        socket: &Socket,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(socket, cx, &[IoSlice::new(buf)])
    }

    /// As [`TlsStream::poll_write`], of several one behind the other.
    pub(super) fn poll_write_vectored(
        &self,
        socket: &Socket,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        ready!(self.poll_flush(socket, cx))?;
        let mut room = CHUNK_BYTES;
        let chunks = bufs.iter().map(|buf| {
            let taken = buf.len().min(room);
            room -= taken;
            IoSlice::new(&buf[..taken])
        });
        let chunks: Vec<_> = chunks.collect();
        let taken = self.session.borrow_mut().writer().write_vectored(&chunks)?;
        // What of it leaves now, leaves; the rest with the next write, or flush.
        match self.poll_flush(socket, cx) {
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            Poll::Ready(Ok(())) | Poll::Pending => Poll::Ready(Ok(taken)),
        }
    }

    /// Has everything taken leave.
    pub(super) fn poll_flush(&self, socket: &Socket, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut encrypted = self.encrypted.borrow_mut();
        let mut session = self.session.borrow_mut();
        while session.wants_write() {
            session.write_tls(&mut *encrypted)?;
        }
        while !encrypted.is_empty() {
            match ready!(socket.poll_write(cx, encrypted.as_slices().0))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                written => drop(encrypted.drain(..written)),
            }
        }
        Poll::Ready(Ok(()))
    }

    /// Says that nothing more will be written.
    pub(super) fn poll_finish(
        &self,
        socket: &Socket,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        self.session.borrow_mut().send_close_notify();
        self.poll_flush(socket, cx)
    }

    /// As [`TlsStream::poll_finish`].
    pub(super) async fn finish(&self, socket: &Socket) {
        self.session.borrow_mut().send_close_notify();
        // The other side may be gone already.
        let _ = self.flush(socket).await;
    }

    async fn flush(&self, socket: &Socket) -> io::Result<()> {
        let mut encrypted = Vec::new();
        {
            let mut session = self.session.borrow_mut();
            while session.wants_write() {
                session.write_tls(&mut encrypted)?;
            }
        }
        socket.write_all(&encrypted).await
    }
}
