//! The critical sections of a run: all threads together, in the order of their locks.

use crate::Error;
use crate::collector::{Collector, Raw};
use crate::intervals::Interval;
use crate::sets::{SetId, SetTable};
use crate::shadow::Shared;
use refrain_trace::ThreadId;
use refrain_trace::fixed::FixedMap;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
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

/// One critical section, in 32 bytes.
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
    /// Shared bytes that it read.
    pub reads: SetId,
    /// Shared bytes that it wrote.
    pub writes: SetId,
    /// It held a read lock.
    pub shared: bool,
    /// It began when a wait on a condition variable ended (PerfPlay, Appendix, Case 1).
    pub after_wait: bool,
}

impl Section {
    /// No shared access at all.
    pub fn is_null(&self) -> bool {
        self.reads.is_empty() && self.writes.is_empty()
    }
}

/// What can be done with a lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LockKind {
    /// Its critical sections exclude each other, but for readers.
    Regular,
    /// It was released by a thread that did not hold it while another did, others had it after a
    /// thread that never released it, or readers write what others of its sections use. It keeps
    /// its order as it is.
    Irregular,
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
}

/// All critical sections of a run.
#[derive(Clone, Debug)]
pub struct Sections {
    pub(crate) sections: Vec<Section>,
    pub(crate) locks: Vec<Lock>,
    pub(crate) regions: Vec<Region>,
    pub(crate) sets: SetTable,
    pub(crate) threads: usize,
    pub(crate) events: u64,
    pub(crate) acquisitions: u64,
    pub(crate) contended: u64,
}

impl Sections {
    /// Puts the threads together, whatever the order in which they are given. `constant` is
    /// memory that holds no data of the program's: constants, tables of the dynamic linker.
    pub fn merge(mut collectors: Vec<Collector>, constant: &[Interval]) -> Result<Sections, Error> {
        collectors.sort_by_key(|collector| collector.thread);
        if let Some(pair) = collectors.windows(2).find(|pair| pair[0].thread == pair[1].thread) {
            return Err(Error::ObservedTwice(pair[0].thread));
        }
        for collector in &mut collectors {
            collector.finish();
        }
        let shared = Shared::of(&collectors, constant);
        let mut sets = SetTable::default();
        let mut raws: Vec<(ThreadId, Raw)> = Vec::new();
        for collector in &mut collectors {
            let map = clip_sets(&collector.sets, &shared, &mut sets);
            for mut raw in std::mem::take(&mut collector.sections) {
                raw.reads = map[raw.reads.index()];
                raw.writes = map[raw.writes.index()];
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
            threads: collectors.len(),
            events: collectors.iter().map(|c| c.events).sum(),
            acquisitions: collectors.iter().map(|c| c.acquisitions).sum(),
            contended: 0,
        };
        all.fill(&raws, &strays);
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

    pub(crate) fn of(&self, lock: &Lock) -> &[Section] {
        &self.sections[lock.sections.clone()]
    }

    fn fill(&mut self, raws: &[(ThreadId, Raw)], strays: &BTreeSet<(u64, u64)>) {
        let mut regions: FixedMap<Region, RegionId> = FixedMap::default();
        for of_lock in raws.chunk_by(|a, b| a.1.lock == b.1.lock) {
            let start = self.sections.len();
            let last = of_lock.len() - 1;
            let mut lost = false;
            for (index, &(thread, raw)) in of_lock.iter().enumerate() {
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
                    shared: raw.shared,
                    after_wait: raw.after_wait,
                });
                lost |= raw.unfinished && index < last;
                self.contended += u64::from(index > 0 && waited(&of_lock[index - 1], thread, &raw));
            }
            let written = of_lock.iter().any(|(_, raw)| raw.shared && !raw.writes.is_empty());
            let address = of_lock[0].1.lock;
            // Nobody's release while nobody has it changes nothing. (glibc's `pthread_spin_init` is
            // `pthread_spin_unlock`.)
            let broken = strays.range((address, 0)..=(address, u64::MAX)).any(|&(_, ticket)| {
                of_lock.iter().any(|(_, raw)| raw.ticket < ticket && ticket < raw.until)
            });
            let odd = written || lost || broken;
            let kind = if odd { LockKind::Irregular } else { LockKind::Regular };
            self.locks.push(Lock { address, sections: start..self.sections.len(), kind });
        }
    }
}

/// Whether an acquisition came while the section before it was still on.
fn waited(before: &(ThreadId, Raw), thread: ThreadId, raw: &Raw) -> bool {
    before.0 != thread && !(before.1.shared && raw.shared) && raw.begin < before.1.end
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
