//! Locking and unlocking glibc's normal mutexes without leaving translated code.
//!
//! A short critical section costs some 10 ns natively. Leaving translated code, running the
//! library's body and coming back costs several times that, most of it while the mutex is held.
//! So the commonest case is done here, in functions that translated code calls directly: they
//! follow glibc's protocol for the lock word (0 free, 1 held, 2 held and waited for), and
//! whatever is not the commonest case goes the long way (`sync`), which runs the library's body.
//!
//! These functions run with the guest's thread pointer: nothing in them may use thread-local
//! storage of the host, allocate, or panic.

use super::log::ThreadLog;
use crate::context::Context;
use crate::engine::{Engine, Leaf};
use crate::host;
use crate::slots::Tickets;
use refrain_trace::{Event, EventKind, order};
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};

/// "Go the long way; nothing has happened."
const LONG_WAY: i64 = -1;
/// Looks at a held mutex before going the long way: a short critical section is over by then.
const SPINS: u32 = 100;

/// glibc's `pthread_mutex_t` on x86-64, as far as it matters. Static initializers make its layout
/// part of the ABI.
#[repr(C)]
struct Mutex {
    lock: AtomicU32,
    count: u32,
    owner: AtomicU32,
    users: AtomicU32,
    kind: AtomicU32,
}

impl Mutex {
    /// PTHREAD_MUTEX_TIMED_NP and PTHREAD_MUTEX_ADAPTIVE_NP, private to the process, neither
    /// robust nor with a priority protocol: no owner is checked and nothing is counted.
    fn is_normal(&self) -> bool {
        matches!(self.kind.load(Ordering::Relaxed), 0 | 3)
    }

    fn try_lock(&self) -> bool {
        self.lock.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }
}

/// What leaf functions know of the thread that calls them.
pub(crate) struct LeafThread {
    tickets: *const Tickets,
    log: *const ThreadLog,
    context: *const Context,
    tid: u32,
    /// Translation time that earlier events have accounted for.
    accounted: u64,
}

impl Default for LeafThread {
    fn default() -> LeafThread {
        LeafThread {
            tickets: std::ptr::null(),
            log: std::ptr::null(),
            context: std::ptr::null(),
            tid: 0,
            accounted: 0,
        }
    }
}

impl LeafThread {
    /// The caller keeps all of it alive and in place as long as the thread runs guest code.
    pub(crate) fn arm(
        &mut self,
        tickets: &Tickets,
        log: &ThreadLog,
        context: *const Context,
        tid: i32,
    ) {
        (self.tickets, self.log, self.context) = (tickets, log, context);
        self.tid = tid as u32;
    }

    /// Translation time since the previous event, given the time so far.
    pub(crate) fn overhead(&mut self, translating: u64) -> u64 {
        let overhead = translating.wrapping_sub(self.accounted);
        self.accounted = translating;
        overhead
    }
}

/// Lets the leaf functions stand in where the library is known to be glibc.
pub(crate) fn install(engine: &dyn Engine, pc: u64, kind: EventKind, library: &Path) {
    let name = library.file_name().unwrap_or_default().to_string_lossy();
    let leaf: Leaf = match kind {
        EventKind::MutexLock => lock,
        EventKind::MutexUnlock => unlock,
        _ => return,
    };
    if name.starts_with("libc.so.6") || name.starts_with("libc-2") {
        // SAFETY: every thread's word is its `LeafThread`, armed before it runs guest code
        // (`GuestThread::arm_leaves`); for the rest see the module's documentation.
        unsafe { engine.leaf(pc, leaf) };
    }
}

/// `pthread_mutex_lock(mutex)`.
///
/// # Safety
/// `data` is the calling thread's armed [`LeafThread`], `sp` the stack pointer at the function's
/// entry. A `mutex` that is no memory faults here as it would in the library.
unsafe extern "sysv64" fn lock(mutex: u64, sp: u64, data: u64) -> i64 {
    // SAFETY: the caller's; the thread's own state is used by this thread alone, which is in
    // guest code and so not inside the recorder.
    let (mutex, thread) = unsafe { (&*(mutex as *const Mutex), &mut *(data as *mut LeafThread)) };
    // SAFETY: armed with references that outlive the thread's run.
    let (log, tickets, context) = unsafe { (&*thread.log, &*thread.tickets, &*thread.context) };
    if !mutex.is_normal() {
        return LONG_WAY;
    }
    let begin = host::ticks();
    let Ok(mut busy) = log.enter() else { return LONG_WAY };
    if !busy.has_room(begin) {
        return LONG_WAY;
    }
    let mut end = begin;
    if !mutex.try_lock() {
        if !spin(mutex) {
            return LONG_WAY;
        }
        end = host::ticks();
    }
    mutex.owner.store(thread.tid, Ordering::Relaxed);
    // Only the holder writes `users`.
    mutex.users.store(mutex.users.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
    let address = &raw const *mutex as u64;
    let ticket = tickets.take(order::slot(address));
    // SAFETY: the caller's: at a function's entry the return address is at `sp`.
    let pc = unsafe { host::Guest.stack_word(sp) };
    let overhead = thread.overhead(context.translating);
    let (code, object) = (EventKind::MutexLock as u8, address);
    busy.push(Event { code, pc, sp, object, ticket, begin, end, overhead, ..Event::default() });
    0
}

fn spin(mutex: &Mutex) -> bool {
    for _ in 0..SPINS {
        if mutex.lock.load(Ordering::Relaxed) == 0 && mutex.try_lock() {
            return true;
        }
        std::hint::spin_loop();
    }
    false
}

/// `pthread_mutex_unlock(mutex)`.
///
/// # Safety
/// As for [`lock`].
unsafe extern "sysv64" fn unlock(mutex: u64, sp: u64, data: u64) -> i64 {
    // SAFETY: as in `lock`.
    let (mutex, thread) = unsafe { (&*(mutex as *const Mutex), &mut *(data as *mut LeafThread)) };
    // SAFETY: as in `lock`.
    let (log, tickets, context) = unsafe { (&*thread.log, &*thread.tickets, &*thread.context) };
    if !mutex.is_normal() {
        return LONG_WAY;
    }
    let begin = host::ticks();
    let Ok(mut busy) = log.enter() else { return LONG_WAY };
    if !busy.has_room(begin) {
        return LONG_WAY;
    }
    let address = &raw const *mutex as u64;
    let ticket = tickets.take(order::slot(address));
    // SAFETY: as in `lock`.
    let pc = unsafe { host::Guest.stack_word(sp) };
    let overhead = thread.overhead(context.translating);
    let (code, object, end) = (EventKind::MutexUnlock as u8, address, begin);
    busy.push(Event { code, pc, sp, object, ticket, begin, end, overhead, ..Event::default() });
    drop(busy);
    mutex.owner.store(0, Ordering::Relaxed);
    mutex.users.store(mutex.users.load(Ordering::Relaxed).wrapping_sub(1), Ordering::Relaxed);
    if mutex.lock.swap(0, Ordering::Release) > 1 {
        host::futex_wake_one(address);
    }
    0
}
