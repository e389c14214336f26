//! Full replays of scripted guests: the replayer with threads, gate and comparisons, without a
//! translator.

mod scripted;

use proptest::prelude::*;
use refrain_scheduler::testing::{
    BARRIER, Op, Program, Recording, SEM, by_locks, choices, plain, record_after,
};
use refrain_scheduler::{
    Choice, Config, Constraints, Elsc, Kendo, Model, Moment, Pct, Random, Recorder, Request,
    Scheduler, Scope, Skeleton, Waiting, simulate,
};
use refrain_trace::{Access, Event, EventId, EventKind, ThreadId};
use refrain_vm::{
    Divergence, DivergenceKind, Interest, Observer, Outcome, Policy, ReplayOptions, ThreadObserver,
    replay,
};
use scripted::guest::Guest;
use scripted::{Scripted, Step};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

/// Where glibc keeps how many threads a barrier is for.
const BARRIER_COUNT: u64 = 8;

/// Thread and event, in order.
type Order = Vec<(ThreadId, u32)>;
/// In the place of an event: an access. The scripted engine logs none.
const LOGGED: u32 = u32::MAX;
type Log = Arc<Mutex<Order>>;
type Boxed = Box<dyn Scheduler + Send>;

fn note(log: &Log, thread: ThreadId, event: u32) {
    log.lock().unwrap_or_else(PoisonError::into_inner).push((thread, event));
}

fn taken(log: &Log) -> Order {
    log.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

/// Keeps what another scheduler grants.
struct Logged(Boxed, Log);

impl Scheduler for Logged {
    fn scope(&self) -> Scope {
        self.0.scope()
    }

    fn choose(&mut self, moment: Moment<'_>, requests: &[Request]) -> Choice {
        let choice = self.0.choose(moment, requests);
        if let Choice::Grant(index) = choice {
            note(&self.1, requests[index].thread, requests[index].event);
        }
        choice
    }
}

/// Keeps the order in which events happen.
struct Watching(Log);

impl Observer for Watching {
    fn interest(&self) -> Interest {
        Interest::default()
    }

    fn thread(&self, thread: ThreadId) -> Box<dyn ThreadObserver> {
        Box::new(WatchingThread(thread, Arc::clone(&self.0)))
    }
}

struct WatchingThread(ThreadId, Log);

impl ThreadObserver for WatchingThread {
    fn accesses(&mut self, batch: &[Access]) {
        batch.iter().for_each(|_| note(&self.1, self.0, LOGGED));
    }

    fn event(&mut self, id: EventId, _: &Event, _: u64) {
        note(&self.1, self.0, id.0 as u32);
    }
}

/// A recording in which `t0` creates the others, all do what the program says and exit, and `t0`
/// joins the others.
fn recorded(program: &Program, choices: &[u8]) -> Recording {
    let threads = program.len();
    let mut recording = Recording::new(threads);
    recording.push(0, 0, EventKind::ThreadStart, 1);
    for child in 1..threads {
        let event = recording.push(0, 3 + child as u64, EventKind::Syscall, 0x100);
        (event.nr, event.value) = (libc::SYS_clone as u16, 100 + child as u64);
    }
    for child in 1..threads {
        recording.push(child, 0, EventKind::ThreadStart, child as u64 + 1);
    }
    let mut recording = record_after(recording, program, choices);
    let exit = |recording: &mut Recording, thread: usize| {
        recording.push(thread, 2, EventKind::Syscall, 0x100).nr = libc::SYS_exit as u16;
        recording.push(thread, 0, EventKind::ThreadExit, thread as u64 + 1);
    };
    (1..threads).for_each(|child| exit(&mut recording, child));
    for child in 1..threads {
        recording.push(0, 1, EventKind::ThreadJoin, child as u64 + 1);
    }
    exit(&mut recording, 0);
    recording
}

fn guest_of(program: &Program, choices: &[u8]) -> Guest {
    let recording = recorded(program, choices);
    let skeleton = recording.skeleton();
    let level = skeleton.objects().iter().find(|object| object.address == SEM);
    let words = [
        (SEM, level.map_or(0, |object| object.tokens)),
        (BARRIER + BARRIER_COUNT, program.len() as u32),
    ];
    Guest::of(&recording, &words)
}

fn replayed(guest: &Guest, options: ReplayOptions, pace: u64) -> Outcome {
    let engine = Arc::new(Scripted::new(guest.script.clone(), pace));
    replay(&guest.trace(), engine, options).expect("this host can replay")
}

/// What a scheduler grants in a full replay, and whether that came to its end.
fn granted(guest: &Guest, by: impl Fn(u64) -> Boxed + Send + Sync + 'static, pace: u64) -> Order {
    let log = Log::default();
    let kept = Arc::clone(&log);
    let scheduler = move |turns| Box::new(Logged(by(turns), Arc::clone(&kept))) as Boxed;
    let policy = Policy::Anew(Arc::new(scheduler));
    let outcome = replayed(guest, ReplayOptions { policy, ..ReplayOptions::default() }, pace);
    assert_eq!(outcome.divergence, None);
    assert_eq!(outcome.events, guest.trace().events());
    let order = taken(&log);
    let is_logged = |(_, event): &(ThreadId, u32)| *event == LOGGED;
    assert!(!order.iter().any(is_logged), "what has an event is an access by it alone: {order:?}");
    order
}

/// What it grants in virtual time.
fn granted_virtually(skeleton: &Skeleton, by: Boxed) -> Order {
    let model = Model::waiting(Waiting::Polling);
    let mut recorder = Recorder::new(by, &model);
    let none = Constraints::none();
    let config = Config::ideal(4);
    let outcome = simulate(skeleton, &none, &config, &model, &mut recorder, &mut ());
    assert!(outcome.completed().is_some(), "programs that only lock cannot get stuck");
    let grants = recorder.into_schedule().grants;
    grants.iter().map(|grant| (grant.thread, grant.event.0 as u32)).collect()
}

/// The events of each object among these, in their order.
fn by_object(guest: &Guest, order: &Order) -> BTreeMap<u64, Order> {
    let mut objects: BTreeMap<u64, Order> = BTreeMap::new();
    for &(thread, event) in order {
        let object = guest.recording.threads[thread.index()][event as usize].object;
        objects.entry(object).or_default().push((thread, event));
    }
    objects
}

/// Nobody sleeps, and nobody takes what somebody else waits to give back.
fn awake(mut program: Program) -> Program {
    for thread in &mut program {
        thread.retain(|(_, op)| !matches!(op, Op::Sleep(_) | Op::Post | Op::Down));
    }
    program
}

/// Programs whose order is a scheduler's alone.
fn of_locks() -> impl Strategy<Value = Program> {
    by_locks().prop_map(awake)
}

/// Programs of atomic instructions, too.
fn of_everything() -> impl Strategy<Value = Program> {
    plain().prop_map(awake)
}

/// A full replay of the recorded order, and the order in which its events happened.
fn watched(guest: &Guest, policy: Policy, pace: u64) -> Order {
    let log = Log::default();
    let observer: Option<Arc<dyn Observer>> = Some(Arc::new(Watching(Arc::clone(&log))));
    let options = ReplayOptions { policy, observer, ..ReplayOptions::default() };
    let outcome = replayed(guest, options, pace);
    assert_eq!(outcome.divergence, None);
    assert_eq!(outcome.events, guest.trace().events());
    let order = taken(&log);
    let is_logged = |(_, event): &(ThreadId, u32)| *event == LOGGED;
    assert!(!order.iter().any(is_logged), "what has an event is an access by it alone: {order:?}");
    order
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(24) })]

    #[test]
    fn both_clocks_grant_in_one_order(
        program in of_locks(), choices in choices(), seed in any::<u64>(), pace in any::<u64>(),
    ) {
        let guest = guest_of(&program, &choices).ending_freely();
        let skeleton = guest.recording.skeleton();
        let by: [fn(u64, u64) -> Boxed; 3] = [
            |_, _| Box::new(Kendo::default()),
            |seed, turns| Box::new(Pct::new(seed, 4, turns)),
            |seed, _| Box::new(Random::new(seed)),
        ];
        for (at, by) in by.into_iter().enumerate() {
            let threads = (0..skeleton.threads() as u32).map(ThreadId);
            let acting = threads.flat_map(|id| skeleton.operations(id)).filter(|op| op.acts());
            let expected = granted_virtually(&skeleton, by(seed, acting.count() as u64));
            let found = granted(&guest, move |turns| by(seed, turns), pace);
            prop_assert_eq!(&found, &expected, "scheduler {}", at);
        }
    }

    #[test]
    fn elsc_keeps_each_order_under_both_clocks(
        program in of_everything(), choices in choices(), pace in any::<u64>(),
    ) {
        let guest = guest_of(&program, &choices);
        let skeleton = guest.recording.skeleton();
        let competes = |&&(thread, event): &&(ThreadId, u32)| {
            skeleton.operations(thread)[event as usize].competes()
        };
        let expected = granted_virtually(&skeleton, Box::new(Elsc));
        let found = watched(&guest, Policy::Elsc, pace).iter().filter(competes).copied().collect();
        prop_assert_eq!(by_object(&guest, &found), by_object(&guest, &expected));
    }

    #[test]
    fn mem_s_has_one_order_that_extends_the_recorded_ones(
        program in of_everything(), choices in choices(), pace in any::<u64>(),
    ) {
        let guest = guest_of(&program, &choices);
        let ordered = |&&(thread, event): &&(ThreadId, u32)| {
            let recorded = guest.trace.threads[thread.index()][event as usize].event;
            // The place of a system call is its entry, and it shows when it returns.
            recorded.has_ticket() && recorded.kind() != EventKind::Syscall
        };
        let order = |pace| -> Order {
            watched(&guest, Policy::MemS, pace).iter().filter(ordered).copied().collect()
        };
        let one = order(pace);
        prop_assert_eq!(&order(pace.wrapping_add(1)), &one);
        for (_, events) in by_object(&guest, &one) {
            let ticket = |&(thread, event): &(ThreadId, u32)| {
                guest.recording.threads[thread.index()][event as usize].ticket
            };
            prop_assert!(events.iter().map(ticket).is_sorted(), "{:?}", events);
        }
    }
}

/// So many threads, each of which takes a lock and counts under it.
fn counters(threads: usize) -> Guest {
    let thread = vec![(5, Op::Lock(0)), (2, Op::Atomic(0)), (3, Op::Unlock(0))];
    guest_of(&vec![thread; threads], &[0; 24])
}

fn divergence_of(guest: &Guest) -> Divergence {
    let outcome = replayed(guest, ReplayOptions::default(), 0);
    outcome.divergence.expect("the guest does something else than the trace says")
}

/// Changes the event of this kind that `t0` has in the trace.
fn with(guest: &mut Guest, kind: EventKind, change: impl FnOnce(&mut Event)) -> (u64, u64) {
    let events = &mut guest.trace.threads[0];
    let at = events.iter().position(|owned| owned.event.kind() == kind).expect("it has one");
    change(&mut events[at].event);
    (at as u64, events[at].event.pc)
}

type Change = fn(&mut Event);

#[test]
fn what_differs_is_named_where_it_differs() {
    use refrain_vm::DivergenceKind::{Arguments, Event as Another, Position, Value};
    let changes: [(EventKind, Change, DivergenceKind); 5] = [
        (EventKind::MutexLock, |event| event.object += 64, Arguments),
        (EventKind::MutexLock, |event| event.sp += 16, Position),
        (EventKind::MutexUnlock, |event| event.code = EventKind::MutexLock as u8, Another),
        (EventKind::Atomic, |event| event.value += 7, Value),
        (EventKind::Syscall, |event| event.object += 1, Arguments),
    ];
    for (kind, change, expected) in changes {
        let mut guest = counters(1);
        let (at, _) = with(&mut guest, kind, change);
        let found = divergence_of(&guest);
        assert_eq!((found.kind, found.thread), (expected, ThreadId(0)), "{kind:?}: {found:?}");
        assert_eq!(found.event, EventId(at), "{kind:?}: {found:?}");
    }
}

/// As of a lock that was taken, and that its holder has let go of by now: by a plain store, which is
/// not watched, and which came later in the recording.
#[test]
fn an_exchange_that_changed_nothing_is_a_load() {
    let exchange = |word| {
        let atomics = vec![(5, Op::Atomic(0)), (2, Op::Atomic(0))];
        let mut guest = guest_of(&vec![atomics], &[0; 24]);
        let (at, pc) = with(&mut guest, EventKind::Atomic, |event| event.value = 7);
        let Step::Increment { work, address } = guest.script[&pc] else { panic!("of an atomic") };
        guest.script.insert(pc, Step::Exchange { work, address, word });
        // The second one finds what the word began with.
        guest.trace.threads[0][at as usize + 1].event.value = 0;
        (guest, EventId(at))
    };
    watched(&exchange(7).0, Policy::Elsc, 0);
    let (guest, at) = exchange(8);
    let found = replayed(&guest, ReplayOptions::default(), 0).divergence;
    let found = found.expect("the word would have been lost");
    assert_eq!((found.kind, found.event), (DivergenceKind::Value, at), "{found:?}");
}

/// The same where the value is from a store that is not watched and comes late in the replay: it is
/// waited for, and what comes behind the exchange stays behind the store.
#[test]
fn an_exchange_that_changed_nothing_waits_for_what_it_read() {
    let first = vec![(5, Op::Atomic(0)), (2, Op::Atomic(1))];
    let other = vec![(400, Op::Atomic(2)), (1, Op::Atomic(0))];
    let mut guest = guest_of(&vec![first, other], &[1, 0, 0, 0]);
    // Of each thread, the instructions of its two events.
    let [at, stored, late] = [(0, 0), (0, 1), (1, 0)].map(|(thread, nth)| {
        let atomics = guest.trace.threads[thread].iter();
        let mut atomics = atomics.filter(|it| it.event.kind() == EventKind::Atomic);
        atomics.nth(nth).expect("each has two").event.pc
    });
    let Step::Increment { address, .. } = guest.script[&at] else { panic!("of an atomic") };
    guest.script.insert(late, Step::Store { address, word: 7 });
    guest.script.insert(at, Step::Exchange { work: 5, address, word: 7 });
    guest.script.insert(stored, Step::Store { address, word: 9 });
    let is_atomic = |event: &Event| event.kind() == EventKind::Atomic;
    for thread in &mut guest.trace.threads {
        thread.retain(|it| !is_atomic(&it.event) || ![stored, late].contains(&it.event.pc));
        for event in thread.iter_mut().map(|it| &mut it.event).filter(|it| is_atomic(it)) {
            match event.pc {
                pc if pc == at => event.value = 7,
                _ => (event.value, event.end) = (9, event.end + 10_000),
            }
        }
    }
    for pace in 0..20 {
        assert_eq!(replayed(&guest, ReplayOptions::default(), pace).divergence, None, "{pace}");
    }
}

#[test]
fn a_guest_that_goes_where_nothing_was_recorded_has_diverged() {
    let mut guest = counters(1);
    let (_, pc) = with(&mut guest, EventKind::MutexUnlock, |_| {});
    guest.script.retain(|&at, _| at != pc - 1);
    let found = divergence_of(&guest);
    assert_eq!((found.kind, found.pc), (DivergenceKind::Control, pc - 1), "{found:?}");
}

#[test]
fn a_lock_that_nobody_lets_go_of_is_a_deadlock_with_a_name() {
    let mut guest = counters(2).ending_freely();
    // In the trace `t0` has let go of its lock, and here it lets go of another one.
    let object = guest.recording.threads[0]
        .iter()
        .find(|event| event.kind() == EventKind::MutexUnlock)
        .expect("it has a lock")
        .object;
    with(&mut guest, EventKind::MutexUnlock, |event| event.object += 64);
    for step in guest.script.values_mut() {
        if let Step::Call { function, arguments, .. } = step
            && *function == guest.trace.modules[0].hooks[2].0
            && arguments[0] == object
        {
            arguments[0] += 64;
            break;
        }
    }
    let policy = Policy::Anew(Arc::new(|_| Box::new(Kendo::default())));
    let outcome = replayed(&guest, ReplayOptions { policy, ..ReplayOptions::default() }, 0);
    let found = outcome.divergence.expect("t1 waits for ever");
    assert_eq!(found.kind, DivergenceKind::Stuck, "{found:?}");
    assert!(found.actual.contains(&format!("t1 waits for the lock at {object:#x}")), "{found:?}");
}
