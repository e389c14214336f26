//! Read locks of glibc's read-write locks, which are the commonest calls of programs that use
//! OpenSSL: the stand-ins for taking one where no writer is about, and for giving it back.
//!
//! The lock's words and what they mean: `nptl/pthread_rwlock_common.c`, glibc 2.25 and later.

use super::{Call, SLOW_PATH};
use crate::host;
use refrain_trace::EventKind;
use std::sync::atomic::{AtomicU32, Ordering, fence};

/// glibc's `pthread_rwlock_t` on x86-64, as far as it matters; its layout is part of the ABI.
#[repr(C)]
struct RwLock {
    /// Flags, and from [`READER`] on the number of readers.
    readers: AtomicU32,
    _writers: u32,
    /// Whether there is a write phase, for those who wait for its beginning or end.
    write_phase: AtomicU32,
    _unused: [u32; 3],
    /// The writer that has the lock.
    writer: AtomicU32,
    /// Other processes use it too.
    shared: AtomicU32,
    _more: [u32; 4],
    /// What is preferred.
    preference: AtomicU32,
}

/// Writers have the lock, or will be the next to have it.
const WRITE_PHASE: u32 = 1;
/// There is a writer.
const WRITER: u32 = 2;
/// Readers wait for a writer to come first.
const READERS_WAIT: u32 = 4;
const FLAGS: u32 = WRITE_PHASE | WRITER | READERS_WAIT;
/// One reader.
const READER: u32 = 8;
/// Beyond so many, glibc looks for an overflow.
const MANY: u32 = 1 << 30;
/// In a word that is waited for: somebody does.
const WAITED_FOR: u32 = 2;
/// PTHREAD_RWLOCK_PREFER_READER_NP, the default, and PTHREAD_RWLOCK_PREFER_WRITER_NP, which is the
/// same.
const READERS_FIRST: u32 = 1;

impl RwLock {
    /// Whether it is one that is known here, which the thread does not have as a writer.
    fn is_plain(&self, tid: u32) -> bool {
        self.shared.load(Ordering::Relaxed) == 0
            && self.preference.load(Ordering::Relaxed) <= READERS_FIRST
            && self.writer.load(Ordering::Relaxed) != tid
    }

    fn is_free_of_writers(word: u32) -> bool {
        word & FLAGS == 0 && word < MANY
    }

    /// Takes a read lock, unless there is a writer, or was one last.
    fn try_read(&self) -> bool {
        let more = |word| Self::is_free_of_writers(word).then(|| word + READER);
        self.readers.fetch_update(Ordering::Acquire, Ordering::Relaxed, more).is_ok()
    }

    /// Gives a read lock back; the words whose waiters are to be woken.
    fn unlock_read(&self) -> [Option<&AtomicU32>; 2] {
        let fewer = |word: u32| {
            let mut left = word.wrapping_sub(READER);
            if left < READER {
                if left & WRITER != 0 {
                    left |= WRITE_PHASE;
                }
                left &= !READERS_WAIT;
            }
            left
        };
        let before = self
            .readers
            .fetch_update(Ordering::Release, Ordering::Relaxed, |word| Some(fewer(word)));
        let before = before.expect("there is always a next value");
        let after = fewer(before);
        let begins = after & WRITE_PHASE != 0 && {
            fence(Ordering::Acquire);
            self.write_phase.swap(1, Ordering::Relaxed) & WAITED_FOR != 0
        };
        let goes_on = (before ^ after) & READERS_WAIT != 0;
        [begins.then_some(&self.write_phase), goes_on.then_some(&self.readers)]
    }
}

/// `pthread_rwlock_rdlock(lock)`.
///
/// # Safety
/// As for [`Call::new`]; the lock is one, or faults here as it would in the library.
pub(super) unsafe extern "sysv64" fn read_lock(object: u64, sp: u64, data: u64) -> i64 {
    // SAFETY: the caller's; the fields are atomic, since guest threads change them at will.
    let (lock, call) = unsafe { (&*(object as *const RwLock), Call::new(object, sp, data)) };
    let Some(call) = call else { return SLOW_PATH };
    if !lock.is_plain(call.thread.tid) || !lock.try_read() {
        return SLOW_PATH;
    }
    let end = call.begin;
    call.record(EventKind::ReadLock, end, 0);
    0
}

/// `pthread_rwlock_unlock(lock)`.
///
/// # Safety
/// As for [`read_lock`].
pub(super) unsafe extern "sysv64" fn unlock(object: u64, sp: u64, data: u64) -> i64 {
    // SAFETY: as in `read_lock`.
    let (lock, call) = unsafe { (&*(object as *const RwLock), Call::new(object, sp, data)) };
    let Some(call) = call else { return SLOW_PATH };
    // A lock that nobody has is the library's affair.
    if !lock.is_plain(call.thread.tid) || lock.readers.load(Ordering::Relaxed) < READER {
        return SLOW_PATH;
    }
    let (end, log) = (call.begin, call.thread.log);
    // The event comes first: then others may go on.
    call.record(EventKind::RwUnlock, end, 0);
    let waited_for = lock.unlock_read();
    if waited_for.iter().any(Option::is_some) {
        for word in waited_for.into_iter().flatten() {
            host::futex_wake_private(word.as_ptr() as u64);
        }
        // SAFETY: armed with a reference that outlives the thread's run; `call`, which appended the
        // event, is gone.
        unsafe { &*log }.amend(|event| event.end = host::ticks());
    }
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lock(readers: u32) -> RwLock {
        // SAFETY: all fields are integers.
        let mut lock: RwLock = unsafe { std::mem::zeroed() };
        lock.readers = AtomicU32::new(readers);
        lock
    }

    #[test]
    fn the_layout_is_the_librarys() {
        let mut native = libc::PTHREAD_RWLOCK_INITIALIZER;
        let seen = &raw mut native as *const RwLock;
        // SAFETY: a live lock of the library's, which is larger than the part that is known here.
        let (lock, native) = unsafe { (&*seen, &raw mut native) };
        let word = || lock.readers.load(Ordering::Relaxed);
        // SAFETY: the lock is live and used by this thread alone.
        unsafe {
            assert_eq!(libc::pthread_rwlock_rdlock(native), 0);
            assert_eq!(word(), READER);
            assert!(lock.try_read() && lock.is_plain(1));
            assert_eq!(word(), 2 * READER);
            assert!(lock.unlock_read().iter().all(Option::is_none));
            assert_eq!(libc::pthread_rwlock_unlock(native), 0);
            assert_eq!(word(), 0);
            assert_eq!(libc::pthread_rwlock_wrlock(native), 0);
            assert!(!lock.try_read() && !lock.is_plain(libc::gettid() as u32));
            assert_eq!(libc::pthread_rwlock_unlock(native), 0);
        }
    }

    #[test]
    fn writers_come_first() {
        for flags in 1..=FLAGS {
            assert!(!lock(READER | flags).try_read(), "{flags}");
        }
        assert!(!lock(MANY).try_read());
    }

    #[test]
    fn the_last_reader_lets_the_writer_in_and_wakes_who_waits() {
        let first = lock((2 * READER) | WRITER | READERS_WAIT);
        assert!(first.unlock_read().iter().all(Option::is_none));
        let waits = READER | WRITER | READERS_WAIT;
        assert_eq!(first.readers.load(Ordering::Relaxed), waits);
        first.write_phase.store(WAITED_FOR, Ordering::Relaxed);
        assert!(first.unlock_read().iter().all(Option::is_some));
        assert_eq!(first.readers.load(Ordering::Relaxed), WRITER | WRITE_PHASE);
        assert_eq!(first.write_phase.load(Ordering::Relaxed), 1);
    }
}
