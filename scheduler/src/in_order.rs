//! What is not free keeps its recorded order: a scheduler around another.
//!
//! The causal edges of a transformed trace are those of one recording, and so a scheduler that
//! took the locks, semaphores and atomics that are left in another order could make a thread wait,
//! by an edge, for one that waits for it. PerfPlay (CGO 2015), section 5.1, ensures of other
//! synchronization "that it is the same as the original ordering".
//!
//! Invariant: every wait is for something that came before in the recording, so nothing deadlocks.

use crate::{Choice, Moment, Request, Scheduler, Scope};

/// Lets another scheduler choose among the requests that are next in their object's recorded order.
#[derive(Clone, Debug)]
pub struct InOrder<S> {
    inner: S,
    next: Vec<Request>,
}

impl<S: Scheduler> InOrder<S> {
    /// Around `inner`.
    pub fn new(inner: S) -> InOrder<S> {
        InOrder { inner, next: Vec::new() }
    }
}

impl<S: Scheduler> Scheduler for InOrder<S> {
    fn scope(&self) -> Scope {
        self.inner.scope()
    }

    fn choose(&mut self, moment: Moment<'_>, requests: &[Request]) -> Choice {
        let is_next = |request: &&Request| request.rank.is_none_or(|rank| rank == request.granted);
        self.next.clear();
        self.next.extend(requests.iter().filter(is_next));
        if self.next.is_empty() {
            return Choice::Hold(None);
        }
        match self.inner.choose(moment, &self.next) {
            Choice::Grant(index) => {
                let granted = self.next[index];
                let at = requests.iter().position(|request| *request == granted);
                Choice::Grant(at.expect("what is next is among the requests"))
            }
            other => other,
        }
    }
}
