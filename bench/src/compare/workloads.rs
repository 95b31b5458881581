//! Workloads: what is compared, beside whom, and what must come out.
//!
//! **Invariants**
//! - Names are stable: scripts and reports of other days use them.
//! - Each record of a `Records` workload is an append of its own with an acknowledgement of its own.
//!
//! **Not here**: how a run is made (`contest`).

use super::own;
use super::peers::Peer;
use crate::generator::LoadSpec;
use crate::targets::TargetUrl;

/// A comparison.
#[derive(Debug)]
pub struct Workload {
    /// What `--workload` calls it.
    pub name: &'static str,
    /// For titles.
    pub title: &'static str,
    /// What is done.
    pub shape: Shape,
    /// Beside whom, and what must come out.
    pub checks: &'static [Check],
}

/// What is done.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Shape {
    /// Closed loop of single records.
    Records(LoadSpec),
    /// The same over HTTP, with a producer's headers or without.
    Http(LoadSpec, bool),
    /// Closed loop of whole batches into a log that was written before, lane idle.
    Blocks(LoadSpec),
    /// The same from an empty directory over ten log budgets, lane on.
    Sustained(LoadSpec),
    /// Open loop of single records at half of the peak that a closed loop with this spec reaches.
    OpenHalf(LoadSpec),
    /// A generator on each shard, disk in memory, two shards and one.
    Shards,
}

impl Shape {
    /// What is measured, where `asked` is what was asked for.
    pub fn target(&self, asked: &TargetUrl) -> TargetUrl {
        match (self, own::is_own(asked)) {
            (Self::Http(_, false), true) => TargetUrl::Http,
            (Self::Http(_, true), true) => TargetUrl::HttpProducers,
            _ => asked.clone(),
        }
    }

    /// The load; of shards, each shard's.
    pub fn spec(&self) -> LoadSpec {
        match self {
            Self::Records(spec)
            | Self::Http(spec, _)
            | Self::Blocks(spec)
            | Self::Sustained(spec)
            | Self::OpenHalf(spec) => *spec,
            Self::Shards => LoadSpec::of(1, 256, 100),
        }
    }
}

/// What is divided by what.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Metric {
    /// Records a second.
    Records,
    /// Payload MB a second.
    Bandwidth,
    /// Latency percentiles.
    P50,
    /// 99 of 100.
    P99,
    /// 999 of 1000.
    P999,
    /// CPU time of the server's process per record.
    ServerCpu,
}

impl Metric {
    /// For titles.
    pub fn label(self) -> &'static str {
        match self {
            Self::Records => "records/s",
            Self::Bandwidth => "MB/s",
            Self::P50 => "p50",
            Self::P99 => "p99",
            Self::P999 => "p99.9",
            Self::ServerCpu => "server CPU per record",
        }
    }

    /// Larger is better.
    pub fn at_least(self) -> bool {
        matches!(self, Self::Records | Self::Bandwidth)
    }
}

/// A ratio of the target's figure and a peer's, and what it must be.
#[derive(Debug)]
pub struct Check {
    /// The peer.
    pub peer: Peer,
    /// The figure.
    pub metric: Metric,
    /// What the median ratio must reach, or stay within; `None`: nothing hangs on it but the goal.
    pub limit: Option<f64>,
    /// What is wanted.
    pub goal: f64,
}

const fn check(peer: Peer, metric: Metric, limit: f64, goal: f64) -> Check {
    let limit = Some(limit);
    Check {
        peer,
        metric,
        limit,
        goal,
    }
}

const fn goal(peer: Peer, metric: Metric, goal: f64) -> Check {
    Check {
        peer,
        metric,
        limit: None,
        goal,
    }
}

const fn blocks(clients: usize, window: usize, record_bytes: usize) -> LoadSpec {
    LoadSpec {
        clients,
        window,
        records: 100,
        record_bytes,
        keyed: false,
    }
}

/// All of them, in the order in which they run.
pub static WORKLOADS: [Workload; 18] = [
    Workload {
        name: "100b-1x256",
        title: "100 B records, 1 client with 256 in flight",
        shape: Shape::Records(LoadSpec::of(1, 256, 100)),
        checks: &[check(Peer::RedisAlways, Metric::Records, 2.5, 4.0)],
    },
    Workload {
        name: "100b-16x16",
        title: "100 B records, 16 clients with 16 in flight",
        shape: Shape::Records(LoadSpec::of(16, 16, 100)),
        checks: &[check(Peer::RedisAlways, Metric::Records, 2.5, 4.0)],
    },
    Workload {
        name: "1k-16x16",
        title: "1 KiB records, 16 clients with 16 in flight",
        shape: Shape::Records(LoadSpec::of(16, 16, 1024)),
        checks: &[
            check(Peer::RedisAlways, Metric::Records, 1.5, 2.0),
            goal(Peer::RedisEverysec, Metric::Records, 1.0),
            goal(Peer::NatsDefault, Metric::Records, 1.0),
        ],
    },
    Workload {
        name: "100b-1x1",
        title: "100 B records, one at a time",
        shape: Shape::Records(LoadSpec::of(1, 1, 100)),
        checks: &[
            check(Peer::RedisAlways, Metric::P50, 1.1, 1.0),
            check(Peer::RedisAlways, Metric::P99, 1.25, 1.0),
        ],
    },
    Workload {
        name: "1k-16x1",
        title: "1 KiB records, 16 clients with one in flight",
        shape: Shape::Records(LoadSpec::of(16, 1, 1024)),
        checks: &[
            check(Peer::NatsAlways, Metric::Records, 10.0, 10.0),
            goal(Peer::NatsAlwaysEach, Metric::Records, 10.0),
        ],
    },
    Workload {
        name: "wal-100x1k",
        title: "batches of 100 x 1 KiB, lane idle",
        shape: Shape::Blocks(blocks(16, 4, 1024)),
        checks: &[check(Peer::Plain, Metric::Bandwidth, 0.85, 0.95)],
    },
    Workload {
        name: "wal-100x16k",
        title: "batches of 100 x 16 KiB, lane idle",
        shape: Shape::Blocks(blocks(2, 2, 16 << 10)),
        checks: &[check(Peer::Plain, Metric::Bandwidth, 0.85, 0.95)],
    },
    Workload {
        name: "sustained",
        title: "batches of 100 x 1 KiB over ten log budgets, lane on",
        shape: Shape::Sustained(blocks(16, 4, 1024)),
        checks: &[check(Peer::Plain, Metric::Bandwidth, 0.45, 0.45)],
    },
    Workload {
        name: "open-half",
        title: "100 B records, open loop at half of the peak",
        shape: Shape::OpenHalf(LoadSpec::of(16, 256, 100)),
        checks: &[
            check(Peer::PlainGroup, Metric::P99, 1.5, 1.0),
            check(Peer::PlainGroup, Metric::P999, 1.5, 1.0),
        ],
    },
    Workload {
        name: "shards",
        title: "a generator on each shard, disk in memory",
        shape: Shape::Shards,
        checks: &[],
    },
    http(
        "http-100b-16",
        "100 B over HTTP, 16 clients",
        (16, 100),
        false,
    ),
    http(
        "http-100b-64",
        "100 B over HTTP, 64 clients",
        (64, 100),
        false,
    ),
    http(
        "http-1k-16",
        "1 KiB over HTTP, 16 clients",
        (16, 1024),
        false,
    ),
    http(
        "http-1k-64",
        "1 KiB over HTTP, 64 clients",
        (64, 1024),
        false,
    ),
    http(
        "http-producers-100b-16",
        "100 B over HTTP, 16 producers",
        (16, 100),
        true,
    ),
    http(
        "http-producers-100b-64",
        "100 B over HTTP, 64 producers",
        (64, 100),
        true,
    ),
    http(
        "http-producers-1k-16",
        "1 KiB over HTTP, 16 producers",
        (16, 1024),
        true,
    ),
    http(
        "http-producers-1k-64",
        "1 KiB over HTTP, 64 producers",
        (64, 1024),
        true,
    ),
];

/// Beside the Durable Streams project's own servers, in Rust and for Node.
static HTTP: [Check; 3] = [
    check(Peer::DurableStreams, Metric::Records, 1.5, 2.0),
    goal(Peer::DurableStreams, Metric::ServerCpu, 0.75),
    check(Peer::DurableStreamsNode, Metric::Records, 10.0, 10.0),
];
static HTTP_PRODUCERS: [Check; 3] = [
    check(Peer::DurableStreamsProducers, Metric::Records, 1.5, 2.0),
    goal(Peer::DurableStreamsProducers, Metric::ServerCpu, 0.75),
    check(
        Peer::DurableStreamsNodeProducers,
        Metric::Records,
        10.0,
        10.0,
    ),
];

const fn http(
    name: &'static str,
    title: &'static str,
    (clients, record_bytes): (usize, usize),
    producers: bool,
) -> Workload {
    Workload {
        name,
        title,
        shape: Shape::Http(LoadSpec::of(clients, 1, record_bytes), producers),
        checks: match producers {
            true => &HTTP_PRODUCERS,
            false => &HTTP,
        },
    }
}

/// The workloads of these names, all if there are none.
///
/// # Errors
/// There is none of that name.
pub fn chosen(names: &[String]) -> Result<Vec<&'static Workload>, String> {
    if names.is_empty() {
        return Ok(WORKLOADS.iter().collect());
    }
    let find = |name: &String| {
        let found = WORKLOADS.iter().find(|workload| workload.name == name);
        found.ok_or_else(|| {
            let known: Vec<&str> = WORKLOADS.iter().map(|workload| workload.name).collect();
            format!("workload {name:?} is not one of {}", known.join(", "))
        })
    };
    names.iter().map(find).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workloads_are_chosen_by_name() {
        let all = chosen(&[]).expect("all");
        assert_eq!(all.len(), WORKLOADS.len());
        let one = chosen(&["1k-16x1".to_owned()]).expect("one");
        assert_eq!(one[0].shape, Shape::Records(LoadSpec::of(16, 1, 1024)));
        let error = chosen(&["2k".to_owned()]).expect_err("none");
        assert!(error.contains("100b-1x256"), "{error}");
    }

    #[test]
    fn names_of_record_workloads_say_their_spec() {
        for workload in &WORKLOADS {
            let Shape::Records(spec) = workload.shape else {
                continue;
            };
            let (bytes, rest) = workload.name.split_once('-').expect("SIZE-CLIENTSxWINDOW");
            let said: LoadSpec = format!("{rest}x{bytes}").parse().expect("a spec");
            assert_eq!(said, spec, "{}", workload.name);
        }
    }

    #[test]
    fn goals_are_no_easier_than_limits() {
        for check in WORKLOADS.iter().flat_map(|workload| workload.checks) {
            let Some(limit) = check.limit else { continue };
            let ordered = if check.metric.at_least() {
                check.goal >= limit
            } else {
                check.goal <= limit
            };
            assert!(ordered, "{check:?}");
        }
    }
}
