//! The guest's signals: who has one pending, who blocks which, and what is to be done about them.
//!
//! The kernel delivers none of the guest's signals: host threads block everything, what comes
//! from outside is received by a thread of its own (`super::outside`) and sent on to here.
//! A guest thread takes its signals between two events ([`Signals::take`]); if it is in a system
//! call at the moment, it is kicked out of it, and out of guest code it is fetched.

mod info;

pub(super) use self::info::{CODE, field, is_own};
use self::info::{OVERRUN, SI_TIMER, TIMER, is_for_thread, timer_of};
pub(crate) use self::info::{fault_info, forced, own_info};
use super::signal_files::table::{SignalFile, SignalFiles};
use crate::engine::Interrupt;
use crate::frame::{Action, AltStack, Info};
use crate::host;
use crate::kick::{self, Attention};
use refrain_trace::ThreadId;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

const SIG_DFL: u64 = 0;
const SIG_IGN: u64 = 1;
/// The first signal of which several instances can be pending (`SIGRTMIN` of the kernel).
const FIRST_REAL_TIME: u64 = 32;

/// What becomes of a signal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Delivery {
    /// Nothing: it is ignored, or it is pending.
    None,
    /// The process ends.
    Terminate,
    /// The process stops until it is continued.
    Stop,
    /// A handler of the guest's will run.
    Handler,
}

/// Who a signal is for.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Target {
    Process,
    Thread(ThreadId),
}

/// One signal on its way.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Signal {
    pub(crate) number: u64,
    pub(crate) info: Info,
}

/// A signal that a thread has taken, and what to do about it.
#[derive(Debug)]
pub(crate) enum Taken {
    /// Another thread executes a program, which ends this one.
    End,
    Terminate(u64),
    Stop(u64),
    Handle(Handling),
}

/// What it takes to run a handler.
#[derive(Debug)]
pub(crate) struct Handling {
    pub(crate) signal: Signal,
    pub(crate) action: Action,
    /// The mask that is in force again when the handler has returned.
    pub(crate) mask: u64,
    pub(crate) stack: AltStack,
}

/// What waits for a thread to come to it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Due {
    /// The signals, bit `n - 1` for signal `n`.
    pub(crate) signals: u64,
    /// How many signals have been handled before.
    pub(crate) handled: u64,
}

/// How signals stand for a thread, as `/proc` tells it: sets of signals.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Standing {
    pub(crate) pending: u64,
    pub(crate) shared: u64,
    pub(crate) blocked: u64,
    pub(crate) ignored: u64,
    pub(crate) caught: u64,
}

/// The state of all signals of the guest.
#[derive(Default)]
pub(crate) struct Signals {
    state: Mutex<State>,
    arrived: Condvar,
    /// There is a descriptor that tells of signals.
    any_files: AtomicBool,
}

#[derive(Default)]
struct State {
    actions: BTreeMap<u64, Action>,
    threads: BTreeMap<ThreadId, Thread>,
    /// Pending for the process.
    pending: Vec<Signal>,
    /// Timers whose signals are for one thread.
    timers: BTreeMap<i32, ThreadId>,
    /// Signals whose handlers have run.
    handled: u64,
    /// Descriptors that tell of signals.
    files: SignalFiles,
    /// The mask that the first thread begins with.
    inherited: u64,
}

#[derive(Default)]
struct Thread {
    kernel_id: i32,
    attention: Attention,
    /// Gets the thread out of guest code.
    interrupt: Option<Arc<dyn Interrupt>>,
    /// Blocked signals, bit `n - 1` for signal `n`.
    mask: u64,
    /// The mask to go back to, while a call has set another for its own time.
    lent: Option<u64>,
    /// Signals that the thread waits for at the moment.
    awaited: u64,
    pending: Vec<Signal>,
    /// The kernel has signals for the thread alone, from another process. Only the thread can get them.
    has_mail: bool,
    stack: AltStack,
    /// Another thread executes a program.
    is_to_end: bool,
}

impl Thread {
    /// Which signals the thread could handle now: its own, and of those for the process these.
    fn could_take(&self, process: u64) -> u64 {
        (process | bits(&self.pending)) & !self.mask & !self.awaited
    }

    fn forget(&mut self, signal: u64) {
        self.pending.retain(|other| other.number != signal);
    }

    /// Gets the thread's attention, wherever it is.
    fn call(&self) {
        self.attention.raise();
        if self.kernel_id != 0 {
            kick::kick(self.kernel_id);
        }
        if let Some(interrupt) = &self.interrupt {
            interrupt.interrupt();
        }
    }
}

impl Signals {
    /// The program finds some signals ignored and some blocked, as whoever executed it has left
    /// them.
    pub(crate) fn inherit(&self, ignored: &[i32], mask: u64) {
        let mut state = self.lock();
        let action = [SIG_IGN, 0, 0, 0];
        state.actions.extend(ignored.iter().map(|&signal| (signal as u64, action)));
        state.inherited = mask;
    }

    /// A thread begins, with the mask of its parent.
    pub(crate) fn begin_thread(&self, thread: ThreadId, parent: Option<ThreadId>) -> Attention {
        let mut state = self.lock();
        let of_parent = parent.and_then(|parent| Some(state.threads.get(&parent)?.mask));
        let mask = of_parent.unwrap_or(state.inherited);
        let entry = Thread { mask, ..Thread::default() };
        let attention = entry.attention.clone();
        state.threads.insert(thread, entry);
        attention
    }

    /// How to reach a thread that waits, and one that computes.
    pub(crate) fn reach(&self, thread: ThreadId, kernel_id: i32, of: Arc<dyn Interrupt>) {
        let mut state = self.lock();
        let entry = state.of(thread);
        (entry.kernel_id, entry.interrupt) = (kernel_id, Some(of));
        state.call_for_pending();
    }

    /// A thread ends; what it would have taken may be for others.
    pub(crate) fn end_thread(&self, thread: ThreadId) {
        let mut state = self.lock();
        state.threads.remove(&thread);
        state.call_for_pending();
    }

    /// A thread executes a program: all others are to end, wherever they are.
    pub(crate) fn end_others(&self, thread: ThreadId) {
        for (_, other) in self.lock().threads.iter_mut().filter(|(id, _)| **id != thread) {
            other.is_to_end = true;
            other.call();
        }
    }

    /// Whether the thread is to end, since another one executes a program.
    pub(crate) fn is_to_end(&self, thread: ThreadId) -> bool {
        self.lock().of(thread).is_to_end
    }

    /// In a child process: this thread is the only one, and nothing is pending.
    pub(crate) fn keep_only(&self, thread: ThreadId, kernel_id: i32) {
        let mut state = self.lock();
        state.threads.retain(|&id, _| id == thread);
        state.pending.clear();
        state.timers.clear();
        state.files.clear();
        let only = state.of(thread);
        only.kernel_id = kernel_id;
        only.pending.clear();
        only.attention.clear();
    }

    /// Another program begins: it has no handlers, timers and stacks, and keeps what is ignored,
    /// blocked and pending.
    pub(crate) fn begin_program(&self, thread: ThreadId) {
        let mut state = self.lock();
        state.actions.retain(|_, action| action[0] == SIG_IGN);
        state.timers.clear();
        state.of(thread).stack = AltStack::default();
    }

    /// A timer was made, whose signals are for one thread or for the process.
    pub(crate) fn timer(&self, id: i32, thread: Option<ThreadId>) {
        let timers = &mut self.lock().timers;
        match thread {
            Some(thread) => timers.insert(id, thread),
            None => timers.remove(&id),
        };
    }

    /// Whom a signal is for that the kernel has sent to the process.
    pub(crate) fn target_of(&self, info: &Info) -> Target {
        self.lock().target_of(info)
    }

    /// Keeps everybody else out while `forked` makes a child process.
    pub(crate) fn during<T>(&self, forked: impl FnOnce() -> T) -> T {
        let _state = self.lock();
        forked()
    }

    /// Replaces the action for a signal, if there is a new one; the previous one.
    pub(crate) fn action(&self, signal: u64, new: Option<Action>) -> Action {
        let mut state = self.lock();
        let previous = state.actions.get(&signal).copied().unwrap_or_default();
        if let Some(action) = new {
            state.actions.insert(signal, action);
            if state.disposition(signal) == Delivery::None {
                state.discard(signal);
            }
        }
        previous
    }

    /// Replaces a thread's mask, if there is a new one; the previous one.
    pub(crate) fn mask(&self, thread: ThreadId, new: Option<u64>) -> u64 {
        let mut state = self.lock();
        let previous = state.of(thread).mask;
        if let Some(mask) = new {
            state.of(thread).mask = mask & !UNBLOCKABLE;
            state.call_for_pending();
        }
        previous
    }

    /// Sets a mask until the thread's next handler or [`Self::take_mask_back`].
    pub(crate) fn lend_mask(&self, thread: ThreadId, mask: u64) {
        let mut state = self.lock();
        let entry = state.of(thread);
        entry.lent = Some(entry.mask);
        entry.mask = mask & !UNBLOCKABLE;
        state.call_for_pending();
    }

    /// Ends what [`Self::lend_mask`] began, unless a handler has.
    pub(crate) fn take_mask_back(&self, thread: ThreadId) {
        self.lock().take_mask_back(thread);
    }

    /// Replaces the stack for handlers, if there is a new one; the previous one.
    pub(crate) fn stack(&self, thread: ThreadId, new: Option<AltStack>) -> AltStack {
        let mut state = self.lock();
        let entry = state.of(thread);
        let previous = entry.stack;
        if let Some(stack) = new {
            entry.stack = stack;
        }
        previous
    }

    /// Signals pending for a thread.
    pub(crate) fn pending(&self, thread: ThreadId) -> u64 {
        let mut state = self.lock();
        let own = bits(&state.of(thread).pending);
        own | bits(&state.pending)
    }

    /// How signals stand for a thread.
    pub(crate) fn standing(&self, thread: ThreadId) -> Standing {
        let mut state = self.lock();
        let with = |wanted: &dyn Fn(u64) -> bool| {
            let actions = state.actions.iter().filter(|(_, action)| wanted(action[0]));
            actions.fold(0, |set, (&signal, _)| set | bit(signal))
        };
        let ignored = with(&|handler| handler == SIG_IGN);
        let caught = with(&|handler| handler > SIG_IGN);
        let shared = bits(&state.pending);
        let own = state.of(thread);
        let (pending, blocked) = (bits(&own.pending), own.mask);
        Standing { pending, shared, blocked, ignored, caught }
    }

    /// Calls the threads to which other processes have sent signals.
    pub(crate) fn call_for_mail(&self, has_mail: impl Fn(i32) -> bool) {
        let mut state = self.lock();
        let mut any = false;
        for thread in state.threads.values_mut().filter(|thread| has_mail(thread.kernel_id)) {
            thread.has_mail = true;
            thread.call();
            any = true;
        }
        drop(state);
        if any {
            self.arrived.notify_all();
        }
    }

    /// A signal is sent. `Terminate` and `Stop` are for the caller to see to; handlers run by
    /// themselves.
    pub(crate) fn send(&self, target: Target, signal: Signal) -> Delivery {
        let mut state = self.lock();
        let bit = bit(signal.number);
        let delivery = state.disposition(signal.number);
        let held = match target {
            Target::Thread(thread) => {
                let Some(entry) = state.threads.get(&thread) else { return Delivery::None };
                (entry.mask | entry.awaited) & bit != 0
            }
            Target::Process => {
                let all = || state.threads.values();
                all().any(|t| t.awaited & bit != 0) || all().all(|t| t.mask & bit != 0)
            }
        };
        if !held && delivery != Delivery::Handler {
            return delivery;
        }
        state.queue(target, signal);
        state.call_for_pending();
        drop(state);
        self.arrived.notify_all();
        if held { Delivery::None } else { delivery }
    }

    /// Signals that are pending and that some thread could handle, but has not come to. Those
    /// that most programs ignore are left out: nobody waits for their handlers.
    pub(crate) fn due(&self) -> Option<Due> {
        let state = self.lock();
        let process = state.pending_for_handlers();
        let all = state.threads.values().map(|thread| thread.could_take(process));
        let idle = MAY_BE_IGNORED.iter().fold(0, |set, &signal| set | bit(signal as u64));
        let signals = all.fold(0, |set, takes| set | takes) & !idle;
        (signals != 0).then_some(Due { signals, handled: state.handled })
    }

    /// Calls every thread that could handle a pending signal, not only the first: whichever comes
    /// to it before the others does.
    pub(crate) fn call_everybody(&self) {
        let state = self.lock();
        let process = state.pending_for_handlers();
        let could = state.threads.values().filter(|thread| thread.could_take(process) != 0);
        could.for_each(Thread::call);
    }

    /// A fault: the signal is handled at once, unless that is impossible.
    pub(crate) fn take_fault(&self, thread: ThreadId, signal: Signal) -> Taken {
        let mut state = self.lock();
        let blocked = state.of(thread).mask & bit(signal.number) != 0;
        if blocked || state.disposition(signal.number) != Delivery::Handler {
            return Taken::Terminate(signal.number);
        }
        Taken::Handle(state.handle(thread, signal))
    }

    /// The next signal that the thread must do something about, if there is any. From then on
    /// the handler's mask is in force.
    pub(crate) fn take(&self, thread: ThreadId) -> Option<Taken> {
        let mut state = self.lock();
        state.fetch_mail(thread);
        if state.of(thread).is_to_end {
            return Some(Taken::End);
        }
        let Some(number) = state.due(thread) else {
            state.of(thread).attention.clear();
            // If a call has ended with a lent mask, another thread has taken what ended it.
            state.take_mask_back(thread);
            return None;
        };
        let signal = state.take(thread, bit(number))?;
        Some(match state.disposition(number) {
            Delivery::Handler => Taken::Handle(state.handle(thread, signal)),
            Delivery::Stop => Taken::Stop(number),
            Delivery::Terminate | Delivery::None => Taken::Terminate(number),
        })
    }

    /// Whether the next signal of a thread lets the system call that it interrupts begin again;
    /// `None` if there is none to be handled.
    pub(crate) fn restarts(&self, thread: ThreadId) -> Option<bool> {
        let mut state = self.lock();
        state.fetch_mail(thread);
        if state.of(thread).is_to_end {
            return Some(true);
        }
        let next = state.due(thread)?;
        let action = state.actions.get(&next).copied().unwrap_or_default();
        Some(action[1] & libc::SA_RESTART as u64 != 0)
    }

    /// The signal that a thread must do something about next.
    pub(crate) fn next(&self, thread: ThreadId) -> Option<u64> {
        self.lock().due(thread)
    }

    /// A thread handles a signal, whether it was sent so far or not.
    pub(crate) fn handle_now(&self, thread: ThreadId, signal: Signal) -> Handling {
        let mut state = self.lock();
        state.of(thread).forget(signal.number);
        state.handle(thread, signal)
    }

    /// Lowers the thread's attention if no signal waits for it.
    pub(crate) fn settle(&self, thread: ThreadId) {
        let mut state = self.lock();
        state.fetch_mail(thread);
        if !state.of(thread).is_to_end && state.due(thread).is_none() {
            state.of(thread).attention.clear();
        }
    }

    /// Whether there may be a descriptor that tells of signals.
    pub(crate) fn has_files(&self) -> bool {
        self.any_files.load(Ordering::Relaxed)
    }

    /// There is a new descriptor that tells of signals.
    pub(crate) fn add_file(&self, file: SignalFile) {
        self.any_files.store(true, Ordering::SeqCst);
        let mut state = self.lock();
        state.files.add(file);
        let pending = state.all_pending();
        state.files.tell(pending);
    }

    /// Has a descriptor tell of other signals; false if it does not tell of signals.
    pub(crate) fn change_file(&self, inode: u64, set: u64) -> bool {
        let mut state = self.lock();
        let pending = state.all_pending();
        let known = state.files.change(inode, set);
        state.files.tell(pending & set);
        known
    }

    /// Of which signals a descriptor tells.
    pub(crate) fn set_of_file(&self, inode: u64) -> Option<u64> {
        self.lock().files.set_of(inode)
    }

    /// Takes signals that a descriptor tells of, but so many at most. If there are none, `drain` is
    /// to empty the descriptor's pipe.
    pub(crate) fn take_for_file(
        &self,
        thread: ThreadId,
        inode: u64,
        most: usize,
        drain: impl FnOnce(),
    ) -> Vec<Signal> {
        let mut state = self.lock();
        let set = state.files.set_of(inode).unwrap_or(0);
        if state.all_pending() & set == 0 {
            drain();
            state.files.emptied(inode);
        }
        let taken = std::iter::from_fn(|| state.take(thread, set)).take(most).collect();
        // The byte that this read has waited for may have been another reader's.
        if let Some(signal) = state.peek(thread, set) {
            state.files.tell(bit(signal));
        }
        taken
    }

    /// Waits for one of the signals in `set`. `Ok(None)` when the time is up, `Err` when another
    /// signal wants to be handled.
    pub(crate) fn wait(
        &self,
        thread: ThreadId,
        set: u64,
        timeout: Option<Duration>,
    ) -> Result<Option<Signal>, Interrupted> {
        // If the deadline is beyond what the clock can show, the wait has none.
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        let mut state = self.lock();
        state.of(thread).awaited = set;
        let taken = loop {
            state.fetch_mail(thread);
            if let Some(signal) = state.take(thread, set) {
                break Ok(Some(signal));
            }
            if state.due(thread).is_some() {
                break Err(Interrupted);
            }
            let left = match deadline {
                Some(deadline) => deadline.saturating_duration_since(Instant::now()),
                None => Duration::from_secs(3600),
            };
            if left.is_zero() {
                break Ok(None);
            }
            state =
                self.arrived.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        };
        state.of(thread).awaited = 0;
        // What has come meanwhile was left to this thread, which has not taken it.
        state.call_for_pending();
        taken
    }

    /// Whether an action is a handler of what comes at any time, not of the thread's own faults,
    /// and not the library's own (glibc sets one when it creates the first thread).
    pub(crate) fn comes_at_any_time(signal: u64, action: &Action) -> bool {
        const FAULTS: [i32; 5] =
            [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGTRAP];
        const LIBRARY: std::ops::RangeInclusive<u64> = 32..=33;
        !FAULTS.contains(&(signal as i32))
            && !LIBRARY.contains(&signal)
            && ![SIG_DFL, SIG_IGN].contains(&action[0])
    }

    /// Whether there is such a handler.
    pub(crate) fn some_come_at_any_time(&self) -> bool {
        let state = self.lock();
        state.actions.iter().any(|(&signal, action)| Self::comes_at_any_time(signal, action))
    }

    /// Whether there is a handler of what threads send each other, and terminals, shells and the kernel do
    /// not.
    pub(crate) fn some_come_from_threads(&self) -> bool {
        use libc::*;
        const OTHERS: [i32; 11] = [
            SIGHUP, SIGINT, SIGQUIT, SIGPIPE, SIGTERM, SIGCHLD, SIGCONT, SIGTSTP, SIGTTIN, SIGTTOU,
            SIGWINCH,
        ];
        let state = self.lock();
        state.actions.iter().any(|(&signal, action)| {
            Self::comes_at_any_time(signal, action) && !OTHERS.contains(&(signal as i32))
        })
    }

    /// Signals that are ignored, for a program that is about to be executed.
    pub(crate) fn ignored(&self) -> Vec<i32> {
        let state = self.lock();
        let ignored = state.actions.iter().filter(|(_, action)| action[0] == SIG_IGN);
        ignored.map(|(&signal, _)| signal as i32).collect()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A wait for signals has been ended by another one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Interrupted;

/// Ignored unless the program asks for them.
const MAY_BE_IGNORED: [i32; 4] = [libc::SIGCHLD, libc::SIGURG, libc::SIGWINCH, libc::SIGCONT];
/// SIGKILL and SIGSTOP.
pub(super) const UNBLOCKABLE: u64 = 1 << 8 | 1 << 18;

/// A signal's bit in a set.
pub(crate) fn bit(signal: u64) -> u64 {
    1 << (signal - 1)
}

fn bits(signals: &[Signal]) -> u64 {
    signals.iter().fold(0, |set, signal| set | bit(signal.number))
}

impl State {
    fn of(&mut self, thread: ThreadId) -> &mut Thread {
        self.threads.entry(thread).or_default()
    }

    fn target_of(&self, info: &Info) -> Target {
        let (code, timer) = (field(info, CODE), field(info, TIMER));
        match self.timers.get(&timer) {
            Some(&thread) if code == SI_TIMER => Target::Thread(thread),
            _ => Target::Process,
        }
    }

    /// The calling thread gets what the kernel has for it, and perhaps for the process.
    fn fetch_mail(&mut self, thread: ThreadId) {
        if !std::mem::take(&mut self.of(thread).has_mail) {
            return;
        }
        while let Some((number, info)) = host::wait_for_signal(u64::MAX, Some(Duration::ZERO)) {
            let target = match is_for_thread(&info) {
                true => Target::Thread(thread),
                false => self.target_of(&info),
            };
            if is_own(&info) {
                continue;
            }
            let signal = Signal { number, info };
            let of_timer = timer_of(&signal).is_some();
            if !self.queue(target, signal) && of_timer {
                // A timer that is faster than this loop would keep the thread here. What is left,
                // the thread gets at the next look.
                self.of(thread).has_mail = true;
                break;
            }
        }
        self.call_for_pending();
    }

    fn disposition(&self, signal: u64) -> Delivery {
        const STOPS: [i32; 3] = [libc::SIGTSTP, libc::SIGTTIN, libc::SIGTTOU];
        match self.actions.get(&signal).map_or(SIG_DFL, |action| action[0]) {
            SIG_DFL if MAY_BE_IGNORED.contains(&(signal as i32)) => Delivery::None,
            SIG_DFL if STOPS.contains(&(signal as i32)) => Delivery::Stop,
            SIG_DFL => Delivery::Terminate,
            SIG_IGN => Delivery::None,
            _ => Delivery::Handler,
        }
    }

    fn all_pending(&self) -> u64 {
        self.threads.values().fold(bits(&self.pending), |set, thread| set | bits(&thread.pending))
    }

    /// Whether a signal is pending that was not before. As in the kernel, one signal of a timer is
    /// pending at a time, and counts how often the timer has fired since.
    fn queue(&mut self, target: Target, signal: Signal) -> bool {
        let pending = match target {
            Target::Process => &mut self.pending,
            Target::Thread(thread) => &mut self.of(thread).pending,
        };
        let timer = timer_of(&signal);
        if let Some(first) = pending.iter_mut().find(|it| timer.is_some() && timer_of(it) == timer)
        {
            let missed = field(&first.info, OVERRUN).saturating_add(1);
            let missed = missed.saturating_add(field(&signal.info, OVERRUN));
            first.info[OVERRUN..OVERRUN + 4].copy_from_slice(&missed.to_le_bytes());
            return false;
        }
        let known = pending.iter().any(|other| other.number == signal.number);
        if known && signal.number < FIRST_REAL_TIME {
            return false;
        }
        let number = signal.number;
        pending.push(signal);
        self.files.tell(bit(number));
        true
    }

    /// Forgets what is pending of a signal that is ignored now.
    fn discard(&mut self, signal: u64) {
        self.pending.retain(|other| other.number != signal);
        self.threads.values_mut().for_each(|thread| thread.forget(signal));
        let left = self.all_pending();
        self.files.take_back(left);
    }

    /// Signals of which the first thread that does not block them waits for them in a call, as the kernel looks
    /// through the threads: while one waits, it does not block them, and the main thread comes first. They wake
    /// that thread alone.
    fn left_to_waiters(&self) -> u64 {
        let (mut awaited, mut others) = (0, 0);
        for thread in self.threads.values() {
            awaited |= thread.awaited & !others;
            others |= !thread.mask & !awaited;
        }
        awaited
    }

    /// What is pending for the process and not left to a thread that waits for it.
    fn pending_for_handlers(&self) -> u64 {
        bits(&self.pending) & !self.left_to_waiters()
    }

    /// Calls a thread for each signal that somebody could handle now: the first thread that does
    /// not block it, as the kernel prefers the main thread.
    fn call_for_pending(&mut self) {
        let mut left = self.pending_for_handlers();
        for thread in self.threads.values() {
            let takes = thread.could_take(left);
            left &= !takes;
            if takes != 0 {
                thread.call();
            }
        }
    }

    /// The lowest pending signal of `set`, the thread's own first, as the kernel has it.
    fn peek(&mut self, thread: ThreadId, set: u64) -> Option<u64> {
        let lowest = |pending: u64| (pending != 0).then(|| u64::from(pending.trailing_zeros()) + 1);
        let own = bits(&self.of(thread).pending) & set;
        lowest(own).or_else(|| lowest(bits(&self.pending) & set))
    }

    /// The next signal that a thread must do something about; ignored ones are dropped.
    fn due(&mut self, thread: ThreadId) -> Option<u64> {
        let unblocked = !self.of(thread).mask;
        let shared = !self.left_to_waiters();
        loop {
            let own = bits(&self.of(thread).pending);
            let number = self.peek(thread, unblocked & (own | shared))?;
            if self.disposition(number) != Delivery::None {
                return Some(number);
            }
            self.take(thread, bit(number));
        }
    }

    fn take(&mut self, thread: ThreadId, set: u64) -> Option<Signal> {
        let number = self.peek(thread, set)?;
        let pending = match bits(&self.of(thread).pending) & bit(number) {
            0 => &mut self.pending,
            _ => &mut self.of(thread).pending,
        };
        let at = pending.iter().position(|signal| signal.number == number)?;
        let taken = pending.remove(at);
        let left = self.all_pending();
        self.files.take_back(left);
        Some(taken)
    }

    fn take_mask_back(&mut self, thread: ThreadId) {
        if let Some(mask) = self.of(thread).lent.take() {
            self.of(thread).mask = mask;
            self.call_for_pending();
        }
    }

    /// The handler of a signal is about to run.
    fn handle(&mut self, thread: ThreadId, signal: Signal) -> Handling {
        let action = self.actions.get(&signal.number).copied().unwrap_or_default();
        let [_, flags, _, blocked] = action;
        if flags & libc::SA_RESETHAND as u64 != 0 {
            let [_, flags, restorer, blocked] = action;
            self.actions.insert(signal.number, [libc::SIG_DFL as u64, flags, restorer, blocked]);
        }
        let entry = self.of(thread);
        let mask = entry.lent.take().unwrap_or(entry.mask);
        entry.mask |= blocked & !UNBLOCKABLE;
        if flags & libc::SA_NODEFER as u64 == 0 {
            entry.mask |= bit(signal.number);
        }
        let stack = entry.stack;
        self.handled += 1;
        self.call_for_pending();
        Handling { signal, action, mask, stack }
    }
}

#[cfg(test)]
mod tests;
