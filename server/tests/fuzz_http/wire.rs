//! Wire: requests as bytes, and answers read back from a plain socket.
//!
//! **Invariants**
//! - Every wait has a deadline; what does not come in time is told from what was closed.
//!
//! **Not here**: what is asked (`grammar`), what is right (`model`).

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

/// How the body's end is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Framing {
    Length,
    /// In chunks of up to this many bytes.
    Chunked(usize),
    /// A length that is not the body's.
    Lies(usize),
    /// Both ways at once.
    Both,
    /// Chunks that make no sense.
    Garbled,
    /// No word about it.
    None,
}

/// A request.
#[derive(Clone)]
pub struct Request {
    pub method: String,
    pub target: Vec<u8>,
    pub headers: Vec<(Vec<u8>, Vec<u8>)>,
    pub body: Vec<u8>,
    pub framing: Framing,
    pub version: &'static str,
}

impl Request {
    pub fn plain(method: &str, path: &str) -> Self {
        Self {
            method: method.to_owned(),
            target: format!("/v1/stream/{path}").into_bytes(),
            headers: vec![(b"Host".to_vec(), b"fuzz".to_vec())],
            body: Vec::new(),
            framing: Framing::None,
            version: "HTTP/1.1",
        }
    }

    pub fn with(mut self, name: &str, value: impl AsRef<[u8]>) -> Self {
        let value = value.as_ref().to_vec();
        self.headers.push((name.as_bytes().to_vec(), value));
        self
    }

    pub fn body(mut self, body: Vec<u8>) -> Self {
        self.body = body;
        self.framing = Framing::Length;
        self
    }

    /// Whether it is framed as it must be.
    pub fn is_whole(&self) -> bool {
        match self.framing {
            Framing::Length | Framing::Chunked(_) => true,
            Framing::None => self.body.is_empty(),
            Framing::Lies(said) => said == self.body.len(),
            Framing::Both | Framing::Garbled => false,
        }
    }

    /// Whether the answer may wait for what does not come.
    pub fn is_live(&self) -> bool {
        self.target.windows(4).any(|part| part == b"live")
    }

    pub fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(self.method.as_bytes());
        out.push(b' ');
        out.extend_from_slice(&self.target);
        out.extend_from_slice(format!(" {}\r\n", self.version).as_bytes());
        for (name, value) in &self.headers {
            out.extend_from_slice(&[name, &b": "[..], value, b"\r\n"].concat());
        }
        let length = |len: usize| format!("Content-Length: {len}\r\n");
        let chunked = "Transfer-Encoding: chunked\r\n";
        let told = match self.framing {
            Framing::Length => length(self.body.len()),
            Framing::Lies(len) => length(len),
            Framing::Chunked(_) | Framing::Garbled => chunked.to_owned(),
            Framing::Both => length(self.body.len()) + chunked,
            Framing::None => String::new(),
        };
        out.extend_from_slice(told.as_bytes());
        out.extend_from_slice(b"\r\n");
        match self.framing {
            Framing::Chunked(size) => {
                // Extensions are bounded: one is enough.
                let mut extension = ";x=\"y\"";
                for chunk in self.body.chunks(size.max(1)) {
                    out.extend_from_slice(format!("{:x}{extension}\r\n", chunk.len()).as_bytes());
                    out.extend_from_slice(&[chunk, b"\r\n"].concat());
                    extension = "";
                }
                out.extend_from_slice(b"0\r\nTrailer: x\r\n\r\n");
            }
            _ => out.extend_from_slice(&self.body),
        }
    }
}

/// An answer.
#[derive(Debug, Clone)]
pub struct Answer {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl Answer {
    pub fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(known, _)| known == name);
        found.map(|(_, value)| value.as_str())
    }

    pub fn next(&self) -> &str {
        self.header("stream-next-offset").unwrap_or("")
    }
}

/// Why there is no answer.
#[derive(Debug, PartialEq, Eq)]
pub enum Silence {
    /// The server closed the connection.
    Closed,
    /// The same, with what was sent to it unread.
    Broken(ErrorKind),
    /// Nothing came in time.
    Late,
    /// What came is no HTTP.
    Junk(String),
}

/// A connection.
pub struct Wire {
    socket: TcpStream,
    buffer: Vec<u8>,
}

impl Wire {
    pub fn connect(address: SocketAddr) -> Self {
        Self::try_connect(address).expect("the server is there")
    }

    /// As [`Wire::connect`], to a server that may be gone.
    pub fn try_connect(address: SocketAddr) -> Option<Self> {
        let socket = TcpStream::connect(address).ok()?;
        socket.set_nodelay(true).expect("nodelay");
        let write = Some(Duration::from_secs(30));
        socket.set_write_timeout(write).expect("a deadline");
        Some(Self {
            socket,
            buffer: Vec::new(),
        })
    }

    /// Whether all of it was taken.
    pub fn send(&mut self, bytes: &[u8]) -> bool {
        self.socket.write_all(bytes).is_ok()
    }

    /// Tells the server that nothing more comes.
    pub fn end(&self) {
        let _ = self.socket.shutdown(Shutdown::Write);
    }

    fn more(&mut self, deadline: Instant) -> Result<(), Silence> {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(Silence::Late);
        }
        self.socket
            .set_read_timeout(Some(left))
            .expect("a deadline");
        let mut piece = [0; 16 << 10];
        match self.socket.read(&mut piece) {
            Ok(0) => Err(Silence::Closed),
            Ok(read) => {
                self.buffer.extend_from_slice(&piece[..read]);
                Ok(())
            }
            Err(error) => match error.kind() {
                ErrorKind::WouldBlock | ErrorKind::TimedOut => Err(Silence::Late),
                ErrorKind::Interrupted => Ok(()),
                _ => Err(Silence::Broken(error.kind())),
            },
        }
    }

    fn take(&mut self, len: usize, deadline: Instant) -> Result<Vec<u8>, Silence> {
        while self.buffer.len() < len {
            self.more(deadline)?;
        }
        Ok(self.buffer.drain(..len).collect())
    }

    fn line(&mut self, deadline: Instant) -> Result<String, Silence> {
        loop {
            if let Some(at) = self.buffer.windows(2).position(|two| two == b"\r\n") {
                let line = self.take(at + 2, deadline)?;
                return Ok(String::from_utf8_lossy(&line[..at]).into_owned());
            }
            self.more(deadline)?;
        }
    }

    /// Whether the server has closed, all that came before being read; `Err`: it is late.
    pub fn ends(&mut self, deadline: Instant) -> Result<(), Silence> {
        loop {
            match self.more(deadline) {
                Ok(()) => self.buffer.clear(),
                Err(Silence::Closed | Silence::Broken(_)) => return Ok(()),
                Err(other) => return Err(other),
            }
        }
    }

    /// The head of the next answer, with no body yet.
    pub fn head(&mut self, deadline: Instant) -> Result<Answer, Silence> {
        let line = self.line(deadline)?;
        let status = line
            .split(' ')
            .nth(1)
            .and_then(|status| status.parse().ok());
        let Some(status) = status.filter(|_| line.starts_with("HTTP/1.")) else {
            return Err(Silence::Junk(line));
        };
        let mut headers = Vec::new();
        loop {
            let line = self.line(deadline)?;
            match line.split_once(':') {
                _ if line.is_empty() => break,
                Some((name, value)) => {
                    headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
                }
                None => return Err(Silence::Junk(line)),
            }
        }
        if status == 100 {
            return self.head(deadline);
        }
        Ok(Answer {
            status,
            headers,
            body: Vec::new(),
        })
    }

    /// The next answer, to a request of this method.
    pub fn answer(&mut self, method: &str, deadline: Instant) -> Result<Answer, Silence> {
        let mut answer = self.head(deadline)?;
        if method == "HEAD" || matches!(answer.status, 204 | 304) {
            return Ok(answer);
        }
        if answer.header("transfer-encoding") == Some("chunked") {
            loop {
                let size = self.line(deadline)?;
                let size = usize::from_str_radix(&size, 16).map_err(|_| Silence::Junk(size))?;
                answer.body.extend(self.take(size, deadline)?);
                self.take(2, deadline)?;
                if size == 0 {
                    return Ok(answer);
                }
            }
        }
        let length = answer.header("content-length").and_then(|n| n.parse().ok());
        match length {
            Some(length) => answer.body = self.take(length, deadline)?,
            None => return Err(Silence::Junk(format!("no length: {answer:?}"))),
        }
        Ok(answer)
    }
}
