//! Feeds: the verbs `feed create`, `list`, `show` and `delete`.
//!
//! **Invariants**
//! - Lists are fetched and printed page by page: memory does not grow with their length.
//!
//! **Not here**: what is in a feed (`history`, `read`).

use sealog_engine::{FeedInfo, FeedOptions};
use serde::Serialize;

use super::access::{Access, Place, with_access};
use super::args::FeedVerb;
use super::exit::CliError;
use super::output::Output;
use super::shapes::{FeedShape, count, when};

/// Entries fetched at a time.
pub(super) const PAGE: usize = 1000;

/// Runs a feed verb.
pub(super) fn run(place: Place, verb: FeedVerb, out: &mut Output) -> Result<(), CliError> {
    let create = matches!(verb, FeedVerb::Create { .. });
    with_access(place, create, async |handle| match verb {
        FeedVerb::Create {
            feed,
            keys: _,
            no_keys,
            exclusive,
        } => {
            let keys = !no_keys;
            let options = FeedOptions {
                keys,
                exclusive,
                ..FeedOptions::default()
            };
            handle.create_feed(&feed, options).await?;
            let shape = FeedShape::from(handle.feed(&feed).await?);
            out.done(&shape, |shape| format!("created {}", line(shape)))
        }
        FeedVerb::Show { feed } => {
            let shape = FeedShape::from(handle.feed(&feed).await?);
            out.line(&shape, details)
        }
        FeedVerb::List {
            prefix,
            after,
            limit,
        } => list(&handle, &prefix, after, limit.unwrap_or(u64::MAX), out).await,
        FeedVerb::Delete { feed } => {
            handle.delete_feed(&feed).await?;
            let shape = Deleted { deleted: feed };
            out.done(&shape, |shape| format!("deleted {:?}", shape.deleted))
        }
    })
}

#[derive(Serialize)]
struct Deleted {
    deleted: String,
}

async fn list(
    handle: &Access,
    prefix: &str,
    mut after: String,
    mut left: u64,
    out: &mut Output,
) -> Result<(), CliError> {
    while left > 0 {
        let page = PAGE.min(usize::try_from(left).unwrap_or(PAGE));
        let feeds: Vec<FeedInfo> = handle.list_feeds(prefix, &after, page).await?;
        let got = feeds.len();
        for info in feeds {
            after.clone_from(&info.name);
            out.line(&FeedShape::from(info), line)?;
        }
        left -= got as u64;
        if got == 0 {
            break;
        }
    }
    Ok(())
}

fn line(shape: &FeedShape) -> String {
    let keys = if shape.keys { "keys" } else { "no keys" };
    let exclusive = if shape.exclusive { ", exclusive" } else { "" };
    let commits = count(shape.commits, "commit");
    let next = shape.next_sequence;
    format!(
        "{:?}: {keys}{exclusive}, {commits}, next sequence {next}",
        shape.feed
    )
}

fn details(shape: &FeedShape) -> String {
    let open = shape
        .open_stream
        .map_or("none".to_owned(), |id| id.to_string());
    format!(
        "{}\n  id {}, created {}\n  writer epoch {}, open stream {open}, unpublished streams {}, producers {}",
        line(shape),
        shape.id,
        when(shape.created_ms),
        shape.epoch,
        shape.unpublished_streams,
        shape.producers,
    )
}
