//! The state of a thread in a replay.

use super::Account;
use super::objects::NOBODY;
use crate::Durations;
use crate::constraints::Edge;
use crate::rank;
use crate::skeleton::Precedence;
use crate::skeleton::{Code, Operation, Strand, WIDE_TIME, WIDE_WORK};
use crate::wakes::Woken;

/// What a thread is doing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Phase {
    /// Not created yet.
    Unborn,
    /// On a core, until its timer.
    Running,
    /// On a core, before the event in hand; lasts no time.
    Arriving,
    /// For a [`Reason`].
    Waiting,
    /// The same on a core, which is lost at its timer.
    Spinning,
    /// The same on a core, on the way to sleep: it is asleep at its timer, unless it may go on.
    Dozing,
    /// Off the core, until its timer: input, output, sleep.
    Sleeping,
    /// Being woken, until its timer.
    Waking,
    /// Ready, in the queue for a core.
    Runnable,
    /// Past its last event.
    Done,
}

/// What a waiting thread waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Reason {
    /// An event of another thread.
    Event { thread: u32, event: u32 },
    /// The count of an object.
    Count { object: u32, need: u32 },
    /// Its operation's object, and the scheduler.
    Object { object: u32 },
}

/// What a thread does once it has a core.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Then {
    /// The rest of its work.
    Work,
    /// What follows the event in hand, which is performed.
    Leave,
    /// The event in hand.
    Retry,
}

/// What a grant must know of a thread that waits at an object, apart from the rest of its state
/// because long lists are walked often.
#[derive(Clone, Copy, Debug)]
pub(super) struct Waiter {
    /// Next and previous in the object's list.
    pub(super) next: u32,
    pub(super) before: u32,
    /// The object, or nobody's.
    pub(super) object: u32,
    pub(super) rank: u32,
    pub(super) code: Code,
    /// Whether it competes for the object (or waits for its count).
    pub(super) competes: bool,
    /// Whether its operation has precedences.
    pub(super) after: bool,
}

impl Default for Waiter {
    fn default() -> Waiter {
        let (next, before, object, rank) = (NOBODY, NOBODY, NOBODY, rank::NONE);
        let code = Code::Plain;
        Waiter { next, before, object, rank, code, competes: false, after: false }
    }
}

impl Waiter {
    /// Whether it competes, but not for possession.
    #[inline]
    pub(super) fn passes(&self) -> bool {
        self.competes && !self.code.possesses() && self.code != Code::Read
    }

    /// Whether it competes, but has no rank.
    #[inline]
    pub(super) fn is_unranked(&self) -> bool {
        self.competes && self.rank == rank::NONE
    }
}

/// One thread.
#[derive(Debug)]
pub(super) struct Thread<'a> {
    pub(super) operations: &'a [Operation],
    side: &'a [u64],
    /// By event, or empty.
    pub(super) costs: &'a [u32],
    next_side: usize,
    edges: &'a [Edge],
    next_edge: usize,
    after: &'a [Precedence],
    woken: &'a [Woken],
    next_woken: usize,
    /// The event in hand: the next one, or one that is performed and not left yet.
    pub(super) position: u32,
    /// Events performed.
    pub(super) performed: u32,
    pub(super) phase: Phase,
    pub(super) then: Then,
    pub(super) reason: Reason,
    /// The account is settled up to here.
    pub(super) since: u64,
    /// When the thread came to the event in hand.
    pub(super) arrived: u64,
    /// When it queued at the object of the event in hand.
    pub(super) queued: u64,
    /// Work left before the next event, when off the core or when a slice ends before it.
    pub(super) remaining: u64,
    pub(super) slice_end: u64,
    /// For how long the object had been taken when the wait was last settled.
    pub(super) taken: u64,
    /// For how long the event in hand has found its object taken.
    pub(super) real: u64,
    /// For how long the event in hand has waited in the program's own right.
    pub(super) awaited: u64,
    /// The sleep of the event in hand is over, or the wait for its signal.
    pub(super) slept: bool,
    /// It has slept for the object of the event in hand, so others may too: glibc's lock word
    /// says so.
    pub(super) roused: bool,
    /// It has waited for the object of the event in hand: glibc's lock word says that others may, too.
    pub(super) marks: bool,
    /// The lock's cache line has been asked for, for the event in hand.
    pub(super) fetched: bool,
    /// It did not sleep, and is on its way back from the system call.
    pub(super) returns: bool,
    /// The event in hand needs no lock: it conflicts with nobody's.
    pub(super) lockless: bool,
    /// How many causal edges the event in hand has waited for.
    pub(super) edges_waited: u32,
    /// The lowest event that others wait for.
    pub(super) watched: u32,
    /// How long the work before the event in hand takes in all.
    pub(super) span: u64,
    /// Objects held.
    pub(super) holding: u32,
    pub(super) account: Account,
}

impl<'a> Thread<'a> {
    pub(super) fn new(strand: &'a Strand, edges: &'a [Edge]) -> Thread<'a> {
        Thread {
            operations: &strand.operations,
            side: &strand.side,
            costs: &strand.costs,
            next_side: 0,
            edges,
            next_edge: 0,
            after: &strand.after,
            woken: &strand.woken,
            next_woken: 0,
            position: 0,
            performed: 0,
            phase: Phase::Unborn,
            then: Then::Work,
            reason: Reason::Event { thread: 0, event: 0 },
            since: 0,
            arrived: 0,
            queued: 0,
            remaining: 0,
            slice_end: 0,
            taken: 0,
            real: 0,
            awaited: 0,
            slept: false,
            roused: false,
            marks: false,
            fetched: false,
            returns: false,
            lockless: false,
            edges_waited: 0,
            watched: u32::MAX,
            span: 0,
            holding: 0,
            account: Account::default(),
        }
    }

    #[inline]
    pub(super) fn operation(&self) -> Operation {
        self.operations[self.position as usize]
    }

    pub(super) fn is_over(&self) -> bool {
        self.position as usize == self.operations.len()
    }

    pub(super) fn has_performed(&self, event: u32) -> bool {
        self.performed > event
    }

    /// Work before the event in hand.
    #[inline]
    pub(super) fn work(&mut self) -> u64 {
        let operation = self.operation();
        if operation.flags & WIDE_WORK != 0 { self.side() } else { u64::from(operation.work) }
    }

    /// Duration of the event in hand, of which the side column is read once only.
    #[inline]
    pub(super) fn duration(&mut self) -> u64 {
        let operation = self.operation();
        let wide = operation.flags & WIDE_TIME != 0 || operation.code == Code::CondTimeout;
        if wide { self.side() } else { u64::from(operation.rank) }
    }

    /// How long the work before the event in hand takes, and the event itself. The side column is
    /// read once only.
    pub(super) fn durations(&mut self) -> Durations {
        let work = self.work();
        let time = match self.operation().code {
            Code::CondRelock => {
                self.pass_side();
                0
            }
            code if code.lasts() || code == Code::CondTimeout => self.duration(),
            _ => 0,
        };
        Durations { work, time }
    }

    /// The event that ends the sleep in hand, [`Code::Woken`].
    pub(super) fn waker(&self) -> (u32, u32) {
        let Woken { thread, source, .. } = self.woken[self.next_woken];
        (thread, source)
    }

    /// The sleep in hand has been ended.
    pub(super) fn pass_woken(&mut self) {
        self.next_woken += 1;
        if self.operation().flags & WIDE_TIME != 0 {
            self.pass_side();
        }
    }

    /// Object and count that the event in hand waits for: the side column is only looked at,
    /// and passed by [`Thread::pass_side`].
    pub(super) fn signalled(&self) -> (u32, u32) {
        let side = self.side[self.next_side];
        ((side >> 32) as u32, side as u32)
    }

    pub(super) fn pass_side(&mut self) {
        self.next_side += 1;
    }

    #[inline]
    fn side(&mut self) -> u64 {
        self.next_side += 1;
        self.side[self.next_side - 1]
    }

    /// The next causal edge into the event in hand, if there is one left.
    #[inline]
    pub(super) fn edge(&self) -> Option<Edge> {
        self.edges.get(self.next_edge).copied().filter(|edge| edge.target == self.position)
    }

    /// What precedes the event in hand, an acquisition with [`crate::skeleton::AFTER`].
    pub(super) fn precedences(&self) -> &'a [Precedence] {
        let from = self.after.partition_point(|before| before.event < self.position);
        let rest = &self.after[from..];
        &rest[..rest.partition_point(|before| before.event == self.position)]
    }

    pub(super) fn pass_edge(&mut self) {
        self.next_edge += 1;
    }
}
