//! Serve: the engine on the network: start, wait, drain, end. Reference: `docs/serve.md`.
//!
//! ```text
//!  ports claimed, admin answers -> engine opened -> shards listen -> address in the lock file -> ... signal
//!  -> no more accepted, what was taken in is answered -> engine closed
//! ```
//!
//! **Invariants**
//! - Nobody is accepted before the logs serve.
//! - Everything accepted is answered, or the grace time has passed, before the engine closes.
//! - A second signal ends the process at once.
//!
//! **Not here**: what connections do (`native`).

mod admin;
mod files;
mod log;
mod metrics;
mod shard;
mod state;
mod troubles;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use futures_lite::future::block_on;
use rustls::ServerConfig;
use sealog_engine::{Engine, EngineConfig, Error, Handle, ProductionEnv};
use signal_hook::iterator::Signals;
use tracing::{error, info, warn};

use crate::cli::{CliError, Listen, ServeSettings, signals, token};
use crate::http::{Courier, CourierOptions, Keys};
use crate::native::NativeOptions;
use crate::net::{Claim, TlsError, TlsFiles};
use admin::Admin;
use log::Log;
use shard::{Control, Front, Up};
use state::{Stage, State};

/// How long draining may take.
const GRACE: Duration = Duration::from_secs(9);

/// A port that is taken is tried so often again, with a pause before each.
const CLAIM_TRIES: u32 = 10;
const CLAIM_PAUSE: Duration = Duration::from_millis(100);

/// What the main thread waits for.
enum Notice {
    Signal(i32),
    /// A log has stopped.
    Stopped(String),
}

/// What draining goes on with.
enum Step {
    /// A shard is done: whether its connections have all ended.
    Shard(bool),
    Notice(Notice),
}

/// Serves until a signal comes.
pub(crate) fn run(config: EngineConfig, settings: &ServeSettings) -> Result<(), CliError> {
    let log = Log::begin(&settings.log, settings.log_format)?;
    let served = serve(config, settings, &log);
    log.flush();
    served
}

fn serve(mut config: EngineConfig, settings: &ServeSettings, log: &Log) -> Result<(), CliError> {
    spare_memory(&config);
    let listen = settings.listen;
    check_exposure(settings)?;
    let buffer_bytes = socket_buffer_bytes(&config);
    let claim = claim(("--listen", listen), buffer_bytes)?;
    let state = Arc::new(State::default());
    let http_claim = claim_http(settings, buffer_bytes)?;
    begin_admin(settings, &state, log)?;
    let address = claim.address;
    config.pin = true;
    // Clients on the same machine need the cores more than a shard that only waits.
    config.spin = Duration::ZERO;
    let (up, ups) = flume::unbounded();
    let (notice, notices) = flume::unbounded();
    let control: Arc<Mutex<Vec<flume::Sender<Control>>>> = Arc::default();
    let front = Front {
        address,
        buffer_bytes,
        shard_port: settings.shard_port,
        http: http_claim.as_ref().map(|claim| claim.address),
        options: options(settings)?,
        lifetimes: Arc::default(),
        keys: Arc::default(),
        state: state.clone(),
        up,
        control: control.clone(),
        stopped: notice.clone(),
    };
    let front_ports = front.options.shard_ports.clone();
    let (keys, data_dir) = (front.keys.clone(), config.data_dir.clone());
    let (http, secured) = (front.http, front.options.tls.is_some());
    watch_signals(notice, log.clone())?;
    tell_start(&config, &front.options);
    files::raise();
    let engine = Engine::open_with(config, move |side| front.begin(side))?;
    let started = wait_until_up(&ups);
    drop((claim, http_claim));
    if let Err(error) = started {
        // Shards that are not to be told anything any more end at once.
        control
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clear();
        let _ = block_on(engine.close());
        return Err(error);
    }
    engine.set_address(&address.to_string())?;
    let courier = start_courier((http, &data_dir), engine.handle(), &keys)?;
    let _ = state.engine.set(engine.handle().clone());
    state.go_on(Stage::Ready);
    tell_up(&engine, &front_ports);
    tell_http(http, secured);
    let shards = control.lock().unwrap_or_else(PoisonError::into_inner).len();
    files::check(shards, settings.connections_max);
    // The address ends the line: programs that start a server read it.
    info!("listening on {address}");
    troubles::watch(engine.handle().clone());
    let ended = wait(&notices, &control, &state);
    drop(courier);
    ended.and(close(engine))
}

fn close(engine: Engine) -> Result<(), CliError> {
    let closed = block_on(engine.close());
    match &closed {
        Ok(()) => info!("closed"),
        Err(failure) => error!("closing: {failure}"),
    }
    closed.map_err(|failure| match failure {
        // It stopped while it was served, if only for its last group.
        Error::Poisoned { .. } => CliError::log_stopped(failure.to_string()),
        other => CliError::from(other),
    })
}

/// Who wakes subscribers, if streams are served over HTTP.
fn start_courier(
    (http, data_dir): (Option<SocketAddr>, &std::path::Path),
    handle: &Handle<ProductionEnv>,
    keys: &OnceLock<Arc<Keys>>,
) -> Result<Option<Courier>, CliError> {
    let Some(address) = http else {
        return Ok(None);
    };
    let made = Keys::load_or_make(data_dir);
    let made = made.map_err(|error| CliError::io("the subscriptions' key file", &error))?;
    let made = Arc::new(made);
    let _ = keys.set(made.clone());
    let courier = Courier::start(CourierOptions {
        handle: handle.clone(),
        keys: made,
        loopback: address.ip().is_loopback(),
    });
    let courier = courier.map_err(|error| CliError::io("starting the courier thread", &error))?;
    Ok(Some(courier))
}

fn tell_start(config: &EngineConfig, options: &NativeOptions) {
    info!(
        version = env!("CARGO_PKG_VERSION"),
        data_dir = %config.data_dir.display(),
        tls = options.tls.is_some(),
        token = options.token.is_some(),
        "starting"
    );
}

fn tell_http(address: Option<SocketAddr>, secured: bool) {
    let scheme = match secured {
        true => "https",
        false => "http",
    };
    if let Some(address) = address {
        info!("streams over HTTP at {scheme}://{address}/v1/stream/");
    }
}

/// Where memory is little, has glibc take buffers from the system and give them back one by one, and the
/// rest from one heap: several, each with its own gaps, cost more than the waiting for one.
fn spare_memory(config: &EngineConfig) {
    #[cfg(target_env = "gnu")]
    if config.inflight_bytes_max < INFLIGHT_BYTES_ROOMY {
        // SAFETY: plain calls, before the shards' threads begin.
        unsafe {
            libc::mallopt(libc::M_ARENA_MAX, 1);
            libc::mallopt(libc::M_MMAP_THRESHOLD, 64 << 10);
            libc::mallopt(libc::M_TRIM_THRESHOLD, 128 << 10);
        }
    }
}

/// Below this, memory counts more than speed.
const INFLIGHT_BYTES_ROOMY: usize = 16 << 20;

/// The system's buffer per connection and direction: 256 KiB with the standard profile, a quarter of it
/// on small machines.
fn socket_buffer_bytes(config: &EngineConfig) -> usize {
    (config.inflight_bytes_max / 64).clamp(64 << 10, 256 << 10)
}

/// Bytes of requests that a connection may leave unanswered.
const CREDIT_BYTES: u32 = 32 << 20;

fn server_id() -> u64 {
    use std::hash::{BuildHasher, Hasher, RandomState};
    RandomState::new().build_hasher().finish()
}

fn options(settings: &ServeSettings) -> Result<NativeOptions, CliError> {
    let token_file = settings.token_file.as_deref();
    Ok(NativeOptions {
        connections_max: settings.connections_max,
        credit_bytes: CREDIT_BYTES,
        token: token_file.map(token::read).transpose()?,
        tls: tls(settings)?,
        shard_ports: Arc::default(),
        server: server_id(),
    })
}

/// Beyond this machine, a server needs a token and TLS, or the word that it doesn't.
fn check_exposure(settings: &ServeSettings) -> Result<(), CliError> {
    let secured = settings.token_file.is_some() && settings.tls_cert.is_some();
    let mut listens = vec![("--listen", settings.listen)];
    if let Listen::At(address) = settings.http_listen {
        listens.push(("--http-listen", address));
    }
    let exposed = listens
        .into_iter()
        .find(|(_, address)| !address.ip().is_loopback());
    match exposed {
        Some((option, address)) if !settings.insecure && !secured => Err(CliError::usage(format!(
            "{option} {address} is not loopback: give --token-file and --tls-cert with --tls-key, or say --insecure"
        ))),
        _ => Ok(()),
    }
}

fn tls(settings: &ServeSettings) -> Result<Option<Arc<ServerConfig>>, CliError> {
    let (Some(certificate), Some(key)) = (&settings.tls_cert, &settings.tls_key) else {
        return Ok(None);
    };
    let files = TlsFiles {
        certificate: certificate.clone(),
        key: key.clone(),
    };
    let loaded = files.load().map_err(|error| match error {
        TlsError::File {
            option,
            file,
            source,
        } => CliError::file(option, &file, &source),
        TlsError::Content { option, file, text } => {
            CliError::usage(format!("{option} {}: {text}", file.display()))
        }
    });
    loaded.map(Some)
}

/// Takes the shared port, unless anybody else has it.
fn claim((option, listen): (&str, SocketAddr), buffer_bytes: usize) -> Result<Claim, CliError> {
    let taken = |error: std::io::Error| {
        let text = format!("listening on {listen}: {error}; {option} names another address");
        CliError::unusable(text)
    };
    // Alone first: with a shared port, a second server would get a share of the connections.
    // A server that was killed just now may still be on its way out.
    let mut alone = Claim::take(listen, false, buffer_bytes);
    for _ in 0..CLAIM_TRIES {
        match &alone {
            Err(error) if error.kind() == std::io::ErrorKind::AddrInUse => {}
            _ => break,
        }
        std::thread::sleep(CLAIM_PAUSE);
        alone = Claim::take(listen, false, buffer_bytes);
    }
    drop(alone.map_err(taken)?);
    Claim::take(listen, true, buffer_bytes).map_err(taken)
}

/// Takes the port of HTTP, unless there is to be none.
fn claim_http(settings: &ServeSettings, buffer_bytes: usize) -> Result<Option<Claim>, CliError> {
    match settings.http_listen {
        Listen::Off => Ok(None),
        Listen::At(address) => claim(("--http-listen", address), buffer_bytes).map(Some),
    }
}

/// The admin address answers from here on, unless there is to be none.
fn begin_admin(settings: &ServeSettings, state: &Arc<State>, log: &Log) -> Result<(), CliError> {
    let Listen::At(address) = settings.admin_listen else {
        return Ok(());
    };
    let admin = Admin::claim(address)?;
    let address = admin.address;
    admin.begin(state.clone(), log.clone())?;
    info!("health, readiness and metrics at http://{address}");
    if !address.ip().is_loopback() {
        warn!("the admin address is reachable from other machines, without token or TLS");
    }
    Ok(())
}

/// Tells of the first signal. The second ends the process, whatever the main thread waits for.
fn watch_signals(notice: flume::Sender<Notice>, log: Log) -> Result<(), CliError> {
    let listening = |error| CliError::io("listening for signals", &error);
    let mut signals = Signals::new(signals::heeded()).map_err(listening)?;
    let watch = move || {
        for (before, signal) in signals.forever().enumerate() {
            if before > 0 {
                warn!(signal, "asked again: ending at once");
                log.flush();
                std::process::exit(128 + signal);
            }
            let _ = notice.send(Notice::Signal(signal));
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

/// What recovery found, and where the shards are.
fn tell_up(engine: &Engine, ports: &Mutex<BTreeMap<usize, u16>>) {
    // A log that has stopped since is told of by itself.
    let reports = block_on(engine.handle().recovery_reports()).unwrap_or_default();
    for (log, report) in reports.iter().enumerate() {
        if report.created {
            info!(log, "created");
            continue;
        }
        info!(
            log,
            clean = report.clean,
            groups_replayed = report.groups_replayed,
            end = report.end,
            "recovered"
        );
    }
    let ports = ports.lock().unwrap_or_else(PoisonError::into_inner);
    for (shard, port) in ports.iter() {
        info!("shard {shard} is at port {port}");
    }
}

/// Waits for a signal, or for a log to stop, and drains.
fn wait(
    notices: &flume::Receiver<Notice>,
    control: &Mutex<Vec<flume::Sender<Control>>>,
    state: &State,
) -> Result<(), CliError> {
    let mut outcome = match notices.recv() {
        Ok(Notice::Signal(signal)) => {
            info!(signal, "asked to end");
            Ok(())
        }
        Err(_) => Ok(()),
        Ok(Notice::Stopped(reason)) => {
            error!("a log stopped: {reason}");
            state.go_on(Stage::Stopped(reason.clone()));
            Err(CliError::log_stopped(reason))
        }
    };
    state.go_on(Stage::Draining);
    info!(
        grace_s = GRACE.as_secs(),
        "draining: what was taken in is answered"
    );
    let (done, dones) = flume::unbounded();
    let shards = control.lock().unwrap_or_else(PoisonError::into_inner);
    for shard in shards.iter() {
        let grace = GRACE;
        let done = done.clone();
        let _ = shard.send(Control::Drain { grace, done });
    }
    drop(done);
    let mut all_ended = true;
    loop {
        let event = flume::Selector::new()
            .recv(&dones, |done| done.ok().map(Step::Shard))
            .recv(notices, |notice| notice.ok().map(Step::Notice))
            .wait();
        match event {
            Some(Step::Shard(ended)) => all_ended &= ended,
            Some(Step::Notice(Notice::Stopped(reason))) => {
                error!("a log stopped: {reason}");
                state.go_on(Stage::Stopped(reason.clone()));
                outcome = outcome.and(Err(CliError::log_stopped(reason)));
            }
            // It drains already; a second signal ends the process (`watch_signals`).
            Some(Step::Notice(Notice::Signal(_))) => {}
            // Every shard is done.
            None => {
                match all_ended {
                    true => info!("drained"),
                    false => warn!("the grace time is over: what is left of connections is cut"),
                }
                return outcome;
            }
        }
    }
}
