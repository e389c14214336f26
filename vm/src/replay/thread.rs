//! A guest thread of a replay: runs the engine and holds what it reports against the trace.

use super::account::{PROGRESS, Tally};
use super::fast_path::FastPathState;
use super::gate::{Condition, Gate, SEQUENCE_SLOT};
use super::machine::{Machine, Report};
use super::outcome::{Divergence, DivergenceKind};
use super::recorded_times::{RecordedTimes, Translation};
use crate::at_address::AtAddress;
use crate::common::Copies;
use crate::context::reg::*;
use crate::context::{Context, SeenWords};
use crate::creation::Creation;
use crate::elsewhere;
use crate::engine::{Cpu, Emulate, Exit, Fault, LeaveOut, Mode, OrderedKind};
use crate::host::{self, Guest};
use crate::observer::ThreadObserver;
use crate::same_epoch::{EpochWords, SameEpoch};
use crate::syscall::Call;
use crate::{Error, Result, cpuid, interrupt_return, state_area};
use refrain_trace::payload::{SyscallRecord, Write};
use refrain_trace::{Access, Cursor, Event, EventId, EventKind, ThreadId, order};
use std::cell::LazyCell;
use std::sync::Arc;

const HOST_STACK: usize = 512 << 10;
/// Accesses between two reports to an observer.
const BUFFER: usize = 1 << 14;

/// Full buffers after which a thread gets a bit in the notes: not all have much to report.
const BUSY: u32 = 2;

/// Why a thread stops before its last event.
pub(crate) enum Halt {
    Diverged(Box<Divergence>),
    Failed(Error),
    /// The thread has nothing more to do; it has said so.
    Done,
}

impl From<Error> for Halt {
    fn from(error: Error) -> Halt {
        Halt::Failed(error)
    }
}

impl From<refrain_trace::Error> for Halt {
    fn from(error: refrain_trace::Error) -> Halt {
        Halt::Failed(error.into())
    }
}

/// Where the thread goes on.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Flow {
    Continue,
    /// A handler that ran inside of a library function's body has returned.
    Returned,
}

/// One guest thread.
pub(crate) struct GuestThread {
    pub(crate) machine: Arc<Machine>,
    pub(crate) id: ThreadId,
    pub(crate) context: Context,
    pub(crate) cpu: Box<dyn Cpu>,
    pub(crate) cursor: Cursor,
    pub(super) ahead: Option<Ahead>,
    pub(crate) tally: Tally,
    pub(crate) clear_at_exit: u64,
    /// The ticket held while this thread creates another.
    pub(crate) creating: Option<Creation>,
    /// The place in MEM-S's sequence that the thread is at, and how many it has been at.
    place: Option<u64>,
    placed: usize,
    pub(crate) flow: Flow,
    /// Instructions that had been executed when the thread began or came from its last system call
    /// or fault.
    pub(crate) counted: u64,
    /// How often the thread has yielded since then.
    pub(crate) yields: u64,
    /// Frames of handlers that interrupted bodies of library functions.
    pub(crate) handlers_in_bodies: Vec<u64>,
    observer: Option<Box<dyn ThreadObserver>>,
    accesses: Vec<Access>,
    /// Its bit in the notes, once it has filled its buffer often enough.
    bit: Option<u8>,
    filled: u32,
    pub(crate) fast_path: AtAddress<FastPathState>,
    /// Of operands in memory in common with other processes.
    pub(crate) copies: LazyCell<Box<Copies>>,
    pub(crate) translation: Translation,
}

/// Starts the main thread.
pub(crate) fn start_main(machine: &Arc<Machine>) -> Result<()> {
    let context = Context::at_start(machine.processor, &machine.trace.header().entry);
    spawn(machine, ThreadId(0), context, 0)
}

/// Starts a guest thread on a host thread of its own.
pub(crate) fn spawn(
    machine: &Arc<Machine>,
    id: ThreadId,
    context: Context,
    clear_at_exit: u64,
) -> Result<()> {
    let machine = machine.clone();
    machine.gate.enter(id);
    machine.count_thread();
    std::thread::Builder::new()
        .name(format!("guest {id}"))
        .stack_size(HOST_STACK)
        .spawn(move || {
            host::block_signals();
            machine.cores.settle(id.0);
            if machine.recorded_times.is_some() {
                host::wake_in_time();
            }
            let cpu = match machine.engine.attach() {
                Ok(cpu) => cpu,
                Err(e) => return machine.report(Report::Failed(e.into())),
            };
            let cursor = machine.trace.cursor(id);
            let observer = machine.options.observer.as_ref().map(|o| o.thread(id));
            let fast_path = AtAddress::new(FastPathState::new(id, &machine.gate));
            let mut thread = GuestThread {
                machine,
                id,
                context,
                cpu,
                cursor,
                ahead: None,
                tally: Tally::default(),
                clear_at_exit,
                creating: None,
                place: None,
                placed: 0,
                flow: Flow::Continue,
                counted: 0,
                yields: 0,
                handlers_in_bodies: Vec::new(),
                accesses: vec![Access::default(); if observer.is_some() { BUFFER } else { 0 }],
                observer,
                bit: None,
                filled: 0,
                fast_path,
                copies: LazyCell::new(Copies::new),
                translation: Translation::default(),
            };
            thread.cpu.set_fast_path_data(thread.fast_path.address());
            thread.fast_path.counts = thread.cpu.filter();
            if !thread.machine.gate.is_live() {
                // SAFETY: the table is dropped with the thread, whose executor it outlives or
                // goes with; it is the thread's own.
                unsafe { thread.cpu.set_last_met(&raw mut *thread.fast_path.met) };
            }
            thread.run_to_the_end();
        })
        .map_err(Error::host("starting a guest thread"))?;
    Ok(())
}

/// A second look at a thread's events, ahead of the first.
pub(super) struct Ahead {
    pub(super) cursor: Cursor,
    /// The last event so far that is not one of accesses, and where it is.
    pub(super) found: Option<(EventId, Event)>,
}

impl Ahead {
    pub(super) fn new(cursor: Cursor) -> Ahead {
        Ahead { cursor, found: None }
    }
}

impl GuestThread {
    fn run_to_the_end(&mut self) {
        let report = match self.run() {
            Halt::Done => {
                self.tally.instructions = self.context.retired;
                Report::Done(self.id, self.tally, self.machine.elapsed())
            }
            Halt::Diverged(divergence) => Report::Diverged(*divergence, self.tally),
            Halt::Failed(error) => Report::Failed(error),
        };
        // What the observer has left to do is no computation of the guest's.
        self.machine.gate.arrivals.end(self.id);
        if let Some(observer) = &mut self.observer {
            observer.finish();
        }
        self.machine.thread_done();
        self.machine.report(report);
        self.machine.gate.leave(self.id);
    }

    fn run(&mut self) -> Halt {
        self.rewind_accesses();
        self.choose_accesses();
        assert!(
            !self.leaves_out_epochs() || self.context.same_epoch.notes != 0,
            "an observer that leaves out what the same epoch has has notes of every thread"
        );
        self.machine.begin();
        match self.start() {
            Ok(()) => {}
            Err(halt) => return halt,
        }
        match self.run_guest() {
            Ok(()) => unreachable!("no handler interrupts a body that is not there"),
            Err(halt) => halt,
        }
    }

    /// Runs the guest until there is nothing more to do, or a handler returns to the body of a
    /// library function.
    pub(crate) fn run_guest(&mut self) -> Result<(), Halt> {
        loop {
            // A signal may interrupt the thread before it executes anything, also in a handler that has just
            // begun.
            self.take_signals()?;
            self.enter_guest()?;
            match self.creating {
                // A function that is called now tells that no thread will be created.
                Some(_) => self.fast_path.keep_all(),
                None => self.fast_path.lend(&mut self.cursor, &mut self.tally),
            }
            self.context.leave_at = self.next_interruption()?;
            if self.fast_path.counts.is_none() {
                // Others wait for them.
                self.events_before()?;
            }
            self.expect_loads()?;
            let exit = self.cpu.run(&mut self.context, Mode::Observed);
            self.report_accesses();
            let begins_count = exit.begins_count(&self.context);
            let exit = match exit {
                // Nobody else comes to the word before the instruction has been executed.
                Exit::Fault(fault) if self.fast_path.performing.is_some() => {
                    self.until_accessible(fault)?.map(Exit::Fault)
                }
                exit => Some(exit),
            };
            // An instruction in line that faults is over, too.
            self.fast_path.finish();
            let Some(exit) = exit else { continue };
            if matches!(exit, Exit::Syscall | Exit::Hook) {
                self.go_away()?;
            }
            let result = match exit {
                Exit::Syscall => {
                    let done = self.read_common().and_then(|()| self.syscall());
                    if self.machine.common.any() {
                        elsewhere::show(Vec::new());
                    }
                    done.and_then(|()| self.areas_of_common())
                }
                Exit::Hook => self.hook(),
                Exit::Ordered { address, size, kind } => self.ordered(address, size, kind),
                Exit::Spans => self.access(OrderedKind::Write),
                Exit::Code => self.read_code(),
                Exit::Alone => self.execute_alone(),
                Exit::Emulate(what) => self.emulate(what),
                Exit::AccessesFull => {
                    self.filled_buffer();
                    Ok(())
                }
                Exit::Fault(fault) => match self.fault_in_common(fault)? {
                    Some(fault) => self.fault(fault),
                    None => Ok(()),
                },
                Exit::Interrupted => self.handovers(),
                Exit::Unsupported(what) => Err(Halt::Failed(Error::Unsupported(format!(
                    "{what} (at {:#x})",
                    self.context.rip
                )))),
                Exit::UnknownTarget => self.nowhere(),
                Exit::Return => unreachable!("no function is run opaquely in a replay"),
            };
            result?;
            if begins_count {
                self.begin_counting();
            }
            if std::mem::replace(&mut self.flow, Flow::Continue) == Flow::Returned {
                return Ok(());
            }
        }
    }

    /// The thread has gone to where no code was executed in the recording. If there was none, it
    /// came to a fault there.
    fn nowhere(&mut self) -> Result<(), Halt> {
        self.events_before()?;
        let pc = self.context.rip;
        if let Some(fault) = self.recorded_fault(pc)? {
            return self.fault(fault);
        }
        let faulted = self.cursor.peek()?.filter(|event| event.is_of_fault_at(pc));
        if let Some(signal) = faulted.map(|event| event.value as i32) {
            return self.fault(Fault::by_signal(signal, pc));
        }
        let actual = format!("a jump to {pc:#x}");
        self.diverge(DivergenceKind::Control, "recorded code".into(), actual)
    }

    fn start(&mut self) -> Result<(), Halt> {
        // A thread that did not come to its start before the end of the recording.
        if self.cursor.peek()?.is_none() {
            return Err(Halt::Done);
        }
        let event = self.next(EventKind::ThreadStart)?;
        self.perform(&event)?;
        self.finish_event(&event)
    }

    /// The thread's next event, which must be of this kind.
    pub(crate) fn next(&mut self, kind: EventKind) -> Result<Event, Halt> {
        self.next_of(&[kind])
    }

    /// The thread's next event, which must be of one of these kinds.
    pub(crate) fn next_of(&mut self, kinds: &[EventKind]) -> Result<Event, Halt> {
        self.handlers_in_body()?;
        if self.machine.options.until == Some((self.id, self.cursor.position())) {
            return Err(Halt::Done);
        }
        let actual = || kinds.iter().map(|k| k.name()).collect::<Vec<_>>().join(" or ");
        match self.cursor.next()? {
            None if self.machine.is_truncated() => Err(Halt::Done),
            None => {
                self.diverge(DivergenceKind::Event, "the end of the recording".into(), actual())
            }
            Some(event) if kinds.contains(&event.kind()) => {
                self.loads_are_done(&event)?;
                self.machine.gate.arrivals.arrive(self.id, event.end);
                if let Some(times) = &self.machine.recorded_times {
                    let so_far = self.context.translating;
                    times.last_translating(&mut self.translation, so_far, &event);
                }
                Ok(event)
            }
            Some(event) => self.diverge(DivergenceKind::Event, format!("{event:?}"), actual()),
        }
    }

    /// The payload of the event just taken.
    pub(crate) fn record(&mut self) -> Result<SyscallRecord, Halt> {
        Ok(self.cursor.payload()?.unwrap_or_default())
    }

    /// Holds a recorded event against what the guest did.
    pub(crate) fn compare(&mut self, recorded: &Event, actual: &Event) -> Result<(), Halt> {
        self.tally.digests += 1;
        let kind = if (recorded.pc, recorded.sp) != (actual.pc, actual.sp) {
            DivergenceKind::Position
        } else if (recorded.object, recorded.nr) != (actual.object, actual.nr) {
            DivergenceKind::Arguments
        } else {
            self.tally.equal += 1;
            return Ok(());
        };
        let side = |event: &Event| {
            let name = recorded.kind().name();
            format!(
                "{name} of {:#x} (nr {}) at {:#x}, sp {:#x}",
                event.object, event.nr, event.pc, event.sp
            )
        };
        self.diverge(kind, side(recorded), side(actual))
    }

    /// Waits for the event's turn. Others may go on once [`Self::finish_event`] is called.
    pub(crate) fn perform(&mut self, event: &Event) -> Result<(), Halt> {
        if !event.has_ticket() {
            return Ok(());
        }
        if self.machine.gate.freed().is_some_and(|freed| freed.frees(event)) {
            return self.await_sources();
        }
        self.await_turn(order::slot(event.object), event.ticket)
    }

    /// Waits for the ends of the sections that an acquisition of a freed lock comes after.
    fn await_sources(&mut self) -> Result<(), Halt> {
        let machine = self.machine.clone();
        if let Some(freed) = machine.gate.freed() {
            let mut sources = freed.sources(self.id, self.event_id().0);
            sources.try_for_each(|source| self.wait(Gate::ended(source)))?;
        }
        Ok(())
    }

    pub(crate) fn await_turn(&mut self, slot: usize, ticket: u64) -> Result<(), Halt> {
        self.take_place()?;
        self.wait(Condition::Turn { slot, ticket })
    }

    /// Under MEM-S: waits for the place of the next ordered event in the sequence of all.
    fn take_place(&mut self) -> Result<(), Halt> {
        let places = self.machine.sequence.get(self.id.index());
        self.place = places.and_then(|places| places.get(self.placed)).copied();
        self.placed += 1;
        self.machine.gate.publish(self.id, self.context.retired);
        match self.place {
            Some(place) => self.wait(Condition::Turn { slot: SEQUENCE_SLOT, ticket: place }),
            None => Ok(()),
        }
    }

    /// Under MEM-S: lets the next in the sequence go on.
    pub(crate) fn leave_place(&mut self) {
        if let Some(place) = self.place.take() {
            self.machine.gate.advance(SEQUENCE_SLOT, place);
        }
    }

    /// Waits at the gate; a wait that cannot end is a divergence, or the end of a trace that was
    /// cut off.
    pub(crate) fn wait(&mut self, condition: Condition) -> Result<(), Halt> {
        if self.machine.gate.wait(self.id, condition).is_ok() {
            return Ok(());
        }
        self.stuck(condition)
    }

    /// No thread can go on, and this one waits for `condition`.
    pub(crate) fn stuck(&mut self, condition: Condition) -> Result<(), Halt> {
        if self.machine.is_truncated() {
            return Err(Halt::Done);
        }
        let (kind, expected) = match condition {
            Condition::Value { address, value, size } => {
                // It is at its place, and races with whoever has written the other value.
                self.note_access(address, size, Access::ATOMIC);
                (DivergenceKind::Value, format!("{value:#x} at {address:#x}"))
            }
            other => (DivergenceKind::Stuck, format!("{other:?}")),
        };
        let actual = match condition {
            Condition::Value { address, size, .. } => {
                let now = host::Guest.operand(address, size);
                now.map_or("no memory there".into(), |now| format!("{now:#x} at {address:#x}"))
            }
            _ => self.machine.gate.explain(),
        };
        self.diverge(kind, expected, actual)
    }

    /// Lets something last, in a replay that is measured.
    pub(crate) fn times(&self, last: impl FnOnce(&RecordedTimes)) {
        if let Some(times) = &self.machine.recorded_times {
            last(times);
        }
    }

    /// The event has had its effect: the next in its order may go on.
    pub(crate) fn finish_event(&mut self, event: &Event) -> Result<(), Halt> {
        self.finish_event_of(event, order::slot(event.object))
    }

    /// The same, where the event's ticket is one of `slot`. Observers see the event before those
    /// that come after it can happen.
    pub(crate) fn finish_event_of(&mut self, event: &Event, slot: usize) -> Result<(), Halt> {
        let more = self.note_event(event);
        let gate = &self.machine.gate;
        if event.has_ticket() {
            gate.advance(slot, event.ticket);
        }
        if gate.freed().is_some_and(|freed| freed.frees(event))
            && gate.pass(self.id, self.event_id().0)
        {
            gate.wake();
        }
        more
    }

    /// Counts an event and shows it to the observer. After its last event the thread has nothing
    /// to compare any more, and stops.
    pub(crate) fn note_event(&mut self, event: &Event) -> Result<(), Halt> {
        self.tally.events += 1;
        if self.tally.events.is_multiple_of(PROGRESS) {
            let progress = &self.machine.options.progress;
            progress.fetch_add(PROGRESS, std::sync::atomic::Ordering::Relaxed);
        }
        let id = self.event_id();
        if let Some(observer) = &mut self.observer {
            observer.event(id, event, self.context.retired);
        }
        self.leave_place();
        self.choose_accesses();
        if self.cursor.peek()?.is_none() {
            return Err(Halt::Done);
        }
        Ok(())
    }

    /// Shows the observer a system call that is about to be entered.
    pub(crate) fn note_entry(&mut self, call: &Event) {
        let id = self.event_id();
        if let Some(observer) = &mut self.observer {
            observer.enter(id, call);
        }
    }

    /// Shows the observer what the kernel has read and written for a call that returns.
    pub(crate) fn note_kernel(&mut self, call: &Call, result: i64, record: &SyscallRecord) {
        let Some(observer) = &mut self.observer else { return };
        let mut reads = call.reads(&Guest);
        reads.extend(call.sent(result, &Guest).into_iter().flat_map(|sent| sent.ranges));
        let end = |write: &Write| write.address.saturating_add(write.bytes.len() as u64);
        let writes: Vec<_> = record.writes.iter().map(|w| w.address..end(w)).collect();
        observer.kernel(&reads, &writes);
    }

    /// Shows the observer an instruction that an event would tell of, if its thread were not the only one
    /// that accesses the word.
    pub(crate) fn note_own(&mut self, event: &Event) {
        let id = self.event_id();
        if let Some(observer) = &mut self.observer {
            observer.own(id, event);
        }
        self.choose_accesses();
    }

    /// Shows the observer the access of an ordered instruction that was executed by itself and has
    /// no event.
    pub(crate) fn note_access(&mut self, address: u64, size: u8, kind: u16) {
        if let Some(observer) = &mut self.observer {
            let (pc, size) = (self.context.rip as u32, u16::from(size));
            observer.accesses(&[Access { address, pc, size, kind }]);
        }
        self.choose_accesses();
    }

    /// The event taken last.
    pub(super) fn event_id(&self) -> EventId {
        EventId(self.cursor.position().0.saturating_sub(1))
    }

    /// The digest of where the guest is.
    pub(crate) fn here(&self, kind: EventKind) -> Event {
        Event {
            code: kind as u8,
            pc: self.context.rip,
            sp: self.context.gpr[RSP],
            ..Event::default()
        }
    }

    /// Reports a difference.
    pub(crate) fn diverge<T>(
        &self,
        kind: DivergenceKind,
        expected: String,
        actual: String,
    ) -> Result<T, Halt> {
        Err(Halt::Diverged(Box::new(Divergence {
            kind,
            thread: self.id,
            event: self.event_id(),
            pc: self.site(),
            expected,
            actual,
        })))
    }

    /// Where the thread is, as events have it: at the entry of a hooked function, where it was
    /// called from.
    fn site(&self) -> u64 {
        match self.machine.hooks.at(self.context.rip) {
            Some(_) => host::Guest.word(self.context.gpr[RSP]).unwrap_or(0),
            None => self.context.rip,
        }
    }

    fn emulate(&mut self, what: Emulate) -> Result<(), Halt> {
        match what {
            Emulate::Cpuid => cpuid::cpuid(self.machine.processor, &mut self.context),
            Emulate::Xgetbv => cpuid::xgetbv(self.machine.processor, &mut self.context),
            Emulate::State(area) => {
                let done = state_area::execute(area, self.machine.processor, &mut self.context);
                return done.or_else(|fault| self.fault(fault));
            }
            Emulate::InterruptReturn => {
                let done = interrupt_return::execute(&mut self.context);
                return done.or_else(|fault| self.fault(fault));
            }
            Emulate::Rdtsc | Emulate::Rdtscp => {
                let actual = self.here(EventKind::Rdtsc);
                let event = self.next(EventKind::Rdtsc)?;
                self.compare(&event, &actual)?;
                self.context.set_ticks(event.value, what == Emulate::Rdtscp);
                return self.finish_event(&event);
            }
            Emulate::Random { register, size } => {
                let actual = Event { nr: u16::from(size), ..self.here(EventKind::Rdrand) };
                let event = self.next(EventKind::Rdrand)?;
                self.compare(&event, &actual)?;
                self.context.set_random(register, size, event.value, event.result == 1);
                return self.finish_event(&event);
            }
        }
        Ok(())
    }

    /// Shows the observer what the engine logged since the last time.
    pub(crate) fn report_accesses(&mut self) {
        let Some(observer) = &mut self.observer else {
            return;
        };
        let start = self.accesses.as_ptr() as u64;
        let used = (self.context.access_cursor - start) as usize / size_of::<Access>();
        if used > 0 {
            observer.accesses(&self.accesses[..used]);
        }
        self.rewind_accesses();
        self.choose_accesses();
    }

    fn filled_buffer(&mut self) {
        self.filled = self.filled.saturating_add(1);
        if self.filled == BUSY {
            let seen = self.machine.options.observer.as_ref().and_then(|o| o.seen());
            self.bit = seen.and_then(|seen| seen.claim());
            self.choose_accesses();
        }
    }

    fn leaves_out_epochs(&self) -> bool {
        let observer = self.machine.options.observer.as_ref();
        observer.is_some_and(|observer| observer.leaves_out() == LeaveOut::SameEpoch)
    }

    /// Says which accesses are to be logged from here on.
    fn choose_accesses(&mut self) {
        if let Some(observer) = &self.observer {
            self.context.seen = SeenWords::new(self.bit, observer.repeats());
            let words = |notes: &SameEpoch| EpochWords {
                notes: std::ptr::from_ref(notes) as u64,
                epoch: notes.epoch(),
            };
            // The observer is not called before the guest has left translated code, so they stay
            // where they are.
            self.context.same_epoch = observer.same_epoch().map(words).unwrap_or_default();
        }
    }

    fn rewind_accesses(&mut self) {
        let range = self.accesses.as_mut_ptr_range();
        self.context.access_cursor = range.start as u64;
        self.context.access_limit = range.end as u64;
    }
}
