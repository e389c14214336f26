//! What can be wrong with the input of this crate.

use refrain_trace::{EventId, ThreadId};

/// Every variant is the input's fault: the trace, or the constraints that were made for it.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Error {
    /// The trace: two events cannot have one place in one order.
    #[error("{thread} {event}: ticket {ticket} of object {object:#x} was taken before")]
    DuplicateTicket {
        /// The thread of the second event.
        thread: ThreadId,
        /// The second event.
        event: EventId,
        /// The object of the second event.
        object: u64,
        /// The ticket that both have.
        ticket: u64,
    },
    /// The trace: so many tickets are missing that it cannot be the record of one run.
    #[error("{events} events hold tickets that span {span} places")]
    SparseTickets {
        /// Events that hold tickets.
        events: u64,
        /// Places between the first and the last tickets, over all slots.
        span: u64,
    },
    /// The trace: more than this crate's compact form can number.
    #[error("more than 4294967295 {0}")]
    TooMany(&'static str),
    /// A schedule's text is not one.
    #[error("line {line} of the schedule should be {wanted}")]
    BadSchedule {
        /// Counted from 1.
        line: usize,
        /// What belongs there.
        wanted: &'static str,
    },
    /// An event of a thread that the builder was not told of.
    #[error("{0} is not among the threads of this skeleton")]
    UnknownThread(ThreadId),
    /// The constraints: an edge names an event that the skeleton does not have.
    #[error("a causal edge names {event} of {thread}, which the skeleton does not have")]
    UnknownEvent {
        /// The thread named.
        thread: ThreadId,
        /// The event named.
        event: EventId,
    },
}
