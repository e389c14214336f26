//! The skeleton of a run: durations and operations, in sixteen bytes an event.
//!
//! One [`Operation`] for each event of the trace, so an event's id is its operation's index.
//! What does not fit an operation's fields lies in a side column that is read in order.

use crate::wakes::Woken;
use refrain_trace::{EventId, ThreadId};

macro_rules! codes {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// What an operation does. A trace has three dozen kinds of events; time and order see
        /// these.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        #[repr(u8)]
        pub(crate) enum Code { $($(#[$doc])* $name,)* }

        impl Code {
            /// Every code, in the order of their numbers.
            pub(crate) const ALL: [Code; [$(Code::$name),*].len()] = [$(Code::$name),*];
        }
    };
}

codes! {
    /// Orders nothing: thread-local events, failed attempts, destroyed objects.
    Plain,
    /// Exclusive acquisition; waiting gives the core away.
    Lock,
    /// Exclusive acquisition; waiting keeps the core.
    Spin,
    /// Shared acquisition.
    Read,
    /// Release of a holder or a reader.
    Unlock,
    /// Release of the mutex by a wait on a condition variable, whatever its depth.
    CondRelease,
    /// End of such a wait: `side` names the condition variable and how often it was signalled.
    CondRelock,
    /// End of such a wait by timeout: `side` is its duration.
    CondTimeout,
    /// A semaphore goes down.
    SemWait,
    /// A semaphore goes up.
    SemPost,
    /// Counts on its object; never waits.
    Count,
    /// Waits until the object's count has reached `rank`: a barrier, a once routine.
    Await,
    /// The same for a plain load, which never waited in the program.
    AwaitLoad,
    /// Has a place in its object's order, and counts: an atomic instruction.
    Ordered,
    /// Waits for the last event of the thread `object`.
    Join,
    /// Time off the core that nobody in the program ends: input, output, sleep.
    Sleep,
    /// The same, ended by another thread's event: the strand says which, and the duration means
    /// nothing.
    Woken,
    /// Time off the core, spent waiting for a lock in vain.
    TimedOut,
    /// Time on the core that is not the program's own: a system call.
    Kernel,
    /// A try that failed; never waits.
    Tried,
    /// A thread's end: orders nothing that [`Code::Join`] does not, but takes a turn where every
    /// operation does.
    Exit,
    /// A system call that creates a thread, the same.
    Create,
}

impl Code {
    /// Whether the operation takes its object for its thread alone.
    #[inline]
    pub(crate) fn possesses(self) -> bool {
        matches!(self, Code::Lock | Code::Spin | Code::CondRelock | Code::CondTimeout)
    }

    /// Whether the operation takes a lock or a part of it.
    pub(crate) fn acquires(self) -> bool {
        self.possesses() || matches!(self, Code::Read | Code::SemWait)
    }

    /// Whether the operation gives a lock back.
    pub(crate) fn releases(self) -> bool {
        matches!(self, Code::Unlock | Code::CondRelease | Code::SemPost)
    }

    /// Whether the operation waits for events that the recording names.
    pub(crate) fn awaits(self) -> bool {
        matches!(self, Code::Join | Code::Await | Code::AwaitLoad | Code::CondRelock)
    }

    /// Whether the operation is a system call that keeps the core.
    #[inline]
    pub(crate) fn is_kernel(self) -> bool {
        matches!(self, Code::Kernel | Code::Create)
    }

    /// Whether the operation's `rank` is a duration (and may lie in the side column).
    pub(crate) fn lasts(self) -> bool {
        matches!(self, Code::Sleep | Code::Woken | Code::TimedOut) || self.is_kernel()
    }
}

/// The operation was a try.
pub(crate) const TRY: u8 = 1;
/// `work` lies in the side column.
pub(crate) const WIDE_WORK: u8 = 2;
/// The duration (`rank`) lies in the side column, after `work`.
pub(crate) const WIDE_TIME: u8 = 4;
/// The operation has a place in its object's order.
pub(crate) const TICKETED: u8 = 8;
/// The object's counting starts afresh: a barrier was destroyed.
pub(crate) const RESET: u8 = 16;
/// What failed was a try to read.
pub(crate) const READS: u8 = 32;
/// What failed was a try to lower a semaphore.
pub(crate) const LOWERS: u8 = 64;
/// The strand has precedences for the operation.
pub(crate) const AFTER: u8 = 128;

/// One event, reduced to what orders it and how long it takes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Operation {
    /// Ticks of the program's own work before it.
    pub(crate) work: u32,
    /// Index of the object; a thread's id for [`Code::Join`].
    pub(crate) object: u32,
    /// Place in the object's order, count to wait for, or duration, by code.
    pub(crate) rank: u32,
    pub(crate) code: Code,
    pub(crate) flags: u8,
    /// The thread that has the next place in the object's order, if the operation competes.
    pub(crate) next: u16,
}

/// A thread whose number is too large for [`Operation::next`], or none.
pub(crate) const UNKNOWN: u16 = u16::MAX;

impl Operation {
    /// Whether the operation competes with others, so that a scheduler decides on it.
    pub fn competes(&self) -> bool {
        use Code::{Ordered, Read, SemWait};
        self.code.possesses() || matches!(self.code, Read | SemWait | Ordered)
    }

    /// Whether the operation reads or writes its object, or begins or ends a thread: what
    /// [`crate::Scope::Total`] asks for.
    pub fn acts(&self) -> bool {
        use Code::{Join, Kernel, Plain, Sleep, TimedOut, Tried, Woken};
        !matches!(self.code, Plain | Tried | Join | Kernel | Sleep | Woken | TimedOut)
    }

    /// Whether it is a system call that keeps the core.
    pub(crate) fn is_kernel(&self) -> bool {
        self.code.is_kernel()
    }

    /// Index of the operation's object.
    pub fn object(&self) -> usize {
        self.object as usize
    }
}

/// An object that orders threads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Object {
    /// Guest address, or the object that stands for a thread.
    pub address: u64,
    /// For a semaphore the least initial value that makes the recorded order possible.
    pub tokens: u32,
    /// Whether it is ever used as a semaphore.
    pub semaphore: bool,
    /// The thread that has the first place in the object's order.
    pub(crate) first: u16,
    /// Whether its tickets count its own events alone ([`refrain_trace::OWN_ORDER`]).
    pub(crate) own_order: bool,
}

/// An acquisition that is not possible before another one has been performed.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Precedence {
    /// The acquisition, in the strand that has this.
    pub(crate) event: u32,
    /// Thread of the acquisition before it.
    pub(crate) thread: u32,
    /// The acquisition before it.
    pub(crate) source: u32,
}

/// One thread of a skeleton.
#[derive(Clone, Debug, Default)]
pub(crate) struct Strand {
    pub(crate) operations: Vec<Operation>,
    pub(crate) side: Vec<u64>,
    /// The event that creates the thread, where the trace tells.
    pub(crate) creator: Option<(ThreadId, u32)>,
    /// Whether the stream ends with the thread's exit (and was not cut off).
    pub(crate) exits: bool,
    /// By event: how long it took in the recording without its waiting. Empty if the machine
    /// says what operations cost.
    pub(crate) costs: Vec<u32>,
    /// What must have been acquired before acquisitions with [`AFTER`], by event.
    pub(crate) after: Vec<Precedence>,
    /// Who ended the sleeps of [`Code::Woken`], by event.
    pub(crate) woken: Vec<Woken>,
}

/// Puts a number into a field, or into the side column if the field is too small for it.
pub(crate) fn set(field: &mut u32, flags: &mut u8, side: &mut Vec<u64>, value: u64, flag: u8) {
    match u32::try_from(value) {
        Ok(value) => *field = value,
        Err(_) => {
            *flags |= flag;
            side.push(value);
        }
    }
}

/// How long an event takes, in ticks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Durations {
    /// The program's own work before the event.
    pub work: u64,
    /// The event itself, where no other thread decides on it: a system call, a sleep, a wait
    /// that timed out. 0 for every other event, whatever it is set to.
    pub time: u64,
}

impl Strand {
    /// The strand without its operations.
    pub(crate) fn emptied(&self) -> Strand {
        Strand {
            creator: self.creator,
            exits: self.exits,
            after: self.after.clone(),
            woken: self.woken.clone(),
            ..Strand::default()
        }
    }

    /// The operations with the work before each, and what else the side column has for it.
    pub(crate) fn with_side(&self) -> impl Iterator<Item = (Operation, u64, Option<u64>)> {
        let mut side = self.side.iter().copied();
        let mut wide = move || side.next().expect("the side column has what the flags promise");
        self.operations.iter().map(move |&operation| {
            let has = |flag| operation.flags & flag != 0;
            let work = if has(WIDE_WORK) { wide() } else { u64::from(operation.work) };
            let more =
                has(WIDE_TIME) || matches!(operation.code, Code::CondTimeout | Code::CondRelock);
            (operation, work, more.then(&mut wide))
        })
    }

    /// Appends an operation, with so much work before it, and what else the side column has for it.
    pub(crate) fn push(&mut self, mut operation: Operation, work: u64, more: Option<u64>) {
        operation.flags &= !WIDE_WORK;
        set(&mut operation.work, &mut operation.flags, &mut self.side, work, WIDE_WORK);
        self.side.extend(more);
        self.operations.push(operation);
    }

    /// The strand with other durations.
    fn retimed(&self, mut times: impl FnMut(EventId, Durations) -> Durations) -> Strand {
        let mut strand = self.emptied();
        strand.operations.reserve_exact(self.operations.len());
        for (index, (mut operation, work, more)) in self.with_side().enumerate() {
            let lasts = operation.code.lasts();
            let time = match operation.code {
                Code::CondTimeout => more.unwrap_or(0),
                _ if lasts => more.unwrap_or(operation.rank.into()),
                _ => 0,
            };
            let Durations { work, time } = times(EventId(index as u64), Durations { work, time });
            if !lasts {
                let timed_out = operation.code == Code::CondTimeout;
                strand.push(operation, work, if timed_out { Some(time) } else { more });
                continue;
            }
            operation.flags &= !WIDE_TIME;
            strand.push(operation, work, None);
            let Strand { operations, side, .. } = &mut strand;
            let Operation { rank, flags, .. } = operations.last_mut().expect("just pushed");
            set(rank, flags, side, time, WIDE_TIME);
        }
        strand
    }
}

/// A run, reduced to durations and synchronization. Made by [`crate::Builder`].
#[derive(Clone, Debug)]
pub struct Skeleton {
    pub(crate) strands: Vec<Strand>,
    pub(crate) objects: Vec<Object>,
    pub(crate) ticks_per_second: u64,
}

impl Skeleton {
    /// Number of threads.
    pub fn threads(&self) -> usize {
        self.strands.len()
    }

    /// Number of events of all threads.
    pub fn events(&self) -> u64 {
        self.strands.iter().map(|strand| strand.operations.len() as u64).sum()
    }

    /// The operations of a thread, one for each of its events.
    pub fn operations(&self, thread: ThreadId) -> &[Operation] {
        &self.strands[thread.index()].operations
    }

    /// The objects, in the order in which the trace first names them.
    pub fn objects(&self) -> &[Object] {
        &self.objects
    }

    /// The same run with other durations: instructions instead of ticks, another machine's
    /// costs, or a guess. Order and outcomes stay; what operations cost is the machine's again,
    /// even where it was the recording's.
    pub fn retimed(
        &self,
        mut times: impl FnMut(ThreadId, EventId, Durations) -> Durations,
    ) -> Skeleton {
        let strands = self.strands.iter().enumerate().map(|(id, strand)| {
            strand.retimed(|event, durations| times(ThreadId(id as u32), event, durations))
        });
        Skeleton { strands: strands.collect(), objects: self.objects.clone(), ..*self }
    }

    /// Ticks per second of every time in this skeleton.
    pub fn ticks_per_second(&self) -> u64 {
        self.ticks_per_second
    }

    /// A number of ticks in nanoseconds, rounded to the nearest.
    pub fn nanoseconds(&self, ticks: u64) -> u64 {
        let per_second = u128::from(self.ticks_per_second.max(1));
        let nanoseconds = (u128::from(ticks) * 1_000_000_000 + per_second / 2) / per_second;
        u64::try_from(nanoseconds).unwrap_or(u64::MAX)
    }
}
