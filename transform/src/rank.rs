//! From measurements to the report: PerfPlay, section 4.

use crate::fusion::Fusion;
use crate::measure::{Measurement, RegionPair};
use crate::ulcp::UlcpKind;
use crate::{Group, PairCounts, Region, Report, Resolver, Side};
use std::collections::BTreeMap;

/// Fuses what was measured by the program's source, and ranks it by what it costs.
pub fn rank(measured: &Measurement, resolver: &mut dyn Resolver) -> Report {
    let ends = measured.pairs.iter().flat_map(|pair| [pair.first, pair.second]);
    let mut regions: Vec<Region> = ends.collect();
    regions.sort_unstable();
    regions.dedup();
    let fusion = Fusion::new(&regions, resolver);
    let index = |region: &Region| regions.binary_search(region).expect("every end is a region");
    let mut groups: BTreeMap<(u32, u32), Vec<&RegionPair>> = BTreeMap::new();
    for pair in &measured.pairs {
        let (a, b) = (fusion.class[index(&pair.first)], fusion.class[index(&pair.second)]);
        groups.entry((a.min(b), a.max(b))).or_default().push(pair);
    }
    let side = |region: &Region| {
        let (acquire, release) = fusion.places[index(region)].clone();
        Side { acquire, release }
    };
    let (mut ranked, mut spurious) = (Vec::new(), Vec::new());
    for (classes, members) in &groups {
        let group = group(members, side);
        if group.pairs > 0 {
            ranked.push((*classes, group));
        } else if group.kinds.after_wait > 0 {
            spurious.push((*classes, group));
        }
    }
    Report {
        analysed: measured.analysed,
        original_ns: measured.original_ns,
        check_ns: measured.check_ns,
        gain: measured.gain,
        ulcp_free_ns: measured.ulcp_free_ns,
        ulcp_free_error: measured.ulcp_free_error.clone(),
        groups: order(ranked),
        spurious: order(spurious),
    }
}

fn group(members: &[&RegionPair], side: impl Fn(&Region) -> Side) -> Group {
    let mut kinds = PairCounts::default();
    for member in members {
        kinds.add(&member.kinds);
    }
    let all = |pair: &RegionPair| pair.kinds.ulcps() + pair.kinds.after_wait;
    // Of equals the first, as everywhere below.
    let most = members.iter().rev().max_by_key(|pair| all(pair)).expect("a group has members");
    let by_kind = [
        (kinds.null_lock, UlcpKind::NullLock),
        (kinds.read_read, UlcpKind::ReadRead),
        (kinds.disjoint_write, UlcpKind::DisjointWrite),
    ];
    let kind = by_kind.iter().rev().max_by_key(|(pairs, _)| *pairs).expect("there are kinds").1;
    // One number stands for the group only if one replay freed all of it.
    let places = |pair: &RegionPair| {
        let (a, b) = (pair.first.acquire, pair.second.acquire);
        (a.min(b), a.max(b))
    };
    let ulcps = || members.iter().filter(|pair| pair.kinds.ulcps() > 0);
    let one = ulcps().all(|pair| places(pair) == places(most));
    let alone = ulcps().next().filter(|_| one);
    Group {
        rank: 0,
        kind,
        first: side(&most.first),
        second: side(&most.second),
        pairs: kinds.ulcps(),
        kinds,
        conflicts: members.iter().map(|pair| pair.conflicts).sum(),
        gain_ns: members.iter().map(|pair| pair.gain_ns).sum(),
        share: 0.0,
        alone_ns: alone.and_then(|pair| pair.alone_ns),
        alone: alone.and_then(|pair| pair.alone),
        alone_error: alone.and_then(|pair| pair.alone_error.clone()),
    }
}

/// Ranks groups and gives them their shares (Eq. 2).
fn order(mut groups: Vec<((u32, u32), Group)>) -> Vec<Group> {
    groups.sort_by(|(a_classes, a), (b_classes, b)| {
        // What the run gains is what counts, where it is known.
        let of =
            |group: &Group| (group.alone.map(|gain| gain.likely_ns), group.gain_ns, group.pairs);
        (of(b), a_classes).cmp(&(of(a), b_classes))
    });
    let total: i64 = groups.iter().map(|(_, group)| group.gain_ns.max(0)).sum();
    for (index, (_, group)) in groups.iter_mut().enumerate() {
        group.rank = index as u32 + 1;
        if total > 0 {
            group.share = group.gain_ns.max(0) as f64 / total as f64;
        }
    }
    groups.into_iter().map(|(_, group)| group).collect()
}
