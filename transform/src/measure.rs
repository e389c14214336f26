//! Measuring: replays of the original, of the trace without ULCPs, and of single groups.
//!
//! Tallies are by pair of code regions, as addresses; what belongs together in the source is for
//! [`crate::rank`] to say.

use crate::fusion::Fusion;
use crate::gain::{self, Timeline};
use crate::topology::exempting;
use crate::ulcp::{UlcpKind, Verdict, pairs};
use crate::{
    Analysed, Cores, Error, Gain, LockKind, NOMINAL, PairCounts, Plan, RECORDED, Region, RegionId,
    Relaxed, Replayer, Sections, TRIALS, Topology,
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
    /// The same with its range, if the run was replayed by arrival.
    pub alone: Option<Gain>,
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
    let plan = topology.plan(sections);
    let original = Timeline::new(sections, replayer, None)?;
    let original_ticks = duration(replayer, None)?;
    let free = Timeline::new(sections, replayer, Some(&plan))
        .and_then(|free| Ok((free, duration(replayer, Some(&plan))?)));
    let timeline = free.as_ref().map_or(&original, |(timeline, _)| timeline);
    let tallies = tally(sections, &original, timeline);
    let class = Fusion::new(sections.regions(), &mut ()).class;
    let arrivals = Arrivals::new(replayer);
    let alone = match &arrivals {
        Ok(arrivals) => by_arrival(sections, &tallies, &class, replayer, arrivals, options),
        Err(_) => alone(sections, &tallies, &class, replayer, original_ticks, options),
    };
    let all = Relaxed::new(sections, &class, None, |_| true);
    let gain = arrivals.as_ref().ok().map(|arrivals| arrivals.gain(replayer, &all, 0..TRIALS));
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

/// The original by arrival.
struct Arrivals {
    /// A duration for each trial, in ticks and in nanoseconds.
    trials: Vec<(u64, u64)>,
    /// How long the recording took, in ticks, if that is known.
    recorded: Option<u64>,
}

impl Arrivals {
    fn new(replayer: &mut dyn Replayer) -> Result<Arrivals, String> {
        let trial = |trial| {
            let ticks = replayer.arrive(None, trial)?;
            Ok((ticks, replayer.nanoseconds(ticks)))
        };
        let trials = (0..TRIALS).map(trial).collect::<Result<Vec<_>, String>>()?;
        Ok(Arrivals { trials, recorded: replayer.recorded() })
    }

    fn likely_ns(&self) -> u64 {
        let mut nominal: Vec<u64> =
            self.trials.iter().take(NOMINAL as usize).map(|&(_, ns)| ns).collect();
        nominal.sort_unstable();
        nominal[nominal.len() / 2]
    }

    /// The model's time of the run as recorded, if it can be held against the recording.
    fn check_ns(&self) -> Option<u64> {
        self.recorded.map(|_| self.trials[RECORDED as usize].1)
    }

    /// What the run gains if some locks are relaxed: each of these trials against the original's of
    /// the same noise and latencies, in proportion to the original's likeliest duration.
    fn gain(
        &self,
        replayer: &mut dyn Replayer,
        relaxed: &Relaxed<'_>,
        trials: impl Iterator<Item = u32>,
    ) -> Result<Gain, String> {
        let likely_ns = i128::from(self.likely_ns());
        let (mut all, mut nominal, mut recorded) = (Vec::new(), Vec::new(), None);
        for trial in trials {
            let original = i128::from(self.trials[trial as usize].0);
            let gain = original - i128::from(replayer.arrive(Some(relaxed), trial)?);
            let gain = (gain * likely_ns / original.max(1)) as i64;
            all.push(gain);
            nominal.extend((trial < NOMINAL).then_some(gain));
            recorded = recorded.or((trial == RECORDED).then_some(gain));
        }
        nominal.sort_unstable();
        let likely = nominal[nominal.len() / 2];
        // Some of the recorder's work is left in what counts as the program's. What all of it does to
        // the gain, it is taken to do once more the other way.
        all.extend(recorded.map(|recorded| 2 * likely - recorded));
        let some = "there are trials";
        let (least, most) =
            (all.iter().copied().min().expect(some), all.iter().copied().max().expect(some));
        Ok(self.with_unknown(Gain { least_ns: least, likely_ns: likely, most_ns: most }))
    }

    /// Work is as long as it was recorded, so what the model's time of the recorded run differs by is
    /// waiting that it has too much of or too little, and nobody knows for which lock: all of it
    /// may be part of the gain, or nothing.
    fn with_unknown(&self, gain: Gain) -> Gain {
        let Some(recorded) = self.recorded.filter(|_| gain != Gain::default()) else { return gain };
        let model = i128::from(self.trials[RECORDED as usize].0.max(1));
        let recorded = i128::from(recorded.max(1));
        let original = i128::from(self.likely_ns());
        let without = |gain: i64| (i128::from(gain) * model / recorded) as i64;
        let missing = (original * (recorded - model) / recorded) as i64;
        let ends = [gain.least_ns, gain.most_ns];
        let all =
            ends.into_iter().chain(ends.map(without)).chain(ends.map(|e| without(e) + missing));
        let (least, most) = all.fold((i64::MAX, i64::MIN), |(l, m), e| (l.min(e), m.max(e)));
        Gain { least_ns: least, most_ns: most, ..gain }
    }
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

/// Replays by arrival with single groups fixed.
fn by_arrival(
    sections: &Sections,
    tallies: &Tallies,
    class: &[u32],
    replayer: &mut dyn Replayer,
    arrivals: &Arrivals,
    options: &Options,
) -> Alone {
    let mut saved = BTreeMap::new();
    for (pair, locks) in candidates(tallies, class, options.alone) {
        let concerned = |lock| locks.binary_search(&(lock as u32)).is_ok();
        let relaxed = Relaxed::new(sections, class, Some(pair), concerned);
        // One for the noise is enough here, and all latencies.
        let trials = std::iter::once(0).chain(NOMINAL..TRIALS);
        let gain = arrivals.gain(replayer, &relaxed, trials);
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
