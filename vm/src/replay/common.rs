//! Replaying memory in common with other processes (see [`crate::common`]): nobody else is there, and
//! what the guest reads of it is in the events.

use super::gate::Condition;
use super::outcome::DivergenceKind;
use super::thread::{GuestThread, Halt};
use crate::common::{self, Area, Copies, words_of};
use crate::elsewhere;
use crate::engine::Fault;
use crate::host::Guest;
use crate::layout::PAGE;
use crate::memory::page_up;
use crate::order::Span;
use refrain_trace::payload::{SyscallRecord, Write};
use refrain_trace::{Event, EventKind, common as numbers, order};
use std::ops::Range;

impl GuestThread {
    /// The next event, if it is this one of such memory.
    fn next_common(&mut self, nr: u16) -> Result<Option<(Event, SyscallRecord)>, Halt> {
        let next = self.cursor.peek()?.copied();
        if !next.is_some_and(|event| event.kind() == EventKind::Common && event.nr == nr) {
            return Ok(None);
        }
        let event = self.next(EventKind::Common)?;
        Ok(Some((event, self.record()?)))
    }

    /// What such memory there is from here on, if the next events say so.
    pub(crate) fn areas_of_common(&mut self) -> Result<(), Halt> {
        let pc = self.context.rip;
        let is_of_areas = |event: &Event| {
            let of_areas = [numbers::AREAS, numbers::OTHERS].contains(&event.nr);
            event.kind() == EventKind::Common && of_areas && event.pc == pc
        };
        while self.next_beside_accesses()?.as_ref().is_some_and(is_of_areas) {
            // Others may have taken over what the thread had before the call.
            self.events_before()?;
            if self.areas_of_others()? {
                continue;
            }
            // What is not here comes behind accesses.
            let Some((event, record)) = self.next_common(numbers::AREAS)? else { break };
            let areas = record.writes.iter().map(|it| Area::of(it.address, &it.bytes));
            let areas = areas.collect::<Option<Vec<_>>>();
            let known = areas.is_some();
            self.await_turn(order::MEMORY_SLOT, event.ticket)?;
            if event.aux & numbers::STOOD_STILL != 0 {
                self.wait(Condition::Past { time: event.end })?;
            }
            for area in areas.iter().flatten() {
                self.machine.shared.cut(&area.range);
            }
            self.machine.common.replace(areas.unwrap_or_default())?;
            self.machine.gate.areas_done(event.object);
            if !known {
                return self.no_such_memory(&event);
            }
            self.finish_event_of(&event, order::MEMORY_SLOT)?;
        }
        Ok(())
    }

    /// The thread goes on in guest code, unless it stood still here.
    pub(crate) fn enter_guest(&mut self) -> Result<(), Halt> {
        let is_one =
            |event: &Event| event.kind() == EventKind::Common && event.nr == numbers::OTHERS;
        if self.next_if(is_one)?.is_some() {
            self.events_before()?;
            while self.areas_of_others()? {}
        }
        Ok(())
    }

    /// Waits for what another thread has said of such memory, if the next event says so.
    fn areas_of_others(&mut self) -> Result<bool, Halt> {
        let Some((event, _)) = self.next_common(numbers::OTHERS)? else { return Ok(false) };
        self.wait(Condition::Areas { count: event.object })?;
        self.finish_event(&event)?;
        Ok(true)
    }

    /// The next event if it is one of these, whatever others have taken over from the thread before.
    fn next_if(&mut self, is_one: impl Fn(&Event) -> bool) -> Result<Option<Event>, Halt> {
        let next = match self.cursor.peek()?.copied() {
            Some(event) if event.kind() == EventKind::Handover => self.behind_handovers()?,
            next => next,
        };
        Ok(next.filter(is_one))
    }

    fn no_such_memory(&mut self, event: &Event) -> Result<(), Halt> {
        let actual = "no such memory".into();
        self.diverge(DivergenceKind::Arguments, format!("{event:?}"), actual)
    }

    /// The thread is at a system call: what it reads of such memory, until [`elsewhere::show`] ends that.
    pub(crate) fn read_common(&mut self) -> Result<(), Halt> {
        if let Some((event, record)) = self.next_common(numbers::CALL)? {
            elsewhere::show(record.writes);
            self.finish_event(&event)?;
        }
        Ok(())
    }

    /// Before `mprotect` of a range with such memory: the parts of it that the kernel is to protect. `None` if
    /// the kernel is to do all of the call.
    pub(crate) fn parts_for_kernel(&self, args: [u64; 6]) -> Option<Vec<Range<u64>>> {
        if !self.machine.common.any() || !args[0].is_multiple_of(PAGE) {
            return None;
        }
        let range = args[0]..args[0].checked_add(page_up(args[1]))?;
        let common = &self.machine.common;
        common.meets(&range).then(|| common.outside(range))
    }

    /// The thread is at an instruction that may access such memory.
    pub(crate) fn execute_alone(&mut self) -> Result<(), Halt> {
        // The access is counted, which others may have taken lines over before.
        self.events_before()?;
        if self.execute_on_copies()? {
            return Ok(());
        }
        let fault = self.cpu.step(&mut self.context);
        self.report_accesses();
        let Some(fault) = fault else { return Ok(()) };
        self.fault_in_common(fault)?.map_or(Ok(()), |fault| self.fault(fault))
    }

    /// Whether the next event is the access of such memory that the thread is at; it is executed, then.
    pub(crate) fn execute_on_copies(&mut self) -> Result<bool, Halt> {
        if !self.machine.common.any() {
            return Ok(false);
        }
        let pc = self.context.rip;
        let here = |event: &Event| {
            (event.kind(), event.nr, event.pc) == (EventKind::Common, numbers::ACCESS, pc)
        };
        let Some(most) = self.next_if(here)?.map(|event| event.aux) else { return Ok(false) };
        let spans = self.cpu.operands(&self.context, most);
        // That event may be of a later execution of this instruction, which accesses other memory now.
        if !spans.iter().any(|&span| self.is_common(span)) {
            return Ok(false);
        }
        self.events_before()?;
        let Some((event, record)) = self.next_common(numbers::ACCESS)? else { return Ok(false) };
        let Some(places) = self.copy_operands(&spans, &record.writes) else {
            self.no_such_memory(&event)?;
            return Ok(true);
        };
        if event.has_ticket() {
            self.await_turn(order::slot(event.object), event.ticket)?;
        }
        let fault = self.cpu.step_moved(&mut self.context, most, &places);
        self.report_accesses();
        if let Some(fault) = fault {
            let actual = format!("signal {} for address {:#x}", fault.signal, fault.address);
            self.diverge(DivergenceKind::Fault, format!("{event:?}"), actual)?;
        }
        self.store_outside(&spans, &record.writes);
        self.finish_event(&event)?;
        self.begin_counting();
        Ok(true)
    }

    /// Whether an access is of such memory.
    pub(crate) fn is_common(&self, span: Span) -> bool {
        self.machine.common.meets(&(span.start..span.start.saturating_add(span.len)))
    }

    /// Copies of the operands that were in such memory, and where all are; `None` if these are no copies of
    /// theirs.
    fn copy_operands(&mut self, spans: &[Span], shown: &[Write]) -> Option<Vec<u64>> {
        let mut shown = shown.iter();
        let mut places = Vec::new();
        for (at, &span) in spans.iter().enumerate() {
            if !self.is_common(span) {
                places.push(span.start);
                continue;
            }
            let write = shown.next()?;
            if !Copies::fits(at, span)
                || (write.address, write.bytes.len() as u64) != (span.start, span.len)
            {
                return None;
            }
            self.copies.set(at, span, &words_of(span, &write.bytes));
            places.push(self.copies.place(at, span));
        }
        shown.next().is_none().then_some(places)
    }

    /// What the guest has changed of copies beside such memory.
    fn store_outside(&self, spans: &[Span], shown: &[Write]) {
        let copied = |span: &Span| shown.iter().any(|write| write.address == span.start);
        for (at, &span) in spans.iter().enumerate().filter(|(_, span)| span.write && copied(span)) {
            let bytes = common::bytes_of(span, &self.copies.get(at, span));
            let range = span.start..span.start.saturating_add(span.len);
            for part in self.machine.common.outside(range) {
                let at = |address: u64| (address - span.start) as usize;
                Guest.store(part.start, &bytes[at(part.start)..at(part.end)]);
            }
        }
    }

    /// The thread has faulted: the fault, unless it has accessed such memory.
    pub(crate) fn fault_in_common(&mut self, fault: Fault) -> Result<Option<Fault>, Halt> {
        let at = fault.address..fault.address.saturating_add(1);
        if fault.signal != libc::SIGSEGV || !self.machine.common.meets(&at) {
            return Ok(Some(fault));
        }
        let next = self.cursor.peek()?.copied();
        if let Some(event) = next.filter(|event| event.is_of_fault_at(self.context.rip)) {
            // The recorder has told the fault from others: the memory's file had become shorter.
            return Ok(Some(Fault { signal: event.value as i32, ..fault }));
        }
        Ok(if self.execute_on_copies()? { None } else { Some(fault) })
    }
}
