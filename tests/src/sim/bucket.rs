//! SimBucket: an object store in memory that outlives crashes and answers like a bad network.
//!
//! **Invariants**
//! - An object is whole or absent; it is durable when a put takes effect, whatever the answer says.
//! - Conditions are judged at the moment of the effect, not of the call.
//! - An upload is invisible until it is finished, and a finished key never changes content.
//!
//! **Not here**: S3's wire protocol and its client.

use super::executor::Class;
use super::faults::Fault;
use super::rng::Rng;
use super::trace::Kind;
use super::world::World;
use sealog_engine::env::{
    AlignedBuf, BLOCK_BYTES, Bucket, BucketError, ETag, ObjectMeta, PutOutcome, SwapOutcome, Upload,
};
use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;

/// How far back a stale listing may look.
const STALE_NS: u64 = 10_000_000_000;

#[derive(Debug, Clone)]
struct Object {
    data: Rc<Vec<u8>>,
    tag: u64,
    made_ns: u64,
}

/// All objects, across processes.
#[derive(Debug, Default)]
pub(super) struct BucketState {
    objects: BTreeMap<String, Object>,
    /// Length and time of deletion: what a stale listing may still show.
    deleted: BTreeMap<String, (u64, u64)>,
    next_tag: u64,
    abandoned_uploads: u64,
}

impl BucketState {
    fn insert(&mut self, key: &str, data: Vec<u8>, now_ns: u64) -> ETag {
        self.next_tag += 1;
        let object = Object {
            data: Rc::new(data),
            tag: self.next_tag,
            made_ns: now_ns,
        };
        self.objects.insert(key.to_owned(), object);
        self.deleted.remove(key);
        etag(self.next_tag)
    }

    fn used_bytes(&self) -> u64 {
        self.objects.values().map(|o| o.data.len() as u64).sum()
    }

    /// Keys and lengths of all objects: for oracles.
    pub(super) fn inventory(&self) -> Vec<(String, u64)> {
        let row = |(key, o): (&String, &Object)| (key.clone(), o.data.len() as u64);
        self.objects.iter().map(row).collect()
    }

    /// Flips one bit of an object; false when there is no such bit.
    pub(super) fn rot(&mut self, key: &str, rng: &mut Rng) -> bool {
        let Some(object) = self.objects.get_mut(key).filter(|o| !o.data.is_empty()) else {
            return false;
        };
        let data = Rc::make_mut(&mut object.data);
        let at = rng.index(data.len());
        data[at] ^= 1 << rng.below(8);
        true
    }

    /// Takes some bytes off an object's end; false when it has none.
    pub(super) fn cut(&mut self, key: &str, rng: &mut Rng) -> bool {
        let Some(object) = self.objects.get_mut(key).filter(|o| !o.data.is_empty()) else {
            return false;
        };
        let data = Rc::make_mut(&mut object.data);
        data.truncate(rng.index(data.len()));
        true
    }

    pub(super) fn abandoned_uploads(&self) -> u64 {
        self.abandoned_uploads
    }
}

fn etag(tag: u64) -> ETag {
    ETag(format!("\"{tag}\""))
}

/// The bucket as one process sees it.
#[derive(Clone)]
pub struct SimBucket {
    world: Rc<World>,
    incarnation: u64,
}

/// What a call's answer is to be once its effect took place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Effects {
    /// A read: any error means no answer.
    None,
    /// A write whose repetition is harmless.
    Plain,
    /// A conditional write.
    Conditional,
}

fn unavailable(key: &str, kind: io::ErrorKind, fault: Fault) -> BucketError {
    BucketError::Unavailable {
        key: key.to_owned(),
        source: io::Error::new(kind, fault.name()),
    }
}

impl SimBucket {
    pub(super) fn new(world: Rc<World>, incarnation: u64) -> Self {
        Self { world, incarnation }
    }

    fn fires(&self, fault: Fault) -> bool {
        self.world.fires(fault, &self.world.streams.bucket)
    }

    fn draw(&self, from: u64, to: u64) -> u64 {
        self.world.streams.bucket.borrow_mut().between(from, to)
    }

    /// One call: delay, faults before the effect, effect, faults after it.
    async fn call<T: 'static>(
        &self,
        what: &'static str,
        key: &str,
        effects: Effects,
        effect: impl FnOnce(&mut BucketState, u64) -> Result<T, BucketError> + 'static,
    ) -> Result<T, BucketError> {
        use io::ErrorKind::{ConnectionReset, Other, TimedOut};
        self.world.check(self.incarnation);
        let mut delay = self.draw(1_000_000, 40_000_000);
        if self.fires(Fault::BucketSlow) {
            delay += self.draw(1_000_000_000, 60_000_000_000);
        }
        let mut before = None;
        for (fault, kind) in [
            (Fault::BucketErrorBefore, Other),
            (Fault::ResetMidBody, ConnectionReset),
        ] {
            if self.fires(fault) {
                before = Some((kind, fault));
            }
        }
        let mut after = None;
        if effects != Effects::None && self.fires(Fault::BucketErrorAfter) {
            after = Some((Other, Fault::BucketErrorAfter));
        }
        if effects == Effects::Conditional && self.fires(Fault::LostResponse) {
            after = Some((TimedOut, Fault::LostResponse));
        }
        let name = key.to_owned();
        let result = self
            .world
            .device(Class::Bucket, delay, move |world| {
                if let Some((kind, fault)) = before {
                    world.note(Kind::Bucket, what, &name, 0, fault as u64);
                    return Err(unavailable(&name, kind, fault));
                }
                let result = effect(&mut world.bucket.borrow_mut(), world.now_ns());
                let worked = u64::from(result.is_ok());
                world.note(Kind::Bucket, what, &name, worked, 0);
                result
            })
            .await;
        match (result, after) {
            (Ok(_), Some((kind, fault))) => {
                let late = if kind == TimedOut { 30_000_000_000 } else { 1 };
                self.world.device(Class::Timer, late, |_| ()).await;
                Err(unavailable(key, kind, fault))
            }
            (result, _) => result,
        }
    }

    /// A put's effect once room has been checked.
    fn room(&self, key: &str, bytes: usize) -> Result<(), BucketError> {
        let capacity = self.world.faults.borrow().plan.bucket_capacity_bytes;
        let used = self.world.bucket.borrow().used_bytes();
        if used.saturating_add(bytes as u64) <= capacity {
            return Ok(());
        }
        Err(BucketError::Full {
            key: key.to_owned(),
            source: super::disk::os_error(super::disk::ENOSPC),
        })
    }
}

fn find<'a>(state: &'a BucketState, key: &str) -> Result<&'a Object, BucketError> {
    state.objects.get(key).ok_or_else(|| BucketError::NotFound {
        key: key.to_owned(),
    })
}

impl Bucket for SimBucket {
    type Upload = SimUpload;

    fn shares_disk(&self, _: &Path) -> bool {
        true
    }

    async fn check_room(&self, bytes: u64) -> Result<(), BucketError> {
        self.room("", usize::try_from(bytes).unwrap_or(usize::MAX))
    }

    async fn put_if_absent(&self, key: &str, data: Vec<u8>) -> Result<PutOutcome, BucketError> {
        self.room(key, data.len())?;
        let owned = key.to_owned();
        self.call(
            "put_absent",
            key,
            Effects::Conditional,
            move |state, now| {
                if state.objects.contains_key(&owned) {
                    return Ok(PutOutcome::Exists);
                }
                state.insert(&owned, data, now);
                Ok(PutOutcome::Created)
            },
        )
        .await
    }

    async fn put_if_match(
        &self,
        key: &str,
        tag: &ETag,
        data: Vec<u8>,
    ) -> Result<SwapOutcome, BucketError> {
        self.room(key, data.len())?;
        let (owned, tag) = (key.to_owned(), tag.clone());
        self.call(
            "put_match",
            key,
            Effects::Conditional,
            move |state, now| match state.objects.get(&owned) {
                Some(object) if etag(object.tag) == tag => {
                    Ok(SwapOutcome::Swapped(state.insert(&owned, data, now)))
                }
                _ => Ok(SwapOutcome::Mismatch),
            },
        )
        .await
    }

    async fn get(&self, key: &str) -> Result<(Vec<u8>, ETag), BucketError> {
        let owned = key.to_owned();
        self.call("get", key, Effects::None, move |state, _| {
            let object = find(state, &owned)?;
            Ok((object.data.to_vec(), etag(object.tag)))
        })
        .await
    }

    async fn get_range(&self, key: &str, offset: u64, len: usize) -> Result<Vec<u8>, BucketError> {
        let owned = key.to_owned();
        self.call("get_range", key, Effects::None, move |state, _| {
            let data = &find(state, &owned)?.data;
            let from = usize::try_from(offset)
                .unwrap_or(usize::MAX)
                .min(data.len());
            let to = from.saturating_add(len).min(data.len());
            Ok(data[from..to].to_vec())
        })
        .await
    }

    async fn head(&self, key: &str) -> Result<Option<u64>, BucketError> {
        let owned = key.to_owned();
        self.call("head", key, Effects::None, move |state, _| {
            Ok(state.objects.get(&owned).map(|o| o.data.len() as u64))
        })
        .await
    }

    async fn list(
        &self,
        prefix: &str,
        start_after: &str,
        limit: usize,
    ) -> Result<Vec<ObjectMeta>, BucketError> {
        let stale = self.fires(Fault::StaleList);
        let (owned, after) = (prefix.to_owned(), start_after.to_owned());
        self.call("list", prefix, Effects::None, move |state, now| {
            Ok(listing(state, &owned, &after, stale.then_some(now))
                .into_iter()
                .take(limit)
                .collect())
        })
        .await
    }

    async fn delete(&self, key: &str) -> Result<(), BucketError> {
        let owned = key.to_owned();
        self.call("delete", key, Effects::Plain, move |state, now| {
            if let Some(object) = state.objects.remove(&owned) {
                let len = object.data.len() as u64;
                state.deleted.insert(owned, (len, now));
            }
            Ok(())
        })
        .await
    }

    async fn upload(&self) -> Result<SimUpload, BucketError> {
        self.call("upload", "", Effects::None, |_, _| Ok(()))
            .await?;
        Ok(SimUpload {
            bucket: self.clone(),
            data: Vec::new(),
            ended: false,
        })
    }
}

fn listing(
    state: &BucketState,
    prefix: &str,
    after: &str,
    stale_at: Option<u64>,
) -> Vec<ObjectMeta> {
    let recent = |at: u64| stale_at.is_some_and(|now| now - at < STALE_NS);
    let live = state
        .objects
        .iter()
        .filter(|(_, object)| !recent(object.made_ns))
        .map(|(key, object)| (key, object.data.len() as u64));
    let gone = state
        .deleted
        .iter()
        .filter(|(_, (_, at))| recent(*at))
        .map(|(key, (len, _))| (key, *len));
    let rows: BTreeMap<&String, u64> = live.chain(gone).collect();
    rows.into_iter()
        .filter(|(key, _)| key.starts_with(prefix) && key.as_str() > after)
        .map(|(key, len)| ObjectMeta {
            key: key.clone(),
            len,
        })
        .collect()
}

/// An object being written part by part.
pub struct SimUpload {
    bucket: SimBucket,
    data: Vec<u8>,
    ended: bool,
}

impl Upload for SimUpload {
    async fn part(&mut self, data: Arc<AlignedBuf>) -> Result<(), BucketError> {
        assert!(
            self.data.len().is_multiple_of(BLOCK_BYTES),
            "seed {}: a part after one that wasn't whole blocks",
            self.bucket.world.seed
        );
        self.bucket.room("", self.data.len() + data.len())?;
        self.bucket
            .call("part", "", Effects::None, |_, _| Ok(()))
            .await?;
        self.data.extend_from_slice(&data);
        Ok(())
    }

    async fn finish(mut self, key: &str) -> Result<(), BucketError> {
        let data = std::mem::take(&mut self.data);
        let (owned, seed) = (key.to_owned(), self.bucket.world.seed);
        let done = self
            .bucket
            .call("finish", key, Effects::Plain, move |state, now| {
                if let Some(old) = state.objects.get(&owned) {
                    assert!(
                        *old.data == data,
                        "seed {seed}: {owned} finished twice with different bytes"
                    );
                } else {
                    state.insert(&owned, data, now);
                }
                Ok(())
            })
            .await;
        self.ended = done.is_ok();
        done
    }
}

impl Drop for SimUpload {
    fn drop(&mut self) {
        if !self.ended {
            self.bucket.world.bucket.borrow_mut().abandoned_uploads += 1;
        }
    }
}
