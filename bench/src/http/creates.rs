//! Creates: many new streams at once, each asked for on a connection of its own.
//!
//! **Invariants**
//! - Every request is on its way before an answer is read.
//!
//! **Not here**: creates that come with their first append (`streams`).

use std::time::Duration;

use serde_json::json;

use super::crowd::{Crowd, Work};
use super::parts::{Column, Part, Run, Want};
use super::sides::Side;
use super::{Measure, Options};
use crate::Result;
use crate::compare::peers::Peer;
use crate::stats::{Latencies, median};
use crate::targets::http::request;

/// What is measured.
pub static PART: Part = Part {
    name: "creates",
    columns: &[
        Column::rate("creates/s"),
        Column::time("p50 us"),
        Column::time("p99 us"),
        Column::time("server CPU us/create"),
    ],
    wants: &[
        Want::limit(0, Some(Peer::DurableStreams), 5.0),
        Want::limit(0, Some(Peer::DurableStreamsNode), 10.0),
    ],
};

/// Creates in parallel, round after round.
pub struct Creates<'a>(pub &'a Options);

impl Measure for Creates<'_> {
    fn part(&self) -> &'static Part {
        &PART
    }

    fn title(&self) -> String {
        let Options {
            creates, rounds, ..
        } = self.0;
        format!("{creates} new streams at once, {rounds} rounds each")
    }

    fn in_flight_max(&self) -> Option<u64> {
        Some(self.0.creates as u64)
    }

    fn run(&mut self, side: &mut Side) -> Result<Run> {
        let mut crowd = Crowd::dial(side.address, self.0.creates)?;
        let (mut walls, mut latencies) = (Vec::new(), Latencies::new());
        let cpu = side.cpu();
        for _ in 0..self.0.rounds {
            let paths = (0..self.0.creates).map(|_| side.new_path()).collect();
            let mut round = Round {
                paths,
                latencies: &mut latencies,
            };
            walls.push(crowd.work(&mut round)?.as_secs_f64());
        }
        let cpu = side.cpu().saturating_sub(cpu).as_secs_f64();
        let wall = median(&walls);
        let (p50, p99) = (latencies.us(0.5), latencies.us(0.99));
        let acks = latencies.count();
        Ok(Run {
            figures: vec![
                self.0.creates as f64 / wall,
                p50,
                p99,
                cpu * 1e6 / acks as f64,
            ],
            acks,
            data: json!({ "walls_s": walls, "latency": latencies.json() }),
        })
    }
}

/// A request for each path.
struct Round<'a> {
    paths: Vec<String>,
    latencies: &'a mut Latencies,
}

impl Work for Round<'_> {
    fn ask(&mut self, _: usize, out: &mut Vec<u8>) -> bool {
        let Some(path) = self.paths.pop() else {
            return false;
        };
        let kind = "Content-Type: application/octet-stream\r\nContent-Length: 0\r\n";
        out.extend_from_slice(request("PUT", &path, kind).as_bytes());
        true
    }

    fn answered(&mut self, _: usize, answer: (u16, &str), took: Duration) -> Result<()> {
        let (status, text) = answer;
        if status != 201 {
            return Err(format!("a stream was not made: {status} {text}").into());
        }
        self.latencies.record(took);
        Ok(())
    }
}
