//! The gate under shuttle (`shuttle::check_random`): many interleavings of a few threads, in
//! which no nap ever ends. A wake-up that is lost shows as a deadlock of the test.

use super::super::objects::Operation;
use super::*;
use refrain_scheduler::{Kendo, Orig, Pct, Random};
use refrain_trace::EventId;
use shuttle::sync::atomic::AtomicUsize;
use shuttle::sync::{Arc, Barrier};

/// Interleavings of each test. Failures print the schedule that repeats them.
const TRIES: usize = 100;
// So that threads yield while another is awake, and do not when alone.
const CORES: usize = 1;

const LOCK: u64 = 0x10_0000;
const OTHER: u64 = 0x20_0000;

fn explore(test: impl Fn() + Send + Sync + 'static) {
    shuttle::check_random(test, TRIES);
}

/// Runs `body` on so many guest threads, and returns when all have left.
fn run(gate: &Arc<Gate>, threads: u32, body: impl Fn(&Gate, ThreadId) + Send + Sync + 'static) {
    let body = Arc::new(body);
    let all: Vec<ThreadId> = (0..threads).map(ThreadId).collect();
    for &id in &all {
        gate.enter(id);
    }
    let spawn = |id| {
        let (gate, body) = (gate.clone(), body.clone());
        thread::spawn(move || {
            body(&gate, id);
            gate.leave(id);
        })
    };
    let handles: Vec<_> = all.into_iter().map(spawn).collect();
    for handle in handles {
        handle.join().expect("no thread panics");
    }
}

fn perform(gate: &Gate, thread: ThreadId, operation: Operation, ticket: u64) -> Result<(), Stuck> {
    gate.perform(thread, Asked { operation, event: EventId(0), ticket })
}

/// Makes schedulers that decide by turns.
type ByTurns = fn() -> Box<dyn Scheduler + Send>;

const BY_TURNS: [ByTurns; 3] =
    [|| Box::new(Kendo::default()), || Box::new(Pct::new(3, 2, 12)), || Box::new(Random::new(3))];

fn lock(object: u64) -> Operation {
    Operation::Lock { object }
}

fn unlock(object: u64) -> Operation {
    Operation::Unlock { object }
}

#[test]
fn turns_come_in_the_order_of_the_tickets() {
    explore(|| {
        let gate = Arc::new(Gate::new(Duration::ZERO, 4, CORES));
        let order = Arc::new(Mutex::new(Vec::new()));
        let seen = order.clone();
        run(&gate, 4, move |gate, thread| {
            let ticket = u64::from(3 - thread.0);
            gate.wait(thread, Condition::Turn { slot: 9, ticket })
                .expect("every ticket before this one is taken by somebody");
            locked(&order).push(ticket);
            gate.advance(9, ticket);
        });
        assert_eq!(*locked(&seen), [0, 1, 2, 3]);
    });
}

/// Half of the threads look at the gate themselves, as fast-path functions do, and sleep only then.
#[test]
fn turns_taken_without_waiting_wake_those_who_sleep() {
    explore(|| {
        let gate = Arc::new(Gate::new(Duration::ZERO, 4, CORES));
        let order = Arc::new(Mutex::new(Vec::new()));
        let seen = order.clone();
        run(&gate, 4, move |gate, thread| {
            let ticket = u64::from(3 - thread.0);
            let fast_path = ticket % 2 == 1;
            let turn = Condition::Turn { slot: 9, ticket };
            if !(fast_path && gate.soon(thread, turn)) {
                gate.wait(thread, turn).expect("every ticket before this one is taken by somebody");
            }
            locked(&order).push(ticket);
            if !fast_path {
                gate.advance(9, ticket);
            } else if gate.finish_turn(9, ticket) {
                gate.wake();
            }
        });
        assert_eq!(*locked(&seen), [0, 1, 2, 3]);
    });
}

/// A causal edge orders two sections of a freed lock. A third section runs before both, although it was
/// recorded after them. An event of the same slot waits for all three.
#[test]
fn tickets_of_a_freed_lock_are_done_in_any_order() {
    let text = "
        t0 start
        t1 start
        t2 start
        t0 mutex.lock obj=0x100000 ticket=0
        t0 mutex.unlock obj=0x100000 ticket=1
        t1 mutex.lock obj=0x100000 ticket=2
        t1 mutex.unlock obj=0x100000 ticket=3
        t2 mutex.lock obj=0x100000 ticket=4
        t2 mutex.unlock obj=0x100000 ticket=5
        t0 mutex.destroy obj=0x100000 ticket=6
        transformed 0x100000
        section cs0 lock=0 thread=t0 events=1:2
        section cs1 lock=0 thread=t1 events=1:2
        section cs2 lock=0 thread=t2 events=1:2
        edge cs0 cs1
    ";
    let trace: refrain_trace::OwnedTrace = text.parse().expect("the text is a trace");
    let record = trace.transformed.clone().expect("it has one");
    let trace = trace.to_trace().expect("it can be written and read");
    let slot = refrain_trace::order::slot(LOCK);
    explore(move || {
        let freed = Freed::of(&trace, &record).expect("it can be read");
        let gate = Arc::new(Gate::new(Duration::ZERO, 3, CORES).freeing(freed, 3));
        let third_is_done = Barrier::new(2);
        let order = Arc::new(Mutex::new(Vec::new()));
        let seen = order.clone();
        run(&gate, 3, move |gate, thread| {
            if thread.0 == 0 {
                third_is_done.wait();
            }
            let freed = gate.freed().expect("locks are freed");
            for source in freed.sources(thread, 1) {
                gate.wait(thread, Gate::ended(source)).expect("the source ends");
            }
            gate.advance(slot, u64::from(thread.0) * 2);
            locked(&order).push(thread.0);
            gate.advance(slot, u64::from(thread.0) * 2 + 1);
            if gate.pass(thread, 2) {
                gate.wake();
            }
            match thread.0 {
                0 => {
                    let turn = Condition::Turn { slot, ticket: 6 };
                    gate.wait(thread, turn).expect("all sections end");
                    assert_eq!(locked(&order).len(), 3);
                }
                2 => _ = third_is_done.wait(),
                _ => {}
            }
        });
        assert_eq!(*locked(&seen), [2, 0, 1]);
    });
}

#[test]
fn waiting_for_nobody_is_noticed() {
    explore(|| {
        let gate = Arc::new(Gate::new(Duration::ZERO, 4, CORES));
        run(&gate, 2, |gate, thread| {
            let turn = Condition::Turn { slot: 9 + thread.index(), ticket: 1 };
            assert_eq!(gate.wait(thread, turn), Err(Stuck));
        });
    });
}

/// Two threads hold a lock each and want the other's.
#[test]
fn a_deadlock_of_locks_is_noticed_and_named() {
    explore(|| {
        let gate = Arc::new(Gate::anew(Duration::ZERO, Box::new(Orig), 2, CORES));
        let both_hold = Barrier::new(2);
        let reasons = Arc::new(Mutex::new(Vec::new()));
        let given = reasons.clone();
        run(&gate, 2, move |gate, thread| {
            let locks = [LOCK, OTHER];
            assert_eq!(perform(gate, thread, lock(locks[thread.index()]), 0), Ok(()));
            both_hold.wait();
            assert_eq!(perform(gate, thread, lock(locks[1 - thread.index()]), 0), Err(Stuck));
            locked(&reasons).push(gate.explain());
        });
        // Whoever explains it later may find the other gone.
        let first = &locked(&given)[0];
        assert!(first.starts_with("deadlock; t0 waits for the lock at 0x200000, which t1"));
    });
}

/// The thread of ticket 1 holds the lock that the thread of ticket 0 wants. All further threads leave at once.
fn hold_a_lock_against_the_order(gate: &Gate, thread: ThreadId, holds: &Barrier) {
    let ticket = match thread.0 {
        0 => {
            perform(gate, thread, lock(LOCK), 2).expect("it is free");
            holds.wait();
            1
        }
        1 => {
            holds.wait();
            perform(gate, thread, lock(LOCK), 0).expect("the other lets go of it");
            0
        }
        _ => return,
    };
    gate.wait(thread, Condition::Turn { slot: 9, ticket }).expect("it gives way");
    gate.advance(9, ticket);
    perform(gate, thread, unlock(LOCK), 3).expect("it holds it");
}

fn a_recorded_order_gives_way(threads: u32) {
    let gate = Arc::new(Gate::anew(Duration::ZERO, Box::new(Orig), threads, CORES));
    let holds = Barrier::new(2);
    run(&gate, threads, move |gate, thread| hold_a_lock_against_the_order(gate, thread, &holds));
    assert!(
        gate.holds(ThreadId(0), Condition::Reached { slot: 9, count: 2 }),
        "both tickets are done"
    );
    assert_eq!(gate.reordered(), ["the lock at 0x100000", "atomic instructions"]);
}

#[test]
fn a_recorded_order_gives_way_to_locks() {
    explore(|| a_recorded_order_gives_way(2));
}

/// A thread that leaves calls all that sleep, in vain. Few interleavings have it leave while somebody judges.
#[test]
fn a_recorded_order_gives_way_while_a_thread_leaves() {
    shuttle::check_random(|| a_recorded_order_gives_way(3), 30 * TRIES);
}

/// Whoever has listed the sleepers meanwhile must learn that the list may lack one.
#[test]
fn a_call_in_vain_is_an_awakening() {
    explore(|| {
        let (sleepers, thread) = (Sleepers::new(1), ThreadId(0));
        sleepers.enter();
        sleepers.lie_down(thread, Condition::Turn { slot: 9, ticket: 1 });
        let before = sleepers.awakenings();
        sleepers.call(thread);
        sleepers.doze(thread);
        assert_eq!(sleepers.awake(), 0);
        assert_ne!(sleepers.awakenings(), before);
    });
}

#[test]
fn locks_exclude_under_every_scheduler_and_wake_whom_they_must() {
    let orig: ByTurns = || Box::new(Orig);
    for (at, scheduler) in BY_TURNS.into_iter().chain([orig]).enumerate() {
        explore(move || {
            let gate = Arc::new(Gate::anew(Duration::ZERO, scheduler(), 3, CORES));
            let inside = AtomicUsize::new(0);
            let entered = Arc::new(AtomicUsize::new(0));
            let count = entered.clone();
            run(&gate, 3, move |gate, thread| {
                for round in 0..2 {
                    gate.publish(thread, round * 10);
                    perform(gate, thread, lock(LOCK), 0).expect("whoever holds it lets go of it");
                    assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "{at}");
                    thread::yield_now();
                    inside.fetch_sub(1, Ordering::SeqCst);
                    perform(gate, thread, unlock(LOCK), 0).expect("it holds it");
                    count.fetch_add(1, Ordering::SeqCst);
                }
                perform(gate, thread, Operation::Exit, 0).expect("threads may end");
            });
            assert_eq!(entered.load(Ordering::SeqCst), 6, "{at}");
        });
    }
}

/// The order in which threads get a lock depends on the seed and on nothing else.
#[test]
fn with_turns_every_interleaving_has_one_order() {
    for (at, scheduler) in BY_TURNS.into_iter().enumerate() {
        let first = std::sync::Arc::new(std::sync::Mutex::new(None));
        explore(move || {
            let gate = Arc::new(Gate::anew(Duration::ZERO, scheduler(), 3, CORES));
            let order = Arc::new(Mutex::new(Vec::new()));
            let seen = order.clone();
            run(&gate, 3, move |gate, thread| {
                for round in 0..2 {
                    gate.publish(thread, (round + 1) * (10 + u64::from(thread.0)));
                    perform(gate, thread, lock(LOCK), 0).expect("whoever holds it lets go of it");
                    locked(&order).push(thread);
                    perform(gate, thread, unlock(LOCK), 0).expect("it holds it");
                }
                perform(gate, thread, Operation::Exit, 0).expect("threads may end");
            });
            let order = locked(&seen).clone();
            let mut first = first.lock().unwrap_or_else(PoisonError::into_inner);
            let first = first.get_or_insert_with(|| order.clone());
            assert_eq!(*first, order, "{at}");
        });
    }
}

/// Loads whose stores are missing go on in the order of their times, and with their values there
/// they do not wait at all.
#[test]
fn loads_that_nobody_can_help_go_on() {
    explore(|| {
        let gate = Arc::new(Gate::new(Duration::ZERO, 4, CORES));
        let word = Arc::new(5_u64);
        run(&gate, 2, move |gate, thread| {
            let address = &raw const *word as u64;
            gate.arrivals.arrive(thread, 50);
            let time = 100 + u64::from(thread.0);
            let there = Condition::Caught { address, size: 8, value: 5, count: 0, time };
            assert_eq!(gate.wait(thread, there), Ok(()));
            let missing = Condition::Caught { address, size: 8, value: 6, count: 0, time };
            assert_eq!(gate.wait(thread, missing), Ok(()));
        });
    });
}
