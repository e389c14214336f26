//! The paper's detectors against all pairs of accesses and happens-before as a relation on steps.

use proptest::prelude::*;
use refrain_analysis::paper::{Detector, Op, Prefilter, Std, Step, Which, racy_variables};
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

/// Accesses that race with an earlier one, where reads also follow the write that they saw: by the steps
/// before each, and for an access by those before it without what it sees.
fn schedulable(steps: &[Step]) -> BTreeSet<usize> {
    let writes = |op| matches!(op, Op::Write(_));
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
        if let Some(variable) = step.op.variable() {
            let since = steps[..at].iter().rposition(|it| it.op == Op::Fresh(variable));
            let uses = since.map_or(0, |at| at + 1)..at;
            let races = uses.clone().any(|earlier| {
                let other = steps[earlier].op;
                let is_conflict =
                    other.variable() == Some(variable) && (writes(other) || writes(step.op));
                is_conflict && !all.contains(&earlier)
            });
            if races {
                racy.insert(at);
            }
            let seen = uses.rev().find(|&earlier| steps[earlier].op == Op::Write(variable));
            if let (false, Some(seen)) = (writes(step.op), seen) {
                all.extend(before[seen].iter().copied());
                all.insert(seen);
            }
        }
        before.push(all);
    }
    racy
}

/// The first step after which transactions (critical sections, and other steps by themselves) cannot be
/// put in an order, by the graph of all steps before it.
fn not_serializable(steps: &[Step]) -> Option<usize> {
    // The transaction of each step, by its first step.
    let (mut blocks, mut transactions) = (BTreeMap::<u32, (usize, u32)>::new(), Vec::new());
    for (at, step) in steps.iter().enumerate() {
        let block = blocks.entry(step.thread).or_insert((at, 0));
        if block.1 == 0 {
            block.0 = at;
        }
        transactions.push(block.0);
        match step.op {
            Op::Hold { .. } => block.1 += 1,
            Op::Drop(_) => block.1 -= 1,
            _ => {}
        }
    }
    let mut edges: BTreeSet<(usize, usize)> = BTreeSet::new();
    for (at, step) in steps.iter().enumerate() {
        for (earlier, other) in steps[..at].iter().enumerate() {
            let writes = |op| matches!(op, Op::Write(_));
            let conflict = match (other.op.variable(), step.op.variable()) {
                (Some(a), Some(b)) if a == b => {
                    let is_new = steps[earlier..at].iter().any(|it| it.op == Op::Fresh(a));
                    !is_new && (writes(other.op) || writes(step.op))
                }
                _ => false,
            };
            let order = matches!((other.op, step.op), (Op::Release(a), Op::Acquire(b)) if a == b);
            let edge = (transactions[earlier], transactions[at]);
            if (conflict || order || other.thread == step.thread) && edge.0 != edge.1 {
                edges.insert(edge);
            }
        }
        if has_cycle(&edges) {
            return Some(at);
        }
    }
    None
}

/// Whether something is left when what has no predecessor is taken away again and again.
fn has_cycle(edges: &BTreeSet<(usize, usize)>) -> bool {
    let mut left = edges.clone();
    loop {
        let targets: BTreeSet<usize> = left.iter().map(|edge| edge.1).collect();
        let before = left.len();
        left.retain(|edge| targets.contains(&edge.0));
        if left.len() == before {
            return !left.is_empty();
        }
    }
}

/// Locks are objects 0 to 2; 3 is a read-write lock, whose readers leave 4; 5 and 6 are no locks.
fn steps() -> impl Strategy<Value = Vec<Step>> {
    up_to(80)
}

fn up_to(most: usize) -> impl Strategy<Value = Vec<Step>> {
    proptest::collection::vec((0..THREADS, 0u8..12, 0u64..3), 1..most).prop_map(possible)
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

    #[test]
    fn shb_names_what_can_be_scheduled(steps in steps()) {
        let found = steps_found(&mut *Which::Shb.detector(), &steps);
        prop_assert_eq!(&found, &schedulable(&steps));
        // Both relations name the same first race, and SHB names none that happens-before orders.
        let open = steps_found(&mut *Which::BasicVc.detector(), &steps);
        prop_assert_eq!(found.first(), open.first());
        prop_assert!(found.is_subset(&open));
    }

    /// What locks order is a race for SingleTrack, and nothing else.
    #[test]
    fn singletrack_knows_no_locks(steps in steps()) {
        let lockless: Vec<Step> = steps
            .iter()
            .filter(|it| !matches!(it.op, Op::Acquire(0..5) | Op::Release(0..5)))
            .copied()
            .collect();
        prop_assert_eq!(racy_variables(Which::SingleTrack, &steps), exact(&lockless));
    }

    /// Behind a filter there is nothing that is not there without, and behind none all of it.
    #[test]
    fn prefilters_only_leave_out(steps in steps()) {
        for analysis in Which::BEHIND_FILTERS {
            let all = steps_found(&mut *analysis.detector(), &steps);
            for filter in Prefilter::ALL {
                let found = steps_found(&mut *filter.before(analysis), &steps);
                if filter == Prefilter::None {
                    prop_assert_eq!(&found, &all);
                } else if analysis == Which::SingleTrack {
                    prop_assert!(found.is_subset(&all), "{}", filter.name());
                } else {
                    // Which transaction closes a cycle depends on what is seen of it.
                    prop_assert!(found.is_empty() || !all.is_empty(), "{}", filter.name());
                }
            }
        }
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

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn velodrome_finds_the_first_cycle(steps in up_to(80)) {
        let mut detector = Which::Velodrome.detector();
        prop_assert_eq!(steps.iter().position(|it| detector.step(it)), not_serializable(&steps));
    }
}

fn steps_found(detector: &mut dyn Detector, steps: &[Step]) -> BTreeSet<usize> {
    (0..steps.len()).filter(|&at| detector.step(&steps[at])).collect()
}

/// A transaction with two predecessors, of which one is the other's predecessor, is forgotten once when
/// they are: it has a place that is used again.
#[test]
fn a_transaction_is_forgotten_once() {
    let hold = |lock| Op::Hold { lock, alone: true };
    let mut steps = vec![(0, hold(1)), (0, Op::Write(10)), (1, hold(2)), (1, Op::Read(10))];
    steps.extend([(1, Op::Write(11)), (1, Op::Drop(2)), (2, hold(3)), (1, hold(2))]);
    steps.extend([(2, Op::Read(11)), (1, Op::Write(12)), (2, Op::Read(12))]);
    steps.extend([(1, Op::Drop(2)), (2, Op::Drop(3)), (0, Op::Drop(1))]);
    // Now nobody is under way, and then three are.
    steps.extend([(0, hold(1)), (1, hold(2)), (2, hold(3)), (0, Op::Write(13)), (0, Op::Drop(1))]);
    steps.extend([(1, Op::Read(13)), (1, Op::Write(14)), (2, Op::Read(14)), (2, Op::Write(15))]);
    let whole = steps.len();
    steps.push((1, Op::Read(15)));
    let steps: Vec<Step> = steps.iter().map(|&(thread, op)| step(thread, op)).collect();
    assert_eq!(not_serializable(&steps), Some(whole));
    let found = steps_found(&mut *Which::Velodrome.detector(), &steps);
    assert_eq!(found.into_iter().collect::<Vec<_>>(), [whole]);
}

/// A flag is passed without order, and what it guards after it: only the flag can be raced for.
#[test]
fn what_a_racing_flag_guards_is_no_second_race() {
    let steps = [(0, Op::Write(1)), (0, Op::Write(2)), (1, Op::Read(2)), (1, Op::Read(1))];
    assert_eq!(found(Which::FastTrack, &steps), 2);
    assert_eq!(found(Which::Shb, &steps), 1);
}

/// Two sections of one lock in a section of another, and what comes between them.
#[test]
fn a_section_that_others_see_half_done() {
    let mut steps = vec![(0, Op::Hold { lock: 0, alone: true }), (0, Op::Acquire(0))];
    steps.extend(locked(0, 1, Op::Write(1)));
    steps.extend(locked(1, 1, Op::Write(1)));
    let whole = steps.len();
    steps.extend(locked(0, 1, Op::Read(1)));
    let steps: Vec<Step> = steps.iter().map(|&(thread, op)| step(thread, op)).collect();
    let found = steps_found(&mut *Which::Velodrome.detector(), &steps);
    // The inner lock's acquisition closes the cycle, and the access closes it again.
    assert_eq!(found.into_iter().collect::<Vec<_>>(), [whole + 1, whole + 2]);
    assert!(racy_variables(Which::FastTrack, &steps).is_empty());
    // No variable races: nothing but locks gets through FastTrack.
    let behind =
        steps_found(&mut *Prefilter::By(Which::FastTrack).before(Which::Velodrome), &steps);
    assert_eq!(behind.len(), 1);
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
