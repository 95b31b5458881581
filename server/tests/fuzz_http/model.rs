//! Model: what a stream holds by what was answered, held against what it says.
//!
//! **Invariants**
//! - What was acknowledged is there, once, in order; what was refused has left no trace.
//!
//! **Not here**: how it is asked (`wire`), which requests are wild (`grammar`).

use super::prng::Prng;
use super::wire::{Answer, Framing, Request};

/// Asks, and gets an answer.
pub type Ask<'a> = dyn FnMut(Request) -> Answer + 'a;

/// A stream that one worker writes to.
pub struct Stream {
    pub path: String,
    /// `None`: it is not known whether it is there, or what it holds.
    state: Option<State>,
    /// It may vanish, or stay behind for forks: something wild was said to it.
    pub loose: bool,
    /// What the next name of a producer has in it.
    producers: u64,
    /// Names that it had.
    names: u64,
}

#[derive(Clone)]
struct State {
    json: bool,
    closed: bool,
    /// Messages in JSON, bodies else, and the offset behind each append.
    content: Vec<u8>,
    ends: Vec<(String, usize)>,
    producer: (String, u64),
}

const TEXT: &str = "text/plain";
const JSON: &str = "application/json";

fn shown(bytes: &[u8]) -> String {
    let short = &bytes[..bytes.len().min(300)];
    format!("{} bytes: {}", bytes.len(), short.escape_ascii())
}

impl Stream {
    pub fn new(path: String) -> Self {
        Self {
            path,
            state: None,
            loose: true,
            producers: 0,
            names: 0,
        }
    }

    /// Leaves the stream to whatever becomes of it, and goes on with another.
    pub fn go_on(&mut self) {
        self.state = None;
        self.names += 1;
        let base = self.path.split('.').next().unwrap_or_default();
        self.path = format!("{base}.{}", self.names);
    }

    fn request(&self, method: &str) -> Request {
        Request::plain(method, &self.path)
    }

    fn is_gone(answer: &Answer) -> bool {
        matches!(answer.status, 404 | 410)
    }

    /// What is there, in as many answers as it takes; `None`: there is no stream.
    fn read(&self, ask: &mut Ask<'_>, from: &str) -> Option<(Answer, Vec<u8>)> {
        let (mut all, mut offset) = (Vec::new(), from.to_owned());
        loop {
            let path = format!("{}?offset={offset}", self.path);
            let answer = ask(Request::plain("GET", &path));
            if Self::is_gone(&answer) {
                return None;
            }
            assert_eq!(answer.status, 200, "{answer:?}");
            let mut body: &[u8] = &answer.body;
            if is_json(&answer) {
                let inner = body.strip_prefix(b"[").and_then(|b| b.strip_suffix(b"]"));
                body = inner.unwrap_or_else(|| panic!("no array: {}", shown(&answer.body)));
                if !all.is_empty() && !body.is_empty() {
                    all.push(b',');
                }
            }
            all.extend_from_slice(body);
            if answer.header("stream-up-to-date") == Some("true") {
                return Some((answer, all));
            }
            let next = answer.next().to_owned();
            assert!(next > offset || offset == "-1", "no progress: {answer:?}");
            offset = next;
        }
    }

    /// Something wild was said to it: what it holds is looked up, and begins with what it held if it still may be the
    /// same stream.
    pub fn look(&mut self, ask: &mut Ask<'_>, same: bool) {
        let before = self.state.take();
        let Some((answer, content)) = self.read(ask, "-1") else {
            return;
        };
        if let Some(before) = before.filter(|_| same) {
            let begins = content.starts_with(&before.content);
            assert!(
                begins,
                "{}: {} is no beginning of {}",
                self.path,
                shown(&before.content),
                shown(&content)
            );
        }
        self.producers += 1;
        self.state = Some(State {
            json: is_json(&answer),
            closed: answer.header("stream-closed") == Some("true"),
            content,
            ends: Vec::new(),
            producer: (self.producer_name(), 0),
        });
    }

    fn producer_name(&self) -> String {
        format!("model-{}-{}", self.path, self.producers)
    }

    /// Holds it against the model.
    pub fn check(&mut self, prng: &mut Prng, ask: &mut Ask<'_>) {
        let Some(state) = self.state.clone() else {
            return self.look(ask, false);
        };
        let at = match state.ends.len() {
            0 => None,
            ends => state.ends.get(prng.below(2 * ends)),
        };
        let (from, skipped) = at.map_or(("-1", 0), |(end, skipped)| (end.as_str(), *skipped));
        let mut rest = &state.content[skipped..];
        if state.json && skipped > 0 {
            rest = rest.strip_prefix(b",").unwrap_or(rest);
        }
        let Some((answer, found)) = self.read(ask, from) else {
            assert!(self.loose, "{} has vanished", self.path);
            self.state = None;
            return;
        };
        assert!(
            found == rest,
            "{} from {from}: {}, not {}",
            self.path,
            shown(&found),
            shown(rest)
        );
        let closed = answer.header("stream-closed") == Some("true");
        assert_eq!(closed, state.closed, "{}: {answer:?}", self.path);
        let head = ask(self.request("HEAD"));
        assert!(
            head.next() == answer.next() || self.loose,
            "{head:?}, {answer:?}"
        );
    }

    /// One request whose answer is known, as far as the stream is.
    pub fn step(&mut self, prng: &mut Prng, ask: &mut Ask<'_>) {
        if self.state.is_none() {
            return self.create(prng, ask);
        }
        match prng.below(40) {
            0 => self.close(ask),
            1 => self.delete(ask),
            2 => self.create(prng, ask),
            3..12 => self.check(prng, ask),
            _ => self.append(prng, ask),
        }
    }

    fn create(&mut self, prng: &mut Prng, ask: &mut Ask<'_>) {
        let json = prng.once_in(2);
        let content_type = if json { JSON } else { TEXT };
        let (body, content) = match prng.once_in(3) {
            true => (Vec::new(), Vec::new()),
            false => body(prng, json),
        };
        let request = self.request("PUT").with("Content-Type", content_type);
        let answer = ask(request.body(body));
        match (answer.status, &self.state) {
            (201, Some(_)) if !self.loose => panic!("{} was there: {answer:?}", self.path),
            (201, _) => {
                self.producers += 1;
                self.loose = false;
                self.state = Some(State {
                    json,
                    closed: false,
                    ends: vec![(answer.next().to_owned(), content.len())],
                    content,
                    producer: (self.producer_name(), 0),
                });
            }
            // Kept for its forks, or there with something else.
            (200 | 409, None) => {
                self.look(ask, false);
                if self.state.is_none() {
                    // Forks keep it: on with another.
                    self.go_on();
                }
            }
            (200, Some(state)) => assert!(state.json == json && !state.closed, "{answer:?}"),
            (409, Some(state)) => {
                assert!(
                    state.json != json || state.closed || self.loose,
                    "{answer:?}"
                );
            }
            _ => panic!("{}: {answer:?}", self.path),
        }
    }

    fn append(&mut self, prng: &mut Prng, ask: &mut Ask<'_>) {
        let Some(mut state) = self.state.clone() else {
            return;
        };
        let (body, content) = body(prng, state.json);
        let content_type = if state.json { JSON } else { TEXT };
        let mut request = self.request("POST").with("content-type", content_type);
        let produced = prng.once_in(3);
        let again = produced && state.producer.1 > 0 && prng.once_in(3);
        if produced {
            let sequence = state.producer.1 - u64::from(again);
            request = request
                .with("Producer-Id", &state.producer.0)
                .with("Producer-Epoch", "0")
                .with("Producer-Seq", sequence.to_string());
        }
        request = request.body(body);
        if prng.once_in(4) {
            request.framing = Framing::Chunked(1 + prng.below(300));
        }
        let answer = ask(request);
        let told_type = answer.status == 409 && answer.header("stream-closed").is_none();
        if Self::is_gone(&answer) || (told_type && self.loose) {
            assert!(self.loose, "{} has vanished: {answer:?}", self.path);
            self.state = None;
            return;
        }
        let status = match (state.closed, produced, again) {
            (true, ..) => 409,
            (false, true, false) => 200,
            (false, ..) => 204,
        };
        assert_eq!(answer.status, status, "{}: {answer:?}", self.path);
        if state.closed || again {
            return;
        }
        state.producer.1 += u64::from(produced);
        if state.json && !state.content.is_empty() {
            state.content.push(b',');
        }
        state.content.extend_from_slice(&content);
        let last = state.ends.last().map_or("", |(end, _)| end);
        assert!(
            answer.next() > last,
            "{}: {answer:?} after {last}",
            self.path
        );
        state
            .ends
            .push((answer.next().to_owned(), state.content.len()));
        self.state = Some(state);
    }

    fn close(&mut self, ask: &mut Ask<'_>) {
        let answer = ask(self.request("POST").with("Stream-Closed", "true"));
        if Self::is_gone(&answer) && self.loose {
            self.state = None;
            return;
        }
        assert_eq!(answer.status, 204, "{}: {answer:?}", self.path);
        if let Some(state) = &mut self.state {
            state.closed = true;
        }
    }

    fn delete(&mut self, ask: &mut Ask<'_>) {
        let answer = ask(self.request("DELETE"));
        let gone = answer.status == 204 || (self.loose && Self::is_gone(&answer));
        assert!(gone, "{}: {answer:?}", self.path);
        self.state = None;
        let head = ask(self.request("HEAD"));
        assert!(Self::is_gone(&head), "{}: {head:?}", self.path);
    }
}

fn is_json(answer: &Answer) -> bool {
    let media = answer.header("content-type").unwrap_or("");
    let media = media.split(';').next().unwrap_or("").trim();
    media.eq_ignore_ascii_case(JSON)
}

/// A body, and what a stream holds of it.
fn body(prng: &mut Prng, json: bool) -> (Vec<u8>, Vec<u8>) {
    let len = match prng.below(200) {
        0 => 1 + prng.below(1 << 20),
        1..20 => 1 + prng.below(20_000),
        _ => 1 + prng.below(100),
    };
    if !json {
        let body = prng.bytes(len);
        return (body.clone(), body);
    }
    let values: Vec<String> = (0..1 + len / 20)
        .map(|n| match prng.below(4) {
            0 => format!("{{\"n\": [{n}]}}"),
            1 => format!("\"\u{20ac} {n}\""),
            2 => "[1, 2]".to_owned(),
            _ => n.to_string(),
        })
        .collect();
    let content = values.join(",").into_bytes();
    let padded = values.join(" ,\n");
    (format!(" [{padded}]").into_bytes(), content)
}
