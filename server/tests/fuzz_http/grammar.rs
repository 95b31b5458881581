//! Grammar: requests of Durable Streams, as they should be and as they should not.
//!
//! **Not here**: requests whose answers are known (`model`).

use super::prng::Prng;
use super::wire::{Framing, Request};

const METHODS: &[&str] = &[
    "PUT", "POST", "GET", "HEAD", "DELETE", "OPTIONS", "PATCH", "TRACE", "CONNECT", "put", "BREW",
];
const TYPES: &[&str] = &[
    "text/plain",
    "application/json",
    "application/octet-stream",
    "TEXT/Plain; charset=utf-8",
    "application/json;",
    "",
    ";",
    "text/",
    "a/b/c; =\"",
];
const NUMBERS: &[&str] = &[
    "0",
    "1",
    "2",
    "3",
    "05",
    "-1",
    "+1",
    "1.5",
    "1e3",
    "",
    " ",
    "9007199254740991",
    "9007199254740992",
    "18446744073709551615",
    "18446744073709551616",
    "99999999999999999999999999999999999999",
    "0x10",
    "\u{663}",
    "NaN",
];
const TIMES: &[&str] = &[
    "2099-01-01T00:00:00Z",
    "1970-01-01T00:00:00Z",
    "0000-01-01T00:00:00Z",
    "9999-12-31T23:59:59.999999999+23:59",
    "0000-01-01T00:00:00+23:59",
    "2024-02-30T00:00:00Z",
    "2099-01-01t00:00:60z",
    "2099-01-01T24:00:00-99:99",
    "soon",
    "",
    "2099-01-01",
    "99999-01-01T00:00:00Z",
    "2099-13-01T00:00:00Z",
    "2099-01-01T00:00:00.Z",
];
const OFFSETS: &[&str] = &[
    "-1",
    "now",
    "0000000000000000_0000000000000000",
    "0000000000000000_0000000000000001",
    "0000000000000000_0000000000000002",
    "0000000000000000_9999999999999999",
    "9999999999999999_9999999999999999",
    "0000000000000001_0000000000000000",
    "-2",
    "NOW",
    "",
    "0_0",
    "%00",
    "a,b",
    "..%2f..",
    "+1",
    "0000000000000000_00000000000000%30",
    "0000000000000000_000000000000000%D9%A3",
    "%ff",
    "%",
    "%0d%0a",
];
const QUERIES: &[&str] = &[
    "live=long-poll",
    "live=sse",
    "live=",
    "live=true",
    "live",
    "live=sse&live=long-poll",
    "cursor=",
    "cursor=1",
    "cursor=18446744073709551615",
    "cursor=99999999999999999999",
    "cursor=%ff",
    "cursor=junk&cursor=2",
    "&&==&",
    "unknown=1",
    "offset",
    "offset=now&offset=-1",
    "%6fffset=-1",
];
const JSON: &[&str] = &[
    "1",
    "[]",
    "[1,2,{\"a\":[3]}]",
    "[[]]",
    "{}",
    "{",
    "[1,",
    "nul",
    "\"\\ud800\"",
    "1e999999",
    "-0",
    "123456789012345678901234567890.123456789012345678901234567890e-400",
    "[1] 2",
    "{\"a\":1,\"a\":2}",
    "\u{feff}1",
    " \t\r\n[ 1 , 2 ]\n",
    "\"\\u0000\"",
    "[,]",
    "'x'",
    "\u{0}",
];
const TAGS: &[&str] = &[
    "*",
    "\"\"",
    "W/\"x\"",
    "\"",
    ",,,",
    "\"a\", \"b\"",
    "W/",
    "\"\u{e9}\"",
];
const PATHS: &[&str] = &[
    "",
    "/",
    "//",
    "a//b",
    "%2e%2e/%2e%2e",
    "..",
    ".",
    "%ff",
    "%",
    "%zz",
    "%00",
    "%E2%82%AC",
    "a%2Fb",
    "__ds",
    "__ds/",
    "%5f%5fds/x",
    "__dsx",
    "a b",
    "\u{e9}",
    "?",
    "a?b?c",
    "a;b=c",
    "a#b",
    "%0d%0aX: y",
    "+",
    "~",
    "\\",
    "{}",
    "\"",
];

/// Streams that everybody does everything to.
pub const WILD: &[&str] = &["wild/0", "wild/1", "wild/2", "wild%203"];

fn path(prng: &mut Prng, own: &[String]) -> String {
    match prng.below(20) {
        0..9 if !own.is_empty() => own[prng.below(own.len())].clone(),
        0..17 => prng.pick(WILD).to_owned(),
        17 => "long/".repeat(1 + prng.below(400)),
        18 => format!("odd/{}", prng.pick(PATHS)),
        _ => prng.pick(PATHS).to_owned(),
    }
}

/// A value as it comes, or with something wrong inside.
fn bent(prng: &mut Prng, value: &str) -> Vec<u8> {
    let mut bytes = value.as_bytes().to_vec();
    if prng.once_in(30) && !bytes.is_empty() {
        let at = prng.below(bytes.len());
        bytes[at] = prng.next() as u8;
    }
    match prng.below(60) {
        0 => bytes.push(0xe9),
        1 => bytes.extend_from_slice(&b"x".repeat(1 + prng.below(9000))),
        _ => {}
    }
    // These would end the header: a request of its own is made with them elsewhere.
    bytes.retain(|byte| !matches!(byte, b'\r' | b'\n'));
    bytes
}

type Headers = Vec<(&'static str, Vec<u8>)>;

fn one(prng: &mut Prng, name: &'static str, values: &[&str]) -> Headers {
    let value = prng.pick(values);
    vec![(name, bent(prng, value))]
}

fn header(prng: &mut Prng, own: &[String]) -> Headers {
    match prng.below(13) {
        0 => one(prng, "Stream-TTL", NUMBERS),
        1 => one(prng, "Stream-Expires-At", TIMES),
        2 => one(prng, "Stream-Seq", NUMBERS),
        3 => one(prng, "Stream-Closed", &["true", "TRUE", "false", "1", ""]),
        4..7 => {
            let mut all = one(prng, "Producer-Id", &["p", "q", "", "\u{e9}", "a b"]);
            all.extend(one(prng, "Producer-Epoch", NUMBERS));
            all.extend(one(prng, "Producer-Seq", NUMBERS));
            all
        }
        7 => one(prng, "Producer-Seq", NUMBERS),
        8 | 9 => {
            let source = path(prng, own);
            let from = format!("/v1/stream/{source}");
            let mut all = vec![("Stream-Forked-From", bent(prng, &from))];
            if prng.once_in(2) {
                let offset = prng.pick(OFFSETS);
                all.push(("Stream-Fork-Offset", bent(prng, offset)));
            }
            if prng.once_in(3) {
                let sub = prng.pick(NUMBERS);
                all.push(("Stream-Fork-Sub-Offset", bent(prng, sub)));
            }
            all
        }
        10 => one(prng, "If-None-Match", TAGS),
        11 => one(prng, "Expect", &["100-continue", "200-ok"]),
        _ => one(prng, "Connection", &["close", "keep-alive", "upgrade", "x"]),
    }
}

fn body(prng: &mut Prng) -> Vec<u8> {
    match prng.below(40) {
        0..8 => Vec::new(),
        8..20 => prng.pick(JSON).as_bytes().to_vec(),
        20..34 => {
            let len = prng.below(200);
            prng.bytes(len)
        }
        34 => {
            let depth = 1 + prng.below(3000);
            [b"[".repeat(depth), b"]".repeat(depth)].concat()
        }
        35 => b"{\"a\":".repeat(1 + prng.below(3000)),
        36 => {
            let many = vec!["0"; 1 + prng.below(20_000)].join(",");
            format!("[{many}]").into_bytes()
        }
        37 => b"9".repeat(1 + prng.below(5000)),
        38 => {
            let len = prng.below(100_000);
            prng.bytes(len)
        }
        _ => format!("\"{}\"", "\\u00e9\u{20ac}".repeat(prng.below(500))).into_bytes(),
    }
}

fn framing(prng: &mut Prng, body: usize) -> Framing {
    match prng.below(40) {
        0..28 => Framing::Length,
        28..36 => Framing::Chunked(1 + body / (1 + prng.below(8))),
        36 => Framing::Lies(prng.below(2 * body + 2)),
        37 => Framing::Both,
        38 => Framing::Garbled,
        _ => Framing::None,
    }
}

/// A request of streams: of `own`, or of those that everybody has.
pub fn wild(prng: &mut Prng, own: &[String]) -> Request {
    let method = match prng.below(20) {
        0..5 => "PUT",
        5..10 => "POST",
        10..15 => "GET",
        15 => "HEAD",
        16 => "DELETE",
        _ => prng.pick(METHODS),
    };
    let mut request = Request::plain(method, &path(prng, own));
    if prng.once_in(if method == "GET" { 2 } else { 12 }) {
        let mut parts = Vec::new();
        if !prng.once_in(4) {
            parts.push(format!("offset={}", prng.pick(OFFSETS)));
        }
        for _ in 0..prng.below(3) {
            parts.push(prng.pick(QUERIES).to_owned());
        }
        request.target.push(b'?');
        request.target.extend(parts.join("&").into_bytes());
    }
    if prng.once_in(100) {
        let at = prng.below(request.target.len());
        request.target[at] = prng.next() as u8;
    }
    if !prng.once_in(8) {
        let value = prng.pick(TYPES);
        let value = bent(prng, value);
        request = request.with("Content-Type", value);
    }
    for _ in 0..prng.below(4) {
        for (name, value) in header(prng, own) {
            // Twice, now and then.
            for _ in 0..1 + usize::from(prng.once_in(15)) {
                request = request.with(name, &value);
            }
        }
    }
    if matches!(method, "PUT" | "POST") || prng.once_in(10) {
        request.body = body(prng);
        request.framing = framing(prng, request.body.len());
    }
    if prng.once_in(50) {
        request.version = prng.pick(&["HTTP/1.0", "HTTP/1.2", "HTTP/2.0", "http/1.1", ""]);
    }
    request
}

/// Some JSON, of a few levels.
fn junk(prng: &mut Prng, depth: usize) -> String {
    match prng.below(if depth == 0 { 5 } else { 8 }) {
        0 => prng.pick(NUMBERS).to_owned(),
        1 => format!("{:?}", prng.pick(PATHS)),
        2 => "null".to_owned(),
        3 => "true".to_owned(),
        4 => format!("\"{}\"", prng.pick(OFFSETS)),
        5 => format!("[{},{}]", junk(prng, depth - 1), junk(prng, depth - 1)),
        _ => format!(
            "{{\"a\":{},\"streams\":{}}}",
            junk(prng, depth - 1),
            junk(prng, depth - 1)
        ),
    }
}

const URLS: &[&str] = &[
    "\"http://127.0.0.1:1/\"",
    "\"http://localhost:99999/\"",
    "\"https://10.0.0.1/\"",
    "\"http://[::1]:1/\"",
    "\"ftp://x\"",
    "\"http://\"",
    "\"\"",
    "7",
    "\"https://169.254.169.254/latest\"",
    "\"http://u:p@127.0.0.1:1/?#\"",
];
const STREAMS: &[&str] = &[
    "[]",
    "[\"wild/0\"]",
    "[\"wild/0\",\"wild/0\"]",
    "[\"\"]",
    "[\"__ds/x\"]",
    "[7]",
    "\"wild/0\"",
    "[\"/v1/stream/wild/1\"]",
    "[\"none/such\"]",
    "[\"\\u0000\"]",
];

fn config(prng: &mut Prng) -> String {
    let mut fields = Vec::new();
    let mut add = |name: &str, value: String| fields.push(format!("\"{name}\":{value}"));
    let kind = prng.pick(&[
        "\"webhook\"",
        "\"pull-wake\"",
        "\"pull-wake\"",
        "\"x\"",
        "1",
    ]);
    add("type", kind.to_owned());
    if !prng.once_in(3) {
        let patterns = [
            "\"wild/*\"",
            "\"**\"",
            "\"*/**/*\"",
            "\"\"",
            "\"***\"",
            "\"[\"",
            "7",
        ];
        add("pattern", prng.pick(&patterns).to_owned());
    }
    if prng.once_in(2) {
        add("streams", prng.pick(STREAMS).to_owned());
    }
    if !prng.once_in(4) {
        add("webhook", format!("{{\"url\":{}}}", prng.pick(URLS)));
    }
    if !prng.once_in(4) {
        let wakes = [
            "\"wild/1\"",
            "\"wild/2\"",
            "\"none\"",
            "\"\"",
            "\"__ds\"",
            "[]",
        ];
        add("wake_stream", prng.pick(&wakes).to_owned());
    }
    if prng.once_in(2) {
        let lease = [
            "1000", "600000", "999", "600001", "-1", "1.5", "1e3", "\"1000\"", "1e400",
        ];
        add("lease_ttl_ms", prng.pick(&lease).to_owned());
    }
    if prng.once_in(4) {
        add("description", junk(prng, 2));
    }
    format!("{{{}}}", fields.join(","))
}

/// A request of the control routes.
pub fn control(prng: &mut Prng, tokens: &[String]) -> Request {
    let id = prng.pick(&[
        "a",
        "b",
        "c",
        "%ff",
        "",
        "x%2Fy",
        "%00",
        "long-long-long-long",
    ]);
    let (method, rest) = match prng.below(14) {
        0..3 => ("PUT", String::new()),
        3 => ("GET", String::new()),
        4 => ("DELETE", String::new()),
        5 => ("POST", "/streams".to_owned()),
        6 => (
            "DELETE",
            format!("/streams/{}", prng.pick(WILD).replace('/', "%2F")),
        ),
        7 | 8 => ("POST", "/claim".to_owned()),
        9 => ("POST", "/ack".to_owned()),
        10 => ("POST", "/release".to_owned()),
        11 => ("POST", "/callback".to_owned()),
        12 => (prng.pick(METHODS), format!("/{}", prng.pick(PATHS))),
        _ => (prng.pick(METHODS), "/streams/".to_owned()),
    };
    let route = match prng.below(20) {
        0 => "__ds/jwks.json".to_owned(),
        1 => format!("__ds/{}", prng.pick(PATHS)),
        _ => format!("__ds/subscriptions/{id}{rest}"),
    };
    let mut request = Request::plain(method, &route);
    if prng.once_in(2) && !tokens.is_empty() {
        let token = &tokens[prng.below(tokens.len())];
        request = request.with("Authorization", format!("Bearer {token}"));
    } else if prng.once_in(3) {
        let token = prng.pick(&["Bearer ", "Bearer a.b.c", "Basic eDp5", "Bearer \u{e9}"]);
        request = request.with("Authorization", token);
    }
    let body = match prng.below(12) {
        0 => body(prng),
        1 => junk(prng, 4).into_bytes(),
        _ if method == "PUT" => config(prng).into_bytes(),
        2 | 3 => format!("{{\"streams\":{}}}", prng.pick(STREAMS)).into_bytes(),
        4 | 5 => format!("{{\"worker\":{}}}", junk(prng, 1)).into_bytes(),
        6 => b"{\"worker\":\"w\"}".to_vec(),
        _ => {
            let offset = prng.pick(OFFSETS);
            let generation = prng.pick(&["0", "1", "2", "3", "-1", "1e9", "18446744073709551615"]);
            format!(
                "{{\"wake_id\":{},\"generation\":{generation},\"acks\":[{{\"stream\":\"wild/0\",\"offset\":\"{offset}\"}}],\"done\":{}}}",
                junk(prng, 1),
                junk(prng, 0)
            )
            .into_bytes()
        }
    };
    request = request.body(body);
    if prng.once_in(20) {
        request.framing = framing(prng, request.body.len());
    }
    request
}

/// Bytes that are hardly a request.
pub fn noise(prng: &mut Prng) -> Vec<u8> {
    match prng.below(8) {
        0 => {
            let len = prng.below(300);
            prng.bytes(len)
        }
        1 => {
            let len = prng.below(200);
            let frames = prng.bytes(len);
            [b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec(), frames].concat()
        }
        2 => b"GET /v1/stream/wild/0 HTTP/1.1\r\nHost: x\r\n".repeat(1 + prng.below(3)),
        3 => format!(
            "GET / HTTP/1.1\r\n{}\r\n",
            "A: b\r\n".repeat(prng.below(3000))
        )
        .into_bytes(),
        4 => {
            let long = "x".repeat(prng.below(100_000));
            format!("GET /{long} HTTP/1.1\r\nHost: x\r\n\r\n").into_bytes()
        }
        5 => b"\r\n\r\n\r\nGET /v1/stream/wild/0?offset=-1 HTTP/1.1\r\n\r\n".to_vec(),
        6 => b"POST /v1/stream/wild/0 HTTP/1.1\nHost: x\nContent-Length: -1\n\n".to_vec(),
        _ => b"PUT http://other/v1/stream/wild/0 HTTP/1.1\r\n folded: x\r\nA\0: b\r\n\r\n".to_vec(),
    }
}
