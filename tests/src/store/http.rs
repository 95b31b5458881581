//! Http: as much of HTTP/1.1 as an S3 client and a small server need, on blocking sockets.
//!
//! **Invariants**
//! - A connection carries one request after the other; what has no length has no body.
//!
//! **Not here**: what requests mean (`fake`), faults (`proxy`).

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::TcpStream;

/// A request.
#[derive(Debug, Clone)]
pub struct Request {
    /// `GET`, `PUT`, ...
    pub method: String,
    /// Path and query, as sent.
    pub target: String,
    /// Names in lower case.
    pub headers: Vec<(String, String)>,
    /// The body.
    pub body: Vec<u8>,
}

/// An answer.
#[derive(Debug, Clone)]
pub struct Reply {
    /// HTTP status.
    pub status: u16,
    /// Names in lower case; no length.
    pub headers: Vec<(String, String)>,
    /// The body.
    pub body: Vec<u8>,
    /// Length that is said where there is no body (HEAD).
    pub said_length: Option<u64>,
}

impl Request {
    /// A header's value.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        header(&self.headers, name)
    }

    /// The path, decoded, without the bucket: what an object is called.
    #[must_use]
    pub fn key(&self) -> String {
        let path = self.target.split('?').next().unwrap_or_default();
        let path = path.trim_start_matches('/');
        let key = path.split_once('/').map_or("", |(_, key)| key);
        decode(key)
    }

    /// A query parameter, decoded.
    #[must_use]
    pub fn query(&self, name: &str) -> Option<String> {
        let (_, query) = self.target.split_once('?')?;
        query.split('&').find_map(|pair| {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            (decode(key) == name).then(|| decode(&value.replace('+', " ")))
        })
    }

    /// Reads one; `None` if the connection ended before it.
    pub(super) fn read(from: &mut BufReader<TcpStream>) -> io::Result<Option<Self>> {
        let Some((first, headers)) = head(from)? else {
            return Ok(None);
        };
        let mut words = first.split(' ');
        let (method, target) = (words.next(), words.next());
        let body = body(from, &headers, false)?;
        Ok(Some(Self {
            method: method.unwrap_or_default().to_owned(),
            target: target.unwrap_or_default().to_owned(),
            headers,
            body,
        }))
    }

    /// Sends it on.
    pub(super) fn write(&self, to: &mut impl Write) -> io::Result<()> {
        let mut text = format!("{} {} HTTP/1.1\r\n", self.method, self.target);
        for (name, value) in &self.headers {
            if name != "content-length" && name != "transfer-encoding" {
                text += &format!("{name}: {value}\r\n");
            }
        }
        text += &format!("content-length: {}\r\n\r\n", self.body.len());
        to.write_all(text.as_bytes())?;
        to.write_all(&self.body)?;
        to.flush()
    }
}

impl Reply {
    /// One with a body.
    #[must_use]
    pub fn new(status: u16, body: impl Into<Vec<u8>>) -> Self {
        Self {
            status,
            headers: Vec::new(),
            body: body.into(),
            said_length: None,
        }
    }

    /// An error, as S3 says it.
    #[must_use]
    pub fn error(status: u16, code: &str) -> Self {
        let body = format!("<?xml version=\"1.0\"?><Error><Code>{code}</Code></Error>");
        Self::new(status, body)
    }

    /// The same with a header.
    #[must_use]
    pub fn with(mut self, name: &str, value: impl ToString) -> Self {
        self.headers.push((name.to_owned(), value.to_string()));
        self
    }

    /// Reads the answer to a request of `method`.
    pub(super) fn read(from: &mut BufReader<TcpStream>, method: &str) -> io::Result<Self> {
        let (first, headers) = head(from)?.ok_or(io::ErrorKind::UnexpectedEof)?;
        let status = first.split(' ').nth(1).and_then(|word| word.parse().ok());
        let status: u16 = status.ok_or(io::ErrorKind::InvalidData)?;
        let said = header(&headers, "content-length").and_then(|value| value.parse().ok());
        let bare = method == "HEAD" || status == 204 || status == 304;
        let body = match bare {
            true => Vec::new(),
            false => body(from, &headers, true)?,
        };
        Ok(Self {
            status,
            headers,
            body,
            said_length: said.filter(|_| bare),
        })
    }

    /// The bytes of the answer.
    pub(super) fn bytes(&self) -> Vec<u8> {
        let mut text = format!("HTTP/1.1 {} x\r\n", self.status);
        for (name, value) in &self.headers {
            if name != "content-length" && name != "transfer-encoding" && name != "connection" {
                text += &format!("{name}: {value}\r\n");
            }
        }
        let length = self.said_length.unwrap_or(self.body.len() as u64);
        if self.status != 204 && self.status != 304 {
            text += &format!("content-length: {length}\r\n");
        }
        text += "\r\n";
        let mut bytes = text.into_bytes();
        bytes.extend_from_slice(&self.body);
        bytes
    }
}

type Headers = Vec<(String, String)>;

fn head(from: &mut BufReader<TcpStream>) -> io::Result<Option<(String, Headers)>> {
    let mut first = String::new();
    if from.read_line(&mut first)? == 0 {
        return Ok(None);
    }
    let mut headers = Vec::new();
    loop {
        let mut line = String::new();
        if from.read_line(&mut line)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let line = line.trim_end();
        if line.is_empty() {
            return Ok(Some((first.trim_end().to_owned(), headers)));
        }
        if let Some((name, value)) = line.split_once(':') {
            headers.push((name.to_lowercase(), value.trim().to_owned()));
        }
    }
}

fn header<'a>(headers: &'a Headers, name: &str) -> Option<&'a str> {
    let found = headers.iter().find(|(own, _)| own == name);
    found.map(|(_, value)| value.as_str())
}

fn body(from: &mut BufReader<TcpStream>, headers: &Headers, to_end: bool) -> io::Result<Vec<u8>> {
    let mut body = Vec::new();
    if header(headers, "transfer-encoding") == Some("chunked") {
        loop {
            let mut line = String::new();
            from.read_line(&mut line)?;
            let len = usize::from_str_radix(line.trim(), 16);
            let len = len.map_err(|_| io::ErrorKind::InvalidData)?;
            let mut chunk = vec![0; len + 2];
            from.read_exact(&mut chunk)?;
            if len == 0 {
                return Ok(body);
            }
            body.extend_from_slice(&chunk[..len]);
        }
    }
    match header(headers, "content-length").and_then(|value| value.parse::<usize>().ok()) {
        Some(len) => {
            body.resize(len, 0);
            from.read_exact(&mut body)?;
        }
        None if to_end => {
            from.read_to_end(&mut body)?;
        }
        None => {}
    }
    Ok(body)
}

fn decode(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        let hex = |byte: Option<u8>| char::from(byte?).to_digit(16);
        if byte == b'%'
            && let (Some(high), Some(low)) = (hex(rest.next()), hex(rest.next()))
        {
            bytes.push((high * 16 + low) as u8);
        } else {
            bytes.push(byte);
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}
