//! Session: a writer's hold on a feed, here or behind a server.
//!
//! **Invariants**
//! - Tickets resolve in the order their batches were sent.
//!
//! **Not here**: windows and retries (the engine's session, the client's).

use std::pin::Pin;
use std::task::{Context, Poll};

use sealog_engine::append::AppendResult;
use sealog_engine::commit::Commit;
use sealog_engine::{AppendSession, ProductionEnv};
use sealog_frame::Batch;

use super::{Result, convert};
use crate::cli::exit::CliError;

/// The session.
pub(in crate::cli) enum Session {
    Here(AppendSession<ProductionEnv>),
    There(sealog_client::AppendSession),
}

/// The acknowledgement to come of one batch.
pub(in crate::cli) enum Ticket {
    Here(sealog_engine::Ticket<ProductionEnv>),
    There(sealog_client::Ticket),
}

impl Future for Ticket {
    type Output = Result<AppendResult>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match &mut *self {
            Self::Here(ticket) => Pin::new(ticket).poll(cx).map_err(CliError::from),
            Self::There(ticket) => Pin::new(ticket)
                .poll(cx)
                .map(|ack| ack.map(convert::ack).map_err(CliError::from)),
        }
    }
}

impl Session {
    /// The fencing token that batches must carry, if the session leaves that to its user.
    pub(in crate::cli) fn token(&self) -> Option<u64> {
        match self {
            Self::Here(session) => Some(session.lease().epoch.0),
            Self::There(_) => None,
        }
    }

    /// Whether the session gives batches their producer.
    pub(in crate::cli) fn binds_producer(&self) -> bool {
        matches!(self, Self::There(_))
    }

    /// Sends a batch, waiting for the window.
    pub(in crate::cli) async fn append_async(&self, batch: Batch) -> Result<Ticket> {
        match self {
            Self::Here(session) => Ok(Ticket::Here(session.append_async(batch).await?)),
            Self::There(session) => Ok(Ticket::There(session.append_async(batch).await?)),
        }
    }

    /// Waits for all of them, then seals the stream.
    pub(in crate::cli) async fn seal(&self, message: &str) -> Result<Commit> {
        match self {
            Self::Here(session) => Ok(session.seal(message).await?),
            Self::There(session) => Ok(convert::commit(session.seal(message).await?)),
        }
    }
}
