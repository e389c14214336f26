//! Against the paper's own, quadratic, words: random small runs.

mod common;

use common::{Item, Recording};
use proptest::prelude::*;
use refrain_trace::{Access, EventKind, OwnedTrace, Transformed, verify};
use refrain_transform::*;
use std::collections::{BTreeMap, BTreeSet};

/// A critical section: thread, lock, accesses, and how long it takes. With [`OUTSIDE`] for the
/// lock, accesses outside of any.
type Step = (usize, u64, Vec<(u64, u16, u16)>, u64);

const DATA: u64 = 0x10_0000;
const OUTSIDE: u64 = 2;

fn step(threads: usize) -> impl Strategy<Value = Step> {
    let kind =
        prop_oneof![3 => Just(Access::READ), 2 => Just(Access::WRITE), 1 => Just(Access::ATOMIC)];
    let access = (0u64..24, 1u16..9, kind).prop_map(|(at, size, kind)| (DATA + at, size, kind));
    (0..threads, 0..=OUTSIDE, proptest::collection::vec(access, 0..4), 1u64..30)
}

fn steps() -> impl Strategy<Value = (usize, Vec<Step>)> {
    (2usize..5)
        .prop_flat_map(|threads| (Just(threads), proptest::collection::vec(step(threads), 0..25)))
}

fn record(threads: usize, steps: &[Step]) -> Recording {
    let mut r = Recording::new(threads);
    for (thread, lock, accesses, time) in steps {
        let address = 0x1000 + lock * 64;
        if *lock != OUTSIDE {
            r.lock(*thread, time / 2, address, 0x100 + time % 2);
        }
        for &(at, size, kind) in accesses {
            r.access(*thread, at, size, kind);
        }
        if *lock != OUTSIDE {
            r.unlock(*thread, *time, address, 0x110);
        }
    }
    r
}

type Bytes = BTreeSet<u64>;

/// Sections by the text of the paper: thread, lock, read set, write set, in the order of the run.
fn naive_sections(threads: usize, steps: &[Step]) -> Vec<(usize, u64, Bytes, Bytes)> {
    let mut touched: BTreeMap<u64, BTreeSet<usize>> = BTreeMap::new();
    let _ = threads;
    for (thread, _, accesses, _) in steps {
        for &(at, size, _) in accesses {
            for byte in at..at + u64::from(size) {
                touched.entry(byte).or_default().insert(*thread);
            }
        }
    }
    let set = |accesses: &[(u64, u16, u16)], wanted: u16| -> Bytes {
        let of_kind = accesses.iter().filter(|(_, _, kind)| kind & wanted != 0);
        let bytes = of_kind.flat_map(|&(at, size, _)| at..at + u64::from(size));
        bytes.filter(|byte| touched[byte].len() > 1).collect()
    };
    let section = |(thread, lock, accesses, _): &Step| {
        (*thread, *lock, set(accesses, Access::READ), set(accesses, Access::WRITE))
    };
    steps.iter().filter(|step| step.1 != OUTSIDE).map(section).collect()
}

fn naive_conflict(a: &(usize, u64, Bytes, Bytes), b: &(usize, u64, Bytes, Bytes)) -> bool {
    !(a.2.is_disjoint(&b.3) && a.3.is_disjoint(&b.2) && a.3.is_disjoint(&b.3))
}

/// Algorithm 1.
fn naive_verdict(a: &(usize, u64, Bytes, Bytes), b: &(usize, u64, Bytes, Bytes)) -> Verdict {
    let empty = |s: &(usize, u64, Bytes, Bytes)| s.2.is_empty() && s.3.is_empty();
    if empty(a) || empty(b) {
        Verdict::Ulcp(UlcpKind::NullLock)
    } else if a.3.is_empty() && b.3.is_empty() {
        Verdict::Ulcp(UlcpKind::ReadRead)
    } else if !naive_conflict(a, b) {
        Verdict::Ulcp(UlcpKind::DisjointWrite)
    } else {
        Verdict::Conflict
    }
}

/// When the thread of each section came to the lock, and when it released it.
fn naive_times(threads: usize, steps: &[Step]) -> Vec<(u64, u64)> {
    let mut clocks = vec![0; threads];
    let inside = steps.iter().filter(|step| step.1 != OUTSIDE);
    let times = inside.map(|(thread, _, _, time)| {
        let came = clocks[*thread] + time / 2;
        clocks[*thread] = came + time;
        (came, clocks[*thread])
    });
    times.collect()
}

/// Rule 1: an edge to the first conflicting section of every other thread.
fn naive_edges(
    threads: usize,
    sections: &[(usize, u64, Bytes, Bytes)],
) -> BTreeSet<(usize, usize)> {
    let mut edges = BTreeSet::new();
    for (index, current) in sections.iter().enumerate() {
        for other in (0..threads).filter(|other| *other != current.0) {
            let later = sections.iter().enumerate().skip(index + 1);
            let mut of_other = later.filter(|(_, s)| s.0 == other && s.1 == current.1);
            if let Some((matched, _)) = of_other.find(|(_, s)| naive_conflict(current, s)) {
                edges.insert((index, matched));
            }
        }
    }
    edges
}

/// What follows from the edges and the threads' own orders on each lock.
fn closure(
    sections: &[(usize, u64, Bytes, Bytes)],
    edges: &BTreeSet<(usize, usize)>,
) -> BTreeSet<(usize, usize)> {
    let mut reached: BTreeSet<(usize, usize)> = BTreeSet::new();
    for target in 0..sections.len() {
        for source in (0..target).rev() {
            let (a, b) = (&sections[source], &sections[target]);
            let direct = edges.contains(&(source, target)) || (a.0 == b.0 && a.1 == b.1);
            if direct && !reached.contains(&(source, target)) {
                let before: Vec<usize> =
                    (0..source).filter(|s| reached.contains(&(*s, source))).collect();
                reached.extend(before.into_iter().map(|s| (s, target)));
                reached.insert((source, target));
            }
        }
    }
    reached
}

/// Positions of the sections of `Sections` in the order of the run.
fn positions(r: &Recording, sections: &Sections, steps: &[Step]) -> Vec<usize> {
    let mut next: BTreeMap<(usize, u32), usize> = BTreeMap::new();
    let mut events = vec![0u32; r.threads.len()];
    let inside = steps.iter().filter(|step| step.1 != OUTSIDE);
    for (index, (thread, ..)) in inside.enumerate() {
        next.insert((*thread, events[*thread]), index);
        events[*thread] += 2;
    }
    sections.all().iter().map(|s| next[&(s.thread.index(), s.acquire)]).collect()
}

/// What is wrong with a transformation of a recording.
fn verified(r: &Recording, record: &Transformed) -> Vec<String> {
    let events = |items: &Vec<Item>| {
        let events = items.iter().filter_map(|item| match item {
            Item::Event(event) => Some((*event).into()),
            Item::Access(_) | Item::Kernel(..) => None,
        });
        events.collect()
    };
    let trace = OwnedTrace {
        threads: r.threads.iter().map(events).collect(),
        transformed: Some(record.clone()),
        ..OwnedTrace::default()
    };
    let trace = trace.to_trace().expect("a trace in memory can be written and read");
    let violations = verify::transformed(&trace).expect("it can be read");
    violations.iter().map(ToString::to_string).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn edges_order_what_rule_1_orders((threads, steps) in steps()) {
        let r = record(threads, &steps);
        let sections = r.sections();
        let naive = naive_sections(threads, &steps);
        let position = positions(&r, &sections, &steps);
        let topology = Topology::new(&sections);
        let mut edges = BTreeSet::new();
        for edge in topology.edges() {
            let (source, target) = (position[edge.source.index()], position[edge.target.index()]);
            prop_assert!(naive_conflict(&naive[source], &naive[target]));
            prop_assert_ne!(naive[source].0, naive[target].0);
            edges.insert((source, target));
        }
        let expected = naive_edges(threads, &naive);
        prop_assert!(edges.len() <= expected.len());
        prop_assert_eq!(closure(&naive, &edges), closure(&naive, &expected));
        let alone = naive.iter().filter(|a| {
            !naive.iter().any(|b| a.0 != b.0 && a.1 == b.1 && naive_conflict(a, b))
        });
        prop_assert_eq!(topology.removed() as usize, alone.count());
    }

    /// The verifier shares no code with what it verifies: it finds nothing wrong with the record of
    /// a transformation, and without one of its edges exactly the orders that are lost.
    #[test]
    fn the_record_is_verified((threads, steps) in steps(), without in any::<prop::sample::Index>()) {
        let r = record(threads, &steps);
        let sections = r.sections();
        let naive = naive_sections(threads, &steps);
        let position = positions(&r, &sections, &steps);
        let mut record = Topology::new(&sections).record(&sections);
        prop_assert_eq!(verified(&r, &record), Vec::<String>::new());
        if record.edges.is_empty() {
            return Ok(());
        }
        record.edges.remove(without.index(record.edges.len()));
        let edges = record.edges.iter();
        let edges = edges.map(|edge| (position[edge.source as usize], position[edge.target as usize]));
        let kept = closure(&naive, &edges.collect());
        let lost = (0..naive.len()).any(|second| {
            (0..second).any(|first| {
                let (a, b) = (&naive[first], &naive[second]);
                a.1 == b.1 && naive_conflict(a, b) && !kept.contains(&(first, second))
            })
        });
        let found = verified(&r, &record);
        prop_assert_eq!(!found.is_empty(), lost, "{:?}", found);
        prop_assert!(found.iter().all(|violation| violation.contains("nothing keeps their order")));
    }

    #[test]
    fn sets_and_verdicts_are_those_of_the_text((threads, steps) in steps()) {
        let r = record(threads, &steps);
        let sections = r.sections();
        let naive = naive_sections(threads, &steps);
        let position = positions(&r, &sections, &steps);
        let bytes = |id| -> Bytes {
            sections.sets().get(id).iter().flat_map(|i: &Interval| i.start..i.end).collect()
        };
        for (section, &at) in sections.all().iter().zip(&position) {
            prop_assert_eq!(&bytes(section.reads), &naive[at].2);
            prop_assert_eq!(&bytes(section.writes), &naive[at].3);
        }
        let times = naive_times(threads, &steps);
        let mut expected = Vec::new();
        for lock in 0..2 {
            let of_lock: Vec<usize> = (0..naive.len()).filter(|at| naive[*at].1 == lock).collect();
            for (nth, &second) in of_lock.iter().enumerate() {
                for &first in of_lock[..nth].iter().rev() {
                    let (a, b) = (&naive[first], &naive[second]);
                    let next_to = first == of_lock[nth - 1];
                    if a.0 == b.0 || !(next_to || times[second].0 < times[first].1) {
                        continue;
                    }
                    let verdict = naive_verdict(a, b);
                    expected.push(verdict);
                    if verdict == Verdict::Conflict {
                        break;
                    }
                }
            }
        }
        let found: Vec<_> = pairs(&sections).map(|pair| pair.verdict).collect();
        prop_assert_eq!(found, expected);
    }

    /// An observed replay leaves out what a collector says that it does not want.
    #[test]
    fn repetitions_outside_of_sections_change_nothing((threads, steps) in steps()) {
        let r = record(threads, &steps);
        let (all, fewer) = (r.sections(), r.sections_without_repetitions());
        prop_assert_eq!(all.all(), fewer.all());
        prop_assert_eq!(all.locks(), fewer.locks());
        prop_assert_eq!(all.sets().len(), fewer.sets().len());
        for id in all.all().iter().flat_map(|section| [section.reads, section.writes]) {
            prop_assert_eq!(all.sets().get(id), fewer.sets().get(id));
        }
    }

    /// Fewer constraints cannot take longer on as many cores as threads; true contention waits.
    #[test]
    fn without_ulcps_the_run_is_no_longer((threads, steps) in steps()) {
        let r = record(threads, &steps);
        let measured = measure(&r.sections(), &mut r.replayer(), &Options::default())
            .map_err(|error| TestCaseError::fail(error.to_string()))?;
        let free = measured.ulcp_free_ns.expect("the recorded order satisfies the edges");
        prop_assert!(free <= measured.original_ns);
        for pair in &measured.pairs {
            prop_assert!(pair.alone_ns.is_none_or(|ns| {
                ns >= 0 && ns as u64 <= measured.original_ns - free
            }), "{:?}", measured);
            prop_assert_eq!(&pair.alone_error, &None);
        }
        let naive = naive_sections(threads, &steps);
        if naive_edges(threads, &naive).is_empty() {
            let clocks = (0..threads).map(|thread| {
                let items = r.threads[thread].iter().rev();
                items.filter_map(|item| match item {
                    Item::Event(event) => Some(event.begin),
                    Item::Access(_) | Item::Kernel(..) => None,
                }).next().unwrap_or(0)
            });
            prop_assert_eq!(free, clocks.max().unwrap_or(0));
        }
    }
}

/// Long sections are compacted and lose nothing.
#[test]
fn long_sections_keep_every_byte() {
    let mut r = Recording::new(2);
    for at in 0..60_000u64 {
        r.threads[1].push(Item::Access(Access {
            address: DATA + at * 8,
            pc: 0,
            size: 4,
            kind: Access::READ,
        }));
    }
    r.lock(0, 1, 0x1000, 1);
    for at in 0..20_000u64 {
        r.read(0, DATA + at * 8, 8);
    }
    r.lock(0, 1, 0x2000, 2);
    for at in 0..60_000u64 {
        r.write(0, DATA + at % 40_000 * 8, 8);
    }
    r.unlock(0, 1, 0x1000, 3);
    r.read(0, DATA, 2);
    r.unlock(0, 1, 0x2000, 4);
    r.event(1, 1, EventKind::ThreadExit, 2, 0);
    let sections = r.sections();
    let [outer, inner] = sections.all() else { panic!("two sections") };
    let bytes = |id| sections.sets().get(id).iter().map(|i| i.end - i.start).sum::<u64>();
    assert_eq!((bytes(outer.reads), bytes(outer.writes)), (20_000 * 4, 40_000 * 4));
    assert_eq!((bytes(inner.reads), bytes(inner.writes)), (2, 40_000 * 4));
}
