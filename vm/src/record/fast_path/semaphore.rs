//! glibc's semaphores: the stand-ins for taking one that has something left, and for giving it back.
//!
//! The semaphore's words and what they mean: `nptl/sem_waitcommon.c` and `nptl/sem_post.c`, glibc 2.21 and
//! later.

use super::{Call, SLOW_PATH};
use crate::host;
use refrain_trace::EventKind;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// glibc's `sem_t` on x86-64, as far as it matters.
#[repr(C)]
struct Semaphore {
    /// The value, and from [`WAITER`] on the number of those who wait.
    data: AtomicU64,
    /// Other processes use it too.
    shared: AtomicU32,
}

/// One thread that waits.
const WAITER: u64 = 1 << 32;
/// Beyond such a value, glibc looks for an overflow.
const MUCH: u64 = 1 << 30;

impl Semaphore {
    fn is_shared(&self) -> bool {
        self.shared.load(Ordering::Relaxed) != 0
    }

    fn value(&self) -> u64 {
        u64::from(self.data.load(Ordering::Relaxed) as u32)
    }

    /// Takes one, if there is one.
    fn try_wait(&self) -> bool {
        let less = |data: u64| (data as u32 > 0).then(|| data - 1);
        self.data.fetch_update(Ordering::Acquire, Ordering::Relaxed, less).is_ok()
    }

    /// Gives one; whether somebody is to be woken.
    fn post(&self) -> bool {
        self.data.fetch_add(1, Ordering::Release) >= WAITER
    }
}

/// `sem_wait(semaphore)`.
///
/// # Safety
/// As for [`Call::new`]; what the guest says is a semaphore is one, or faults here as it would in the
/// library.
pub(super) unsafe extern "sysv64" fn wait(object: u64, sp: u64, data: u64) -> i64 {
    // SAFETY: the caller's.
    unsafe { take((object, sp, data), EventKind::SemWait) }
}

/// `sem_trywait(semaphore)`.
///
/// # Safety
/// As for [`wait`].
pub(super) unsafe extern "sysv64" fn try_wait(object: u64, sp: u64, data: u64) -> i64 {
    // SAFETY: the caller's.
    unsafe { take((object, sp, data), EventKind::SemTryWait) }
}

/// Takes one, if there is one and nothing else is to be seen to.
///
/// # Safety
/// As for [`wait`].
#[inline(always)]
unsafe fn take((object, sp, data): (u64, u64, u64), kind: EventKind) -> i64 {
    // SAFETY: the caller's; the fields are atomic, since guest threads change them at will.
    let (semaphore, call) =
        unsafe { (&*(object as *const Semaphore), Call::new(object, sp, data)) };
    let Some(call) = call else { return SLOW_PATH };
    let is_marked = call.thread.is_marked;
    let Some(acquisition) = call.acquisition(kind) else { return SLOW_PATH };
    if is_marked || semaphore.is_shared() || !semaphore.try_wait() {
        return SLOW_PATH;
    }
    acquisition.end_at_once(0);
    0
}

/// `sem_post(semaphore)`.
///
/// # Safety
/// As for [`wait`].
pub(super) unsafe extern "sysv64" fn post(object: u64, sp: u64, data: u64) -> i64 {
    // SAFETY: as in `take`.
    let (semaphore, call) =
        unsafe { (&*(object as *const Semaphore), Call::new(object, sp, data)) };
    let Some(call) = call else { return SLOW_PATH };
    if semaphore.is_shared() || semaphore.value() >= MUCH {
        return SLOW_PATH;
    }
    let ticket = call.ticket();
    // Others need not wait for the event, which has its place.
    let is_waited_for = semaphore.post();
    let recorded = call.released(EventKind::SemPost, ticket);
    if is_waited_for {
        host::futex_wake_one(object);
        recorded.lasts_until_now();
    }
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_layout_is_the_librarys() {
        // SAFETY: all fields are integers.
        let mut native: libc::sem_t = unsafe { std::mem::zeroed() };
        let seen = &raw mut native as *const Semaphore;
        // SAFETY: the library initializes it before anything else.
        let (semaphore, native) = unsafe { (&*seen, &raw mut native) };
        // SAFETY: the semaphore is live and used by this thread alone.
        unsafe {
            assert_eq!(libc::sem_init(native, 0, 2), 0);
            assert!(!semaphore.is_shared() && semaphore.try_wait());
            assert_eq!(semaphore.value(), 1);
            assert_eq!(libc::sem_wait(native), 0);
            assert!(!semaphore.try_wait() && !semaphore.post());
            assert_eq!((libc::sem_trywait(native), semaphore.value()), (0, 0));
            assert_eq!(libc::sem_init(native, 1, 0), 0);
            assert!(semaphore.is_shared());
        }
    }

    #[test]
    fn who_waits_is_to_be_woken() {
        let semaphore = Semaphore { data: AtomicU64::new(2 * WAITER), shared: AtomicU32::new(0) };
        assert!(!semaphore.try_wait() && semaphore.post());
        assert!(semaphore.try_wait() && !semaphore.try_wait());
        assert_eq!(semaphore.data.into_inner(), 2 * WAITER);
    }
}
