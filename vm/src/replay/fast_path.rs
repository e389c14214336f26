//! Library functions that translated code replays without being left.
//!
//! The recorder answers the commonest calls in some 100 ns (`record/fast_path`); a replay that left
//! translated code for each would take several times that, and its time by the wall clock would
//! be no measure of the program's. So a call that is what the trace says, and need not wait long
//! for its turn, is replayed here. Everything else takes the slow path (`sync`): another event than
//! the recorded one, a signal to be taken, an end, events that must be read first.
//!
//! Only replays of the recorded order that nobody observes have fast-path functions.
//!
//! These functions run with the guest's thread pointer: nothing in them may use thread-local
//! storage of the host, allocate, or panic.

use super::account::{PROGRESS, Tally};
use super::gate::{Condition, Gate};
use crate::Zeroed;
use crate::engine::{Engine, FastPath, SLOW_PATH};
use crate::host;
use crate::known_pages::KnownPages;
use crate::order::in_progress::Performing;
use crate::order::{Filter, LastMet};
use refrain_trace::{Cursor, Event, EventKind, ThreadId, accessed, order};
use std::sync::atomic::{AtomicU64, Ordering};

/// What fast-path functions know of the thread that calls them.
pub(crate) struct FastPathState {
    pub(crate) id: ThreadId,
    pub(crate) gate: *const Gate,
    /// Null while every call has to take the slow path.
    cursor: *mut Cursor,
    tally: *mut Tally,
    /// The host's thread pointer.
    pub(crate) own: u64,
    pub(crate) pages: KnownPages,
    /// What the thread met last.
    pub(crate) met: Zeroed<LastMet>,
    /// `met` counts the accesses before the next event.
    pub(crate) expecting: bool,
    /// `met` counts one access less: translated code is to ask the machine for the last one, because other
    /// threads wait for the handover that comes right behind it.
    kept_back: bool,
    /// The instruction that is executed in line.
    pub(crate) performing: Option<Performing>,
    /// Where translated code counts down all accesses, if it does.
    pub(crate) counts: Option<Filter>,
}

/// What fast-path functions are lent.
pub(crate) struct Lent<'a> {
    pub(crate) gate: &'a Gate,
    pub(crate) cursor: &'a mut Cursor,
    pub(crate) tally: &'a mut Tally,
}

impl FastPathState {
    /// For the calling thread. What is referred to must be there as long as the thread runs guest
    /// code.
    pub(crate) fn new(id: ThreadId, gate: &Gate) -> FastPathState {
        FastPathState {
            id,
            gate,
            cursor: std::ptr::null_mut(),
            tally: std::ptr::null_mut(),
            own: host::thread_pointer(),
            pages: KnownPages::new(),
            met: LastMet::new(),
            expecting: false,
            kept_back: false,
            performing: None,
            counts: None,
        }
    }

    /// How many accesses come before the next event; less than none if more have been made
    /// ([`crate::order`]'s `replay_stride`).
    pub(crate) fn left(&self) -> i64 {
        self.countdown().load(Ordering::Relaxed) as i64 + i64::from(self.kept_back)
    }

    /// See [`Self::left`].
    pub(crate) fn set_left(&mut self, left: i64) {
        self.kept_back = false;
        self.countdown().store(left as u64, Ordering::Relaxed);
    }

    /// So many accesses without events lie between the event before and this next one. If that is a
    /// handover, it comes right behind the last of them.
    pub(crate) fn expect(&mut self, next: &Event) {
        let left = self.left().saturating_add_unsigned(next.unrecorded);
        self.set_left(left);
        if self.hands_over_before(next) && left > 0 {
            self.set_left(left - 1);
            self.kept_back = true;
        }
        self.expecting = true;
    }

    /// Whether a handover comes next that must not come late, or the thread has to wait before it comes back
    /// to guest code. (Where all accesses are counted, the engine sees to that.)
    pub(crate) fn hands_over_before(&self, next: &Event) -> bool {
        let comes_back = || next.code == EventKind::Takeover as u8 && next.nr == accessed::BACK;
        self.counts.is_none() && (next.code == EventKind::Handover as u8 || comes_back())
    }

    /// Whether what comes next is the last access before a handover.
    pub(crate) fn is_last(&self) -> bool {
        self.kept_back && self.left() == 1
    }

    /// Counts a watched access that has no event; false if the next one has.
    pub(crate) fn count_down(&mut self) -> bool {
        match self.countdown().load(Ordering::Relaxed) as i64 {
            left @ 1.. => {
                self.countdown().store(left as u64 - 1, Ordering::Relaxed);
                true
            }
            _ => std::mem::take(&mut self.kept_back),
        }
    }

    fn countdown(&self) -> &AtomicU64 {
        match &self.counts {
            None => &self.met.unrecorded,
            // SAFETY: it is there as long as the thread's executor, which goes with this.
            Some(filter) => unsafe { &*filter.count },
        }
    }

    /// What the thread has lent to the fast-path function that runs now. `None` if every call has to
    /// take the slow path.
    ///
    /// # Safety
    /// The caller is a fast-path function of this thread, or called by one, and nothing that was lent
    /// before is still in use. What it is lent it uses no longer than the fast-path function runs.
    pub(crate) unsafe fn lent<'a>(&self) -> Option<Lent<'a>> {
        if self.cursor.is_null() {
            return None;
        }
        // SAFETY: lent until the thread is back from guest code (`lend`), and disjoint; the rest
        // is there as long as it runs guest code (`new`).
        let (gate, cursor, tally) = unsafe { (&*self.gate, &mut *self.cursor, &mut *self.tally) };
        Some(Lent { gate, cursor, tally })
    }

    /// Before the thread runs guest code: these are the fast-path functions' until it is back.
    pub(crate) fn lend(&mut self, cursor: &mut Cursor, tally: &mut Tally) {
        (self.cursor, self.tally) = (cursor, tally);
    }

    /// Before the thread runs guest code: all calls are to take the slow path.
    pub(crate) fn keep_all(&mut self) {
        self.cursor = std::ptr::null_mut();
    }
}

/// Lets a fast-path function stand in for the library function at `pc`, if there is one for it.
pub(crate) fn install(engine: &dyn Engine, pc: u64, kind: EventKind) {
    let Some(fast_path) = fast_path_of(kind) else { return };
    // SAFETY: every thread's word is its `FastPathState`, which it has before it runs guest code;
    // for the rest see the module's documentation.
    unsafe { engine.fast_path(pc, fast_path) };
}

/// Functions that do nothing but one event of their first argument.
fn fast_path_of(kind: EventKind) -> Option<FastPath> {
    use EventKind::*;
    macro_rules! fast_paths {
        ($($kind:ident),*) => {
            match kind { $($kind => Some(call::<{ $kind as u8 }> as FastPath),)* _ => None }
        };
    }
    fast_paths!(
        MutexLock,
        MutexTryLock,
        MutexTimedLock,
        MutexUnlock,
        ReadLock,
        ReadTryLock,
        WriteLock,
        WriteTryLock,
        RwUnlock,
        SpinLock,
        SpinTryLock,
        SpinUnlock,
        SemWait,
        SemTryWait,
        SemPost,
        CondSignal,
        CondBroadcast
    )
}

/// A call of the function whose events are of this kind.
///
/// # Safety
/// `data` is the address of the calling thread's [`FastPathState`], `sp` the stack pointer at the
/// function's entry.
unsafe extern "sysv64" fn call<const KIND: u8>(object: u64, sp: u64, data: u64) -> i64 {
    // SAFETY: the caller's; the thread is in guest code, so that nobody else uses it.
    let thread = unsafe { &mut *(data as *mut FastPathState) };
    if thread.awaits_loads() {
        return SLOW_PATH;
    }
    // SAFETY: this is a fast-path function, which is lent these here and nowhere else.
    let Some(Lent { gate, cursor, tally }) = (unsafe { thread.lent() }) else { return SLOW_PATH };
    // SAFETY: at a function's entry the return address is at the stack pointer.
    let site = unsafe { host::Guest.stack_word(sp) };
    let [event, rest @ ..] = cursor.loaded() else { return SLOW_PATH };
    let [after, ..] = rest else { return SLOW_PATH };
    let recorded = (event.code, event.flags, event.nr, event.pc, event.sp, event.object);
    if recorded != (KIND, 0, 0, site, sp, object)
        || event.result < 0
        || thread.hands_over_before(after)
        || takes_slow_path(event, rest, tally)
    {
        return SLOW_PATH;
    }
    let Event { ticket, end, result, .. } = *event;
    let next = *after;
    let slot = order::slot(object);
    let id = cursor.position().0;
    let freed = gate.freed().filter(|freed| freed.frees(event));
    gate.arrivals.arrive(thread.id, end);
    let comes = match freed {
        Some(freed) => {
            let mut sources = freed.sources(thread.id, id);
            sources.all(|source| gate.soon(thread.id, Gate::ended(source)))
        }
        None => gate.soon(thread.id, Condition::Turn { slot, ticket }),
    };
    if !comes {
        return SLOW_PATH;
    }
    let is_freed = freed.is_some();
    // It was loaded, so this only counts.
    let _ = cursor.next();
    tally.count_equal(KIND, result);
    thread.expect(&next);
    let wakes = gate.finish_turn(slot, ticket);
    if is_freed && gate.pass(thread.id, id) || wakes {
        // SAFETY: the thread's own, taken when it was made.
        unsafe { host::with_thread_pointer(thread.own, || gate.wake()) };
    }
    i64::from(result)
}

/// Whether the slow path has something to do at an event, which `rest` comes after: to let translating
/// last, to tell of progress, to take a signal or to stand still right after the event. Others may have
/// taken lines over in between.
pub(crate) fn takes_slow_path(event: &Event, rest: &[Event], tally: &Tally) -> bool {
    let after = rest.iter().find(|event| event.code != EventKind::Handover as u8);
    event.busy > 0
        || (tally.events + 1).is_multiple_of(PROGRESS)
        || after.is_none_or(|after| {
            [EventKind::Signal, EventKind::Killed, EventKind::Common]
                .iter()
                .any(|&kind| after.code == kind as u8)
        })
}

#[cfg(test)]
mod tests {
    use super::{FastPathState, Gate};
    use refrain_trace::{Event, EventKind, ThreadId};
    use std::time::Duration;

    #[test]
    fn the_last_access_before_a_handover_is_kept_back() {
        let gate = Gate::new(Duration::ZERO, 1, 1);
        let mut thread = FastPathState::new(ThreadId(0), &gate);
        let next = |kind: EventKind, unrecorded| Event {
            code: kind as u8,
            unrecorded,
            ..Event::default()
        };
        thread.expect(&next(EventKind::Handover, 2));
        let seen = thread.met.unrecorded.load(std::sync::atomic::Ordering::Relaxed);
        assert_eq!((thread.left(), seen), (2, 1), "translated code counts one of them");
        assert!(!thread.is_last() && thread.count_down() && thread.is_last());
        assert_eq!(thread.left(), 1);
        assert!(thread.count_down() && !thread.count_down());
        assert_eq!(thread.left(), 0);
        thread.expect(&next(EventKind::MutexLock, 1));
        assert!(thread.left() == 1 && !thread.is_last());
    }
}
