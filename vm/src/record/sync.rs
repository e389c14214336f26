//! Library functions: what a hooked call becomes in the trace.

use super::fast_path::ONCE_DONE;
use super::machine::park_forever;
use super::thread::{Flow, GuestThread};
use crate::common::How;
use crate::context::reg::*;
use crate::creation::Creation;
use crate::engine::Emulate;
use crate::engine::{Exit, Mode};
use crate::hooks::{Hook, Model};
use crate::host::{self, Guest};
use crate::{Error, Result, cpuid, loader, mutex};
use refrain_trace::{Event, EventKind, NO_TICKET, ThreadId, order};
use std::sync::PoisonError;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

const ENOSYS: i64 = 38;

/// A hooked call: the function's arguments and where it was called from.
pub(super) struct Call {
    pub(super) hook: &'static Hook,
    begin: u64,
    sp: u64,
    object: u64,
    second: u64,
}

impl GuestThread {
    /// The guest is at the first instruction of a hooked function.
    pub(crate) fn hook(&mut self) -> Result<Flow> {
        self.presence.leave();
        let object = self.context.gpr[RDI];
        let begin = self.fast_path.came_to(object).unwrap_or_else(host::ticks);
        let pc = self.context.rip;
        self.leave_creation();
        let hook = match self.hooks.at(pc) {
            Some(hook) => hook,
            None => {
                self.hooks = self.machine.hooks();
                self.hooks.at(pc).expect("the engine reports hooks at the addresses it was given")
            }
        };
        let call =
            Call { hook, begin, sp: self.context.gpr[RSP], object, second: self.context.gpr[RSI] };
        let pages = &mut self.fast_path.pages;
        if hook.leaves(call.object, |at| pages.operand(at, 4)) {
            return Ok(Flow::Continue);
        }
        match hook.model {
            Model::Acquire => self.acquire(&call, false),
            Model::AcquireErrno => self.acquire(&call, true),
            Model::Release => self.release(&call, false),
            Model::ReleaseErrno => self.release(&call, true),
            Model::GetValue => self.get_value(&call),
            Model::CondWait => self.cond_wait(&call),
            Model::Barrier => self.barrier(&call),
            Model::Once => return self.once(&call),
            Model::Join | Model::TryJoin | Model::TimedJoin(_) => return self.join(&call),
            Model::Create => self.begin_creation(&call),
            Model::Detach => {
                self.machine.detach(call.object);
                self.note(&call, 0)
            }
            Model::Rounds => self.note(&call, self.context.gpr[RDX] & u64::from(u32::MAX)),
            Model::Entry => {
                loader::hide_settings(self.machine.initial_sp.load(Ordering::Relaxed));
                Ok(())
            }
            Model::Cancel => {
                let event = self.call_event(&call, hook.kind, begin);
                self.send_cancellation(call.object)?;
                self.append(Event { flags: NO_TICKET, ..event }, None);
                self.return_from_call(0);
                Ok(())
            }
        }?;
        self.cancel_if_due();
        Ok(Flow::Continue)
    }

    /// An event of a library call: its site is the return address.
    fn call_event(&mut self, call: &Call, kind: EventKind, begin: u64) -> Event {
        // SAFETY: at a function's entry the stack pointer is where the caller has just pushed
        // the return address.
        let site = unsafe { Guest.stack_word(call.sp) };
        Event { pc: site, sp: call.sp, object: call.object, ..self.event(kind, begin) }
    }

    fn note(&mut self, call: &Call, value: u64) -> Result<()> {
        let event = self.call_event(call, call.hook.kind, call.begin);
        self.append(Event { flags: NO_TICKET, value, ..event }, None);
        Ok(())
    }

    fn acquire(&mut self, call: &Call, errno: bool) -> Result<()> {
        let event = self.call_event(call, call.hook.kind, call.begin);
        let result = match errno && self.cancels_here(call) {
            true => self.cancelled_call(-1),
            false => self.body()?,
        };
        self.cancelled &= result != 0;
        let event = self.with_errno(Event { result, ..event }, errno)?;
        self.append_ordered(event);
        Ok(())
    }

    /// The event comes first: once the body has run, others may go on. Handlers have to wait, then,
    /// for the body, which does not wait long: they have their place before an event or behind it.
    fn release(&mut self, call: &Call, errno: bool) -> Result<()> {
        let event = self.call_event(call, call.hook.kind, call.begin);
        self.append_open(event);
        self.handlers_wait = true;
        let result = self.body()?;
        self.handlers_wait = false;
        let end = host::ticks();
        let failed = self.with_errno(Event { result, ..event }, errno && result != 0)?;
        self.log.amend(|event| {
            event.end = end;
            event.result = failed.result;
            (event.value, event.aux) = (failed.value, failed.aux);
        });
        Ok(())
    }

    /// `sem_getvalue(sem, int *)`.
    fn get_value(&mut self, call: &Call) -> Result<()> {
        let event = self.call_event(call, call.hook.kind, call.begin);
        let result = self.body()?;
        let value = u64::from(Guest.word32(call.second).unwrap_or(0));
        self.append_ordered(Event { result, value, aux: call.second, ..event });
        Ok(())
    }

    /// Releases the mutex, waits, and holds the mutex again: two events, no body in between.
    fn cond_wait(&mut self, call: &Call) -> Result<()> {
        let (condition, mutex) = (call.object, call.second);
        if mutex::has_ceiling(mutex, |at| self.fast_path.pages.operand(at, 4)) {
            let what = "waiting for a condition with a mutex that has a priority ceiling";
            return Err(Error::Unsupported(format!(
                "{what} (PTHREAD_PRIO_PROTECT, in {})",
                self.id
            )));
        }
        let at_mutex = |event: Event| Event { object: mutex, value: condition, ..event };
        let begun = at_mutex(self.call_event(call, EventKind::CondWaitBegin, call.begin));
        self.append_ordered(begun);
        let ended = at_mutex(self.call_event(call, EventKind::CondWaitEnd, host::ticks()));
        let result = match self.cancels_here(call) {
            true => self.cancelled_call(libc::ETIMEDOUT),
            false => self.body()?,
        };
        self.cancelled &= result != 0;
        // The bound is read before the ticket is taken; see `refrain_trace::event`.
        let aux = self.machine.tickets.given(order::slot(condition));
        self.append_ordered(Event { result, aux, ..ended });
        Ok(())
    }

    fn barrier(&mut self, call: &Call) -> Result<()> {
        let arrived = self.call_event(call, EventKind::BarrierArrive, call.begin);
        self.append_ordered(arrived);
        let left = self.call_event(call, EventKind::BarrierLeave, host::ticks());
        let result = self.body()?;
        self.append_ordered(Event { result, ..left });
        Ok(())
    }

    /// The first thread runs the routine, observed as any code; the others wait here, not in
    /// the library, and find it done. (An exception out of the routine resets the object, and
    /// somebody else runs it.)
    fn once(&mut self, call: &Call) -> Result<Flow> {
        loop {
            let state = Guest.word32(call.object).unwrap_or(ONCE_DONE);
            if state & ONCE_DONE != 0 {
                let event = self.call_event(call, EventKind::OnceDone, call.begin);
                let flags = NO_TICKET;
                self.append(Event { flags, ..event }, None);
                self.return_from_call(0);
                return Ok(Flow::Continue);
            }
            if state == 0 && self.begin_once(call.object) {
                let event = self.call_event(call, EventKind::OnceRun, call.begin);
                self.append_ordered(event);
                return Ok(Flow::Continue);
            }
            host::futex_wait(call.object, state, Duration::from_millis(1));
        }
    }

    /// Whether this thread is the one to run the routine. Its first atomic instruction will say
    /// so in the object; until then, the machine knows. The recorder does not see that instruction
    /// with every access in order, nor while the program has one thread. There the library decides
    /// which thread is first: in the first case the accesses of a replay have the same order, so
    /// that it decides the same, and in the second case there is no other thread.
    fn begin_once(&mut self, object: u64) -> bool {
        if self.machine.lines().is_some() || self.machine.threads_alive() == 1 {
            return true;
        }
        let mut running = self.machine.once.lock().unwrap_or_else(PoisonError::into_inner);
        // Another thread may have begun since the caller looked: it says so in the object before it
        // leaves the set.
        let is_new = Guest.word32(object) == Some(0) && running.insert(object);
        let first = is_new || self.fast_path.beginning_once == Some(object);
        if first {
            self.fast_path.beginning_once = Some(object);
            self.store_own_in_line(false);
        }
        first
    }

    /// The object says it now.
    pub(crate) fn once_begun(&mut self, object: u64) {
        if self.fast_path.beginning_once == Some(object) {
            self.fast_path.beginning_once = None;
            self.store_own_in_line(true);
            let mut running = self.machine.once.lock().unwrap_or_else(PoisonError::into_inner);
            running.remove(&object);
        }
    }

    /// From here to the `clone`, the library looks for the stack of a thread that has ended: no
    /// thread may end meanwhile, so the ticket is held.
    fn begin_creation(&mut self, call: &Call) -> Result<()> {
        /// Where `pthread_attr_t` has its flags, and the one of threads that nobody joins.
        const FLAGS: u64 = 8;
        const DETACHED: u32 = 1;
        let flags = (call.second != 0).then(|| Guest.word32(call.second + FLAGS)).flatten();
        self.creates_detached = flags.unwrap_or(0) & DETACHED != 0;
        self.end_creation();
        let event = self.call_event(call, EventKind::ThreadCreate, call.begin);
        let event = Event { object: order::THREADS, ..event };
        let ticket = self.append_in_body(event, true)?;
        self.creating = Some(Creation::new(ticket));
        Ok(())
    }

    /// Takes the ticket of the event's object, or holds it, and appends the event. As long as another
    /// thread holds that ticket, which may wait for a handler of this one, handlers run.
    fn append_in_body(&mut self, event: Event, holds: bool) -> Result<u64> {
        self.after_event = true;
        // What the function has waited for is done: it is no cancellation point any more.
        self.cancellable = false;
        let slot = order::slot(event.object);
        let mut ticket = None;
        self.wait_in_body(|this| {
            if holds && this.machine.endings.any() {
                host::let_others_go_on();
                return false;
            }
            let begin = event.begin.max(this.handlers_until);
            let make = || {
                ticket = Some(this.machine.tickets.try_take(slot, holds)?);
                Some(Event { ticket: ticket?, begin, end: host::ticks(), ..event })
            };
            this.log.append_if(make, false).unwrap_or_else(|_| park_forever())
        })?;
        Ok(ticket.expect("waited for"))
    }

    /// The thread calls something that a creation does not call.
    pub(crate) fn leave_creation(&mut self) {
        if self.creating.is_some_and(|creation| creation.is_current()) {
            self.end_creation();
        }
    }

    /// The thread is created, or `pthread_create` has failed without getting so far.
    pub(crate) fn end_creation(&mut self) {
        if let Some(creation) = self.creating.take() {
            self.machine.tickets.release(order::THREADS_SLOT, creation.ticket);
            self.machine.endings.wake();
        }
    }

    /// Waits for the thread before the library does, so that the library's body finds it gone. What
    /// is no use waiting for the library refuses by itself.
    fn join(&mut self, call: &Call) -> Result<Flow> {
        let child = self.machine.thread_to_join(call.object);
        let names_clock = self.names_clock(call.hook.model);
        let Some(child) = child.filter(|&child| child != self.id && names_clock) else {
            return Ok(Flow::Continue);
        };
        let event = self.call_event(call, EventKind::ThreadJoin, call.begin);
        let event = Event { object: order::thread_object(child), ..event };
        let failure = match self.last_moment(call.hook.model) {
            _ if self.cancels_here(call) && !self.machine.has_ended(child) => Some(libc::EINTR),
            Ok(until) => self.await_end(child, until)?,
            Err(invalid) => (!self.machine.has_ended(child)).then_some(invalid),
        };
        let Some(failure) = failure else {
            self.cancelled = false;
            self.append_in_body(event, false)?;
            self.cancel_if_due();
            return Ok(Flow::Continue);
        };
        self.append_in_body(Event { result: failure, ..event }, false)?;
        self.return_from_call(failure as u64);
        self.cancel_if_due();
        Ok(Flow::Continue)
    }

    /// Whether the library waits by the clock that the call names, if that names one.
    fn names_clock(&self, model: Model) -> bool {
        let clock = self.context.call_args()[2] as libc::clockid_t;
        model != Model::TimedJoin(None)
            || [libc::CLOCK_REALTIME, libc::CLOCK_MONOTONIC].contains(&clock)
    }

    /// Until when the join that is about to begin may wait, and what it answers then. `Err` is
    /// what it answers if it would have to wait at all.
    fn last_moment(&self, model: Model) -> Result<Option<Instant>, i32> {
        let [_, _, third, fourth, ..] = self.context.call_args();
        let (clock, time) = match model {
            Model::TryJoin => return Err(libc::EBUSY),
            Model::TimedJoin(Some(clock)) => (clock, third),
            Model::TimedJoin(None) => (third as libc::clockid_t, fourth),
            _ => return Ok(None),
        };
        if time == 0 {
            return Ok(None);
        }
        let left = host::time_until(clock, time).ok_or(libc::EINVAL)?;
        Ok(Some(Instant::now() + left))
    }

    /// Waits for another thread's end; `ETIMEDOUT` if that moment has come before.
    fn await_end(&mut self, child: ThreadId, until: Option<Instant>) -> Result<Option<i32>> {
        let late = || until.is_some_and(|until| Instant::now() >= until);
        self.wait_in_body(|this| this.machine.await_end(child, &this.attention, until) || late())?;
        Ok((!self.machine.has_ended(child)).then_some(libc::ETIMEDOUT))
    }

    /// Makes the hooked function return without having run.
    pub(super) fn return_from_call(&mut self, result: u64) {
        let site = self.call_site();
        self.context.return_to(site, result);
    }

    /// Where the hooked function that the guest is at was called.
    fn call_site(&self) -> u64 {
        // SAFETY: nothing of the function has run: the stack pointer still points to the return
        // address.
        unsafe { Guest.stack_word(self.context.gpr[RSP]) }
    }

    /// Runs the body of the hooked function that the guest is at, unobserved and on a stack of its
    /// own, and returns from it: all that it leaves behind is its result, an `int`.
    fn body(&mut self) -> Result<i32> {
        let sp = self.body_stack.enter(self.call_site())?;
        self.entries.push(self.context.clone());
        self.context.gpr[RSP] = sp;
        let ended = self.until_return(sp);
        let result = self.context.gpr[RAX] as u32;
        let entry = self.entries.pop().expect("pushed before the body ran");
        self.context.restore(entry);
        ended?;
        self.return_from_call(result.into());
        Ok(result as i32)
    }

    /// Runs guest code, unobserved, until it returns from a function that has begun with this stack
    /// pointer.
    fn until_return(&mut self, sp: u64) -> Result<()> {
        loop {
            match self.cpu.run(&mut self.context, Mode::Opaque { sp }) {
                Exit::Return => return Ok(()),
                Exit::Syscall => self.opaque_syscall()?,
                Exit::Emulate(Emulate::Cpuid) => {
                    cpuid::cpuid(self.machine.processor, &mut self.context);
                }
                Exit::Emulate(Emulate::Rdtsc) => self.context.set_ticks(host::ticks(), false),
                Exit::Fault(fault) if self.access_common(fault, How::Body)?.is_none() => {}
                exit => {
                    return Err(Error::Unsupported(format!(
                        "{exit:?} inside a synchronization function (at {:#x})",
                        self.context.rip
                    )));
                }
            }
        }
    }

    /// A system call of a synchronization function: sleeping, waking, reading the clock.
    fn opaque_syscall(&mut self) -> Result<()> {
        let nr = self.context.gpr[RAX];
        let args = self.context.syscall_args();
        let result = match nr as i64 {
            libc::SYS_futex
            | libc::SYS_clock_gettime
            | libc::SYS_gettimeofday
            | libc::SYS_sched_yield
            | libc::SYS_gettid
            | libc::SYS_getpid
            | libc::SYS_sched_setscheduler
            | libc::SYS_sched_getscheduler
            | libc::SYS_sched_setparam
            | libc::SYS_sched_getparam
            | libc::SYS_sched_get_priority_max
            | libc::SYS_sched_get_priority_min
            | libc::SYS_nanosleep
            | libc::SYS_clock_nanosleep => self.issue_in_body(nr, args)?,
            libc::SYS_rt_sigprocmask => 0,
            libc::SYS_futex_waitv => -ENOSYS,
            _ => {
                let name = crate::syscall::name(nr).unwrap_or("an unknown system call");
                return Err(Error::Unsupported(format!(
                    "{name} ({nr}) inside a synchronization function"
                )));
            }
        };
        self.context.finish_syscall(result);
        Ok(())
    }

    /// Notes `errno` for functions that report failure there: replay has to set it.
    fn with_errno(&mut self, event: Event, wanted: bool) -> Result<Event> {
        if !wanted || event.result != -1 {
            return Ok(event);
        }
        let at = match self.errno_at {
            Some(at) => at,
            None => self.find_errno()?,
        };
        self.errno_at = Some(at);
        Ok(Event { value: u64::from(Guest.word32(at).unwrap_or(0)), aux: at, ..event })
    }

    /// Asks the guest's own `__errno_location`.
    fn find_errno(&mut self) -> Result<u64> {
        let function = self.machine.errno_location.load(Ordering::Relaxed);
        if function == 0 {
            return Err(Error::Unsupported("a C library without __errno_location".into()));
        }
        let saved = self.context.clone();
        let sp = self.body_stack.enter(saved.rip)?;
        self.context.gpr[RSP] = sp;
        self.context.rip = function;
        let ended = self.until_return(sp);
        let at = self.context.gpr[RAX];
        self.context.restore(saved);
        ended.map(|()| at)
    }
}
