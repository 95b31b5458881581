//! Tests of machines that can't run the engine: one line with cause and remedy, status 7, nothing touched.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

use super::bench::{Bench, finish};

/// Makes `io_uring_setup` fail with EPERM in this process, as container profiles do.
fn forbid_io_uring() -> io::Result<()> {
    let statement = |code: u32, k: u32, jt: u8, jf: u8| libc::sock_filter {
        code: code as u16,
        jt,
        jf,
        k,
    };
    // Load the system call's number; if it is the one, answer EPERM; else allow.
    let mut filter = [
        statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
        statement(
            libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K,
            libc::SYS_io_uring_setup as u32,
            0,
            1,
        ),
        statement(
            libc::BPF_RET | libc::BPF_K,
            libc::SECCOMP_RET_ERRNO | libc::EPERM as u32,
            0,
            0,
        ),
        statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW, 0, 0),
    ];
    let program = libc::sock_fprog {
        len: filter.len() as u16,
        filter: filter.as_mut_ptr(),
    };
    // SAFETY: plain prctl calls; the program and its filter outlive them.
    let set = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
            && libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &program) == 0
    };
    if set {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

fn shrink_memlock() -> io::Result<()> {
    let limit = libc::rlimit {
        rlim_cur: 64 << 10,
        rlim_max: 64 << 10,
    };
    // SAFETY: a valid structure, alive for the call.
    match unsafe { libc::setrlimit(libc::RLIMIT_MEMLOCK, &limit) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

fn handicapped(bench: &Bench, handicap: fn() -> io::Result<()>) -> Command {
    let mut command = bench.command(&["append", "f", "--value", "x"]);
    // SAFETY: system calls only, between fork and exec; no allocation, no locks.
    unsafe { command.pre_exec(handicap) };
    command
}

#[test]
fn io_uring_forbidden_says_cause_and_remedy() {
    let bench = Bench::new();
    let ran = finish(handicapped(&bench, forbid_io_uring), b"");
    ran.fails(
        7,
        &[
            "io_uring is not available",
            "Operation not permitted",
            "seccomp",
        ],
    );
    assert!(!bench.data().join("wal").exists(), "nothing was made");
}

#[test]
fn memlock_too_small_says_value_and_remedy() {
    let bench = Bench::new();
    let ran = finish(handicapped(&bench, shrink_memlock), b"");
    ran.fails(7, &["memlock", "65536 bytes", "524288", "ulimit -l"]);
    assert!(!bench.data().join("wal").exists(), "nothing was made");
}
