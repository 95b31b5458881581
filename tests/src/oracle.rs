//! Oracle: judges what a store shows against what its clients were told.
//!
//! **Invariants**
//! - ORACLE-1: every acknowledged batch is there once, at its range, unless its range was discarded.
//! - ORACLE-2: every batch that is there is whole, once, intact with its keys and headers, and was
//!   sent to this feed: not to another, and not to a deleted one of its name.
//! - ORACLE-3: a batch refused without effects is not there.
//! - ORACLE-4: if A was acknowledged before B was sent, A stands before B.
//! - ORACLE-5: sequences rise; gaps lie within commits of kind discarded.
//! - ORACLE-6: what a reader was given stays.
//! - ORACLE-7: per producer the data holds sequences without gap, and its state is the last of them.
//! - ORACLE-8: commits are numbered and chained, their ranges rise and their counts are right.
//!
//! **Not here**: asking; `observe` does that at quiescence.

use crate::history::{BatchId, BatchInfo, History, identify, name_of};
use crate::subject::{CommitView, Part, ProducerView, Seen, Subject};
use std::collections::BTreeMap;

/// Everything a store shows of one feed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Observation {
    /// The feed, as clients call it.
    pub feed: String,
    /// Records, in order.
    pub records: Vec<Seen>,
    /// Published commits.
    pub commits: Vec<CommitView>,
    /// Known producers.
    pub producers: BTreeMap<String, ProducerView>,
}

/// A batch found in the data: its first sequence and whose it is.
struct Found<'a> {
    id: BatchId,
    first: u64,
    info: &'a BatchInfo,
}

/// Asks for everything, at quiescence.
///
/// # Errors
/// The store's own error, in words.
pub async fn observe<S: Subject>(
    subject: &S,
    feed: &str,
    producers: &[String],
) -> Result<Observation, String> {
    let name = name_of(feed);
    let records = subject.read_all(name).await?;
    let commits = subject.commits(name).await?;
    let mut known = BTreeMap::new();
    for id in producers {
        if let Some(view) = subject.producer(name, id).await? {
            known.insert(id.clone(), view);
        }
    }
    Ok(Observation {
        feed: feed.to_owned(),
        records,
        commits,
        producers: known,
    })
}

/// Judges a quiet store. The first breach is told.
///
/// # Errors
/// The breach, in words.
pub fn judge(history: &mut History, feed: &str, seen: &Observation) -> Result<(), String> {
    for commit in &seen.commits {
        history.saw_commit(feed, commit);
    }
    if let Some(breach) = history.breaches.first() {
        return Err(breach.clone());
    }
    let gone = |sequence: u64| {
        let mut discarded = seen.commits.iter().filter(|c| c.discarded);
        discarded.any(|c| (c.first..c.end).contains(&sequence))
    };
    judge_read(history, feed, &seen.records, u64::MAX, &gone)?;
    judge_gaps(&seen.records, &gone)?;
    judge_commits(history, feed, seen)?;
    let found = batches(history, feed, &seen.records)?;
    judge_producers(history, feed, &found, seen)
}

/// Judges one read: what was acknowledged before tick `since` must be in it. `gone` says which
/// sequences may be missing.
///
/// # Errors
/// The breach, in words.
pub fn judge_read(
    history: &History,
    feed: &str,
    records: &[Seen],
    since: u64,
    gone: &dyn Fn(u64) -> bool,
) -> Result<(), String> {
    let found = batches(history, feed, records)?;
    let at: BTreeMap<BatchId, u64> = found.iter().map(|f| (f.id, f.first)).collect();
    if at.len() != found.len() {
        let twice = found.iter().find(|f| at[&f.id] != f.first);
        return Err(format!(
            "{feed}: batch {:?} is there twice",
            twice.map(|f| f.id)
        ));
    }
    for (id, info) in history.batches.iter().filter(|(_, b)| b.feed == feed) {
        match (info.acked, at.get(id)) {
            (Some((range, _)), Some(&first)) if first != range.first => {
                return Err(format!(
                    "{feed}: batch {id} stands at {first}, acknowledged as {range:?}"
                ));
            }
            (Some((range, when)), None) if when < since && !gone(range.first) => {
                return Err(format!(
                    "{feed}: acknowledged batch {id} at {range:?} is lost"
                ));
            }
            _ => {}
        }
    }
    judge_order(feed, &found)?;
    judge_observed(history, feed, records, gone)
}

/// Judges one answer to a reader, which may begin and end within a batch: ORACLE-1 to ORACLE-3 and
/// ORACLE-6 over the sequences that it covers. What was acknowledged before tick `since` must be in it;
/// `gone` says which sequences may be missing.
///
/// # Errors
/// The breach, in words.
pub fn judge_part(
    history: &History,
    feed: &str,
    part: &Part,
    since: u64,
    gone: &dyn Fn(u64) -> bool,
) -> Result<(), String> {
    let mut there = BTreeMap::new();
    let mut next = part.first;
    for seen in &part.records {
        let at = seen.sequence;
        if !(next..part.next).contains(&at) {
            return Err(format!("{feed}: {at} read where {next} or more is due"));
        }
        next = at + 1;
        let what = identify(&seen.payload).filter(|_| seen.as_sent);
        let (id, index) =
            what.ok_or_else(|| format!("{feed}: record {at} holds other bytes than were sent"))?;
        let info = history.batches.get(&id).filter(|info| info.feed == feed);
        let info = info.ok_or_else(|| format!("{feed}: record {at} was never sent here"))?;
        let moved = info
            .acked
            .is_some_and(|(range, _)| range.first + u64::from(index) != at);
        if moved || (!info.possible && info.acked.is_none()) {
            return Err(format!("{feed}: record {at} is {index} of {info:?}"));
        }
        there.insert(at, (id, index));
    }
    for (id, info) in history.batches.iter().filter(|(_, b)| b.feed == feed) {
        let Some((range, _)) = info.acked.filter(|(_, when)| *when < since) else {
            continue;
        };
        let tail = part.tail;
        if tail <= range.last {
            return Err(format!(
                "{feed}: tail {tail}, batch {id} stands at {range:?}"
            ));
        }
        let covered = range.first.max(part.first)..(range.last + 1).min(part.next);
        if let Some(lost) = covered
            .into_iter()
            .find(|at| !there.contains_key(at) && !gone(*at))
        {
            return Err(format!("{feed}: {lost} of acknowledged batch {id} is lost"));
        }
    }
    let observed = history.observed.get(feed).into_iter().flatten();
    for (at, what) in observed.filter(|(at, _)| (part.first..part.next).contains(at)) {
        let now = there.get(at);
        if now != Some(what) && !(now.is_none() && gone(*at)) {
            return Err(format!("{feed}: {what:?} was read at {at}, now {now:?}"));
        }
    }
    Ok(())
}

/// Judges one read of a store whose device changes what it was given: records may be missing, but
/// what is there is what was sent. ORACLE-2 and ORACLE-3.
///
/// # Errors
/// The breach, in words.
pub fn judge_damaged(history: &History, feed: &str, records: &[Seen]) -> Result<(), String> {
    batches(history, feed, records)?;
    match records
        .windows(2)
        .find(|pair| pair[0].sequence >= pair[1].sequence)
    {
        Some(pair) => Err(format!("{feed}: sequence {} comes again", pair[1].sequence)),
        None => Ok(()),
    }
}

/// Cuts records into batches: ORACLE-2 and ORACLE-3.
fn batches<'a>(
    history: &'a History,
    feed: &str,
    records: &[Seen],
) -> Result<Vec<Found<'a>>, String> {
    let mut found: Vec<Found<'a>> = Vec::new();
    let mut rest = records;
    while let Some(head) = rest.first() {
        let at = head.sequence;
        let (id, _) = identify(&head.payload)
            .ok_or_else(|| format!("{feed}: record {at} holds other bytes than were sent"))?;
        let info = history.batches.get(&id).filter(|info| info.feed == feed);
        let info = info.ok_or_else(|| format!("{feed}: record {at} was never sent here"))?;
        if !info.possible && info.acked.is_none() {
            return Err(format!("{feed}: refused batch {id} stands at {at}"));
        }
        let whole = (0..info.records).all(|index| {
            let place = rest.get(index as usize);
            place.is_some_and(|seen| {
                seen.as_sent
                    && seen.sequence == at + u64::from(index)
                    && identify(&seen.payload) == Some((id, index))
            })
        });
        if !whole {
            return Err(format!(
                "{feed}: batch {id} of {} records at {at} is there in part",
                info.records
            ));
        }
        found.push(Found {
            id,
            first: at,
            info,
        });
        rest = &rest[info.records as usize..];
    }
    Ok(found)
}

/// ORACLE-4.
fn judge_order(feed: &str, found: &[Found<'_>]) -> Result<(), String> {
    let mut latest: Option<&Found<'_>> = None;
    for batch in found {
        if let (Some(before), Some((_, acked))) = (latest, batch.info.acked)
            && acked < before.info.issued
        {
            return Err(format!(
                "{feed}: batch {} was acknowledged before {} was sent, and stands after it",
                batch.id, before.id
            ));
        }
        if latest.is_none_or(|before| before.info.issued < batch.info.issued) {
            latest = Some(batch);
        }
    }
    Ok(())
}

/// ORACLE-6.
fn judge_observed(
    history: &History,
    feed: &str,
    records: &[Seen],
    gone: &dyn Fn(u64) -> bool,
) -> Result<(), String> {
    let Some(observed) = history.observed.get(feed) else {
        return Ok(());
    };
    let now: BTreeMap<u64, &Seen> = records.iter().map(|seen| (seen.sequence, seen)).collect();
    for (&sequence, what) in observed {
        let there = now.get(&sequence).map(|seen| identify(&seen.payload));
        if there != Some(Some(*what)) && !(there.is_none() && gone(sequence)) {
            return Err(format!(
                "{feed}: a reader was given batch {} at {sequence}, now it is {there:?}",
                what.0
            ));
        }
    }
    Ok(())
}

/// ORACLE-5.
fn judge_gaps(records: &[Seen], gone: &dyn Fn(u64) -> bool) -> Result<(), String> {
    let mut next = 0;
    for seen in records {
        if seen.sequence < next {
            return Err(format!("sequence {} after {}", seen.sequence, next - 1));
        }
        if let Some(hole) = (next..seen.sequence).find(|&s| !gone(s)) {
            return Err(format!("sequence {hole} is missing and no discard took it"));
        }
        next = seen.sequence + 1;
    }
    Ok(())
}

/// ORACLE-7. Discarded data takes its producers' batches along, not their state.
fn judge_producers(
    history: &History,
    feed: &str,
    found: &[Found<'_>],
    seen: &Observation,
) -> Result<(), String> {
    let discarded = history.discarding.contains_key(feed);
    let mut last: BTreeMap<&str, (u64, u64)> = BTreeMap::new();
    for batch in found {
        let Some((id, epoch, sequence)) = &batch.info.tag else {
            continue;
        };
        let before = last.insert(id, (*epoch, *sequence));
        let follows = match before {
            Some((e, s)) if e == *epoch => *sequence == s + 1,
            Some((e, _)) => *epoch > e && *sequence == 0,
            None => *sequence == 0,
        };
        if !follows && !discarded {
            return Err(format!(
                "{feed}: producer {id} has epoch {epoch} sequence {sequence} after {before:?}"
            ));
        }
    }
    for (id, view) in &seen.producers {
        let data = last.get(id.as_str());
        if !discarded && data != Some(&(view.epoch, view.sequence)) {
            return Err(format!(
                "{feed}: producer {id} stands at {view:?}, data at {data:?}"
            ));
        }
    }
    for (id, data) in last {
        let view = seen.producers.get(id);
        if view.is_none_or(|view| (view.epoch, view.sequence) < data) {
            return Err(format!(
                "{feed}: producer {id} stands at {view:?}, data at {data:?}"
            ));
        }
    }
    Ok(())
}

/// ORACLE-8.
fn judge_commits(history: &History, feed: &str, seen: &Observation) -> Result<(), String> {
    let mut parent = [0; 32];
    let mut end = 0;
    for (number, commit) in seen.commits.iter().enumerate() {
        if commit.number != number as u64 || commit.parent != parent || commit.first < end {
            return Err(format!(
                "{feed}: commit {number} breaks the chain: {commit:?}"
            ));
        }
        let range = commit.first..commit.end;
        let records = seen.records.iter().filter(|r| range.contains(&r.sequence));
        let records = records.count() as u64;
        let expected = if commit.discarded { 0 } else { commit.records };
        if records != expected {
            return Err(format!(
                "{feed}: commit {number} counts {expected} records, {records} are there"
            ));
        }
        (parent, end) = (commit.digest, commit.end);
    }
    let told = history.commits.get(feed).map_or(0, BTreeMap::len);
    if told > seen.commits.len() {
        return Err(format!(
            "{feed}: {told} commits were seen before, now {}",
            seen.commits.len()
        ));
    }
    Ok(())
}

#[cfg(test)]
#[path = "oracle_tests.rs"]
mod tests;
