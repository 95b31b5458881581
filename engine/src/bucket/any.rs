//! AnyBucket: the bucket that the configuration asks for: a local folder, or an S3-compatible store.
//!
//! **Invariants**
//! - Every call goes to one of them, decided once, when the bucket is opened.
//!
//! **Not here**: what either does with it.

use std::path::Path;
use std::sync::Arc;

#[cfg(feature = "s3")]
use super::s3::{S3Bucket, S3Upload};
use super::{FolderBucket, FolderUpload};
use crate::env::{
    AlignedBuf, Bucket, BucketError, BucketHealth, ETag, ObjectMeta, PutOutcome, SwapOutcome,
    Upload,
};

/// One of the buckets there are. Cheap to clone.
#[derive(Clone)]
pub enum AnyBucket {
    /// A local folder.
    Folder(FolderBucket),
    /// An S3-compatible store.
    #[cfg(feature = "s3")]
    S3(S3Bucket),
}

/// A big object on its way into an [`AnyBucket`].
pub enum AnyUpload {
    /// Into a folder.
    Folder(FolderUpload),
    /// Into a store.
    #[cfg(feature = "s3")]
    S3(S3Upload),
}

/// Calls the bucket there is.
macro_rules! on {
    ($any:expr, $bucket:ident => $call:expr) => {
        match $any {
            AnyBucket::Folder($bucket) => $call,
            #[cfg(feature = "s3")]
            AnyBucket::S3($bucket) => $call,
        }
    };
}

impl Bucket for AnyBucket {
    type Upload = AnyUpload;

    fn shares_disk(&self, dir: &Path) -> bool {
        on!(self, bucket => bucket.shares_disk(dir))
    }

    fn keeps_disk_pace(&self) -> bool {
        on!(self, bucket => bucket.keeps_disk_pace())
    }

    fn health(&self) -> BucketHealth {
        on!(self, bucket => bucket.health())
    }

    async fn check_room(&self, bytes: u64) -> Result<(), BucketError> {
        on!(self, bucket => bucket.check_room(bytes).await)
    }

    async fn put_if_absent(&self, key: &str, data: Vec<u8>) -> Result<PutOutcome, BucketError> {
        on!(self, bucket => bucket.put_if_absent(key, data).await)
    }

    async fn put_if_match(
        &self,
        key: &str,
        tag: &ETag,
        data: Vec<u8>,
    ) -> Result<SwapOutcome, BucketError> {
        on!(self, bucket => bucket.put_if_match(key, tag, data).await)
    }

    async fn get(&self, key: &str) -> Result<(Vec<u8>, ETag), BucketError> {
        on!(self, bucket => bucket.get(key).await)
    }

    async fn get_range(&self, key: &str, offset: u64, len: usize) -> Result<Vec<u8>, BucketError> {
        on!(self, bucket => bucket.get_range(key, offset, len).await)
    }

    async fn head(&self, key: &str) -> Result<Option<u64>, BucketError> {
        on!(self, bucket => bucket.head(key).await)
    }

    async fn list(
        &self,
        prefix: &str,
        start_after: &str,
        limit: usize,
    ) -> Result<Vec<ObjectMeta>, BucketError> {
        on!(self, bucket => bucket.list(prefix, start_after, limit).await)
    }

    async fn delete(&self, key: &str) -> Result<(), BucketError> {
        on!(self, bucket => bucket.delete(key).await)
    }

    async fn upload(&self) -> Result<AnyUpload, BucketError> {
        match self {
            Self::Folder(bucket) => Ok(AnyUpload::Folder(bucket.upload().await?)),
            #[cfg(feature = "s3")]
            Self::S3(bucket) => Ok(AnyUpload::S3(bucket.upload().await?)),
        }
    }
}

impl Upload for AnyUpload {
    async fn part(&mut self, data: Arc<AlignedBuf>) -> Result<(), BucketError> {
        match self {
            Self::Folder(upload) => upload.part(data).await,
            #[cfg(feature = "s3")]
            Self::S3(upload) => upload.part(data).await,
        }
    }

    async fn finish(self, key: &str) -> Result<(), BucketError> {
        match self {
            Self::Folder(upload) => upload.finish(key).await,
            #[cfg(feature = "s3")]
            Self::S3(upload) => upload.finish(key).await,
        }
    }
}
