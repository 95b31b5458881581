//! Micro: what a batch costs in CPU: frames, checksums, admission, groups, packs.
#![allow(missing_docs)]

use std::hint::black_box;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use sealog_engine::FeedOptions;
use sealog_engine::append::judge;
use sealog_engine::env::{AlignedBuf, BufPool};
use sealog_engine::formats::{Feeds, Geometry};
use sealog_engine::ids::{Epoch, FeedId, LogId, StreamId};
use sealog_engine::pack::{PackBuilder, PackKind, PackOptions};
use sealog_engine::producer::{ProducerState, Producers};
use sealog_engine::wal::entry::{Change, entry_bytes, put_batch};
use sealog_engine::wal::group::{GROUP_HEADER_BYTES, GroupSeal, seal_group};
use sealog_engine::wal::log::Position;
use sealog_frame::{
    Batch, BatchBuilder, FrameLimits, FrameView, Record, Stamp, TimestampMode, stamp,
};

fn batch(records: usize, record_bytes: usize) -> Batch {
    let payload = vec![0x5a; record_bytes];
    let mut builder = BatchBuilder::new(FrameLimits::default());
    for _ in 0..records {
        builder.push(&Record::of(&payload)).expect("within limits");
    }
    builder.build().expect("not empty")
}

fn frames(c: &mut Criterion) {
    let mut group = c.benchmark_group("frame");
    for record_bytes in [100, 1024] {
        let payload = vec![0x5a; record_bytes];
        let built = batch(100, record_bytes);
        let frame = built.as_bytes().to_vec();
        group.throughput(Throughput::Bytes(frame.len() as u64));
        group.bench_function(format!("build 100 x {record_bytes}"), |b| {
            let mut builder = BatchBuilder::new(FrameLimits::default());
            b.iter(|| {
                for _ in 0..100 {
                    builder.push(&Record::of(&payload)).expect("within limits");
                }
                black_box(builder.build().expect("not empty"))
            });
        });
        group.bench_function(format!("parse 100 x {record_bytes}"), |b| {
            b.iter(|| {
                FrameView::parse(black_box(&frame), &FrameLimits::default())
                    .map(|f| f.record_count())
            });
        });
        group.bench_function(format!("trusted view 100 x {record_bytes}"), |b| {
            b.iter(|| FrameView::trusted(black_box(&frame)).map(|f| f.record_count()));
        });
        group.bench_function(format!("stamp 100 x {record_bytes}"), |b| {
            let mut frame = frame.clone();
            let server = Stamp {
                base_sequence: 7,
                arrival_ms: 1,
                timestamp_floor_ms: 0,
                epoch: 1,
                mode: TimestampMode::ClientPrefer,
                cap: false,
            };
            b.iter(|| stamp(black_box(&mut frame), &server));
        });
        group.bench_function(format!("iterate 100 x {record_bytes}"), |b| {
            let view = FrameView::trusted(&frame).expect("just built");
            b.iter(|| view.records().map(|r| r.payload.len()).sum::<usize>());
        });
    }
    group.finish();
}

fn groups(c: &mut Criterion) {
    let mut group = c.benchmark_group("group");
    for (record_bytes, batches) in [(100, 76), (1024, 9)] {
        let frame = batch(100, record_bytes).into_bytes();
        let bytes = GROUP_HEADER_BYTES + batches * entry_bytes(frame.len());
        group.throughput(Throughput::Bytes(bytes as u64));
        let mut buf = AlignedBuf::with_capacity(bytes + 4096);
        let seal = GroupSeal {
            flags: 0,
            log: LogId(1),
            incarnation: 1,
            offset: 1 << 20,
            entries: batches as u32,
            predecessor: 0,
            durable_end: 0,
        };
        group.bench_function(
            format!("fill and seal {batches} batches of 100 x {record_bytes}"),
            |b| {
                b.iter(|| {
                    buf.clear();
                    buf.resize(GROUP_HEADER_BYTES);
                    for _ in 0..batches {
                        put_batch(&mut buf, FeedId(1), StreamId(1), &frame);
                    }
                    seal_group(&mut buf, &seal)
                });
            },
        );
        group.bench_function(format!("new buffer of {bytes} B, touched"), |b| {
            b.iter(|| AlignedBuf::copy_of(black_box(&buf)));
        });
        group.bench_function(format!("checksum of {bytes} B"), |b| {
            b.iter(|| seal_group(black_box(&mut buf), &seal));
        });
    }
    group.finish();
}

fn judging(c: &mut Criterion) {
    let mut producers = Producers::default();
    for n in 0..1000u32 {
        let state = ProducerState {
            epoch: 1,
            last_sequence: 41,
            last_updated_ms: 1,
            last_range: (0, 99),
        };
        producers.accept(&n.to_le_bytes(), state, true);
    }
    c.bench_function("judge one producer of 1000", |b| {
        b.iter(|| producers.judge(black_box(&500u32.to_le_bytes()), 1, 42));
    });
}

/// A log's state with `count` feeds, each with an open stream under epoch 1.
fn feeds(count: u64) -> (Feeds, FeedId) {
    let segment_bytes = 64 << 20;
    let mut feeds = Feeds::new(LogId(1), Geometry { segment_bytes });
    let mut last = FeedId(0);
    for n in 0..count {
        let at = Position {
            offset: 4096 * n,
            index: 0,
            group: n,
        };
        last = feeds.next_id();
        let created = Change::FeedCreated {
            name: format!("feed-{n}"),
            options: FeedOptions {
                keys: true,
                ..FeedOptions::default()
            },
            time_ms: 1,
        };
        let opened = Change::StreamOpened { epoch: Epoch(1) };
        for (stream, change) in [(StreamId(0), created), (StreamId(1), opened)] {
            feeds
                .apply_change(last, stream, &change, at)
                .expect("it fits");
        }
    }
    (feeds, last)
}

fn admission(c: &mut Criterion) {
    let mut group = c.benchmark_group("admission");
    let (feeds, last) = feeds(1000);
    let mut builder = BatchBuilder::new(FrameLimits::default());
    let mut built = |shape: &dyn Fn(&mut BatchBuilder)| {
        builder.push(&Record::of(&[7; 100])).expect("within limits");
        shape(&mut builder);
        builder.build().expect("not empty")
    };
    let batches = [
        ("plain", built(&|_| ())),
        (
            "with a token",
            built(&|b| {
                b.fencing_token(1);
            }),
        ),
        (
            "of a new producer",
            built(&|b| {
                b.producer(b"producer-1", 0, 0).expect("a short id");
            }),
        ),
        (
            "refused for a stale token",
            built(&|b| {
                b.fencing_token(7);
            }),
        ),
    ];
    for (name, batch) in &batches {
        group.bench_function(format!("judge a batch {name}"), |b| {
            let feed = feeds.get(last).expect("just made");
            let view = batch.view();
            b.iter(|| judge(black_box(feed), black_box(&view)));
        });
    }
    group.bench_function("find one feed of 1000 by name", |b| {
        b.iter(|| feeds.named(black_box("feed-500")).map(|feed| feed.id));
    });
    group.finish();
}

fn checksums(c: &mut Criterion) {
    let mut group = c.benchmark_group("crc");
    for bytes in [100, 4096, 1 << 20] {
        let data = vec![0x5a; bytes];
        group.throughput(Throughput::Bytes(bytes as u64));
        group.bench_function(format!("CRC32C of {bytes} B"), |b| {
            b.iter(|| crc32c::crc32c(black_box(&data)));
        });
    }
    group.finish();
}

/// Batches of one pack: enough that its own parts weigh little.
const PACK_BATCHES: u64 = 256;

fn packs(c: &mut Criterion) {
    let (feed, stream) = (FeedId(1), StreamId(1));
    let mut group = c.benchmark_group("pack");
    for record_bytes in [100, 1024] {
        let frames: Vec<Vec<u8>> = (0..PACK_BATCHES)
            .map(|n| {
                let mut frame = batch(100, record_bytes).into_bytes();
                let server = Stamp {
                    base_sequence: 100 * n,
                    arrival_ms: 1,
                    timestamp_floor_ms: 0,
                    epoch: 1,
                    mode: TimestampMode::ClientPrefer,
                    cap: false,
                };
                stamp(&mut frame, &server);
                frame
            })
            .collect();
        group.throughput(Throughput::Elements(PACK_BATCHES));
        let options = PackOptions::default();
        let pool = BufPool::new(options.part_room_bytes(), 4);
        group.bench_function(
            format!("build {PACK_BATCHES} batches of 100 x {record_bytes}"),
            |b| {
                b.iter(|| {
                    let kind = PackKind::Stream { feed, stream };
                    let mut builder = PackBuilder::new(kind, options).in_memory_of(pool.clone());
                    builder.begin_section(feed, stream, false).expect("first");
                    for frame in &frames {
                        builder.push_frame(black_box(frame)).expect("in order");
                        while let Some(part) = builder.drain() {
                            drop(black_box(part));
                        }
                    }
                    builder.finish().expect("not empty").1
                });
            },
        );
    }
    group.finish();
}

criterion_group!(micro, frames, checksums, admission, judging, groups, packs);
criterion_main!(micro);
