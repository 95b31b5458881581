//! Built: appending batches that carry their own token, condition and producer.
//!
//! **Invariants**
//! - The batch goes as it is, and is never sent twice: what it means is the caller's.
//!
//! **Not here**: windows, order, exactly once (`session`).

use std::sync::Arc;

use sealog_frame::Batch;
use sealog_protocol::{Answer, Request, Rest};

use crate::client::{Again, Client};
use crate::conn::Conn;
use crate::error::{Error, Result};
use crate::session::Ack;

impl Client {
    /// Appends a batch that was built whole: fencing token, match sequence and producer are its own. For
    /// everything that is sent by the stream, and exactly once, there are sessions.
    ///
    /// # Errors
    /// What admission refuses (no effects); over a lost connection the effects are unknown, and a retry is
    /// safe only for a batch with a producer.
    ///
    /// # Cancel safety
    /// Dropped after it was sent, the batch may be stored.
    pub async fn append_built(&self, feed: &str, batch: &Batch) -> Result<Ack> {
        let bind = Request::Bind { feed };
        let bound = |conn: &Arc<Conn>, answer: Answer<'_>| match answer {
            Answer::Bound { binding, .. } => Some((conn.clone(), binding)),
            _ => None,
        };
        let (conn, binding) = self.call(Some(feed), &bind, Again::Always, bound).await?;
        let append = Request::Append {
            binding,
            frame: Rest(batch.as_bytes()),
        };
        let within = self.options().request_timeout;
        let message = conn.ask(&append, within).await?;
        Ack::of(&message.answer()?)
            .ok_or_else(|| Error::protocol("an append is answered by something else"))
    }
}
