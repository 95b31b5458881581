//! Serve: the command line of `serve`, and of `config`, which shows what `serve` would do.
//!
//! **Invariants**
//! - Every option has a variable; what is left out is the file's, else the default (`serve_settings`).
//!
//! **Not here**: which of them wins (`config`).

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

/// `serve`. What is left out is the file's, else the default (`serve_settings`).
#[derive(Debug, Default, Args)]
pub(crate) struct ServeArgs {
    /// Address of the native protocol [default: 127.0.0.1:4436]
    #[arg(long, env = "SEALOG_LISTEN", value_name = "IP:PORT")]
    pub(crate) listen: Option<SocketAddr>,
    /// Port of shard 0; further shards take those after it; 0: the system chooses [default: 4440]
    #[arg(long, env = "SEALOG_SHARD_PORT", value_name = "PORT")]
    pub(crate) shard_port: Option<u16>,
    /// Address of Durable Streams over HTTP; port 0: the system chooses; none: no such
    /// [default: 127.0.0.1:4437]
    #[arg(
        long,
        env = "SEALOG_HTTP_LISTEN",
        value_name = "IP:PORT|none",
        value_parser = listen
    )]
    pub(crate) http_listen: Option<Listen>,
    /// Address of health, readiness and metrics over HTTP; port 0: the system chooses; none: no such
    /// [default: 127.0.0.1:4438]
    #[arg(
        long,
        env = "SEALOG_ADMIN_LISTEN",
        value_name = "IP:PORT|none",
        value_parser = listen
    )]
    pub(crate) admin_listen: Option<Listen>,
    /// File with the certificate chain, PEM: connections are under TLS
    #[arg(long, env = "SEALOG_TLS_CERT", value_name = "FILE")]
    pub(crate) tls_cert: Option<PathBuf>,
    /// File with the certificate's private key, PEM
    #[arg(long, env = "SEALOG_TLS_KEY", value_name = "FILE")]
    pub(crate) tls_key: Option<PathBuf>,
    /// Connections per shard, at most [default: 10000]
    #[arg(long, env = "SEALOG_CONNECTIONS_MAX", value_name = "N")]
    pub(crate) connections_max: Option<usize>,
    /// Serve beyond this machine without token and TLS
    #[arg(long, env = "SEALOG_INSECURE")]
    pub(crate) insecure: bool,
    /// What is logged: a level (off, error, warn, info, debug, trace), or TARGET=LEVEL,...
    /// [default: info]
    #[arg(long, env = "SEALOG_LOG", value_name = "LEVEL")]
    pub(crate) log: Option<String>,
    /// How: lines of text, or of JSON [default: text]
    #[arg(long, env = "SEALOG_LOG_FORMAT", value_enum)]
    pub(crate) log_format: Option<LogFormat>,
}

/// What to do with the configuration.
#[derive(Debug, Subcommand)]
pub(crate) enum ConfigVerb {
    /// Show every key, its value, and where that came from; takes the options of `serve`, too
    Show(ServeArgs),
}

/// Where something listens that may be left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Listen {
    /// Nowhere.
    Off,
    /// Here.
    At(SocketAddr),
}

impl std::fmt::Display for Listen {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Off => write!(f, "none"),
            Self::At(address) => write!(f, "{address}"),
        }
    }
}

pub(in crate::cli) fn listen(text: &str) -> Result<Listen, String> {
    match text {
        "none" => Ok(Listen::Off),
        _ => text
            .parse()
            .map(Listen::At)
            .map_err(|_| "neither IP:PORT nor \"none\"".to_owned()),
    }
}

/// How the log of `serve` looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogFormat {
    /// A line for people
    Text,
    /// A JSON object per line
    Json,
}
