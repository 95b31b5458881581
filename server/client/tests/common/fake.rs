//! Fake: a server in memory, with a script of what goes wrong.
//!
//! **Invariants**
//! - What it stores outlives its connections, as a log does.
//! - A connection is one task that reads, answers and writes in turn: a client that does not read its
//!   answers stops it.
//!
//! **Not here**: disks, shards, packs.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use sealog_client::{
    CommitInfo, FeedInfo, LogInfo, ProducerInfo, ReadFrom, StreamInfo, StreamPhase,
};
use sealog_frame::{Batch, FrameLimits, MatchSequence, Stamp, stamp};
use sealog_protocol::{
    Answer, Effects, ErrorCode, Features, HEADER_BYTES, MORE, MessageHeader, Records, Refusal,
    Request, Rest, ShardAddress, Welcome,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::OwnedWriteHalf;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Mutex as AsyncMutex, Notify};
use tokio::task::JoinHandle;

/// What the fake does with one append.
#[derive(Debug, Clone)]
pub enum Act {
    /// Judges it and answers.
    Fair,
    /// Judges it and closes the connection instead of answering.
    LoseAnswer,
    /// Closes the connection before it judges.
    Lose,
    /// Refuses it unjudged.
    Refuse(ErrorCode, Effects, bool),
    /// Judges it, and answers after a while.
    Slow(Duration),
    /// Says nothing, ever, to this one.
    Silent,
}

#[derive(Debug, Clone)]
pub struct Stored {
    pub batch: Batch,
    pub first: u64,
    pub next: u64,
}

#[derive(Debug, Clone, Default)]
struct Producer {
    epoch: u64,
    last: u64,
    ranges: BTreeMap<u64, (u64, u64)>,
}

#[derive(Debug, Clone, Default)]
pub struct Feed {
    pub id: u64,
    pub epoch: u64,
    pub next: u64,
    pub exclusive: bool,
    pub open: Option<u64>,
    pub streams: Vec<StreamInfo>,
    pub stored: Vec<Stored>,
    pub commits: Vec<CommitInfo>,
    producers: BTreeMap<Vec<u8>, Producer>,
}

pub struct World {
    pub feeds: BTreeMap<String, Feed>,
    feeds_made: u64,
    /// What is done with the appends to come; fair when it is empty.
    pub acts: VecDeque<Act>,
    /// Seals are done, and their answers lost, so often.
    pub lose_seals: usize,
    /// Opens are done, and their answers lost, so often.
    pub lose_opens: usize,
    /// Feeds are deleted and made anew as soon as they were described, so often.
    pub replace_described: usize,
    /// Nothing is read; connections are told that, in place of heartbeats.
    pub busy: bool,
    /// Number of a connection's first binding.
    pub first_binding: u32,
    pub token: Option<Vec<u8>>,
    pub ports: Vec<u16>,
    pub shard: u32,
    pub credit_bytes: u32,
    pub producer_batches_max: u32,
    pub message_bytes_max: u32,
    pub heartbeat: bool,
    /// Appends that came, sent again or not, and most of them unanswered at once.
    pub appends: usize,
    pub hellos: usize,
    pub connections: Vec<tokio::task::AbortHandle>,
}

pub struct Fake {
    pub address: SocketAddr,
    pub world: Arc<Mutex<World>>,
    moved: Arc<Notify>,
    task: JoinHandle<()>,
}

impl Fake {
    pub async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let world = World {
            feeds: BTreeMap::new(),
            feeds_made: 0,
            acts: VecDeque::new(),
            lose_seals: 0,
            lose_opens: 0,
            replace_described: 0,
            busy: false,
            first_binding: 0,
            token: None,
            ports: vec![0],
            shard: 0,
            credit_bytes: 8 << 20,
            producer_batches_max: 256,
            message_bytes_max: 64 << 20,
            heartbeat: true,
            appends: 0,
            hellos: 0,
            connections: Vec::new(),
        };
        let world = Arc::new(Mutex::new(world));
        let moved = Arc::new(Notify::new());
        let task = tokio::spawn(accept(listener, world.clone(), moved.clone()));
        Self {
            address,
            world,
            moved,
            task,
        }
    }

    /// One more port that leads to the same world.
    pub async fn also(&self) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(accept(listener, self.world.clone(), self.moved.clone()));
        address
    }

    pub fn lock(&self) -> MutexGuard<'_, World> {
        self.world.lock().unwrap()
    }

    pub fn act(&self, acts: impl IntoIterator<Item = Act>) {
        self.lock().acts.extend(acts);
    }

    /// Cuts every connection.
    pub fn cut(&self) {
        for connection in self.lock().connections.drain(..) {
            connection.abort();
        }
    }

    /// Payloads of a feed, in order of their sequences.
    pub fn payloads(&self, feed: &str) -> Vec<Vec<u8>> {
        let world = self.lock();
        let stored = &world.feeds[feed].stored;
        let mut payloads = Vec::new();
        for Stored { batch, first, .. } in stored {
            assert_eq!(*first, payloads.len() as u64, "sequences are contiguous");
            payloads.extend(batch.view().records().map(|record| record.payload.to_vec()));
        }
        payloads
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        self.task.abort();
        self.cut();
    }
}

async fn accept(listener: TcpListener, world: Arc<Mutex<World>>, moved: Arc<Notify>) {
    loop {
        let (socket, _) = listener.accept().await.unwrap();
        let session = Session {
            world: world.clone(),
            moved: moved.clone(),
            bound: Vec::new(),
            first_binding: 0,
            follows: BTreeMap::new(),
        };
        let connection = tokio::spawn(session.run(socket));
        world
            .lock()
            .unwrap()
            .connections
            .push(connection.abort_handle());
    }
}

struct Session {
    world: Arc<Mutex<World>>,
    moved: Arc<Notify>,
    bound: Vec<String>,
    first_binding: u32,
    follows: BTreeMap<u64, Follow>,
}

impl Drop for Session {
    fn drop(&mut self) {
        for (_, _, task) in self.follows.values() {
            task.abort();
        }
    }
}

/// Credit left, who is told of more, and the task.
type Follow = (Arc<Mutex<i64>>, Arc<Notify>, JoinHandle<()>);
type Out = Arc<AsyncMutex<OwnedWriteHalf>>;

impl Session {
    async fn run(mut self, socket: TcpStream) {
        socket.set_nodelay(true).unwrap();
        let (mut reader, writer) = socket.into_split();
        let out: Out = Arc::new(AsyncMutex::new(writer));
        let mut buffer = Vec::new();
        loop {
            while let Some(header) = MessageHeader::peek(&buffer, 64 << 20).unwrap() {
                if buffer.len() < header.message_bytes {
                    break;
                }
                let message: Vec<u8> = buffer.drain(..header.message_bytes).collect();
                let request = Request::decode(header.kind, &message[HEADER_BYTES..]).unwrap();
                if !self.handle(request, header.request, &out).await {
                    return;
                }
            }
            let wait = Duration::from_millis(50);
            while self.lock().busy {
                tokio::time::sleep(wait).await;
                send(&out, &Answer::Busy {}, 0, 0).await;
            }
            match tokio::time::timeout(wait, reader.read_buf(&mut buffer)).await {
                Ok(Ok(1..)) => {}
                Ok(_) => return,
                Err(_) if self.lock().heartbeat => send(&out, &Answer::Alive {}, 0, 0).await,
                Err(_) => {}
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, World> {
        self.world.lock().unwrap()
    }

    /// Whether the connection goes on.
    async fn handle(&mut self, request: Request<'_>, id: u64, out: &Out) -> bool {
        match request {
            Request::Append { binding, frame } => {
                return self.append(binding, frame.0, id, out).await;
            }
            Request::Follow {
                scope,
                credit_bytes,
            } => {
                let now = self.lock().feeds.get(scope.feed).map(|feed| feed.id);
                if scope.feed_id.is_some_and(|id| Some(id) != now) {
                    send(out, &refused(ErrorCode::FeedNotFound), id, 0).await;
                    return true;
                }
                self.follow(scope, credit_bytes, id, out);
            }
            Request::Credit { bytes } => {
                if let Some((credit, more, _)) = self.follows.get(&id) {
                    *credit.lock().unwrap() += i64::try_from(bytes).unwrap();
                    more.notify_one();
                }
            }
            Request::Cancel {} => {
                if let Some((_, _, task)) = self.follows.remove(&id) {
                    task.abort();
                }
            }
            Request::Goodbye {} => return false,
            request => {
                let mut bytes = Vec::new();
                let going = self.answer(request, id, &mut bytes);
                let _ = out.lock().await.write_all(&bytes).await;
                self.moved.notify_waiters();
                return going;
            }
        }
        true
    }

    async fn append(&mut self, binding: u32, frame: &[u8], id: u64, out: &Out) -> bool {
        let act = {
            let mut world = self.lock();
            world.appends += 1;
            world.acts.pop_front().unwrap_or(Act::Fair)
        };
        let mut bytes = Vec::new();
        match act {
            Act::Lose => return false,
            Act::Refuse(code, effects, retryable) => {
                let refusal = Refusal {
                    effects,
                    retryable,
                    ..refuse(code)
                };
                Answer::Refused { refusal }.encode(id, 0, &mut bytes);
            }
            Act::Fair | Act::LoseAnswer | Act::Slow(_) | Act::Silent => {
                let feed = self.bound[(binding - self.first_binding) as usize].clone();
                let mut world = self.lock();
                let feed = world.feeds.get_mut(&feed).unwrap();
                feed.append(frame).encode(id, 0, &mut bytes);
            }
        }
        self.moved.notify_waiters();
        match act {
            Act::LoseAnswer => return false,
            Act::Slow(wait) => tokio::time::sleep(wait).await,
            Act::Silent => return true,
            _ => {}
        }
        out.lock().await.write_all(&bytes).await.is_ok()
    }

    fn bind(&mut self, feed: &str) -> u32 {
        self.bound.push(feed.to_owned());
        self.first_binding + u32::try_from(self.bound.len() - 1).unwrap()
    }

    fn answer(&mut self, request: Request<'_>, id: u64, bytes: &mut Vec<u8>) -> bool {
        let world = self.world.clone();
        let mut world = world.lock().unwrap();
        let mut going = true;
        let answer = match request {
            Request::Hello { hello } => {
                world.hellos += 1;
                match world.token.as_deref() == hello.token {
                    true => Answer::Welcome {
                        welcome: welcome(&world),
                    },
                    false => {
                        going = false;
                        refused(ErrorCode::Unauthorized)
                    }
                }
            }
            Request::Ping {} => Answer::Pong {},
            Request::CreateFeed {
                feed, exclusive, ..
            } => {
                let id = world.create(feed, exclusive);
                Answer::Created { feed: id }
            }
            Request::DeleteFeed { feed } => match world.feeds.remove(feed) {
                Some(_) => Answer::Done {},
                None => refused(ErrorCode::FeedNotFound),
            },
            Request::Stats {} => Answer::Stats {
                logs: vec![LogInfo {
                    groups: 1,
                    group_bytes: 2,
                    poisoned: None,
                }],
            },
            Request::ListFeeds { .. } => Answer::Feeds {
                feeds: world.feeds.iter().map(|(n, f)| f.info(n)).collect(),
            },
            request => {
                let Some(name) = feed_of(&request).filter(|name| world.feeds.contains_key(*name))
                else {
                    refused(ErrorCode::FeedNotFound).encode(id, 0, bytes);
                    return true;
                };
                let name = name.to_owned();
                let lost = match request {
                    Request::Seal { .. } => lose(&mut world.lose_seals),
                    Request::Open { .. } => lose(&mut world.lose_opens),
                    _ => false,
                };
                if self.bound.is_empty() {
                    self.first_binding = world.first_binding;
                }
                let feed = world.feeds.get_mut(&name).unwrap();
                let answer = self.of_feed(&name, feed, &request);
                let described = matches!(request, Request::DescribeFeed { .. });
                if described && lose(&mut world.replace_described) {
                    world.feeds.remove(&name);
                    world.create(&name, false);
                }
                if lost {
                    return false;
                }
                answer
            }
        };
        answer.encode(id, 0, bytes);
        going
    }

    fn of_feed(&mut self, name: &str, feed: &mut Feed, request: &Request<'_>) -> Answer<'static> {
        match *request {
            Request::Bind { .. } => Answer::Bound {
                binding: self.bind(name),
                feed: feed.id,
                next_sequence: feed.next,
            },
            Request::Open { .. } => {
                feed.epoch += 1;
                feed.open_stream();
                self.leased(name, feed)
            }
            Request::Resume { .. } if feed.open.is_none() => refused(ErrorCode::NoOpenStream),
            Request::Resume { .. } => {
                feed.epoch += 1;
                self.leased(name, feed)
            }
            Request::Seal { token, message, .. } => feed.seal(token, message),
            Request::DescribeFeed { .. } => Answer::Feed {
                feed: feed.info(name),
            },
            Request::ListStreams { after, limit, .. } => Answer::Streams {
                streams: page(&feed.streams, limit, |stream| stream.id > after),
            },
            Request::ListCommits { from, limit, .. } => Answer::Commits {
                commits: page(&feed.commits, limit, |commit| commit.number >= from),
            },
            Request::Repair { .. } => Answer::Repaired { commits: 0 },
            Request::DescribeProducer { id, .. } => Answer::Producer {
                producer: feed.producers.get(id).map(|known| ProducerInfo {
                    id: id.to_vec(),
                    epoch: known.epoch,
                    last_sequence: known.last,
                    first: 0,
                    last: 0,
                    last_arrival_ms: 0,
                }),
            },
            Request::Read { ref scope, .. } if scope.feed_id.is_some_and(|id| id != feed.id) => {
                refused(ErrorCode::FeedNotFound)
            }
            Request::Read { ref scope, .. } => {
                let from = feed.resolve(scope.from);
                let mut bytes = Vec::new();
                let (next, ended) = feed.frames(from, scope.end, scope.bytes_max, &mut bytes);
                let frames: &'static [u8] = Box::leak(bytes.into_boxed_slice());
                Answer::Records {
                    records: Records {
                        first: from,
                        next,
                        tail: feed.next,
                        ended,
                        fingerprints: Vec::new(),
                        frames: Rest(frames),
                    },
                }
            }
            _ => refused(ErrorCode::Unusable),
        }
    }

    fn leased(&mut self, name: &str, feed: &Feed) -> Answer<'static> {
        Answer::Leased {
            binding: self.bind(name),
            feed: feed.id,
            epoch: feed.epoch,
            stream: feed.open.unwrap(),
            next_sequence: feed.next,
        }
    }

    fn follow(
        &mut self,
        scope: sealog_protocol::ReadScope<'_>,
        credit_bytes: u64,
        id: u64,
        out: &Out,
    ) {
        let (world, moved, out) = (self.world.clone(), self.moved.clone(), out.clone());
        let credit = Arc::new(Mutex::new(i64::try_from(credit_bytes).unwrap()));
        let more = Arc::new(Notify::new());
        let (left, woken) = (credit.clone(), more.clone());
        let (feed, end, bytes_max) = (scope.feed.to_owned(), scope.end, scope.bytes_max);
        let mut at = self.lock().feeds[&feed].resolve(scope.from);
        let task = tokio::spawn(async move {
            loop {
                let notified = moved.notified();
                while *left.lock().unwrap() <= 0 {
                    woken.notified().await;
                }
                let mut frames = Vec::new();
                let (next, ended, tail) = {
                    let world = world.lock().unwrap();
                    let Some(feed) = world.feeds.get(&feed) else {
                        return;
                    };
                    let (next, ended) = feed.frames(at, end, bytes_max, &mut frames);
                    (next, ended, feed.next)
                };
                if next == at && !ended {
                    notified.await;
                    continue;
                }
                *left.lock().unwrap() -= i64::try_from(frames.len()).unwrap();
                let records = Records {
                    first: at,
                    next,
                    tail,
                    ended,
                    fingerprints: Vec::new(),
                    frames: Rest(&frames),
                };
                let flags = if ended { 0 } else { MORE };
                send(&out, &Answer::Records { records }, id, flags).await;
                at = next;
                if ended {
                    return;
                }
            }
        });
        self.follows.insert(id, (credit, more, task));
    }
}

async fn send(out: &Out, answer: &Answer<'_>, id: u64, flags: u8) {
    let mut bytes = Vec::new();
    answer.encode(id, flags, &mut bytes);
    let _ = out.lock().await.write_all(&bytes).await;
}

fn lose(left: &mut usize) -> bool {
    let lost = *left > 0;
    *left = left.saturating_sub(1);
    lost
}

fn page<T: Clone>(all: &[T], limit: u32, wanted: impl Fn(&T) -> bool) -> Vec<T> {
    let wanted = all.iter().filter(|entry| wanted(entry));
    wanted.take(limit as usize).cloned().collect()
}

fn feed_of<'a>(request: &Request<'a>) -> Option<&'a str> {
    match request {
        Request::Bind { feed }
        | Request::Open { feed }
        | Request::Resume { feed }
        | Request::Seal { feed, .. }
        | Request::DescribeFeed { feed }
        | Request::ListStreams { feed, .. }
        | Request::ListCommits { feed, .. }
        | Request::Repair { feed }
        | Request::DescribeProducer { feed, .. } => Some(feed),
        Request::Read { scope, .. } => Some(scope.feed),
        _ => None,
    }
}

fn welcome(world: &World) -> Welcome {
    let limits = FrameLimits::DEFAULT;
    let limit = |limit: usize| u32::try_from(limit).unwrap();
    Welcome {
        version: 1,
        features: Features::default(),
        server: 7,
        agent: "fake".to_owned(),
        message_bytes_max: world.message_bytes_max,
        credit_bytes: world.credit_bytes,
        producer_batches_max: world.producer_batches_max,
        batch_bytes_max: limit(limits.batch_bytes_max),
        record_bytes_max: limit(limits.record_bytes_max),
        records_max: limit(limits.records_max),
        logs: u32::try_from(world.ports.len()).unwrap(),
        shard: world.shard,
        shards: world
            .ports
            .iter()
            .map(|&port| ShardAddress { port })
            .collect(),
    }
}

fn refuse(code: ErrorCode) -> Refusal<'static> {
    Refusal {
        code,
        effects: Effects::None,
        retryable: false,
        retry_after_ms: 0,
        value: None,
        limit: None,
        subject: "f",
        text: "",
    }
}

fn refused(code: ErrorCode) -> Answer<'static> {
    let refusal = refuse(code);
    Answer::Refused { refusal }
}

fn refused_with(code: ErrorCode, value: Option<u64>, limit: Option<u64>) -> Answer<'static> {
    let refusal = Refusal {
        value,
        limit,
        ..refuse(code)
    };
    Answer::Refused { refusal }
}

impl World {
    pub fn create(&mut self, name: &str, exclusive: bool) -> u64 {
        if let Some(feed) = self.feeds.get(name) {
            return feed.id;
        }
        self.feeds_made += 1;
        let feed = Feed {
            id: self.feeds_made,
            exclusive,
            ..Feed::default()
        };
        self.feeds.insert(name.to_owned(), feed);
        self.feeds_made
    }
}

impl Feed {
    fn info(&self, name: &str) -> FeedInfo {
        FeedInfo {
            name: name.to_owned(),
            id: self.id,
            keys: true,
            exclusive: self.exclusive,
            created_ms: 0,
            epoch: self.epoch,
            next_sequence: self.next,
            commits: self.commits.len() as u64,
            open_stream: self.open,
            unpublished: 0,
            producers: self.producers.len() as u64,
        }
    }

    fn open_stream(&mut self) {
        let id = self.streams.len() as u64 + 1;
        for stream in &mut self.streams {
            if stream.phase == StreamPhase::Open {
                stream.phase = StreamPhase::Abandoned;
            }
        }
        self.streams.push(StreamInfo {
            id,
            phase: StreamPhase::Open,
            first: self.next,
            end: self.next,
            records: 0,
            payload_bytes: 0,
            packed_end: self.next,
            commit: None,
        });
        self.open = Some(id);
    }

    fn seal(&mut self, token: Option<u64>, message: &str) -> Answer<'static> {
        if token.is_some_and(|token| token != self.epoch) {
            return refused_with(ErrorCode::Fenced, token, Some(self.epoch));
        }
        let Some(stream) = self.open.take() else {
            return refused(ErrorCode::NoOpenStream);
        };
        let number = self.commits.len() as u64;
        let next = self.next;
        let info = self
            .streams
            .iter_mut()
            .find(|info| info.id == stream)
            .unwrap();
        info.phase = StreamPhase::Published;
        info.commit = Some(number);
        info.end = next;
        let commit = CommitInfo {
            number,
            discarded: false,
            feed: self.id,
            stream,
            epoch: self.epoch,
            parent: [0; 32],
            first: info.first,
            end: next,
            records: next - info.first,
            payload_bytes: 0,
            message: message.to_owned(),
            time_ms: 0,
            manifest: [0; 32],
        };
        self.commits.push(commit.clone());
        Answer::Committed { commit }
    }

    /// In the order of the spec: token, producer, match sequence, stream.
    fn append(&mut self, frame: &[u8]) -> Answer<'static> {
        let batch = Batch::from_bytes(frame.to_vec(), &FrameLimits::DEFAULT).unwrap();
        let view = batch.view();
        let token = view.fencing_token();
        match token {
            Some(token) if token != self.epoch => {
                return refused_with(ErrorCode::Fenced, Some(token), Some(self.epoch));
            }
            None if self.exclusive => return refused(ErrorCode::TokenRequired),
            _ => {}
        }
        if let Some(tag) = view.producer()
            && let Some(answer) = self.judge(tag.id, tag.epoch, tag.sequence)
        {
            return answer;
        }
        let last = self.next.checked_sub(1);
        let expected = match view.match_sequence() {
            None => last,
            Some(MatchSequence::Empty) => None,
            Some(MatchSequence::At(at)) => Some(at),
        };
        if expected != last {
            return refused_with(ErrorCode::SequenceMismatch, expected, last);
        }
        if self.open.is_none() {
            if token.is_some() {
                return refused(ErrorCode::NoOpenStream);
            }
            self.open_stream();
        }
        let first = self.next;
        let records = view.record_count() as u64;
        self.next += records;
        let tag = view.producer();
        if let Some(tag) = tag {
            let producer = self.producers.entry(tag.id.to_vec()).or_default();
            if producer.epoch != tag.epoch {
                producer.ranges.clear();
            }
            (producer.epoch, producer.last) = (tag.epoch, tag.sequence);
            producer.ranges.insert(tag.sequence, (first, self.next - 1));
        }
        let producer_sequence = tag.map(|tag| tag.sequence);
        let mut bytes = frame.to_vec();
        let stamped = Stamp {
            base_sequence: first,
            epoch: self.epoch,
            ..Stamp::default()
        };
        stamp(&mut bytes, &stamped);
        self.stored.push(Stored {
            batch: Batch::from_bytes(bytes, &FrameLimits::DEFAULT).unwrap(),
            first,
            next: self.next,
        });
        Answer::Appended {
            first,
            last: self.next - 1,
            records: u32::try_from(records).unwrap(),
            duplicate: false,
            producer_sequence,
        }
    }

    /// The answer, unless the batch is new.
    fn judge(&self, id: &[u8], epoch: u64, sequence: u64) -> Option<Answer<'static>> {
        let Some(known) = self.producers.get(id) else {
            let gap = || refused_with(ErrorCode::ProducerGap, Some(sequence), Some(0));
            return (sequence != 0).then(gap);
        };
        if epoch < known.epoch {
            let current = Some(known.epoch);
            return Some(refused_with(
                ErrorCode::ProducerFenced,
                Some(epoch),
                current,
            ));
        }
        if epoch > known.epoch {
            let start = || refused_with(ErrorCode::ProducerEpochStart, Some(epoch), Some(sequence));
            return (sequence != 0).then(start);
        }
        if sequence > known.last {
            let gap = || refused_with(ErrorCode::ProducerGap, Some(sequence), Some(known.last + 1));
            return (sequence != known.last + 1).then(gap);
        }
        let (first, last) = known.ranges[&sequence];
        Some(Answer::Appended {
            first,
            last,
            records: u32::try_from(last - first + 1).unwrap(),
            duplicate: true,
            producer_sequence: Some(known.last),
        })
    }

    fn resolve(&self, from: ReadFrom) -> u64 {
        match from {
            ReadFrom::Sequence(sequence) => sequence,
            ReadFrom::Tail(back) => self.next.saturating_sub(back),
            _ => 0,
        }
    }

    /// Frames with the records from `at` on; where to go on, and whether that is the end.
    fn frames(&self, at: u64, end: u64, bytes_max: u32, out: &mut Vec<u8>) -> (u64, bool) {
        let mut next = at;
        for stored in self.stored.iter().filter(|stored| stored.next > at) {
            if stored.first >= end || out.len() >= bytes_max as usize {
                break;
            }
            out.extend_from_slice(stored.batch.as_bytes());
            next = stored.next.min(end);
        }
        (next, next >= end)
    }
}
