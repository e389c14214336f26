//! Requests by hand: threads are played by the test, so nothing here depends on timing.

use super::super::objects::BARRIER_COUNT;
use super::*;
use crate::mutex::{KIND, RECURSIVE};
use refrain_scheduler::{Kendo, Orig, Pct, Random};
use std::collections::{BTreeMap, BTreeSet};

/// Guest memory: a few words.
#[derive(Default)]
pub(super) struct Memory(pub(super) BTreeMap<u64, u32>);

impl Words for Memory {
    fn load(&self, address: u64) -> u32 {
        self.0.get(&address).copied().unwrap_or(0)
    }

    fn store(&mut self, address: u64, word: u32) {
        self.0.insert(address, word);
    }
}

const LOCK: u64 = 0x10_0000;
const OTHER: u64 = 0x20_0000;

fn t(id: u32) -> ThreadId {
    ThreadId(id)
}

type Boxed = Box<dyn Scheduler + Send>;

/// Threads that have all begun, before objects with these words.
fn grants(scheduler: Boxed, threads: u32, words: &[(u64, u32)]) -> Grants<Memory> {
    let memory = Memory(words.iter().copied().collect());
    let mut grants = Grants::new(scheduler, memory, threads as usize);
    (0..threads).for_each(|id| grants.begin(t(id)));
    grants
}

fn orig(threads: u32, words: &[(u64, u32)]) -> Grants<Memory> {
    grants(Box::new(Orig), threads, words)
}

impl Grants<Memory> {
    fn asks(&mut self, thread: ThreadId, operation: Operation, ticket: u64) -> bool {
        self.request(thread, Asked { operation, event: EventId(0), ticket })
    }

    fn got(&self, object: u64) -> Vec<ThreadId> {
        self.objects.holders(object)
    }
}

fn lock(object: u64) -> Operation {
    Operation::Lock { object }
}

fn unlock(object: u64) -> Operation {
    Operation::Unlock { object }
}

#[test]
fn whoever_comes_first_gets_the_lock() {
    let mut orig = orig(3, &[]);
    assert!(orig.asks(t(0), lock(LOCK), 0));
    assert!(!orig.asks(t(1), lock(LOCK), 2));
    assert!(orig.asks(t(0), unlock(LOCK), 1));
    assert_eq!(orig.take_news(), [(t(1), News::Retry)]);
    // A third thread comes before the second has looked again.
    assert!(orig.asks(t(2), lock(LOCK), 4));
    assert!(!orig.asks(t(1), lock(LOCK), 2));
    assert!(orig.asks(t(2), unlock(LOCK), 5));
    assert_eq!(orig.take_news(), [(t(1), News::Retry)]);
    assert!(orig.asks(t(1), lock(LOCK), 2));
    assert_eq!(
        orig.reordered(|_| false).collect::<Vec<_>>(),
        [LOCK],
        "ticket 2 came after ticket 4"
    );
}

#[test]
fn recursive_mutexes_count_and_normal_ones_do_not() {
    let mut orig = orig(2, &[(LOCK + KIND, RECURSIVE)]);
    assert!(orig.asks(t(0), lock(LOCK), 0));
    assert!(orig.asks(t(0), lock(LOCK), 1));
    assert!(orig.asks(t(0), unlock(LOCK), 2));
    assert!(!orig.asks(t(1), lock(LOCK), 4), "it is held once more");
    assert!(orig.asks(t(0), unlock(LOCK), 3));
    assert_eq!(orig.take_news(), [(t(1), News::Retry)]);
    assert!(orig.asks(t(0), lock(OTHER), 0));
    assert!(!orig.asks(t(0), lock(OTHER), 1));
    assert_eq!(orig.explain(), "deadlock; t0 waits for the lock at 0x200000, which t0 holds");
}

#[test]
fn readers_share_and_writers_do_not() {
    let mut orig = orig(3, &[]);
    let read = Operation::Read { object: LOCK };
    assert!(orig.asks(t(0), read, 0));
    assert!(orig.asks(t(1), read, 1));
    assert!(!orig.asks(t(2), lock(LOCK), 2));
    assert!(orig.asks(t(0), unlock(LOCK), 3));
    assert!(orig.take_news().is_empty(), "one reader is left");
    assert!(orig.asks(t(1), unlock(LOCK), 4));
    assert_eq!(orig.take_news(), [(t(2), News::Retry)]);
    assert!(orig.asks(t(2), lock(LOCK), 2));
    assert!(!orig.asks(t(0), read, 5));
}

#[test]
fn a_wait_gives_the_mutex_away_and_has_it_again() {
    let mut orig = orig(2, &[]);
    let wait = Operation::Wait { mutex: LOCK, condition: Some(OTHER) };
    let relock = Operation::Relock { mutex: LOCK };
    let signal = Operation::Signal { condition: OTHER, all: false };
    assert!(orig.asks(t(0), lock(LOCK), 0));
    assert!(orig.asks(t(0), wait, 0));
    assert!(!orig.asks(t(0), relock, 5));
    assert!(orig.asks(t(1), lock(LOCK), 2));
    assert!(orig.asks(t(1), signal, 0));
    assert!(orig.take_news().is_empty(), "signalled, but the mutex is held");
    assert!(orig.asks(t(1), unlock(LOCK), 3));
    assert_eq!(orig.take_news(), [(t(0), News::Granted)]);
    assert_eq!(orig.got(LOCK), [t(0)]);
    // A signal of a mutex that is free.
    assert!(orig.asks(t(0), wait, 0));
    assert!(!orig.asks(t(0), relock, 6));
    assert!(orig.asks(t(1), signal, 0));
    assert_eq!(orig.take_news(), [(t(0), News::Granted)]);
    // A wait that timed out needs no signal.
    assert!(orig.asks(t(0), Operation::Wait { mutex: LOCK, condition: None }, 0));
    assert!(orig.asks(t(0), relock, 7));
    assert_eq!(orig.got(LOCK), [t(0)]);
}

#[test]
fn a_lost_signal_is_named() {
    let mut orig = orig(2, &[]);
    assert!(orig.asks(t(1), Operation::Signal { condition: OTHER, all: true }, 0));
    assert!(orig.asks(t(0), lock(LOCK), 0));
    assert!(orig.asks(t(0), Operation::Wait { mutex: LOCK, condition: Some(OTHER) }, 0));
    assert!(!orig.asks(t(0), Operation::Relock { mutex: LOCK }, 1));
    assert_eq!(orig.explain(), "t0 waits for the condition variable at 0x200000");
}

#[test]
fn barriers_open_for_all_and_close_again() {
    let mut orig = orig(2, &[(LOCK + BARRIER_COUNT, 2)]);
    let (arrive, leave) = (Operation::Arrive { barrier: LOCK }, Operation::Leave { barrier: LOCK });
    for _ in 0..2 {
        assert!(orig.asks(t(0), arrive, 0));
        assert!(!orig.asks(t(0), leave, 0));
        assert!(orig.asks(t(1), arrive, 0));
        assert_eq!(orig.take_news(), [(t(0), News::Granted)]);
        assert!(orig.asks(t(1), leave, 0));
    }
}

#[test]
fn semaphores_count_in_guest_memory() {
    let mut orig = orig(2, &[(LOCK, 1)]);
    let (take, post) = (Operation::Take { semaphore: LOCK }, Operation::Post { semaphore: LOCK });
    assert!(orig.asks(t(0), take, 0));
    assert!(!orig.asks(t(1), take, 1));
    assert!(orig.asks(t(0), post, 2));
    assert_eq!(orig.take_news(), [(t(1), News::Retry)]);
    assert!(orig.asks(t(1), take, 1));
    assert_eq!(orig.objects.word(LOCK), 0);
}

#[test]
fn a_deadlock_is_told_with_its_cycle() {
    let mut orig = orig(3, &[]);
    assert!(orig.asks(t(0), lock(LOCK), 0));
    assert!(orig.asks(t(1), lock(OTHER), 0));
    assert!(!orig.asks(t(2), lock(OTHER), 0));
    assert!(!orig.asks(t(0), lock(OTHER), 0));
    assert!(!orig.asks(t(1), lock(LOCK), 0));
    assert_eq!(
        orig.explain(),
        "deadlock; t0 waits for the lock at 0x200000, which t1 holds; \
         t1 waits for the lock at 0x100000, which t0 holds"
    );
}

#[test]
fn joining_waits_for_the_exit() {
    let mut orig = orig(2, &[]);
    let join = Operation::Join { thread: t(1) };
    assert!(!orig.asks(t(0), join, 0));
    assert_eq!(orig.explain(), "t0 waits for another thread");
    assert!(orig.asks(t(1), Operation::Exit, 0));
    assert_eq!(orig.take_news(), [(t(0), News::Granted)]);
    orig.end(t(1));
    assert!(orig.asks(t(0), join, 0), "it has exited before");
}

#[test]
fn kendo_goes_by_the_clocks_whoever_comes_first() {
    // t1 wants the lock at 10, t2 at 20; t0 has other things to do until 50.
    for first in [1, 2] {
        let mut kendo = grants(Box::new(Kendo::default()), 3, &[]);
        let clocks = [50, 10, 20];
        for id in [first, 3 - first] {
            kendo.publish(t(id), clocks[id as usize]);
            assert!(!kendo.asks(t(id), lock(LOCK), 0), "t0 may still come earlier");
        }
        kendo.publish(t(0), clocks[0]);
        assert_eq!(kendo.take_news(), [(t(1), News::Granted)], "t{first} came first");
        // t1 releases at 30. t2 has been there since 20, and goes on from 30.
        kendo.publish(t(1), 30);
        assert!(kendo.asks(t(1), unlock(LOCK), 0));
        assert_eq!(kendo.take_news(), [(t(2), News::Granted)]);
        kendo.publish(t(1), 31);
        kendo.publish(t(2), 24);
        assert!(!kendo.asks(t(2), unlock(LOCK), 0), "it is 34 by t2's clock, and 31 by t1's");
        kendo.publish(t(1), 35);
        assert_eq!(kendo.take_news(), [(t(2), News::Granted)]);
    }
}

#[test]
fn whoever_nobody_can_come_before_is_forced() {
    let mut kendo = grants(Box::new(Kendo::default()), 2, &[]);
    kendo.publish(t(1), 10);
    assert!(!kendo.asks(t(1), lock(LOCK), 0), "t0 is at 0");
    assert!(kendo.force() && !kendo.force());
    assert_eq!(kendo.take_news(), [(t(1), News::Granted)]);
}

/// Plays `threads` that take and release a lock so often, in an order of steps that `hurry`
/// decides, and returns the order in which they got it.
fn play(scheduler: Boxed, threads: u32, rounds: u32, hurry: u64) -> Vec<u32> {
    let mut grants = grants(scheduler, threads, &[]);
    let mut random = hurry;
    let mut steps = vec![0; threads as usize];
    let mut waits = vec![false; threads as usize];
    let mut got = Vec::new();
    loop {
        let able: Vec<u32> = (0..threads)
            .filter(|&id| !waits[id as usize] && steps[id as usize] <= 2 * rounds)
            .collect();
        if able.is_empty() {
            if !grants.force() {
                return got;
            }
        } else {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let id = able[(random >> 33) as usize % able.len()];
            let step = steps[id as usize];
            grants.publish(t(id), u64::from(step * (id + 2)));
            let wanted = match step {
                step if step == 2 * rounds => Operation::Exit,
                step if step % 2 == 0 => lock(LOCK),
                _ => unlock(LOCK),
            };
            waits[id as usize] = true;
            if grants.asks(t(id), wanted, 0) {
                grants.news.push((t(id), News::Granted));
            }
        }
        // The end of a thread makes more news.
        while let Some((thread, news)) = grants.news.pop() {
            assert_eq!(news, News::Granted, "with turns nobody tries again");
            let id = thread.index();
            waits[id] = false;
            match steps[id] {
                step if step == 2 * rounds => grants.end(thread),
                step if step % 2 == 0 => got.push(thread.0),
                _ => {}
            }
            steps[id] += 1;
        }
    }
}

#[test]
fn with_turns_the_order_does_not_depend_on_speed() {
    let all = |at: usize| -> Boxed {
        let seed = at as u64 / 2;
        match at {
            0 => Box::new(Kendo::default()),
            at if at % 2 == 0 => Box::new(Random::new(seed)),
            _ => Box::new(Pct::new(seed, 3, 100)),
        }
    };
    let mut orders = BTreeSet::new();
    for at in 0..12 {
        let first = play(all(at), 4, 8, 0);
        assert_eq!(first.len(), 4 * 8, "{at}: every thread gets the lock each time");
        for hurry in 1..40 {
            assert_eq!(play(all(at), 4, 8, hurry), first, "{at}, hurry {hurry}");
        }
        orders.insert(first);
    }
    assert!(orders.len() > 8, "seeds make different orders: {}", orders.len());
}
