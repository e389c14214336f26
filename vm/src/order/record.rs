//! Recording locked instructions and watched accesses.
//!
//! Most are executed where they are, in translated code, which calls [`before`] and [`after`];
//! those that this cannot do take the slow path: translated code is left, and the instruction is
//! executed as a single step. A load that needs no event does not even come here: translated code
//! looks into the thread's [`LastMet`] by itself.
//!
//! The functions that translated code calls run with the guest's thread pointer: nothing in them
//! may use thread-local storage of the host, allocate, or panic.

use super::LastMet;
use super::in_progress::Held;
use super::owners::{Awaited, Ownership};
use crate::Result;
use crate::engine::{Engine, Fault, OrderedAccess, OrderedFastPath, OrderedKind, SLOW_PATH};
use crate::host::{self, Guest};
use crate::order::Span;
use crate::record::fast_path::FastPathState;
use crate::record::log::Busy;
use crate::record::machine::park_forever;
use crate::record::thread::{Flow, GuestThread};
use crate::slots::Tickets;
use refrain_trace::{Event, EventKind, accessed, order, own_store};
use std::sync::atomic::Ordering;

/// Lets ordered instructions be executed in line.
pub(crate) fn install(engine: &dyn Engine) {
    // SAFETY: every thread's word is its `FastPathState`, armed before it runs guest code
    // (`GuestThread::arm_fast_path`); for the rest see the module's documentation.
    unsafe { engine.ordered_fast_path(OrderedFastPath { before, after, strings }) };
}

/// Records an instruction that is about to be executed.
///
/// # Safety
/// `access` is live, `data` the calling thread's armed [`FastPathState`].
unsafe extern "sysv64" fn before(access: *mut OrderedAccess, data: u64) -> i64 {
    // SAFETY: the caller's; the thread's own state is used by this thread alone, which is in
    // guest code and so not inside the recorder.
    let (access, thread) = unsafe { (&mut *access, &mut *(data as *mut FastPathState)) };
    let done = if access.kind.is_any() { thread.access(access) } else { thread.record(access) };
    done.map_or(SLOW_PATH, |()| 0)
}

/// Lets a string instruction be executed, if all that it accesses is its thread's.
///
/// # Safety
/// There are so many `spans`; `data` is the calling thread's armed [`FastPathState`].
unsafe extern "sysv64" fn strings(spans: *const Span, count: usize, data: u64) -> i64 {
    // SAFETY: the caller's; for the thread's state as in `before`.
    let (spans, thread) =
        unsafe { (std::slice::from_raw_parts(spans, count), &mut *(data as *mut FastPathState)) };
    thread.access_strings(spans).map_or(SLOW_PATH, |()| 0)
}

/// The instruction has been executed, and has found this.
///
/// # Safety
/// `data` is the calling thread's armed [`FastPathState`].
unsafe extern "sysv64" fn after(found: u64, data: u64) {
    // SAFETY: as in `before`.
    let thread = unsafe { &mut *(data as *mut FastPathState) };
    thread.found(found);
    thread.release();
}

/// The kind of the event of an ordered instruction.
fn event_kind(kind: OrderedKind) -> EventKind {
    match kind {
        OrderedKind::ReadModifyWrite => EventKind::Atomic,
        OrderedKind::Load | OrderedKind::Poll | OrderedKind::Check => EventKind::SyncLoad,
        OrderedKind::Store => EventKind::SyncStore,
        OrderedKind::Read | OrderedKind::Write | OrderedKind::Target => EventKind::Contended,
    }
}

/// What a load read, and at which version.
struct Linkage {
    value: u64,
    version: u64,
    /// The thread has met both there before: there is nothing to record.
    known: bool,
}

impl LastMet {
    /// Reads an operand among the versions of its slot. `None` if the word turns out to be another thread's
    /// after that.
    fn link(
        &mut self,
        tickets: &Tickets,
        (address, size): (u64, u8),
        mut read: impl FnMut() -> u64,
        is_foreign: impl FnOnce() -> bool,
    ) -> Option<Linkage> {
        let slot = order::slot(address);
        let (value, version) = tickets.among(slot, &mut read);
        if is_foreign() {
            return None;
        }
        let met = self.at(address, size);
        let known = met.is_some_and(|met| (met.version, met.value) == (version, value));
        if !known {
            self.meet((address, size), value, tickets.counter(slot), version);
        }
        Some(Linkage { value, version, known })
    }
}

impl FastPathState {
    /// Appends the event of an ordered instruction, and holds its ticket until [`Self::release`];
    /// says what a load is to read. `None` if it has to take the slow path.
    fn record(&mut self, access: &mut OrderedAccess) -> Option<()> {
        let OrderedAccess { address, size, pc, sp, kind, .. } = *access;
        // Signals come after events on the slow path, which also knows of `pthread_once`.
        if self.attention.is_raised() || self.beginning_once == Some(address) {
            return None;
        }
        // SAFETY: armed with references that outlive the thread's run.
        let (tickets, owners) = unsafe { (&*self.tickets, &*self.owners) };
        let slot = order::slot(address);
        let ownership = owners.of(address, self.id, &mut self.visited);
        match ownership {
            Ownership::Own if !kind.is_load() => return self.store_own(slot, access),
            Ownership::Own | Ownership::Shared => {}
            Ownership::Foreign => return None,
        }
        if kind == OrderedKind::Load {
            // SAFETY: as above; the thread's own, which is not appending.
            let met = unsafe { &mut *(*self.log).last_met() };
            let read = || self.pages.known_operand(address, size);
            if let Some(value) = met.load_alone((address, size), (&self.fresh, tickets), read) {
                access.value = value;
                return Some(());
            }
            if self.asking.is_due() {
                return None;
            }
        }
        let takes_turn = kind == OrderedKind::Check && ownership == Ownership::Shared;
        // SAFETY: as above.
        let (log, context) = unsafe { (&*self.log, &*self.context) };
        let begin = host::ticks();
        let mut log = log.try_enter()?;
        if !log.has_room(1) {
            return None;
        }
        let mut value = self.pages.known_operand(address, size)?;
        let mut event = Event {
            code: event_kind(kind) as u8,
            pc,
            sp,
            object: address,
            nr: u16::from(size),
            begin,
            ..Event::default()
        };
        if takes_turn {
            event.ticket = self.try_hold(address)?;
            event.code = EventKind::Atomic as u8;
            event.value = self.pages.known_operand(address, size).unwrap_or(value);
            access.value = event.value;
        } else if kind.is_load() {
            let read = || self.pages.known_operand(address, size).unwrap_or(value);
            let is_foreign = || owners.is_foreign(address, self.id, &self.visited);
            let linkage = log.met().link(tickets, (address, size), read, is_foreign)?;
            access.value = linkage.value;
            (event.value, event.ticket) = (linkage.value, linkage.version);
            if linkage.known {
                log.known_load(&event, kind);
                return Some(());
            }
            self.asking.count();
            (event.begin, event.aux) = log.waits_since(&event, kind);
            event.result = i32::from(kind == OrderedKind::Poll);
        } else {
            // Who has it may wait for this thread to leave translated code.
            event.ticket = self.try_hold(address)?;
            value = self.pages.known_operand(address, size).unwrap_or(value);
            event.value = value;
            let (operand, seen) = ((address, size), access.tells.then_some(value));
            let stores = kind == OrderedKind::Store;
            let ticket = event.ticket;
            self.held = Some(Held { slot, ticket, operand, own: false, stores, seen });
        }
        let translated = self.translated(context.translating);
        event.end = host::ticks();
        (event.overhead, event.busy) = (translated.total, translated.busy);
        match self.held.as_ref().is_some_and(|held| held.seen.is_some()) {
            true => log.push_open(event),
            false => log.push(event),
        }
        if takes_turn {
            let (counter, next) = (tickets.counter(slot), event.ticket + 1);
            log.met().meet((address, size), event.value, counter, next);
            tickets.release(slot, event.ticket);
        }
        Some(())
    }

    /// Holds the slot of a shared word, with the next ticket. `None` if another thread holds the slot for long, or
    /// owns the word by now.
    fn try_hold(&self, address: u64) -> Option<u64> {
        // SAFETY: armed with references that outlive the thread's run.
        let (tickets, owners) = unsafe { (&*self.tickets, &*self.owners) };
        let slot = order::slot(address);
        let ticket = tickets.try_take(slot, true)?;
        if owners.is_foreign(address, self.id, &self.visited) {
            tickets.give_back(slot, ticket);
            return None;
        }
        Some(ticket)
    }

    /// Counts an instruction that writes to a word of the thread's own, and holds its slot until
    /// [`Self::release`]. `None` if it has to take the slow path.
    fn store_own(&mut self, slot: usize, access: &OrderedAccess) -> Option<()> {
        let &OrderedAccess { address, size, kind, pc, .. } = access;
        self.pages.known_operand(address, size)?;
        // SAFETY: armed with references that outlive the thread's run.
        let (tickets, owners, log) = unsafe { (&*self.tickets, &*self.owners, &*self.log) };
        let ticket = tickets.try_borrow(slot)?;
        let stored = own_store::encode(pc, kind == OrderedKind::ReadModifyWrite);
        if !owners.store(address, self.id, stored) {
            tickets.give_back(slot, ticket);
            return None;
        }
        // SAFETY: the thread's own, which is not appending; visitors only read the count.
        let count = unsafe { &(*log.last_met()).unrecorded };
        count.store(count.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        let operand = (address, size);
        self.held = Some(Held { slot, ticket, operand, own: true, stores: false, seen: None });
        Some(())
    }

    /// Translated code has been left in the middle of such an instruction, which it was executing without the
    /// machine: the slot is the machine's affair from here on.
    pub(crate) fn take_over_store(&mut self) {
        // SAFETY: armed with a reference that outlives the thread's run; the thread's own, which is not
        // appending, and visitors leave this alone.
        let met = unsafe { &mut *(*self.log).last_met() };
        if let Some((operand, ticket)) = met.left_storing() {
            let slot = order::slot(operand.0);
            self.held = Some(Held { slot, ticket, operand, own: true, stores: false, seen: None });
        }
    }

    /// The instruction that the thread has the slot for has found this in its word. That may be another
    /// value than was there before: a store that is not watched does not wait for the slot.
    pub(crate) fn found(&mut self, found: u64) {
        let Some(&Held { operand: (_, size), seen: Some(seen), .. }) = self.held.as_ref() else {
            return;
        };
        // SAFETY: armed with a reference that outlives the thread's run.
        let log = unsafe { &*self.log };
        match found & (u64::MAX >> (64 - 8 * u32::from(size))) {
            found if found == seen => log.settle(),
            found => log.amend(|event| event.value = found),
        }
    }

    /// Whether the thread has the slot of an instruction.
    pub(crate) fn is_operating(&self) -> bool {
        self.held.is_some()
    }

    /// Lets others go on with the word of the instruction that was executed last.
    pub(crate) fn release(&mut self) {
        self.end_access();
        let Some(Held { slot, ticket, operand: (address, size), own, stores, .. }) =
            self.held.take()
        else {
            return;
        };
        let next = if own { ticket } else { ticket + 1 };
        // SAFETY: armed with references that outlive the thread's run.
        let (tickets, log) = unsafe { (&*self.tickets, &*self.log) };
        // Nobody else's watched store comes between.
        // SAFETY: the thread has just accessed it.
        let value = unsafe { Guest.accessed(address, size) };
        if let Some(value) = value {
            // SAFETY: the thread's own, which is not appending; visitors leave it alone.
            let met = unsafe { &mut *log.last_met() };
            met.meet((address, size), value, tickets.counter(slot), next);
        }
        if own {
            return tickets.give_back(slot, ticket);
        }
        // A word that locked instructions change may be a lock, whose sections must be in the trace.
        if stores && self.accesses.is_none() && self.visited.is_in_a_row(slot, ticket) {
            // SAFETY: as above.
            let owners = unsafe { &*self.owners };
            owners.own_again(address, self.id, &mut self.visited);
        }
        tickets.release(slot, ticket);
    }
}

impl GuestThread {
    /// The thread is about to access a word. If another thread owns the word, this one takes it over.
    fn begin_access_of(&mut self, address: u64) {
        let machine = self.machine.clone();
        if machine.owners.of(address, self.id, &mut self.fast_path.visited) != Ownership::Foreign {
            return;
        }
        let came = host::ticks();
        let Ok(awaited) = machine.owners.take_over(address, (&machine.log, &machine.tickets))
        else {
            park_forever()
        };
        // The program by itself takes nothing over.
        self.context.translating.add(came, came, host::ticks());
        if self.fast_path.visited.share(address, &awaited) {
            let event = self.event(EventKind::Takeover, host::ticks());
            let Awaited { object, ticket, stored, .. } = awaited;
            let nr = accessed::WORD;
            self.append(Event { object, ticket, nr, value: stored, ..event }, None);
        }
    }

    /// Whether translated code may execute stores to words of the thread's own without the machine.
    pub(crate) fn store_own_in_line(&self, may: bool) {
        let (owners, own) = self.machine.owners.for_code(self.id);
        let may = may && self.machine.lines().is_none();
        // SAFETY: the thread's own, which is not appending.
        let met = unsafe { &*self.log.last_met() };
        met.own.store(own, Ordering::Relaxed);
        met.owners.store(if may { owners } else { 0 }, Ordering::Relaxed);
    }

    /// An instruction that other threads must see in the recorded order.
    pub(crate) fn ordered(&mut self, address: u64, size: u8, kind: OrderedKind) -> Result<Flow> {
        let span = Span { start: address, len: size.into(), write: kind == OrderedKind::Write };
        if self.is_common(span) {
            return self.ordered_in_common(span);
        }
        if !kind.is_any()
            && let Some(flow) = self.fault_of_operand(address, size)
        {
            return Ok(flow);
        }
        let fault = match kind {
            kind if kind.is_load() => self.ordered_load(address, size, kind),
            OrderedKind::ReadModifyWrite | OrderedKind::Store => self.operate(address, size, kind),
            _ => self.access(&[span], kind != OrderedKind::Target),
        };
        Ok(fault.map_or(Flow::Continue, |fault| self.fault(fault)))
    }

    /// Executes an instruction that writes while nobody else can take a ticket of its slot.
    fn operate(&mut self, address: u64, size: u8, kind: OrderedKind) -> Option<Fault> {
        let finds =
            self.cpu.finds(self.context.rip).filter(|_| kind == OrderedKind::ReadModifyWrite);
        let held = self.begin_write(address, size, kind, finds.is_some());
        let fault = self.cpu.step(&mut self.context);
        let fault = fault.and_then(|fault| self.confirm_by_step(fault));
        if fault.is_none() {
            self.fast_path.held = Some(held);
            finds.iter().for_each(|&register| self.fast_path.found(self.context.gpr[register]));
            self.fast_path.release();
        } else {
            self.machine.tickets.release(held.slot, held.ticket);
        }
        if kind == OrderedKind::ReadModifyWrite {
            self.once_begun(address);
        }
        fault
    }

    /// The kernel is about to execute a locked instruction for the guest; until
    /// [`FastPathState::release`], nobody else can take a ticket of its slot.
    pub(crate) fn begin_operation(&mut self, address: u64, size: u8) {
        let held = self.begin_write(address, size, OrderedKind::ReadModifyWrite, false);
        self.fast_path.held = Some(held);
    }

    /// Takes the slot and appends the event, which [`FastPathState::found`] may be going to complete.
    fn begin_write(&mut self, address: u64, size: u8, kind: OrderedKind, tells: bool) -> Held {
        let slot = order::slot(address);
        self.begin_access_of(address);
        let begin = host::ticks();
        let mut event =
            Event { object: address, nr: u16::from(size), ..self.event(event_kind(kind), begin) };
        let (mut ticket, mut value) = (0, 0);
        loop {
            let FastPathState { pages, visited, .. } = &mut *self.fast_path;
            let (tickets, owners) = (&self.machine.tickets, &self.machine.owners);
            let make = || {
                ticket = tickets.hold(slot);
                if owners.is_foreign(address, self.id, visited) {
                    tickets.give_back(slot, ticket);
                    return None;
                }
                // A wild pointer faults when the instruction is executed.
                value = pages.operand(address, size).unwrap_or(0);
                Some(Event { ticket, value, end: host::ticks(), ..event })
            };
            match self.log.append_if(make, tells) {
                Ok(true) => break,
                Ok(false) => {
                    self.begin_access_of(address);
                    event.begin = host::ticks();
                }
                Err(_) => park_forever(),
            }
        }
        self.after_event = true;
        let (operand, stores) = ((address, size), kind == OrderedKind::Store);
        Held { slot, ticket, operand, own: false, stores, seen: tells.then_some(value) }
    }

    /// Whether several threads access a word, as far as the thread knows.
    fn is_shared(&mut self, address: u64) -> bool {
        let owners = &self.machine.owners;
        owners.of(address, self.id, &mut self.fast_path.visited) == Ownership::Shared
    }

    /// Executes a load that takes a ticket, and keeps what it read.
    fn ordered_check(&mut self, address: u64, size: u8) -> Option<Fault> {
        let held = self.begin_write(address, size, OrderedKind::ReadModifyWrite, true);
        let value = held.seen.expect("the event tells what was found");
        self.fast_path.held = Some(held);
        self.fast_path.found(value);
        self.fast_path.release();
        self.cpu.step_load(&mut self.context, value)
    }

    /// Executes a watched load, and keeps what it read.
    fn ordered_load(&mut self, address: u64, size: u8, kind: OrderedKind) -> Option<Fault> {
        if self.fast_path.pages.operand(address, size).is_none() {
            return self.cpu.step(&mut self.context);
        }
        self.begin_access_of(address);
        if kind == OrderedKind::Load {
            if self.fast_path.asking.is_due() {
                self.ask_whether_alone();
            }
            // SAFETY: the thread's own, which is not appending.
            let met = unsafe { &mut *self.log.last_met() };
            let FastPathState { pages, fresh, .. } = &mut *self.fast_path;
            let (ways, read) = ((&*fresh, &self.machine.tickets), || pages.operand(address, size));
            if let Some(value) = met.load_alone((address, size), ways, read) {
                return self.cpu.step_load(&mut self.context, value);
            }
        }
        if kind == OrderedKind::Check && self.is_shared(address) {
            return self.ordered_check(address, size);
        }
        let begin = host::ticks();
        let event = Event {
            object: address,
            nr: u16::from(size),
            ..self.event(EventKind::SyncLoad, begin)
        };
        let FastPathState { pages, visited, .. } = &mut *self.fast_path;
        let (tickets, owners) = (&self.machine.tickets, &self.machine.owners);
        let read = || pages.operand(address, size).unwrap_or(0);
        let is_foreign = || owners.is_foreign(address, self.id, visited);
        let linked = self.log.enter().map(|mut log: Busy<'_>| {
            let linkage = log.met().link(tickets, (address, size), read, is_foreign)?;
            let event = Event { ticket: linkage.version, value: linkage.value, ..event };
            // Signals come after events, and who waits for the word has none.
            let known = linkage.known && !self.attention.is_raised();
            if known {
                log.known_load(&event, kind);
            }
            let (begin, aux) = log.waits_since(&event, kind);
            let result = i32::from(kind == OrderedKind::Poll);
            let event = Event { begin, aux, result, end: host::ticks(), ..event };
            Some((event, known))
        });
        let Ok(linked) = linked else { park_forever() };
        let Some((event, known)) = linked else {
            // Another thread owns the word again.
            return self.ordered_load(address, size, kind);
        };
        if !known {
            self.append_made(None, || event);
        }
        self.cpu.step_load(&mut self.context, event.value)
    }
}
