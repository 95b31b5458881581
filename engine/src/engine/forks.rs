//! Forks: the task that lets go of pins: of forks that were deleted, and of those that never came about.
//!
//! **Invariants**
//! - FORK-4: nothing is told to the source's log before the fork's end is durable in its own.
//! - Only pins that were there at the start are doubted: whoever put a later one looks after it himself.
//! - Nothing is remembered but in the logs: what a crash interrupts, the next start finds again, from the
//!   source's side, by asking for the fork.
//!
//! **Not here**: what is logged (`shard::fork`).

use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use super::handle::WeakHandle;
use crate::env::Env;
use crate::error::Result;
use crate::feed::Base;
use crate::shard::{Claim, LogService};
use crate::sync::race;

/// Forks asked for at a time.
const CLAIMS: usize = 256;
/// Pause after a failure, and the longest without a look at whether the service stops.
const PAUSE: Duration = Duration::from_secs(1);

/// Starts the task of one log.
pub(crate) fn start<E: Env>(service: &Rc<LogService<E>>, handle: WeakHandle<E>) {
    let service = service.clone();
    service.env.clone().spawn("forks", async move {
        let mut doubtful = service.releases.take_doubtful();
        while !service.is_stopping() {
            if step(&service, &handle, &mut doubtful).await.is_err() && !service.is_stopping() {
                service.env.sleep(PAUSE).await;
            }
        }
    });
}

/// Looks for the forks of some pins, or drops one, or waits.
async fn step<E: Env>(
    service: &Rc<LogService<E>>,
    handle: &WeakHandle<E>,
    doubtful: &mut Vec<Claim>,
) -> Result<()> {
    if !doubtful.is_empty() {
        return look_for(service, handle, doubtful).await;
    }
    let moved = service.releases.moved().listen();
    match service.releases.take() {
        Some(base) => {
            let released = release(service, handle, &base).await;
            if released.is_err() {
                service.releases.put(base);
            }
            released
        }
        None => {
            race(moved, service.env.sleep(PAUSE)).await;
            Ok(())
        }
    }
}

async fn release<E: Env>(
    service: &Rc<LogService<E>>,
    handle: &WeakHandle<E>,
    base: &Base,
) -> Result<()> {
    service.settle().await?;
    match handle.upgrade() {
        Some(handle) => handle.unpin(base).await,
        None => Ok(()),
    }
}

/// Asks for the forks of the last pins in the list, by log, and drops the pins whose forks are not there.
async fn look_for<E: Env>(
    service: &Rc<LogService<E>>,
    handle: &WeakHandle<E>,
    doubtful: &mut Vec<Claim>,
) -> Result<()> {
    let Some(handle) = handle.upgrade() else {
        doubtful.clear();
        return Ok(());
    };
    let from = doubtful.len().saturating_sub(CLAIMS);
    let mut by_log: BTreeMap<usize, Vec<Claim>> = BTreeMap::new();
    for claim in &doubtful[from..] {
        let log = handle.log_of(&claim.fork);
        by_log.entry(log).or_default().push(claim.clone());
    }
    for (log, claims) in by_log {
        let held = handle.held(log, claims.clone()).await?;
        for (claim, _) in claims.iter().zip(held).filter(|(_, held)| !held) {
            let name = service
                .feeds
                .borrow()
                .get(claim.source)
                .map(|feed| feed.name.clone());
            let Some(name) = name else { continue };
            let base = Base {
                feed: claim.source,
                name: (*name).into(),
                sequence: 0,
                pin: claim.pin,
            };
            handle.unpin(&base).await?;
        }
    }
    doubtful.truncate(from);
    Ok(())
}
