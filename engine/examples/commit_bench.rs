//! Commit_bench: how long one group takes to become durable, by method, against a plain thread.
//!
//! Each method runs in pairs with `pwrite` + `fdatasync` on plain threads, one right after the other,
//! so that what else the machine does hits both; compare within a pair, never across rows.
//!
//!     cargo run --release -p sealog-engine --example commit_bench -- [FILE [PAIRS [MILLISECONDS [pinned|unbound [idle|hog]]]]]
//!
//! FILE (default `commit_bench.data`) must not exist; it is filled with 512 MiB and removed.

use std::fs::{File as StdFile, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use sealog_engine::bucket::FolderBucket;
use sealog_engine::env::{
    AlignedBuf, CommitMethod, Disk, Env, File, GlommioEnv, ShardHooks, ShardOptions, run_shard,
};

const FILE_BYTES: u64 = 512 * 1024 * 1024;
const SIZES: [usize; 3] = [4 * 1024, 64 * 1024, 1024 * 1024];
const DEPTHS: [usize; 2] = [1, 2];
const METHODS: [CommitMethod; 3] = [
    CommitMethod::Executor,
    CommitMethod::Thread,
    CommitMethod::LinkedRing,
];

/// One thing to measure.
#[derive(Clone)]
struct Case {
    file: PathBuf,
    size: usize,
    depth: usize,
    /// A task on the executor that computes and yields, without end.
    hog: bool,
    time: Duration,
    /// Whether the executor is bound to a CPU.
    pin: bool,
    /// `None` is the plain threads.
    method: Option<CommitMethod>,
}

/// Percentiles of one run, in microseconds.
#[derive(Clone, Copy)]
struct Figures {
    p50: f64,
    p99: f64,
    rate: f64,
}

fn main() -> io::Result<()> {
    let mut args = std::env::args().skip(1);
    let file = PathBuf::from(
        args.next()
            .unwrap_or_else(|| "commit_bench.data".to_owned()),
    );
    let pairs: usize = args.next().and_then(|n| n.parse().ok()).unwrap_or(5);
    let millis: u64 = args.next().and_then(|n| n.parse().ok()).unwrap_or(500);
    let pin = args.next().is_none_or(|word| word != "unbound");
    let loads: &[bool] = match args.next().as_deref() {
        Some("idle") => &[false],
        Some("hog") => &[true],
        _ => &[false, true],
    };
    prepare(&file)?;
    let bucket_dir = file.with_extension("bucket");
    let bucket = FolderBucket::open(&bucket_dir).map_err(io::Error::other)?;
    let result = table(
        loads,
        pairs,
        |size, depth, hog, method| Case {
            file: file.clone(),
            size,
            depth,
            hog,
            time: Duration::from_millis(millis),
            pin,
            method: Some(method),
        },
        &bucket,
    );
    drop(bucket);
    std::fs::remove_file(&file)?;
    std::fs::remove_dir_all(&bucket_dir)?;
    result
}

/// Overwriting written blocks is what a recycled segment does.
fn prepare(path: &Path) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).open(path)?;
    let chunk = vec![0x5A; 1024 * 1024];
    for _ in 0..FILE_BYTES / chunk.len() as u64 {
        file.write_all(&chunk)?;
    }
    file.sync_all()
}

fn table(
    loads: &[bool],
    pairs: usize,
    case: impl Fn(usize, usize, bool, CommitMethod) -> Case,
    bucket: &FolderBucket,
) -> io::Result<()> {
    println!(
        "{:>8} {:>5} {:>4} {:>10} | {:>9} {:>9} {:>7} | {:>9} {:>9} {:>7} | p50 to the pair's threads",
        "size", "depth", "hog", "method", "std p50", "p99 us", "/s", "p50 us", "p99 us", "/s"
    );
    for &hog in loads {
        for size in SIZES {
            for depth in DEPTHS {
                for method in METHODS {
                    row(&case(size, depth, hog, method), bucket, pairs)?;
                }
            }
        }
    }
    Ok(())
}

fn row(case: &Case, bucket: &FolderBucket, pairs: usize) -> io::Result<()> {
    let plain = Case {
        method: None,
        ..case.clone()
    };
    let mut sides = (Vec::new(), Vec::new());
    for pair in 0..pairs {
        // Who goes first alternates too.
        if pair % 2 == 0 {
            sides.0.push(measure(&plain, bucket)?);
            sides.1.push(measure(case, bucket)?);
        } else {
            sides.1.push(measure(case, bucket)?);
            sides.0.push(measure(&plain, bucket)?);
        }
    }
    let ratios: Vec<f64> = sides
        .0
        .iter()
        .zip(&sides.1)
        .map(|(std, own)| own.p50 / std.p50)
        .collect();
    let list: Vec<String> = ratios.iter().map(|ratio| format!("{ratio:.2}")).collect();
    let (std, own) = (middle(&sides.0), middle(&sides.1));
    println!(
        "{:>8} {:>5} {:>4} {:>10} | {:>9.0} {:>9.0} {:>7.0} | {:>9.0} {:>9.0} {:>7.0} | {:.2} ({})",
        case.size,
        case.depth,
        if case.hog { "yes" } else { "no" },
        format!("{:?}", case.method.unwrap_or(CommitMethod::Executor)),
        std.p50,
        std.p99,
        std.rate,
        own.p50,
        own.p99,
        own.rate,
        median(ratios),
        list.join(" "),
    );
    Ok(())
}

fn measure(case: &Case, bucket: &FolderBucket) -> io::Result<Figures> {
    let hooks = ShardHooks {
        on_panic: Arc::new(|shard, task, message| eprintln!("shard {shard} {task}: {message}")),
        on_stall: Arc::new(|shard| eprintln!("shard {shard} stalled")),
    };
    let mut options = ShardOptions::new(1, hooks);
    options.pin = case.pin;
    options.commit_method = case.method.unwrap_or(CommitMethod::Executor);
    let (results, lanes) = flume::unbounded();
    let (go, start) = flume::unbounded::<()>();
    if case.method.is_none() {
        // From this thread: one started on the shard would be bound to the shard's CPU.
        for lane in 0..case.depth {
            let (case, start, results) = (case.clone(), start.clone(), results.clone());
            std::thread::spawn(move || {
                if start.recv().is_ok() {
                    let _ = results.send(plain_lane(&case, lane));
                }
            });
        }
    }
    let case = case.clone();
    let main = move |_, env| shard(case, env, go, results, lanes);
    figures(run_shard(&options, bucket, main)??)
}

type Lane = io::Result<Vec<u64>>;

/// Runs the case on a shard: either its own commits, or none, while plain threads commit beside it.
async fn shard(
    case: Case,
    env: GlommioEnv<FolderBucket>,
    go: flume::Sender<()>,
    results: flume::Sender<Lane>,
    lanes: flume::Receiver<Lane>,
) -> io::Result<(Vec<u64>, Duration)> {
    let stop = std::rc::Rc::new(std::cell::Cell::new(false));
    if case.hog {
        let (env_of_hog, stop) = (env.clone(), stop.clone());
        env.spawn("hog", async move {
            while !stop.get() {
                spin(Duration::from_micros(50));
                env_of_hog.yield_if_needed().await;
            }
        });
    }
    let start = Instant::now();
    for lane in 0..case.depth {
        if case.method.is_none() {
            let _ = go.send(());
            continue;
        }
        let (case, results) = (case.clone(), results.clone());
        let file = env.disk().open(&case.file).await?;
        env.spawn("lane", async move {
            let _ = results.send(own_lane(&case, lane, &file).await);
        });
    }
    drop(results);
    let mut samples = Vec::new();
    while let Ok(lane) = lanes.recv_async().await {
        samples.extend(lane?);
    }
    stop.set(true);
    Ok((samples, start.elapsed()))
}

fn plain_lane(case: &Case, lane: usize) -> Lane {
    let file: StdFile = OpenOptions::new()
        .write(true)
        .custom_flags(libc::O_DIRECT)
        .open(&case.file)?;
    let buf = AlignedBuf::zeroed(case.size);
    let mut samples = Vec::new();
    let end = Instant::now() + case.time;
    for offset in offsets(case, lane) {
        let start = Instant::now();
        file.write_all_at(&buf, offset)?;
        file.sync_data()?;
        samples.push(start.elapsed().as_nanos() as u64);
        if Instant::now() > end {
            break;
        }
    }
    Ok(samples)
}

async fn own_lane(case: &Case, lane: usize, file: &impl File) -> Lane {
    let buf = Arc::new(AlignedBuf::zeroed(case.size));
    let mut samples = Vec::new();
    let end = Instant::now() + case.time;
    for offset in offsets(case, lane) {
        let start = Instant::now();
        file.commit(Arc::clone(&buf), offset).await?;
        samples.push(start.elapsed().as_nanos() as u64);
        if Instant::now() > end {
            break;
        }
    }
    Ok(samples)
}

/// Every `depth`-th slot of the file, round and round.
fn offsets(case: &Case, lane: usize) -> impl Iterator<Item = u64> {
    let slots = FILE_BYTES / case.size as u64;
    let (size, depth) = (case.size as u64, case.depth as u64);
    (0u64..).map(move |n| (n * depth + lane as u64) % slots * size)
}

fn spin(time: Duration) {
    let start = Instant::now();
    while start.elapsed() < time {
        std::hint::spin_loop();
    }
}

fn figures((mut samples, elapsed): (Vec<u64>, Duration)) -> io::Result<Figures> {
    samples.sort_unstable();
    let Some(last) = samples.len().checked_sub(1) else {
        return Err(io::Error::other("no commit completed"));
    };
    let at = |share: f64| samples[(last as f64 * share) as usize] as f64 / 1000.0;
    Ok(Figures {
        p50: at(0.5),
        p99: at(0.99),
        rate: samples.len() as f64 / elapsed.as_secs_f64(),
    })
}

fn middle(figures: &[Figures]) -> Figures {
    let of = |field: fn(&Figures) -> f64| median(figures.iter().map(field).collect());
    Figures {
        p50: of(|f| f.p50),
        p99: of(|f| f.p99),
        rate: of(|f| f.rate),
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}
