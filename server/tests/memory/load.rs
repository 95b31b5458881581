//! Load: more than a server can take, from all sides at once.
//!
//! **Invariants**
//! - What was acknowledged is remembered by whoever was told; refusals are of kinds that a client expects.
//!
//! **Not here**: what the server may take for it (`main`).

use std::collections::BTreeMap;
use std::io::Write;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use sealog_frame::FrameView;
use sealog_protocol::{Answer, ErrorCode, ReadFrom, Request, Rest};

use crate::server::{Connection, Server, frame, scope};

const WRITERS: u64 = 48;
/// What each of them sends, at most.
const WRITER_BYTES: usize = 8 << 20;
const DEAF: u64 = 24;
const FOLLOWERS: u64 = 16;
const FOLLOWS_EACH: usize = 16;
const LISTERS: usize = 8;
const HALF: usize = 4;
const FEEDS_LISTED: usize = 200;

/// Writer, number of its batch, length of the payload; where it is stored.
pub type Acknowledged = BTreeMap<(u64, u64), (usize, u64)>;

/// What was prepared for it.
pub struct Load {
    /// A feed with records, for the followers.
    read: &'static str,
}

/// The payload that a writer sends as batch `number`: it tells who it is of.
fn payload(writer: u64, number: u64, len: usize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(len);
    bytes.extend_from_slice(&writer.to_le_bytes());
    bytes.extend_from_slice(&number.to_le_bytes());
    let fill = u8::try_from((writer * 31 + number) % 251).unwrap();
    bytes.resize(len, fill);
    bytes
}

/// Lengths from 16 KiB to just below 1 MiB.
fn length(writer: u64, number: u64) -> usize {
    let step = usize::try_from((writer * 7 + number * 5) % 64).unwrap();
    (16 << 10) * (step + 1) - 64
}

fn feed_of(writer: u64) -> String {
    format!("writer-{}", writer % 8)
}

impl Load {
    pub fn prepare(server: &Server) -> Self {
        let mut connection = server.connect();
        let read = "followed";
        let binding = connection.feed(read);
        for number in 0..24 {
            connection.append(binding, &[&payload(1000, number, 1_000_000)]);
        }
        for number in 0..FEEDS_LISTED {
            let name = format!("{number:03}-{}", "n".repeat(1000));
            let made = connection.call(&Request::CreateFeed {
                feed: &name,
                keys: true,
                exclusive: false,
            });
            assert!(matches!(made, Answer::Created { .. }), "{made:?}");
        }
        for writer in 0..8 {
            connection.feed(&feed_of(writer));
        }
        Self { read }
    }

    /// Large batches from writers that do not wait, until then; what was acknowledged.
    pub fn large(&self, server: &Server, until: Instant) -> Acknowledged {
        let acknowledged = Mutex::new(Acknowledged::new());
        // They stay open, unread, until the others are done.
        let mut stalled = self.followers(server);
        stalled.extend((0..HALF).map(|_| half(server)));
        std::thread::scope(|scope| {
            for writer in 0..WRITERS {
                let acknowledged = &acknowledged;
                scope.spawn(move || write(server, writer, until, acknowledged));
            }
        });
        drop(stalled);
        acknowledged.into_inner().unwrap()
    }

    /// Tiny batches, lists and records, none of the answers read, until then.
    pub fn small(&self, server: &Server, until: Instant) {
        let mut stalled = self.followers(server);
        stalled.extend((0..LISTERS).map(|_| lister(server)));
        std::thread::scope(|scope| {
            for _ in 0..DEAF {
                scope.spawn(move || write_deaf(server, until));
            }
        });
    }

    fn followers(&self, server: &Server) -> Vec<Connection> {
        (0..FOLLOWERS).map(|_| self.follower(server)).collect()
    }

    fn follower(&self, server: &Server) -> Connection {
        let mut connection = server.connect();
        for _ in 0..FOLLOWS_EACH {
            connection.send(&Request::Follow {
                scope: scope(self.read, ReadFrom::Sequence(0)),
                credit_bytes: u64::MAX,
            });
        }
        connection
    }
}

/// Asks for lists until the server takes no more, and reads none.
fn lister(server: &Server) -> Connection {
    let mut connection = server.connect();
    stop_after(&connection, Duration::from_millis(50));
    let list = Request::ListFeeds {
        prefix: "",
        after: "",
        limit: 1000,
    };
    let mut bytes = Vec::new();
    for id in 1..=20_000 {
        list.encode(id, 0, &mut bytes);
    }
    let _ = connection.stream.write_all(&bytes);
    connection
}

/// Begins a message of almost 1 MiB and sends a quarter of it.
fn half(server: &Server) -> Connection {
    let mut connection = server.connect();
    stop_after(&connection, Duration::from_millis(20));
    let mut bytes = 1_000_000_u32.to_le_bytes().to_vec();
    bytes.extend_from_slice(&[0x23, 0, 0, 0]);
    bytes.extend_from_slice(&9_u64.to_le_bytes());
    bytes.resize(250_000, 0);
    let _ = connection.stream.write_all(&bytes);
    connection
}

fn stop_after(connection: &Connection, time: Duration) {
    connection.stream.set_write_timeout(Some(time)).unwrap();
}

fn bind(connection: &mut Connection, feed: &str) -> u32 {
    match connection.call(&Request::Bind { feed }) {
        Answer::Bound { binding, .. } => binding,
        other => panic!("not bound: {other:?}"),
    }
}

/// Sends batches without waiting for answers; another thread reads these.
fn write(server: &Server, writer: u64, until: Instant, acknowledged: &Mutex<Acknowledged>) {
    let mut connection = server.connect();
    let binding = bind(&mut connection, &feed_of(writer));
    let mut sending = connection.stream.try_clone().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let (mut number, mut sent) = (0, 0);
            while Instant::now() < until && sent < WRITER_BYTES {
                let payload = payload(writer, number, length(writer, number));
                let frame = frame(&[&payload]);
                let mut bytes = Vec::new();
                let append = Request::Append {
                    binding,
                    frame: Rest(&frame),
                };
                append.encode(number + 1, 0, &mut bytes);
                sending.write_all(&bytes).expect("taken in time");
                sent += bytes.len();
                number += 1;
            }
            sending.shutdown(std::net::Shutdown::Write).unwrap();
        });
        while let Some((header, answer)) = connection.receive() {
            match answer {
                Answer::Appended { first, .. } => {
                    let number = header.request - 1;
                    let stored = (length(writer, number), first);
                    acknowledged
                        .lock()
                        .unwrap()
                        .insert((writer, number), stored);
                }
                Answer::Refused { refusal } => {
                    let expected = [ErrorCode::Overloaded, ErrorCode::StorageFull];
                    assert!(expected.contains(&refusal.code), "{refusal:?}");
                }
                other => panic!("{other:?}"),
            }
        }
    });
}

/// Sends tiny batches and reads no answer while the server takes them.
fn write_deaf(server: &Server, until: Instant) {
    let mut connection = server.connect();
    let binding = bind(&mut connection, "writer-0");
    stop_after(&connection, Duration::from_millis(500));
    let frame = frame(&[b"x"]);
    let mut bytes = Vec::new();
    for id in 1..=1000 {
        let append = Request::Append {
            binding,
            frame: Rest(&frame),
        };
        append.encode(id, 0, &mut bytes);
    }
    // Up to the credit, 32 MiB, and then what the server lets in.
    let mut sent = 0;
    while Instant::now() < until && sent < 64 << 20 {
        if connection.stream.write_all(&bytes).is_err() {
            std::thread::sleep(until.saturating_duration_since(Instant::now()));
            return;
        }
        sent += bytes.len();
    }
}

/// Everything that was acknowledged is there, byte for byte, where it was said to be.
pub fn check_read_back(server: &Server, acknowledged: &Acknowledged) {
    assert!(acknowledged.len() > 100, "{} only", acknowledged.len());
    let mut connection = server.connect();
    let mut found = Acknowledged::new();
    for writer in 0..8 {
        let feed = feed_of(writer);
        let mut next = 0;
        loop {
            let read = Request::Read {
                scope: scope(&feed, ReadFrom::Sequence(next)),
                wait_ms: 0,
            };
            let Answer::Records { records } = connection.call(&read) else {
                panic!("no records of {feed} from {next}");
            };
            if records.next == next {
                break;
            }
            collect(records.frames.0, &mut found);
            next = records.next;
        }
    }
    let missing = acknowledged
        .iter()
        .filter(|(batch, stored)| found.get(batch) != Some(stored))
        .count();
    assert_eq!(missing, 0, "of {} acknowledged", acknowledged.len());
}

fn collect(mut frames: &[u8], found: &mut Acknowledged) {
    while !frames.is_empty() {
        let (view, rest) = FrameView::split_trusted(frames).unwrap();
        for record in view.records() {
            let bytes = record.payload;
            if bytes.len() < 16 {
                continue;
            }
            let number = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
            let (writer, number) = (number(0), number(8));
            assert_eq!(bytes, payload(writer, number, bytes.len()));
            found.insert((writer, number), (bytes.len(), record.sequence));
        }
        frames = rest;
    }
}
