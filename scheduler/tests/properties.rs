//! Properties of replays, over runs that some machine could have recorded.

mod common;

use common::{Recording, Times, replay};
use proptest::prelude::*;
use refrain_scheduler::{
    Config, Constraints, Costs, Elsc, Orig, Outcome, Pct, Random, Run, Scheduler, Skeleton,
};
use refrain_trace::EventKind;
use std::collections::BTreeMap;

/// What a thread of a generated program does, with the work before each step.
#[derive(Clone, Debug)]
enum Step {
    /// Nested critical sections, in ascending order of the locks.
    Locks(Vec<u64>),
    Read(u64),
    Atomic(u64),
    Sleep(u64),
    Post,
    Wait,
}

fn step() -> impl Strategy<Value = (u64, Step)> {
    let step = prop_oneof![
        4 => proptest::sample::subsequence(vec![0u64, 1, 2], 1..=3).prop_map(Step::Locks),
        2 => (3u64..5).prop_map(Step::Read),
        2 => (0u64..2).prop_map(Step::Atomic),
        1 => (0u64..50).prop_map(Step::Sleep),
        1 => Just(Step::Post),
        1 => Just(Step::Wait),
    ];
    (0u64..40, step)
}

fn program() -> impl Strategy<Value = (Vec<Vec<(u64, Step)>>, Vec<u8>)> {
    let threads = proptest::collection::vec(proptest::collection::vec(step(), 0..8), 1..5);
    (threads, proptest::collection::vec(any::<u8>(), 16))
}

const RW: u64 = 0x100;
const ATOMIC: u64 = 0x900;
const SEM: u64 = 0x5000;

/// Records a run in which whole steps of threads alternate as `choices` say.
fn record(threads: &[Vec<(u64, Step)>], choices: &[u8]) -> Recording {
    let mut r = Recording::new(threads.len());
    let mut next = vec![0; threads.len()];
    let mut level = 2i64;
    for turn in 0.. {
        let ready: Vec<usize> =
            (0..threads.len()).filter(|&t| next[t] < threads[t].len()).collect();
        let Some(&t) = ready.get(choices[turn % choices.len()] as usize % ready.len().max(1))
        else {
            break;
        };
        let (work, step) = &threads[t][next[t]];
        next[t] += 1;
        match step {
            Step::Locks(locks) => {
                for lock in locks {
                    r.push(t, *work, EventKind::MutexLock, lock * 64 + 0x1000);
                }
                for lock in locks.iter().rev() {
                    r.push(t, *work, EventKind::MutexUnlock, lock * 64 + 0x1000);
                }
            }
            Step::Read(lock) => {
                let write = *work % 3 == 0;
                let kind = if write { EventKind::WriteLock } else { EventKind::ReadLock };
                r.push(t, *work, kind, lock * RW);
                r.push(t, *work, EventKind::RwUnlock, lock * RW);
            }
            Step::Atomic(word) => {
                r.push(t, *work, EventKind::Atomic, word * 64 + ATOMIC);
            }
            Step::Sleep(time) => r.push_timed(t, *work, EventKind::Syscall, 1, *time).nr = 35,
            Step::Post => {
                level += 1;
                r.push(t, *work, EventKind::SemPost, SEM);
            }
            Step::Wait if level > 0 => {
                level -= 1;
                r.push(t, *work, EventKind::SemWait, SEM);
            }
            Step::Wait => {}
        }
    }
    r
}

fn elsc(r: &Recording, config: &Config) -> Result<(Run, Times), TestCaseError> {
    let run = check(r, &r.skeleton(), config, Elsc)?;
    run.ok_or_else(|| TestCaseError::fail("ELSC cannot deadlock"))
}

/// `None` for a deadlock, which another order than the recorded one may well cause if a thread
/// takes the semaphore that another one waits to give back.
fn check<S: Scheduler>(
    r: &Recording,
    skeleton: &Skeleton,
    config: &Config,
    scheduler: S,
) -> Result<Option<(Run, Times)>, TestCaseError> {
    let (outcome, times) = replay(skeleton, &Constraints::none(), config, scheduler);
    let Outcome::Completed(run) = outcome else {
        let waits = r.threads.iter().flatten().any(|event| event.kind() == EventKind::SemWait);
        prop_assert!(waits, "{:?}", outcome);
        return Ok(None);
    };
    let events: usize = r.threads.iter().map(Vec::len).sum();
    prop_assert_eq!(times.len(), events, "no lost or doubled event");
    for (thread, account) in run.threads.iter().enumerate() {
        let mine: Vec<_> = times.iter().filter(|time| time.0 == thread as u32).collect();
        for (index, time) in mine.iter().enumerate() {
            prop_assert_eq!(time.1, index as u64);
            prop_assert!(time.2 <= time.3);
        }
        let parts = account.running
            + account.spinning
            + account.blocked
            + account.artificial
            + account.runnable
            + account.io;
        prop_assert_eq!(parts, account.finished - account.started, "{:?}", account);
    }
    excludes(r, &times)?;
    Ok(Some((run, times)))
}

/// Exclusive possessions of a lock do not overlap with any other.
fn excludes(r: &Recording, times: &Times) -> Result<(), TestCaseError> {
    let mut held: BTreeMap<u64, Vec<(u64, u64, bool)>> = BTreeMap::new();
    let mut open: BTreeMap<(u32, u64), (u64, bool)> = BTreeMap::new();
    for &(thread, index, begin, end) in times {
        let event = &r.threads[thread as usize][index as usize];
        match event.kind() {
            EventKind::MutexLock | EventKind::WriteLock => {
                open.insert((thread, event.object), (end, true));
            }
            EventKind::ReadLock => {
                open.insert((thread, event.object), (end, false));
            }
            EventKind::MutexUnlock | EventKind::RwUnlock => {
                let (from, exclusive) = open[&(thread, event.object)];
                held.entry(event.object).or_default().push((from, begin, exclusive));
            }
            _ => {}
        }
    }
    for spans in held.values() {
        for (index, a) in spans.iter().enumerate() {
            for b in &spans[index + 1..] {
                let overlap = a.0 < b.1 && b.0 < a.1;
                prop_assert!(!overlap || !(a.2 || b.2), "{:?} {:?}", a, b);
            }
        }
    }
    Ok(())
}

/// Acquisitions of each object in the order of the replay, against the order of the tickets.
fn keeps_order(r: &Recording, times: &Times) -> Result<(), TestCaseError> {
    let mut last: BTreeMap<u64, (u64, u64)> = BTreeMap::new();
    let mut sorted: Vec<_> = times.clone();
    sorted.sort_by_key(|&(thread, index, ..)| r.threads[thread as usize][index as usize].ticket);
    for (thread, index, _, end) in sorted {
        let event = &r.threads[thread as usize][index as usize];
        let orders = !matches!(
            event.kind(),
            EventKind::MutexUnlock | EventKind::RwUnlock | EventKind::Syscall | EventKind::SemPost
        );
        if orders {
            let before = last.insert(event.object, (event.ticket, end));
            prop_assert!(before.is_none_or(|(_, at)| at <= end));
        }
    }
    Ok(())
}

fn machines() -> [Config; 4] {
    let costs = Costs { acquire: 1, release: 2, other: 1, handoff: 3, wake: 11, patience: 20 };
    [
        Config::ideal(8),
        Config::ideal(1),
        Config { cores: 2, quantum: 7, costs },
        Config { cores: 8, quantum: 50, costs },
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn every_scheduler_is_sound((threads, choices) in program(), seed in any::<u64>()) {
        let r = record(&threads, &choices);
        let skeleton = r.skeleton();
        for config in machines() {
            let (_, times) = elsc(&r, &config)?;
            if config == Config::ideal(8) {
                // Elsewhere an event may end late, for want of a core.
                keeps_order(&r, &times)?;
            }
            check(&r, &skeleton, &config, Orig::exact())?;
            check(&r, &skeleton, &config, Orig::with_jitter(seed, 100))?;
            check(&r, &skeleton, &config, Random::new(seed))?;
            check(&r, &skeleton, &config, Pct::new(seed, 3, 20))?;
        }
    }

    #[test]
    fn elsc_lies_between_the_longest_thread_and_all_work((threads, choices) in program()) {
        let r = record(&threads, &choices);
        let (run, _) = elsc(&r, &Config::ideal(8))?;
        let work = |account: &refrain_scheduler::Account| account.running + account.io;
        prop_assert!(run.duration >= run.threads.iter().map(work).max().unwrap_or(0));
        prop_assert!(run.duration <= run.threads.iter().map(work).sum());
        let (again, _) = elsc(&r, &Config::ideal(8))?;
        prop_assert_eq!(run, again);
    }

    #[test]
    fn elsc_is_monotone_in_any_segment(
        (threads, choices) in program(), thread in any::<prop::sample::Index>(),
        step in any::<prop::sample::Index>(), more in 1u64..100,
    ) {
        let mut longer = threads.clone();
        let list = &mut longer[thread.index(threads.len())];
        prop_assume!(!list.is_empty());
        let index = step.index(list.len());
        list[index].0 += more * 3; // The same remainder: the same kind of step.
        let (short, _) = elsc(&record(&threads, &choices), &Config::ideal(8))?;
        let (long, _) = elsc(&record(&longer, &choices), &Config::ideal(8))?;
        prop_assert!(long.duration >= short.duration);
    }
}
