//! All interleavings of tiny runs, found by brute force, against what each scheduler does.
//!
//! The brute force knows locks, reader-writer locks, semaphores, conditions, barriers, atomic
//! instructions, loads and joins from their definitions and shares no code with the crate. A
//! thread does not take a lock under which it waits for what another one does under it first. For
//! every pair of
//! small threads (and some triples) and every order in which they could have been recorded:
//! - a schedule of any permutation replays if and only if the permutation is legal;
//! - ORIG-S reaches each legal order, and ELSC each that keeps the recorded order of each object;
//! - Kendo performs the one order that its clocks give, MEM-S one that extends ELSC's;
//! - random and PCT stay within the legal orders, and get stuck only where those can.

mod common;

use common::{Played, Recording, decided, kendo, repeat, replay};
use refrain_scheduler::{
    Config, Constraints, Costs, Durations, Elsc, Grant, MemS, Orig, Outcome, Pct, Random, Schedule,
    Skeleton,
};
use refrain_trace::EventKind::{self, *};
use refrain_trace::{EventId, ThreadId};

/// A core for each thread and nothing but the token.
fn token(travel: u64) -> Config {
    let costs = Costs { handoff: travel, other: 1, ..Costs::FREE };
    Config { costs, ..Config::ideal(8) }
}

type Thread = &'static [(EventKind, u64)];
/// Thread and event of everything, in order.
type Order = Vec<(usize, usize)>;

const A: u64 = 0x1000;
const B: u64 = 0x1040;
const RW: u64 = 0x2000;
const WORD: u64 = 0x3000;
const SEM: u64 = 0x5000;
const COND: u64 = 0x6000;
const BARRIER: u64 = 0x7000;

/// The next thread.
const NEXT: u64 = 1;

const THREADS: [Thread; 16] = [
    &[(MutexLock, A), (MutexUnlock, A)],
    &[(MutexLock, A), (MutexUnlock, A), (MutexLock, A), (MutexUnlock, A)],
    &[(MutexLock, A), (MutexLock, B), (MutexUnlock, B), (MutexUnlock, A)],
    &[(MutexLock, B), (MutexLock, A), (MutexUnlock, A), (MutexUnlock, B)],
    &[(ReadLock, RW), (RwUnlock, RW)],
    &[(WriteLock, RW), (RwUnlock, RW)],
    &[(ReadLock, RW), (MutexLock, A), (RwUnlock, RW), (MutexUnlock, A)],
    &[(Atomic, WORD), (Atomic, WORD)],
    &[(SemPost, SEM), (SemWait, SEM)],
    &[(SemWait, SEM), (MutexLock, A), (MutexUnlock, A), (SemPost, SEM)],
    &[(MutexLock, A), (CondSignal, COND), (MutexUnlock, A), (Atomic, WORD)],
    &[(MutexLock, A), (CondWaitBegin, A), (CondWaitEnd, A), (MutexUnlock, A)],
    &[(BarrierArrive, BARRIER), (BarrierLeave, BARRIER)],
    &[(MutexLock, A), (ThreadJoin, NEXT), (MutexUnlock, A)],
    &[(MutexLock, A), (SyncLoad, WORD), (MutexUnlock, A)],
    &[(MutexLock, A), (Atomic, WORD), (MutexUnlock, A), (MutexLock, A), (MutexUnlock, A)],
];

/// What the threads have done so far.
#[derive(Clone)]
struct State {
    next: Vec<usize>,
    /// Holders of `A` and `B`, and the writer.
    owners: [Option<usize>; 3],
    readers: u32,
    level: i32,
    signals: u32,
    arrived: usize,
    atomics: usize,
}

/// A system of threads: what is possible in it.
struct System<'a> {
    threads: &'a [Thread],
    /// Initial level of the semaphore.
    level: i32,
    /// Signals that must have been given before the wait of each thread ends.
    signals: Vec<u32>,
    /// Atomic instructions that the load of each thread has seen.
    loads: Vec<usize>,
}

fn owned(object: u64) -> usize {
    match object {
        A => 0,
        B => 1,
        _ => 2,
    }
}

impl System<'_> {
    fn start(&self) -> State {
        State {
            next: vec![0; self.threads.len()],
            owners: [None; 3],
            readers: 0,
            level: self.level,
            signals: 0,
            arrived: 0,
            atomics: 0,
        }
    }

    fn op(&self, state: &State, thread: usize) -> Option<(EventKind, u64)> {
        self.threads[thread].get(state.next[thread]).copied()
    }

    fn can(&self, state: &State, thread: usize) -> bool {
        let Some((kind, object)) = self.op(state, thread) else { return false };
        let free = state.owners[owned(object)].is_none();
        let all = || self.threads.iter().filter(|ops| ops[0].0 == BarrierArrive).count();
        match kind {
            MutexLock => free && !self.waits_in_vain(state, thread, object),
            ReadLock => free,
            WriteLock => free && state.readers == 0,
            SemWait => state.level > 0,
            CondWaitEnd => free && state.signals >= self.signals[thread],
            BarrierLeave => state.arrived == all(),
            ThreadJoin => self.op(state, self.after(thread)).is_none(),
            SyncLoad => state.atomics >= self.loads[thread],
            _ => true,
        }
    }

    fn after(&self, thread: usize) -> usize {
        (thread + 1) % self.threads.len()
    }

    /// Whether `thread`, before it gives the lock back, waits for what the next thread does only
    /// after it has had the lock. (Threads that load do nothing else to the word.)
    fn waits_in_vain(&self, state: &State, thread: usize, lock: u64) -> bool {
        let mine = self.threads[thread][state.next[thread]..].iter();
        let mut held = mine.take_while(|op| **op != (MutexUnlock, lock));
        let wait = held.find(|(kind, _)| matches!(kind, ThreadJoin | SyncLoad));
        let other = self.threads[self.after(thread)];
        let atomics = (0..other.len()).filter(|&index| other[index].0 == Atomic);
        let needed = match wait {
            Some((ThreadJoin, _)) => other.len(),
            Some(_) => atomics.take(self.loads[thread]).last().unwrap_or(0),
            None => 0,
        };
        let to_come = other.get(state.next[self.after(thread)]..needed).unwrap_or(&[]);
        to_come.iter().any(|op| matches!(op, (MutexLock | CondWaitEnd, object) if *object == lock))
    }

    fn step(&self, state: &State, thread: usize) -> State {
        let mut state = state.clone();
        let (kind, object) = self.op(&state, thread).expect("a thread that can go on");
        match kind {
            MutexLock | WriteLock | CondWaitEnd => state.owners[owned(object)] = Some(thread),
            MutexUnlock | CondWaitBegin => state.owners[owned(object)] = None,
            ReadLock => state.readers += 1,
            RwUnlock if state.owners[2].take().is_none() => state.readers -= 1,
            SemPost => state.level += 1,
            SemWait => state.level -= 1,
            CondSignal => state.signals += 1,
            BarrierArrive => state.arrived += 1,
            Atomic => state.atomics += 1,
            _ => {}
        }
        state.next[thread] += 1;
        state
    }

    /// Every complete order, and whether some order gets stuck.
    fn legal(&self) -> (Vec<Order>, bool) {
        let (mut found, mut stuck) = (Vec::new(), false);
        self.extend(&self.start(), &mut Vec::new(), &mut found, &mut stuck);
        (found, stuck)
    }

    fn extend(&self, state: &State, so_far: &mut Order, found: &mut Vec<Order>, stuck: &mut bool) {
        let ready: Vec<_> = (0..self.threads.len()).filter(|&t| self.can(state, t)).collect();
        for &thread in &ready {
            so_far.push((thread, state.next[thread]));
            self.extend(&self.step(state, thread), so_far, found, stuck);
            so_far.pop();
        }
        if ready.is_empty() {
            let complete = so_far.len() == self.threads.iter().map(|ops| ops.len()).sum();
            *stuck |= !complete;
            if complete {
                found.push(so_far.clone());
            }
        }
    }

    /// The order by logical clocks, worked out tick by tick: a thread comes to its next event
    /// `work` ticks after the last, threads of one tick in the order of their ids; what becomes
    /// possible goes at once to whoever waits longest.
    fn by_clocks(&self, work: &dyn Fn(usize, usize) -> u64) -> Order {
        let (mut state, mut order, mut queue) = (self.start(), Order::new(), Vec::new());
        let threads = 0..self.threads.len();
        let mut due: Vec<Option<u64>> = threads.clone().map(|t| Some(work(t, 0))).collect();
        for tick in 0..200 {
            while let Some(thread) = threads.clone().find(|&t| due[t] == Some(tick)) {
                due[thread] = None;
                if self.op(&state, thread).is_some() {
                    queue.push(thread);
                }
                while let Some(at) = queue.iter().position(|&t| self.can(&state, t)) {
                    let goes = queue.remove(at);
                    let event = state.next[goes];
                    state = self.step(&state, goes);
                    order.push((goes, event));
                    due[goes] = Some(tick + work(goes, event + 1));
                }
            }
        }
        order
    }
}

/// All sequences that keep the order within each thread, legal or not.
fn permutations(threads: &[Thread]) -> Vec<Order> {
    fn extend(threads: &[Thread], next: &mut [usize], so_far: &mut Order, found: &mut Vec<Order>) {
        let mut last = true;
        for thread in 0..threads.len() {
            if next[thread] < threads[thread].len() {
                last = false;
                so_far.push((thread, next[thread]));
                next[thread] += 1;
                extend(threads, next, so_far, found);
                next[thread] -= 1;
                so_far.pop();
            }
        }
        if last {
            found.push(so_far.clone());
        }
    }
    let mut found = Vec::new();
    extend(threads, &mut vec![0; threads.len()], &mut Vec::new(), &mut found);
    found
}

/// The run in which things happened in this order.
fn record(threads: &[Thread], order: &Order) -> Recording {
    let mut r = Recording::new(threads.len());
    for &(thread, index) in order {
        let (kind, mut object) = threads[thread][index];
        let aux = r.tickets(COND);
        if object == NEXT {
            object = (thread as u64 + 1) % threads.len() as u64 + 1;
        }
        let event = r.push(thread, 0, kind, object);
        if matches!(kind, CondWaitBegin | CondWaitEnd) {
            event.value = COND;
        }
        if kind == CondWaitEnd {
            event.aux = aux;
        }
    }
    r
}

/// What a recording allows: it knows the semaphore's level and the signals from what happened.
fn recorded<'a>(threads: &'a [Thread], order: &Order) -> System<'a> {
    let (mut level, mut least, mut given, mut atomics) = (0, 0, 0, 0);
    let mut signals = vec![0; threads.len()];
    let mut loads = vec![0; threads.len()];
    for &(thread, index) in order {
        match threads[thread][index].0 {
            SemPost => level += 1,
            SemWait => level -= 1,
            CondSignal => given += 1,
            CondWaitEnd => signals[thread] = given,
            Atomic => atomics += 1,
            SyncLoad => loads[thread] = atomics,
            _ => {}
        }
        least = least.min(level);
    }
    System { threads, level: -least, signals, loads }
}

struct Case<'a> {
    threads: &'a [Thread],
    recording: Order,
    skeleton: Skeleton,
    legal: Vec<Order>,
    stuck: bool,
    system: System<'a>,
}

impl<'a> Case<'a> {
    fn new(threads: &'a [Thread], recording: &Order) -> Case<'a> {
        let skeleton = record(threads, recording).skeleton();
        let system = recorded(threads, recording);
        let (legal, stuck) = system.legal();
        Case { threads, recording: recording.clone(), skeleton, legal, stuck, system }
    }

    /// The competing operations of an order.
    fn competing(&self, order: &Order) -> Order {
        let competes = |&&(thread, event): &&(usize, usize)| {
            self.skeleton.operations(ThreadId(thread as u32))[event].competes()
        };
        order.iter().filter(competes).copied().collect()
    }

    /// What a schedule of everything decides on: joins are facts.
    fn acting(&self, order: &Order) -> Order {
        let acts = |&&(thread, event): &&(usize, usize)| {
            self.skeleton.operations(ThreadId(thread as u32))[event].acts()
        };
        order.iter().filter(acts).copied().collect()
    }

    /// Whether each object's competing operations have the recorded order.
    fn keeps(&self, order: &Order) -> bool {
        let place = |at: &(usize, usize)| self.recording.iter().position(|other| other == at);
        let ordered = self.competing(order);
        ordered.iter().enumerate().all(|(index, one)| {
            ordered[index + 1..].iter().all(|other| {
                self.threads[one.0][one.1].1 != self.threads[other.0][other.1].1
                    || place(one) < place(other)
            })
        })
    }

    /// The skeleton with every event at its place in `order`, one tick each.
    fn timed(&self, order: &Order) -> Skeleton {
        let place = |thread: usize, event: usize| {
            order.iter().position(|&at| at == (thread, event)).expect("all events") as u64 + 1
        };
        self.skeleton.retimed(|thread, event, _| {
            let (thread, event) = (thread.index(), event.index());
            let before = event.checked_sub(1).map_or(0, |last| place(thread, last));
            Durations { work: place(thread, event) - before, time: 0 }
        })
    }

    fn check(&self) {
        let legal: Vec<Order> = self.legal.iter().map(|order| self.acting(order)).collect();
        for order in permutations(self.threads) {
            let order = self.acting(&order);
            let possible = legal.contains(&order);
            assert_eq!(self.repeats(&order), possible, "{:?} {order:?}", self.recording);
        }
        let none = Constraints::none();
        let mem = MemS::new(&self.skeleton, &none, &token(1), &[]);
        let total = performed(&self.skeleton, mem.clone()).expect("MEM-S cannot get stuck");
        assert!(legal.contains(&total) && self.keeps(&total), "{total:?}");
        for order in &self.legal {
            let timed = self.timed(order);
            assert_eq!(visited(&timed, Orig).as_ref(), Some(order), "ORIG-S");
            let elsc = visited(&timed, Elsc).expect("ELSC cannot get stuck");
            assert!(self.legal.contains(&elsc) && self.keeps(&elsc), "{elsc:?}");
            assert_eq!(elsc == *order, self.keeps(order), "{order:?} {elsc:?}");
            assert_eq!(performed(&timed, mem.clone()), Some(total.clone()), "MEM-S");
            let by_clocks = Some(self.acting(order));
            assert_eq!(performed(&self.skeleton, kendo(&timed)), by_clocks, "Kendo");
            assert_eq!(performed(&timed, kendo(&timed)), by_clocks, "Kendo");
        }
        for seed in 0..4 {
            self.check_clocks(seed);
            self.check_within(Random::new(seed));
            self.check_within(Pct::new(seed, 2, 4));
        }
    }

    /// Whether a schedule of all events in this order can be replayed.
    fn repeats(&self, order: &Order) -> bool {
        let grant = |&(thread, event): &(usize, usize)| Grant {
            thread: ThreadId(thread as u32),
            event: EventId(event as u64),
            at: 0,
            step: 0,
        };
        let grants = order.iter().map(grant).collect();
        let schedule = Schedule { total: true, grants, ..Schedule::default() };
        let (outcome, _, left) = repeat(&self.skeleton, &Config::ideal(1), schedule);
        assert_eq!(left == 0, outcome.clone().completed().is_some());
        outcome.completed().is_some()
    }

    /// Kendo's order for clocks that clash.
    fn check_clocks(&self, seed: u64) {
        let work = |thread: usize, event: usize| {
            let mixed = (seed * 64 + thread as u64 * 8 + event as u64 + 1)
                .wrapping_mul(0x9e37_79b9_7f4a_7c15);
            1 + (mixed >> 61)
        };
        let logical = self.skeleton.retimed(|thread, event, _| Durations {
            work: work(thread.index(), event.index()),
            time: 0,
        });
        let expected = self.system.by_clocks(&work);
        let complete = expected.len() == self.recording.len();
        let found = performed(&self.skeleton, kendo(&logical));
        assert_eq!(found, complete.then(|| self.acting(&expected)), "{:?}", self.recording);
    }

    fn check_within<'b>(&self, played: impl Played<'b>) {
        match performed(&self.skeleton, played) {
            Some(order) => {
                assert!(self.legal.iter().any(|legal| self.acting(legal) == order), "{order:?}");
            }
            None => assert!(self.stuck, "{:?}", self.recording),
        }
    }
}

/// What was granted, in order; `None` for a deadlock.
fn performed<'a>(skeleton: &Skeleton, played: impl Played<'a>) -> Option<Order> {
    let machine = Config::ideal(4);
    let (outcome, _, schedule) = decided(skeleton, &Constraints::none(), &machine, played);
    if let Outcome::Deadlocked(deadlock) = &outcome {
        assert!(!deadlock.waits.is_empty());
    }
    let grants = schedule.grants.iter();
    let order = grants.map(|grant| (grant.thread.index(), grant.event.index())).collect();
    outcome.completed().map(|_| order)
}

/// All events, in the order in which they ended.
fn visited<'a>(skeleton: &Skeleton, played: impl Played<'a>) -> Option<Order> {
    let (outcome, times) = replay(skeleton, &Constraints::none(), &Config::ideal(4), played);
    let order = times.iter().map(|time| (time.0 as usize, time.1 as usize)).collect();
    outcome.completed().map(|_| order)
}

/// Checks recordings of these threads, one in `every`; returns how many it were.
fn check_all(threads: &[Thread], every: usize) -> usize {
    let (signals, loads) = (vec![1; threads.len()], vec![0; threads.len()]);
    let real = System { threads, level: 1, signals, loads };
    let (recordings, _) = real.legal();
    let chosen = recordings.iter().step_by(every);
    chosen.map(|recording| Case::new(threads, recording).check()).count()
}

#[test]
fn all_pairs_of_threads() {
    let mut recordings = 0;
    for (index, first) in THREADS.iter().enumerate() {
        for second in &THREADS[index..] {
            recordings += check_all(&[first, second], 1);
        }
    }
    assert!(recordings > 800, "only {recordings} runs were checked");
}

#[test]
fn three_threads() {
    let short = THREADS.iter().filter(|thread| thread.len() == 2);
    let short: Vec<Thread> = short.copied().collect();
    let mut recordings = 0;
    for (index, first) in short.iter().enumerate() {
        for second in &short[index..] {
            recordings += check_all(&[first, second, short[0]], 9);
        }
    }
    assert!(recordings > 100, "only {recordings} runs were checked");
}
