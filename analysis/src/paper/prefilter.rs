//! Filters before heavier analyses (FastTrack, section 5.2): accesses of variables that do not race do not
//! reach them.
//!
//! A variable is let through from the access on that its filter finds fault with. What came before is
//! lost to the analysis behind it, as the paper says (footnote 6).

use super::{Cost, Detector, Step, Which};
use refrain_trace::fixed::{FixedMap, FixedSet};

/// What is left out.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Prefilter {
    /// Nothing.
    None,
    /// Accesses of variables that one thread alone has used.
    ThreadLocal,
    /// Accesses of variables with which this detector finds no fault.
    By(Which),
}

impl Prefilter {
    /// All, as the paper's table has them.
    pub const ALL: [Prefilter; 5] = [
        Prefilter::None,
        Prefilter::ThreadLocal,
        Prefilter::By(Which::Eraser),
        Prefilter::By(Which::Djit),
        Prefilter::By(Which::FastTrack),
    ];

    /// As the command line has it.
    pub fn name(self) -> &'static str {
        match self {
            Prefilter::None => "none",
            Prefilter::ThreadLocal => "thread-local",
            Prefilter::By(which) => which.name(),
        }
    }

    /// An analysis behind this filter.
    pub fn before(self, analysis: Which) -> Box<dyn Detector> {
        let analysis = analysis.detector();
        let filter = match self {
            Prefilter::None => return analysis,
            Prefilter::ThreadLocal => Filter::ThreadLocal(FixedMap::default()),
            Prefilter::By(which) => Filter::By(which.detector()),
        };
        Box::new(Filtered { filter, passed: FixedSet::default(), analysis })
    }
}

enum Filter {
    /// The thread that used each variable first.
    ThreadLocal(FixedMap<u64, u32>),
    By(Box<dyn Detector>),
}

struct Filtered {
    filter: Filter,
    /// Variables that are let through.
    passed: FixedSet<u64>,
    analysis: Box<dyn Detector>,
}

impl Detector for Filtered {
    fn access(&mut self, thread: u32, variable: u64, writes: bool) -> bool {
        if !self.passed.contains(&variable) {
            let passes = match &mut self.filter {
                Filter::ThreadLocal(users) => *users.entry(variable).or_insert(thread) != thread,
                Filter::By(filter) => filter.access(thread, variable, writes),
            };
            if !passes {
                return false;
            }
            self.passed.insert(variable);
        }
        self.analysis.access(thread, variable, writes)
    }

    fn forget(&mut self, variable: u64) {
        self.passed.remove(&variable);
        match &mut self.filter {
            Filter::ThreadLocal(users) => drop(users.remove(&variable)),
            Filter::By(filter) => filter.forget(variable),
        }
        self.analysis.forget(variable);
    }

    fn synchronize(&mut self, step: &Step) -> bool {
        if let Filter::By(filter) = &mut self.filter {
            filter.synchronize(step);
        }
        self.analysis.synchronize(step)
    }

    fn cost(&self) -> Cost {
        self.analysis.cost()
    }
}
