//! Answer: what a server says over HTTP/1.1: heads, and bodies of a known length or in chunks.
//!
//! **Invariants**
//! - A body is taken piece by piece: one of any length takes no more memory than a piece of it.
//! - What a server says that is no HTTP is an error, never skipped.
//!
//! **Not here**: requests (`http`), sockets (`wire`, `crate::http::crowd`).

use crate::Result;

/// Headers of an answer.
const HEADERS_MAX: usize = 64;
/// Digits of a chunk's length.
const CHUNK_DIGITS_MAX: u32 = 15;

/// The head of an answer.
#[derive(Debug)]
pub struct Head {
    /// Its status.
    pub status: u16,
    /// Bytes it took.
    pub bytes: usize,
    /// `Stream-Next-Offset`.
    pub next_offset: Option<String>,
    /// Whether `Stream-Up-To-Date` says so.
    pub is_up_to_date: bool,
    /// What comes after it.
    pub body: Body,
}

/// The head at the front of `bytes`, once it is there.
///
/// # Errors
/// It is none.
pub fn head(bytes: &[u8]) -> Result<Option<Head>> {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut answer = httparse::Response::new(&mut headers);
    let length = match answer.parse(bytes)? {
        httparse::Status::Partial => return Ok(None),
        httparse::Status::Complete(length) => length,
    };
    let status = answer.code.unwrap_or_default();
    let named = |name: &str| {
        let found = answer.headers.iter();
        let mut found = found.filter(|header| header.name.eq_ignore_ascii_case(name));
        found
            .next()
            .map(|header| String::from_utf8_lossy(header.value))
    };
    let body = match (named("transfer-encoding"), named("content-length")) {
        _ if matches!(status, 204 | 304) => Body::of_length(0),
        (Some(_), _) => Body::in_chunks(),
        (None, Some(length)) => Body::of_length(length.parse()?),
        (None, None) => Body::of_length(0),
    };
    Ok(Some(Head {
        status,
        bytes: length,
        next_offset: named("stream-next-offset").map(|value| value.into_owned()),
        is_up_to_date: named("stream-up-to-date").is_some_and(|value| value == "true"),
        body,
    }))
}

/// The first whole answer in `bytes`: its status, its body as text, and its length.
///
/// # Errors
/// It is none.
pub fn parse(bytes: &[u8]) -> Result<Option<(u16, String, usize)>> {
    let Some(mut head) = head(bytes)? else {
        return Ok(None);
    };
    let mut text = Vec::new();
    let body = head.body.take(&bytes[head.bytes..], &mut |piece| {
        text.extend_from_slice(piece);
    })?;
    Ok(head.body.is_whole().then(|| {
        let text = String::from_utf8_lossy(&text).into_owned();
        (head.status, text, head.bytes + body)
    }))
}

/// A body on its way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Body {
    /// So much is still to come, of all of it or of a chunk.
    Content { left: u64, is_chunk: bool },
    /// In the line that tells a chunk's length.
    Length { length: u64, digits: u32 },
    /// Behind that length, in what its line says besides.
    Extension { length: u64 },
    /// In the line break after a chunk.
    Break,
    /// In the lines after the last chunk; bytes of this one.
    Trailer { bytes: usize },
    /// All of it was taken.
    Whole,
}

impl Body {
    fn of_length(left: u64) -> Self {
        match left {
            0 => Self::Whole,
            left => Self::Content {
                left,
                is_chunk: false,
            },
        }
    }

    fn in_chunks() -> Self {
        Self::Length {
            length: 0,
            digits: 0,
        }
    }

    /// Whether nothing is to come.
    pub fn is_whole(self) -> bool {
        self == Self::Whole
    }

    /// Takes what is the body's off the front of `bytes`, its content to `sink`; how many bytes that were.
    ///
    /// # Errors
    /// Chunks aren't told as they must be.
    pub fn take(&mut self, bytes: &[u8], sink: &mut dyn FnMut(&[u8])) -> Result<usize> {
        let mut used = 0;
        while used < bytes.len() && *self != Self::Whole {
            let rest = &bytes[used..];
            let Self::Content { left, is_chunk } = self else {
                *self = self.after(rest[0])?;
                used += 1;
                continue;
            };
            let piece = usize::try_from(*left).map_or(rest.len(), |left| left.min(rest.len()));
            sink(&rest[..piece]);
            used += piece;
            *left -= piece as u64;
            match (*left, *is_chunk) {
                (0, true) => *self = Self::Break,
                (0, false) => *self = Self::Whole,
                _ => {}
            }
        }
        Ok(used)
    }

    /// Where a byte between contents leads to.
    fn after(self, byte: u8) -> Result<Self> {
        let bad = || format!("a chunk is told wrongly: {self:?}, then {byte:#04x}");
        Ok(match (self, byte) {
            (Self::Length { length, digits }, b'\r' | b';' | b' ') if digits > 0 => {
                Self::Extension { length }
            }
            (Self::Length { length, digits }, digit) if digits < CHUNK_DIGITS_MAX => {
                let value = char::from(digit).to_digit(16).ok_or_else(bad)?;
                Self::Length {
                    length: length * 16 + u64::from(value),
                    digits: digits + 1,
                }
            }
            (Self::Extension { length: 0 }, b'\n') => Self::Trailer { bytes: 0 },
            (Self::Extension { length }, b'\n') => Self::Content {
                left: length,
                is_chunk: true,
            },
            (Self::Extension { length }, _) => Self::Extension { length },
            (Self::Break, b'\r') => Self::Break,
            (Self::Break, b'\n') => Self::in_chunks(),
            (Self::Trailer { bytes: 0 }, b'\n') => Self::Whole,
            (Self::Trailer { .. }, b'\n') => Self::Trailer { bytes: 0 },
            (Self::Trailer { bytes }, b'\r') => Self::Trailer { bytes },
            (Self::Trailer { bytes }, _) => Self::Trailer { bytes: bytes + 1 },
            _ => return Err(bad().into()),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_taken_one_after_the_other() {
        let bytes = b"HTTP/1.1 204 No Content\r\nA: b\r\n\r\nHTTP/1.1 409 Conflict\r\ncontent-length: 3\r\n\r\nno\n";
        let (status, text, used) = parse(bytes).expect("HTTP").expect("whole");
        assert_eq!((status, text.as_str()), (204, ""));
        let rest = &bytes[used..];
        let (status, text, used) = parse(rest).expect("HTTP").expect("whole");
        assert_eq!((status, text.as_str(), used), (409, "no\n", rest.len()));
        assert!(parse(&rest[..used - 1]).expect("HTTP").is_none());
        assert!(parse(b"SSH-2.0\r\n\r\n").is_err());
    }

    #[test]
    fn heads_tell_where_a_reader_is() {
        let bytes =
            b"HTTP/1.1 200 OK\r\nstream-next-offset: 0_7\r\nStream-Up-To-Date: true\r\nContent-Length: 9\r\n\r\nab";
        let head = head(bytes).expect("HTTP").expect("whole");
        assert_eq!(head.status, 200);
        assert_eq!(head.next_offset.as_deref(), Some("0_7"));
        assert!(head.is_up_to_date);
        assert_eq!(head.body, Body::of_length(9));
        assert_eq!(&bytes[head.bytes..], b"ab");
    }

    #[test]
    fn chunks_cut_anywhere_give_the_same_content() {
        let bytes = b"HTTP/1.1 201 Created\r\nTransfer-Encoding: chunked\r\n\r\n\
                      a;x=1\r\n0123456789\r\n3\r\nabc\r\n0\r\nT: u\r\n\r\nHTTP";
        let (status, text, used) = parse(bytes).expect("HTTP").expect("whole");
        assert_eq!((status, text.as_str()), (201, "0123456789abc"));
        assert_eq!(&bytes[used..], b"HTTP");
        for cut in 0..used {
            assert!(parse(&bytes[..cut]).expect("HTTP").is_none(), "{cut}");
        }
        let Head {
            mut body, bytes: n, ..
        } = head(bytes).expect("HTTP").expect("whole");
        let mut content = Vec::new();
        for byte in &bytes[n..used] {
            assert!(!body.is_whole());
            let mut sink = |piece: &[u8]| content.extend_from_slice(piece);
            assert_eq!(body.take(&[*byte], &mut sink).expect("chunks"), 1);
        }
        assert!(body.is_whole());
        assert_eq!(content, b"0123456789abc");
    }

    #[test]
    fn chunks_told_wrongly_are_refused() {
        let sink = &mut |_: &[u8]| {};
        for bytes in [
            b"\r\n".as_slice(),
            b"x\r\n",
            b"1\r\nab",
            b"1234567812345678\r\n",
        ] {
            assert!(Body::in_chunks().take(bytes, sink).is_err(), "{bytes:?}");
        }
        assert_eq!(Body::Whole.take(b"more", sink).expect("nothing"), 0);
    }
}
