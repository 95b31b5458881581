//! Tests: verdicts, ranges and eviction of producers.

use super::*;

fn state(epoch: u64, last_sequence: u64, range: (u64, u64)) -> ProducerState {
    ProducerState {
        epoch,
        last_sequence,
        last_updated_ms: 1000,
        last_range: range,
    }
}

fn producers() -> Producers {
    let mut producers = Producers::default();
    for sequence in 0..5 {
        producers.accept(
            b"p",
            state(3, sequence, (sequence * 10, sequence * 10 + 9)),
            true,
        );
    }
    producers
}

#[test]
fn judge_new_producer_starts_at_zero() {
    let producers = Producers::default();
    assert_eq!(
        producers.judge(b"x", 7, 0),
        Verdict::Accepted { is_new: true }
    );
    assert_eq!(producers.judge(b"x", 0, 1), Verdict::Gap { expected: 0 });
}

#[test]
fn judge_known_producer_all_verdicts() {
    let producers = producers();
    assert_eq!(
        producers.judge(b"p", 3, 5),
        Verdict::Accepted { is_new: false }
    );
    assert_eq!(producers.judge(b"p", 3, 6), Verdict::Gap { expected: 5 });
    assert_eq!(
        producers.judge(b"p", 2, 9),
        Verdict::StaleEpoch { current: 3 }
    );
    assert_eq!(producers.judge(b"p", 4, 1), Verdict::InvalidEpochStart);
    assert_eq!(
        producers.judge(b"p", 4, 0),
        Verdict::Accepted { is_new: false }
    );
    for sequence in 0..5 {
        let range = Some((sequence * 10, sequence * 10 + 9));
        assert_eq!(
            producers.judge(b"p", 3, sequence),
            Verdict::Duplicate {
                last_sequence: 4,
                range
            }
        );
    }
}

#[test]
fn accept_new_epoch_forgets_ranges() {
    let mut producers = producers();
    producers.accept(b"p", state(4, 0, (50, 50)), true);
    assert_eq!(producers.ranges(), 0);
    assert_eq!(
        producers.judge(b"p", 4, 0),
        Verdict::Duplicate {
            last_sequence: 0,
            range: Some((50, 50))
        }
    );
}

#[test]
fn accept_ranges_stay_bounded() {
    let mut producers = Producers::default();
    for sequence in 0..1000 {
        producers.accept(b"p", state(0, sequence, (sequence, sequence)), true);
    }
    assert!(producers.ranges() < PRODUCER_RANGES_MAX);
    let judged = producers.judge(b"p", 0, 0);
    assert_eq!(
        judged,
        Verdict::Duplicate {
            last_sequence: 999,
            range: None
        }
    );
}

#[test]
fn evictable_only_after_idle() {
    let mut producers = producers();
    let week = u64::try_from(PRODUCER_IDLE.as_millis()).unwrap();
    assert_eq!(producers.evictable(1000 + week - 1), None);
    assert_eq!(producers.evictable(1000 + week), Some(b"p".to_vec()));
    producers.evict(b"p");
    assert!(producers.is_empty());
    assert_eq!(producers.ranges(), 0);
}

#[test]
fn roundtrip_codec() {
    let producers = producers();
    let mut w = Writer::new();
    producers.encode(&mut w);
    let mut r = Reader(&w.0);
    let back = Producers::decode(&mut r).unwrap();
    r.finish().unwrap();
    assert_eq!(back.ranges(), producers.ranges());
    assert_eq!(back.judge(b"p", 3, 2), producers.judge(b"p", 3, 2));
    for len in 0..w.0.len() {
        assert!(
            Producers::decode(&mut Reader(&w.0[..len])).is_err(),
            "cut at {len}"
        );
    }
}
