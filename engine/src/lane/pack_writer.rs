//! PackWriter: one pack in the making: hashed on the side while its finished parts go to the bucket.
//!
//! **Invariants**
//! - Parts are uploaded in order; at most one job's parts wait.
//! - After an error the pack is worth nothing: what it held is still in the log.
//!
//! **Not here**: which frames go in, and when to cut (`packer`).

use std::sync::Arc;

use crate::env::{AlignedBuf, Bucket, Env, Upload};
use crate::error::{Error, Result};
use crate::pack::{PackBuilder, PackError, PackKind, PackOptions, PackSummary};
use crate::sync::both;

type UploadOf<E> = <<E as Env>::Bucket as Bucket>::Upload;

/// A pack in the making.
pub(super) struct PackWriter<E: Env> {
    env: E,
    builder: Option<PackBuilder>,
    upload: UploadOf<E>,
    /// Parts that are ready and not uploaded yet.
    pending: Vec<AlignedBuf>,
    position: u64,
    buffered: usize,
}

impl<E: Env> PackWriter<E> {
    /// Begins a pack.
    pub(super) async fn begin(env: &E, kind: PackKind, options: PackOptions) -> Result<Self> {
        let upload = env.bucket().upload().await?;
        Ok(Self {
            env: env.clone(),
            builder: Some(PackBuilder::new(kind, options)),
            upload,
            pending: Vec::new(),
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
        let build = self.env.offload(move || {
            let done = job(&mut builder);
            let parts: Vec<AlignedBuf> = std::iter::from_fn(|| builder.drain()).collect();
            (builder, parts, done)
        });
        let send = send(&mut self.upload, std::mem::take(&mut self.pending));
        let ((builder, parts, done), sent) = both(build, send).await;
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
        let send_pending = send(&mut self.upload, std::mem::take(&mut self.pending));
        let (finished, sent) = both(finish, send_pending).await;
        sent?;
        let (parts, summary) = finished.map_err(|error| damaged(&error))?;
        send(&mut self.upload, parts).await?;
        self.upload.finish(&path(&summary)).await?;
        Ok(summary)
    }
}

async fn send<U: Upload>(upload: &mut U, parts: Vec<AlignedBuf>) -> Result<()> {
    for part in parts {
        upload.part(Arc::new(part)).await?;
    }
    Ok(())
}

fn damaged(error: &PackError) -> Error {
    Error::corrupt("batch in the log", 0, error)
}
