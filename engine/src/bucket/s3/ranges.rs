//! Ranges: reads of a part of an object, through the local cache where the object never changes.
//!
//! **Invariants**
//! - What is answered is what the store would answer: the range, cut at the object's end.
//! - Memory is the range and [`RUN_PIECES_MAX`] pieces.
//!
//! **Not here**: keeping pieces (`cache`).

use std::sync::Arc;

use super::cache::{Cache, Piece};
use super::client::Client;
use super::reply::Failure;
use crate::commit::paths::digest_object;
use crate::env::SideThreads;

/// Neighbouring pieces fetched in one request, at most.
const RUN_PIECES_MAX: u64 = 4;

/// Reads parts of objects.
pub(super) struct Ranges {
    client: Arc<Client>,
    cache: Option<Arc<Cache>>,
    disk: SideThreads,
}

impl Ranges {
    pub(super) fn new(client: Arc<Client>, cache: Option<Arc<Cache>>, disk: SideThreads) -> Self {
        Self {
            client,
            cache,
            disk,
        }
    }

    /// See [`crate::env::Bucket::get_range`].
    pub(super) async fn get(&self, key: &str, offset: u64, len: usize) -> Result<Vec<u8>, Failure> {
        match &self.cache {
            Some(cache) if len > 0 && digest_object(key).is_some() => {
                self.through(cache, key, offset, len).await
            }
            _ => self.client.get_range(key, offset, len).await,
        }
    }

    async fn through(
        &self,
        cache: &Arc<Cache>,
        key: &str,
        offset: u64,
        len: usize,
    ) -> Result<Vec<u8>, Failure> {
        let (size, object) = (cache.piece_bytes(), cache.object(key));
        let end = offset.saturating_add(len as u64);
        let mut out = Vec::new();
        let mut at = offset;
        while at < end {
            let number = at / size;
            let (bytes, asked) = match self.cached(cache, (object, number)).await {
                Some(bytes) => (bytes, size),
                None => {
                    let pieces = run_of(cache, object, number, end.div_ceil(size));
                    let asked = pieces * size;
                    let bytes = self.fetch(key, number * size, asked).await?;
                    let bytes = self.keep(cache, (object, number), bytes).await;
                    (bytes, asked)
                }
            };
            let from = usize::try_from(at - number * size).unwrap_or(usize::MAX);
            let wanted = usize::try_from(end - at).unwrap_or(usize::MAX);
            let part = bytes.get(from..).unwrap_or_default();
            let part = &part[..part.len().min(wanted)];
            out.extend_from_slice(part);
            at += part.len() as u64;
            if (bytes.len() as u64) < asked {
                // The object ends here.
                break;
            }
        }
        Ok(out)
    }

    async fn cached(&self, cache: &Arc<Cache>, piece: Piece) -> Option<Vec<u8>> {
        let cache = cache.clone();
        self.disk.run(move || cache.get(piece)).await
    }

    async fn fetch(&self, key: &str, offset: u64, len: u64) -> Result<Vec<u8>, Failure> {
        let len = usize::try_from(len).unwrap_or(usize::MAX);
        self.client.get_range(key, offset, len).await
    }

    async fn keep(&self, cache: &Arc<Cache>, first: Piece, bytes: Vec<u8>) -> Vec<u8> {
        let cache = cache.clone();
        let keep = move || {
            let size = usize::try_from(cache.piece_bytes()).unwrap_or(usize::MAX);
            for (n, data) in bytes.chunks(size).enumerate() {
                cache.put((first.0, first.1 + n as u64), data);
            }
            bytes
        };
        self.disk.run(keep).await
    }
}

/// How many pieces from `number` on are missing, up to piece `end` and what one request may carry.
fn run_of(cache: &Cache, object: [u8; 16], number: u64, end: u64) -> u64 {
    let most = (end - number).min(RUN_PIECES_MAX);
    let missing = |n: &u64| !cache.has((object, number + n));
    1 + (1..most).take_while(missing).count() as u64
}
