//! Proxy: stands between a client and a store, and breaks what its rules name.
//!
//! **Invariants**
//! - Rules are tried in order; the first that is left and fits strikes, and is used up once more.
//!
//! **Not here**: slow links: time is the test's own.

use std::io::{BufReader, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};

use super::http::{Reply, Request};

/// What happens to a request, or to its answer.
#[derive(Debug, Clone)]
pub enum Fault {
    /// Not passed on; this is the answer.
    Answer(Reply),
    /// Passed on; the answer never comes back: the connection ends.
    LoseReply,
    /// Passed on; this is the answer instead.
    ChangeReply(Reply),
    /// Passed on; the answer ends inside its body.
    CutReply,
    /// The connection ends before anything is passed on.
    Drop,
    /// Passed on without its conditions.
    StripConditions,
    /// Passed on; an answer of the first status gets the second.
    ChangeStatus(u16, u16),
}

type Fits = Box<dyn Fn(&Request) -> bool + Send>;

struct Rule {
    fits: Fits,
    fault: Fault,
    left: usize,
    struck: usize,
}

/// A proxy; it ends with the process.
#[derive(Clone)]
pub struct Proxy {
    rules: Arc<Mutex<Vec<Rule>>>,
    upstream: String,
    port: u16,
}

impl Proxy {
    /// One in front of the store at `endpoint` (`http://host:port`).
    ///
    /// # Panics
    /// No port of this machine can be had.
    #[must_use]
    pub fn start(endpoint: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port on loopback");
        let port = listener.local_addr().expect("an address").port();
        let upstream = endpoint.trim_start_matches("http://").trim_end_matches('/');
        let proxy = Self {
            rules: Arc::default(),
            upstream: upstream.to_owned(),
            port,
        };
        let serving = proxy.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let proxy = serving.clone();
                std::thread::spawn(move || proxy.serve(&stream));
            }
        });
        proxy
    }

    /// Where it listens.
    #[must_use]
    pub fn endpoint(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// The next `times` requests that fit get `fault`.
    pub fn rule(
        &self,
        times: usize,
        fault: Fault,
        fits: impl Fn(&Request) -> bool + Send + 'static,
    ) {
        let rule = Rule {
            fits: Box::new(fits),
            fault,
            left: times,
            struck: 0,
        };
        self.lock().push(rule);
    }

    /// No faults from now on; how often each rule had struck.
    pub fn heal(&self) -> Vec<usize> {
        let rules = std::mem::take(&mut *self.lock());
        rules.iter().map(|rule| rule.struck).collect()
    }

    /// How often each rule has struck.
    #[must_use]
    pub fn struck(&self) -> Vec<usize> {
        self.lock().iter().map(|rule| rule.struck).collect()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Rule>> {
        self.rules.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn fault(&self, request: &Request) -> Option<Fault> {
        let mut rules = self.lock();
        let rule = rules
            .iter_mut()
            .find(|rule| rule.left > 0 && (rule.fits)(request))?;
        rule.left -= 1;
        rule.struck += 1;
        Some(rule.fault.clone())
    }

    fn serve(&self, client: &TcpStream) {
        let Ok(reading) = client.try_clone() else {
            return;
        };
        let mut reading = BufReader::new(reading);
        while let Ok(Some(request)) = Request::read(&mut reading) {
            if self.pass(client, request).is_none() {
                break;
            }
        }
        let _ = client.shutdown(Shutdown::Both);
    }

    /// Passes one request on and its answer back; `None` ends the connection.
    fn pass(&self, mut client: &TcpStream, mut request: Request) -> Option<()> {
        let fault = self.fault(&request);
        match &fault {
            Some(Fault::Drop) => return None,
            Some(Fault::Answer(reply)) => return client.write_all(&reply.bytes()).ok(),
            Some(Fault::StripConditions) => request
                .headers
                .retain(|(name, _)| name != "if-match" && name != "if-none-match"),
            _ => {}
        }
        let mut reply = self.forward(&request)?;
        match fault {
            Some(Fault::LoseReply) => return None,
            Some(Fault::ChangeReply(other)) => reply = other,
            Some(Fault::ChangeStatus(from, to)) if reply.status == from => reply.status = to,
            Some(Fault::CutReply) => {
                let bytes = reply.bytes();
                let keep = bytes.len() - reply.body.len() / 2 - 1;
                let _ = client.write_all(&bytes[..keep]);
                return None;
            }
            _ => {}
        }
        client.write_all(&reply.bytes()).ok()
    }

    fn forward(&self, request: &Request) -> Option<Reply> {
        let mut upstream = TcpStream::connect(&self.upstream).ok()?;
        request.write(&mut upstream).ok()?;
        Reply::read(&mut BufReader::new(upstream), &request.method).ok()
    }
}
