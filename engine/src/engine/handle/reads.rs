//! Reads: one answer's worth of a feed's records, from the logs that have them.
//!
//! ```text
//!  fork's log -- below its base? --> source's log -- below its base? --> ...
//! ```
//!
//! **Invariants**
//! - FORK-1: each source is asked by id, for what lies below the base that led there, and never waited for.
//! - An answer says of the feed that was asked for where it ends and whether it is closed.
//!
//! **Not here**: reading within one log (`read`).

use std::time::Duration;

use super::Handle;
use crate::env::Env;
use crate::error::{Error, Result};
use crate::read::{Below, ReadChunk, ReadFrom, ReadRequest, ReadStep, Way};
use crate::sync::Budget;

/// What one log is asked for.
#[derive(Clone)]
struct Part {
    request: ReadRequest,
    way: Way,
}

impl Part {
    /// What the source is to be asked that `below` names.
    fn below(&self, below: &Below) -> Self {
        let base = &below.base;
        let request = ReadRequest {
            id: Some(base.feed),
            from: below.from,
            end: self.request.end.min(base.sequence),
            bytes_max: self.request.bytes_max,
            fingerprints: self.request.fingerprints,
            wait: Duration::ZERO,
            ..ReadRequest::new(&*base.name)
        };
        let way = Way {
            by_fork: true,
            above_base: false,
        };
        Self { request, way }
    }

    /// Whether there was nothing at or after the time that was asked for.
    fn missed(&self, chunk: &ReadChunk) -> bool {
        matches!(self.request.from, ReadFrom::Timestamp(_)) && chunk.first >= self.request.end
    }
}

impl<E: Env> Handle<E> {
    /// Reads one answer's worth of records; what lies below a fork's base is its source's.
    ///
    /// # Errors
    /// [`Error::FeedNotFound`], [`Error::FeedGone`], [`Error::StreamNotFound`], [`Error::CommitNotFound`],
    /// [`Error::Corrupt`], [`Error::Bucket`], [`Error::Io`].
    ///
    /// # Cancel safety
    /// Cancel safe: only reads.
    pub async fn read(&self, request: ReadRequest) -> Result<ReadChunk> {
        self.read_on(request, None).await
    }

    /// Reads one answer's worth whose frames are within `budget`, which the answer goes on holding
    /// ([`ReadChunk::held`]): for a front end that sends them on. Waits for its turn if not even one
    /// batch is within; while it waits for records it holds nothing.
    ///
    /// # Errors
    /// As [`Handle::read`].
    ///
    /// # Cancel safety
    /// Cancel safe: only reads.
    pub async fn read_within(&self, request: ReadRequest, budget: &Budget) -> Result<ReadChunk> {
        self.read_on(request, Some(budget)).await
    }

    /// Reads what is inherited, and what follows it while there is room.
    async fn read_on(&self, request: ReadRequest, budget: Option<&Budget>) -> Result<ReadChunk> {
        let bytes_max = request.bytes_max;
        let (mut chunk, inherited) = self.read_down(request.clone(), budget).await?;
        let mut more = inherited;
        while more && chunk.frames.len() < bytes_max && !chunk.ended && chunk.next < chunk.tail {
            let request = ReadRequest {
                from: ReadFrom::Sequence(chunk.next),
                bytes_max: bytes_max - chunk.frames.len(),
                wait: Duration::ZERO,
                id: Some(chunk.feed),
                ..request.clone()
            };
            // Waiting for the budget with a part of it in hand could wait for ever: what is read
            // outside of it is let go if there is no room.
            let (next, inherited) = self.read_down(request, None).await?;
            if !chunk.held.grow(next.frames.len()) {
                break;
            }
            more = inherited && next.next > chunk.next;
            chunk.join(next);
        }
        Ok(chunk)
    }

    /// Asks the feed's log, and its sources' as far down as it takes; whether it was a source that answered.
    async fn read_down(
        &self,
        request: ReadRequest,
        budget: Option<&Budget>,
    ) -> Result<(ReadChunk, bool)> {
        let mut part = Part {
            request,
            way: Way::default(),
        };
        let mut above: Vec<Part> = Vec::new();
        let mut fork: Option<Below> = None;
        loop {
            match self.ask_part(&part, budget).await {
                Ok(ReadStep::Below(below)) => {
                    let next = part.below(&below);
                    above.push(std::mem::replace(&mut part, next));
                    fork.get_or_insert(below);
                }
                Ok(ReadStep::Chunk(chunk)) => match (above.pop(), &fork) {
                    (Some(upper), Some(_)) if part.missed(&chunk) => {
                        part = upper;
                        part.way.above_base = true;
                    }
                    (Some(upper), Some(fork)) => {
                        let asked = above.first().unwrap_or(&upper);
                        let end = part.request.end;
                        return self.inherit(chunk, fork, end, asked).map(|c| (c, true));
                    }
                    (None, _) | (_, None) => return Ok((chunk, false)),
                },
                Err(error @ Error::FeedNotFound { .. }) => {
                    let asked = above.first().map(|asked| asked.request.feed.clone());
                    return Err(match asked {
                        Some(asked) => self.lost_source(&asked, error).await,
                        None => error,
                    });
                }
                Err(error) => return Err(error),
            }
        }
    }

    async fn ask_part(&self, part: &Part, budget: Option<&Budget>) -> Result<ReadStep> {
        let log = self.log_of(&part.request.feed);
        let (Part { request, way }, budget) = (part.clone(), budget.cloned());
        self.ask(log, move |s| async move {
            s.read_step(&request, way, budget.as_ref()).await
        })
        .await
    }

    /// Makes a source's answer the fork's.
    fn inherit(
        &self,
        mut chunk: ReadChunk,
        fork: &Below,
        end: u64,
        asked: &Part,
    ) -> Result<ReadChunk> {
        chunk.cut(end, &self.frame_limits())?;
        chunk.feed = fork.fork;
        chunk.tail = fork.tail;
        let closed = fork.closed_at.is_some_and(|end| chunk.next >= end);
        chunk.ended = closed || chunk.next >= asked.request.end;
        Ok(chunk)
    }

    /// Why a source was not found: the fork was deleted meanwhile, or damage took the source.
    async fn lost_source(&self, asked: &str, error: Error) -> Error {
        match self.feed(asked).await {
            Ok(info) => {
                let at = info.base.map_or(0, |base| base.sequence);
                Error::corrupt(format!("feed {asked:?}"), at, error)
            }
            Err(gone) => gone,
        }
    }
}
