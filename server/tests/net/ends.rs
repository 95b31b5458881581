//! Ends: how connections end: peers that stall or leave, and what a drain does with what still waits.

use std::io::Write;
use std::time::{Duration, Instant};

use sealog_protocol::{ReadFrom, ReadScope, Request};

use crate::ops::{Observed, append, assert_in_order};
use crate::server::{Connection, DEADLINE, hello};

fn scope(feed: &str, from: ReadFrom) -> ReadScope<'_> {
    ReadScope {
        feed,
        stream: None,
        from,
        end: u64::MAX,
        bytes_max: 1 << 20,
        fingerprints: false,
    }
}

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
    append(&mut client, binding, &[&[7; 1 << 20]]);
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
