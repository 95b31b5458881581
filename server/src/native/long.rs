//! Long: the memory of messages that do not come at once. Spec: server/spec/native-protocol.md §2.
//!
//! **Invariants**
//! - A message of which more than [`KEPT_BYTES_MAX`] has come, and which is not whole, is read on only when
//!   its whole length is reserved from the shard's budget, first come, first served. Before that a
//!   connection keeps no more than one read brought.
//! - What is reserved is given back when the message was handled, or did not come in time: a client that
//!   drips holds it for a bounded while, one that is silent not for long while others wait.
//!
//! **Not here**: the bytes themselves (`reader`).

use std::time::Duration;

use sealog_engine::Permit;
use sealog_protocol::{ErrorCode, MessageHeader};

use super::connection::{Connection, Phase};
use super::refuse::own;

/// Bytes of an unfinished message that a connection may keep without asking.
const KEPT_BYTES_MAX: usize = 16 << 10;
/// Time for a long message to come, or to leave, whatever its length.
const GRACE: Duration = Duration::from_secs(10);
/// And for this many bytes of it, another second: the least rate.
const BYTES_PER_SECOND_MIN: usize = 256 << 10;

/// Silence in the midst of a long message, while others wait for what is reserved for it.
const SILENCE_MAX: Duration = Duration::from_secs(2);
/// How often a long message is looked at.
const LOOK: Duration = Duration::from_millis(500);

/// How long `bytes` may take from or to a client, at the least rate.
pub(super) fn patience(bytes: usize) -> Duration {
    GRACE + Duration::from_secs((bytes / BYTES_PER_SECOND_MIN) as u64)
}

/// A long message on its way.
pub(super) struct Long {
    bytes: usize,
    _permit: Permit,
    due_ns: u64,
}

impl Long {
    /// What of it is still to come when `kept` bytes have; at least one.
    pub(super) fn left(&self, kept: usize) -> usize {
        self.bytes.saturating_sub(kept).max(1)
    }
}

impl Connection {
    /// Reserves the length of the message that `kept` is the beginning of, if it is a long one.
    /// `false`: the connection has ended meanwhile.
    pub(super) async fn reserve(&self, kept: &mut Vec<u8>, long: &mut Option<Long>) -> bool {
        if long.is_some() || kept.len() <= KEPT_BYTES_MAX {
            return true;
        }
        // The header was looked at before: it is in order.
        let limit = self.service.message_bytes_max();
        let Ok(Some(header)) = MessageHeader::peek(kept, limit) else {
            return true;
        };
        let bytes = header.message_bytes;
        let reserved = async { self.service.memory.receiving.acquire(bytes).await };
        let ending = async {
            let ending = || (self.phase() >= Phase::Closing).then_some(());
            self.ending.until(ending).await;
            None
        };
        let Some(permit) = futures_lite::future::or(reserved, ending).await else {
            return false;
        };
        let time_ns = u64::try_from(patience(bytes).as_nanos()).unwrap_or(u64::MAX);
        let mut roomy = self.service.memory.long_spares.take(bytes);
        roomy.extend_from_slice(kept);
        *kept = roomy;
        *long = Some(Long {
            bytes,
            _permit: permit,
            due_ns: self.service.side.monotonic_ns().saturating_add(time_ns),
        });
        true
    }

    /// Takes the first `handled` bytes out of `kept`, and lets go of memory that the rest does not need.
    pub(super) fn cut(&self, kept: &mut Vec<u8>, handled: usize) {
        if handled == 0 {
            return;
        }
        let rest = kept[handled..].to_vec();
        let spent = std::mem::replace(kept, rest);
        if spent.capacity() > KEPT_BYTES_MAX {
            self.service.memory.long_spares.put(spent);
        }
    }

    /// Waits until the long message is overdue; without one, for ever.
    pub(super) async fn overdue(&self, long: Option<&Long>) {
        let Some(long) = long else {
            return std::future::pending().await;
        };
        let side = &self.service.side;
        let silence_ns = u64::try_from(SILENCE_MAX.as_nanos()).unwrap_or(u64::MAX);
        loop {
            let now_ns = side.monotonic_ns();
            let silent = now_ns.saturating_sub(self.heard_ns.get()) >= silence_ns;
            let awaited = || self.service.memory.receiving.is_contended();
            if now_ns >= long.due_ns || (silent && awaited()) {
                break;
            }
            let left_ns = long.due_ns - now_ns;
            side.sleep(LOOK.min(Duration::from_nanos(left_ns))).await;
        }
        self.fail(own(
            ErrorCode::TimedOut,
            "a message of this length did not come in time",
        ));
    }
}
