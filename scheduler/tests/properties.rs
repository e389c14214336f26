//! Properties of replays, over runs that some machine could have recorded.

mod common;

use common::{
    Boxed, Played, Recording, Times, boxed, decided, kendo, noisy, order, repeat, replay,
};
use proptest::prelude::*;
use refrain_scheduler::testing::{
    Program, admissible, any_program, choices, keeps_order, machines, may_deadlock, plain, record,
};
use refrain_scheduler::{
    Config, Constraints, Costs, Durations, Edge, Elsc, InOrder, Locksets, MemS, Model, Orig,
    Outcome, Pct, Random, Run, Schedule, Skeleton, Waiting,
};
use refrain_trace::{Event, EventKind, ThreadId};
use std::collections::{BTreeMap, BTreeSet};

/// A core for each thread and nothing but the token.
fn token(travel: u64) -> Config {
    let costs = Costs { handoff: travel, other: 1, ..Costs::FREE };
    Config { costs, ..Config::ideal(8) }
}

/// Every scheduler, for one skeleton.
fn all(skeleton: &Skeleton, seed: u64) -> Vec<(&'static str, Boxed<'_>)> {
    let none = Constraints::none();
    vec![
        ("elsc", boxed(Elsc)),
        ("kendo", boxed(kendo(skeleton))),
        ("mem-s", boxed(MemS::new(skeleton, &none, &token(5), &[]))),
        ("orig-s", boxed(Orig)),
        ("orig-s with noise", boxed(noisy(seed, 100))),
        ("random", boxed(Random::new(seed))),
        ("pct", boxed(Pct::new(seed, 3, 20))),
    ]
}

/// What must hold of any replay. `None` for a deadlock, where one may be.
fn check<'a>(
    program: &Program,
    r: &Recording,
    skeleton: &Skeleton,
    config: &Config,
    played: impl Played<'a>,
) -> Result<Option<(Run, Times)>, TestCaseError> {
    let (outcome, times) = replay(skeleton, &Constraints::none(), config, played);
    let Outcome::Completed(run) = outcome else {
        prop_assert!(may_deadlock(program), "{:?}", outcome);
        return Ok(None);
    };
    admissible(r, &run, &times)?;
    Ok(Some((run, times)))
}

fn in_order<'a, P: Played<'a>>(played: P) -> Boxed<'a>
where
    P::By: 'static,
{
    let (by, model) = played.parts();
    (Box::new(InOrder::new(by)), model)
}

type Freed = (BTreeSet<u64>, Vec<Edge>, Vec<(ThreadId, u32)>);

/// Some of a recording's mutexes, edges between all their sections in the recorded order, and the
/// acquisitions that begin sections with outgoing edges.
fn sections_in_order(r: &Recording, seed: u64) -> Freed {
    use EventKind::*;
    let is_mutex = |kind| matches!(kind, MutexLock | MutexUnlock | CondWaitBegin | CondWaitEnd);
    let others: BTreeSet<u64> = r
        .threads
        .iter()
        .flatten()
        .filter(|event| !is_mutex(event.kind()))
        .map(|event| event.object)
        .collect();
    let (mut freed, mut edges, mut sources) = (BTreeSet::new(), Vec::new(), Vec::new());
    let mut open: BTreeMap<u64, (usize, usize)> = BTreeMap::new();
    let mut last: BTreeMap<u64, (usize, usize, usize)> = BTreeMap::new();
    for &(thread, index) in &r.sequence {
        let event = &r.threads[thread][index];
        let wanted = (event.object >> 4).wrapping_mul(seed | 1).count_ones() & 3 != 0;
        if !is_mutex(event.kind()) || others.contains(&event.object) || !wanted {
            continue;
        }
        freed.insert(event.object);
        let id = |thread: usize| ThreadId(thread as u32);
        if matches!(event.kind(), MutexLock | CondWaitEnd) {
            open.insert(event.object, (thread, index));
            let before = last.get(&event.object).copied();
            if let Some((other, acquire, release)) = before.filter(|it| it.0 != thread) {
                edges.push(Edge {
                    target_thread: id(thread),
                    target: index as u32,
                    source_thread: id(other),
                    source: release as u32,
                });
                sources.push((id(other), acquire as u32));
            }
        } else if let Some((_, acquire)) = open.remove(&event.object) {
            last.insert(event.object, (thread, acquire, index));
        }
    }
    (freed, edges, sources)
}

/// What a scheduler granted, in order, on one machine.
fn grants<'a>(skeleton: &Skeleton, config: &Config, played: impl Played<'a>) -> Schedule {
    decided(skeleton, &Constraints::none(), config, played).2
}

/// The longest path through the recorded order of a plain program: when its last event is over
/// if operations are free and every thread has a core. Events are met in the recorded order,
/// which extends every order that ELSC keeps, so one pass finds the time of each.
fn critical_path(r: &Recording) -> u64 {
    let mut clocks = vec![0; r.threads.len()];
    // When an object was last acquired, when it is free of writers and of anybody.
    let mut objects: BTreeMap<u64, (u64, u64, u64)> = BTreeMap::new();
    let mut writing: BTreeMap<u64, bool> = BTreeMap::new();
    for &(thread, index) in &r.sequence {
        let event = &r.threads[thread][index];
        let before = index.checked_sub(1).map_or(0, |last| r.threads[thread][last].end);
        let arrived = clocks[thread] + (event.begin - before);
        let (acquired, unwritten, free) = objects.entry(event.object).or_default();
        let mut done = arrived;
        match event.kind() {
            EventKind::MutexLock | EventKind::WriteLock => {
                done = arrived.max(*acquired).max(*free);
                *acquired = done;
                writing.insert(event.object, true);
            }
            EventKind::ReadLock => {
                done = arrived.max(*acquired).max(*unwritten);
                *acquired = done;
            }
            EventKind::Atomic => {
                done = arrived.max(*acquired);
                *acquired = done;
            }
            EventKind::MutexUnlock | EventKind::RwUnlock => {
                *free = done.max(*free);
                if writing.insert(event.object, false) == Some(true) {
                    *unwritten = done;
                }
            }
            EventKind::BarrierArrive => *acquired = done.max(*acquired),
            EventKind::BarrierLeave => done = arrived.max(*acquired),
            kind => assert_eq!(kind, EventKind::Syscall, "the only other one in plain programs"),
        }
        clocks[thread] = done + (event.end - event.begin);
    }
    clocks.into_iter().max().unwrap_or(0)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn every_scheduler_is_sound(
        program in any_program(), choices in choices(), seed in any::<u64>(),
    ) {
        let r = record(&program, &choices);
        let skeleton = r.skeleton();
        for config in machines() {
            let glibc = boxed((Orig, Model::waiting(Waiting::Glibc)));
            let more = ("orig-s as glibc waits", glibc);
            for (name, scheduler) in all(&skeleton, seed).into_iter().chain([more]) {
                let run = check(&program, &r, &skeleton, &config, scheduler)?;
                prop_assert!(run.is_some() || !["elsc", "mem-s"].contains(&name), "deadlock");
            }
        }
    }

    /// Locks are freed, and every two sections of them that follow each other keep their order:
    /// nothing deadlocks, whoever decides, and what the edges say holds.
    #[test]
    fn with_freed_locks_every_scheduler_is_sound(
        program in any_program(), choices in choices(), seed in any::<u64>(),
    ) {
        let r = record(&program, &choices);
        let skeleton = r.skeleton();
        let (freed, edges, sources) = sections_in_order(&r, seed);
        let schedulers = || vec![
            boxed(Elsc),
            in_order(kendo(&skeleton)),
            in_order(noisy(seed, 100)),
            in_order(Random::new(seed)),
            in_order(Pct::new(seed, 3, 20)),
        ];
        for locksets in [Locksets::Original, Locksets::Static, Locksets::Dynamic] {
            let constraints =
                Constraints::new(&skeleton, |at| freed.contains(&at), edges.iter().copied())
                    .expect("the edges are between events")
                    .with_locksets(locksets, sources.iter().copied());
            for config in machines() {
                let mem = MemS::new(&skeleton, &constraints, &config, &[]);
                for scheduler in schedulers().into_iter().chain([boxed(mem)]) {
                    let (outcome, times) = replay(&skeleton, &constraints, &config, scheduler);
                    prop_assert!(outcome.completed().is_some(), "a deadlock");
                    let at: BTreeMap<_, _> =
                        times.iter().map(|t| ((t.0, t.1 as u32), (t.2, t.3))).collect();
                    for edge in &edges {
                        let (came, _) = at[&(edge.source_thread.0, edge.source)];
                        let (_, went_on) = at[&(edge.target_thread.0, edge.target)];
                        prop_assert!(came <= went_on);
                    }
                }
            }
        }
    }

    #[test]
    fn elsc_keeps_each_order_and_mem_s_extends_it(
        program in any_program(), choices in choices(),
    ) {
        let r = record(&program, &choices);
        let skeleton = r.skeleton();
        let mem = MemS::new(&skeleton, &Constraints::none(), &token(7), &[]);
        let total = order(&grants(&skeleton, &Config::ideal(1), mem.clone()));
        for config in machines() {
            keeps_order(&r, &grants(&skeleton, &config, Elsc).grants)?;
            let of_mem = grants(&skeleton, &config, mem.clone());
            keeps_order(&r, &of_mem.grants)?;
            prop_assert_eq!(&order(&of_mem), &total, "one total order on every machine");
        }
        let duration = |scheduler: Boxed<'_>| {
            let (outcome, _) = replay(&skeleton, &Constraints::none(), &Config::ideal(8), scheduler);
            outcome.completed().expect("cannot deadlock").duration
        };
        prop_assert!(duration(boxed(Elsc)) <= duration(boxed(mem)), "more order, no shorter");
        let acts = |event: &Event| {
            event.kind() != EventKind::Syscall && event.result != 16 && event.result != -1
        };
        let acting = r.threads.iter().flatten().filter(|event| acts(event)).count();
        prop_assert_eq!(total.len(), acting, "of all accesses");
    }

    #[test]
    fn orders_by_turns_are_the_same_for_any_timing(
        program in any_program(), choices in choices(), seed in any::<u64>(),
    ) {
        let skeleton = record(&program, &choices).skeleton();
        let mut state = seed;
        let other = skeleton.retimed(|_, _, _| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1);
            Durations { work: (state >> 33) % 60, time: (state >> 40) % 90 }
        });
        let by_turns =
            || [boxed(kendo(&skeleton)), boxed(Pct::new(seed, 3, 20)), boxed(Random::new(seed))];
        for (at, by) in by_turns().into_iter().enumerate() {
            let expected = order(&grants(&skeleton, &Config::ideal(8), by));
            for timing in [&skeleton, &other] {
                for config in machines() {
                    let [.., by] = &mut by_turns()[..=at] else { unreachable!("never empty") };
                    let found = order(&grants(timing, &config, (&mut by.0, by.1)));
                    prop_assert_eq!(&found, &expected);
                }
            }
        }
    }

    #[test]
    fn kendos_order_is_the_same_for_any_recorded_schedule(
        program in plain(), one in choices(), two in choices(),
    ) {
        let sequence = |choices: &[u8]| {
            let skeleton = record(&program, choices).skeleton();
            order(&grants(&skeleton, &Config::ideal(2), kendo(&skeleton)))
        };
        prop_assert_eq!(sequence(&one), sequence(&two));
    }

    #[test]
    fn a_saved_schedule_replays_to_the_same_outcome(
        program in any_program(), choices in choices(), seed in any::<u64>(),
    ) {
        let skeleton = record(&program, &choices).skeleton();
        for config in machines() {
            for (name, scheduler) in all(&skeleton, seed) {
                let none = Constraints::none();
                let (outcome, mut times, schedule) = decided(&skeleton, &none, &config, scheduler);
                let text = schedule.to_string();
                prop_assert_eq!(&text.parse::<Schedule>().expect("just printed"), &schedule);
                let json = serde_json::to_string(&schedule).expect("plain data");
                prop_assert_eq!(&serde_json::from_str::<Schedule>(&json).unwrap(), &schedule);
                let (again, mut same, left) = repeat(&skeleton, &config, schedule);
                if let (Outcome::Completed(_), Outcome::Completed(_)) = (&again, &outcome) {
                    prop_assert_eq!(&again, &outcome, "{} {:?}\n{}", name, config, text);
                }
                prop_assert_eq!(again.completed(), outcome.completed());
                times.sort_unstable();
                same.sort_unstable();
                prop_assert_eq!(same, times);
                prop_assert_eq!(left, 0);
            }
        }
    }

    #[test]
    fn what_a_machine_recorded_is_repeated_to_the_tick(
        program in plain(), choices in choices(),
    ) {
        let r = record(&program, &choices);
        // A machine with costs and latencies records the run; its replay knows none of them.
        let machine = Config { cores: 8, ..machines()[3] };
        let (_, mut times) = check(&program, &r, &r.skeleton(), &machine, Elsc)?
            .expect("ELSC cannot deadlock");
        let skeleton = r.clone().repeated(&times);
        let (_, mut again) = check(&program, &r, &skeleton, &Config::ideal(8), Elsc)?
            .expect("ELSC cannot deadlock");
        times.sort_unstable();
        again.sort_unstable();
        prop_assert_eq!(again, times);
    }

    #[test]
    fn elsc_takes_as_long_as_the_critical_path(program in plain(), choices in choices()) {
        let r = record(&program, &choices);
        let (run, _) = check(&program, &r, &r.skeleton(), &Config::ideal(8), Elsc)?
            .expect("ELSC cannot deadlock");
        prop_assert_eq!(run.duration, critical_path(&r));
    }

    #[test]
    fn elsc_lies_between_the_longest_thread_and_all_work(
        program in any_program(), choices in choices(),
    ) {
        let r = record(&program, &choices);
        let skeleton = r.skeleton();
        let run = || check(&program, &r, &skeleton, &Config::ideal(8), Elsc);
        let (found, times) = run()?.expect("ELSC cannot deadlock");
        let least = |thread: &Vec<Event>| thread.last().map_or(0, |event| event.end);
        prop_assert!(found.duration >= r.threads.iter().map(least).max().unwrap_or(0));
        prop_assert!(found.duration <= r.threads.iter().map(least).sum());
        let elsewhere = std::thread::scope(|scope| {
            let hosts: Vec<_> = (0..3).map(|_| scope.spawn(run)).collect();
            hosts.into_iter().map(|host| host.join().expect("no panic")).collect::<Vec<_>>()
        });
        for host in elsewhere {
            let (again, same) = host?.expect("as before");
            prop_assert_eq!((&again, &same), (&found, &times));
        }
    }

    #[test]
    fn elsc_is_monotone_in_any_segment(
        program in any_program(), choices in choices(), thread in any::<prop::sample::Index>(),
        step in any::<prop::sample::Index>(), more in 1u64..100,
    ) {
        let skeleton = record(&program, &choices).skeleton();
        let thread = thread.index(program.len());
        let events = skeleton.operations(refrain_trace::ThreadId(thread as u32)).len();
        prop_assume!(events > 0);
        let event = step.index(events);
        let longer = skeleton.retimed(|id, at, durations| {
            let here = id.index() == thread && at.index() == event;
            Durations { work: durations.work + if here { more } else { 0 }, ..durations }
        });
        let duration = |skeleton: &Skeleton| {
            let (outcome, _) = replay(skeleton, &Constraints::none(), &Config::ideal(8), Elsc);
            outcome.completed().expect("ELSC cannot deadlock").duration
        };
        let (short, long) = (duration(&skeleton), duration(&longer));
        prop_assert!(short <= long && long <= short + more);
    }
}
