//! Runs with copies of their threads.

mod common;

use common::{Recording, replay};
use proptest::prelude::*;
use refrain_scheduler::testing::{choices, plain, record};
use refrain_scheduler::{Config, Constraints, Costs, Orig, Outcome, Run, Skeleton};
use refrain_trace::EventKind::*;
use refrain_trace::{ThreadId, order};

const L: u64 = 0x1000;
const B: u64 = 0x7000;

fn create(r: &mut Recording, by: usize, child: u32) {
    r.push(by, 0, ThreadCreate, order::thread_object(ThreadId(child)));
}

fn on_cores(skeleton: &Skeleton, cores: u32) -> Outcome {
    let config = Config { cores, quantum: 1000, costs: Costs::FREE };
    replay(skeleton, &Constraints::none(), &config, Orig).0
}

fn run(skeleton: &Skeleton, cores: u32) -> Run {
    match on_cores(skeleton, cores) {
        Outcome::Completed(run) => run,
        Outcome::Deadlocked(deadlock) => panic!("{deadlock}"),
    }
}

/// t0 creates t1 and t2, each of which has the lock for 100 and works for 10, and joins them.
fn locked() -> Recording {
    let mut r = Recording::new(3);
    for child in [1, 2] {
        create(&mut r, 0, child);
    }
    for thread in [1, 2] {
        r.push(thread, 0, MutexLock, L);
        r.push(thread, 100, MutexUnlock, L);
        r.push(thread, 10, ThreadExit, 0);
    }
    for joined in [1, 2] {
        r.push(0, 0, ThreadJoin, joined + 1);
    }
    r.push(0, 7, ThreadExit, 0);
    r
}

#[test]
fn copies_want_the_same_lock_and_are_joined() {
    let skeleton = locked().skeleton();
    assert_eq!(run(&skeleton, 8).duration, 2 * 100 + 10 + 7);
    let six = skeleton.multiplied(3);
    assert_eq!(six.threads(), 1 + 6);
    let run = run(&six, 8);
    assert_eq!(run.duration, 6 * 100 + 10 + 7);
    assert_eq!(run.threads.iter().map(|thread| thread.running).sum::<u64>(), 6 * 110 + 7);
    assert_eq!(skeleton.copies(3)[2], [ThreadId(2), ThreadId(4), ThreadId(6)]);
    assert_eq!(skeleton.copies(3)[0], [ThreadId(0)]);
}

#[test]
fn copies_meet_at_the_barrier() {
    // The first thread is at the barrier, too, and is there once.
    let mut r = Recording::new(3);
    for child in [1, 2] {
        create(&mut r, 0, child);
    }
    for round in [5, 50] {
        for thread in 0..3 {
            r.push(thread, round * (thread as u64 + 1), BarrierArrive, B);
        }
        for thread in 0..3 {
            r.push(thread, 0, BarrierLeave, B);
        }
    }
    let skeleton = r.skeleton();
    // Work before a created thread's first event is not its own.
    let together = 5 + 3 * 50;
    assert_eq!(run(&skeleton, 8).duration, together);
    let more = run(&skeleton.multiplied(4), 16);
    assert_eq!(more.threads.len(), 9);
    assert_eq!(more.duration, together);
    // Nobody left before the last one came.
    assert!(more.threads.iter().all(|thread| thread.finished == together), "{more:?}");
}

/// The generated threads as children of one that only creates them.
fn created(mut threads: Vec<Vec<refrain_trace::Event>>) -> Skeleton {
    let mut r = Recording::new(threads.len() + 1);
    for child in 1..=threads.len() as u32 {
        create(&mut r, 0, child);
    }
    r.threads.iter_mut().skip(1).zip(&mut threads).for_each(|(to, from)| to.append(from));
    r.skeleton()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn one_copy_is_the_run_itself(program in plain(), choices in choices(), cores in 1u32..4) {
        let skeleton = created(record(&program, &choices).threads);
        prop_assert_eq!(run(&skeleton, cores), run(&skeleton.multiplied(1), cores));
    }

    #[test]
    fn copies_do_all_that_their_threads_do(
        program in plain(), choices in choices(), times in 2u32..5, cores in 1u32..4,
    ) {
        let skeleton = created(record(&program, &choices).threads);
        let Outcome::Completed(once) = on_cores(&skeleton, cores) else { return Ok(()) };
        let more = match on_cores(&skeleton.multiplied(times), cores) {
            Outcome::Completed(more) => more,
            Outcome::Deadlocked(deadlock) => {
                return Err(TestCaseError::fail(deadlock.to_string()));
            }
        };
        let worked = |run: &Run| run.threads.iter().map(|it| it.running).sum::<u64>();
        prop_assert_eq!(worked(&more), u64::from(times) * worked(&once));
        let copies = skeleton.copies(times);
        for (thread, copies) in copies.iter().enumerate().skip(1) {
            for copy in copies {
                let (of_copy, of_thread) = (&more.threads[copy.index()], &once.threads[thread]);
                prop_assert_eq!(of_copy.running, of_thread.running);
            }
        }
    }
}
