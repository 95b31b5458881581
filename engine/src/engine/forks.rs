//! Forks: the task that lets go of pins: of forks that were deleted, and of those that never came about.
//!
//! **Invariants**
//! - FORK-4: nothing is told to the source's log before the fork's end is durable in its own.
//! - Only pins and forks that were there at the start are doubted: whoever put a later pin looks after it himself.
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
use crate::shard::{Claim, Doubts, Hold, LogService};

/// Asked for at a time.
const BATCH: usize = 256;
/// Pause after a failure.
const PAUSE: Duration = Duration::from_secs(1);

/// Starts the task of one log.
pub(crate) fn start<E: Env>(service: &Rc<LogService<E>>, handle: WeakHandle<E>) {
    let service = service.clone();
    service.env.clone().spawn("forks", async move {
        let mut doubts = service.releases.take_doubts();
        while !service.is_stopping() {
            if step(&service, &handle, &mut doubts).await.is_err() && !service.is_stopping() {
                service.env.sleep(PAUSE).await;
            }
        }
    });
}

/// Settles some doubts, or drops a pin, or waits.
async fn step<E: Env>(
    service: &Rc<LogService<E>>,
    handle: &WeakHandle<E>,
    doubts: &mut Doubts,
) -> Result<()> {
    if !doubts.holds.is_empty() {
        return hold(service, handle, &mut doubts.holds).await;
    }
    if !doubts.claims.is_empty() {
        return look_for(service, handle, &mut doubts.claims).await;
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
            if !service.is_stopping() {
                moved.await;
            }
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

/// Asks whether the last sources in the list have their pins, by log, and has those put again that are lacking.
async fn hold<E: Env>(
    service: &Rc<LogService<E>>,
    handle: &WeakHandle<E>,
    holds: &mut Vec<Hold>,
) -> Result<()> {
    let Some(handle) = handle.upgrade() else {
        holds.clear();
        return Ok(());
    };
    let from = holds.len().saturating_sub(BATCH);
    for (log, holds) in by_log(&holds[from..], |hold| handle.log_of(&hold.base.name)) {
        let lacking = handle.lacking(log, holds.clone()).await?;
        for (hold, _) in holds
            .into_iter()
            .zip(lacking)
            .filter(|(_, lacking)| *lacking)
        {
            if service.is_here(&hold) {
                handle.hold(hold).await?;
            }
        }
    }
    holds.truncate(from);
    Ok(())
}

/// Asks for the forks of the last pins in the list, by log, and drops the pins whose forks are not there.
async fn look_for<E: Env>(
    service: &Rc<LogService<E>>,
    handle: &WeakHandle<E>,
    claims: &mut Vec<Claim>,
) -> Result<()> {
    let Some(handle) = handle.upgrade() else {
        claims.clear();
        return Ok(());
    };
    let from = claims.len().saturating_sub(BATCH);
    for (log, claims) in by_log(&claims[from..], |claim| handle.log_of(&claim.fork)) {
        let held = handle.held(log, claims.clone()).await?;
        for (claim, _) in claims.into_iter().zip(held).filter(|(_, held)| !held) {
            service.unpin_here(claim.source, claim.pin).await?;
        }
    }
    claims.truncate(from);
    Ok(())
}

fn by_log<T: Clone>(all: &[T], log_of: impl Fn(&T) -> usize) -> BTreeMap<usize, Vec<T>> {
    let mut by_log: BTreeMap<usize, Vec<T>> = BTreeMap::new();
    for one in all {
        by_log.entry(log_of(one)).or_default().push(one.clone());
    }
    by_log
}
