//! Replays of generated recordings, and what must hold of them whoever decides.

use super::Recording;
use crate::{
    Config, Constraints, Costs, Elsc, Grant, Model, Outcome, Run, Scheduler, Skeleton, simulate,
};
use proptest::prelude::*;
use refrain_trace::{Event, EventId, EventKind, ThreadId};
use std::collections::BTreeMap;

/// Every event of a replay: thread, event, begin, end.
pub type Times = Vec<(u32, u64, u64, u64)>;

/// Machines that differ in every way: plenty of cores and one, free operations and dear ones.
pub fn machines() -> [Config; 5] {
    let costs = Costs {
        acquire: 1,
        release: 2,
        other: 1,
        handoff: 3,
        wake: 11,
        patience: 20,
        back: 7,
        vain: 10,
        rouse: 4,
        travel: 1,
    };
    [
        Config::ideal(8),
        Config::ideal(1),
        Config { cores: 1, quantum: 30, costs },
        Config { cores: 2, quantum: 7, costs },
        Config { cores: 8, quantum: 50, costs },
    ]
}

/// Replays a skeleton under constraints in virtual time.
pub fn play(
    (skeleton, constraints): (&Skeleton, &Constraints<'_>),
    config: &Config,
    model: &Model<'_>,
    by: &mut impl Scheduler,
) -> (Outcome, Times) {
    let mut times = Times::new();
    let mut visit = |thread: ThreadId, event: EventId, begin, end| {
        times.push((thread.0, event.0, begin, end));
    };
    let outcome = simulate(skeleton, constraints, config, model, by, &mut visit);
    (outcome, times)
}

/// Checks that a machine could have made this replay: every event happens once and in its thread's
/// order, each thread's time adds up, and nobody had a lock that another thread excluded from it.
pub fn admissible(
    recording: &Recording,
    run: &Run,
    times: &[(u32, u64, u64, u64)],
) -> Result<(), TestCaseError> {
    let events: usize = recording.threads.iter().map(Vec::len).sum();
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
    excludes(recording, times)
}

/// Exclusive possessions of a lock do not overlap with any other.
fn excludes(recording: &Recording, times: &[(u32, u64, u64, u64)]) -> Result<(), TestCaseError> {
    use EventKind::{
        CondWaitBegin, CondWaitEnd, MutexLock, MutexTryLock, MutexUnlock, ReadLock, RwUnlock,
        WriteLock,
    };
    let mut held: BTreeMap<u64, Vec<(u64, u64, bool)>> = BTreeMap::new();
    let mut open: BTreeMap<(u32, u64), (u64, bool)> = BTreeMap::new();
    for &(thread, index, begin, end) in times {
        let event = &recording.threads[thread as usize][index as usize];
        let key = (thread, event.object);
        match event.kind() {
            MutexLock | WriteLock | CondWaitEnd => {
                open.insert(key, (end, true));
            }
            MutexTryLock if event.result == 0 => {
                open.insert(key, (end, true));
            }
            ReadLock => {
                open.insert(key, (end, false));
            }
            MutexUnlock | RwUnlock | CondWaitBegin => {
                let (from, exclusive) = open[&key];
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

/// Checks that what competes for an object was granted in its recorded order.
pub fn keeps_order(recording: &Recording, grants: &[Grant]) -> Result<(), TestCaseError> {
    let skeleton = recording.skeleton();
    let mut last: BTreeMap<u64, u64> = BTreeMap::new();
    for Grant { thread, event, .. } in grants {
        let Event { object, ticket, .. } = recording.threads[thread.index()][event.index()];
        let competes = skeleton.operations(*thread)[event.index()].competes();
        if competes {
            let before = last.insert(object, ticket);
            prop_assert!(before.is_none_or(|before| before < ticket));
        }
    }
    Ok(())
}

/// How long a machine takes for the recorded run, and how long a replay of what that machine has
/// recorded takes: equal, to the tick, for a scheduler that is faithful to recordings.
///
/// # Errors
/// If the scheduler runs into a deadlock.
pub fn fidelity(
    recording: &Recording,
    machine: &Config,
    model: &Model<'_>,
    by: &mut impl Scheduler,
) -> Result<(u64, u64), TestCaseError> {
    let none = Constraints::none();
    let skeleton = recording.skeleton();
    let (outcome, times) = play((&skeleton, &none), machine, &Model::default(), &mut Elsc);
    let recorded = outcome.completed().expect("the recorded order cannot deadlock").duration;
    let again = recording.clone().repeated(&times);
    let ideal = Config::ideal(again.threads().max(1) as u32);
    match play((&again, &none), &ideal, model, by).0 {
        Outcome::Completed(run) => Ok((recorded, run.duration)),
        Outcome::Deadlocked(deadlock) => Err(TestCaseError::fail(deadlock.to_string())),
    }
}
