//! Dial: from an address to a connection that has been welcomed.
//!
//! **Invariants**
//! - Socket, TLS and hello together take no longer than the connect time-out.
//! - What failed here had no effects.
//!
//! **Not here**: which address (`link`), trying again (`link`).

use std::fmt;
use std::sync::Arc;

use bytes::BytesMut;
use rustls::pki_types::ServerName;
use sealog_protocol::{
    Answer, Effects, Features, HELLO_BYTES_MAX, Hello, MessageHeader, PROTOCOL_VERSION, Request,
    Welcome, WireError,
};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use super::Conn;
use super::io::{Reader, Writer, run};
use crate::error::{Error, ErrorKind, Result};
use crate::options::{ClientOptions, Tls};

/// Request id of the hello.
const HELLO: u64 = 1;

/// Where a server listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Address {
    pub(crate) host: String,
    pub(crate) port: u16,
}

impl Address {
    /// Takes `host:port` or `[v6]:port` apart.
    pub(crate) fn parse(text: &str) -> Result<Self> {
        let wrong = || Error::invalid(format!("address {text:?} is not HOST:PORT"));
        let (host, port) = text.rsplit_once(':').ok_or_else(wrong)?;
        let port = port.parse().map_err(|_| wrong())?;
        let host = host
            .strip_prefix('[')
            .map_or(Some(host), |h| h.strip_suffix(']'));
        match host {
            Some(host) if !host.is_empty() => Ok(Self {
                host: host.to_owned(),
                port,
            }),
            _ => Err(wrong()),
        }
    }

    pub(crate) fn with_port(&self, port: u16) -> Self {
        Self {
            host: self.host.clone(),
            port,
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.host.contains(':') {
            true => write!(f, "[{}]:{}", self.host, self.port),
            false => write!(f, "{}:{}", self.host, self.port),
        }
    }
}

/// Connects, and starts the connection's tasks.
pub(crate) async fn dial(address: &Address, options: &ClientOptions) -> Result<Arc<Conn>> {
    let within = options.connect_timeout;
    let late = |_| {
        let kind = ErrorKind::Connect {
            address: address.to_string(),
        };
        Error::new(kind, Effects::None, format!("no welcome within {within:?}"))
    };
    let connected = timeout(within, connect(address, options)).await;
    // Nothing was asked yet.
    connected
        .map_err(late)?
        .map_err(|error| error.with_effects(Effects::None))
}

async fn connect(address: &Address, options: &ClientOptions) -> Result<Arc<Conn>> {
    let failed = |error: std::io::Error| failed(address, &error.to_string());
    let target = (address.host.as_str(), address.port);
    let socket = TcpStream::connect(target).await.map_err(failed)?;
    socket.set_nodelay(true).map_err(failed)?;
    let Some(tls) = &options.tls else {
        let mut socket = socket;
        let (welcome, rest) = greet(&mut socket, address, options).await?;
        let (reader, writer) = socket.into_split();
        return Ok(start(
            Box::new(reader),
            Box::new(writer),
            welcome,
            rest,
            options,
        ));
    };
    let name = server_name(tls, address)?;
    let connector = TlsConnector::from(tls.config.clone());
    let mut socket = connector
        .connect(name, socket)
        .await
        .map_err(|error| tls_failed(address, &error))?;
    let (welcome, rest) = greet(&mut socket, address, options).await?;
    let (reader, writer) = tokio::io::split(socket);
    Ok(start(
        Box::new(reader),
        Box::new(writer),
        welcome,
        rest,
        options,
    ))
}

fn server_name(tls: &Tls, address: &Address) -> Result<ServerName<'static>> {
    match &tls.server_name {
        Some(name) => Ok(name.clone()),
        None => ServerName::try_from(address.host.clone())
            .map_err(|e| Error::invalid(format!("{}: {e}", address.host))),
    }
}

fn failed(address: &Address, text: &str) -> Error {
    let address = address.to_string();
    Error::new(ErrorKind::Connect { address }, Effects::None, text)
}

/// A handshake that failed for what one side is, not for the path between, fails again.
fn tls_failed(address: &Address, error: &std::io::Error) -> Error {
    let lost = failed(address, &format!("TLS: {error}"));
    match error.kind() {
        std::io::ErrorKind::InvalidData | std::io::ErrorKind::InvalidInput => lost.for_good(),
        _ => lost,
    }
}

/// Says hello and reads the welcome; what came behind it is handed on.
async fn greet<S: AsyncRead + AsyncWrite + Unpin>(
    socket: &mut S,
    address: &Address,
    options: &ClientOptions,
) -> Result<(Welcome, BytesMut)> {
    let lost = |error: std::io::Error| failed(address, &error.to_string());
    let stranger = |error: WireError| {
        let tls = match options.tls {
            None => ", or wants TLS",
            Some(_) => "",
        };
        let text = format!("it does not speak the native protocol{tls}: {error}");
        failed(address, &text).for_good()
    };
    let hello = Hello {
        magic: Hello::MAGIC,
        version_min: PROTOCOL_VERSION,
        version_max: PROTOCOL_VERSION,
        features: Features::default(),
        heartbeat_ms: u32::try_from(options.heartbeat.as_millis()).unwrap_or(u32::MAX),
        token: options.token.as_ref().map(|token| token.as_bytes()),
        agent: &options.agent,
    };
    let mut bytes = Vec::new();
    Request::Hello { hello }.encode(HELLO, 0, &mut bytes);
    socket.write_all(&bytes).await.map_err(lost)?;
    socket.flush().await.map_err(lost)?;
    let mut received = BytesMut::with_capacity(HELLO_BYTES_MAX);
    loop {
        if let Some(header) = MessageHeader::peek(&received, HELLO_BYTES_MAX).map_err(stranger)?
            && received.len() >= header.message_bytes
        {
            let message = received.split_to(header.message_bytes);
            let body = &message[sealog_protocol::HEADER_BYTES..];
            let answer = Answer::decode(header.kind, body).map_err(stranger)?;
            let welcome = welcome_of(&answer, address)?;
            return Ok((welcome, received));
        }
        if socket.read_buf(&mut received).await.map_err(lost)? == 0 {
            return Err(failed(address, "closed before the welcome"));
        }
    }
}

fn welcome_of(answer: &Answer<'_>, address: &Address) -> Result<Welcome> {
    match answer {
        Answer::Welcome { welcome } if welcome.version == PROTOCOL_VERSION => Ok(welcome.clone()),
        Answer::Welcome { welcome } => Err(Error::protocol(format!(
            "welcomed in version {}, which was not offered",
            welcome.version
        ))),
        Answer::Refused { refusal } => Err(Error::from(refusal)),
        Answer::Goodbye { reason } => Err(failed(address, reason)),
        _ => Err(Error::protocol("the first answer is no welcome")),
    }
}

fn start(
    reader: Reader,
    writer: Writer,
    welcome: Welcome,
    received: BytesMut,
    options: &ClientOptions,
) -> Arc<Conn> {
    let conn = Arc::new(Conn::new(welcome));
    run(&conn, reader, writer, received, options.heartbeat);
    conn
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn address_is_taken_apart_and_shown_again() {
        for text in ["localhost:4436", "127.0.0.1:1", "[::1]:4436"] {
            assert_eq!(Address::parse(text).unwrap().to_string(), text);
        }
        for text in ["localhost", ":1", "a:b", "[::1:4", "a:70000"] {
            assert!(Address::parse(text).is_err(), "{text}");
        }
    }
}
