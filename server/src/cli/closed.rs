//! Closed: whether the process was started with its standard output closed.
//!
//! Rust opens /dev/null in the place of a standard descriptor that is closed, before `main`: what is
//! printed would be lost without an error. So it is looked at earlier, among the initialisers that the
//! C library calls.
//!
//! **Invariants**
//! - Nothing is done there but one system call and one store.
//!
//! **Not here**: what follows from it (`output`).

use std::sync::atomic::{AtomicBool, Ordering};

static STDOUT: AtomicBool = AtomicBool::new(false);

// SAFETY: the C library calls what this section holds once, before `main`, on the only thread.
#[used]
#[unsafe(link_section = ".init_array")]
static LOOK: extern "C" fn() = look;

extern "C" fn look() {
    // SAFETY: asks for the flags of a descriptor, whatever it is.
    let open = unsafe { libc::fcntl(libc::STDOUT_FILENO, libc::F_GETFD) } >= 0;
    STDOUT.store(!open, Ordering::Relaxed);
}

/// Whether standard output was closed.
pub(super) fn stdout() -> bool {
    STDOUT.load(Ordering::Relaxed)
}
