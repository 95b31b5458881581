//! Subscriptions: through reopen and crash, claimed by many, fenced, fed from every log.
#![allow(missing_docs, clippy::unwrap_used)]

mod common;

use std::sync::Arc;
use std::thread::{JoinHandle, sleep, spawn};
use std::time::{Duration, Instant};

use common::{batch, close, open, put, quick, small};
use futures_lite::future::block_on;
use sealog_engine::subscription::{AckTo, Fence, Phase, Refusal, Registry};
use sealog_engine::{
    AckRequest, DueWake, Engine, EngineConfig, Error, FeedOptions, Handle, MakeRequest,
    ProductionEnv, SubscribeRequest, reshard,
};

type H = Handle<ProductionEnv>;

const WAIT: Duration = Duration::from_secs(10);

/// An engine with its news carried.
struct Bench {
    engine: Engine,
    handle: H,
    carriers: Vec<JoinHandle<()>>,
}

impl Bench {
    fn open(config: EngineConfig) -> Self {
        let (engine, handle) = open(config);
        let registry = Arc::new(Registry::default());
        let carriers = (0..handle.logs()).map(|log| {
            let (handle, registry) = (handle.clone(), registry.clone());
            spawn(move || drop(block_on(handle.carry_news(log, &registry))))
        });
        let carriers = carriers.collect();
        Self {
            engine,
            handle,
            carriers,
        }
    }

    fn close(self) {
        close(self.engine);
        self.carriers.into_iter().for_each(|c| c.join().unwrap());
    }

    fn subscribe(&self, name: &str, pattern: &str, lease_ttl_ms: u64) -> bool {
        let mut request = SubscribeRequest::default();
        request.options.pattern = Some(pattern.to_owned());
        request.options.lease_ttl_ms = lease_ttl_ms;
        request.options.config = b"kept".as_slice().into();
        block_on(self.handle.subscribe(name, request)).unwrap().now
    }

    fn make(&self, feed: &str, payloads: &[&[u8]]) {
        let request = MakeRequest {
            batch: (!payloads.is_empty()).then(|| batch(payloads)),
            options: FeedOptions::default(),
            closed: false,
        };
        assert!(block_on(self.handle.make_feed(feed, request)).unwrap().now);
    }

    fn phase(&self, name: &str) -> (Phase, u64) {
        let info = block_on(self.handle.subscription(name)).unwrap().unwrap();
        (info.phase, info.generation)
    }

    fn until_woken(&self, name: &str, generation: u64) {
        until(|| match self.phase(name) {
            (Phase::Woken { .. }, at) => at == generation,
            _ => false,
        });
    }

    fn claim(&self, name: &str, who: &str) -> Result<DueWake, Error> {
        block_on(self.handle.claim(name, who))
    }

    fn acked(&self, name: &str) -> Vec<(String, u64)> {
        let feeds = block_on(self.handle.linked_feeds(name)).unwrap();
        feeds.into_iter().map(|f| (f.name, f.acked)).collect()
    }

    fn ack(
        &self,
        name: &str,
        fence: Fence,
        acks: &[(&str, u64)],
        ended: bool,
    ) -> Result<bool, Error> {
        let request = AckRequest {
            acks: acks
                .iter()
                .map(|(name, next)| AckTo {
                    name: (*name).to_owned(),
                    next: *next,
                })
                .collect(),
            ended,
            ..AckRequest::default()
        };
        block_on(self.handle.acknowledge(name, fence, request))
    }
}

fn until(mut done: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !done() {
        assert!(begun.elapsed() < WAIT, "too late");
        sleep(Duration::from_millis(5));
    }
}

fn four_logs(dir: &std::path::Path) -> EngineConfig {
    let mut config = small(dir);
    config.logs = 4;
    config
}

fn told(wake: &DueWake) -> Vec<(&str, u64, u64)> {
    let pending = wake.subscription.pending.iter();
    pending
        .map(|at| (&*at.tail.name, at.acked, at.tail.next))
        .collect()
}

#[test]
fn feeds_that_were_there_count_from_their_tail_and_later_ones_from_their_first_record() {
    let dir = quick();
    let bench = Bench::open(four_logs(dir.path()));
    for feed in ["e/old", "other"] {
        bench.make(feed, &[b"1", b"2"]);
    }
    assert!(bench.subscribe("s", "e/*", 60_000));
    assert!(!bench.subscribe("s", "e/*", 60_000), "it is there");
    assert_eq!(bench.acked("s"), [("e/old".to_owned(), 2)]);
    assert_eq!(bench.phase("s"), (Phase::Idle, 0));
    let nothing = bench.claim("s", "w").unwrap_err();
    assert_eq!(nothing, Error::Subscription(Refusal::NothingPending));
    // In whatever log they are: made with a record, made without, there before.
    bench.make("e/new", &[b"1"]);
    bench.until_woken("s", 1);
    for feed in ["e/a", "e/b", "e/c", "e/d"] {
        bench.make(feed, &[]);
        put(&bench.handle, feed, b"1");
    }
    put(&bench.handle, "e/old", b"3");
    put(&bench.handle, "other", b"3");
    until(|| {
        block_on(bench.handle.subscription("s"))
            .unwrap()
            .unwrap()
            .pending
            .len()
            == 6
    });
    let wake = bench.claim("s", "w").unwrap();
    let expected = [
        ("e/a", 0, 1),
        ("e/b", 0, 1),
        ("e/c", 0, 1),
        ("e/d", 0, 1),
        ("e/new", 0, 1),
        ("e/old", 2, 3),
    ];
    assert_eq!(told(&wake), expected);
    bench.close();
}

#[test]
fn claim_just_after_an_append_finds_it() {
    let dir = quick();
    let bench = Bench::open(four_logs(dir.path()));
    bench.subscribe("s", "e/*", 60_000);
    bench.make("e/a", &[]);
    for round in 1..=50 {
        put(&bench.handle, "e/a", b"x");
        let wake = bench.claim("s", "w").unwrap();
        assert_eq!(wake.fence.generation, round);
        assert!(!bench.ack("s", wake.fence, &[("e/a", round)], true).unwrap());
    }
    bench.close();
}

#[test]
fn wake_lease_and_acknowledgements_live_through_reopen() {
    let dir = quick();
    let bench = Bench::open(four_logs(dir.path()));
    bench.subscribe("s", "e/*", 600_000);
    bench.make("e/a", &[b"1", b"2", b"3"]);
    let wake = bench.claim("s", "w").unwrap();
    assert!(!bench.ack("s", wake.fence, &[("e/a", 2)], false).unwrap());
    let before = block_on(bench.handle.subscription("s")).unwrap().unwrap();
    bench.close();
    // Twice: from the log, and from a checkpoint.
    for _ in 0..2 {
        let bench = Bench::open(four_logs(dir.path()));
        let after = block_on(bench.handle.subscription("s")).unwrap().unwrap();
        assert_eq!(
            (&after.options, &after.phase),
            (&before.options, &before.phase)
        );
        assert_eq!(bench.acked("s"), [("e/a".to_owned(), 2)]);
        let claimed = bench.claim("s", "other").unwrap_err();
        let holder = "w".to_owned();
        let generation = 1;
        let expected = Refusal::Claimed { holder, generation };
        assert_eq!(claimed, Error::Subscription(expected));
        bench.close();
    }
    let bench = Bench::open(four_logs(dir.path()));
    // Whether the next wake comes at once or a little later depends on what was carried since the start.
    bench.ack("s", wake.fence, &[], true).unwrap();
    bench.until_woken("s", 2);
    let wake = bench.claim("s", "other").unwrap();
    assert_eq!(told(&wake), [("e/a", 2, 3)]);
    assert!(!bench.ack("s", wake.fence, &[("e/a", 3)], true).unwrap());
    assert!(block_on(bench.handle.unsubscribe("s")).unwrap());
    bench.close();
    let bench = Bench::open(four_logs(dir.path()));
    assert_eq!(block_on(bench.handle.subscription("s")).unwrap(), None);
    bench.close();
}

#[test]
fn what_was_appended_while_nobody_carried_wakes_after_the_start() {
    let dir = quick();
    let bench = Bench::open(four_logs(dir.path()));
    bench.subscribe("s", "e/**", 60_000);
    bench.close();
    let (engine, handle) = open(four_logs(dir.path()));
    block_on(handle.create_feed("e/x/y", FeedOptions::default())).unwrap();
    put(&handle, "e/x/y", b"1");
    close(engine);
    let bench = Bench::open(four_logs(dir.path()));
    bench.until_woken("s", 1);
    bench.close();
}

#[test]
fn one_of_many_claims_wins() {
    let dir = quick();
    let bench = Bench::open(small(dir.path()));
    bench.subscribe("s", "e/*", 60_000);
    bench.make("e/a", &[b"1"]);
    let handle = &bench.handle;
    let won: usize = std::thread::scope(|scope| {
        let all: Vec<_> = (0..8)
            .map(|who| scope.spawn(move || block_on(handle.claim("s", &who.to_string())).is_ok()))
            .collect();
        all.into_iter()
            .map(|one| usize::from(one.join().unwrap()))
            .sum()
    });
    assert_eq!(won, 1);
    bench.close();
}

#[test]
fn who_was_silent_for_too_long_is_fenced_and_the_next_is_woken() {
    let dir = quick();
    let bench = Bench::open(small(dir.path()));
    bench.subscribe("s", "e/*", 1_000);
    bench.make("e/a", &[b"1", b"2"]);
    let first = bench.claim("s", "slow").unwrap();
    // A sign of life in between.
    sleep(Duration::from_millis(600));
    assert!(!bench.ack("s", first.fence, &[], false).unwrap());
    sleep(Duration::from_millis(600));
    assert!(matches!(bench.phase("s").0, Phase::Leased { .. }));
    bench.until_woken("s", 2);
    let fenced = bench
        .ack("s", first.fence, &[("e/a", 2)], true)
        .unwrap_err();
    let generation = 2;
    assert_eq!(fenced, Error::Subscription(Refusal::Fenced { generation }));
    let second = bench.claim("s", "quick").unwrap();
    let fenced = bench
        .ack("s", first.fence, &[("e/a", 2)], true)
        .unwrap_err();
    assert_eq!(fenced, Error::Subscription(Refusal::Fenced { generation }));
    assert_eq!(bench.acked("s"), [("e/a".to_owned(), 0)]);
    for (next, rule) in [(3, "beyond the tail"), (1, "")] {
        let acked = bench.ack("s", second.fence, &[("e/a", next)], false);
        assert_eq!(acked.is_err(), !rule.is_empty());
    }
    let back = bench.ack("s", second.fence, &[("e/a", 0)], false);
    assert!(back.unwrap_err().to_string().contains("already"));
    let unknown = bench.ack("s", second.fence, &[("x", 0)], false);
    assert!(unknown.unwrap_err().to_string().contains("not a feed of"));
    bench.close();
}

#[test]
fn try_that_failed_is_due_again_later_also_after_reopen() {
    let dir = quick();
    let bench = Bench::open(small(dir.path()));
    bench.subscribe("s", "e/*", 60_000);
    bench.make("e/a", &[b"1"]);
    let due = block_on(bench.handle.due_wakes(0)).unwrap();
    assert_eq!((due.len(), due[0].attempts), (1, 0));
    let now_ms = || {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        u64::try_from(now.unwrap().as_millis()).unwrap()
    };
    let due_ms = now_ms() + 700;
    block_on(bench.handle.fail_wake("s", due[0].fence, due_ms)).unwrap();
    bench.close();
    let bench = Bench::open(small(dir.path()));
    let again = block_on(bench.handle.due_wakes(0)).unwrap();
    assert!(now_ms() >= due_ms);
    assert_eq!((again[0].attempts, again[0].fence), (1, due[0].fence));
    bench.close();
}

#[test]
fn feed_that_is_deleted_is_not_pending_any_more() {
    let dir = quick();
    let bench = Bench::open(four_logs(dir.path()));
    bench.subscribe("s", "e/*", 60_000);
    bench.make("e/a", &[b"1"]);
    let wake = bench.claim("s", "w").unwrap();
    assert!(!bench.ack("s", wake.fence, &[("e/a", 1)], false).unwrap());
    let is_idle = || {
        let info = block_on(bench.handle.subscription("s")).unwrap().unwrap();
        info.pending.is_empty()
    };
    put(&bench.handle, "e/a", b"2");
    // News goes from log to log: that of the deletion is waited for only behind that of the record.
    until(|| !is_idle());
    block_on(bench.handle.delete_feed("e/a")).unwrap();
    until(is_idle);
    assert!(!bench.ack("s", wake.fence, &[], true).unwrap());
    bench.make("e/a", &[b"another"]);
    bench.until_woken("s", 2);
    bench.close();
}

#[test]
fn feeds_are_linked_and_unlinked_by_name() {
    let dir = quick();
    let bench = Bench::open(four_logs(dir.path()));
    let mut request = SubscribeRequest::default();
    request.options.lease_ttl_ms = 60_000;
    request.feeds = vec!["not/yet".to_owned()];
    block_on(bench.handle.subscribe("s", request)).unwrap();
    bench.make("a", &[b"1"]);
    block_on(bench.handle.link_feeds("s", vec!["a".to_owned()])).unwrap();
    let linked = [("a".to_owned(), 1), ("not/yet".to_owned(), 0)];
    assert_eq!(bench.acked("s"), linked);
    block_on(bench.handle.unlink_feed("s", "a")).unwrap();
    block_on(bench.handle.unlink_feed("s", "a")).unwrap();
    put(&bench.handle, "a", b"2");
    bench.make("not/yet", &[b"1"]);
    bench.until_woken("s", 1);
    let wake = bench.claim("s", "w").unwrap();
    assert_eq!(told(&wake), [("not/yet", 0, 1)]);
    let missing = block_on(bench.handle.link_feeds("none", vec!["a".to_owned()]));
    assert!(matches!(
        missing,
        Err(Error::Subscription(Refusal::NotFound { .. }))
    ));
    bench.close();
}

#[test]
fn resharding_carries_subscriptions() {
    let dir = quick();
    let bench = Bench::open(small(dir.path()));
    for at in 0..20 {
        bench.subscribe(&format!("s{at}"), "e/*", 600_000);
    }
    bench.make("e/a", &[b"1", b"2"]);
    let wake = bench.claim("s7", "w").unwrap();
    bench.ack("s7", wake.fence, &[("e/a", 1)], false).unwrap();
    bench.close();
    reshard(&small(dir.path()), 3, |_| Ok(())).unwrap();
    let bench = Bench::open(small(dir.path()));
    assert_eq!(bench.handle.logs(), 3);
    assert!(!bench.ack("s7", wake.fence, &[("e/a", 2)], true).unwrap());
    for at in 0..20 {
        bench.until_generation(&format!("s{at}"));
    }
    bench.close();
}

impl Bench {
    fn until_generation(&self, name: &str) {
        until(|| self.phase(name).1 == 1);
    }
}
