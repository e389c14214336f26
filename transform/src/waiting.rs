//! What the recording shows of waiting at each site, and between each two.
//!
//! A section that came while another had the lock waited from then until it had the lock itself. Of
//! that, what lies before the end of the last section that it conflicts with was necessary, and the
//! rest was not: without the sections in between it could have had the lock then. Each part of the rest
//! was waited for the section that had the lock then, and what the hand-over took for the last one.

use crate::ulcp::Memory;
use crate::{LockKind, RegionId, Sections};
use std::collections::BTreeMap;

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

/// What threads waited for at the regular locks.
pub(crate) struct Waits {
    /// By region of the section that waited.
    pub(crate) regions: Vec<Waited>,
    /// By the region of the section that had the lock and that of the one that waited for it: how many
    /// ticks of that were unnecessary.
    pub(crate) in_vain: BTreeMap<(RegionId, RegionId), u64>,
}

/// Looks at each section that found its lock taken.
pub(crate) fn waits(sections: &Sections) -> Waits {
    let mut regions = vec![Waited::default(); sections.regions().len()];
    let mut in_vain = BTreeMap::new();
    let mut memory = Memory::new();
    for lock in sections.locks().iter().filter(|lock| lock.kind == LockKind::Regular) {
        for at in lock.sections.clone() {
            let section = &sections.all()[at];
            let of = &mut regions[section.region.index()];
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
            let mut holders: Vec<(u64, u32)> =
                waits.iter().map(|&(_, at)| (sections.times(at as usize).end, at)).collect();
            holders.sort_unstable();
            let mut from = times.begin + necessary;
            for (nth, &(end, holder)) in holders.iter().enumerate() {
                let is_last = nth + 1 == holders.len();
                let until = if is_last { times.had } else { end.min(times.had) };
                if until > from {
                    let pair = (sections.all()[holder as usize].region, section.region);
                    *in_vain.entry(pair).or_insert(0) += until - from;
                    from = until;
                }
            }
        }
    }
    Waits { regions, in_vain }
}
