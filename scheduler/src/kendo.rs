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
    /// It has been seen; its own clock began at 0.
    begun: bool,
    /// The event and the own clock at which it was seen waiting.
    waits: Option<(u32, u64)>,
}

impl Kendo {
    /// Threads that go on, or begin, have the logical time of the turn that let them: the last one,
    /// since a question comes before each turn.
    fn lift(&mut self, threads: &[Progress]) {
        let known = threads.len().max(self.threads.len());
        self.threads.resize(known, Lift::default());
        for (lift, progress) in self.threads.iter_mut().zip(threads) {
            if progress.status == Status::Unborn {
                continue;
            }
            if !lift.begun {
                (lift.begun, lift.ahead) = (true, self.time);
            }
            let waits = progress.status == Status::Waiting;
            if let Some((event, clock)) = lift.waits
                && !(waits && event == progress.event)
            {
                lift.go_on(self.time, clock);
            }
            if waits {
                lift.waits.get_or_insert((progress.event, progress.clock));
            }
        }
    }
}

impl Lift {
    /// The thread, which waited at `clock`, goes on at this time.
    fn go_on(&mut self, time: u64, clock: u64) {
        self.ahead = self.ahead.max(time.saturating_sub(clock));
        self.waits = None;
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
            self.threads[request.thread.index()].go_on(self.time, request.clock);
        }
        choice
    }
}
