//! Append: records in, durable, sealed into a commit.
//!
//! ```text
//!  input -> batch -> session (window) -> tickets -> counted -> seal -> commit
//! ```
//!
//! **Invariants**
//! - A data directory that is there is locked before the input is read; one that is not is made only
//!   once a first batch stands that a new feed would take.
//! - The first batch is judged before anything is made, opened or fenced: a refusal of it has no effects.
//! - What is stored of an input is always its beginning, also when an append in the middle is refused:
//!   each batch names the sequence before it (or, for a producer, its number).
//! - The stream is sealed only when every batch was acknowledged.
//! - At most [`IN_FLIGHT_MAX`] batches and the session's window are in memory.
//!
//! **Not here**: where records come from (`input`).

use std::collections::VecDeque;
use std::os::unix::ffi::OsStrExt;

use futures_lite::future::poll_once;
use sealog_engine::append::{AppendResult, foresee_first};
use sealog_engine::ids::Epoch;
use sealog_engine::{FeedOptions, check_commit_message};
use sealog_frame::{Batch, BatchBuilder, MatchSequence};

use super::access::{Access, PUBLISHED, Place, Session, Ticket, with_access};
use super::args::{AppendArgs, MatchSeq};
use super::exit::CliError;
use super::input::Input;
use super::open::is_made;
use super::output::Output;
use super::progress::Progress;
use super::shapes::{AppendShape, CommitShape, count, range};
use super::signals::Signals;

/// Batches sent and not yet acknowledged.
const IN_FLIGHT_MAX: usize = 64;

/// Runs `append`.
pub(super) fn run(place: Place, args: AppendArgs, out: &mut Output) -> Result<(), CliError> {
    args.message
        .as_deref()
        .map_or(Ok(()), check_commit_message)?;
    let record_max = place.config.frame.record_bytes_max;
    let steady = args.producer.is_some();
    let signals = Signals::listen()?;
    let mut input = Input::open(args.records.clone(), steady, record_max, &signals)?;
    let mut builder = BatchBuilder::new(place.config.frame);
    // An epoch that somebody holds is of a feed that exists.
    let create = !args.no_create && args.fencing_token.is_none();
    if create && !place.is_remote() && !is_made(&place.config) {
        if !input.fill(&mut builder)? {
            return nothing(&args.feed, out);
        }
        let mut first = builder.clone();
        Numbers::new(&args, None).put(&mut first)?;
        foresee_first(&args.feed, &created(), &first.build()?.view())?;
    }
    with_access(place, create, async |handle| {
        if builder.is_empty() && !input.fill(&mut builder)? {
            return nothing(&args.feed, out);
        }
        let (mut appender, first) = Appender::start(&handle, &args, create, builder).await?;
        let appended = appender.all(&mut input, first).await;
        let finished = match appended {
            Ok(()) => appender.finish().await,
            Err(error) => Err(error),
        };
        let shape = finished.map_err(|error| appender.explain(error))?;
        out.done(&shape, text)
    })
}

/// How a feed is made that is not there.
fn created() -> FeedOptions {
    FeedOptions {
        keys: true,
        ..FeedOptions::default()
    }
}

fn nothing(feed: &str, out: &mut Output) -> Result<(), CliError> {
    out.line(&empty(feed), |_| {
        "nothing appended: the input is empty".to_owned()
    })
}

fn empty(feed: &str) -> AppendShape {
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

/// How batches reach the feed.
enum Writer {
    /// Under a lease of our own.
    Session(Session),
    /// Under the epoch that the caller knows.
    Token(u64),
    /// Without an epoch: a producer's retry that need not open a stream.
    Cooperative,
}

/// The numbers that each batch carries: its place in the feed, or among its producer's batches.
struct Numbers<'a> {
    args: &'a AppendArgs,
    /// Last sequence the next batch must find, when nobody else can write.
    expected: Option<MatchSequence>,
    next_producer_seq: u64,
}

impl<'a> Numbers<'a> {
    /// `next_sequence` is the feed's, when nobody else can write.
    fn new(args: &'a AppendArgs, next_sequence: Option<u64>) -> Self {
        let expected = match args.match_seq {
            Some(MatchSeq::Empty) => Some(MatchSequence::Empty),
            Some(MatchSeq::At(last)) => Some(MatchSequence::At(last)),
            None if args.producer.is_some() => None,
            None => next_sequence.map(|next| {
                next.checked_sub(1)
                    .map_or(MatchSequence::Empty, MatchSequence::At)
            }),
        };
        Self {
            args,
            expected,
            next_producer_seq: args.producer_seq.unwrap_or(0),
        }
    }

    /// Puts the next ones on a batch.
    fn put(&mut self, builder: &mut BatchBuilder) -> Result<(), CliError> {
        self.put_condition(builder);
        self.put_producer(builder)
    }

    fn put_condition(&mut self, builder: &mut BatchBuilder) {
        let records = builder.len() as u64;
        if let Some(expected) = self.expected {
            builder.match_sequence(expected);
            let next = match expected {
                MatchSequence::Empty => 0,
                MatchSequence::At(last) => last.saturating_add(1),
            };
            self.expected = Some(MatchSequence::At(next.saturating_add(records) - 1));
        }
        if self.args.producer.is_some() {
            // A retry finds the sequence moved on by its own records.
            self.expected = None;
        }
    }

    fn put_producer(&mut self, builder: &mut BatchBuilder) -> Result<(), CliError> {
        if let Some(id) = &self.args.producer {
            let epoch = self.args.producer_epoch.unwrap_or(0);
            builder.producer(id.as_bytes(), epoch, self.next_producer_seq)?;
            self.next_producer_seq = self.next_producer_seq.saturating_add(1);
        }
        Ok(())
    }
}

struct Appender<'a> {
    handle: &'a Access,
    args: &'a AppendArgs,
    writer: Writer,
    numbers: Numbers<'a>,
    builder: BatchBuilder,
    tickets: VecDeque<Ticket>,
    first: Option<u64>,
    last: Option<u64>,
    records: u64,
    duplicate_batches: u64,
    /// The seal was asked for.
    sealing: bool,
}

impl<'a> Appender<'a> {
    /// Judges the first batch, then makes the feed if need be and takes the lease, unless the caller
    /// has one or every batch may be a duplicate. Gives the first batch back, ready to be sent.
    async fn start(
        handle: &'a Access,
        args: &'a AppendArgs,
        create: bool,
        mut builder: BatchBuilder,
    ) -> Result<(Self, Batch), CliError> {
        let feed = match handle.feed(&args.feed).await {
            Err(error) if create && error.is_feed_not_found() => None,
            feed => Some(feed?),
        };
        let next = feed.as_ref().map_or(0, |feed| feed.next_sequence);
        let alone = args.fencing_token.is_none().then_some(next);
        let mut numbers = Numbers::new(args, alone);
        numbers.put_condition(&mut builder);
        let mut untagged = builder.clone();
        numbers.put_producer(&mut builder)?;
        let mut first = builder.build()?;
        let writer = match (&feed, args.fencing_token) {
            (_, Some(token)) => Writer::Token(token),
            (None, None) => {
                foresee_first(&args.feed, &created(), &first.view())?;
                handle.create_feed(&args.feed, created()).await?;
                take_lease(handle, args, false).await?
            }
            (Some(feed), None) => {
                let message = args.message.as_deref().unwrap_or("");
                let sealed = (!args.no_seal).then_some(message);
                let duplicate = handle.foresee(&args.feed, &first, sealed).await?;
                match duplicate && !feed.options.exclusive && feed.open_stream.is_none() {
                    // The retry of something sealed long ago must not leave an empty stream or commit.
                    true => Writer::Cooperative,
                    false => take_lease(handle, args, feed.open_stream.is_some()).await?,
                }
            }
        };
        if matches!(&writer, Writer::Session(session) if session.binds_producer()) {
            first = untagged.build()?;
        }
        let appender = Self {
            handle,
            args,
            writer,
            numbers,
            builder,
            tickets: VecDeque::new(),
            first: None,
            last: None,
            records: 0,
            duplicate_batches: 0,
            sealing: false,
        };
        Ok((appender, first))
    }

    /// Appends everything; returns when all of it is durable.
    async fn all(&mut self, input: &mut Input, first: Batch) -> Result<(), CliError> {
        let progress = match input.is_long() {
            true => Progress::records(),
            false => Progress::hidden(),
        };
        let mut batch = first;
        loop {
            let records = batch.view().record_count() as u64;
            self.send(batch).await?;
            progress.add(records, input.bytes_read());
            match input.fill(&mut self.builder) {
                Ok(true) => {}
                Ok(false) => break,
                Err(error) => {
                    // What came before is on its way: the report must count it.
                    self.drain(0).await?;
                    return Err(error);
                }
            }
            batch = self.next_batch()?;
        }
        self.drain(0).await
    }

    /// The batch that the builder holds, with its numbers and the epoch it is written under.
    fn next_batch(&mut self) -> Result<Batch, CliError> {
        self.numbers.put_condition(&mut self.builder);
        match &self.writer {
            Writer::Session(session) if session.binds_producer() => {}
            _ => self.numbers.put_producer(&mut self.builder)?,
        }
        match &self.writer {
            Writer::Session(session) => {
                if let Some(token) = session.token() {
                    self.builder.fencing_token(token);
                }
            }
            Writer::Token(token) => {
                self.builder.fencing_token(*token);
            }
            Writer::Cooperative => {}
        }
        Ok(self.builder.build()?)
    }

    async fn send(&mut self, batch: Batch) -> Result<(), CliError> {
        match &self.writer {
            Writer::Session(session) => {
                let ticket = session.append_async(batch).await?;
                self.tickets.push_back(ticket);
                self.drain(IN_FLIGHT_MAX).await
            }
            Writer::Token(token) => {
                let token = *token;
                self.append_now(batch.with_fencing_token(token)).await
            }
            Writer::Cooperative => self.append_now(batch).await,
        }
    }

    async fn append_now(&mut self, batch: Batch) -> Result<(), CliError> {
        let result = self.handle.append(&self.args.feed, batch).await?;
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
        // Without a producer of the caller's, a duplicate is a batch that this very command sent again.
        if result.duplicate && self.args.producer.is_some() {
            self.duplicate_batches += 1;
        } else {
            self.records += result.record_count;
        }
    }

    /// Seals if asked to, and says what was done.
    async fn finish(&mut self) -> Result<AppendShape, CliError> {
        let (feed, message) = (&self.args.feed, self.args.message.as_deref());
        let nothing_new = self.records == 0;
        let waiting = self.handle.during(PUBLISHED);
        self.sealing = true;
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
        drop(waiting);
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
                // The bucket is only waited for once the stream is sealed.
                let stream = match (error.is_unpublished(), self.sealing && error.is_unknown()) {
                    (true, _) => String::new(),
                    (_, true) => format!(
                        ", whether their stream is sealed is unknown: `sealog streams {}` tells",
                        self.args.feed
                    ),
                    _ => ", stream unsealed".to_owned(),
                };
                let error = error.and(format_args!("{records} before it stored, {range}{stream}"));
                error.with_effects()
            }
            _ if error.is_interrupt() => error.and("nothing stored"),
            _ => error,
        }
    }
}

/// Opens a stream, or resumes the one that is unsealed.
async fn take_lease(handle: &Access, args: &AppendArgs, resume: bool) -> Result<Writer, CliError> {
    let producer = args.producer.as_ref().map(|id| {
        let (epoch, first) = (args.producer_epoch, args.producer_seq);
        let id = id.as_bytes().to_vec();
        (id, epoch.unwrap_or(0), first.unwrap_or(0))
    });
    let session = handle.session(&args.feed, resume, producer).await?;
    Ok(Writer::Session(session))
}
