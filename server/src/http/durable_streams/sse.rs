//! SSE: a stream as server-sent events, as one reader gets them.
//!
//! ```text
//!  read from its offset to the tail -> a seat with the stream's follower -> behind? -> read to the tail ...
//! ```
//!
//! **Invariants**
//! - A reader is told each record once, in order, whether it was read for it alone or for all.
//! - Who is at the tail waits in its seat, and costs neither a read nor a timer.
//!
//! **Not here**: how events are written (`tell`), what is read for all (`fan`), other ways to read (`read`).

use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use futures_lite::stream::unfold;
use hyper::body::Bytes;
use hyper::header;
use hyper::{Response, StatusCode};
use sealog_engine::ids::FeedId;
use sealog_engine::{FeedInfo, ReadChunk, ReadFrom, ReadRequest};

use super::fan::Seat;
use super::read::Query;
use super::tell::{Coding, Teller, Told};
use super::{Call, Traits, empty, names, put};
use crate::http::{Body, HttpService};

/// Bytes of a data event, but for its last batch: what a reader that stalls holds.
const CHUNK_BYTES: usize = 64 << 10;
/// A connection is ended after so long, so that caches between can serve many readers by one.
const LIFE_NS: u64 = 60_000_000_000;

/// A stream that is read for events.
#[derive(Clone)]
pub(super) struct Source {
    pub(super) service: Rc<HttpService>,
    pub(super) name: Rc<str>,
    pub(super) id: FeedId,
}

impl Source {
    /// What lies from `next` on, waiting for something to be there; `None`: there is nothing to come.
    pub(super) async fn read(&self, next: u64, wait: Duration) -> Option<ReadChunk> {
        let request = ReadRequest {
            id: Some(self.id),
            from: ReadFrom::Sequence(next),
            bytes_max: CHUNK_BYTES,
            wait,
            ..ReadRequest::new(&*self.name)
        };
        let service = &self.service;
        let handle = service.side.handle();
        let read = Box::pin(handle.read_within(request, &service.sending));
        match Box::pin(service.unless_draining(read)).await {
            Poll::Ready(Ok(chunk)) => Some(chunk),
            Poll::Ready(Err(_)) | Poll::Pending => None,
        }
    }
}

struct Reader {
    source: Source,
    teller: Teller,
    /// Where it waits, once it has been at the tail.
    seat: Option<Seat>,
    cursor: Option<String>,
    /// What is still to be sent of what it was told.
    rest: Option<Bytes>,
    ends_ns: u64,
    first: bool,
    done: bool,
}

impl Call {
    /// The stream from `from` on, as events.
    pub(super) fn events(
        &self,
        info: &FeedInfo,
        traits: &Traits,
        from: u64,
        query: Query,
    ) -> Response<Body> {
        let coding = Coding::of(traits);
        let source = Source {
            service: self.service.clone(),
            name: self.name.as_str().into(),
            id: info.id,
        };
        let reader = Reader {
            source,
            teller: Teller::new(coding, from),
            seat: None,
            cursor: query.cursor,
            rest: None,
            ends_ns: self.service.side.monotonic_ns().saturating_add(LIFE_NS),
            first: true,
            done: false,
        };
        let events = unfold(reader, |mut reader| async move {
            let events = reader.events().await?;
            Some((events, reader))
        });
        let mut response = empty(StatusCode::OK);
        *response.body_mut() = Body::live(events);
        put(&mut response, header::CONTENT_TYPE, "text/event-stream");
        put(&mut response, header::CACHE_CONTROL, "no-cache");
        // Proxies that gather answers must not gather this one.
        put(&mut response, names::X_ACCEL_BUFFERING, "no");
        if coding == Coding::Base64 {
            put(&mut response, names::STREAM_SSE_DATA_ENCODING, "base64");
        }
        response
    }
}

impl Reader {
    /// The next events; `None` at the end.
    async fn events(&mut self) -> Option<Bytes> {
        if self.rest.is_some() {
            return self.rest.take();
        }
        while !self.done {
            let told = match &self.seat {
                Some(seat) if !self.first && !seat.is_behind(self.teller.next) => {
                    let told = seat.next().await?;
                    self.heard(told).await?
                }
                _ => self.read(self.first).await?,
            };
            if let Some(told) = told {
                return Some(self.send(&told));
            }
        }
        None
    }

    /// What is new for this reader of what all are told.
    async fn heard(&mut self, told: Rc<Told>) -> Option<Option<Rc<Told>>> {
        if told.first == self.teller.told {
            self.teller.skip_to(told.next);
            return Some(Some(told));
        }
        match told.next <= self.teller.told && !told.ended {
            true => Some(None), // It was read already.
            false => self.read(true).await,
        }
    }

    /// Reads on, for this reader alone; what is new, or where the stream is read to if `anyway`.
    async fn read(&mut self, anyway: bool) -> Option<Option<Rc<Told>>> {
        let chunk = Box::pin(self.source.read(self.teller.next, Duration::ZERO)).await?;
        let (is_at_tail, is_empty) = (chunk.next >= chunk.tail, chunk.frames.is_empty());
        let told = self.teller.tell(chunk)?;
        if is_at_tail && self.seat.is_none() && !told.ended {
            self.seat = Some(Seat::take(&self.source, &self.teller, self.ends_ns));
        }
        let is_new = told.has_data() || told.ended;
        Some((is_new || (anyway && is_empty)).then(|| Rc::new(told)))
    }

    fn send(&mut self, told: &Told) -> Bytes {
        let now_ns = self.source.service.side.monotonic_ns();
        self.first = false;
        self.done = told.ended || now_ns >= self.ends_ns;
        if let Some(sent) = &self.cursor {
            match told.apart(sent, now_ns) {
                Some((data, control)) if data.is_empty() => return control,
                Some((data, control)) => {
                    self.rest = Some(control);
                    return data;
                }
                // Time has passed it, for good.
                None => self.cursor = None,
            }
        }
        told.whole()
    }
}
