//! Sealog-bench: benchmarks that run the engine beside a yardstick, in alternation, in one process.
//!
//! **Invariants**
//! - A figure that has a target is a ratio of two runs made directly one after the other.
//! - The load generator prepares its batches beforehand: what is measured is the engine.
//!
//! **Not here**: correctness (`tests/`), single functions (`benches/`).

mod child;
mod commit;
mod compare;
mod edge;
mod feeds;
mod generator;
mod http;
mod latency;
mod load;
mod plain;
mod plot;
mod prng;
mod process;
mod read;
mod report;
mod stats;
mod sustained;
mod sweep;
mod targets;
mod wal;
mod workdir;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// What goes wrong here is told to a person and ends the run.
pub type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

#[derive(Parser)]
#[command(version, about = "Benchmarks of Sealog, each beside its own yardstick")]
struct Cli {
    /// Folder on the disk to be measured; made if absent, its `sealog-bench` subfolder is removed.
    #[arg(long, global = true, default_value = "./bench-data")]
    dir: PathBuf,
    /// Print one JSON document instead of tables.
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Log bandwidth with the lane idle, against plain writes and syncs.
    Wal(wal::Options),
    /// Log bandwidth over several log budgets with the lane on, against plain writes and syncs.
    Sustained(sustained::Options),
    /// One small append at a time, against a 4 KiB write and sync.
    Latency(latency::Options),
    /// The three ways of committing a group, idle and with a busy executor.
    Commit(commit::Options),
    /// Many feeds in one directory: memory, restart, bandwidth against one feed's.
    Feeds(feeds::Options),
    /// A load of any shape, closed or open loop, on any target.
    Load(sweep::Options),
    /// Sealog beside Redis, NATS and the plain disk, in alternation.
    Compare(compare::Options),
    /// Catch-up over the network, of log and of packs, against plain reads; what a follow adds.
    Read(read::Options),
    /// HTTP beyond single appends: creates, fan-out, catch-up and many streams, beside other servers.
    Http(http::Options),
    /// The edge profile through a full log and an unwritable bucket; see edge.sh.
    Edge(edge::Options),
}

/// Keeps glibc from giving the top of a heap back and faulting it in again at every burst: what a
/// program that appends at full rate would set. Not where memory is what is measured.
fn keep_freed_memory() {
    #[cfg(target_env = "gnu")]
    // SAFETY: plain calls; no other thread runs yet.
    unsafe {
        libc::mallopt(libc::M_TRIM_THRESHOLD, 256 << 20);
        libc::mallopt(libc::M_TOP_PAD, 16 << 20);
    }
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    if !matches!(cli.command, Command::Feeds(_) | Command::Edge(_)) {
        keep_freed_memory();
    }
    let outcome = match &cli.command {
        Command::Wal(options) => wal::run(&cli.dir, options),
        Command::Sustained(options) => sustained::run(&cli.dir, options),
        Command::Latency(options) => latency::run(&cli.dir, options),
        Command::Commit(options) => commit::run(&cli.dir, options),
        Command::Feeds(options) => feeds::run(&cli.dir, options),
        Command::Load(options) => sweep::run(&cli.dir, options),
        Command::Compare(options) => compare::run(&cli.dir, options),
        Command::Read(options) => read::run(&cli.dir, options),
        Command::Http(options) => http::run(&cli.dir, options),
        Command::Edge(options) => edge::run(options),
    };
    let report = match outcome {
        Ok(report) => report,
        Err(error) => {
            eprintln!("sealog-bench: {error}");
            return ExitCode::FAILURE;
        }
    };
    match cli.json {
        true => println!("{}", report.to_json()),
        false => print!("{report}"),
    }
    match &cli.command {
        Command::Compare(_) | Command::Http(_) if report.fails() => ExitCode::FAILURE,
        _ => ExitCode::SUCCESS,
    }
}
