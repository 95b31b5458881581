//! Intake: bodies of requests, taken in within the shard's memory and at no less than a least rate.
//!
//! **Invariants**
//! - Of a body no more than [`KEPT_BYTES_MAX`] is kept without its whole length, or the longest there may be,
//!   being reserved from the shard's budget, first come, first served.
//! - What is reserved is given back when the request was answered, or its body did not come in time: who drips
//!   holds it for a bounded while, who is silent not for long while others wait.
//!
//! **Not here**: what the bytes are (`durable_streams`).

use std::ops::Deref;
use std::time::Duration;

use futures_lite::future::or;
use http_body_util::BodyExt;
use hyper::StatusCode;
use hyper::body::{Body, Bytes, Incoming};
use sealog_engine::{Budget, Permit, ShardSide};

/// Bytes of a body that are kept without asking.
const KEPT_BYTES_MAX: usize = 16 << 10;
/// Time for a body to come, whatever its length.
const GRACE: Duration = Duration::from_secs(10);
/// And for this many bytes of it, another second: the least rate.
const BYTES_PER_SECOND_MIN: usize = 256 << 10;
/// Bytes beyond the longest body that are read and let go.
const HEARD_OUT_BYTES_MAX: usize = 64 << 20;
/// Silence in the midst of a body, while others wait for what is reserved for it.
const SILENCE_MAX: Duration = Duration::from_secs(2);

/// Why a body was not taken in.
#[derive(Debug)]
pub(super) enum Untaken {
    /// It is longer than it may be.
    TooLong,
    /// It did not come in time.
    TooSlow,
    /// It is not framed as it must be, or its client has gone.
    Broken(hyper::Error),
    /// The server ends.
    Ending,
}

impl Untaken {
    /// How that is told, where a body may have `most` bytes.
    pub(super) fn told(&self, most: usize) -> (StatusCode, String) {
        match self {
            Self::TooLong => (
                StatusCode::PAYLOAD_TOO_LARGE,
                format!("the body is longer than {most} bytes"),
            ),
            Self::TooSlow => (
                StatusCode::REQUEST_TIMEOUT,
                "the body did not come in time".to_owned(),
            ),
            Self::Broken(error) => (
                StatusCode::BAD_REQUEST,
                format!("the body did not come: {error}"),
            ),
            Self::Ending => (
                StatusCode::SERVICE_UNAVAILABLE,
                "the server ends".to_owned(),
            ),
        }
    }
}

/// A body that is there, and the memory that is reserved for it.
#[derive(Default)]
pub(super) struct Taken {
    bytes: Vec<u8>,
    /// Of a body that came in one piece.
    piece: Bytes,
    permit: Option<Permit>,
}

impl Deref for Taken {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self.bytes.is_empty() {
            true => &self.piece,
            false => &self.bytes,
        }
    }
}

/// When the next bytes must have come, `received` having come since `begun_ns`.
fn due_ns(begun_ns: u64, received: usize) -> u64 {
    let grace_ns = u64::try_from(GRACE.as_nanos()).unwrap_or(u64::MAX);
    let earned_ns = received as u64 * 1_000_000_000 / BYTES_PER_SECOND_MIN as u64;
    begun_ns.saturating_add(grace_ns).saturating_add(earned_ns)
}

/// Takes all of `body` in, if it is no longer than `most` bytes. What is longer is read on for a while, so that a
/// client that sends before it listens hears why; `waits`: the client sends only when it was told to.
pub(super) async fn take(
    body: &mut Incoming,
    (most, waits): (usize, bool),
    (side, budget): (&ShardSide, &Budget),
) -> Result<Taken, Untaken> {
    let announced = body.size_hint().exact();
    if announced.is_some_and(|bytes| bytes > most as u64) {
        if !waits {
            hear_out(body, side).await;
        }
        return Err(Untaken::TooLong);
    }
    let whole = announced.map_or(most, |bytes| usize::try_from(bytes).unwrap_or(most));
    let mut taken = Taken::default();
    let mut begun_ns = side.monotonic_ns();
    let mut received = 0_usize;
    loop {
        let frame = async { Some(body.frame().await) };
        let late = async {
            until_late(side, budget, due_ns(begun_ns, received), &taken).await;
            None
        };
        let frame = match or(frame, late).await {
            Some(Some(frame)) => frame.map_err(Untaken::Broken)?,
            Some(None) => return Ok(taken),
            None => return Err(Untaken::TooSlow),
        };
        let Ok(piece) = frame.into_data() else {
            continue;
        };
        received = received.saturating_add(piece.len());
        if received > most {
            // What was kept of it makes way for others while the rest is heard.
            drop(taken);
            hear_out(body, side).await;
            return Err(Untaken::TooLong);
        }
        if taken.permit.is_none() && received > KEPT_BYTES_MAX {
            let permit = budget.acquire(whole).await;
            taken.permit = Some(permit.ok_or(Untaken::Ending)?);
            // The client did not have that time.
            begun_ns = side.monotonic_ns();
        }
        taken.add(piece, announced.map_or(0, |_| whole));
    }
}

/// Reads what is left of a body that an answer was made without, and lets it go: else the connection would have to
/// be closed over it, and the answer might be lost with it. Whether that came to the body's end.
pub(super) async fn hear_out(body: &mut Incoming, side: &ShardSide) -> bool {
    let begun_ns = side.monotonic_ns();
    let mut received = 0_usize;
    while !body.is_end_stream() {
        let frame = async { Some(body.frame().await) };
        let late = async {
            let left_ns = due_ns(begun_ns, received).saturating_sub(side.monotonic_ns());
            side.sleep(Duration::from_nanos(left_ns)).await;
            None
        };
        match or(frame, late).await {
            Some(None) => break,
            Some(Some(Ok(frame))) => {
                let piece = frame.data_ref().map_or(0, Bytes::len);
                received = received.saturating_add(piece);
            }
            Some(Some(Err(_))) | None => return false,
        }
        if received > HEARD_OUT_BYTES_MAX {
            return false;
        }
    }
    true
}

impl Taken {
    /// Lets go of the bytes, for they are elsewhere now; what stays holds their place.
    pub(super) fn release(mut self) -> Option<Permit> {
        self.permit.take()
    }

    fn add(&mut self, piece: Bytes, whole: usize) {
        if self.is_empty() {
            self.piece = piece;
            return;
        }
        if self.bytes.is_empty() {
            self.bytes.reserve_exact(whole.max(self.piece.len()));
            self.bytes
                .extend_from_slice(&std::mem::take(&mut self.piece));
        }
        self.bytes.extend_from_slice(&piece);
    }
}

/// Completes when the next bytes are late.
async fn until_late(side: &ShardSide, budget: &Budget, due_ns: u64, taken: &Taken) {
    let silent_since_ns = side.monotonic_ns();
    let silence_ns = u64::try_from(SILENCE_MAX.as_nanos()).unwrap_or(u64::MAX);
    loop {
        let now_ns = side.monotonic_ns();
        let is_silent = now_ns >= silent_since_ns.saturating_add(silence_ns);
        let holds = taken.permit.is_some();
        if now_ns >= due_ns || (is_silent && holds && budget.is_contended()) {
            return;
        }
        let left = Duration::from_nanos(due_ns - now_ns);
        side.sleep(left.min(SILENCE_MAX)).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_is_earned_by_bytes() {
        let second_ns = 1_000_000_000;
        assert_eq!(due_ns(5, 0), 5 + 10 * second_ns);
        assert_eq!(due_ns(5, BYTES_PER_SECOND_MIN), 5 + 11 * second_ns);
        assert_eq!(due_ns(u64::MAX, 1), u64::MAX);
    }

    #[test]
    fn pieces_are_one_body() {
        let mut taken = Taken::default();
        assert!(taken.is_empty());
        for piece in ["a", "", "bc", "d"] {
            taken.add(Bytes::from_static(piece.as_bytes()), 4);
        }
        assert_eq!(&*taken, b"abcd");
    }
}
