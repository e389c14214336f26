//! The detector against an exact one, by both relations: all pairs of accesses, and happens-before as a relation on
//! steps. FastTrack finds the first race of each variable, so what is compared is which bytes
//! race, not which pairs.

use crate::program::{Program, Run, Step, code, run};
use proptest::prelude::*;
use refrain_analysis::{Code, Race, Relation};
use refrain_trace::{EventKind, ThreadId, order};
use std::collections::BTreeSet;
use std::ops::Range;

const THREADS: u32 = 3;
const DATA: u64 = 0x10_0000;
const LOCKS: u64 = 0x20_0000;
const WORDS: u64 = 0x30_0000;
const HEAP: u64 = 0x60_1000;
/// Bytes of a block.
const BLOCK: u64 = 8;

/// What an exact detector knows of a step.
struct Known {
    thread: u32,
    /// First byte, bytes, whether it writes, whether it is atomic.
    access: Option<(u64, u64, bool, bool)>,
    /// It is a plain store to a word that synchronizes.
    is_store: bool,
    /// The access comes before what the step acquires.
    is_early: bool,
    /// Memory that is new: accesses before do not count.
    fresh: Range<u64>,
    acquires: Vec<(char, u64)>,
    releases: Vec<(char, u64)>,
}

fn known(thread: u32, step: Step, writing: &mut BTreeSet<(u32, u64)>) -> Known {
    use EventKind::*;
    let mut known = Known {
        thread,
        access: None,
        is_store: false,
        is_early: false,
        fresh: 0..0,
        acquires: Vec::new(),
        releases: Vec::new(),
    };
    match step {
        Step::Read(at, size) => known.access = Some((at, size.into(), false, false)),
        Step::Write(at, size) => {
            let word = (WORDS..LOCKS + WORDS).contains(&at).then_some(('w', at));
            known.access = Some((at, size.into(), true, false));
            known.is_store = word.is_some();
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
        Step::Sync(MutexDestroy, lock) => known.access = Some((lock, 1, true, false)),
        Step::Allocate(at, size) => known.fresh = at..at + size,
        Step::Free(at) => known.access = Some((at, BLOCK, true, false)),
        Step::Kill => known.releases.push(('s', 0)),
        Step::Sync(Signal, _) => known.acquires.push(('s', 0)),
        other => panic!("{other:?} is not generated"),
    }
    known
}

/// What differs to the program: its locks are memory, and not all atomics acquire.
fn to_the_program(number: usize, step: Step, code: &Code, known: &mut Known) {
    let pc = 0x1000 + number as u64;
    match step {
        Step::Sync(kind, lock) if lock != 0 && kind != EventKind::MutexDestroy => {
            known.access = Some((lock, 1, true, true));
            known.is_early = true;
        }
        Step::Rmw(_) | Step::Load(_) if code.silent.iter().any(|range| range.contains(&pc)) => {
            known.acquires.clear();
            known.releases.clear();
        }
        Step::Rmw(_) if code.unused.contains(&pc) => known.acquires.clear(),
        // The processor's atomic loads and stores are plain ones.
        Step::Write(at, size) if known.is_store => {
            known.access = Some((at, size.into(), true, true));
        }
        Step::Read(at, size) if (WORDS..WORDS + 64).contains(&at) => {
            known.access = Some((at, size.into(), false, true));
        }
        _ => {}
    }
}

/// Bytes that two unordered accesses touch of which one writes.
fn racy_bytes(program: &Program, relation: &Relation) -> BTreeSet<u64> {
    let mut writing = BTreeSet::new();
    let mut begun = BTreeSet::new();
    let known = |(number, &(thread, step)): (usize, &(u32, Step))| {
        let mut known = known(thread, step, &mut writing);
        if let Relation::Program(code) = relation {
            to_the_program(number, step, code, &mut known);
        }
        known
    };
    let mut steps: Vec<Known> = program.iter().enumerate().map(known).collect();
    for step in &mut steps {
        if begun.insert(step.thread) {
            step.acquires.push(('t', step.thread.into()));
        }
    }
    // Steps that happen before each, and before each acquires.
    let mut before: Vec<BTreeSet<usize>> = Vec::new();
    let mut early: Vec<BTreeSet<usize>> = Vec::new();
    for (index, step) in steps.iter().enumerate() {
        let mut all = BTreeSet::new();
        let mut own = BTreeSet::new();
        for (earlier, other) in steps[..index].iter().enumerate() {
            let edge = other.releases.iter().any(|object| step.acquires.contains(object));
            if edge || other.thread == step.thread {
                all.extend(before[earlier].iter().copied());
                all.insert(earlier);
            }
            if other.thread == step.thread {
                own.extend(before[earlier].iter().copied());
                own.insert(earlier);
            }
        }
        before.push(all);
        early.push(own);
    }
    let mut racy = BTreeSet::new();
    for (index, step) in steps.iter().enumerate() {
        for (earlier, other) in steps[..index].iter().enumerate() {
            let (Some(a), Some(b)) = (other.access, step.access) else { continue };
            // A replay gives an atomic load its recorded value, whatever comes too early.
            let is_load = |access: (u64, u64, bool, bool)| access.3 && !access.2;
            let is_read = other.is_store && is_load(b) || step.is_store && is_load(a);
            let conflict = (a.2 || b.2) && !(a.3 && b.3) && !is_read;
            let before = if step.is_early { &early[index] } else { &before[index] };
            if conflict && !before.contains(&earlier) {
                let renewed = |byte: &u64| {
                    steps[earlier..index].iter().any(|between| between.fresh.contains(byte))
                };
                let common = a.0.max(b.0)..(a.0 + a.1).min(b.0 + b.1);
                racy.extend(common.filter(|byte| !renewed(byte)));
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

/// The same, with more of what makes a difference to the program: blocks of the heap that are
/// allocated before they are freed, locks that are destroyed, and signals.
fn with_lives(wishes: &[(u32, u8, u64, u16)], mut program: Program) -> Program {
    let mut allocated = [true; 3];
    let mut at = 2.min(program.len());
    let first = (0..3).map(|which| (0, Step::Allocate(HEAP + 16 * which, BLOCK)));
    program.splice(at..at, first);
    at += 3;
    for &(thread, what, which, _) in wishes {
        let block = HEAP + 16 * which;
        let is_allocated = &mut allocated[which as usize];
        let step = match what {
            0..=2 if *is_allocated => Step::Free(block),
            0..=2 => Step::Allocate(block, BLOCK),
            3..=4 => Step::Write(block, 8),
            5..=6 => Step::Read(block + 4, 4),
            7 => Step::Sync(EventKind::MutexDestroy, LOCKS + 64 * which),
            8 => Step::Kill,
            9 => Step::Sync(EventKind::Signal, 0),
            _ => continue,
        };
        if what <= 2 {
            *is_allocated = !*is_allocated;
        }
        // Somewhere among the others, in the order in which they come.
        at = (at + what as usize % 3).min(program.len());
        program.insert(at, (thread, step));
        at += 1;
        // A thread that has used a block after its end forgets so only at its next event.
        if matches!(what, 3..=6) && !*is_allocated {
            program.insert(at, (thread, Step::Kill));
            at += 1;
        }
    }
    program
}

/// What differs between the program's atomics: some leave no result, some are the library's.
fn with_atomics(program: &Program, kinds: &[u8]) -> Code {
    let mut code = code();
    for (number, (_, step)) in program.iter().enumerate() {
        let pc = 0x1000 + number as u64;
        match (step, kinds[number % kinds.len()]) {
            (Step::Rmw(_), 0) => drop(code.unused.insert(pc)),
            (Step::Rmw(_) | Step::Load(_), 1) => code.silent.push(pc..pc + 1),
            _ => {}
        }
    }
    code
}

/// The bytes that were found to race.
fn found(program: &Program, relation: &Relation, aligned: u64, told: bool) -> BTreeSet<u64> {
    let mut run = Run::with(THREADS, program, relation.clone(), told);
    let mut found = BTreeSet::new();
    for (number, &(thread, step)) in program.iter().enumerate() {
        for piece in pieces(step, aligned) {
            run.settle();
            run.step(number, (thread, piece));
            // Of each pair of instructions the last instance is kept: this one.
            let bytes = |race: Race| race.first.address..race.first.address + race.first.size;
            let races = run.races().into_iter().filter(|race| !race.after_free);
            found.extend(races.flat_map(bytes));
        }
    }
    found
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn the_same_bytes_race_to_the_program(
        wishes in wishes(),
        more in wishes(),
        created in any::<bool>(),
        kinds in proptest::collection::vec(0u8..4, 1..9),
        told in any::<bool>(),
    ) {
        let program = with_lives(&more, program(wishes, created));
        let relation = Relation::Program(with_atomics(&program, &kinds));
        prop_assert_eq!(found(&program, &relation, 1, told), racy_bytes(&program, &relation));
    }

    #[test]
    fn the_same_bytes_race(
        wishes in wishes(),
        created in any::<bool>(),
        whole in any::<bool>(),
        told in any::<bool>(),
    ) {
        let program = program(wishes, created);
        let found = found(&program, &Relation::Kept, if whole { 8 } else { 1 }, told);
        let exact = racy_bytes(&program, &Relation::Kept);
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
    assert_eq!(racy_bytes(&program, &Relation::Kept).len(), 8);
    assert_eq!(run(2, &program).len(), 1);
}
