//! Ends: how connections end: peers that stall or leave, and what a drain does with what still waits.

use std::io::Write;
use std::time::{Duration, Instant};

use sealog_protocol::{Answer, Effects, ErrorCode, ReadFrom, Request, Rest};

use crate::ops::{Observed, assert_in_order};
use crate::server::{Connection, DEADLINE, frame, hello, scope};

/// A connection that keeps a heartbeat.
fn connect(server: &Observed, heartbeat_ms: u32) -> Connection {
    let Request::Hello { mut hello } = hello() else {
        panic!("no hello");
    };
    hello.heartbeat_ms = heartbeat_ms;
    let mut client = Connection::raw(server.address);
    client.call(&Request::Hello { hello });
    client
}

/// A feed with a large record.
fn fill(server: &Observed) {
    let mut client = Connection::open(server.address);
    let binding = client.feed("orders");
    client.append(binding, &[&[7; 1 << 20]]);
}

/// Asks for more than the sockets between here and there hold.
fn ask_for_much(client: &mut Connection) {
    for _ in 0..64 {
        client.send(&Request::Read {
            scope: scope("orders", ReadFrom::Sequence(0)),
            wait_ms: 0,
        });
    }
}

#[test]
fn drain_does_not_wait_for_a_client_that_takes_nothing() {
    let server = Observed::start(&[]);
    fill(&server);
    let mut client = Connection::open(server.address);
    ask_for_much(&mut client);
    server.signal(libc::SIGTERM);
    let (status, lines) = server.end();
    assert_eq!(status, Some(0), "{lines:?}");
    assert_in_order(&lines, &["draining", "drained", "closed"]);
}

#[test]
fn client_that_keeps_its_heartbeat_and_takes_nothing_is_given_up() {
    let server = Observed::start(&[]);
    fill(&server);
    let mut client = connect(&server, 100);
    ask_for_much(&mut client);
    let begun = Instant::now();
    let mut ping = Vec::new();
    Request::Ping {}.encode(1, 0, &mut ping);
    while client.stream.write_all(&ping).is_ok() {
        assert!(begun.elapsed() < DEADLINE, "it is kept");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// The refusal that ends the connection.
fn refused(client: &mut Connection) -> (ErrorCode, Option<u64>, Option<u64>) {
    let (header, answer) = client.receive().expect("a refusal");
    assert_eq!(header.request, 0, "{answer:?}");
    let Answer::Refused { refusal } = answer else {
        panic!("{answer:?}");
    };
    let told = (refusal.code, refusal.value, refusal.limit);
    assert!(client.receive().is_none(), "it stays open");
    told
}

fn send_as(client: &mut Connection, request: &Request<'_>, id: u64, flags: u8) {
    let mut bytes = Vec::new();
    request.encode(id, flags, &mut bytes);
    client.stream.write_all(&bytes).unwrap();
}

/// Waits until the server has no connection left.
fn wait_until_none(server: &Observed) {
    let begun = Instant::now();
    while server.metric("sealog_connections_open", "shard=\"0\"") > 0 {
        assert!(begun.elapsed() < DEADLINE, "it is kept");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn client_that_left_with_reads_under_way_is_forgotten() {
    let server = Observed::start(&[]);
    fill(&server);
    let mut client = Connection::open(server.address);
    ask_for_much(&mut client);
    // The other half stays open, and nothing is taken from it.
    client.stream.shutdown(std::net::Shutdown::Write).unwrap();
    wait_until_none(&server);
}

/// A server whose bucket fails, and that waits for it as long as it may.
fn without_bucket(more: &str) -> Observed {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("sealog.toml");
    std::fs::write(&file, format!("[wal]\nfull_wait_ms = 3600000\n{more}")).unwrap();
    let server = Observed::start(&["--config", file.to_str().unwrap()]);
    let bucket = server.dir.path().join("data/bucket");
    std::fs::rename(&bucket, server.dir.path().join("away")).unwrap();
    std::fs::write(&bucket, "no folder").unwrap();
    server
}

const SEAL: Request<'static> = Request::Seal {
    feed: "orders",
    token: None,
    message: "done",
};

/// That the seal with this id is answered as one of which nobody knows whether it happened.
fn assert_unknown(client: &mut Connection, seal: u64) {
    let (header, answer) = client.receive().expect("an answer");
    assert_eq!(header.request, seal, "{answer:?}");
    let Answer::Refused { refusal } = answer else {
        panic!("{answer:?}");
    };
    assert_eq!(
        (refusal.code, refusal.effects),
        (ErrorCode::Closed, Effects::Unknown)
    );
}

#[test]
fn drain_ends_in_time_and_answers_what_it_does_not_know() {
    let server = without_bucket("");
    let mut client = Connection::open(server.address);
    let binding = client.feed("orders");
    client.append(binding, &[b"a"]);
    let seal = client.send(&SEAL);
    client.send(&Request::Ping {});
    assert!(matches!(client.receive(), Some((_, Answer::Pong {}))));
    server.signal(libc::SIGTERM);
    assert_unknown(&mut client, seal);
    let (_, last) = client.receive().expect("a goodbye");
    assert!(matches!(last, Answer::Goodbye { .. }), "{last:?}");
    assert!(client.receive().is_none());
    let (status, lines) = server.end();
    assert_eq!(status, Some(0), "{lines:?}");
    assert_in_order(&lines, &["draining", "drained", "closed"]);
}

#[test]
fn drain_answers_appends_that_wait_for_a_full_log() {
    const BATCHES: u64 = 200;
    let server = without_bucket(
        "flush_bytes = 262144\nsegment_bytes = 1048576\ndisk_bytes_max = 6291456\n\
         [batch]\nbytes_max = 65536\nrecord_bytes_max = 65536\nrecords_max = 16\nheaders_max = 16\n",
    );
    let mut client = Connection::open(server.address);
    let binding = client.feed("orders");
    let mut sender = client.stream.try_clone().unwrap();
    let sending = std::thread::spawn(move || {
        let frame = frame(&[&[7; 60_000]]);
        for n in 0..BATCHES {
            let mut bytes = Vec::new();
            let append = Request::Append {
                binding,
                frame: Rest(&frame),
            };
            append.encode(1000 + n, 0, &mut bytes);
            if sender.write_all(&bytes).is_err() {
                return;
            }
        }
    });
    // Those that find room are answered; then the log is full.
    let quiet = Some(Duration::from_secs(2));
    client.stream.set_read_timeout(quiet).unwrap();
    let mut answered = 0;
    let mut head = [0; 1];
    while client.stream.peek(&mut head).is_ok() {
        let (header, answer) = client.receive().expect("an answer");
        assert_eq!(header.request, 1000 + answered);
        assert!(matches!(answer, Answer::Appended { .. }), "{answer:?}");
        answered += 1;
    }
    assert!((10..BATCHES).contains(&answered), "{answered} found room");
    client.stream.set_read_timeout(Some(DEADLINE)).unwrap();
    server.signal(libc::SIGTERM);
    assert_unknown(&mut client, 1000 + answered);
    let (status, lines) = server.end();
    assert_eq!(status, Some(0), "{lines:?}");
    assert_in_order(&lines, &["draining", "drained", "closed"]);
    drop(client);
    sending.join().unwrap();
}

#[test]
fn client_that_ended_its_half_is_answered_for_a_while() {
    let server = without_bucket("");
    let mut client = Connection::open(server.address);
    let binding = client.feed("orders");
    client.append(binding, &[b"a"]);
    let seal = client.send(&SEAL);
    client.stream.shutdown(std::net::Shutdown::Write).unwrap();
    assert_unknown(&mut client, seal);
    assert!(client.receive().is_none());
    wait_until_none(&server);
}

#[test]
fn header_fields_that_only_a_server_sets_are_refused_by_value() {
    let server = Observed::start(&[]);
    for (id, flags, value) in [(0, 0, 0), (7, 1, 1)] {
        let mut client = Connection::open(server.address);
        send_as(&mut client, &Request::Ping {}, id, flags);
        let told = refused(&mut client);
        assert_eq!(told, (ErrorCode::BadMessage, Some(value), None));
    }
    let mut client = Connection::open(server.address);
    send_as(&mut client, &Request::Goodbye {}, 0, 0);
    assert!(client.receive().is_none());
}

/// Feed "orders" with as many records.
fn records(server: &Observed, records: u64) -> (Connection, u32) {
    let mut client = Connection::open(server.address);
    let binding = client.feed("orders");
    for _ in 0..records {
        client.append(binding, &[b"a"]);
    }
    (client, binding)
}

#[test]
fn follow_cancelled_before_its_first_answer_tells_where_it_stands() {
    let server = Observed::start(&[]);
    records(&server, 5);
    for (from, at) in [
        (ReadFrom::Tail(0), 5),
        (ReadFrom::Tail(2), 3),
        (ReadFrom::Timestamp(0), 0),
        (ReadFrom::Timestamp(u64::MAX), 5),
        (ReadFrom::Sequence(4), 4),
    ] {
        let mut client = Connection::open(server.address);
        let follow = client.send(&Request::Follow {
            scope: scope("orders", from),
            credit_bytes: 0,
        });
        send_as(&mut client, &Request::Cancel {}, follow, 0);
        let (header, answer) = client.receive().expect("the last answer");
        assert_eq!((header.request, header.flags), (follow, 0));
        let Answer::Records { records } = answer else {
            panic!("{answer:?}");
        };
        let told = (records.first, records.next, records.tail);
        assert_eq!(told, (at, at, 5), "{from:?}");
    }
}

#[test]
fn follow_of_a_feed_that_was_made_anew_ends() {
    let server = Observed::start(&[]);
    let (mut writer, _) = records(&server, 1);
    let mut reader = Connection::open(server.address);
    let follow = reader.send(&Request::Follow {
        scope: scope("orders", ReadFrom::Sequence(0)),
        credit_bytes: 1,
    });
    let (_, answer) = reader.receive().expect("records");
    assert!(matches!(answer, Answer::Records { .. }), "{answer:?}");
    let deleted = writer.call(&Request::DeleteFeed { feed: "orders" });
    assert!(matches!(deleted, Answer::Done {}), "{deleted:?}");
    drop(writer);
    records(&server, 3);
    send_as(&mut reader, &Request::Credit { bytes: 9_999 }, follow, 0);
    let (header, answer) = reader.receive().expect("the last answer");
    assert_eq!((header.request, header.flags), (follow, 0), "{answer:?}");
    let Answer::Refused { refusal } = answer else {
        panic!("{answer:?}");
    };
    assert_eq!(
        (refusal.code, refusal.subject),
        (ErrorCode::FeedNotFound, "orders")
    );
}

#[test]
fn connections_without_hello_take_nobodys_place() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("sealog.toml");
    std::fs::write(&file, "[serve]\nconnections_max = 2\n").unwrap();
    let server = Observed::start(&["--config", file.to_str().unwrap()]);
    let idle: Vec<_> = (0..10).map(|_| Connection::raw(server.address)).collect();
    let first = Connection::open(server.address);
    let _second = Connection::open(server.address);
    let mut third = Connection::raw(server.address);
    third.send(&hello());
    assert_eq!(refused(&mut third), (ErrorCode::Overloaded, None, Some(2)));
    drop(first);
    // Its place is free once it has ended there.
    let begun = Instant::now();
    while server.metric("sealog_connections_open", "shard=\"0\"") > 11 {
        assert!(begun.elapsed() < DEADLINE, "it is kept");
    }
    Connection::open(server.address);
    drop(idle);
}

#[test]
fn connections_that_never_say_hello_shut_nobody_out() {
    const IDLE: usize = 1_400;
    let server = Observed::start(&[]);
    let mut idle: Vec<_> = (0..IDLE).map(|_| Connection::raw(server.address)).collect();
    // It waits behind them, and is served before their time to say hello is over.
    let mut client = Connection::open(server.address);
    assert!(matches!(client.call(&Request::Ping {}), Answer::Pong {}));
    let told = refused(&mut idle[0]);
    assert_eq!(told, (ErrorCode::Overloaded, None, Some(1024)));
}

#[test]
fn log_that_stops_while_the_server_drains_is_told_by_the_status() {
    let server = Observed::start_with(&[], crate::ops::without_file_size_signal);
    let (client, _) = records(&server, 1);
    crate::ops::limit_files(&server);
    // Nothing is written before the marker that closes the log.
    server.signal(libc::SIGTERM);
    drop(client);
    let (status, lines) = server.end();
    assert_eq!(status, Some(9), "{lines:?}");
    assert_in_order(&lines, &["draining", "sealog: "]);
}

#[test]
fn bindings_beyond_the_limit_are_refused_before_anybody_is_fenced() {
    let server = Observed::start(&[]);
    let mut client = Connection::open(server.address);
    let most = u64::from(sealog_protocol::BINDINGS_MAX);
    let mut bound = 0;
    for window in 0..=most / 64 {
        let feeds: Vec<String> = (0..64).map(|n| format!("f{}", window * 64 + n)).collect();
        for feed in &feeds {
            let (keys, exclusive) = (false, false);
            client.send(&Request::CreateFeed {
                feed,
                keys,
                exclusive,
            });
        }
        for _ in &feeds {
            let (_, answer) = client.receive().expect("an answer");
            assert!(matches!(answer, Answer::Created { .. }), "{answer:?}");
        }
        for feed in feeds.iter().take(usize::try_from(most - bound).unwrap()) {
            client.send(&Request::Bind { feed });
        }
        for _ in 0..(most - bound).min(64) {
            let (_, answer) = client.receive().expect("an answer");
            assert!(matches!(answer, Answer::Bound { .. }), "{answer:?}");
            bound += 1;
        }
    }
    let over = format!("f{most}");
    for request in [Request::Bind { feed: &over }, Request::Open { feed: &over }] {
        let answer = client.call(&request);
        let Answer::Refused { refusal } = answer else {
            panic!("{answer:?}");
        };
        let told = (refusal.code, refusal.value, refusal.limit);
        assert_eq!(told, (ErrorCode::OverLimit, Some(most + 1), Some(most)));
    }
    let Answer::Feed { feed } = client.call(&Request::DescribeFeed { feed: &over }) else {
        panic!("no feed");
    };
    assert_eq!(feed.epoch, 0, "fenced for nothing");
    let known = client.call(&Request::Open { feed: "f7" });
    assert!(matches!(known, Answer::Leased { .. }), "{known:?}");
}

/// From the signal to the end of the process, of a server whose client keeps a long heartbeat.
fn time_to_end(signal: i32) -> Duration {
    let server = Observed::start(&[]);
    let mut client = connect(&server, 60_000);
    client.feed("orders");
    let begun = Instant::now();
    server.signal(signal);
    // It says goodbye, and expects the client to go.
    while client.receive().is_some() {}
    drop(client);
    let (status, lines) = server.end();
    assert_eq!(status, Some(0), "{lines:?}");
    assert_in_order(&lines, &["draining", "drained", "closed"]);
    begun.elapsed()
}

#[test]
fn end_is_prompt_when_nothing_waits() {
    // The best of some: others use the machine, too.
    let signals = [libc::SIGTERM, libc::SIGINT, libc::SIGHUP, libc::SIGTERM];
    let best = signals.into_iter().map(time_to_end).min().unwrap();
    assert!(best < Duration::from_millis(700), "{best:?}");
}

#[test]
fn hangup_that_is_ignored_stays_ignored() {
    use std::os::unix::process::CommandExt;
    let server = Observed::start_with(&[], |command| {
        let ignore = || {
            // SAFETY: a plain call, no memory involved.
            unsafe { libc::signal(libc::SIGHUP, libc::SIG_IGN) };
            Ok(())
        };
        // SAFETY: a system call only, between fork and exec; no allocation, no locks.
        unsafe { command.pre_exec(ignore) }
    });
    server.signal(libc::SIGHUP);
    let mut client = Connection::open(server.address);
    client.feed("orders");
    server.signal(libc::SIGTERM);
    let (status, lines) = server.end();
    assert_eq!(status, Some(0), "{lines:?}");
    assert_in_order(&lines, &["signal=15", "drained"]);
}

#[test]
fn folder_that_is_gone_is_in_trouble_from_the_first_try() {
    let server = without_bucket("");
    let mut client = Connection::open(server.address);
    let binding = client.feed("orders");
    client.append(binding, &[b"x"]);
    client.send(&SEAL);
    let begun = Instant::now();
    while server.metric("sealog_bucket_troubled_seconds", "") == 0 {
        assert!(begun.elapsed() < DEADLINE, "no trouble");
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(server.metric("sealog_lane_troubled_seconds", "log=\"0\"") > 0);
}

#[test]
fn connections_without_hello_keep_their_places_while_nobody_waits_for_one() {
    let server = Observed::start(&[]);
    let mut idle: Vec<_> = (0..1024).map(|_| Connection::raw(server.address)).collect();
    // All that the shard has places for, for longer than they may keep them from others.
    std::thread::sleep(Duration::from_secs(3));
    for connection in idle.iter_mut().take(8) {
        let welcome = connection.call(&hello());
        assert!(matches!(welcome, Answer::Welcome { .. }), "{welcome:?}");
    }
}

#[test]
fn connection_that_waits_for_memory_for_a_long_message_hears_that() {
    let server = Observed::start(&["--edge"]);
    let mut feeds = Connection::open(server.address);
    let binding = feeds.feed("orders");
    let payload = vec![7; 900 << 10];
    let append = Request::Append {
        binding,
        frame: Rest(&frame(&[&payload])),
    };
    let mut bytes = Vec::new();
    append.encode(9, 0, &mut bytes);
    // The beginnings of some take all there is, and wait.
    let mut holders: Vec<_> = (0..4).map(|_| Connection::open(server.address)).collect();
    for holder in &mut holders {
        holder.write(&bytes[..64 << 10]);
    }
    std::thread::sleep(Duration::from_millis(200));
    let mut waiting = connect(&server, 100);
    waiting.write(&bytes[..64 << 10]);
    let until = Instant::now() + Duration::from_secs(10);
    loop {
        let (_, heard) = waiting.receive().expect("it was closed");
        match heard {
            Answer::Busy {} => break,
            Answer::Alive {} => assert!(Instant::now() < until, "not told"),
            other => panic!("{other:?}"),
        }
    }
}
