//! What the recording shows of waiting at each site.
//!
//! A section that came while another had the lock waited from then until it had the lock itself. Of
//! that, what lies before the end of the last section that it conflicts with was necessary, and the
//! rest was not: without the sections in between it could have had the lock then.

use crate::ulcp::Memory;
use crate::{LockKind, Sections};

/// A code region's sections, in the recording.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Waited {
    /// Critical sections.
    pub(crate) sections: u64,
    /// Those that found the lock taken.
    pub(crate) waited: u64,
    /// For how long these waited, in ticks.
    pub(crate) ticks: u64,
    /// How much of that was unnecessary.
    pub(crate) unnecessary: u64,
}

/// By region, of the regular locks.
pub(crate) fn by_region(sections: &Sections) -> Vec<Waited> {
    let mut found = vec![Waited::default(); sections.regions().len()];
    let mut memory = Memory::new();
    for lock in sections.locks().iter().filter(|lock| lock.kind == LockKind::Regular) {
        for at in lock.sections.clone() {
            let section = &sections.all()[at];
            let of = &mut found[section.region.index()];
            of.sections += 1;
            let waits = sections.waits(at);
            if waits.is_empty() {
                continue;
            }
            let times = sections.times(at);
            let waited = times.had.saturating_sub(times.begin);
            let conflicts = |&&(_, earlier): &&(u32, u32)| {
                let earlier = &sections.all()[earlier as usize];
                memory.identify(sections, earlier, section).conflicts()
            };
            let ends = waits.iter().filter(conflicts);
            let until = ends.map(|&(_, earlier)| sections.times(earlier as usize).end).max();
            let necessary = until.map_or(0, |until| until.saturating_sub(times.begin).min(waited));
            of.waited += 1;
            of.ticks += waited;
            of.unnecessary += waited - necessary;
        }
    }
    found
}
