//! From measurements to the report: PerfPlay, section 4.

use crate::fusion::Fusion;
use crate::measure::{Measurement, RegionPair, RegionSite};
use crate::ulcp::UlcpKind;
use crate::{Basis, Group, PairCounts, Place, Region, Report, Resolver, Site};
use std::collections::BTreeMap;

/// Fuses what was measured by the program's source, and ranks it: by what the run gains, or, if the
/// model does not reproduce how long the recording took, by how long threads waited in vain in it.
pub fn rank(measured: &Measurement, recorded_ns: u64, resolver: &mut dyn Resolver) -> Report {
    let ranked_by = Basis::of(recorded_ns, measured.check_ns);
    let ends = measured.pairs.iter().flat_map(|pair| [pair.first, pair.second]);
    let of_sites = measured.sites.iter().map(|site| site.region);
    let mut regions: Vec<Region> = ends.chain(of_sites).collect();
    regions.sort_unstable();
    regions.dedup();
    let fusion = Fusion::new(&regions, resolver);
    let index = |region: &Region| regions.binary_search(region).expect("every end is a region");
    let mut groups: BTreeMap<(u32, u32), Vec<&RegionPair>> = BTreeMap::new();
    for pair in &measured.pairs {
        let (a, b) = (fusion.class[index(&pair.first)], fusion.class[index(&pair.second)]);
        groups.entry((a.min(b), a.max(b))).or_default().push(pair);
    }
    let place = |region: &Region| fusion.places[index(region)].clone();
    let (mut ranked, mut spurious) = (Vec::new(), Vec::new());
    for (classes, members) in &groups {
        let group = group(members, place);
        // Of what was replayed in parts, each part alone gains no more than all of it.
        let parts = members.iter().filter_map(|pair| pair.alone);
        let gains = match ranked_by {
            Basis::Gain => parts.map(|gain| gain.likely_ns).max(),
            Basis::RecordedWaiting => i64::try_from(group.in_vain_ns).ok(),
        };
        if group.pairs > 0 {
            ranked.push((gains, *classes, group));
        } else if group.kinds.after_wait > 0 {
            spurious.push((gains, *classes, group));
        }
    }
    Report {
        analysed: measured.analysed,
        original_ns: measured.original_ns,
        check_ns: measured.check_ns,
        gain: measured.gain,
        ulcp_free_ns: measured.ulcp_free_ns,
        ulcp_free_error: measured.ulcp_free_error.clone(),
        ranked_by,
        groups: order(ranked),
        spurious: order(spurious),
        sites: sites(measured, &fusion, index),
        together: measured.together.clone(),
        over_cores: measured.over_cores.clone(),
        over_threads: measured.over_threads.clone(),
        waiting: measured.waiting,
    }
}

/// Fuses regions to sites, those where threads waited.
fn sites(measured: &Measurement, fusion: &Fusion, index: impl Fn(&Region) -> usize) -> Vec<Site> {
    let mut classes: BTreeMap<u32, Vec<&RegionSite>> = BTreeMap::new();
    for site in measured.sites.iter().filter(|site| site.waited > 0 || site.gain.is_some()) {
        classes.entry(fusion.class[index(&site.region)]).or_default().push(site);
    }
    let site = |members: Vec<&RegionSite>| {
        let most = members.iter().rev().max_by_key(|it| it.sections).expect("it has members");
        let sum = |of: fn(&RegionSite) -> u64| members.iter().map(|it| of(it)).sum();
        // One number stands for the site only if one replay freed all of it.
        let gain = members[0].gain.filter(|_| members.iter().all(|it| it.gain == members[0].gain));
        let (waited_ns, unnecessary_ns) = (sum(|it| it.waited_ns), sum(|it| it.unnecessary_ns));
        Site {
            site: fusion.places[index(&most.region)].clone(),
            critical_sections: sum(|it| it.sections),
            waited: sum(|it| it.waited),
            waited_ns,
            unnecessary_ns,
            unnecessary: unnecessary_ns as f64 / waited_ns.max(1) as f64,
            gain,
        }
    };
    let mut sites: Vec<Site> = classes.into_values().map(site).collect();
    sites.sort_by_key(|it| std::cmp::Reverse((it.unnecessary_ns, it.waited_ns)));
    sites
}

fn group(members: &[&RegionPair], place: impl Fn(&Region) -> Place) -> Group {
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
        (kinds.redundant_write, UlcpKind::RedundantWrite),
        (kinds.disjoint_bits, UlcpKind::DisjointBits),
        (kinds.commutative_update, UlcpKind::CommutativeUpdate),
    ];
    let kind = by_kind.iter().rev().max_by_key(|(pairs, _)| *pairs).expect("there are kinds").1;
    // One number stands for the group only if one replay freed all of it.
    let mut ulcps = members.iter().filter(|pair| pair.kinds.ulcps() > 0);
    let first = ulcps.next();
    let same = |pair: &&RegionPair| {
        first.is_some_and(|first| (first.alone_ns, first.alone) == (pair.alone_ns, pair.alone))
    };
    let alone = first.filter(|_| ulcps.all(same));
    Group {
        rank: 0,
        kind,
        first: place(&most.first),
        second: place(&most.second),
        pairs: kinds.ulcps(),
        kinds,
        conflicts: members.iter().map(|pair| pair.conflicts).sum(),
        delta_ns: members.iter().map(|pair| pair.gain_ns).sum(),
        in_vain_ns: members.iter().map(|pair| pair.in_vain_ns).sum(),
        share: 0.0,
        alone_ns: alone.and_then(|pair| pair.alone_ns),
        alone: alone.and_then(|pair| pair.alone),
        alone_error: alone.and_then(|pair| pair.alone_error.clone()),
    }
}

/// Ranks groups and gives them their shares (Eq. 2).
fn order(mut groups: Vec<(Option<i64>, (u32, u32), Group)>) -> Vec<Group> {
    groups.sort_by(|(a_gains, a_classes, a), (b_gains, b_classes, b)| {
        // What counts is known of the groups that were replayed, or of all.
        let of = |gains, group: &Group| (gains, group.delta_ns, group.pairs);
        (of(*b_gains, b), a_classes).cmp(&(of(*a_gains, a), b_classes))
    });
    let total: i64 = groups.iter().map(|(.., group)| group.delta_ns.max(0)).sum();
    for (index, (.., group)) in groups.iter_mut().enumerate() {
        group.rank = index as u32 + 1;
        if total > 0 {
            group.share = group.delta_ns.max(0) as f64 / total as f64;
        }
    }
    groups.into_iter().map(|(.., group)| group).collect()
}
