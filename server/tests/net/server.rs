//! Server: a `sealog serve` process of a test, and plain blocking connections to it.
//!
//! **Invariants**
//! - Every wait has a deadline; a process is ended with its test.
//!
//! **Not here**: what is tested.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use sealog_frame::{BatchBuilder, FrameLimits, Record};
use sealog_protocol::{
    Answer, Features, HEADER_BYTES, Hello, MESSAGE_BYTES_MAX, MessageHeader, ReadFrom, ReadScope,
    Request, Rest,
};

/// Longest wait for anything.
pub const DEADLINE: Duration = Duration::from_secs(30);

/// A running server.
pub struct Server {
    child: Child,
    pub address: SocketAddr,
    /// Where streams are, if HTTP is spoken.
    pub http: Option<String>,
}

impl Server {
    /// Starts one on the data directory, with further arguments.
    pub fn start(data_dir: &Path, args: &[&str]) -> Self {
        Self::spawn(Command::new(env!("CARGO_BIN_EXE_sealog")), data_dir, args)
    }

    /// As [`Server::start`], inside the cgroup that `procs` is of, if one is given.
    #[allow(dead_code, reason = "for the tests of memory")]
    pub fn start_in(data_dir: &Path, args: &[&str], procs: Option<&Path>) -> Self {
        let Some(procs) = procs else {
            return Self::start(data_dir, args);
        };
        let mut shell = Command::new("sh");
        shell
            .args(["-c", "echo $$ > \"$0\"; exec \"$@\""])
            .arg(procs)
            .arg(env!("CARGO_BIN_EXE_sealog"));
        Self::spawn(shell, data_dir, args)
    }

    fn spawn(mut command: Command, data_dir: &Path, args: &[&str]) -> Self {
        let mut child = command
            .args(["serve", "--listen", "127.0.0.1:0", "--shard-port", "0"])
            .env("SEALOG_ADMIN_LISTEN", "none")
            .env("SEALOG_HTTP_LISTEN", "none")
            .arg("--data-dir")
            .arg(data_dir)
            .args(args)
            .stderr(Stdio::piped())
            .spawn()
            .expect("the server starts");
        let stderr = child.stderr.take().expect("piped");
        let mut lines = BufReader::new(stderr).lines();
        let mut http = None;
        let line = lines.find_map(|line| {
            let line = line.ok()?;
            if let Some(url) = line.split("streams over HTTP at ").nth(1) {
                http = Some(url.trim().to_owned());
            }
            line.split("listening on ").nth(1).map(str::to_owned)
        });
        let line = line.expect("the server says where it listens");
        let address = line.trim().parse().expect("an address");
        // What else it says must not fill the pipe.
        std::thread::spawn(move || lines.for_each(drop));
        Self {
            child,
            address,
            http,
        }
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn signal(&self, signal: i32) {
        let pid = i32::try_from(self.child.id()).expect("a pid");
        // SAFETY: a plain call; the process is a child that was not waited for.
        let sent = unsafe { libc::kill(pid, signal) };
        assert_eq!(sent, 0, "signal {signal} to {pid}");
    }

    /// Waits for its end.
    pub fn wait(&mut self) -> ExitStatus {
        let begun = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().expect("waiting") {
                return status;
            }
            assert!(begun.elapsed() < DEADLINE, "the server does not end");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    pub fn connect(&self) -> Connection {
        Connection::open(self.address)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A blocking connection.
pub struct Connection {
    pub stream: TcpStream,
    next: u64,
    /// The last message.
    body: Vec<u8>,
    /// Bytes that were read off the stream before [`Connection::receive`] is to see them.
    pub taken: Vec<u8>,
}

impl Connection {
    /// Connects without a word.
    pub fn raw(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).expect("connecting");
        stream.set_nodelay(true).expect("nodelay");
        stream.set_read_timeout(Some(DEADLINE)).expect("deadline");
        stream.set_write_timeout(Some(DEADLINE)).expect("deadline");
        Self {
            stream,
            next: 1,
            body: Vec::new(),
            taken: Vec::new(),
        }
    }

    /// Connects and says hello.
    pub fn open(address: SocketAddr) -> Self {
        let mut connection = Self::raw(address);
        match connection.call(&hello()) {
            Answer::Welcome { .. } => {}
            other => panic!("no welcome: {other:?}"),
        }
        connection
    }

    /// Sends a request; its id.
    pub fn send(&mut self, request: &Request<'_>) -> u64 {
        let id = self.next;
        self.next += 1;
        let mut bytes = Vec::new();
        request.encode(id, 0, &mut bytes);
        self.stream.write_all(&bytes).expect("sending");
        id
    }

    /// Sends bytes as they are.
    pub fn write(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).expect("sending");
    }

    /// The next message; `None`: the server has closed.
    pub fn receive(&mut self) -> Option<(MessageHeader, Answer<'_>)> {
        let mut head = [0; HEADER_BYTES];
        if let Err(error) = self.read_exact(&mut head) {
            assert_eq!(error.kind(), std::io::ErrorKind::UnexpectedEof, "{error}");
            return None;
        }
        let header = MessageHeader::peek(&head, MESSAGE_BYTES_MAX);
        let header = header.expect("a header").expect("whole");
        let mut body = vec![0; header.message_bytes - HEADER_BYTES];
        self.read_exact(&mut body).expect("a body");
        self.body = body;
        let answer = Answer::decode(header.kind, &self.body).expect("an answer");
        Some((header, answer))
    }

    fn read_exact(&mut self, buf: &mut [u8]) -> std::io::Result<()> {
        let known = self.taken.len().min(buf.len());
        buf[..known].copy_from_slice(&self.taken[..known]);
        self.taken.drain(..known);
        self.stream.read_exact(&mut buf[known..])
    }

    /// Sends a request and waits for its answer.
    pub fn call(&mut self, request: &Request<'_>) -> Answer<'_> {
        let id = self.send(request);
        let (header, answer) = self.receive().expect("an answer");
        assert_eq!(header.request, id, "{answer:?}");
        answer
    }

    /// Makes a feed and gives it a number.
    pub fn feed(&mut self, feed: &str) -> u32 {
        let made = self.call(&Request::CreateFeed {
            feed,
            keys: true,
            exclusive: false,
        });
        assert!(matches!(made, Answer::Created { .. }), "{made:?}");
        match self.call(&Request::Bind { feed }) {
            Answer::Bound { binding, .. } => binding,
            other => panic!("not bound: {other:?}"),
        }
    }

    /// Appends one batch, and waits until it is acknowledged.
    pub fn append(&mut self, binding: u32, payloads: &[&[u8]]) {
        let frame = frame(payloads);
        let answer = self.call(&Request::Append {
            binding,
            frame: Rest(&frame),
        });
        assert!(matches!(answer, Answer::Appended { .. }), "{answer:?}");
    }
}

/// All of `feed` that there is from there on, in answers of up to 1 MiB.
pub fn scope(feed: &str, from: ReadFrom) -> ReadScope<'_> {
    ReadScope {
        feed,
        feed_id: None,
        stream: None,
        from,
        end: u64::MAX,
        bytes_max: 1 << 20,
        fingerprints: false,
    }
}

pub fn hello() -> Request<'static> {
    Request::Hello {
        hello: Hello {
            magic: Hello::MAGIC,
            version_min: 1,
            version_max: 1,
            features: Features(0),
            heartbeat_ms: 0,
            token: None,
            agent: "test",
        },
    }
}

/// A batch of these payloads.
pub fn frame(payloads: &[&[u8]]) -> Vec<u8> {
    let mut builder = BatchBuilder::new(FrameLimits::default());
    for payload in payloads {
        let record = Record {
            payload,
            ..Record::default()
        };
        builder.push(&record).expect("fits");
    }
    builder.build().expect("not empty").into_bytes()
}
