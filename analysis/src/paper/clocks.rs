//! Vector clocks that count what they cost (FastTrack, section 2.2).

use super::Cost;
use super::step::{Op, Step};
use refrain_trace::fixed::FixedMap;

/// Of each thread, how much of it happens before. What is missing is zero.
#[derive(Clone, Debug, Default)]
pub(super) struct Clock(Vec<u32>);

impl Clock {
    pub(super) fn of(&self, thread: u32) -> u32 {
        self.0.get(thread as usize).copied().unwrap_or(0)
    }

    pub(super) fn set(&mut self, thread: u32, to: u32) {
        let index = thread as usize;
        if index >= self.0.len() {
            self.0.resize(index + 1, 0);
        }
        self.0[index] = to;
    }

    pub(super) fn join(&mut self, other: &Clock, cost: &mut Cost) {
        cost.operations += 1;
        if self.0.len() < other.0.len() {
            self.0.resize(other.0.len(), 0);
        }
        for (mine, theirs) in self.0.iter_mut().zip(&other.0) {
            *mine = (*mine).max(*theirs);
        }
    }

    pub(super) fn is_before(&self, other: &Clock, cost: &mut Cost) -> bool {
        cost.operations += 1;
        (0..).zip(&self.0).all(|(thread, &clock)| clock <= other.of(thread))
    }

    pub(super) fn bytes(&self) -> u64 {
        size_of_val(self.0.as_slice()) as u64
    }
}

/// When the threads read a variable, and when they wrote it.
pub(super) struct Accesses {
    reads: Clock,
    writes: Clock,
}

impl Accesses {
    /// None yet.
    pub(super) fn new(cost: &mut Cost) -> Accesses {
        cost.clocks += 2;
        Accesses { reads: Clock::default(), writes: Clock::default() }
    }

    /// Those that write, or those that read.
    pub(super) fn of_kind(&mut self, writes: bool) -> &mut Clock {
        if writes { &mut self.writes } else { &mut self.reads }
    }

    /// Whether an access now conflicts with one that does not happen before it.
    pub(super) fn race_with(&self, writes: bool, now: &Clock, cost: &mut Cost) -> bool {
        let after_writes = self.writes.is_before(now, cost);
        let after_reads = !writes || self.reads.is_before(now, cost);
        !(after_writes && after_reads)
    }

    pub(super) fn bytes(&self) -> u64 {
        self.reads.bytes() + self.writes.bytes()
    }
}

/// The clocks of threads and of what they synchronize through.
#[derive(Default)]
pub(super) struct Clocks {
    threads: FixedMap<u32, Clock>,
    objects: FixedMap<u64, Clock>,
    pub(super) cost: Cost,
}

impl Clocks {
    /// The clock of a thread, which is never at zero.
    pub(super) fn of(&mut self, thread: u32) -> (&Clock, &mut Cost) {
        let cost = &mut self.cost;
        let clock = self.threads.entry(thread).or_insert_with(|| begin(thread, cost));
        (clock, cost)
    }

    /// What the thread does from here on is later than what it has done.
    pub(super) fn advance(&mut self, thread: u32) {
        let Clocks { threads, cost, .. } = self;
        let clock = threads.entry(thread).or_insert_with(|| begin(thread, cost));
        clock.set(thread, clock.of(thread) + 1);
    }

    /// What the clock has happened before what the thread does from here on.
    pub(super) fn see(&mut self, thread: u32, other: &Clock) {
        let Clocks { threads, cost, .. } = self;
        threads.entry(thread).or_insert_with(|| begin(thread, cost)).join(other, cost);
    }

    /// What was released to an object orders nothing any more.
    pub(super) fn forget(&mut self, object: u64) {
        self.objects.remove(&object);
    }

    /// Takes a step that orders.
    pub(super) fn synchronize(&mut self, step: &Step) {
        let Clocks { threads, objects, cost } = self;
        let thread = step.thread;
        match step.op {
            Op::Acquire(object) => {
                let clock = threads.entry(thread).or_insert_with(|| begin(thread, cost));
                if let Some(released) = objects.get(&object) {
                    clock.join(released, cost);
                }
            }
            Op::Release(object) => {
                let clock = threads.entry(thread).or_insert_with(|| begin(thread, cost));
                let released = objects.entry(object).or_insert_with(|| {
                    cost.clocks += 1;
                    Clock::default()
                });
                released.join(clock, cost);
                clock.set(thread, clock.of(thread) + 1);
            }
            _ => {}
        }
    }
}

fn begin(thread: u32, cost: &mut Cost) -> Clock {
    cost.clocks += 1;
    let mut clock = Clock::default();
    clock.set(thread, 1);
    clock
}
