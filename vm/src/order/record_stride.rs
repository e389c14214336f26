//! Recording every access ([`refrain_trace::Order::Stride`]): what a guest thread does where
//! translated code may not go on by itself. Who may access what is [`super::lines`]' business.
//!
//! The functions that translated code calls run with the guest's thread pointer: nothing in them
//! may use thread-local storage of the host, allocate, or panic.

use super::filter::{Filter, Span};
use super::in_progress::Accesses;
use super::lines::{Acquired, Calms, Claims, Quick, Still, Wish};
use crate::Result;
use crate::elsewhere;
use crate::engine::{Fault, OrderedAccess, OrderedKind};
use crate::host;
use crate::record::fast_path::FastPathState;
use crate::record::machine::Machine;
use crate::record::machine::park_forever;
use crate::record::thread::{Flow, GuestThread};
use refrain_trace::{Event, EventKind, accessed, order};
use std::ops::Range;

impl FastPathState {
    /// Lets an access be made that translated code may not make by itself. `None` if it has to go
    /// the slow path.
    pub(super) fn access(&mut self, access: &OrderedAccess) -> Option<()> {
        let &OrderedAccess { address, size, kind, pc, sp, .. } = access;
        let accesses = self.accesses.as_mut()?;
        // SAFETY: the machine owns the lines, and lives as long as the thread runs guest code.
        let lines = unsafe { &*accesses.lines };
        let write = kind == OrderedKind::Write;
        let span = Span { start: address, len: size.into(), write };
        match lines.quick(accesses.id, &accesses.filter, span, &mut accesses.claims) {
            Quick::Mine => {}
            Quick::Others => return None,
            Quick::Contended(contended, count) => {
                let event = Event { pc, sp, ..Event::default() };
                self.take_turns(event, &contended[..count], kind)?;
            }
        }
        self.accesses.as_ref()?.filter.count_one();
        Some(())
    }

    /// Lets a string instruction be executed that accesses these bytes, unless lines have to be taken over or
    /// are contended.
    pub(super) fn access_strings(&mut self, spans: &[Span]) -> Option<()> {
        let accesses = self.accesses.as_mut()?;
        // What the program shares with other processes it does not access by itself.
        if elsewhere::is_any() {
            return None;
        }
        // SAFETY: the machine owns the lines, and lives as long as the thread runs guest code.
        let (filter, lines) = (accesses.filter, unsafe { &*accesses.lines });
        filter.set_window(true);
        let mut is_mine = |&span: &Span| {
            let mut claim = || lines.quick(accesses.id, &filter, span, &mut accesses.claims);
            filter.permits(span) || matches!(claim(), Quick::Mine)
        };
        if !spans.iter().all(&mut is_mine) {
            filter.set_window(false);
            return None;
        }
        filter.count_one();
        Some(())
    }

    /// Takes the turns of contended lines and records them. The thread keeps the turns until its access
    /// is over, but for a branch's.
    fn take_turns(&mut self, event: Event, contended: &[u64], kind: OrderedKind) -> Option<()> {
        // Signals come after events on the slow path.
        if self.attention.is_raised() {
            return None;
        }
        // SAFETY: armed with references that outlive the thread's run.
        let (tickets, log, context) = unsafe { (&*self.tickets, &*self.log, &*self.context) };
        let accesses = self.accesses.as_mut()?;
        let (holds, write) = (kind != OrderedKind::Target, kind == OrderedKind::Write);
        // SAFETY: the machine owns the lines, and lives as long as the thread runs guest code.
        let lines = unsafe { &*accesses.lines };
        if let &[line] = contended {
            let next = || tickets.given(order::slot(line));
            // Nobody can say when a branch has read where it goes to, but for its window.
            accesses.wish = match holds {
                true if lines.calms() => accesses.calms.wish(line, next(), write),
                true => None,
                false => Some(Wish::reading(line)),
            };
            if accesses.wish.is_some() {
                return None;
            }
        }
        let begin = host::ticks();
        let mut log = log.try_enter()?;
        if !log.has_room(contended.len()) {
            return None;
        }
        let mut turns = [(0, 0, 0); 2];
        let mut count = 0;
        let give_back = |turns: &[(u64, usize, u64)]| {
            turns.iter().for_each(|&(_, slot, ticket)| tickets.give_back(slot, ticket));
        };
        for (object, slot) in slots(contended.iter().map(|&line| lines.object_of_turn(line))) {
            // Who has it may wait for this thread to leave translated code.
            let Some(ticket) = tickets.try_take(slot, true) else {
                give_back(&turns[..count]);
                return None;
            };
            turns[count] = (object, slot, ticket);
            count += 1;
        }
        if !contended.iter().all(|&line| lines.is_contended(line)) {
            give_back(&turns[..count]);
            return None;
        }
        let mut translated = self.translated(context.translating);
        let accesses = self.accesses.as_mut()?;
        if let &[line] = contended {
            accesses.calms.turn(line, turns[0].2, write);
        }
        let mut from = begin;
        for &(object, slot, ticket) in &turns[..count] {
            let end = host::ticks();
            let begin = std::mem::replace(&mut from, end);
            let spent = std::mem::take(&mut translated);
            log.push(Event {
                code: EventKind::Contended as u8,
                nr: if holds { accessed::NEXT } else { accessed::AHEAD },
                object,
                ticket,
                begin,
                end,
                overhead: spent.total,
                busy: spent.busy,
                ..event
            });
            match accesses.turns.get_mut(accesses.held) {
                Some(turn) if holds => {
                    *turn = (slot, ticket);
                    accesses.held += 1;
                }
                _ => tickets.release(slot, ticket),
            }
        }
        Some(())
    }

    /// The access is over, if there was one.
    pub(super) fn end_access(&mut self) {
        let Some(accesses) = &mut self.accesses else { return };
        for &(slot, ticket) in &accesses.turns[..accesses.held] {
            // SAFETY: armed with a reference that outlives the thread's run.
            unsafe { &*self.tickets }.release(slot, ticket);
        }
        accesses.held = 0;
        accesses.filter.set_window(false);
    }
}

/// The slots of one or two objects in ascending order, each once, and the first of its objects.
fn slots(objects: impl Iterator<Item = u64>) -> impl Iterator<Item = (u64, usize)> {
    let mut objects = objects.map(|object| (object, order::slot(object)));
    let (first, second) = (objects.next(), objects.next());
    let same = first.map(|of| of.1) == second.map(|of| of.1);
    let swapped = matches!((first, second), (Some(a), Some(b)) if b.1 < a.1);
    let second = second.filter(|_| !same);
    let ordered = if swapped { [second, first] } else { [first, second] };
    ordered.into_iter().flatten()
}

impl GuestThread {
    /// The thread is about to execute guest code.
    pub(crate) fn enter_lines(&mut self) {
        let (Some(lines), Some(filter)) = (self.machine.lines(), self.cpu.filter()) else { return };
        self.log.count_accesses(filter);
        lines.enter(self.id, filter);
        self.fast_path.accesses = Some(Accesses {
            id: self.id,
            lines,
            filter,
            claims: Claims::default(),
            runs: Some(Box::default()),
            calms: Calms::default(),
            wish: None,
            turns: [(0, 0); 2],
            held: 0,
        });
    }

    /// The thread executes no more guest code, and others may ask for what it has done.
    pub(crate) fn end_accesses(&mut self) {
        let machine = self.machine.clone();
        let nr = if machine.lines().is_some() { accessed::NEXT } else { accessed::WORD };
        if nr == accessed::NEXT || self.fast_path.visited.owns_any() {
            let event = self.event(EventKind::Handover, host::ticks());
            self.append_ordered(Event { object: order::ENDED_ACCESSES, nr, ..event });
        }
        machine.end_accesses(self.id);
    }

    /// The thread is at an instruction with several operands in memory.
    pub(crate) fn access_spans(&mut self) -> Result<Flow> {
        let mut spans = self.cpu.spans().to_vec();
        if let Some(&common) = spans.iter().find(|&&span| self.is_common(span)) {
            spans.retain(|&span| !self.is_common(span));
            let turns = self.take_lines(&spans, accessed::NEXT);
            let flow = self.ordered_in_common(common);
            self.end_turns(&turns);
            return flow;
        }
        let fault = self.access(&spans, true);
        Ok(fault.map_or(Flow::Continue, |fault| self.fault(fault)))
    }

    /// Gets the lines of an access, and makes it, if it is `executed` by itself.
    pub(super) fn access(&mut self, spans: &[Span], executed: bool) -> Option<Fault> {
        let which = if executed { accessed::NEXT } else { accessed::AHEAD };
        let turns = self.take_lines(spans, which);
        let fault = executed.then(|| {
            self.count_access();
            self.cpu.step(&mut self.context)
        });
        self.end_turns(&turns);
        // A branch is still to be executed: no signal comes between its events and it.
        self.after_event &= executed;
        fault.flatten()
    }

    /// The kernel, or the recorder in its place, accesses this memory for the thread: before the
    /// call is entered what it reads, after its event what it has written. (A program that is right
    /// has seen to it that nobody else accesses what a call writes meanwhile.) `act` sees the memory as
    /// this access does.
    pub(crate) fn access_for_kernel<T>(
        &mut self,
        ranges: &[Range<u64>],
        write: bool,
        act: impl FnOnce() -> T,
    ) -> T {
        let which = if write { accessed::AHEAD } else { accessed::CALL };
        self.access_during(ranges, (write, which), act)
    }

    /// Before a call that changes what accesses of this memory do: the thread takes over the pages that
    /// threads have accessed. It has them as long as the caller has what this returns; the turns of
    /// contended lines are to be ended then ([`GuestThread::end_turns`]).
    pub(crate) fn take_memory<'a>(
        &mut self,
        machine: &'a Machine,
        range: &Range<u64>,
    ) -> Option<(Still<'a>, Vec<(usize, u64)>)> {
        let lines = machine.lines()?;
        if machine.threads_alive() == 1 {
            self.give_up_code(range);
            return None;
        }
        let mut turns = Vec::new();
        let taken =
            lines.take_pages(self.id, range, (&machine.log, &machine.tickets), |acquired| {
                turns = self.record_acquired(acquired, accessed::CALL);
            });
        match taken {
            Ok(taken) => Some((taken, turns)),
            Err(_) => park_forever(),
        }
    }

    /// The kernel writes this word at the thread's end, where other threads may be waiting for it.
    pub(crate) fn access_at_end(&mut self, word: Range<u64>, write: impl FnOnce()) {
        self.access_during(&[word], (true, accessed::CALL), write);
    }

    fn access_during<T>(
        &mut self,
        ranges: &[Range<u64>],
        (write, which): (bool, u16),
        act: impl FnOnce() -> T,
    ) -> T {
        let Some(filter) = self.fast_path.accesses.as_ref().map(|it| it.filter) else {
            return act();
        };
        let span =
            |range: &Range<u64>| Span { start: range.start, len: range.end - range.start, write };
        let spans: Vec<Span> = ranges.iter().map(span).collect();
        if spans.is_empty() {
            return act();
        }
        if self.machine.threads_alive() == 1 {
            ranges.iter().filter(|_| write).for_each(|range| self.give_up_code(range));
            return act();
        }
        filter.set_window(true);
        if spans.iter().all(|&span| filter.permits(span)) {
            let result = act();
            filter.set_window(false);
            return result;
        }
        filter.set_window(false);
        let turns = self.take_lines(&spans, which);
        let result = act();
        self.end_turns(&turns);
        result
    }

    /// What the thread keeps of the code in a stretch of memory it has to read again.
    fn give_up_code(&self, range: &Range<u64>) {
        if let (Some(accesses), Some(lines)) = (&self.fast_path.accesses, self.machine.lines()) {
            lines.give_up_code(&accesses.filter, range);
        }
    }

    /// The thread has come to code that the guest has generated, perhaps another thread.
    pub(crate) fn read_code(&mut self) -> Flow {
        let spans = self.cpu.spans().to_vec();
        let filter = self.fast_path.accesses.as_ref().map(|accesses| accesses.filter);
        // Who inserts a handover in the thread's stream waits until the window is closed.
        filter.iter().for_each(|filter| filter.set_window(false));
        let len = spans.iter().map(|span| span.len).sum();
        self.looked_at_code(len);
        let may_read = |filter: &Filter| {
            filter.set_window(true);
            spans.iter().all(|&span| filter.permits(span))
        };
        let turns = match filter.as_ref().is_some_and(may_read) {
            true => Vec::new(),
            false => {
                filter.iter().for_each(|filter| filter.set_window(false));
                self.take_lines(&spans, accessed::CODE)
            }
        };
        if let (Some(filter), Some(lines)) = (&filter, self.machine.lines()) {
            lines.keep_code(filter, &spans);
        }
        self.cpu.read_code(&mut self.context, len);
        self.end_turns(&turns);
        Flow::Continue
    }

    /// The thread compares the code that it has come to, of this length: so does a replay, here and nowhere else.
    /// (An event that waits for nobody.)
    fn looked_at_code(&mut self, len: u64) {
        let object = order::accesses_object(self.id);
        let event = self.event(EventKind::Takeover, host::ticks());
        let event = Event { object, nr: accessed::CODE, result: len as i32, ..event };
        self.append(event, None);
    }

    /// Takes lines over, and the turns of those that are contended, which are kept until the access
    /// is over if it comes at once.
    fn take_lines(&mut self, spans: &[Span], which: u16) -> Vec<(usize, u64)> {
        let machine = self.machine.clone();
        let Some(lines) = machine.lines() else { return Vec::new() };
        let mut turns = Vec::new();
        let ways = (&machine.log, &machine.tickets);
        let accesses = self.fast_path.accesses.as_mut();
        let (wish, runs) = accesses.map(|it| (it.wish.take(), it.runs.take())).unwrap_or_default();
        let mut runs = runs.unwrap_or_default();
        let me = (self.id, &mut *runs);
        let acquired = lines.acquire(me, (spans, wish), ways, |acquired| {
            turns = self.record_acquired(acquired, which);
        });
        if let Some(accesses) = &mut self.fast_path.accesses {
            accesses.runs = Some(runs);
        }
        if acquired.is_err() {
            park_forever();
        }
        turns
    }

    /// Records what the thread has got, and what it waits for; the turns that it keeps.
    fn record_acquired(&mut self, acquired: Acquired, which: u16) -> Vec<(usize, u64)> {
        let machine = self.machine.clone();
        let mut turns = Vec::new();
        let Acquired { awaited, contended, hands_over } = acquired;
        for (object, ticket) in awaited {
            let event = self.event(EventKind::Takeover, host::ticks());
            self.append(Event { object, ticket, nr: which, ..event }, None);
        }
        let mut slots: Vec<_> = contended.iter().map(|&line| (order::slot(line), line)).collect();
        slots.sort_unstable();
        slots.dedup_by_key(|&mut (slot, _)| slot);
        for (slot, object) in slots {
            let event = self.event(EventKind::Contended, host::ticks());
            let event = Event { nr: which, ..event };
            let mut ticket = 0;
            self.append_made(None, || {
                ticket = machine.tickets.hold(slot);
                Event { object, ticket, end: host::ticks(), ..event }
            });
            match which {
                // Whose line it becomes keeps the turn until it is.
                accessed::AHEAD if !hands_over => machine.tickets.release(slot, ticket),
                _ => turns.push((slot, ticket)),
            }
        }
        if hands_over {
            let event = self.event(EventKind::Handover, host::ticks());
            let object = order::accesses_object(self.id);
            self.append_ordered(Event { object, ..event });
        }
        turns
    }

    /// Memory is shown at two addresses from here on, as many bytes from each.
    pub(crate) fn shown_twice(&mut self, doubles: &[(u64, u64, u64)]) {
        let machine = self.machine.clone();
        let Some(lines) = machine.lines() else { return };
        let ways = (&machine.log, &machine.tickets);
        for &double in doubles {
            let mut turns = Vec::new();
            let who = (self.id, machine.threads_alive() == 1);
            let united = lines.unite(who, double, ways, |acquired| {
                turns = self.record_acquired(acquired, accessed::AHEAD);
            });
            if united.is_err() {
                park_forever();
            }
            self.end_turns(&turns);
        }
    }

    /// An access is made outside of translated code.
    pub(crate) fn count_access(&self) {
        if let Some(accesses) = &self.fast_path.accesses {
            accesses.filter.count_one();
        }
    }

    pub(crate) fn end_turns(&mut self, turns: &[(usize, u64)]) {
        for &(slot, ticket) in turns {
            self.machine.tickets.release(slot, ticket);
        }
        self.fast_path.end_access();
    }
}
