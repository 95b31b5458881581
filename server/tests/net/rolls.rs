//! Rolls: a stream over HTTP that is not closed, and what it has become behind its readers' backs.

use std::fmt::Write;
use std::time::{Duration, Instant};

use sealog_protocol::{Answer, Request};

use super::http::{CLOSE, TEXT, Web, offset};
use super::server::DEADLINE;

/// First and end sequence of each commit of a stream.
fn commits(web: &Web, feed: &str) -> Vec<(u64, u64)> {
    let request = Request::ListCommits {
        feed,
        from: 0,
        limit: 1000,
    };
    match web.server().connect().call(&request) {
        Answer::Commits { commits } => commits.iter().map(|c| (c.first, c.end)).collect(),
        other => panic!("{other:?}"),
    }
}

/// Waits for commits up to sequence `end`, without a gap.
fn committed(web: &Web, feed: &str, end: u64) -> Vec<(u64, u64)> {
    let begun = Instant::now();
    loop {
        let found = commits(web, feed);
        let whole = found.windows(2).all(|pair| pair[0].1 == pair[1].0);
        assert!(
            whole && found.first().is_none_or(|first| first.0 == 0),
            "{found:?}"
        );
        if found.last().is_some_and(|last| last.1 >= end) {
            return found;
        }
        assert!(begun.elapsed() < DEADLINE, "{found:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Everything from a sequence on, and whether the stream ends there.
fn whole(web: &Web, stream: &str, from: u64) -> (String, bool) {
    let (mut all, mut next) = (String::new(), offset(from));
    loop {
        let got = web.get(&format!("{stream}?offset={next}"));
        assert_eq!(got.status, 200, "{got:?}");
        all.push_str(&got.body);
        next = got.next().to_owned();
        if got.header("stream-up-to-date") == "true" {
            return (all, got.header("stream-closed") == "true");
        }
    }
}

#[test]
fn stream_that_rolled_reads_whole_and_shows_its_commits() {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "roll.bytes = \"16 KiB\"\n").unwrap();
    let config = ["--config", file.path().to_str().unwrap()];
    let mut web = Web::start(&config);
    web.made("s", TEXT, "");
    let mut all = String::new();
    let send = |web: &Web, number: usize, body: &str| {
        let sequence = number.to_string();
        let headers = [
            TEXT,
            ("producer-id", "p"),
            ("producer-epoch", "0"),
            ("producer-seq", &sequence),
            ("stream-seq", &format!("{number:08}")),
        ];
        web.post("s", &headers, body).status
    };
    let message = |number: usize| format!("{number:>1000}");
    for number in 0..80 {
        write!(all, "{}", message(number)).unwrap();
        assert_eq!(send(&web, number, &message(number)), 200);
        // The answer got lost.
        assert_eq!(send(&web, number, &message(number)), 204, "{number}");
    }
    // 16 messages, with 32 bytes each for their records.
    let parts: Vec<_> = (0..5).map(|part| (part * 16, part * 16 + 16)).collect();
    assert_eq!(committed(&web, "s", 80), parts);
    assert!(whole(&web, "s", 0) == (all.clone(), false));
    assert!(whole(&web, "s", 30) == (all[30 * 1000..].to_owned(), false));
    web.restart(&config);
    assert_eq!(committed(&web, "s", 80), parts);
    let late = web.post("s", &[TEXT, ("stream-seq", "00000041")], "late");
    assert_eq!(late.status, 409, "{late:?}");
    assert_eq!(send(&web, 80, "last"), 200);
    let closed = web.post("s", &[CLOSE], "");
    assert_eq!((closed.status, closed.next()), (204, &*offset(81)));
    all.push_str("last");
    assert!(whole(&web, "s", 64) == (all[64 * 1000..].to_owned(), true));
    assert_eq!(committed(&web, "s", 81).last(), Some(&(80, 81)));
}

#[test]
fn quiet_stream_is_committed_for_its_age() {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "roll.after_ms = 1000\n").unwrap();
    let web = Web::start(&["--config", file.path().to_str().unwrap()]);
    web.made("s", TEXT, "one");
    assert_eq!(committed(&web, "s", 1), [(0, 1)]);
    assert_eq!(web.post("s", &[TEXT], "two").status, 204);
    assert_eq!(whole(&web, "s", 0).0, "onetwo");
    assert_eq!(committed(&web, "s", 2), [(0, 1), (1, 2)]);
}
