//! The detector against an exact one: all pairs of accesses, and happens-before as a relation on
//! steps. FastTrack finds the first race of each variable, so what is compared is which bytes
//! race, not which pairs.

use crate::program::{Program, Run, Step, run};
use proptest::prelude::*;
use refrain_analysis::Race;
use refrain_trace::{EventKind, ThreadId, order};
use std::collections::BTreeSet;

const THREADS: u32 = 3;
const DATA: u64 = 0x10_0000;
const LOCKS: u64 = 0x20_0000;
const WORDS: u64 = 0x30_0000;

/// What an exact detector knows of a step.
struct Known {
    thread: u32,
    /// First byte, bytes, whether it writes, whether it is atomic.
    access: Option<(u64, u64, bool, bool)>,
    acquires: Vec<(char, u64)>,
    releases: Vec<(char, u64)>,
}

fn known(thread: u32, step: Step, writing: &mut BTreeSet<(u32, u64)>) -> Known {
    use EventKind::*;
    let mut known = Known { thread, access: None, acquires: Vec::new(), releases: Vec::new() };
    match step {
        Step::Read(at, size) => known.access = Some((at, size.into(), false, false)),
        Step::Write(at, size) => {
            let word = (WORDS..LOCKS + WORDS).contains(&at).then_some(('w', at));
            known.access = Some((at, size.into(), true, word.is_some()));
            known.releases.extend(word);
        }
        Step::Rmw(at) => {
            known.access = Some((at, 4, true, true));
            known.acquires.push(('w', at));
            known.releases.push(('w', at));
        }
        Step::Load(at) => {
            known.access = Some((at, 4, false, true));
            known.acquires.push(('w', at));
        }
        Step::Sync(MutexLock, lock) => known.acquires.push(('l', lock)),
        Step::Sync(MutexUnlock, lock) => known.releases.push(('l', lock)),
        Step::Sync(ReadLock, lock) => known.acquires.push(('l', lock)),
        Step::Sync(WriteLock, lock) => {
            writing.insert((thread, lock));
            known.acquires.extend([('l', lock), ('r', lock)]);
        }
        Step::Sync(RwUnlock, lock) => {
            let kind = if writing.remove(&(thread, lock)) { 'l' } else { 'r' };
            known.releases.push((kind, lock));
        }
        Step::Sync(ThreadExit, _) => {}
        Step::Create(child) => known.releases.push(('t', child.into())),
        other => panic!("{other:?} is not generated"),
    }
    known
}

/// Bytes that two unordered accesses touch of which one writes.
fn racy_bytes(program: &Program) -> BTreeSet<u64> {
    let mut writing = BTreeSet::new();
    let mut begun = BTreeSet::new();
    let mut steps: Vec<Known> =
        program.iter().map(|&(thread, step)| known(thread, step, &mut writing)).collect();
    for step in &mut steps {
        if begun.insert(step.thread) {
            step.acquires.push(('t', step.thread.into()));
        }
    }
    // Steps that happen before each.
    let mut before: Vec<BTreeSet<usize>> = Vec::new();
    for (index, step) in steps.iter().enumerate() {
        let mut all = BTreeSet::new();
        for (earlier, other) in steps[..index].iter().enumerate() {
            let edge = other.releases.iter().any(|object| step.acquires.contains(object));
            if edge || other.thread == step.thread {
                all.extend(before[earlier].iter().copied());
                all.insert(earlier);
            }
        }
        before.push(all);
    }
    let mut racy = BTreeSet::new();
    for (index, step) in steps.iter().enumerate() {
        for (earlier, other) in steps[..index].iter().enumerate() {
            let (Some(a), Some(b)) = (other.access, step.access) else { continue };
            let conflict = (a.2 || b.2) && !(a.3 && b.3);
            if conflict && !before[index].contains(&earlier) {
                racy.extend((a.0.max(b.0)..(a.0 + a.1).min(b.0 + b.1)).collect::<Vec<_>>());
            }
        }
    }
    racy
}

/// An access, as many aligned bytes at a time.
fn pieces(step: Step, aligned: u64) -> Vec<Step> {
    let cut = |at: u64, size: u16, make: fn(u64, u16) -> Step| {
        let bytes: Vec<u64> = (at..at + u64::from(size)).collect();
        let same = |a: &u64, b: &u64| a / aligned == b / aligned;
        bytes.chunk_by(same).map(|piece| make(piece[0], piece.len() as u16)).collect()
    };
    match step {
        Step::Read(at, size) => cut(at, size, Step::Read),
        Step::Write(at, size) => cut(at, size, Step::Write),
        other => vec![other],
    }
}

/// Threads' wishes; what cannot be had when its turn comes is left out.
fn wishes() -> impl Strategy<Value = Vec<(u32, u8, u64, u16)>> {
    proptest::collection::vec((0..THREADS, 0u8..13, 0u64..3, 1u16..20), 1..60)
}

/// Makes a program that could happen: locks exclude, and threads run once they are created.
fn program(wishes: Vec<(u32, u8, u64, u16)>, created: bool) -> Program {
    use EventKind::*;
    let mut program: Program = Vec::new();
    if created {
        program.extend([(0, Step::Create(1)), (1, Step::Create(2))]);
    }
    // By lock: who holds it, and whether for writing.
    let mut held: [Vec<(u32, bool)>; 3] = Default::default();
    for (thread, what, which, size) in wishes {
        let index = which as usize;
        let (lock, word) = (LOCKS + 64 * which, WORDS + 8 * which);
        let at = DATA + 5 * which + u64::from(size) % 3;
        let holds = held[index].iter().position(|&(holder, _)| holder == thread);
        let rw = index == 2;
        let step = match (what, holds) {
            (0..=1, None) if held[index].is_empty() => {
                held[index].push((thread, true));
                Step::Sync(if rw { WriteLock } else { MutexLock }, lock)
            }
            (2..=3, None) if rw && held[index].iter().all(|&(_, writing)| !writing) => {
                held[index].push((thread, false));
                Step::Sync(ReadLock, lock)
            }
            (0..=3, Some(held_at)) => {
                held[index].remove(held_at);
                Step::Sync(if rw { RwUnlock } else { MutexUnlock }, lock)
            }
            (4..=5, _) => Step::Rmw(word),
            (6, _) => Step::Load(word),
            (7, _) => Step::Write(word, 4),
            (8, _) => Step::Read(word, 4),
            (9..=10, _) => Step::Write(at, size),
            _ => Step::Read(at, size),
        };
        program.push((thread, step));
    }
    // Words are known as such wherever they are written to.
    program.extend((0..3).map(|which| (0, Step::Rmw(WORDS + 8 * which))));
    program
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn the_same_bytes_race(wishes in wishes(), created in any::<bool>(), whole in any::<bool>()) {
        let program = program(wishes, created);
        let mut run = Run::new(THREADS, &program);
        let mut found = BTreeSet::new();
        for (number, &(thread, step)) in program.iter().enumerate() {
            for piece in pieces(step, if whole { 8 } else { 1 }) {
                run.settle();
                run.step(number, (thread, piece));
                // Of each pair of instructions the last instance is kept: this one.
                let bytes = |race: Race| race.first.address..race.first.address + race.first.size;
                found.extend(run.races().into_iter().flat_map(bytes));
            }
        }
        let exact = racy_bytes(&program);
        if whole {
            // A race names the first bytes that it is about, of which eight lie together.
            prop_assert!(found.is_subset(&exact), "{:?} of {:?}", found, exact);
            let cells = |bytes: &BTreeSet<u64>| bytes.iter().map(|at| at / 8).collect::<BTreeSet<_>>();
            prop_assert_eq!(cells(&found), cells(&exact));
        } else {
            prop_assert_eq!(found, exact);
        }
    }
}

#[test]
fn a_thread_that_ends_is_no_edge_to_others() {
    let end = Step::Sync(EventKind::ThreadExit, order::thread_object(ThreadId(1)));
    let program = vec![(1, Step::Write(DATA, 8)), (1, end), (0, Step::Write(DATA, 8))];
    assert_eq!(racy_bytes(&program).len(), 8);
    assert_eq!(run(2, &program).len(), 1);
}
