//! Pulse: who is silent for too long is closed; who is to be heard from says so.
//! Spec: server/spec/native-protocol.md §4.
//!
//! **Invariants**
//! - Only a client that asked for a heartbeat is held to it, and only while the server would read.
//!
//! **Not here**: TCP's own keepalive.

use std::rc::Rc;
use std::time::Duration;

use sealog_protocol::{Answer, CONNECTION, ErrorCode};

use super::connection::{Connection, Phase};
use super::opening::{OPENING_MAX, Place};
use super::refuse::own;
use super::service::{CROWDED, HELLO_TIMEOUT};

/// Silence, in heartbeats, after which a client is given up; also how long it may take nothing.
pub(super) const MISSED_MAX: u32 = 3;
/// Longest heartbeat that is kept: a task waits for it, also when its connection has ended.
const HEARTBEAT_MAX: Duration = Duration::from_secs(60);
/// Shortest heartbeat that is kept.
const HEARTBEAT_MIN: Duration = Duration::from_millis(100);

impl Connection {
    /// Closes the connection if it has not been welcomed in time, or its place goes to another one.
    pub(super) fn limit_hello(self: &Rc<Self>, place: Rc<Place>, accepted_ns: u64) {
        let connection = Rc::downgrade(self);
        let service = self.service.clone();
        self.service.side.spawn("native hello", async move {
            let now_ns = service.side.monotonic_ns();
            let had = Duration::from_nanos(now_ns.saturating_sub(accepted_ns));
            let late = async {
                service.sleep(HELLO_TIMEOUT.saturating_sub(had)).await;
                own(ErrorCode::TimedOut, "no hello within 10 s")
            };
            let lost = async {
                place.lost().await;
                let mut refusal = own(ErrorCode::Overloaded, CROWDED);
                refusal.limit = Some(OPENING_MAX as u64);
                refusal.retryable = true;
                refusal
            };
            let refusal = futures_lite::future::or(late, lost).await;
            if let Some(connection) = connection.upgrade()
                && connection.phase() == Phase::New
            {
                connection.fail(refusal);
            }
        });
    }

    /// Keeps the heartbeat that the client asked for; zero: none.
    pub(super) fn keep_pulse(self: &Rc<Self>, heartbeat_ms: u32) {
        if heartbeat_ms == 0 {
            return;
        }
        let asked = Duration::from_millis(heartbeat_ms.into());
        let beat = asked.clamp(HEARTBEAT_MIN, HEARTBEAT_MAX);
        self.heartbeat.set(Some(beat));
        let connection = Rc::downgrade(self);
        let service = self.service.clone();
        self.service.side.spawn("native pulse", async move {
            loop {
                service.sleep(beat / 2).await;
                match connection.upgrade() {
                    Some(connection) if connection.phase() == Phase::Open => connection.beat(beat),
                    _ => return,
                }
            }
        });
    }

    fn beat(&self, beat: Duration) {
        let now_ns = self.service.side.monotonic_ns();
        let since = |then_ns: u64| Duration::from_nanos(now_ns.saturating_sub(then_ns));
        if self.reading.get() && since(self.heard_ns.get()) > beat * MISSED_MAX {
            let text = format!("nothing heard for {MISSED_MAX} heartbeats");
            self.fail(own(ErrorCode::TimedOut, &text));
        } else if since(self.spoke_ns.get()) >= beat / 2 && self.outbox.waiting() == 0 {
            let heartbeat = match self.reading.get() {
                true => Answer::Alive {},
                // What the client sends meanwhile, pings too, waits: it must not be taken for lost.
                false => Answer::Busy {},
            };
            self.outbox.put(&heartbeat, (CONNECTION, 0), 0);
        }
    }
}
