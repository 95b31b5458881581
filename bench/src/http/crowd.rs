//! Crowd: many connections of one thread: raw, non-blocking, waited for together.
//!
//! **Invariants**
//! - All connections are there before the clock starts.
//! - What is sent goes out at once; what the system doesn't take waits and holds nobody else up.
//!
//! **Not here**: what is asked (`creates`, `fan_out`, `catch_up`, `streams`).

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::{Duration, Instant};

use crate::Result;
use crate::process::wake_on_time;
use crate::targets::answer::parse;
use crate::targets::wire::{POLL_MAX, dial, poll};

/// Read at a time.
const READ_BYTES: usize = 256 << 10;
/// Events taken at a time.
const EVENTS_MAX: usize = 256;
/// Longest silence of a server that was asked something.
pub const SILENCE_MAX: Duration = Duration::from_secs(60);

/// What a crowd asks, one request after the other on each connection.
pub trait Work {
    /// Puts the next request of connection `who` into `out`; false if there is none.
    fn ask(&mut self, who: usize, out: &mut Vec<u8>) -> bool;
    /// Takes its answer, `took` after it was asked.
    ///
    /// # Errors
    /// It isn't what was wanted.
    fn answered(&mut self, who: usize, answer: (u16, &str), took: Duration) -> Result<()>;
}

/// Connections of one thread.
pub struct Crowd {
    epoll: OwnedFd,
    members: Vec<Member>,
    scratch: Vec<u8>,
}

struct Member {
    stream: TcpStream,
    out: Vec<u8>,
    sent: usize,
}

impl Crowd {
    /// Connects `count` times.
    ///
    /// # Errors
    /// The server's, or the system's.
    pub fn dial(address: SocketAddr, count: usize) -> Result<Self> {
        wake_on_time();
        // SAFETY: a plain call.
        let epoll = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        if epoll < 0 {
            return Err(std::io::Error::last_os_error().into());
        }
        let mut crowd = Self {
            // SAFETY: the descriptor was just made and is nobody else's.
            epoll: unsafe { OwnedFd::from_raw_fd(epoll) },
            members: Vec::new(),
            scratch: vec![0; READ_BYTES],
        };
        for who in 0..count {
            let stream = dial(address)?;
            stream.set_nonblocking(true)?;
            crowd.members.push(Member {
                stream,
                out: Vec::new(),
                sent: 0,
            });
            crowd.watch(who, libc::EPOLL_CTL_ADD, libc::EPOLLIN)?;
        }
        Ok(crowd)
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.members.len()
    }

    /// Sends on connection `who` what `put` adds to the buffer that it is given.
    ///
    /// # Errors
    /// The connection is broken.
    pub fn send(&mut self, who: usize, put: impl FnOnce(&mut Vec<u8>)) -> Result<()> {
        let member = &mut self.members[who];
        let waits = !member.out.is_empty();
        put(&mut member.out);
        if !waits && !member.flush()? {
            self.watch(who, libc::EPOLL_CTL_MOD, libc::EPOLLIN | libc::EPOLLOUT)?;
        }
        Ok(())
    }

    /// Waits until there is something to read, no longer than `wait`; `ready` becomes the connections that have it.
    ///
    /// # Errors
    /// The system's, or a connection is broken.
    pub fn wait(&mut self, wait: Duration, ready: &mut Vec<usize>) -> Result<()> {
        ready.clear();
        // Its own wait counts in milliseconds.
        let epoll = self.epoll.as_raw_fd();
        poll(
            &mut [libc::pollfd {
                fd: epoll,
                events: libc::POLLIN,
                revents: 0,
            }],
            wait,
        )?;
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; EVENTS_MAX];
        let room = events.len() as libc::c_int;
        // SAFETY: the array holds `room` entries and outlives the call, which only writes it.
        let found = unsafe { libc::epoll_wait(epoll, events.as_mut_ptr(), room, 0) };
        for event in &events[..usize::try_from(found).unwrap_or(0)] {
            let (who, what) = (event.u64 as usize, event.events.cast_signed());
            if what & libc::EPOLLOUT != 0 && self.members[who].flush()? {
                self.watch(who, libc::EPOLL_CTL_MOD, libc::EPOLLIN)?;
            }
            if what & !libc::EPOLLOUT != 0 {
                ready.push(who);
            }
        }
        Ok(())
    }

    /// What has come on connection `who`, a piece of it.
    ///
    /// # Errors
    /// The connection is broken, or the server has closed it.
    pub fn read(&mut self, who: usize) -> Result<&[u8]> {
        match self.members[who].stream.read(&mut self.scratch) {
            Ok(0) => Err("the server closed the connection".into()),
            Ok(length) => Ok(&self.scratch[..length]),
            Err(error)
                if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) =>
            {
                Ok(&[])
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Asks and takes answers until there is nothing more to ask; the time from the first byte sent.
    ///
    /// # Errors
    /// The work's, a broken connection, or a server that falls silent.
    pub fn work(&mut self, work: &mut impl Work) -> Result<Duration> {
        let start = Instant::now();
        let mut asked: Vec<Option<Instant>> = vec![None; self.len()];
        let mut input: Vec<Vec<u8>> = vec![Vec::new(); self.len()];
        let mut open = 0;
        for (who, asked) in asked.iter_mut().enumerate() {
            *asked = self.ask(who, work)?;
            open += usize::from(asked.is_some());
        }
        let (mut heard, mut ready) = (start, Vec::new());
        while open > 0 {
            self.wait(POLL_MAX, &mut ready)?;
            for &who in &ready {
                input[who].extend_from_slice(self.read(who)?);
                let Some((status, text, used)) = parse(&input[who])? else {
                    continue;
                };
                input[who].drain(..used);
                heard = Instant::now();
                let since = asked[who].ok_or("an answer to nothing that was sent")?;
                work.answered(who, (status, &text), heard.saturating_duration_since(since))?;
                asked[who] = self.ask(who, work)?;
                open -= usize::from(asked[who].is_none());
            }
            if heard.elapsed() > SILENCE_MAX {
                return Err(format!("no answer in {SILENCE_MAX:?}, {open} are missing").into());
            }
        }
        Ok(heard.saturating_duration_since(start))
    }

    /// When connection `who` asked its next request, if it has one.
    fn ask(&mut self, who: usize, work: &mut impl Work) -> Result<Option<Instant>> {
        let mut has_one = false;
        let now = Instant::now();
        self.send(who, |out| has_one = work.ask(who, out))?;
        Ok(has_one.then_some(now))
    }

    fn watch(&mut self, who: usize, how: libc::c_int, what: libc::c_int) -> Result<()> {
        let mut event = libc::epoll_event {
            events: what.cast_unsigned(),
            u64: who as u64,
        };
        let stream = self.members[who].stream.as_raw_fd();
        // SAFETY: both descriptors are open, and `event` outlives the call.
        let status = unsafe { libc::epoll_ctl(self.epoll.as_raw_fd(), how, stream, &mut event) };
        match status {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error().into()),
        }
    }
}

impl Member {
    /// Sends what the system takes; whether that was all.
    fn flush(&mut self) -> Result<bool> {
        while self.sent < self.out.len() {
            match self.stream.write(&self.out[self.sent..]) {
                Ok(0) => return Err("the server closed the connection".into()),
                Ok(sent) => self.sent += sent,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
        self.out.clear();
        self.sent = 0;
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    /// Each connection asks twice.
    struct Twice {
        asked: Vec<usize>,
        answers: Vec<(usize, u16, String)>,
    }

    impl Work for Twice {
        fn ask(&mut self, who: usize, out: &mut Vec<u8>) -> bool {
            self.asked[who] += 1;
            out.extend_from_slice(if self.asked[who] <= 2 { b"ask\n" } else { b"" });
            self.asked[who] <= 2
        }

        fn answered(&mut self, who: usize, answer: (u16, &str), _: Duration) -> Result<()> {
            self.answers.push((who, answer.0, answer.1.to_owned()));
            Ok(())
        }
    }

    /// Answers so many requests of each of `count` connections, in two pieces; hangs up on who asks for more.
    fn answer(listener: TcpListener, count: usize, requests: usize) {
        for _ in 0..count {
            let (mut stream, _) = listener.accept().expect("a connection");
            std::thread::spawn(move || {
                for _ in 0..requests {
                    stream.read_exact(&mut [0; 4]).expect("a request");
                    for piece in ["HTTP/1.1 200 OK\r\nContent-", "Length: 2\r\n\r\nok"] {
                        stream.write_all(piece.as_bytes()).expect("sent");
                        std::thread::sleep(Duration::from_millis(5));
                    }
                }
                // Ends with the client, or with its next request.
                let _ = stream.read(&mut [0; 4]);
            });
        }
    }

    fn twice(requests: usize) -> (Result<Duration>, Twice) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        let server = std::thread::spawn(move || answer(listener, 3, requests));
        let mut crowd = Crowd::dial(address, 3).expect("connected");
        let mut work = Twice {
            asked: vec![0; 3],
            answers: Vec::new(),
        };
        let wall = crowd.work(&mut work);
        server.join().expect("served");
        (wall, work)
    }

    #[test]
    fn crowd_asks_all_there_is_and_waits_for_every_answer() {
        let (wall, mut work) = twice(2);
        assert!(wall.expect("answers") >= Duration::from_millis(10));
        work.answers.sort_unstable();
        let ok = |who| (who, 200, "ok".to_owned());
        assert_eq!(work.answers, [0, 0, 1, 1, 2, 2].map(ok));
    }

    #[test]
    fn server_that_hangs_up_is_an_error() {
        assert!(twice(1).0.is_err());
    }
}
