//! Courier: a thread beside the shards that carries news of streams to subscriptions, and wakes to whoever
//! they are for.
//!
//! ```text
//!  each log: news -> subscriptions            (engine: carry_news)
//!  each log: due wakes -> place free? -> told -> engine: lease, done, or next try
//! ```
//!
//! **Invariants**
//! - Nothing here is the only copy of anything: what it was about when it ended is due again at the next start.
//! - At most [`AT_ONCE`] wakes are being told at a time; shards never wait for it.
//! - It has ended before the engine closes.
//!
//! **Not here**: what is sent (`deliver`).

use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use sealog_engine::subscription::{Refusal, Registry};
use sealog_engine::{AckRequest, DueWake, Error, Handle, ProductionEnv};
use tokio::sync::Semaphore;
use tracing::{debug, warn};

use super::config::{Config, Kind};
use super::deliver::{self, Clients, Told};
use super::keys::Keys;
use super::leases::RECEIVER;
use crate::cli::time;

/// Wakes that are being told at a time.
const AT_ONCE: usize = 64;
/// Longest pause before the next try.
const BACKOFF_MAX_MS: u64 = 60_000;
/// Pause where the log has no room for what became of a try.
const ROOM_PAUSE: Duration = Duration::from_secs(1);

/// What the courier works with.
pub(crate) struct CourierOptions {
    pub(crate) handle: Handle<ProductionEnv>,
    pub(crate) keys: Arc<Keys>,
    /// Webhooks may be on this machine.
    pub(crate) loopback: bool,
}

/// The thread. It ends when this is dropped.
pub(crate) struct Courier {
    stop: Option<tokio::sync::oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Courier {
    /// Starts it.
    pub(crate) fn start(options: CourierOptions) -> io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .max_blocking_threads(8)
            .build()?;
        let (stop, stopped) = tokio::sync::oneshot::channel();
        let work = move || {
            let local = tokio::task::LocalSet::new();
            let round = Rc::new(Round {
                clients: Clients::new(options.loopback),
                options,
                places: Semaphore::new(AT_ONCE),
                registry: Registry::default(),
            });
            local.block_on(&runtime, async move {
                round.begin();
                // Dropped is told, too.
                let _ = stopped.await;
            });
            drop(local);
            // A name that is being looked up is not waited for.
            runtime.shutdown_background();
        };
        let thread = std::thread::Builder::new().name("sealog-courier".to_owned());
        Ok(Self {
            stop: Some(stop),
            thread: Some(thread.spawn(work)?),
        })
    }
}

impl Drop for Courier {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

struct Round {
    options: CourierOptions,
    clients: Clients,
    places: Semaphore,
    registry: Registry,
}

impl Round {
    fn begin(self: &Rc<Self>) {
        for log in 0..self.options.handle.logs() {
            let round = self.clone();
            tokio::task::spawn_local(async move {
                let handle = &round.options.handle;
                if let Err(error) = handle.carry_news(log, &round.registry).await {
                    debug!("subscriptions of log {log} hear of no more: {error}");
                }
            });
            let round = self.clone();
            tokio::task::spawn_local(async move { round.tell_all(log).await });
        }
    }

    async fn tell_all(self: Rc<Self>, log: usize) {
        loop {
            let due = match self.options.handle.due_wakes(log).await {
                Ok(due) => due,
                Err(error) => {
                    debug!("wakes of log {log} are told no more: {error}");
                    return;
                }
            };
            for wake in due {
                // Never closed.
                if let Ok(place) = self.places.acquire().await {
                    place.forget();
                }
                let round = self.clone();
                tokio::task::spawn_local(async move {
                    round.tell(wake).await;
                    round.places.add_permits(1);
                });
            }
        }
    }

    /// Tells somebody of a wake, and notes what came of it.
    async fn tell(&self, mut wake: DueWake) {
        let Some(config) = Config::of(&wake.subscription) else {
            debug!("subscription {:?} is not ours", wake.subscription.name);
            return;
        };
        let handle = &self.options.handle;
        if wake.subscription.pending.is_empty() {
            // After a start nothing is known yet.
            match deliver::look_anew(handle, &wake.subscription.name).await {
                Ok(pending) => wake.subscription.pending = pending,
                Err(error) => debug!("a wake without streams: {error}"),
            }
        }
        let told = match config.kind {
            Kind::Webhook => {
                let keys = &self.options.keys;
                deliver::webhook(&self.clients, keys, &config, &wake).await
            }
            Kind::PullWake => deliver::event(handle, &config, &wake).await,
        };
        match told {
            Ok(told) => self.settle(&config, &wake, told).await,
            Err(why) => {
                let name = &wake.subscription.name;
                let attempts = wake.attempts + 1;
                warn!("subscription {name:?}: try {attempts} of a wake failed: {why}");
                self.fail(&wake).await;
            }
        }
    }

    /// The receiver has the wake, or is done with it.
    async fn settle(&self, config: &Config, wake: &DueWake, told: Told) {
        if config.kind == Kind::PullWake {
            return;
        }
        let tails = wake.subscription.pending.iter().map(|at| at.tail.clone());
        let request = AckRequest {
            told: match told {
                Told::Done => tails.collect(),
                Told::Heard => Vec::new(),
            },
            ended: told == Told::Done,
            holder: RECEIVER.to_owned(),
            ..AckRequest::default()
        };
        let (handle, name) = (&self.options.handle, &wake.subscription.name);
        until_room(|| handle.acknowledge(name, wake.fence, request.clone())).await;
    }

    async fn fail(&self, wake: &DueWake) {
        let (handle, name) = (&self.options.handle, &wake.subscription.name);
        let pause_ms = backoff_ms(wake.attempts, random());
        let due_ms = time::now_ms() + pause_ms;
        until_room(|| handle.fail_wake(name, wake.fence, due_ms)).await;
    }
}

/// Notes something in the log, as soon as that has room. What is fenced meanwhile needs no note.
async fn until_room<T, F: Future<Output = Result<T, Error>>>(mut note: impl FnMut() -> F) {
    loop {
        match note().await {
            Err(Error::StorageFull { .. }) => tokio::time::sleep(ROOM_PAUSE).await,
            Ok(_) | Err(Error::Subscription(Refusal::Fenced { .. })) => return,
            Err(error) => {
                debug!("a wake is not noted: {error}");
                return;
            }
        }
    }
}

/// Pause after `failed` tries and one more: 1 s, doubled with each, at most 60 s, give or take a fifth.
fn backoff_ms(failed: u32, random: u64) -> u64 {
    let whole = BACKOFF_MAX_MS.min(1_000 << failed.min(6));
    let fifth = whole / 5;
    whole - fifth + random % (2 * fifth + 1)
}

fn random() -> u64 {
    use std::hash::{BuildHasher, Hasher, RandomState};
    RandomState::new().build_hasher().finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn backoff_doubles_up_to_a_minute_give_or_take_a_fifth() {
        for (failed, whole) in [
            (0, 1_000),
            (1, 2_000),
            (5, 32_000),
            (6, 60_000),
            (7, 60_000),
            (u32::MAX, 60_000),
        ] {
            for random in [0, 1, 7_919, u64::MAX, u64::MAX / 3] {
                let pause = backoff_ms(failed, random);
                assert!(
                    pause >= whole * 4 / 5 && pause <= whole * 6 / 5,
                    "{failed}: {pause}"
                );
            }
            assert_eq!(backoff_ms(failed, 0), whole * 4 / 5);
            assert_eq!(backoff_ms(failed, whole / 5 * 2), whole * 6 / 5);
        }
    }
}
