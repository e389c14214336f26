//! Replaying memory in common with other processes (see [`crate::common`]): nobody else is there, and
//! the view is all that the guest's addresses show.

use super::outcome::DivergenceKind;
use super::thread::{GuestThread, Halt};
use crate::common::{Area, OpenPages};
use crate::engine::Fault;
use refrain_trace::payload::SyscallRecord;
use refrain_trace::{Event, EventKind, common, delivery};

impl GuestThread {
    pub(crate) fn reveal_common(&mut self) {
        if self.machine.common.any() {
            let mut state = self.machine.common.lock();
            if !std::mem::replace(&mut state.revealed, true) {
                state.protect(true);
            }
        }
    }

    /// The guest goes on; whether the memory was revealed.
    pub(crate) fn conceal_common(&mut self) -> bool {
        if !self.machine.common.any() {
            return false;
        }
        let mut state = self.machine.common.lock();
        let was = std::mem::replace(&mut state.revealed, false);
        if was {
            state.protect(false);
            drop(state);
            self.fast_path.pages.forget();
        }
        was
    }

    /// The next event, if it is one of these of such memory.
    fn next_common(&mut self, numbers: &[u16]) -> Result<Option<(Event, SyscallRecord)>, Halt> {
        let next = self.cursor.peek()?.copied();
        let is_one =
            |event: &Event| event.kind() == EventKind::Common && numbers.contains(&event.nr);
        if next.filter(is_one).is_none() {
            return Ok(None);
        }
        let event = self.next(EventKind::Common)?;
        Ok(Some((event, self.record()?)))
    }

    /// What such memory there is from here on, if the next events say so.
    pub(crate) fn areas_of_common(&mut self) -> Result<(), Halt> {
        while let Some((event, record)) = self.next_common(&[common::AREAS, common::END])? {
            let mut state = self.machine.common.lock();
            let done = if event.nr == common::END {
                let done = state.store(&record.writes);
                for area in &state.areas {
                    area.protect(area.range.clone(), area.prot);
                }
                state.replace(Vec::new())?;
                done
            } else {
                let areas = record.writes.iter().map(|it| Area::of(it.address, &it.bytes));
                let areas = areas.collect::<Option<Vec<_>>>();
                let done = areas.is_some();
                state.replace(areas.unwrap_or_default())?;
                state.revealed = true;
                done
            };
            let any = !state.areas.is_empty();
            drop(state);
            self.machine.common.set_any(any);
            self.finish_common(&event, done)?;
        }
        Ok(())
    }

    /// The thread is at a system call: what it reads of such memory.
    pub(crate) fn read_common(&mut self) -> Result<(), Halt> {
        self.areas_of_common()?;
        while let Some((event, record)) = self.next_common(&[common::CALL])? {
            let done = self.machine.common.lock().store(&record.writes);
            self.finish_common(&event, done)?;
        }
        Ok(())
    }

    fn finish_common(&mut self, event: &Event, done: bool) -> Result<(), Halt> {
        if !done {
            let actual = "no such memory".into();
            return self.diverge(DivergenceKind::Arguments, format!("{event:?}"), actual);
        }
        self.finish_event(event)
    }

    /// The thread is at an instruction that may access such memory.
    pub(crate) fn execute_alone(&mut self) -> Result<(), Halt> {
        let fault = self.cpu.step(&mut self.context);
        self.report_accesses();
        let Some(fault) = fault else { return Ok(()) };
        let fault = self.access_common(fault)?;
        self.begin_counting();
        fault.map_or(Ok(()), |fault| self.fault(fault))
    }

    /// The thread has accessed such memory, if that is why it has faulted; if not, the fault that it
    /// is.
    pub(crate) fn access_common(&mut self, fault: Fault) -> Result<Option<Fault>, Halt> {
        let at = fault.address..fault.address.saturating_add(1);
        if fault.signal != libc::SIGSEGV || !self.machine.common.meets(&at) {
            return Ok(Some(fault));
        }
        let next = self.cursor.peek()?.copied();
        if let Some(event) = next.filter(|event| event.pc == self.context.rip) {
            // The recorder has told the fault from others: the memory's file had become shorter.
            let faults = matches!(event.kind(), EventKind::Signal | EventKind::Killed);
            if faults && event.nr == delivery::FAULT {
                return Ok(Some(Fault { signal: event.value as i32, ..fault }));
            }
        }
        let here = next.is_some_and(|event| event.pc == self.context.rip);
        let Some((event, record)) =
            (if here { self.next_common(&[common::ACCESS])? } else { None })
        else {
            return Ok(Some(fault));
        };
        let machine = self.machine.clone();
        let state = machine.common.lock();
        let mut open = OpenPages::default();
        state.protect(true);
        let done = state.store(&record.writes);
        state.protect(false);
        let mut next = Some(fault);
        while let Some(fault) = next {
            if open.open(state.areas.iter(), fault.address).is_none() {
                break;
            }
            next = self.cpu.step(&mut self.context);
        }
        drop(open);
        drop(state);
        self.report_accesses();
        if let Some(fault) = next {
            let actual = format!("signal {} for address {:#x}", fault.signal, fault.address);
            return self.diverge(DivergenceKind::Fault, format!("{event:?}"), actual);
        }
        self.finish_common(&event, done)?;
        Ok(None)
    }
}
