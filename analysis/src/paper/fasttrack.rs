//! FASTTRACK (Figure 5).
//!
//! # Deviations from the paper
//! [FT WRITE SHARED] resets the reads to the empty epoch, as the text of section 3 says and the figure
//! does not.

use super::clocks::{Clock, Clocks};
use super::{Cost, Detector, Step};
use refrain_trace::fixed::FixedMap;

/// A clock of a thread. The empty one is 0@0.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
struct Epoch {
    thread: u32,
    clock: u32,
}

impl Epoch {
    fn is_before(self, now: &Clock) -> bool {
        self.clock <= now.of(self.thread)
    }
}

enum Reads {
    Last(Epoch),
    Shared(Box<Clock>),
}

struct Variable {
    write: Epoch,
    reads: Reads,
}

const RULES: [&str; 7] = [
    "read same epoch",
    "read shared",
    "read exclusive",
    "read share",
    "write same epoch",
    "write exclusive",
    "write shared",
];

#[derive(Default)]
pub(super) struct FastTrack {
    clocks: Clocks,
    variables: FixedMap<u64, Variable>,
    /// By the positions in [`RULES`].
    used: [u64; 7],
}

impl FastTrack {
    fn read(of: &mut Variable, epoch: Epoch, now: &Clock, cost: &mut Cost) -> (usize, bool) {
        let races = |of: &Variable| !of.write.is_before(now);
        match &mut of.reads {
            Reads::Last(last) if *last == epoch => (0, false),
            Reads::Shared(reads) => {
                reads.set(epoch.thread, epoch.clock);
                (1, races(of))
            }
            Reads::Last(last) if last.is_before(now) => {
                *last = epoch;
                (2, races(of))
            }
            Reads::Last(last) => {
                let mut reads = Clock::default();
                cost.clocks += 1;
                reads.set(last.thread, last.clock);
                reads.set(epoch.thread, epoch.clock);
                of.reads = Reads::Shared(Box::new(reads));
                (3, races(of))
            }
        }
    }

    fn write(of: &mut Variable, epoch: Epoch, now: &Clock, cost: &mut Cost) -> (usize, bool) {
        if of.write == epoch {
            return (4, false);
        }
        let races = !of.write.is_before(now);
        of.write = epoch;
        match &of.reads {
            Reads::Last(last) => (5, races | !last.is_before(now)),
            Reads::Shared(reads) => {
                let races = races | !reads.is_before(now, cost);
                of.reads = Reads::Last(Epoch::default());
                (6, races)
            }
        }
    }
}

impl Detector for FastTrack {
    fn access(&mut self, thread: u32, variable: u64, writes: bool) -> bool {
        let (now, cost) = self.clocks.of(thread);
        let none = Epoch::default();
        let of = self
            .variables
            .entry(variable)
            .or_insert(Variable { write: none, reads: Reads::Last(none) });
        let epoch = Epoch { thread, clock: now.of(thread) };
        let (rule, races) = match writes {
            true => FastTrack::write(of, epoch, now, cost),
            false => FastTrack::read(of, epoch, now, cost),
        };
        self.used[rule] += 1;
        races
    }

    fn forget(&mut self, variable: u64) {
        self.variables.remove(&variable);
    }

    fn synchronize(&mut self, step: &Step) -> bool {
        self.clocks.synchronize(step);
        false
    }

    fn cost(&self) -> Cost {
        let bytes = |of: &Variable| {
            let shared = match &of.reads {
                Reads::Last(_) => 0,
                Reads::Shared(reads) => reads.bytes() + size_of::<Clock>() as u64,
            };
            shared + size_of::<Variable>() as u64
        };
        Cost {
            bytes: self.variables.values().map(bytes).sum(),
            rules: RULES.into_iter().zip(self.used).collect(),
            ..self.clocks.cost.clone()
        }
    }
}
