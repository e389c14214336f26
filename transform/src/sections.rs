//! The critical sections of a run: all threads together, in the order of their locks.

use crate::Error;
use crate::collector::{Collector, Raw};
use crate::effects::{EffectTable, EffectsId, Varied, consistent};
use crate::guards::{self, Nesting};
use crate::intervals::{Interval, normalise};
use crate::sets::{SetId, SetTable};
use crate::shadow::Shared;
use refrain_trace::ThreadId;
use refrain_trace::fixed::FixedMap;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// A critical section's position in the order: by lock, then by acquisition.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct SectionId(pub u32);

impl SectionId {
    /// The id as an index into a dense table.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// A [`Region`]'s position in its table.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct RegionId(pub u32);

impl RegionId {
    /// The id as an index into a dense table.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// The code of critical sections: where the lock was acquired and where it was released.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct Region {
    /// Return address of the call that acquired.
    pub acquire: u64,
    /// Return address of the call that released.
    pub release: u64,
}

/// One critical section, in 36 bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Section {
    /// Whose it is.
    pub thread: ThreadId,
    /// The event that acquired the lock.
    pub acquire: u32,
    /// The event that released it.
    pub release: u32,
    /// The lock, by its index in [`Sections::locks`].
    pub lock: u32,
    /// The code.
    pub region: RegionId,
    /// Shared bytes that it read, but for those that a lock inside of it is enough for.
    pub reads: SetId,
    /// Shared bytes that it wrote, but for the same.
    pub writes: SetId,
    /// What is known of what it does to them.
    pub effects: EffectsId,
    /// It held a read lock.
    pub shared: bool,
    /// It began when a wait on a condition variable ended (PerfPlay, Appendix, Case 1).
    pub after_wait: bool,
    /// It ended when a wait on a condition variable began.
    pub before_wait: bool,
}

impl Section {
    /// No shared access at all.
    pub fn is_null(&self) -> bool {
        self.reads.is_empty() && self.writes.is_empty()
    }

    /// A thread looked before or behind a wait on a condition variable, and changed nothing.
    pub(crate) fn only_waits(&self) -> bool {
        (self.before_wait || self.after_wait) && self.writes.is_empty()
    }

    /// The same without its accesses of atomic variables.
    pub(crate) fn plain(&self, sets: &SetTable) -> Section {
        Section { reads: sets.plain(self.reads), writes: sets.plain(self.writes), ..*self }
    }
}

/// What can be done with a lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LockKind {
    /// Its critical sections exclude each other, but for readers.
    Regular,
    /// They do not, or the trace does not tell: it keeps its order as it is.
    Irregular(Irregularity),
}

/// Why nothing can be said of a lock.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Irregularity {
    /// Readers write what others of its sections use: a data race of the program's.
    ReadersWrite,
    /// Others had it after a thread that never released it.
    NeverReleased,
    /// It was released by a thread that did not hold it while another did.
    ReleasedByAnother,
}

/// A lock.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Lock {
    /// Guest address.
    pub address: u64,
    /// Its critical sections, in the order of their acquisition.
    pub sections: Range<usize>,
    /// What can be done with it.
    pub kind: LockKind,
    /// Of an irregular one, a section that shows it.
    pub example: Option<SectionId>,
}

/// All critical sections of a run.
#[derive(Clone, Debug)]
pub struct Sections {
    pub(crate) sections: Vec<Section>,
    pub(crate) locks: Vec<Lock>,
    pub(crate) regions: Vec<Region>,
    pub(crate) sets: SetTable,
    pub(crate) effects: EffectTable,
    pub(crate) threads: usize,
    pub(crate) events: u64,
    pub(crate) acquisitions: u64,
    pub(crate) contended: u64,
    /// Which sections waited for which, both by number: (later, earlier), the later ones
    /// ascending, the earlier ones of each descending.
    waits: Vec<(u32, u32)>,
    /// By section.
    times: Vec<Times>,
}

/// When a section's thread came to the lock, when it had it, and when it came to release it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Times {
    pub(crate) begin: u64,
    pub(crate) had: u64,
    pub(crate) end: u64,
}

impl Sections {
    /// Puts the threads together, whatever the order in which they are given. `constant` is
    /// memory that holds no data of the program's: constants, tables of the dynamic linker;
    /// `atomic`, where atomic variables are.
    pub fn merge(
        mut collectors: Vec<Collector>,
        constant: &[Interval],
        atomic: &[Interval],
    ) -> Result<Sections, Error> {
        collectors.sort_by_key(|collector| collector.thread);
        if let Some(pair) = collectors.windows(2).find(|pair| pair[0].thread == pair[1].thread) {
            return Err(Error::ObservedTwice(pair[0].thread));
        }
        for collector in &mut collectors {
            collector.finish();
        }
        let shared = Shared::of(&collectors, constant);
        let mut sets = SetTable::default();
        let mut effects = EffectTable::default();
        let mut varied = Varied::default();
        collectors.iter().for_each(|collector| varied.merge(&collector.varied));
        let mut raws: Vec<(ThreadId, Raw)> = Vec::new();
        let mut inner = BTreeMap::new();
        for collector in &mut collectors {
            let map = clip_sets(&collector.sets, &shared, &mut sets);
            let effects_map = effects.adopt(&collector.effects, &shared, &varied);
            let mut of_thread = std::mem::take(&mut collector.inner);
            for it in &mut of_thread {
                it.outside = map[it.outside.index()];
            }
            inner.insert(collector.thread, of_thread);
            for mut raw in std::mem::take(&mut collector.sections) {
                raw.reads = map[raw.reads.index()];
                raw.writes = map[raw.writes.index()];
                raw.effects = effects_map[raw.effects.index()];
                raws.push((collector.thread, raw));
            }
        }
        if raws.len() >= u32::MAX as usize {
            return Err(Error::TooMany("critical sections"));
        }
        raws.sort_unstable_by_key(|(thread, raw)| (raw.lock, raw.ticket, *thread, raw.acquire));
        let strays = collectors.iter().flat_map(|c| c.strays.iter().copied()).collect();
        let mut all = Sections {
            sections: Vec::with_capacity(raws.len()),
            locks: Vec::new(),
            regions: Vec::new(),
            sets,
            effects,
            threads: collectors.len(),
            events: collectors.iter().map(|c| c.events).sum(),
            acquisitions: collectors.iter().map(|c| c.acquisitions).sum(),
            contended: 0,
            waits: Vec::new(),
            times: raws
                .iter()
                .map(|(_, Raw { begin, had, end, .. })| Times {
                    begin: *begin,
                    had: *had,
                    end: *end,
                })
                .collect(),
        };
        all.fill(&raws, &strays);
        let orders = collectors.iter().flat_map(|c| c.orders.iter().copied()).collect();
        guards::take_out(&mut all, &Nesting { raws: &raws, inner: &inner, orders: &orders });
        let mut atomic = atomic.to_vec();
        normalise(&mut atomic);
        all.sets.set_atomic(&atomic);
        let tied: Vec<usize> = all.locks.iter().flat_map(|lock| consistent(&all, lock)).collect();
        for at in tied {
            all.sections[at].effects = EffectsId::default();
        }
        Ok(all)
    }

    /// The critical sections, in the order of their ids.
    pub fn all(&self) -> &[Section] {
        &self.sections
    }

    /// The locks, by address.
    pub fn locks(&self) -> &[Lock] {
        &self.locks
    }

    /// The code regions.
    pub fn regions(&self) -> &[Region] {
        &self.regions
    }

    /// The read and write sets.
    pub fn sets(&self) -> &SetTable {
        &self.sets
    }

    /// The sections, by number, that a section waited for; the latest first.
    pub(crate) fn waits(&self, section: usize) -> &[(u32, u32)] {
        let of = |at: usize| self.waits.partition_point(|(later, _)| (*later as usize) < at);
        &self.waits[of(section)..of(section + 1)]
    }

    /// The times of a section.
    pub(crate) fn times(&self, section: usize) -> Times {
        self.times[section]
    }

    pub(crate) fn of(&self, lock: &Lock) -> &[Section] {
        &self.sections[lock.sections.clone()]
    }

    fn fill(&mut self, raws: &[(ThreadId, Raw)], strays: &BTreeSet<(u64, u64)>) {
        let mut regions: FixedMap<Region, RegionId> = FixedMap::default();
        for of_lock in raws.chunk_by(|a, b| a.1.lock == b.1.lock) {
            let start = self.sections.len();
            for &(thread, raw) in of_lock {
                let region = Region { acquire: raw.acquire_pc, release: raw.release_pc };
                let region = *regions.entry(region).or_insert_with(|| {
                    self.regions.push(region);
                    RegionId(self.regions.len() as u32 - 1)
                });
                self.sections.push(Section {
                    thread,
                    acquire: raw.acquire,
                    release: raw.release,
                    lock: self.locks.len() as u32,
                    region,
                    reads: raw.reads,
                    writes: raw.writes,
                    effects: raw.effects,
                    shared: raw.shared,
                    after_wait: raw.after_wait,
                    before_wait: raw.before_wait,
                });
            }
            self.note_waits(start, of_lock);
            let odd = irregular(of_lock, strays);
            self.locks.push(Lock {
                address: of_lock[0].1.lock,
                sections: start..self.sections.len(),
                kind: odd.map_or(LockKind::Regular, |(why, _)| LockKind::Irregular(why)),
                example: odd.map(|(_, index)| SectionId((start + index) as u32)),
            });
        }
    }

    /// Notes whom the sections of a lock waited for: a section that excludes it, of a thread that
    /// still had the lock when it came. A thread has a lock once at a time, so of each thread the
    /// latest sections are looked at.
    fn note_waits(&mut self, start: usize, of_lock: &[(ThreadId, Raw)]) {
        let mut of_thread: Vec<(ThreadId, Vec<usize>)> = Vec::new();
        // When the last of the sections so far ended.
        let mut last_end = 0;
        for (index, (thread, raw)) in of_lock.iter().enumerate() {
            let from = self.waits.len();
            if raw.begin < last_end && !raw.after_wait {
                for (_, earlier) in of_thread.iter().filter(|(other, _)| other != thread) {
                    let on = |at: &&usize| of_lock[**at].1.end > raw.begin;
                    let waited = earlier
                        .iter()
                        .rev()
                        .take_while(on)
                        .filter(|at| !(raw.shared && of_lock[**at].1.shared));
                    let later = (start + index) as u32;
                    self.waits.extend(waited.map(|at| (later, (start + at) as u32)));
                }
                self.waits[from..].sort_unstable_by(|a, b| b.cmp(a));
                self.contended += u64::from(self.waits.len() > from);
            }
            last_end = last_end.max(raw.end);
            match of_thread.iter_mut().find(|(known, _)| known == thread) {
                Some((_, earlier)) => earlier.push(index),
                None => of_thread.push((*thread, vec![index])),
            }
        }
    }
}

/// Why nothing can be said of a lock, if that is so, and which of its sections shows it.
fn irregular(
    of_lock: &[(ThreadId, Raw)],
    strays: &BTreeSet<(u64, u64)>,
) -> Option<(Irregularity, usize)> {
    let find = |why, is: &dyn Fn(usize, &Raw) -> bool| {
        let shows = of_lock.iter().enumerate().position(|(index, (_, raw))| is(index, raw));
        shows.map(|index| (why, index))
    };
    let last = of_lock.len() - 1;
    let address = of_lock[0].1.lock;
    // Nobody's release while nobody has it changes nothing. (glibc's `pthread_spin_init` is
    // `pthread_spin_unlock`.)
    let stray = |raw: &Raw| {
        let mut here = strays.range((address, 0)..=(address, u64::MAX));
        here.any(|&(_, ticket)| raw.ticket < ticket && ticket < raw.until)
    };
    find(Irregularity::ReadersWrite, &|_, raw| raw.shared && !raw.writes.is_empty())
        .or_else(|| find(Irregularity::NeverReleased, &|at, raw| raw.unfinished && at < last))
        .or_else(|| find(Irregularity::ReleasedByAnother, &|_, raw| stray(raw)))
}

/// The shared part of each set of a thread, in the common table.
fn clip_sets(of_thread: &SetTable, shared: &Shared, sets: &mut SetTable) -> Vec<SetId> {
    let mut clipped = Vec::new();
    let ids = (0..of_thread.len() as u32).map(SetId);
    ids.map(|id| {
        clipped.clear();
        for &interval in of_thread.get(id) {
            shared.clip(interval, &mut clipped);
        }
        sets.intern(&clipped)
    })
    .collect()
}
