//! The ULCP-free topology: PerfPlay, Rules 1 to 3.
//!
//! Nodes are critical sections, edges say `source.END` before `target.BEGIN`. Rule 1 gives a
//! section an edge to the first section of every other thread that conflicts with it. Together
//! with the threads' own orders, these edges order exactly the conflicting pairs (and what
//! follows from them): of two conflicting sections the earlier one has an edge to the later one
//! or to one before it in the same thread.
//!
//! # The index
//! Searching is quadratic, so edges come from an index instead, per lock and byte: a reader gets
//! an edge from the byte's last writer, a writer from the last writer and from the readers since.
//! Bytes that no section of the lock writes are left out, and bytes that the same sections use
//! are treated as one. A section costs as much as the number of such groups that it touches,
//! which its own accesses bound. Of several edges from one thread the latest implies the others.
//!
//! # Deviations
//! 1. The edges have the same transitive closure as Rule 1's, and there are no more of them: at
//!    most one from a section to each other thread. (A property test checks both against the
//!    paper's search.) What follows from other edges may be missing.
//! 2. A node counts as standalone if it conflicts with no section of another thread. By Rule 1's
//!    letter a section may also lose its edges to an earlier one of its own thread.
//! 3. Rule 2's partial order is that of the edges. Read as a total order of all nodes with edges
//!    it would put disjoint writes back into one row.
//! 4. Readers of a lock do not exclude each other and get no edges between them. If they write
//!    shared data all the same, the lock is irregular and keeps its order.
//! 5. The empty second half of a wait on a condition variable is never removed: it keeps its
//!    place between its neighbours.
//! 6. Benign pairs keep their order, since what would take its place, an atomic instruction, is
//!    not in the trace.
//! 7. Each lock has a topology of its own, as in the paper; nested sections appear in several.

use crate::effects::commuting;
use crate::intervals::{Interval, clip, normalise, without};
use crate::{Lock, LockKind, Plan, Section, SectionId, Sections, SetId};
use refrain_trace::fixed::FixedMap;
use refrain_trace::{self as trace, AuxLock, FreedSection, ThreadId, Transformed};

/// `source.END` before `target.BEGIN`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct CausalEdge {
    /// The section that waits.
    pub target: SectionId,
    /// The section waited for; earlier in the order of their lock.
    pub source: SectionId,
}

/// The causal edges of all regular locks.
#[derive(Clone, Debug)]
pub struct Topology {
    /// Ascending.
    edges: Vec<CausalEdge>,
    /// Sections with outgoing edges, ascending: position `n` has the auxiliary lock `@Ln`.
    sources: Vec<SectionId>,
    freed: Vec<u64>,
    /// Sections that conflict with none, whose locking Rule 3 removes.
    removed: u64,
}

impl Topology {
    /// Builds the ULCP-free topology.
    pub fn new(sections: &Sections) -> Topology {
        Topology::over(sections, |_| Vec::new())
    }

    /// The same without the order of benign pairs, as far as all sections of a lock that use a byte
    /// are benign over it: what time is lost by that order.
    pub(crate) fn without_benign(sections: &Sections) -> Topology {
        Topology::over(sections, |lock| commuting(sections, sections.of(lock)))
    }

    /// `free` tells which bytes of a lock need no order.
    fn over(sections: &Sections, free: impl Fn(&Lock) -> Vec<Interval>) -> Topology {
        let (mut edges, mut removed, mut freed) = (Vec::new(), 0, Vec::new());
        for lock in sections.locks().iter().filter(|lock| lock.kind == LockKind::Regular) {
            let groups = Groups::new(sections, sections.of(lock), &free(lock));
            conflicts(sections, lock, &groups, &mut edges);
            removed += standalone(sections.of(lock), &groups);
            freed.push(lock.address);
        }
        let mut sources: Vec<SectionId> = edges.iter().map(|edge| edge.source).collect();
        sources.sort_unstable();
        sources.dedup();
        Topology { edges, sources, freed, removed }
    }

    /// The edges, ascending by target, then source.
    pub fn edges(&self) -> &[CausalEdge] {
        &self.edges
    }

    /// Critical sections whose locking is removed: null-locks and standalone nodes.
    pub fn removed(&self) -> u64 {
        self.removed
    }

    /// Number of auxiliary locks.
    pub fn aux_locks(&self) -> usize {
        self.sources.len()
    }

    /// Rule 3: the auxiliary lock that a section with outgoing edges is given.
    pub fn aux_lock(&self, section: SectionId) -> Option<AuxLock> {
        self.sources.binary_search(&section).ok().map(|index| AuxLock(index as u32))
    }

    /// Rule 3: a section's lockset, its own auxiliary lock and those of its sources, ascending.
    pub fn lockset(&self, section: SectionId) -> Vec<AuxLock> {
        let start = self.edges.partition_point(|edge| edge.target < section);
        let into = self.edges[start..].iter().take_while(|edge| edge.target == section);
        let mut locks: Vec<AuxLock> = into.filter_map(|edge| self.aux_lock(edge.source)).collect();
        locks.extend(self.aux_lock(section));
        locks.sort_unstable();
        locks
    }

    /// The transformed trace, as a record beside its events: the regular locks are freed.
    pub fn record(&self, sections: &Sections) -> Transformed {
        let mut record = Transformed { sets: vec![Vec::new()], ..Transformed::default() };
        let mut sets: FixedMap<SetId, u32> = FixedMap::default();
        sets.insert(SetId::EMPTY, 0);
        // By place among all sections: the place among those of freed locks.
        let mut places = vec![u32::MAX; sections.all().len()];
        for lock in sections.locks().iter().filter(|lock| lock.kind == LockKind::Regular) {
            record.locks.push(lock.address);
            for at in lock.sections.clone() {
                let section = &sections.all()[at];
                let mut set = |id: SetId| {
                    *sets.entry(id).or_insert_with(|| {
                        let intervals = sections.sets().get(id).iter();
                        record.sets.push(intervals.map(|i| (i.start, i.end)).collect());
                        record.sets.len() as u32 - 1
                    })
                };
                let (reads, writes) = (set(section.reads), set(section.writes));
                places[at] = record.sections.len() as u32;
                record.sections.push(FreedSection {
                    lock: record.locks.len() as u32 - 1,
                    thread: section.thread.0,
                    acquire: section.acquire,
                    release: section.release,
                    reads,
                    writes,
                    shared: section.shared,
                    after_wait: section.after_wait,
                });
            }
        }
        let place = |section: SectionId| places[section.index()];
        let edges = self.edges.iter();
        record.edges = edges
            .map(|edge| trace::CausalEdge {
                target: place(edge.target),
                source: place(edge.source),
            })
            .collect();
        record
    }

    /// The transformed trace.
    pub fn plan(&self, sections: &Sections) -> Plan {
        Plan::new(sections, self.freed.clone(), &self.edges)
    }
}

/// The transformed trace in which only some pairs lose their order: those of the code regions
/// for which `exempt` (symmetric) holds, on locks that have such pairs. Classes of regions stand
/// for regions. `None` if it would take more than `limit` edges.
pub(crate) fn exempting(
    sections: &Sections,
    class: &[u32],
    exempt: impl Fn(u32, u32) -> bool,
    concerned: impl Fn(usize) -> bool,
    limit: usize,
) -> Option<Plan> {
    let mut edges = Vec::new();
    let mut freed = Vec::new();
    for (index, lock) in sections.locks().iter().enumerate() {
        if lock.kind != LockKind::Regular || !concerned(index) {
            continue;
        }
        freed.push(lock.address);
        let groups = Groups::new(sections, sections.of(lock), &[]);
        conflicts(sections, lock, &groups, &mut edges);
        keep_others(sections, lock, class, &exempt, &mut edges);
        if edges.len() > limit {
            return None;
        }
    }
    edges.sort_unstable();
    edges.dedup();
    Some(Plan::new(sections, freed, &edges))
}

/// Edges between sections that are not exempt from their order: from the latest section of each
/// class, which has those before it in its class behind it, unless the class is exempt from
/// itself or has readers; then from the latest of each thread.
fn keep_others(
    sections: &Sections,
    lock: &Lock,
    class: &[u32],
    exempt: &impl Fn(u32, u32) -> bool,
    edges: &mut Vec<CausalEdge>,
) {
    let mut latest: Vec<(u32, Vec<(u32, u32)>)> = Vec::new();
    let readers = sections.of(lock).iter().any(|section| section.shared);
    for (offset, section) in sections.of(lock).iter().enumerate() {
        let target = SectionId((lock.sections.start + offset) as u32);
        let mine = class[section.region.index()];
        for (other, sources) in latest.iter().filter(|(other, _)| !exempt(*other, mine)) {
            let chained = !readers && !exempt(*other, *other);
            let newest = sources.iter().map(|(_, source)| *source).max();
            for &(thread, source) in sources {
                let wanted = thread != section.thread.0 && (!chained || Some(source) == newest);
                let both_read = section.shared && sections.all()[source as usize].shared;
                if wanted && !both_read {
                    edges.push(CausalEdge { target, source: SectionId(source) });
                }
            }
        }
        let index = latest.iter().position(|(other, _)| *other == mine).unwrap_or_else(|| {
            latest.push((mine, Vec::new()));
            latest.len() - 1
        });
        let sources = &mut latest[index].1;
        sources.retain(|(thread, _)| *thread != section.thread.0);
        sources.push((section.thread.0, target.0));
    }
}

const NOBODY: u32 = u32::MAX;

/// Who used a group of bytes last.
#[derive(Clone)]
struct Use {
    writer: u32,
    /// The latest reader of each thread since.
    readers: Vec<u32>,
}

/// Appends the edges of one lock, ascending by target, then source.
fn conflicts(sections: &Sections, lock: &Lock, groups: &Groups, edges: &mut Vec<CausalEdge>) {
    let (of_lock, all) = (sections.of(lock), sections.all());
    // Per target thread and source thread the latest source waited for: what comes later in the
    // target thread need not wait for it again.
    let mut known: FixedMap<(u32, u32), u32> = FixedMap::default();
    let mut uses = vec![Use { writer: NOBODY, readers: Vec::new() }; groups.count()];
    let mut sources: Vec<u32> = Vec::new();
    let mut waiter_before = false;
    for (offset, section) in of_lock.iter().enumerate() {
        let id = (lock.sections.start + offset) as u32;
        sources.clear();
        for range in groups.of(section.writes) {
            for group in &mut uses[range.0 as usize..range.1 as usize] {
                sources.extend((group.writer != NOBODY).then_some(group.writer));
                sources.append(&mut group.readers);
                group.writer = id;
            }
        }
        for range in groups.of(section.reads) {
            for group in &mut uses[range.0 as usize..range.1 as usize] {
                if group.writer != id {
                    sources.extend((group.writer != NOBODY).then_some(group.writer));
                    group.readers.retain(|&reader| all[reader as usize].thread != section.thread);
                    group.readers.push(id);
                }
            }
        }
        let waiter = section.after_wait && section.is_null();
        if offset > 0 && (waiter || waiter_before) {
            sources.push(id - 1);
        }
        waiter_before = waiter;
        sources.retain(|&source| {
            let source = &all[source as usize];
            source.thread != section.thread && !(source.shared && section.shared)
        });
        // The latest of each thread, then in the order of the lock.
        sources.sort_unstable_by_key(|&source| {
            (all[source as usize].thread, std::cmp::Reverse(source))
        });
        sources.dedup_by_key(|source| all[*source as usize].thread);
        sources.sort_unstable();
        for &source in &sources {
            let threads = (section.thread.0, all[source as usize].thread.0);
            let latest = known.get(&threads).copied();
            if latest.is_none_or(|latest| latest < source) {
                known.insert(threads, source);
                edges.push(CausalEdge { target: SectionId(id), source: SectionId(source) });
            }
        }
    }
}

/// Some thread, none, or several.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Threads {
    None,
    One(ThreadId),
    Several,
}

impl Threads {
    fn add(&mut self, thread: ThreadId) {
        *self = match *self {
            Threads::None => Threads::One(thread),
            Threads::One(one) if one == thread => *self,
            _ => Threads::Several,
        };
    }

    fn has_other(self, thread: ThreadId) -> bool {
        self != Threads::None && self != Threads::One(thread)
    }
}

/// How many sections of a lock conflict with none of another thread.
fn standalone(of_lock: &[Section], groups: &Groups) -> u64 {
    let mut users = vec![(Threads::None, Threads::None); groups.count()];
    for section in of_lock {
        for &(from, to) in groups.of(section.writes) {
            for (writers, users) in &mut users[from as usize..to as usize] {
                writers.add(section.thread);
                users.add(section.thread);
            }
        }
        for &(from, to) in groups.of(section.reads) {
            for (_, users) in &mut users[from as usize..to as usize] {
                users.add(section.thread);
            }
        }
    }
    let of_set =
        |id| groups.of(id).iter().flat_map(|&(from, to)| &users[from as usize..to as usize]);
    let waits = |section: &Section| section.after_wait && section.is_null();
    let alone = |(index, section): &(usize, &Section)| {
        let thread = section.thread;
        let neighbour = |other: Option<&Section>| {
            other.is_some_and(|other| other.thread != thread && (waits(other) || waits(section)))
        };
        !of_set(section.writes).any(|(_, users)| users.has_other(thread))
            && !of_set(section.reads).any(|(writers, _)| writers.has_other(thread))
            && !neighbour(index.checked_sub(1).map(|before| &of_lock[before]))
            && !neighbour(of_lock.get(index + 1))
    };
    of_lock.iter().enumerate().filter(alone).count() as u64
}

/// The bytes that a lock's sections write, cut where any of its sets begins or ends.
struct Groups {
    cuts: Vec<u64>,
    /// Per set the ranges of groups that it covers.
    covers: FixedMap<SetId, Vec<(u32, u32)>>,
}

impl Groups {
    fn new(sections: &Sections, of_lock: &[Section], free: &[Interval]) -> Groups {
        let sets = sections.sets();
        let mut reads: Vec<SetId> = of_lock.iter().map(|section| section.reads).collect();
        let mut writes: Vec<SetId> = of_lock.iter().map(|section| section.writes).collect();
        for ids in [&mut reads, &mut writes] {
            ids.sort_unstable();
            ids.dedup();
        }
        let mut written: Vec<Interval> =
            writes.iter().flat_map(|id| sets.get(*id).iter().copied()).collect();
        normalise(&mut written);
        let written = without(&written, free);
        let mut covers: FixedMap<SetId, Vec<(u32, u32)>> = FixedMap::default();
        let mut clipped: Vec<(SetId, Vec<Interval>)> = Vec::new();
        reads.extend(&writes);
        reads.sort_unstable();
        reads.dedup();
        for id in reads {
            clipped.push((id, clip(sets.get(id), &written)));
        }
        let mut cuts: Vec<u64> =
            clipped.iter().flat_map(|(_, list)| list).flat_map(|i| [i.start, i.end]).collect();
        cuts.sort_unstable();
        cuts.dedup();
        for (id, list) in clipped {
            let at = |address| cuts.binary_search(&address).expect("every end is a cut") as u32;
            let ranges = list.iter().map(|interval| (at(interval.start), at(interval.end)));
            covers.insert(id, ranges.collect());
        }
        Groups { cuts, covers }
    }

    /// Group `n` lies between cut `n` and the next.
    fn count(&self) -> usize {
        self.cuts.len()
    }

    fn of(&self, set: SetId) -> &[(u32, u32)] {
        self.covers.get(&set).map_or(&[], Vec::as_slice)
    }
}
