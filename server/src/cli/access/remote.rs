//! Remote: a server that the command asks instead of an engine of its own.
//!
//! **Invariants**
//! - A server that was found by its lock file is named on standard error.
//! - Tokens come from a file, never from the command line.
//!
//! **Not here**: the protocol (`sealog-client`).

use std::time::Duration;

use sealog_client::{
    Client, ClientOptions, Identity, Producer, ReadOptions, SessionOptions, Settling, Tls,
};
use sealog_engine::commit::{Commit, CommitKind};
use sealog_engine::env::DirLock;
use sealog_engine::ids::{CommitNumber, FeedId, StreamId};
use sealog_engine::{
    EngineConfig, FeedInfo, FeedOptions, ProducerInfo, ReadChunk, ReadRequest, StreamInfo,
};

use super::{Result, Session, convert};
use crate::cli::args::Globals;
use crate::cli::exit::CliError;

/// Longest wait for a server that is not there.
const CONNECT: Duration = Duration::from_secs(5);

/// A connection to a server.
pub(in crate::cli) struct Remote {
    pub(super) client: Client,
}

/// The server to ask: the one that was named, or the one that has the data directory open.
pub(super) fn server_of(globals: &Globals, config: &EngineConfig) -> Option<String> {
    if globals.server.is_some() {
        return globals.server.clone();
    }
    DirLock::holder(&config.data_dir)?.address
}

/// Runs `verb` on the feeds of `server`.
pub(super) fn run(
    globals: &Globals,
    server: &str,
    verb: impl AsyncFnOnce(Remote) -> Result<()>,
) -> Result<()> {
    if globals.server.is_none() && !globals.json {
        eprintln!("sealog: the data directory is served at {server}: asking there");
    }
    check_address(server)?;
    let options = options(globals)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| CliError::io("starting the client", &error))?;
    runtime.block_on(async {
        let client = Client::connect_with(server, options).await?;
        verb(Remote { client }).await
    })
}

/// Refuses what is no address of a server before anybody looks for a host of that name.
fn check_address(server: &str) -> Result<()> {
    let is_address = |(host, port): (&str, &str)| {
        !host.is_empty() && !host.contains('/') && port.parse().is_ok_and(|port: u16| port > 0)
    };
    if server.rsplit_once(':').is_some_and(is_address) {
        return Ok(());
    }
    let text = format!("--server {server}: HOST:PORT is needed, as in 127.0.0.1:4436");
    Err(CliError::usage(match server.split_once("://") {
        Some(_) => format!("{text}, without a scheme"),
        None => text,
    }))
}

fn options(globals: &Globals) -> Result<ClientOptions> {
    let mut options = ClientOptions {
        connect_timeout: CONNECT,
        request_timeout: CONNECT * 2,
        agent: concat!("sealog/", env!("CARGO_PKG_VERSION")).to_owned(),
        ..ClientOptions::default()
    };
    if let Some(path) = &globals.token_file {
        options.token = Some(crate::cli::token::read(path)?.into());
    }
    if let Some(path) = &globals.tls_ca {
        let pem = std::fs::read(path);
        let pem = pem.map_err(|error| CliError::file("certificate file", path, &error))?;
        options.tls =
            Some(Tls::trusting(&pem).map_err(|error| {
                CliError::usage(format!("--tls-ca {}: {error}", path.display()))
            })?);
    }
    Ok(options)
}

fn page(limit: usize) -> u32 {
    u32::try_from(limit).unwrap_or(u32::MAX)
}

impl Remote {
    pub(super) async fn create_feed(&self, feed: &str, options: FeedOptions) -> Result<FeedId> {
        let options = sealog_client::FeedOptions {
            keys: options.keys,
            exclusive: options.exclusive,
        };
        Ok(FeedId(self.client.create_feed(feed, options).await?))
    }

    pub(super) async fn list_feeds(
        &self,
        prefix: &str,
        after: &str,
        limit: usize,
    ) -> Result<Vec<FeedInfo>> {
        let feeds = self.client.list_feeds(prefix, after, page(limit)).await?;
        Ok(feeds.into_iter().map(convert::feed).collect())
    }

    pub(super) async fn session(
        &self,
        feed: &str,
        resume: bool,
        producer: Option<(Vec<u8>, u64, u64)>,
    ) -> Result<Session> {
        let identity = match producer {
            Some((id, epoch, first)) => Identity::Producer(Producer {
                id,
                epoch,
                next_sequence: Some(first),
            }),
            None => Identity::Automatic,
        };
        let options = SessionOptions {
            identity,
            ..SessionOptions::default()
        };
        let session = match resume {
            true => self.client.resume_with(feed, options).await?,
            false => self.client.open_with(feed, options).await?,
        };
        Ok(Session::There(session))
    }

    pub(super) async fn settle(
        &self,
        feed: &str,
        stream: Option<StreamId>,
        kind: CommitKind,
        message: &str,
    ) -> Result<Commit> {
        let settling = match kind {
            CommitKind::Sealed => Settling::Seal,
            CommitKind::Discarded => Settling::Discard,
        };
        let stream = stream.map(|stream| stream.0);
        let settled = self.client.settle(feed, stream, settling, message).await?;
        Ok(convert::commit(settled))
    }

    pub(super) async fn list_streams(
        &self,
        feed: &str,
        after: StreamId,
        limit: usize,
    ) -> Result<Vec<StreamInfo>> {
        let streams = self.client.list_streams(feed, after.0, page(limit)).await?;
        Ok(streams.into_iter().map(convert::stream).collect())
    }

    pub(super) async fn list_commits(
        &self,
        feed: &str,
        from: CommitNumber,
        limit: usize,
    ) -> Result<Vec<Commit>> {
        let commits = self.client.list_commits(feed, from.0, page(limit)).await?;
        Ok(commits.into_iter().map(convert::commit).collect())
    }

    pub(super) async fn list_producers(
        &self,
        feed: &str,
        after: Option<&[u8]>,
        limit: usize,
    ) -> Result<Vec<ProducerInfo>> {
        let producers = self.client.list_producers(feed, after, page(limit)).await?;
        Ok(producers.into_iter().map(convert::producer).collect())
    }

    pub(super) async fn read(&self, request: &ReadRequest) -> Result<ReadChunk> {
        let options = ReadOptions {
            feed_id: request.id.map(|id| id.0),
            stream: request.stream.map(|stream| stream.0),
            from: convert::from(request.from),
            end: request.end,
            bytes_max: u32::try_from(request.bytes_max).unwrap_or(u32::MAX),
            fingerprints: request.fingerprints,
            wait: request.wait,
            ..ReadOptions::default()
        };
        let batch = self.client.read(&request.feed, &options).await?;
        let mut frames = Vec::new();
        for frame in batch.frames() {
            frames.extend_from_slice(frame.as_bytes());
        }
        Ok(ReadChunk {
            frames,
            fingerprints: batch.fingerprints().to_vec(),
            first: batch.first(),
            next: batch.next(),
            ended: batch.is_end(),
            tail: batch.tail(),
            ..ReadChunk::default()
        })
    }
}
