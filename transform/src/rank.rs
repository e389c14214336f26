//! From critical sections to the report: PerfPlay, section 4.

use crate::fusion::Fusion;
use crate::gain::{self, Timeline};
use crate::topology::exempting;
use crate::ulcp::{UlcpKind, Verdict, pairs};
use crate::{Analysed, Error, Group, LockKind, PairCounts, Replayer, Report, Resolver, Side};
use crate::{RegionId, Sections, Topology};
use std::collections::BTreeMap;

/// What to do beyond the ranking.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Options {
    /// For how many groups, from the top, to replay the trace with that group alone fixed.
    pub alone: usize,
    /// More causal edges than this and such a replay is left out.
    pub edge_limit: usize,
}

impl Default for Options {
    fn default() -> Options {
        Options { alone: 10, edge_limit: 50_000_000 }
    }
}

/// Pairs of two classes of code regions.
#[derive(Default)]
struct Tally {
    kinds: PairCounts,
    conflicts: u64,
    gain: i64,
    /// Pairs by their regions as they were, for the sides of the report.
    sides: BTreeMap<(RegionId, RegionId), u64>,
    /// Locks with ULCPs of this group, ascending.
    locks: Vec<u32>,
}

/// Ranks the ULCPs of a run by what they cost.
pub fn rank(
    sections: &Sections,
    replayer: &mut dyn Replayer,
    resolver: &mut dyn Resolver,
    options: &Options,
) -> Result<Report, Error> {
    let topology = Topology::new(sections);
    let original = Timeline::new(sections, replayer, None)?;
    let free = Timeline::new(sections, replayer, Some(&topology.plan(sections)))?;
    let fusion = Fusion::new(sections, resolver);
    let tallies = tally(sections, &fusion, &original, &free);
    let mut analysed = count(sections, &topology);
    for tally in tallies.values() {
        let (all, kinds) = (&mut analysed.pairs, &tally.kinds);
        all.null_lock += kinds.null_lock;
        all.read_read += kinds.read_read;
        all.disjoint_write += kinds.disjoint_write;
        all.after_wait += kinds.after_wait;
        analysed.tlcps += tally.conflicts;
    }
    let (mut groups, mut spurious) = (Vec::new(), Vec::new());
    for (classes, tally) in &tallies {
        let group = group(&fusion, tally, replayer);
        if tally.kinds.ulcps() > 0 {
            groups.push((*classes, group));
        } else if tally.kinds.after_wait > 0 {
            spurious.push((*classes, group));
        }
    }
    order(&mut groups);
    order(&mut spurious);
    for (classes, group) in groups.iter_mut().take(options.alone) {
        let locks = &tallies[classes].locks;
        let plan = exempting(
            sections,
            &fusion.class,
            |a, b| (a.min(b), a.max(b)) == *classes,
            |lock| locks.binary_search(&(lock as u32)).is_ok(),
            options.edge_limit,
        );
        if let Some(plan) = plan {
            let run = replayer.replay(Some(&plan), &mut |_, _, _, _| {});
            let ticks = run.map_err(|why| Error::Replay { what: "single-group", why })?;
            let saved = original.duration as i64 - ticks as i64;
            group.alone_ns = Some(nanoseconds(replayer, saved));
        }
    }
    Ok(Report {
        analysed,
        original_ns: replayer.nanoseconds(original.duration),
        ulcp_free_ns: replayer.nanoseconds(free.duration),
        groups: groups.into_iter().map(|(_, group)| group).collect(),
        spurious: spurious.into_iter().map(|(_, group)| group).collect(),
    })
}

fn tally(
    sections: &Sections,
    fusion: &Fusion,
    original: &Timeline,
    free: &Timeline,
) -> BTreeMap<(u32, u32), Tally> {
    let mut tallies: BTreeMap<(u32, u32), Tally> = BTreeMap::new();
    for pair in pairs(sections) {
        let first = &sections.all()[pair.first.index()];
        let second = &sections.all()[pair.second.index()];
        let (a, b) = (fusion.class[first.region.index()], fusion.class[second.region.index()]);
        let tally = tallies.entry((a.min(b), a.max(b))).or_default();
        match pair.verdict {
            Verdict::Ulcp(UlcpKind::NullLock) => tally.kinds.null_lock += 1,
            Verdict::Ulcp(UlcpKind::ReadRead) => tally.kinds.read_read += 1,
            Verdict::Ulcp(UlcpKind::DisjointWrite) => tally.kinds.disjoint_write += 1,
            Verdict::AfterWait => tally.kinds.after_wait += 1,
            Verdict::Conflict => {
                tally.conflicts += 1;
                continue;
            }
        }
        *tally.sides.entry((first.region, second.region)).or_default() += 1;
        if let Verdict::Ulcp(_) = pair.verdict {
            tally.gain += gain::gain(original, free, pair.first, pair.second);
            // Pairs come lock by lock.
            if tally.locks.last() != Some(&first.lock) {
                tally.locks.push(first.lock);
            }
        }
    }
    tallies
}

fn count(sections: &Sections, topology: &Topology) -> Analysed {
    let irregular = sections.locks().iter().filter(|lock| lock.kind == LockKind::Irregular);
    Analysed {
        threads: sections.threads as u64,
        events: sections.events,
        locks: sections.locks().len() as u64,
        irregular_locks: irregular.count() as u64,
        acquisitions: sections.acquisitions,
        contended: sections.contended,
        critical_sections: sections.all().len() as u64,
        pairs: PairCounts::default(),
        tlcps: 0,
        removed: topology.removed(),
        causal_edges: topology.edges().len() as u64,
        aux_locks: topology.aux_locks() as u64,
    }
}

fn group(fusion: &Fusion, tally: &Tally, replayer: &dyn Replayer) -> Group {
    let kinds = &tally.kinds;
    let most = [
        (kinds.null_lock, UlcpKind::NullLock),
        (kinds.read_read, UlcpKind::ReadRead),
        (kinds.disjoint_write, UlcpKind::DisjointWrite),
    ];
    // Of equals the first, which is the easiest to mend.
    let kind =
        most.iter().rev().max_by_key(|(pairs, _)| *pairs).map_or(UlcpKind::NullLock, |m| m.1);
    let sides = tally.sides.iter().rev().max_by_key(|(_, pairs)| **pairs);
    let (first, second) = sides.map_or((RegionId(0), RegionId(0)), |(regions, _)| *regions);
    let side = |region: RegionId| {
        let (acquire, release) = fusion.places[region.index()].clone();
        Side { acquire, release }
    };
    Group {
        rank: 0,
        kind,
        first: side(first),
        second: side(second),
        pairs: kinds.ulcps(),
        kinds: *kinds,
        conflicts: tally.conflicts,
        gain_ns: nanoseconds(replayer, tally.gain),
        share: 0.0,
        alone_ns: None,
    }
}

/// Ranks groups and gives them their shares (Eq. 2).
fn order(groups: &mut [((u32, u32), Group)]) {
    groups.sort_by(|(a_classes, a), (b_classes, b)| {
        (b.gain_ns, b.pairs, a_classes).cmp(&(a.gain_ns, a.pairs, b_classes))
    });
    let total: i64 = groups.iter().map(|(_, group)| group.gain_ns.max(0)).sum();
    for (index, (_, group)) in groups.iter_mut().enumerate() {
        group.rank = index as u32 + 1;
        if total > 0 {
            group.share = group.gain_ns.max(0) as f64 / total as f64;
        }
    }
}

fn nanoseconds(replayer: &dyn Replayer, ticks: i64) -> i64 {
    replayer.nanoseconds(ticks.unsigned_abs()) as i64 * ticks.signum()
}
