//! SSE: a stream as server-sent events: data, then where it ends, again and again.
//!
//! **Invariants**
//! - Each data event is followed by a control event with the offset behind it.
//! - No payload can end an event or begin another: every line break begins a `data:` line.
//! - Text is whole characters: bytes of one that has not come whole wait for the rest, and so does the
//!   offset.
//!
//! **Not here**: other ways to read (`read`).

use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use futures_lite::stream::unfold;
use hyper::body::Bytes;
use hyper::header;
use hyper::{Response, StatusCode};
use sealog_engine::ids::FeedId;
use sealog_engine::{FeedInfo, ReadChunk, ReadFrom, ReadRequest};

use super::read::{Query, held, json_array, payloads};
use super::{Call, Traits, empty, names, offset, put};
use crate::cli::time;
use crate::http::{Body, HttpService};

/// Bytes of a data event, but for its last batch: what a reader that stalls holds.
const CHUNK_BYTES: usize = 64 << 10;
/// A reader with nothing to read hears something this often.
const QUIET_MAX: Duration = Duration::from_secs(15);
/// A connection is ended after so long, so that caches between can serve many readers by one.
const LIFE: Duration = Duration::from_secs(60);

/// How payloads are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Coding {
    Json,
    Text,
    Base64,
}

struct Reader {
    service: Rc<HttpService>,
    name: String,
    id: FeedId,
    coding: Coding,
    /// Where the next read begins.
    next: u64,
    /// Text that has not been told, for its last character is not whole.
    held: Vec<u8>,
    /// Where what was told ends.
    told: u64,
    cursor: Option<String>,
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
        let coding = match (traits.is_json(), traits.is_text()) {
            (true, _) => Coding::Json,
            (false, true) => Coding::Text,
            (false, false) => Coding::Base64,
        };
        let life_ns = u64::try_from(LIFE.as_nanos()).unwrap_or(u64::MAX);
        let reader = Reader {
            service: self.service.clone(),
            name: self.name.clone(),
            id: info.id,
            coding,
            next: from,
            held: Vec::new(),
            told: from,
            cursor: query.cursor,
            ends_ns: self.service.side.monotonic_ns().saturating_add(life_ns),
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
        while !self.done {
            let now_ns = self.service.side.monotonic_ns();
            let left = Duration::from_nanos(self.ends_ns.saturating_sub(now_ns));
            let wait = match self.first {
                true => Duration::ZERO,
                false => QUIET_MAX.min(left),
            };
            let request = ReadRequest {
                id: Some(self.id),
                from: ReadFrom::Sequence(self.next),
                bytes_max: CHUNK_BYTES,
                wait,
                ..ReadRequest::new(&self.name)
            };
            let handle = self.service.side.handle().clone();
            let read = Box::pin(handle.read_within(request, &self.service.sending));
            let read = self.service.unless_draining(read).await;
            let Poll::Ready(Ok(chunk)) = read else {
                return None;
            };
            let is_over = left.is_zero();
            let quiet = chunk.frames.is_empty();
            let data = self.take(&chunk)?;
            if data.is_empty() && !quiet {
                continue;
            }
            self.first = false;
            self.done = chunk.ended || is_over;
            let events = self.told(&data, &chunk);
            return Some(held(events, chunk));
        }
        None
    }

    /// What of a chunk may be told now.
    fn take(&mut self, chunk: &ReadChunk) -> Option<String> {
        let payloads = payloads(chunk).ok()?;
        self.next = chunk.next;
        if payloads.is_empty() && !chunk.ended {
            return Some(String::new());
        }
        let data = match self.coding {
            Coding::Json if payloads.is_empty() => String::new(),
            Coding::Json => lossy(&json_array(&payloads)),
            Coding::Base64 => STANDARD.encode(payloads.concat()),
            Coding::Text => {
                let mut text = std::mem::take(&mut self.held);
                text.extend_from_slice(&payloads.concat());
                if !chunk.ended && ends_within_a_character(&text) {
                    self.held = text;
                    return Some(String::new());
                }
                lossy(&text)
            }
        };
        self.told = chunk.next;
        Some(data)
    }

    fn told(&mut self, data: &str, chunk: &ReadChunk) -> Vec<u8> {
        let mut events = String::new();
        if !data.is_empty() {
            events.push_str("event: data\n");
            push_lines(&mut events, data);
            events.push('\n');
        }
        let mut control = serde_json::json!({ "streamNextOffset": offset::format(self.told) });
        if chunk.ended {
            control["streamClosed"] = true.into();
        } else {
            let random = self.service.side.monotonic_ns();
            let cursor = offset::cursor(self.cursor.as_deref(), time::now_ms(), random);
            control["streamCursor"] = cursor.into();
        }
        if self.told >= chunk.tail {
            control["upToDate"] = true.into();
        }
        events.push_str("event: control\ndata:");
        events.push_str(&control.to_string());
        events.push_str("\n\n");
        events.into_bytes()
    }
}

fn lossy(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Adds `text` as `data:` lines.
fn push_lines(events: &mut String, text: &str) {
    let text = text.replace("\r\n", "\n").replace('\r', "\n");
    for line in text.split('\n') {
        // The first blank behind the colon is not the line's.
        let blank = match line.starts_with(' ') {
            true => " ",
            false => "",
        };
        events.push_str("data:");
        events.push_str(blank);
        events.push_str(line);
        events.push('\n');
    }
}

/// Whether `text` ends with the beginning of a character.
fn ends_within_a_character(text: &[u8]) -> bool {
    let last = text.len().saturating_sub(4);
    let error = match std::str::from_utf8(&text[last..]) {
        Ok(_) => return false,
        Err(error) => error,
    };
    // Also where the four bytes begin within one: what counts is their end.
    let mut rest = &text[last..];
    let mut error = Some(error);
    while let Some(wrong) = error {
        match wrong.error_len() {
            None => return true,
            Some(length) => rest = &rest[wrong.valid_up_to() + length..],
        }
        error = std::str::from_utf8(rest).err();
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_that_ends_within_a_character_is_told_from_text_that_does_not() {
        for text in ["a", "ä", "€", "😀", "xx😀", "😀😀"] {
            let bytes = text.as_bytes();
            assert!(!ends_within_a_character(bytes), "{text}");
            let last = text.char_indices().last().map_or(0, |(at, _)| at);
            for cut in last + 1..bytes.len() {
                assert!(ends_within_a_character(&bytes[..cut]), "{text} to {cut}");
            }
        }
        assert!(!ends_within_a_character(b""));
        assert!(!ends_within_a_character(b"\xff\xff"));
    }

    #[test]
    fn line_breaks_of_all_kinds_begin_data_lines() {
        let mut events = String::new();
        push_lines(&mut events, "a\nb\rc\r\n d\n");
        assert_eq!(events, "data:a\ndata:b\ndata:c\ndata:  d\ndata:\n");
    }
}
