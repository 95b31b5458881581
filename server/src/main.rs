//! Sealog, the command: hands its arguments to the CLI and its status to the system.
//!
//! **Invariants**
//! - The exit status is one that `docs/cli.md` documents.
//!
//! **Not here**: everything else (`cli`).

mod cli;
mod http;
mod native;
mod net;
mod serve;

fn main() -> std::process::ExitCode {
    return_freed_memory();
    cli::main()
}

/// Keeps large buffers out of the heap, so that what is freed goes back to the system at once.
///
/// glibc raises its threshold each time a large buffer is freed; buffers of the lane then stay in the heaps of
/// several threads: 268 MiB instead of 176 at the peak of a seal of five million small records.
fn return_freed_memory() {
    #[cfg(target_env = "gnu")]
    // SAFETY: a plain call; no other thread runs yet.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, 256 << 10);
    }
}
