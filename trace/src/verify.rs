//! The verifier: what every trace must satisfy, whoever made it.
//!
//! [`verify`] reads a trace once, all threads side by side in the order that the tickets give,
//! and returns every violation. Its memory depends on the number of slots, of threads that live
//! at the same time and of locks that are held, not on the number of events.
//!
//! # What is verified
//! - *Order.* The tickets of each slot are 0, 1, 2, … over the whole trace; the lower bounds of
//!   [`crate::order::bound_of`] can be met without waiting for one's own future.
//! - *Times.* No event ends before it begins, or begins before the thread's last one ended.
//! - *Threads.* Each begins with its start, has nothing behind its exit, and is created at most
//!   once; created, joined and detached threads exist; who was joined has exited.
//! - *Locks.* A lock is released by a thread that holds it (as often as it holds it), and
//!   exclusive locks have one holder at a time. A wait on a condition variable ends before
//!   another begins, on the same pair of mutex and variable.
//! - *Payloads.* System calls with a ticket have one, signals may; events of other kinds have none.
//!
//! - *Transformation.* What replaces the locks of a transformed trace names what is there, lets
//!   every section happen, and loses no order between sections that conflict (`transformed`).
//!
//! # What is not a violation
//! A trace that was cut off lacks tickets that its lost events had; from the first such gap on,
//! order and exclusion are no longer judged. A thread without an exit is in order if the trace
//! was cut off, or if some thread's last event shows that the process was ended from within
//! (a system call, which then did not return, or a signal). A spin lock that nobody holds may be
//! released: that is how one is initialized.

mod replay;
mod rules;
mod transformed;

use crate::container::Trace;
use crate::error::Result;
use crate::{EventId, ThreadId};
use std::fmt;

/// So many violations are kept; a trace with more is broken throughout.
pub const MAX_VIOLATIONS: usize = 1 << 16;

/// A violation and the event that it was noticed at.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Violation {
    /// The thread.
    pub thread: ThreadId,
    /// The event; behind the last one if something is missing there.
    pub event: EventId,
    /// What is wrong.
    pub kind: ViolationKind,
}

/// What is wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum ViolationKind {
    /// No event has the tickets from `expected` up to the event's.
    TicketGap {
        /// The slot.
        slot: usize,
        /// The ticket that comes next.
        expected: u64,
        /// The event's ticket.
        found: u64,
    },
    /// An earlier event has the ticket too.
    TicketRepeated {
        /// The slot.
        slot: usize,
        /// The ticket that comes next.
        expected: u64,
        /// The event's ticket.
        found: u64,
    },
    /// The event waits for more tickets of a slot than are ever given out before it.
    BoundNotMet {
        /// The slot.
        slot: usize,
        /// Tickets that were given out.
        given: u64,
        /// Tickets that the event waits for.
        bound: u64,
    },
    /// The event ends before it begins.
    EndBeforeBegin,
    /// The event begins before the one before it ended.
    TimeBackwards,
    /// The thread's first event is not its start.
    NoStart,
    /// The thread starts again.
    StartedAgain,
    /// Something happens after the thread's exit.
    AfterExit,
    /// The thread's exit is missing.
    NoExit,
    /// The event concerns a thread that the trace does not have.
    NoSuchThread(ThreadId),
    /// The event creates a thread that exists already.
    CreatedTwice(ThreadId),
    /// The event joins a thread that has not exited.
    JoinedBeforeExit(ThreadId),
    /// The event releases a lock that its thread does not hold.
    NotHeld {
        /// The lock.
        object: u64,
    },
    /// The event acquires a lock that another thread holds.
    HeldBy {
        /// The lock.
        object: u64,
        /// Who holds it.
        holder: ThreadId,
    },
    /// A wait on a condition variable begins or the thread exits before the last wait ended.
    WaitNotEnded,
    /// A wait on a condition variable ends that did not begin.
    WaitNotBegun,
    /// A system call with a ticket has no payload.
    PayloadMissing,
    /// An event that is no system call has a payload.
    PayloadUnexpected,
    /// The locks, sets or sections of the transformation are not in order.
    TransformationUnordered,
    /// The transformation has a critical section that the trace does not have.
    NoSection {
        /// Its place.
        section: u32,
    },
    /// A causal edge does not lead to a later section of the same lock in another thread.
    BadEdge {
        /// Where it comes from.
        source: u32,
        /// Where it leads to.
        target: u32,
    },
    /// The causal edges make threads wait for each other.
    Circle,
    /// Two sections conflict, and no causal edges keep their order.
    OrderLost {
        /// The one that had the lock first.
        earlier: u32,
        /// The other.
        later: u32,
    },
    /// The lock of this section has too many threads and edges to judge its order.
    NotJudged,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}: {}", self.thread, self.event, self.kind)
    }
}

impl fmt::Display for ViolationKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use ViolationKind::*;
        match self {
            TicketGap { slot, expected, found } => {
                write!(f, "has ticket {found} of slot {slot}, but nobody has ticket {expected}")
            }
            TicketRepeated { slot, expected, found } => {
                write!(f, "has ticket {found} of slot {slot} again; {expected} comes next")
            }
            BoundNotMet { slot, given, bound } => {
                write!(f, "waits for {bound} tickets of slot {slot}, of which there are {given}")
            }
            EndBeforeBegin => f.write_str("ends before it begins"),
            TimeBackwards => f.write_str("begins before the thread's previous event ended"),
            NoStart => f.write_str("the thread does not begin with its start"),
            StartedAgain => f.write_str("the thread starts again"),
            AfterExit => f.write_str("happens after the thread's exit"),
            NoExit => f.write_str("the thread's exit is missing"),
            NoSuchThread(t) => write!(f, "concerns {t}, which is not in the trace"),
            CreatedTwice(t) => write!(f, "creates {t}, which exists already"),
            JoinedBeforeExit(t) => write!(f, "joins {t}, which has not exited"),
            NotHeld { object } => write!(f, "releases {object:#x}, which the thread does not hold"),
            HeldBy { object, holder } => write!(f, "acquires {object:#x}, which {holder} holds"),
            WaitNotEnded => f.write_str("the thread's wait on a condition variable has not ended"),
            WaitNotBegun => f.write_str("ends a wait on a condition variable that did not begin"),
            PayloadMissing => f.write_str("a system call with a ticket, but without a payload"),
            PayloadUnexpected => {
                f.write_str("has a payload, which only system calls and few others have")
            }
            TransformationUnordered => f.write_str("the transformation is not in order here"),
            NoSection { section } => {
                write!(f, "cs{section} of the transformation is no critical section of its lock")
            }
            BadEdge { source, target } => write!(
                f,
                "an edge from cs{source} to cs{target}, which is no later section of its lock"
            ),
            NotJudged => {
                f.write_str("its lock has too many threads to judge whether order is lost")
            }
            Circle => f.write_str("waits, by causal edges, for what waits for it"),
            OrderLost { earlier, later } => {
                write!(f, "cs{later} conflicts with cs{earlier}, and nothing keeps their order")
            }
        }
    }
}

/// Verifies a trace. Violations come in the order in which a replay would meet them; `Err` is a
/// trace that cannot be read to its end.
pub fn verify(trace: &Trace) -> Result<Vec<Violation>> {
    let mut violations = replay::Replay::new(trace).run()?;
    transformed::verify(trace, &mut violations)?;
    Ok(violations)
}

/// Verifies what replaces the freed locks of a transformed trace, and nothing else of it.
pub fn transformed(trace: &Trace) -> Result<Vec<Violation>> {
    let mut violations = Vec::new();
    transformed::verify(trace, &mut violations)?;
    Ok(violations)
}
