//! Common: small directories, short programs, plain reads for the engine's integration tests.
#![allow(dead_code, missing_docs, clippy::unwrap_used)]

pub mod child;
pub mod image;
pub mod mounts;
pub mod seccomp;

use std::path::{Path, PathBuf};

use futures_lite::future::block_on;
use sealog_engine::{Engine, EngineConfig, Handle, ProductionEnv, ReadRequest};
use sealog_frame::{Batch, BatchBuilder, FrameView, Record};

/// A scratch directory on a disk that can do direct I/O.
pub fn scratch() -> tempfile::TempDir {
    let root = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    std::fs::create_dir_all(&root).unwrap();
    tempfile::tempdir_in(root).unwrap()
}

/// A scratch directory in memory, where that can do direct I/O; else, or with `SEALOG_DISK=1`, on a
/// disk. What a process kill leaves is the same in both, and many restarts cost no waiting for syncs.
pub fn quick() -> tempfile::TempDir {
    let disk = std::env::var_os("SEALOG_DISK").is_some_and(|value| value != "0");
    let direct = || {
        use std::os::unix::fs::OpenOptionsExt;
        let dir = tempfile::tempdir_in("/dev/shm").ok()?;
        let mut options = std::fs::File::options();
        options
            .write(true)
            .create(true)
            .custom_flags(libc::O_DIRECT);
        options.open(dir.path().join("probe")).ok()?;
        std::fs::remove_file(dir.path().join("probe")).ok()?;
        Some(dir)
    };
    let memory = if disk { None } else { direct() };
    memory.unwrap_or_else(scratch)
}

/// A configuration that goes through segments, packs and checkpoints within a few MiB.
pub fn small(dir: &Path) -> EngineConfig {
    let mut config = EngineConfig::new(dir);
    config.frame.record_bytes_max = 64 << 10;
    config.frame.batch_bytes_max = 64 << 10;
    config.frame.records_max = 256;
    config.frame.headers_max = 1024;
    config.wal.segment_bytes = 1 << 20;
    config.wal.flush_bytes = 64 << 10;
    config.wal.disk_bytes_max = 8 << 20;
    config.wal.lane_start_bytes = 2 << 20;
    config.wal.checkpoint_bytes = 1 << 20;
    config.wal.cache_bytes = 512 << 10;
    config.pack_bytes = 256 << 10;
    config.inflight_bytes_max = 2 << 20;
    config
}

pub fn open(config: EngineConfig) -> (Engine, Handle<ProductionEnv>) {
    let engine = Engine::open(config).unwrap();
    let handle = engine.handle().clone();
    (engine, handle)
}

pub fn close(engine: Engine) {
    block_on(engine.close()).unwrap();
}

pub fn batch(payloads: &[&[u8]]) -> Batch {
    let mut builder = BatchBuilder::default();
    for payload in payloads {
        builder.push(&Record::of(payload)).unwrap();
    }
    builder.build().unwrap()
}

/// A batch of one producer.
pub fn produced(id: &[u8], epoch: u64, sequence: u64, payload: &[u8]) -> Batch {
    let mut builder = BatchBuilder::default();
    builder.push(&Record::of(payload)).unwrap();
    builder.producer(id, epoch, sequence).unwrap();
    builder.build().unwrap()
}

/// All records of a request as (sequence, payload).
pub fn read(
    handle: &Handle<ProductionEnv>,
    request: ReadRequest,
) -> sealog_engine::Result<Vec<(u64, Vec<u8>)>> {
    let mut request = request;
    let mut records = Vec::new();
    loop {
        let chunk = block_on(handle.read(request.clone()))?;
        let mut rest = &chunk.frames[..];
        while !rest.is_empty() {
            let (frame, after) = FrameView::split_trusted(rest).unwrap();
            for record in frame.records() {
                if record.sequence >= chunk.first && record.sequence < chunk.next {
                    records.push((record.sequence, record.payload.to_vec()));
                }
            }
            rest = after;
        }
        if chunk.ended || chunk.next == chunk.first {
            return Ok(records);
        }
        request.from = sealog_engine::ReadFrom::Sequence(chunk.next);
    }
}

/// The whole feed.
pub fn read_all(handle: &Handle<ProductionEnv>, feed: &str) -> Vec<(u64, Vec<u8>)> {
    read(handle, ReadRequest::new(feed)).unwrap()
}

/// Whether to run at full scale: `SEALOG_LONG=1`.
pub fn long() -> bool {
    std::env::var_os("SEALOG_LONG").is_some_and(|value| value != "0")
}

/// `scaled`, or `full` when asked for.
pub fn scale<T>(scaled: T, full: T) -> T {
    if long() { full } else { scaled }
}

/// A repeatable stream of numbers (xorshift): the tests' only randomness.
pub struct Dice(u64);

impl Dice {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    pub fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    pub fn bytes(&mut self, len: usize) -> Vec<u8> {
        (0..len).map(|_| self.next().to_le_bytes()[3]).collect()
    }
}

/// A payload that tells which record it is.
pub fn payload(number: u64, len: usize) -> Vec<u8> {
    let mut bytes = Dice::new(number + 1).bytes(len);
    for (byte, mark) in bytes.iter_mut().zip(number.to_le_bytes()) {
        *byte = mark;
    }
    bytes
}

/// Appends one record of these bytes and waits until it is durable; answers its sequence.
pub fn put(handle: &Handle<ProductionEnv>, feed: &str, bytes: &[u8]) -> u64 {
    let done = block_on(handle.append(feed, batch(&[bytes]))).unwrap();
    assert_eq!(done.first, done.last);
    done.first
}

/// Asserts that `feed` holds exactly these payloads, from sequence 0, and ends there.
pub fn assert_holds(handle: &Handle<ProductionEnv>, feed: &str, payloads: &[Vec<u8>], about: &str) {
    let records = read_all(handle, feed);
    assert_eq!(records.len(), payloads.len(), "{about}: records of {feed}");
    for ((sequence, bytes), (at, payload)) in records.iter().zip((0u64..).zip(payloads)) {
        assert_eq!(*sequence, at, "{about}: sequence in {feed}");
        assert!(bytes == payload, "{about}: payload {at} of {feed}");
    }
    let info = block_on(handle.feed(feed)).unwrap();
    assert_eq!(
        info.next_sequence,
        payloads.len() as u64,
        "{about}: tail of {feed}"
    );
}
