//! Seccomp: system calls refused, or failed once, in a child process.
//!
//! **Invariants**
//! - A filter is for good: only children that end soon install one.
//!
//! **Not here**: what the engine makes of the refusal.

use std::os::fd::RawFd;

use libc::{
    BPF_ABS, BPF_JEQ, BPF_JMP, BPF_JSET, BPF_K, BPF_LD, BPF_RET, BPF_W, SECCOMP_RET_ALLOW,
    SECCOMP_RET_ERRNO, SECCOMP_RET_USER_NOTIF, sock_filter, sock_fprog,
};

const SYSCALL_AT: u32 = 0;
/// Low half of the third argument, on a little-endian machine.
const THIRD_ARGUMENT_AT: u32 = 16 + 2 * 8;

fn load(at: u32) -> sock_filter {
    sock_filter {
        code: (BPF_LD | BPF_W | BPF_ABS) as u16,
        jt: 0,
        jf: 0,
        k: at,
    }
}

fn skip_unless_equal(value: u32, skip: u8) -> sock_filter {
    sock_filter {
        code: (BPF_JMP | BPF_JEQ | BPF_K) as u16,
        jt: 0,
        jf: skip,
        k: value,
    }
}

fn skip_unless_set(bits: u32, skip: u8) -> sock_filter {
    sock_filter {
        code: (BPF_JMP | BPF_JSET | BPF_K) as u16,
        jt: 0,
        jf: skip,
        k: bits,
    }
}

fn answer(action: u32) -> sock_filter {
    sock_filter {
        code: (BPF_RET | BPF_K) as u16,
        jt: 0,
        jf: 0,
        k: action,
    }
}

fn errno_action(errno: i32) -> u32 {
    SECCOMP_RET_ERRNO | errno.unsigned_abs()
}

fn number(syscall: libc::c_long) -> u32 {
    u32::try_from(syscall).unwrap()
}

/// Installs a filter for all threads of this process.
fn install(filter: &mut [sock_filter], flags: libc::c_ulong) -> i64 {
    let program = sock_fprog {
        len: u16::try_from(filter.len()).unwrap(),
        filter: filter.as_mut_ptr(),
    };
    // SAFETY: takes integers only.
    let set = unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) };
    assert_eq!(set, 0);
    // SAFETY: the program and its instructions outlive the call.
    let status = unsafe {
        libc::syscall(
            libc::SYS_seccomp,
            libc::SECCOMP_SET_MODE_FILTER,
            flags,
            &raw const program,
        )
    };
    assert!(status >= 0, "seccomp: {}", std::io::Error::last_os_error());
    status
}

/// From now on these calls fail with `errno`.
pub fn forbid(syscalls: &[libc::c_long], errno: i32) {
    let mut filter = vec![load(SYSCALL_AT)];
    for syscall in syscalls {
        filter.push(skip_unless_equal(number(*syscall), 1));
        filter.push(answer(errno_action(errno)));
    }
    filter.push(answer(SECCOMP_RET_ALLOW));
    install(&mut filter, libc::SECCOMP_FILTER_FLAG_TSYNC);
}

/// From now on no file can be opened for direct I/O: `EINVAL`, as filesystems without it answer.
pub fn forbid_direct_io() {
    let direct = libc::O_DIRECT.unsigned_abs();
    let mut filter = vec![
        load(SYSCALL_AT),
        skip_unless_equal(number(libc::SYS_openat), 3),
        load(THIRD_ARGUMENT_AT),
        skip_unless_set(direct, 1),
        answer(errno_action(libc::EINVAL)),
        answer(SECCOMP_RET_ALLOW),
    ];
    install(&mut filter, libc::SECCOMP_FILTER_FLAG_TSYNC);
}

/// From now on every `fdatasync`, and every write that syncs (`pwritev2`), of a thread that starts
/// later, or of this one, asks `judge` first: an errno to fail with, or `None` to go on.
pub fn watch_syncs(mut judge: impl FnMut() -> Option<i32> + Send + 'static) {
    let mut filter = vec![
        load(SYSCALL_AT),
        skip_unless_equal(number(libc::SYS_fdatasync), 1),
        answer(SECCOMP_RET_USER_NOTIF),
        skip_unless_equal(number(libc::SYS_pwritev2), 1),
        answer(SECCOMP_RET_USER_NOTIF),
        answer(SECCOMP_RET_ALLOW),
    ];
    let listener = install(&mut filter, libc::SECCOMP_FILTER_FLAG_NEW_LISTENER);
    let listener = RawFd::try_from(listener).unwrap();
    std::thread::spawn(move || while judge_one(listener, &mut judge) {});
}

/// Waits for one call and answers it; `false` when nobody can call any more.
fn judge_one(listener: RawFd, judge: &mut impl FnMut() -> Option<i32>) -> bool {
    // SAFETY: all-zero bytes are valid, and what the kernel asks for.
    let mut request: libc::seccomp_notif = unsafe { std::mem::zeroed() };
    // SAFETY: `request` is the structure the call fills.
    let got = unsafe { libc::ioctl(listener, SECCOMP_IOCTL_NOTIF_RECV, &raw mut request) };
    if got != 0 {
        return std::io::Error::last_os_error().raw_os_error() == Some(libc::EINTR);
    }
    let mut response = libc::seccomp_notif_resp {
        id: request.id,
        val: 0,
        error: 0,
        flags: 0,
    };
    match judge() {
        Some(errno) => response.error = -errno,
        None => response.flags = SECCOMP_USER_NOTIF_FLAG_CONTINUE,
    }
    // SAFETY: `response` is the structure the call reads.
    unsafe { libc::ioctl(listener, SECCOMP_IOCTL_NOTIF_SEND, &raw mut response) };
    true
}

const SECCOMP_USER_NOTIF_FLAG_CONTINUE: u32 = 1;
/// `_IOWR('!', 0, struct seccomp_notif)` (80 bytes).
const SECCOMP_IOCTL_NOTIF_RECV: libc::c_ulong = 0xC050_2100;
/// `_IOWR('!', 1, struct seccomp_notif_resp)` (24 bytes).
const SECCOMP_IOCTL_NOTIF_SEND: libc::c_ulong = 0xC018_2101;
const _: () = assert!(size_of::<libc::seccomp_notif>() == 80);
const _: () = assert!(size_of::<libc::seccomp_notif_resp>() == 24);
