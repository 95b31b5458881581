//! Serve: the engine on the network: start, wait, drain, end. Reference: `docs/cli.md`.
//!
//! ```text
//!  ports claimed -> engine opened -> shards listen -> address in the lock file -> ... signal
//!  -> no more accepted, what was taken in is answered -> engine closed
//! ```
//!
//! **Invariants**
//! - Nobody is accepted before the logs serve.
//! - Everything accepted is answered, or the grace time has passed, before the engine closes.
//! - A second signal ends the process at once.
//!
//! **Not here**: what connections do (`native`).

mod shard;

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_lite::future::block_on;
use rustls::ServerConfig;
use sealog_engine::{Engine, EngineConfig};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::cli::{CliError, ServeArgs};
use crate::native::NativeOptions;
use crate::net::{Claim, TlsFiles};
use shard::{Control, Front, Up};

/// How long draining may take.
const GRACE: Duration = Duration::from_secs(9);

/// What the main thread waits for.
enum Notice {
    Signal(i32),
    /// A log has stopped.
    Stopped(String),
}

/// Serves until a signal comes.
pub(crate) fn run(mut config: EngineConfig, args: &ServeArgs) -> Result<(), CliError> {
    let listen = args.listen;
    check_exposure(listen, args)?;
    let claim = claim(listen)?;
    let address = claim.address;
    config.pin = true;
    // Clients on the same machine need the cores more than a shard that only waits.
    config.spin = Duration::ZERO;
    let (up, ups) = flume::unbounded();
    let (notice, notices) = flume::unbounded();
    let control: Arc<Mutex<Vec<flume::Sender<Control>>>> = Arc::default();
    let front = Front {
        address,
        shard_port: args.shard_port,
        options: NativeOptions {
            connections_max: args.connections_max,
            credit_bytes: CREDIT_BYTES,
            token: token(args)?,
            tls: tls(args)?,
            shard_ports: Arc::default(),
            server: server_id(),
        },
        up,
        control: control.clone(),
        stopped: notice.clone(),
    };
    watch_signals(notice)?;
    let engine = Engine::open_with(config, move |side| front.begin(side))?;
    let started = wait_until_up(&ups);
    drop(claim);
    if let Err(error) = started {
        let _ = block_on(engine.close());
        return Err(error);
    }
    engine.set_address(&address.to_string())?;
    eprintln!("sealog: listening on {address}");
    let ended = wait(&notices, &control);
    let closed = block_on(engine.close());
    ended.and(closed.map_err(CliError::from))
}

/// Bytes of requests that a connection may leave unanswered.
const CREDIT_BYTES: u32 = 32 << 20;

fn server_id() -> u64 {
    use std::hash::{BuildHasher, Hasher, RandomState};
    RandomState::new().build_hasher().finish()
}

/// Beyond this machine, a server needs a token and TLS, or the word that it doesn't.
fn check_exposure(listen: SocketAddr, args: &ServeArgs) -> Result<(), CliError> {
    let secured = args.token_file.is_some() && args.tls_cert.is_some();
    if listen.ip().is_loopback() || args.insecure || secured {
        return Ok(());
    }
    Err(CliError::usage(format!(
        "--listen {listen} is not loopback: give --token-file and --tls-cert with --tls-key, or say --insecure"
    )))
}

/// Longest token; it travels in the hello.
const TOKEN_BYTES_MAX: usize = 4096;

fn token(args: &ServeArgs) -> Result<Option<Vec<u8>>, CliError> {
    let Some(path) = &args.token_file else {
        return Ok(None);
    };
    let text = std::fs::read(path).map_err(|error| CliError::file("token file", path, &error))?;
    let token = text.trim_ascii();
    match token.len() {
        1..=TOKEN_BYTES_MAX => Ok(Some(token.to_vec())),
        bytes => Err(CliError::usage(format!(
            "token file {} holds {bytes} bytes, 1 to {TOKEN_BYTES_MAX} are allowed",
            path.display()
        ))),
    }
}

fn tls(args: &ServeArgs) -> Result<Option<Arc<ServerConfig>>, CliError> {
    let (Some(certificate), Some(key)) = (&args.tls_cert, &args.tls_key) else {
        return Ok(None);
    };
    let files = TlsFiles {
        certificate: certificate.clone(),
        key: key.clone(),
    };
    files.load().map(Some).map_err(CliError::usage)
}

/// Takes the shared port, unless anybody else has it.
fn claim(listen: SocketAddr) -> Result<Claim, CliError> {
    let taken =
        |error: std::io::Error| CliError::unusable(format!("listening on {listen}: {error}"));
    // Alone first: with a shared port, a second server would get a share of the connections.
    drop(Claim::take(listen, false).map_err(taken)?);
    Claim::take(listen, true).map_err(taken)
}

fn watch_signals(notice: flume::Sender<Notice>) -> Result<(), CliError> {
    let listening = |error| CliError::io("listening for signals", &error);
    let mut signals = Signals::new([SIGINT, SIGTERM]).map_err(listening)?;
    let watch = move || {
        for signal in signals.forever() {
            if notice.send(Notice::Signal(signal)).is_err() {
                return;
            }
        }
    };
    let thread = std::thread::Builder::new().name("sealog-signals".to_owned());
    thread.spawn(watch).map_err(listening)?;
    Ok(())
}

fn wait_until_up(ups: &flume::Receiver<Up>) -> Result<(), CliError> {
    // Every shard has reported before the engine was open.
    for up in ups.drain() {
        up.map_err(CliError::unusable)?;
    }
    Ok(())
}

/// Waits for a signal, or for a log to stop, and drains.
fn wait(
    notices: &flume::Receiver<Notice>,
    control: &Mutex<Vec<flume::Sender<Control>>>,
) -> Result<(), CliError> {
    let outcome = match notices.recv() {
        Ok(Notice::Signal(_)) | Err(_) => Ok(()),
        Ok(Notice::Stopped(reason)) => Err(CliError::poisoned(reason)),
    };
    let (done, dones) = flume::unbounded();
    let shards = control.lock().unwrap_or_else(PoisonError::into_inner);
    for shard in shards.iter() {
        let grace = GRACE;
        let done = done.clone();
        let _ = shard.send(Control::Drain { grace, done });
    }
    drop(done);
    loop {
        let event = flume::Selector::new()
            .recv(&dones, |done| done.ok().map(|()| None))
            .recv(notices, |notice| notice.ok().map(Some))
            .wait();
        match event {
            // The next shard.
            Some(None) => {}
            // All are done.
            None => return outcome,
            Some(Some(Notice::Signal(signal))) => std::process::exit(128 + signal),
            Some(Some(Notice::Stopped(_))) => {}
        }
    }
}
