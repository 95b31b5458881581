//! Accepting loss and resharding: what is kept, what is told, and what an interruption leaves.
#![allow(missing_docs, clippy::unwrap_used)]

mod common;
#[path = "common/store.rs"]
mod store;

use std::collections::BTreeMap;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use common::{close, open, scratch};
use futures_lite::future::block_on;
use sealog_engine::wal::group::GroupHeader;
use sealog_engine::wal::segment::SegmentHeader;
use sealog_engine::{Engine, EngineConfig, Error, LossReport, accept_loss, reshard, verify};
use store::{copy, everything, files, fill, tiny};

type Everything = BTreeMap<String, Vec<(u64, Vec<u8>)>>;

fn go(_: &str) -> sealog_engine::Result<()> {
    Ok(())
}

fn check(config: &EngineConfig) -> sealog_engine::Result<()> {
    verify(config, &mut |_| {}).map(|_| ())
}

/// Stops before the step number `at`.
fn stop_at(at: usize) -> impl Fn(&str) -> sealog_engine::Result<()> + Clone + Send + 'static {
    let count = Arc::new(AtomicUsize::new(0));
    move |step: &str| match count.fetch_add(1, Ordering::Relaxed) {
        n if n == at => Err(Error::Invalid(format!("stopped before {step:?}"))),
        _ => Ok(()),
    }
}

/// File, position and header of every group of the log's newest segments, in log order.
fn groups(dir: &Path) -> Vec<(PathBuf, u64, GroupHeader)> {
    let mut found = Vec::new();
    for file in files(dir).into_iter().filter(|f| f.starts_with("wal")) {
        let content = std::fs::read(dir.join(&file)).unwrap();
        let Ok(header) = SegmentHeader::decode(&content) else {
            continue;
        };
        let mut at = 4096u64;
        while let Some(rest) = content.get(at as usize..)
            && let Ok(group) = GroupHeader::decode(rest)
            && group.offset == header.number * header.segment_bytes + at
        {
            found.push((file.clone(), at, group));
            at += u64::from(group.group_bytes);
        }
    }
    found.sort_by_key(|(_, _, group)| group.offset);
    found
}

fn damage(path: &Path, offset: u64) {
    let file = std::fs::File::options().write(true).open(path).unwrap();
    file.write_all_at(b"damaged!", offset).unwrap();
}

/// No checkpoint but at open, and nothing packed but what is sealed: it is known what lies where.
fn calm(dir: &Path) -> EngineConfig {
    let mut config = tiny(dir);
    config.wal.disk_bytes_max = 64 << 20;
    config.wal.lane_start_bytes = 1 << 30;
    config.wal.checkpoint_bytes = 1 << 30;
    config
}

/// What a store holds, without touching it.
fn held(dir: &Path) -> Everything {
    let copied = scratch();
    copy(dir, copied.path());
    everything(&calm(copied.path()))
}

/// A store whose log is damaged some groups before its end.
fn damaged(dir: &Path) -> (EngineConfig, Everything) {
    let config = calm(dir);
    fill(&config);
    let before = held(dir);
    let all = groups(dir);
    let (file, at, _) = &all[all.len() - 12];
    damage(&dir.join(file), at + 200);
    (config, before)
}

/// Checks that `after` is `before` without what the report says was lost.
fn assert_kept(before: &Everything, after: &Everything, report: &LossReport) {
    let lost = &report.logs[0].feeds;
    for (name, records) in before {
        let range = lost.iter().find(|loss| loss.name == *name);
        let kept = records.iter().filter(|(sequence, _)| {
            range.is_none_or(|loss| !(loss.first..loss.end).contains(sequence))
        });
        assert!(after[name].iter().eq(kept), "{name}: {range:?}");
    }
}

#[test]
fn accept_loss_of_a_damaged_tail_keeps_all_before_it_and_reuses_nothing() {
    let dir = scratch();
    let (config, before) = damaged(dir.path());
    assert!(matches!(
        Engine::open(config.clone()),
        Err(Error::Corrupt { .. })
    ));
    let report = accept_loss(&config, go).unwrap();
    let loss = &report.logs[0];
    assert!(
        loss.lost_to > loss.end && !loss.feeds.is_empty(),
        "{report:?}"
    );
    check(&config).unwrap();
    let after = everything(&config);
    assert_kept(&before, &after, &report);
    // What comes now gets sequences that nobody ever saw.
    let (engine, handle) = open(config.clone());
    for (name, records) in &before {
        let next = records.last().map_or(0, |(sequence, _)| sequence + 1);
        let done = block_on(handle.append(name, common::batch(&[b"after"]))).unwrap();
        assert!(done.first >= next, "{name}: {} < {next}", done.first);
    }
    block_on(handle.settle_stream(
        "keyed",
        None,
        sealog_engine::commit::CommitKind::Sealed,
        "what is left",
    ))
    .unwrap();
    close(engine);
    check(&config).unwrap();
    assert_eq!(accept_loss(&config, go).unwrap(), LossReport::default());
}

/// Damages the first group that `verify` misses and recovery does not: what it held is packed, and only
/// its segment is not recycled yet.
fn damage_packed_group(dir: &Path, config: &EngineConfig) -> Error {
    for (file, at, _) in groups(dir) {
        let copied = scratch();
        copy(dir, copied.path());
        damage(&copied.path().join(&file), at + 200);
        let tried = calm(copied.path());
        if check(&tried).is_err() && Engine::open(tried).map(close).is_ok() {
            damage(&dir.join(&file), at + 200);
            return check(config).unwrap_err();
        }
    }
    panic!("no group is needed by verify alone");
}

#[test]
fn accept_loss_of_a_packed_group_loses_nothing_and_verify_says_so() {
    let dir = scratch();
    let config = calm(dir.path());
    fill(&config);
    // Both kept checkpoints are of behind what was written.
    for _ in 0..2 {
        close(open(config.clone()).0);
    }
    let before = held(dir.path());
    let refused = damage_packed_group(dir.path(), &config).to_string();
    assert!(refused.contains("admin accept-loss"), "{refused}");
    let report = accept_loss(&config, go).unwrap();
    let [loss] = &report.logs[..] else {
        panic!("{report:?}")
    };
    assert!(loss.damage.contains("offset"), "{report:?}");
    assert_eq!(loss.feeds, [], "records of packs are not lost");
    check(&config).unwrap();
    assert_eq!(everything(&config), before);
    assert_eq!(accept_loss(&config, go).unwrap(), LossReport::default());
}

#[test]
fn accept_loss_stopped_anywhere_refuses_or_opens_and_goes_on() {
    let base = scratch();
    let (_, before) = damaged(base.path());
    for at in 0.. {
        let dir = scratch();
        copy(base.path(), dir.path());
        let config = calm(dir.path());
        let stopped = accept_loss(&config, stop_at(at));
        if stopped.is_ok() {
            assert!(at >= 7, "only {at} steps");
            return;
        }
        if let Err(error) = Engine::open(config.clone()).map(close) {
            assert!(matches!(error, Error::Corrupt { .. }), "{error}");
            accept_loss(&config, go).unwrap();
        }
        check(&config).unwrap();
        let after = everything(&config);
        for (name, records) in &before {
            assert!(after[name].len() <= records.len());
            assert!(after[name].iter().all(|record| records.contains(record)));
        }
    }
}

#[test]
fn accept_loss_of_a_segment_header_loses_nothing() {
    let dir = scratch();
    let config = calm(dir.path());
    fill(&config);
    let before = held(dir.path());
    let (file, ..) = groups(dir.path()).pop().unwrap();
    damage(&dir.path().join(&file), 24);
    assert!(matches!(
        Engine::open(config.clone()),
        Err(Error::Corrupt { .. })
    ));
    let report = accept_loss(&config, go).unwrap();
    assert!(report.logs[0].headers[0].ends_with(&*file.to_string_lossy()));
    assert!(report.logs[0].feeds.is_empty());
    check(&config).unwrap();
    assert_eq!(everything(&config), before);
}

#[test]
fn accept_loss_below_the_checkpoint_cuts_streams_where_the_gap_begins() {
    let dir = scratch();
    let config = calm(dir.path());
    fill(&config);
    // The open that reads everything takes a checkpoint at the end of what was written before.
    let before = everything(&config);
    let all = groups(dir.path());
    let (file, at, _) = &all[all.len() - 20];
    damage(&dir.path().join(file), at + 200);
    let Err(Error::Corrupt { file: named, .. }) = check(&config) else {
        panic!("not noticed");
    };
    assert!(named.ends_with(&*file.to_string_lossy()));
    let report = accept_loss(&config, go).unwrap();
    assert!(!report.logs[0].feeds.is_empty(), "{report:?}");
    check(&config).unwrap();
    let after = everything(&config);
    assert_kept(&before, &after, &report);
    let (engine, handle) = open(config.clone());
    for name in before.keys() {
        while block_on(handle.settle_stream(
            name,
            None,
            sealog_engine::commit::CommitKind::Sealed,
            "",
        ))
        .is_ok()
        {}
    }
    close(engine);
    check(&config).unwrap();
}

#[test]
fn accept_loss_takes_over_commits_that_the_log_lost() {
    let dir = scratch();
    let config = calm(dir.path());
    fill(&config);
    let (engine, handle) = open(config.clone());
    let filler = [7u8; 3000];
    for _ in 0..4 {
        block_on(handle.append("keyed", common::batch(&[&filler]))).unwrap();
    }
    let start = groups(dir.path()).pop().unwrap();
    let commit = block_on(handle.seal("keyed", None, "published, then forgotten")).unwrap();
    block_on(handle.append("plain", common::batch(&[b"later"]))).unwrap();
    close(engine);
    let all = groups(dir.path());
    let after = all.iter().position(|(_, _, g)| g.offset > start.2.offset);
    let (file, at, _) = &all[after.unwrap()];
    damage(&dir.path().join(file), at + 130);
    assert!(matches!(
        Engine::open(config.clone()),
        Err(Error::Corrupt { .. })
    ));
    let report = accept_loss(&config, go).unwrap();
    assert_eq!(report.logs[0].adopted, 1, "{report:?}");
    check(&config).unwrap();
    let (engine, handle) = open(config.clone());
    let commits = block_on(handle.list_commits("keyed", commit.number, 10)).unwrap();
    assert_eq!(commits, [commit]);
    block_on(handle.append("keyed", common::batch(&[b"next"]))).unwrap();
    block_on(handle.seal("keyed", None, "goes on")).unwrap();
    close(engine);
    check(&config).unwrap();
}

#[test]
fn reshard_keeps_every_feed_record_and_lease() {
    let dir = scratch();
    let config = EngineConfig {
        logs: 2,
        ..tiny(dir.path())
    };
    fill(&config);
    let before = everything(&config);
    for logs in [3, 1, 4] {
        let report = reshard(&config, logs, go).unwrap();
        assert_eq!(report.logs.len(), usize::from(logs));
        assert_eq!(report.feeds, before.len() as u64);
        check(&config).unwrap();
        assert_eq!(everything(&config), before);
        let wal = std::fs::read_dir(dir.path().join("wal")).unwrap().count();
        assert_eq!(wal, usize::from(logs), "the old logs are gone");
    }
    let (engine, handle) = open(config.clone());
    // Producers remember: the same batch again is a duplicate.
    let again = common::produced(b"producer-4", 0, 39, b"order 199");
    assert!(
        block_on(handle.append("orders/eu", again))
            .unwrap()
            .duplicate
    );
    for name in before.keys().filter(|name| !before[*name].is_empty()) {
        let next = before[name].last().unwrap().0 + 1;
        let done = block_on(handle.append(name, common::batch(&[b"after"]))).unwrap();
        assert_eq!(done.first, next, "{name}");
    }
    block_on(handle.seal("keyed", None, "after all that")).unwrap();
    close(engine);
    check(&config).unwrap();
}

#[test]
fn reshard_stopped_anywhere_leaves_the_old_layout_or_the_new() {
    let base = scratch();
    let config = EngineConfig {
        logs: 2,
        ..tiny(base.path())
    };
    fill(&config);
    let before = everything(&config);
    for at in 0.. {
        let dir = scratch();
        copy(base.path(), dir.path());
        let config = tiny(dir.path());
        if reshard(&config, 3, stop_at(at)).is_ok() {
            assert!(at >= 7, "only {at} steps");
            return;
        }
        check(&config).unwrap();
        assert_eq!(everything(&config), before, "stopped before step {at}");
        reshard(&config, 3, go).unwrap();
        check(&config).unwrap();
        assert_eq!(everything(&config), before, "resharded after step {at}");
        let wal = dir.path().join("wal");
        let full = std::fs::read_dir(&wal).unwrap().filter(|folder| {
            let folder = folder.as_ref().unwrap().path();
            std::fs::read_dir(folder).unwrap().count() > 0
        });
        assert_eq!(full.count(), 3, "leftovers are gone");
    }
}

#[test]
fn reshard_of_a_directory_that_was_not_closed_is_refused() {
    let dir = scratch();
    let config = tiny(dir.path());
    let (engine, handle) = open(config.clone());
    block_on(handle.create_feed("f", sealog_engine::FeedOptions::default())).unwrap();
    block_on(handle.append("f", common::batch(&[b"x"]))).unwrap();
    let crashed = scratch();
    copy(dir.path(), crashed.path());
    close(engine);
    let crashed = tiny(crashed.path());
    assert!(matches!(reshard(&crashed, 2, go), Err(Error::Unusable(_))));
    assert_eq!(everything(&crashed)["f"].len(), 1);
    reshard(&config, 2, go).unwrap();
    assert!(matches!(reshard(&config, 0, go), Err(Error::Config(_))));
}
