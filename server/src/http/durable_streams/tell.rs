//! Tell: what was read of a stream, as server-sent events.
//!
//! **Invariants**
//! - Each data event is followed by a control event with the offset behind it.
//! - No payload can end an event or begin another: every line break begins a `data:` line.
//! - Text is whole characters: bytes of one that has not come whole wait for the rest, and so does the
//!   offset.
//!
//! **Not here**: reading (`sse`, `fan`).

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hyper::body::Bytes;
use sealog_engine::ReadChunk;

use super::read::{held, json_array, payloads};
use super::{Traits, offset};
use crate::cli::time;

/// How payloads are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Coding {
    Json,
    Text,
    Base64,
}

impl Coding {
    pub(super) fn of(traits: &Traits) -> Self {
        match (traits.is_json(), traits.is_text()) {
            (true, _) => Self::Json,
            (false, true) => Self::Text,
            (false, false) => Self::Base64,
        }
    }
}

/// A data event, if there was data, and a control event: the same for all readers, but for the cursor.
pub(super) struct Told {
    /// Where its data begins.
    pub(super) first: u64,
    /// Where it ends.
    pub(super) next: u64,
    /// Nothing comes behind it.
    pub(super) ended: bool,
    up_to_date: bool,
    /// The cursor for who sent none.
    cursor: String,
    bytes: Bytes,
    /// How many of them are the data event.
    data_bytes: usize,
}

impl Told {
    /// How long it is.
    pub(super) fn bytes(&self) -> usize {
        self.bytes.len()
    }

    /// Whether there is a data event.
    pub(super) fn has_data(&self) -> bool {
        self.data_bytes > 0
    }

    /// All of it, for who sent no cursor.
    pub(super) fn whole(&self) -> Bytes {
        self.bytes.clone()
    }

    /// The data event, and the control event with a cursor for who sent `sent`; `None`: it is that of all.
    pub(super) fn apart(&self, sent: &str, random: u64) -> Option<(Bytes, Bytes)> {
        let cursor = offset::cursor(Some(sent), time::now_ms(), random);
        let own = !self.ended && cursor != self.cursor;
        own.then(|| {
            let data = self.bytes.slice(..self.data_bytes);
            let control = control(self.next, self.ended, &cursor, self.up_to_date);
            (data, control.into())
        })
    }
}

/// Tells of one chunk after the other.
pub(super) struct Teller {
    coding: Coding,
    /// Where the next read begins.
    pub(super) next: u64,
    /// Text that has not been told, for its last character is not whole.
    held: Vec<u8>,
    /// Where what was told ends.
    pub(super) told: u64,
}

impl Teller {
    /// Tells what lies from `from` on.
    pub(super) fn new(coding: Coding, from: u64) -> Self {
        Self {
            coding,
            next: from,
            held: Vec::new(),
            told: from,
        }
    }

    /// One who tells the same.
    pub(super) fn again(&self) -> Self {
        Self::new(self.coding, self.told)
    }

    /// What another told is told here, too.
    pub(super) fn skip_to(&mut self, next: u64) {
        (self.next, self.told) = (next, next);
        self.held = Vec::new();
    }

    /// What of `chunk`, which begins at `next`, may be told now; without data it says where the stream is read to.
    /// `None`: it can't be told.
    pub(super) fn tell(&mut self, chunk: ReadChunk) -> Option<Told> {
        let first = self.told;
        let mut events = String::new();
        let data = self.take(&chunk)?;
        if !data.is_empty() {
            events.push_str("event: data\n");
            push_lines(&mut events, &data);
            events.push('\n');
        }
        let data_bytes = events.len();
        let (ended, up_to_date) = (chunk.ended, self.told >= chunk.tail);
        let cursor = offset::cursor(None, time::now_ms(), 0);
        events.push_str(&control(self.told, ended, &cursor, up_to_date));
        Some(Told {
            first,
            next: self.told,
            ended,
            up_to_date,
            cursor,
            bytes: held(events.into_bytes(), chunk),
            data_bytes,
        })
    }

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
}

/// A control event.
fn control(next: u64, ended: bool, cursor: &str, up_to_date: bool) -> String {
    let goes_on = match ended {
        true => r#""streamClosed":true"#.to_owned(),
        false => format!(r#""streamCursor":"{cursor}""#),
    };
    let offset = offset::format(next);
    let at_tail = match up_to_date {
        true => r#","upToDate":true"#,
        false => "",
    };
    format!("event: control\ndata:{{{goes_on},\"streamNextOffset\":\"{offset}\"{at_tail}}}\n\n")
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
