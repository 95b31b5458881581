//! Link: the connections of a client, one per shard as needed, made again when they end.
//!
//! **Invariants**
//! - A shard has one connection, and one try to make it at a time: who waits shares the outcome.
//! - Tries are paced by the policy's jittered back-off, also between users of the same link.
//! - A shard whose own port cannot be reached is served by the shared port.
//!
//! **Not here**: how often a caller tries (`client`, `session`).

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use sealog_protocol::{Welcome, shard_of};
use tokio::time::{Instant, sleep_until};

use crate::backoff::random;
use crate::conn::{Address, Conn, dial};
use crate::error::{Error, Result};
use crate::options::ClientOptions;

/// A shard's port that could not be reached is not tried again for so long.
const SKIP_PORT: Duration = Duration::from_secs(30);
/// Ports of shards are a shortcut: one that does not answer by then is not worth waiting for.
const SHARD_PORT_TIMEOUT: Duration = Duration::from_secs(1);

/// All connections of a client.
pub(crate) struct Links {
    address: Address,
    options: Arc<ClientOptions>,
    map: Mutex<Map>,
}

#[derive(Default)]
struct Map {
    topology: Option<Topology>,
    links: HashMap<Key, Arc<Link>>,
}

/// What the newest welcome said.
#[derive(Debug, Clone)]
struct Topology {
    logs: u32,
    ports: Vec<u16>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Key {
    /// Whichever shard takes the connection.
    Shared,
    Shard(u32),
}

/// One connection and the tries to make it.
#[derive(Default)]
struct Link {
    /// Held while a connection is made.
    making: tokio::sync::Mutex<Making>,
    outcome: Mutex<Outcome>,
}

#[derive(Default)]
struct Outcome {
    conn: Option<Arc<Conn>>,
    /// Tries that failed since the client was made, and what the last one came to.
    failures: u64,
    error: Option<Error>,
}

#[derive(Default)]
struct Making {
    failed_in_a_row: u32,
    not_before: Option<Instant>,
    skip_port_until: Option<Instant>,
}

impl Links {
    pub(crate) fn new(address: Address, options: Arc<ClientOptions>) -> Self {
        Self {
            address,
            options,
            map: Mutex::default(),
        }
    }

    /// A connection to the shard of `feed`; without one, to any shard. One try, paced.
    pub(crate) async fn get(&self, feed: Option<&str>) -> Result<Arc<Conn>> {
        let Some(feed) = feed else {
            return self.get_by(self.any_key()).await;
        };
        let mut key = self.key_of(feed);
        if key == Key::Shared {
            let conn = self.get_by(key).await?;
            key = self.key_of(feed);
            if key == Key::Shard(conn.welcome.shard) || key == Key::Shared {
                return Ok(conn);
            }
        }
        self.get_by(key).await
    }

    /// The key of the feed's shard, as far as the shards are known.
    fn key_of(&self, feed: &str) -> Key {
        match &self.lock().topology {
            Some(topology) => {
                let shards = u32::try_from(topology.ports.len()).unwrap_or(u32::MAX);
                Key::Shard(shard_of(feed, topology.logs, shards))
            }
            None => Key::Shared,
        }
    }

    /// A key that has a connection, or the shared one.
    fn any_key(&self) -> Key {
        let map = self.lock();
        let alive = |link: &Link| link.usable().is_some();
        let found = map.links.iter().find(|(_, link)| alive(link));
        found.map_or(Key::Shared, |(key, _)| *key)
    }

    async fn get_by(&self, key: Key) -> Result<Arc<Conn>> {
        let link = self.link(key);
        if let Some(conn) = link.usable() {
            return Ok(conn);
        }
        let failures = link.outcome().failures;
        let mut making = link.making.lock().await;
        if let Some(conn) = link.usable().or_else(|| self.shared_for(key)) {
            link.outcome().conn = Some(conn.clone());
            return Ok(conn);
        }
        {
            // Somebody else tried while this one waited: that is this one's outcome, too.
            let outcome = link.outcome();
            if let (true, Some(error)) = (outcome.failures != failures, &outcome.error) {
                return Err(error.clone());
            }
        }
        self.make(key, &link, &mut making).await
    }

    async fn make(&self, key: Key, link: &Link, making: &mut Making) -> Result<Arc<Conn>> {
        let before = link.outcome().conn.take();
        if let Some(ended) = before {
            match ended.was_useful() {
                true => making.failed_in_a_row = 0,
                false => making.failed_in_a_row += 1,
            }
            let wait = self.options.retry.delay(making.failed_in_a_row, random());
            making.not_before = Some(Instant::now() + wait);
        }
        if let Some(not_before) = making.not_before {
            sleep_until(not_before).await;
        }
        match self.dial(key, making).await {
            Ok(conn) => {
                making.not_before = None;
                self.learn(&conn.welcome);
                link.outcome().conn = Some(conn.clone());
                Ok(conn)
            }
            Err(error) => {
                let wait = self.options.retry.delay(making.failed_in_a_row, random());
                making.failed_in_a_row += 1;
                making.not_before = Some(Instant::now() + wait.max(error.retry_after()));
                let mut outcome = link.outcome();
                outcome.failures += 1;
                outcome.error = Some(error.clone());
                Err(error)
            }
        }
    }

    /// Dials the shard's own port, or else the shared one.
    async fn dial(&self, key: Key, making: &mut Making) -> Result<Arc<Conn>> {
        let skip = making
            .skip_port_until
            .is_some_and(|until| Instant::now() < until);
        if let (Key::Shard(shard), false) = (key, skip)
            && let Some(port) = self.port_of(shard)
        {
            let quick = ClientOptions {
                connect_timeout: self.options.connect_timeout.min(SHARD_PORT_TIMEOUT),
                ..(*self.options).clone()
            };
            if let Ok(conn) = dial(&self.address.with_port(port), &quick).await {
                return Ok(conn);
            }
            let conn = dial(&self.address, &self.options).await?;
            // The server is there, its port is not.
            making.skip_port_until = Some(Instant::now() + SKIP_PORT);
            return Ok(conn);
        }
        dial(&self.address, &self.options).await
    }

    fn port_of(&self, shard: u32) -> Option<u16> {
        let map = self.lock();
        let ports = &map.topology.as_ref()?.ports;
        // The only shard is behind the shared port, too.
        let port = *ports
            .get(usize::try_from(shard).ok()?)
            .filter(|_| ports.len() > 1)?;
        (port != 0 && port != self.address.port).then_some(port)
    }

    /// The connection of the shared port, if it happens to lead to that shard.
    fn shared_for(&self, key: Key) -> Option<Arc<Conn>> {
        let Key::Shard(shard) = key else {
            return None;
        };
        let shared = self.link(Key::Shared).usable()?;
        (shared.welcome.shard == shard).then_some(shared)
    }

    fn learn(&self, welcome: &Welcome) {
        self.lock().topology = Some(Topology {
            logs: welcome.logs,
            ports: welcome.shards.iter().map(|shard| shard.port).collect(),
        });
    }

    fn link(&self, key: Key) -> Arc<Link> {
        self.lock().links.entry(key).or_default().clone()
    }

    fn lock(&self) -> MutexGuard<'_, Map> {
        self.map.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Links {
    fn drop(&mut self) {
        for link in self.lock().links.values() {
            if let Some(conn) = link.outcome().conn.take() {
                conn.goodbye();
            }
        }
    }
}

impl Link {
    fn outcome(&self) -> MutexGuard<'_, Outcome> {
        self.outcome.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn usable(&self) -> Option<Arc<Conn>> {
        let conn = self.outcome().conn.clone()?;
        conn.is_usable().then_some(conn)
    }
}
