//! Reader: bytes from the socket to messages, and each message to whom it concerns.
//! Spec: server/spec/native-protocol.md §2.
//!
//! **Invariants**
//! - A message that is whole in what was read is handled where it lies: it is not copied first.
//! - A length is held against its limit before the body is waited for (NATIVE-2); memory grows with the
//!   bytes received, never with the bytes announced.
//! - Nothing is read while more than the credit is unanswered, or the client leaves its answers unread
//!   (NATIVE-5), or the server drains.
//!
//! **Not here**: what messages do (`requests`, `appends`).

use std::future::poll_fn;
use std::rc::Rc;
use std::task::Poll;

use sealog_engine::Direct;
use sealog_frame::{Batch, FrameError, FrameView};
use sealog_protocol::{
    CONNECTION, ErrorCode, HEADER_BYTES, HELLO_BYTES_MAX, Hello, MessageHeader, PROTOCOL_VERSION,
    Request, WireError,
};

use super::bindings::Binding;
use super::connection::{Connection, Phase};
use super::long::Long;
use super::refuse::{bad_message, frame_error, own, wire_refusal};

/// Memory for the beginnings of messages that a connection without any keeps.
const KEPT_CAPACITY_MAX: usize = 1 << 10;

/// What handling messages came to.
enum Step {
    /// All that is whole was handled: so many bytes.
    Done(usize),
    /// So many bytes were handled; the last message, an append, has to be queued.
    Queue(usize, Box<Queued>),
}

/// An append that could not be decided at once.
struct Queued {
    request: u64,
    bytes: usize,
    binding: Binding,
    batch: Batch,
}

impl Connection {
    /// Reads until the connection has ended, or nothing more may be read.
    pub(super) async fn read(self: &Rc<Self>) {
        // Bytes of a message that is not whole yet, and what came with it.
        let mut kept: Vec<u8> = Vec::new();
        let mut long = None;
        while self.may_read_on(long.as_ref()).await && self.reserve(&mut kept, &mut long).await {
            match self.fill(&mut kept, long.as_ref()).await {
                Some(Step::Done(0)) => {}
                Some(Step::Done(_)) => long = None,
                Some(Step::Queue(_, queued)) => {
                    let batch = if long.is_some() { 0 } else { queued.bytes };
                    self.kept.set(kept.len() + batch);
                    self.queue(*queued).await;
                    self.handle_kept(&mut kept).await;
                    long = None;
                }
                None => break,
            }
            // Of a long message every byte is reserved.
            self.kept.set(if long.is_some() { 0 } else { kept.len() });
            self.service.side.yield_if_needed().await;
        }
        self.kept.set(0);
        self.set_phase(Phase::Closing);
    }

    /// [`Connection::may_read`], within the time that a long message under way has: what is reserved
    /// for it must not wait for a client that does not read.
    async fn may_read_on(&self, long: Option<&Long>) -> bool {
        let late = async {
            self.overdue(long).await;
            false
        };
        futures_lite::future::or(self.may_read(), late).await
    }

    /// Waits until something may be read; `false`: nothing ever will.
    async fn may_read(&self) -> bool {
        let credit = usize::try_from(self.service.options.credit_bytes).unwrap_or(usize::MAX);
        let emptied = self.outbox.emptied.until(|| {
            if self.phase() >= Phase::Closing {
                return Some(false);
            }
            (self.outbox.unanswered() <= credit && self.is_read()).then_some(true)
        });
        emptied.await
    }

    /// Whether the client takes its answers: what waits for the socket, and for what waits there, is little.
    fn is_read(&self) -> bool {
        self.outbox.waiting() == 0
            || self.outbox.small() + self.appends.bytes() <= self.service.memory.answers_kept_max()
    }

    /// Reads once and handles what is whole; what is left goes into `kept`. `None`: the other side has
    /// ended, or the server drains.
    async fn fill(self: &Rc<Self>, kept: &mut Vec<u8>, long: Option<&Long>) -> Option<Step> {
        self.hear();
        self.reading.set(true);
        let read = poll_fn(|cx| {
            let mut scratch = self.service.scratch.borrow_mut();
            let most = match long {
                Some(_) => scratch.len(),
                None => {
                    let answers_wait = self.outbox.waiting() > 0;
                    self.service.memory.read_bytes(scratch.len(), answers_wait)
                }
            };
            // A long message is gathered; others are handled in the shard's own buffer.
            if kept.len() >= scratch.len() / 2 {
                let left = long.map_or(most, |long| long.left(kept.len()));
                return self.poll_more(cx, kept, &mut scratch[..most.min(left)]);
            }
            scratch[..kept.len()].copy_from_slice(kept);
            let end = scratch.len().min(kept.len() + most);
            let Poll::Ready(read) = self.stream.poll_read(cx, &mut scratch[kept.len()..end]) else {
                return Poll::Pending;
            };
            let Some(bytes) = self.taken(read) else {
                return Poll::Ready(None);
            };
            let bytes = kept.len() + bytes;
            let step = self.handle(&scratch[..bytes]);
            let handled = match &step {
                Step::Done(handled) | Step::Queue(handled, _) => *handled,
            };
            kept.clear();
            kept.extend_from_slice(&scratch[handled..bytes]);
            if kept.is_empty() {
                kept.shrink_to(KEPT_CAPACITY_MAX);
            }
            Poll::Ready(Some(step))
        });
        let ending = async {
            let ending = || (self.phase() >= Phase::Closing).then_some(());
            self.ending.until(ending).await;
            None
        };
        let overdue = async {
            self.overdue(long).await;
            None
        };
        let given_up = futures_lite::future::or(ending, overdue);
        let step = futures_lite::future::or(read, given_up).await;
        self.reading.set(false);
        self.hear();
        step
    }

    /// Bytes came, or are waited for from now on.
    fn hear(&self) {
        self.heard_ns.set(self.service.side.monotonic_ns());
    }

    /// How many bytes came; `None` when none ever will.
    fn taken(self: &Rc<Self>, read: std::io::Result<usize>) -> Option<usize> {
        match read {
            Ok(0) => self.leave(),
            Ok(bytes) => return Some(bytes),
            // It takes nothing either.
            Err(_) => self.set_phase(Phase::Ended),
        }
        None
    }

    /// Adds to `kept`, which holds the beginning of a long message.
    fn poll_more(
        self: &Rc<Self>,
        cx: &mut std::task::Context<'_>,
        kept: &mut Vec<u8>,
        scratch: &mut [u8],
    ) -> Poll<Option<Step>> {
        let Poll::Ready(read) = self.stream.poll_read(cx, scratch) else {
            return Poll::Pending;
        };
        let Some(bytes) = self.taken(read) else {
            return Poll::Ready(None);
        };
        kept.extend_from_slice(&scratch[..bytes]);
        let step = self.handle(kept);
        let (Step::Done(handled) | Step::Queue(handled, _)) = &step;
        self.cut(kept, *handled);
        Poll::Ready(Some(step))
    }

    /// Handles what is whole in `kept`, after an append was queued.
    async fn handle_kept(self: &Rc<Self>, kept: &mut Vec<u8>) {
        let mut at = 0;
        loop {
            let step = self.handle(&kept[at..]);
            let (Step::Done(handled) | Step::Queue(handled, _)) = &step;
            at += *handled;
            if 2 * at >= kept.len() {
                // Not for every message: what is left would be moved each time.
                self.cut(kept, at);
                at = 0;
            }
            match step {
                Step::Queue(_, queued) => {
                    self.kept.set(kept.len() + queued.bytes);
                    self.queue(*queued).await;
                }
                Step::Done(_) => break,
            }
        }
        self.cut(kept, at);
    }

    /// Handles every whole message at the start of `bytes`.
    fn handle(self: &Rc<Self>, bytes: &[u8]) -> Step {
        let mut handled = 0;
        while self.phase() < Phase::Closing {
            let rest = &bytes[handled..];
            let limit = match self.phase() {
                Phase::New => HELLO_BYTES_MAX,
                _ => self.service.message_bytes_max(),
            };
            let header = match MessageHeader::peek(rest, limit) {
                Ok(Some(header)) if header.message_bytes <= rest.len() => header,
                Ok(_) => break,
                Err(error) => {
                    self.refuse_bytes(error);
                    break;
                }
            };
            handled += header.message_bytes;
            let body = &rest[HEADER_BYTES..header.message_bytes];
            if let Some(queued) = self.message(&header, body) {
                // Queueing may take a while: what was decided before it is not held up by that.
                self.outbox.filled.notify();
                return Step::Queue(handled, Box::new(queued));
            }
        }
        if self.phase() >= Phase::Closing {
            handled = bytes.len();
        }
        // Decided appends of a log that has nothing to wait for, and answers made at once.
        self.outbox.filled.notify();
        Step::Done(handled)
    }

    fn refuse_bytes(&self, error: WireError) {
        let text = error.to_string();
        self.fail(wire_refusal(error, &text));
    }

    /// Handles one message; an append that must be queued is handed back.
    fn message(self: &Rc<Self>, header: &MessageHeader, body: &[u8]) -> Option<Queued> {
        let request = match Request::decode(header.kind, body) {
            Ok(request) => request,
            Err(error) => {
                self.refuse_bytes(error);
                return None;
            }
        };
        let asks = (header.request, header.message_bytes);
        let meters = &self.service.meters;
        meters.requests.add(1);
        meters.request_bytes.add(header.message_bytes as u64);
        if let Some((field, value)) = stray(header, &request) {
            let text = format!("{field} = {value} from a client");
            let mut refusal = bad_message(&text);
            refusal.value = Some(value);
            self.fail(refusal);
            return None;
        }
        match (self.phase(), request) {
            (Phase::New, Request::Hello { hello }) => self.hello(&hello, asks),
            (Phase::New, _) => self.fail(bad_message("the first message is no hello")),
            (_, Request::Hello { .. }) => self.fail(bad_message("a second hello")),
            (_, Request::Append { binding, frame }) => return self.append(binding, frame.0, asks),
            (_, request) => self.request(request, asks),
        }
        None
    }

    fn hello(self: &Rc<Self>, hello: &Hello<'_>, (request, bytes): (u64, usize)) {
        let refuse = |code, value, text: &str| {
            let mut refusal = own(code, text);
            refusal.value = value;
            self.fail(refusal);
        };
        if hello.magic != Hello::MAGIC {
            return refuse(
                ErrorCode::BadMessage,
                None,
                "the hello does not begin with SLNP",
            );
        }
        if hello.version_min > PROTOCOL_VERSION || hello.version_max < PROTOCOL_VERSION {
            let text = format!(
                "versions {} to {} are offered, {PROTOCOL_VERSION} is spoken",
                hello.version_min, hello.version_max
            );
            return refuse(ErrorCode::Version, Some(PROTOCOL_VERSION.into()), &text);
        }
        if let Some(token) = &self.service.options.token
            && !same_token(token, hello.token.unwrap_or_default())
        {
            return refuse(
                ErrorCode::Unauthorized,
                None,
                "the token is wrong or missing",
            );
        }
        if !self.welcome() {
            let mut refusal = own(
                ErrorCode::Overloaded,
                "as many connections per shard as may be (connections_max)",
            );
            refusal.limit = Some(self.service.options.connections_max as u64);
            refusal.retryable = true;
            return self.fail(refusal);
        }
        self.keep_pulse(hello.heartbeat_ms);
        self.outbox.take_in(bytes);
        let welcome = self.service.welcome();
        self.answer(
            &sealog_protocol::Answer::Welcome { welcome },
            request,
            bytes,
        );
    }

    /// Decides about a batch where it lies, or hands it back to be queued.
    fn append(&self, binding: u32, frame: &[u8], (request, bytes): (u64, usize)) -> Option<Queued> {
        self.outbox.take_in(bytes);
        let Some(bound) = self.bindings.get(binding) else {
            let text = format!("binding {binding} is not known on this connection");
            let mut refusal = own(ErrorCode::NotBound, &text);
            refusal.value = Some(binding.into());
            self.answer_refused(refusal, request, bytes);
            return None;
        };
        let view = match FrameView::parse_plain(frame, &self.service.limits) {
            Ok(view) => view,
            Err(error) => {
                self.refuse_append(bound.lane, &error, (request, bytes));
                return None;
            }
        };
        if let Some(log) = &bound.log
            && let Direct::Decided(result, group) = log.append_direct(&bound.feed, &view)
        {
            self.appends
                .decided((bound.lane, log), (request, bytes), (result, group));
            return None;
        }
        let batch = match Batch::from_bytes(frame.to_vec(), &self.service.limits) {
            Ok(batch) => batch,
            Err(error) => {
                self.refuse_append(bound.lane, &error, (request, bytes));
                return None;
            }
        };
        Some(Queued {
            request,
            bytes,
            binding: bound.clone(),
            batch,
        })
    }

    /// Refuses a batch in its place: behind those of its log that came before it (NATIVE-3).
    fn refuse_append(&self, lane: usize, error: &FrameError, asks: (u64, usize)) {
        let slot = self.appends.queued(lane, asks);
        self.appends.fill(slot, Err(frame_error(error)));
    }

    /// Queues an append, unless the time for its answer ends before there is room for it.
    async fn queue(self: &Rc<Self>, queued: Queued) {
        let late = async {
            let late = || (self.phase() >= Phase::Late).then_some(());
            self.ending.until(late).await;
        };
        futures_lite::future::or(self.queue_in_turn(queued), late).await;
    }

    /// Queues an append: behind others of its log, or to the shard that owns it.
    async fn queue_in_turn(self: &Rc<Self>, queued: Queued) {
        let Queued {
            request,
            bytes,
            binding,
            batch,
        } = queued;
        let slot = self.appends.queued(binding.lane, (request, bytes));
        let side = &self.service.side;
        // A log that is full does not keep a connection that has ended.
        let connection = Rc::downgrade(self);
        let done = move |result| {
            if let Some(connection) = connection.upgrade() {
                connection.appends.fill(slot, result);
                connection.outbox.filled.notify();
            }
        };
        if let Some(log) = &binding.log {
            let feed = binding.feed.clone();
            if let Err(error) = side.queue_append((log, feed), batch, done).await {
                self.appends.fill(slot, Err(error));
            }
            return;
        }
        let id = binding.feed.id.unwrap_or_default();
        match side.send_append((&binding.feed.name, id), batch).await {
            Ok(outcome) => side.spawn("native crossing", async move { done(outcome.await) }),
            Err(error) => done(Err(error)),
        }
    }
}

/// What a header says that only a server may say: which field, and its value.
fn stray(header: &MessageHeader, request: &Request<'_>) -> Option<(&'static str, u64)> {
    match (header.flags, header.request, request) {
        (0, CONNECTION, Request::Goodbye {}) => None,
        (0, CONNECTION, _) => Some(("request id", CONNECTION)),
        (0, _, _) => None,
        (flags, _, _) => Some(("flags", flags.into())),
    }
}

/// Compares in a time that does not tell where they differ.
pub(crate) fn same_token(a: &[u8], b: &[u8]) -> bool {
    let differ = a.iter().zip(b).fold(0, |differ, (a, b)| differ | (a ^ b));
    a.len() == b.len() && differ == 0
}
