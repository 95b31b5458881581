//! Bucket: implementations of the object store seam that need nothing but this machine.
//!
//! **Invariants**
//! - See [`Bucket`](crate::env::Bucket): conditional writes are whole or absent, and durable on return.
//!
//! **Not here**: the seam itself (`env`), S3-compatible stores.

mod folder;
mod folder_list;
mod folder_store;
mod key;

pub use folder::{FolderBucket, FolderOpenError, FolderUpload};
