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

use super::log::{Busy, ThreadLog};
use crate::context::{Context, Translating};
use crate::engine::{Engine, Leaf};
use crate::host::{self, KnownPages};
use crate::kick::Attention;
use crate::slots::Tickets;
use refrain_trace::{Event, EventKind, order};
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};

/// "Go the long way; nothing has happened."
pub(super) const LONG_WAY: i64 = -1;
/// Pauses before each look at a mutex that is held. A short critical section is over by then, and
/// so may be the next ones: looking more often would take the mutex's cache line from a holder
/// that locks and unlocks it in a loop.
const PAUSES: [u32; 10] = [16, 32, 64, 128, 128, 128, 128, 128, 128, 128];

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

/// What leaf functions know of the thread that calls them. Alone in its cache lines, as
/// [`ThreadLog`] is.
#[repr(align(128))]
pub(crate) struct LeafThread {
    pub(super) tickets: *const Tickets,
    pub(super) log: *const ThreadLog,
    pub(super) context: *const Context,
    tid: u32,
    /// Translation that earlier events have accounted for.
    accounted: Translating,
    /// Signals want to be handled.
    pub(super) attention: Attention,
    pub(crate) pages: KnownPages,
    /// A `pthread_once` whose routine this thread is about to run.
    pub(crate) beginning_once: Option<u64>,
    /// The slot and the ticket of the instruction that is executed in line.
    pub(super) held: Option<(usize, u64)>,
}

impl Default for LeafThread {
    fn default() -> LeafThread {
        LeafThread {
            tickets: std::ptr::null(),
            log: std::ptr::null(),
            context: std::ptr::null(),
            tid: 0,
            accounted: Translating::default(),
            attention: Attention::default(),
            pages: KnownPages::new(),
            beginning_once: None,
            held: None,
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
        attention: &Attention,
    ) {
        self.attention = attention.clone();
        self.held = None;
        (self.tickets, self.log, self.context) = (tickets, log, context);
        self.tid = tid as u32;
    }

    /// Translation since the previous event, given that so far.
    #[inline]
    pub(crate) fn translated(&mut self, so_far: Translating) -> Translating {
        so_far.since(std::mem::replace(&mut self.accounted, so_far))
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

/// A call that a leaf function answers: of a normal mutex, with room for the event.
struct Call<'a> {
    mutex: &'a Mutex,
    thread: &'a mut LeafThread,
    log: Busy<'a>,
    sp: u64,
    begin: u64,
}

impl Call<'_> {
    /// `None` if the call has to go the long way.
    ///
    /// # Safety
    /// As for [`lock`]; one `Call` at a time.
    #[inline(always)]
    unsafe fn new<'a>(mutex: u64, sp: u64, data: u64) -> Option<Call<'a>> {
        // SAFETY: the caller's; the thread's own state is used by this thread alone, which is in
        // guest code and so not inside the recorder.
        let (mutex, thread) =
            unsafe { (&*(mutex as *const Mutex), &mut *(data as *mut LeafThread)) };
        if !mutex.is_normal() {
            return None;
        }
        let begin = host::ticks();
        // SAFETY: armed with a reference that outlives the thread's run.
        let mut log = unsafe { &*thread.log }.enter().ok()?;
        log.has_room(begin).then_some(Call { mutex, thread, log, sp, begin })
    }

    /// Takes the ticket and appends the event.
    #[inline(always)]
    fn record(mut self, kind: EventKind, end: u64) {
        // SAFETY: armed with references that outlive the thread's run.
        let (tickets, context) = unsafe { (&*self.thread.tickets, &*self.thread.context) };
        let object = &raw const *self.mutex as u64;
        let ticket = tickets.take(order::slot(object));
        // SAFETY: at a function's entry the return address is at the stack pointer.
        let pc = unsafe { host::Guest.stack_word(self.sp) };
        let Translating { total: overhead, busy } = self.thread.translated(context.translating);
        let (code, sp, begin) = (kind as u8, self.sp, self.begin);
        let event =
            Event { code, pc, sp, object, ticket, begin, end, overhead, busy, ..Event::default() };
        self.log.push(event);
    }
}

/// `pthread_mutex_lock(mutex)`.
///
/// # Safety
/// `data` is the calling thread's armed [`LeafThread`], `sp` the stack pointer at the function's
/// entry. A `mutex` that is no memory faults here as it would in the library.
unsafe extern "sysv64" fn lock(mutex: u64, sp: u64, data: u64) -> i64 {
    // SAFETY: the caller's.
    let Some(call) = (unsafe { Call::new(mutex, sp, data) }) else { return LONG_WAY };
    let mutex = call.mutex;
    let mut end = call.begin;
    if !mutex.try_lock() {
        if !spin(mutex) {
            return LONG_WAY;
        }
        end = host::ticks();
    }
    mutex.owner.store(call.thread.tid, Ordering::Relaxed);
    // Only the holder writes `users`.
    mutex.users.store(mutex.users.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
    call.record(EventKind::MutexLock, end);
    0
}

#[cold]
fn spin(mutex: &Mutex) -> bool {
    PAUSES.iter().any(|&pauses| {
        (0..pauses).for_each(|_| std::hint::spin_loop());
        mutex.lock.load(Ordering::Relaxed) == 0 && mutex.try_lock()
    })
}

/// `pthread_mutex_unlock(mutex)`.
///
/// # Safety
/// As for [`lock`].
unsafe extern "sysv64" fn unlock(mutex: u64, sp: u64, data: u64) -> i64 {
    // SAFETY: the caller's.
    let Some(call) = (unsafe { Call::new(mutex, sp, data) }) else { return LONG_WAY };
    let mutex = call.mutex;
    let end = call.begin;
    call.record(EventKind::MutexUnlock, end);
    mutex.owner.store(0, Ordering::Relaxed);
    mutex.users.store(mutex.users.load(Ordering::Relaxed).wrapping_sub(1), Ordering::Relaxed);
    if mutex.lock.swap(0, Ordering::Release) > 1 {
        host::futex_wake_one(&raw const *mutex as u64);
    }
    0
}
