//! Small runs whose virtual times can be worked out by hand.

mod common;

use common::{Boxed, HZ, Played, Recording, boxed, decided, kendo, order, repeat, replay, run};
use refrain_scheduler::{
    Builder, Config, Constraints, Costs, Durations, Edge, Elsc, Fixed, MemS, Orig, Outcome, Pct,
    Random, Schedule, Skeleton,
};
use refrain_trace::EventKind::*;
use refrain_trace::{Event, EventId, ThreadId};

/// A core for each thread and nothing but the token.
fn token(travel: u64) -> Config {
    let costs = Costs { handoff: travel, other: 1, ..Costs::FREE };
    Config { costs, ..Config::ideal(8) }
}

const L: u64 = 0x1000;
const M: u64 = 0x2000;

/// t0 locks at 10 for 50, t1 wants the lock at 20 for 30; both work 5 more.
fn contended() -> Recording {
    let mut r = Recording::new(2);
    r.push(0, 10, MutexLock, L);
    r.push(0, 50, MutexUnlock, L);
    r.push(1, 20, MutexLock, L);
    r.push(1, 30, MutexUnlock, L);
    r.push(0, 5, ThreadExit, 1);
    r.push(1, 5, ThreadExit, 2);
    r
}

#[test]
fn one_lock_two_threads() {
    let run = run(&contended(), 2, Elsc);
    assert_eq!(run.duration, 60 + 30 + 5);
    assert_eq!(run.threads[0].finished, 65);
    assert_eq!(run.threads[0].running, 65);
    assert_eq!(run.threads[1].blocked, 40);
    assert_eq!(run.threads[1].contended, 1);
    assert_eq!((run.threads[0].wanted, run.threads[1].wanted), (0, 40));
    assert_eq!(run.threads[1].artificial, 0);
    assert_eq!(run.threads[1].running, 55);
}

#[test]
fn spinning_keeps_the_core_and_blocking_gives_it_away() {
    let mut r = contended();
    for event in r.threads.iter_mut().flatten() {
        if event.kind() == MutexLock {
            event.code = SpinLock as u8;
        } else if event.kind() == MutexUnlock {
            event.code = SpinUnlock as u8;
        }
    }
    let spun = run(&r, 2, Elsc);
    assert_eq!((spun.threads[1].spinning, spun.threads[1].blocked), (40, 0));
    // One core: the spinner loses it at the end of its slice, so nothing hangs.
    let config = Config { cores: 1, quantum: 15, costs: Costs::FREE };
    let (outcome, _) = replay(&r.skeleton(), &Constraints::none(), &config, Elsc);
    let run = outcome.completed().expect("no deadlock");
    assert!(run.duration >= 120, "the work of both on one core, and some spinning");
}

#[test]
fn threads_that_spin_for_one_another_are_a_deadlock() {
    const M: u64 = L + 0x1000;
    let mut r = Recording::new(3);
    for (thread, [first, second]) in [(0, [L, M]), (1, [M, L])] {
        r.push(thread, 10, SpinLock, first);
        r.push(thread, 10, SpinLock, second);
        r.push(thread, 10, SpinUnlock, second);
        r.push(thread, 10, SpinUnlock, first);
    }
    r.push(2, 1, ThreadExit, 3);
    let config = Config { cores: 2, quantum: 15, costs: Costs::FREE };
    let (outcome, _) = replay(&r.skeleton(), &Constraints::none(), &config, Orig);
    assert!(matches!(outcome, Outcome::Deadlocked(_)), "{outcome:?}");
}

#[test]
fn order_of_the_recording_is_artificial_waiting() {
    // Recorded: t1 first. In the replay t0 comes first and finds the lock free.
    let mut r = Recording::new(2);
    r.push(1, 100, MutexLock, L);
    r.push(1, 10, MutexUnlock, L);
    r.push(0, 20, MutexLock, L);
    r.push(0, 10, MutexUnlock, L);
    let elsc = run(&r, 2, Elsc);
    assert_eq!(elsc.duration, 120);
    assert_eq!(elsc.threads[0].artificial, 80);
    assert_eq!(elsc.threads[0].blocked, 10);
    let orig = run(&r, 2, Orig);
    assert_eq!(orig.duration, 110);
    assert_eq!(orig.threads[0].artificial + orig.threads[0].blocked, 0);
}

#[test]
fn a_single_core_serialises_work() {
    let mut r = Recording::new(2);
    r.push(0, 70, ThreadExit, 1);
    r.push(1, 30, ThreadExit, 2);
    assert_eq!(run(&r, 2, Elsc).duration, 70);
    let one = run(&r, 1, Elsc);
    assert_eq!(one.duration, 100);
    assert_eq!(one.threads[1].runnable, 70);
    let config = Config { cores: 1, quantum: 10, costs: Costs::FREE };
    let (outcome, _) = replay(&r.skeleton(), &Constraints::none(), &config, Elsc);
    let sliced = outcome.completed().expect("no deadlock");
    assert_eq!(sliced.duration, 100);
    assert_eq!(sliced.threads[1].finished, 60);
}

#[test]
fn latencies_of_waking() {
    let costs = Costs {
        acquire: 1,
        release: 2,
        other: 3,
        handoff: 7,
        wake: 90,
        patience: 50,
        ..Costs::FREE
    };
    let config = Config { cores: 2, quantum: u64::MAX, costs };
    let (outcome, times) = replay(&contended().skeleton(), &Constraints::none(), &config, Elsc);
    // t0: acquires at 10 (+1), releases at 61; t1 waited 41 < 50, so it goes on at 61 + 7.
    assert!(times.contains(&(1, 0, 20, 69)));
    let run = outcome.completed().expect("no deadlock");
    assert_eq!(run.threads[1].blocked, 41 + 7);
    assert_eq!(run.duration, 69 + 30 + 2 + 5);
    let sleepy = Config { costs: Costs { patience: 41, ..costs }, ..config };
    let (_, times) = replay(&contended().skeleton(), &Constraints::none(), &sleepy, Elsc);
    assert!(times.contains(&(1, 0, 20, 61 + 90 + 1)));
}

#[test]
fn condition_variables_barriers_semaphores_once_and_joins() {
    const C: u64 = 0x3000;
    let mut r = Recording::new(2);
    r.push(0, 5, MutexLock, L);
    r.push(0, 5, CondWaitBegin, L).value = C;
    r.push(1, 50, MutexLock, L);
    r.push(1, 10, CondSignal, C);
    r.push(1, 10, MutexUnlock, L);
    let aux = r.tickets(C);
    let wake = r.push(0, 0, CondWaitEnd, L);
    (wake.value, wake.aux) = (C, aux);
    r.push(0, 5, MutexUnlock, L); // t0 at 75
    r.push(1, 0, BarrierArrive, 0x4000); // t1 at 70
    r.push(0, 0, BarrierArrive, 0x4000);
    r.push(1, 0, BarrierLeave, 0x4000); // 75
    r.push(0, 0, BarrierLeave, 0x4000);
    r.push(1, 15, SemPost, 0x5000); // 90
    r.push(0, 0, SemWait, 0x5000);
    r.push(1, 10, OnceRun, 0x6000); // 100
    r.push(0, 0, OnceDone, 0x6000);
    r.push(1, 20, ThreadExit, 2); // 120
    r.push(0, 1, ThreadJoin, 2);
    // On one core nothing overlaps: the sum of all work.
    for (cores, duration) in [(1, 131), (2, 120)] {
        let run = run(&r, cores, Elsc);
        assert_eq!(run.duration, duration, "{cores} cores");
        assert_eq!(run.threads[0].artificial, 0);
        let parts = run.threads[0];
        assert_eq!(parts.running, 16);
    }
    assert_eq!(run(&r, 2, Orig).duration, 120);
    // Who has to wait for turns takes longer, but not longer than on one core.
    for seed in 0..20 {
        assert!((120..=131).contains(&run(&r, 2, Random::new(seed)).duration));
        assert!((120..=131).contains(&run(&r, 2, Pct::new(seed, 3, 10)).duration));
    }
}

#[test]
fn io_leaves_the_core_and_threads_start_when_created() {
    let mut r = Recording::new(2);
    r.push_timed(0, 10, Syscall, 7, 100).nr = 35; // nanosleep
    let clone = r.push_timed(0, 5, Syscall, 8, 3);
    (clone.nr, clone.value) = (56, 4242);
    r.push(1, 77, ThreadStart, 2);
    r.push(1, 9, ThreadExit, 2);
    r.push(0, 1, ThreadJoin, 2);
    let run = run(&r, 1, Elsc);
    assert_eq!(run.threads[0].io, 100);
    assert_eq!(run.threads[0].running, 10 + 5 + 3 + 1);
    assert_eq!(run.threads[1].started, 115);
    assert_eq!(run.duration, 119 + 9);
}

#[test]
fn readers_share_and_recursion_nests() {
    let mut r = Recording::new(3);
    r.push(0, 10, ReadLock, L);
    r.push(1, 10, ReadLock, L);
    r.push(1, 10, RwUnlock, L);
    r.push(0, 40, RwUnlock, L);
    r.push(2, 11, WriteLock, L);
    r.push(2, 10, MutexLock, M);
    r.push(2, 10, MutexLock, M);
    r.push(2, 10, MutexUnlock, M);
    r.push(2, 10, MutexUnlock, M);
    r.push(2, 10, RwUnlock, L);
    let run = run(&r, 3, Elsc);
    assert_eq!(run.threads[1].finished, 20);
    assert_eq!(run.threads[2].blocked, 39);
    assert_eq!(run.duration, 100);
}

#[test]
fn freed_locks_do_not_wait_but_edges_do() {
    let skeleton = contended().skeleton();
    let config = Config::ideal(2);
    let freed = Constraints::new(&skeleton, |address| address == L, []).expect("sound");
    let (outcome, _) = replay(&skeleton, &freed, &config, Elsc);
    assert_eq!(outcome.completed().expect("no deadlock").duration, 65);
    let edge =
        Edge { target_thread: ThreadId(1), target: 0, source_thread: ThreadId(0), source: 1 };
    let ordered = Constraints::new(&skeleton, |address| address == L, [edge]).expect("sound");
    let (outcome, _) = replay(&skeleton, &ordered, &config, Elsc);
    assert_eq!(outcome.completed().expect("no deadlock").duration, 95);
    let wrong = Edge { source: 3, ..edge };
    assert!(Constraints::new(&skeleton, |_| true, [wrong]).is_err());
}

#[test]
fn a_deadlock_is_a_result_with_its_cycle() {
    // As recorded: t0 takes both locks, then t1 both in the other order. By arrival: deadlock.
    let mut r = Recording::new(2);
    r.push(0, 10, MutexLock, L);
    r.push(0, 10, MutexLock, M);
    r.push(0, 1, MutexUnlock, M);
    r.push(0, 1, MutexUnlock, L);
    r.push(1, 12, MutexLock, M);
    r.push(1, 10, MutexLock, L);
    r.push(1, 1, MutexUnlock, L);
    r.push(1, 1, MutexUnlock, M);
    assert_eq!(run(&r, 2, Elsc).duration, 21 + 10 + 1 + 1);
    let skeleton = r.skeleton();
    let (outcome, _) = replay(&skeleton, &Constraints::none(), &Config::ideal(2), Orig);
    let Outcome::Deadlocked(deadlock) = outcome else { panic!("no deadlock") };
    assert_eq!(deadlock.cycle, [ThreadId(0), ThreadId(1)]);
    assert_eq!(deadlock.at, 22);
    assert_eq!(
        deadlock.to_string(),
        "deadlock; t0 at e1 waits for 0x2000, which is to be released by t1; \
         t1 at e1 waits for 0x1000, which is to be released by t0 (in virtual time every thread \
         does what it did in the recording; the program itself may take another path when its \
         locks go round in another order)"
    );
}

/// As in pigz: workers say under a lock that they are done, and the main thread waits for that and
/// joins, under the same lock, whichever is.
fn joins_whoever_is_done() -> Recording {
    let mut r = Recording::new(3);
    r.push(0, 5, MutexLock, L);
    r.push(0, 1, CondWaitBegin, L).value = M;
    for worker in [1, 2] {
        r.push(worker, 10, MutexLock, L);
        r.push(worker, 1, CondBroadcast, M);
        r.push(worker, 1, MutexUnlock, L);
        let aux = r.tickets(M);
        let wake = r.push(0, 0, CondWaitEnd, L);
        (wake.value, wake.aux) = (M, aux);
        r.push(worker, 1, ThreadExit, worker as u64 + 1);
        r.push(0, 0, ThreadJoin, worker as u64 + 1);
        if worker == 1 {
            r.push(0, 0, CondWaitBegin, L).value = M;
        }
    }
    r.push(0, 0, MutexUnlock, L);
    r
}

#[test]
fn a_lock_goes_first_to_threads_that_are_joined_under_it() {
    // Recorded: t1 is done first. Now t2 is, and its signal ends the wait for t1's.
    let late = joins_whoever_is_done().skeleton().retimed(|thread, event, durations| {
        let first = thread == ThreadId(1) && event.0 == 0;
        Durations { work: if first { 100 } else { durations.work }, ..durations }
    });
    let none = Constraints::none();
    let all: [Boxed<'_>; 5] = [
        boxed(Elsc),
        boxed(Orig),
        boxed(kendo(&late)),
        boxed(Random::new(1)),
        boxed(Pct::new(1, 3, 10)),
    ];
    for scheduler in all {
        let (outcome, _) = replay(&late, &none, &Config::ideal(3), scheduler);
        assert!(outcome.clone().completed().is_some(), "{outcome:?}");
    }
    let (outcome, times) = replay(&late, &none, &Config::ideal(3), Orig);
    let run = outcome.completed().expect("no deadlock");
    // t2 has the lock from 10 to 12, t1 from 100 to 102; until then only the recording keeps t0
    // from it.
    assert!(times.contains(&(2, 0, 10, 10)) && times.contains(&(0, 2, 6, 102)), "{times:?}");
    assert_eq!((run.duration, run.threads[0].artificial), (103, 100 - 12));
}

#[test]
fn a_lock_goes_first_to_whom_a_load_under_it_has_seen() {
    const WORD: u64 = 0x3000;
    for (lock, read) in [(MutexLock, MutexLock), (WriteLock, ReadLock)] {
        let unlock = if lock == MutexLock { MutexUnlock } else { RwUnlock };
        let mut r = Recording::new(3);
        for thread in [1, 2] {
            r.push(thread, 10, lock, L);
            r.push(thread, 1, Atomic, WORD);
            r.push(thread, 1, unlock, L);
        }
        r.push(0, 5, read, L);
        r.push(0, 1, SyncLoad, WORD);
        r.push(0, 1, unlock, L);
        // t0 comes at 5, before the others.
        let (outcome, times) = replay(&r.skeleton(), &Constraints::none(), &Config::ideal(3), Orig);
        assert!(times.contains(&(0, 0, 5, 14)), "{times:?}");
        assert_eq!(outcome.completed().expect("no deadlock").duration, 16);
    }
}

#[test]
fn what_is_loaded_again_was_waited_for_the_first_time() {
    // t1 counts in many words, each under its lock; t0 loads them under the same locks, and then
    // again and again under another one.
    let words = 0..64u64;
    let mut r = Recording::new(2);
    for word in words.clone() {
        r.push(1, 10, MutexLock, 0x10000 + 64 * word);
        r.push(1, 1, Atomic, 0x20000 + 64 * word);
        r.push(1, 1, MutexUnlock, 0x10000 + 64 * word);
    }
    let seen: Vec<u64> = words.clone().map(|word| r.tickets(0x20000 + 64 * word)).collect();
    for round in 0..8 {
        for word in words.clone().map(|word| word * (2 * round + 1) % 64) {
            let lock = if round == 0 { 0x10000 + 64 * word } else { M };
            r.push(0, 0, MutexLock, lock);
            r.push(0, 0, SyncLoad, 0x20000 + 64 * word).ticket = seen[word as usize];
            r.push(0, 0, MutexUnlock, lock);
        }
    }
    let (outcome, _) = replay(&r.skeleton(), &Constraints::none(), &Config::ideal(2), Orig);
    assert_eq!(outcome.completed().expect("no deadlock").duration, 64 * 12);
}

#[test]
fn a_cut_off_trace_still_ends() {
    let mut r = contended();
    r.threads[0].truncate(1); // The release is missing.
    let run = run(&r, 2, Elsc);
    assert_eq!(run.threads[1].finished, 55);
}

#[test]
fn a_once_routine_is_waited_for_without_a_ticket() {
    let mut r = Recording::new(3);
    r.push(0, 50, OnceRun, L);
    r.push(1, 10, OnceDone, L).flags |= refrain_trace::NO_TICKET;
    // Its run is not in the trace.
    r.push(2, 10, OnceDone, M).flags |= refrain_trace::NO_TICKET;
    let run = run(&r, 3, Elsc);
    assert_eq!((run.threads[1].finished, run.threads[2].finished), (50, 10));
}

#[test]
fn timed_waits_and_edges_lose_no_core() {
    // Four timed waits on one core; in the order of the mutex each waits for the one before.
    let mut r = Recording::new(4);
    for thread in 0..4 {
        r.push(thread, 10, MutexLock, L);
        r.push(thread, 1, CondWaitBegin, L).value = M;
    }
    for thread in 0..4 {
        let wait = r.push_timed(thread, 0, CondWaitEnd, L, 100);
        (wait.value, wait.result) = (M, 110);
        r.push(thread, 20, MutexUnlock, L);
    }
    let skeleton = r.skeleton();
    let edge = |target_thread: u32, target, source| Edge {
        target_thread: ThreadId(target_thread),
        target,
        source_thread: ThreadId(target_thread - 1),
        source,
    };
    let edges = (1..4).flat_map(|thread| [edge(thread, 0, 1), edge(thread, 2, 3)]);
    let plan = Constraints::new(&skeleton, |address| address == L, edges).expect("sound");
    for cores in 1..=4 {
        let (outcome, _) = replay(&skeleton, &plan, &Config::ideal(cores), Elsc);
        let run = outcome.completed().expect("no deadlock");
        // The timeouts run while others hold the mutex.
        assert!((11 + 100 + 4 * 20..=4 * 11 + 100 + 4 * 20).contains(&run.duration), "{run:?}");
    }
}

#[test]
fn a_sleep_that_the_program_ends_is_as_long_as_it_makes_it() {
    // t0 works for 100, then wakes t1, who has waited for the signal from 10 to 105.
    for long in [1, 20 * HZ] {
        let mut r = Recording::new(2);
        let kill = r.push(0, 100 * long, Syscall, 0);
        kill.nr = 234;
        let wait = r.push_timed(1, 10 * long, Syscall, 0, 95 * long);
        (wait.nr, wait.value, wait.aux) = (128, 10, 1);
        r.push(1, long, ThreadDetach, 1);
        let ideal = Config::ideal(2);
        let (_, times) = replay(&r.skeleton(), &Constraints::none(), &ideal, Elsc);
        assert!(times.contains(&(1, 0, 10 * long, 100 * long)), "{times:?}");
        let quick = r.skeleton().retimed(|thread, _, Durations { work, time }| {
            let work = if thread == ThreadId(0) { work / 2 } else { work };
            Durations { work, time }
        });
        let (outcome, times) = replay(&quick, &Constraints::none(), &ideal, Elsc);
        assert!(times.contains(&(1, 0, 10 * long, 50 * long)), "{times:?}");
        let run = outcome.completed().expect("no deadlock");
        assert_eq!((run.duration, run.threads[1].blocked), (51 * long, 40 * long));
    }
}

#[test]
fn a_sleeper_is_woken_when_the_wake_up_begins() {
    // t0 wakes at 100, which takes it until 140; t1, who sleeps on the futex, is back at 105.
    let mut r = Recording::new(2);
    let wake = r.push_timed(0, 100, Syscall, 0, 40);
    (wake.nr, wake.value, wake.aux) = (202, 1, 1);
    let wait = r.push_timed(1, 10, Syscall, 0, 95);
    (wait.nr, wait.aux, wait.ticket) = (202, 2, 1);
    r.push(1, 500, ThreadDetach, 1);
    let (outcome, times) =
        replay(&r.repeated(&Vec::new()), &Constraints::none(), &Config::ideal(2), Elsc);
    assert!(times.contains(&(0, 0, 100, 140)) && times.contains(&(1, 0, 10, 105)), "{times:?}");
    let run = outcome.completed().expect("no deadlock");
    assert_eq!(run.duration, 605);
    assert_eq!(run.threads[0].io, 0, "who wakes others does not wait");
}

#[test]
fn wide_durations_survive() {
    let mut r = Recording::new(2);
    let long = 20 * HZ;
    r.push(0, long, MutexLock, L);
    r.push_timed(0, long, Syscall, 0, long).nr = 35;
    r.push(0, long, MutexUnlock, L);
    r.push(1, 1, MutexLock, L);
    assert_eq!(run(&r, 2, Elsc).duration, 4 * long);
}

#[test]
fn one_event_may_wait_for_several_of_one_thread() {
    let mut r = Recording::new(2);
    for work in [10, 20, 30] {
        r.push(0, work, ThreadDetach, 1);
    }
    r.push(1, 1, ThreadDetach, 1);
    let skeleton = r.skeleton();
    let edge =
        |source| Edge { target_thread: ThreadId(1), target: 0, source_thread: ThreadId(0), source };
    let waits = Constraints::new(&skeleton, |_| false, [edge(0), edge(2), edge(1)]).expect("sound");
    let (outcome, times) = replay(&skeleton, &waits, &Config::ideal(2), Elsc);
    assert!(times.contains(&(1, 0, 1, 60)));
    assert_eq!(outcome.completed().expect("no deadlock").threads[1].blocked, 59);
}

/// PerfPlay, figure 12: two critical sections in each of two threads, one input, two schedules.
fn figure_12(order: [usize; 4]) -> Recording {
    let mut r = Recording::new(2);
    let work = [[10, 30], [12, 20]];
    let mut sections = [0; 2];
    for thread in order {
        r.push(thread, work[thread][sections[thread]], MutexLock, L);
        r.push(thread, 5, MutexUnlock, L);
        sections[thread] += 1;
    }
    r
}

/// Who got a lock, in order.
fn acquired<'a>(skeleton: &Skeleton, played: impl Played<'a>) -> Vec<u32> {
    let (_, _, schedule) = decided(skeleton, &Constraints::none(), &Config::ideal(2), played);
    let competes = |&&(thread, event): &&(ThreadId, EventId)| {
        skeleton.operations(thread)[event.index()].competes()
    };
    order(&schedule).iter().filter(competes).map(|(thread, _)| thread.0).collect()
}

#[test]
fn elsc_follows_the_schedule_and_kendo_the_input() {
    for schedule in [[0, 1, 1, 0], [1, 0, 0, 1]] {
        let skeleton = figure_12(schedule).skeleton();
        assert_eq!(acquired(&skeleton, Elsc), schedule.map(|thread| thread as u32));
        assert_eq!(acquired(&skeleton, kendo(&skeleton)), [0, 1, 1, 0]);
    }
}

#[test]
fn kendo_waits_for_turns_even_at_a_free_lock() {
    // t1 wants its own lock at 50, when t0 has come as far by its logical clock. In the replay
    // t0 takes ten times as long as its clock counts.
    let mut r = Recording::new(2);
    r.push(0, 100, ThreadExit, 1);
    r.push(1, 50, MutexLock, L);
    r.push(1, 5, MutexUnlock, L);
    let logical = r.skeleton();
    let slow = logical.retimed(|thread, _, durations| Durations {
        work: durations.work * if thread == ThreadId(0) { 10 } else { 1 },
        ..durations
    });
    let (outcome, times) = replay(&slow, &Constraints::none(), &Config::ideal(2), kendo(&logical));
    assert!(times.contains(&(1, 0, 50, 500)), "{times:?}");
    let account = outcome.completed().expect("no deadlock").threads[1];
    // The release, at 505, waits for its turn too: until t0 has come to 55 by its clock, at 550.
    assert_eq!((account.artificial, account.blocked, account.contended), (450 + 45, 0, 0));
}

#[test]
fn mem_s_has_one_token_for_all_objects() {
    // Nothing is shared, but releases and acquisitions alternate as recorded.
    let mut r = Recording::new(2);
    r.push(0, 10, MutexLock, L);
    r.push(0, 10, MutexUnlock, L);
    r.push(1, 11, MutexLock, M);
    r.push(1, 10, MutexUnlock, M);
    let skeleton = r.skeleton();
    let ideal = Config::ideal(2);
    let none = Constraints::none();
    let mem = MemS::new(&skeleton, &none, &token(3), &[]);
    let (outcome, times) = replay(&skeleton, &none, &ideal, mem.clone());
    // t0 at 10, t1 at 13, t0 at 20, t1 at 23: each three after the other, or when it comes.
    assert_eq!(times, [(0, 0, 10, 10), (1, 0, 11, 13), (0, 1, 20, 20), (1, 1, 23, 23)]);
    assert_eq!(outcome.completed().expect("no deadlock").threads[1].artificial, 2);
    // Four ticks of counted accesses before t0's release keep the token.
    let token = token(3);
    let burst = MemS::new(&skeleton, &none, &token, &[vec![0, 4]]);
    let (outcome, times) = replay(&skeleton, &none, &ideal, burst);
    assert!(times.contains(&(0, 1, 20, 24)) && times.contains(&(1, 1, 23, 27)), "{times:?}");
    assert_eq!(outcome.completed().expect("no deadlock").duration, 27);
    // Both at once, from 11 to 20: four accesses in ten ticks and five in ten. The token travels
    // for two of each; ten ticks at t0's release, and eleven at t1's, after another travel.
    let both = MemS::new(&skeleton, &none, &token, &[vec![0, 4], vec![0, 5]]);
    let (outcome, _) = replay(&skeleton, &none, &ideal, both);
    assert_eq!(outcome.completed().expect("no deadlock").duration, 20 + 10 + 3 + 11);
}

#[test]
fn tries_keep_their_outcome_and_differences_are_counted() {
    const BUSY: i32 = 16;
    let mut r = Recording::new(2);
    r.push(0, 10, MutexLock, L);
    r.push(0, 50, MutexUnlock, L);
    r.push(1, 20, MutexTryLock, L).result = BUSY;
    r.push(1, 60, MutexTryLock, L);
    r.push(1, 1, MutexUnlock, L);
    let as_recorded = run(&r, 2, Elsc).threads[1];
    assert_eq!((as_recorded.tries_differ, as_recorded.tries_free), (0, 0));
    // t1 comes earlier: the first try finds the lock free, the second finds it taken.
    let early = r.skeleton().retimed(|thread, event, durations| {
        let work = if thread == ThreadId(1) { [5, 30, 1][event.index()] } else { durations.work };
        Durations { work, ..durations }
    });
    let (outcome, times) = replay(&early, &Constraints::none(), &Config::ideal(2), Elsc);
    let account = outcome.completed().expect("no deadlock").threads[1];
    assert_eq!((account.tries_differ, account.tries_free), (1, 1));
    assert!(times.contains(&(1, 1, 35, 60)), "the outcome is the recorded one");
}

#[test]
fn every_scheduler_that_can_deadlock_reports_the_cycle() {
    // Recorded one after the other; by arrival, by clocks or at random each gets one lock. An
    // atomic instruction under the first lock makes even strict priorities change in between.
    let mut r = Recording::new(2);
    for (thread, first, second) in [(0, L, M), (1, M, L)] {
        r.push(thread, 10, MutexLock, first);
        r.push(thread, 10, Atomic, 0x3000);
        r.push(thread, 10, MutexLock, second);
        r.push(thread, 1, MutexUnlock, second);
        r.push(thread, 1, MutexUnlock, first);
    }
    let skeleton = r.skeleton();
    let none = Constraints::none();
    let pct = (0..100).map(|seed| Pct::new(seed, 2, 4)).find(|pct| {
        replay(&skeleton, &none, &Config::ideal(2), pct.clone()).0.completed().is_none()
    });
    let random = (0..100).map(Random::new).find(|random| {
        replay(&skeleton, &none, &Config::ideal(2), random.clone()).0.completed().is_none()
    });
    let (_, _, schedule) = decided(&skeleton, &none, &Config::ideal(2), Orig);
    let model = schedule.model();
    let all: [Boxed<'_>; 5] = [
        boxed(Orig),
        boxed(random.expect("another thread comes first after a lock")),
        boxed(pct.expect("a change of priority after the first lock")),
        boxed(kendo(&skeleton)),
        boxed((Fixed::new(schedule), model)),
    ];
    for scheduler in all {
        let (outcome, _) = replay(&skeleton, &none, &Config::ideal(2), scheduler);
        let Outcome::Deadlocked(deadlock) = outcome else { panic!("no deadlock") };
        assert_eq!(deadlock.cycle, [ThreadId(0), ThreadId(1)], "{deadlock}");
    }
    // t1 waits for the first lock that t0 takes second, until 31.
    assert_eq!(run(&r, 2, Elsc).duration, 31 + 10 + 10 + 1 + 1);
    run(&r, 2, MemS::new(&skeleton, &none, &token(1), &[]));
}

#[test]
fn orders_that_contradict_each_other_are_a_cycle_too() {
    // ELSC: t0 before t1 at the lock; an edge says the opposite.
    let skeleton = contended().skeleton();
    let edge =
        Edge { target_thread: ThreadId(0), target: 0, source_thread: ThreadId(1), source: 0 };
    let constraints = Constraints::new(&skeleton, |_| false, [edge]).expect("sound");
    let mem = MemS::new(&skeleton, &constraints, &token(1), &[]);
    let both: [Boxed<'_>; 2] = [boxed(Elsc), boxed(mem)];
    for scheduler in both {
        let (outcome, _) = replay(&skeleton, &constraints, &Config::ideal(2), scheduler);
        let Outcome::Deadlocked(deadlock) = outcome else { panic!("no deadlock") };
        assert_eq!(deadlock.cycle, [ThreadId(0), ThreadId(1)], "{deadlock}");
    }
    // A schedule that wants the second section of a thread before its first.
    let grants = "refrain schedule 1\nt1 e0 @0 #0\nt0 e0 @0 #0\n";
    let one = Config::ideal(2);
    let (outcome, _, left) = repeat(&skeleton, &one, grants.parse().expect("a schedule"));
    assert!(outcome.completed().is_some() && left == 0);
    let grants = "refrain schedule 1\nt1 e1 @0 #0\n";
    let (outcome, _, left) = repeat(&skeleton, &one, grants.parse().expect("a schedule"));
    let Outcome::Deadlocked(deadlock) = outcome else { panic!("no deadlock") };
    assert_eq!(deadlock.waits[0].waits_for, [ThreadId(1)]);
    assert_eq!(left, 1);
}

#[test]
fn what_is_no_schedule_is_refused_with_its_line() {
    let refused = |text: &str| text.parse::<Schedule>().expect_err("no schedule").to_string();
    assert!(refused("").starts_with("line 1 "));
    assert!(refused("refrain schedule 2\n").starts_with("line 1 "));
    for line in
        ["t1", "t1 e2", "t1 e2 @3", "e2 t1 @3 #4", "t1 e2 @-3 #4", "t1 e2 ++3", "t1 e2 @3 #4 x"]
    {
        let text = format!("refrain schedule 1\ntotal\n\n{line}\n");
        assert!(refused(&text).starts_with("line 4 "), "{line}");
    }
}

#[test]
fn where_time_goes_is_told_apart() {
    const SPUN: u64 = 0x8000;
    let mut r = Recording::new(3);
    r.push(0, 10, SpinLock, SPUN);
    r.push(0, 40, SpinUnlock, SPUN); // t0 holds it from 10 to 50
    r.push(1, 20, SpinLock, SPUN); // t1 spins from 20 to 50
    r.push(1, 10, SpinUnlock, SPUN);
    r.push_timed(1, 5, Syscall, 9, 100).nr = 35;
    r.push(0, 0, MutexLock, L);
    r.push(0, 30, MutexUnlock, L); // held from 50 to 80
    r.push(1, 0, MutexLock, L);
    r.push(1, 1, MutexUnlock, L);
    r.push(2, 15, MutexLock, L); // t2 comes at 15, goes after t1 has released
    r.push(2, 1, MutexUnlock, L);
    let config = Config { quantum: 1000, ..Config::ideal(2) };
    let (outcome, _) = replay(&r.skeleton(), &Constraints::none(), &config, Elsc);
    let run = outcome.completed().expect("no deadlock");
    let of = |id: usize| {
        let a = run.threads[id];
        [a.running, a.spinning, a.blocked, a.artificial, a.runnable, a.io]
    };
    assert_eq!(of(0), [80, 0, 0, 0, 0, 0]);
    assert_eq!(of(1), [36, 30, 0, 0, 0, 100]);
    // No core until t1 sleeps at 65; the lock is taken from 80 on only to 80, then t1 has it from
    // 165 to 166, and until then the order alone holds t2 back.
    assert_eq!(of(2), [16, 0, 1, 85, 65, 0]);
}

#[test]
fn threads_without_a_core_of_their_own_did_less_work() {
    // Three threads on two cores: t0 from 0 to 60, t1 from 0 to 90, t2 from 0 to 30, sleeps to
    // 60, and goes on to 90. From 0 to 30 three share two cores; from then on nobody shares.
    let mut r = Recording::new(3);
    r.push(0, 60, ThreadExit, 1);
    r.push(1, 90, ThreadExit, 2);
    r.push_timed(2, 30, Syscall, 9, 30).nr = 35;
    r.push(2, 30, ThreadExit, 3);
    let durations = |skeleton: Skeleton| {
        let mut all = Vec::new();
        skeleton.retimed(|_, _, durations| {
            all.push((durations.work, durations.time));
            durations
        });
        all
    };
    let shared = durations(r.build_on(2));
    assert_eq!(shared, [(49, 0), (79, 0), (19, 30), (30, 0)], "two thirds of 30, rounded down");
    assert_eq!(durations(r.build_on(3)), durations(r.skeleton()));
}

#[test]
fn without_an_order_whoever_is_awake_overtakes() {
    // t0 takes the lock again 10 after its release; t1 needs 90 to wake.
    let mut r = Recording::new(2);
    r.push(0, 10, MutexLock, L);
    r.push(0, 100, MutexUnlock, L);
    r.push(1, 20, MutexLock, L);
    r.push(1, 30, MutexUnlock, L);
    r.push(0, 10, MutexLock, L);
    r.push(0, 5, MutexUnlock, L);
    let costs = Costs { wake: 90, patience: 50, ..Costs::FREE };
    let config = Config { costs, ..Config::ideal(2) };
    let times = |scheduler: Boxed<'_>| {
        let (outcome, mut times) = replay(&r.skeleton(), &Constraints::none(), &config, scheduler);
        assert!(outcome.completed().is_some());
        times.sort_unstable();
        times
    };
    // Released at 110: ORIG-S lets t0 have it at 120, and t1 at 110 + 90.
    let orig = times(boxed(Orig));
    assert!(orig.contains(&(0, 2, 120, 120)) && orig.contains(&(1, 0, 20, 200)), "{orig:?}");
    // ELSC hands it over: t1 goes on at 200, and t0 after t1's release at 230.
    let elsc = times(boxed(Elsc));
    assert!(elsc.contains(&(1, 0, 20, 200)) && elsc.contains(&(0, 2, 120, 320)), "{elsc:?}");
}

#[test]
fn locks_in_one_slot_may_have_orders_of_their_own() {
    // Two locks in the same eight bytes, and both count from zero.
    let build = |apart: &[u64]| {
        let mut builder = Builder::new(2, HZ, 0).ordering_apart(apart.iter().copied());
        for (thread, lock) in [(ThreadId(0), L), (ThreadId(1), L + 4)] {
            for (ticket, kind) in (0..).zip([SpinLock, SpinUnlock, SpinLock, SpinUnlock]) {
                let at = 10 * (ticket + 1);
                let event = Event { code: kind as u8, object: lock, ticket, ..Event::default() };
                builder.push(thread, &Event { begin: at, end: at, ..event }).expect("it fits");
            }
        }
        builder.finish()
    };
    assert!(matches!(build(&[]), Err(refrain_scheduler::Error::DuplicateTicket { .. })));
    assert!(build(&[L, L + 4]).is_ok());
    assert!(build(&[L]).is_ok(), "the other one has the slot to itself");
}
