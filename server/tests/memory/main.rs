//! Memory: `sealog serve` under more than it can take stays within its cap, and says so where it refuses.
//!
//! ```text
//!  large: writers, open loop · followers that read nothing · messages that stop halfway
//!  small: writers of tiny batches that read no answer · lists nobody reads · the same followers
//! ```
//!
//! The process is in a memory cgroup of the cap's size where one can be made; the peak of its resident
//! memory is held against the cap everywhere. Large batches and tiny ones come one after the other.
#![allow(clippy::unwrap_used, reason = "tests report by panicking")]

mod cgroup;
mod load;
#[path = "../net/server.rs"]
#[allow(dead_code, reason = "shared with the tests of the protocol")]
mod server;

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use sealog_protocol::{Answer, ErrorCode, ReadFrom, Request};

use cgroup::Cgroup;
use load::Load;
use server::{Connection, Server, scope};

const MIB: u64 = 1 << 20;
/// How long the overload lasts.
const LASTING: Duration = Duration::from_secs(8);

/// What the program's own text may take, however it is built.
const TEXT: u64 = 8 * MIB;

/// The peak of the process's memory; of its text, which is larger in a build for tests, [`TEXT`].
fn peak(server: &Server) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", server.pid())).unwrap();
    let bytes = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        let kib = line.and_then(|rest| rest.split_whitespace().next());
        kib.unwrap().parse::<u64>().unwrap() << 10
    };
    bytes("VmHWM:") - bytes("RssFile:") + TEXT
}

/// One server at a time: what is measured is memory, not how the machine is shared.
static ALONE: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn overload(cap: u64, args: &[&str]) {
    let _alone = alone();
    let dir = tempfile::tempdir().unwrap();
    let cgroup = Cgroup::make(cap);
    let procs = cgroup.as_ref().map(Cgroup::procs);
    let server = Server::start_in(dir.path(), args, procs.as_deref());
    let load = Load::prepare(&server);
    let acknowledged = load.large(&server, Instant::now() + LASTING);
    check(&server, cap, "large batches, stalled readers");
    load.small(&server, Instant::now() + LASTING / 2);
    check(&server, cap, "tiny batches, unread answers");
    // It serves: a newcomer is welcomed, its batch stored.
    let mut newcomer = server.connect();
    let binding = newcomer.feed("newcomer");
    newcomer.append(binding, &[b"served"]);
    load::check_read_back(&server, &acknowledged);
    check(&server, cap, "reading back");
    println!(
        "{} batches acknowledged; {:?}",
        acknowledged.len(),
        cgroup.as_ref().map(Cgroup::told)
    );
}

fn check(server: &Server, cap: u64, what: &str) {
    let peak = peak(server);
    println!("{what}: peak {} of {} MiB", peak / MIB, cap / MIB);
    assert!(peak < cap, "{what}: {} of {} MiB", peak / MIB, cap / MIB);
}

#[test]
fn serve_standard_stays_within_512_mib_under_overload() {
    overload(512 * MIB, &[]);
}

#[test]
fn serve_edge_stays_within_64_mib_under_overload() {
    overload(64 * MIB, &["--edge"]);
}

#[test]
fn requests_beyond_what_may_run_are_refused_as_overloaded() {
    let _alone = alone();
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path(), &["--edge"]);
    let mut connection: Connection = server.connect();
    connection.feed("f");
    const ASKED: usize = 300;
    for _ in 0..ASKED {
        connection.send(&Request::Read {
            scope: scope("f", ReadFrom::Sequence(0)),
            wait_ms: 1000,
        });
    }
    let mut refused = 0;
    for _ in 0..ASKED {
        match connection.receive().expect("an answer").1 {
            Answer::Records { .. } => {}
            Answer::Refused { refusal } => {
                assert_eq!(refusal.code, ErrorCode::Overloaded);
                assert!(refusal.retryable);
                refused += 1;
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(refused, ASKED - 256);
}
