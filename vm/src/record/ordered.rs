//! Instructions that other threads must see in the recorded order: locked ones, and plain loads
//! and stores that belong to synchronization idioms.
//!
//! Most are executed where they are, in translated code, which calls [`before`] and [`after`].
//! What is not the commonest case goes the long way, as with the library's functions (`leaf`):
//! translated code is left, and the instruction is executed as a single step.
//!
//! The functions that translated code calls run with the guest's thread pointer: nothing in them
//! may use thread-local storage of the host, allocate, or panic.

use super::leaf::{LONG_WAY, LeafThread};
use super::machine::park_forever;
use super::thread::{Flow, GuestThread};
use crate::engine::{Engine, Fault, OrderedAccess, OrderedKind, OrderedLeaf};
use crate::host;
use refrain_trace::{Event, EventKind, order};

/// Lets ordered instructions be executed in line.
pub(super) fn install(engine: &dyn Engine) {
    // SAFETY: every thread's word is its `LeafThread`, armed before it runs guest code
    // (`GuestThread::arm_leaves`); for the rest see the module's documentation.
    unsafe { engine.ordered_leaf(OrderedLeaf { before, after }) };
}

/// Records an instruction that is about to be executed.
///
/// # Safety
/// `access` is live, `data` the calling thread's armed [`LeafThread`].
unsafe extern "sysv64" fn before(access: *mut OrderedAccess, data: u64) -> i64 {
    // SAFETY: the caller's; the thread's own state is used by this thread alone, which is in
    // guest code and so not inside the recorder.
    let (access, thread) = unsafe { (&mut *access, &mut *(data as *mut LeafThread)) };
    thread.record(access).map_or(LONG_WAY, |()| 0)
}

/// The instruction has been executed.
///
/// # Safety
/// `data` is the calling thread's armed [`LeafThread`].
unsafe extern "sysv64" fn after(data: u64) {
    // SAFETY: as in `before`.
    unsafe { &mut *(data as *mut LeafThread) }.release();
}

impl LeafThread {
    /// Appends the event of an ordered instruction, and holds its ticket until [`Self::release`];
    /// says what a load is to read. `None` if it has to go the long way.
    fn record(&mut self, access: &mut OrderedAccess) -> Option<()> {
        let OrderedAccess { address, size, pc, sp, .. } = *access;
        // Signals come after events on the long way, which also knows of `pthread_once`.
        if self.attention.is_raised() || self.beginning_once == Some(address) {
            return None;
        }
        // SAFETY: armed with references that outlive the thread's run.
        let (tickets, log, context) = unsafe { (&*self.tickets, &*self.log, &*self.context) };
        let begin = host::ticks();
        let mut log = log.enter().ok()?;
        if !log.has_room(begin) {
            return None;
        }
        let mut value = self.pages.known_operand(address, size)?;
        let slot = order::slot(address);
        let (code, ticket) = if access.kind == OrderedKind::Load {
            let read = || self.pages.known_operand(address, size).unwrap_or(value);
            let (read, ticket) = tickets.among(slot, read);
            value = read;
            (EventKind::SyncLoad, ticket)
        } else {
            let ticket = tickets.hold(slot);
            self.held = Some((slot, ticket));
            value = self.pages.known_operand(address, size).unwrap_or(value);
            (EventKind::Atomic, ticket)
        };
        let translated = self.translated(context.translating);
        let event = Event {
            code: code as u8,
            pc,
            sp,
            object: address,
            nr: u16::from(size),
            ticket,
            value,
            begin,
            end: host::ticks(),
            overhead: translated.total,
            busy: translated.busy,
            ..Event::default()
        };
        if access.kind != OrderedKind::Load || !log.repeat(&event) {
            log.push(event);
        }
        access.value = value;
        Some(())
    }

    /// Lets others go on with the word of the instruction that was executed last.
    pub(super) fn release(&mut self) {
        if let Some((slot, ticket)) = self.held.take() {
            // SAFETY: armed with a reference that outlives the thread's run.
            unsafe { &*self.tickets }.release(slot, ticket);
        }
    }
}

impl GuestThread {
    /// An instruction that other threads must see in the recorded order.
    pub(crate) fn ordered(&mut self, address: u64, size: u8, kind: OrderedKind) -> Flow {
        let fault = match kind {
            OrderedKind::ReadModifyWrite => self.read_modify_write(address, size),
            OrderedKind::Load => self.ordered_load(address, size),
            OrderedKind::Store => {
                let fault = self.read_modify_write(address, size);
                // As with loads: whether a store is an event may differ in a replay.
                self.after_event = false;
                fault
            }
        };
        fault.map_or(Flow::Continue, |fault| self.fault(fault))
    }

    /// Executes a locked instruction while nobody else can take a ticket of its slot.
    fn read_modify_write(&mut self, address: u64, size: u8) -> Option<Fault> {
        let begin = host::ticks();
        let slot = order::slot(address);
        let event =
            Event { object: address, nr: u16::from(size), ..self.event(EventKind::Atomic, begin) };
        let (log, pages, tickets) = (&self.log, &mut self.leaf.pages, &self.machine.tickets);
        let mut ticket = 0;
        let make = || {
            ticket = tickets.hold(slot);
            Event {
                ticket,
                // A wild pointer faults when the instruction is executed, below.
                value: pages.operand(address, size).unwrap_or(0),
                end: host::ticks(),
                ..event
            }
        };
        if log.append(make, None).is_err() {
            park_forever();
        }
        self.after_event = true;
        let fault = self.cpu.step(&mut self.context);
        self.machine.tickets.release(slot, ticket);
        self.once_begun(address);
        fault
    }

    /// Executes a plain load of a word that locked instructions touch, and keeps what it read. A
    /// loop that reads the same again and again is one event with a count in `aux`.
    fn ordered_load(&mut self, address: u64, size: u8) -> Option<Fault> {
        let begin = host::ticks();
        if self.leaf.pages.operand(address, size).is_none() {
            return self.cpu.step(&mut self.context);
        }
        let read = || self.leaf.pages.operand(address, size).unwrap_or(0);
        let (value, ticket) = self.machine.tickets.among(order::slot(address), read);
        let event = Event {
            object: address,
            nr: u16::from(size),
            ticket,
            value,
            end: host::ticks(),
            ..self.event(EventKind::SyncLoad, begin)
        };
        if !self.log.repeat(&event) {
            self.append(event, None);
        }
        // Whether a load is an event may differ in a replay.
        self.after_event = false;
        self.cpu.step_load(&mut self.context, value)
    }
}
