//! What a lock is not needed for, because locks inside of it are: nested critical sections.
//!
//! An access counts for every section that is open, so an outer section has all accesses of the
//! inner ones, and would conflict wherever they do. For those the outer lock is one too many.
//!
//! # The rule
//! A byte does not count for a lock if all sections of that lock that use it *confine* themselves to
//! one other lock, the same for all of them; a section confines itself to a lock if everything in
//! it that could conflict with sections of other threads lies in one section of that lock inside.
//!
//! # Why this is sound
//! Take the confined sections without their outer lock. What one of them conflicts in lies in one
//! interval, its inner section; intervals of sections that conflict exclude each other, by the inner
//! lock, or by the outer one where a byte does count (then the whole sections do). So conflicts
//! between two sections have one direction, that of the time of the intervals, and have no cycle
//! between several sections: the run is that of some order of the outer sections.
//!
//! What is thereby left alone: two inner sections in one outer one (together they may be one
//! step), accesses beside an inner section (an invariant may join them), and different inner locks
//! for one byte. An inner lock is always acquired later, so no two locks stand in for each
//! other, and the last lock acquired before an access always counts.
//!
//! # Order of locks
//! An outer lock may also keep threads from a deadlock that acquire inner locks in different orders.
//! Locks that lie on a cycle of orders of acquisition (or between two of them) do not stand in.
//!
//! # Deviation from PerfPlay
//! The paper does not say what an outer section's accesses are.

use crate::collector::{Inner, Raw};
use crate::intervals::{Interval, disjoint, leap, normalise, without};
use crate::{LockKind, Sections, SetId};
use refrain_trace::ThreadId;
use refrain_trace::fixed::FixedMap;
use std::collections::{BTreeMap, BTreeSet};

/// Sections as they were before they were put in order: the thread, the section, and what of it
/// lies outside of each of its inner ones.
pub(crate) struct Nesting<'a> {
    pub(crate) raws: &'a [(ThreadId, Raw)],
    /// By thread, ascending.
    pub(crate) inner: &'a BTreeMap<ThreadId, Vec<Inner>>,
    /// Locks of which the second was acquired while the first was held.
    pub(crate) orders: &'a BTreeSet<(u64, u64)>,
}

impl Nesting<'_> {
    fn inner(&self, section: usize) -> &[Inner] {
        let (thread, raw) = &self.raws[section];
        let (from, to) = raw.inner;
        self.inner.get(thread).map_or(&[], |all| &all[from as usize..to as usize])
    }
}

/// Takes out of the sections what does not count for their locks.
pub(crate) fn take_out(sections: &mut Sections, nesting: &Nesting<'_>) {
    if nesting.inner.values().all(Vec::is_empty) {
        return;
    }
    let tangled = tangled(nesting.orders);
    let stand_in: BTreeSet<u64> = sections
        .locks
        .iter()
        .filter(|lock| lock.kind == LockKind::Regular && !tangled.contains(&lock.address))
        .map(|lock| lock.address)
        .collect();
    for lock in 0..sections.locks.len() {
        let of_lock = sections.locks[lock].sections.clone();
        if of_lock.clone().all(|at| nesting.inner(at).is_empty()) {
            continue;
        }
        let gone = guarded(sections, of_lock.clone(), nesting, &stand_in);
        if gone.is_empty() {
            continue;
        }
        let mut left: FixedMap<SetId, SetId> = FixedMap::default();
        for at in of_lock {
            let Sections { sections, sets, .. } = &mut *sections;
            let mut rest = |set| {
                let rest = || sets.intern(&without(sets.get(set), &gone));
                *left.entry(set).or_insert_with(rest)
            };
            let section = &mut sections[at];
            (section.reads, section.writes) = (rest(section.reads), rest(section.writes));
        }
    }
}

/// Sections of a lock that are alike: what they use, and to which locks they confine themselves.
type Kind = (SetId, SetId, Vec<u64>);

/// The bytes that do not count for a lock.
fn guarded(
    sections: &Sections,
    of_lock: std::ops::Range<usize>,
    nesting: &Nesting<'_>,
    stand_in: &BTreeSet<u64>,
) -> Vec<Interval> {
    let sets = &sections.sets;
    let contended = contended(sections, of_lock.clone());
    let mut free: FixedMap<SetId, bool> = FixedMap::default();
    let mut kinds: BTreeSet<Kind> = BTreeSet::new();
    for at in of_lock {
        let mut confines: Vec<u64> = Vec::new();
        for inner in nesting.inner(at).iter().filter(|inner| stand_in.contains(&inner.lock)) {
            let outside = inner.outside;
            let none = || disjoint(sets.get(outside), &contended);
            if *free.entry(outside).or_insert_with(none) {
                confines.push(inner.lock);
            }
        }
        confines.sort_unstable();
        confines.dedup();
        let section = &sections.sections[at];
        kinds.insert((section.reads, section.writes, confines));
    }
    common(
        &contended,
        kinds.iter().map(|(reads, writes, confines)| {
            let uses = [sets.get(*reads), sets.get(*writes)].concat();
            (uses, confines.as_slice())
        }),
    )
}

/// Bytes that sections of several threads use and one of them writes.
fn contended(sections: &Sections, of_lock: std::ops::Range<usize>) -> Vec<Interval> {
    let mut used: BTreeMap<ThreadId, BTreeSet<SetId>> = BTreeMap::new();
    let mut written: BTreeSet<SetId> = BTreeSet::new();
    for section in &sections.sections[of_lock] {
        used.entry(section.thread).or_default().extend([section.reads, section.writes]);
        written.insert(section.writes);
    }
    let union = |ids: &BTreeSet<SetId>| {
        let mut all: Vec<Interval> =
            ids.iter().flat_map(|id| sections.sets.get(*id).iter().copied()).collect();
        normalise(&mut all);
        all
    };
    // Of any two threads that use a byte, one comes second.
    let (mut once, mut twice): (Vec<Interval>, Vec<Interval>) = Default::default();
    for of_thread in used.values() {
        let of_thread = union(of_thread);
        let alone = without(&of_thread, &once);
        twice.extend(without(&of_thread, &alone));
        once.extend(of_thread);
        normalise(&mut once);
    }
    normalise(&mut twice);
    let unwritten = without(&twice, &union(&written));
    without(&twice, &unwritten)
}

/// The bytes of `contended` all of whose users name one and the same lock.
fn common<'a>(
    contended: &[Interval],
    users: impl Iterator<Item = (Vec<Interval>, &'a [u64])>,
) -> Vec<Interval> {
    let users: Vec<(Vec<Interval>, &[u64])> = users
        .map(|(mut uses, locks)| {
            normalise(&mut uses);
            let beside = without(&uses, contended);
            (without(&uses, &beside), locks)
        })
        .collect();
    let ends =
        |list: &[Interval]| -> Vec<u64> { list.iter().flat_map(|i| [i.start, i.end]).collect() };
    let mut cuts = ends(contended);
    cuts.extend(users.iter().flat_map(|(uses, _)| ends(uses)));
    cuts.sort_unstable();
    cuts.dedup();
    // What the users of each piece have in common; nobody has used it yet.
    let mut pieces: Vec<Option<Vec<u64>>> = vec![None; cuts.len()];
    for (uses, locks) in &users {
        for interval in uses {
            let from = cuts.partition_point(|cut| *cut < interval.start);
            let to = cuts.partition_point(|cut| *cut < interval.end);
            for piece in &mut pieces[from..to] {
                match piece {
                    Some(common) => common.retain(|lock| locks.binary_search(lock).is_ok()),
                    None => *piece = Some(locks.to_vec()),
                }
            }
        }
    }
    let mut gone: Vec<Interval> = cuts
        .windows(2)
        .zip(&pieces)
        .filter(|(_, locks)| locks.as_ref().is_some_and(|locks| !locks.is_empty()))
        .map(|(ends, _)| Interval { start: ends[0], end: ends[1] })
        .filter(|piece| {
            contended[leap(contended, piece.start)..]
                .first()
                .is_some_and(|c| c.start <= piece.start)
        })
        .collect();
    normalise(&mut gone);
    gone
}

/// Locks on cycles of orders of acquisition, and those between two cycles: what is left when locks
/// with none before them are taken away one after the other, and then those with none after them.
fn tangled(orders: &BTreeSet<(u64, u64)>) -> BTreeSet<u64> {
    let turned: BTreeSet<(u64, u64)> = orders.iter().map(|&(a, b)| (b, a)).collect();
    let (after, before) = (peeled(orders), peeled(&turned));
    after.intersection(&before).copied().collect()
}

/// Locks that a cycle leads to, those on the cycle included.
fn peeled(orders: &BTreeSet<(u64, u64)>) -> BTreeSet<u64> {
    let mut left: BTreeMap<u64, usize> = BTreeMap::new();
    for &(first, second) in orders {
        left.entry(first).or_default();
        *left.entry(second).or_default() += 1;
    }
    let mut none_before: Vec<u64> =
        left.iter().filter(|(_, before)| **before == 0).map(|(lock, _)| *lock).collect();
    while let Some(lock) = none_before.pop() {
        left.remove(&lock);
        for (_, second) in orders.range((lock, 0)..=(lock, u64::MAX)) {
            let before = left.get_mut(second).expect("a lock with one before it is still there");
            *before -= 1;
            if *before == 0 {
                none_before.push(*second);
            }
        }
    }
    left.into_keys().collect()
}
