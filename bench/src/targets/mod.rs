//! Targets: what the generator can append to, and how each is named on the command line.
//!
//! **Invariants**
//! - A target acknowledges an append only when its own protocol says it is stored.
//!
//! **Not here**: starting servers (`compare::peers`).

pub mod alarm;
pub mod answer;
pub mod client;
pub mod http;
pub mod in_process;
pub mod native;
pub mod nats;
pub mod plain_group;
pub mod resp;
pub mod wire;

use std::fmt;
use std::net::{SocketAddr, ToSocketAddrs};
use std::str::FromStr;

/// Where a load goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TargetUrl {
    /// A server of our own, started for the benchmark, through the client crate.
    Native,
    /// The same, its protocol spoken as raw as the peers'.
    NativeRaw,
    /// An engine in this process.
    InProcess,
    /// A server of our own as one of Durable Streams.
    Http,
    /// The same, appends with a producer's headers.
    HttpProducers,
    /// A Sealog server that runs already, through the client crate.
    Sealog(SocketAddr),
    /// The same, its protocol spoken raw.
    SealogRaw(SocketAddr),
    /// A server that speaks Redis' protocol.
    Redis(SocketAddr),
    /// A server that speaks NATS' protocol, with JetStream.
    Nats(SocketAddr),
    /// A server that speaks Durable Streams.
    DurableStreams(SocketAddr),
    /// The same, appends with a producer's headers.
    DurableStreamsProducers(SocketAddr),
}

impl fmt::Display for TargetUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Native => write!(f, "native"),
            Self::NativeRaw => write!(f, "native-raw"),
            Self::InProcess => write!(f, "in-process"),
            Self::Http => write!(f, "http"),
            Self::HttpProducers => write!(f, "http-producers"),
            Self::DurableStreams(address) => write!(f, "http://{address}"),
            Self::DurableStreamsProducers(address) => write!(f, "http-producers://{address}"),
            Self::Sealog(address) => write!(f, "sealog://{address}"),
            Self::SealogRaw(address) => write!(f, "sealog-raw://{address}"),
            Self::Redis(address) => write!(f, "redis://{address}"),
            Self::Nats(address) => write!(f, "nats://{address}"),
        }
    }
}

impl FromStr for TargetUrl {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "native" => return Ok(Self::Native),
            "native-raw" => return Ok(Self::NativeRaw),
            "in-process" => return Ok(Self::InProcess),
            "http" => return Ok(Self::Http),
            "http-producers" => return Ok(Self::HttpProducers),
            _ => {}
        }
        let wanted = "native, native-raw, in-process, http, http-producers, sealog://, sealog-raw://, http://, http-producers://, redis:// or nats://HOST:PORT";
        let (scheme, rest) = text
            .split_once("://")
            .ok_or_else(|| format!("target {text:?} is not one of {wanted}"))?;
        let address = rest.trim_end_matches('/');
        let mut found = address
            .to_socket_addrs()
            .map_err(|error| format!("address {address:?}: {error}"))?;
        let address = found
            .next()
            .ok_or_else(|| format!("address {address:?} has no numeric form"))?;
        match scheme {
            "sealog" => Ok(Self::Sealog(address)),
            "sealog-raw" => Ok(Self::SealogRaw(address)),
            "redis" => Ok(Self::Redis(address)),
            "nats" => Ok(Self::Nats(address)),
            "http" => Ok(Self::DurableStreams(address)),
            "http-producers" => Ok(Self::DurableStreamsProducers(address)),
            _ => Err(format!("target {text:?} is not one of {wanted}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn target_urls_are_read_and_printed() {
        for text in [
            "native",
            "native-raw",
            "sealog-raw://127.0.0.1:4440",
            "in-process",
            "sealog://127.0.0.1:4436",
            "redis://127.0.0.1:6379",
            "nats://127.0.0.1:4222",
            "http",
            "http-producers",
            "http://127.0.0.1:4437",
            "http-producers://127.0.0.1:4437",
        ] {
            assert_eq!(
                text.parse::<TargetUrl>().expect(text).to_string(),
                text.to_owned()
            );
        }
        for text in ["redis", "kafka://127.0.0.1:1", "redis://127.0.0.1"] {
            assert!(text.parse::<TargetUrl>().is_err(), "{text}");
        }
    }
}
