//! The modelled machine.

use crate::skeleton::Code;

/// What an operation costs beyond the program's own work, in ticks of the skeleton.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Costs {
    /// An acquisition that does not wait.
    pub acquire: u64,
    /// A release.
    pub release: u64,
    /// Any other synchronization operation, an atomic instruction among them.
    pub other: u64,
    /// From a release to the moment when a thread that waits awake goes on.
    pub handoff: u64,
    /// From a release to the moment when a thread that sleeps goes on (or is ready to).
    pub wake: u64,
    /// How long a thread that finds its object taken keeps its core: it is on its way to sleep, in
    /// the system call. What becomes possible meanwhile it gets after `handoff`.
    pub patience: u64,
    /// How long after that a thread asks again that did not sleep: it returns from the system call.
    pub back: u64,
    /// What it costs a thread to find out, in the system call, that it has nobody to wake.
    pub vain: u64,
    /// What it costs a thread to wake another one that sleeps, in the system call.
    pub rouse: u64,
    /// Until the cache line of a lock is there that another core had last. (Part of that is hidden behind
    /// the work before it.)
    pub travel: u64,
}

impl Costs {
    /// What an operation costs beyond its own duration.
    pub(crate) fn of(&self, code: Code) -> u64 {
        use Code::*;
        match code {
            Lock | Spin | Read | SemWait | CondRelock | CondTimeout => self.acquire,
            Unlock | CondRelease | SemPost => self.release,
            Count | Await | AwaitLoad | Ordered | Join | Woken => self.other,
            Plain | Tried | Sleep | TimedOut | Kernel | Exit | Create => 0,
        }
    }

    /// Operations take no time: for tests, and to see the program's own work alone.
    pub const FREE: Costs = Costs {
        acquire: 0,
        release: 0,
        other: 0,
        handoff: 0,
        wake: 0,
        patience: 0,
        back: 0,
        vain: 0,
        rouse: 0,
        travel: 0,
    };

    /// Costs in nanoseconds of a common x86-64 machine, for `ticks_per_second`. They stand in
    /// until the machine has been calibrated.
    pub fn typical(ticks_per_second: u64) -> Costs {
        let ticks = |nanoseconds| ticks(nanoseconds, ticks_per_second);
        Costs {
            acquire: ticks(10),
            release: ticks(8),
            other: ticks(6),
            handoff: ticks(60),
            wake: ticks(5_000),
            patience: ticks(150),
            back: ticks(100),
            vain: ticks(150),
            rouse: ticks(1_000),
            travel: ticks(30),
        }
    }
}

/// Nanoseconds in ticks of a clock.
pub fn ticks(nanoseconds: u64, per_second: u64) -> u64 {
    let ticks = u128::from(nanoseconds) * u128::from(per_second) / 1_000_000_000;
    u64::try_from(ticks).unwrap_or(u64::MAX)
}

/// The machine on which a skeleton is replayed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Config {
    /// Modelled cores, at least one.
    pub cores: u32,
    /// How long a thread keeps its core while others want one, in ticks.
    pub quantum: u64,
    /// Costs of operations.
    pub costs: Costs,
}

impl Config {
    /// `cores` cores, operations for free, and a quantum that is never reached.
    pub fn ideal(cores: u32) -> Config {
        Config { cores, quantum: u64::MAX, costs: Costs::FREE }
    }

    /// `cores` cores with typical costs and Linux's usual slice of 3 ms.
    pub fn typical(cores: u32, ticks_per_second: u64) -> Config {
        Config {
            cores,
            quantum: (ticks_per_second / 1000 * 3).max(1),
            costs: Costs::typical(ticks_per_second),
        }
    }
}
