//! SimFile: an open file; where delays and errors meet content.
//!
//! **Invariants**
//! - Offsets and lengths of writes are whole blocks.
//! - A write that failed has left any sectors of itself, pending; `Ok` means all of it is in the
//!   cache, and nothing more.
//!
//! **Not here**: what survives a power loss (`inode.rs`).

use super::dirs::InodeRef;
use super::inode::{Bytes, Op, tear};
use super::{EIO, ENOSPC, SimDisk, os_error};
use crate::sim::executor::{Class, Sleep};
use crate::sim::faults::Fault;
use crate::sim::rng::mix;
use crate::sim::trace::Kind;
use crate::sim::world::World;
use sealog_engine::env::{AlignedBuf, BLOCK_BYTES, File};
use std::io;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;

/// Delay of one operation: a draw, and a stall if one fires.
pub(super) fn delay_ns(world: &World, name: &str, from: u64, to: u64) -> u64 {
    let mut delay = world.streams.disk.borrow_mut().between(from, to);
    if error_fires(world, Fault::DiskStall, name) {
        delay += world
            .streams
            .disk
            .borrow_mut()
            .between(100_000_000, 20_000_000_000);
    }
    delay
}

/// Whether a disk fault fires at the file `name`.
pub(super) fn error_fires(world: &World, fault: Fault, name: &str) -> bool {
    if world.faults.borrow_mut().strikes(fault, name) {
        world.note(Kind::Fault, fault.name(), name, fault as u64, 1);
        return true;
    }
    let part = world.faults.borrow().plan.disk_only;
    part.is_none_or(|part| name.contains(part)) && world.fires(fault, &world.streams.disk)
}

/// An open file of one process.
#[derive(Clone)]
pub struct SimFile {
    world: Rc<World>,
    incarnation: u64,
    name: Rc<str>,
    /// Follows from the name.
    number: u64,
    inode: InodeRef,
}

impl SimFile {
    pub(super) fn new(disk: &SimDisk, path: &Path, inode: InodeRef) -> Self {
        let name = path.display().to_string();
        Self {
            world: disk.world.clone(),
            incarnation: disk.incarnation,
            number: name.bytes().fold(0, |n, byte| mix(n ^ u64::from(byte))),
            name: name.into(),
            inode,
        }
    }

    /// Operations of this file that a power loss could take: for tests of the simulator.
    #[must_use]
    pub fn unsynced(&self) -> usize {
        self.inode.borrow().pending()
    }

    async fn submit<T: 'static>(
        &self,
        class: Class,
        (from_ns, to_ns): (u64, u64),
        effect: impl FnOnce(&SimFile) -> T + 'static,
    ) -> T {
        self.world.check(self.incarnation);
        let delay = delay_ns(&self.world, &self.name, from_ns, to_ns);
        let file = self.clone();
        self.world
            .device(class, delay, move |_| effect(&file))
            .await
    }

    fn note(&self, what: &'static str, offset: u64, len: u64) {
        self.world.note(Kind::Disk, what, &self.name, offset, len);
    }

    fn fires(&self, fault: Fault) -> bool {
        error_fires(&self.world, fault, &self.name)
    }

    fn write_effect(&self, buf: Arc<AlignedBuf>, offset: u64) -> io::Result<()> {
        self.note("write", offset, buf.len() as u64);
        if self.fires(Fault::WriteEio) {
            self.leave_part(&buf, offset);
            return Err(os_error(EIO));
        }
        if self.is_full(&buf, offset) || self.fires(Fault::NoSpace) {
            self.leave_part(&buf, offset);
            return Err(os_error(ENOSPC));
        }
        let mut offset = offset;
        if self.fires(Fault::Misdirected) {
            let blocks = self.inode.borrow().cache.len() / BLOCK_BYTES as u64;
            let block = self.world.streams.disk.borrow_mut().below(blocks.max(1));
            offset = block * BLOCK_BYTES as u64;
        }
        let data = Bytes::Whole(buf);
        let mut inode = self.inode.borrow_mut();
        inode.modified_ns = self.world.now_ns();
        inode.apply(Op::Write { offset, data });
        Ok(())
    }

    /// What a failed write leaves: some sectors, of those blocks that take no new space.
    fn leave_part(&self, buf: &AlignedBuf, offset: u64) {
        let sector_bytes = self.world.faults.borrow().plan.sector_bytes;
        let mut inode = self.inode.borrow_mut();
        let mut mixed = inode.cache.clone();
        let mut rng = self.world.streams.disk.borrow_mut();
        tear(&mut mixed, offset, buf, sector_bytes, &mut rng);
        mixed.set_len(inode.cache.len());
        let part = mixed.read(offset, buf.len());
        if !part.is_empty() {
            let data = Bytes::Part(Arc::new(part));
            inode.apply(Op::Write { offset, data });
        }
    }

    fn is_full(&self, buf: &AlignedBuf, offset: u64) -> bool {
        let capacity = self.world.faults.borrow().plan.disk_capacity_bytes;
        if capacity == u64::MAX {
            return false;
        }
        let missing = self.inode.borrow().cache.blocks_missing(offset, buf.len());
        let used = self.world.disk.borrow().used_bytes();
        missing > 0 && used + missing * BLOCK_BYTES as u64 > capacity
    }

    fn read_effect(&self, offset: u64, len: usize) -> io::Result<Vec<u8>> {
        self.note("read", offset, len as u64);
        if self.fires(Fault::ReadEio) {
            return Err(os_error(EIO));
        }
        if self.fires(Fault::BitRot) {
            let mut rng = self.world.streams.disk.borrow_mut();
            let at = self.inode.borrow_mut().rot(&mut rng);
            drop(rng);
            self.note("rot", at.unwrap_or(u64::MAX), 1);
        }
        Ok(self.inode.borrow().cache.read(offset, len))
    }

    fn sync_effect(&self, mark: u64) -> io::Result<()> {
        self.note("sync", mark, self.unsynced() as u64);
        if self.fires(Fault::SyncEio) {
            let mut rng = self.world.streams.disk.borrow_mut();
            self.inode.borrow_mut().sync_failed(mark, &mut rng);
            return Err(os_error(EIO));
        }
        self.inode.borrow_mut().sync(mark);
        Ok(())
    }
}

impl File for SimFile {
    async fn len(&self) -> io::Result<u64> {
        self.world.check(self.incarnation);
        Ok(self.inode.borrow().cache.len())
    }

    async fn write_at(&self, buf: Arc<AlignedBuf>, offset: u64) -> io::Result<()> {
        let block = BLOCK_BYTES as u64;
        assert!(
            offset.is_multiple_of(block) && buf.len().is_multiple_of(BLOCK_BYTES),
            "seed {}: write of {} bytes at {offset} of {} is not block-aligned",
            self.world.seed,
            buf.len(),
            self.name
        );
        self.submit(Class::Write(self.number), (10_000, 200_000), move |file| {
            file.write_effect(buf, offset)
        })
        .await
    }

    async fn read_at(&self, offset: u64, len: usize) -> io::Result<Vec<u8>> {
        if self.fires(Fault::ShortRead) {
            // The device's answer is seen by whoever retries below the seam, or by the caller.
            let surfaces = self.world.streams.disk.borrow_mut().coin();
            self.submit(Class::Disk, (10_000, 200_000), |_| ()).await;
            if surfaces {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
        self.submit(Class::Disk, (10_000, 200_000), move |file| {
            file.read_effect(offset, len)
        })
        .await
    }

    async fn sync_data(&self) -> io::Result<()> {
        let mark = self.inode.borrow().mark();
        self.submit(Class::Disk, (200_000, 3_000_000), move |file| {
            file.sync_effect(mark)
        })
        .await
    }

    async fn commit(&self, buf: Arc<AlignedBuf>, offset: u64) -> io::Result<()> {
        self.write_at(buf, offset).await?;
        self.sync_data().await
    }

    async fn drain(&self) -> io::Result<()> {
        self.world.check(self.incarnation);
        let last = self.world.late.borrow().get(&self.number).copied();
        Sleep::until(self.world.clone(), last.unwrap_or(0)).await;
        Ok(())
    }

    async fn set_len(&self, len: u64) -> io::Result<()> {
        self.submit(Class::Disk, (5_000, 50_000), move |file| {
            file.note("set_len", len, 0);
            file.inode.borrow_mut().apply(Op::SetLen(len));
            Ok(())
        })
        .await
    }
}
