//! Read: GET: what a stream holds from an offset on, now or as it comes.
//!
//! **Invariants**
//! - An answer's next offset is where its bytes end; it says up to date only when that is the tail.
//! - A reader is told of the closing only behind the last bytes.
//! - What was read from now is kept by no cache.
//!
//! **Not here**: server-sent events (`sse`).

use std::task::Poll;
use std::time::Duration;

use hyper::body::Bytes;
use hyper::header::{self, IF_NONE_MATCH};
use hyper::{Response, StatusCode};
use percent_encoding::percent_decode_str;
use sealog_engine::{FeedInfo, Held, ReadChunk, ReadFrom, ReadRequest};
use sealog_frame::FrameView;

use super::offset::{self, Offset};
use super::{Answered, Call, Refused, Traits, empty, names, put};
use crate::cli::time;
use crate::http::Body;

/// Bytes of an answer to one who catches up, but for its last batch.
const CHUNK_BYTES: usize = 1 << 20;
/// How long a long-poll waits.
const POLL_WAIT: Duration = Duration::from_secs(20);

/// How a reader wants to be answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Live {
    No,
    Poll,
    Events,
}

/// What the URL asks for.
pub(super) struct Query {
    offset: Option<Offset>,
    live: Live,
    pub(super) cursor: Option<String>,
}

impl Query {
    fn of(text: &str) -> Result<Self, Refused> {
        let mut query = Self {
            offset: None,
            live: Live::No,
            cursor: None,
        };
        for pair in text.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let value = percent_decode_str(value).decode_utf8_lossy();
            match name {
                "offset" if query.offset.is_some() => {
                    return Err(Refused::bad("offset is given twice"));
                }
                "offset" => query.offset = Some(offset::parse(&value)?),
                "live" if value == "long-poll" => query.live = Live::Poll,
                "live" if value == "sse" => query.live = Live::Events,
                "cursor" => query.cursor = Some(value.into_owned()),
                _ => {}
            }
        }
        if query.live != Live::No && query.offset.is_none() {
            return Err(Refused::bad("live reading needs an offset"));
        }
        Ok(query)
    }
}

impl Call {
    pub(super) async fn read(&self) -> Answered {
        let query = Query::of(self.head.uri.query().unwrap_or_default())?;
        let (info, traits) = self.known_stream().await?;
        self.lifetimes().touch(&info, &traits);
        let from = match query.offset.unwrap_or(Offset::At(0)) {
            Offset::At(sequence) => sequence.min(info.next_sequence),
            Offset::Beyond | Offset::Now => info.next_sequence,
        };
        let now = query.offset == Some(Offset::Now);
        match query.live {
            Live::No if now => Ok(self.tail(&info, &traits)),
            Live::No => self.catch_up(&info, &traits, from).await,
            Live::Poll => {
                let polled = self.poll(&info, &traits, from, &query).await;
                polled.map(|response| if now { uncached(response) } else { response })
            }
            Live::Events => Ok(self.events(&info, &traits, from, query)),
        }
    }

    /// The end of the stream, without a byte of it.
    fn tail(&self, info: &FeedInfo, traits: &Traits) -> Response<Body> {
        let mut response = empty(StatusCode::OK);
        if traits.is_json() {
            *response.body_mut() = Body::whole(Bytes::from_static(b"[]"));
        }
        put(&mut response, header::CONTENT_TYPE, &traits.content_type);
        put(&mut response, header::CACHE_CONTROL, "no-store");
        put_position(
            &mut response,
            info.next_sequence,
            true,
            info.closed.is_some(),
        );
        response
    }

    async fn catch_up(&self, info: &FeedInfo, traits: &Traits, from: u64) -> Answered {
        let request = self.request(info, from, Duration::ZERO);
        let engine = self.service.side.handle();
        let chunk = engine.read_within(request, &self.service.sending).await?;
        self.records(info, traits, chunk)
    }

    /// Records as an answer, unless the client has them.
    fn records(&self, info: &FeedInfo, traits: &Traits, chunk: ReadChunk) -> Answered {
        let etag = format!(
            "\"{:x}-{}-{}{}\"",
            info.id.0,
            chunk.first,
            chunk.next,
            if chunk.ended { "-closed" } else { "" }
        );
        let known = self.header(&IF_NONE_MATCH)?;
        let is_known = known.is_some_and(|known| is_listed(known, &etag));
        let (next, up_to_date, closed) = (chunk.next, chunk.next >= chunk.tail, chunk.ended);
        let mut response = match is_known {
            true => empty(StatusCode::NOT_MODIFIED),
            false => {
                let mut response = empty(StatusCode::OK);
                let bytes = joined(&chunk, traits)?;
                *response.body_mut() = Body::whole(held(bytes, chunk));
                put(&mut response, header::CONTENT_TYPE, &traits.content_type);
                response
            }
        };
        put(&mut response, header::ETAG, &etag);
        put(
            &mut response,
            header::CACHE_CONTROL,
            "public, max-age=60, stale-while-revalidate=300",
        );
        put_position(&mut response, next, up_to_date, closed);
        Ok(response)
    }

    async fn poll(&self, info: &FeedInfo, traits: &Traits, from: u64, query: &Query) -> Answered {
        let request = self.request(info, from, POLL_WAIT);
        let engine = self.service.side.handle();
        let read = engine.read_within(request, &self.service.sending);
        let chunk = match self.service.unless_draining(read).await {
            Poll::Ready(chunk) => chunk?,
            Poll::Pending => ReadChunk {
                first: from,
                next: from,
                tail: from,
                ..ReadChunk::default()
            },
        };
        let mut response = match chunk.frames.is_empty() {
            false => self.records(info, traits, chunk)?,
            true => {
                let mut response = empty(StatusCode::NO_CONTENT);
                put(&mut response, header::CACHE_CONTROL, "no-store");
                put_position(&mut response, chunk.next, true, chunk.ended);
                response
            }
        };
        let cursor = self.cursor(query.cursor.as_deref());
        put(&mut response, names::STREAM_CURSOR, &cursor);
        Ok(response)
    }

    /// The cursor for a client that sent `sent`.
    fn cursor(&self, sent: Option<&str>) -> String {
        offset::cursor(sent, time::now_ms(), self.service.side.monotonic_ns())
    }

    fn request(&self, info: &FeedInfo, from: u64, wait: Duration) -> ReadRequest {
        ReadRequest {
            id: Some(info.id),
            from: ReadFrom::Sequence(from),
            bytes_max: CHUNK_BYTES,
            wait,
            ..ReadRequest::new(&self.name)
        }
    }
}

/// Bytes made of a chunk, and in its place within the memory of what leaves.
pub(super) fn held(bytes: Vec<u8>, chunk: ReadChunk) -> Bytes {
    struct Sent(
        Vec<u8>,
        #[allow(dead_code, reason = "held until it is sent")] Held,
    );
    impl AsRef<[u8]> for Sent {
        fn as_ref(&self) -> &[u8] {
            &self.0
        }
    }
    Bytes::from_owner(Sent(bytes, chunk.held))
}

/// Whether a list of entity tags has this one, weak or not, or all.
fn is_listed(list: &str, etag: &str) -> bool {
    let mut tags = list.split(',').map(str::trim);
    tags.any(|tag| tag == "*" || tag.strip_prefix("W/").unwrap_or(tag) == etag)
}

fn put_position(response: &mut Response<Body>, next: u64, up_to_date: bool, closed: bool) {
    put(response, names::STREAM_NEXT_OFFSET, &offset::format(next));
    if up_to_date {
        put(response, names::STREAM_UP_TO_DATE, "true");
    }
    if closed {
        put(response, names::STREAM_CLOSED, "true");
    }
}

/// An answer to who asked from now: whoever asks the same later must not get it from a cache.
fn uncached(mut response: Response<Body>) -> Response<Body> {
    response.headers_mut().remove(header::ETAG);
    put(&mut response, header::CACHE_CONTROL, "no-store");
    response
}

/// Payloads of the records that were asked for.
pub(super) fn payloads(chunk: &ReadChunk) -> Result<Vec<&[u8]>, Refused> {
    let mut payloads = Vec::new();
    let mut rest = &chunk.frames[..];
    while !rest.is_empty() {
        let split = FrameView::split_trusted(rest);
        let (frame, after) = split.map_err(|error| {
            let text = format!("records from {}: {error}", chunk.first);
            Refused::new(StatusCode::INTERNAL_SERVER_ERROR, text)
        })?;
        let asked = frame
            .records()
            .filter(|r| (chunk.first..chunk.next).contains(&r.sequence));
        payloads.extend(asked.map(|record| record.payload));
        rest = after;
    }
    Ok(payloads)
}

fn joined(chunk: &ReadChunk, traits: &Traits) -> Result<Vec<u8>, Refused> {
    let payloads = payloads(chunk)?;
    Ok(match traits.is_json() {
        true => json_array(&payloads),
        false => payloads.concat(),
    })
}

/// One array of all values.
pub(super) fn json_array(values: &[&[u8]]) -> Vec<u8> {
    let mut array = vec![b'['];
    array.extend_from_slice(&values.join(&b","[..]));
    array.push(b']');
    array
}
