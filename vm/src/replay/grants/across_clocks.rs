//! One scheduler, two clocks: what it grants in a full replay, held against what it grants in
//! virtual time, over generated programs. The threads of the full replay are played by the test, at
//! any speed.

use super::super::objects::{self, BARRIER_COUNT};
use super::tests::Memory;
use super::*;
use proptest::prelude::*;
use refrain_scheduler::testing::{
    BARRIER, Program, Recording, SEM, by_locks, choices, record_after,
};
use refrain_scheduler::{
    Config, Constraints, Costs, Durations, Kendo, Model, Pct, Random, Skeleton, Waiting, simulate,
};
use refrain_trace::{Event, EventKind, linux};
use std::sync::{Arc, Mutex, PoisonError};

type Boxed = Box<dyn Scheduler + Send>;
/// Thread and event of everything that was granted, in order.
type Order = Vec<(ThreadId, u32)>;

/// Keeps what another scheduler grants.
struct Logged {
    inner: Boxed,
    log: Arc<Mutex<Order>>,
}

impl Logged {
    fn new(inner: Boxed) -> (Logged, Arc<Mutex<Order>>) {
        let log = Arc::default();
        (Logged { inner, log: Arc::clone(&log) }, log)
    }
}

impl Scheduler for Logged {
    fn scope(&self) -> Scope {
        self.inner.scope()
    }

    fn choose(&mut self, moment: Moment<'_>, requests: &[Request]) -> Choice {
        let choice = self.inner.choose(moment, requests);
        if let Choice::Grant(index) = choice {
            let Request { thread, event, .. } = requests[index];
            self.log.lock().unwrap_or_else(PoisonError::into_inner).push((thread, event));
        }
        choice
    }
}

fn taken(log: &Mutex<Order>) -> Order {
    log.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

/// Every scheduler whose order is a function of its seed and the clocks.
fn deterministic(seed: u64, turns: u64) -> [Boxed; 3] {
    [Box::new(Kendo::default()), Box::new(Pct::new(seed, 4, turns)), Box::new(Random::new(seed))]
}

/// A recording in which `t0` creates the others, all do what the program says and exit, and `t0`
/// joins the others.
fn recorded(program: &Program, choices: &[u8]) -> Recording {
    let threads = program.len();
    let mut recording = Recording::new(threads);
    recording.push(0, 0, EventKind::ThreadStart, 1);
    for child in 1..threads {
        let event = recording.push(0, 3 + child as u64, EventKind::Syscall, order::THREADS);
        (event.nr, event.value) = (libc::SYS_clone as u16, 100 + child as u64);
    }
    for child in 1..threads {
        recording.push(child, 0, EventKind::ThreadStart, child as u64 + 1);
    }
    let mut recording = record_after(recording, program, choices);
    for child in 1..threads {
        recording.push(child, 2, EventKind::ThreadExit, child as u64 + 1);
    }
    for child in 1..threads {
        recording.push(0, 1, EventKind::ThreadJoin, child as u64 + 1);
    }
    recording.push(0, 2, EventKind::ThreadExit, 1);
    recording
}

/// In virtual time.
fn granted_virtually(skeleton: &Skeleton, config: &Config, by: Boxed) -> (Order, bool) {
    let (mut logged, log) = Logged::new(by);
    let model = Model { clocks: Some(skeleton), ..Model::waiting(Waiting::Polling) };
    let none = Constraints::none();
    let outcome = simulate(skeleton, &none, config, &model, &mut logged, &mut ());
    (taken(&log), outcome.completed().is_some())
}

/// What a thread does at an event, if a replay asks for it.
fn asked(event: &Event, next_child: &mut u32) -> Option<Operation> {
    match event.kind() {
        EventKind::ThreadExit => Some(Operation::Exit),
        EventKind::ThreadJoin => {
            Some(Operation::Join { thread: ThreadId(event.object as u32 - 1) })
        }
        EventKind::Syscall if linux::creates_threads(event.nr) => {
            *next_child += 1;
            Some(Operation::Create { thread: ThreadId(*next_child) })
        }
        _ => objects::operation(event),
    }
}

/// In a full replay whose threads come to their next operations in an order that `hurry` decides.
fn granted_in_full(
    recording: &Recording,
    clocks: &[Vec<u64>],
    words: &[(u64, u32)],
    by: Boxed,
    mut hurry: u64,
) -> (Order, bool) {
    let threads = recording.threads.len();
    let (logged, log) = Logged::new(by);
    let memory = Memory(words.iter().copied().collect());
    let mut grants = Grants::new(Box::new(logged), memory, threads);
    grants.begin(ThreadId(0));
    let mut children = 0;
    let mut next = vec![0; threads];
    let mut waits = vec![false; threads];
    let is_over = |next: &[usize], id: usize| next[id] == recording.threads[id].len();
    loop {
        let able: Vec<usize> = (0..threads)
            .filter(|&id| {
                let born = grants.progress[id].status != Status::Unborn;
                born && !waits[id] && !is_over(&next, id)
            })
            .collect();
        if able.is_empty() {
            return (taken(&log), (0..threads).all(|id| is_over(&next, id)));
        }
        hurry = hurry.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let id = able[(hurry >> 33) as usize % able.len()];
        let thread = ThreadId(id as u32);
        let event = &recording.threads[id][next[id]];
        let mut done = Vec::new();
        match asked(event, &mut children) {
            None => done.push(thread),
            Some(operation) => {
                grants.publish(thread, clocks[id][next[id]]);
                let event = EventId(next[id] as u64);
                waits[id] = true;
                if grants.request(thread, Asked { operation, event, ticket: 0 }) {
                    done.push(thread);
                }
            }
        }
        done.extend(grants.take_news().into_iter().map(|(thread, news)| {
            assert_eq!(news, News::Granted, "with turns nobody asks again");
            thread
        }));
        while let Some(thread) = done.pop() {
            let id = thread.index();
            waits[id] = false;
            next[id] += 1;
            if is_over(&next, id) {
                grants.end(thread);
                done.extend(grants.take_news().into_iter().map(|(thread, _)| thread));
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn both_clocks_grant_in_one_order(
        program in by_locks(), choices in choices(), seed in any::<u64>(),
    ) {
        let recording = recorded(&program, &choices);
        // A full replay's clocks do not go on while a thread sleeps.
        let skeleton = recording
            .skeleton()
            .retimed(|_, _, Durations { work, .. }| Durations { work, time: 0 });
        let mut clocks: Vec<Vec<u64>> = vec![Vec::new(); program.len()];
        skeleton.retimed(|thread, _, durations| {
            let clocks = &mut clocks[thread.index()];
            clocks.push(clocks.last().unwrap_or(&0) + durations.work);
            durations
        });
        let level = skeleton.objects().iter().find(|object| object.address == SEM);
        let words = [
            (SEM, level.map_or(0, |object| object.tokens)),
            (BARRIER + BARRIER_COUNT, program.len() as u32),
        ];
        let turns = recording.threads.iter().flatten().filter(|event| objects::takes_turns(event));
        let turns = turns.count() as u64;
        let costs = Costs { acquire: 1, release: 2, handoff: 3, wake: 11, ..Costs::FREE };
        let machines = [Config::ideal(4), Config { cores: 2, quantum: 7, costs }];
        for at in 0..deterministic(seed, turns).len() {
            let by = || {
                let all = deterministic(seed, turns);
                all.into_iter().nth(at).expect("there are as many")
            };
            let expected = granted_virtually(&skeleton, &machines[0], by());
            let elsewhere = granted_virtually(&skeleton, &machines[1], by());
            prop_assert_eq!(&elsewhere, &expected, "scheduler {} on another machine", at);
            for hurry in 0..8 {
                let found = granted_in_full(&recording, &clocks, &words, by(), hurry);
                prop_assert_eq!(&found, &expected, "scheduler {}, hurry {}", at, hurry);
            }
        }
    }
}
