//! Locks without their unnecessary contention: who still excludes whom.
//!
//! The topology ([`crate::Topology`]) puts the order of true contentions back as it was recorded.
//! For the question of what a fix gains, that order is an accident of one run; what stays is that
//! the two *exclude* each other. So for predictions a section excludes the sections that it
//! conflicts with and no others, and the rest is left to the arrival model.
//!
//! Benign pairs ([`crate::effects`]) do not exclude each other, but where an atomic instruction would
//! take the lock's place, what the lock costs stays.
//!
//! # Deviations from PerfPlay
//! 1. Rule 2's order of true contentions is not kept, their exclusion is.
//! 2. The empty second half of a wait on a condition variable excludes everything, as before, and
//!    sections that only look before and behind such waits exclude each other: no fix can leave them
//!    out.

use crate::effects::Benign;
use crate::ulcp::{benign, conflict};
use crate::{EffectsId, LockKind, Section, Sections, SetId};
use refrain_trace::ThreadId;
use refrain_trace::fixed::FixedMap;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};

/// Verdicts that are remembered, each until another one takes its place.
const REMEMBERED: usize = 1 << 16;
/// Of a lock with more kinds of sections than this, a few tell what conflicts there are.
const KINDS: usize = 1 << 10;
/// So many of each code, and so many of the whole lock.
const SAMPLE: [usize; 2] = [1 << 6, 1 << 8];
/// A section pays for no lock if it conflicts with one in so many of its lock's sections at most: whoever fixes that
/// does not have each of them pay for the rare one.
const SELDOM: u64 = 1000;

/// What makes two sections behave alike: lock, class of the code, sets, mode, waits around it.
type Kind = (u32, u32, SetId, SetId, EffectsId, [bool; 3]);

/// Which sections lose their exclusion where they do not conflict, by the classes of their code.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Only {
    /// All.
    All,
    /// Those of these pairs, the lower class first.
    Pairs(BTreeSet<(u32, u32)>),
    /// Those of this class, from all others.
    Class(u32),
}

impl Only {
    fn frees(&self, a: u32, b: u32) -> bool {
        match self {
            Only::All => true,
            Only::Pairs(pairs) => pairs.contains(&(a.min(b), a.max(b))),
            Only::Class(class) => a == *class || b == *class,
        }
    }
}

/// What is relaxed, and how far.
#[derive(Debug)]
pub struct Relaxed<'a> {
    sections: &'a Sections,
    /// Ascending.
    locks: Vec<u64>,
    /// Acquisitions of relaxed locks: thread, event, kind.
    begins: Vec<(ThreadId, u32, u32)>,
    /// A section of each kind, and the class of its code.
    kinds: Vec<(usize, u32)>,
    free: Vec<bool>,
    lockless: Vec<bool>,
    only: Only,
    verdicts: Verdicts,
}

/// Verdicts on pairs of kinds, for replays that are under way at once.
#[derive(Debug)]
struct Verdicts(Box<[AtomicU64]>);

impl Verdicts {
    fn new() -> Verdicts {
        Verdicts((0..REMEMBERED).map(|_| AtomicU64::new(u64::MAX)).collect())
    }

    /// The verdict on a pair, the lower kind first.
    fn get(&self, (low, high): (u32, u32), find: impl FnOnce() -> bool) -> bool {
        if high > u32::MAX >> 1 {
            return find();
        }
        let pair = u64::from(low) << 32 | u64::from(high) << 1;
        let place = pair.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (u64::BITS - REMEMBERED.ilog2());
        let known = &self.0[place as usize];
        let word = known.load(Ordering::Relaxed);
        if word & !1 == pair {
            return word & 1 != 0;
        }
        let verdict = find();
        known.store(pair | u64::from(verdict), Ordering::Relaxed);
        verdict
    }
}

/// So many at most, evenly spread.
fn sample<T>(all: &[T], most: usize) -> impl Iterator<Item = &T> {
    all.iter().step_by(all.len().div_ceil(most).max(1))
}

/// Whether sections that these threads have may meet sections of others that those threads have.
fn of_others(these: &BTreeSet<ThreadId>, those: &BTreeSet<ThreadId>) -> bool {
    these.len() > 1 || those.len() > 1 || these != those
}

impl<'a> Relaxed<'a> {
    /// Relaxes all regular locks that several threads have and for which `concerned` holds. `class` gives each code region its
    /// class.
    pub(crate) fn new(
        sections: &'a Sections,
        class: &[u32],
        only: Only,
        concerned: impl Fn(usize) -> bool,
    ) -> Relaxed<'a> {
        let mut relaxed = Relaxed {
            sections,
            locks: Vec::new(),
            begins: Vec::new(),
            kinds: Vec::new(),
            free: Vec::new(),
            lockless: Vec::new(),
            only,
            verdicts: Verdicts::new(),
        };
        let mut known: FixedMap<Kind, u32> = FixedMap::default();
        for (index, lock) in sections.locks().iter().enumerate() {
            if lock.kind != LockKind::Regular || !concerned(index) {
                continue;
            }
            // What one thread alone has costs, but nobody contends for it.
            let of_lock = &sections.all()[lock.sections.clone()];
            if of_lock.iter().all(|section| section.thread == of_lock[0].thread) {
                continue;
            }
            relaxed.locks.push(lock.address);
            let (first, begins) = (relaxed.kinds.len(), relaxed.begins.len());
            let mut threads: Vec<BTreeSet<ThreadId>> = Vec::new();
            let mut counts: Vec<u64> = Vec::new();
            for at in lock.sections.clone() {
                let section = &sections.all()[at];
                let code = class[section.region.index()];
                let Section { lock, reads, writes, effects, .. } = *section;
                let flags = [section.shared, section.after_wait, section.before_wait];
                let kind = *known
                    .entry((lock, code, reads, writes, effects, flags))
                    .or_insert_with(|| {
                        relaxed.kinds.push((at, code));
                        threads.push(BTreeSet::new());
                        counts.push(0);
                        relaxed.kinds.len() as u32 - 1
                    });
                threads[kind as usize - first].insert(section.thread);
                counts[kind as usize - first] += 1;
                relaxed.begins.push((section.thread, section.acquire, kind));
            }
            relaxed.find_free([first, begins], &threads, &counts);
        }
        relaxed.locks.sort_unstable();
        relaxed
    }

    /// Which of a lock's kinds conflict with no section of another thread, and which with hardly any. The lock's are
    /// the kinds from `first` on, and the sections from `begins` on.
    fn find_free(
        &mut self,
        [first, begins]: [usize; 2],
        threads: &[BTreeSet<ThreadId>],
        counts: &[u64],
    ) {
        let kinds = first..self.kinds.len();
        if kinds.len() > KINDS {
            self.free.extend(kinds.clone().map(|_| false));
            let seldom = self.seldom(begins);
            let lockless: Vec<bool> =
                kinds.map(|kind| seldom.contains(&self.kinds[kind].1)).collect();
            self.lockless.extend(lockless);
            return;
        }
        let all: u64 = counts.iter().sum();
        for kind in kinds.clone() {
            let needing = kinds.clone().filter(|&other| {
                of_others(&threads[kind - first], &threads[other - first])
                    && self.needs(kind as u32, other as u32)
            });
            let met: u64 = needing.map(|other| counts[other - first]).sum();
            self.free.push(met == 0);
            self.lockless.push(met.saturating_mul(SELDOM) <= all);
        }
    }

    /// Of a lock's sections, from this one on: the classes of code that hardly conflict with other threads' sections,
    /// as far as a sample shows it.
    fn seldom(&self, begins: usize) -> BTreeSet<u32> {
        let all = &self.begins[begins..];
        let mut of_code: BTreeMap<u32, Vec<usize>> = BTreeMap::new();
        for (at, (_, _, kind)) in all.iter().enumerate() {
            of_code.entry(self.kinds[*kind as usize].1).or_default().push(at);
        }
        let hardly_conflict = |code: &[usize]| {
            let (mut pairs, mut needing) = (0u64, 0u64);
            for &at in sample(code, SAMPLE[0]) {
                let (thread, _, kind) = all[at];
                for &(_, _, other) in sample(all, SAMPLE[1]).filter(|other| other.0 != thread) {
                    pairs += 1;
                    needing += u64::from(self.needs(kind, other));
                }
            }
            needing * SELDOM <= pairs
        };
        of_code.retain(|_, code| hardly_conflict(code));
        of_code.into_keys().collect()
    }

    /// Whether a lock, or an atomic instruction in its place, is needed between two kinds.
    fn needs(&self, a: u32, b: u32) -> bool {
        let section = |kind: u32| &self.sections.all()[self.kinds[kind as usize].0];
        let (first, second) = (section(a), section(b));
        let sections = self.sections;
        self.excludes(a, b)
            || conflict(sections.sets(), first, second)
                && benign(sections, first, second) != Some(Benign::Redundant)
    }

    fn excludes(&self, a: u32, b: u32) -> bool {
        let ((a, of_a), (b, of_b)) = (self.kinds[a as usize], self.kinds[b as usize]);
        let (a, b) = (&self.sections.all()[a], &self.sections.all()[b]);
        let woken = |it: &Section| it.after_wait && it.is_null();
        if woken(a) || woken(b) || (a.only_waits() && b.only_waits()) {
            return true;
        }
        let sections = self.sections;
        !self.only.frees(of_a, of_b)
            || conflict(sections.sets(), a, b) && benign(sections, a, b).is_none()
    }

    /// Whether the lock at `address` is relaxed.
    pub fn relaxes(&self, address: u64) -> bool {
        self.locks.binary_search(&address).is_ok()
    }

    /// The sections of relaxed locks: thread, acquisition, kind.
    pub fn sections(&self) -> &[(ThreadId, u32, u32)] {
        &self.begins
    }

    /// Whether sections of these kinds exclude each other.
    pub fn conflict(&self, a: u32, b: u32) -> bool {
        self.verdicts.get((a.min(b), a.max(b)), || self.excludes(a, b))
    }

    /// Whether sections of this kind exclude nobody.
    pub fn is_free(&self, kind: u32) -> bool {
        self.free[kind as usize]
    }

    /// Whether sections of this kind exclude nobody, or hardly ever somebody, so that they pay for no lock.
    pub fn is_lockless(&self, kind: u32) -> bool {
        self.lockless[kind as usize]
    }
}
