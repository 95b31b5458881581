//! Nudge: gets a shard's thread out of a wait in the kernel.
//!
//! A wake of a task is not enough: an executor that parks before its first task has run has left
//! nobody a waker. A signal ends the wait whatever the executor's state; it then looks at its queues.
//!
//! **Invariants**
//! - The signal is SIGURG, which programs may receive at any time and ignore by default; a handler
//!   that the host has set stays.
//! - It goes to the one thread, and system calls that can be restarted are.
//!
//! **Not here**: when to nudge (`watchdog`).

use std::sync::OnceLock;
use std::sync::atomic::{AtomicI32, Ordering};

/// The thread to nudge; none until it has [entered](Self::enter).
#[derive(Debug, Default)]
pub(crate) struct NudgeTarget(AtomicI32);

impl NudgeTarget {
    /// Makes the calling thread the target.
    pub(crate) fn enter(&self) {
        prepare();
        // SAFETY: the call only gives the caller's thread id.
        self.0.store(unsafe { libc::gettid() }, Ordering::Release);
    }

    /// Interrupts the target's wait, if there is a target and it waits. Should the thread have ended,
    /// at worst another of this process is nudged.
    pub(crate) fn nudge(&self) {
        let thread = self.0.load(Ordering::Acquire);
        if thread != 0 {
            // SAFETY: sends a signal that has a handler to a thread of this process.
            unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), thread, libc::SIGURG) };
        }
    }
}

extern "C" fn ignore(_signal: libc::c_int) {}

/// A signal without a handler doesn't interrupt a wait: sets one that does nothing, once, unless the
/// host has its own.
fn prepare() {
    static DONE: OnceLock<()> = OnceLock::new();
    DONE.get_or_init(|| {
        // SAFETY: all-zero bytes are an action with an empty mask and no flags.
        let mut old: libc::sigaction = unsafe { std::mem::zeroed() };
        // SAFETY: only reads the present action into `old`.
        let known = unsafe { libc::sigaction(libc::SIGURG, std::ptr::null(), &mut old) } == 0;
        if !known || (old.sa_sigaction != libc::SIG_DFL && old.sa_sigaction != libc::SIG_IGN) {
            return;
        }
        // SAFETY: as above.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        action.sa_sigaction = ignore as extern "C" fn(libc::c_int) as usize;
        action.sa_flags = libc::SA_RESTART | libc::SA_ONSTACK;
        // SAFETY: the handler does nothing, so it may run at any point of any thread.
        unsafe { libc::sigaction(libc::SIGURG, &action, std::ptr::null_mut()) };
    });
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use super::*;

    #[test]
    fn nudge_of_a_thread_that_waits_in_the_kernel_ends_the_wait() {
        let target = Arc::new(NudgeTarget::default());
        let entered = Arc::clone(&target);
        let waiter = std::thread::spawn(move || {
            entered.enter();
            // SAFETY: waits on no descriptors, without a limit.
            let n = unsafe { libc::poll(std::ptr::null_mut(), 0, -1) };
            (n, std::io::Error::last_os_error().kind())
        });
        while !waiter.is_finished() {
            target.nudge();
            std::thread::sleep(Duration::from_millis(1));
        }
        let (n, error) = waiter.join().expect("the waiter ends");
        assert_eq!((n, error), (-1, std::io::ErrorKind::Interrupted));
    }
}
