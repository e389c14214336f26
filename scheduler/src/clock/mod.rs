//! The virtual clock: discrete-event replay of a skeleton on modelled cores.
//!
//! Every thread on a core has one future: the moment when it comes to its next operation (or its
//! slice ends). The clock takes the earliest of these, ties by thread id, and lets that thread
//! perform, wait or sleep. Cores are given in the order of readiness. Nothing else moves time,
//! so the result is a function of the arguments alone.
//!
//! A step costs O(log threads) for the queue. A grant costs O(waiting threads of the object), or
//! O(1) in the recorded order, where each operation knows which thread comes after it.
//! Memory beyond the skeleton is O(threads + objects).

mod deadlock;
mod engine;
mod grants;
mod line;
mod logical;
mod objects;
mod threads;
mod timers;

pub use deadlock::{Deadlock, Wait, Want};

use crate::{Config, Constraints, Model, Scheduler, Skeleton};
use refrain_trace::{EventId, ThreadId};

/// Where a thread's time went, in ticks. The parts add up to `finished - started`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Account {
    /// When the thread was created.
    pub started: u64,
    /// When its last event was over.
    pub finished: u64,
    /// On a core, at the program's work, in operations or in the kernel.
    pub running: u64,
    /// On a core, waiting for a spin lock that is held.
    pub spinning: u64,
    /// Off the core, waiting for something in the program: a lock that is held, a thread, a
    /// signal, a surviving causal edge; and the latency of being woken.
    pub blocked: u64,
    /// The part of waiting, awake or not, that is for locks and semaphores that were taken, until it went
    /// on.
    pub wanted: u64,
    /// Held back to honour an order, though the object was free: not the program's waiting.
    pub artificial: u64,
    /// Ready, without a core.
    pub runnable: u64,
    /// Off the core, waiting for something outside the program.
    pub io: u64,
    /// Competing operations that found their object taken.
    pub contended: u64,
    /// Those of them that slept and were woken ([`crate::Waiting::Glibc`]).
    pub slept: u64,
    /// For how long those waited.
    pub slept_for: u64,
    /// Tries that were recorded as successful and found the lock taken: the program would have
    /// gone another way here, and the skeleton waited instead.
    pub tries_differ: u64,
    /// Tries that were recorded as failed and found the lock free: the same the other way round.
    pub tries_free: u64,
}

/// A replay that came to its end.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Run {
    /// From the start to the end of the last thread, in ticks.
    pub duration: u64,
    /// By thread id.
    pub threads: Vec<Account>,
}

/// How a replay ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// Every event was performed, once.
    Completed(Run),
    /// No thread can go on.
    Deadlocked(Deadlock),
}

impl Outcome {
    /// The run, if the replay came to its end.
    pub fn completed(self) -> Option<Run> {
        match self {
            Outcome::Completed(run) => Some(run),
            Outcome::Deadlocked(_) => None,
        }
    }
}

/// Sees every event of a replay. Events of one thread come in their order; between threads, in
/// the order in which they end, but for the operation's own cost.
pub trait Visitor {
    /// `thread` came to `event` at `begin` and went on at `end`. The work before the event began
    /// when the previous event ended.
    fn event(&mut self, thread: ThreadId, event: EventId, begin: u64, end: u64);
}

/// Sees nothing and costs nothing.
impl Visitor for () {
    #[inline]
    fn event(&mut self, _: ThreadId, _: EventId, _: u64, _: u64) {}
}

impl<F: FnMut(ThreadId, EventId, u64, u64)> Visitor for F {
    #[inline]
    fn event(&mut self, thread: ThreadId, event: EventId, begin: u64, end: u64) {
        self(thread, event, begin, end);
    }
}

/// Replays `skeleton` under `constraints` in virtual time.
///
/// # Panics
/// If `config.cores` is zero, if the clocks of `model` are of other threads, or if the scheduler
/// breaks its contract: a grant that is not among the requests.
pub fn simulate<S: Scheduler, V: Visitor>(
    skeleton: &Skeleton,
    constraints: &Constraints<'_>,
    config: &Config,
    model: &Model<'_>,
    scheduler: &mut S,
    visitor: &mut V,
) -> Outcome {
    assert!(config.cores > 0, "a machine has at least one core");
    let mut engine = engine::Engine::new(skeleton, constraints, config, model, scheduler, visitor);
    match engine.run() {
        Some(run) => Outcome::Completed(run),
        None => Outcome::Deadlocked(deadlock::explain(&engine)),
    }
}
