//! Kill: idempotent producers over HTTP, and a server that is killed under them again and again (case D10).
//!
//! **Invariants**
//! - After each start the last request that was acknowledged is a duplicate (204), the next is new (200): data and
//!   the producer's place become durable together. What was not acknowledged is either.
//! - In the end each payload is there once, in its producer's order; a stream's end never moves back.
//! - `SEALOG_HTTP_KILL_ROUNDS=200` runs the long form, `SEALOG_HTTP_KILL_SEED` sets its moments.
//!
//! **Not here**: what a machine forgets that fails (`sealog-tests`: the simulator).
#![allow(clippy::unwrap_used, reason = "tests report by panicking")]

#[path = "../fuzz_http/prng.rs"]
#[allow(dead_code, reason = "shared")]
mod prng;
mod producer;
#[path = "../net/server.rs"]
#[allow(dead_code, reason = "shared with the tests of the protocol")]
mod server;
#[path = "../fuzz_http/wire.rs"]
#[allow(dead_code, reason = "shared")]
mod wire;

use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use prng::Prng;
use producer::Producer;
use server::Server;
use wire::{Answer, Request, Silence, Wire};

/// Streams; each has two producers.
const STREAMS: usize = 3;
/// Time for an answer.
const ANSWER: Duration = Duration::from_secs(20);

fn setting(name: &str, default: u64) -> u64 {
    let given = std::env::var(name).ok();
    given.map_or(default, |text| text.parse().unwrap())
}

fn address(server: &Server) -> SocketAddr {
    let url = server.http.clone().unwrap();
    let host = url.trim_start_matches("http://").split('/').next();
    host.unwrap().parse().unwrap()
}

/// Asks on this connection.
fn ask(wire: &mut Wire, request: &Request) -> Result<Answer, Silence> {
    let mut bytes = Vec::new();
    request.encode(&mut bytes);
    match wire.send(&bytes) {
        true => wire.answer(&request.method, Instant::now() + ANSWER),
        false => Err(Silence::Closed),
    }
}

/// All lines of a stream.
fn lines(address: SocketAddr, stream: &str) -> (String, Vec<String>) {
    let mut wire = Wire::connect(address);
    let (mut text, mut offset) = (Vec::new(), "-1".to_owned());
    loop {
        let path = format!("{stream}?offset={offset}");
        let answer = ask(&mut wire, &Request::plain("GET", &path)).unwrap();
        assert_eq!(answer.status, 200, "{answer:?}");
        text.extend_from_slice(&answer.body);
        answer.next().clone_into(&mut offset);
        if answer.header("stream-up-to-date") == Some("true") {
            break;
        }
    }
    let text = String::from_utf8(text).unwrap();
    (offset, text.lines().map(str::to_owned).collect())
}

fn start(dir: &Path) -> Server {
    Server::start(dir, &["--http-listen", "127.0.0.1:0"])
}

/// Lets the producers send until the server is killed; how many requests were acknowledged.
fn round(server: Server, producers: &mut [Producer], for_long: Duration) -> u64 {
    let address = address(&server);
    std::thread::scope(|scope| {
        let run = |producer| scope.spawn(move || Producer::run(producer, address));
        let running: Vec<_> = producers.iter_mut().map(run).collect();
        std::thread::sleep(for_long);
        server.signal(libc::SIGKILL);
        // Waited for, too: its directory is free then.
        drop(server);
        running.into_iter().map(|one| one.join().unwrap()).sum()
    })
}

#[test]
fn case_d10_data_and_the_producers_place_survive_kills_together() {
    let rounds = setting("SEALOG_HTTP_KILL_ROUNDS", 10);
    let mut prng = Prng::new(setting("SEALOG_HTTP_KILL_SEED", 1));
    let dir = tempfile::tempdir().unwrap();
    let mut server = start(dir.path());
    let streams: Vec<String> = (0..STREAMS).map(|n| format!("s{n}")).collect();
    let mut wire = Wire::connect(address(&server));
    for stream in &streams {
        let made = Request::plain("PUT", stream).with("Content-Type", "text/plain");
        assert_eq!(ask(&mut wire, &made).unwrap().status, 201);
    }
    let all = streams.iter().flat_map(|s| [(s, "a"), (s, "b")]);
    let mut producers: Vec<Producer> = all.map(|(s, id)| Producer::new(s, id)).collect();
    let mut ends = vec![String::new(); STREAMS];
    let mut acknowledged = 0;
    for _ in 0..rounds {
        let millis = prng.below(120) as u64;
        acknowledged += round(server, &mut producers, Duration::from_millis(millis));
        server = start(dir.path());
        let address = address(&server);
        for (stream, end) in streams.iter().zip(&mut ends) {
            let acknowledged = producers.iter().filter(|p| p.stream == *stream);
            let least = acknowledged.map(|p| p.end.clone()).max().unwrap();
            let (now, _) = lines(address, stream);
            assert!(
                now >= *end && now >= least,
                "{stream}: {now} after {end}, {least}"
            );
            *end = now;
        }
        producers.iter_mut().for_each(|one| one.come_back(address));
    }
    let address = address(&server);
    for stream in &streams {
        let (_, lines) = lines(address, stream);
        for producer in producers.iter().filter(|p| p.stream == *stream) {
            producer.check(&lines);
        }
    }
    let unclear: u64 = producers.iter().map(|p| p.unclear).sum();
    let stored: u64 = producers.iter().map(|p| p.unclear_stored).sum();
    println!(
        "{rounds} kills: {acknowledged} requests acknowledged, {unclear} cut off, {stored} of those stored"
    );
}
