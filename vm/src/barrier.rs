//! Ordering a store before a load cheaply on the one side, at the cost of the other.

use std::sync::atomic::{Ordering, compiler_fence, fence};
use std::time::Duration;

/// An asymmetric fence: [`Barrier::light`] for the side that runs all the time,
/// [`Barrier::heavy`] for the side that rarely wants to know. Each side stores its own flag,
/// passes its fence, and loads the other's: at least one of them sees the other's store.
#[derive(Clone, Debug)]
pub struct Barrier {
    /// Whether the kernel interrupts the other threads for the heavy side.
    asymmetric: bool,
}

impl Barrier {
    /// A barrier for the threads of this process.
    #[must_use]
    pub fn new() -> Barrier {
        Barrier { asymmetric: membarrier(libc::MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED) }
    }

    /// Whether the light side is nothing at all, so that code that does not know of the barrier passes
    /// it too.
    pub(crate) fn is_asymmetric(&self) -> bool {
        self.asymmetric
    }

    /// The side of the threads that run.
    #[inline]
    pub fn light(&self) {
        if self.asymmetric {
            compiler_fence(Ordering::SeqCst);
        } else {
            fence(Ordering::SeqCst);
        }
    }

    /// The other side.
    pub fn heavy(&self) {
        fence(Ordering::SeqCst);
        if self.asymmetric && !membarrier(libc::MEMBARRIER_CMD_PRIVATE_EXPEDITED) {
            // The call has been forbidden meanwhile. Stores do not wait in a processor that long.
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Default for Barrier {
    fn default() -> Barrier {
        Barrier::new()
    }
}

/// Whether the kernel did it.
fn membarrier(command: libc::c_int) -> bool {
    // SAFETY: the call takes two integers and no memory.
    unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) == 0 }
}
