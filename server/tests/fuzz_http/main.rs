//! Fuzz HTTP: Durable Streams by its grammar, well and badly spoken, to one server by a few workers.
//!
//! **Invariants**
//! - No answer is a 5xx, none is missing, none is late; the server lives and its memory stays bounded.
//! - A stream holds what its appends were acknowledged for, whatever else is said to the server.
//! - `SEALOG_FUZZ_HTTP_SECONDS` is how long it takes, `SEALOG_FUZZ_HTTP_SEED` what it does; a failure prints the seed.
//!
//! **Not here**: the smallest tests of what it found (`net/http_cases.rs`).
#![allow(clippy::unwrap_used, reason = "tests report by panicking")]

mod grammar;
mod model;
mod prng;
#[path = "../net/server.rs"]
#[allow(dead_code, reason = "shared with the tests of the protocol")]
mod server;
mod wire;
mod worker;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};

use server::Server;
use wire::{Request, Wire};
use worker::Worker;

/// Workers, each with streams of its own.
const WORKERS: u64 = 3;
/// Most that the server's memory may grow by: what it may use in all, by its own settings.
const GROWTH_BYTES_MAX: u64 = 512 << 20;

fn setting(name: &str, default: u64) -> u64 {
    let given = std::env::var(name).ok();
    given.map_or(default, |text| text.parse().unwrap())
}

fn status(server: &Server) -> String {
    std::fs::read_to_string(format!("/proc/{}/status", server.pid())).unwrap()
}

fn is_running(server: &Server) -> bool {
    !status(server).contains("State:\tZ")
}

/// Memory of the process that is its own.
fn memory(server: &Server) -> u64 {
    let status = status(server);
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("RssAnon:"));
    let kib = line.and_then(|rest| rest.split_whitespace().next());
    kib.unwrap().parse::<u64>().unwrap() << 10
}

#[test]
fn grammar_of_durable_streams_is_answered_whatever_is_said() {
    let seconds = setting("SEALOG_FUZZ_HTTP_SECONDS", 5);
    let now = SystemTime::UNIX_EPOCH.elapsed().unwrap().as_nanos();
    let seed = setting("SEALOG_FUZZ_HTTP_SEED", now as u64 % 1_000_000_007);
    println!("SEALOG_FUZZ_HTTP_SEED={seed}, {seconds} s");
    let dir = tempfile::tempdir().unwrap();
    let mut server = Server::start(dir.path(), &["--http-listen", "127.0.0.1:0"]);
    let url = server.http.clone().unwrap();
    let host = url.trim_start_matches("http://").split('/').next().unwrap();
    let address = host.parse().unwrap();
    let before = memory(&server);
    let until = Instant::now() + Duration::from_secs(seconds);
    let failed = AtomicBool::new(false);
    let counts = std::thread::scope(|scope| {
        scope.spawn(|| {
            while Instant::now() < until && !failed.load(Ordering::Relaxed) {
                println!("memory: {} MiB", memory(&server) >> 20);
                std::thread::sleep(Duration::from_secs((seconds / 6).clamp(1, 30)));
            }
        });
        let workers: Vec<_> = (0..WORKERS)
            .map(|number| {
                let worker = Worker::new(number, seed, address, seconds >= 30);
                scope.spawn(|| worker.run(until, &failed))
            })
            .collect();
        let joined = workers.into_iter().map(|worker| worker.join());
        joined.collect::<Vec<_>>()
    });
    let lives = is_running(&server);
    let failed = failed.load(Ordering::Relaxed);
    assert!(
        !failed && lives,
        "SEALOG_FUZZ_HTTP_SEED={seed}; server runs: {lives}"
    );
    let after = memory(&server);
    let mut last = Wire::connect(address);
    let mut bytes = Vec::new();
    Request::plain("GET", "alive").encode(&mut bytes);
    last.send(&bytes);
    let answer = last.answer("GET", Instant::now() + Duration::from_secs(10));
    assert_eq!(answer.unwrap().status, 404);
    let grown = after.saturating_sub(before);
    println!("memory: {} MiB, then {} MiB", before >> 20, after >> 20);
    assert!(grown < GROWTH_BYTES_MAX, "memory grew by {grown} bytes");
    for count in counts.into_iter().flatten() {
        println!("{count}");
    }
    let begun = Instant::now();
    server.signal(libc::SIGTERM);
    assert!(server.wait().success(), "SEALOG_FUZZ_HTTP_SEED={seed}");
    println!("ended in {:?}", begun.elapsed());
}
