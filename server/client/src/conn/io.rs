//! I/O: the two tasks of a connection.
//!
//! **Invariants**
//! - The writer never keeps the reader from reading, nor the reader the writer from writing.
//! - A received buffer's answers are handed out together: each session is locked once per buffer.
//! - Silence for three heartbeats ends the connection; so does a ping without pong, or a write that does
//!   not move, for six: a path may be dead in one direction only. Not while the server says that it is busy.
//!
//! **Not here**: what an answer means (`session`, `follow`).

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::{Buf, BytesMut};
use sealog_protocol::{
    Answer, CONNECTION, Effects, HEADER_BYTES, MESSAGE_BYTES_MAX, MessageHeader, Request,
};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite};
use tokio::time::{Instant, timeout};

use super::outbox::Outbox;
use super::{Conn, Message, ORDINAL_BITS, Route, Taken};
use crate::error::{Error, Result};
use crate::session::{Ack, Core};

pub(super) type Reader = Box<dyn AsyncRead + Send + Unpin>;
pub(super) type Writer = Box<dyn AsyncWrite + Send + Unpin>;

/// Bytes asked of the socket at once.
const READ_BYTES: usize = 64 << 10;
/// Room made at once for what a header announces.
const ROOM_BYTES: usize = 4 << 20;
/// Longest time that small appends wait for company: what is in flight may belong to a log that stalls.
const HELD_MAX: Duration = Duration::from_millis(1);
/// Silence that ends a connection, in heartbeats.
const SILENT_HEARTBEATS: u32 = 3;
/// Heartbeats within which what was sent must have got through.
const STUCK_HEARTBEATS: u32 = 6;

/// Starts both tasks. They end with the connection.
pub(super) fn run(
    conn: &Arc<Conn>,
    reader: Reader,
    writer: Writer,
    received: BytesMut,
    heartbeat: Duration,
) {
    let (reading, writing) = (conn.clone(), conn.clone());
    tokio::spawn(async move {
        let ended = reading.clone();
        let read = read(&reading, reader, received, heartbeat);
        let error = tokio::select! {
            error = read => error,
            () = ended.ended.notified() => return,
        };
        reading.fail(error);
    });
    tokio::spawn(async move {
        if let Err(error) = write(&writing, writer, heartbeat).await {
            writing.fail(Error::disconnected(error.to_string()));
        }
    });
}

async fn write(conn: &Conn, mut writer: Writer, heartbeat: Duration) -> std::io::Result<()> {
    let stuck = heartbeat * STUCK_HEARTBEATS;
    let mut spent = Outbox::default();
    loop {
        match conn.take_outbox(&mut spent) {
            Taken::Dead => return Ok(()),
            Taken::All => {}
            Taken::Held => {
                if timeout(HELD_MAX, conn.wake_writer.notified())
                    .await
                    .is_err()
                {
                    conn.release();
                }
                continue;
            }
            Taken::Nothing => {
                wait_for_work(conn, heartbeat).await?;
                // Where others are in flight, whoever woke the writer may have more to say at once: one
                // write for all of it. One alone leaves now.
                if conn.is_pipelined() {
                    tokio::task::yield_now().await;
                }
                continue;
            }
        }
        let ended = async {
            while conn.end().is_none() {
                conn.wake_writer.notified().await;
            }
        };
        tokio::select! {
            done = spent.write_to(&mut writer, stuck, &conn.busy) => done?,
            () = ended => return Ok(()),
        }
        // What came meanwhile may not have woken anybody: look again before waiting.
    }
}

/// Waits until there is something to write; puts a ping there when there is nothing for too long.
async fn wait_for_work(conn: &Conn, heartbeat: Duration) -> std::io::Result<()> {
    if heartbeat.is_zero() {
        conn.wake_writer.notified().await;
        return Ok(());
    }
    if timeout(heartbeat, conn.wake_writer.notified())
        .await
        .is_ok()
    {
        return Ok(());
    }
    let mut state = conn.lock();
    let pinged = *state.pinged.get_or_insert_with(Instant::now);
    if pinged.elapsed() >= heartbeat * STUCK_HEARTBEATS {
        let text = format!("no pong for {:?}", pinged.elapsed());
        return Err(std::io::Error::new(std::io::ErrorKind::TimedOut, text));
    }
    let id = state.next_reply;
    state.next_reply += 1;
    state.push_now(&Request::Ping {}, id);
    Ok(())
}

/// Reads until it can't: the error is why.
async fn read(
    conn: &Arc<Conn>,
    mut reader: Reader,
    mut received: BytesMut,
    heartbeat: Duration,
) -> Error {
    let silence = heartbeat * SILENT_HEARTBEATS;
    let mut batch = Dispatch::default();
    loop {
        let needed = match dispatch(conn, &mut received, &mut batch) {
            Ok(needed) => needed,
            Err(error) => return error,
        };
        // Beyond a few megabytes room grows with what has come, not with what a header announces.
        let room = needed.clamp(READ_BYTES, received.len().max(ROOM_BYTES));
        received.reserve(room);
        let read = reader.read_buf(&mut received);
        let got = match silence.is_zero() {
            true => read.await,
            false => match timeout(silence, read).await {
                Ok(got) => got,
                Err(_) => return Error::disconnected(format!("silent for {silence:?}")),
            },
        };
        match got {
            Ok(0) => return Error::disconnected("closed by the server"),
            Ok(_) => {}
            Err(error) => return Error::disconnected(error.to_string()),
        }
    }
}

/// Acks of one session, gathered.
#[derive(Default)]
struct Dispatch {
    session: Option<(u64, Arc<Core>)>,
    acks: Vec<(u64, Result<Ack>)>,
}

impl Dispatch {
    /// Hands out what was gathered.
    fn flush(&mut self, conn: &Arc<Conn>) -> Result<()> {
        match self.session.take() {
            Some((_, core)) => core.on_answers(conn, &mut self.acks),
            None => Ok(()),
        }
    }
}

/// Hands out every whole message; how many bytes are missing of the next one.
fn dispatch(conn: &Arc<Conn>, received: &mut BytesMut, batch: &mut Dispatch) -> Result<usize> {
    let mut any = false;
    let needed = loop {
        let Some(header) = MessageHeader::peek(received, MESSAGE_BYTES_MAX)? else {
            break HEADER_BYTES;
        };
        if received.len() < header.message_bytes {
            break header.message_bytes - received.len();
        }
        any = true;
        deliver(conn, header, received, batch)?;
    };
    batch.flush(conn)?;
    if any {
        conn.useful.store(true, Ordering::Relaxed);
        conn.release();
        conn.feed_starved();
    }
    Ok(needed)
}

/// Takes the message at the start of `received`, which is whole, to whom it is for.
fn deliver(
    conn: &Arc<Conn>,
    header: MessageHeader,
    received: &mut BytesMut,
    batch: &mut Dispatch,
) -> Result<()> {
    if header.request == CONNECTION {
        let whole = received.split_to(header.message_bytes);
        return of_connection(conn, &Answer::decode(header.kind, &whole[HEADER_BYTES..])?);
    }
    let slot = header.request >> ORDINAL_BITS;
    if batch.session.as_ref().is_none_or(|(open, _)| *open != slot) {
        batch.flush(conn)?;
        match (slot != 0).then(|| conn.route(slot)).flatten() {
            Some(Route::Session(core)) => batch.session = Some((slot, core)),
            Some(Route::Follow(inbox)) => {
                inbox.push(message(header, received));
                return Ok(());
            }
            None => {
                conn.on_reply(message(header, received));
                return Ok(());
            }
        }
    }
    let ordinal = header.request & ((1 << ORDINAL_BITS) - 1);
    // Read where it lies: acks are small and many.
    let body = &received[HEADER_BYTES..header.message_bytes];
    let ack = match Answer::decode(header.kind, body)? {
        Answer::Refused { refusal } => Err(Error::from(&refusal)),
        answer => match Ack::of(&answer) {
            Some(ack) => Ok(ack),
            None => return Err(Error::protocol("an append is answered by something else")),
        },
    };
    received.advance(header.message_bytes);
    batch.acks.push((ordinal, ack));
    Ok(())
}

fn message(header: MessageHeader, received: &mut BytesMut) -> Message {
    let whole = received.split_to(header.message_bytes);
    let body = whole.freeze().slice(HEADER_BYTES..);
    Message { header, body }
}

/// What the server says to nobody's request.
fn of_connection(conn: &Conn, answer: &Answer<'_>) -> Result<()> {
    match answer {
        Answer::Alive {} | Answer::Pong {} => Ok(()),
        Answer::Busy {} => {
            conn.on_busy();
            Ok(())
        }
        Answer::Goodbye { reason } => Err(Error::disconnected(format!("goodbye: {reason}"))),
        // It ends the connection: of what was in flight nobody knows.
        Answer::Refused { refusal } => Err(Error::from(refusal).with_effects(Effects::Unknown)),
        _ => Err(Error::protocol("an answer to no request")),
    }
}
