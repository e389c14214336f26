//! Locking and unlocking glibc's mutexes, spin locks, read-write locks and semaphores without leaving
//! translated code, waking nobody, and finding that a routine has run once.
//!
//! A short critical section costs some 10 ns natively. Leaving translated code, running the
//! library's body and coming back costs several times that, most of it while the mutex is held.
//! So the commonest case is done here, in functions that translated code calls directly: they
//! follow glibc's protocol for the lock word, and whatever is not the commonest case takes the
//! slow path (`sync`), which runs the library's body.
//!
//! These functions run with the guest's thread pointer: nothing in them may use thread-local
//! storage of the host, allocate, or panic.

mod condition;
pub(crate) mod measured;
mod rwlock;
mod semaphore;

use super::log::{Busy, Prepared, ThreadLog};
use crate::context::{Context, Translating};
use crate::elsewhere;
use crate::engine::{Engine, FastPath, SLOW_PATH};
use crate::hooks::Hook;
use crate::host;
use crate::kick::Attention;
use crate::known_pages::KnownPages;
use crate::order::alone::{Asking, Fresh};
use crate::order::in_progress::{Accesses, Held};
use crate::order::owners::{Owners, Visited};
use crate::slots::Tickets;
use refrain_trace::{Event, EventKind, NO_TICKET, ThreadId, order};
use std::path::Path;
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};

/// Pauses before each look at a spin lock or an adaptive mutex that is held. A short critical section
/// is over by then, and so may be the next ones: looking more often would take the lock's cache line
/// from a holder that locks and unlocks it in a loop. (Other mutexes are not looked at again: glibc
/// has a thread sleep at once, and so must a recording that shows how threads waited.)
const PAUSES: [u32; 10] = [16, 32, 64, 128, 128, 128, 128, 128, 128, 128];

/// glibc's `pthread_mutex_t` on x86-64, as far as it matters. Static initializers make its layout
/// part of the ABI.
#[repr(C)]
struct Mutex {
    /// 0 free, 1 held, 2 held and waited for.
    lock: AtomicU32,
    /// How often the owner of a recursive mutex holds it.
    count: AtomicU32,
    owner: AtomicU32,
    users: AtomicU32,
    kind: AtomicU32,
}

/// Kinds of mutexes that are private to the process, neither robust nor with a priority protocol.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// PTHREAD_MUTEX_TIMED_NP and PTHREAD_MUTEX_ADAPTIVE_NP: no owner is checked.
    Normal,
    Recursive,
    ErrorChecking,
}

impl Mutex {
    /// `None` if it is of another kind.
    fn kind(&self) -> Option<Kind> {
        /// PTHREAD_MUTEX_NO_ELISION_NP, which `pthread_mutexattr_settype` adds to the normal kind, and C11's
        /// `mtx_init` with it: what it forbids is not done here.
        const NO_ELISION: u32 = 512;
        match self.kind.load(Ordering::Relaxed) & !NO_ELISION {
            0 | 3 => Some(Kind::Normal),
            1 => Some(Kind::Recursive),
            2 => Some(Kind::ErrorChecking),
            _ => None,
        }
    }

    /// PTHREAD_MUTEX_ADAPTIVE_NP: whoever waits looks at it for a while.
    fn is_adaptive(&self) -> bool {
        self.kind.load(Ordering::Relaxed) == 3
    }

    fn try_lock(&self) -> bool {
        self.lock.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    fn is_free(&self) -> bool {
        self.lock.load(Ordering::Relaxed) == 0
    }

    fn is_held_by(&self, tid: u32) -> bool {
        self.owner.load(Ordering::Relaxed) == tid
    }

    /// Says who holds it now. Only the holder writes what is not `lock`.
    fn held_by(&self, tid: u32, kind: Kind) {
        self.owner.store(tid, Ordering::Relaxed);
        add(&self.users, 1);
        if kind == Kind::Recursive {
            self.count.store(1, Ordering::Relaxed);
        }
    }

    /// Says that nobody holds it any more; whether somebody is to be woken.
    fn unlock(&self, kind: Kind) -> bool {
        if kind == Kind::Recursive {
            self.count.store(0, Ordering::Relaxed);
        }
        self.owner.store(0, Ordering::Relaxed);
        add(&self.users, -1);
        self.lock.swap(0, Ordering::Release) > 1
    }
}

/// `pthread_once_t` of glibc and musl: the routine has run.
pub(super) const ONCE_DONE: u32 = 2;

/// Bytes of the largest lock of glibc's.
const LARGEST: u64 = size_of::<libc::pthread_rwlock_t>() as u64;

/// Adds to a word that nobody else writes.
fn add(word: &AtomicU32, step: i32) {
    word.store(word.load(Ordering::Relaxed).wrapping_add_signed(step), Ordering::Relaxed);
}

/// glibc's `pthread_spinlock_t` on x86-64: 1 free, 0 or less held. Part of the ABI since it is
/// one word, and code of an older library may have initialized it.
#[repr(transparent)]
struct Spin(AtomicI32);

impl Spin {
    fn try_lock(&self) -> bool {
        self.0.compare_exchange(1, 0, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    fn is_free(&self) -> bool {
        self.0.load(Ordering::Relaxed) == 1
    }
}

/// What fast-path functions know of the thread that calls them. Alone in its cache lines, as
/// [`ThreadLog`] is.
#[repr(align(128))]
pub(crate) struct FastPathState {
    pub(crate) tickets: *const Tickets,
    pub(crate) log: *const ThreadLog,
    pub(crate) context: *const Context,
    tid: u32,
    /// Translation that earlier events have accounted for.
    accounted: Translating,
    /// Signals want to be handled.
    pub(crate) attention: Attention,
    pub(crate) pages: KnownPages,
    /// The lock that the thread has asked for on the fast path and did not get, and when it came to it.
    wanted: Option<(u64, u64)>,
    /// A `pthread_once` whose routine this thread is about to run.
    pub(crate) beginning_once: Option<u64>,
    /// The thread has marked itself as cancelled: its next cancellation point may end it.
    pub(crate) is_marked: bool,
    /// The instruction that is executed in line.
    pub(crate) held: Option<Held>,
    pub(crate) id: ThreadId,
    pub(crate) owners: *const Owners,
    /// Slots that the thread knows to be shared.
    pub(crate) visited: Visited,
    /// How every access is recorded, if it is.
    pub(crate) accesses: Option<Accesses>,
    /// When the thread asks whether it is alone.
    pub(crate) asking: Asking,
    /// What it has had mapped since it is alone.
    pub(crate) fresh: Fresh,
}

impl Default for FastPathState {
    fn default() -> FastPathState {
        FastPathState {
            tickets: std::ptr::null(),
            log: std::ptr::null(),
            context: std::ptr::null(),
            tid: 0,
            accounted: Translating::default(),
            attention: Attention::default(),
            pages: KnownPages::new(),
            wanted: None,
            beginning_once: None,
            is_marked: false,
            held: None,
            id: ThreadId(0),
            owners: std::ptr::null(),
            visited: Visited::new(),
            accesses: None,
            asking: Asking::default(),
            fresh: Fresh::default(),
        }
    }
}

impl FastPathState {
    /// The caller keeps all of it alive and in place as long as the thread runs guest code.
    pub(crate) fn arm(
        &mut self,
        id: ThreadId,
        (tickets, owners): (&Tickets, &Owners),
        log: &ThreadLog,
        context: *const Context,
        tid: i32,
        attention: &Attention,
    ) {
        self.attention = attention.clone();
        self.held = None;
        (self.tickets, self.log, self.context) = (tickets, log, context);
        (self.id, self.owners) = (id, owners);
        self.tid = tid as u32;
    }

    /// When the thread asked for this lock on the fast path, if it comes to the slow path from there.
    pub(crate) fn came_to(&mut self, lock: u64) -> Option<u64> {
        let (wanted, came) = self.wanted.take()?;
        (wanted == lock).then_some(came)
    }

    /// Translation since the previous event, given that so far.
    #[inline]
    pub(crate) fn translated(&mut self, so_far: Translating) -> Translating {
        so_far.since(std::mem::replace(&mut self.accounted, so_far))
    }
}

/// Lets the fast-path functions stand in where the library is known to be glibc.
pub(crate) fn install(engine: &dyn Engine, pc: u64, hook: &Hook, library: &Path) {
    let name = library.file_name().unwrap_or_default().to_string_lossy();
    let fast_path: FastPath = match hook.kind {
        EventKind::MutexLock => mutex_lock,
        EventKind::MutexTryLock => mutex_try_lock,
        // `pthread_mutex_clocklock` looks at its clock even if the mutex is free.
        EventKind::MutexTimedLock if hook.name == "pthread_mutex_timedlock" => mutex_timed_lock,
        EventKind::MutexUnlock => mutex_unlock,
        EventKind::SpinLock => spin_lock,
        EventKind::SpinTryLock => spin_try_lock,
        EventKind::SpinUnlock => spin_unlock,
        EventKind::ReadLock => rwlock::read_lock,
        EventKind::WriteLock => rwlock::write_lock,
        EventKind::RwUnlock => rwlock::unlock,
        EventKind::SemWait => semaphore::wait,
        EventKind::SemTryWait => semaphore::try_wait,
        EventKind::SemPost => semaphore::post,
        EventKind::CondSignal | EventKind::CondBroadcast => {
            let code = host::Guest.read_prefix(pc, condition::CODE);
            let Some(stand_in) = condition::stand_in(hook.kind, &code) else { return };
            stand_in
        }
        EventKind::OnceRun => once,
        _ => return,
    };
    if name.starts_with("libc.so.6") || name.starts_with("libc-2") {
        // SAFETY: every thread's word is its `FastPathState`, armed before it runs guest code
        // (`GuestThread::arm_fast_path`); for the rest see the module's documentation.
        unsafe { engine.fast_path(pc, fast_path) };
    }
}

/// A call that a fast-path function answers, with room for the event.
struct Call<'a> {
    object: u64,
    thread: &'a mut FastPathState,
    stream: &'a ThreadLog,
    log: Busy<'a>,
    sp: u64,
}

impl<'a> Call<'a> {
    /// `None` if the call has to take the slow path.
    ///
    /// # Safety
    /// `data` is the calling thread's armed [`FastPathState`], `sp` the stack pointer at the
    /// function's entry; one `Call` at a time.
    #[inline(always)]
    unsafe fn new(object: u64, sp: u64, data: u64) -> Option<Call<'a>> {
        // SAFETY: the caller's; the thread's own state is used by this thread alone, which is in
        // guest code and so not inside the recorder.
        let thread = unsafe { &mut *(data as *mut FastPathState) };
        // Signals come after events on the slow path.
        if thread.attention.is_raised() || elsewhere::has(object, LARGEST) {
            return None;
        }
        // SAFETY: armed with a reference that outlives the thread's run.
        let stream = unsafe { &*thread.log };
        let mut log = stream.try_enter()?;
        // Not `then_some`, which has the compiler copy a call that it has just written: a processor waits long for
        // stores that a wider load is to read.
        if !log.has_room(1) {
            return None;
        }
        Some(Call { object, thread, stream, log, sp })
    }

    /// Begins an acquisition: writes all of the event that is known before, so that the thread does little while
    /// others wait for what it acquires.
    #[inline(always)]
    fn acquisition(self, kind: EventKind) -> Option<Acquisition<'a>> {
        let (object, tickets, slot) = (self.object, self.tickets(), order::slot(self.object));
        // The counter's cache line comes with that of the lock, and not after it.
        tickets.prefetch(slot);
        let (event, translating) = self.event(kind);
        let begin = event.begin;
        let prepared = self.log.prepare(event)?;
        Some(Acquisition {
            thread: self.thread,
            prepared,
            tickets,
            slot,
            translating,
            object,
            begin,
        })
    }

    /// The event's place in the order of the object's slot.
    #[inline(always)]
    fn ticket(&self) -> u64 {
        self.tickets().take(order::slot(self.object))
    }

    /// Takes the ticket and appends the event of a call that has no effect.
    #[inline(always)]
    fn record(self, kind: EventKind) {
        let ticket = self.ticket();
        self.append(kind, |event| event.ticket = ticket);
    }

    /// The thread has given something back under this ticket: appends the event. To read the clock takes longer
    /// than many a critical section, and so comes after the section's end.
    #[inline(always)]
    fn released(self, kind: EventKind, ticket: u64) -> Recorded<'a> {
        let stream = self.stream;
        self.append(kind, |event| event.ticket = ticket);
        Recorded(stream)
    }

    /// Appends the call's event, completed.
    #[inline(always)]
    fn append(mut self, kind: EventKind, complete: impl FnOnce(&mut Event)) {
        let (mut event, translating) = self.event(kind);
        self.thread.accounted = translating;
        complete(&mut event);
        self.log.push(event);
    }

    /// The call's event, which happens now and takes no time; and the thread's translation until now.
    #[inline(always)]
    fn event(&self, kind: EventKind) -> (Event, Translating) {
        // SAFETY: armed with a reference that outlives the thread's run.
        let translating = unsafe { &*self.thread.context }.translating;
        let Translating { total: overhead, busy } = translating.since(self.thread.accounted);
        // SAFETY: at a function's entry the return address is at the stack pointer.
        let pc = unsafe { host::Guest.stack_word(self.sp) };
        let (code, begin) = (kind as u8, host::ticks());
        let (sp, object) = (self.sp, self.object);
        let event =
            Event { code, pc, sp, object, begin, end: begin, overhead, busy, ..Event::default() };
        (event, translating)
    }

    #[inline(always)]
    fn tickets(&self) -> &'a Tickets {
        // SAFETY: armed with a reference that outlives the thread's run.
        unsafe { &*self.thread.tickets }
    }
}

/// A call that acquires something. Its event is written but for the ticket, and is not in the stream yet.
struct Acquisition<'a> {
    thread: &'a mut FastPathState,
    prepared: Prepared<'a>,
    tickets: &'a Tickets,
    slot: usize,
    translating: Translating,
    object: u64,
    begin: u64,
}

impl Acquisition<'_> {
    /// The call ends at this time with this result: takes the ticket and appends the event.
    #[inline(always)]
    fn end(self, end: u64, result: i32) {
        let ticket = self.tickets.take(self.slot);
        self.thread.accounted = self.translating;
        self.prepared.append(|event| {
            event.ticket = ticket;
            event.end = end;
            event.result = result;
        });
    }

    /// The same for a call that did not wait.
    #[inline(always)]
    fn end_at_once(self, result: i32) {
        let begin = self.begin;
        self.end(begin, result);
    }

    /// Another thread has the lock: this one goes on waiting for it on the slow path.
    fn go_on_waiting(self) -> i64 {
        self.thread.wanted = Some((self.object, self.begin));
        SLOW_PATH
    }

    /// Tries until the lock is had, for a while; when it was, if so.
    #[inline(always)]
    fn lock(&self, try_lock: impl Fn() -> bool, is_free: impl Fn() -> bool) -> Option<u64> {
        if try_lock() {
            return Some(self.begin);
        }
        try_again(|| is_free() && try_lock()).then(host::ticks)
    }
}

/// The event of a call, which its thread has appended last.
struct Recorded<'a>(&'a ThreadLog);

impl Recorded<'_> {
    /// The call has woken threads. That takes longer than many a critical section, and is no work of the
    /// program's.
    fn lasts_until_now(&self) {
        self.0.amend(|event| event.end = host::ticks());
    }
}

#[cold]
fn try_again(try_lock: impl Fn() -> bool) -> bool {
    PAUSES.iter().any(|&pauses| {
        (0..pauses).for_each(|_| std::hint::spin_loop());
        try_lock()
    })
}

/// A call about a mutex, if its kind is known here.
///
/// # Safety
/// As for [`Call::new`]; what the guest says is a mutex is one, or faults here as it would in the
/// library.
#[inline(always)]
unsafe fn of_mutex<'a>(object: u64, sp: u64, data: u64) -> Option<(&'a Mutex, Kind, Call<'a>)> {
    // SAFETY: the caller's.
    let call = unsafe { Call::new(object, sp, data) }?;
    // SAFETY: the caller's; the fields are atomic, since guest threads change them at will.
    let mutex = unsafe { &*(object as *const Mutex) };
    Some((mutex, mutex.kind()?, call))
}

/// The owner of a recursive mutex locks it again, if that is what the call is.
#[inline(always)]
fn again(mutex: &Mutex, kind: Kind, tid: u32) -> bool {
    let again = kind == Kind::Recursive
        && mutex.is_held_by(tid)
        && mutex.count.load(Ordering::Relaxed) < u32::MAX;
    if again {
        add(&mutex.count, 1);
    }
    again
}

/// `pthread_mutex_lock(mutex)`.
///
/// # Safety
/// As for [`of_mutex`].
unsafe extern "sysv64" fn mutex_lock(object: u64, sp: u64, data: u64) -> i64 {
    // SAFETY: the caller's.
    unsafe { lock((object, sp, data), EventKind::MutexLock) }
}

/// `pthread_mutex_timedlock(mutex, time)`: what the time is matters only to who waits.
///
/// # Safety
/// As for [`of_mutex`].
unsafe extern "sysv64" fn mutex_timed_lock(object: u64, sp: u64, data: u64) -> i64 {
    // SAFETY: the caller's.
    unsafe { lock((object, sp, data), EventKind::MutexTimedLock) }
}

/// Locks a mutex.
///
/// # Safety
/// As for [`of_mutex`].
#[inline(always)]
unsafe fn lock((object, sp, data): (u64, u64, u64), event: EventKind) -> i64 {
    // SAFETY: the caller's.
    let Some((mutex, kind, call)) = (unsafe { of_mutex(object, sp, data) }) else {
        return SLOW_PATH;
    };
    let tid = call.thread.tid;
    let Some(acquisition) = call.acquisition(event) else { return SLOW_PATH };
    let mut end = acquisition.begin;
    if !again(mutex, kind, tid) {
        // An owner's other attempts are errors, or end never.
        if kind != Kind::Normal && mutex.is_held_by(tid) {
            return SLOW_PATH;
        }
        let had = if mutex.is_adaptive() {
            acquisition.lock(|| mutex.try_lock(), || mutex.is_free())
        } else {
            mutex.try_lock().then_some(end)
        };
        let Some(had) = had else { return acquisition.go_on_waiting() };
        end = had;
        mutex.held_by(tid, kind);
    }
    acquisition.end(end, 0);
    0
}

/// `pthread_mutex_trylock(mutex)`.
///
/// # Safety
/// As for [`of_mutex`].
unsafe extern "sysv64" fn mutex_try_lock(object: u64, sp: u64, data: u64) -> i64 {
    // SAFETY: the caller's.
    let Some((mutex, kind, call)) = (unsafe { of_mutex(object, sp, data) }) else {
        return SLOW_PATH;
    };
    let tid = call.thread.tid;
    let Some(acquisition) = call.acquisition(EventKind::MutexTryLock) else { return SLOW_PATH };
    let again = again(mutex, kind, tid);
    let had = again || mutex.try_lock();
    if had && !again {
        mutex.held_by(tid, kind);
    }
    tried(acquisition, had)
}

/// `pthread_mutex_unlock(mutex)`.
///
/// # Safety
/// As for [`of_mutex`].
unsafe extern "sysv64" fn mutex_unlock(object: u64, sp: u64, data: u64) -> i64 {
    // SAFETY: the caller's.
    let Some((mutex, kind, call)) = (unsafe { of_mutex(object, sp, data) }) else {
        return SLOW_PATH;
    };
    // Only a normal mutex lets everybody unlock it.
    if kind != Kind::Normal && (!mutex.is_held_by(call.thread.tid) || mutex.is_free()) {
        return SLOW_PATH;
    }
    let ticket = call.ticket();
    let again = kind == Kind::Recursive && mutex.count.load(Ordering::Relaxed) > 1;
    if again {
        add(&mutex.count, -1);
    }
    // Others need not wait for the event, which has its place.
    let is_waited_for = !again && mutex.unlock(kind);
    let recorded = call.released(EventKind::MutexUnlock, ticket);
    if is_waited_for {
        host::futex_wake_one(object);
        recorded.lasts_until_now();
    }
    0
}

/// `pthread_spin_lock(lock)`.
///
/// # Safety
/// As for [`Call::new`]; the lock is one, or faults here as it would in the library.
unsafe extern "sysv64" fn spin_lock(object: u64, sp: u64, data: u64) -> i64 {
    // SAFETY: the caller's.
    let (lock, call) = unsafe { (&*(object as *const Spin), Call::new(object, sp, data)) };
    let acquisition = call.and_then(|call| call.acquisition(EventKind::SpinLock));
    let Some(acquisition) = acquisition else { return SLOW_PATH };
    let Some(end) = acquisition.lock(|| lock.try_lock(), || lock.is_free()) else {
        return acquisition.go_on_waiting();
    };
    acquisition.end(end, 0);
    0
}

/// `pthread_spin_trylock(lock)`.
///
/// # Safety
/// As for [`spin_lock`].
unsafe extern "sysv64" fn spin_try_lock(object: u64, sp: u64, data: u64) -> i64 {
    // SAFETY: the caller's.
    let (lock, call) = unsafe { (&*(object as *const Spin), Call::new(object, sp, data)) };
    let acquisition = call.and_then(|call| call.acquisition(EventKind::SpinTryLock));
    let Some(acquisition) = acquisition else { return SLOW_PATH };
    tried(acquisition, lock.try_lock())
}

/// `pthread_spin_unlock(lock)`.
///
/// # Safety
/// As for [`spin_lock`].
unsafe extern "sysv64" fn spin_unlock(object: u64, sp: u64, data: u64) -> i64 {
    // SAFETY: the caller's.
    let (lock, call) = unsafe { (&*(object as *const Spin), Call::new(object, sp, data)) };
    let Some(call) = call else { return SLOW_PATH };
    let ticket = call.ticket();
    lock.0.store(1, Ordering::Release);
    call.released(EventKind::SpinUnlock, ticket);
    0
}

/// `pthread_once(control, routine)`, of which the routine has run.
///
/// # Safety
/// As for [`Call::new`]; what the guest says is the object is one, or faults here as it would in the
/// library.
unsafe extern "sysv64" fn once(object: u64, sp: u64, data: u64) -> i64 {
    // SAFETY: the caller's; guest threads change the word at will.
    let (state, call) = unsafe { (&*(object as *const AtomicU32), Call::new(object, sp, data)) };
    let Some(call) = call.filter(|_| state.load(Ordering::Acquire) & ONCE_DONE != 0) else {
        return SLOW_PATH;
    };
    call.append(EventKind::OnceDone, |event| event.flags = NO_TICKET);
    0
}

/// Records that somebody tried for a lock, and had it or not; what the function returns.
#[inline(always)]
fn tried(acquisition: Acquisition<'_>, had: bool) -> i64 {
    let result = if had { 0 } else { libc::EBUSY };
    acquisition.end_at_once(result);
    result.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_begins_where_the_fast_path_asked_for_this_very_lock() {
        let mut thread = FastPathState { wanted: Some((0x1000, 7)), ..FastPathState::default() };
        assert_eq!(thread.came_to(0x1000), Some(7));
        assert_eq!(thread.came_to(0x1000), None, "it is said once");
        thread.wanted = Some((0x1000, 7));
        assert_eq!(thread.came_to(0x2000), None);
        assert_eq!(thread.came_to(0x1000), None, "the thread has gone another way");
    }

    /// A mutex that the library has initialized with a type, as C11's `mtx_init` does, too.
    #[test]
    fn kinds_are_the_librarys() {
        let kind_of = |kind: i32, robustness: i32| {
            // SAFETY: the library initializes both before anything else, and they are used by this
            // thread alone.
            unsafe {
                let mut attributes: libc::pthread_mutexattr_t = std::mem::zeroed();
                let mut native: libc::pthread_mutex_t = std::mem::zeroed();
                assert_eq!(libc::pthread_mutexattr_init(&mut attributes), 0);
                assert_eq!(libc::pthread_mutexattr_settype(&mut attributes, kind), 0);
                assert_eq!(libc::pthread_mutexattr_setrobust(&mut attributes, robustness), 0);
                assert_eq!(libc::pthread_mutex_init(&mut native, &attributes), 0);
                (*(&raw const native).cast::<Mutex>()).kind()
            }
        };
        assert!(kind_of(libc::PTHREAD_MUTEX_NORMAL, 0) == Some(Kind::Normal));
        assert!(kind_of(libc::PTHREAD_MUTEX_RECURSIVE, 0) == Some(Kind::Recursive));
        assert!(kind_of(libc::PTHREAD_MUTEX_ERRORCHECK, 0) == Some(Kind::ErrorChecking));
        assert!(kind_of(libc::PTHREAD_MUTEX_NORMAL, libc::PTHREAD_MUTEX_ROBUST).is_none());
    }
}
