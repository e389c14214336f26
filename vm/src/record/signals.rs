//! The guest's signals, as far as they are supported: default actions, ignoring, blocking, and
//! waiting for blocked ones (`sigwait`). Handlers of the guest's own are not run.
//!
//! The host's signal machinery is not involved: host threads block everything, and what comes
//! from outside arrives here too.

use refrain_trace::ThreadId;
use std::collections::BTreeMap;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// What becomes of a signal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Delivery {
    /// Nothing: it is ignored, or it waits until somebody waits for it.
    None,
    /// The process ends.
    Terminate,
    /// A function of the guest's would have to run.
    Handler,
}

/// Who a signal is for.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Target {
    Process,
    Thread(ThreadId),
}

/// The state of all signals of the guest.
#[derive(Default)]
pub(crate) struct Signals {
    state: Mutex<State>,
    arrived: Condvar,
}

#[derive(Default)]
struct State {
    /// `struct kernel_sigaction`, as the guest installed it.
    actions: BTreeMap<u64, [u64; 4]>,
    /// Blocked signals of each thread, bit `n - 1` for signal `n`.
    masks: BTreeMap<ThreadId, u64>,
    /// Signals that some thread waits for at the moment.
    awaited: BTreeMap<ThreadId, u64>,
    pending: BTreeMap<Target, u64>,
}

impl Signals {
    /// Replaces the action for a signal, if there is a new one; the previous one.
    pub(crate) fn action(&self, signal: u64, new: Option<[u64; 4]>) -> [u64; 4] {
        let mut state = self.lock();
        let previous = state.actions.get(&signal).copied().unwrap_or_default();
        if let Some(action) = new {
            state.actions.insert(signal, action);
        }
        previous
    }

    /// Replaces a thread's mask, if there is a new one; the previous one.
    pub(crate) fn mask(&self, thread: ThreadId, new: Option<u64>) -> u64 {
        let mut state = self.lock();
        let previous = state.masks.get(&thread).copied().unwrap_or(0);
        if let Some(mask) = new {
            state.masks.insert(thread, mask);
        }
        previous
    }

    /// Signals pending for a thread.
    pub(crate) fn pending(&self, thread: ThreadId) -> u64 {
        let state = self.lock();
        let of = |target| state.pending.get(&target).copied().unwrap_or(0);
        of(Target::Process) | of(Target::Thread(thread))
    }

    /// A signal is sent.
    pub(crate) fn send(&self, target: Target, signal: u64) -> Delivery {
        let bit = 1u64 << (signal - 1);
        let mut state = self.lock();
        let has = |set: Option<&u64>| set.is_some_and(|set| set & bit != 0);
        let held = match target {
            Target::Thread(thread) => {
                has(state.masks.get(&thread)) || has(state.awaited.get(&thread))
            }
            Target::Process => {
                state.awaited.values().any(|set| set & bit != 0)
                    || !state.masks.is_empty() && state.masks.values().all(|set| set & bit != 0)
            }
        };
        let delivery = state.disposition(signal);
        if delivery == Delivery::None && !held {
            return Delivery::None;
        }
        if !held {
            return delivery;
        }
        *state.pending.entry(target).or_default() |= bit;
        drop(state);
        self.arrived.notify_all();
        Delivery::None
    }

    /// What becomes of a signal that the sending thread itself receives, unblocked.
    pub(crate) fn disposition(&self, signal: u64) -> Delivery {
        self.lock().disposition(signal)
    }

    /// Waits for one of the signals in `set`; `None` when the time is up.
    pub(crate) fn wait(
        &self,
        thread: ThreadId,
        set: u64,
        timeout: Option<Duration>,
    ) -> Option<u64> {
        let deadline = timeout.map(|timeout| Instant::now() + timeout);
        let mut state = self.lock();
        state.awaited.insert(thread, set);
        let taken = loop {
            if let Some(signal) = state.take(thread, set) {
                break Some(signal);
            }
            let left = match deadline {
                Some(deadline) => deadline.saturating_duration_since(Instant::now()),
                None => Duration::from_secs(3600),
            };
            if left.is_zero() {
                break None;
            }
            state =
                self.arrived.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        };
        state.awaited.remove(&thread);
        taken
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn disposition(&self, signal: u64) -> Delivery {
        const IGNORED: [i32; 4] = [libc::SIGCHLD, libc::SIGURG, libc::SIGWINCH, libc::SIGCONT];
        match self.actions.get(&signal).map_or(0, |action| action[0]) {
            0 if IGNORED.contains(&(signal as i32)) => Delivery::None,
            0 => Delivery::Terminate,
            1 => Delivery::None,
            _ => Delivery::Handler,
        }
    }

    /// Takes the lowest pending signal of `set`, the thread's own first, as the kernel does.
    fn take(&mut self, thread: ThreadId, set: u64) -> Option<u64> {
        for target in [Target::Thread(thread), Target::Process] {
            let Some(pending) = self.pending.get_mut(&target) else {
                continue;
            };
            let ready = *pending & set;
            if ready != 0 {
                let bit = ready & ready.wrapping_neg();
                *pending &= !bit;
                return Some(u64::from(bit.trailing_zeros()) + 1);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_blocked_signal_waits_for_its_waiter() {
        let signals = Signals::default();
        let (main, waiter) = (ThreadId(0), ThreadId(1));
        for thread in [main, waiter] {
            signals.mask(thread, Some(!0));
        }
        assert_eq!(signals.send(Target::Thread(waiter), 10), Delivery::None);
        assert_eq!(signals.pending(waiter), 1 << 9);
        assert_eq!(signals.wait(main, !0, Some(Duration::ZERO)), None);
        assert_eq!(signals.wait(waiter, !0, None), Some(10));
        assert_eq!(signals.pending(waiter), 0);
    }

    #[test]
    fn unblocked_signals_act() {
        let signals = Signals::default();
        signals.mask(ThreadId(0), Some(0));
        assert_eq!(signals.send(Target::Process, 10), Delivery::Terminate);
        assert_eq!(signals.send(Target::Process, libc::SIGCHLD as u64), Delivery::None);
        signals.action(10, Some([0x1000, 0, 0, 0]));
        assert_eq!(signals.send(Target::Process, 10), Delivery::Handler);
        signals.action(10, Some([1, 0, 0, 0]));
        assert_eq!(signals.send(Target::Process, 10), Delivery::None);
    }
}
