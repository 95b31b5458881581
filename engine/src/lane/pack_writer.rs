//! PackWriter: one pack in the making: hashed on the side while its finished parts go to the bucket.
//!
//! **Invariants**
//! - No more than [`WAITING_MAX`] parts wait when a job begins.
//! - After an error the pack is worth nothing: what it held is still in the log.
//!
//! **Not here**: which frames go in, and when to cut (`packer`).

use super::part_queue::PartQueue;
use super::region::Key;
use super::unless_hopeless;
use crate::env::{AlignedBuf, Bucket, BufPool, Env, Upload};
use crate::error::{Error, Result};
use crate::pack::{PackBuilder, PackError, PackKind, PackOptions, PackSummary};
use crate::shard::LogService;

/// Parts that may wait while more are being made.
const WAITING_MAX: usize = 4;

type UploadOf<E> = <<E as Env>::Bucket as Bucket>::Upload;

/// A pack as the side thread sees it.
pub(super) struct Assembly {
    builder: PackBuilder,
    out: flume::Sender<AlignedBuf>,
}

impl Assembly {
    pub(super) fn begin_section(
        &mut self,
        (feed, stream): Key,
        keyed: bool,
    ) -> std::result::Result<(), PackError> {
        self.builder.begin_section(feed, stream, keyed)
    }

    /// Adds a frame; the parts that it completes are on their way at once.
    pub(super) fn push_frame(&mut self, frame: &[u8]) -> std::result::Result<(), PackError> {
        self.builder.push_frame(frame)?;
        while let Some(part) = self.builder.drain() {
            // Nobody takes parts any more: the pack was given up.
            let _ = self.out.send(part);
        }
        Ok(())
    }
}

/// A pack in the making.
pub(super) struct PackWriter<E: Env> {
    env: E,
    assembly: Option<Assembly>,
    parts: PartQueue<UploadOf<E>>,
    part_bytes: usize,
    position: u64,
    buffered: usize,
}

impl<E: Env> PackWriter<E> {
    /// Begins a pack whose parts have their memory from `pool`.
    pub(super) async fn begin(
        env: &E,
        kind: PackKind,
        options: PackOptions,
        pool: BufPool,
    ) -> Result<Self> {
        let parts = PartQueue::new(env.bucket().upload().await?);
        let assembly = Assembly {
            builder: PackBuilder::new(kind, options).in_memory_of(pool),
            out: parts.entrance(),
        };
        Ok(Self {
            env: env.clone(),
            assembly: Some(assembly),
            parts,
            part_bytes: options.part_room_bytes(),
            position: 0,
            buffered: 0,
        })
    }

    /// Bytes of the object so far.
    pub(super) fn position(&self) -> u64 {
        self.position
    }

    /// Memory in use, roughly.
    pub(super) fn buffered_bytes(&self) -> usize {
        self.buffered + self.parts.len() * self.part_bytes
    }

    /// Runs `job` on the side, while parts are uploaded.
    pub(super) async fn run(
        &mut self,
        job: impl FnOnce(&mut Assembly) -> std::result::Result<(), PackError> + Send + 'static,
    ) -> Result<()> {
        let Some(mut assembly) = self.assembly.take() else {
            return Err(Error::Closed);
        };
        let build = self.env.offload(move || {
            let done = job(&mut assembly);
            (assembly, done)
        });
        let ((assembly, done), sent) = self.parts.beside(build).await;
        sent?;
        done.map_err(|error| damaged(&error))?;
        self.position = assembly.builder.position();
        self.buffered = assembly.builder.buffered_bytes();
        self.assembly = Some(assembly);
        self.parts.drain_to(WAITING_MAX).await
    }

    /// Ends the pack and makes it durable under the path that `path` gives it.
    pub(super) async fn finish(
        mut self,
        service: &LogService<E>,
        path: impl FnOnce(&PackSummary) -> String,
    ) -> Result<PackSummary> {
        let Some(Assembly { builder, out }) = self.assembly.take() else {
            return Err(Error::Closed);
        };
        let finish = self.env.offload(move || builder.finish());
        let (finished, sent) = self.parts.beside(finish).await;
        sent?;
        let (parts, summary) = finished.map_err(|error| damaged(&error))?;
        for part in parts {
            let _ = out.send(part);
        }
        let upload = self.parts.finish().await?;
        unless_hopeless(service, upload.finish(&path(&summary))).await?;
        Ok(summary)
    }
}

fn damaged(error: &PackError) -> Error {
    Error::corrupt("batch in the log", 0, error)
}
