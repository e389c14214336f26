//! The `Scheduler` trait: who may go next.

use crate::latencies::Waking;
use refrain_trace::ThreadId;

/// A thread that stands before an operation and could perform it now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Request {
    /// The thread.
    pub thread: ThreadId,
    /// The operation, by the position of its event in the thread's stream.
    pub event: u32,
    /// The object, by its index in the skeleton.
    pub object: u32,
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
    /// Its next event that is not performed yet.
    pub event: u32,
    /// Its logical clock: at its next operation if it is [`Status::Going`] or [`Status::Away`].
    pub clock: u64,
    /// When it gets there, if it is on a core and nothing interferes; else `u64::MAX`.
    pub due: u64,
    /// How much of the work before `event` is still to be done, of `span` in all.
    pub left: u64,
    /// See `left`.
    pub span: u64,
}

/// The moment of a decision.
#[derive(Clone, Copy, Debug)]
pub struct Moment<'a> {
    /// The time.
    pub now: u64,
    /// How many steps threads have made by now. It tells apart what happens at one time.
    pub step: u64,
    /// Every thread, by its id. Empty for a scheduler whose scope is [`Scope::Object`].
    pub threads: &'a [Progress],
}

/// What a decision can depend on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Scope {
    /// On the requests for one object: it is asked again when that object changes.
    Object,
    /// On all requests and all threads: it is asked again after every step of any thread.
    Global,
    /// The same, and it is asked about every operation on an object: releases and signals too.
    Total,
}

/// A decision.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Choice {
    /// The request with this index goes. The scheduler is asked again for the rest.
    Grant(usize),
    /// None of them goes until something changes.
    Hold,
    /// None of them goes until something changes or this time has come, which must lie after
    /// now. Not for [`Scope::Object`].
    HoldUntil(u64),
}

/// Decides which of the threads that could go does go.
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
/// - With [`Scope::Object`] all requests are for one object. With [`Scope::Global`] and
///   [`Scope::Total`] they are all requests of the moment.
/// - Every granted request is performed before the next question.
///
/// # The scheduler guarantees
/// - The same sequence of questions gets the same answers: state comes from arguments and seeds.
/// - A held request is never granted outside `choose`.
///
/// A scheduler may hold back requests for ever; the replay then ends in
/// [`crate::Outcome::Deadlocked`], with the threads that it waits for.
pub trait Scheduler {
    /// What decisions depend on. Constant for a scheduler.
    fn scope(&self) -> Scope {
        Scope::Object
    }

    /// Whether an object's requests are granted in the recorded order: a request with a rank only
    /// when [`Request::granted`] has come to it. It need not be asked about others then. Only for
    /// [`Scope::Object`]; constant for a scheduler.
    #[inline]
    fn keeps_order(&self) -> bool {
        false
    }

    /// Decides. See the guarantees above.
    fn choose(&mut self, moment: Moment<'_>, requests: &[Request]) -> Choice;

    /// Whether a thread that waits is only woken when its request is granted, and asks again once
    /// it is awake: the object stays free meanwhile, and whoever comes along may overtake. Else
    /// the object is handed over at once. Constant for a scheduler.
    fn barges(&self) -> bool {
        false
    }

    /// Whether a thread that waits for an object stays awake, however long: it goes on after
    /// [`crate::Costs::handoff`]. Constant for a scheduler.
    fn polls(&self) -> bool {
        false
    }

    /// Whether waiting, sleeping and waking are modelled as glibc and the kernel do them: a thread
    /// that finds a lock taken is on its way to sleep for a moment, a release wakes only if somebody
    /// sleeps, and waking costs the thread that wakes. For a scheduler that barges, with
    /// [`Scope::Object`]; constant for a scheduler.
    fn sleeps_as_glibc(&self) -> bool {
        false
    }

    /// How much longer than recorded the work before a thread's next operation takes: the
    /// machine's noise. Deterministic schedulers leave it at zero.
    fn jitter(&mut self, _thread: ThreadId, _work: u64) -> u64 {
        0
    }

    /// What it takes to wake a thread that sleeps, where the scheduler knows better than the
    /// machine's [`crate::Costs`]. Asked once for each thread that is woken.
    fn waking(&mut self) -> Option<Waking> {
        None
    }

    /// For which thread a held request waits, if the scheduler knows: a deadlock is explained
    /// with it.
    fn awaits(&self, _request: &Request) -> Option<ThreadId> {
        None
    }
}

/// Lets pointers to schedulers be schedulers.
macro_rules! forward {
    ($($pointer:ty),*) => {$(
        impl<S: Scheduler + ?Sized> Scheduler for $pointer {
            fn scope(&self) -> Scope {
                (**self).scope()
            }

            fn keeps_order(&self) -> bool {
                (**self).keeps_order()
            }

            fn choose(&mut self, moment: Moment<'_>, requests: &[Request]) -> Choice {
                (**self).choose(moment, requests)
            }

            fn barges(&self) -> bool {
                (**self).barges()
            }

            fn polls(&self) -> bool {
                (**self).polls()
            }

            fn sleeps_as_glibc(&self) -> bool {
                (**self).sleeps_as_glibc()
            }

            fn waking(&mut self) -> Option<Waking> {
                (**self).waking()
            }

            fn jitter(&mut self, thread: ThreadId, work: u64) -> u64 {
                (**self).jitter(thread, work)
            }

            fn awaits(&self, request: &Request) -> Option<ThreadId> {
                (**self).awaits(request)
            }
        }
    )*};
}

forward!(&mut S, Box<S>);
