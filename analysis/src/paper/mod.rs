//! The seven detectors that the paper compares (FastTrack, Tables 1 to 3), the heavier analyses that they
//! filter accesses for (section 5.2), over one stream of steps.
//!
//! Each is one file with the rules of its paper, and implements [`Detector`], which tells accesses from
//! other steps. All share the stream ([`Step`]); those that have vector clocks share the arithmetic of
//! them (`clocks`), so that all count the same things. They are as the papers print them: an atomic
//! access only synchronizes, and memory that ends is no access. `refrain races` itself uses the crate's
//! own detector.
//!
//! # What they guarantee
//! BasicVC, DJIT+, FastTrack and Goldilocks find exactly the variables with two conflicting accesses
//! that happens-before leaves open. MultiRace finds some of these: Eraser's states for data of one
//! thread, and data that is only read, hide races. Eraser knows locks alone: it names variables that
//! something else orders, and misses those that have one owner too few.

mod basicvc;
mod clocks;
mod djit;
mod empty;
mod eraser;
mod fasttrack;
mod goldilocks;
mod granularity;
mod multirace;
mod prefilter;
mod shb;
mod singletrack;
mod std_format;
mod step;
mod velodrome;

pub use granularity::{Granularity, Variables};
pub use prefilter::Prefilter;
pub use std_format::{Std, StdError};
pub use step::{Op, Step};

use std::collections::BTreeSet;

/// One of the seven, or an analysis behind them.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Which {
    /// Looks at nothing: what the stream itself costs.
    Empty,
    /// Locksets (Savage et al.).
    Eraser,
    /// DJIT+ behind locksets (Pozniansky and Schuster).
    MultiRace,
    /// Sets of threads and objects that own a variable (Elmas et al.).
    Goldilocks,
    /// A vector clock for the reads and one for the writes of each variable.
    BasicVc,
    /// The same, once in an epoch (Pozniansky and Schuster).
    Djit,
    /// Epochs (Flanagan and Freund).
    FastTrack,
    /// Races that are real beyond the first (Mathur, Kini and Viswanathan).
    Shb,
    /// Not a race detector: are critical sections serializable (Flanagan, Freund and Yi)?
    Velodrome,
    /// Neither: does the order of locks matter (Sadowski, Freund and Flanagan)?
    SingleTrack,
}

impl Which {
    /// The analyses, as the table of prefilters has them.
    pub const BEHIND_FILTERS: [Which; 2] = [Which::Velodrome, Which::SingleTrack];

    /// The detectors, as Table 1 has them.
    pub const ALL: [Which; 7] = [
        Which::Empty,
        Which::Eraser,
        Which::MultiRace,
        Which::Goldilocks,
        Which::BasicVc,
        Which::Djit,
        Which::FastTrack,
    ];

    /// As the command line has it.
    pub fn name(self) -> &'static str {
        match self {
            Which::Empty => "empty",
            Which::Eraser => "eraser",
            Which::MultiRace => "multirace",
            Which::Goldilocks => "goldilocks",
            Which::BasicVc => "basicvc",
            Which::Djit => "djit+",
            Which::FastTrack => "fasttrack",
            Which::Shb => "shb",
            Which::Velodrome => "velodrome",
            Which::SingleTrack => "singletrack",
        }
    }

    /// A new one.
    pub fn detector(self) -> Box<dyn Detector> {
        match self {
            Which::Empty => Box::new(empty::Empty),
            Which::Eraser => Box::<eraser::Eraser>::default(),
            Which::MultiRace => Box::<multirace::MultiRace>::default(),
            Which::Goldilocks => Box::<goldilocks::Goldilocks>::default(),
            Which::BasicVc => Box::<basicvc::BasicVc>::default(),
            Which::Djit => Box::<djit::Djit>::default(),
            Which::FastTrack => Box::<fasttrack::FastTrack>::default(),
            Which::Shb => Box::<shb::Shb>::default(),
            Which::Velodrome => Box::<velodrome::Velodrome>::default(),
            Which::SingleTrack => Box::<singletrack::SingleTrack>::default(),
        }
    }
}

/// Takes the steps of all threads, one after another. What returns a bool says whether the step is
/// an access that races, or one with which an analysis finds another fault.
pub trait Detector {
    /// The next step.
    fn step(&mut self, step: &Step) -> bool {
        match step.op {
            Op::Read(variable) => self.access(step.thread, variable, false),
            Op::Write(variable) => self.access(step.thread, variable, true),
            Op::Fresh(variable) => {
                self.forget(variable);
                false
            }
            Op::Acquire(_) | Op::Release(_) | Op::Hold { .. } | Op::Drop(_) => {
                self.synchronize(step)
            }
        }
    }

    /// A thread reads or writes a variable.
    fn access(&mut self, thread: u32, variable: u64, writes: bool) -> bool;

    /// The variable is new.
    fn forget(&mut self, variable: u64);

    /// Any other step.
    fn synchronize(&mut self, step: &Step) -> bool;

    /// What it has cost.
    fn cost(&self) -> Cost;
}

/// What a detector has done and kept.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Cost {
    /// Vector clocks that were allocated (Table 2); for Velodrome, transactions.
    pub clocks: u64,
    /// Operations on them that take time linear in the number of threads (Table 2); for Goldilocks,
    /// steps that its sets were carried over, for Velodrome, transactions that it looked at.
    pub operations: u64,
    /// Bytes that it keeps for variables (Table 3).
    pub bytes: u64,
    /// How often each rule was used (Figure 2), where the detector has rules.
    pub rules: Vec<(&'static str, u64)>,
}

/// The variables that race in these steps.
pub fn racy_variables(which: Which, steps: &[Step]) -> BTreeSet<u64> {
    let mut detector = which.detector();
    let races = steps.iter().filter(|step| detector.step(step));
    races.filter_map(|step| step.op.variable()).collect()
}
