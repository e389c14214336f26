//! The gate: lets each event through when its ticket is up (ELSC: the recorded order per object,
//! free otherwise; PerfPlay §5.2).
//!
//! A thread that waits here is held back *artificially*. When every thread waits and no
//! condition holds, none ever will: the gate says so instead of hanging.

use super::arrivals::Arrivals;
use crate::host::{self, Guest};
use refrain_trace::{ThreadId, order};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::Thread;
use std::time::{Duration, Instant};

/// Rounds of spinning before a thread sleeps. Hand-overs between running threads take less.
const SPINS: u32 = 200;
/// A sleeping thread looks again after this time, whatever it was told.
const NAP: Duration = Duration::from_millis(20);
/// Nobody tells of a plain store to guest memory.
const SHORT_NAP: Duration = Duration::from_micros(200);
/// What a thread waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Condition {
    /// Exactly this many tickets of the slot are done.
    Turn { slot: usize, ticket: u64 },
    /// At least this many tickets of the slot are done.
    Reached { slot: usize, count: u64 },
    /// The operand in guest memory has this value.
    Value { address: u64, size: u8, value: u64 },
    /// The operand in guest memory has one of these bits.
    Bits { address: u64, mask: u64 },
    /// The operand has the value that a load read in the recording, or everybody else has come
    /// past that time, so that no store of before is missing. No divergence if neither happens:
    /// the load has its value.
    Caught { address: u64, size: u8, value: u64, time: u64 },
}

impl Condition {
    /// Until when others are waited for, if the condition need not hold.
    fn deadline(self) -> Option<u64> {
        match self {
            Condition::Caught { time, .. } => Some(time),
            _ => None,
        }
    }
}

/// What can become of all that wait.
enum Prospect {
    /// Somebody can go on.
    Open,
    /// Nobody, unless this thread gives up what need not hold.
    GivingUp(ThreadId),
    /// Nobody.
    None,
}

/// The wait cannot end: no thread can go on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Stuck;

/// Sleeping threads: what each waits for, and how to wake it.
type Waiting = BTreeMap<ThreadId, (Condition, Thread)>;

/// The state of all waiting.
pub(crate) struct Gate {
    done: Box<[AtomicU64]>,
    /// Threads that are neither waiting nor finished.
    running: AtomicUsize,
    sleepers: AtomicUsize,
    waiting: Mutex<Waiting>,
    pub(crate) arrivals: Arrivals,
    stuck: AtomicBool,
    progress: AtomicU64,
    /// Without any ticket taken for so long, some thread is running in circles.
    patience: Duration,
}

impl Gate {
    /// A gate for a run of so many threads that took `recorded` altogether. A replay that follows the recording can
    /// be slow, but not by a factor that has no bound.
    pub(crate) fn new(recorded: Duration, threads: u32) -> Gate {
        Gate {
            arrivals: Arrivals::new(threads),
            patience: Duration::from_secs(60) + 20 * recorded,
            done: (0..order::SLOTS).map(|_| AtomicU64::new(0)).collect(),
            running: AtomicUsize::new(0),
            sleepers: AtomicUsize::new(0),
            waiting: Mutex::default(),
            stuck: AtomicBool::new(false),
            progress: AtomicU64::new(0),
        }
    }

    /// A thread begins to run.
    pub(crate) fn enter(&self, thread: ThreadId) {
        self.arrivals.begin(thread);
        self.running.fetch_add(1, Ordering::SeqCst);
    }

    /// A thread will not run any more.
    pub(crate) fn leave(&self, thread: ThreadId) {
        self.arrivals.end(thread);
        self.running.fetch_sub(1, Ordering::SeqCst);
        // Those who wait must find out whether anybody is left to wait for.
        for (_, sleeper) in self.lock().values() {
            sleeper.unpark();
        }
    }

    /// The holder of `ticket` has performed its event.
    pub(crate) fn advance(&self, slot: usize, ticket: u64) {
        self.done[slot].store(ticket + 1, Ordering::SeqCst);
        self.progress.fetch_add(1, Ordering::Relaxed);
        if self.sleepers.load(Ordering::SeqCst) > 0 {
            for (&thread, (condition, sleeper)) in self.lock().iter() {
                if self.holds(thread, *condition) {
                    sleeper.unpark();
                }
            }
        }
    }

    /// Waits until `condition` holds.
    pub(crate) fn wait(&self, thread: ThreadId, condition: Condition) -> Result<(), Stuck> {
        for round in 0..SPINS {
            if self.holds(thread, condition) {
                return Ok(());
            }
            if round < SPINS / 2 {
                std::hint::spin_loop();
            } else {
                host::yield_now();
            }
        }
        self.sleep(thread, condition)
    }

    fn sleep(&self, thread: ThreadId, condition: Condition) -> Result<(), Stuck> {
        let nap = match condition {
            Condition::Turn { .. } | Condition::Reached { .. } => NAP,
            Condition::Value { .. } | Condition::Bits { .. } | Condition::Caught { .. } => {
                SHORT_NAP
            }
        };
        // Registered before the condition is looked at again: whoever makes it hold after that
        // look sees a sleeper.
        self.lock().insert(thread, (condition, std::thread::current()));
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        self.running.fetch_sub(1, Ordering::SeqCst);
        let mut last = (self.progress.load(Ordering::Relaxed), Instant::now());
        let result = loop {
            if self.holds(thread, condition) {
                break Ok(());
            }
            let progress = self.progress.load(Ordering::Relaxed);
            if progress != last.0 {
                last = (progress, Instant::now());
            }
            match self.prospect() {
                Prospect::GivingUp(one) if one == thread => break Ok(()),
                Prospect::None => self.stuck.store(true, Ordering::SeqCst),
                _ if last.1.elapsed() > self.patience => self.stuck.store(true, Ordering::SeqCst),
                _ => {}
            }
            if self.stuck.load(Ordering::SeqCst) {
                break Err(Stuck);
            }
            std::thread::park_timeout(nap);
        };
        self.running.fetch_add(1, Ordering::SeqCst);
        self.sleepers.fetch_sub(1, Ordering::SeqCst);
        self.lock().remove(&thread);
        result
    }

    /// Under the lock nobody begins to sleep or ceases to be registered; who has woken counts as
    /// running or has a condition that holds.
    fn prospect(&self) -> Prospect {
        let waiting = self.lock();
        let going = self.running.load(Ordering::SeqCst) > 0
            || waiting.iter().any(|(&thread, &(condition, _))| self.holds(thread, condition));
        if going {
            return Prospect::Open;
        }
        let patient = |(&thread, (condition, _)): (&ThreadId, &(Condition, Thread))| {
            condition.deadline().map(|time| (time, thread))
        };
        let first = waiting.iter().filter_map(patient).min();
        first.map_or(Prospect::None, |(_, thread)| Prospect::GivingUp(thread))
    }

    fn holds(&self, thread: ThreadId, condition: Condition) -> bool {
        match condition {
            Condition::Caught { address, size, value, time } => {
                Guest.operand(address, size) == Some(value) || self.arrivals.all_past(thread, time)
            }
            Condition::Turn { slot, ticket } => self.done[slot].load(Ordering::SeqCst) == ticket,
            Condition::Reached { slot, count } => self.done[slot].load(Ordering::SeqCst) >= count,
            Condition::Value { address, size, value } => {
                Guest.operand(address, size) == Some(value)
            }
            Condition::Bits { address, mask } => {
                Guest.word32(address).is_some_and(|word| u64::from(word) & mask != 0)
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turns_come_in_the_order_of_the_tickets() {
        let gate = Gate::new(Duration::ZERO, 8);
        let order = Mutex::new(Vec::new());
        std::thread::scope(|scope| {
            for ticket in (0..8).rev() {
                gate.enter(ThreadId(ticket as u32));
                let (gate, order) = (&gate, &order);
                scope.spawn(move || {
                    let thread = ThreadId(ticket as u32);
                    gate.wait(thread, Condition::Turn { slot: 9, ticket })
                        .expect("every ticket before this one is taken by somebody");
                    order.lock().expect("no thread panics").push(ticket);
                    gate.advance(9, ticket);
                    gate.leave(thread);
                });
            }
        });
        assert_eq!(order.into_inner().expect("no thread panics"), (0..8).collect::<Vec<_>>());
    }

    #[test]
    fn waiting_for_nobody_is_noticed() {
        let gate = Gate::new(Duration::ZERO, 8);
        std::thread::scope(|scope| {
            for thread in 0..2 {
                gate.enter(ThreadId(thread));
                let gate = &gate;
                scope.spawn(move || {
                    let turn = Condition::Turn { slot: 9 + thread as usize, ticket: 1 };
                    assert_eq!(gate.wait(ThreadId(thread), turn), Err(Stuck));
                    gate.leave(ThreadId(thread));
                });
            }
        });
    }

    #[test]
    fn what_need_not_hold_is_given_up() {
        let gate = Gate::new(Duration::ZERO, 8);
        let word = 5_u64;
        let address = &raw const word as u64;
        std::thread::scope(|scope| {
            for thread in 0..2 {
                gate.enter(ThreadId(thread));
                gate.arrivals.arrive(ThreadId(thread), 50);
                let gate = &gate;
                scope.spawn(move || {
                    let time = 100 + u64::from(thread);
                    let caught = Condition::Caught { address, size: 8, value: 6, time };
                    assert_eq!(gate.wait(ThreadId(thread), caught), Ok(()));
                    gate.leave(ThreadId(thread));
                });
            }
        });
        gate.enter(ThreadId(0));
        let caught = Condition::Caught { address, size: 8, value: 5, time: 100 };
        assert_eq!(gate.wait(ThreadId(1), caught), Ok(()), "the value is there");
    }
}
