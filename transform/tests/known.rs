//! Small runs whose critical sections, pairs, edges and gains can be worked out by hand.

mod common;

use common::Recording;
use refrain_trace::EventKind::*;
use refrain_trace::{Access, AuxLock, EventId, ThreadId};
use refrain_transform::*;

const L: u64 = 0x1000;
const M: u64 = 0x2000;
/// Shared data.
const X: u64 = 0x10_0000;
const Y: u64 = 0x10_0008;

fn section(r: &mut Recording, thread: usize, inside: u64, accesses: &[(u64, u16)]) {
    r.lock(thread, 0, L, 0x100);
    for &(address, kind) in accesses {
        r.access(thread, address, 8, kind);
    }
    r.unlock(thread, inside, L, 0x110);
}

fn verdicts(r: &Recording) -> Vec<Verdict> {
    pairs(&r.sections()).map(|pair| pair.verdict).collect()
}

/// PerfPlay, Figures 7 and 8: T1 `R1 R2`, T2 `R2 W1`, T3 `W1 W1`, all under L. The partial order
/// given with Rule 2 is R1(T1), W1(T3), W1(T2), W1(T3).
fn figure_7() -> Recording {
    let mut r = Recording::new(3);
    r.share(X, 8);
    r.share(Y, 8);
    section(&mut r, 0, 1, &[(X, Access::READ)]); // 0: R1(T1)
    section(&mut r, 1, 1, &[(Y, Access::READ)]); // 1: R2(T2)
    section(&mut r, 0, 1, &[(Y, Access::READ)]); // 2: R2(T1)
    section(&mut r, 2, 1, &[(X, Access::WRITE)]); // 3: W1(T3), first
    section(&mut r, 1, 1, &[(X, Access::WRITE)]); // 4: W1(T2)
    section(&mut r, 2, 1, &[(X, Access::WRITE)]); // 5: W1(T3), second
    r
}

#[test]
fn figures_7_and_8() {
    let sections = figure_7().sections();
    let topology = Topology::new(&sections);
    let edges: Vec<_> = topology.edges().iter().map(|e| (e.source.0, e.target.0)).collect();
    // R1(T1) → W1(T2) of the figure follows from the other two.
    assert_eq!(edges, [(0, 3), (3, 4), (4, 5)]);
    assert_eq!(topology.removed(), 2, "R2 of T1 and of T2 are standalone");
    // @L0, @L1, @L2 are the paper's @L11, @L31, @L21: nodes with an outdegree.
    assert_eq!(topology.aux_locks(), 3);
    assert_eq!(topology.aux_lock(SectionId(1)), None);
    assert_eq!(topology.lockset(SectionId(0)), [AuxLock(0)]);
    assert_eq!(topology.lockset(SectionId(3)), [AuxLock(0), AuxLock(1)], "LS of W1(T3)");
    assert_eq!(topology.lockset(SectionId(2)), []);
    let plan = topology.plan(&sections);
    assert_eq!(plan.freed, [L]);
    assert_eq!(
        plan.edges[0],
        PlanEdge { target_thread: ThreadId(2), target: 0, source_thread: ThreadId(0), source: 1 }
    );
}

#[test]
fn algorithm_1() {
    let (read, write) = (Access::READ, Access::WRITE);
    let two = |a: &[(u64, u16)], b: &[(u64, u16)]| {
        let mut r = Recording::new(2);
        r.share(X, 16);
        section(&mut r, 0, 1, a);
        section(&mut r, 1, 1, b);
        verdicts(&r)[0]
    };
    let ulcp = Verdict::Ulcp;
    assert_eq!(two(&[], &[(X, write)]), ulcp(UlcpKind::NullLock));
    assert_eq!(two(&[(X, write)], &[(0x999_0000, write)]), ulcp(UlcpKind::NullLock), "private");
    assert_eq!(two(&[(X, read)], &[(X, read)]), ulcp(UlcpKind::ReadRead));
    assert_eq!(two(&[(X, read)], &[(Y, write)]), ulcp(UlcpKind::DisjointWrite));
    assert_eq!(two(&[(X, write)], &[(Y, write)]), ulcp(UlcpKind::DisjointWrite));
    assert_eq!(two(&[(X, write)], &[(X, read)]), Verdict::Conflict);
    assert_eq!(two(&[(X, read)], &[(X, write)]), Verdict::Conflict);
    assert_eq!(two(&[(X, Access::ATOMIC)], &[(X, read)]), Verdict::Conflict);
    assert_eq!(two(&[(X, write)], &[(X + 7, write)]), Verdict::Conflict, "one byte in common");
}

#[test]
fn a_read_read_pair_costs_what_it_waits() {
    let mut r = Recording::new(2);
    r.share(X, 8);
    r.lock(0, 10, L, 0x100);
    r.read(0, X, 8);
    r.unlock(0, 50, L, 0x110);
    r.lock(1, 20, L, 0x100);
    r.read(1, X, 8);
    r.unlock(1, 30, L, 0x110);
    r.event(0, 5, ThreadExit, 1, 0);
    r.event(1, 5, ThreadExit, 2, 0);
    let measured = measure(&r.sections(), &mut r.replayer(), &Options::default()).expect("replays");
    let report = rank(&measured, measured.check_ns.unwrap_or(0), &mut ());
    assert_eq!(report.original_ns, 60 + 30 + 5);
    assert_eq!(report.ulcp_free_ns, Some(65));
    assert_eq!(report.analysed.contended, 1);
    let [group] = &report.groups[..] else { panic!("{report:?}") };
    // Time3 was 95 and is 55, but Time2 is 65 in both; Time1 is 0 in both.
    assert_eq!(group.delta_ns, 95 - 65);
    assert_eq!(group.alone_ns, Some(30));
    assert_eq!((group.kind, group.pairs, group.share), (UlcpKind::ReadRead, 1, 1.0));
    assert_eq!(group.first.pc, 0x100);
    let json = serde_json::to_value(&report).expect("serialises");
    assert_eq!(json["groups"][0]["kind"], "read-read");
    let wire = serde_json::to_string(&measured).expect("serialises");
    assert_eq!(serde_json::from_str::<Measurement>(&wire).expect("reads"), measured);
}

#[test]
fn true_contention_is_not_ranked_and_keeps_its_time() {
    let mut r = Recording::new(2);
    for (thread, work) in [(0, 10), (1, 20), (0, 1), (1, 1)] {
        r.lock(thread, work, L, 0x100);
        r.access(thread, X, 4, Access::READ | Access::WRITE);
        r.unlock(thread, 40, L, 0x110);
    }
    let measured = measure(&r.sections(), &mut r.replayer(), &Options::default()).expect("replays");
    let report = rank(&measured, measured.check_ns.unwrap_or(0), &mut ());
    assert!(report.groups.is_empty());
    assert_eq!(report.analysed.tlcps, 3);
    assert_eq!(Some(report.original_ns), report.ulcp_free_ns);
}

#[test]
fn one_group_fixed_alone_keeps_the_order_of_the_others() {
    // Site 0x100 reads, site 0x200 reads, on one lock; only 0x100 with itself is fixed alone.
    let mut r = Recording::new(3);
    r.share(X, 8);
    for (thread, pc) in [(0, 0x100), (1, 0x100), (2, 0x200)] {
        r.lock(thread, 0, L, pc);
        r.read(thread, X, 8);
        r.unlock(thread, 50, L, pc + 0x10);
    }
    let measured = measure(&r.sections(), &mut r.replayer(), &Options::default()).expect("replays");
    assert_eq!((measured.original_ns, measured.ulcp_free_ns), (150, Some(50)));
    let report = rank(&measured, measured.check_ns.unwrap_or(0), &mut ());
    let alone = |a, b| {
        let is = |group: &&Group| (group.first.pc, group.second.pc) == (a, b);
        report.groups.iter().find(is).expect("a group").alone_ns
    };
    assert_eq!(alone(0x100, 0x100), Some(50), "two at once, then the third");
    assert_eq!(alone(0x100, 0x200), Some(50), "the third need wait for neither");
}

#[test]
fn nesting_recursion_and_hand_over_hand() {
    let mut r = Recording::new(2);
    for at in [X, Y, X + 16, X + 24] {
        r.share(at, 8);
    }
    r.lock(0, 1, L, 1); // e0
    r.read(0, X, 8);
    r.lock(0, 1, L, 2); // e1: recursive
    r.lock(0, 1, M, 3); // e2
    r.write(0, Y, 8);
    r.unlock(0, 1, L, 4); // e3: inner
    r.write(0, X + 16, 8);
    r.unlock(0, 1, L, 5); // e4: outer, before M
    r.read(0, X + 24, 8);
    r.unlock(0, 1, M, 6); // e5
    r.read(0, X, 8);
    let sections = r.sections();
    let [l, m] = sections.all() else { panic!("{sections:?}") };
    let bytes = |id| -> Vec<_> {
        sections.sets().get(id).iter().map(|i: &Interval| (i.start - X, i.end - X)).collect()
    };
    assert_eq!((l.acquire, l.release, m.acquire, m.release), (0, 4, 2, 5));
    assert_eq!(bytes(l.reads), [(0, 8)]);
    assert_eq!(bytes(l.writes), [(8, 24)]);
    assert_eq!(bytes(m.reads), [(24, 32)]);
    assert_eq!(bytes(m.writes), [(8, 24)]);
    let region = sections.regions()[l.region.index()];
    assert_eq!((region.acquire, region.release), (1, 5));
}

#[test]
fn a_condition_wait_makes_two_sections_and_a_spurious_null_lock() {
    let mut r = Recording::new(2);
    r.share(X, 8);
    r.lock(0, 1, L, 0x100);
    r.read(0, X, 8);
    r.event(0, 1, CondWaitBegin, L, 0x108).value = 0x3000;
    r.lock(1, 50, L, 0x200);
    r.write(1, X, 8);
    r.event(1, 1, CondSignal, 0x3000, 0x204);
    r.unlock(1, 1, L, 0x208);
    let wake = r.event(0, 0, CondWaitEnd, L, 0x108);
    (wake.value, wake.aux) = (0x3000, 1);
    r.unlock(0, 1, L, 0x110);
    let sections = r.sections();
    assert_eq!(sections.all().len(), 3);
    assert!(sections.all()[2].after_wait && sections.all()[2].is_null());
    assert_eq!(verdicts(&r), [Verdict::Conflict, Verdict::OfWaits]);
    let topology = Topology::new(&sections);
    assert_eq!(topology.edges().len(), 2, "the second half keeps its place");
    let measured = measure(&sections, &mut r.replayer(), &Options::default()).expect("replays");
    let report = rank(&measured, measured.check_ns.unwrap_or(0), &mut ());
    assert!(report.groups.is_empty());
    assert_eq!(report.spurious.len(), 1);
    assert_eq!(Some(report.original_ns), report.ulcp_free_ns);
}

#[test]
fn looks_before_waits_on_a_condition_variable_need_their_lock() {
    let mut r = Recording::new(3);
    r.share(X, 8);
    r.lock(2, 0, L, 0x300);
    r.write(2, X, 8);
    r.unlock(2, 1, L, 0x308);
    for thread in [0, 1] {
        r.lock(thread, 10, L, 0x100);
        r.read(thread, X, 8);
        r.event(thread, 1, CondWaitBegin, L, 0x108).value = 0x3000;
    }
    // Who only reads and does not wait may as well do so without the lock.
    r.lock(2, 20, L, 0x200);
    r.read(2, X, 8);
    r.unlock(2, 1, L, 0x208);
    use Verdict::*;
    assert_eq!(verdicts(&r), [Conflict, OfWaits, Ulcp(UlcpKind::ReadRead)]);
    let sections = r.sections();
    let measured = measure(&sections, &mut r.replayer(), &Options::default()).expect("replays");
    let report = rank(&measured, measured.check_ns.unwrap_or(0), &mut ());
    assert_eq!((report.groups.len(), report.spurious.len()), (1, 1));
}

#[test]
fn readers_of_a_lock_make_no_pair_and_a_broken_lock_is_left_alone() {
    let mut r = Recording::new(3);
    r.share(X, 8);
    for thread in [0, 1] {
        r.event(thread, 1, ReadLock, L, 0x100);
        r.read(thread, X, 8);
        r.event(thread, 1, RwUnlock, L, 0x110);
    }
    r.event(2, 1, WriteLock, L, 0x200);
    r.write(2, X, 8);
    r.event(2, 1, RwUnlock, L, 0x210);
    assert_eq!(verdicts(&r), [Verdict::Conflict]);
    let topology = Topology::new(&r.sections());
    assert_eq!(topology.edges().len(), 2, "the writer waits for both readers");
    // Somebody else unlocks.
    r.event(1, 1, MutexLock, M, 0x300);
    r.event(2, 1, MutexUnlock, M, 0x310);
    r.event(0, 1, MutexLock, M, 0x300);
    r.event(0, 1, MutexUnlock, M, 0x310);
    let sections = r.sections();
    let kind = LockKind::Irregular(Irregularity::NeverReleased);
    assert_eq!(sections.locks()[1].kind, kind);
    assert_eq!(verdicts(&r).len(), 1);
    assert_eq!(Topology::new(&sections).plan(&sections).freed, [L]);
}

#[test]
fn every_reader_that_waited_behind_a_writer_is_a_pair() {
    let mut r = Recording::new(5);
    r.share(X, 16);
    r.event(0, 10, WriteLock, L, 0x200);
    r.write(0, X, 8);
    r.event(0, 100, RwUnlock, L, 0x210);
    for thread in 1..4 {
        r.event(thread, 50, ReadLock, L, 0x100);
        r.read(thread, Y, 8);
        r.event(thread, 80, RwUnlock, L, 0x110);
    }
    // Comes when the first three have it: waits for them, not for the writer.
    r.event(4, 120, WriteLock, L, 0x200);
    r.write(4, X, 8);
    r.event(4, 1, RwUnlock, L, 0x210);
    // Comes when nobody has it.
    r.event(1, 300, ReadLock, L, 0x100);
    r.read(1, Y, 8);
    r.event(1, 1, RwUnlock, L, 0x110);
    let sections = r.sections();
    let disjoint = Verdict::Ulcp(UlcpKind::DisjointWrite);
    let found: Vec<_> = pairs(&sections).map(|p| (p.first.0, p.second.0, p.waited)).collect();
    assert!(pairs(&sections).all(|pair| pair.verdict == disjoint));
    let behind = [(0, 1, true), (0, 2, true), (0, 3, true)];
    let writer = [(3, 4, true), (2, 4, true), (1, 4, true)];
    assert_eq!(found, [&behind[..], &writer[..], &[(4, 5, false)]].concat());
}

#[test]
fn the_search_ends_at_a_true_contention() {
    let mut r = Recording::new(3);
    r.share(X, 16);
    // t2 comes first, and waits for both.
    for (thread, work, at) in [(0, 1, X), (1, 2, Y), (2, 0, Y)] {
        r.lock(thread, work, L, 0x100);
        r.write(thread, at, 8);
        r.unlock(thread, 50 * (thread as u64 + 1), L, 0x110);
    }
    let found: Vec<_> = pairs(&r.sections()).map(|p| (p.first.0, p.second.0, p.verdict)).collect();
    let disjoint = Verdict::Ulcp(UlcpKind::DisjointWrite);
    assert_eq!(found, [(0, 1, disjoint), (1, 2, Verdict::Conflict)]);
}

#[test]
fn ordered_events_and_the_kernel_touch_memory_too() {
    // The queue of a thread pool: `while (queue == 0) wait;` makes its loads events.
    let mut r = Recording::new(2);
    r.lock(0, 1, L, 0x100);
    r.event(0, 1, SyncLoad, X, 0x104).nr = 4;
    r.unlock(0, 1, L, 0x110);
    r.lock(1, 1, L, 0x200);
    r.event(1, 1, Atomic, X, 0x204).nr = 4;
    r.unlock(1, 1, L, 0x210);
    r.lock(0, 1, M, 0x100);
    r.kernel(0, X..X + 4, 0..0);
    r.unlock(0, 1, M, 0x110);
    r.lock(1, 1, M, 0x200);
    r.kernel(1, 0..0, X..X + 4);
    r.unlock(1, 1, M, 0x210);
    assert_eq!(verdicts(&r), [Verdict::Conflict, Verdict::Conflict]);
}

#[test]
fn a_lock_around_atomic_variables_is_no_null_lock() {
    // Each section changes two variables; the lock keeps them consistent.
    let mut r = Recording::new(2);
    for thread in 0..2 {
        r.lock(thread, 1, L, 0x100);
        r.event(thread, 1, Atomic, X, 0x104).nr = 8;
        r.event(thread, 1, Atomic, Y, 0x108).nr = 8;
        r.unlock(thread, 1, L, 0x110);
    }
    assert_eq!(verdicts(&r), [Verdict::Conflict]);
    let atomic = [Interval { start: X, end: X + 16 }];
    let found = |r: &Recording| {
        let sections = Sections::merge(r.collectors(), &[], &atomic).expect("a sound recording");
        let found: Vec<_> = pairs(&sections).map(|pair| pair.verdict).collect();
        (found, Topology::new(&sections).edges().len())
    };
    assert_eq!(found(&r), (vec![Verdict::AtomicOnly], 1), "and it keeps its order");
    // With plain data beside, it is a true contention.
    for thread in 0..2 {
        r.lock(thread, 1, L, 0x100);
        r.event(thread, 1, Atomic, X, 0x104).nr = 8;
        r.write(thread, X + 0x100, 8);
        r.unlock(thread, 1, L, 0x110);
    }
    assert_eq!(found(&r).0.last(), Some(&Verdict::Conflict));
}

#[test]
fn a_spin_lock_may_be_released_before_anybody_had_it() {
    // glibc's `pthread_spin_init` is `pthread_spin_unlock`.
    let mut r = Recording::new(3);
    r.share(X, 8);
    r.event(2, 0, SpinUnlock, L, 0x90);
    for thread in [0, 1] {
        r.event(thread, 1, SpinLock, L, 0x100);
        r.read(thread, X, 8);
        r.event(thread, 1, SpinUnlock, L, 0x110);
    }
    assert_eq!(verdicts(&r), [Verdict::Ulcp(UlcpKind::ReadRead)]);
}

#[test]
fn a_replay_that_does_not_end_is_reported_and_costs_nothing_else() {
    struct Stubborn<R>(R);
    impl<R: Replayer> Replayer for Stubborn<R> {
        fn replay(
            &mut self,
            plan: Option<&Plan>,
            cores: Cores,
            visit: &mut dyn FnMut(ThreadId, EventId, u64, u64),
        ) -> Result<u64, String> {
            if plan.is_some() { Err("deadlock".into()) } else { self.0.replay(plan, cores, visit) }
        }
        fn nanoseconds(&self, ticks: u64) -> u64 {
            self.0.nanoseconds(ticks)
        }
    }
    let mut r = Recording::new(2);
    for thread in 0..2 {
        section(&mut r, thread, 50, &[(X, Access::READ)]);
    }
    let measured = measure(&r.sections(), &mut Stubborn(r.replayer()), &Options::default());
    let report = rank(&measured.expect("the original replays"), 0, &mut ());
    let why = report.ulcp_free_error.expect("the replay did not end");
    assert_eq!(why, "the replay of the transformed skeleton did not end: deadlock");
    assert_eq!(report.ulcp_free_ns, None);
    let [group] = &report.groups[..] else { panic!("{:?}", report.groups) };
    assert_eq!((group.kind, group.pairs, group.delta_ns), (UlcpKind::ReadRead, 1, 0));
    assert_eq!((group.alone_ns, group.alone_error.as_deref()), (None, Some("deadlock")));
}

#[test]
fn constants_are_not_shared() {
    let mut r = Recording::new(2);
    for thread in 0..2 {
        section(&mut r, thread, 10, &[(X, Access::READ)]);
    }
    assert_eq!(verdicts(&r), [Verdict::Ulcp(UlcpKind::ReadRead)]);
    let constant = [Interval { start: X - 4096, end: X + 8 }];
    let sections = Sections::merge(r.collectors(), &constant, &[]).expect("a sound recording");
    let found: Vec<_> = pairs(&sections).map(|pair| pair.verdict).collect();
    assert_eq!(found, [Verdict::Ulcp(UlcpKind::NullLock)]);
}

#[test]
fn lock_words_and_recycled_stacks_are_not_shared() {
    let mut r = Recording::new(2);
    let stack = 0x7000_0000_0000 - 0x100;
    // Both threads: sp of t1 is moved onto the stack of t0, as if t0 had ended before.
    for thread in 0..2 {
        r.event(thread, 1, ThreadStart, 1 + thread as u64, 0).sp = stack + 0x100;
        r.lock(thread, 1, L, 0x100);
        r.write(thread, stack, 8);
        r.write(thread, L + 8, 4);
        r.unlock(thread, 1, L, 0x110);
    }
    assert_eq!(verdicts(&r), [Verdict::Ulcp(UlcpKind::NullLock)]);
    // A third thread with a stack of its own that writes there makes it data.
    let mut r3 = Recording::new(3);
    r3.threads[..2].clone_from_slice(&r.threads);
    r3.event(2, 1, ThreadStart, 3, 0);
    r3.write(2, stack, 4);
    assert_eq!(verdicts(&r3), [Verdict::Conflict]);
}

#[test]
fn fusion_joins_overlapping_regions_and_copies_of_a_line() {
    struct Symbols;
    impl Resolver for Symbols {
        fn resolve(&mut self, pc: u64) -> Place {
            let line = if pc >= 0x300 { Some(7) } else { None };
            let frame = line.map(|line| Frame {
                function: "f".into(),
                file: Some("f.c".into()),
                line: Some(line),
            });
            Place {
                pc,
                frames: frame.into_iter().collect(),
                in_function: Some(pc & 0xff),
                ..Place::default()
            }
        }
    }
    let mut r = Recording::new(2);
    // 0x100..0x140 and 0x120..0x130 overlap; 0x210 is apart; 0x300 and 0x400 are one line.
    for (pc, end) in
        [(0x100, 0x140), (0x120, 0x130), (0x210, 0x220), (0x300, 0x310), (0x400, 0x410)]
    {
        for thread in 0..2 {
            let lock = L + pc;
            r.lock(thread, 1, lock, pc);
            r.unlock(thread, 1, lock, end);
        }
    }
    let measured = measure(&r.sections(), &mut r.replayer(), &Options::default()).expect("replays");
    let report = rank(&measured, measured.check_ns.unwrap_or(0), &mut Symbols);
    let mut pairs: Vec<_> = report.groups.iter().map(|g| (g.first.pc, g.pairs)).collect();
    pairs.sort_unstable();
    assert_eq!(pairs, [(0x100, 2), (0x210, 1), (0x300, 2)]);
    assert_eq!(rank(&measured, measured.check_ns.unwrap_or(0), &mut ()).groups.len(), 5);
}

/// Inlined into `work`, by where code is: a lock's functions, and a lookup between them.
#[test]
fn inlined_wrappers_are_skipped_as_called_ones_are() {
    struct Symbols;
    impl Resolver for Symbols {
        fn resolve(&mut self, pc: u64) -> Place {
            let names: &[&str] = match pc & 0xff {
                0x10 => &["lock", "lookup", "work"],
                0x20 => &["unlock", "lookup", "work"],
                _ => &["work"],
            };
            let frame = |name: &&str| Frame {
                function: (*name).into(),
                file: Some("f.c".into()),
                line: Some(pc as u32),
            };
            Place {
                pc,
                frames: names.iter().map(frame).collect(),
                in_function: Some(pc & 0xff),
                ..Place::default()
            }
        }
    }
    let named = |acquire, release| {
        let mut r = Recording::new(2);
        for thread in 0..2 {
            r.lock(thread, 1, L, acquire);
            r.unlock(thread, 1, L, release);
        }
        let measured =
            measure(&r.sections(), &mut r.replayer(), &Options::default()).expect("replays");
        let ranked = rank(&measured, measured.check_ns.unwrap_or(0), &mut Symbols);
        ranked.groups[0].first.function()
    };
    assert_eq!(named(0x110, 0x120), "lookup");
    assert_eq!(named(0x110, 0x130), "work");
    // In another function: nobody knows what is around both.
    assert_eq!(named(0x110, 0x220), "lock");
}

/// A fast path and a slow path of one lock are one place, without symbols too.
#[test]
fn sections_with_one_release_are_one_group() {
    let mut r = Recording::new(2);
    for acquire in [0x100, 0x180] {
        for thread in 0..2 {
            r.lock(thread, 1, L, acquire);
            r.unlock(thread, 1, L, 0x120);
        }
    }
    let measured = measure(&r.sections(), &mut r.replayer(), &Options::default()).expect("replays");
    let groups = rank(&measured, measured.check_ns.unwrap_or(0), &mut ()).groups;
    assert_eq!(groups.iter().map(|group| group.pairs).collect::<Vec<_>>(), [3]);
}

/// Two readers that come at the same time: one waits for all of the other's section, in vain.
#[test]
fn a_picture_shows_who_waits_in_vain() {
    let mut r = Recording::new(2);
    r.share(X, 8);
    for thread in 0..2 {
        r.event(thread, 0, ThreadStart, thread as u64 + 1, 0);
        r.lock(thread, 200, L, 0x100);
        r.read(thread, X, 8);
        r.unlock(thread, 400, L, 0x110);
        r.event(thread, 200, ThreadExit, thread as u64 + 1, 0);
    }
    let shown = picture(&r.sections(), &mut r.replayer()).expect("both replays end");
    assert_eq!((shown.original_ns, shown.free_ns, shown.left_out), (1200, 800, 0));
    // 1200 ticks in so many columns; what a column lacks of the whole is rounded.
    let ticks = |columns: &[Column], of: fn(&Column) -> u32| -> u64 {
        let sum: u64 = columns.iter().map(|column| u64::from(of(column))).sum();
        sum * 1200 / (COLUMNS as u64 * u64::from(WHOLE))
    };
    let all = |columns: &[Column]| {
        [
            ticks(columns, |column| column.outside),
            ticks(columns, |column| column.inside),
            ticks(columns, |column| column.waiting),
            ticks(columns, |column| column.vain),
        ]
    };
    let [first, second] = &shown.lanes[..] else { panic!("two lanes: {shown:?}") };
    let near = |found: [u64; 4], expected: [u64; 4]| {
        let far = found.iter().zip(expected).map(|(a, b)| a.abs_diff(b)).max();
        assert!(far <= Some(30), "{found:?}, not {expected:?}");
    };
    near(all(&first.original), [400, 400, 0, 0]);
    near(all(&second.original), [400, 400, 0, 400]);
    for lane in [first, second] {
        near(all(&lane.free), [400, 400, 0, 0]);
    }
}
