//! Kendo, which PerfPlay calls SYNC-S: an order of locks that depends on the input alone.
//!
//! PerfPlay (CGO 2015), section 5.2 and figure 12, after Olszewski, Ansel and Amarasinghe,
//! "Kendo: Efficient Deterministic Multithreading in Software" (ASPLOS 2009), section 3. Every
//! thread has a deterministic logical clock that counts its progress. It is a thread's *turn*
//! when its clock is the least of all, ties going to the lower id; a thread takes a lock only in
//! its turn; and the clock of a thread that finds the lock taken advances until it is past the
//! release. So a lock's order is a function of the clocks, and no timing changes it.
//!
//! # Method
//! The clocks' course is worked out beforehand: a replay in which a tick is a unit of the logical
//! clock, operations are free, every thread has a core and a lock goes to whoever comes first
//! *is* the order by logical clocks. It gives every event its *turn* (the clock at which it
//! happens) and its place in the total order. The real replay then grants a request when every
//! other thread has reached its turn: waiting for that is what Kendo costs.
//!
//! Invariant: competing operations are performed in the order of their places. The next of them
//! is never held back for ever, because what it depends on has lower places.
//!
//! # Deviations
//! 1. The paper counts retired stores. Here the clock counts the work of the skeleton that
//!    [`Kendo::new`] is given: ticks of the recorded run, unless the caller puts instruction
//!    counts in their place with [`Skeleton::retimed`]. With ticks, the order is the same for all
//!    replays of one recording, whatever their cores, costs and noise, but two recordings of one
//!    input differ as their ticks do.
//! 2. A waiting thread's clock jumps to the release instead of creeping there one by one, and
//!    threads that wait for one lock get it in the order of their clocks at arrival (the paper's
//!    queue). A release needs no turn, as in the paper.
//! 3. Clocks advance evenly within a segment. The paper's advance in chunks, when a performance
//!    counter overflows.
//! 4. A thread that waits (for a thread, a signal, a barrier) or that is away (asleep, at input or
//!    output) is out of the order of turns, and nobody waits for it: a clock that stands still
//!    would stop everybody. One that waited comes back with the clock of whoever ended its wait.
//!    One that was away comes back with its clock advanced by the time that the call took in the
//!    recording, which is as deterministic as the ticks are; what became known of the call only at
//!    run time would not be. A system call that keeps its core advances no clock (the paper's count
//!    stores in user mode), and others wait for it: this is nearly all by which Kendo's replays of
//!    programs with many system calls are longer than ELSC's.
//! 5. Who waits for a turn or a lock polls, as in the paper, and so it goes on without having to be
//!    woken ([`Scheduler::polls`]). The core that it would poll on is others' meanwhile.
//! 6. What the recording fixed stays fixed: how many signals were given before a wait ended, the
//!    least initial level of a semaphore, the outcome of tries, and that a lock goes first to
//!    those whom a thread waits for while it holds it (see [`crate::Orig`], deviation 2).

use crate::{
    Choice, Config, Constraints, Durations, Moment, Progress, Request, Scheduler, Scope, Skeleton,
    Status, simulate,
};
use refrain_trace::{EventId, ThreadId};

/// Locks in the order of deterministic logical clocks.
#[derive(Clone, Debug)]
pub struct Kendo {
    /// By thread and event.
    turns: Vec<Vec<Turn>>,
    /// By thread: the clock that it starts with, its creator's.
    births: Vec<u64>,
    /// For whom the latest held request waits.
    behind: Option<ThreadId>,
}

/// An event in logical time.
#[derive(Clone, Copy, Debug)]
struct Turn {
    /// The thread's clock when it comes to the event.
    arrival: u64,
    /// Its clock when the event happens.
    turn: u64,
    /// The event's place among all events.
    place: u64,
}

impl Turn {
    /// Of an event that logical time never comes to: the order by clocks ends in a deadlock.
    const NEVER: Turn = Turn { arrival: u64::MAX, turn: u64::MAX, place: u64::MAX };
}

impl Kendo {
    /// The order of `logical`, whose work is what the clocks count. It is the skeleton to be
    /// replayed or one with the same events; `constraints` are those of the replay.
    pub fn new(logical: &Skeleton, constraints: &Constraints<'_>) -> Kendo {
        let logical = logical.retimed(|thread, event, Durations { work, time }| {
            let on_core = logical.operations(thread)[event.index()].is_kernel();
            Durations { work, time: if on_core { 0 } else { time } }
        });
        let threads = (0..logical.threads() as u32).map(ThreadId);
        let mut turns: Vec<Vec<Turn>> =
            threads.map(|id| vec![Turn::NEVER; logical.operations(id).len()]).collect();
        let mut place = 0;
        let mut visit = |thread: ThreadId, event: EventId, arrival: u64, turn: u64| {
            turns[thread.index()][event.index()] = Turn { arrival, turn, place };
            place += 1;
        };
        let machine = Config::ideal(enough(&logical));
        // A deadlock is met again in the replay, which then reports it.
        let _ = simulate(&logical, constraints, &machine, &mut Arrival, &mut visit);
        let born = |(parent, event): (ThreadId, u32)| {
            turns[parent.index()].get(event as usize).map_or(0, |turn| turn.turn)
        };
        let births = logical.strands.iter().map(|strand| strand.creator.map_or(0, born)).collect();
        Kendo { turns, births, behind: None }
    }

    fn turn(&self, request: &Request) -> Turn {
        self.turns[request.thread.index()][request.event as usize]
    }

    /// When `other`, now under way, has come to the logical time `turn`. `None`: not by its work
    /// alone, or it has no core.
    fn reaches(&self, other: usize, progress: &Progress, turn: u64, now: u64) -> Option<u64> {
        let turns = &self.turns[other];
        let event = progress.event as usize;
        let Some(next) = turns.get(event) else { return Some(now) };
        let start = event.checked_sub(1).map_or(self.births[other], |last| turns[last].turn);
        if start >= turn {
            return Some(now);
        }
        if next.arrival < turn {
            return None;
        }
        let part = u128::from(turn - start) * u128::from(progress.span);
        let needed = part.div_ceil(u128::from(next.arrival - start)) as u64;
        let done = progress.span - progress.left;
        match needed.saturating_sub(done) {
            0 => Some(now),
            more => (progress.due != u64::MAX).then(|| now.saturating_add(more)),
        }
    }
}

/// First come, first served: the order by clocks where a clock is the time.
struct Arrival;

impl Scheduler for Arrival {
    fn choose(&mut self, _: Moment<'_>, _: &[Request]) -> Choice {
        Choice::Grant(0)
    }
}

/// A core for each thread.
fn enough(skeleton: &Skeleton) -> u32 {
    u32::try_from(skeleton.threads()).unwrap_or(u32::MAX).max(1)
}

impl Scheduler for Kendo {
    fn scope(&self) -> Scope {
        Scope::Global
    }

    fn choose(&mut self, moment: Moment<'_>, requests: &[Request]) -> Choice {
        let (index, request) = requests
            .iter()
            .enumerate()
            .min_by_key(|(_, request)| self.turn(request).place)
            .expect("the caller guarantees that requests are not empty");
        let mine = self.turn(request);
        let mut until = moment.now;
        for (other, progress) in moment.threads.iter().enumerate() {
            if other == request.thread.index() || progress.status == Status::Done {
                continue;
            }
            let next = self.turns[other].get(progress.event as usize);
            let first = next.is_some_and(|next| next.place < mine.place);
            let reached = match progress.status {
                Status::Going => self.reaches(other, progress, mine.turn, moment.now),
                _ => Some(moment.now),
            };
            match reached {
                Some(time) if !first => until = until.max(time),
                _ => {
                    self.behind = Some(ThreadId(other as u32));
                    return Choice::Hold;
                }
            }
        }
        if until > moment.now { Choice::HoldUntil(until) } else { Choice::Grant(index) }
    }

    fn polls(&self) -> bool {
        true
    }

    fn awaits(&self, _: &Request) -> Option<ThreadId> {
        self.behind
    }
}
