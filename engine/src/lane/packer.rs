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

use super::packs::{BESIDE_BYTES, Packs};
use super::region::{Intake, Key, RegionSize};
use super::{checkpoint_due, is_short_of_space, needed_from};
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

/// How the disk is that log and bucket share.
#[derive(Clone, Copy, PartialEq, Eq)]
enum DiskRoom {
    /// Nothing is known to miss.
    Enough,
    /// Packs found none: what was claimed is given up for them, and the log takes no more.
    Short,
    /// Packs find some again; the log goes on once the next one's is claimed.
    Returning,
}

/// Builds the packs of one log.
pub(super) struct Packer<E: Env> {
    service: Rc<LogService<E>>,
    intake: Intake<E>,
    packs: Packs<E>,
    reserve: Reserve<E>,
    room: DiskRoom,
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
            room: DiskRoom::Enough,
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
        let bytes = self.service.config.pack_bytes;
        match self.room {
            _ if !self.shares_disk => {}
            // It would be given up again at once.
            DiskRoom::Short => {}
            DiskRoom::Enough => {
                self.reserve.claim(bytes).await;
            }
            DiskRoom::Returning => {
                let least = self.least_room();
                let mut claimed =
                    self.reserve.claim(bytes).await || self.reserve.claim(least).await;
                if !claimed && self.service.wal.space().give_back().await {
                    claimed = self.reserve.claim(least).await;
                }
                if claimed {
                    self.room = DiskRoom::Enough;
                    self.service.wal.space().go_on();
                }
            }
        }
    }

    /// What packing a segment takes: packs are cut early where there is no room for more.
    fn least_room(&self) -> u64 {
        let segment = self.service.config.wal.segment_bytes;
        self.service.config.pack_bytes.min(segment + segment / 8)
    }

    /// Something was full. If it was the disk that log and bucket share: gives up what is claimed and
    /// what is spare, and keeps the log from taking it, so that the next try may write what frees the log.
    /// Whether there is more room now.
    pub(super) async fn make_room(&mut self) -> bool {
        if !self.shares_disk {
            return false;
        }
        let bucket = self.service.env.bucket().clone();
        // As much as a pack may have asked for at once.
        let most = self.least_room() + self.service.lane.lane_bytes as u64 + BESIDE_BYTES;
        let Err(full) = bucket.check_room(most).await else {
            return false;
        };
        self.room = DiskRoom::Short;
        let space = self.service.wal.space();
        space.hold(full.to_string());
        let released = self.reserve.release().await;
        if bucket.check_room(most).await.is_ok() {
            return released;
        }
        // Segments whose packs are durable are freed by the second checkpoint from now.
        for _ in 0..2 {
            if checkpoint_due(&self.service) && self.service.checkpoint().await.is_err() {
                break;
            }
        }
        space.give_back().await || released
    }

    /// A round of work went well.
    pub(super) fn found_room(&mut self) {
        if self.room == DiskRoom::Short {
            self.room = DiskRoom::Returning;
        }
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
