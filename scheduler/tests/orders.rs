//! What it costs to keep an order: Kendo's turns, MEM-S's sequence, on machines with latencies.

mod common;

use common::{Played, Recording, kendo, replay};
use refrain_scheduler::{Config, Constraints, Costs, Elsc, MemS, Outcome, Run, Skeleton};
use refrain_trace::EventKind::*;

const L: u64 = 0x1000;
const M: u64 = 0x2000;

fn completed<'a>(skeleton: &Skeleton, config: &Config, played: impl Played<'a>) -> Run {
    match replay(skeleton, &Constraints::none(), config, played).0 {
        Outcome::Completed(run) => run,
        Outcome::Deadlocked(deadlock) => panic!("{deadlock}"),
    }
}

/// t0 reads for so long, then takes the lock; t1 takes another lock at 50 and the same at 500.
fn away(time: u64) -> Recording {
    let mut r = Recording::new(2);
    r.push_timed(0, 10, Syscall, 7, time).nr = 0;
    r.push(0, 5, MutexLock, L);
    r.push(0, 5, MutexUnlock, L);
    r.push(1, 50, MutexLock, M);
    r.push(1, 5, MutexUnlock, M);
    r.push(1, 445, MutexLock, L);
    r.push(1, 5, MutexUnlock, L);
    r
}

#[test]
fn kendo_waits_for_nobody_who_is_away() {
    let none = Constraints::none();
    let skeleton = away(1000).skeleton();
    let (outcome, times) = replay(&skeleton, &none, &Config::ideal(2), kendo(&skeleton));
    let run = outcome.completed().expect("no deadlock");
    assert!(times.contains(&(1, 0, 50, 50)) && times.contains(&(1, 2, 500, 500)), "{times:?}");
    assert_eq!((run.duration, run.threads[1].artificial), (1020, 0));
    // It comes back with the clock of the recording, in which it was away for 100 and so before
    // t1's last lock. t1 waits for that however long it is away here, but not at another lock.
    let short = away(100).skeleton();
    let (outcome, times) = replay(&skeleton, &none, &Config::ideal(2), kendo(&short));
    assert!(times.contains(&(1, 0, 50, 50)) && times.contains(&(1, 2, 500, 1020)), "{times:?}");
    assert_eq!(outcome.completed().expect("no deadlock").threads[1].artificial, 1015 - 500);
}

#[test]
fn kendo_waits_awake() {
    let mut r = Recording::new(2);
    r.push(0, 10, MutexLock, L);
    r.push(0, 100, MutexUnlock, L);
    r.push(1, 20, MutexLock, L);
    r.push(1, 30, MutexUnlock, L);
    let costs = Costs { handoff: 3, wake: 90, patience: 50, ..Costs::FREE };
    let config = Config { costs, ..Config::ideal(2) };
    let skeleton = r.skeleton();
    assert_eq!(completed(&skeleton, &config, kendo(&skeleton)).duration, 110 + 3 + 30);
    assert_eq!(completed(&skeleton, &config, Elsc).duration, 110 + 90 + 30);
}

#[test]
fn a_sequence_makes_nobody_sleep_less() {
    // Three threads at a barrier, of which t2 comes late to the first round. Whoever waited for
    // it wakes late and comes late to the next round, where t2 has to wait for them, and so on.
    let mut r = Recording::new(3);
    for round in 0..8 {
        for thread in 0..3 {
            let late = if round == 0 && thread == 2 { 100 } else { 0 };
            r.push(thread, 10 + thread as u64 + late, BarrierArrive, L);
        }
        for thread in 0..3 {
            r.push(thread, 0, BarrierLeave, L);
        }
    }
    let skeleton = r.skeleton();
    let costs = Costs { wake: 50, patience: 20, handoff: 1, ..Costs::FREE };
    let config = Config { costs, ..Config::ideal(3) };
    let none = Constraints::none();
    let elsc = completed(&skeleton, &config, Elsc).duration;
    assert!(elsc > 8 * 50, "every round wakes somebody");
    // The sequence of a machine that wakes in no time would end that after one round.
    let elsewhere =
        completed(&skeleton, &config, MemS::new(&skeleton, &none, &Config::ideal(2), &[])).duration;
    assert!(elsewhere < elsc / 2, "{elsewhere} {elsc}");
    let mem = completed(&skeleton, &config, MemS::new(&skeleton, &none, &config, &[])).duration;
    assert!(elsc <= mem && mem < elsc + 8 * 6, "{mem} {elsc}");
}
