//! Access: the feeds that a verb works on: in a data directory of this machine, or behind a server.
//!
//! ```text
//!  --server, SEALOG_SERVER ──────────────────> the server
//!  data directory, in use by a server ───────> that server, and the command says so
//!  data directory ───────────────────────────> an engine for the length of the verb
//! ```
//!
//! **Invariants**
//! - Both ways answer the same verbs with the same shapes and the same errors.
//!
//! **Not here**: what verbs do; verbs of a directory that nobody has open (`offline`).

mod convert;
mod remote;
mod session;

use sealog_engine::append::AppendResult;
use sealog_engine::commit::{Commit, CommitKind};
use sealog_engine::ids::{CommitNumber, Epoch, FeedId, StreamId};
use sealog_engine::producer::ProducerState;
use sealog_engine::{
    EngineConfig, FeedInfo, FeedOptions, ProducerInfo, ReadChunk, ReadRequest, SessionOptions,
    StreamInfo, Usage,
};
use sealog_frame::Batch;

use super::args::Globals;
use super::exit::CliError;
use super::open::{Handle, with_engine};
use super::patience::{Patience, Waiting};
pub(super) use remote::Remote;
pub(super) use session::{Session, Ticket};

/// The feeds.
pub(super) struct Access {
    side: Side,
    patience: Patience,
}

enum Side {
    /// On an engine of our own.
    Here(Handle),
    /// Behind a server.
    There(Remote),
}

/// What who seals waits for.
pub(super) const PUBLISHED: &str = "the commit to be published in the bucket";

type Result<T> = std::result::Result<T, CliError>;

/// Where the options say that the feeds are.
pub(super) struct Place {
    pub(super) globals: Globals,
    pub(super) config: EngineConfig,
}

impl Place {
    /// Whether a server is asked: then no data directory is needed, or made.
    pub(super) fn is_remote(&self) -> bool {
        remote::server_of(&self.globals, &self.config).is_some()
    }
}

/// Runs `verb` on the feeds of `place`; a data directory is made if `create` says so.
pub(super) fn with_access(
    place: Place,
    create: bool,
    verb: impl AsyncFnOnce(Access) -> Result<()>,
) -> Result<()> {
    let patience = Patience::begin(place.globals.json);
    match remote::server_of(&place.globals, &place.config) {
        Some(server) => remote::run(&place.globals, &server, async |remote| {
            let side = Side::There(remote);
            verb(Access { side, patience }).await
        }),
        None => with_engine(place.config, create, &patience, async |handle| {
            let side = Side::Here(handle);
            let patience = patience.clone();
            verb(Access { side, patience }).await
        }),
    }
}

impl Access {
    /// Says so if what follows waits for `what`, while the answer is held.
    pub(super) fn during(&self, what: &str) -> Waiting<'_> {
        self.patience.during(what)
    }

    pub(super) async fn create_feed(&self, feed: &str, options: FeedOptions) -> Result<FeedId> {
        match &self.side {
            Side::Here(handle) => Ok(handle.create_feed(feed, options).await?),
            Side::There(remote) => remote.create_feed(feed, options).await,
        }
    }

    pub(super) async fn delete_feed(&self, feed: &str) -> Result<()> {
        match &self.side {
            Side::Here(handle) => Ok(handle.delete_feed(feed).await?),
            Side::There(remote) => Ok(remote.client.delete_feed(feed).await?),
        }
    }

    pub(super) async fn usage(&self) -> Result<Usage> {
        match &self.side {
            Side::Here(handle) => Ok(handle.usage().await?),
            Side::There(remote) => Ok(convert::usage(remote.client.usage().await?)),
        }
    }

    pub(super) async fn feed(&self, feed: &str) -> Result<FeedInfo> {
        match &self.side {
            Side::Here(handle) => Ok(handle.feed(feed).await?),
            Side::There(remote) => Ok(convert::feed(remote.client.feed(feed).await?)),
        }
    }

    pub(super) async fn list_feeds(
        &self,
        prefix: &str,
        after: &str,
        limit: usize,
    ) -> Result<Vec<FeedInfo>> {
        match &self.side {
            Side::Here(handle) => Ok(handle.list_feeds(prefix, after, limit).await?),
            Side::There(remote) => remote.list_feeds(prefix, after, limit).await,
        }
    }

    pub(super) async fn foresee(
        &self,
        feed: &str,
        batch: &Batch,
        message: Option<&str>,
    ) -> Result<bool> {
        match &self.side {
            Side::Here(handle) => Ok(handle.foresee(feed, batch, message).await?),
            Side::There(remote) => Ok(remote.client.foresee(feed, batch, message).await?),
        }
    }

    /// Appends a batch that carries its own numbers.
    pub(super) async fn append(&self, feed: &str, batch: Batch) -> Result<AppendResult> {
        match &self.side {
            Side::Here(handle) => Ok(handle.append(feed, batch).await?),
            Side::There(remote) => {
                let ack = remote.client.append_built(feed, &batch).await?;
                Ok(convert::ack(ack))
            }
        }
    }

    /// Takes the writer lease: over the newest unsealed stream, or a new one. Over the network the
    /// session's batches are told apart by `producer` (id, epoch, first sequence), if given.
    pub(super) async fn session(
        &self,
        feed: &str,
        resume: bool,
        producer: Option<(Vec<u8>, u64, u64)>,
    ) -> Result<Session> {
        match &self.side {
            Side::Here(handle) => {
                let options = SessionOptions::default();
                let session = match resume {
                    true => handle.resume_session(feed, options).await?,
                    false => handle.open_session(feed, options).await?,
                };
                Ok(Session::Here(session))
            }
            Side::There(remote) => remote.session(feed, resume, producer).await,
        }
    }

    pub(super) async fn seal(
        &self,
        feed: &str,
        token: Option<Epoch>,
        message: &str,
    ) -> Result<Commit> {
        match &self.side {
            Side::Here(handle) => Ok(handle.seal(feed, token, message).await?),
            Side::There(remote) => {
                let token = token.map(|epoch| epoch.0);
                let sealed = remote.client.seal_under(feed, token, message).await?;
                Ok(convert::commit(sealed))
            }
        }
    }

    pub(super) async fn settle_stream(
        &self,
        feed: &str,
        stream: Option<StreamId>,
        kind: CommitKind,
        message: &str,
    ) -> Result<Commit> {
        match &self.side {
            Side::Here(handle) => Ok(handle.settle_stream(feed, stream, kind, message).await?),
            Side::There(remote) => remote.settle(feed, stream, kind, message).await,
        }
    }

    pub(super) async fn repair(&self, feed: &str) -> Result<u64> {
        match &self.side {
            Side::Here(handle) => Ok(handle.repair(feed).await?),
            Side::There(remote) => Ok(remote.client.repair(feed).await?),
        }
    }

    pub(super) async fn list_streams(
        &self,
        feed: &str,
        after: StreamId,
        limit: usize,
    ) -> Result<Vec<StreamInfo>> {
        match &self.side {
            Side::Here(handle) => Ok(handle.list_streams(feed, after, limit).await?),
            Side::There(remote) => remote.list_streams(feed, after, limit).await,
        }
    }

    pub(super) async fn list_commits(
        &self,
        feed: &str,
        from: CommitNumber,
        limit: usize,
    ) -> Result<Vec<Commit>> {
        match &self.side {
            Side::Here(handle) => Ok(handle.list_commits(feed, from, limit).await?),
            Side::There(remote) => remote.list_commits(feed, from, limit).await,
        }
    }

    pub(super) async fn list_producers(
        &self,
        feed: &str,
        after: Option<&[u8]>,
        limit: usize,
    ) -> Result<Vec<ProducerInfo>> {
        match &self.side {
            Side::Here(handle) => Ok(handle.list_producers(feed, after, limit).await?),
            Side::There(remote) => remote.list_producers(feed, after, limit).await,
        }
    }

    pub(super) async fn producer(&self, feed: &str, id: &[u8]) -> Result<Option<ProducerState>> {
        match &self.side {
            Side::Here(handle) => Ok(handle.producer(feed, id).await?),
            Side::There(remote) => {
                let info = remote.client.producer(feed, id).await?;
                Ok(info.map(|info| convert::producer(info).state))
            }
        }
    }

    pub(super) async fn read(&self, request: ReadRequest) -> Result<ReadChunk> {
        match &self.side {
            Side::Here(handle) => {
                let _waiting = self.patience.unless_well("records");
                Ok(handle.read(request).await?)
            }
            Side::There(remote) => remote.read(&request).await,
        }
    }
}
