//! Faults of accesses, and their places among the changes of the address space.
//!
//! Programs protect memory in order to learn who accesses it (the write barriers of garbage collectors,
//! copies on write). Several threads then fault in the same page, and the first one's handler makes it
//! accessible. Whether the others fault, too, depends on who was faster. So an access that has faulted is
//! executed once more while nobody can change the address space. If it faults again, an event says so, with a
//! ticket among those of such changes: a replay has the fault before all changes that came after it.

use super::thread::{Flow, GuestThread};
use crate::elsewhere;
use crate::engine::Fault;
use crate::order::in_progress::Held;
use refrain_trace::{Event, EventKind, common, order};
use std::sync::PoisonError;

impl GuestThread {
    /// The thread has faulted. `again` makes the access once more, which may succeed: then there is no
    /// fault. If there is one, [`GuestThread::fault`] must be next.
    pub(crate) fn confirm(
        &mut self,
        fault: Fault,
        again: impl FnOnce(&mut GuestThread) -> Option<Fault>,
    ) -> Option<Fault> {
        if !self.is_of_access(&fault) {
            return Some(fault);
        }
        let machine = self.machine.clone();
        let space = machine.space.lock().unwrap_or_else(PoisonError::into_inner);
        let fault = again(self)?;
        let event = Event {
            nr: common::FAULT,
            object: fault.address,
            flags: 0,
            ..self.event(EventKind::Common, crate::host::ticks())
        };
        self.append_made(None, || Event {
            ticket: machine.tickets.take(order::MEMORY_SLOT),
            end: crate::host::ticks(),
            ..event
        });
        drop(space);
        self.confirmed = true;
        Some(fault)
    }

    /// The thread is at an instruction whose operand must be looked at first. If it cannot be read, the
    /// instruction faults, and has no other event than that.
    pub(crate) fn fault_of_operand(&mut self, address: u64, size: u8) -> Option<Flow> {
        let is_readable =
            |thread: &mut GuestThread| thread.fast_path.pages.operand(address, size).is_some();
        if is_readable(self) {
            return None;
        }
        let fault = Fault::access(address);
        let fault = match self.is_of_access(&fault) {
            true => self.confirm(fault, |thread| match is_readable(thread) {
                true => None,
                false => thread.cpu.step(&mut thread.context),
            })?,
            false => match self.cpu.step(&mut self.context) {
                Some(fault) => fault,
                None => return Some(Flow::Continue),
            },
        };
        Some(self.fault(fault))
    }

    /// The same, where the instruction is all there is to execute.
    pub(crate) fn confirm_by_step(&mut self, fault: Fault) -> Option<Fault> {
        self.confirm(fault, |thread| thread.cpu.step(&mut thread.context))
    }

    /// The same, where the thread holds the slot of the instruction, which was executed in line.
    pub(crate) fn confirm_in_line(&mut self, fault: Fault) -> Option<Fault> {
        let tells = self.fast_path.held.as_ref().is_some_and(Held::tells);
        let finds = self.cpu.finds(self.context.rip).filter(|_| tells);
        let fault = self.confirm_by_step(fault);
        if fault.is_none() {
            finds.iter().for_each(|&register| self.fast_path.found(self.context.gpr[register]));
        }
        fault
    }

    /// Whether another thread may be making the access possible that has faulted. (With the order of every
    /// access, calls that change the address space are in the order of the accesses already.)
    fn is_of_access(&self, fault: &Fault) -> bool {
        fault.signal == libc::SIGSEGV
            && !self.confirmed
            && !self.machine.log.is_silent()
            && self.machine.lines().is_none()
            && self.machine.threads_alive() > 1
            && elsewhere::alias(fault.address).is_none()
    }
}
