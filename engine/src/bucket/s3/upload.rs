//! Upload: a spooled object's way into the store: whole if it is small, else in parts.
//!
//! **Invariants**
//! - Memory is [`UploadLimits::parts`] parts, whatever the number of uploads.
//! - An upload in parts that was given up is aborted, again and again until the store says that it is
//!   gone; what a crash leaves is found by `stale`.
//! - An upload that the store has forgotten is begun anew.
//! - Only objects named by their content go this way: one of that name and length is this one.
//!
//! **Not here**: making the object (`spool`).

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use object_store::PutPayload;
use object_store::multipart::{MultipartStore, PartId};
use object_store::path::Path as StorePath;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use super::backoff::{Backoff, wait_before};
use super::client::Client;
use super::reply::{Failure, Kind};
use super::spool::Spool;
use crate::env::{SideThreads, random_u64};

/// Least size of a part but the last, with every store.
const PART_BYTES_MIN: usize = 5 << 20;
/// Size of a part where memory allows it.
const PART_BYTES: usize = 8 << 20;
/// How long an upload goes on trying: building the object again costs more than another request.
const PATIENCE: Duration = Duration::from_secs(60);

/// What uploads may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct UploadLimits {
    /// Length of a part.
    pub(super) part_bytes: usize,
    /// Parts in memory.
    pub(super) parts: usize,
}

impl UploadLimits {
    /// What fits into `memory`, or the least that works.
    pub(super) fn within(memory: usize) -> Self {
        let part_bytes = if memory >= 2 * PART_BYTES {
            PART_BYTES
        } else {
            PART_BYTES_MIN
        };
        Self {
            part_bytes,
            parts: (memory / part_bytes).clamp(1, 4),
        }
    }
}

/// Sends spooled objects.
pub(super) struct Uploader {
    client: Arc<Client>,
    disk: SideThreads,
    part_bytes: usize,
    /// One permit per part in memory.
    memory: Arc<Semaphore>,
}

/// An upload in parts that the store knows.
struct Begun {
    path: StorePath,
    id: String,
}

impl Uploader {
    /// An uploader that reads spools on `disk`.
    pub(super) fn new(client: Arc<Client>, disk: SideThreads, limits: UploadLimits) -> Self {
        Self {
            client,
            disk,
            part_bytes: limits.part_bytes,
            memory: Arc::new(Semaphore::new(limits.parts)),
        }
    }

    /// Makes the spooled object durable under `key`.
    pub(super) async fn send(
        self: &Arc<Self>,
        spool: Arc<Spool>,
        key: &str,
    ) -> Result<(), Failure> {
        if spool.len() <= self.part_bytes as u64 {
            let _room = self.memory.acquire().await;
            let data = read(&self.disk, &spool, 0, self.part_bytes).await?;
            // One that exists has the same content: its name is the content's digest.
            return self.client.put_if_absent(key, data.into()).await.map(drop);
        }
        let mut backoff = Backoff::new(PATIENCE);
        loop {
            let begun = self.begin(key).await?;
            let failure = match self.send_parts(&spool, &begun, key).await {
                Ok(()) => return Ok(()),
                Err(failure) => failure,
            };
            if failure.kind == Kind::NotFound {
                // The store forgot the upload; whatever it still holds of it goes as well.
                let failure = Failure::of(Kind::Transient, failure.to_string());
                self.abort(begun);
                self.client.again(&mut backoff, failure).await?;
                continue;
            }
            self.abort(begun);
            return Err(failure);
        }
    }

    async fn begin(&self, key: &str) -> Result<Begun, Failure> {
        let path = self.client.path(key)?;
        let store = self.client.store();
        let create = || store.create_multipart(&path);
        let id = self.client.attempts(PATIENCE, 0, create).await?;
        Ok(Begun { path, id })
    }

    async fn send_parts(
        self: &Arc<Self>,
        spool: &Arc<Spool>,
        begun: &Begun,
        key: &str,
    ) -> Result<(), Failure> {
        let count = spool.len().div_ceil(self.part_bytes as u64);
        let count = usize::try_from(count).unwrap_or(usize::MAX);
        let mut parts: Vec<Option<PartId>> = vec![None; count];
        // Dropping the set ends the parts that are under way.
        let mut sending = JoinSet::new();
        for number in 0..count {
            let room = self.memory.clone().acquire_owned().await;
            while let Some(sent) = sending.try_join_next() {
                put_down(&mut parts, sent)?;
            }
            let (uploader, spool) = (self.clone(), spool.clone());
            let (path, id) = (begun.path.clone(), begun.id.clone());
            sending.spawn(async move {
                let sent = uploader.send_part(&spool, &path, &id, number).await;
                drop(room);
                (number, sent)
            });
        }
        while let Some(sent) = sending.join_next().await {
            put_down(&mut parts, sent)?;
        }
        let parts: Vec<PartId> = parts.into_iter().flatten().collect();
        self.complete(begun, key, parts, spool.len()).await
    }

    async fn send_part(
        &self,
        spool: &Arc<Spool>,
        path: &StorePath,
        id: &String,
        number: usize,
    ) -> Result<PartId, Failure> {
        let data: PutPayload = read(&self.disk, spool, number, self.part_bytes)
            .await?
            .into();
        let bytes = data.content_length();
        let mut backoff = Backoff::new(PATIENCE);
        loop {
            self.client.pace(bytes).await;
            let put = self.client.store().put_part(path, id, number, data.clone());
            match self.client.attempt(bytes as u64, put).await {
                Ok(part) => return Ok(part),
                Err(failure) => self.client.again(&mut backoff, failure).await?,
            }
        }
    }

    /// Completes the upload; one whose answer was lost is recognised by the object that is there.
    async fn complete(
        &self,
        begun: &Begun,
        key: &str,
        parts: Vec<PartId>,
        len: u64,
    ) -> Result<(), Failure> {
        let mut backoff = Backoff::new(PATIENCE);
        loop {
            let store = self.client.store();
            let complete = store.complete_multipart(&begun.path, &begun.id, parts.clone());
            let failure = match self.client.attempt(len, complete).await {
                Ok(_) => return Ok(()),
                Err(failure) => failure,
            };
            let lost = matches!(failure.kind, Kind::Transient | Kind::NotFound);
            if lost && matches!(self.client.head(key).await, Ok(Some(there)) if there == len) {
                return Ok(());
            }
            self.client.again(&mut backoff, failure).await?;
        }
    }

    /// Aborts in the background, until the store says that the upload is gone.
    fn abort(&self, begun: Begun) {
        let client = self.client.clone();
        client.leftovers.fetch_add(1, Ordering::Relaxed);
        tokio::spawn(async move {
            let mut tries = 0;
            loop {
                let abort = client.store().abort_multipart(&begun.path, &begun.id);
                match client.attempt(0, abort).await {
                    Ok(()) => break,
                    Err(failure) if failure.kind == Kind::NotFound => break,
                    Err(failure) => {
                        let wait = wait_before(tries, failure.retry_after, random_u64());
                        tokio::time::sleep(wait).await;
                        tries += 1;
                    }
                }
            }
            client.leftovers.fetch_sub(1, Ordering::Relaxed);
        });
    }
}

type Sent = Result<(usize, Result<PartId, Failure>), tokio::task::JoinError>;

fn put_down(parts: &mut [Option<PartId>], sent: Sent) -> Result<(), Failure> {
    let (number, part) = sent.map_err(|bug| Failure::of(Kind::Denied, format!("bug: {bug}")))?;
    if let Some(place) = parts.get_mut(number) {
        *place = Some(part?);
    }
    Ok(())
}

async fn read(
    disk: &SideThreads,
    spool: &Arc<Spool>,
    number: usize,
    part_bytes: usize,
) -> Result<Vec<u8>, Failure> {
    let spool = spool.clone();
    let read = disk.run(move || spool.part(number, part_bytes)).await;
    read.map_err(|error| Failure::of(Kind::Denied, format!("reading the spooled object: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn within_memory_parts_fit_and_one_always_goes() {
        for (memory, part_bytes, parts) in [
            (0, PART_BYTES_MIN, 1),
            (2 << 20, PART_BYTES_MIN, 1),
            (12 << 20, PART_BYTES_MIN, 2),
            (16 << 20, PART_BYTES, 2),
            (1 << 30, PART_BYTES, 4),
        ] {
            let limits = UploadLimits { part_bytes, parts };
            assert_eq!(UploadLimits::within(memory), limits, "{memory}");
        }
    }
}
