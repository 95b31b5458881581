//! Bucket: implementations of the object store seam: a local folder, and S3-compatible stores.
//!
//! **Invariants**
//! - See [`Bucket`](crate::env::Bucket): conditional writes are whole or absent, and durable on return.
//!
//! **Not here**: the seam itself (`env`).

mod any;
mod folder;
mod folder_list;
mod folder_store;
mod key;
#[cfg(feature = "s3")]
mod s3;
mod s3_options;

pub use any::{AnyBucket, AnyUpload};
pub use folder::{FolderBucket, FolderOpenError, FolderUpload};
#[cfg(feature = "s3")]
pub(crate) use s3::fetch;
#[cfg(feature = "s3")]
pub use s3::{S3Bucket, S3Local, S3OpenError, S3Upload};
pub use s3_options::S3Options;
