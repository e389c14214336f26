//! ELSC: the enforced locking serialization constraint.
//!
//! PerfPlay (CGO 2015), section 5.2: "ELSC schedules the same lock order as the scheduled order
//! of these locks when the program runs at runtime". Invariant: the ordered operations of each
//! object are performed in ascending rank, without gaps.
//!
//! # Deviations
//! 1. The paper orders lock acquisitions. Here semaphores and atomic instructions have an order
//!    of their objects too, since a trace has it, and it keeps replays stable (section 5.1 asks
//!    for the partial order of other synchronization).
//! 2. A try-lock that failed takes no place in the order. Its outcome is the recorded one in any
//!    case, and a place would only make others wait for it.

use crate::{Choice, Moment, Request, Scheduler, Scope};

/// Per object the recorded order; free otherwise.
///
/// ELSC on its own cannot deadlock: the recorded run performed every order at once.
#[derive(Clone, Copy, Debug, Default)]
pub struct Elsc;

impl Scheduler for Elsc {
    #[inline]
    fn scope(&self) -> Scope {
        Scope::Order
    }

    #[inline]
    fn choose(&mut self, _: Moment<'_>, requests: &[Request]) -> Choice {
        let next = |request: &Request| request.rank.is_none_or(|rank| rank == request.granted);
        match requests.iter().position(next) {
            Some(index) => Choice::Grant(index),
            None => Choice::Hold(None),
        }
    }
}
