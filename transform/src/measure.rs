//! Measuring: replays of the original, of the trace without ULCPs, and of single groups.
//!
//! Tallies are by pair of code regions, as addresses; what belongs together in the source is for
//! [`crate::rank`] to say.

use crate::fusion::Fusion;
use crate::gain::{self, Timeline};
use crate::topology::exempting;
use crate::ulcp::{UlcpKind, Verdict, pairs};
use crate::{
    Analysed, Cores, Error, LockKind, PairCounts, Plan, Region, RegionId, Replayer, Sections,
    Topology,
};
use serde::{Deserialize, Serialize};
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
    /// What the run gains if only the pairs with the same two places of acquisition (in any
    /// order, with any releases) lose their order, in nanoseconds. `None` if not replayed.
    pub alone_ns: Option<i64>,
    /// Why that replay did not end, if it did not.
    pub alone_error: Option<String>,
}

/// What the replays measured.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Measurement {
    /// What was analysed.
    pub analysed: Analysed,
    /// Duration of the original in virtual time, nanoseconds.
    pub original_ns: u64,
    /// Duration without ULCPs. `None` if that replay did not end; then nothing is known of gains.
    pub ulcp_free_ns: Option<u64>,
    /// Why it did not.
    pub ulcp_free_error: Option<String>,
    /// Ascending by regions.
    pub pairs: Vec<RegionPair>,
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
type Alone = BTreeMap<(RegionId, RegionId), Result<i64, String>>;

/// Replays the run with and without ULCPs, and without single groups of them. Only a replay of
/// the original that does not end is an error.
pub fn measure(
    sections: &Sections,
    replayer: &mut dyn Replayer,
    options: &Options,
) -> Result<Measurement, Error> {
    let topology = Topology::new(sections);
    let plan = topology.plan(sections);
    let original = Timeline::new(sections, replayer, None)?;
    let original_ticks = duration(replayer, None)?;
    let free = Timeline::new(sections, replayer, Some(&plan))
        .and_then(|free| Ok((free, duration(replayer, Some(&plan))?)));
    let timeline = free.as_ref().map_or(&original, |(timeline, _)| timeline);
    let tallies = tally(sections, &original, timeline);
    let alone = alone(sections, &tallies, replayer, original_ticks, options);
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
            alone_ns: alone.and_then(|alone| alone.as_ref().ok()).copied(),
            alone_error: alone.and_then(|alone| alone.as_ref().err()).cloned(),
        });
    }
    pairs.sort_unstable_by_key(|pair| (pair.first, pair.second));
    Ok(Measurement {
        analysed,
        original_ns: replayer.nanoseconds(original_ticks),
        ulcp_free_ns: free.as_ref().ok().map(|(_, ticks)| replayer.nanoseconds(*ticks)),
        ulcp_free_error: free.err().map(|error| error.to_string()),
        pairs,
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
            Verdict::AfterWait => tally.kinds.after_wait += 1,
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

/// Replays with single groups fixed, those with the greatest gains by Eq. 1.
fn alone(
    sections: &Sections,
    tallies: &Tallies,
    replayer: &mut dyn Replayer,
    original: u64,
    options: &Options,
) -> Alone {
    // Without symbols, a class is a place of acquisition.
    let class = Fusion::new(sections.regions(), &mut ()).class;
    let classes = |(a, b): (RegionId, RegionId)| {
        let (a, b) = (class[a.index()], class[b.index()]);
        (a.min(b), a.max(b))
    };
    let mut groups: BTreeMap<(u32, u32), (i64, Vec<u32>)> = BTreeMap::new();
    for (regions, tally) in tallies.iter().filter(|(_, tally)| tally.kinds.ulcps() > 0) {
        let (gain, locks) = groups.entry(classes(*regions)).or_default();
        *gain += tally.gain;
        locks.extend(&tally.locks);
    }
    let mut order: Vec<_> = groups.iter().map(|(pair, (gain, _))| (-gain, *pair)).collect();
    order.sort_unstable();
    let mut saved = BTreeMap::new();
    for (_, pair) in order.into_iter().take(options.alone) {
        let mut locks = groups[&pair].1.clone();
        locks.sort_unstable();
        let plan = exempting(
            sections,
            &class,
            |a, b| (a.min(b), a.max(b)) == pair,
            |lock| locks.binary_search(&(lock as u32)).is_ok(),
            options.edge_limit,
        );
        if let Some(plan) = plan {
            let run = replayer.replay(Some(&plan), Cores::Recorded, &mut |_, _, _, _| {});
            let gain = run.map(|ticks| nanoseconds(replayer, original as i64 - ticks as i64));
            saved.insert(pair, gain);
        }
    }
    let of = |regions: &(RegionId, RegionId)| {
        saved.get(&classes(*regions)).map(|gain| (*regions, gain.clone()))
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
