//! The gate: lets each event through when its ticket is up (ELSC: the recorded order per object,
//! free otherwise; PerfPlay §5.2).
//!
//! A thread that waits here is held back *artificially*. When every thread waits and no
//! condition holds, none ever will: the gate says so instead of hanging.

use crate::host::{self, Guest};
use refrain_trace::{ThreadId, order};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Rounds of spinning before a thread sleeps. Hand-overs between running threads take less.
const SPINS: u32 = 200;
/// A sleeping thread looks again after this time, whatever it was told.
const NAP: Duration = Duration::from_millis(20);
/// Without any event anywhere for so long, a wait for a value has failed: some thread is running
/// in circles. Only a replay that has already left the recording comes to this.
const PATIENCE: Duration = Duration::from_secs(10);

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
}

/// The wait cannot end: no thread can go on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Stuck;

/// The state of all waiting.
pub(crate) struct Gate {
    done: Box<[AtomicU64]>,
    /// Threads that are neither waiting nor finished.
    running: AtomicUsize,
    sleepers: AtomicUsize,
    waiting: Mutex<BTreeMap<ThreadId, Condition>>,
    changed: Condvar,
    stuck: AtomicBool,
    progress: AtomicU64,
}

impl Gate {
    pub(crate) fn new() -> Gate {
        Gate {
            done: (0..order::SLOTS).map(|_| AtomicU64::new(0)).collect(),
            running: AtomicUsize::new(0),
            sleepers: AtomicUsize::new(0),
            waiting: Mutex::default(),
            changed: Condvar::new(),
            stuck: AtomicBool::new(false),
            progress: AtomicU64::new(0),
        }
    }

    /// A thread begins to run.
    pub(crate) fn enter(&self) {
        self.running.fetch_add(1, Ordering::SeqCst);
    }

    /// A thread will not run any more.
    pub(crate) fn leave(&self) {
        self.running.fetch_sub(1, Ordering::SeqCst);
        // Those who wait must find out whether anybody is left to wait for.
        drop(self.lock());
        self.changed.notify_all();
    }

    /// The holder of `ticket` has performed its event.
    pub(crate) fn advance(&self, slot: usize, ticket: u64) {
        self.done[slot].store(ticket + 1, Ordering::SeqCst);
        self.progress.fetch_add(1, Ordering::Relaxed);
        if self.sleepers.load(Ordering::SeqCst) > 0 {
            drop(self.lock());
            self.changed.notify_all();
        }
    }

    /// Waits until `condition` holds.
    pub(crate) fn wait(&self, thread: ThreadId, condition: Condition) -> Result<(), Stuck> {
        for round in 0..SPINS {
            if self.holds(condition) {
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
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        let mut waiting = self.lock();
        waiting.insert(thread, condition);
        self.running.fetch_sub(1, Ordering::SeqCst);
        let mut last = (self.progress.load(Ordering::Relaxed), Instant::now());
        let result = loop {
            if self.holds(condition) {
                break Ok(());
            }
            let progress = self.progress.load(Ordering::Relaxed);
            if progress != last.0 {
                last = (progress, Instant::now());
            }
            let nobody_runs = self.running.load(Ordering::SeqCst) == 0
                && !waiting.values().any(|&condition| self.holds(condition));
            if nobody_runs || last.1.elapsed() > PATIENCE || self.stuck.load(Ordering::SeqCst) {
                self.stuck.store(true, Ordering::SeqCst);
                break Err(Stuck);
            }
            waiting = self
                .changed
                .wait_timeout(waiting, NAP)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        };
        waiting.remove(&thread);
        self.running.fetch_add(1, Ordering::SeqCst);
        self.sleepers.fetch_sub(1, Ordering::SeqCst);
        drop(waiting);
        self.changed.notify_all();
        result
    }

    fn holds(&self, condition: Condition) -> bool {
        match condition {
            Condition::Turn { slot, ticket } => self.done[slot].load(Ordering::SeqCst) == ticket,
            Condition::Reached { slot, count } => self.done[slot].load(Ordering::SeqCst) >= count,
            Condition::Value {
                address,
                size,
                value,
            } => Guest.operand(address, size) == Some(value),
            Condition::Bits { address, mask } => {
                Guest.word32(address).is_some_and(|word| u64::from(word) & mask != 0)
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<ThreadId, Condition>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turns_come_in_the_order_of_the_tickets() {
        let gate = Gate::new();
        let order = Mutex::new(Vec::new());
        std::thread::scope(|scope| {
            for ticket in (0..8).rev() {
                gate.enter();
                let (gate, order) = (&gate, &order);
                scope.spawn(move || {
                    let thread = ThreadId(ticket as u32);
                    gate.wait(thread, Condition::Turn { slot: 9, ticket })
                        .expect("every ticket before this one is taken by somebody");
                    order.lock().expect("no thread panics").push(ticket);
                    gate.advance(9, ticket);
                    gate.leave();
                });
            }
        });
        assert_eq!(order.into_inner().expect("no thread panics"), (0..8).collect::<Vec<_>>());
    }

    #[test]
    fn waiting_for_nobody_is_noticed() {
        let gate = Gate::new();
        std::thread::scope(|scope| {
            for thread in 0..2 {
                gate.enter();
                let gate = &gate;
                scope.spawn(move || {
                    let turn = Condition::Turn {
                        slot: 9 + thread as usize,
                        ticket: 1,
                    };
                    assert_eq!(gate.wait(ThreadId(thread), turn), Err(Stuck));
                    gate.leave();
                });
            }
        });
    }
}
