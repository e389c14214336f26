//! Replaying every access ([`refrain_trace::Order::Stride`]).
//!
//! Translated code counts down the accesses before the thread's next event, and leaves when none is
//! left. The event is then of the access that comes next, or it hands lines over for which other threads
//! wait ([`super::lines`]). A handover may come after more accesses of its thread than in the recording,
//! as long as none of these accesses has an event: the other threads only wait longer. So an engine may
//! count a whole block down at once, below zero, if no access in the block has had an event and the
//! engine leaves soon.

use super::in_progress::Performing;
use crate::engine::{OrderedAccess, OrderedKind};
use crate::replay::fast_path::{FastPathState, Lent, takes_slow_path};
use crate::replay::gate::Condition;
use crate::replay::outcome::DivergenceKind;
use crate::replay::thread::{GuestThread, Halt};
use refrain_trace::{Event, EventId, EventKind, accessed, order};

impl FastPathState {
    /// Performs the events of an access that translated code is about to make; it keeps its turn until
    /// [`Self::finish`]. `None` if what is left of them has to take the slow path.
    ///
    /// (Called by translated code: see `order::replay`.)
    pub(super) fn access(&mut self, access: &OrderedAccess) -> Option<()> {
        while !self.awaits_loads() {
            // SAFETY: only the fast-path function for ordered instructions calls this, once in a call; what
            // was lent in the round before is not used any more.
            let Lent { gate, cursor, tally } = unsafe { self.lent() }?;
            let [event, rest @ ..] = cursor.loaded() else { return None };
            let [after, ..] = rest else { return None };
            if takes_slow_path(event, rest, tally) {
                return None;
            }
            let (kind, slot, ticket) = (event.kind(), order::slot(event.object), event.ticket);
            let is_here = event.pc == access.pc && event.nr == accessed::NEXT;
            let (next, left) = (*after, after.unrecorded);
            let turn = Condition::Turn { slot, ticket };
            let soon = match kind {
                EventKind::Handover => gate.soon(self.id, turn),
                EventKind::Takeover if is_here => {
                    gate.soon(self.id, Condition::Reached { slot, count: ticket })
                }
                // Of an access with several turns, none is kept so.
                EventKind::Contended if is_here && left > 0 => gate.soon(self.id, turn),
                _ => false,
            };
            if !soon {
                return None;
            }
            // It was loaded, so this only counts.
            let _ = cursor.next();
            tally.events += 1;
            self.expect(&next);
            match kind {
                EventKind::Handover => self.finish_turn(slot, ticket),
                EventKind::Contended => {
                    let turn = Some((slot, ticket));
                    self.performing = Some(Performing { turn, operand: None });
                }
                _ => {}
            }
        }
        // The access itself is one of those that come before the next event.
        self.set_left(self.left() - 1);
        Some(())
    }
}

impl FastPathState {
    /// Counts a string instruction that translated code is about to execute. `None` if events come before.
    pub(super) fn access_strings(&mut self) -> Option<()> {
        if !self.awaits_loads() {
            return None;
        }
        self.set_left(self.left() - 1);
        Some(())
    }
}

impl GuestThread {
    /// The thread is at an access that translated code has not made.
    pub(crate) fn access(&mut self, kind: OrderedKind) -> Result<(), Halt> {
        let mut turns = self.begin_access(kind != OrderedKind::Target)?;
        if kind == OrderedKind::Target {
            // Translated code counts it when it makes it.
            return Ok(());
        }
        // There is room for what the step logs.
        self.report_accesses();
        if self.execute_on_copies()? {
            self.end_turns(&mut turns);
            return Ok(());
        }
        let fault = self.cpu.step(&mut self.context);
        self.report_accesses();
        self.end_turns(&mut turns);
        if self.cursor.peek()?.is_none() {
            return Err(Halt::Done);
        }
        fault.map_or(Ok(()), |fault| self.fault(fault))
    }

    /// Performs the events of the access that the thread is at, and counts it, if it is `executed`
    /// by itself; the turns that it has until the access is over.
    fn begin_access(&mut self, executed: bool) -> Result<Vec<(usize, u64)>, Halt> {
        let mut turns = Vec::new();
        let mut performed = false;
        loop {
            self.expect_loads()?;
            let left = self.fast_path.left();
            if left > 0 {
                self.fast_path.set_left(left - i64::from(executed));
                return Ok(turns);
            }
            let Some(event) = self.cursor.peek()?.copied() else {
                // Others wait for the turns of the thread's last access.
                return if turns.is_empty() { Err(Halt::Done) } else { Ok(turns) };
            };
            let elsewhere = event.kind() != EventKind::Handover
                && (event.pc != self.context.rip || event.nr == accessed::CODE);
            if !executed && performed && !event.kind().is_of_access() {
                // A signal may come between a branch's events and the branch.
                return Ok(turns);
            }
            if !event.kind().is_of_access() || elsewhere {
                let actual = format!("an access at {:#x}", self.context.rip);
                return self.diverge(DivergenceKind::Event, format!("{event:?}"), actual);
            }
            turns.extend(self.event_of_access()?);
            performed = true;
        }
    }

    /// The thread has come to code that the guest has generated, where an event may be of reading it.
    pub(crate) fn read_code(&mut self) -> Result<(), Halt> {
        let mut turns: Vec<(usize, u64)> = Vec::new();
        let mut len = 0;
        while self.reads_code_next()? {
            let Some(next) = self.cursor.peek()?.copied() else { break };
            if turns.iter().any(|&(slot, _)| slot == order::slot(next.object)) {
                // The thread was called away when it had read the code, and read it again.
                self.end_turns(&mut turns);
            }
            len = len.max(next.result.max(0) as u64);
            turns.extend(self.event_of_access()?);
        }
        self.cpu.read_code(&mut self.context, len);
        self.end_turns(&mut turns);
        if self.cursor.peek()?.is_none() { Err(Halt::Done) } else { Ok(()) }
    }

    /// The thread is at a system call, which reads memory before it is entered: `act` does that, given
    /// the call's event, if that comes next. The thread keeps its turns at that memory until the caller
    /// ends them.
    pub(crate) fn read_for_call<T>(
        &mut self,
        turns: &mut Vec<(usize, u64)>,
        act: impl FnOnce(&Event) -> Option<T>,
    ) -> Result<Option<T>, Halt> {
        let event = self.begin_access_of_kernel(turns)?;
        let event = event.filter(|event| event.kind() == EventKind::Syscall);
        Ok(event.and_then(|event| act(&event)))
    }

    /// The kernel writes a word at the thread's end, which has no event of its own.
    pub(crate) fn access_at_end(&mut self, write: impl FnOnce()) -> Result<(), Halt> {
        let mut turns = Vec::new();
        self.begin_access_of_kernel(&mut turns)?;
        write();
        self.end_turns(&mut turns);
        Ok(())
    }

    /// Performs the events of what the kernel accesses next, and adds the turns that the thread has
    /// meanwhile; the event behind.
    fn begin_access_of_kernel(
        &mut self,
        turns: &mut Vec<(usize, u64)>,
    ) -> Result<Option<Event>, Halt> {
        self.late_handovers()?;
        loop {
            let event = self.behind_handovers()?;
            if !event.is_some_and(|it| it.kind().is_of_access() && it.nr == accessed::CALL) {
                return Ok(event);
            }
            turns.extend(self.event_of_access()?);
        }
    }

    /// Performs the handovers that the thread has gone past.
    fn late_handovers(&mut self) -> Result<(), Halt> {
        loop {
            self.expect_loads()?;
            let next = self.cursor.peek()?.map(Event::kind);
            if self.fast_path.left() >= 0 || next != Some(EventKind::Handover) {
                return Ok(());
            }
            self.event_of_access()?;
        }
    }

    pub(crate) fn end_turns(&self, turns: &mut Vec<(usize, u64)>) {
        turns.drain(..).for_each(|(slot, ticket)| self.machine.gate.advance(slot, ticket));
    }

    /// Whether the thread's next event is of reading the code that it has come to, or such a one comes
    /// right behind its next events. (Others that take lines over here, but not before the next
    /// access, may do so once the code has been read.)
    fn reads_code_next(&mut self) -> Result<bool, Halt> {
        let pc = self.context.rip;
        Ok(self.behind_handovers()?.is_some_and(|event| {
            event.kind().is_of_access() && (event.nr, event.pc) == (accessed::CODE, pc)
        }))
    }

    /// The thread's next event that is no handover, if it comes before the thread's next access.
    pub(crate) fn behind_handovers(&mut self) -> Result<Option<Event>, Halt> {
        self.expect_loads()?;
        if self.fast_path.left() > 0 || self.cursor.peek()?.is_none() {
            return Ok(None);
        }
        let is_handover = |event: &Event| event.kind() == EventKind::Handover;
        let loaded = self.cursor.loaded();
        let mut number = 0;
        let mut decisive = |event: &Event| {
            number += 1;
            // What comes before the first is counted down already.
            let later = number > 1 && event.unrecorded > 0;
            (later || !is_handover(event)).then_some(Some(*event).filter(|_| !later))
        };
        if let Some(event) = loaded.iter().find_map(&mut decisive) {
            return Ok(event);
        }
        let behind = EventId(self.cursor.position().0 + loaded.len() as u64);
        let mut cursor = self.machine.trace.cursor_at(self.id, behind);
        while let Some(event) = cursor.next()? {
            if let Some(event) = decisive(&event) {
                return Ok(event);
            }
        }
        Ok(None)
    }

    /// Performs the next events as far as they belong to what the thread has done.
    pub(crate) fn events_before(&mut self) -> Result<(), Halt> {
        while let Some(event) = self.cursor.peek()?.copied() {
            self.expect_loads()?;
            let is_past = event.kind() == EventKind::Handover
                || [accessed::AHEAD, accessed::BACK].contains(&event.nr);
            if !event.kind().is_of_access() || !is_past {
                break;
            }
            // The thread is away in the call that its next event is of, unless that event happens here.
            if is_away(&event) {
                let next = self.behind_handovers()?;
                if !next.is_some_and(|next| self.happens_here(&next)) {
                    break;
                }
            }
            if self.fast_path.left() > 0 {
                break;
            }
            self.event_of_access()?;
        }
        Ok(())
    }

    /// Whether an event happens where the thread is now, and in no call: the thread comes back to guest code,
    /// takes a signal, faults, or learns of memory in common.
    fn happens_here(&self, event: &Event) -> bool {
        let pc = self.context.rip;
        match event.kind() {
            EventKind::Takeover => event.nr == accessed::BACK,
            EventKind::Common => event.pc == pc,
            _ => event.is_of_fault_at(pc) || self.is_taken_here(event),
        }
    }

    /// The thread has left guest code for what its next event is of.
    pub(crate) fn go_away(&mut self) -> Result<(), Halt> {
        while self.cursor.peek()?.is_some_and(is_away) && self.fast_path.left() <= 0 {
            self.event_of_access()?;
            self.events_before()?;
        }
        Ok(())
    }

    /// The thread has left translated code for nothing else than a handover or a signal. If it has made
    /// more accesses than come before its next event, it is not where it was.
    pub(crate) fn handovers(&mut self) -> Result<(), Halt> {
        self.events_before()?;
        match self.fast_path.left() {
            0.. => Ok(()),
            more => {
                let event = self.cursor.peek()?.copied();
                let actual = format!("{} more accesses at {:#x}", -more, self.context.rip);
                self.diverge(DivergenceKind::Event, format!("{event:?}"), actual)
            }
        }
    }

    /// Performs the next event, one of accesses; the turn that it keeps.
    pub(super) fn event_of_access(&mut self) -> Result<Option<(usize, u64)>, Halt> {
        let Some(event) = self.cursor.next()? else { return Ok(None) };
        self.loads_are_done(&event)?;
        let slot = order::slot(event.object);
        let mut kept = None;
        match event.kind() {
            // Where the order of locks is decided anew, loads have live values, and wait for nobody.
            EventKind::Takeover => {
                let is_of_word = accessed::OF_WORDS.contains(&event.nr);
                if !is_of_word || !self.machine.gate.is_live() {
                    self.wait(Condition::Reached { slot, count: event.ticket })?;
                }
                if event.nr == accessed::ALONE {
                    self.fast_path.begin_alone();
                }
            }
            kind => {
                self.await_turn(slot, event.ticket)?;
                if kind == EventKind::Contended && event.nr != accessed::AHEAD {
                    kept = Some((slot, event.ticket));
                } else {
                    if event.nr == accessed::ALONE {
                        self.fast_path.end_alone();
                    }
                    self.machine.gate.advance(slot, event.ticket);
                }
            }
        }
        match self.note_event(&event) {
            // The access itself has still to be made, and whoever waits for the turn waits for it.
            Err(Halt::Done) if kept.is_some() => {}
            other => other?,
        }
        Ok(kept)
    }
}

/// Whether an event is a handover that the thread performs when it leaves guest code.
fn is_away(event: &Event) -> bool {
    event.kind() == EventKind::Handover && event.nr == accessed::AWAY
}
