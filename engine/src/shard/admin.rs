//! Admin: what an operator does about streams whose writers are gone. Spec: spec/lease.md §5.
//!
//! **Invariants**
//! - Settling the newest stream raises the epoch first: a writer that comes back is fenced.
//! - Streams are settled oldest first: FEED-3.
//! - FORK-2: what forks go on from is not discarded.
//!
//! **Not here**: publication, which finishes by itself (`lane`).

use std::rc::Rc;

use super::LogService;
use super::write::{Answer, living};
use crate::commit::{Commit, CommitKind};
use crate::env::Env;
use crate::error::{Error, Result};
use crate::ids::{CommitNumber, Epoch, FeedId, StreamId};
use crate::wal::entry::Change;

impl<E: Env> LogService<E> {
    /// Seals (`Sealed`) or drops (`Discarded`) an unsealed stream as it stands: the given one, else
    /// the oldest.
    pub(crate) fn settle_stream(
        self: &Rc<Self>,
        name: String,
        stream: Option<StreamId>,
        kind: CommitKind,
        message: String,
        answer: Answer<Commit>,
    ) {
        let service = self.clone();
        let sealed = move |decided: Result<(FeedId, CommitNumber)>| match decided {
            Ok((feed, number)) => service.answer_published(feed, number, answer),
            Err(error) => answer(Err(error)),
        };
        self.decide(sealed, move |service| {
            service.settle_now(&name, stream, kind, message)
        });
    }

    fn settle_now(
        &self,
        name: &str,
        stream: Option<StreamId>,
        kind: CommitKind,
        message: String,
    ) -> Result<(FeedId, CommitNumber)> {
        let (id, target, newest, epoch) = {
            let feeds = self.feeds.borrow();
            let feed = living(&feeds, name)?;
            let mut unsealed = feed.streams.iter().filter(|s| !s.is_sealed()).map(|s| s.id);
            let target = match stream {
                Some(stream) => unsealed.find(|id| *id == stream).ok_or_else(|| {
                    let feed_name = name.to_owned();
                    match stream > StreamId(0) && stream < feed.next_stream {
                        true => Error::StreamSettled {
                            feed: feed_name,
                            stream,
                        },
                        false => Error::StreamNotFound {
                            feed: feed_name,
                            stream,
                        },
                    }
                })?,
                None => unsealed.next().ok_or_else(|| Error::NoOpenStream {
                    feed: name.to_owned(),
                })?,
            };
            let first = feed.stream(target).map_or(0, |stream| stream.first);
            if kind == CommitKind::Discarded && first < feed.pinned_end() {
                let (feed, stream) = (name.to_owned(), target);
                return Err(Error::Pinned { feed, stream });
            }
            let newest = feed
                .streams
                .last()
                .is_some_and(|stream| stream.id == target);
            (feed.id, target, newest, Epoch(feed.epoch.0 + 1))
        };
        if newest {
            self.change(id, target, &Change::EpochRaised { epoch });
        }
        self.seal_stream(name, target, kind, message)
    }

    /// Waits until everything sealed of a feed is published; answers how many commits that took.
    ///
    /// # Errors
    /// [`Error::FeedNotFound`], [`Error::Closed`], [`Error::Poisoned`].
    ///
    /// # Cancel safety
    /// Cancel safe: publication goes on by itself.
    pub async fn repair(self: &Rc<Self>, name: &str) -> Result<u64> {
        let (id, published, next) = self
            .query(name, |feed| {
                Ok((feed.id, feed.head.commits, feed.next_commit))
            })
            .await?;
        self.lane.press();
        if next.0 > published {
            self.published(id, CommitNumber(next.0 - 1)).await?;
        }
        Ok(next.0 - published)
    }
}
