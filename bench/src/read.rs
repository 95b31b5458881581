//! Read: catch-up over the network, beside plain reads of as many bytes, and what a follow adds to an append.
//!
//! **Invariants**
//! - Log and packs are read from the disk: what the page cache holds of packs is let go of before each run.
//! - Records are counted: a run that misses one is an error.
//!
//! **Not here**: appends (`compare`).

use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::time::{Duration, Instant};

use sealog_client::{Client, FeedOptions, ReadOptions, Record};
use serde_json::json;

use crate::Result;
use crate::compare::own::serve;
use crate::plain::PlainFile;
use crate::prng::Prng;
use crate::report::{Report, Table, Target, progress};
use crate::stats::{Latencies, mb_per_s, median, spread};
use crate::workdir::{Workdir, idle_lane};

/// Payload of the history's records, and records of its batches.
const RECORD_BYTES: usize = 1 << 10;
const BATCH_RECORDS: u64 = 100;
/// The feed that is read.
const FEED: &str = "history";

/// Options of `read`.
#[derive(clap::Args)]
pub struct Options {
    /// Pairs.
    #[arg(long, default_value_t = 5)]
    pub pairs: usize,
    /// Payload of the history, in MiB.
    #[arg(long, default_value_t = 1024)]
    pub mib: u64,
    /// Records appended one at a time under a follow.
    #[arg(long, default_value_t = 2000)]
    pub count: u64,
}

/// Runs the benchmark.
pub fn run(dir: &Path, options: &Options) -> Result<Report> {
    let workdir = Workdir::create(dir)?;
    let history = options.mib << 20;
    let mut config = idle_lane(&workdir, 2 * history + (2 << 30));
    // As good as never, until the stream is sealed.
    config.wal.lane_start_bytes = config.wal.disk_bytes_max;
    let plain = PlainFile::create(&workdir.path("plain"), history)?;
    let (target, _server) = serve(&workdir, &config, None)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let mut report = Report::default();
    runtime.block_on(async {
        let client = Client::connect(&target.address.to_string()).await?;
        client.create_feed(FEED, FeedOptions::default()).await?;
        let records = write_history(&client, history).await?;
        follow_adds(&client, options, &mut report).await?;
        let bucket = config.data_dir.join("bucket");
        let mut table = Table::new(
            format!("catch-up of {} MiB over the network, MB/s", options.mib),
            &["of", "client", "plain reads", "ratio"],
        );
        for what in ["log", "packs"] {
            if what == "packs" {
                client.seal(FEED, "").await?;
            }
            catch_up(
                &client,
                (what, records),
                (&plain, &bucket),
                options,
                (&mut table, &mut report),
            )
            .await?;
        }
        report.tables.push(table);
        Ok(report)
    })
}

/// Appends so many bytes of payload; how many records.
async fn write_history(client: &Client, bytes: u64) -> Result<u64> {
    let session = client.open(FEED).await?;
    let mut payload = vec![0; RECORD_BYTES];
    Prng::new(1).fill(&mut payload);
    let batch = vec![Record::of(&payload); usize::try_from(BATCH_RECORDS)?];
    let batches = bytes / (RECORD_BYTES as u64 * BATCH_RECORDS);
    for _ in 0..batches {
        // What becomes of it, the end of the session tells.
        drop(session.append_async(batch.as_slice()).await?);
    }
    session.close().await?;
    Ok(batches * BATCH_RECORDS)
}

/// Reads the history in alternation with plain reads.
async fn catch_up(
    client: &Client,
    (what, records): (&str, u64),
    (plain, bucket): (&PlainFile, &Path),
    options: &Options,
    (table, report): (&mut Table, &mut Report),
) -> Result<()> {
    let mut ratios = Vec::new();
    for round in 1..=options.pairs {
        progress(&format!("catch-up of {what}"), round, options.pairs);
        forget_pages(bucket)?;
        let own = read_all(client, records).await?;
        let plain = plain.read_through()?;
        ratios.push(own / plain);
        table.row(vec![
            what.to_owned(),
            format!("{own:.0}"),
            format!("{plain:.0}"),
            format!("{:.2}", own / plain),
        ]);
    }
    let (low, high) = spread(&ratios);
    let name = format!("catch-up of {what} / plain reads, median ({low:.2} to {high:.2})");
    let target = Target::at_least(name, median(&ratios), 0.8);
    report.targets.push(target);
    report
        .data
        .insert(format!("catch_up_{what}"), json!(ratios));
    Ok(())
}

/// Reads the whole feed; MB of payload a second.
async fn read_all(client: &Client, records: u64) -> Result<f64> {
    let start = Instant::now();
    let options = ReadOptions {
        end: records,
        ..ReadOptions::default()
    };
    let mut follow = client.follow(FEED, options);
    let (mut count, mut bytes) = (0, 0);
    while count < records {
        let Some(batch) = follow.next().await? else {
            break;
        };
        for record in batch.records() {
            count += 1;
            bytes += record.payload.len() as u64;
        }
    }
    if count != records {
        return Err(format!("{count} records were read of {records}").into());
    }
    Ok(mb_per_s(bytes, start.elapsed().as_secs_f64()))
}

/// One append at a time: until it is acknowledged, and until a follow has it.
async fn follow_adds(client: &Client, options: &Options, report: &mut Report) -> Result<()> {
    let feed = "followed";
    client.create_feed(feed, FeedOptions::default()).await?;
    let session = client.open(feed).await?;
    let mut follow = client.follow(feed, ReadOptions::default());
    let (mut acked, mut followed) = (Latencies::new(), Latencies::new());
    for number in 0..options.count {
        let start = Instant::now();
        let ack = async {
            session.append([0; 100].as_slice()).await?;
            Ok::<Duration, sealog_client::Error>(start.elapsed())
        };
        let got = async {
            let batch = follow.next().await?;
            Ok::<_, sealog_client::Error>((batch, start.elapsed()))
        };
        let (ack, got) = futures::future::try_join(ack, got).await?;
        let (batch, got) = got;
        if batch.is_none_or(|batch| batch.next() != number + 1) {
            return Err(format!("the follow did not get record {number}").into());
        }
        acked.record(ack);
        followed.record(got);
    }
    let mut table = Table::new(
        "one append at a time, us",
        &["acknowledged p50/p99/p99.9", "followed p50/p99/p99.9"],
    );
    table.row(vec![acked.cell(), followed.cell()]);
    report.tables.push(table);
    let ratio = followed.us(0.5) / acked.us(0.5);
    let name = "append until followed / until acknowledged, p50: one group more at most";
    report.targets.push(Target::at_most(name, ratio, 2.0));
    report.data.insert(
        "follow".to_owned(),
        json!({ "acked": acked.json(), "followed": followed.json() }),
    );
    Ok(())
}

/// Has the system let go of what it keeps in memory of files below `dir`.
fn forget_pages(dir: &Path) -> Result<()> {
    for entry in std::fs::read_dir(dir)? {
        let path = entry?.path();
        if path.is_dir() {
            forget_pages(&path)?;
            continue;
        }
        let file = File::open(&path)?;
        file.sync_data()?;
        // SAFETY: a plain call on a descriptor that is open.
        unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) };
    }
    Ok(())
}
