//! Tests of subscriptions: the machine under random transitions, and what is encoded.

use proptest::prelude::*;

use super::*;
use crate::codec::{Reader, Writer};

const NAMES: [&str; 3] = ["events/a", "events/b", "other"];

fn made() -> Subscriptions {
    let mut all = Subscriptions::default();
    let options = SubscriptionOptions {
        pattern: Some("events/*".to_owned()),
        except: Some("events/wake".to_owned()),
        lease_ttl_ms: 1_000,
        config: b"{}".as_slice().into(),
    };
    let created = SubscriptionChange::Created {
        options,
        nonce: 7,
        time_ms: 1,
    };
    all.apply("s", &created).unwrap();
    let linked = SubscriptionChange::Linked {
        links: Vec::new(),
        ready: true,
    };
    all.apply("s", &linked).unwrap();
    all
}

fn tail(feed: usize, next: u64) -> Tail {
    Tail {
        name: NAMES[feed].to_owned(),
        feed: FeedId(feed as u64),
        first: 0,
        next,
    }
}

/// What may be tried; `u8`s choose a fence that may be right or stale.
#[derive(Debug, Clone)]
enum Try {
    Append(usize, u64),
    Wake,
    Claim(u8),
    Hold(u8),
    Ack(u8, usize, u64, bool),
    Fail(u8),
    Wait(u64),
    Expire,
}

fn tries() -> impl Strategy<Value = Try> {
    prop_oneof![
        (0..3usize, 1..4u64).prop_map(|(feed, more)| Try::Append(feed, more)),
        Just(Try::Wake),
        (0..3u8).prop_map(Try::Claim),
        (0..4u8).prop_map(Try::Hold),
        (0..4u8, 0..3usize, 0..12u64, any::<bool>())
            .prop_map(|(fence, feed, next, ended)| Try::Ack(fence, feed, next, ended)),
        (0..4u8).prop_map(Try::Fail),
        (0..900u64).prop_map(Try::Wait),
        Just(Try::Expire),
    ]
}

/// The world of a run: feeds' tails, the clock, and every fence ever given out.
struct World {
    all: Subscriptions,
    tails: [u64; 3],
    now_ms: u64,
    fences: Vec<Fence>,
    wakes: u128,
}

impl World {
    fn known(&self) -> &Subscription {
        self.all.ready("s").unwrap()
    }

    fn fence(&self, choice: u8) -> Fence {
        let back = usize::from(choice) + 1;
        let at = self.fences.len().checked_sub(back);
        let none = Fence {
            wake: WakeId(0),
            generation: 0,
        };
        at.map_or(none, |at| self.fences[at])
    }

    fn is_current(&self, fence: Fence) -> bool {
        self.known().wake() == Some(fence.wake) && self.known().generation == fence.generation
    }

    fn take(&mut self, step: Step, acks: Vec<Ack>) {
        if let Step::Woken { wake, generation } = step {
            self.fences.push(Fence { wake, generation });
        }
        let change = SubscriptionChange::Stepped { step, acks };
        self.all.apply("s", &change).unwrap();
    }

    fn run(&mut self, attempt: &Try) {
        match attempt {
            Try::Append(feed, more) => {
                self.tails[*feed] += more;
                let tail = tail(*feed, self.tails[*feed]);
                self.all.get_mut("s").unwrap().note(&tail);
            }
            Try::Wake => {
                self.wakes += 1;
                if let Some(step) = self.known().decide_wake(WakeId(self.wakes)) {
                    self.take(step, Vec::new());
                }
            }
            Try::Claim(who) => {
                let held = matches!(self.known().phase, Phase::Leased { .. });
                let claimed = self.known().decide_claim(&who.to_string(), self.now_ms);
                assert!(!(held && claimed.is_ok()), "SUB-2");
                if let Ok(step) = claimed {
                    self.take(step, Vec::new());
                }
            }
            Try::Hold(fence) => {
                let fence = self.fence(*fence);
                let held = self.known().decide_hold(fence, "h", self.now_ms);
                assert_eq!(held.is_ok(), self.is_current(fence), "SUB-4");
                if let Ok(step) = held {
                    self.take(step, Vec::new());
                }
            }
            Try::Ack(fence, feed, next, ended) => self.ack(*fence, *feed, *next, *ended),
            Try::Fail(fence) => {
                let fence = self.fence(*fence);
                let failed = self.known().decide_fail(fence, self.now_ms + 5);
                assert!(failed.is_err() || self.is_current(fence), "SUB-4");
                if let Ok(step) = failed {
                    self.take(step, Vec::new());
                }
            }
            Try::Wait(ms) => self.now_ms += ms,
            Try::Expire => {
                if let Some(step) = self.known().decide_expiry(self.now_ms) {
                    self.take(step, Vec::new());
                }
            }
        }
    }

    fn ack(&mut self, fence: u8, feed: usize, next: u64, ended: bool) {
        let fence = self.fence(fence);
        let Ok(held) = self.known().decide_hold(fence, "h", self.now_ms) else {
            return;
        };
        let asked = [AckTo {
            name: NAMES[feed].to_owned(),
            next,
        }];
        let tails = [tail(feed, self.tails[feed])];
        let before = self.known().acked(NAMES[feed], FeedId(feed as u64), 0);
        let acks = self.known().decide_acks(&asked, &tails);
        let fits = feed < 2 && next >= before && next <= self.tails[feed];
        assert_eq!(acks.is_ok(), fits, "SUB-3: {acks:?}");
        if let Ok(acks) = acks {
            let step = if ended { Step::Ended } else { held };
            self.take(step, acks);
        }
    }
}

proptest! {
    #[test]
    fn subscription_under_random_tries_keeps_its_invariants(
        all in prop::collection::vec(tries(), 1..200)
    ) {
        let mut world = World { all: made(), tails: [0; 3], now_ms: 10, fences: Vec::new(), wakes: 0 };
        for attempt in &all {
            let before = world.known().clone();
            world.run(attempt);
            let after = world.known();
            // SUB-1: one higher with each wake, else as it was.
            let woken = before.phase == Phase::Idle && after.phase != Phase::Idle;
            prop_assert_eq!(after.generation, before.generation + u64::from(woken));
            for (at, name) in NAMES.iter().enumerate() {
                let id = FeedId(at as u64);
                let (was, is) = (before.acked(name, id, 0), after.acked(name, id, 0));
                prop_assert!(was <= is && is <= world.tails[at].max(was), "SUB-3");
                let behind = at < 2 && is < world.tails[at];
                prop_assert_eq!(after.pending.contains_key(*name), behind, "pending is what is behind");
            }
        }
        let mut w = Writer::new();
        world.all.encode(&mut w);
        let mut r = Reader(&w.0);
        let mut back = Subscriptions::decode(&mut r).unwrap();
        r.finish().unwrap();
        back.get_mut("s").unwrap().pending = world.known().pending.clone();
        prop_assert_eq!(back, world.all);
    }
}

#[test]
fn whole_wake_acknowledges_what_it_told_of_and_no_more() {
    let mut all = made();
    let known = all.get_mut("s").unwrap();
    known.note(&tail(0, 5));
    known.note(&tail(1, 3));
    let told = [tail(0, 5), tail(1, 3), tail(2, 9)];
    let further = Ack {
        name: NAMES[1].to_owned(),
        feed: FeedId(1),
        acked: 3,
    };
    let change = |step, acks| SubscriptionChange::Stepped { step, acks };
    let wake = WakeId(1);
    let woken = Step::Woken {
        wake,
        generation: 1,
    };
    all.apply("s", &change(woken, Vec::new())).unwrap();
    all.apply("s", &change(Step::Ended, vec![further])).unwrap();
    let acks = all.ready("s").unwrap().acks_of(&told);
    let names: Vec<&str> = acks.iter().map(|ack| ack.name.as_str()).collect();
    assert_eq!(names, [NAMES[0]], "one is done already, one is not linked");
}

#[test]
fn feed_that_came_to_a_name_begins_anew() {
    let mut all = made();
    let ack = Ack {
        name: NAMES[0].to_owned(),
        feed: FeedId(0),
        acked: 5,
    };
    let known = all.get_mut("s").unwrap();
    known.note(&tail(0, 5));
    let woken = Step::Woken {
        wake: WakeId(1),
        generation: 1,
    };
    let change = |step, acks| SubscriptionChange::Stepped { step, acks };
    all.apply("s", &change(woken, Vec::new())).unwrap();
    all.apply("s", &change(Step::Ended, vec![ack])).unwrap();
    let known = all.get_mut("s").unwrap();
    assert!(!known.note(&tail(0, 5)), "all of it is acknowledged");
    let other = Tail {
        feed: FeedId(90),
        ..tail(0, 1)
    };
    assert!(known.note(&other), "another feed of that name");
    assert_eq!(known.acked(NAMES[0], FeedId(90), 0), 0);
    assert!(!known.note(&tail(0, 9)), "late news of the one before");
    assert_eq!(known.pending[NAMES[0]].feed, FeedId(90));
}

#[test]
fn steps_that_do_not_follow_are_refused() {
    let step = |step| SubscriptionChange::Stepped {
        step,
        acks: Vec::new(),
    };
    let woken = |generation| Step::Woken {
        wake: WakeId(1),
        generation,
    };
    for wrong in [step(woken(2)), step(woken(0)), step(Step::Ended)] {
        assert!(made().apply("s", &wrong).is_err(), "{wrong:?}");
    }
    let mut all = made();
    all.apply("s", &step(woken(1))).unwrap();
    assert!(all.apply("s", &step(woken(2))).is_err(), "SUB-2");
    assert!(all.apply("t", &SubscriptionChange::Deleted).is_err());
}

/// One of each change.
fn changes() -> Vec<SubscriptionChange> {
    let row = |feed, explicit| LinkRow {
        name: "f".to_owned(),
        link: Link {
            feed,
            acked: 3,
            explicit,
        },
    };
    let ack = Ack {
        name: "f".to_owned(),
        feed: FeedId(9),
        acked: 4,
    };
    let step = |step| SubscriptionChange::Stepped {
        step,
        acks: vec![ack.clone()],
    };
    vec![
        SubscriptionChange::Created {
            options: SubscriptionOptions {
                pattern: Some("a/*".to_owned()),
                except: None,
                lease_ttl_ms: 1_000,
                config: b"c".as_slice().into(),
            },
            nonce: 7,
            time_ms: 8,
        },
        SubscriptionChange::Deleted,
        SubscriptionChange::Linked {
            links: vec![row(None, true), row(Some(FeedId(9)), false)],
            ready: true,
        },
        SubscriptionChange::Unlinked {
            feeds: vec!["f".to_owned()],
        },
        step(Step::Woken {
            wake: WakeId(0x0102),
            generation: 2,
        }),
        step(Step::Leased {
            holder: "h".to_owned(),
            expires_ms: 6,
        }),
        step(Step::Failed {
            attempts: 1,
            due_ms: 6,
        }),
        step(Step::Ended),
    ]
}

#[test]
fn roundtrip_changes_and_never_take_less() {
    for change in changes() {
        let mut w = Writer::new();
        let kind = change.encode("s", &mut w);
        let mut r = Reader(&w.0);
        let back = SubscriptionChange::decode(kind, &mut r).unwrap();
        r.finish().unwrap();
        assert_eq!(back, ("s".to_owned(), change));
        for cut in 0..w.0.len() {
            let cut = SubscriptionChange::decode(kind, &mut Reader(&w.0[..cut]));
            assert!(cut.is_err());
        }
    }
}

/// Bytes as spec/subscription.md §3 has them: they never change.
#[test]
fn bytes_of_changes_are_as_specified() {
    let hex = |change: &SubscriptionChange| {
        let mut w = Writer::new();
        let kind = change.encode("s", &mut w);
        let bytes: String = w.0.iter().map(|byte| format!("{byte:02x}")).collect();
        format!("{kind} {bytes}")
    };
    let all: Vec<String> = changes().iter().map(hex).collect();
    let name = "0100000073";
    let acks = "01000000".to_owned() + "0100000066" + "0900000000000000" + "0400000000000000";
    let expected = [
        format!(
            "20 {name}07000000000000000800000000000000{}{}{}{}",
            "01", "03000000612f2a", "e803000000000000", "0100000063"
        ),
        format!("21 {name}"),
        format!(
            "22 {name}0102000000{}ffffffffffffffff030000000000000001{}0900000000000000030000000000000000",
            "0100000066", "0100000066"
        ),
        format!("23 {name}010000000100000066"),
        format!("24 {name}00020000000000000002010000000000000000000000000000{acks}"),
        format!("24 {name}0106000000000000000100000068{acks}"),
        format!("24 {name}02060000000000000001000000{acks}"),
        format!("24 {name}03{acks}"),
    ];
    assert_eq!(all, expected);
}
