//! Events: many readers of server-sent events, and their connections behind them.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use super::cases::resident;
use super::http::{CLOSE, TEXT, Web, offset};
use super::server::DEADLINE;

/// A connection of its own.
fn connect(web: &Web) -> TcpStream {
    let url = web.url("");
    let address = url.trim_start_matches("http://").split('/').next().unwrap();
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(DEADLINE)).unwrap();
    stream
}

fn ask(stream: &mut TcpStream, method: &str, path: &str, headers: &str, body: &[u8]) {
    let length = body.len();
    let head = format!(
        "{method} /v1/stream/{path} HTTP/1.1\r\nHost: x\r\nContent-Type: text/plain\r\n{headers}Content-Length: {length}\r\n\r\n"
    );
    stream.write_all(&[head.as_bytes(), body].concat()).unwrap();
}

/// What comes, up to `last`.
fn until(stream: &mut TcpStream, last: &str) -> String {
    let (mut got, mut byte) = (String::new(), [0]);
    while !got.ends_with(last) {
        let read = stream.read_exact(&mut byte);
        read.unwrap_or_else(|error| panic!("{error}: {got}"));
        got.push(char::from(byte[0]));
    }
    got
}

/// The text of data events.
fn text_of(events: &str) -> String {
    let data = events
        .split("\n\n")
        .filter_map(|event| event.strip_prefix("event: data\ndata:"));
    data.collect()
}

#[test]
fn readers_at_any_place_are_told_alike_and_everything_once() {
    let web = Web::start(&[]);
    web.made("s", TEXT, "");
    // Messages that end within characters, of 1 to 3 bytes.
    let text = "aä€😀".repeat(40);
    let messages: Vec<&[u8]> = text
        .as_bytes()
        .chunks(3)
        .flat_map(|three| three.chunks(2))
        .collect();
    std::thread::scope(|scope| {
        let mut readers = Vec::new();
        let mut writer = connect(&web);
        for (n, message) in messages.iter().enumerate() {
            if n % 6 == 0 {
                let from = n / 2;
                let cursor = ["", "&cursor=99999999999"][n / 6 % 2];
                let url = format!("s?live=sse&offset={}{cursor}", offset(from as u64));
                let web = &web;
                let reader = scope.spawn(move || web.events(&url, "streamClosed"));
                readers.push((from, reader));
            }
            ask(&mut writer, "POST", "s", "", message);
            let head = until(&mut writer, "\r\n\r\n");
            assert!(head.starts_with("HTTP/1.1 204"), "{head}");
        }
        std::thread::sleep(Duration::from_millis(100));
        assert_eq!(web.post("s", &[CLOSE], "").status, 204);
        for (from, reader) in readers {
            let events = reader.join().unwrap();
            let due = messages[from..].concat();
            assert_eq!(
                text_of(&events),
                String::from_utf8_lossy(&due),
                "from {from}"
            );
            let end = offset(messages.len() as u64);
            assert!(events.contains(&format!(
                "\"streamClosed\":true,\"streamNextOffset\":\"{end}\""
            )));
        }
    });
}

#[test]
fn connection_answers_on_behind_the_events_also_what_was_asked_meanwhile() {
    let web = Web::start(&[]);
    web.made("s", TEXT, "one");
    let mut reader = connect(&web);
    ask(&mut reader, "GET", "s?live=sse&offset=-1", "", b"");
    let events = until(&mut reader, "\"upToDate\":true}\n\n\r\n");
    assert!(events.contains("\r\n\r\n"), "{events}");
    assert!(
        events
            .to_ascii_lowercase()
            .contains("transfer-encoding: chunked"),
        "{events}"
    );
    // Asked before the events have ended.
    ask(&mut reader, "GET", "s?offset=-1", "", b"");
    web.post("s", &[TEXT], "two");
    let events = until(&mut reader, "\"upToDate\":true}\n\n\r\n");
    assert!(events.contains("event: data\ndata:two\n\n"), "{events}");
    web.post("s", &[CLOSE], "");
    let rest = until(&mut reader, "onetwo");
    let (events, answer) = rest.split_once("\r\n0\r\n\r\n").expect("the last chunk");
    assert!(events.contains("streamClosed"), "{rest}");
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{rest}");
    // And again, as the last there.
    ask(
        &mut reader,
        "GET",
        "s?live=sse&offset=now",
        "Connection: close\r\n",
        b"",
    );
    let mut rest = String::new();
    reader.read_to_string(&mut rest).unwrap();
    assert!(
        rest.to_ascii_lowercase().contains("connection: close"),
        "{rest}"
    );
    assert!(rest.ends_with("\r\n0\r\n\r\n"), "{rest}");
}

#[test]
fn older_http_has_the_events_without_chunks() {
    let web = Web::start(&[]);
    web.made("s", TEXT, "one");
    web.post("s", &[CLOSE], "");
    let mut reader = connect(&web);
    let request = "GET /v1/stream/s?live=sse&offset=-1 HTTP/1.0\r\nHost: x\r\n\r\n";
    reader.write_all(request.as_bytes()).unwrap();
    let mut got = String::new();
    reader.read_to_string(&mut got).unwrap();
    let (_, body) = got.split_once("\r\n\r\n").unwrap();
    assert!(
        body.starts_with("event: data\ndata:one\n\nevent: control\n"),
        "{got}"
    );
    assert!(body.ends_with("}\n\n"), "{got}");
}

#[test]
fn readers_that_wait_are_cheap_and_gone_when_they_go() {
    const READERS: u64 = 1_000;
    let web = Web::start(&[]);
    web.made("s", TEXT, "");
    let open = |count: u64| -> Vec<TcpStream> {
        // One after the other: what a request takes for a while is not counted.
        let one = |_| {
            let mut reader = connect(&web);
            ask(&mut reader, "GET", "s?live=sse&offset=now", "", b"");
            until(&mut reader, "\"upToDate\":true}\n\n\r\n");
            reader
        };
        (0..count).map(one).collect()
    };
    drop(open(READERS / 10));
    let before = resident(web.server());
    let mut readers = open(READERS);
    let each = resident(web.server()).saturating_sub(before) / READERS;
    println!("{each} bytes per reader that waits");
    assert!(each < 16 << 10, "{each} bytes per reader that waits");
    web.post("s", &[TEXT], "to all");
    for reader in &mut readers {
        let events = until(reader, "\"upToDate\":true}\n\n\r\n");
        assert!(events.contains("event: data\ndata:to all\n\n"), "{events}");
    }
}

#[test]
fn reader_that_stops_for_a_while_misses_nothing_and_holds_nobody_up() {
    const MESSAGES: usize = 300;
    let web = Web::start(&[]);
    web.made("s", TEXT, "");
    let [mut slow, mut quick] = [(); 2].map(|()| {
        let mut reader = connect(&web);
        ask(&mut reader, "GET", "s?live=sse&offset=now", "", b"");
        until(&mut reader, "\"upToDate\":true}\n\n\r\n");
        reader
    });
    let numbers = |reader: &mut TcpStream| {
        let lines = BufReader::new(reader).lines().map(Result::unwrap);
        let lines = lines.take_while(|line| line != "0");
        let texts: String = lines.filter(|line| line.starts_with("data:<")).collect();
        let numbers = texts.split('<').skip(1);
        let numbers = numbers.map(|text| text.split('>').next().unwrap().parse().unwrap());
        numbers.collect::<Vec<usize>>()
    };
    std::thread::scope(|scope| {
        let quick = scope.spawn(|| numbers(&mut quick));
        let filling = "x".repeat(64 << 10);
        for n in 0..MESSAGES {
            let posted = web.post("s", &[TEXT], &format!("<{n}>{filling}"));
            assert_eq!(posted.status, 204, "{posted:?}");
        }
        web.post("s", &[CLOSE], "");
        let all: Vec<usize> = (0..MESSAGES).collect();
        assert_eq!(quick.join().unwrap(), all);
        assert_eq!(numbers(&mut slow), all);
    });
}
