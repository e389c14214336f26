//! A guest thread of a recording: runs the engine and handles what it reports.

use super::body_stack::BodyStack;
use super::fast_path::FastPathState;
use super::log::ThreadLog;
use super::machine::{Machine, Stop, park_forever};
use super::presence::Presence;
use crate::at_address::AtAddress;
use crate::common::{Copies, How};
use crate::context::Context;
use crate::context::reg::*;
use crate::creation::Creation;
use crate::engine::{Emulate, Exit, Mode, RecordingCpu};
use crate::frame::Exception;
use crate::hooks::HookMap;
use crate::host;
use crate::kick::Attention;
use crate::{
    Error, Feature, Processor, Result, cpuid, first_thread, interrupt_return, reserve, state_area,
};
use crossbeam::channel::{Sender, bounded};
use refrain_trace::payload::SyscallRecord;
use refrain_trace::{Entry, Event, EventKind, NO_TICKET, ThreadId, order};
use std::cell::LazyCell;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::thread::Builder;

/// Stack of the host thread under a guest thread. The guest has its own.
const HOST_STACK: usize = 512 << 10;

/// Whether the guest thread goes on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Flow {
    Continue,
    Exit,
    /// A handler that ran inside of a library function's body has returned.
    Returned,
}

/// One guest thread.
pub(crate) struct GuestThread {
    pub(crate) machine: Arc<Machine>,
    pub(crate) id: ThreadId,
    pub(crate) context: Context,
    pub(crate) cpu: Box<dyn RecordingCpu>,
    pub(crate) log: Arc<ThreadLog>,
    pub(crate) hooks: Arc<HookMap>,
    /// Word that is cleared, and whose waiters are woken, when the thread ends.
    pub(crate) clear_at_exit: u64,
    /// Where the list of robust mutexes is that the thread holds, if it has one.
    pub(crate) robust_list: u64,
    /// Its last exception, which the kernel tells every handler.
    pub(crate) exception: Exception,
    /// It is in a hooked function that is a cancellation point.
    pub(crate) cancellable: bool,
    /// It is cancelled in that function.
    pub(crate) cancelled: bool,
    /// The address of the thread's cancellation mark (`cancel`), if that function is about to change the mark.
    pub(crate) mark_in_body: Option<u64>,
    /// The thread pointer, and the address of the mark of the thread with this pointer, if the library is known.
    pub(crate) mark_at: Option<(u64, Option<u64>)>,
    /// This thread creates another one.
    pub(crate) creating: Option<Creation>,
    /// The thread that this one creates is detached: nobody joins it.
    pub(crate) creates_detached: bool,
    /// Where the thread's `errno` is, once asked for.
    pub(crate) errno_at: Option<u64>,
    /// Signals want to be handled.
    pub(crate) attention: Attention,
    /// The thread has come from guest code with an event.
    pub(crate) after_event: bool,
    /// That event is of a system call that has ended its wait because a handler is to run.
    pub(crate) interrupted: bool,
    /// Instructions that had been counted when the thread began or came from its last system call
    /// or fault, if they are counted since.
    pub(crate) counted: Option<u64>,
    /// How often the thread has yielded since then, whether instructions are counted or not.
    pub(crate) yields: u64,
    /// What bodies of library functions run on.
    pub(crate) body_stack: BodyStack,
    /// The registers at the entries of the functions whose bodies run, the innermost last.
    pub(crate) entries: Vec<Context>,
    /// Frames of handlers that interrupted bodies of library functions.
    pub(crate) handlers_in_bodies: Vec<u64>,
    /// The fault that the thread is handling has its event already.
    pub(crate) confirmed: bool,
    /// No handler may interrupt the body that runs now.
    pub(crate) handlers_wait: bool,
    /// When the last handler in a body returned. The event that it interrupted goes on from this time.
    pub(crate) handlers_until: u64,
    /// What the fast-path functions know of this thread. It refers to `context` and `log`.
    pub(crate) fast_path: AtAddress<FastPathState>,
    /// Copies of operands in memory in common with other processes.
    pub(crate) copies: LazyCell<Box<Copies>>,
    /// Whether it is in guest code, for others to see.
    pub(crate) presence: Presence,
    /// The event of areas at which all threads have stood still, as far as this one has noted.
    pub(crate) stood_at: u64,
    /// How often a thread had asked whether it was alone when this one was in guest code last.
    pub(crate) came_back_from: u64,
}

/// Starts the main thread at the program's entry.
pub(crate) fn start_main(machine: &Arc<Machine>, entry: &Entry, name: &Path) -> Result<()> {
    let context = Context::at_start(machine.processor, entry);
    let (id, log) = machine.add_thread(0);
    let attention = machine.signals.begin_thread(id, None);
    let birth = Birth { id, log, attention, context, clear_at_exit: 0 };
    let (machine, name) = (machine.clone(), name.to_owned());
    let run: Box<dyn FnOnce() + Send> = Box::new(move || {
        host::take_name(&name);
        host::block_signals();
        match machine.engine.attach_recording() {
            Ok(cpu) => run_thread(machine, birth, cpu),
            Err(error) => machine.stop(Stop::Failed(error.into())),
        }
    });
    match first_thread::run_there(run) {
        Ok(()) => Ok(()),
        Err(run) => on_thread(run).map_err(Error::host("cannot start the main thread")),
    }
}

/// What a guest thread begins with.
pub(crate) struct Birth {
    pub(crate) id: ThreadId,
    pub(crate) log: Arc<ThreadLog>,
    pub(crate) attention: Attention,
    pub(crate) context: Context,
    pub(crate) clear_at_exit: u64,
}

/// Starts a host thread for a guest thread, and has it wait for what that begins with. Returns the
/// kernel's id of it. The system may refuse, for want of memory or because there are too many. `apart` is
/// what the thread is not to have in common with this one (flags of `clone`).
pub(crate) fn spawn(machine: &Arc<Machine>, apart: i32) -> io::Result<(i32, Sender<Birth>)> {
    let machine = machine.clone();
    let (tell, told) = bounded(1);
    let (give, given) = bounded(1);
    on_thread(Box::new(move || {
        host::block_signals();
        let Ok(cpu) = machine.engine.attach_recording() else { return };
        if apart != 0 && host::unshare(apart).is_err() {
            return;
        }
        let _ = tell.send(host::thread_id());
        if let Ok(birth) = given.recv() {
            run_thread(machine, birth, cpu);
        }
    }))?;
    let refused = |_| io::Error::from_raw_os_error(libc::EAGAIN);
    Ok((told.recv().map_err(refused)?, give))
}

/// Starts a host thread. It inherits its name from the guest thread that creates it, as natively.
fn on_thread(run: Box<dyn FnOnce() + Send>) -> io::Result<()> {
    reserve::spawn(Builder::new().stack_size(HOST_STACK), run).map(drop)
}

/// Runs a guest thread on the calling host thread, to its end.
fn run_thread(machine: Arc<Machine>, birth: Birth, cpu: Box<dyn RecordingCpu>) {
    let Birth { id, log, attention, context, clear_at_exit } = birth;
    machine.set_kernel_id(id, host::thread_id());
    machine.signals.reach(id, host::thread_id(), cpu.interrupt());
    let (presence, stood_at) = machine.presence(id);
    let mut thread = Box::new(GuestThread {
        hooks: machine.hooks(),
        machine,
        id,
        context,
        cpu,
        log,
        clear_at_exit,
        robust_list: 0,
        exception: Exception::default(),
        cancellable: false,
        cancelled: false,
        mark_in_body: None,
        mark_at: None,
        creating: None,
        creates_detached: false,
        errno_at: None,
        attention,
        after_event: false,
        interrupted: false,
        counted: None,
        yields: 0,
        body_stack: BodyStack::default(),
        entries: Vec::new(),
        handlers_in_bodies: Vec::new(),
        confirmed: false,
        handlers_wait: false,
        handlers_until: 0,
        fast_path: AtAddress::new(FastPathState::default()),
        copies: LazyCell::new(Copies::new),
        presence,
        stood_at,
        came_back_from: 0,
    });
    thread.arm_fast_path();
    let ended = thread.run();
    thread.machine.end_accesses(id);
    if let Err(error) = ended {
        let error = match error {
            Error::Unsupported(what) => {
                let place = thread.machine.describe(thread.context.rip);
                Error::Unsupported(format!("{what}, {place}"))
            }
            other => other,
        };
        thread.machine.stop(Stop::Failed(error));
    }
}

impl GuestThread {
    /// Tells the fast-path functions about this thread, which must not be moved any more.
    pub(crate) fn arm_fast_path(&mut self) {
        let tid = self.machine.kernel_id(self.id);
        let slots = (&self.machine.tickets, &self.machine.owners);
        let context = &raw const self.context;
        self.fast_path.arm(self.id, slots, &self.log, context, tid, &self.attention);
        self.cpu.set_fast_path_data(self.fast_path.address());
        // SAFETY: the table is the log's, which the thread owns too, and the guest thread's own.
        unsafe { self.cpu.set_last_met(self.log.last_met()) };
        self.store_own_in_line(true);
        self.enter_lines();
    }

    fn run(&mut self) -> Result<()> {
        // It comes after the call that has created the thread, and waits for nobody: another thread may
        // wait for this one's first steps with the lock that a third one needs for its creation.
        let start = self.event(EventKind::ThreadStart, host::ticks());
        let object = order::thread_object(self.id);
        self.append(Event { object, flags: NO_TICKET, ..start }, None);
        self.begin_counting();
        self.run_guest().map(|_| ())
    }

    /// Runs the guest until the thread ends, or a handler returns to the body of a library
    /// function.
    pub(crate) fn run_guest(&mut self) -> Result<Flow> {
        loop {
            self.enter_guest();
            let exit = self.cpu.run(&mut self.context, Mode::Observed);
            self.fast_path.take_over_store();
            (self.after_event, self.interrupted) = (false, false);
            let begins_count = exit.begins_count(&self.context);
            let exit = match exit {
                // Nobody else comes to the word before the instruction has been executed.
                Exit::Fault(fault) if self.fast_path.held.is_some() => {
                    self.confirm_in_line(fault).map(Exit::Fault)
                }
                exit => Some(exit),
            };
            // An instruction in line that faults is over, too.
            self.fast_path.release();
            let Some(exit) = exit else {
                self.take_signals();
                continue;
            };
            let flow = match exit {
                Exit::Syscall => self.syscall()?,
                Exit::Hook => self.hook()?,
                Exit::Ordered { address, size, kind } => self.ordered(address, size, kind)?,
                Exit::Spans => self.access_spans()?,
                Exit::Code => self.read_code(),
                Exit::Emulate(what) => self.emulate(what),
                Exit::Fault(fault) => self.fault_in_common(fault, How::Access)?,
                Exit::Interrupted => {
                    self.take_signals_here();
                    Flow::Continue
                }
                Exit::Unsupported(what) => return Err(self.unsupported(what)),
                exit @ (Exit::Return | Exit::AccessesFull | Exit::UnknownTarget | Exit::Alone) => {
                    unreachable!("{exit:?} was not asked for in a recording")
                }
            };
            if begins_count {
                self.begin_counting();
            }
            if flow != Flow::Continue {
                return Ok(flow);
            }
            self.take_signals();
        }
    }

    /// An event that happens here and now; the caller fills in the rest.
    pub(crate) fn event(&mut self, kind: EventKind, begin: u64) -> Event {
        let translated = self.fast_path.translated(self.context.translating);
        Event {
            code: kind as u8,
            pc: self.context.rip,
            sp: self.context.gpr[RSP],
            begin,
            end: begin,
            overhead: translated.total,
            busy: translated.busy,
            ..Event::default()
        }
    }

    /// Takes the ticket of the event's object now, and appends it.
    pub(crate) fn append_ordered(&mut self, event: Event) {
        self.after_event = true;
        let (tickets, slot) = (&self.machine.tickets, order::slot(event.object));
        let begin = event.begin.max(self.handlers_until);
        let make = || {
            let ticket = tickets.try_take(slot, false)?;
            Some(Event { ticket, begin, end: host::ticks(), ..event })
        };
        if self.log.append_patiently(make).is_err() {
            park_forever();
        }
    }

    /// The same, for an event that the log is to amend.
    pub(crate) fn append_open(&mut self, event: Event) {
        self.after_event = true;
        let (tickets, slot) = (&self.machine.tickets, order::slot(event.object));
        let begin = event.begin.max(self.handlers_until);
        let make = || Event { ticket: tickets.take(slot), begin, end: host::ticks(), ..event };
        if self.log.append_open(make).is_err() {
            park_forever();
        }
    }

    /// Appends an event that ends now.
    pub(crate) fn append(&mut self, event: Event, record: Option<&SyscallRecord>) {
        self.append_made(record, || Event { end: host::ticks(), ..event });
    }

    pub(crate) fn append_made(
        &mut self,
        record: Option<&SyscallRecord>,
        make: impl FnOnce() -> Event,
    ) {
        self.after_event = true;
        if self.log.append(make, record).is_err() {
            park_forever();
        }
    }

    fn emulate(&mut self, what: Emulate) -> Flow {
        let begin = host::ticks();
        match what {
            Emulate::Cpuid => cpuid::cpuid(self.machine.processor, &mut self.context),
            Emulate::Xgetbv => cpuid::xgetbv(self.machine.processor, &mut self.context),
            Emulate::State(area) => {
                let done = state_area::execute(area, self.machine.processor, &mut self.context);
                return done.map_or_else(|fault| self.fault(fault), |()| Flow::Continue);
            }
            Emulate::InterruptReturn => {
                let done = interrupt_return::execute(&mut self.context);
                return done.map_or_else(|fault| self.fault(fault), |()| Flow::Continue);
            }
            Emulate::Rdtsc | Emulate::Rdtscp => {
                let event =
                    Event { value: begin, flags: NO_TICKET, ..self.event(EventKind::Rdtsc, begin) };
                self.context.set_ticks(begin, what == Emulate::Rdtscp);
                self.append(event, None);
            }
            Emulate::Random { register, size } => {
                let value = random();
                let event = Event {
                    value,
                    result: 1,
                    nr: u16::from(size),
                    flags: NO_TICKET,
                    ..self.event(EventKind::Rdrand, begin)
                };
                self.context.set_random(register, size, value, true);
                self.append(event, None);
            }
        }
        Flow::Continue
    }

    fn unsupported(&self, what: &str) -> Error {
        Error::Unsupported(format!(
            "the instruction {what} at {:#x} in {} is none that can be recorded: the program sees \
             an x86-64-v2 processor{}; use a build for that{}",
            self.context.rip,
            self.id,
            match self.machine.processor {
                Processor::V2 => ", without AVX".to_owned(),
                processor => format!(" with {processor}"),
            },
            match self.machine.processor.has(Feature::Avx512F) {
                true => "",
                false => ", or, if it is one of AVX-512, record with --cpu v4 or --cpu host",
            },
        ))
    }
}

/// A random number from the host's kernel (the host's processor may not have `rdrand`).
fn random() -> u64 {
    let mut bytes = [0; 8];
    // The kernel interrupts nobody who asks for so little.
    let _ = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty());
    u64::from_le_bytes(bytes)
}
