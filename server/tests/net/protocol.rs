//! Protocol: what a client sees of the native protocol.

use sealog_frame::FrameView;
use sealog_protocol::{Answer, ErrorCode, ReadFrom, Request, Rest};

use crate::server::{Connection, Server, frame, scope};

/// Payloads of the frames in an answer.
fn payloads(mut frames: &[u8]) -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    while !frames.is_empty() {
        let (view, rest) = FrameView::split_trusted(frames).expect("whole frames");
        all.extend(view.records().map(|record| record.payload.to_vec()));
        frames = rest;
    }
    all
}

#[test]
fn append_read_and_seal_over_one_connection() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path(), &[]);
    let mut client = server.connect();
    let binding = client.feed("orders");
    for n in 0..3_u64 {
        let frame = frame(&[b"a", b"b"]);
        let answer = client.call(&Request::Append {
            binding,
            frame: Rest(&frame),
        });
        let Answer::Appended { first, last, .. } = answer else {
            panic!("{answer:?}");
        };
        assert_eq!((first, last), (2 * n, 2 * n + 1));
    }
    let read = Request::Read {
        scope: scope("orders", ReadFrom::Sequence(0)),
        wait_ms: 0,
    };
    let Answer::Records { records } = client.call(&read) else {
        panic!("no records");
    };
    assert_eq!((records.first, records.next, records.tail), (0, 6, 6));
    assert_eq!(payloads(records.frames.0).concat(), b"ababab");
    let seal = Request::Seal {
        feed: "orders",
        token: None,
        message: "done",
    };
    let Answer::Committed { commit } = client.call(&seal) else {
        panic!("no commit");
    };
    assert_eq!(
        (commit.number, commit.records, commit.first, commit.end),
        (0, 6, 0, 6)
    );
}

#[test]
fn appends_pipelined_are_acknowledged_in_order() {
    const BATCHES: u64 = 5_000;
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path(), &[]);
    for address in [server.address] {
        let mut client = Connection::open(address);
        let binding = client.feed("numbers");
        let mut sender = client.stream.try_clone().unwrap();
        let sending = std::thread::spawn(move || {
            use std::io::Write;
            for n in 0..BATCHES {
                let frame = frame(&[&n.to_le_bytes()]);
                let mut bytes = Vec::new();
                let append = Request::Append {
                    binding,
                    frame: Rest(&frame),
                };
                append.encode(1000 + n, 0, &mut bytes);
                sender.write_all(&bytes).unwrap();
            }
        });
        for n in 0..BATCHES {
            let (header, answer) = client.receive().expect("an ack");
            assert_eq!(header.request, 1000 + n);
            let Answer::Appended { first, .. } = answer else {
                panic!("{answer:?}");
            };
            assert_eq!(first, n);
        }
        sending.join().unwrap();
    }
}

#[test]
fn refused_append_is_answered_in_its_place() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path(), &[]);
    let mut client = server.connect();
    let binding = client.feed("f");
    let (good, mut bad) = (frame(&[b"x"]), frame(&[b"y"]));
    if let Some(last) = bad.last_mut() {
        *last ^= 1;
    }
    // In one write, so that the refusal is known before the first batch is durable (NATIVE-3).
    let mut bytes = Vec::new();
    for n in 0..20 {
        let frame = Rest(if n == 10 { &bad } else { &good });
        Request::Append { binding, frame }.encode(100 + n, 0, &mut bytes);
    }
    std::io::Write::write_all(&mut client.stream, &bytes).unwrap();
    for n in 0..20 {
        let (header, answer) = client.receive().expect("an answer");
        assert_eq!(header.request, 100 + n, "{answer:?}");
        match answer {
            Answer::Refused { refusal } => assert_eq!((n, refusal.code), (10, ErrorCode::Batch)),
            Answer::Appended { .. } => assert_ne!(n, 10),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn follow_gives_what_is_there_and_what_comes() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path(), &[]);
    let mut writer = server.connect();
    let binding = writer.feed("f");
    let mut reader = server.connect();
    let follow = reader.send(&Request::Follow {
        scope: scope("f", ReadFrom::Sequence(0)),
        credit_bytes: 1 << 20,
    });
    let mut got = Vec::new();
    for n in 0..10_u8 {
        let frame = frame(&[&[n]]);
        let answer = writer.call(&Request::Append {
            binding,
            frame: Rest(&frame),
        });
        assert!(matches!(answer, Answer::Appended { .. }), "{answer:?}");
        let (header, answer) = reader.receive().expect("records");
        assert_eq!(
            (header.request, header.flags),
            (follow, sealog_protocol::MORE)
        );
        let Answer::Records { records } = answer else {
            panic!("{answer:?}");
        };
        got.extend(payloads(records.frames.0).concat());
    }
    assert_eq!(got, (0..10).collect::<Vec<u8>>());
    let mut bytes = Vec::new();
    Request::Cancel {}.encode(follow, 0, &mut bytes);
    std::io::Write::write_all(&mut reader.stream, &bytes).unwrap();
    let (header, _) = reader.receive().expect("the last answer");
    assert_eq!((header.request, header.flags), (follow, 0));
}

#[test]
fn refusals_name_what_is_wrong() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path(), &[]);
    let mut client = server.connect();
    let answer = client.call(&Request::Bind { feed: "none" });
    let Answer::Refused { refusal } = answer else {
        panic!("{answer:?}");
    };
    assert_eq!(
        (refusal.code, refusal.subject),
        (ErrorCode::FeedNotFound, "none")
    );
    let frame = frame(&[b"x"]);
    let answer = client.call(&Request::Append {
        binding: 7,
        frame: Rest(&frame),
    });
    let Answer::Refused { refusal } = answer else {
        panic!("{answer:?}");
    };
    assert_eq!(
        (refusal.code, refusal.value),
        (ErrorCode::NotBound, Some(7))
    );
}

#[test]
fn sigterm_answers_what_was_taken_in_and_ends_with_status_0() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = Server::start(dir.path(), &[]);
    let mut client = server.connect();
    let binding = client.feed("f");
    let frame = frame(&[b"x"]);
    let id = client.send(&Request::Append {
        binding,
        frame: Rest(&frame),
    });
    let (header, answer) = client.receive().expect("an ack");
    assert_eq!(header.request, id);
    assert!(matches!(answer, Answer::Appended { .. }), "{answer:?}");
    server.signal(libc::SIGTERM);
    let (_, last) = client.receive().expect("a goodbye");
    assert!(matches!(last, Answer::Goodbye { .. }), "{last:?}");
    assert!(client.receive().is_none());
    assert_eq!(server.wait().code(), Some(0));
}

#[test]
fn follow_with_an_id_in_use_ends_the_connection_and_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = Server::start(dir.path(), &[]);
    let mut client = server.connect();
    client.feed("f");
    let mut bytes = Vec::new();
    let follow = Request::Follow {
        scope: scope("f", ReadFrom::Sequence(0)),
        credit_bytes: 0,
    };
    follow.encode(77, 0, &mut bytes);
    follow.encode(77, 0, &mut bytes);
    std::io::Write::write_all(&mut client.stream, &bytes).unwrap();
    while let Some((header, answer)) = client.receive() {
        let last = matches!(answer, Answer::Refused { .. }) || header.request == 77;
        assert!(last, "{answer:?}");
    }
    // Were it still counted, the drain would wait for it.
    let begun = std::time::Instant::now();
    drop(client);
    server.signal(libc::SIGTERM);
    assert_eq!(server.wait().code(), Some(0));
    assert!(begun.elapsed() < std::time::Duration::from_secs(8));
}

#[test]
fn requests_beyond_what_may_run_at_once_are_refused_and_others_go_on() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path(), &[]);
    let mut client = server.connect();
    client.feed("f");
    let wait = Request::Read {
        scope: scope("f", ReadFrom::Sequence(0)),
        wait_ms: 600_000,
    };
    for _ in 0..256 {
        client.send(&wait);
    }
    let answer = client.call(&wait);
    let Answer::Refused { refusal } = answer else {
        panic!("{answer:?}");
    };
    assert_eq!(
        (refusal.code, refusal.limit, refusal.retryable),
        (ErrorCode::Overloaded, Some(256), true)
    );
    assert!(matches!(client.call(&Request::Ping {}), Answer::Pong {}));
}

#[test]
fn page_of_commits_ends_before_it_is_long() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path(), &[]);
    let mut client = server.connect();
    let binding = client.feed("f");
    let message = "m".repeat(60 << 10);
    for _ in 0..25 {
        let frame = frame(&[b"x"]);
        let append = Request::Append {
            binding,
            frame: Rest(&frame),
        };
        assert!(matches!(client.call(&append), Answer::Appended { .. }));
        let sealed = client.call(&Request::Seal {
            feed: "f",
            token: None,
            message: &message,
        });
        assert!(matches!(sealed, Answer::Committed { .. }), "{sealed:?}");
    }
    let mut numbers = Vec::new();
    loop {
        let from = numbers.len() as u64;
        let (feed, limit) = ("f", 1000);
        client.send(&Request::ListCommits { feed, from, limit });
        let (header, answer) = client.receive().expect("a page");
        assert!(header.message_bytes < 5 << 18, "{}", header.message_bytes);
        let Answer::Commits { commits } = answer else {
            panic!("{answer:?}");
        };
        if commits.is_empty() {
            break;
        }
        numbers.extend(commits.iter().map(|commit| commit.number));
    }
    assert_eq!(numbers, (0..25).collect::<Vec<_>>());
    let listed = std::process::Command::new(env!("CARGO_BIN_EXE_sealog"))
        .args(["--server", &server.address.to_string(), "commits", "f"])
        .output()
        .unwrap();
    let text = String::from_utf8(listed.stdout).unwrap();
    assert_eq!(text.lines().count(), 25);
}
