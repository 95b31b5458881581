//! Options: what a client and a session can be told.
//!
//! **Invariants**
//! - Every default is named in its field's doc; a default client needs no token and no TLS.
//! - A token never shows in `Debug`.
//!
//! **Not here**: what reads can be told ([`ReadOptions`](crate::ReadOptions)).

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};

use crate::backoff::RetryPolicy;
use crate::error::{Error, Result};

/// How a client connects, and how long it waits.
#[derive(Debug, Clone)]
pub struct ClientOptions {
    /// The bearer token of the server; none.
    pub token: Option<Token>,
    /// TLS; off.
    pub tls: Option<Tls>,
    /// A connection must stand, welcome included, within this: 5 s.
    pub connect_timeout: Duration,
    /// A request must be answered within this, retries included: 30 s. Appends have
    /// [`SessionOptions::stall_timeout`].
    pub request_timeout: Duration,
    /// A seal waits for publication, and may wait this long: 10 minutes.
    pub seal_timeout: Duration,
    /// Something is said at least this often, both ways; a server that is silent for three times as long
    /// is given up: 5 s. Zero: no heartbeat, and a silent server is waited for.
    pub heartbeat: Duration,
    /// When to try again.
    pub retry: RetryPolicy,
    /// Program and version, for the server's logs: this crate's.
    pub agent: String,
}

impl Default for ClientOptions {
    fn default() -> Self {
        Self {
            token: None,
            tls: None,
            connect_timeout: Duration::from_secs(5),
            request_timeout: Duration::from_secs(30),
            seal_timeout: Duration::from_secs(600),
            heartbeat: Duration::from_secs(5),
            retry: RetryPolicy::default(),
            agent: concat!("sealog-client/", env!("CARGO_PKG_VERSION")).to_owned(),
        }
    }
}

/// A secret that `Debug` does not show.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(Vec<u8>);

impl Token {
    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl<T: Into<Vec<u8>>> From<T> for Token {
    fn from(token: T) -> Self {
        Self(token.into())
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Token({} bytes)", self.0.len())
    }
}

/// Whom to trust, and as whom to address the server.
#[derive(Debug, Clone)]
pub struct Tls {
    pub(crate) config: Arc<ClientConfig>,
    pub(crate) server_name: Option<ServerName<'static>>,
}

impl Tls {
    /// Trusts the certificates in `pem`: the server's own, or those of whoever signed it.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid): no certificate in it, or none that can be used.
    pub fn trusting(pem: &[u8]) -> Result<Self> {
        let mut roots = RootCertStore::empty();
        for certificate in CertificateDer::pem_slice_iter(pem) {
            let certificate = certificate.map_err(|e| Error::invalid(format!("PEM: {e}")))?;
            let added = roots.add(certificate);
            added.map_err(|e| Error::invalid(format!("certificate: {e}")))?;
        }
        if roots.is_empty() {
            return Err(Error::invalid("no certificate in the PEM text"));
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|e| Error::invalid(e.to_string()))?
            .with_root_certificates(roots)
            .with_no_client_auth();
        Ok(Self::with_config(Arc::new(config)))
    }

    /// Uses a configuration of the caller's own: system roots, client certificates.
    #[must_use]
    pub fn with_config(config: Arc<ClientConfig>) -> Self {
        Self {
            config,
            server_name: None,
        }
    }

    /// Expects this name in the server's certificate, whatever the address is.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid): neither a DNS name nor an IP address.
    pub fn server_name(mut self, name: &str) -> Result<Self> {
        let name = ServerName::try_from(name.to_owned());
        self.server_name = Some(name.map_err(|e| Error::invalid(e.to_string()))?);
        Ok(self)
    }
}

/// Who a session is to the feed, so that a batch that is sent again is recognised.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Identity {
    /// The client sees to it: under a lease one producer per feed, `sealog.session`, whose producer epoch
    /// is the lease's; without a lease a random id of 16 bytes.
    #[default]
    Automatic,
    /// The caller's own, for exactly once across restarts of the caller, too.
    Producer(Producer),
    /// None: an append whose answer was lost has an unknown outcome, and stops the session.
    Off,
}

/// An idempotent producer of the caller's own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Producer {
    /// 1 to 256 bytes. Only one session at a time may use it on a feed.
    pub id: Vec<u8>,
    /// Raise it to fence an older instance of the same id.
    pub epoch: u64,
    /// Producer sequence of the session's first batch. `None`: behind the last one that the server knows of
    /// this epoch, or 0. A caller that sends again what an earlier run sent gives the number it had.
    pub next_sequence: Option<u64>,
}

/// How a session behaves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionOptions {
    /// Metered bytes (payloads, keys, header names and values) that may be unacknowledged: 16 MiB. No batch
    /// may be larger.
    pub max_unacked_bytes: u64,
    /// Batches that may be unacknowledged, or acknowledged and not yet taken from the
    /// [ack stream](crate::AppendSession::acks): 65,536. Bounds what small batches cost in memory.
    pub max_unacked_batches: usize,
    /// Exactly once, and by what identity.
    pub identity: Identity,
    /// With batches unacknowledged and no acknowledgement for this long, the session stops: 2 minutes.
    pub stall_timeout: Duration,
    /// [`AppendSession::close`](crate::AppendSession::close) waits so long: 30 s.
    pub close_timeout: Duration,
}

impl Default for SessionOptions {
    fn default() -> Self {
        Self {
            max_unacked_bytes: 16 << 20,
            max_unacked_batches: 65_536,
            identity: Identity::Automatic,
            stall_timeout: Duration::from_secs(120),
            close_timeout: Duration::from_secs(30),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn token_does_not_show() {
        let options = ClientOptions {
            token: Some("hush".into()),
            ..ClientOptions::default()
        };
        let shown = format!("{options:?}");
        assert!(shown.contains("Token(4 bytes)") && !shown.contains("hush"));
    }

    #[test]
    fn tls_needs_a_certificate_and_a_name() {
        assert!(Tls::trusting(b"").is_err());
        let config =
            ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
                .with_safe_default_protocol_versions()
                .unwrap()
                .with_root_certificates(RootCertStore::empty())
                .with_no_client_auth();
        let tls = Tls::with_config(Arc::new(config));
        assert!(tls.clone().server_name("a b").is_err());
        assert!(tls.server_name("sealog.example").is_ok());
    }
}
