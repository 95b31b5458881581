//! Cases: bug reports from the field about networking, as the native protocol must do better.
//!
//! D18: a length is a promise, not memory. D21: readers that do not read cost their buffers only.

use std::io::{Read, Write};
use std::time::{Duration, Instant};

use sealog_protocol::{Answer, ErrorCode, HELLO_BYTES_MAX, MORE, ReadFrom, Request, Rest};

use crate::server::{Connection, Server, frame, scope};

/// Resident memory of a process, in bytes.
pub(super) fn resident(server: &Server) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", server.pid())).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:"));
    let kib = line
        .and_then(|line| line.split_whitespace().nth(1))
        .unwrap();
    kib.parse::<u64>().unwrap() << 10
}

#[test]
fn case_d18_lengths_are_held_against_the_limit_before_anything_else() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path(), &[]);
    let mut writer = server.connect();
    let binding = writer.feed("f");
    let before = resident(&server);
    let limit = u32::try_from(HELLO_BYTES_MAX).unwrap();
    let lengths = [0, 1, limit, limit + 1, 0x7fff_ffff, u32::MAX];
    let mut connections: Vec<(u32, Connection)> = (0..200)
        .map(|n| {
            let length = lengths[n % lengths.len()];
            let mut connection = Connection::raw(server.address);
            connection.stream.write_all(&length.to_le_bytes()).unwrap();
            (length, connection)
        })
        .collect();
    for (length, connection) in &mut connections {
        if *length == limit {
            // It may still come: the server waits, a byte at a time.
            connection.stream.write_all(&[1]).unwrap();
            continue;
        }
        let (_, answer) = connection.receive().expect("a refusal");
        let Answer::Refused { refusal } = answer else {
            panic!("{answer:?}");
        };
        let expected = match *length > limit {
            true => (ErrorCode::MessageTooLarge, Some(u64::from(*length))),
            false => (ErrorCode::BadMessage, None),
        };
        assert_eq!((refusal.code, refusal.value), expected);
        assert!(connection.receive().is_none(), "it stays open");
    }
    let frame = frame(&[b"served"]);
    let append = Request::Append {
        binding,
        frame: Rest(&frame),
    };
    assert!(matches!(writer.call(&append), Answer::Appended { .. }));
    let grown = resident(&server).saturating_sub(before);
    assert!(grown < 32 << 20, "grew by {grown} bytes");
}

#[test]
fn case_d18_a_length_after_the_welcome_is_no_memory_either() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path(), &[]);
    let before = resident(&server);
    let mut dripping = Vec::new();
    for _ in 0..100 {
        let mut connection = server.connect();
        // The beginning of an append of 20 MiB, and then nothing.
        let mut head = (20_u32 << 20).to_le_bytes().to_vec();
        head.extend_from_slice(&[0x23, 0, 0, 0]);
        head.extend_from_slice(&9_u64.to_le_bytes());
        head.extend_from_slice(&[0; 100]);
        connection.stream.write_all(&head).unwrap();
        dripping.push(connection);
    }
    let mut other = server.connect();
    assert!(matches!(other.call(&Request::Ping {}), Answer::Pong {}));
    let grown = resident(&server).saturating_sub(before);
    assert!(grown < 32 << 20, "grew by {grown} bytes");
    let mut over = server.connect();
    over.stream.write_all(&u32::MAX.to_le_bytes()).unwrap();
    let (_, answer) = over.receive().expect("a refusal");
    assert!(matches!(answer, Answer::Refused { .. }), "{answer:?}");
    assert!(over.receive().is_none());
}

#[test]
fn case_d18_long_messages_are_read_on_only_with_memory_reserved() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path(), &[]);
    let mut writer = server.connect();
    let binding = writer.feed("f");
    let before = resident(&server);
    // Each announces an append of 20 MiB and sends 8 MiB of it, if it is taken.
    let mut stuck = Vec::new();
    for _ in 0..20 {
        let mut connection = server.connect();
        let mut head = (20_u32 << 20).to_le_bytes().to_vec();
        head.extend_from_slice(&[0x23, 0, 0, 0]);
        head.extend_from_slice(&9_u64.to_le_bytes());
        let timeout = Some(Duration::from_millis(300));
        connection.stream.set_write_timeout(timeout).unwrap();
        connection.stream.write_all(&head).unwrap();
        let mut taken = 0;
        while taken < 8 << 20 && connection.stream.write_all(&[0; 64 << 10]).is_ok() {
            taken += 64 << 10;
        }
        stuck.push((connection, taken));
    }
    let whole = stuck.iter().filter(|(_, taken)| *taken == 8 << 20).count();
    assert!((1..=4).contains(&whole), "{whole} of them were read on");
    let grown = resident(&server).saturating_sub(before);
    assert!(grown < 100 << 20, "grew by {grown} bytes");
    // Short ones are served, and one of the long ones when another has gone.
    writer.append(binding, &[b"served"]);
    drop(stuck);
    writer.append(binding, &[&[7; 10 << 20]]);
}

fn follow(feed: &str) -> Request<'_> {
    Request::Follow {
        scope: scope(feed, ReadFrom::Sequence(0)),
        credit_bytes: u64::MAX,
    }
}

#[test]
fn case_d21_readers_that_do_not_read_cost_their_buffers() {
    const READERS: u64 = 500;
    const RECORDS: u64 = 3_000;
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path(), &[]);
    let mut writer = server.connect();
    let binding = writer.feed("f");
    let payload = [7; 16 << 10];
    let batch = frame(&[&payload]);
    let append = Request::Append {
        binding,
        frame: Rest(&batch),
    };
    let mut write = |count: u64| {
        for _ in 0..count {
            let answer = writer.call(&append);
            assert!(matches!(answer, Answer::Appended { .. }), "{answer:?}");
        }
    };
    write(RECORDS);
    let before = resident(&server);
    let mut readers: Vec<Connection> = (0..READERS).map(|_| server.connect()).collect();
    for reader in &mut readers {
        reader.send(&follow("f"));
        let mut some = vec![0; 64 << 10];
        reader.stream.read_exact(&mut some).unwrap();
        reader.taken = some;
    }
    // They stall; the writer goes on.
    let begun = Instant::now();
    write(500);
    assert!(begun.elapsed() < Duration::from_secs(20));
    let each = resident(&server).saturating_sub(before) / READERS;
    println!("{each} bytes per stalled reader");
    assert!(each < 1 << 20, "{each} bytes per stalled reader");
    // Some read on, without gap or repeat.
    for reader in readers.iter_mut().take(10) {
        let mut next = 0;
        while next < RECORDS + 500 {
            let (header, answer) = reader.receive().expect("records");
            assert_eq!(header.flags, MORE);
            let Answer::Records { records } = answer else {
                panic!("{answer:?}");
            };
            assert_eq!(records.first, next);
            assert!(records.next > next);
            next = records.next;
        }
    }
}
