//! Store: a small store that holds everything a store can hold, for tests of verification and repair.
#![allow(dead_code, missing_docs, clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use futures_lite::future::block_on;
use sealog_engine::commit::CommitKind;
use sealog_engine::{EngineConfig, FeedOptions, Handle, ProductionEnv};
use sealog_frame::{Batch, BatchBuilder, Record};

use crate::common::{batch, close, open, produced, read_all};

/// Segments of 256 KiB, packs of 64 KiB: a few MiB go through everything.
pub fn tiny(dir: &Path) -> EngineConfig {
    let mut config = crate::common::small(dir);
    config.frame.record_bytes_max = 16 << 10;
    config.frame.key_bytes_max = 256;
    config.frame.batch_bytes_max = 16 << 10;
    config.frame.records_max = 32;
    config.frame.headers_max = 32;
    config.frame.producer_id_bytes_max = 64;
    config.wal.segment_bytes = 256 << 10;
    config.wal.flush_bytes = 16 << 10;
    config.wal.disk_bytes_max = 2 << 20;
    config.wal.lane_start_bytes = 512 << 10;
    config.wal.checkpoint_bytes = 200 << 10;
    config.wal.cache_bytes = 64 << 10;
    config.pack_bytes = 64 << 10;
    config
}

pub fn keyed_batch(i: u64, payload: &[u8]) -> Batch {
    let mut builder = BatchBuilder::default();
    let key = format!("key-{}", i % 37);
    builder
        .push(&Record::keyed(key.as_bytes(), i as i64, payload))
        .unwrap();
    builder.build().unwrap()
}

/// Fills a new store: commits (sealed, discarded), open and abandoned streams with packed and
/// unpacked records, producers, keys, shared packs; then closes it cleanly.
pub fn fill(config: &EngineConfig) {
    let (engine, handle) = open(config.clone());
    let keyed = FeedOptions {
        keys: true,
        ..FeedOptions::default()
    };
    block_on(async {
        handle.create_feed("keyed", keyed).await.unwrap();
        for name in ["plain", "orders/eu", "quiet/1", "quiet/2", "empty"] {
            handle
                .create_feed(name, FeedOptions::default())
                .await
                .unwrap();
        }
        rounds(&handle, 0, 100).await;
        handle.seal("keyed", None, "first load").await.unwrap();
        handle.seal("plain", None, "").await.unwrap();
        rounds(&handle, 100, 140).await;
        // A discarded stream between two sealed ones.
        handle
            .settle_stream("plain", None, CommitKind::Discarded, "bad run")
            .await
            .unwrap();
        handle.seal("keyed", None, "second").await.unwrap();
        rounds(&handle, 140, 165).await;
        // Abandoned: another stream is opened over an unsealed one.
        handle.open("plain").await.unwrap();
        handle.open("orders/eu").await.unwrap();
        rounds(&handle, 165, 185).await;
    });
    close(engine);
    // Once more, so that a second checkpoint and incarnation are there.
    let (engine, handle) = open(config.clone());
    block_on(rounds(&handle, 185, 200));
    close(engine);
}

async fn rounds(handle: &Handle<ProductionEnv>, from: u64, to: u64) {
    for i in from..to {
        let filler = vec![(i % 251) as u8; 1000 + (i % 3000) as usize];
        let (a, b) = (keyed_batch(i, &filler), batch(&[&filler, b"second"]));
        handle.append("keyed", a).await.unwrap();
        handle.append("plain", b).await.unwrap();
        let id = format!("producer-{}", i % 5);
        let text = format!("order {i}");
        let order = produced(id.as_bytes(), 0, i / 5, text.as_bytes());
        handle.append("orders/eu", order).await.unwrap();
        if i % 10 == 0 {
            for quiet in ["quiet/1", "quiet/2"] {
                handle.append(quiet, batch(&[b"tick"])).await.unwrap();
            }
        }
    }
}

/// All records of all feeds.
pub fn everything(config: &EngineConfig) -> BTreeMap<String, Vec<(u64, Vec<u8>)>> {
    let (engine, handle) = open(config.clone());
    let feeds = block_on(handle.list_feeds("", "", 1000)).unwrap();
    let all = feeds
        .into_iter()
        .map(|feed| (feed.name.clone(), read_all(&handle, &feed.name)))
        .collect();
    close(engine);
    all
}

/// Files below `dir`, relative, sorted.
pub fn files(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut open = vec![dir.to_owned()];
    while let Some(folder) = open.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                open.push(path);
            } else {
                found.push(path.strip_prefix(dir).unwrap().to_owned());
            }
        }
    }
    found.sort();
    found
}

/// Copies a directory tree.
pub fn copy(from: &Path, to: &Path) {
    for file in files(from) {
        if file.starts_with("bucket/.tmp") {
            continue;
        }
        let target = to.join(&file);
        std::fs::create_dir_all(target.parent().unwrap()).unwrap();
        std::fs::copy(from.join(&file), target).unwrap();
    }
}
