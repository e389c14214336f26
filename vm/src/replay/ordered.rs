//! Instructions that other threads saw in the recorded order: locked ones, and plain loads and
//! stores that the recording watched.
//!
//! In replays that have leaf functions (`leaf`), most are executed where they are, in translated
//! code, which calls [`before`] and [`after`], as it does in a recording (`record/ordered`).
//! What is not as recorded, or need be waited for long, goes the long way: translated code is
//! left, and the instruction is executed as a single step.
//!
//! The functions that translated code calls run with the guest's thread pointer: nothing in them
//! may use thread-local storage of the host, allocate, or panic.

use super::gate::Condition;
use super::leaf::{LONG_WAY, LeafThread, Lent, goes_the_long_way};
use super::thread::{GuestThread, Halt};
use crate::engine::{Engine, OrderedAccess, OrderedKind, OrderedLeaf};
use crate::host;
use refrain_trace::{Access, Event, EventKind, order};

/// Lets ordered instructions be executed in line.
pub(super) fn install(engine: &dyn Engine) {
    // SAFETY: every thread's word is its `LeafThread`, which it has before it runs guest code;
    // for the rest see the module's documentation.
    unsafe { engine.ordered_leaf(OrderedLeaf { before, after }) };
}

/// Holds an instruction that is about to be executed against the trace.
///
/// # Safety
/// `access` is live, `data` the address of the calling thread's [`LeafThread`].
unsafe extern "sysv64" fn before(access: *mut OrderedAccess, data: u64) -> i64 {
    // SAFETY: the caller's; the thread is in guest code, so that nobody else uses its state.
    let (access, thread) = unsafe { (&mut *access, &mut *(data as *mut LeafThread)) };
    let done = match access.kind {
        OrderedKind::Load => thread.load(access),
        _ => thread.operate(access),
    };
    done.map_or(LONG_WAY, |()| 0)
}

/// The instruction has been executed.
///
/// # Safety
/// `data` is the address of the calling thread's [`LeafThread`].
unsafe extern "sysv64" fn after(data: u64) {
    // SAFETY: as in `before`.
    unsafe { &mut *(data as *mut LeafThread) }.finish();
}

impl LeafThread {
    /// Waits for the turn of an instruction other than a load, which it keeps until
    /// [`Self::finish`]. `None` if it has to go the long way.
    fn operate(&mut self, access: &OrderedAccess) -> Option<()> {
        let OrderedAccess { address, size, kind: _, pc, sp, .. } = *access;
        let Lent { gate, first_values, cursor, tally } = self.lent()?;
        let [event, after, ..] = cursor.loaded() else { return None };
        let recorded = (event.code, event.flags, event.nr, event.pc, event.sp, event.object);
        let actual = (EventKind::Atomic as u8, 0, u16::from(size), pc, sp, address);
        if recorded != actual || goes_the_long_way(event, after, tally) {
            return None;
        }
        let &Event { ticket, end, value, .. } = event;
        let slot = order::slot(address);
        gate.arrivals.arrive(self.id, end);
        if !gate.soon(self.id, Condition::Turn { slot, ticket }) {
            return None;
        }
        // Plain stores to the same word have no tickets.
        let there = || self.pages.known_operand(address, size) == Some(value);
        if !gate.soon_there(Condition::Value { address, size, value }, there) {
            return None;
        }
        if !self.has_kept(address, size) {
            let keep = || first_values.keep(address, size, end, &mut self.pages);
            // SAFETY: the thread's own, taken when it was made.
            unsafe { host::with_thread_pointer(self.own, keep) };
        }
        gate.overwritten.note(address, ticket);
        self.note_change(address);
        // It was loaded, so this only counts.
        let _ = cursor.next();
        tally.count_equal(EventKind::Atomic as u8, 0);
        self.performing = Some((slot, ticket));
        Some(())
    }

    /// Lets others go on with the word of the instruction that was executed last.
    pub(crate) fn finish(&mut self) {
        let Some((slot, ticket)) = self.performing.take() else { return };
        // SAFETY: it is there as long as the thread runs guest code.
        let gate = unsafe { &*self.gate };
        if gate.finish_turn(slot, ticket) {
            // SAFETY: the thread's own, taken when it was made.
            unsafe { host::with_thread_pointer(self.own, || gate.wake()) };
        }
    }

    /// Says what a load is to read; `None` if it has to go the long way.
    fn load(&mut self, access: &mut OrderedAccess) -> Option<()> {
        let OrderedAccess { address, size, pc, .. } = *access;
        let Lent { gate, cursor, tally, .. } = self.lent()?;
        if let Some(value) = self.repeated_load(pc, address) {
            access.value = value;
            return Some(());
        }
        let [event, after, ..] = cursor.loaded() else { return None };
        let recorded = (event.code, event.pc, event.object);
        if recorded != (EventKind::SyncLoad as u8, pc, address)
            || goes_the_long_way(event, after, tally)
        {
            return None;
        }
        let event = *event;
        let Event { ticket: count, value, end, .. } = event;
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
        self.repeating = (event.aux > 0).then_some(event);
        self.note_read(pc, address, value);
        access.value = value;
        Some(())
    }

    /// The value of a load that is one of the repetitions of the last event.
    fn repeated_load(&mut self, pc: u64, address: u64) -> Option<u64> {
        let event = self.repeating.as_mut()?;
        if (event.pc, event.object) != (pc, address) {
            return None;
        }
        let value = event.value;
        event.aux -= 1;
        if event.aux == 0 {
            self.repeating = None;
        }
        Some(value)
    }
}

impl GuestThread {
    pub(crate) fn ordered(
        &mut self,
        address: u64,
        size: u8,
        kind: OrderedKind,
    ) -> Result<(), Halt> {
        match kind {
            OrderedKind::ReadModifyWrite => self.read_modify_write(address, size),
            OrderedKind::Load => self.sync_load(address, size),
            OrderedKind::Store => self.sync_store(address, size),
        }
    }

    /// A store that the recording ordered has its turn; another one happens as it comes.
    fn sync_store(&mut self, address: u64, size: u8) -> Result<(), Halt> {
        let here = (EventKind::Atomic, self.context.rip, address);
        let recorded = self.cursor.peek()?.is_some_and(|e| (e.kind(), e.pc, e.object) == here);
        if !recorded {
            self.note_access(address, size, Access::WRITE);
            let fault = self.cpu.step(&mut self.context);
            self.report_accesses();
            return fault.map_or(Ok(()), |fault| self.fault(fault));
        }
        // What is overwritten may have been left there by a function's body, which did not run.
        self.in_turn(address, size, Self::catch_up)
    }

    /// Performs a locked instruction in its turn. Plain stores to the same word have no tickets;
    /// the recorded value tells when they have happened.
    fn read_modify_write(&mut self, address: u64, size: u8) -> Result<(), Halt> {
        self.in_turn(address, size, |this, event, size| {
            let &Event { object: address, value, .. } = event;
            if this.leaf.pages.operand(address, size) == Some(value) {
                return Ok(());
            }
            this.wait(Condition::Value { address, size, value })
        })
    }

    /// Executes the instruction at the next event, in its turn and once the word is as it should
    /// be, for which `wait_for_word` waits.
    fn in_turn(
        &mut self,
        address: u64,
        size: u8,
        wait_for_word: impl FnOnce(&mut GuestThread, &Event, u8) -> Result<(), Halt>,
    ) -> Result<(), Halt> {
        let actual = Event { object: address, nr: u16::from(size), ..self.here(EventKind::Atomic) };
        let event = self.next(EventKind::Atomic)?;
        self.compare(&event, &actual)?;
        self.perform(&event)?;
        wait_for_word(self, &event, size)?;
        self.machine.gate.overwritten.note(address, event.ticket);
        self.leaf.note_change(address);
        self.machine.first_values.keep(address, size, event.end, &mut self.leaf.pages);
        let fault = self.cpu.step(&mut self.context);
        self.report_accesses();
        self.finish_event(&event)?;
        fault.map_or(Ok(()), |fault| self.fault(fault))
    }

    /// A recorded load reads what it read in the recording, however often. (That it is followed
    /// by what it was followed by is for the next events to show.)
    fn sync_load(&mut self, address: u64, size: u8) -> Result<(), Halt> {
        if let Some(value) = self.leaf.repeated_load(self.context.rip, address) {
            let fault = self.cpu.step_load(&mut self.context, value);
            return fault.map_or(Ok(()), |fault| self.fault(fault));
        }
        let here = (self.context.rip, address);
        let recorded = self
            .cursor
            .peek()?
            .is_some_and(|e| e.kind() == EventKind::SyncLoad && (e.pc, e.object) == here);
        if !recorded {
            return self.early_load(address, size);
        }
        let event = self.next(EventKind::SyncLoad)?;
        let (slot, count) = (order::slot(address), event.ticket);
        self.wait(Condition::Reached { slot, count })?;
        self.catch_up(&event, size)?;
        self.leaf.repeating = (event.aux > 0).then_some(event);
        self.leaf.note_read(event.pc, address, event.value);
        let fault = self.cpu.step_load(&mut self.context, event.value);
        self.report_accesses();
        self.note_event(&event)?;
        fault.map_or(Ok(()), |fault| self.fault(fault))
    }

    /// What a load reads has been stored before it. Plain stores have no tickets: if its value is
    /// not there, those who may still be going to store it are waited for.
    fn catch_up(&mut self, event: &Event, size: u8) -> Result<(), Halt> {
        let &Event { object: address, value, ticket: count, end: time, .. } = event;
        if self.leaf.pages.operand(address, size) == Some(value)
            || self.machine.gate.overwritten.since(address, count)
        {
            return Ok(());
        }
        self.wait(Condition::Caught { address, size, value, count, time })
    }

    /// A watched load that has no event came before the first ordered thing that happened to its
    /// word, or reads a word to which nothing ever did.
    fn early_load(&mut self, address: u64, size: u8) -> Result<(), Halt> {
        self.note_access(address, size, Access::READ);
        let fault = match self.early_value(address, size) {
            Some(value) => self.cpu.step_load(&mut self.context, value),
            None => self.cpu.step(&mut self.context),
        };
        self.report_accesses();
        fault.map_or(Ok(()), |fault| self.fault(fault))
    }

    /// What such a load reads, if there is memory.
    fn early_value(&mut self, address: u64, size: u8) -> Option<u64> {
        let now = self.leaf.pages.operand(address, size)?;
        // From its first event on, each execution of a load has one. If one comes that has none, an
        // earlier one, of before the recorder knew, has taken an event of the same load.
        if let Some(value) = self.leaf.last_read(self.context.rip, address) {
            return Some(value);
        }
        let at = self.machine.gate.arrivals.of(self.id);
        Some(self.machine.first_values.of(address, size, at, now))
    }
}
