//! glibc's read-write locks: the stand-ins for taking one where nobody else is about, for reading also
//! beside other readers, and for giving it back.
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
    /// Whether a writer has to wait for another one.
    next_writer: AtomicU32,
    _unused: [u32; 2],
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

    /// Whether it is one that writers may take here: this process alone uses it, and readers come first.
    fn is_plain_for_writers(&self) -> bool {
        self.shared.load(Ordering::Relaxed) == 0 && self.preference.load(Ordering::Relaxed) == 0
    }

    fn is_free_of_writers(word: u32) -> bool {
        word & FLAGS == 0 && word < MANY
    }

    /// Takes a read lock; `None` if there is a writer. If a writer had the lock last, the write phase ends: the
    /// word whose waiters are all to be woken then.
    fn try_read(&self) -> Option<Option<&AtomicU32>> {
        let more = |word| match word {
            WRITE_PHASE => Some(READER),
            _ => Self::is_free_of_writers(word).then(|| word + READER),
        };
        let before = self.readers.fetch_update(Ordering::Acquire, Ordering::Relaxed, more).ok()?;
        Some((before == WRITE_PHASE).then(|| change(&self.write_phase, 0)).flatten())
    }

    /// Takes the lock as a writer, unless anybody else has it or wants it.
    fn try_write(&self, tid: u32) -> bool {
        let own = |word| (word & !WRITE_PHASE == 0).then_some(WRITER | WRITE_PHASE);
        let Ok(before) = self.readers.fetch_update(Ordering::Acquire, Ordering::Relaxed, own)
        else {
            return false;
        };
        self.next_writer.store(1, Ordering::Relaxed);
        if before != WRITE_PHASE {
            self.write_phase.store(1, Ordering::Relaxed);
        }
        self.writer.store(tid, Ordering::Relaxed);
        true
    }

    /// Gives the lock back as the writer; if readers wait, they have it then. The word on which all of these
    /// are to be woken, and the word on which one writer is.
    fn unlock_write(&self) -> [Option<&AtomicU32>; 2] {
        self.writer.store(0, Ordering::Relaxed);
        let writer = change(&self.next_writer, 0);
        let left = |word: u32| match word ^ WRITER {
            word if word < READER => word,
            word => word ^ WRITE_PHASE,
        };
        let before = self
            .readers
            .fetch_update(Ordering::Release, Ordering::Relaxed, |word| Some(left(word)));
        let before = before.expect("there is always a next value");
        let readers = (before >= READER).then(|| change(&self.write_phase, 0)).flatten();
        [readers, writer]
    }

    /// Gives a read lock back; the words whose waiters are all to be woken.
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
        let writer = (after & WRITE_PHASE != 0).then(|| {
            fence(Ordering::Acquire);
            change(&self.write_phase, 1)
        });
        let goes_on = (before ^ after) & READERS_WAIT != 0;
        [writer.flatten(), goes_on.then_some(&self.readers)]
    }
}

/// Gives a word another value; the word, if threads wait for that.
fn change(word: &AtomicU32, value: u32) -> Option<&AtomicU32> {
    (word.swap(value, Ordering::Relaxed) & WAITED_FOR != 0).then_some(word)
}

/// Wakes all threads that wait on a word, if there is one; whether there is.
fn wake_all(word: Option<&AtomicU32>) -> bool {
    word.inspect(|word| host::futex_wake_private(word.as_ptr() as u64)).is_some()
}

/// The same, of one thread.
fn wake_one(word: Option<&AtomicU32>) -> bool {
    word.inspect(|word| host::futex_wake_one(word.as_ptr() as u64)).is_some()
}

/// `pthread_rwlock_rdlock(lock)`.
///
/// # Safety
/// As for [`Call::new`]; the lock is one, or faults here as it would in the library.
pub(super) unsafe extern "sysv64" fn read_lock(object: u64, sp: u64, data: u64) -> i64 {
    // SAFETY: the caller's; the fields are atomic, since guest threads change them at will.
    let (lock, call) = unsafe { (&*(object as *const RwLock), Call::new(object, sp, data)) };
    let Some(call) = call else { return SLOW_PATH };
    if !lock.is_plain(call.thread.tid) {
        return SLOW_PATH;
    }
    let Some(acquisition) = call.acquisition(EventKind::ReadLock) else { return SLOW_PATH };
    let Some(readers) = lock.try_read() else { return SLOW_PATH };
    wake_all(readers);
    acquisition.end_at_once(0);
    0
}

/// `pthread_rwlock_wrlock(lock)`.
///
/// # Safety
/// As for [`read_lock`].
pub(super) unsafe extern "sysv64" fn write_lock(object: u64, sp: u64, data: u64) -> i64 {
    // SAFETY: as in `read_lock`.
    let (lock, call) = unsafe { (&*(object as *const RwLock), Call::new(object, sp, data)) };
    let Some(call) = call else { return SLOW_PATH };
    let tid = call.thread.tid;
    let Some(acquisition) = call.acquisition(EventKind::WriteLock) else { return SLOW_PATH };
    if !lock.is_plain_for_writers() || !lock.try_write(tid) {
        return acquisition.go_on_waiting();
    }
    acquisition.end_at_once(0);
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
    let writes = lock.writer.load(Ordering::Relaxed) == call.thread.tid;
    // A lock that nobody has is the library's affair.
    let is_held = match writes {
        true => lock.is_plain_for_writers(),
        false => lock.is_plain(call.thread.tid) && lock.readers.load(Ordering::Relaxed) >= READER,
    };
    if !is_held {
        return SLOW_PATH;
    }
    let ticket = call.ticket();
    // Others need not wait for the event, which has its place.
    let left = if writes { lock.unlock_write() } else { lock.unlock_read() };
    let recorded = call.released(EventKind::RwUnlock, ticket);
    let woken = match (writes, left) {
        (true, [readers, writer]) => [wake_all(readers), wake_one(writer)],
        (false, words) => words.map(wake_all),
    };
    if woken.contains(&true) {
        recorded.lasts_until_now();
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
            assert!(matches!(lock.try_read(), Some(None)) && lock.is_plain(1));
            assert_eq!(word(), 2 * READER);
            assert!(!lock.try_write(1));
            assert!(lock.unlock_read().iter().all(Option::is_none));
            assert_eq!(libc::pthread_rwlock_unlock(native), 0);
            assert_eq!(word(), 0);
            assert_eq!(libc::pthread_rwlock_wrlock(native), 0);
            let tid = libc::gettid() as u32;
            let words = || {
                (
                    word(),
                    lock.write_phase.load(Ordering::Relaxed),
                    lock.next_writer.load(Ordering::Relaxed),
                )
            };
            let held = words();
            assert!(lock.try_read().is_none() && !lock.try_write(1) && !lock.is_plain(tid));
            assert_eq!(libc::pthread_rwlock_unlock(native), 0);
            let left = words();
            // What the library's writers do and what is done here is the same, in both phases.
            for _ in 0..2 {
                assert!(lock.is_plain_for_writers() && lock.try_write(tid));
                assert_eq!((words(), libc::pthread_rwlock_wrlock(native)), (held, libc::EDEADLK));
                assert!(lock.unlock_write().iter().all(Option::is_none));
                assert_eq!((words(), libc::pthread_rwlock_tryrdlock(native)), (left, 0));
                assert!(lock.unlock_read().iter().all(Option::is_none));
                assert_eq!(words(), (0, 0, 0));
            }
            assert!(lock.try_write(tid) && lock.unlock_write().iter().all(Option::is_none));
            assert!(matches!(lock.try_read(), Some(None)));
            assert_eq!(words(), (READER, 0, 0));
        }
    }

    #[test]
    fn writers_come_first() {
        for flags in 2..=FLAGS {
            assert!(lock(flags).try_read().is_none() && !lock(flags).try_write(1), "{flags}");
            assert!(lock(READER | flags).try_read().is_none(), "{flags}");
        }
        assert!(lock(READER | WRITE_PHASE).try_read().is_none());
        assert!(lock(MANY).try_read().is_none());
    }

    #[test]
    fn a_writer_lets_all_readers_in_and_one_writer_try() {
        let held = lock(WRITER | WRITE_PHASE | (2 * READER));
        held.write_phase.store(1 | WAITED_FOR, Ordering::Relaxed);
        held.next_writer.store(1 | WAITED_FOR, Ordering::Relaxed);
        assert!(held.unlock_write().iter().all(Option::is_some));
        let words = [&held.readers, &held.write_phase, &held.next_writer];
        assert_eq!(words.map(|word| word.load(Ordering::Relaxed)), [2 * READER, 0, 0]);
        let idle = lock(WRITE_PHASE);
        idle.write_phase.store(1 | WAITED_FOR, Ordering::Relaxed);
        let awaited = idle.try_read();
        assert!(matches!(awaited, Some(Some(_))), "somebody still waits for the phase to end");
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
