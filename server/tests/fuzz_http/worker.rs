//! Worker: one client after another, until the time is over or something is wrong.
//!
//! **Not here**: what is asked (`grammar`), what is right (`model`).

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::net::SocketAddr;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::grammar::{control, noise, wild};
use super::model::Stream;
use super::prng::Prng;
use super::wire::{Answer, Request, Silence, Wire};

/// Time for an answer that waits for nothing.
const ANSWER: Duration = Duration::from_secs(15);
/// Time for one that may wait for what does not come.
const LONG_POLL: Duration = Duration::from_secs(30);
/// How long a live reader stays, as a rule.
const GLANCE: Duration = Duration::from_millis(30);
/// Streams of a worker.
const STREAMS: usize = 4;
/// Requests that a failure tells of.
const TOLD: usize = 12;
/// What may be answered.
const STATUSES: &[u16] = &[
    200, 201, 204, 304, 400, 401, 403, 404, 405, 408, 409, 410, 413, 414, 417, 429, 431,
];

/// What was answered, how often.
#[derive(Default)]
pub struct Counts {
    requests: u64,
    statuses: BTreeMap<u16, u64>,
    slowest: Duration,
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (requests, slowest) = (self.requests, self.slowest);
        write!(
            f,
            "{requests} requests, slowest {slowest:?}, {:?}",
            self.statuses
        )
    }
}

/// A connection that is kept, and what is known of what was said on it.
struct Client {
    address: SocketAddr,
    kept: Option<Wire>,
    counts: Counts,
    told: VecDeque<String>,
    tokens: Vec<String>,
}

pub struct Worker {
    prng: Prng,
    /// It may wait for what takes ten seconds and more.
    patient: bool,
    streams: Vec<Stream>,
    client: Client,
}

impl Client {
    fn tell(&mut self, bytes: &[u8]) {
        let short = &bytes[..bytes.len().min(700)];
        self.told.push_back(short.escape_ascii().to_string());
        if self.told.len() > TOLD {
            self.told.pop_front();
        }
    }

    fn heard(&mut self, answer: &Answer) {
        self.counts.requests += 1;
        *self.counts.statuses.entry(answer.status).or_default() += 1;
        self.told.push_back(format!("  -> {}", answer.status));
        assert!(STATUSES.contains(&answer.status), "{answer:?}");
        if matches!(answer.status, 200 | 201 | 204) {
            assert_eq!(answer.header("x-content-type-options"), Some("nosniff"));
        }
        let text = std::str::from_utf8(&answer.body).unwrap_or("");
        let token = text.split("\"token\":\"").nth(1);
        if let Some(token) = token.and_then(|rest| rest.split('"').next()) {
            self.tokens.push(token.to_owned());
            self.tokens.truncate(8);
        }
    }

    /// Asks what makes sense: there is an answer, in time.
    fn ask(&mut self, request: &Request) -> Answer {
        let mut bytes = Vec::new();
        request.encode(&mut bytes);
        self.tell(&bytes);
        let mut wire = match self.kept.take() {
            Some(wire) => wire,
            None => Wire::connect(self.address),
        };
        let begun = Instant::now();
        wire.send(&bytes);
        let answer = match wire.answer(&request.method, begun + ANSWER) {
            Ok(answer) => answer,
            Err(why) => panic!("no answer: {why:?}"),
        };
        self.counts.slowest = self.counts.slowest.max(begun.elapsed());
        self.heard(&answer);
        if answer.header("connection") != Some("close") {
            self.kept = Some(wire);
        }
        answer
    }

    /// Sends requests at once, and takes what is answered; whether nothing is under way any more.
    fn pipeline(&mut self, requests: &[Request], patient: bool) -> bool {
        let mut wire = Wire::connect(self.address);
        let mut bytes = Vec::new();
        requests
            .iter()
            .for_each(|request| request.encode(&mut bytes));
        self.tell(&bytes);
        let whole = wire.send(&bytes);
        let live = requests.iter().any(Request::is_live);
        let framed = requests.iter().all(Request::is_whole);
        if !framed && !patient {
            wire.end();
        }
        let wait = match (live, patient) {
            (true, false) => GLANCE,
            (true, true) => LONG_POLL,
            (false, _) => ANSWER,
        };
        for request in requests {
            let deadline = Instant::now() + wait;
            let answered = match live {
                // Events go on: their head is enough, and nothing behind it is looked at.
                true => wire.head(deadline),
                false => wire.answer(&request.method, deadline),
            };
            match answered {
                Ok(answer) => self.heard(&answer),
                Err(Silence::Closed | Silence::Broken(_)) => return false,
                Err(Silence::Late) if live && !patient => return false,
                // What is said to be longer than it is may be a method of its own to the server.
                Err(Silence::Junk(_)) if !framed || !whole => return false,
                Err(why) => panic!("no answer: {why:?}"),
            }
            if live {
                return false;
            }
        }
        if !framed {
            let ended = wire.ends(Instant::now() + ANSWER);
            assert_eq!(ended, Ok(()), "the connection stays");
        }
        true
    }
}

impl Worker {
    pub fn new(number: u64, seed: u64, address: SocketAddr, patient: bool) -> Self {
        let own = |n| Stream::new(format!("own-{number}/{n}"));
        Self {
            prng: Prng::new(seed.wrapping_mul(1000).wrapping_add(number)),
            patient,
            streams: (0..STREAMS).map(own).collect(),
            client: Client {
                address,
                kept: None,
                counts: Counts::default(),
                told: VecDeque::new(),
                tokens: Vec::new(),
            },
        }
    }

    pub fn run(mut self, until: Instant, failed: &AtomicBool) -> Counts {
        while Instant::now() < until && !failed.load(Ordering::Relaxed) {
            let step = catch_unwind(AssertUnwindSafe(|| self.step()));
            if let Err(why) = step {
                failed.store(true, Ordering::Relaxed);
                let told: Vec<String> = self.client.told.into_iter().collect();
                println!("asked, and answered:\n{}", told.join("\n"));
                resume_unwind(why);
            }
        }
        self.client.counts
    }

    fn step(&mut self) {
        match self.prng.below(100) {
            0..45 => {
                let at = self.prng.below(STREAMS);
                let client = &mut self.client;
                let mut ask = |request: Request| client.ask(&request);
                self.streams[at].step(&mut self.prng, &mut ask);
            }
            45..80 => self.wild(),
            80..92 => {
                let request = control(&mut self.prng, &self.client.tokens);
                self.client.pipeline(&[request], false);
            }
            92..96 => self.cut(),
            96..98 => self.noise(),
            _ => self.large(),
        }
    }

    /// Wild requests, also behind one another, also to streams that a model is of.
    fn wild(&mut self) {
        let prng = &mut self.prng;
        let own: Vec<String> = self.streams.iter().map(|s| s.path.clone()).collect();
        let many = if prng.once_in(5) {
            2 + prng.below(6)
        } else {
            1
        };
        let requests: Vec<Request> = (0..many).map(|_| wild(prng, &own)).collect();
        let patient = self.patient && prng.once_in(2000);
        let settled = self.client.pipeline(&requests, patient);
        self.after(&requests, settled);
    }

    /// Looks at the streams that something wild was said to.
    fn after(&mut self, requests: &[Request], settled: bool) {
        let client = &mut self.client;
        let mut ask = |request: Request| client.ask(&request);
        for stream in &mut self.streams {
            let path = stream.path.as_bytes();
            let to = |request: &&Request| {
                let mut parts = request.target.windows(path.len()).map(|part| part == path);
                let headers = request.headers.iter();
                let mut named = headers.map(|(_, value)| value.ends_with(path));
                parts.any(|is| is) || named.any(|is| is)
            };
            let to: Vec<&Request> = requests.iter().filter(to).collect();
            let writes =
                |request: &&&Request| !matches!(&*request.method, "GET" | "HEAD" | "OPTIONS");
            if to.iter().filter(writes).count() > 0 {
                stream.loose = true;
                if !settled {
                    // It may be done later than what is asked next.
                    stream.go_on();
                    continue;
                }
                let same = !to
                    .iter()
                    .any(|request| matches!(&*request.method, "PUT" | "DELETE"));
                stream.look(&mut ask, same);
            }
        }
    }

    /// A client that leaves in the midst, before or after it has asked.
    fn cut(&mut self) {
        let prng = &mut self.prng;
        let own: Vec<String> = self.streams.iter().map(|s| s.path.clone()).collect();
        let request = match prng.once_in(4) {
            true => control(prng, &self.client.tokens),
            false => wild(prng, &own),
        };
        let mut bytes = Vec::new();
        request.encode(&mut bytes);
        bytes.truncate(prng.below(bytes.len() + 1));
        self.client.tell(&bytes);
        let mut wire = Wire::connect(self.client.address);
        wire.send(&bytes);
        if prng.once_in(2) {
            wire.end();
            if !request.is_live() {
                let ended = wire.ends(Instant::now() + ANSWER);
                assert_eq!(ended, Ok(()), "the connection stays");
            }
        }
        drop(wire);
        self.after(&[request], false);
    }

    fn noise(&mut self) {
        let bytes = noise(&mut self.prng);
        self.client.tell(&bytes);
        let mut wire = Wire::connect(self.client.address);
        wire.send(&bytes);
        wire.end();
        let ended = wire.ends(Instant::now() + ANSWER);
        assert_eq!(ended, Ok(()), "the connection stays");
    }

    /// A body about as long as it may be, now and then.
    fn large(&mut self) {
        if !self.prng.once_in(100) {
            return;
        }
        let len = (16 << 20) - 2 + self.prng.below(5);
        let request = Request::plain("POST", "wild/0").with("Content-Type", "text/plain");
        self.client
            .pipeline(&[request.body(vec![b'1'; len])], false);
    }
}
