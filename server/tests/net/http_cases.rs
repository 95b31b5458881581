//! HTTP cases: what users of Durable Streams servers ran into, as tests with the right values.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use sealog_protocol::{Answer, Request};

use super::http::{CLOSE, Got, JSON, TEXT, Web, offset};

/// A connection that bytes are written to as they are.
struct Raw(TcpStream);

impl Raw {
    fn connect(web: &Web) -> Self {
        let stream = TcpStream::connect(address(web)).unwrap();
        stream
            .set_read_timeout(Some(Duration::from_secs(15)))
            .unwrap();
        Self(stream)
    }

    fn send(&mut self, bytes: &str) {
        self.0.write_all(bytes.as_bytes()).unwrap();
    }

    /// All that comes until the server closes, in time.
    fn rest(mut self) -> String {
        let mut got = Vec::new();
        if let Err(error) = self.0.read_to_end(&mut got) {
            assert_eq!(
                error.kind(),
                std::io::ErrorKind::ConnectionReset,
                "not closed: {error}"
            );
        }
        String::from_utf8_lossy(&got).into_owned()
    }

    /// The head of an answer without a body.
    fn head(&mut self) -> String {
        let (mut got, mut byte) = (Vec::new(), [0]);
        while !got.ends_with(b"\r\n\r\n") {
            self.0.read_exact(&mut byte).unwrap();
            got.push(byte[0]);
        }
        String::from_utf8_lossy(&got).into_owned()
    }
}

fn address(web: &Web) -> SocketAddr {
    let url = web.url("");
    let host = url.strip_prefix("http://").unwrap();
    host.split('/').next().unwrap().parse().unwrap()
}

fn path(web: &Web, stream: &str) -> String {
    let url = web.url(stream);
    let rest = url.strip_prefix("http://").unwrap();
    rest[rest.find('/').unwrap()..].to_owned()
}

fn tail(web: &Web, stream: &str) -> String {
    web.ask("HEAD", stream, &[], "").next().to_owned()
}

fn producer<'a>(sequence: &'a str, content_type: (&'a str, &'a str)) -> Vec<(&'a str, &'a str)> {
    vec![
        content_type,
        ("producer-id", "p"),
        ("producer-epoch", "0"),
        ("producer-seq", sequence),
    ]
}

#[test]
fn case_d19_body_of_two_lengths_is_no_second_request() {
    let web = Web::start(&[]);
    web.made("s", TEXT, "");
    let path = path(&web, "s");
    let head = format!("POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: text/plain\r\n");
    let second = format!("{head}Content-Length: 6\r\n\r\nsecond");
    let chunk = "5\r\nfirst\r\n0\r\n\r\n";
    let chunked = "Transfer-Encoding: chunked\r\n";
    let cases = [
        format!("{head}Content-Length: 4\r\n{chunked}\r\n{chunk}"),
        format!("{head}{chunked}Content-Length: 4\r\n\r\n{chunk}"),
        format!("{head}Content-Length: 0\r\nContent-Length: 5\r\n\r\nfirst"),
        format!("{head}{chunked}\r\n+5\r\nfirst\r\n0\r\n\r\n"),
        format!("{head}{chunked}\r\nFFFFFFFFFFFFFFFF\r\nfirst\r\n0\r\n\r\n"),
        format!("{head}{chunked}\r\n5\r\nfirst\r\n"),
        format!("{head}{chunked}\r\n{chunk}").replace("HTTP/1.1", "HTTP/1.0"),
    ];
    for case in cases {
        let mut raw = Raw::connect(&web);
        raw.send(&format!("{case}{second}"));
        let got = raw.rest();
        assert_eq!(got.matches("HTTP/1.").count(), 1, "{case:?}: {got}");
        let text = web.get("s").body;
        assert!(!text.contains("second"), "{case:?}: {text}");
    }
}

#[test]
fn case_d19_length_that_comes_in_two_ways_is_appended_once_at_most() {
    let web = Web::start(&[]);
    web.made("s", TEXT, "");
    let path = path(&web, "s");
    let mut raw = Raw::connect(&web);
    raw.send(&format!(
        "POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: text/plain\r\nTransfer-Encoding: chunked\r\n\r\n5;x\r\nfirst\r\n0\r\n\r\n"
    ));
    assert!(raw.head().starts_with("HTTP/1.1 204"));
    assert_eq!(web.get("s").body, "first");
}

#[test]
fn case_d20_long_poll_never_misses_its_append() {
    let web = Web::start(&[]);
    web.made("s", TEXT, "");
    let path = path(&web, "s");
    let mut reader = Raw::connect(&web);
    for round in 0..300_u64 {
        let from = offset(round);
        reader.send(&format!(
            "GET {path}?offset={from}&live=long-poll HTTP/1.1\r\nHost: x\r\n\r\n"
        ));
        let begun = Instant::now();
        // Before, while and after the reader begins to wait.
        while begun.elapsed() < Duration::from_micros(round % 5 * 50) {}
        assert_eq!(web.post("s", &[TEXT], "x").status, 204);
        let head = reader.head();
        assert!(head.starts_with("HTTP/1.1 200"), "round {round}: {head}");
        let mut body = [0];
        reader.0.read_exact(&mut body).unwrap();
        assert!(begun.elapsed() < Duration::from_secs(5), "round {round}");
    }
}

#[test]
fn case_d20_thousand_that_wait_are_told_of_one_append() {
    let web = Web::start(&[]);
    web.made("s", TEXT, "");
    let path = path(&web, "s");
    let ask = format!(
        "GET {path}?offset={}&live=long-poll HTTP/1.1\r\nHost: x\r\n\r\n",
        offset(0)
    );
    let mut waiting: Vec<Raw> = (0..1000).map(|_| Raw::connect(&web)).collect();
    waiting.iter_mut().for_each(|raw| raw.send(&ask));
    thread::sleep(Duration::from_millis(300));
    assert_eq!(web.post("s", &[TEXT], "x").status, 204);
    for raw in &mut waiting {
        let head = raw.head();
        assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    }
}

#[test]
fn slow_heads_and_bodies_are_cut_and_others_served() {
    let web = Web::start(&[]);
    web.made("s", TEXT, "");
    let path = path(&web, "s");
    let (mut head, mut body) = (Raw::connect(&web), Raw::connect(&web));
    let begun = Instant::now();
    head.send(&format!("GET {path} HT"));
    body.send(&format!(
        "POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: text/plain\r\nContent-Length: 100\r\n\r\nsome"
    ));
    assert_eq!(web.get("s").status, 200);
    let told = body.rest();
    assert!(told.starts_with("HTTP/1.1 408"), "{told}");
    assert!(
        told.to_ascii_lowercase().contains("connection: close"),
        "{told}"
    );
    assert_eq!(head.rest(), "");
    let took = begun.elapsed();
    assert!((9..15).contains(&took.as_secs()), "{took:?}");
    assert_eq!(web.get("s").body, "");
}

#[test]
fn case_d12_what_is_refused_moves_no_producer() {
    let web = Web::start(&[]);
    web.made("j", JSON, "");
    assert_eq!(web.post("j", &[JSON, ("stream-seq", "b")], "0").status, 204);
    let long = format!("\"{}\"", "x".repeat(17 << 20));
    let lower = [producer("0", JSON), vec![("stream-seq", "a")]].concat();
    let refused = [
        ("{broken", producer("0", JSON), 400),
        ("1", producer("0", TEXT), 409),
        ("[]", producer("0", JSON), 400),
        (long.as_str(), producer("0", JSON), 413),
        ("1", lower, 409),
    ];
    for (body, headers, status) in refused {
        assert_eq!(web.post("j", &headers, body).status, status, "{headers:?}");
    }
    let right = web.post("j", &producer("0", JSON), "1");
    assert_eq!((right.status, right.next()), (200, offset(2).as_str()));
    assert_eq!(web.get("j").body, "[0,1]");
}

#[test]
fn case_d11_first_request_that_overtakes_waits_for_its_turn() {
    let web = Web::start(&[]);
    web.made("s", TEXT, "");
    let early = web.post("s", &producer("1", TEXT), "1");
    assert_eq!(early.status, 409);
    assert_eq!(early.header("producer-expected-seq"), "0");
    assert_eq!(early.header("producer-received-seq"), "1");
    for sequence in ["0", "1"] {
        assert_eq!(
            web.post("s", &producer(sequence, TEXT), sequence).status,
            200
        );
    }
    assert_eq!(web.get("s").body, "01");
}

/// Runs `work` for each number below `count` on a thread of its own, all at once.
fn at_once(count: usize, work: impl Fn(usize) + Sync) {
    let barrier = Barrier::new(count);
    thread::scope(|scope| {
        for n in 0..count {
            let (work, barrier) = (&work, &barrier);
            scope.spawn(move || {
                barrier.wait();
                work(n);
            });
        }
    });
}

#[test]
fn case_d14_same_request_twice_at_once_is_stored_once() {
    let web = Web::start(&[]);
    web.made("s", TEXT, "");
    for sequence in ["0", "1", "2"] {
        let statuses = std::sync::Mutex::new(Vec::new());
        at_once(2, |_| {
            let got = web.post("s", &producer(sequence, TEXT), sequence);
            statuses.lock().unwrap().push(got.status);
        });
        let mut statuses = statuses.into_inner().unwrap();
        statuses.sort_unstable();
        assert_eq!(statuses, [200, 204]);
    }
    assert_eq!(web.get("s").body, "012");
    assert_eq!(tail(&web, "s"), offset(3));
}

#[test]
fn case_d14_crowd_out_of_order_ends_in_order() {
    let web = Web::start(&[]);
    web.made("s", TEXT, "");
    at_once(10, |n| {
        let sequence = (n * 7 % 10).to_string();
        loop {
            match web.post("s", &producer(&sequence, TEXT), &sequence).status {
                200 => return,
                409 => thread::sleep(Duration::from_millis(5)),
                other => panic!("{other}"),
            }
        }
    });
    assert_eq!(web.get("s").body, "0123456789");
}

#[test]
fn parallel_appends_have_offsets_of_their_own_also_after_a_crash() {
    let mut web = Web::start(&[]);
    web.made("s", JSON, "");
    let nexts = std::sync::Mutex::new(Vec::new());
    at_once(64, |n| {
        let got = web.post("s", &[JSON], &n.to_string());
        assert_eq!(got.status, 204);
        nexts.lock().unwrap().push(got.next().to_owned());
    });
    let mut nexts = nexts.into_inner().unwrap();
    nexts.sort();
    let all: Vec<String> = (1..=64).map(offset).collect();
    assert_eq!(nexts, all);
    for _ in 0..2 {
        let got = web.get("s");
        let mut values: Vec<u64> = serde_json::from_str(&got.body).unwrap();
        values.sort_unstable();
        assert_eq!(values, (0..64).collect::<Vec<u64>>());
        assert_eq!(got.next(), tail(&web, "s"));
        web.restart(&[]);
    }
}

#[test]
fn deleted_stream_stays_deleted_after_a_crash_at_once() {
    let mut web = Web::start(&[]);
    web.made("s", TEXT, "x");
    assert_eq!(web.ask("DELETE", "s", &[], "").status, 204);
    web.restart(&[]);
    assert_eq!(web.ask("HEAD", "s", &[], "").status, 404);
}

#[test]
fn last_bytes_come_before_the_end_to_whoever_waits_for_them() {
    let web = Web::start(&[]);
    for round in 0..20 {
        let stream = format!("s{round}");
        web.made(&stream, TEXT, "");
        let from = offset(0);
        thread::scope(|scope| {
            let polled = scope.spawn(|| web.get(&format!("{stream}?offset={from}&live=long-poll")));
            let events = scope
                .spawn(|| web.events(&format!("{stream}?offset={from}&live=sse"), "streamClosed"));
            thread::sleep(Duration::from_micros(round * 300));
            let closed = web.post(&stream, &[TEXT, CLOSE], "last");
            assert_eq!(closed.status, 204);
            let polled: Got = polled.join().unwrap();
            assert_eq!((polled.status, polled.body.as_str()), (200, "last"));
            let events = events.join().unwrap();
            let (data, end) = (events.find("data:last"), events.find("streamClosed"));
            assert!(data.is_some() && data < end, "{events}");
        });
    }
}

#[test]
fn closing_is_heard_whatever_the_case_of_its_word() {
    let web = Web::start(&[]);
    for (n, word) in ["true", "TRUE", "True"].iter().enumerate() {
        let stream = format!("s{n}");
        web.made(&stream, TEXT, "");
        let closed = web.post(&stream, &[("stream-closed", word)], "");
        assert_eq!(
            (closed.status, closed.header("stream-closed")),
            (204, "true")
        );
    }
    web.made("open", TEXT, "");
    for word in ["false", "1", "yes", ""] {
        let got = web.post("open", &[TEXT, ("stream-closed", word)], "x");
        assert_eq!(
            (got.status, got.header("stream-closed")),
            (204, ""),
            "{word:?}"
        );
    }
}

#[test]
fn entity_tags_tell_a_closing_and_a_stream_made_again() {
    let web = Web::start(&[]);
    web.made("s", TEXT, "one");
    let etag = web.get("s").header("etag").to_owned();
    let again = |tag: &str| web.ask("GET", "s", &[("if-none-match", tag)], "");
    assert_eq!(again(&etag).status, 304);
    assert_eq!(again(&format!("\"other\", W/{etag}")).status, 304);
    assert_eq!(web.post("s", &[CLOSE], "").status, 204);
    let closed = again(&etag);
    assert_eq!(
        (closed.status, closed.header("stream-closed")),
        (200, "true")
    );
    assert_eq!(web.ask("DELETE", "s", &[], "").status, 204);
    web.made("s", TEXT, "two");
    let other = again(&etag);
    assert_eq!((other.status, other.body.as_str()), (200, "two"));
}

#[test]
fn deleting_what_was_just_closed_harms_nobody_else() {
    let web = Web::start(&[]);
    for round in 0..150 {
        let stream = format!("s{round}");
        web.made(&stream, TEXT, "x");
        assert_eq!(web.post(&stream, &[CLOSE], "").status, 204);
        // The closed stream is on its way to the bucket meanwhile.
        thread::sleep(Duration::from_micros(round * 100));
        let deleted = web.ask("DELETE", &stream, &[], "");
        assert_eq!(deleted.status, 204, "round {round}: {deleted:?}");
    }
    web.made("other", TEXT, "x");
    assert_eq!(web.get("other").body, "x");
}

#[test]
fn what_comes_after_now_is_kept_by_no_cache() {
    let web = Web::start(&[]);
    web.made("s", TEXT, "");
    for text in ["one", "two"] {
        let got = thread::scope(|scope| {
            let poll = scope.spawn(|| web.get("s?live=long-poll&offset=now"));
            thread::sleep(Duration::from_millis(300));
            assert_eq!(web.post("s", &[TEXT], text).status, 204);
            poll.join().unwrap()
        });
        let told = (got.header("cache-control"), got.header("etag"));
        assert_eq!((got.body.as_str(), told), (text, ("no-store", "")));
    }
    let read = web.get("s?live=long-poll&offset=-1");
    let kept = read.header("cache-control").starts_with("public");
    assert!(kept && !read.header("etag").is_empty(), "{read:?}");
}

#[test]
fn case_r10_events_are_made_for_proxies_and_go_on_after_a_planned_end() {
    let web = Web::start(&[]);
    web.made("s", TEXT, "x");
    let mut raw = Raw::connect(&web);
    let path = path(&web, "s");
    raw.send(&format!(
        "GET {path}?offset=-1&live=sse HTTP/1.1\r\nHost: x\r\nAccept-Encoding: gzip\r\n\r\n"
    ));
    let head = raw.head().to_ascii_lowercase();
    assert!(head.contains("x-accel-buffering: no"), "{head}");
    assert!(head.contains("cache-control: no-cache"), "{head}");
    assert!(!head.contains("content-encoding"), "{head}");
    assert!(!head.contains("content-length"), "{head}");
}

#[test]
fn case_r11_each_data_event_is_one_json_array_with_a_control_event_behind_it() {
    let web = Web::start(&[]);
    web.made("s", JSON, "");
    let hostile = "\"a\\nevent: control\\r\\ndata: {}\"";
    for body in ["[1,2,3]", hostile, "{\"end\":true}"] {
        assert_eq!(web.post("s", &[JSON], body).status, 204);
    }
    let events = web.events("s?offset=-1&live=sse", "upToDate");
    let events: Vec<&str> = events.split("\n\n").filter(|e| !e.is_empty()).collect();
    let mut values = Vec::new();
    for pair in events.chunks(2) {
        let [data, control] = pair else {
            panic!("{events:?}")
        };
        let data = data.strip_prefix("event: data\n").unwrap();
        let lines: Vec<&str> = data
            .lines()
            .map(|l| l.strip_prefix("data:").unwrap())
            .collect();
        let array: Vec<serde_json::Value> = serde_json::from_str(&lines.join("\n")).unwrap();
        values.extend(array);
        assert!(control.starts_with("event: control\ndata:{"), "{control}");
        assert!(control.contains("\"streamNextOffset\":"), "{control}");
    }
    let texts: Vec<String> = values.iter().map(ToString::to_string).collect();
    assert_eq!(texts, ["1", "2", "3", hostile, "{\"end\":true}"]);
}

#[test]
fn empty_stream_has_an_offset_that_can_be_resumed() {
    let web = Web::start(&[]);
    for content_type in [TEXT, JSON] {
        let stream = content_type.1;
        web.made(stream, content_type, "");
        let got = web.get(stream);
        let next = got.next().to_owned();
        assert!(!matches!(next.as_str(), "" | "-1" | "now"));
        assert_eq!(web.post(stream, &[content_type], "1").status, 204);
        let resumed = web.get(&format!("{stream}?offset={next}"));
        assert_eq!(resumed.body.trim_matches(['[', ']']), "1");
    }
}

#[test]
fn stream_seq_is_as_durable_as_what_came_with_it() {
    let mut web = Web::start(&[]);
    web.made("s", TEXT, "");
    let with = |sequence: &'static str| [TEXT, ("stream-seq", sequence)];
    assert_eq!(web.post("s", &with("2"), "a").status, 204);
    assert_eq!(web.post("s", &with("10"), "x").status, 409);
    let closing_late = [("stream-seq", "1"), CLOSE];
    assert_eq!(web.post("s", &closing_late, "").status, 409);
    web.restart(&[]);
    for behind in ["2", "1", ""] {
        assert_eq!(web.post("s", &with(behind), "x").status, 409, "{behind:?}");
    }
    let produced = [producer("0", TEXT), vec![("stream-seq", "3")]].concat();
    assert_eq!(web.post("s", &produced, "b").status, 200);
    // A duplicate is told, although its number is behind by now.
    assert_eq!(web.post("s", &produced, "b").status, 204);
    web.restart(&[]);
    assert_eq!(web.post("s", &with("3"), "x").status, 409);
    let statuses = std::sync::Mutex::new(Vec::new());
    at_once(4, |_| {
        let got = web.post("s", &with("4"), "c");
        statuses.lock().unwrap().push(got.status);
    });
    let mut statuses = statuses.into_inner().unwrap();
    statuses.sort_unstable();
    assert_eq!(statuses, [204, 409, 409, 409]);
    assert_eq!(web.get("s").body, "abc");
    let long = "9".repeat(1025);
    let refused = web.post("s", &[TEXT, ("stream-seq", &long)], "x");
    assert_eq!(refused.status, 400);
    assert!(refused.body.contains("1025") && refused.body.contains("1024"));
    let fork = [TEXT, ("stream-forked-from", "/v1/stream/s")];
    assert_eq!(web.ask("PUT", "f", &fork, "").status, 201);
    assert_eq!(web.post("f", &with("1"), "d").status, 204);
    assert_eq!(web.get("f").body, "abcd");
}

#[test]
fn expired_stream_goes_without_being_asked_for() {
    let web = Web::start(&[]);
    let short = [TEXT, ("stream-ttl", "1")];
    assert_eq!(web.ask("PUT", "short", &short, "x").status, 201);
    web.made("kept", TEXT, "x");
    let mut server = web.server().connect();
    let list = Request::ListFeeds {
        prefix: "",
        after: "",
        limit: 10,
    };
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        let feeds = match server.call(&list) {
            Answer::Feeds { feeds } => feeds.len(),
            other => panic!("{other:?}"),
        };
        if feeds == 1 {
            return;
        }
        assert!(Instant::now() < deadline, "{feeds} feeds");
        thread::sleep(Duration::from_millis(200));
    }
}

#[test]
fn answer_that_is_full_at_the_very_end_tells_of_the_closing() {
    let web = Web::start(&[]);
    let long = "x".repeat(2 << 20);
    web.made("s", TEXT, &long);
    let etag = web.get("s").header("etag").to_owned();
    assert_eq!(web.post("s", &[CLOSE], "").status, 204);
    // Its tag was the open stream's, too: who had that was told that nothing had changed.
    let got = web.ask("GET", "s", &[("if-none-match", &etag)], "");
    assert_eq!(
        (got.status, got.body.len(), got.header("stream-closed")),
        (200, long.len(), "true")
    );
}

#[test]
fn connection_stays_behind_a_body_that_was_not_looked_at() {
    // It was closed without a word: the client's next request on it was lost, or the answer was.
    let web = Web::start(&[]);
    web.made("s", TEXT, "x");
    let long = "x".repeat(3 << 20);
    let mut raw = Raw::connect(&web);
    for (method, stream, status) in [
        ("PUT", "s", "200"),
        ("POST", "none", "404"),
        ("DELETE", "none", "404"),
        ("PATCH", "s", "405"),
        ("PUT", "%ff", "400"),
        ("POST", "__ds/none", "404"),
    ] {
        let path = path(&web, stream);
        let bytes = long.len();
        raw.send(&format!(
            "{method} {path} HTTP/1.1\r\nHost: x\r\nContent-Type: text/plain\r\nContent-Length: {bytes}\r\n\r\n{long}"
        ));
        let head = raw.head();
        assert!(head.contains(status), "{method} {stream}: {head}");
        let length = head.split("content-length: ").nth(1);
        let length = length.map_or(0, |rest| rest.lines().next().unwrap().parse().unwrap());
        raw.0.read_exact(&mut vec![0; length]).unwrap();
    }
}

#[test]
fn stream_deleted_while_its_closing_is_published_leaves_the_log_sound() {
    // Its manifest was logged though the stream had gone meanwhile: the log was poisoned by that.
    let web = Web::start(&[]);
    for round in 0..200 {
        let made = web.ask("PUT", "s", &[TEXT, CLOSE], "x");
        assert_eq!(made.status, 201, "round {round}: {made:?}");
        thread::sleep(Duration::from_micros(round * 211 % 8000));
        let gone = web.ask("DELETE", "s", &[], "");
        assert_eq!(gone.status, 204, "round {round}: {gone:?}");
    }
    web.made("s", TEXT, "sound");
}
