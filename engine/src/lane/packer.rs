//! Packer: turns the log into packs, and finds what keeps its oldest segment from being retired.
//! Spec: spec/wal.md §12.
//!
//! ```text
//!  next region is read | this one is hashed, its parts uploaded | the pack before is made durable
//! ```
//!
//! **Invariants**
//! - LANE-4: two regions are in memory at most.
//!
//! **Not here**: which batches go into which pack (`packs`), sealed streams' manifests and commits (`publish`).

use std::rc::Rc;

use super::packs::Packs;
use super::region::{Intake, Key, RegionSize};
use super::{is_short_of_space, needed_from};
use crate::checkpoint::pack_reserve;
use crate::commit::PackRef;
use crate::env::{Bucket, Env};
use crate::error::Result;
use crate::ids::Sequence;
use crate::reserve::Reserve;
use crate::shard::LogService;
use crate::sync::both;

/// Most that is hashed in one go: what others have for the side thread waits for so long.
const RUN_BYTES_MAX: usize = 16 << 20;

/// Builds the packs of one log.
pub(super) struct Packer<E: Env> {
    service: Rc<LogService<E>>,
    intake: Intake<E>,
    packs: Packs<E>,
    reserve: Reserve<E>,
    /// The bucket is on the log's disk.
    shares_disk: bool,
    /// The log gives way while the lane works.
    log_gives_way: bool,
}

impl<E: Env> Packer<E> {
    pub(super) fn new(service: &Rc<LogService<E>>) -> Self {
        let lane_bytes = service.lane.lane_bytes;
        let pack_bytes = usize::try_from(service.config.pack_bytes).unwrap_or(lane_bytes);
        let region_bytes = (lane_bytes / 8 * 3).min(pack_bytes);
        let size = RegionSize {
            region_bytes,
            run_bytes: (region_bytes / 2).clamp(1, RUN_BYTES_MAX),
        };
        let bucket = service.env.bucket();
        let shares_disk = bucket.shares_disk(&service.config.data_dir);
        let reserve = pack_reserve(&service.config.data_dir, service.wal.params().log);
        Self {
            service: service.clone(),
            intake: Intake::new(service, size),
            packs: Packs::new(service, size),
            reserve: Reserve::new(service.env.clone(), reserve),
            shares_disk,
            log_gives_way: shares_disk && bucket.keeps_disk_pace(),
        }
    }

    /// Drops all packs in the making: after a failure they start over from the log.
    pub(super) async fn forget(&mut self) {
        self.packs.forget().await;
        self.intake.rewind();
    }

    /// Claims space for one pack where bucket and log share the disk.
    pub(super) async fn claim_space(&mut self) {
        if self.shares_disk {
            self.reserve.claim(self.service.config.pack_bytes).await;
        }
    }

    /// Gives the claimed space back, so that the next try may write what frees the log.
    pub(super) async fn release_space(&mut self) {
        self.reserve.release().await;
    }

    /// Whether so much is not read yet that packing it is worth while; if not, the log calls when it is.
    pub(super) fn has_backlog(&self) -> bool {
        let start = self.service.config.wal.lane_start_bytes;
        let at = self.intake.cursor().saturating_add(start);
        let backlog = self.service.wal.durable_end() >= at;
        if !backlog {
            self.service.wal.pace().call_at(at);
        }
        backlog
    }

    /// Deals out everything durable that was not dealt out; `false` when there was nothing.
    pub(super) async fn demultiplex(&mut self) -> Result<bool> {
        let pace = self.service.clone();
        let pace = pace.wal.pace();
        pace.give_way(self.log_gives_way);
        let worked = self.deal_all().await;
        pace.give_way(false);
        worked
    }

    async fn deal_all(&mut self) -> Result<bool> {
        let mut target = self.service.wal.durable_end();
        let mut region = self.intake.next(target).await?;
        let worked = region.is_some();
        while let Some(full) = region {
            if self.may_go_on() {
                target = self.service.wal.durable_end();
            }
            let next = self.intake.next(target);
            let (dealt, next) = both(self.packs.deal(full), next).await;
            dealt?;
            region = next?;
        }
        self.packs.settle().await?;
        Ok(worked)
    }

    /// Whether the log goes on filling whole regions, and nothing else waits for the lane.
    fn may_go_on(&self) -> bool {
        let service = &self.service;
        self.intake.has_region()
            && service.feeds.borrow().next_sealed().is_none()
            && !is_short_of_space(service)
            && !service.is_stopping()
    }

    /// Packs all of a sealed stream that is not packed yet.
    pub(super) async fn complete(&mut self, key: Key, end: u64) -> Result<()> {
        self.packs.drain(key, end).await?;
        self.packs.cut(key).await?;
        self.packs.settle().await
    }

    /// Packs what the oldest segment in use still holds, so that it can be retired; `false` when
    /// there is nothing to free.
    pub(super) async fn relieve(&mut self) -> Result<bool> {
        let geometry = self.service.wal.geometry();
        let needed = needed_from(&self.service);
        let oldest = geometry.segment_of(needed);
        let bound = geometry.first_offset(oldest + 1);
        if bound > self.service.wal.durable_end() {
            return Ok(false);
        }
        let holders: Vec<Key> = {
            let feeds = self.service.feeds.borrow();
            let holds = |offset: Option<u64>| offset.is_some_and(|offset| offset < bound);
            feeds
                .needing_below(bound)
                .flat_map(|feed| feed.streams.iter().map(|stream| (feed.id, stream)))
                .filter(|(_, stream)| holds(stream.needed_from()))
                .map(|(feed, stream)| (feed, stream.id))
                .collect()
        };
        let mut quiet = Vec::new();
        for key in holders {
            if self.packs.is_open(key) {
                self.packs.cut(key).await?;
            } else {
                quiet.push(key);
            }
        }
        if !quiet.is_empty() {
            self.packs.share(&quiet, needed, bound).await?;
        }
        self.packs.settle().await?;
        Ok(needed_from(&self.service) > needed)
    }
}

/// Where a sequence lies in a list of packs.
pub(crate) fn pack_holding(packs: &[PackRef], sequence: u64) -> Option<&PackRef> {
    let at = packs.partition_point(|pack| pack.end <= Sequence(sequence));
    packs.get(at)
}
