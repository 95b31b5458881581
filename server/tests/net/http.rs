//! HTTP: Durable Streams over HTTP, from the outside, beside the native protocol.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use sealog_protocol::{Answer, ReadFrom, ReadScope, Request};
use ureq::Agent;
use ureq::http::{HeaderMap, Response};

use super::server::{DEADLINE, Server};

/// A server that speaks HTTP, and how it is spoken to.
pub(super) struct Web {
    pub(super) server: Option<Server>,
    dir: tempfile::TempDir,
    agent: Agent,
}

/// What came back.
#[derive(Debug)]
pub(super) struct Got {
    pub(super) status: u16,
    pub(super) headers: HeaderMap,
    pub(super) body: String,
}

impl Got {
    pub(super) fn header(&self, name: &str) -> &str {
        let value = self.headers.get(name);
        value.map_or("", |value| value.to_str().unwrap())
    }

    pub(super) fn next(&self) -> &str {
        self.header("stream-next-offset")
    }
}

pub(super) type Headers<'a> = &'a [(&'a str, &'a str)];

pub(super) const TEXT: (&str, &str) = ("content-type", "text/plain");
pub(super) const JSON: (&str, &str) = ("content-type", "application/json");
pub(super) const CLOSE: (&str, &str) = ("stream-closed", "true");

pub(super) fn offset(next: u64) -> String {
    format!("{:016}_{next:016}", 0)
}

impl Web {
    pub(super) fn start(args: &[&str]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let config = Agent::config_builder()
            .http_status_as_error(false)
            .timeout_global(Some(DEADLINE));
        let mut web = Self {
            server: None,
            dir,
            agent: config.build().into(),
        };
        web.restart(args);
        web
    }

    /// Ends the server as if the machine had failed, and starts another.
    pub(super) fn restart(&mut self, args: &[&str]) {
        self.server = None;
        let elsewhere = args.contains(&"--http-listen");
        let listen: &[&str] = match elsewhere {
            true => &[],
            false => &["--http-listen", "127.0.0.1:0"],
        };
        let args = [listen, args].concat();
        self.server = Some(Server::start(self.dir.path(), &args));
    }

    /// The server as it is reached otherwise.
    pub(super) fn server(&self) -> &Server {
        self.server.as_ref().unwrap()
    }

    pub(super) fn url(&self, stream: &str) -> String {
        let server = self.server.as_ref().unwrap();
        format!("{}{stream}", server.http.as_ref().unwrap())
    }

    pub(super) fn ask(&self, method: &str, stream: &str, headers: Headers<'_>, body: &str) -> Got {
        let mut request = ureq::http::Request::builder()
            .method(method)
            .uri(self.url(stream));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let answered = match body {
            "" => self.agent.run(request.body(()).unwrap()),
            body => self.agent.run(request.body(body.to_owned()).unwrap()),
        };
        taken(answered.unwrap())
    }

    pub(super) fn get(&self, stream: &str) -> Got {
        self.ask("GET", stream, &[], "")
    }

    pub(super) fn post(&self, stream: &str, headers: Headers<'_>, body: &str) -> Got {
        self.ask("POST", stream, headers, body)
    }

    /// A stream with this content, made here.
    pub(super) fn made(&self, stream: &str, content_type: (&str, &str), body: &str) {
        let made = self.ask("PUT", stream, &[content_type], body);
        assert_eq!(made.status, 201, "{made:?}");
    }

    /// Events of a stream, as text, up to `last`.
    pub(super) fn events(&self, stream: &str, last: &str) -> String {
        let mut response = self.agent.get(self.url(stream)).call().unwrap();
        assert_eq!(response.status(), 200);
        let mut reader = response.body_mut().as_reader();
        let (mut got, mut byte) = (Vec::new(), [0; 1024]);
        loop {
            let text = String::from_utf8_lossy(&got).into_owned();
            if text.contains(last) && text.ends_with("\n\n") {
                return text;
            }
            match reader.read(&mut byte).unwrap() {
                0 => panic!("the events ended: {text}"),
                read => got.extend_from_slice(&byte[..read]),
            }
        }
    }
}

fn taken(mut response: Response<ureq::Body>) -> Got {
    Got {
        status: response.status().as_u16(),
        headers: response.headers().clone(),
        body: response.body_mut().read_to_string().unwrap(),
    }
}

#[test]
fn stream_is_made_written_read_described_and_deleted() {
    let web = Web::start(&[]);
    assert_eq!(web.get("s").status, 404);
    let made = web.ask("PUT", "s", &[TEXT], "one,");
    assert_eq!((made.status, made.next()), (201, offset(1).as_str()));
    assert_eq!(made.header("location"), web.url("s"));
    assert_eq!(web.ask("PUT", "s", &[TEXT], "other").status, 200);
    assert_eq!(web.ask("PUT", "s", &[JSON], "").status, 409);
    let appended = web.post("s", &[("content-type", "Text/Plain; charset=utf-8")], "two");
    assert_eq!(
        (appended.status, appended.next()),
        (204, offset(2).as_str())
    );
    let got = web.get("s");
    assert_eq!((got.status, got.body.as_str()), (200, "one,two"));
    assert_eq!(got.header("stream-up-to-date"), "true");
    assert_eq!(got.header("x-content-type-options"), "nosniff");
    assert_eq!(web.get(&format!("s?offset={}", offset(1))).body, "two");
    let same = web.ask("GET", "s", &[("if-none-match", got.header("etag"))], "");
    assert_eq!(same.status, 304);
    let described = web.ask("HEAD", "s", &[], "");
    assert_eq!(described.header("content-type"), "text/plain");
    assert_eq!(described.next(), offset(2));
    assert_eq!(web.ask("DELETE", "s", &[], "").status, 204);
    assert_eq!(web.ask("DELETE", "s", &[], "").status, 404);
    // Another stream of that name has nothing of the first: not even its tags.
    web.made("s", TEXT, "ONE,TWO");
    let anew = web.ask("GET", "s", &[("if-none-match", got.header("etag"))], "");
    assert_eq!((anew.status, anew.body.as_str()), (200, "ONE,TWO"));
}

#[test]
fn what_makes_no_sense_is_refused_with_a_line_that_says_why() {
    let web = Web::start(&[]);
    web.made("s", TEXT, "");
    web.made("j", JSON, "[]");
    let cases: &[(&str, &str, Headers<'_>, &str, u16, &str)] = &[
        ("POST", "s", &[TEXT], "", 400, "an empty body"),
        (
            "POST",
            "s",
            &[JSON],
            "{}",
            409,
            "application/json is not the stream's, text/plain",
        ),
        ("POST", "j", &[JSON], "{", 400, "not JSON"),
        ("POST", "j", &[JSON], "[]", 400, "empty array"),
        ("POST", "none", &[TEXT], "x", 404, "no such stream"),
        ("PATCH", "s", &[], "", 405, "PUT, POST, GET"),
        ("GET", "s?offset=7", &[], "", 400, "offset \"7\""),
        ("GET", "s?offset=-1&offset=-1", &[], "", 400, "twice"),
        ("GET", "s?live=sse", &[], "", 400, "needs an offset"),
        (
            "PUT",
            "t",
            &[("stream-ttl", "05")],
            "",
            400,
            "Stream-TTL \"05\"",
        ),
        (
            "PUT",
            "t",
            &[("stream-expires-at", "soon")],
            "",
            400,
            "\"soon\" is not RFC 3339",
        ),
        (
            "POST",
            "s",
            &[TEXT, ("producer-id", "p")],
            "x",
            400,
            "come together",
        ),
        ("PUT", "%ff", &[], "", 400, "UTF-8"),
    ];
    for (method, stream, headers, body, status, text) in cases {
        let got = web.ask(method, stream, headers, body);
        assert_eq!(got.status, *status, "{method} {stream}: {got:?}");
        assert!(got.body.contains(text), "{method} {stream}: {got:?}");
        assert_eq!(got.header("x-content-type-options"), "nosniff");
    }
    let long = "x".repeat((16 << 20) + 1);
    let got = web.post("s", &[TEXT], &long);
    assert_eq!(got.status, 413, "{got:?}");
    assert!(got.body.contains("16777216 bytes"), "{got:?}");
}

#[test]
fn json_values_are_messages_one_level_deep() {
    let web = Web::start(&[]);
    web.made("j", JSON, "");
    for (body, next) in [("[1, {\"a\": [2]}]", 2), ("[[3,4]]", 3), (" \"five\" ", 4)] {
        assert_eq!(web.post("j", &[JSON], body).next(), offset(next));
    }
    let got = web.get("j");
    assert_eq!(got.body, "[1,{\"a\": [2]},[3,4],\"five\"]");
    assert_eq!(
        web.get(&format!("j?offset={}", offset(2))).body,
        "[[3,4],\"five\"]"
    );
    assert_eq!(web.get(&format!("j?offset={}", offset(4))).body, "[]");
}

/// Headers of a producer's request.
fn producer<'a>(epoch: &'a str, sequence: &'a str) -> Vec<(&'a str, &'a str)> {
    vec![
        TEXT,
        ("producer-id", "p"),
        ("producer-epoch", epoch),
        ("producer-seq", sequence),
    ]
}

#[test]
fn producers_are_exactly_once_and_told_where_they_stand_also_after_a_crash() {
    let mut web = Web::start(&[]);
    web.made("s", TEXT, "");
    let asked = |web: &Web, epoch, sequence| web.post("s", &producer(epoch, sequence), "x");
    assert_eq!(asked(&web, "0", "1").status, 409);
    for (sequence, status) in [("0", 200), ("0", 204), ("1", 200), ("0", 204)] {
        let got = asked(&web, "0", sequence);
        assert_eq!(got.status, status, "{sequence}: {got:?}");
    }
    web.restart(&[]);
    let again = asked(&web, "0", "1");
    assert_eq!((again.status, again.next()), (204, offset(2).as_str()));
    assert_eq!(
        (again.header("producer-epoch"), again.header("producer-seq")),
        ("0", "1")
    );
    let gap = asked(&web, "0", "7");
    let told = (
        gap.header("producer-expected-seq"),
        gap.header("producer-received-seq"),
    );
    assert_eq!((gap.status, told), (409, ("2", "7")));
    assert_eq!(asked(&web, "3", "1").status, 400);
    assert_eq!(asked(&web, "3", "0").status, 200);
    let fenced = asked(&web, "0", "2");
    assert_eq!((fenced.status, fenced.header("producer-epoch")), (403, "3"));
    assert_eq!(web.get("s").body, "xxx");
}

#[test]
fn closed_stream_stays_closed_and_knows_who_closed_it_after_a_crash() {
    let mut web = Web::start(&[]);
    web.made("s", TEXT, "one");
    web.made("t", TEXT, "");
    let last = [&producer("0", "0")[..], &[("stream-closed", "TRUE")]].concat();
    let closed = web.post("s", &last, "two");
    assert_eq!(
        (closed.status, closed.header("stream-closed")),
        (200, "true")
    );
    assert_eq!(web.post("t", &[CLOSE], "").status, 204);
    web.restart(&[]);
    assert_eq!(web.post("s", &last, "two").status, 204);
    assert_eq!(web.post("t", &[CLOSE], "").status, 204);
    for (stream, headers, body) in [
        ("s", &[TEXT][..], "x"),
        ("s", &[JSON], "x"),
        ("s", &producer("0", "1"), "x"),
        ("t", &[TEXT, CLOSE], "x"),
    ] {
        let refused = web.post(stream, headers, body);
        assert_eq!(refused.status, 409, "{refused:?}");
        assert_eq!(refused.header("stream-closed"), "true");
    }
    let got = web.get("s");
    assert_eq!(
        (got.body.as_str(), got.header("stream-closed")),
        ("onetwo", "true")
    );
    assert_eq!(
        web.ask("HEAD", "t", &[], "").header("content-type"),
        "text/plain"
    );
    let end = web.get(&format!("s?live=long-poll&offset={}", offset(2)));
    assert_eq!((end.status, end.header("stream-closed")), (204, "true"));
    let events = web.events("s?live=sse&offset=-1", "streamClosed");
    assert!(
        events.starts_with("event: data\ndata:onetwo\n\nevent: control\n"),
        "{events}"
    );
}

#[test]
fn readers_at_the_tail_get_what_comes_and_then_the_end() {
    let web = Web::start(&[]);
    web.made("s", TEXT, "one");
    std::thread::scope(|scope| {
        let poll = scope.spawn(|| web.get("s?live=long-poll&offset=now"));
        let events = scope.spawn(|| web.events("s?live=sse&offset=now", "streamClosed"));
        std::thread::sleep(Duration::from_millis(200));
        assert_eq!(web.post("s", &[TEXT, CLOSE], "last").status, 204);
        let got = poll.join().unwrap();
        assert_eq!((got.status, got.body.as_str()), (200, "last"));
        assert!(!got.header("stream-cursor").is_empty());
        let events = events.join().unwrap();
        let data = events.find("data:last").expect("the last bytes");
        assert!(data < events.find("streamClosed").unwrap(), "{events}");
    });
}

#[test]
fn events_hold_whole_characters_and_nothing_but_the_servers_events() {
    let web = Web::start(&[]);
    web.made("s", TEXT, "");
    let euro = "€".as_bytes();
    for part in [
        b"a" as &[u8],
        &euro[..1],
        &euro[1..],
        b"\r\n\nevent: control\rx",
    ] {
        let request = ureq::http::Request::post(web.url("s"))
            .header(TEXT.0, TEXT.1)
            .body(part)
            .unwrap();
        assert_eq!(web.agent.run(request).unwrap().status(), 204);
    }
    web.post("s", &[CLOSE], "");
    let events = web.events("s?live=sse&offset=-1", "streamClosed");
    let (data, control) = events.split_once("\n\n").unwrap();
    let lines = "event: data\ndata:a€\ndata:\ndata:event: control\ndata:x";
    assert_eq!(data, lines, "{events}");
    assert!(control.starts_with("event: control\ndata:{"), "{events}");
    web.made("b", ("content-type", "image/png"), "\u{1}\n");
    web.post("b", &[CLOSE], "");
    let events = web.events("b?live=sse&offset=-1", "streamClosed");
    assert!(events.starts_with("event: data\ndata:AQo=\n\n"), "{events}");
}

#[test]
fn what_http_appends_native_reads_and_the_other_way_round() {
    let web = Web::start(&[]);
    web.made("a/b", TEXT, "web");
    let mut native = web.server.as_ref().unwrap().connect();
    let bound = native.call(&Request::Bind { feed: "a/b" });
    let Answer::Bound { binding, .. } = bound else {
        panic!("{bound:?}");
    };
    native.append(binding, &[b"native"]);
    assert_eq!(web.get("a/b").body, "webnative");
    let scope = ReadScope {
        feed: "a/b",
        feed_id: None,
        stream: None,
        from: ReadFrom::Sequence(0),
        end: u64::MAX,
        bytes_max: 1 << 20,
        fingerprints: false,
    };
    let read = native.call(&Request::Read { scope, wait_ms: 0 });
    let Answer::Records { records } = &read else {
        panic!("{read:?}");
    };
    assert_eq!((records.next, records.ended), (2, false));
    assert_eq!(web.post("a/b", &[CLOSE], "").status, 204);
    let refused = native.call(&Request::Open { feed: "a/b" });
    assert!(format!("{refused:?}").contains("FeedClosed"), "{refused:?}");
}

#[test]
fn lifetime_that_slides_ends_unless_it_is_touched_and_frees_the_name() {
    let web = Web::start(&[]);
    let ttl = [TEXT, ("stream-ttl", "2")];
    for stream in ["quiet", "touched"] {
        assert_eq!(web.ask("PUT", stream, &ttl, "x").status, 201);
    }
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_millis(2600) {
        std::thread::sleep(Duration::from_millis(400));
        assert_eq!(web.get("touched").status, 200);
        // Looking is not touching.
        web.ask("HEAD", "quiet", &[], "");
    }
    assert_eq!(web.get("quiet").status, 404);
    assert_eq!(web.ask("PUT", "quiet", &[JSON], "").status, 201);
    assert_eq!(web.get("quiet").body, "[]");
}

#[test]
fn token_is_asked_of_everything_but_preflights() {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "secret\n").unwrap();
    let web = Web::start(&["--token-file", file.path().to_str().unwrap()]);
    let bearer = ("authorization", "Bearer secret");
    assert_eq!(web.ask("PUT", "s", &[TEXT], "x").status, 401);
    assert_eq!(web.ask("PUT", "s", &[TEXT, bearer], "x").status, 201);
    let wrong = ("authorization", "Bearer secreT");
    assert_eq!(web.ask("GET", "s", &[wrong], "").status, 401);
    let preflight = web.ask("OPTIONS", "s", &[], "");
    assert_eq!(preflight.status, 204);
    let allowed = preflight.header("access-control-allow-headers");
    assert!(allowed.contains("If-None-Match"), "{allowed}");
}

#[test]
fn drain_ends_readers_that_wait_and_connections_that_idle() {
    let mut web = Web::start(&[]);
    web.made("s", TEXT, "x");
    let (poll, events) = (
        web.url("s?live=long-poll&offset=now"),
        web.url("s?live=sse&offset=now"),
    );
    let waiting = [poll, events].map(|url| {
        let agent = web.agent.clone();
        std::thread::spawn(move || taken(agent.get(url).call().unwrap()))
    });
    std::thread::sleep(Duration::from_millis(300));
    let begun = Instant::now();
    let server = web.server.as_mut().unwrap();
    server.signal(libc::SIGTERM);
    assert_eq!(server.wait().code(), Some(0));
    assert!(
        begun.elapsed() < Duration::from_secs(5),
        "{:?}",
        begun.elapsed()
    );
    let [poll, events] = waiting.map(|waiting| waiting.join().unwrap());
    assert_eq!(poll.status, 204);
    assert!(events.body.starts_with("event: control\n"), "{events:?}");
}

#[test]
fn http2_is_spoken_to_whoever_begins_with_it() {
    let web = Web::start(&[]);
    let url = web.url("");
    let address = url.trim_start_matches("http://").split('/').next().unwrap();
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(DEADLINE)).unwrap();
    stream
        .write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
        .unwrap();
    stream.write_all(&[0, 0, 0, 4, 0, 0, 0, 0, 0]).unwrap();
    let mut head = [0; 9];
    stream.read_exact(&mut head).unwrap();
    assert_eq!(head[3], 4, "SETTINGS come first: {head:?}");
}

#[test]
fn every_shard_serves_also_one_without_a_log() {
    let config = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(config.path(), "shards = 2\nlogs = 1\n").unwrap();
    let mut web = Web::start(&["--config", config.path().to_str().unwrap()]);
    for n in 0..16 {
        // A connection of its own: the system deals them out to the shards.
        web.agent = Agent::config_builder()
            .timeout_global(Some(DEADLINE))
            .build()
            .into();
        web.made(&format!("s{n}"), TEXT, "x");
        assert_eq!(web.get(&format!("s{n}")).body, "x");
    }
    let mut server = web.server.take().unwrap();
    server.signal(libc::SIGTERM);
    assert!(server.wait().success());
}
