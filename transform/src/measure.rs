//! Measuring: replays of the original, of the trace without ULCPs, and of single groups.
//!
//! Tallies are by pair of code regions, as addresses; what belongs together in the source is for
//! [`crate::rank`] to say.

use crate::arrivals::Arrivals;
use crate::fusion::Fusion;
use crate::gain::{self, Timeline};
use crate::relaxed::Only;
use crate::topology::exempting;
use crate::ulcp::{UlcpKind, Verdict, pairs};
use crate::waiting::{self, Waited, Waits};
use crate::{
    Analysed, Cores, Error, Gain, LockKind, NOMINAL, PairCounts, Plan, Region, RegionId, Relaxed,
    Replayer, Sections, Setting, TRIALS, Topology,
};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

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

/// Pairs of two code regions, in the order in which they had the lock.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct RegionPair {
    /// Code of the section that came first.
    pub first: Region,
    /// Code of the other.
    pub second: Region,
    /// ULCPs by kind.
    pub kinds: PairCounts,
    /// Pairs that conflict.
    pub conflicts: u64,
    /// ΔT (Eq. 1) summed over the ULCPs, in nanoseconds.
    pub gain_ns: i64,
    /// For how long the second waited for the first in the recording without need, in nanoseconds.
    pub in_vain_ns: u64,
    /// What the run gains if only the pairs with the same two places of acquisition (in any
    /// order, with any releases) lose their order, in nanoseconds. `None` if not replayed.
    pub alone_ns: Option<i64>,
    /// The same with its range, if the run was replayed by arrival.
    pub alone: Option<Gain>,
    /// Why that replay did not end, if it did not.
    pub alone_error: Option<String>,
}

/// The sections of a code region, in the recording.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct RegionSite {
    /// The code.
    pub region: Region,
    /// Critical sections.
    pub sections: u64,
    /// Those that found the lock taken.
    pub waited: u64,
    /// For how long these waited, in nanoseconds.
    pub waited_ns: u64,
    /// How much of that was for sections that they did not conflict with.
    pub unnecessary_ns: u64,
    /// What the run gains if the sections of this region's class exclude only what they conflict
    /// with; `None` if that was not replayed.
    pub gain: Option<Gain>,
}

/// What the run gains if the most costly groups are fixed at once.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Together {
    /// So many, by what each gains alone.
    pub groups: u32,
    /// The gain.
    pub gain: Gain,
}

/// The run on another number of cores.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct OnCores {
    /// Cores.
    pub cores: u32,
    /// The original's duration in virtual time, nanoseconds.
    pub original_ns: u64,
    /// Without ULCPs.
    pub ulcp_free_ns: u64,
}

/// The run with more threads.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct WithThreads {
    /// How often each thread is there that another one created.
    pub copies: u32,
    /// The original's duration in virtual time, nanoseconds.
    pub original_ns: u64,
    /// Without ULCPs.
    pub ulcp_free_ns: u64,
}

/// What ULCPs cost a run beyond its duration: PerfPlay, section 6.3.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Waiting {
    /// For how long all threads together waited for locks that were taken, nanoseconds.
    pub original_ns: u64,
    /// The same without ULCPs.
    pub ulcp_free_ns: u64,
}

/// What the replays measured.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Measurement {
    /// What was analysed.
    pub analysed: Analysed,
    /// Duration of the original in virtual time, nanoseconds.
    pub original_ns: u64,
    /// The arrival model's duration of the run as recorded, to be held against the recorded one.
    pub check_ns: Option<u64>,
    /// What the run gains without ULCPs, by the arrival model.
    pub gain: Option<Gain>,
    /// Duration without ULCPs. `None` if that replay did not end; then nothing is known of gains.
    pub ulcp_free_ns: Option<u64>,
    /// Why it did not.
    pub ulcp_free_error: Option<String>,
    /// Ascending by regions.
    pub pairs: Vec<RegionPair>,
    /// Regions with critical sections of regular locks.
    pub sites: Vec<RegionSite>,
    /// Two groups and more.
    pub together: Vec<Together>,
    /// Ascending by cores.
    pub over_cores: Vec<OnCores>,
    /// Ascending by copies.
    pub over_threads: Vec<WithThreads>,
    /// Threads' waiting, by the arrival model.
    pub waiting: Option<Waiting>,
}

#[derive(Default)]
struct Tally {
    kinds: PairCounts,
    conflicts: u64,
    gain: i64,
    /// Locks with ULCPs of this kind, ascending.
    locks: Vec<u32>,
}

type Tallies = BTreeMap<(RegionId, RegionId), Tally>;

/// What a region pair's group gains if it is fixed alone, or why that is not known.
type Alone = BTreeMap<(RegionId, RegionId), Result<(i64, Option<Gain>), String>>;

/// Replays the run with and without ULCPs, and without single groups of them. Only a replay of
/// the original that does not end is an error.
pub fn measure(
    sections: &Sections,
    replayer: &mut dyn Replayer,
    options: &Options,
) -> Result<Measurement, Error> {
    let topology = Topology::new(sections);
    let plan = Topology::without_benign(sections).plan(sections);
    let original = Timeline::new(sections, replayer, None)?;
    let original_ticks = duration(replayer, None)?;
    let free = Timeline::new(sections, replayer, Some(&plan))
        .and_then(|free| Ok((free, duration(replayer, Some(&plan))?)));
    let timeline = free.as_ref().map_or(&original, |(timeline, _)| timeline);
    let tallies = tally(sections, &original, timeline);
    let class = Fusion::new(sections.regions(), &mut ()).class;
    let all = Relaxed::new(sections, &class, Only::All, |_| true);
    let mut arrivals = Arrivals::new(replayer);
    // The first, because the others are held against the recording as this one is.
    let gain = arrivals.as_mut().ok().map(|arrivals| arrivals.gain_of_all(replayer, &all));
    let alone = match &arrivals {
        Ok(arrivals) => by_arrival(sections, &tallies, &class, replayer, arrivals, options),
        Err(_) => alone(sections, &tallies, &class, replayer, original_ticks, options),
    };
    let waits = waiting::waits(sections);
    let (mut together, mut sites) = (Vec::new(), Vec::new());
    let (mut over_cores, mut over_threads, mut waited) = (Vec::new(), Vec::new(), None);
    if let Ok(arrivals) = &arrivals {
        together = jointly(sections, &alone, &class, replayer, arrivals);
        over_cores = on_cores(sections, replayer, arrivals, &all);
        over_threads = with_threads(sections, replayer, arrivals, &all);
        waited = waiting(replayer, arrivals, &all).ok();
        sites = by_site(sections, &tallies, &alone, &class, &waits, (replayer, arrivals));
    }
    let mut original_ns = replayer.nanoseconds(original_ticks);
    let mut ulcp_free = match &free {
        Ok((_, ticks)) => Ok(replayer.nanoseconds(*ticks)),
        Err(error) => Err(error.to_string()),
    };
    if let (Ok(arrivals), Some(gain)) = (&arrivals, &gain) {
        original_ns = arrivals.likely_ns();
        ulcp_free = gain.clone().map(|gain| original_ns.saturating_add_signed(-gain.likely_ns));
    }
    let check_ns = arrivals.as_ref().ok().and_then(Arrivals::check_ns);
    let mut analysed = count(sections, &topology);
    let mut pairs = Vec::new();
    for ((first, second), tally) in &tallies {
        let alone = alone.get(&(*first, *second));
        analysed.pairs.add(&tally.kinds);
        analysed.tlcps += tally.conflicts;
        pairs.push(RegionPair {
            first: sections.regions()[first.index()],
            second: sections.regions()[second.index()],
            kinds: tally.kinds,
            conflicts: tally.conflicts,
            gain_ns: nanoseconds(replayer, tally.gain),
            in_vain_ns: waits
                .in_vain
                .get(&(*first, *second))
                .map_or(0, |&it| replayer.nanoseconds(it)),
            alone_ns: alone.and_then(|alone| alone.as_ref().ok()).map(|(gain, _)| *gain),
            alone: alone.and_then(|alone| alone.as_ref().ok()).and_then(|(_, gain)| *gain),
            alone_error: alone.and_then(|alone| alone.as_ref().err()).cloned(),
        });
    }
    pairs.sort_unstable_by_key(|pair| (pair.first, pair.second));
    Ok(Measurement {
        analysed,
        original_ns,
        check_ns,
        gain: gain.and_then(Result::ok),
        ulcp_free_ns: ulcp_free.as_ref().ok().copied(),
        ulcp_free_error: ulcp_free.err(),
        pairs,
        sites,
        together,
        over_cores,
        over_threads,
        waiting: waited,
    })
}

fn duration(replayer: &mut dyn Replayer, plan: Option<&Plan>) -> Result<u64, Error> {
    let what = if plan.is_some() { "transformed" } else { "original" };
    let replayed = replayer.replay(plan, Cores::Recorded, &mut |_, _, _, _| {});
    replayed.map_err(|why| Error::Replay { what, why })
}

fn tally(sections: &Sections, original: &Timeline, free: &Timeline) -> Tallies {
    let mut tallies = Tallies::new();
    for pair in pairs(sections) {
        let first = &sections.all()[pair.first.index()];
        let second = &sections.all()[pair.second.index()];
        let tally = tallies.entry((first.region, second.region)).or_default();
        match pair.verdict {
            Verdict::Ulcp(UlcpKind::NullLock) => tally.kinds.null_lock += 1,
            Verdict::Ulcp(UlcpKind::ReadRead) => tally.kinds.read_read += 1,
            Verdict::Ulcp(UlcpKind::DisjointWrite) => tally.kinds.disjoint_write += 1,
            Verdict::Ulcp(UlcpKind::RedundantWrite) => tally.kinds.redundant_write += 1,
            Verdict::Ulcp(UlcpKind::DisjointBits) => tally.kinds.disjoint_bits += 1,
            Verdict::Ulcp(UlcpKind::CommutativeUpdate) => tally.kinds.commutative_update += 1,
            Verdict::OfWaits => tally.kinds.after_wait += 1,
            Verdict::AtomicOnly => tally.kinds.atomic_only += 1,
            Verdict::Conflict => tally.conflicts += 1,
        }
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

/// A pair of classes of code.
type Classes = (u32, u32);

/// Groups in the order of their gains by Eq. 1, with the locks that they use.
fn candidates(tallies: &Tallies, class: &[u32], most: usize) -> Vec<(Classes, Vec<u32>)> {
    let mut groups: BTreeMap<Classes, (i64, Vec<u32>)> = BTreeMap::new();
    for (regions, tally) in tallies.iter().filter(|(_, tally)| tally.kinds.ulcps() > 0) {
        let (gain, locks) = groups.entry(classes(class, *regions)).or_default();
        *gain += tally.gain;
        locks.extend(&tally.locks);
    }
    let mut order: Vec<_> =
        groups.into_iter().map(|(pair, (gain, locks))| (-gain, pair, locks)).collect();
    order.sort_unstable();
    let sorted = |(_, pair, mut locks): (i64, Classes, Vec<u32>)| {
        locks.sort_unstable();
        (pair, locks)
    };
    order.into_iter().take(most).map(sorted).collect()
}

fn classes(class: &[u32], (a, b): (RegionId, RegionId)) -> Classes {
    let (a, b) = (class[a.index()], class[b.index()]);
    (a.min(b), a.max(b))
}

/// One for the noise, and all latencies.
fn few_trials() -> impl Iterator<Item = u32> {
    std::iter::once(0).chain(NOMINAL..TRIALS)
}

/// Groups that are fixed together, at most.
const TOGETHER: usize = 4;

/// Replays with the two most costly groups fixed, with the three most costly ones, and so on.
fn jointly(
    sections: &Sections,
    alone: &Alone,
    class: &[u32],
    replayer: &dyn Replayer,
    arrivals: &Arrivals,
) -> Vec<Together> {
    let mut groups: Vec<(i64, Classes)> = Vec::new();
    for (regions, gain) in alone {
        if let Ok((ns @ 1.., _)) = gain {
            groups.push((-ns, classes(class, *regions)));
        }
    }
    groups.sort_unstable();
    groups.dedup();
    let mut found = Vec::new();
    for most in 2..=groups.len().min(TOGETHER) {
        let pairs = groups[..most].iter().map(|(_, pair)| *pair).collect();
        let relaxed = Relaxed::new(sections, class, Only::Pairs(pairs), |_| true);
        let Ok(gain) = arrivals.gain(replayer, &relaxed, few_trials()) else { break };
        found.push(Together { groups: most as u32, gain });
    }
    found
}

/// Cores and threads that are tried, at most.
const MOST: u32 = 64;
/// No more events than this are replayed with copies of their threads.
const MOST_EVENTS: u64 = 1 << 22;

/// The run on one core, on two, four and so on, up to more than it has threads for.
fn on_cores(
    sections: &Sections,
    replayer: &dyn Replayer,
    arrivals: &Arrivals,
    all: &Relaxed<'_>,
) -> Vec<OnCores> {
    let threads = sections.threads as u32;
    let counts = (0..).map(|n| 1 << n).take_while(|&n| n < 2 * threads && n <= MOST);
    let mut found = Vec::new();
    for cores in counts {
        let setting = Setting { cores: Some(cores), ..Setting::of(0) };
        let Ok([original_ns, ulcp_free_ns]) = durations(replayer, arrivals, all, setting) else {
            break;
        };
        found.push(OnCores { cores, original_ns, ulcp_free_ns });
    }
    found
}

/// The run with every created thread twice, four times and so on, on the recorded cores.
fn with_threads(
    sections: &Sections,
    replayer: &dyn Replayer,
    arrivals: &Arrivals,
    all: &Relaxed<'_>,
) -> Vec<WithThreads> {
    let (threads, events) = (sections.threads as u32, sections.events);
    let few = |copies: &u32| {
        threads * copies <= MOST && events.saturating_mul((*copies).into()) <= MOST_EVENTS
    };
    let mut found = Vec::new();
    for copies in (1..).map(|n| 1 << n).take_while(few) {
        let setting = Setting { copies, ..Setting::of(0) };
        let Ok([original_ns, ulcp_free_ns]) = durations(replayer, arrivals, all, setting) else {
            break;
        };
        found.push(WithThreads { copies, original_ns, ulcp_free_ns });
    }
    found
}

/// Durations of the original and without ULCPs.
fn durations(
    replayer: &dyn Replayer,
    arrivals: &Arrivals,
    all: &Relaxed<'_>,
    setting: Setting,
) -> Result<[u64; 2], String> {
    let both = arrivals.both(replayer, all, setting)?;
    Ok(both.map(|run| replayer.nanoseconds(run.duration)))
}

/// For how long threads waited in the original and without ULCPs.
fn waiting(
    replayer: &dyn Replayer,
    arrivals: &Arrivals,
    all: &Relaxed<'_>,
) -> Result<Waiting, String> {
    let both = arrivals.both(replayer, all, Setting::of(0))?;
    let [original_ns, ulcp_free_ns] = both.map(|run| replayer.nanoseconds(run.waited));
    Ok(Waiting { original_ns, ulcp_free_ns })
}

/// Sites for which it is replayed what fixing them alone gains, at most.
const SITES: usize = 5;

/// What the recording shows of each region, and for those that waited longest in vain what the run
/// gains without that.
fn by_site(
    sections: &Sections,
    tallies: &Tallies,
    alone: &Alone,
    class: &[u32],
    Waits { regions: waited, .. }: &Waits,
    (replayer, arrivals): (&dyn Replayer, &Arrivals),
) -> Vec<RegionSite> {
    let mut vain: BTreeMap<u32, u64> = BTreeMap::new();
    for (region, waited) in waited.iter().enumerate().filter(|(_, it)| it.unnecessary > 0) {
        *vain.entry(class[region]).or_default() += waited.unnecessary;
    }
    let mut worst: Vec<(u64, u32)> =
        vain.into_iter().map(|(class, ticks)| (ticks, class)).collect();
    worst.sort_unstable_by(|a, b| b.cmp(a));
    let mut gains: BTreeMap<u32, Gain> = BTreeMap::new();
    for (_, site) in worst.into_iter().take(SITES) {
        let of_site = tallies.iter().filter(|(regions, tally)| {
            let (a, b) = classes(class, **regions);
            (a == site || b == site) && tally.kinds.ulcps() > 0
        });
        let pairs: BTreeSet<Classes> =
            of_site.map(|(regions, _)| classes(class, *regions)).collect();
        // A site whose one group is alone is as that group.
        let known = (pairs.len() == 1).then(|| {
            let same = alone.iter().find(|(regions, _)| pairs.contains(&classes(class, **regions)));
            same.and_then(|(_, gain)| gain.as_ref().ok()?.1)
        });
        let gain = known.flatten().or_else(|| {
            let relaxed = Relaxed::new(sections, class, Only::Class(site), |_| true);
            arrivals.gain(replayer, &relaxed, few_trials()).ok()
        });
        gains.extend(gain.map(|gain| (site, gain)));
    }
    let site = |(region, waited): (usize, &Waited)| RegionSite {
        region: sections.regions()[region],
        sections: waited.sections,
        waited: waited.waited,
        waited_ns: replayer.nanoseconds(waited.ticks),
        unnecessary_ns: replayer.nanoseconds(waited.unnecessary),
        gain: gains.get(&class[region]).copied(),
    };
    waited.iter().enumerate().filter(|(_, it)| it.sections > 0).map(site).collect()
}

/// Replays by arrival with single groups fixed.
fn by_arrival(
    sections: &Sections,
    tallies: &Tallies,
    class: &[u32],
    replayer: &dyn Replayer,
    arrivals: &Arrivals,
    options: &Options,
) -> Alone {
    let mut saved = BTreeMap::new();
    for (pair, locks) in candidates(tallies, class, options.alone) {
        let concerned = |lock| locks.binary_search(&(lock as u32)).is_ok();
        let only = Only::Pairs([pair].into());
        let relaxed = Relaxed::new(sections, class, only, concerned);
        let gain = arrivals.gain(replayer, &relaxed, few_trials());
        saved.insert(pair, gain.map(|gain| (gain.likely_ns, Some(gain))));
    }
    let of = |regions: &(RegionId, RegionId)| {
        saved.get(&classes(class, *regions)).map(|gain| (*regions, gain.clone()))
    };
    tallies.keys().filter_map(of).collect()
}

/// Replays in the recorded order with single groups fixed.
fn alone(
    sections: &Sections,
    tallies: &Tallies,
    class: &[u32],
    replayer: &mut dyn Replayer,
    original: u64,
    options: &Options,
) -> Alone {
    let mut saved = BTreeMap::new();
    for (pair, locks) in candidates(tallies, class, options.alone) {
        let plan = exempting(
            sections,
            class,
            |a, b| (a.min(b), a.max(b)) == pair,
            |lock| locks.binary_search(&(lock as u32)).is_ok(),
            options.edge_limit,
        );
        if let Some(plan) = plan {
            let run = replayer.replay(Some(&plan), Cores::Recorded, &mut |_, _, _, _| {});
            let gain = run.map(|ticks| nanoseconds(replayer, original as i64 - ticks as i64));
            saved.insert(pair, gain.map(|gain| (gain, None)));
        }
    }
    let of = |regions: &(RegionId, RegionId)| {
        saved.get(&classes(class, *regions)).map(|gain| (*regions, gain.clone()))
    };
    tallies.keys().filter_map(of).collect()
}

fn count(sections: &Sections, topology: &Topology) -> Analysed {
    let irregular = sections.locks().iter().filter(|lock| lock.kind != LockKind::Regular);
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

fn nanoseconds(replayer: &dyn Replayer, ticks: i64) -> i64 {
    replayer.nanoseconds(ticks.unsigned_abs()) as i64 * ticks.signum()
}
