//! Replaying locked instructions and watched accesses.
//!
//! In replays that have fast-path functions (`replay/fast_path`), most are executed where they are, in
//! translated code, which calls [`before`] and [`after`], as it does in a recording. What is not as
//! recorded, or has to be waited for long, takes the slow path: translated code is left, and the
//! instruction is executed as a single step.
//!
//! The functions that translated code calls run with the guest's thread pointer: nothing in them
//! may use thread-local storage of the host, allocate, or panic.

use super::in_progress::Performing;
use crate::context::Context;
use crate::engine::{Engine, OrderedAccess, OrderedFastPath, OrderedKind, SLOW_PATH};
use crate::host::{self, Guest};
use crate::known_pages::KnownPages;
use crate::order::Span;
use crate::replay::fast_path::{FastPathState, Lent, takes_slow_path};
use crate::replay::gate::Condition;
use crate::replay::outcome::DivergenceKind;
use crate::replay::thread::{GuestThread, Halt};
use refrain_trace::{Access, Event, EventKind, NO_TICKET, order};
use std::sync::atomic::Ordering;

/// Lets ordered instructions be executed in line.
pub(crate) fn install(engine: &dyn Engine) {
    // SAFETY: every thread's word is its `FastPathState`, which it has before it runs guest code;
    // for the rest see the module's documentation.
    unsafe { engine.ordered_fast_path(OrderedFastPath { before, after, strings }) };
}

/// Holds an instruction that is about to be executed against the trace.
///
/// # Safety
/// `access` is live, `data` the address of the calling thread's [`FastPathState`].
unsafe extern "sysv64" fn before(access: *mut OrderedAccess, data: u64) -> i64 {
    // SAFETY: the caller's; the thread is in guest code, so that nobody else uses its state.
    let (access, thread) = unsafe { (&mut *access, &mut *(data as *mut FastPathState)) };
    let done = match access.kind {
        kind if kind.is_any() => thread.access(access),
        kind if kind.is_load() => thread.load(access),
        _ => thread.operate(access),
    };
    done.map_or(SLOW_PATH, |()| 0)
}

/// Lets a string instruction be executed, unless events come before.
///
/// # Safety
/// `data` is the address of the calling thread's [`FastPathState`].
unsafe extern "sysv64" fn strings(_: *const Span, _: usize, data: u64) -> i64 {
    // SAFETY: as in `before`.
    let thread = unsafe { &mut *(data as *mut FastPathState) };
    thread.access_strings().map_or(SLOW_PATH, |()| 0)
}

/// The instruction has been executed.
///
/// # Safety
/// `data` is the address of the calling thread's [`FastPathState`].
unsafe extern "sysv64" fn after(_: u64, data: u64) {
    // SAFETY: as in `before`.
    unsafe { &mut *(data as *mut FastPathState) }.finish();
}

/// The kind of the event of an instruction that writes.
fn event_kind(kind: OrderedKind) -> EventKind {
    if kind == OrderedKind::Store { EventKind::SyncStore } else { EventKind::Atomic }
}

impl FastPathState {
    /// Waits for the turn of an instruction that writes, which it keeps until [`Self::finish`].
    /// `None` if it has to take the slow path.
    fn operate(&mut self, access: &OrderedAccess) -> Option<()> {
        let OrderedAccess { address, size, kind, pc, sp, .. } = *access;
        if self.awaits_loads() {
            return self.store_own((address, size));
        }
        // SAFETY: only the fast-path function for ordered instructions calls this, once in a call.
        let Lent { gate, cursor, tally } = unsafe { self.lent() }?;
        let [event, rest @ ..] = cursor.loaded() else { return None };
        let [after, ..] = rest else { return None };
        let code = event_kind(kind) as u8;
        let recorded = (event.code, event.flags, event.nr, event.pc, event.sp, event.object);
        let actual = (code, 0, u16::from(size), pc, sp, address);
        if recorded != actual
            || takes_slow_path(event, rest, tally)
            || self.hands_over_before(after)
        {
            return None;
        }
        let &Event { ticket, end, value, .. } = event;
        let next = *after;
        let slot = order::slot(address);
        gate.arrivals.arrive(self.id, end);
        if !gate.soon(self.id, Condition::Turn { slot, ticket }) {
            return None;
        }
        // Stores that are not watched have no tickets.
        let there = || self.pages.known_operand(address, size) == Some(value);
        if !gate.soon_there(Condition::Value { address, size, value }, there) {
            return None;
        }
        gate.overwritten.note(address, ticket);
        // It was loaded, so this only counts.
        let _ = cursor.next();
        tally.count_equal(code, 0);
        self.expect(&next);
        let turn = Some((slot, ticket));
        self.performing = Some(Performing { turn, operand: Some((address, size)) });
        Some(())
    }

    /// Counts an instruction that writes and has no event: the thread owns the word. `None` if it has to
    /// take the slow path.
    fn store_own(&mut self, operand: (u64, u8)) -> Option<()> {
        if self.is_last() || !self.count_down() {
            return None;
        }
        self.overwrites(operand.0);
        self.performing = Some(Performing { turn: None, operand: Some(operand) });
        Some(())
    }

    /// The thread is about to write to a word of its own. If the thread owns the word again, loads of other threads
    /// that came before may still wait for the word's old value: from here on they take it from the trace.
    fn overwrites(&self, address: u64) {
        // SAFETY: it is there as long as the thread runs guest code.
        let gate = unsafe { &*self.gate };
        let done = gate.done(order::slot(address));
        if done > 0 {
            gate.overwritten.note(address, done);
        }
    }

    /// Lets others go on with the word of the instruction that was executed last.
    pub(crate) fn finish(&mut self) {
        let Some(Performing { turn, operand }) = self.performing.take() else { return };
        if let Some(operand) = operand {
            self.meet_now(operand);
        }
        if let Some((slot, ticket)) = turn {
            self.finish_turn(slot, ticket);
        }
    }

    pub(super) fn finish_turn(&self, slot: usize, ticket: u64) {
        // SAFETY: it is there as long as the thread runs guest code.
        let gate = unsafe { &*self.gate };
        if gate.finish_turn(slot, ticket) {
            // SAFETY: the thread's own, taken when it was made.
            unsafe { host::with_thread_pointer(self.own, || gate.wake()) };
        }
    }

    /// The thread has executed an instruction that writes this operand, and still has its turn.
    fn meet_now(&mut self, (address, size): (u64, u8)) {
        // SAFETY: the thread has just accessed it.
        if let Some(value) = unsafe { Guest.accessed(address, size) } {
            self.met.meet((address, size), value, 0, value);
        }
    }

    /// Says what a load is to read; `None` if it has to take the slow path.
    fn load(&mut self, access: &mut OrderedAccess) -> Option<()> {
        let OrderedAccess { address, size, pc, .. } = *access;
        if self.is_last() {
            return None;
        }
        let read = |pages: &mut KnownPages| pages.known_operand(address, size);
        if let Some(value) = self.known_load((address, size), read) {
            access.value = value;
            return Some(());
        }
        if self.awaits_loads() {
            return None;
        }
        // SAFETY: only the fast-path function for ordered instructions calls this, once in a call.
        let Lent { gate, cursor, tally } = unsafe { self.lent() }?;
        let [event, rest @ ..] = cursor.loaded() else { return None };
        let [after, ..] = rest else { return None };
        let recorded = (event.code, event.pc, event.object);
        if recorded != (EventKind::SyncLoad as u8, pc, address)
            || takes_slow_path(event, rest, tally)
            || self.hands_over_before(after)
        {
            return None;
        }
        let Event { ticket: count, value, end, .. } = *event;
        let next = *after;
        gate.arrivals.arrive(self.id, end);
        if !gate.soon(self.id, Condition::Reached { slot: order::slot(address), count }) {
            return None;
        }
        let there = || {
            self.pages.known_operand(address, size) == Some(value)
                || gate.overwritten.since(address, count)
        };
        if !gate.soon_there(Condition::Caught { address, size, value, count, time: end }, there) {
            return None;
        }
        let _ = cursor.next();
        tally.events += 1;
        self.expect(&next);
        self.meet((address, size), value);
        access.value = value;
        Some(())
    }

    /// What a load reads that needed no event, if this one is such a load. `read` looks what is in memory if
    /// the thread is alone.
    fn known_load(
        &mut self,
        (address, size): (u64, u8),
        read: impl FnOnce(&mut KnownPages) -> Option<u64>,
    ) -> Option<u64> {
        if self.is_alone() {
            let memory = read(&mut self.pages)?;
            return self.count_down().then(|| self.met.replay_alone((address, size), memory));
        }
        let value = self.met.at(address, size)?.value;
        self.count_down().then_some(value)
    }

    /// From here on the thread is alone.
    pub(super) fn begin_alone(&mut self) {
        self.met.begin_alone();
    }

    /// The thread is alone no more.
    pub(super) fn end_alone(&mut self) {
        self.met.alone.store(0, Ordering::Relaxed);
    }

    /// Whether the thread is alone ([`super::alone`]).
    fn is_alone(&self) -> bool {
        self.met.alone.load(Ordering::Relaxed) != 0
    }

    /// The thread meets this value at a word, whatever is in memory.
    fn meet(&mut self, (address, size): (u64, u8), value: u64) {
        let memory = self.pages.known_operand(address, size).unwrap_or(value);
        self.met.meet((address, size), value, 0, memory);
    }

    /// Whether watched accesses without events come before the next event.
    pub(crate) fn awaits_loads(&self) -> bool {
        self.left() != 0
    }
}

impl GuestThread {
    pub(crate) fn ordered(
        &mut self,
        address: u64,
        size: u8,
        kind: OrderedKind,
    ) -> Result<(), Halt> {
        if !kind.is_any() {
            if self.execute_on_copies()? {
                return Ok(());
            }
            // An access of memory in common without an event of its own has faulted.
            if self.is_common(Span { start: address, len: size.into(), write: false }) {
                return self.execute_alone();
            }
            if !self.await_operand(address, size)? {
                let fault = self.cpu.step(&mut self.context);
                return fault.map_or(Ok(()), |fault| self.fault(fault));
            }
        }
        match kind {
            kind if kind.is_load() => self.load(address, size),
            OrderedKind::ReadModifyWrite | OrderedKind::Store => self.write(address, size, kind),
            _ => self.access(kind),
        }
    }

    /// Executes an instruction that writes in its turn, once the word is as it was. (Stores that
    /// are not watched have no tickets.)
    fn write(&mut self, address: u64, size: u8, kind: OrderedKind) -> Result<(), Halt> {
        if self.fast_path.count_down() {
            return self.store_own(address, size, event_kind(kind));
        }
        let event = self.begin_turn(address, size, event_kind(kind))?;
        if kind == OrderedKind::ReadModifyWrite
            && let Some(context) = self.changing_nothing(&event, size)
        {
            self.catch_up(&event, size)?;
            self.context = context;
            self.fast_path.meet((address, size), event.value);
            return self.finish_event(&event);
        }
        self.await_word(&event, size)?;
        let fault = self.cpu.step(&mut self.context);
        let fault = self.until_accessible_again(fault)?;
        if fault.is_none() {
            self.fast_path.meet_now((address, size));
        }
        self.report_accesses();
        self.finish_event(&event)?;
        fault.map_or(Ok(()), |fault| self.fault(fault))
    }

    /// Executes an instruction that writes to a word of the thread's own.
    fn store_own(&mut self, address: u64, size: u8, kind: EventKind) -> Result<(), Halt> {
        self.fast_path.overwrites(address);
        let value = self.fast_path.pages.operand(address, size).unwrap_or(0);
        let nr = u16::from(size);
        let event = Event { object: address, nr, value, flags: NO_TICKET, ..self.here(kind) };
        let fault = self.cpu.step(&mut self.context);
        if fault.is_none() {
            self.fast_path.meet_now((address, size));
        }
        self.report_accesses();
        self.note_own(&event);
        fault.map_or(Ok(()), |fault| self.fault(fault))
    }

    /// Waits for the turn of the instruction that the thread is at, and until the word is as it was.
    pub(crate) fn begin_write(
        &mut self,
        address: u64,
        size: u8,
        kind: EventKind,
    ) -> Result<Event, Halt> {
        let event = self.begin_turn(address, size, kind)?;
        self.await_word(&event, size)?;
        Ok(event)
    }

    fn begin_turn(&mut self, address: u64, size: u8, kind: EventKind) -> Result<Event, Halt> {
        self.await_former_owners()?;
        let actual = Event { object: address, nr: u16::from(size), ..self.here(kind) };
        let event = self.next(kind)?;
        self.compare(&event, &actual)?;
        self.perform(&event)?;
        Ok(event)
    }

    /// Waits until the word that is about to be written is as it was.
    fn await_word(&mut self, event: &Event, size: u8) -> Result<(), Halt> {
        let &Event { object: address, value, ticket, .. } = event;
        if self.fast_path.pages.operand(address, size) != Some(value) {
            if event.code == EventKind::SyncStore as u8 {
                // What is overwritten may have been left there by a function's body, which did
                // not run.
                self.catch_up(event, size)?;
            } else {
                self.wait(Condition::Value { address, size, value })?;
            }
        }
        self.machine.gate.overwritten.note(address, ticket);
        Ok(())
    }

    /// The state behind the locked instruction that the thread is at, if that instruction left its word as
    /// the word was (the lock was taken, the comparison failed). Then the instruction is a load, and reads
    /// what was recorded. Memory may lack a store that is not watched, or hold one that came after this
    /// instruction (releasing a lock is a plain store), and such a store may come at any moment, also
    /// between a look at memory and the instruction. What is there has to stay.
    fn changing_nothing(&mut self, event: &Event, size: u8) -> Option<Context> {
        let &Event { object: address, value, .. } = event;
        if size > 8 || self.machine.gate.is_live() {
            return None;
        }
        self.fast_path.pages.operand(address, size)?;
        let mut context = self.context.clone();
        let left = self.cpu.step_beside(&mut context, value)?;
        let is_same = (left ^ value) << (64 - 8 * u32::from(size)) == 0;
        is_same.then_some(context)
    }

    /// The word has its new value.
    pub(crate) fn end_write(&mut self, event: &Event) -> Result<(), Halt> {
        self.fast_path.meet_now((event.object, event.nr as u8));
        self.finish_event(event)
    }

    /// A watched load reads what it read in the recording.
    fn load(&mut self, address: u64, size: u8) -> Result<(), Halt> {
        // Where the order of locks is decided anew, data have live values.
        let live = self.machine.gate.is_live() && !self.machine.synchronizing.contains(&address);
        let read = |pages: &mut KnownPages| pages.operand(address, size);
        let known = match self.fast_path.known_load((address, size), read) {
            None => {
                self.await_former_owners()?;
                self.fast_path.known_load((address, size), read)
            }
            known => known,
        };
        if let Some(value) = known {
            self.note_access(address, size, Access::READ);
            let fault = match live {
                true => self.cpu.step(&mut self.context),
                false => self.cpu.step_load(&mut self.context, value),
            };
            return fault.map_or(Ok(()), |fault| self.fault(fault));
        }
        let takes_turn = |event: &Event| event.kind() == EventKind::Atomic;
        if self.cursor.peek()?.is_some_and(takes_turn) {
            return self.check(address, size, live);
        }
        let actual = Event { object: address, ..self.here(EventKind::SyncLoad) };
        let event = self.next(EventKind::SyncLoad)?;
        if (event.pc, event.object) != (actual.pc, actual.object) {
            return self.diverge(
                DivergenceKind::Event,
                format!("{event:?}"),
                format!("{actual:?}"),
            );
        }
        if !live {
            self.wait(Condition::Reached { slot: order::slot(address), count: event.ticket })?;
            self.catch_up(&event, size)?;
        }
        self.fast_path.meet((address, size), event.value);
        let fault = match live {
            true => self.cpu.step(&mut self.context),
            false => self.cpu.step_load(&mut self.context, event.value),
        };
        self.report_accesses();
        self.note_event(&event)?;
        fault.map_or(Ok(()), |fault| self.fault(fault))
    }

    /// A watched load that has taken a ticket reads what it read in the recording, before all stores that
    /// came after it.
    fn check(&mut self, address: u64, size: u8, live: bool) -> Result<(), Halt> {
        let event = self.begin_turn(address, size, EventKind::Atomic)?;
        let fault = if live {
            self.cpu.step(&mut self.context)
        } else {
            self.catch_up(&event, size)?;
            self.cpu.step_load(&mut self.context, event.value)
        };
        self.fast_path.meet((address, size), event.value);
        self.report_accesses();
        self.finish_event(&event)?;
        fault.map_or(Ok(()), |fault| self.fault(fault))
    }

    /// What a load reads has been stored before it. Stores that are not watched have no tickets:
    /// if the value is not there, those who may still be going to store it are waited for.
    fn catch_up(&mut self, event: &Event, size: u8) -> Result<(), Halt> {
        let &Event { object: address, value, ticket: count, end: time, .. } = event;
        if self.fast_path.pages.operand(address, size) == Some(value)
            || self.machine.gate.overwritten.since(address, count)
        {
            return Ok(());
        }
        self.wait(Condition::Caught { address, size, value, count, time })
    }

    /// Before the thread runs guest code: how many accesses come before the next event.
    pub(crate) fn expect_loads(&mut self) -> Result<(), Halt> {
        if !self.fast_path.expecting
            && let Some(event) = self.cursor.peek()?.copied()
        {
            self.fast_path.expect(&event);
        }
        Ok(())
    }

    /// The thread is about to access a word that others have owned, perhaps: it waits for them.
    pub(crate) fn await_former_owners(&mut self) -> Result<(), Halt> {
        while self.cursor.peek()?.is_some_and(|event| event.kind() == EventKind::Takeover)
            && self.fast_path.left() == 0
        {
            self.event_of_access()?;
            self.events_before()?;
        }
        Ok(())
    }

    /// The thread has come to its next event: no watched load may be missing before it.
    pub(crate) fn loads_are_done(&mut self, event: &Event) -> Result<(), Halt> {
        self.fast_path.expecting = false;
        let late = event.kind() == EventKind::Handover;
        let (expected, actual) = match self.fast_path.left() {
            0 => return Ok(()),
            ..0 if late => return Ok(()),
            left @ 1.. => (format!("{left} more accesses before {event:?}"), format!("{event:?}")),
            left => (format!("{event:?}"), format!("{} more accesses before it", -left)),
        };
        self.fast_path.set_left(0);
        self.diverge(DivergenceKind::Event, expected, actual)
    }
}
