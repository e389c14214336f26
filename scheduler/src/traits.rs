//! The `Scheduler` trait: who may go next.

use refrain_trace::ThreadId;

/// A thread that stands before an operation and could perform it now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Request {
    /// The thread.
    pub thread: ThreadId,
    /// The operation, by the position of its event in the thread's stream.
    pub event: u32,
    /// The operation's recorded place among the competing operations of its object. `None` for
    /// one that the recorder left out of the order.
    pub rank: Option<u32>,
    /// How many competing operations of the object have been performed in this replay.
    pub granted: u32,
    /// When the thread came to the operation.
    pub arrived: u64,
    /// The thread's own work until here: a logical clock that no waiting moves.
    pub clock: u64,
}

/// What a thread is doing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Status {
    /// Not created yet.
    Unborn,
    /// At work, or about to be: it will come to its next operation by itself.
    Going,
    /// Off its core in an event that nobody in the program ends: input, output, sleep.
    Away,
    /// Before an operation that it may not or cannot perform yet.
    Waiting,
    /// Past its last event.
    Done,
}

/// A thread as others see it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Progress {
    /// What it is doing.
    pub status: Status,
    /// Its next event that is not performed yet, as far as is known.
    pub event: u32,
    /// Its logical clock, see [`Request::clock`], where it came from its last operation: what it
    /// does later does not come before this.
    pub from: u64,
    /// Its logical clock at its next operation. A full replay, which does not know that, has `from`
    /// here.
    pub clock: u64,
    /// When it gets there, if it is on a core and nothing interferes; else `u64::MAX`.
    pub due: u64,
    /// How much of the work between the two operations is still to be done, of `span` in all.
    pub left: u64,
    /// See `left`.
    pub span: u64,
}

impl Progress {
    /// When the thread has come so far by its logical clock. `None` if not by its work alone, or if
    /// nobody knows.
    pub fn reaches(&self, clock: u64, now: u64) -> Option<u64> {
        if self.from >= clock || self.status == Status::Away && self.clock >= clock {
            return Some(now);
        }
        if self.clock < clock {
            return None;
        }
        let part = u128::from(clock - self.from) * u128::from(self.span);
        let needed = part.div_ceil(u128::from(self.clock - self.from)) as u64;
        let done = self.span - self.left;
        match needed.saturating_sub(done) {
            0 => Some(now),
            more => (self.due != u64::MAX).then(|| now.saturating_add(more)),
        }
    }
}

/// The moment of a decision.
#[derive(Clone, Copy, Debug)]
pub struct Moment<'a> {
    /// The time. A full replay has none: 0.
    pub now: u64,
    /// How many steps threads have made by now. It tells apart what happens at one time.
    pub step: u64,
    /// Every thread, by its id. Empty for a scheduler that decides object by object.
    pub threads: &'a [Progress],
}

/// What a decision can depend on. Constant for a scheduler.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Scope {
    /// On the requests for one object, which are granted in the recorded order: a request with a
    /// rank when [`Request::granted`] has come to it. The scheduler need not be asked about others.
    Order,
    /// On the requests for one object: it is asked again when that object changes.
    Object,
    /// On all requests and all threads: it is asked again after every step of any thread.
    Global,
    /// The same, and it is asked about every operation on an object, releases and signals too, and
    /// about the beginnings and ends of threads.
    Total,
}

impl Scope {
    /// Whether decisions depend on all requests and all threads.
    pub fn is_global(self) -> bool {
        matches!(self, Scope::Global | Scope::Total)
    }
}

/// A decision.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Choice {
    /// The request with this index goes. The scheduler is asked again for the rest.
    Grant(usize),
    /// None of them goes until something changes; the thread for which they wait, if the scheduler
    /// knows: a deadlock is explained with it.
    Hold(Option<ThreadId>),
    /// None of them goes until something changes or this time has come, which must lie after
    /// now. Only where the scope is global. (A full replay waits for the change.)
    HoldUntil(u64),
}

/// Decides which of the threads that could go does go.
///
/// Two clocks ask: the virtual one ([`crate::simulate`]), and the full replay, whose threads run.
/// What a scheduler decides by is the same under both.
///
/// Only operations that compete are decided on: acquisitions of locks and semaphores, the end of
/// a wait on a condition variable, atomic instructions. What never waits (a release, a signal)
/// is performed at once unless the scope is [`Scope::Total`], and what waits for a fact (a join, a
/// barrier, a surviving causal edge) goes when the fact holds; no scheduler can grant or refuse it.
///
/// # The caller guarantees
/// - Every request in `requests` could be performed now: its lock is free, its semaphore
///   positive, and whoever must have had the lock before has had it: those for whom the thread
///   waits, by a join or by a count, before it gives the lock back.
/// - `requests` is not empty and is in the order of arrival. Requests that the scheduler does not
///   consider may be missing.
/// - With [`Scope::Order`] and [`Scope::Object`] all requests are for one object. With the others
///   they are all requests of the moment.
/// - Every granted request is performed, and whoever waited for the fact of it goes on, before the
///   next question.
///
/// # The scheduler guarantees
/// - The same sequence of questions gets the same answers: state comes from arguments and seeds.
/// - A held request is never granted outside `choose`.
///
/// A scheduler may hold back requests for ever; the replay then ends in
/// [`crate::Outcome::Deadlocked`], with the threads that it waits for.
pub trait Scheduler {
    /// What decisions depend on.
    fn scope(&self) -> Scope {
        Scope::Object
    }

    /// Decides. See the guarantees above.
    fn choose(&mut self, moment: Moment<'_>, requests: &[Request]) -> Choice;
}

/// Lets pointers to schedulers be schedulers.
macro_rules! forward {
    ($($pointer:ty),*) => {$(
        impl<S: Scheduler + ?Sized> Scheduler for $pointer {
            fn scope(&self) -> Scope {
                (**self).scope()
            }

            fn choose(&mut self, moment: Moment<'_>, requests: &[Request]) -> Choice {
                (**self).choose(moment, requests)
            }
        }
    )*};
}

forward!(&mut S, Box<S>);
