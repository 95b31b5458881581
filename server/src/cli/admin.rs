//! Admin: the verbs an operator has: `resume`, `discard`, `repair`, `reshard`, `accept-loss`.
//!
//! **Invariants**
//! - What is settled is said as a commit.
//!
//! **Not here**: the writers' own verbs (`append`, `history`).

use sealog_engine::commit::CommitKind;
use sealog_engine::ids::StreamId;
use serde::Serialize;

use super::access::{PUBLISHED, Place, with_access};
use super::args::{AdminVerb, SettleArgs};
use super::exit::CliError;
use super::offline;
use super::output::Output;
use super::shapes::{CommitShape, count};

/// Runs an admin verb.
pub(super) fn run(place: Place, verb: AdminVerb, out: &mut Output) -> Result<(), CliError> {
    match verb {
        AdminVerb::Resume(args) => settle(place, &args, CommitKind::Sealed, out),
        AdminVerb::Discard(args) => settle(place, &args, CommitKind::Discarded, out),
        AdminVerb::Reshard { logs } => offline::reshard(&place.config, logs, out),
        AdminVerb::AcceptLoss => offline::accept_loss(&place.config, out),
        AdminVerb::Repair { feed } => with_access(place, false, async |handle| {
            let waiting = handle.during(PUBLISHED);
            let published = handle.repair(&feed).await?;
            drop(waiting);
            let shape = Repaired { feed, published };
            out.done(&shape, |shape| {
                format!("{} published", count(shape.published, "commit"))
            })
        }),
    }
}

#[derive(Serialize)]
struct Repaired {
    feed: String,
    published: u64,
}

fn settle(
    place: Place,
    args: &SettleArgs,
    kind: CommitKind,
    out: &mut Output,
) -> Result<(), CliError> {
    with_access(place, false, async |handle| {
        let stream = args.stream.map(StreamId);
        let waiting = handle.during(PUBLISHED);
        let settled = handle.settle_stream(&args.feed, stream, kind, &args.message);
        let commit = settled.await?;
        drop(waiting);
        out.done(&CommitShape::of(&args.feed, commit), CommitShape::text)
    })
}
