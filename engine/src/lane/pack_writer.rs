//! PackWriter: one pack in the making: hashed on the side while its finished parts go to the bucket.
//!
//! **Invariants**
//! - Parts are uploaded in order; at most one job's parts wait.
//! - After an error the pack is worth nothing: what it held is still in the log.
//!
//! **Not here**: which frames go in, and when to cut (`packer`).

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use crate::env::{AlignedBuf, Bucket, Env, Upload};
use crate::error::{Error, Result};
use crate::pack::{PackBuilder, PackError, PackKind, PackOptions, PackSummary};
use crate::sync::both;

type UploadOf<E> = <<E as Env>::Bucket as Bucket>::Upload;

/// Memory of parts that were uploaded, for parts to come. Fresh memory costs as much as filling it.
#[derive(Clone, Default)]
pub(super) struct SpareParts(Rc<RefCell<Vec<AlignedBuf>>>);

impl SpareParts {
    /// Parts kept at most.
    const MAX: usize = 8;

    fn put(&self, part: Arc<AlignedBuf>) {
        let mut spare = self.0.borrow_mut();
        if spare.len() < Self::MAX
            && let Some(part) = Arc::into_inner(part)
        {
            spare.push(part);
        }
    }

    fn give_back(&self, parts: Vec<AlignedBuf>) {
        let mut spare = self.0.borrow_mut();
        spare.extend(parts);
        spare.truncate(Self::MAX);
    }

    fn take(&self) -> Vec<AlignedBuf> {
        std::mem::take(&mut self.0.borrow_mut())
    }

    /// Gives all of it back.
    pub(super) fn clear(&self) {
        self.take();
    }
}

/// A pack in the making.
pub(super) struct PackWriter<E: Env> {
    env: E,
    builder: Option<PackBuilder>,
    upload: UploadOf<E>,
    /// Parts that are ready and not uploaded yet.
    pending: Vec<AlignedBuf>,
    spare: SpareParts,
    position: u64,
    buffered: usize,
}

impl<E: Env> PackWriter<E> {
    /// Begins a pack.
    pub(super) async fn begin(
        env: &E,
        kind: PackKind,
        options: PackOptions,
        spare: SpareParts,
    ) -> Result<Self> {
        let upload = env.bucket().upload().await?;
        Ok(Self {
            env: env.clone(),
            builder: Some(PackBuilder::new(kind, options)),
            upload,
            pending: Vec::new(),
            spare,
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
        self.buffered
            + self
                .pending
                .iter()
                .map(|part| part.capacity())
                .sum::<usize>()
    }

    /// Runs `job` on the side, while the parts of the job before it are uploaded.
    pub(super) async fn run(
        &mut self,
        job: impl FnOnce(&mut PackBuilder) -> std::result::Result<(), PackError> + Send + 'static,
    ) -> Result<()> {
        let Some(mut builder) = self.builder.take() else {
            return Err(Error::Closed);
        };
        let spare = self.spare.take();
        let build = self.env.offload(move || {
            spare.into_iter().for_each(|part| builder.reuse(part));
            let done = job(&mut builder);
            let parts: Vec<AlignedBuf> = std::iter::from_fn(|| builder.drain()).collect();
            let spare = builder.take_spare();
            (builder, parts, spare, done)
        });
        let pending = std::mem::take(&mut self.pending);
        let send = send(&mut self.upload, pending, &self.spare);
        let ((builder, parts, spare, done), sent) = both(build, send).await;
        self.spare.give_back(spare);
        sent?;
        done.map_err(|error| damaged(&error))?;
        self.position = builder.position();
        self.buffered = builder.buffered_bytes();
        self.builder = Some(builder);
        self.pending = parts;
        Ok(())
    }

    /// Ends the pack and makes it durable under the path that `path` gives it.
    pub(super) async fn finish(
        mut self,
        path: impl FnOnce(&PackSummary) -> String,
    ) -> Result<PackSummary> {
        let Some(builder) = self.builder.take() else {
            return Err(Error::Closed);
        };
        let finish = self.env.offload(move || builder.finish());
        let pending = std::mem::take(&mut self.pending);
        let send_pending = send(&mut self.upload, pending, &self.spare);
        let (finished, sent) = both(finish, send_pending).await;
        sent?;
        let (parts, summary) = finished.map_err(|error| damaged(&error))?;
        send(&mut self.upload, parts, &self.spare).await?;
        self.upload.finish(&path(&summary)).await?;
        Ok(summary)
    }
}

async fn send<U: Upload>(upload: &mut U, parts: Vec<AlignedBuf>, spare: &SpareParts) -> Result<()> {
    for part in parts {
        let part = Arc::new(part);
        upload.part(part.clone()).await?;
        spare.put(part);
    }
    Ok(())
}

fn damaged(error: &PackError) -> Error {
    Error::corrupt("batch in the log", 0, error)
}
