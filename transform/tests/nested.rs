//! Nested critical sections: when an outer lock is one too many.

mod common;

use common::Recording;
use proptest::prelude::*;
use refrain_trace::Access;
use refrain_transform::*;
use std::collections::{BTreeMap, BTreeSet};

const OUTER: u64 = 0x1000;
const INNER: u64 = 0x2000;
const OTHER: u64 = 0x3000;
const X: u64 = 0x10_0000;
const Y: u64 = X + 8;

/// What a thread does in one section of the outer lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Act {
    Lock(u64),
    Unlock(u64),
    Read(u64),
    Write(u64),
}
use Act::*;

/// Threads take turns with whole sections of the outer lock.
fn record(turns: &[(usize, Vec<Act>)]) -> Recording {
    let threads = turns.iter().map(|(thread, _)| thread + 1).max().unwrap_or(0).max(2);
    let mut r = Recording::new(threads);
    let mut now = 0;
    for (thread, acts) in turns {
        now += 10;
        for act in acts {
            match *act {
                Lock(lock) => r.lock(*thread, now, lock, 1),
                Unlock(lock) => r.unlock(*thread, 1, lock, 2),
                Read(at) => r.read(*thread, at, 4),
                Write(at) => r.write(*thread, at, 4),
            }
        }
    }
    r
}

fn outer(acts: &[Act]) -> Vec<Act> {
    [&[Lock(OUTER)], acts, &[Unlock(OUTER)]].concat()
}

fn inner(lock: u64, acts: &[Act]) -> Vec<Act> {
    [&[Lock(lock)], acts, &[Unlock(lock)]].concat()
}

/// The verdicts on the outer lock's pairs.
fn verdicts(turns: &[(usize, Vec<Act>)]) -> Vec<Verdict> {
    let sections = record(turns).sections();
    let of_outer = |pair: &Pair| {
        let lock = sections.all()[pair.first.index()].lock;
        sections.locks()[lock as usize].address == OUTER
    };
    pairs(&sections).filter(of_outer).map(|pair| pair.verdict).collect()
}

#[test]
fn what_an_inner_lock_is_enough_for_does_not_count_for_the_outer_one() {
    let count = inner(INNER, &[Read(X), Write(X)]);
    let turn = |thread| (thread, outer(&[&[Read(Y)], &count[..]].concat()));
    let shared = (1, vec![Read(Y), Read(X)]);
    let turns = [shared, turn(0), turn(1), turn(0)];
    assert_eq!(verdicts(&turns), [Verdict::Ulcp(UlcpKind::ReadRead); 2]);
    // The inner lock is needed as before.
    let sections = record(&turns).sections();
    assert_eq!(pairs(&sections).filter(|pair| pair.verdict == Verdict::Conflict).count(), 2);
}

#[test]
fn accesses_beside_the_inner_section_count() {
    let count = inner(INNER, &[Write(X)]);
    for beside in [Read(X), Write(X), Write(Y)] {
        let turn = |thread| (thread, outer(&[&count[..], &[beside]].concat()));
        assert_eq!(verdicts(&[turn(0), turn(1)]), [Verdict::Conflict], "{beside:?}");
    }
}

#[test]
fn two_inner_sections_may_be_one_step() {
    let both = [inner(INNER, &[Write(X)]), inner(INNER, &[Write(X)])].concat();
    assert_eq!(verdicts(&[(0, outer(&both)), (1, outer(&both))]), [Verdict::Conflict]);
    // An invariant of two words, each under its own lock.
    let both = [inner(INNER, &[Write(X)]), inner(OTHER, &[Write(Y)])].concat();
    assert_eq!(verdicts(&[(0, outer(&both)), (1, outer(&both))]), [Verdict::Conflict]);
}

#[test]
fn different_inner_locks_do_not_stand_in() {
    let turns = [(0, outer(&inner(INNER, &[Write(X)]))), (1, outer(&inner(OTHER, &[Write(X)])))];
    assert_eq!(verdicts(&turns), [Verdict::Conflict]);
}

#[test]
fn an_outer_lock_that_keeps_inner_ones_from_a_deadlock_is_needed() {
    let one = inner(INNER, &inner(OTHER, &[Write(X)]));
    let two = inner(OTHER, &inner(INNER, &[Write(X)]));
    let turns = [(0, outer(&one)), (1, outer(&one))];
    assert_eq!(verdicts(&turns), [Verdict::Ulcp(UlcpKind::NullLock)]);
    assert_eq!(verdicts(&[(0, outer(&one)), (1, outer(&two))]), [Verdict::Conflict]);
}

#[test]
fn locks_in_both_orders_do_not_stand_in_for_each_other() {
    let one = [Lock(OUTER), Lock(INNER), Write(X), Unlock(INNER), Unlock(OUTER)].to_vec();
    let two = [Lock(INNER), Lock(OUTER), Write(X), Unlock(OUTER), Unlock(INNER)].to_vec();
    let sections = record(&[(0, one), (1, two)]).sections();
    assert!(pairs(&sections).all(|pair| pair.verdict == Verdict::Conflict));
}

#[test]
fn a_section_that_outlives_the_outer_one_covers_its_part() {
    let turn = |thread| {
        (thread, [Lock(OUTER), Lock(INNER), Unlock(OUTER), Write(X), Unlock(INNER)].to_vec())
    };
    assert_eq!(verdicts(&[turn(0), turn(1)]), [Verdict::Ulcp(UlcpKind::NullLock)]);
    let turn = |thread| {
        (thread, [Lock(OUTER), Lock(INNER), Write(X), Unlock(OUTER), Unlock(INNER)].to_vec())
    };
    assert_eq!(verdicts(&[turn(0), turn(1)]), [Verdict::Ulcp(UlcpKind::NullLock)]);
    let turn = |thread| {
        (thread, [Lock(OUTER), Write(X), Lock(INNER), Unlock(OUTER), Unlock(INNER)].to_vec())
    };
    assert_eq!(verdicts(&[turn(0), turn(1)]), [Verdict::Conflict]);
}

/// What was repeated after the inner section was over lies outside of it, in long sections too.
#[test]
fn repetitions_outside_of_an_inner_section_are_seen() {
    for (again, filler) in [(true, 0), (false, 0), (true, 40_000), (false, 40_000)] {
        let mut r = Recording::new(2);
        for thread in [0, 1] {
            r.lock(thread, 1, OUTER, 1);
            let fill = |r: &mut Recording| {
                for at in 0..filler {
                    r.access(thread, 0x50_0000 + at * 16, 8, Access::READ);
                }
            };
            fill(&mut r);
            r.lock(thread, 1, INNER, 3);
            r.write(thread, X, 8);
            fill(&mut r);
            r.unlock(thread, 1, INNER, 4);
            fill(&mut r);
            if again {
                r.write(thread, X, 8);
            }
            fill(&mut r);
            r.unlock(thread, 1, OUTER, 2);
        }
        let sections = r.sections();
        let outer = &sections.all()[0];
        assert_eq!(outer.writes.is_empty(), !again, "{again} {filler}");
    }
}

/// A body: bare accesses and inner sections.
fn body() -> impl Strategy<Value = Vec<Act>> {
    let access = (0u64..3, any::<bool>())
        .prop_map(|(at, writes)| if writes { Write(X + at * 4) } else { Read(X + at * 4) });
    let bare = access.clone().prop_map(|access| vec![access]);
    let locked = (prop_oneof![Just(INNER), Just(OTHER)], proptest::collection::vec(access, 1..3))
        .prop_map(|(lock, acts)| inner(lock, &acts));
    let part = prop_oneof![1 => bare, 3 => locked];
    proptest::collection::vec(part, 1..3).prop_map(|parts| parts.concat())
}

/// A search through all interleavings of threads with one outer section each.
struct Search<'a> {
    acts: &'a [Vec<Act>],
    /// Pairs of threads whose sections of a lock exclude each other.
    exclude: &'a BTreeMap<u64, BTreeSet<(usize, usize)>>,
    /// States that were looked at: how far each thread is, and which came before which.
    seen: BTreeSet<(Vec<usize>, Before)>,
    ends: u32,
}

/// Pairs of threads of which the first did something before the second that the second conflicts
/// with.
type Before = BTreeSet<(usize, usize)>;

impl Search<'_> {
    /// Whether all interleavings from here on are those of some order of the outer sections.
    fn serializable(&mut self, at: &[usize], before: &Before) -> bool {
        if !self.seen.insert((at.to_vec(), before.clone())) {
            return true;
        }
        let threads = 0..self.acts.len();
        if threads.clone().all(|thread| at[thread] == self.acts[thread].len()) {
            self.ends += 1;
            return is_acyclic(threads.len(), before);
        }
        for thread in threads.filter(|thread| at[*thread] < self.acts[*thread].len()) {
            let act = self.acts[thread][at[thread]];
            if matches!(act, Lock(lock) if self.is_taken(at, thread, lock)) {
                continue;
            }
            let mut before = before.clone();
            for (other, acts) in self.acts.iter().enumerate().filter(|(other, _)| *other != thread)
            {
                if acts[..at[other]].iter().any(|earlier| conflict(*earlier, act)) {
                    before.insert((other, thread));
                }
            }
            let mut next = at.to_vec();
            next[thread] += 1;
            if !self.serializable(&next, &before) {
                return false;
            }
        }
        true
    }

    fn is_taken(&self, at: &[usize], thread: usize, lock: u64) -> bool {
        let holds = |other: usize| {
            let past = &self.acts[other][..at[other]];
            past.iter().filter(|act| **act == Lock(lock)).count()
                > past.iter().filter(|act| **act == Unlock(lock)).count()
        };
        let excludes = |other: usize| {
            let pair = (thread.min(other), thread.max(other));
            self.exclude.get(&lock).is_some_and(|pairs| pairs.contains(&pair))
        };
        (0..at.len()).any(|other| other != thread && excludes(other) && holds(other))
    }
}

fn conflict(a: Act, b: Act) -> bool {
    matches!(
        (a, b),
        (Write(x), Write(y)) | (Write(x), Read(y)) | (Read(x), Write(y)) if x == y
    )
}

fn is_acyclic(threads: usize, before: &Before) -> bool {
    let mut left: BTreeSet<usize> = (0..threads).collect();
    while let Some(&first) =
        left.iter().find(|to| !left.iter().any(|from| before.contains(&(*from, **to))))
    {
        left.remove(&first);
    }
    left.is_empty()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Brute force: whatever the verdicts free of each other, every interleaving that the rest of
    /// the locks allows is that of some order of the outer sections.
    #[test]
    fn freed_sections_stay_atomic(bodies in proptest::collection::vec(body(), 2..4)) {
        let acts: Vec<Vec<Act>> = bodies.iter().map(|body| outer(body)).collect();
        let turns: Vec<(usize, Vec<Act>)> = acts.iter().cloned().enumerate().collect();
        let sections = record(&turns).sections();
        let sets = sections.sets();
        let mut exclude: BTreeMap<u64, BTreeSet<(usize, usize)>> = BTreeMap::new();
        for (index, a) in sections.all().iter().enumerate() {
            for b in &sections.all()[..index] {
                let conflict = !sets.disjoint(a.reads, b.writes)
                    || !sets.disjoint(a.writes, b.reads)
                    || !sets.disjoint(a.writes, b.writes);
                let (x, y) = (a.thread.index(), b.thread.index());
                if a.lock == b.lock && x != y && conflict {
                    let lock = sections.locks()[a.lock as usize].address;
                    exclude.entry(lock).or_default().insert((x.min(y), x.max(y)));
                }
            }
        }
        let mut search =
            Search { acts: &acts, exclude: &exclude, seen: BTreeSet::new(), ends: 0 };
        let start = vec![0; acts.len()];
        prop_assert!(search.serializable(&start, &Before::new()), "{acts:?}");
        prop_assert!(search.ends > 0);
    }
}
