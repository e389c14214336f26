//! Faults of accesses, which have places among the changes of the address space (see
//! [`crate::record`]'s `faults`).
//!
//! An access that has faulted here and not in the recording came too early: another thread has made the
//! memory accessible, in the recording, before this one came to it. So it waits for the next change of the
//! address space, and is made again.

use super::gate::Condition;
use super::thread::{GuestThread, Halt};
use crate::engine::Fault;
use crate::layout::PAGE;
use refrain_trace::{Event, EventKind, common, order};

/// No program has memory here: a replay that has gone another way has followed a null pointer.
const LOWEST: u64 = 1 << 16;

/// Whether an event says that the instruction at `pc` faults.
fn is_fault(event: &Event, pc: u64) -> bool {
    (event.kind(), event.nr, event.pc) == (EventKind::Common, common::FAULT, pc)
}

impl GuestThread {
    /// The thread has faulted. If it did not in the recording, the instruction is executed again when the
    /// address space has changed: then there is no fault.
    pub(crate) fn until_accessible(&mut self, mut fault: Fault) -> Result<Option<Fault>, Halt> {
        let mut known = None;
        while self.lengthens_file(&fault)? || self.await_access(&fault, &mut known)? {
            match self.cpu.step(&mut self.context) {
                None => {
                    self.report_accesses();
                    return Ok(None);
                }
                Some(another) => fault = another,
            }
        }
        Ok(Some(fault))
    }

    /// The thread has accessed what lies behind a file's end. Whether the file is longer now, since there was
    /// no fault in the recording.
    fn lengthens_file(&mut self, fault: &Fault) -> Result<bool, Halt> {
        if fault.signal != libc::SIGBUS || !self.machine.shared.shows(fault.address) {
            return Ok(false);
        }
        self.events_before()?;
        let pc = self.context.rip;
        let faulted = self.cursor.peek()?.is_some_and(|event| event.is_of_fault_at(pc));
        let is_recorded = faulted && self.fast_path.left() <= 0;
        Ok(!is_recorded && self.machine.shared.lengthen(fault.address))
    }

    /// The thread is at an instruction whose operand must be looked at first. Whether it can be read, perhaps
    /// after a change of the address space.
    pub(crate) fn await_operand(&mut self, address: u64, size: u8) -> Result<bool, Halt> {
        let mut known = None;
        while self.fast_path.pages.operand(address, size).is_none() {
            let fault = Fault::access(address);
            if !self.await_access(&fault, &mut known)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// The same, if there was a fault.
    pub(crate) fn until_accessible_again(
        &mut self,
        fault: Option<Fault>,
    ) -> Result<Option<Fault>, Halt> {
        fault.map_or(Ok(None), |fault| self.until_accessible(fault))
    }

    /// The thread has faulted. Whether the address space may have changed since, so that the access is to be
    /// made again; if not, it faulted in the recording, or nobody will make it possible. `known` is how many
    /// changes were done before the access was made, if that is known.
    pub(crate) fn await_access(
        &mut self,
        fault: &Fault,
        known: &mut Option<u64>,
    ) -> Result<bool, Halt> {
        let at = fault.address..fault.address.saturating_add(1);
        let machine = self.machine.clone();
        if fault.signal != libc::SIGSEGV
            || fault.address < LOWEST
            || machine.gate.is_live()
            || !self.cpu.shows_registers()
            || machine.mapped_files.is_absent(fault.address)
            || machine.common.meets(&at)
        {
            return Ok(false);
        }
        self.events_before()?;
        let Some(event) = self.cursor.peek()?.copied() else { return Ok(false) };
        let pc = self.context.rip;
        let has_no_place = event.is_of_fault_at(pc);
        let is_this = is_fault(&event, pc) && event.object / PAGE == fault.address / PAGE;
        if (is_this || has_no_place) && self.fast_path.left() <= 0 {
            return Ok(false);
        }
        let done = || machine.gate.done(order::MEMORY_SLOT);
        let Some(before) = known.replace(done()) else {
            // The change may have come between the access and now.
            return Ok(true);
        };
        // This ends in any case.
        let _ = machine.gate.wait(self.id, Condition::Changed { count: before + 1 });
        *known = Some(done());
        Ok(*known > Some(before))
    }

    /// The fault that the next event says the instruction at `pc` has.
    pub(super) fn recorded_fault(&mut self, pc: u64) -> Result<Option<Fault>, Halt> {
        let event = self.cursor.peek()?.filter(|event| is_fault(event, pc));
        Ok(event.map(|event| Fault::access(event.object)))
    }

    /// The place of a fault among the changes of the address space, if it has one.
    pub(super) fn place_of_fault(&mut self, fault: &Fault) -> Result<(), Halt> {
        self.events_before()?;
        let pc = self.context.rip;
        let is_this =
            |event: &&Event| is_fault(event, pc) && event.object / PAGE == fault.address / PAGE;
        if self.cursor.peek()?.filter(is_this).is_none() {
            return Ok(());
        }
        let event = self.next(EventKind::Common)?;
        self.await_turn(order::MEMORY_SLOT, event.ticket)?;
        self.finish_event_of(&event, order::MEMORY_SLOT)
    }
}
