//! The paper's detectors against all pairs of accesses and happens-before as a relation on steps.

use proptest::prelude::*;
use refrain_analysis::paper::{Op, Std, Step, Which, racy_variables};
use std::collections::{BTreeMap, BTreeSet};

const THREADS: u32 = 3;
const PRECISE: [Which; 4] = [Which::BasicVc, Which::Djit, Which::FastTrack, Which::Goldilocks];

/// Variables with two conflicting accesses that nothing orders.
fn exact(steps: &[Step]) -> BTreeSet<u64> {
    let mut before: Vec<BTreeSet<usize>> = Vec::new();
    let mut racy = BTreeSet::new();
    for (at, step) in steps.iter().enumerate() {
        let mut all = BTreeSet::new();
        for (earlier, other) in steps[..at].iter().enumerate() {
            let is_edge = matches!((other.op, step.op), (Op::Release(a), Op::Acquire(b)) if a == b);
            if is_edge || other.thread == step.thread {
                all.extend(before[earlier].iter().copied());
                all.insert(earlier);
            }
        }
        for (earlier, other) in steps[..at].iter().enumerate() {
            let writes = |op| matches!(op, Op::Write(_));
            let (Some(a), Some(b)) = (other.op.variable(), step.op.variable()) else { continue };
            let is_conflict = a == b && (writes(other.op) || writes(step.op));
            let is_new = steps[earlier..at].iter().any(|it| it.op == Op::Fresh(a));
            if is_conflict && !is_new && !all.contains(&earlier) {
                racy.insert(a);
            }
        }
        before.push(all);
    }
    racy
}

/// Locks are objects 0 to 2; 3 is a read-write lock, whose readers leave 4; 5 and 6 are no locks.
fn steps() -> impl Strategy<Value = Vec<Step>> {
    proptest::collection::vec((0..THREADS, 0u8..12, 0u64..3), 1..80).prop_map(possible)
}

/// What can be had of these wishes: locks exclude.
fn possible(wishes: Vec<(u32, u8, u64)>) -> Vec<Step> {
    let mut steps = Vec::new();
    let mut owners: BTreeMap<u64, u32> = BTreeMap::new();
    let mut readers: BTreeSet<u32> = BTreeSet::new();
    for (thread, what, which) in wishes {
        let is_reading = readers.contains(&thread);
        let mut push = |op| steps.push(Step { thread, op, site: 0 });
        match (what, owners.get(&which).copied()) {
            (0..=2, None) => {
                owners.insert(which, thread);
                push(Op::Hold { lock: which, alone: true });
                push(Op::Acquire(which));
            }
            (0..=2, Some(owner)) if owner == thread => {
                owners.remove(&which);
                push(Op::Release(which));
                push(Op::Drop(which));
            }
            (3, _) if is_reading => {
                readers.remove(&thread);
                push(Op::Release(4));
                push(Op::Drop(3));
            }
            (3, _) if which > 0 && !owners.contains_key(&3) => {
                readers.insert(thread);
                push(Op::Hold { lock: 3, alone: false });
                push(Op::Acquire(3));
            }
            (3, _) if readers.is_empty() && !owners.contains_key(&3) => {
                push(Op::Hold { lock: 3, alone: true });
                push(Op::Acquire(3));
                push(Op::Acquire(4));
                push(Op::Write(2));
                push(Op::Release(3));
                push(Op::Drop(3));
            }
            (4, _) => push(Op::Acquire(5 + which % 2)),
            (5, _) => push(Op::Release(5 + which % 2)),
            (6, _) if which == 2 => push(Op::Fresh(0)),
            (7..=8, _) => push(Op::Write(which)),
            (9.., _) => push(Op::Read(which)),
            _ => {}
        }
    }
    steps
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn the_precise_ones_agree(steps in steps()) {
        let exact = exact(&steps);
        for which in PRECISE {
            prop_assert_eq!(&racy_variables(which, &steps), &exact, "{}", which.name());
        }
        let multirace = racy_variables(Which::MultiRace, &steps);
        prop_assert!(multirace.is_subset(&exact), "{:?} of {:?}", multirace, exact);
        prop_assert!(racy_variables(Which::Empty, &steps).is_empty());
    }

    /// RAPID's format keeps what happens before what, and no more. Variables that are new have new
    /// names.
    #[test]
    fn a_trace_says_the_same_in_rapid_s_format(steps in steps()) {
        let std = Std::read(&Std::write(&steps)).expect("what is written is readable");
        let found = racy_variables(Which::FastTrack, &std.steps);
        let name = |variable: &u64| {
            let name = &std.variables[*variable as usize];
            let number = name.trim_start_matches('V').split('.').next();
            number.and_then(|it| it.parse::<u64>().ok()).expect("names are numbers")
        };
        prop_assert_eq!(found.iter().map(name).collect::<BTreeSet<_>>(), exact(&steps));
    }
}

fn step(thread: u32, op: Op) -> Step {
    Step { thread, op, site: 0 }
}

fn found(which: Which, steps: &[(u32, Op)]) -> usize {
    let steps: Vec<Step> = steps.iter().map(|&(thread, op)| step(thread, op)).collect();
    racy_variables(which, &steps).len()
}

/// What a thread does under a lock.
fn locked(thread: u32, lock: u64, op: Op) -> Vec<(u32, Op)> {
    let hold = Op::Hold { lock, alone: true };
    let ops = [hold, Op::Acquire(lock), op, Op::Release(lock), Op::Drop(lock)];
    ops.map(|op| (thread, op)).to_vec()
}

/// A message orders the accesses, of which Eraser knows nothing.
#[test]
fn eraser_names_what_something_else_orders() {
    let steps = [(0, Op::Write(1)), (0, Op::Release(5)), (1, Op::Acquire(5)), (1, Op::Write(1))];
    assert_eq!(found(Which::Eraser, &steps), 1);
    assert_eq!(found(Which::FastTrack, &steps), 0);
}

/// The first thread's accesses count for nothing: so the second one's lock protects the variable.
#[test]
fn eraser_and_multirace_miss_a_race_with_the_first_owner() {
    let mut steps = vec![(0, Op::Write(1))];
    steps.extend(locked(1, 7, Op::Write(1)));
    assert_eq!(found(Which::Eraser, &steps), 0);
    assert_eq!(found(Which::MultiRace, &steps), 0);
    for which in PRECISE {
        assert_eq!(found(which, &steps), 1, "{}", which.name());
    }
}

/// A lock that is held for reading protects no writes.
#[test]
fn eraser_tells_how_locks_are_held() {
    let both = |alone| {
        let access = |thread| [(thread, Op::Hold { lock: 3, alone }), (thread, Op::Write(1))];
        [access(0), access(1)].concat()
    };
    assert_eq!(found(Which::Eraser, &both(false)), 1);
    assert_eq!(found(Which::Eraser, &both(true)), 0);
}

/// The rules of Figure 5, and that a shared write forgets the reads.
#[test]
fn the_rules_of_fasttrack() {
    let mut detector = Which::FastTrack.detector();
    let order = |from, to, object| [(from, Op::Release(object)), (to, Op::Acquire(object))];
    let mut steps = vec![(0, Op::Write(1)), (0, Op::Write(1))];
    steps.extend(order(0, 1, 5));
    steps.extend([(1, Op::Read(1)), (1, Op::Read(1)), (0, Op::Read(1)), (0, Op::Read(1))]);
    steps.extend(order(1, 0, 6));
    steps.extend([(0, Op::Write(1)), (0, Op::Read(1))]);
    let races = steps.iter().filter(|&&(thread, op)| detector.step(&step(thread, op))).count();
    assert_eq!(races, 0);
    let cost = detector.cost();
    let used: Vec<_> = cost.rules.into_iter().filter(|(_, count)| *count > 0).collect();
    let expected = [
        ("read same epoch", 1),
        ("read shared", 1),
        ("read exclusive", 2),
        ("read share", 1),
        ("write same epoch", 1),
        ("write exclusive", 1),
        ("write shared", 1),
    ];
    assert_eq!(used, expected);
    // Two threads, two objects, one variable that is shared.
    assert_eq!(cost.clocks, 5);
}

#[test]
fn text_of_rapid_s() {
    let text = "T0|w(x)|1\nT0|fork(T1)|2\n\nT1|r(x)|3\nT1|acq(l)|4\nT1|w(y)|5\nT1|rel(l)|6\nT0|join(T1)|7\nT0|w(y)|8\nT2|w(x)|9\n";
    let std = Std::read(text).expect("is well formed");
    assert_eq!((std.threads.len(), std.variables.len()), (3, 2));
    for which in PRECISE {
        let racy = racy_variables(which, &std.steps);
        assert_eq!(racy.into_iter().collect::<Vec<_>>(), [0], "{}", which.name());
    }
    let fails = |text| Std::read(text).expect_err("is not well formed").to_string();
    assert_eq!(fails("T0|w(x)|1\nT0"), "line 2: there is no operation");
    assert_eq!(fails("T0|swap(x)|1"), "line 1: \"swap\" is no operation");
    assert_eq!(fails("T0|w(x|1"), "line 1: \"w(x\" has no end");
    assert_eq!(fails("T0|w(x)|y"), "line 1: \"y\" is no place");
}
