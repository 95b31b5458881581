//! Usage: what all logs hold, asked through the handle.
//!
//! **Invariants**
//! - Nothing is asked of the bucket: what is known of it is told.
//!
//! **Not here**: the figures (`shard::usage`).

use super::Handle;
use crate::env::Env;
use crate::error::Result;
use crate::shard::Usage;

impl<E: Env> Handle<E> {
    /// What the logs hold, what waits for the bucket, and how the bucket is.
    ///
    /// # Errors
    /// [`crate::Error::Closed`], [`crate::Error::Poisoned`].
    ///
    /// # Cancel safety
    /// Cancel safe: only reads.
    pub async fn usage(&self) -> Result<Usage> {
        let mut logs = Vec::new();
        let mut bucket = None;
        for log in 0..self.logs() {
            let ask = |s: std::rc::Rc<crate::LogService<E>>| async move {
                Ok((s.usage(), s.bucket_health()))
            };
            let (usage, health) = self.ask(log, ask).await?;
            logs.push(usage);
            bucket = Some(health);
        }
        let bucket = bucket.unwrap_or_default();
        Ok(Usage { logs, bucket })
    }
}
