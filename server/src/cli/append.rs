//! Append: records in, durable, sealed into a commit.
//!
//! ```text
//!  input -> batch -> session (window) -> tickets -> counted -> seal -> commit
//! ```
//!
//! **Invariants**
//! - The first batch is put together before the engine is opened: bad input touches nothing.
//! - What is stored of an input is always its beginning, also when an append in the middle is refused:
//!   each batch names the sequence before it (or, for a producer, its number).
//! - The stream is sealed only when every batch was acknowledged.
//! - At most [`IN_FLIGHT_MAX`] batches and the session's window are in memory.
//!
//! **Not here**: where records come from (`input`).

use std::collections::VecDeque;
use std::os::unix::ffi::OsStrExt;

use futures_lite::future::poll_once;
use sealog_engine::append::AppendResult;
use sealog_engine::ids::Epoch;
use sealog_engine::{
    AppendSession, EngineConfig, Error, FeedOptions, ProductionEnv, SessionOptions, Ticket,
};
use sealog_frame::{BatchBuilder, MatchSequence};

use super::args::{AppendArgs, MatchSeq};
use super::exit::CliError;
use super::input::Input;
use super::open::{Handle, with_engine};
use super::output::Output;
use super::progress::Progress;
use super::shapes::{AppendShape, CommitShape, count, range};

/// Batches sent and not yet acknowledged.
const IN_FLIGHT_MAX: usize = 64;

/// Runs `append`.
pub(super) fn run(
    config: EngineConfig,
    args: AppendArgs,
    out: &mut Output,
) -> Result<(), CliError> {
    let record_max = config.frame.record_bytes_max;
    let steady = args.producer.is_some();
    let mut input = Input::open(args.records.clone(), steady, record_max)?;
    let mut builder = BatchBuilder::new(config.frame);
    if !input.fill(&mut builder)? {
        return out.line(&nothing(&args.feed), |_| {
            "nothing appended: the input is empty".to_owned()
        });
    }
    // An epoch that somebody holds is of a feed that exists.
    let create = !args.no_create && args.fencing_token.is_none();
    with_engine(config, create, async |handle| {
        if create {
            ensure_feed(&handle, &args.feed).await?;
        }
        let mut appender = Appender::start(&handle, &args).await?;
        let appended = appender.all(&mut input, builder).await;
        let shape = match appended {
            Ok(()) => appender.finish().await?,
            Err(error) => return Err(appender.explain(error)),
        };
        out.line(&shape, text)
    })
}

fn nothing(feed: &str) -> AppendShape {
    AppendShape {
        feed: feed.to_owned(),
        stream: None,
        epoch: 0,
        first: None,
        last: None,
        records: 0,
        duplicate_batches: 0,
        commit: None,
    }
}

fn text(shape: &AppendShape) -> String {
    if let Some(commit) = &shape.commit {
        return commit.text();
    }
    let records = count(shape.records, "record");
    let range = range(shape.first.unwrap_or(0), shape.last);
    let epoch = shape.epoch;
    match shape.stream {
        Some(stream) if shape.duplicate_batches == 0 => {
            format!("appended {records}, {range}, stream {stream} unsealed, epoch {epoch}")
        }
        _ => format!(
            "appended {records}, {range}, {} stored before",
            count(shape.duplicate_batches, "batch")
        ),
    }
}

async fn ensure_feed(handle: &Handle, feed: &str) -> Result<(), CliError> {
    let options = FeedOptions {
        keys: true,
        exclusive: false,
    };
    match handle.create_feed(feed, options).await {
        // Made by somebody with other options: the append says if they do not suit.
        Ok(_) | Err(Error::FeedExists { .. }) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// How batches reach the feed.
enum Writer {
    /// Under a lease of our own.
    Session(AppendSession<ProductionEnv>),
    /// Under the epoch that the caller knows.
    Token(u64),
    /// Without an epoch: a producer's retry that need not open a stream.
    Cooperative,
}

struct Appender<'a> {
    handle: &'a Handle,
    args: &'a AppendArgs,
    writer: Writer,
    tickets: VecDeque<Ticket<ProductionEnv>>,
    /// Last sequence the next batch must find, when nobody else can write.
    expected: Option<MatchSequence>,
    next_producer_seq: u64,
    first: Option<u64>,
    last: Option<u64>,
    records: u64,
    duplicate_batches: u64,
}

impl<'a> Appender<'a> {
    /// Takes the lease, unless the caller has one or every batch may be a duplicate.
    async fn start(handle: &'a Handle, args: &'a AppendArgs) -> Result<Self, CliError> {
        let mut expected = match args.match_seq {
            Some(MatchSeq::Empty) => Some(MatchSequence::Empty),
            Some(MatchSeq::At(last)) => Some(MatchSequence::At(last)),
            None => None,
        };
        let writer = choose_writer(handle, args).await?;
        if let (Writer::Session(session), None, None) = (&writer, expected, &args.producer) {
            let next = session.lease().next_sequence;
            expected = Some(
                next.checked_sub(1)
                    .map_or(MatchSequence::Empty, MatchSequence::At),
            );
        }
        Ok(Self {
            handle,
            args,
            writer,
            tickets: VecDeque::new(),
            expected,
            next_producer_seq: args.producer_seq.unwrap_or(0),
            first: None,
            last: None,
            records: 0,
            duplicate_batches: 0,
        })
    }

    /// Appends everything; returns when all of it is durable.
    async fn all(&mut self, input: &mut Input, mut builder: BatchBuilder) -> Result<(), CliError> {
        let progress = match input.is_long() {
            true => Progress::records(),
            false => Progress::hidden(),
        };
        loop {
            let records = builder.len() as u64;
            self.send(&mut builder).await?;
            progress.add(records, input.bytes_read());
            match input.fill(&mut builder) {
                Ok(true) => {}
                Ok(false) => break,
                Err(error) => {
                    // What came before is on its way: the report must count it.
                    self.drain(0).await?;
                    return Err(error);
                }
            }
        }
        self.drain(0).await
    }

    async fn send(&mut self, builder: &mut BatchBuilder) -> Result<(), CliError> {
        let records = builder.len() as u64;
        if let Some(expected) = self.expected {
            builder.match_sequence(expected);
            let next = match expected {
                MatchSequence::Empty => 0,
                MatchSequence::At(last) => last.saturating_add(1),
            };
            self.expected = Some(MatchSequence::At(next.saturating_add(records) - 1));
        }
        if let Some(id) = &self.args.producer {
            let epoch = self.args.producer_epoch.unwrap_or(0);
            builder.producer(id.as_bytes(), epoch, self.next_producer_seq)?;
            self.next_producer_seq = self.next_producer_seq.saturating_add(1);
            // A retry finds the sequence moved on by its own records.
            self.expected = None;
        }
        match &self.writer {
            Writer::Session(session) => {
                builder.fencing_token(session.lease().epoch.0);
                let ticket = session.append_async(builder.build()?).await?;
                self.tickets.push_back(ticket);
                self.drain(IN_FLIGHT_MAX).await
            }
            Writer::Token(token) => {
                builder.fencing_token(*token);
                self.append_now(builder).await
            }
            Writer::Cooperative => self.append_now(builder).await,
        }
    }

    async fn append_now(&mut self, builder: &mut BatchBuilder) -> Result<(), CliError> {
        let result = self
            .handle
            .append(&self.args.feed, builder.build()?)
            .await?;
        self.count(result);
        Ok(())
    }

    /// Counts what is acknowledged, and waits until at most `left` batches are not.
    async fn drain(&mut self, left: usize) -> Result<(), CliError> {
        loop {
            let wait = self.tickets.len() > left;
            let Some(ticket) = self.tickets.front_mut() else {
                break;
            };
            let result = match wait {
                true => ticket.await,
                false => match poll_once(ticket).await {
                    Some(result) => result,
                    None => break,
                },
            };
            self.tickets.pop_front();
            self.count(result?);
        }
        Ok(())
    }

    fn count(&mut self, result: AppendResult) {
        self.first.get_or_insert(result.first);
        self.last = Some(self.last.map_or(result.last, |last| last.max(result.last)));
        if result.duplicate {
            self.duplicate_batches += 1;
        } else {
            self.records += result.record_count;
        }
    }

    /// Seals if asked to, and says what was done.
    async fn finish(self) -> Result<AppendShape, CliError> {
        let (feed, message) = (&self.args.feed, self.args.message.as_deref());
        let nothing_new = self.records == 0;
        let sealed = match &self.writer {
            _ if self.args.no_seal => None,
            Writer::Session(session) => Some(session.seal(message.unwrap_or("")).await?),
            Writer::Token(token) => match message {
                Some(message) => Some(self.handle.seal(feed, Some(Epoch(*token)), message).await?),
                None => None,
            },
            Writer::Cooperative if nothing_new => None,
            Writer::Cooperative => Some(self.handle.seal(feed, None, message.unwrap_or("")).await?),
        };
        let info = self.handle.feed(feed).await?;
        let stream = sealed
            .as_ref()
            .map(|commit| commit.stream)
            .or(info.open_stream);
        Ok(AppendShape {
            feed: feed.clone(),
            stream: stream.map(|stream| stream.0),
            epoch: info.epoch.0,
            first: self.first,
            last: self.last,
            records: self.records,
            duplicate_batches: self.duplicate_batches,
            commit: sealed.map(|commit| CommitShape::of(feed, commit)),
        })
    }

    /// Adds to a failure what of the input is stored all the same.
    fn explain(&self, error: CliError) -> CliError {
        match (self.records, self.last) {
            (1.., Some(last)) => {
                let records = count(self.records, "record");
                let range = range(self.first.unwrap_or(0), Some(last));
                error.and(format_args!(
                    "{records} before it stored, {range}, stream unsealed"
                ))
            }
            _ => error,
        }
    }
}

async fn choose_writer(handle: &Handle, args: &AppendArgs) -> Result<Writer, CliError> {
    if let Some(token) = args.fencing_token {
        return Ok(Writer::Token(token));
    }
    let feed = handle.feed(&args.feed).await?;
    let options = SessionOptions::default();
    if feed.open_stream.is_some() {
        let session = handle.resume_session(&args.feed, options).await?;
        return Ok(Writer::Session(session));
    }
    if let Some(id) = args.producer.as_ref().filter(|_| !feed.options.exclusive) {
        let state = handle.producer(&args.feed, id.as_bytes()).await?;
        let (epoch, seq) = (args.producer_epoch, args.producer_seq);
        let known = state.is_some_and(|state| {
            Some(state.epoch) == epoch && seq.is_some_and(|seq| seq <= state.last_sequence)
        });
        if known {
            // The retry of something sealed long ago must not leave an empty stream or commit.
            return Ok(Writer::Cooperative);
        }
    }
    let session = handle.open_session(&args.feed, options).await?;
    Ok(Writer::Session(session))
}
