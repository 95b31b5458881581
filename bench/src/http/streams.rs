//! Streams: very many of them with one append each: what the hundred-thousandth costs beside the first.
//!
//! **Invariants**
//! - A server begins each run on an empty folder.
//! - A run that ends early says how far it came; quarters are of what was done.
//! - Ours has a stream once it said so, and refuses none. A peer that hasn't is asked again; one that refuses ends
//!   its run. Both are told.
//!
//! **Not here**: creates all at once (`creates`), appends to few streams (`compare`).

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use serde_json::json;

use super::crowd::{Crowd, Work};
use super::parts::{Column, Part, Run, Want};
use super::sides::Side;
use super::{Measure, Options};
use crate::Result;
use crate::compare::peers::Peer;
use crate::stats::Latencies;
use crate::targets::http::{path, request};

/// Connections.
const CONNECTIONS: usize = 64;
/// Payload of an append.
const PAYLOAD: [u8; 100] = [b'x'; 100];

/// What is measured.
pub static PART: Part = Part {
    name: "streams",
    columns: &[
        Column::rate("streams made"),
        Column::rate("streams/s"),
        Column::rate("last / first quarter"),
        Column::time("p99 us, first quarter"),
        Column::time("second"),
        Column::time("third"),
        Column::time("last"),
        Column::time("404 after 201"),
        Column::time("server CPU us/stream"),
    ],
    wants: &[
        Want::limit(2, None, 0.8),
        Want::goal(1, Some(Peer::DurableStreams), 1.0),
        Want::goal(1, Some(Peer::DurableStreamsNode), 10.0),
    ],
};

/// A stream and an append to it, over and over.
pub struct Streams<'a>(pub &'a Options);

impl Measure for Streams<'_> {
    fn part(&self) -> &'static Part {
        &PART
    }

    fn title(&self) -> String {
        let Options {
            streams,
            streams_seconds,
            ..
        } = self.0;
        format!(
            "up to {streams} streams with an append each, {streams_seconds} s at most, {CONNECTIONS} connections"
        )
    }

    fn in_flight_max(&self) -> Option<u64> {
        Some(CONNECTIONS as u64)
    }

    fn starts_anew(&self) -> bool {
        true
    }

    fn run(&mut self, side: &mut Side) -> Result<Run> {
        let mut crowd = Crowd::dial(side.address, CONNECTIONS)?;
        let cpu = side.cpu();
        let start = Instant::now();
        let mut pairs = Pairs {
            start,
            until: start + Duration::from_secs_f64(self.0.streams_seconds),
            left: self.0.streams,
            made: vec![VecDeque::new(); CONNECTIONS],
            appends: Vec::new(),
            is_own: side.is_own(),
            lost: 0,
            refused: None,
        };
        crowd.work(&mut pairs)?;
        let cpu = side.cpu().saturating_sub(cpu).as_secs_f64();
        if let Some(refused) = &pairs.refused {
            eprintln!("sealog-bench: {}, ended by {refused}", side.name);
        }
        let done = pairs.appends.len();
        let quarters = quarters(&pairs.appends);
        let (Some(first), Some(last)) = (quarters.first(), quarters.last()) else {
            return Err("fewer than four streams were made".into());
        };
        let seconds = pairs.appends.last().map_or(0.0, |(at, _)| at.as_secs_f64());
        let mut figures = vec![
            done as f64,
            done as f64 / seconds,
            last.per_second / first.per_second,
        ];
        figures.extend(quarters.iter().map(|quarter| quarter.latencies.us(0.99)));
        figures.extend([pairs.lost as f64, cpu * 1e6 / done as f64]);
        let told = quarters.iter().map(|quarter| {
            json!({ "streams_per_s": quarter.per_second, "append": quarter.latencies.json() })
        });
        Ok(Run {
            figures,
            // Both are acknowledged.
            acks: 2 * done as u64,
            data: json!({ "quarters": told.collect::<Vec<_>>(), "refused": pairs.refused }),
        })
    }
}

/// A part of a run.
struct Quarter {
    per_second: f64,
    latencies: Latencies,
}

/// Appends by when they were answered and how long that took, in four parts of as many; none of fewer than four.
fn quarters(appends: &[(Duration, Duration)]) -> Vec<Quarter> {
    let mut begin = Duration::ZERO;
    let quarter = |part: &[(Duration, Duration)]| {
        let mut latencies = Latencies::new();
        for (_, took) in part {
            latencies.record(*took);
        }
        let end = part.last().map_or(begin, |(at, _)| *at);
        let seconds = (end - begin).as_secs_f64();
        begin = end;
        Quarter {
            per_second: part.len() as f64 / seconds,
            latencies,
        }
    };
    let each = appends.len() / 4;
    if each == 0 {
        return Vec::new();
    }
    appends.chunks_exact(each).take(4).map(quarter).collect()
}

/// A create and an append to the stream created before that, in turn on each connection: one who creates and appends
/// at once would measure little but how soon a peer's creates come into sight.
struct Pairs {
    start: Instant,
    until: Instant,
    left: usize,
    /// What each connection has made, or is making, and has not appended to.
    made: Vec<VecDeque<String>>,
    /// When each was answered, and how long that took.
    appends: Vec<(Duration, Duration)>,
    /// Whether nothing may go wrong.
    is_own: bool,
    /// How often a stream wasn't there after its create was answered.
    lost: u64,
    /// What ended the run.
    refused: Option<String>,
}

impl Work for Pairs {
    fn ask(&mut self, who: usize, out: &mut Vec<u8>) -> bool {
        let kind = "Content-Type: application/octet-stream\r\n";
        if Instant::now() >= self.until {
            self.left = 0;
        }
        let made = &mut self.made[who];
        if made.len() < 2 && self.left > 0 {
            let path = path(&format!("many-{:07}", self.left));
            let headers = format!("{kind}Content-Length: 0\r\n");
            out.extend_from_slice(request("PUT", &path, &headers).as_bytes());
            self.left -= 1;
            made.push_back(path);
            return true;
        }
        let Some(path) = made.front() else {
            return false;
        };
        let headers = format!("{kind}Content-Length: {}\r\n", PAYLOAD.len());
        out.extend_from_slice(request("POST", path, &headers).as_bytes());
        out.extend_from_slice(&PAYLOAD);
        true
    }

    fn answered(&mut self, who: usize, answer: (u16, &str), took: Duration) -> Result<()> {
        match answer {
            (201, _) => Ok(()),
            (404, _) if !self.is_own => {
                self.lost += 1;
                Ok(())
            }
            (200 | 204, _) => {
                self.made[who].pop_front();
                self.appends.push((self.start.elapsed(), took));
                Ok(())
            }
            (status, text) => {
                let told = format!("{status} {text}");
                if self.is_own {
                    return Err(format!("the server answered {told}").into());
                }
                self.left = 0;
                self.made[who].clear();
                self.refused.get_or_insert(told);
                Ok(())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quarters_are_of_as_many_appends_and_tell_their_own_rate() {
        let ms = Duration::from_millis;
        // A stream a millisecond, and one every two in the last quarter.
        let at = |n: u64| ms(n.min(30) + 2 * n.saturating_sub(30));
        let appends: Vec<_> = (1..=41).map(|n| (at(n), ms(n))).collect();
        let quarters = quarters(&appends);
        let rates: Vec<f64> = quarters.iter().map(|q| q.per_second.round()).collect();
        assert_eq!(rates, [1000.0, 1000.0, 1000.0, 500.0]);
        let counts: Vec<u64> = quarters.iter().map(|q| q.latencies.count()).collect();
        assert_eq!(counts, [10; 4]);
        assert!(super::quarters(&appends[..3]).is_empty());
    }
}
