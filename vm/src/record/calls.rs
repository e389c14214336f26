//! System calls of a recorded guest.

use super::machine::{Stop, park_forever};
use super::notice::Notice;
use super::thread::{Flow, GuestThread};
use crate::context::reg::*;
use crate::host::{self, Guest};
use crate::syscall::{self, Action, Call, MachineCall, Order, Sent};
use crate::{Error, Result, digest, elsewhere, hidden, layout};
use refrain_trace::payload::{Effect, SyscallRecord, Write};
use refrain_trace::{Ending, Event, EventKind, NO_TICKET, order};
use std::ops::Range;

/// The largest output of one call whose bytes the trace keeps if they are known to race.
const MOST_RACED: u64 = 16 << 20;

pub(crate) const EBADF: i64 = 9;
pub(crate) const EINVAL: i64 = 22;
const EFBIG: i64 = 27;
const EPIPE: i64 = 32;

/// A system call between its entry and its event.
pub(crate) struct Pending {
    pub(crate) call: Call,
    pub(crate) args: [u64; 6],
    pub(crate) event: Event,
    /// When the kernel was done with it, if it was issued: what follows is the recorder's own work.
    pub(crate) done: Option<u64>,
}

impl Pending {
    /// The kernel has had the call from `from` on until now. What the thread did before, since it came to
    /// the call, was the recorder's work.
    pub(crate) fn issued(&mut self, from: u64) {
        let prepared = from.saturating_sub(self.event.begin);
        self.event.overhead += prepared;
        self.event.busy += prepared;
        self.event.begin = from;
        self.done = Some(host::ticks());
    }

    /// When the call was over for the program.
    pub(crate) fn end(&self) -> u64 {
        self.done.unwrap_or_else(host::ticks)
    }
}

impl GuestThread {
    /// The guest has executed `syscall`.
    pub(crate) fn syscall(&mut self) -> Result<Flow> {
        let begin = host::ticks();
        let nr = self.context.gpr[RAX];
        if nr == libc::SYS_sched_yield as u64 {
            // Has no effect that a replay could repeat, and spin loops do it any number of times.
            host::yield_now();
            self.context.finish_syscall(0);
            self.yields += 1;
            self.take_signals_at_yield();
            return Ok(Flow::Continue);
        }
        self.presence.leave();
        let args = self.context.syscall_args();
        let call = syscall::resolve(nr, args)
            .map_err(|refusal| Error::Unsupported(format!("{refusal} (in {})", self.id)))?;
        if call.ends_creation() {
            self.leave_creation();
        }
        let shown = self.show_common(&call);
        let begin = if shown { host::ticks() } else { begin };
        let event = Event {
            nr: nr as u16,
            object: digest::of_call(&call),
            ..self.event(EventKind::Syscall, begin)
        };
        let pending = Pending { call, args, event, done: None };
        if call.may_send_signals() {
            self.machine.expect_signals();
        }
        if call.is_noted() && matches!(call.action(), Action::Answer(_)) {
            self.machine.notice(Notice::Withheld(call.name()));
        }
        if call.descriptors().any(hidden::is_own) {
            self.answer(pending, -EBADF);
            return Ok(Flow::Continue);
        }
        match call.action() {
            Action::Pass => {
                let stops_timer = call.stops_timer(&Guest);
                self.pass(pending);
                if stops_timer {
                    self.machine.collect_signals();
                }
                if shown {
                    elsewhere::show(Vec::new());
                }
            }
            Action::Answer(result) => self.answer(pending, result),
            Action::Machine(what) => return self.machine_call(pending, what),
        }
        Ok(Flow::Continue)
    }

    /// Issues the call as it is.
    pub(crate) fn pass(&mut self, pending: Pending) {
        let call = pending.call;
        if let Some(file) = self.reads_signals(&call) {
            return self.read_signals(pending, file);
        }
        if let Some(operation) = call.operation() {
            return self.pass_operation(pending, operation.word);
        }
        match self.with_own_path(&call) {
            Some((issued, _path)) => self.pass_as(pending, &issued),
            None => self.pass_as(pending, &call),
        };
    }

    /// Issues a call in which the kernel executes a locked instruction for the guest, which other
    /// threads must see in the recorded order: as an event of its own, before the call's, whose
    /// ticket is held until the call has returned.
    fn pass_operation(&mut self, mut pending: Pending, word: u64) {
        const SIZE: u8 = size_of::<u32>() as u8;
        let is_ordered = self.fast_path.accesses.is_none() && self.machine.threads_alive() > 1;
        if !is_ordered || self.fast_path.pages.operand(word, SIZE).is_none() {
            let call = pending.call;
            self.pass_as(pending, &call);
            return;
        }
        self.begin_operation(word, SIZE);
        pending.event.begin = host::ticks();
        let call = pending.call;
        self.pass_as(pending, &call);
        self.fast_path.release();
    }

    /// Issues the call `issued` in place of the guest's call, which it stands for. Returns the result.
    pub(crate) fn pass_as(&mut self, mut pending: Pending, issued: &Call) -> i64 {
        let (will_send, digest) = self.will_send(&pending.call);
        if self.fast_path.accesses.is_some() {
            pending.event.begin = host::ticks();
        }
        self.enter(&mut pending);
        let before = pending.call.before(&Guest);
        let shortened = self.before_change(&pending.call);
        let from = host::ticks();
        let result = self.issue(issued, pending.event.nr);
        pending.issued(from);
        self.leave(&mut pending);
        if pending.call.is_noted() && result >= 0 {
            self.machine.notice(Notice::Undescribed(pending.call.name()));
        }

        // A word that the kernel changes by a locked instruction (`FUTEX_WAKE_OP`) has an event of its own.
        let written = match self.fast_path.is_operating() {
            true => Vec::new(),
            false => pending.call.writes(&before, result, &Guest),
        };
        let mut writes: Vec<Write> = written
            .into_iter()
            .map(|range| Write {
                address: range.start,
                bytes: Guest.read_prefix(range.start, (range.end - range.start) as usize),
            })
            // An argument that is taken for an address may be a number, and as an address be the recorder's.
            .filter(|it| layout::guest_may_map(&(it.address..it.address + it.bytes.len() as u64)))
            .collect();
        writes.extend(self.shown_changes(&pending.call, result, shortened));
        let effect = match pending.call.sent(result, &Guest) {
            Some(Sent { fd, len, ranges }) => {
                self.machine.count_output(len);
                let races = len <= MOST_RACED && self.machine.sends_race_at(pending.event.pc);
                let raced = if races { digest::bytes_of(&ranges) } else { Vec::new() };
                // Other threads may change it while the kernel reads it.
                let crc = if races {
                    crc32fast::hash(&raced)
                } else if ranges == will_send {
                    digest
                } else {
                    digest::of_ranges(&ranges)
                };
                Effect::Output { fd, len, crc, raced }
            }
            None => Effect::None,
        };
        self.conclude(pending, result, writes, effect);
        if result == -EPIPE || result == -EFBIG {
            self.take_signals_of_call();
        }
        result
    }

    /// What a call sends if the kernel takes all of it, and its digest. The thread reads that, and
    /// whatever else the call reads, before the call is entered.
    fn will_send(&mut self, call: &Call) -> (Vec<Range<u64>>, u32) {
        let sent = call.sent_at_most(&Guest);
        let mut read =
            if self.fast_path.accesses.is_some() { call.reads(&Guest) } else { Vec::new() };
        read.extend(sent.iter().cloned());
        let digest = self.access_for_kernel(&read, false, || digest::of_ranges(&sent));
        (sent, digest)
    }

    /// Returns a result without issuing anything.
    pub(crate) fn answer(&mut self, pending: Pending, result: i64) {
        self.answer_with(pending, result, Vec::new());
    }

    /// Returns a result and bytes of the machine's own.
    pub(crate) fn answer_with(&mut self, mut pending: Pending, result: i64, writes: Vec<Write>) {
        self.enter(&mut pending);
        self.leave(&mut pending);
        let (done, failed): (Vec<_>, Vec<_>) =
            writes.into_iter().partition(|write| Guest.write(write.address, &write.bytes));
        let result = if failed.is_empty() { result } else { -i64::from(libc::EFAULT) };
        self.conclude(pending, result, done, Effect::None);
    }

    /// Takes the ticket of a call's entry, if it orders threads.
    pub(crate) fn enter(&self, pending: &mut Pending) {
        if pending.call.order() == Order::Local {
            pending.event.flags |= NO_TICKET;
            return;
        }
        let record = SyscallRecord { args: pending.args, ..SyscallRecord::default() };
        let entered = self.log.pending(
            || Event { ticket: self.machine.tickets.take(order::SYSCALL_SLOT), ..pending.event },
            record,
        );
        match entered {
            Ok(event) => pending.event = event,
            Err(_) => park_forever(),
        }
    }

    /// Notes how many calls any thread had entered when this one returned.
    pub(crate) fn leave(&self, pending: &mut Pending) {
        if pending.call.order() != Order::Local {
            pending.event.aux = self.machine.tickets.given(order::SYSCALL_SLOT);
        }
    }

    /// Appends the call's event and returns to the guest.
    pub(crate) fn conclude(
        &mut self,
        pending: Pending,
        result: i64,
        writes: Vec<Write>,
        effect: Effect,
    ) {
        let record = SyscallRecord { args: pending.args, writes, effect };
        let event = Event { value: result as u64, ..pending.event };
        self.context.finish_syscall(result);
        self.append_made(Some(&record), || Event { end: pending.end(), ..event });
        self.end_recording(pending.done);
        if self.fast_path.accesses.is_some() {
            let range = |write: &Write| write.address..write.address + write.bytes.len() as u64;
            let written: Vec<_> = record.writes.iter().map(range).collect();
            self.access_for_kernel(&written, true, || ());
        }
        if result == syscall::BEGIN_AGAIN {
            self.context.begin_syscall_again(event.nr);
        }
    }

    /// Notes what the recorder did since the kernel was done with a call.
    pub(crate) fn end_recording(&mut self, done: Option<u64>) {
        if let Some(done) = done {
            self.context.translating.add(done, done, host::ticks());
        }
    }

    fn machine_call(&mut self, pending: Pending, what: MachineCall) -> Result<Flow> {
        let [a, b, _, _, _, _] = *pending.call.arguments();
        match what {
            MachineCall::Mmap
            | MachineCall::Munmap
            | MachineCall::Mprotect
            | MachineCall::Mremap
            | MachineCall::Brk
            | MachineCall::Shmat
            | MachineCall::Shmdt
            | MachineCall::Madvise => self.memory_call(pending, what)?,
            MachineCall::Clone => self.clone_thread(pending)?,
            MachineCall::Fork => self.fork(pending)?,
            MachineCall::Execve => self.execve(pending)?,
            MachineCall::Exit => {
                self.exit_thread(pending);
                return Ok(Flow::Exit);
            }
            MachineCall::ExitGroup => {
                self.answer(pending, 0);
                self.machine.stop(Stop::Ended(Ending::Exited(a as i32 & 0xff)));
                park_forever();
            }
            MachineCall::ArchPrctl => self.arch_prctl(pending, a, b)?,
            MachineCall::TidAddress => {
                let writes = words(b, &[self.clear_at_exit]);
                self.answer_with(pending, 0, writes);
            }
            MachineCall::SetTidAddress => {
                self.clear_at_exit = a;
                self.answer(pending, i64::from(host::thread_id()));
            }
            MachineCall::RobustList if i64::from(pending.event.nr) == libc::SYS_set_robust_list => {
                self.set_robust_list(pending);
            }
            MachineCall::RobustList => self.robust_list(pending),
            MachineCall::SigAction => self.signal_action(pending),
            MachineCall::SigProcMask => self.signal_mask(pending),
            MachineCall::SigPending => {
                let writes = words(a, &[self.machine.signals.pending(self.id)]);
                self.answer_with(pending, 0, writes);
            }
            MachineCall::SigAltStack => self.signal_stack(pending),
            MachineCall::SigWait => self.signal_wait(pending),
            MachineCall::SigReturn => return Ok(self.signal_return(pending)),
            MachineCall::Kill => self.kill(pending),
            MachineCall::LockMemory => {
                self.machine.mapped.leave_locks_to_guest();
                let call = pending.call;
                self.pass_as(pending, &locking_what_is_touched(&call));
            }
            // A child is about to execute the program that its parent looks into.
            MachineCall::TraceMe if self.machine.is_child() => self.pass(pending),
            MachineCall::TraceMe => {
                let why = "of the recorded process itself is not supported; record its debugger";
                return Err(self.refuse(&pending, why));
            }
            MachineCall::SignalFile => self.signal_file(pending),
            MachineCall::CreateTimer => self.create_timer(pending),
            MachineCall::CloseRange => self.close_range(pending),
            MachineCall::Limit => self.limit(pending),
            MachineCall::ReadLink => self.read_link(pending),
            MachineCall::Open => self.open(pending),
            MachineCall::ListDirectory => self.list_directory(pending),
            MachineCall::AllSemaphores => self.all_semaphores(pending),
            MachineCall::Vmsplice => self.vmsplice(pending),
            MachineCall::IoSetup => self.io_setup(pending),
            MachineCall::IoDestroy => self.io_destroy(pending),
            MachineCall::IoSubmit => self.io_submit(pending),
            MachineCall::IoEvents => self.io_events(pending),
        }
        Ok(Flow::Continue)
    }

    pub(crate) fn refuse(&self, pending: &Pending, why: &str) -> Error {
        Error::Unsupported(format!(
            "{} (system call {}) {why} (in {})",
            pending.call.name(),
            pending.event.nr,
            self.id
        ))
    }

    fn arch_prctl(&mut self, pending: Pending, code: u64, address: u64) -> Result<()> {
        const ARCH_SET_GS: u64 = 0x1001;
        const ARCH_SET_FS: u64 = 0x1002;
        const ARCH_GET_FS: u64 = 0x1003;
        const ARCH_GET_GS: u64 = 0x1004;
        const ARCH_GET_CPUID: u64 = 0x1011;
        const ARCH_SET_CPUID: u64 = 0x1012;
        const EPERM: i64 = libc::EPERM as i64;
        const EFAULT: i64 = libc::EFAULT as i64;
        const ENODEV: i64 = libc::ENODEV as i64;
        match code {
            ARCH_SET_FS if address >= KERNELS_HALF => self.answer(pending, -EPERM),
            ARCH_GET_FS if Guest.read(address, 8).is_none() => self.answer(pending, -EFAULT),
            ARCH_SET_FS => {
                self.context.fs_base = address;
                self.machine.set_pointer(self.id, address);
                self.answer(pending, 0);
            }
            ARCH_GET_FS => {
                let writes = words(address, &[self.context.fs_base]);
                self.answer_with(pending, 0, writes);
            }
            ARCH_GET_GS if Guest.read(address, 8).is_none() => self.answer(pending, -EFAULT),
            // The guest cannot set its GS base, so it has the one that programs begin with.
            ARCH_GET_GS => self.answer_with(pending, 0, words(address, &[0])),
            ARCH_SET_GS if address == 0 => self.answer(pending, 0),
            // The answers of a kernel whose processor cannot make `cpuid` fault.
            ARCH_GET_CPUID => self.answer(pending, 1),
            ARCH_SET_CPUID => self.answer(pending, -ENODEV),
            ARCH_SET_GS => return Err(self.refuse(&pending, "with ARCH_SET_GS is not supported")),
            _ => self.answer(pending, -EINVAL),
        }
        Ok(())
    }
}

/// `mlockall` would fetch all memory of the process, of which the recorder has reserved far more than it
/// uses: pages are locked when they are touched.
fn locking_what_is_touched(call: &Call) -> Call {
    match call.number() {
        libc::SYS_mlockall => call.with_argument(0, call.arguments()[0] | libc::MCL_ONFAULT as u64),
        _ => *call,
    }
}

/// No program has memory from here on (`TASK_SIZE_MAX`).
pub(super) const KERNELS_HALF: u64 = (1 << 47) - 4096;

/// Words to be stored at `address`; nothing for a null pointer.
pub(crate) fn words(address: u64, values: &[u64]) -> Vec<Write> {
    if address == 0 {
        return Vec::new();
    }
    vec![Write { address, bytes: values.iter().flat_map(|value| value.to_le_bytes()).collect() }]
}
