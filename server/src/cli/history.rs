//! History: the verbs `streams`, `commits`, `producers` and `seal`.
//!
//! **Invariants**
//! - Lists are fetched and printed page by page.
//! - `seal` binds the writer epoch by itself where the feed asks for one.
//!
//! **Not here**: streams whose writers are gone (`admin`).

use std::os::unix::ffi::OsStrExt;

use sealog_engine::ids::{CommitNumber, Epoch, StreamId};
use sealog_engine::{ProducerInfo, check_commit_message};

use super::access::{PUBLISHED, Place, with_access};
use super::args::{ListArgs, ProducersArgs, SealArgs};
use super::exit::CliError;
use super::feeds::PAGE;
use super::output::Output;
use super::shapes::{CommitShape, ProducerShape, StreamShape, count, range, when};

fn page_of(left: u64) -> usize {
    PAGE.min(usize::try_from(left).unwrap_or(PAGE))
}

/// `streams`.
pub(super) fn streams(place: Place, args: &ListArgs, out: &mut Output) -> Result<(), CliError> {
    with_access(place, false, async |handle| {
        let (feed, mut left) = (&args.feed, args.limit.unwrap_or(u64::MAX));
        let mut after = StreamId(args.from.saturating_sub(1));
        while left > 0 {
            let page = page_of(left);
            let waiting = handle.during("streams");
            let streams = handle.list_streams(feed, after, page).await?;
            drop(waiting);
            for info in &streams {
                after = info.id;
                out.line(&StreamShape::of(feed, info), stream_text)?;
            }
            left -= streams.len() as u64;
            if streams.is_empty() {
                break;
            }
        }
        Ok(())
    })
}

fn stream_text(shape: &StreamShape) -> String {
    let (records, range) = (
        count(shape.records, "record"),
        range(shape.first, shape.last),
    );
    let commit = shape
        .commit
        .map_or(String::new(), |n| format!(", commit {n}"));
    format!(
        "stream {}: {}, {records}, {range}{commit}",
        shape.stream, shape.phase
    )
}

/// `commits`.
pub(super) fn commits(place: Place, args: &ListArgs, out: &mut Output) -> Result<(), CliError> {
    with_access(place, false, async |handle| {
        let (feed, mut left) = (&args.feed, args.limit.unwrap_or(u64::MAX));
        let mut from = CommitNumber(args.from);
        while left > 0 {
            let page = page_of(left);
            let waiting = handle.during("commits");
            let commits = handle.list_commits(feed, from, page).await?;
            drop(waiting);
            let got = commits.len();
            for commit in commits {
                from = CommitNumber(commit.number.0 + 1);
                out.line(&CommitShape::of(feed, commit), |shape| {
                    format!("{}, {}", shape.text(), when(shape.time_ms))
                })?;
            }
            left -= got as u64;
            if got == 0 {
                break;
            }
        }
        Ok(())
    })
}

/// `producers`.
pub(super) fn producers(
    place: Place,
    args: &ProducersArgs,
    out: &mut Output,
) -> Result<(), CliError> {
    with_access(place, false, async |handle| {
        let feed = &args.feed;
        if let Some(id) = &args.producer {
            let id = id.as_bytes().to_vec();
            let Some(state) = handle.producer(feed, &id).await? else {
                let text = format!(
                    "feed {feed:?} has no producer {:?}",
                    String::from_utf8_lossy(&id)
                );
                return Err(CliError::not_found("ProducerNotFound", text));
            };
            let info = ProducerInfo { id, state };
            return out.line(&ProducerShape::of(feed, &info), producer_text);
        }
        let mut left = args.limit.unwrap_or(u64::MAX);
        let mut after: Option<Vec<u8>> = None;
        while left > 0 {
            let page = page_of(left);
            let producers = handle.list_producers(feed, after.as_deref(), page).await?;
            for info in &producers {
                out.line(&ProducerShape::of(feed, info), producer_text)?;
            }
            left -= producers.len() as u64;
            if producers.is_empty() {
                break;
            }
            after = producers.last().map(|info| info.id.clone());
        }
        Ok(())
    })
}

fn producer_text(shape: &ProducerShape) -> String {
    let id = shape.producer.as_ref().or(shape.producer_base64.as_ref());
    format!(
        "producer {:?}: epoch {}, last sequence {}, updated {}",
        id.map_or("", String::as_str),
        shape.epoch,
        shape.last_sequence,
        when(shape.last_updated_ms)
    )
}

/// `seal`.
pub(super) fn seal(place: Place, args: &SealArgs, out: &mut Output) -> Result<(), CliError> {
    with_access(place, false, async |handle| {
        let (feed, message) = (&args.feed, &args.message);
        check_commit_message(message)?;
        let exclusive = handle.feed(feed).await?.options.exclusive;
        let waiting = handle.during(PUBLISHED);
        let commit = match args.fencing_token {
            Some(token) => handle.seal(feed, Some(Epoch(token)), message).await?,
            None if exclusive => {
                handle
                    .session(feed, true, None)
                    .await?
                    .seal(message)
                    .await?
            }
            None => handle.seal(feed, None, message).await?,
        };
        drop(waiting);
        out.done(&CommitShape::of(feed, commit), CommitShape::text)
    })
}
