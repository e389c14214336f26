//! Kendo, which PerfPlay calls SYNC-S: an order of locks that depends on the input alone.
//!
//! PerfPlay (CGO 2015), section 5.2 and figure 12, after Olszewski, Ansel and Amarasinghe,
//! "Kendo: Efficient Deterministic Multithreading in Software" (ASPLOS 2009), section 3. Every
//! thread has a deterministic logical clock that counts its progress. It is a thread's *turn*
//! when its clock is the least of all, ties going to the lower id; a thread takes a lock only in
//! its turn; and the clock of a thread that finds the lock taken advances until it is past the
//! release. So a lock's order is a function of the clocks, and no timing changes it.
//!
//! A thread's logical clock is what it has done itself ([`Request::clock`]) and what it was lifted
//! by. *Logical time* is the greatest clock that has had a turn. A thread that waited for another's
//! operation is lifted to the time of that one's turn, and so is a thread that begins.
//!
//! # Deviations
//! 1. The paper counts retired stores. The clocks count what the caller counts: instructions in a
//!    full replay, and under the virtual clock whatever [`crate::Model::clocks`] says.
//! 2. A release takes a turn, where the paper's lock remembers when it was released: one rule for
//!    all primitives (`turns`). Orders of acquisitions are the paper's.
//! 3. A waiting thread's clock jumps to the release instead of creeping there one by one, and
//!    threads that wait for one lock get it in the order of their clocks at arrival (the paper's
//!    queue).
//! 4. Clocks advance evenly within a segment of the virtual clock's, and at events in a full
//!    replay. The paper's advance in chunks, when a performance counter overflows.
//! 5. Nobody waits for a thread that is away (asleep, at input or output), where the virtual clock
//!    knows with which clock it comes back: its own, advanced by the time that the call took in
//!    the recording. A system call that keeps its core advances no clock (the paper's count stores
//!    in user mode), and others wait for it.
//! 6. What the recording fixed stays fixed: how many signals were given before a wait ended, the
//!    least initial level of a semaphore, the outcome of tries, and that a lock goes first to
//!    those whom a thread waits for while it holds it (see [`crate::Orig`], deviation 2).

use crate::turns::{Key, turn};
use crate::{Choice, Moment, Progress, Request, Scheduler, Scope, Status};
use refrain_trace::ThreadId;

/// Locks in the order of deterministic logical clocks.
#[derive(Clone, Debug, Default)]
pub struct Kendo {
    threads: Vec<Lift>,
    /// Logical time.
    time: u64,
}

/// What a thread's clock is ahead of the thread's own count.
#[derive(Clone, Copy, Debug, Default)]
struct Lift {
    ahead: u64,
    /// It waited, or was not there, when it was last looked at.
    waited: bool,
}

impl Kendo {
    /// Threads that go on, or begin, have the logical time of the turn that let them.
    fn lift(&mut self, threads: &[Progress]) {
        let new = Lift { ahead: 0, waited: true };
        self.threads.resize(threads.len().max(self.threads.len()), new);
        for (lift, progress) in self.threads.iter_mut().zip(threads) {
            match progress.status {
                Status::Unborn | Status::Waiting => lift.waited = true,
                Status::Going | Status::Away | Status::Done if lift.waited => {
                    lift.waited = false;
                    lift.ahead = lift.ahead.max(self.time.saturating_sub(progress.from));
                }
                _ => {}
            }
        }
    }
}

impl Scheduler for Kendo {
    fn scope(&self) -> Scope {
        Scope::Total
    }

    fn choose(&mut self, moment: Moment<'_>, requests: &[Request]) -> Choice {
        self.lift(moment.threads);
        let ahead = |thread: usize| self.threads[thread].ahead;
        let key = |request: &Request| request.clock.saturating_add(ahead(request.thread.index()));
        let comes = |other: ThreadId, progress: &Progress, mine: Key| {
            let ahead = ahead(other.index());
            let after = (progress.clock.saturating_add(ahead), other) > mine;
            after.then(|| progress.reaches(mine.0.saturating_sub(ahead), moment.now)).flatten()
        };
        let choice = turn(moment, requests, key, comes);
        if let Choice::Grant(index) = choice {
            let request = &requests[index];
            self.time = self.time.max(key(request));
            let lift = &mut self.threads[request.thread.index()];
            lift.ahead = lift.ahead.max(self.time.saturating_sub(request.clock));
            lift.waited = false;
        }
        choice
    }
}
