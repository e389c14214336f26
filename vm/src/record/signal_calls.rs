//! System calls about signals, which the machine answers itself.

use super::calls::{EINVAL, Pending, words};
use super::outside;
use super::signals::{Delivery, Interrupted, Signal, Target, bit, own_info};
use super::thread::{Flow, GuestThread};
use crate::context::reg::*;
use crate::frame::{self, AltStack, Info};
use crate::host::{self, Guest};
use refrain_trace::payload::{Effect, Write};
use std::sync::atomic::Ordering;
use std::time::Duration;

const EAGAIN: i64 = 11;
const EFAULT: i64 = 14;
const ENOMEM: i64 = 12;
/// Bytes of a set of signals, which the calls are told.
const SET_SIZE: u64 = 8;
/// `UAPI_SA_FLAGS`: others are not kept.
const KNOWN_FLAGS: u64 = 0xdc00_0807;
const EINTR: i64 = 4;
const EPERM: i64 = 1;

impl GuestThread {
    pub(crate) fn signal_action(&mut self, pending: Pending) {
        let [signal, new, old, size, _, _] = *pending.call.arguments();
        if size != SET_SIZE {
            return self.answer(pending, -EINVAL);
        }
        let fixed = [libc::SIGKILL as u64, libc::SIGSTOP as u64].contains(&signal);
        let is_readable = new == 0 || Guest.words::<4>(new).is_some();
        if is_readable && (signal == 0 || signal > 64 || fixed && new != 0) {
            return self.answer(pending, -EINVAL);
        }
        let action = if new == 0 { Some(None) } else { Guest.words(new).map(Some) };
        let Some(action) = action else { return self.answer(pending, -EFAULT) };
        let new = action.map(|[handler, flags, restorer, blocked]: [u64; 4]| {
            let blockable = !(bit(libc::SIGKILL as u64) | bit(libc::SIGSTOP as u64));
            [handler, flags & KNOWN_FLAGS, restorer, blocked & blockable]
        });
        let previous = self.machine.signals.action(signal, new);
        self.machine.count_if_needed();
        if let Some([handler, flags, ..]) = new.filter(|_| signal == libc::SIGCHLD as u64) {
            host::set_child_action(handler == libc::SIG_IGN as u64, flags as i32);
        }
        let writes = words(old, &previous);
        self.answer_with(pending, 0, writes);
    }

    pub(crate) fn signal_mask(&mut self, pending: Pending) {
        let [how, new, old, size, _, _] = *pending.call.arguments();
        if size != SET_SIZE {
            return self.answer(pending, -EINVAL);
        }
        let previous = self.machine.signals.mask(self.id, None);
        if new != 0 {
            let Some(set) = Guest.word(new) else { return self.answer(pending, -EFAULT) };
            let mask = match how as i32 {
                libc::SIG_BLOCK => previous | set,
                libc::SIG_UNBLOCK => previous & !set,
                libc::SIG_SETMASK => set,
                _ => return self.answer(pending, -EINVAL),
            };
            self.machine.signals.mask(self.id, Some(mask));
        }
        let writes = words(old, &[previous]);
        self.answer_with(pending, 0, writes);
    }

    /// `sigaltstack(new, old)`.
    pub(crate) fn signal_stack(&mut self, pending: Pending) {
        let [new, old, ..] = *pending.call.arguments();
        let sp = self.context.gpr[RSP];
        let current = self.machine.signals.stack(self.id, None);
        if new != 0 {
            let Some(words) = Guest.words(new) else { return self.answer(pending, -EFAULT) };
            if current.holds(sp) {
                return self.answer(pending, -EPERM);
            }
            let [_, flags, size] = words;
            let mode = flags as u32 & !frame::SS_AUTODISARM;
            if ![0, frame::SS_ONSTACK, frame::SS_DISABLE].contains(&mode) {
                return self.answer(pending, -EINVAL);
            }
            if mode != frame::SS_DISABLE && size < frame::SMALLEST_STACK {
                return self.answer(pending, -ENOMEM);
            }
            self.machine.signals.stack(self.id, Some(AltStack::from_words(words)));
        }
        let writes = words(old, &current.words(sp));
        self.answer_with(pending, 0, writes);
    }

    /// `rt_sigreturn`: a handler has returned.
    pub(crate) fn signal_return(&mut self, pending: Pending) -> Flow {
        self.answer(pending, 0);
        let Some(left) = frame::leave(&mut self.context, self.machine.processor) else {
            self.end_by_signal(libc::SIGSEGV);
        };
        self.machine.signals.mask(self.id, Some(left.mask));
        self.machine.signals.stack(self.id, Some(left.stack));
        if let Some(creation) = &mut self.creating {
            creation.end_handler();
        }
        if self.handlers_in_bodies.last() == Some(&left.address) {
            self.handlers_in_bodies.pop();
            return Flow::Returned;
        }
        Flow::Continue
    }

    /// `rt_sigtimedwait`, `rt_sigsuspend`, `pause`.
    pub(crate) fn signal_wait(&mut self, mut pending: Pending) {
        let [set, info, timeout, size, _, _] = *pending.call.arguments();
        let (size, set_is_readable) = match i64::from(pending.event.nr) {
            libc::SYS_rt_sigtimedwait => (size, Guest.word(set).is_some()),
            libc::SYS_rt_sigsuspend => (info, Guest.word(set).is_some()),
            _ => (SET_SIZE, true),
        };
        if size != SET_SIZE || !set_is_readable {
            return self.answer(pending, if size != SET_SIZE { -EINVAL } else { -EFAULT });
        }
        self.enter(&mut pending);
        match i64::from(pending.event.nr) {
            libc::SYS_rt_sigtimedwait => return self.take_awaited(pending, set, info, timeout),
            libc::SYS_rt_sigsuspend => {
                let mask = Guest.word(set).unwrap_or(0);
                self.machine.signals.lend_mask(self.id, mask);
            }
            _ => {}
        }
        // Only a handler ends these, and the mask goes back when it returns.
        while let Ok(signal) = self.machine.signals.wait(self.id, 0, None) {
            debug_assert_eq!(signal, None, "the set is empty");
        }
        self.leave(&mut pending);
        self.conclude(pending, -EINTR, Vec::new(), Effect::None);
    }

    /// Blocked signals are taken here.
    fn take_awaited(&mut self, mut pending: Pending, set: u64, info: u64, timeout: u64) {
        let set = Guest.word(set).unwrap_or(0);
        let limit = match timeout {
            0 => Some(None),
            address => Guest.duration(address).map(Some),
        };
        let signal = match limit.map(|limit| self.machine.signals.wait(self.id, set, limit)) {
            None => Err(EINVAL),
            Some(Ok(signal)) => signal.ok_or(EAGAIN),
            Some(Err(Interrupted)) => Err(EINTR),
        };
        self.leave(&mut pending);
        let mut writes = Vec::new();
        if let Ok(Signal { info: bytes, .. }) = &signal
            && info != 0
        {
            writes.push(Write { address: info, bytes: bytes.to_vec() });
            Guest.write(info, bytes);
        }
        let result = signal.map_or_else(|errno| -errno, |signal| signal.number as i64);
        self.conclude(pending, result, writes, Effect::None);
    }

    /// A signal that the guest sends: to itself it goes the machine's way, to others the
    /// kernel's.
    pub(crate) fn kill(&mut self, mut pending: Pending) {
        let [a, b, c, d, _, _] = *pending.call.arguments();
        let nr = i64::from(pending.event.nr);
        let group = nr == libc::SYS_kill && host::is_own_group(a as i32);
        let own_process = a as u32 == std::process::id() || group;
        let (kernel, user, thread) = (0, -1, -6);
        let thread_of = |id: u64| self.machine.thread_by_kernel_id(id as i32).map(Target::Thread);
        let process = own_process.then_some(Target::Process);
        let (target, signal, info) = match nr {
            libc::SYS_tgkill => (thread_of(b), c, own_info(c, thread)),
            libc::SYS_tkill => (thread_of(a), b, own_info(b, thread)),
            libc::SYS_rt_tgsigqueueinfo => (thread_of(b), c, queued_info(d, c, user)),
            libc::SYS_rt_sigqueueinfo => (process, b, queued_info(c, b, user)),
            libc::SYS_kill => (process, b, own_info(b, kernel)),
            _ => (host::names_this_process(a).then_some(Target::Process), b, own_info(b, kernel)),
        };
        let passed = signal == libc::SIGSTOP as u64 || !(1..=64).contains(&signal);
        let Some(target) = target.filter(|_| !passed) else {
            return self.pass(pending);
        };
        let given = match nr {
            libc::SYS_rt_tgsigqueueinfo => Some(d),
            libc::SYS_rt_sigqueueinfo => Some(c),
            _ => None,
        };
        if given.is_some_and(|given| Guest.read(given, size_of::<Info>()).is_none()) {
            return self.answer(pending, -EFAULT);
        }
        // A handler waits in a replay for what has been entered before it begins.
        self.enter(&mut pending);
        if group {
            host::signal_rest_of_group(signal as i32, &outside::LEFT_ALONE);
        }
        let delivery = self.machine.signals.send(target, Signal { number: signal, info });
        self.leave(&mut pending);
        self.conclude(pending, 0, Vec::new(), Effect::None);
        match delivery {
            Delivery::Terminate => self.end_by_signal(signal as i32),
            Delivery::Stop => host::stop_process(signal as i32),
            Delivery::None | Delivery::Handler => {}
        }
    }

    /// `timer_create(clock, event, id)`. Guest threads block what the kernel sends them, so the
    /// signals of a timer that is for one thread go to the machine's, which knows whose they are.
    pub(crate) fn create_timer(&mut self, pending: Pending) {
        const NOTIFY: usize = 12;
        const THREAD: usize = 16;
        let [_, event, id, ..] = *pending.call.arguments();
        let mut issued = pending.call;
        let mut bytes = Guest.read(event, size_of::<libc::sigevent>()).unwrap_or_default();
        let word = |bytes: &[u8], at| bytes.get(at..at + 4).and_then(|b| b.try_into().ok());
        let mut thread = None;
        if word(&bytes, NOTIFY).map(i32::from_le_bytes) == Some(libc::SIGEV_THREAD_ID) {
            let wanted = word(&bytes, THREAD).map_or(0, i32::from_le_bytes);
            thread = self.machine.thread_by_kernel_id(wanted);
            if thread.is_none() {
                return self.answer(pending, -EINVAL);
            }
            let watcher = self.machine.watcher.load(Ordering::Relaxed);
            bytes[THREAD..THREAD + 4].copy_from_slice(&watcher.to_le_bytes());
            issued = issued.with_argument(1, bytes.as_ptr() as u64);
        }
        if self.pass_as(pending, &issued) == 0 {
            self.machine.signals.timer(Guest.word32(id).unwrap_or(0) as i32, thread);
        }
    }

    /// A call has failed for a broken pipe or a file that is too large. If the kernel sent the thread a signal
    /// with that (not for `MSG_NOSIGNAL`, nor for what is no pipe), it waits here, where all are blocked.
    pub(crate) fn take_signals_of_call(&mut self) {
        let sent = bit(libc::SIGPIPE as u64) | bit(libc::SIGXFSZ as u64);
        while let Some((number, info)) = host::wait_for_signal(sent, Some(Duration::ZERO)) {
            let signal = Signal { number, info };
            if self.machine.signals.send(Target::Thread(self.id), signal) == Delivery::Terminate {
                self.end_by_signal(number as i32);
            }
        }
    }
}

/// The `siginfo_t` that a guest sends along.
fn queued_info(address: u64, signal: u64, otherwise: i32) -> Info {
    let given = Guest.read(address, 128).and_then(|bytes| Info::try_from(bytes).ok());
    let mut info = given.unwrap_or_else(|| own_info(signal, otherwise));
    info[0..4].copy_from_slice(&(signal as i32).to_le_bytes());
    info
}
