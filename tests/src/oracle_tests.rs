//! Tests of the oracle: each breach, planted by hand, is told.

use super::*;
use crate::history::payload;
use crate::subject::Range;

/// Two acknowledged batches (2 records, 1 record) of a producer, sealed as one commit.
fn good() -> (History, Observation) {
    let mut history = History::default();
    let tag = |sequence| Some(("p".to_owned(), 0, sequence));
    let first = history.issue("f", 2, tag(0));
    history.acked(first, Range { first: 0, last: 1 });
    let second = history.issue("f", 1, tag(1));
    history.acked(second, Range { first: 2, last: 2 });
    let seen = |sequence, id, index| Seen {
        sequence,
        payload: payload(id, index, 9),
        as_sent: true,
    };
    let commit = CommitView {
        number: 0,
        digest: [1; 32],
        parent: [0; 32],
        discarded: false,
        first: 0,
        end: 3,
        records: 3,
    };
    let view = ProducerView {
        epoch: 0,
        sequence: 1,
    };
    let observation = Observation {
        feed: "f".to_owned(),
        records: vec![seen(0, first, 0), seen(1, first, 1), seen(2, second, 0)],
        commits: vec![commit],
        producers: [("p".to_owned(), view)].into(),
    };
    (history, observation)
}

#[track_caller]
fn told(history: &mut History, seen: &Observation, words: &str) {
    let breach = judge(history, "f", seen).expect_err(words);
    assert!(breach.contains(words), "{breach}");
}

#[test]
fn oracle_good_history_passes() {
    let (mut history, seen) = good();
    assert_eq!(judge(&mut history, "f", &seen), Ok(()));
}

#[test]
fn oracle_lost_batch_is_told() {
    let (mut history, mut seen) = good();
    seen.records.truncate(2);
    told(&mut history, &seen, "acknowledged batch 1");
}

#[test]
fn oracle_partial_batch_is_told() {
    let (mut history, mut seen) = good();
    seen.records.remove(1);
    told(&mut history, &seen, "there in part");
}

#[test]
fn oracle_batch_twice_is_told() {
    let (mut history, mut seen) = good();
    let mut again = seen.records[2].clone();
    again.sequence = 3;
    seen.records.push(again);
    told(&mut history, &seen, "there twice");
}

#[test]
fn oracle_moved_batch_is_told() {
    let (mut history, mut seen) = good();
    seen.records[2].sequence = 7;
    told(&mut history, &seen, "stands at 7");
}

#[test]
fn oracle_changed_byte_is_told() {
    let (mut history, mut seen) = good();
    seen.records[0].payload[25] ^= 1;
    told(&mut history, &seen, "other bytes");
}

#[test]
fn oracle_foreign_record_is_told() {
    let (mut history, mut seen) = good();
    let foreign = history.issue("g", 1, None);
    seen.records.push(Seen {
        sequence: 3,
        payload: payload(foreign, 0, 0),
        as_sent: true,
    });
    told(&mut history, &seen, "never sent here");
}

#[test]
fn oracle_refused_batch_present_is_told() {
    let (mut history, mut seen) = good();
    let refused = history.issue("f", 1, None);
    history.refused(refused);
    seen.records.push(Seen {
        sequence: 3,
        payload: payload(refused, 0, 0),
        as_sent: true,
    });
    told(&mut history, &seen, "refused batch");
}

#[test]
fn oracle_unknown_batch_may_be_there_or_not() {
    let (mut history, mut seen) = good();
    let unknown = history.issue("f", 1, None);
    assert_eq!(judge(&mut history, "f", &seen), Ok(()));
    seen.records.push(Seen {
        sequence: 3,
        payload: payload(unknown, 0, 0),
        as_sent: true,
    });
    assert_eq!(judge(&mut history, "f", &seen), Ok(()));
}

#[test]
fn oracle_later_batch_before_an_earlier_is_told() {
    let mut history = History::default();
    let first = history.issue("f", 1, None);
    history.acked(first, Range { first: 1, last: 1 });
    let second = history.issue("f", 1, None);
    let seen = |sequence, id| Seen {
        sequence,
        payload: payload(id, 0, 0),
        as_sent: true,
    };
    let observation = Observation {
        feed: "f".to_owned(),
        records: vec![seen(0, second), seen(1, first)],
        commits: Vec::new(),
        producers: BTreeMap::new(),
    };
    told(&mut history, &observation, "stands after it");
}

#[test]
fn oracle_gap_needs_a_discard() {
    let (mut history, mut seen) = good();
    let unknown = history.issue("f", 1, None);
    seen.records.push(Seen {
        sequence: 5,
        payload: payload(unknown, 0, 0),
        as_sent: true,
    });
    told(&mut history, &seen, "sequence 3 is missing");
    let mut discard = seen.commits[0].clone();
    (discard.number, discard.parent, discard.digest) = (1, [1; 32], [2; 32]);
    (discard.first, discard.end, discard.discarded) = (3, 5, true);
    seen.commits.push(discard);
    assert_eq!(judge(&mut history, "f", &seen), Ok(()));
}

#[test]
fn oracle_observed_record_gone_is_told() {
    let (mut history, seen) = good();
    let unknown = history.issue("f", 1, None);
    let observed = history.observed.entry("f".to_owned()).or_default();
    observed.insert(3, (unknown, 0));
    told(&mut history, &seen, "a reader was given");
}

#[test]
fn oracle_producer_ahead_or_behind_is_told() {
    for sequence in [0, 2] {
        let (mut history, mut seen) = good();
        let view = ProducerView { epoch: 0, sequence };
        seen.producers.insert("p".to_owned(), view);
        told(&mut history, &seen, "producer p stands at");
    }
    let (mut history, mut seen) = good();
    seen.producers.clear();
    told(&mut history, &seen, "producer p stands at None");
}

#[test]
fn oracle_commit_breaches_are_told() {
    let (mut history, mut seen) = good();
    seen.commits[0].parent = [9; 32];
    told(&mut history, &seen, "breaks the chain");
    let (mut history, mut seen) = good();
    seen.commits[0].records = 4;
    told(&mut history, &seen, "counts 4 records, 3 are there");
    let (mut history, mut seen) = good();
    assert_eq!(judge(&mut history, "f", &seen), Ok(()));
    seen.commits[0].digest = [3; 32];
    told(&mut history, &seen, "commit changed");
    let (mut history, mut seen) = good();
    assert_eq!(judge(&mut history, "f", &seen), Ok(()));
    seen.commits.clear();
    told(&mut history, &seen, "1 commits were seen before, now 0");
}

/// Sequences 1 and 2 of [`good`]: the end of one batch and the next.
fn good_part() -> (History, Part) {
    let (history, seen) = good();
    let part = Part {
        records: seen.records[1..].to_vec(),
        first: 1,
        next: 3,
        tail: 3,
    };
    (history, part)
}

#[track_caller]
fn part_told(history: &History, part: &Part, words: &str) {
    let breach = judge_part(history, "f", part, u64::MAX, &|_| false).expect_err(words);
    assert!(breach.contains(words), "{breach}");
}

#[test]
fn oracle_part_of_a_batch_passes() {
    let (history, part) = good_part();
    let judged = judge_part(&history, "f", &part, u64::MAX, &|_| false);
    assert_eq!(judged, Ok(()));
}

#[test]
fn oracle_part_without_an_acknowledged_record_is_told() {
    let (history, mut part) = good_part();
    part.records.remove(0);
    part_told(&history, &part, "1 of acknowledged batch 0 is lost");
    let judged = judge_part(&history, "f", &part, u64::MAX, &|at| at == 1);
    assert_eq!(judged, Ok(()));
    assert_eq!(judge_part(&history, "f", &part, 0, &|_| false), Ok(()));
}

#[test]
fn oracle_part_with_a_record_elsewhere_is_told() {
    let (history, mut part) = good_part();
    part.records.swap(0, 1);
    part_told(&history, &part, "3 or more is due");
    let (history, mut part) = good_part();
    part.records[1].payload = part.records[0].payload.clone();
    part_told(&history, &part, "record 2 is 1 of");
}

#[test]
fn oracle_part_with_a_tail_below_what_is_acknowledged_is_told() {
    let (history, mut part) = good_part();
    part.tail = 2;
    part_told(&history, &part, "tail 2");
}

#[test]
fn oracle_part_that_changed_is_told() {
    let (mut history, part) = good_part();
    let observed = history.observed.entry("f".to_owned()).or_default();
    observed.insert(1, (5, 0));
    part_told(&history, &part, "(5, 0) was read at 1");
}
