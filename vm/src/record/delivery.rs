//! Running the guest's signal handlers: when a thread takes its signals, and the system calls
//! that end because of one.
//!
//! A thread takes its signals right after an event, where a replay finds the same place without
//! counting instructions, or at once if it waits in one. What a replay needs is one event with the
//! frame.
//!
//! A thread that computes would take them with its next event, which may never come. So it is
//! fetched out of guest code, between two of its blocks, and the event says how many instructions
//! it had executed since its last system call. They are counted only from when the program has a
//! handler for what may come at any time and something that sends it
//! ([`Machine::count_if_needed`](super::machine::Machine::count_if_needed)), as counting is not
//! free, or from the second thread on if it sends signals to threads; a thread that has been computing since
//! before that takes its first signal at its next watched load, which has an event then. Where a thread
//! yields, which is no event, it takes a signal at once, and the event says how often it had yielded.

use super::machine::{Stop, park_forever};
use super::signals::{Handling, Signal, Taken, fault_info, forced};
use super::thread::{Flow, GuestThread};
use super::waits;
use crate::context::reg::RSP;
use crate::engine::{Cause, Fault};
use crate::frame::{self, AltStack, Exception, Frame};
use crate::host::{self, Guest};
use crate::layout::PAGE;
use crate::syscall::{self, Call};
use crate::{Result, elsewhere, kick};
use refrain_trace::payload::{SyscallRecord, Write};
use refrain_trace::{Ending, Event, EventKind, NO_TICKET, delivery, order};
use std::ops::{Range, RangeFrom};
use std::sync::PoisonError;

const EINTR: i64 = 4;
/// `si_code` of a SIGSEGV: there is no memory, or it may not be accessed so.
const SEGV_MAPERR: i32 = 1;
const SEGV_ACCERR: i32 = 2;
/// Addresses that programs may have, or the kernel has; others are no page's.
const LOWER_HALF: Range<u64> = 0..1 << 47;
const UPPER_HALF: RangeFrom<u64> = 0xffff_8000_0000_0000..;

impl Exception {
    fn note(&mut self, fault: &Fault) {
        (self.vector, self.error) = (fault.cause.vector, fault.cause.error);
        if self.vector == Cause::PAGE {
            self.address = fault.address;
        }
    }

    /// Whether the instruction is executed again, if the handler does nothing about it.
    fn executes_again(&self) -> bool {
        ![Cause::DEBUG, Cause::BREAKPOINT, Cause::OVERFLOW].contains(&self.vector)
    }
}

/// Where a thread takes a signal.
#[derive(Clone, Copy, Debug)]
struct TakenAt {
    /// One of [`delivery`].
    nr: u16,
    /// Instructions executed or times yielded, where that is what tells the place.
    count: u64,
}

impl TakenAt {
    const AFTER_EVENT: TakenAt = TakenAt { nr: delivery::AFTER_EVENT, count: 0 };
}

impl GuestThread {
    /// Runs the handlers of signals that have arrived, if this is a place for it. (While the thread
    /// creates another, it is not until the thread has to wait: others wait for it to be done.)
    pub(crate) fn take_signals(&mut self) {
        if !self.attention.is_raised() || self.creating.is_some() && !self.interrupted {
            return;
        }
        self.end_if_told();
        if !self.after_event {
            return;
        }
        self.take_all(TakenAt::AFTER_EVENT);
    }

    /// The same in the middle of a computation, if a replay can find the place.
    pub(crate) fn take_signals_here(&mut self) {
        if !self.attention.is_raised() || self.creating.is_some() {
            return;
        }
        self.end_if_told();
        if let Some(counted) = self.counted {
            let count = self.context.retired - counted;
            self.take_all(TakenAt { nr: delivery::AT_COUNT, count });
        } else if self.machine.is_child() {
            // Nobody replays a child process, so the place need not be told.
            self.take_all(TakenAt::AFTER_EVENT);
        } else {
            // A replay could not find this place. So the thread forgets what it has met: its next watched load
            // then has an event, and the thread takes its signals behind that.
            // SAFETY: the thread's own, which is not appending; visitors leave it alone.
            unsafe { &mut *self.log.last_met() }.forget();
        }
    }

    /// The same where the thread has just yielded.
    pub(crate) fn take_signals_at_yield(&mut self) {
        if !self.attention.is_raised() || self.creating.is_some() {
            return;
        }
        self.end_if_told();
        self.take_all(TakenAt { nr: delivery::AT_YIELD, count: self.yields });
    }

    /// From here on the thread's yields are counted anew, and its instructions if they are counted.
    pub(crate) fn begin_counting(&mut self) {
        self.yields = 0;
        self.counted = self.machine.counts().then_some(self.context.retired);
    }

    /// Ends the thread if another one executes a program. That needs no event: a replay has a thread
    /// stop behind its last one, and executes a program when all others have.
    fn end_if_told(&mut self) {
        if self.machine.signals.is_to_end(self.id) {
            self.end_for_program();
        }
    }

    fn end_for_program(&mut self) -> ! {
        self.end_accesses();
        self.log.retire();
        self.machine.thread_left(self.id);
        park_forever()
    }

    fn take_all(&mut self, mut place: TakenAt) {
        while let Some(taken) = self.machine.signals.take(self.id) {
            match taken {
                Taken::End => self.end_for_program(),
                Taken::Terminate(signal) => self.end_by_signal_at(signal as i32, place),
                Taken::Stop(signal) => {
                    host::stop_process(signal as i32);
                    continue;
                }
                Taken::Handle(handling) => self.handle(&handling, place),
            }
            // A further signal interrupts the handler of the one before at its first instruction.
            place = TakenAt::AFTER_EVENT;
        }
    }

    /// The thread goes on at the start of a handler, right after an event.
    pub(crate) fn handle_after_event(&mut self, handling: &Handling) {
        self.handle(handling, TakenAt::AFTER_EVENT);
    }

    /// The thread goes on at the start of a handler.
    fn handle(&mut self, handling: &Handling, place: TakenAt) {
        let event = self.event(EventKind::Signal, host::ticks());
        let entries = self.machine.tickets.given(order::SYSCALL_SLOT);
        let Handling { signal, action, mask, stack } = handling;
        let (action, mark) = match self.cancelling(handling) {
            Some((action, mark)) => (action, Some(mark)),
            None => (*action, None),
        };
        if self.cancelled {
            // In the call that the thread has just returned from.
            self.context.rip -= 1;
        }
        let Frame { address, bytes } = frame::build(
            &self.context,
            &frame::Delivery {
                info: &signal.info,
                action,
                mask: *mask,
                stack: *stack,
                processor: self.machine.processor,
                exception: self.exception,
                executes_again: place.nr == delivery::FAULT && self.exception.executes_again(),
            },
        );
        if !Guest.write(address, &bytes) {
            return self.handle_without_stack(handling, place);
        }
        if stack.flags & frame::SS_AUTODISARM != 0 {
            self.machine.signals.stack(self.id, Some(AltStack::default()));
        }
        frame::enter(&mut self.context, address, action[0], signal.number);
        let event = Event {
            value: signal.number,
            object: action[0],
            aux: address,
            nr: place.nr,
            ticket: place.count,
            flags: NO_TICKET,
            ..event
        };
        if let Some(creation) = &mut self.creating {
            creation.begin_handler();
        }
        let mut writes = vec![Write { address, bytes }];
        if let Some(mark) = mark {
            Guest.write(mark.address, &mark.bytes);
            writes.push(mark);
        }
        let args = [entries, 0, 0, 0, 0, 0];
        self.append(event, Some(&SyscallRecord { args, writes, ..SyscallRecord::default() }));
    }

    /// A handler's stack has no room for the frame. The kernel then sends a SIGSEGV in its place, whose handler
    /// may have a stack of its own, with the mask from before.
    fn handle_without_stack(&mut self, handling: &Handling, place: TakenAt) {
        let number = libc::SIGSEGV as u64;
        if handling.signal.number == number {
            self.end_by_signal_at(libc::SIGSEGV, place);
        }
        self.machine.signals.mask(self.id, Some(handling.mask));
        let signal = Signal { number, info: forced(number) };
        match self.machine.signals.take_fault(self.id, signal) {
            Taken::Handle(handling) => self.handle(&handling, place),
            _ => self.end_by_signal_at(libc::SIGSEGV, place),
        }
    }

    /// Runs one handler while the body of a library function waits; the body's state is put back
    /// afterwards. The handler finds the thread at the function's entry, where it is in a replay.
    fn handle_in_body(&mut self) -> Result<()> {
        let handling = match self.machine.signals.take(self.id) {
            None => return Ok(()),
            Some(Taken::End) => self.end_for_program(),
            Some(Taken::Terminate(signal)) => self.end_by_signal(signal as i32),
            Some(Taken::Stop(signal)) => {
                host::stop_process(signal as i32);
                return Ok(());
            }
            Some(Taken::Handle(handling)) => handling,
        };
        let body = self.context.clone();
        let sp = body.gpr[RSP];
        let outer = self.body_stack.holds(sp).then(|| {
            let entry = self.entries.last().expect("a body runs on this stack").clone();
            self.context.restore(entry);
            self.body_stack.begin_below(sp)
        });
        self.handle(&handling, TakenAt { nr: delivery::IN_BODY, count: 0 });
        self.handlers_in_bodies.push(self.frame_address());
        let cancelling = (self.cancellable, self.mark_in_body);
        if self.run_guest()? == Flow::Exit {
            // The handler has ended the thread, which must not return to the body.
            park_forever();
        }
        self.presence.leave();
        self.context.restore(body);
        (self.cancellable, self.mark_in_body) = cancelling;
        if let Some(top) = outer {
            self.body_stack.begin_at(top);
        }
        self.handlers_until = host::ticks();
        Ok(())
    }

    /// At a handler's first instruction, the frame is where the stack pointer points.
    fn frame_address(&self) -> u64 {
        self.context.gpr[RSP]
    }

    /// Waits for something other than a system call, in the body of a library function, letting
    /// handlers run meanwhile. `done` is asked after each of them.
    pub(crate) fn wait_in_body(
        &mut self,
        mut done: impl FnMut(&GuestThread) -> bool,
    ) -> Result<()> {
        while !done(self) {
            match self.machine.signals.restarts(self.id) {
                Some(_) if self.is_cancelled_in_wait() => break,
                Some(_) => self.handle_in_body()?,
                None => self.machine.signals.settle(self.id),
            }
        }
        Ok(())
    }

    /// Issues a call as it is; one that waits ends when a handler is to run. The result may be
    /// [`syscall::BEGIN_AGAIN`].
    pub(crate) fn issue(&mut self, call: &Call, nr: u16) -> i64 {
        let mut args = *call.arguments();
        let lent = self.lend_mask(call, &mut args);
        let kept = self.with_common(call, &mut args);
        let result = loop {
            // SAFETY: the table lets through only calls that touch no memory but what their
            // arguments point to (the guest's) and no descriptor of the recorder's.
            let result = unsafe { kick::syscall(u64::from(nr), args, &self.attention) };
            match result {
                Some(result) if result != -EINTR || !self.attention.is_raised() => break result,
                _ => {}
            }
            match self.machine.signals.restarts(self.id) {
                None => self.machine.signals.settle(self.id),
                Some(_) if result.is_some() || lent => break -EINTR,
                Some(false) if call.may_wait() && waits::would_wait(call, nr) => {
                    waits::keep_rest(call, nr);
                    break -EINTR;
                }
                Some(_) => break syscall::BEGIN_AGAIN,
            }
        };
        if !kept.is_empty() {
            self.message_back(call, &args);
        }
        drop(kept);
        self.interrupted =
            self.attention.is_raised() && [-EINTR, syscall::BEGIN_AGAIN].contains(&result);
        // A handler that is to run takes the mask back when it returns.
        if lent && (result != -EINTR || self.machine.signals.restarts(self.id).is_none()) {
            self.machine.signals.take_mask_back(self.id);
        }
        result
    }

    /// A call that brings a signal mask along does not give it to the host's kernel.
    fn lend_mask(&mut self, call: &Call, args: &mut [u64; 6]) -> bool {
        let Some((at, indirect)) = call.mask_argument() else { return false };
        let pointer = if indirect && args[at] != 0 { Guest.word(args[at]) } else { Some(args[at]) };
        args[at] = 0;
        let mask = pointer.filter(|&pointer| pointer != 0).and_then(|pointer| Guest.word(pointer));
        if let Some(mask) = mask {
            self.machine.signals.lend_mask(self.id, mask);
        }
        mask.is_some()
    }

    /// Issues a call of a library function's body; handlers run inside of the body.
    pub(crate) fn issue_in_body(&mut self, nr: u64, mut args: [u64; 6]) -> Result<i64> {
        let named = args;
        let call = elsewhere::is_any().then(|| syscall::resolve(nr, args).ok()).flatten();
        let _kept = call.map(|call| self.with_common(&call, &mut args));
        // Other waits are for locks of the library's own, and short.
        let is_the_wait = nr == libc::SYS_futex as u64 && waits_until_a_time(args[1]);
        if self.handlers_wait || self.cancelled && !is_the_wait {
            // SAFETY: as below.
            return Ok(unsafe { host::syscall(nr, args) });
        }
        loop {
            if is_the_wait {
                self.restore_descriptor();
            }
            // SAFETY: the caller lets through only calls that read and write what their
            // arguments point to, which the kernel checks; the host keeps nothing at addresses
            // that the guest holds.
            let result = unsafe { kick::syscall(nr, args, &self.attention) };
            match result {
                Some(result) if result != -EINTR || !self.attention.is_raised() => {
                    return Ok(result);
                }
                _ => {}
            }
            match self.machine.signals.restarts(self.id) {
                None => self.machine.signals.settle(self.id),
                Some(_) if self.is_cancelled_in_wait() => {
                    if is_the_wait {
                        return Ok(-i64::from(libc::ETIMEDOUT));
                    }
                    return self.issue_in_body(nr, named);
                }
                Some(restarts) => {
                    self.handle_in_body()?;
                    // What the library does beside its waits, others may wait for.
                    if !restarts && may_sleep(nr, named[1]) {
                        return Ok(-EINTR);
                    }
                }
            }
        }
    }

    /// The guest has caused an exception: its handler runs, or it ends.
    pub(crate) fn fault(&mut self, fault: Fault) -> Flow {
        let Some(fault) = self.confirm_by_step(fault) else { return Flow::Continue };
        self.confirmed = false;
        let fault = self.as_the_kernel_says(fault);
        self.exception.note(&fault);
        let signal = Signal { number: fault.signal as u64, info: fault_info(&fault) };
        if let Taken::Handle(handling) = self.machine.signals.take_fault(self.id, signal) {
            self.handle(&handling, TakenAt { nr: delivery::FAULT, count: 0 });
            return Flow::Continue;
        }
        let event = Event {
            value: fault.signal as u64,
            aux: fault.address,
            nr: delivery::FAULT,
            flags: NO_TICKET,
            ..self.event(EventKind::Killed, host::ticks())
        };
        self.append(event, None);
        self.machine.stop(Stop::Ended(Ending::Signaled(fault.signal)));
        park_forever()
    }

    /// The fault with what the processor would say natively of the guest's own code and memory.
    fn as_the_kernel_says(&self, mut fault: Fault) -> Fault {
        let cause = &mut fault.cause;
        if cause.vector == Cause::PAGE
            && !LOWER_HALF.contains(&fault.address)
            && !UPPER_HALF.contains(&fault.address)
        {
            // The machine has looked for code there, before the processor could refuse.
            *cause = Fault::protection().cause;
        }
        if cause.vector != Cause::PAGE {
            // Of exceptions by what an instruction does, the address is the instruction's; others have none.
            let by_instruction = [libc::SIGFPE, libc::SIGILL].contains(&fault.signal)
                || cause.vector == Cause::DEBUG;
            fault.address = if by_instruction { self.context.rip } else { 0 };
        } else if fault.signal == libc::SIGSEGV {
            let page = fault.address & !(PAGE - 1);
            let space = self.machine.space.lock().unwrap_or_else(PoisonError::into_inner);
            let is_mapped = !space.is_free(&(page..page.saturating_add(PAGE)));
            cause.code = if is_mapped { SEGV_ACCERR } else { SEGV_MAPERR };
            if is_mapped && cause.error & Cause::FETCH != 0 {
                cause.error |= Cause::PRESENT;
            }
        }
        fault
    }

    /// A signal without a handler ends the guest here.
    pub(crate) fn end_by_signal(&mut self, signal: i32) -> ! {
        self.end_by_signal_at(signal, TakenAt::AFTER_EVENT)
    }

    fn end_by_signal_at(&mut self, signal: i32, place: TakenAt) -> ! {
        let event = Event {
            value: signal as u64,
            nr: place.nr,
            ticket: place.count,
            flags: NO_TICKET,
            ..self.event(EventKind::Killed, host::ticks())
        };
        self.append(event, None);
        self.machine.stop(Stop::Ended(Ending::Signaled(signal)));
        park_forever()
    }
}

/// Whether a call of a library function's body sleeps, so that a signal may end it.
fn may_sleep(nr: u64, operation: u64) -> bool {
    match nr as i64 {
        libc::SYS_futex => waits::is_wait(operation),
        nr => matches!(nr, libc::SYS_nanosleep | libc::SYS_clock_nanosleep),
    }
}

/// Whether a `futex` is the one by which the library waits for what a thread may wait for as long
/// as it likes.
fn waits_until_a_time(operation: u64) -> bool {
    let options = libc::FUTEX_PRIVATE_FLAG | libc::FUTEX_CLOCK_REALTIME;
    operation as i32 & !options == libc::FUTEX_WAIT_BITSET
}
