//! Shard: the front ends of one shard: their listeners, and what the main thread tells them.
//!
//! **Invariants**
//! - The main thread hears of every shard before the engine counts as open.
//! - Draining ends when the last connection has, or the grace time.
//! - When it has drained, no task of the front end is left: the shard's end waits for them.
//! - What is not done [`LAST_WORDS`] before the grace time's end is answered as what nobody knows.
//!
//! **Not here**: signals (`serve`).

use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use rustls::ServerConfig;
use sealog_engine::{Error, ShardSide};

use super::Notice;
use super::state::State;
use crate::http::{HttpOptions, HttpService, Keys, Lifetimes};
use crate::native::{NativeOptions, NativeService};
use crate::net::{Claim, Poller};

/// Time that connections have to tell what was not done, and to end.
const LAST_WORDS: Duration = Duration::from_secs(3);

/// Whether a shard listens; if not, why.
pub(super) type Up = Result<(), String>;

/// What the main thread tells a shard.
pub(super) enum Control {
    /// Answer what was taken in, and end.
    Drain {
        /// For so long at most.
        grace: Duration,
        /// Told when it is done: whether every connection has ended.
        done: flume::Sender<bool>,
    },
}

/// What each shard starts its front ends with.
#[derive(Clone)]
pub(super) struct Front {
    pub(super) address: SocketAddr,
    /// The system's buffer per connection and direction.
    pub(super) buffer_bytes: usize,
    /// Port of shard 0; the others follow it. 0: the system chooses.
    pub(super) shard_port: u16,
    pub(super) options: NativeOptions,
    /// Where HTTP is spoken, if it is.
    pub(super) http: Option<SocketAddr>,
    /// What all shards know of streams that end by themselves.
    pub(super) lifetimes: Arc<Lifetimes>,
    /// What signs webhooks, once the engine is open.
    pub(super) keys: Arc<OnceLock<Arc<Keys>>>,
    pub(super) state: Arc<State>,
    pub(super) up: flume::Sender<Up>,
    pub(super) control: Arc<Mutex<Vec<flume::Sender<Control>>>>,
    pub(super) stopped: flume::Sender<Notice>,
}

impl Front {
    /// Starts serving on the shard that calls.
    pub(super) fn begin(self, side: ShardSide) {
        let service = NativeService::new(side.clone(), self.options.clone());
        self.state.note_meters(service.meters.clone());
        let http = HttpService::new(side.clone(), self.http_options(), service.budgets());
        let listening = Poller::start(&side).and_then(|poller| {
            self.listen(&service, &poller)?;
            self.listen_http(&http, &poller)
        });
        let _ = self.up.send(listening.map_err(|error| error.to_string()));
        let (control, commands) = flume::unbounded();
        let mut shards = self.control.lock().unwrap_or_else(PoisonError::into_inner);
        shards.push(control);
        drop(shards);
        side.spawn("control", obey((service, http), commands));
        self.watch_logs(&side);
    }

    fn http_options(&self) -> HttpOptions {
        HttpOptions {
            connections_max: self.options.connections_max,
            tls: self.options.tls.as_deref().map(with_alpn),
            token: self.options.token.clone(),
            lifetimes: self.lifetimes.clone(),
            keys: self.keys.clone(),
            loopback_webhooks: self.http.is_some_and(|at| at.ip().is_loopback()),
        }
    }

    fn listen_http(&self, service: &Rc<HttpService>, poller: &Rc<Poller>) -> io::Result<()> {
        if let Some(address) = self.http {
            let named = |error: io::Error| {
                let text =
                    format!("listening on {address}: {error}; --http-listen names another address");
                io::Error::new(error.kind(), text)
            };
            let claim = Claim::take(address, true, self.buffer_bytes).map_err(named)?;
            service.serve(claim.listen(poller)?);
        }
        Ok(())
    }

    fn listen(&self, service: &Rc<NativeService>, poller: &Rc<Poller>) -> io::Result<()> {
        let shard = u16::try_from(service.side.shard()).unwrap_or(u16::MAX);
        let own = match self.shard_port {
            0 => 0,
            first => first
                .checked_add(shard)
                .ok_or_else(|| io::Error::other(format!("port {first} + {shard} is none")))?,
        };
        let own = SocketAddr::new(self.address.ip(), own);
        let named = |address: SocketAddr, way_out: &'static str| {
            move |error: io::Error| {
                let text = format!("listening on {address}: {error}; {way_out}");
                io::Error::new(error.kind(), text)
            }
        };
        let of_shared = named(self.address, "--listen names another address");
        let shared = Claim::take(self.address, true, self.buffer_bytes).map_err(&of_shared)?;
        let of_own = named(
            own,
            "it is a shard's own: --shard-port names the first of others, or 0: the system chooses",
        );
        let own = Claim::take(own, false, self.buffer_bytes).map_err(&of_own)?;
        self.options
            .note_port(service.side.shard(), own.address.port());
        service.serve(shared.listen(poller).map_err(of_shared)?);
        service.serve(own.listen(poller).map_err(of_own)?);
        Ok(())
    }

    /// Tells the main thread when a log of this shard stops.
    fn watch_logs(&self, side: &ShardSide) {
        for log in side.logs() {
            let (log, stopped) = (log.clone(), self.stopped.clone());
            side.spawn("watch log", async move {
                let ended = log.progress().until(|| log.outcome(u64::MAX)).await;
                if let Err(error @ Error::Poisoned { .. }) = ended {
                    let _ = stopped.send(Notice::Stopped(error.to_string()));
                }
            });
        }
    }
}

/// TLS that offers HTTP/2, and HTTP/1.1.
fn with_alpn(tls: &ServerConfig) -> Arc<ServerConfig> {
    let mut tls = tls.clone();
    tls.alpn_protocols = [&b"h2"[..], b"http/1.1"].map(<[u8]>::to_vec).into();
    Arc::new(tls)
}

/// Waits for the word to drain, and drains.
async fn obey(
    (service, http): (Rc<NativeService>, Rc<HttpService>),
    commands: flume::Receiver<Control>,
) {
    let Ok(Control::Drain { grace, done }) = commands.recv_async().await else {
        return;
    };
    service.drain();
    http.drain();
    let ended = async {
        service.drained().await;
        http.drained().await;
        true
    };
    let late = async {
        service.side.sleep(grace.saturating_sub(LAST_WORDS)).await;
        service.end_waiting();
        service.side.sleep(LAST_WORDS).await;
        false
    };
    let _ = done.send(futures_lite::future::or(ended, late).await);
}
