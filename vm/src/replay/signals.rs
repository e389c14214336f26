//! Signals of a replayed guest: handlers run where they ran in the recording, with the recorded
//! frames.

use super::gate::Condition;
use super::outcome::DivergenceKind;
use super::thread::{Ahead, Flow, GuestThread, Halt};
use crate::engine::Fault;
use crate::frame;
use refrain_trace::{Event, EventKind, accessed, delivery, order};

impl GuestThread {
    /// What happened to the thread right after the event that it has just performed, or where it is
    /// in its computation: a handler begins, or the guest has ended.
    pub(crate) fn take_signals(&mut self) -> Result<(), Halt> {
        loop {
            // Code that comes before the next access may have to be read before what others take over
            // here: that is done when the thread comes to the access, unless something that happens
            // here is behind it.
            let is_here = |event: &Event| {
                let of_kernel = event.kind().is_of_access() && event.nr == accessed::AHEAD;
                of_kernel || event.kind().is_of_signal()
            };
            let next = self.cursor.peek()?.copied();
            let is_handover = next.is_some_and(|event| event.kind() == EventKind::Handover);
            if is_handover && !self.behind_handovers()?.is_some_and(|event| is_here(&event)) {
                break;
            }
            self.events_before()?;
            let Some(event) = self.cursor.peek()?.copied() else { break };
            match event.kind() {
                EventKind::Killed if self.is_taken_here(&event) => return self.killed(),
                EventKind::Signal if self.is_taken_here(&event) => self.begin_handler()?,
                _ => break,
            }
        }
        Ok(())
    }

    /// Whether an event is of a signal that the thread takes where it is now, between two instructions.
    pub(crate) fn is_taken_here(&self, event: &Event) -> bool {
        let is_reached = match event.nr {
            delivery::AFTER_EVENT => true,
            delivery::AT_COUNT => event.ticket == self.context.retired.wrapping_sub(self.counted),
            delivery::AT_YIELD => event.ticket == self.yields,
            _ => false,
        };
        event.kind().is_of_signal() && event.pc == self.context.rip && is_reached
    }

    /// From here on the thread's instructions and yields are counted anew.
    pub(crate) fn begin_counting(&mut self) {
        (self.counted, self.yields) = (self.context.retired, 0);
    }

    /// How many instructions the thread has executed when the signal interrupts it that it takes
    /// next, if that is in the middle of a computation.
    pub(crate) fn next_interruption(&mut self) -> Result<u64, Halt> {
        let next = self.next_beside_accesses()?;
        let count = next.filter(|event| event.interrupts()).map(|event| event.ticket);
        let here = self.context.retired;
        // What has not interrupted the thread where it is will not, however often it is asked.
        let at = count.map(|count| self.counted.wrapping_add(count)).filter(|&at| at != here);
        Ok(at.unwrap_or(u64::MAX))
    }

    /// The next event is the guest's end. What others took over from the thread until they stopped,
    /// too, comes behind it.
    fn killed(&mut self) -> Result<(), Halt> {
        if let Some(event) = self.cursor.next()? {
            self.loads_are_done(&event)?;
            self.note_event(&event)?;
        }
        self.events_before()?;
        Err(Halt::Done)
    }

    /// The next event that is not one of accesses.
    pub(super) fn next_beside_accesses(&mut self) -> Result<Option<Event>, Halt> {
        let next = self.cursor.peek()?.copied();
        if next.is_none_or(|event| !event.kind().is_of_access()) {
            return Ok(next);
        }
        let position = self.cursor.position();
        let Ahead { cursor, found } =
            self.ahead.get_or_insert_with(|| Ahead::new(self.machine.trace.cursor(self.id)));
        while found.is_none_or(|(at, _)| at < position) {
            let at = cursor.position();
            let Some(event) = cursor.next()? else { return Ok(None) };
            if !event.kind().is_of_access() {
                *found = Some((at, event));
            }
        }
        Ok(found.map(|(_, event)| event))
    }

    /// Takes the next event, a signal, and goes on at the start of its handler.
    fn begin_handler(&mut self) -> Result<(), Halt> {
        let Some(event) = self.cursor.next()? else { return Ok(()) };
        self.loads_are_done(&event)?;
        let record = self.record()?;
        // Who has sent the signal may have written what the handler reads.
        if let Some((slot, count)) = order::bound_of(&event, Some(&record)) {
            self.wait(Condition::Reached { slot, count })?;
        }
        for write in record.writes {
            self.put(write.address, &write.bytes)?;
        }
        frame::enter(&mut self.context, event.aux, event.object, event.value);
        if let Some(creation) = &mut self.creating {
            creation.begin_handler();
        }
        self.note_event(&event)
    }

    /// Runs the handlers that ran while the body of a library function waited. The body is not
    /// run in a replay; its caller's state is put back.
    pub(crate) fn handlers_in_body(&mut self) -> Result<(), Halt> {
        loop {
            self.events_before()?;
            self.go_away()?;
            let Some(event) = self.cursor.peek()?.copied() else { break };
            if event.kind() != EventKind::Signal || event.nr != delivery::IN_BODY {
                break;
            }
            let before = self.machine.gate.arrivals.of(self.id);
            self.times(|times| times.last_until_signal(before, &event));
            let caller = self.context.clone();
            self.begin_handler()?;
            self.handlers_in_bodies.push(event.aux);
            self.run_guest()?;
            self.context.restore(caller);
        }
        Ok(())
    }

    /// `rt_sigreturn`.
    pub(crate) fn handler_returned(&mut self) -> Result<(), Halt> {
        let Some(left) = frame::leave(&mut self.context, self.machine.processor) else {
            let actual = format!("none at {:#x}", self.context.gpr[crate::reg::RSP]);
            return self.diverge(DivergenceKind::Arguments, "a signal frame".into(), actual);
        };
        if let Some(creation) = &mut self.creating {
            creation.end_handler();
        }
        if self.handlers_in_bodies.last() == Some(&left.address) {
            self.handlers_in_bodies.pop();
            self.flow = Flow::Returned;
        }
        Ok(())
    }

    /// The guest has caused an exception, as it did in the recording.
    pub(crate) fn fault(&mut self, fault: Fault) -> Result<(), Halt> {
        let Some(fault) = self.until_accessible(fault)? else { return Ok(()) };
        self.place_of_fault(&fault)?;
        let actual = format!(
            "signal {} for address {:#x} at {:#x}",
            fault.signal, fault.address, self.context.rip
        );
        self.events_before()?;
        let absent = self.machine.mapped_files.is_absent(fault.address);
        if absent && self.machine.is_truncated() {
            // What was touched here was to be written next when the recording was cut off.
            return Err(Halt::Done);
        }
        let actual = match absent {
            true => format!("{actual}, in a page of a file that the trace does not have"),
            false => actual,
        };
        let Some(event) = self.cursor.peek()?.copied() else {
            let expected = "the end of the recording".into();
            return self.diverge(DivergenceKind::Fault, expected, actual);
        };
        // If the handler's stack had no room, there was a SIGSEGV instead.
        let signals = [fault.signal as u64, libc::SIGSEGV as u64];
        let same = event.nr == delivery::FAULT
            && event.pc == self.context.rip
            && signals.contains(&event.value);
        match event.kind() {
            EventKind::Signal if same => {
                self.count_equal();
                self.begin_handler()
            }
            EventKind::Killed if same => {
                self.count_equal();
                self.killed()
            }
            _ => self.diverge(DivergenceKind::Fault, format!("{event:?}"), actual),
        }
    }

    fn count_equal(&mut self) {
        self.tally.digests += 1;
        self.tally.equal += 1;
    }
}
