//! Locks that a program makes itself: what is recognised, and what is not.

mod common;

use common::{Item, Recording};
use refrain_trace::{Event, EventId, EventKind, OWN_ORDER, ThreadId};
use refrain_transform::*;

const W: u64 = 0x5000;
const V: u64 = 0x5008;

/// Instructions of the programs below.
const CAS: u64 = 1;
const SWAP: u64 = 2;
const ADD: u64 = 3;
const MOV: u64 = 4;
/// Compares and exchanges to set a lock free.
const FREE: u64 = 6;

fn change(pc: u64) -> Change {
    match pc {
        CAS | FREE => Change::CompareExchange,
        SWAP => Change::Exchange,
        ADD | 5 => Change::Add,
        _ => Change::Store,
    }
}

/// An atomic instruction at `pc` finds `old` in a word.
fn atomic(r: &mut Recording, thread: usize, word: u64, pc: u64, old: u64) {
    let event = r.event(thread, 10, EventKind::Atomic, word, pc);
    (event.value, event.nr) = (old, 4);
}

fn load(r: &mut Recording, thread: usize, word: u64, value: u64) {
    let event = r.event(thread, 10, EventKind::SyncLoad, word, 0x77);
    (event.value, event.nr) = (value, 4);
}

fn made(r: &Recording) -> Made {
    let mut maker = Maker::new();
    for (thread, event, id) in events(r) {
        let slept_on = (event.kind() == EventKind::Syscall).then_some(W);
        maker.push(thread, EventId(id), &event, change, slept_on);
    }
    maker.finish()
}

fn events(r: &Recording) -> Vec<(ThreadId, Event, u64)> {
    let mut all = Vec::new();
    for (thread, items) in (0..).map(ThreadId).zip(&r.threads) {
        let events = items.iter().filter_map(|item| match item {
            Item::Event(event) => Some(*event),
            _ => None,
        });
        all.extend((0..).zip(events).map(|(id, event)| (thread, event, id)));
    }
    all
}

/// Who has which lock from when to when, by events: acquisitions and releases.
fn held(made: &Made, thread: u32) -> Vec<(u32, bool)> {
    let roles = made.roles(ThreadId(thread)).into_iter();
    let ends = roles.filter_map(|(event, role)| match role {
        Role::Acquire { .. } => Some((event, true)),
        Role::Release { .. } => Some((event, false)),
        Role::Part(_) => None,
    });
    ends.collect()
}

#[test]
fn a_word_that_is_taken_and_set_free_by_its_holder_is_a_lock() {
    // Rust's mutex: 0 free, 1 taken, 2 taken and waited for.
    let mut r = Recording::new(2);
    atomic(&mut r, 0, W, CAS, 0);
    atomic(&mut r, 1, W, CAS, 1); // fails
    atomic(&mut r, 1, W, SWAP, 1);
    atomic(&mut r, 0, W, SWAP, 2);
    atomic(&mut r, 1, W, SWAP, 0);
    atomic(&mut r, 1, W, SWAP, 2);
    atomic(&mut r, 0, W, CAS, 0);
    atomic(&mut r, 0, W, SWAP, 1);
    let made = made(&r);
    assert_eq!(made.locks.len(), 1);
    assert_eq!((made.locks[0].make, made.locks[0].address), (Make::Word, W));
    assert_eq!(held(&made, 0), [(0, true), (1, false), (2, true), (3, false)]);
    assert_eq!(held(&made, 1), [(2, true), (3, false)], "the failed attempts are not");
    let began = made.roles(ThreadId(1)).into_iter().find_map(|(_, role)| match role {
        Role::Acquire { begin, whole, .. } => Some((begin, whole)),
        _ => None,
    });
    assert_eq!(began, Some((10, true)), "the thread came to the lock with its first attempt");
    // To the virtual clock it is a lock, and the attempts take no time.
    let view = |id, event: &Event| made.view(ThreadId(1), EventId(id), event);
    let of_1: Vec<_> =
        events(&r).iter().filter(|e| e.0.0 == 1).map(|(_, e, id)| view(*id, e)).collect();
    let kinds: Vec<_> = of_1.iter().map(|e| (e.kind(), e.begin)).collect();
    use EventKind::{Rdtsc, SpinLock, SpinUnlock};
    assert_eq!(kinds, [(Rdtsc, 10), (Rdtsc, 10), (SpinLock, 10), (SpinUnlock, 40)]);
}

/// The first acquisition was the word's owner's, so no event has it.
#[test]
fn a_lock_may_be_taken_when_its_events_begin() {
    for by in [0, 1] {
        let mut r = Recording::new(2);
        atomic(&mut r, by, W, SWAP, 1);
        for thread in [1, 0, 1] {
            atomic(&mut r, thread, W, CAS, 0);
            atomic(&mut r, thread, W, SWAP, 1);
        }
        let made = made(&r);
        let locks: Vec<_> = made.locks.iter().map(|lock| (lock.make, lock.address)).collect();
        assert_eq!(locks, [(Make::Word, W)]);
        let before = u32::from(by == 0);
        assert_eq!(held(&made, 0), [(before, true), (before + 1, false)]);
        let part = |(_, role): &(u32, Role)| matches!(role, Role::Part(_));
        assert!(part(&made.roles(ThreadId(by as u32))[0]), "its release is the lock's own affair");
    }
}

#[test]
fn threads_wait_awake_for_a_lock_on_which_they_seldom_sleep() {
    for sleeps in [false, true] {
        let mut r = Recording::new(2);
        for _ in 0..3 {
            atomic(&mut r, 0, W, CAS, 0);
            atomic(&mut r, 1, W, CAS, 1); // fails
            if sleeps {
                r.event(1, 10, EventKind::Syscall, 0, 9).nr = 202;
            }
            atomic(&mut r, 0, W, SWAP, 1);
            atomic(&mut r, 1, W, CAS, 0);
            atomic(&mut r, 1, W, SWAP, 1);
        }
        let made = made(&r);
        assert_eq!(made.locks.len(), 1);
        let view = |(thread, event, id): (ThreadId, Event, u64)| {
            made.view(thread, EventId(id), &event).kind()
        };
        let kinds: Vec<EventKind> = events(&r).into_iter().map(view).collect();
        let count = |kind| kinds.iter().filter(|it| **it == kind).count();
        let spins = (count(EventKind::SpinLock), count(EventKind::SpinUnlock));
        let sleepers = (count(EventKind::MutexLock), count(EventKind::MutexUnlock));
        let expected = if sleeps { ((0, 0), (6, 6)) } else { ((6, 6), (0, 0)) };
        assert_eq!((spins, sleepers), expected, "{kinds:?}");
    }
}

#[test]
fn what_another_thread_sets_free_is_no_lock() {
    // A flag that one thread sets and the other takes down; a count that both raise and lower.
    for (set, reset) in [(SWAP, SWAP), (ADD, ADD)] {
        let mut r = Recording::new(2);
        for _ in 0..4 {
            atomic(&mut r, 0, W, set, 0);
            atomic(&mut r, 1, W, reset, 1);
        }
        assert_eq!(made(&r).locks, []);
    }
    // Each thread counts itself in and out, and they happen not to meet.
    let mut r = Recording::new(2);
    for thread in [0, 1, 0, 1] {
        atomic(&mut r, thread, W, ADD, 0);
        atomic(&mut r, thread, W, ADD, 1);
    }
    assert_eq!(made(&r).locks, []);
    // A counter that is raised by compare-and-exchange; each thread raises it twice.
    let mut r = Recording::new(2);
    for count in 0..8 {
        atomic(&mut r, count / 2 % 2, W, CAS, count as u64);
    }
    assert_eq!(made(&r).locks, []);
}

#[test]
fn references_that_are_counted_are_no_lock() {
    let mut r = Recording::new(2);
    atomic(&mut r, 0, W, CAS, 1);
    atomic(&mut r, 1, W, CAS, 2);
    atomic(&mut r, 0, W, CAS, 3);
    atomic(&mut r, 1, W, CAS, 2);
    atomic(&mut r, 0, W, CAS, 1);
    assert_eq!(made(&r).locks, []);
}

#[test]
fn readers_that_are_counted_share_the_lock() {
    const WRITER: u64 = 0x3fff_ffff;
    const WAITED_FOR: u64 = 1 << 31;
    let mut r = Recording::new(3);
    atomic(&mut r, 0, W, CAS, 0); // reads
    atomic(&mut r, 1, W, CAS, 1); // reads
    atomic(&mut r, 2, W, CAS, 2); // says that it waits
    atomic(&mut r, 0, W, ADD, 2 | WAITED_FOR);
    atomic(&mut r, 1, W, ADD, 1 | WAITED_FOR);
    atomic(&mut r, 2, W, CAS, WAITED_FOR); // writes
    atomic(&mut r, 2, W, ADD, WRITER | WAITED_FOR);
    atomic(&mut r, 0, W, CAS, WAITED_FOR);
    let made = made(&r);
    assert_eq!(made.locks.len(), 1, "{made:?}");
    assert_eq!(made.locks[0].make, Make::Counted);
    let shared = |thread| {
        let roles = made.roles(ThreadId(thread)).into_iter();
        let shared = roles.filter_map(|(event, role)| match role {
            Role::Acquire { shared, .. } => Some((event, shared)),
            _ => None,
        });
        shared.collect::<Vec<_>>()
    };
    assert_eq!(shared(0), [(0, true)]);
    assert_eq!(shared(1), [(0, true)]);
    assert_eq!(shared(2), [(1, false)]);
}

/// A lock of a bit, with another bit for sleepers, which is handed over now and then: what threads add and take
/// away looks as if some of them had it together.
#[test]
fn a_lock_that_is_handed_over_counts_no_readers() {
    let mut r = Recording::new(3);
    let steps = [
        (0, CAS, 0),
        (1, CAS, 1),  // sleeps
        (0, MOV, 3),  // hands it over
        (1, FREE, 1), // as if it had added a reader's share less
        (1, CAS, 0),
        (1, MOV, 1),
        (0, CAS, 0),
        (2, CAS, 1),  // sleeps
        (0, MOV, 3),  // hands it over
        (2, FREE, 1), // the first thread seems to have it since it had it last
        (1, CAS, 0),
        (1, FREE, 1),
        (1, CAS, 0),
        (2, CAS, 1), // sleeps
        (0, CAS, 3), // sleeps, too
        (1, MOV, 3), // hands it over to the first thread
        (0, MOV, 3),
        (2, CAS, 2),
        (2, FREE, 3),
    ];
    steps.iter().for_each(|&(thread, pc, old)| atomic(&mut r, thread, W, pc, old));
    let made = made(&r);
    assert!(made.locks.iter().all(|lock| lock.make != Make::Counted), "{made:?}");
}

/// Two readers were there before the word had events, and one of them adds again what it gives back.
#[test]
fn readers_may_be_there_when_the_events_begin() {
    const WRITER: u64 = 0x3fff_ffff;
    let mut r = Recording::new(2);
    atomic(&mut r, 0, W, CAS, 2); // does not read any more
    atomic(&mut r, 1, W, CAS, 1); // reads
    atomic(&mut r, 0, W, CAS, 2); // does not read any more
    atomic(&mut r, 0, W, CAS, 1); // reads
    atomic(&mut r, 1, W, CAS, 2);
    atomic(&mut r, 0, W, CAS, 1);
    atomic(&mut r, 1, W, CAS, 0); // writes
    atomic(&mut r, 1, W, ADD, WRITER);
    atomic(&mut r, 0, W, CAS, 0);
    let made = made(&r);
    let makes: Vec<_> = made.locks.iter().map(|lock| lock.make).collect();
    assert_eq!(makes, [Make::Counted], "{made:?}");
    assert_eq!(held(&made, 0), [(2, true), (3, false)]);
    assert_eq!(held(&made, 1), [(0, true), (1, false), (2, true), (3, false)]);
}

#[test]
fn a_ticket_lock_is_two_words() {
    let mut r = Recording::new(2);
    atomic(&mut r, 0, W, ADD, 0);
    load(&mut r, 0, V, 0);
    atomic(&mut r, 1, W, ADD, 1);
    load(&mut r, 1, V, 0);
    atomic(&mut r, 0, V, MOV, 0);
    load(&mut r, 1, V, 1);
    atomic(&mut r, 1, V, MOV, 1);
    atomic(&mut r, 0, W, ADD, 2);
    load(&mut r, 0, V, 2);
    atomic(&mut r, 0, V, MOV, 2);
    let made = made(&r);
    assert_eq!(made.locks.len(), 1, "{made:?}");
    assert_eq!(made.locks[0].make, Make::Ticket);
    assert_eq!(held(&made, 0), [(1, true), (2, false), (4, true), (5, false)]);
    assert_eq!(held(&made, 1), [(2, true), (3, false)], "when its number came up");
}

/// The owner of one of the two words drew numbers, or passed turns on, mostly without events.
#[test]
fn numbers_and_turns_of_a_ticket_lock_may_begin_apart() {
    for (draws, turns) in [(2, 0), (0, 2)] {
        let mut r = Recording::new(2);
        // Of what the owner did, some has an event.
        atomic(&mut r, 0, W, ADD, 0xffff_fff0);
        r.clocks[1] = r.clocks[0];
        for number in 0..6 {
            let thread = number as usize % 2;
            if number >= draws {
                atomic(&mut r, thread, W, ADD, number);
            }
            load(&mut r, thread, V, number);
            if number >= turns {
                atomic(&mut r, thread, V, MOV, number);
            }
            r.clocks[1 - thread] = r.clocks[thread];
        }
        let made = made(&r);
        assert_eq!(made.locks.len(), 1, "{made:?}");
        assert_eq!(made.locks[0].make, Make::Ticket);
        assert_eq!(held(&made, 0).len() + held(&made, 1).len(), 8, "{made:?}");
    }
}

/// Whoever signals one condition variable and later another one counts both up in the same order.
#[test]
fn counters_that_are_raised_in_the_same_order_are_no_ticket_lock() {
    for alternate in [true, false] {
        let mut r = Recording::new(2);
        load(&mut r, 0, V, 0);
        for number in 0..3 {
            atomic(&mut r, 0, W, ADD, number);
            if alternate {
                atomic(&mut r, 0, V, ADD, number);
            }
        }
        for number in (0..3).filter(|_| !alternate) {
            atomic(&mut r, 0, V, ADD, number);
        }
        // What another thread has waited for, by another word, is in no event of these two.
        r.clocks[1] = r.clocks[0];
        atomic(&mut r, 1, W, ADD, 3);
        atomic(&mut r, 1, V, ADD, 3);
        let locks = made(&r).locks;
        assert_eq!(locks.len(), usize::from(alternate), "{locks:?}");
    }
}

#[test]
fn the_halves_of_a_word_are_a_ticket_lock() {
    // Numbers above, turns below; turns by a store of half the size, or by an addition to all.
    for added in [false, true] {
        let mut r = Recording::new(2);
        let draw = |r: &mut Recording, thread, number: u64, turn: u64| {
            atomic(r, thread, W, ADD, (number << 16) | turn);
        };
        let pass = |r: &mut Recording, thread, drawn: u64, turn: u64| {
            let whole = (drawn << 16) | turn;
            let (pc, old, size) = if added { (5, whole, 4) } else { (MOV, turn, 2) };
            let event = r.event(thread, 10, EventKind::Atomic, W, pc);
            (event.value, event.nr) = (old, size);
        };
        draw(&mut r, 0, 0, 0);
        for turn in [0, 2] {
            draw(&mut r, 1, turn + 1, turn);
            pass(&mut r, 0, turn + 2, turn);
            load(&mut r, 1, W, ((turn + 2) << 16) | (turn + 1));
            draw(&mut r, 0, turn + 2, turn + 1);
            pass(&mut r, 1, turn + 3, turn + 1);
            load(&mut r, 0, W, ((turn + 3) << 16) | (turn + 2));
        }
        pass(&mut r, 0, 5, 4);
        let made = made(&r);
        assert_eq!(made.locks.len(), 1, "{made:?}");
        assert_eq!((made.locks[0].make, made.locks[0].address), (Make::Ticket, W));
        let of_0 = [(0, true), (1, false), (3, true), (4, false), (6, true), (7, false)];
        assert_eq!(held(&made, 0), of_0);
        assert_eq!(held(&made, 1), [(1, true), (2, false), (4, true), (5, false)]);
    }
}

/// Nodes of a queue lock: where the next one is named, and the word that is polled.
const NODES: [u64; 2] = [0x6000, 0x6100];
const LINK: u64 = 0;
const POLLED: u64 = 8;

#[test]
fn whoever_is_at_the_end_of_a_queue_has_the_lock_next() {
    let mut r = Recording::new(2);
    for _ in 0..2 {
        atomic(&mut r, 0, W, SWAP, 0);
        atomic(&mut r, 1, W, SWAP, NODES[0]);
        load(&mut r, 1, NODES[1] + POLLED, 1);
        atomic(&mut r, 0, W, CAS, NODES[1]); // fails
        load(&mut r, 0, NODES[0] + LINK, NODES[1]);
        load(&mut r, 1, NODES[1] + POLLED, 0);
        atomic(&mut r, 1, W, CAS, NODES[1]);
    }
    let made = made(&r);
    assert_eq!(made.locks.len(), 1, "{made:?}");
    assert_eq!((made.locks[0].make, made.locks[0].address), (Make::Queue, W));
    assert_eq!(held(&made, 0), [(0, true), (2, false), (3, true), (5, false)]);
    assert_eq!(held(&made, 1), [(2, true), (3, false), (6, true), (7, false)]);
    let words: Vec<u64> = made.locks[0].words.iter().map(|word| word.start).collect();
    let of_nodes = NODES.map(|node| [node + LINK, node + POLLED]);
    assert_eq!(words, [&[W], &of_nodes.concat()[..]].concat());
}

/// The owner of the queue's word has put its node there without an event.
#[test]
fn a_queue_may_have_somebody_when_its_events_begin() {
    let mut r = Recording::new(2);
    atomic(&mut r, 0, W, CAS, NODES[0]);
    for _ in 0..2 {
        atomic(&mut r, 0, W, SWAP, 0);
        atomic(&mut r, 1, W, SWAP, NODES[0]);
        load(&mut r, 1, NODES[1] + POLLED, 1);
        load(&mut r, 0, NODES[0] + LINK, NODES[1]);
        load(&mut r, 1, NODES[1] + POLLED, 0);
        atomic(&mut r, 1, W, CAS, NODES[1]);
    }
    let made = made(&r);
    let makes: Vec<_> = made.locks.iter().map(|lock| lock.make).collect();
    assert_eq!(makes, [Make::Queue], "{made:?}");
}

#[test]
fn a_queue_whose_holders_let_go_unseen_is_no_lock() {
    // The same without the look at the next node; and with one thread's node emptied by the other.
    for (link, emptied_by) in [(0x40, 1), (NODES[1], 0)] {
        let mut r = Recording::new(2);
        for _ in 0..4 {
            atomic(&mut r, 0, W, SWAP, 0);
            atomic(&mut r, 1, W, SWAP, NODES[0]);
            load(&mut r, 0, NODES[0] + LINK, link);
            load(&mut r, 1, NODES[1] + POLLED, 0);
            atomic(&mut r, emptied_by, W, CAS, NODES[1]);
        }
        assert_eq!(made(&r).locks, [], "{link:#x}");
    }
}

#[test]
fn a_semaphore_of_one_is_a_lock_and_one_that_signals_is_none() {
    let mut r = Recording::new(2);
    for thread in [0, 1, 0] {
        r.event(thread, 1, EventKind::SemWait, W, 0x100);
        r.event(thread, 1, EventKind::SemPost, W, 0x110);
        r.event(thread, 1, EventKind::SemPost, V, 0x120);
    }
    r.event(1, 1, EventKind::SemWait, V, 0x130);
    let made = made(&r);
    assert_eq!(made.locks.len(), 1);
    assert_eq!((made.locks[0].make, made.locks[0].address), (Make::Semaphore, W));
}

/// As C++'s `binary_semaphore`.
#[test]
fn a_count_of_one_is_a_lock_and_one_that_signals_is_none() {
    let locks = |raised_by: [usize; 3]| {
        let mut r = Recording::new(2);
        for (lowered_by, raised_by) in [0, 1, 0].into_iter().zip(raised_by) {
            atomic(&mut r, lowered_by, W, CAS, 1);
            load(&mut r, 1 - lowered_by, W, 0);
            atomic(&mut r, raised_by, W, ADD, 0);
        }
        atomic(&mut r, 1, W, CAS, 1);
        let made = made(&r);
        let held: usize = [0, 1].map(|thread| held(&made, thread).len()).iter().sum();
        (made.locks.len(), held)
    };
    assert_eq!(locks([0, 1, 0]), (1, 6));
    assert_eq!(locks([1, 0, 1]), (0, 0));
}

#[test]
fn what_is_waited_for_and_not_understood_is_listed_with_its_time() {
    let mut r = Recording::new(2);
    for _ in 0..3 {
        load(&mut r, 1, W, 0);
    }
    r.event(1, 50, EventKind::ThreadExit, 2, 0);
    let unknown = made(&r).unknown;
    assert_eq!(unknown.len(), 1);
    assert_eq!((unknown[0].address, unknown[0].ticks, unknown[0].waits), (W, 20, 1));
    assert_eq!((unknown[0].thread, unknown[0].event), (ThreadId(1), 2));
    assert_eq!(made(&r).asked(ThreadId(1)), [2]);
}

#[test]
fn who_counts_does_not_wait() {
    let mut r = Recording::new(2);
    (0..5).for_each(|count| atomic(&mut r, 1, W, ADD, count));
    assert_eq!(made(&r).unknown, []);
    // Who finds the same again does, up to the look that finds something else.
    [7, 7, 0].into_iter().for_each(|found| atomic(&mut r, 1, V, SWAP, found));
    let unknown = made(&r).unknown;
    assert_eq!((unknown[0].address, unknown[0].ticks, unknown[0].waits), (V, 20, 1));
}

/// A section of such a lock is analysed as any other.
#[test]
fn sections_of_a_word_are_ranked() {
    let mut r = Recording::new(2);
    r.share(0x10_0000, 8);
    for thread in [0, 1, 0, 1] {
        atomic(&mut r, thread, W, CAS, 0);
        r.read(thread, 0x10_0000, 8);
        atomic(&mut r, thread, W, SWAP, 1);
    }
    let made = made(&r);
    let collectors = r.collectors_with(|thread| made.roles(thread));
    let words: Vec<Interval> = made.locks.iter().flat_map(|lock| lock.words.clone()).collect();
    let sections = Sections::merge(collectors, &words, &[]).expect("a sound recording");
    let verdicts: Vec<_> = pairs(&sections).map(|pair| pair.verdict).collect();
    assert_eq!(verdicts, [Verdict::Ulcp(UlcpKind::ReadRead); 3]);
}

#[test]
fn sleeping_beside_a_lock_and_waking_are_part_of_it() {
    let mut r = Recording::new(2);
    let call = |r: &mut Recording, thread, took| {
        let event = r.event(thread, 10, EventKind::Syscall, 0, 0x99);
        event.nr = refrain_trace::linux::FUTEX;
        event.end = event.begin + took;
    };
    for (one, other) in [(0, 1), (1, 0), (0, 1)] {
        atomic(&mut r, one, W, CAS, 0);
        atomic(&mut r, other, W, CAS, 1);
        call(&mut r, other, 500);
        atomic(&mut r, one, W, SWAP, 1);
        // What says that somebody sleeps, on the word beside the lock, and the call that wakes.
        atomic(&mut r, one, W + 4, ADD, 7);
        call(&mut r, one, 80);
        atomic(&mut r, other, W, CAS, 0);
        atomic(&mut r, other, W, SWAP, 1);
    }
    let mut maker = Maker::new();
    let all = events(&r);
    for (thread, event, id) in &all {
        let is_call = event.kind() == EventKind::Syscall;
        let wakes = is_call && event.end - event.begin == 80;
        if wakes {
            maker.wakes(*thread, EventId(*id), event, W + 4);
        }
        let slept_on = (is_call && !wakes).then_some(W + 4);
        maker.push(*thread, EventId(*id), event, change, slept_on);
    }
    let made = maker.finish();
    assert_eq!(made.locks.iter().map(|lock| lock.address).collect::<Vec<_>>(), [W]);
    let of = |thread: u32, event: u64| {
        let found = all.iter().find(|(t, _, id)| t.0 == thread && *id == event);
        found.expect("it was recorded").1
    };
    let seen = |thread, event| made.view(ThreadId(thread), EventId(event), &of(thread, event));
    // The first thread's release lasts until it has woken the other one.
    assert_eq!(seen(0, 1).kind(), EventKind::MutexUnlock);
    assert_eq!(seen(0, 1).flags, OWN_ORDER, "places in the lock's order are no tickets");
    assert_eq!((seen(0, 1).begin, seen(0, 1).end), (of(0, 1).begin, of(0, 3).end));
    for event in [2, 3] {
        assert_eq!(seen(0, event).kind(), EventKind::Rdtsc);
        assert_eq!(seen(0, event).begin, of(0, 3).end);
    }
    // The other one came to the lock before it slept.
    assert_eq!(seen(1, 2).kind(), EventKind::MutexLock, "most waits are asleep");
    assert_eq!((seen(1, 2).begin, seen(1, 2).end), (of(1, 0).begin, of(1, 2).end));
    assert_eq!(seen(1, 1).kind(), EventKind::Rdtsc);
}

/// Events of a lock whose sleepers sleep elsewhere. A thread that sleeps has set the second bit, and a
/// holder that cannot set the lock free at once does so by a store that nobody sees, or hands it over.
struct Parking {
    r: Recording,
    /// Calls that sleep or wake: thread, event, whether it wakes. All are on one word.
    calls: Vec<(u32, u64, bool)>,
}

const TABLE: u64 = 0x9000;
const SLEEPER: u64 = 0xa000;

impl Parking {
    /// Each thread takes the lock and sets it free once, as anybody can see.
    fn new(threads: usize) -> Parking {
        let mut r = Recording::new(threads);
        for thread in 0..threads {
            atomic(&mut r, thread, W, CAS, 0);
            atomic(&mut r, thread, W, FREE, 1);
        }
        Parking { r, calls: Vec::new() }
    }

    fn call(&mut self, thread: usize, wakes: bool) {
        let items = self.r.threads[thread].iter();
        let event = items.filter(|item| matches!(item, Item::Event(_))).count() as u64;
        let call = self.r.event(thread, 10, EventKind::Syscall, 0, 0x99);
        call.nr = refrain_trace::linux::FUTEX;
        call.end = call.begin + 80;
        self.calls.push((thread as u32, event, wakes));
    }

    /// A thread finds the lock taken, and sleeps.
    fn sleep(&mut self, thread: usize) {
        atomic(&mut self.r, thread, W, CAS, 1);
        self.table(thread);
        self.call(thread, false);
    }

    /// The table that says who sleeps has a lock of its own.
    fn table(&mut self, thread: usize) {
        atomic(&mut self.r, thread, TABLE, CAS, 0);
        atomic(&mut self.r, thread, TABLE, FREE, 1);
    }

    /// The holder comes to set the lock free, finds that somebody sleeps, and wakes that one.
    fn wake(&mut self, thread: usize) {
        atomic(&mut self.r, thread, W, FREE, 3);
        self.table(thread);
        self.call(thread, true);
    }

    fn made(&self) -> Made {
        let mut maker = Maker::new();
        for (thread, event, id) in events(&self.r) {
            let call = self.calls.iter().find(|call| (call.0, call.1) == (thread.0, id));
            if call.is_some_and(|call| call.2) {
                maker.wakes(thread, EventId(id), &event, SLEEPER);
            }
            let slept_on = call.filter(|call| !call.2).map(|_| SLEEPER);
            maker.push(thread, EventId(id), &event, change, slept_on);
        }
        maker.finish()
    }
}

#[test]
fn a_holder_may_set_a_lock_free_unseen_where_it_failed_to_do_so() {
    let mut p = Parking::new(3);
    atomic(&mut p.r, 0, W, CAS, 0);
    p.sleep(1);
    p.wake(0);
    // Before the store another thread looks, and fails.
    atomic(&mut p.r, 2, W, CAS, 3);
    atomic(&mut p.r, 1, W, CAS, 2);
    atomic(&mut p.r, 1, W, FREE, 3);
    atomic(&mut p.r, 2, W, CAS, 0);
    atomic(&mut p.r, 2, W, FREE, 1);
    let made = p.made();
    assert!(made.locks.iter().any(|lock| lock.address == W), "{:?}", made.locks);
    assert_eq!(held(&made, 0), [(0, true), (1, false), (2, true), (3, false)]);
    assert_eq!(held(&made, 1), [(0, true), (1, false), (6, true), (7, false)]);
    assert_eq!(held(&made, 2), [(0, true), (1, false), (3, true), (4, false)]);
}

#[test]
fn a_lock_that_is_handed_over_is_had_since_the_sleep() {
    let mut p = Parking::new(2);
    atomic(&mut p.r, 0, W, CAS, 0);
    p.sleep(1);
    p.wake(0);
    // It was never free.
    atomic(&mut p.r, 1, W, FREE, 1);
    atomic(&mut p.r, 0, W, CAS, 0);
    atomic(&mut p.r, 0, W, FREE, 1);
    let made = p.made();
    assert_eq!(held(&made, 1), [(0, true), (1, false), (5, true), (6, false)]);
    // Who has not come to where it is set free cannot have handed it over.
    let mut p = Parking::new(2);
    atomic(&mut p.r, 0, W, CAS, 0);
    p.sleep(1);
    atomic(&mut p.r, 1, W, FREE, 1);
    atomic(&mut p.r, 0, W, CAS, 0);
    assert!(p.made().locks.iter().all(|lock| lock.address != W));
}

/// The lock is set free inside of the table's lock, by a store that is watched.
#[test]
fn a_release_begins_where_the_holder_first_tried_to_set_the_lock_free() {
    let mut p = Parking::new(2);
    for (one, other) in [(0, 1), (1, 0), (0, 1)] {
        atomic(&mut p.r, one, W, CAS, 0);
        p.sleep(other);
        atomic(&mut p.r, one, W, FREE, 3);
        atomic(&mut p.r, one, TABLE, CAS, 0);
        atomic(&mut p.r, one, W, MOV, 3);
        atomic(&mut p.r, one, TABLE, FREE, 1);
        p.call(one, true);
        atomic(&mut p.r, other, W, CAS, 2);
        atomic(&mut p.r, other, W, FREE, 1);
    }
    let made = p.made();
    let all = events(&p.r);
    let of = |event: u64| all.iter().find(|(t, _, id)| t.0 == 0 && *id == event).expect("there").1;
    let seen = |event| made.view(ThreadId(0), EventId(event), &of(event));
    assert_eq!((seen(3).kind(), seen(3).object), (EventKind::MutexUnlock, W));
    assert_eq!(seen(3).end, of(7).end, "it ends when the other thread has been woken");
    for event in 4..=7 {
        assert_eq!((seen(event).kind(), seen(event).begin), (EventKind::Rdtsc, of(7).end));
    }
}

#[test]
fn all_that_a_thread_does_to_sleep_and_to_wake_is_part_of_the_lock() {
    let mut p = Parking::new(2);
    for (one, other) in [(0, 1), (1, 0), (0, 1)] {
        atomic(&mut p.r, one, W, CAS, 0);
        p.sleep(other);
        p.wake(one);
        atomic(&mut p.r, other, W, CAS, 2);
        atomic(&mut p.r, other, W, FREE, 1);
    }
    let made = p.made();
    let all = events(&p.r);
    let of = |thread: u32, event: u64| {
        let found = all.iter().find(|(t, _, id)| t.0 == thread && *id == event);
        found.expect("it was recorded").1
    };
    let seen = |thread, event| made.view(ThreadId(thread), EventId(event), &of(thread, event));
    // The first thread's release lasts until it has woken the other one.
    assert_eq!((seen(0, 3).kind(), seen(0, 3).object), (EventKind::MutexUnlock, W));
    assert_eq!(seen(0, 3).end, of(0, 6).end);
    for event in [4, 5, 6] {
        assert_eq!((seen(0, event).kind(), seen(0, event).begin), (EventKind::Rdtsc, of(0, 6).end));
    }
    // The other one came to the lock when it first tried it.
    assert_eq!((seen(1, 6).kind(), seen(1, 6).object), (EventKind::MutexLock, W));
    assert_eq!(seen(1, 6).begin, of(1, 2).begin);
    for event in [2, 3, 4, 5] {
        assert_eq!(seen(1, event).kind(), EventKind::Rdtsc);
    }
    assert_eq!(made.unknown, [], "who slept has waited for the lock");
}
