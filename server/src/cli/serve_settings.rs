//! Serve settings: what `serve` is told, from the file's `[serve]`, the environment and options.
//! Reference: `docs/cli.md`.
//!
//! **Invariants**
//! - Every setting has an option, a variable `SEALOG_NAME`, and a key of the file of the same name.
//! - Secrets are named by their files and never held here.
//!
//! **Not here**: which of them wins, and who is told so (`config`, `origins`).

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::ValueEnum;
use toml::Value;

use super::args::{Globals, Listen, LogFormat, ServeArgs, listen};
use super::config::{boolean, number, path, text};
use super::exit::CliError;

/// What `serve` is told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ServeSettings {
    /// Address of the native protocol.
    pub(crate) listen: SocketAddr,
    /// Port of shard 0; 0: the system chooses.
    pub(crate) shard_port: u16,
    /// Address of Durable Streams over HTTP.
    pub(crate) http_listen: Listen,
    /// Address of health, readiness and metrics.
    pub(crate) admin_listen: Listen,
    /// Connections per shard, at most.
    pub(crate) connections_max: usize,
    /// File with the bearer token.
    pub(crate) token_file: Option<PathBuf>,
    /// File with the certificate chain.
    pub(crate) tls_cert: Option<PathBuf>,
    /// File with its private key.
    pub(crate) tls_key: Option<PathBuf>,
    /// Serve beyond this machine without token and TLS.
    pub(crate) insecure: bool,
    /// What is logged.
    pub(crate) log: String,
    /// And how.
    pub(crate) log_format: LogFormat,
}

impl Default for ServeSettings {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from(([127, 0, 0, 1], 4436)),
            shard_port: 4440,
            http_listen: Listen::At(SocketAddr::from(([127, 0, 0, 1], 4437))),
            admin_listen: Listen::At(SocketAddr::from(([127, 0, 0, 1], 4438))),
            connections_max: 10_000,
            token_file: None,
            tls_cert: None,
            tls_key: None,
            insecure: false,
            log: "info".to_owned(),
            log_format: LogFormat::Text,
        }
    }
}

impl ServeSettings {
    /// What a profile comes with.
    pub(super) fn of_profile(edge: bool) -> Self {
        let mut settings = Self::default();
        if edge {
            settings.connections_max = EDGE_CONNECTIONS_MAX;
        }
        settings
    }
}

/// Connections per shard where memory is 64 MiB: each may hold some 20 KiB, run a request of 20 KiB, and
/// has the system's buffers.
const EDGE_CONNECTIONS_MAX: usize = 128;

type Set = fn(&mut ServeSettings, &Value) -> Result<(), String>;
type Get = fn(&ServeSettings) -> Option<Value>;

/// Keys of the file's `[serve]`.
pub(super) const SERVE_KEYS: &[(&str, Set, Get)] = &[
    (
        "serve.listen",
        |s, v| address(v).map(|a| s.listen = a),
        |s| Some(s.listen.to_string().into()),
    ),
    (
        "serve.shard_port",
        |s, v| number(v).map(|n| s.shard_port = n),
        |s| Some(i64::from(s.shard_port).into()),
    ),
    (
        "serve.http_listen",
        |s, v| listen(&text(v)?).map(|a| s.http_listen = a),
        |s| Some(s.http_listen.to_string().into()),
    ),
    (
        "serve.admin_listen",
        |s, v| listen(&text(v)?).map(|a| s.admin_listen = a),
        |s| Some(s.admin_listen.to_string().into()),
    ),
    (
        "serve.connections_max",
        |s, v| {
            let number = number(v).and_then(|n| match n {
                0 => Err("at least 1 is needed, or nobody can connect".to_owned()),
                n => Ok(n),
            });
            number.map(|n| s.connections_max = n)
        },
        |s| i64::try_from(s.connections_max).ok().map(Value::from),
    ),
    (
        "serve.token_file",
        |s, v| path(v).map(|p| s.token_file = Some(p)),
        |s| shown(&s.token_file),
    ),
    (
        "serve.tls_cert",
        |s, v| path(v).map(|p| s.tls_cert = Some(p)),
        |s| shown(&s.tls_cert),
    ),
    (
        "serve.tls_key",
        |s, v| path(v).map(|p| s.tls_key = Some(p)),
        |s| shown(&s.tls_key),
    ),
    (
        "serve.insecure",
        |s, v| boolean(v).map(|b| s.insecure = b),
        |s| Some(s.insecure.into()),
    ),
    (
        "serve.log",
        |s, v| text(v).map(|t| s.log = t),
        |s| Some(s.log.clone().into()),
    ),
    (
        "serve.log_format",
        |s, v| log_format(v).map(|f| s.log_format = f),
        |s| {
            let name = s.log_format.to_possible_value()?;
            Some(name.get_name().into())
        },
    ),
];

fn address(value: &Value) -> Result<SocketAddr, String> {
    let text = text(value)?;
    text.parse()
        .map_err(|_| "an address in quotes is needed: \"127.0.0.1:4436\"".to_owned())
}

fn log_format(value: &Value) -> Result<LogFormat, String> {
    LogFormat::from_str(&text(value)?, false)
        .map_err(|_| "\"text\" or \"json\" is needed".to_owned())
}

fn shown(path: &Option<PathBuf>) -> Option<Value> {
    let path = path.as_ref()?;
    Some(path.display().to_string().into())
}

impl ServeSettings {
    /// What options and environment say goes first.
    pub(super) fn under(mut self, args: &ServeArgs, globals: &Globals) -> Result<Self, CliError> {
        fn take<T: Clone>(own: &mut T, given: &Option<T>) {
            if let Some(given) = given {
                own.clone_from(given);
            }
        }
        let path = |own: &mut Option<PathBuf>, given: &Option<PathBuf>| {
            if given.is_some() {
                own.clone_from(given);
            }
        };
        take(&mut self.listen, &args.listen);
        take(&mut self.shard_port, &args.shard_port);
        take(&mut self.http_listen, &args.http_listen);
        take(&mut self.admin_listen, &args.admin_listen);
        take(&mut self.connections_max, &args.connections_max);
        take(&mut self.log, &args.log);
        take(&mut self.log_format, &args.log_format);
        path(&mut self.token_file, &globals.token_file);
        path(&mut self.tls_cert, &args.tls_cert);
        path(&mut self.tls_key, &args.tls_key);
        // A variable may take back what the file says.
        if globals.given.of("insecure").is_some() {
            self.insecure = args.insecure;
        }
        if self.connections_max == 0 {
            return Err(CliError::usage(
                "--connections-max 0: at least 1 is needed, or nobody can connect",
            ));
        }
        match self.tls_cert.is_some() == self.tls_key.is_some() {
            true => Ok(self),
            false => Err(CliError::usage(
                "certificate and key go together: --tls-cert with --tls-key",
            )),
        }
    }
}
