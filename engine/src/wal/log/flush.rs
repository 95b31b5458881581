//! Flush: the tasks that take groups from full to durable and answer who waits. Spec: spec/wal.md §6.
//!
//! **Invariants**
//! - WAL-11, WAL-12, WAL-13.
//!
//! **Not here**: what goes into a group (`log`), when one may start (`state`).

use std::sync::Arc;
use std::time::Duration;

use super::Wal;
use super::state::{InFlight, OpenGroup, State};
use crate::env::{AlignedBuf, Env, File};
use crate::sync::race;
use crate::wal::alone::Clocks;
use crate::wal::group::{FLAG_MARKER, GroupSeal, seal_summed};
use crate::wal::reader::Group;

/// An idle log writes its marker after this long.
const IDLE: Duration = Duration::from_secs(1);

impl<E: Env> Wal<E> {
    pub(super) async fn mark_idle(self) {
        let mut seen = 0;
        loop {
            let ended = self.0.ended.until(|| self.poisoned().map(drop));
            race(ended, self.0.env.sleep(IDLE)).await;
            if self.poisoned().is_some() {
                return;
            }
            let now = self.0.activity.get();
            let mut state = self.0.state.borrow_mut();
            if now == seen {
                state.pool.clear();
            }
            let idle = now == seen && state.is_drained() && !state.last_is_marker;
            if idle && state.marker_due.is_none() {
                state.marker_due = Some(FLAG_MARKER);
                drop(state);
                self.0.work.notify();
            }
            seen = now;
        }
    }

    pub(super) async fn flush(self) {
        loop {
            self.give_way().await;
            let Some(group) = self.next_group().await else {
                return;
            };
            let segment = self.0.geometry.segment_of(group.offset);
            let Some(file) = self.0.space.ready(segment).await else {
                return;
            };
            let begun = self.0.env.monotonic_ns();
            let (buf, number, position) = self.submit(group, begun);
            let wal = self.clone();
            let alone = self.may_commit_alone(buf.len(), begun);
            self.0.env.spawn_urgent("wal commit", async move {
                #[cfg(sealog_bugs)]
                if crate::bugs::active("ack_before_sync") {
                    let _ = file.file.write_at(buf.clone(), position).await;
                    wal.finish(number, Ok(()));
                    let _ = file.file.sync_data().await;
                    return;
                }
                // In place, waiting for a turn of the shard is not the device's time.
                let begun = if alone {
                    wal.0.env.monotonic_ns()
                } else {
                    begun
                };
                let result = match alone {
                    true => file.file.commit_alone(buf, position).await,
                    false => file.file.commit(buf, position).await,
                };
                let took = wal.0.env.monotonic_ns().saturating_sub(begun);
                let took = Duration::from_nanos(took);
                wal.0.pace.committed(took);
                wal.0.alone.committed(took, alone);
                wal.finish(
                    number,
                    result.map_err(|error| format!("{}: {error}", file.name)),
                );
            });
        }
    }

    fn may_commit_alone(&self, bytes: usize, now: u64) -> bool {
        let busy = self.0.env.busy_ns();
        let only = self.0.state.borrow().in_flight.len() == 1;
        self.0.alone.may(bytes, Clocks { now, busy }) && only
    }

    /// Lets the lane read on before what it has not read leaves memory.
    async fn give_way(&self) {
        let pace = &self.0.pace;
        let Some(patience) = pace.patience(self.durable_end()) else {
            return;
        };
        let caught_up = pace.moved().until(|| {
            let behind = pace.patience(self.durable_end()).is_some();
            (!behind || self.poisoned().is_some()).then_some(())
        });
        race(caught_up, self.0.env.sleep(patience)).await;
    }

    /// The next group to submit, as soon as one may be in flight; `None` when the log stopped.
    async fn next_group(&self) -> Option<OpenGroup> {
        let interval = self.0.params.config.flush_interval;
        if !interval.is_zero() {
            let something = |s: &State| s.stopped() || s.open.is_some() || s.marker_due.is_some();
            self.0
                .work
                .until(|| something(&self.0.state.borrow()).then_some(()))
                .await;
            self.0.env.sleep(interval).await;
        }
        self.0
            .work
            .until(|| {
                let mut state = self.0.state.borrow_mut();
                if state.stopped() {
                    return Some(None);
                }
                state.take_submittable(&self.0).map(Some)
            })
            .await
    }

    fn submit(&self, group: OpenGroup, begun_ns: u64) -> (Arc<AlignedBuf>, u64, u64) {
        let mut state = self.0.state.borrow_mut();
        let OpenGroup {
            mut buf,
            crc,
            offset,
            entries,
            number,
            flags,
            ..
        } = group;
        let seal = GroupSeal {
            flags,
            log: self.0.params.log,
            incarnation: self.0.params.incarnation,
            offset,
            entries,
            predecessor: state.predecessor,
            durable_end: state.frontiers.durable().0,
        };
        let header = seal_summed(&mut buf, &seal, crc);
        state.frontiers.write(header.end());
        state.predecessor = header.crc();
        state.last_is_marker = flags & FLAG_MARKER != 0;
        state.last_bytes = buf.len();
        // A group that fills less than half of its memory is kept in as much as it needs.
        if buf.capacity() > 2 * buf.len() {
            let mut snug = state.pool.take(buf.len());
            snug.extend_from_slice(&buf);
            buf = snug;
        }
        let buf = Arc::new(buf);
        state.in_flight.push_back(InFlight {
            header,
            buf: buf.clone(),
            number,
            begun_ns,
            done: false,
        });
        (buf, number, self.0.geometry.position_of(offset))
    }

    fn finish(&self, number: u64, result: std::result::Result<(), String>) {
        if let Err(reason) = result {
            self.poison(&reason);
            return;
        }
        let now_ns = self.0.env.monotonic_ns();
        {
            let mut state = self.0.state.borrow_mut();
            if state.poisoned.is_some() {
                return;
            }
            let group = state.in_flight.iter_mut().find(|g| g.number == number);
            group.expect("in flight until finished").done = true;
            while let Some(group) = state.in_flight.pop_front_if(|g| g.done) {
                state.advance(&group, now_ns);
                let group = Group::whole(group.header, group.buf);
                self.0.cache.borrow_mut().push(group);
            }
            let durable = state.durable_groups;
            while let Some((_, then)) = state.completions.pop_front_if(|(g, _)| *g <= durable) {
                state.due.push_back(then);
            }
        }
        self.0.pace.durable(self.durable_end());
        // The next group first: answers take longer than submitting it.
        self.0.work.notify();
        self.0.answers.notify();
        self.0.progress.notify();
    }

    /// Runs the completions that are due; ends with the log.
    pub(super) async fn answer(self) {
        let _waiting = LetGo(self.clone());
        loop {
            self.answer_due();
            if self.poisoned().is_some() {
                return;
            }
            self.0
                .answers
                .until(|| {
                    let state = self.0.state.borrow();
                    (state.stopped() || !state.due.is_empty()).then_some(())
                })
                .await;
        }
    }

    pub(super) fn answer_due(&self) {
        loop {
            let due = self.0.state.borrow_mut().due.pop_front();
            match due {
                Some(then) => then(Ok(())),
                None => return,
            }
        }
    }
}

/// Drops what waits for groups when the task that would answer ends. It refers to the log's service,
/// which refers to the log: with the executor gone it would stay for ever, and its callers wait.
struct LetGo<E: Env>(Wal<E>);

impl<E: Env> Drop for LetGo<E> {
    fn drop(&mut self) {
        let Ok(mut state) = self.0.0.state.try_borrow_mut() else {
            return;
        };
        let waiting = std::mem::take(&mut state.completions);
        let due = std::mem::take(&mut state.due);
        drop(state);
        drop((waiting, due));
    }
}
