//! Library functions that translated code replays without being left.
//!
//! The recorder answers the commonest calls in some 100 ns (`record/leaf`); a replay that left
//! translated code for each would take several times that, and its time by the wall clock would
//! be no measure of the program's. So a call that is what the trace says, and need not wait long
//! for its turn, is replayed here. Everything else goes the long way (`sync`): another event than
//! the recorded one, a signal to be taken, an end, events that must be read first.
//!
//! Only replays of the recorded order that nobody observes have leaf functions.
//!
//! These functions run with the guest's thread pointer: nothing in them may use thread-local
//! storage of the host, allocate, or panic.

use super::gate::Gate;
use super::machine::Tally;
use super::thread::PROGRESS;
use crate::engine::{Engine, Leaf};
use crate::host;
use refrain_trace::{Cursor, Event, EventKind, ThreadId, order};

/// "Go the long way; nothing has happened."
const LONG_WAY: i64 = -1;

/// What leaf functions know of the thread that calls them.
pub(crate) struct LeafThread {
    id: ThreadId,
    gate: *const Gate,
    /// Null while every call has to go the long way.
    cursor: *mut Cursor,
    tally: *mut Tally,
    /// The host's thread pointer.
    own: u64,
}

impl LeafThread {
    /// For the calling thread. The gate must be there as long as the thread runs guest code.
    pub(crate) fn new(id: ThreadId, gate: &Gate) -> LeafThread {
        LeafThread {
            id,
            gate,
            cursor: std::ptr::null_mut(),
            tally: std::ptr::null_mut(),
            own: host::thread_pointer(),
        }
    }

    /// Before the thread runs guest code: these are the leaf functions' until it is back.
    pub(crate) fn lend(&mut self, cursor: &mut Cursor, tally: &mut Tally) {
        (self.cursor, self.tally) = (cursor, tally);
    }

    /// Before the thread runs guest code: all calls are to go the long way.
    pub(crate) fn keep_all(&mut self) {
        self.cursor = std::ptr::null_mut();
    }
}

/// Lets a leaf function stand in for the library function at `pc`, if there is one for it.
pub(crate) fn install(engine: &dyn Engine, pc: u64, kind: EventKind) {
    let Some(leaf) = leaf_of(kind) else { return };
    // SAFETY: every thread's word is its `LeafThread`, which it has before it runs guest code;
    // for the rest see the module's documentation.
    unsafe { engine.leaf(pc, leaf) };
}

/// Functions that do nothing but one event of their first argument.
fn leaf_of(kind: EventKind) -> Option<Leaf> {
    use EventKind::*;
    macro_rules! leaves {
        ($($kind:ident),*) => {
            match kind { $($kind => Some(call::<{ $kind as u8 }> as Leaf),)* _ => None }
        };
    }
    leaves!(
        MutexLock,
        MutexTryLock,
        MutexUnlock,
        ReadLock,
        ReadTryLock,
        WriteLock,
        WriteTryLock,
        RwUnlock,
        SpinLock,
        SpinTryLock,
        SpinUnlock,
        CondSignal,
        CondBroadcast
    )
}

/// A call of the function whose events are of this kind.
///
/// # Safety
/// `data` is the address of the calling thread's [`LeafThread`], `sp` the stack pointer at the
/// function's entry.
unsafe extern "sysv64" fn call<const KIND: u8>(object: u64, sp: u64, data: u64) -> i64 {
    // SAFETY: the caller's; the thread is in guest code, so that nobody else uses it.
    let thread = unsafe { &*(data as *const LeafThread) };
    if thread.cursor.is_null() {
        return LONG_WAY;
    }
    // SAFETY: lent until the thread is back from guest code (`lend`), and disjoint.
    let (gate, cursor, tally) = unsafe { (&*thread.gate, &mut *thread.cursor, &mut *thread.tally) };
    // SAFETY: at a function's entry the return address is at the stack pointer.
    let site = unsafe { host::Guest.stack_word(sp) };
    let [event, after, ..] = cursor.loaded() else { return LONG_WAY };
    let recorded = (event.code, event.flags, event.nr, event.pc, event.sp, event.object);
    if recorded != (KIND, 0, 0, site, sp, object)
        || event.result < 0
        || event.overhead > 0
        || is_signal(after)
    {
        return LONG_WAY;
    }
    // The long way is where progress is told.
    if (tally.events + 1).is_multiple_of(PROGRESS) {
        return LONG_WAY;
    }
    let Event { ticket, end, result, .. } = *event;
    let slot = order::slot(object);
    gate.arrivals.arrive(thread.id, end);
    if !gate.is_turn(slot, ticket) {
        return LONG_WAY;
    }
    // It was loaded, so this only counts.
    let _ = cursor.next();
    tally.count_equal(KIND, result);
    if gate.finish_turn(slot, ticket) {
        // SAFETY: the thread's own, taken when it was made.
        unsafe { host::with_thread_pointer(thread.own, || gate.wake()) };
    }
    i64::from(result)
}

/// Something that happens to the thread right after the event before.
fn is_signal(event: &Event) -> bool {
    event.code == EventKind::Signal as u8 || event.code == EventKind::Killed as u8
}
