//! The rules of a transformed trace ([`Transformed`]), by what the record says itself.
//!
//! - *Places.* Locks, sets and sections are in order; what sections and edges name is there; a
//!   section begins and ends at events of its thread that acquire and release its lock.
//! - *Edges* lead from a section to a later one of the same lock in another thread.
//! - *No circle.* With the threads' own orders, the edges let every section happen.
//! - *No order is lost.* Of two sections of a lock of which one writes what the other uses, the
//!   earlier one is before the later one by the edges and the threads' own orders.
//!
//! That two conflicting sections are ordered is judged by vector clocks: of each interval of bytes
//! the last writer, and the readers since, are before whoever writes it next, and the last writer
//! before whoever reads it. The rest follows, since being before is transitive. Clocks take half a GiB
//! at most; a lock for which that is not enough is said not to be judged.

use super::{MAX_VIOLATIONS, Violation, ViolationKind};
use crate::container::Trace;
use crate::error::Result;
use crate::fixed::FixedMap;
use crate::{Event, EventId, EventKind, FreedSection, ThreadId, Transformed};
use std::collections::BTreeMap;

/// Appends the violations of a transformed trace's rules.
pub(super) fn verify(trace: &Trace, out: &mut Vec<Violation>) -> Result<()> {
    let Some(transformed) = trace.transformed()? else { return Ok(()) };
    let before = out.len();
    let mut judge = Judge { record: &transformed, out };
    judge.places();
    // What follows looks things up by the places just judged.
    if judge.out.len() == before {
        judge.events(trace)?;
    }
    // Threads that are not there would have clocks.
    if judge.out.len() == before {
        judge.circles();
        judge.orders();
        judge.out.dedup();
    }
    Ok(())
}

struct Judge<'a> {
    record: &'a Transformed,
    out: &'a mut Vec<Violation>,
}

impl Judge<'_> {
    fn report(&mut self, section: u32, kind: ViolationKind) {
        if self.out.len() < MAX_VIOLATIONS {
            let at = self.record.sections.get(section as usize).copied().unwrap_or_default();
            let event = EventId(at.acquire.into());
            self.out.push(Violation { thread: at.thread(), event, kind });
        }
    }

    fn places(&mut self) {
        let Transformed { locks, sets, sections, edges, .. } = self.record;
        let apart = |set: &Vec<(u64, u64)>| {
            set.iter().all(|(start, end)| start < end) && set.windows(2).all(|w| w[0].1 < w[1].0)
        };
        let first_empty = sets.first().is_none_or(Vec::is_empty);
        if !locks.is_sorted_by(|a, b| a < b) || !first_empty || !sets.iter().all(apart) {
            self.report(u32::MAX, ViolationKind::TransformationUnordered);
        }
        for (n, section) in (0..).zip(sections) {
            let there = (section.lock as usize) < locks.len()
                && [section.reads, section.writes]
                    .iter()
                    .all(|&set| set == 0 || (set as usize) < sets.len());
            let ordered = n == 0 || sections[n as usize - 1].lock <= section.lock;
            if !there || !ordered || section.release < section.acquire {
                self.report(n, ViolationKind::NoSection { section: n });
            }
        }
        for (n, edge) in edges.iter().enumerate() {
            let ends = [edge.source, edge.target].map(|at| sections.get(at as usize));
            let fits = match ends {
                [Some(source), Some(target)] => {
                    edge.source < edge.target
                        && source.lock == target.lock
                        && source.thread != target.thread
                }
                _ => false,
            };
            if !fits || n > 0 && edges[n - 1] >= *edge {
                let kind = ViolationKind::BadEdge { source: edge.source, target: edge.target };
                self.report(edge.target, kind);
            }
        }
    }

    /// Sections begin and end where their threads acquire and release the lock.
    fn events(&mut self, trace: &Trace) -> Result<()> {
        let mut wanted: BTreeMap<u32, Vec<(u32, u32, bool)>> = BTreeMap::new();
        for (n, section) in (0..).zip(&self.record.sections) {
            let of_thread = wanted.entry(section.thread).or_default();
            of_thread.push((section.acquire, n, true));
            of_thread.push((section.release, n, false));
        }
        let mut tickets: FixedMap<u32, u64> = FixedMap::default();
        for (thread, mut places) in wanted {
            places.sort_unstable();
            let mut cursor = trace.cursor(ThreadId(thread));
            let events = trace.events_of(ThreadId(thread));
            let (mut at, mut event) = (None, None);
            for (place, n, begins) in places {
                while at.is_none_or(|at| at < place) {
                    event = cursor.next()?;
                    at = Some(at.map_or(0, |at| at + 1));
                    if event.is_none() {
                        break;
                    }
                }
                let section = &self.record.sections[n as usize];
                let lock = self.record.locks[section.lock as usize];
                let last = u64::from(place) + 1 == events;
                let fits = event.as_ref().is_some_and(|event: &Event| match begins {
                    true => acquires(event, lock),
                    false => releases(event, lock) || last,
                });
                if !fits {
                    self.report(n, ViolationKind::NoSection { section: n });
                } else if let Some(event) = &event
                    && begins
                    && is_library(event)
                    && event.has_ticket()
                {
                    tickets.insert(n, event.ticket);
                }
            }
        }
        // Sections of a lock are in the order in which they had it.
        for n in 1..self.record.sections.len() as u32 {
            let both = [n - 1, n].map(|n| tickets.get(&n).copied());
            let [before, section] = [n - 1, n].map(|n| &self.record.sections[n as usize]);
            if before.lock == section.lock
                && let [Some(earlier), Some(later)] = both
                && earlier >= later
            {
                self.report(n, ViolationKind::TransformationUnordered);
            }
        }
        Ok(())
    }

    /// Lets every thread go on as far as the edges allow, until none can.
    fn circles(&mut self) {
        let Transformed { sections, edges, .. } = self.record;
        // By thread: which of its events waits for which event of whom.
        let mut waits: BTreeMap<u32, Vec<(u32, u32, u32, u32)>> = BTreeMap::new();
        for edge in edges {
            let (source, target) = (sections[edge.source as usize], sections[edge.target as usize]);
            let wait = (target.acquire, source.thread, source.release, edge.target);
            waits.entry(target.thread).or_default().push(wait);
        }
        waits.values_mut().for_each(|list| list.sort_unstable());
        // How far each thread has come: all events before this one. A thread without waits is at
        // its end.
        let mut reached: BTreeMap<u32, (usize, u64)> =
            waits.keys().map(|&thread| (thread, (0, 0))).collect();
        let mut todo: Vec<u32> = waits.keys().copied().collect();
        let mut behind: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
        while let Some(thread) = todo.pop() {
            let list = &waits[&thread];
            let (mut next, _) = reached[&thread];
            let done = |other: u32, event: u32| {
                reached.get(&other).is_none_or(|&(_, until)| until > u64::from(event))
            };
            while let Some(&(_, other, event, _)) = list.get(next)
                && done(other, event)
            {
                next += 1;
            }
            let until = list.get(next).map_or(u64::MAX, |&(event, ..)| u64::from(event));
            if let Some(&(_, other, ..)) = list.get(next) {
                behind.entry(other).or_default().push(thread);
            }
            let before = reached.insert(thread, (next, until));
            if before.is_none_or(|(_, before)| before < until) {
                todo.extend(behind.remove(&thread).unwrap_or_default());
            }
        }
        for (thread, (next, until)) in reached {
            if until < u64::MAX {
                let (.., target) = waits[&thread][next];
                self.report(target, ViolationKind::Circle);
            }
        }
    }

    fn orders(&mut self) {
        let record = self.record;
        let mut first = 0;
        while let Some(section) = record.sections.get(first) {
            let lock = section.lock;
            let rest = &record.sections[first..];
            let end = first + rest.partition_point(|section| section.lock == lock);
            let judged = Orders::new(record, first..end).judge(|earlier, later| {
                self.report(later, ViolationKind::OrderLost { earlier, later });
            });
            if !judged {
                self.report(first as u32, ViolationKind::NotJudged);
            }
            first = end;
        }
    }
}

/// Entries of vector clocks, at most, of four bytes each.
const MAX_CLOCKS: usize = 1 << 27;

/// What is before what among the sections of one lock.
struct Orders<'a> {
    record: &'a Transformed,
    range: std::ops::Range<usize>,
    /// How many edges of a section are still to be looked at.
    left: FixedMap<u32, u32>,
    /// The clock of a section that edges lead from.
    ends: FixedMap<u32, Vec<u32>>,
    /// The threads that have sections, and the clock of each: of each other thread the latest
    /// section, plus one, that is before what it does next.
    threads: BTreeMap<u32, usize>,
    clocks: Vec<Vec<u32>>,
}

/// Who used an interval of bytes last.
#[derive(Clone, Default)]
struct Use {
    writer: Option<u32>,
    readers: Vec<u32>,
}

impl<'a> Orders<'a> {
    fn new(record: &'a Transformed, range: std::ops::Range<usize>) -> Orders<'a> {
        let of_lock = &record.sections[range.clone()];
        let mut threads: BTreeMap<u32, usize> = BTreeMap::new();
        for section in of_lock {
            let next = threads.len();
            threads.entry(section.thread).or_insert(next);
        }
        let mut left = FixedMap::default();
        for n in range.clone() {
            for edge in record.edges_into(n as u32) {
                *left.entry(edge.source).or_default() += 1;
            }
        }
        let clocks = match threads.len() * threads.len() <= MAX_CLOCKS {
            true => vec![vec![0; threads.len()]; threads.len()],
            false => Vec::new(),
        };
        Orders { record, range, left, ends: FixedMap::default(), threads, clocks }
    }

    /// Reports the pairs that conflict and have lost their order; false if that would take too much
    /// memory.
    fn judge(mut self, mut report: impl FnMut(u32, u32)) -> bool {
        let threads = self.clocks.len();
        if threads < self.threads.len() {
            return false;
        }
        let mut uses: BTreeMap<u64, (u64, Use)> = BTreeMap::new();
        for n in self.range.clone().map(|n| n as u32) {
            let section = self.record.sections[n as usize];
            self.begin(n, &section);
            for (set, writes) in [(section.reads, false), (section.writes, true)] {
                let intervals = self.record.sets.get(set as usize).map_or(&[][..], Vec::as_slice);
                for &(start, end) in intervals {
                    self.touch(&mut uses, (start, end), n, writes, &mut report);
                }
            }
            self.end(n, &section);
            if self.ends.len() * threads > MAX_CLOCKS {
                return false;
            }
        }
        true
    }

    fn begin(&mut self, n: u32, section: &FreedSection) {
        let own = self.threads[&section.thread];
        for edge in self.record.edges_into(n) {
            let Some(end) = self.ends.get(&edge.source) else { continue };
            for (mine, other) in self.clocks[own].iter_mut().zip(end) {
                *mine = (*mine).max(*other);
            }
            let left = self.left.get_mut(&edge.source).expect("each edge was counted");
            *left -= 1;
            if *left == 0 {
                self.ends.remove(&edge.source);
            }
        }
    }

    fn end(&mut self, n: u32, section: &FreedSection) {
        let own = self.threads[&section.thread];
        self.clocks[own][own] = n + 1;
        if self.left.contains_key(&n) {
            self.ends.insert(n, self.clocks[own].clone());
        }
    }

    /// Whether a section is before the one that is looked at.
    fn is_before(&self, earlier: u32, n: u32) -> bool {
        let [earlier_thread, thread] =
            [earlier, n].map(|n| self.threads[&self.record.sections[n as usize].thread]);
        earlier_thread == thread || self.clocks[thread][earlier_thread] > earlier
    }

    fn touch(
        &self,
        uses: &mut BTreeMap<u64, (u64, Use)>,
        (start, end): (u64, u64),
        n: u32,
        writes: bool,
        report: &mut impl FnMut(u32, u32),
    ) {
        split(uses, start);
        split(uses, end);
        let mut at = start;
        let mut new = Vec::new();
        for (&from, (to, used)) in uses.range_mut(start..end) {
            if at < from {
                new.push((at, from));
            }
            at = *to;
            let Use { writer, readers } = used;
            let others = writer.iter().chain(if writes { &readers[..] } else { &[] });
            for &other in others {
                if other != n && !self.is_before(other, n) {
                    report(other, n);
                }
            }
            if writes {
                (*writer, *readers) = (Some(n), Vec::new());
            } else if *writer != Some(n) {
                // Of a thread the latest reader stands for all.
                let thread = |n: u32| self.record.sections[n as usize].thread;
                readers.retain(|&reader| thread(reader) != thread(n));
                readers.push(n);
            }
        }
        if at < end {
            new.push((at, end));
        }
        for (from, to) in new {
            let used = match writes {
                true => Use { writer: Some(n), readers: Vec::new() },
                false => Use { writer: None, readers: vec![n] },
            };
            uses.insert(from, (to, used));
        }
    }
}

/// Cuts the interval that goes on across `at`.
fn split(uses: &mut BTreeMap<u64, (u64, Use)>, at: u64) {
    let Some((_, (to, used))) = uses.range_mut(..at).next_back() else { return };
    if *to > at {
        let rest = (std::mem::replace(to, at), used.clone());
        uses.insert(at, rest);
    }
}

/// Whether the event is of a lock of the library's; others are made of atomics, semaphores or
/// futexes by the program.
fn is_library(event: &Event) -> bool {
    !matches!(event.kind(), EventKind::Atomic | EventKind::SyncStore | EventKind::SyncLoad)
        && event.kind() != EventKind::Syscall
}

fn acquires(event: &Event, lock: u64) -> bool {
    event.kind().acquires_lock() && event.object == lock || !is_library(event)
}

fn releases(event: &Event, lock: u64) -> bool {
    event.kind().releases_lock() && event.object == lock || !is_library(event)
}
