//! Live objects by hand: threads are played by the test, so nothing here depends on timing.

use super::*;

/// Guest memory: a few words.
#[derive(Default)]
struct Memory(BTreeMap<u64, u32>);

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

fn live(policy: Policy, threads: u32, words: &[(u64, u32)]) -> Live<Memory> {
    let memory = Memory(words.iter().copied().collect());
    let mut live = Live::new(policy, memory, threads as usize, 100);
    for id in 0..threads {
        live.begin(t(id), id.checked_sub(1).map(|_| t(0)));
    }
    live
}

fn lock(object: u64) -> Operation {
    Operation::Lock { object }
}

fn unlock(object: u64) -> Operation {
    Operation::Unlock { object }
}

#[test]
fn whoever_comes_first_gets_the_lock() {
    let mut live = live(Policy::OrigS, 3, &[]);
    assert!(live.request(t(0), lock(LOCK), 0));
    assert!(!live.request(t(1), lock(LOCK), 2));
    assert!(live.request(t(0), unlock(LOCK), 1));
    assert_eq!(live.take_news(), [(t(1), News::Retry)]);
    // A third thread comes before the second has looked again.
    assert!(live.request(t(2), lock(LOCK), 4));
    assert!(!live.request(t(1), lock(LOCK), 2));
    assert!(live.request(t(2), unlock(LOCK), 5));
    assert_eq!(live.take_news(), [(t(1), News::Retry)]);
    assert!(live.request(t(1), lock(LOCK), 2));
    assert_eq!(
        live.reordered(|_| false).collect::<Vec<_>>(),
        [LOCK],
        "ticket 2 came after ticket 4"
    );
}

#[test]
fn recursive_mutexes_count_and_normal_ones_do_not() {
    let mut live = live(Policy::OrigS, 2, &[(LOCK + MUTEX_KIND, RECURSIVE)]);
    assert!(live.request(t(0), lock(LOCK), 0));
    assert!(live.request(t(0), lock(LOCK), 1));
    assert!(live.request(t(0), unlock(LOCK), 2));
    assert!(!live.request(t(1), lock(LOCK), 4), "it is held once more");
    assert!(live.request(t(0), unlock(LOCK), 3));
    assert_eq!(live.take_news(), [(t(1), News::Retry)]);
    assert!(live.request(t(0), lock(OTHER), 0));
    assert!(!live.request(t(0), lock(OTHER), 1));
    assert_eq!(live.explain(), "deadlock; t0 waits for the lock at 0x200000, which t0 holds");
}

#[test]
fn readers_share_and_writers_do_not() {
    let mut live = live(Policy::OrigS, 3, &[]);
    let read = Operation::Read { object: LOCK };
    assert!(live.request(t(0), read, 0));
    assert!(live.request(t(1), read, 1));
    assert!(!live.request(t(2), lock(LOCK), 2));
    assert!(live.request(t(0), unlock(LOCK), 3));
    assert!(live.take_news().is_empty(), "one reader is left");
    assert!(live.request(t(1), unlock(LOCK), 4));
    assert_eq!(live.take_news(), [(t(2), News::Retry)]);
    assert!(live.request(t(2), lock(LOCK), 2));
    assert!(!live.request(t(0), read, 5));
}

#[test]
fn a_wait_gives_the_mutex_away_and_has_it_again() {
    let mut live = live(Policy::OrigS, 2, &[]);
    let wait = Operation::Wait { mutex: LOCK, condition: Some(OTHER) };
    let signal = Operation::Signal { condition: OTHER, all: false };
    assert!(live.request(t(0), lock(LOCK), 0));
    assert!(!live.request(t(0), wait, 5));
    assert!(live.request(t(1), lock(LOCK), 2));
    assert!(live.request(t(1), signal, 0));
    assert!(live.take_news().is_empty(), "signalled, but the mutex is held");
    assert!(live.request(t(1), unlock(LOCK), 3));
    assert_eq!(live.take_news(), [(t(0), News::Granted)]);
    assert_eq!(live.objects[&LOCK].holder, Some(0));
    // A wait that timed out needs no signal.
    assert!(live.request(t(0), Operation::Wait { mutex: LOCK, condition: None }, 7));
    assert_eq!(live.objects[&LOCK].holder, Some(0));
}

#[test]
fn a_lost_signal_is_named() {
    let mut live = live(Policy::OrigS, 2, &[]);
    assert!(live.request(t(1), Operation::Signal { condition: OTHER, all: true }, 0));
    assert!(live.request(t(0), lock(LOCK), 0));
    assert!(!live.request(t(0), Operation::Wait { mutex: LOCK, condition: Some(OTHER) }, 1));
    assert_eq!(live.explain(), "t0 waits for the condition variable at 0x200000");
}

#[test]
fn barriers_open_for_all_and_close_again() {
    let mut live = live(Policy::OrigS, 2, &[(LOCK + BARRIER_COUNT, 2)]);
    let arrive = Operation::Arrive { barrier: LOCK };
    for _ in 0..2 {
        assert!(!live.request(t(0), arrive, 0));
        assert!(live.request(t(1), arrive, 0));
        assert_eq!(live.take_news(), [(t(0), News::Granted)]);
    }
}

#[test]
fn semaphores_count_in_guest_memory() {
    let mut live = live(Policy::OrigS, 2, &[(LOCK, 1)]);
    let (take, post) = (Operation::Take { semaphore: LOCK }, Operation::Post { semaphore: LOCK });
    assert!(live.request(t(0), take, 0));
    assert!(!live.request(t(1), take, 1));
    assert!(live.request(t(0), post, 2));
    assert_eq!(live.take_news(), [(t(1), News::Retry)]);
    assert!(live.request(t(1), take, 1));
    assert_eq!(live.words.load(LOCK), 0);
}

#[test]
fn a_deadlock_is_told_with_its_cycle() {
    let mut live = live(Policy::OrigS, 3, &[]);
    assert!(live.request(t(0), lock(LOCK), 0));
    assert!(live.request(t(1), lock(OTHER), 0));
    assert!(!live.request(t(2), lock(OTHER), 0));
    assert!(!live.request(t(0), lock(OTHER), 0));
    assert!(!live.request(t(1), lock(LOCK), 0));
    assert_eq!(
        live.explain(),
        "deadlock; t0 waits for the lock at 0x200000, which t1 holds; \
         t1 waits for the lock at 0x100000, which t0 holds"
    );
}

#[test]
fn joining_waits_for_the_exit() {
    let mut live = live(Policy::OrigS, 2, &[]);
    let join = Operation::Join { thread: t(1) };
    assert!(!live.request(t(0), join, 0));
    assert_eq!(live.explain(), "t0 waits for another thread");
    assert!(live.request(t(1), Operation::Exit, 0));
    assert_eq!(live.take_news(), [(t(0), News::Granted)]);
    live.end(t(1));
    assert!(live.request(t(0), join, 0), "it has exited before");
}

#[test]
fn kendo_goes_by_the_clocks_whoever_comes_first() {
    // t1 wants the lock at 10, t2 at 20; t0 has other things to do until 50.
    for first in [1, 2] {
        let mut live = live(Policy::Kendo, 3, &[]);
        let clocks = [50, 10, 20];
        for id in [first, 3 - first] {
            live.publish(t(id), clocks[id as usize]);
            assert!(!live.request(t(id), lock(LOCK), 0), "t0 may still come earlier");
        }
        live.publish(t(0), clocks[0]);
        assert_eq!(live.take_news(), [(t(1), News::Granted)], "t{first} came first");
        // t1 releases at 30: t2 has had its turn at 20 and waits in the queue.
        live.publish(t(1), 30);
        assert!(live.request(t(1), unlock(LOCK), 0));
        assert_eq!(live.take_news(), [(t(2), News::Granted)]);
        assert_eq!(live.strands[2].key, 30, "who was let go continues from there");
    }
}

/// Plays `threads` that take and release a lock so often, in an order of steps that `hurry`
/// decides, and returns the order in which they got it.
fn play(policy: Policy, threads: u32, rounds: u32, hurry: u64) -> Vec<u32> {
    let mut live = live(policy, threads, &[]);
    let mut random = SplitMix::new(hurry);
    let mut steps = vec![0; threads as usize];
    let mut waits = vec![false; threads as usize];
    let mut got = Vec::new();
    loop {
        let able: Vec<u32> = (0..threads)
            .filter(|&id| !waits[id as usize] && steps[id as usize] <= 2 * rounds)
            .collect();
        if able.is_empty() {
            if !live.force() {
                return got;
            }
        } else {
            let id = able[random.below(able.len() as u64) as usize];
            let step = steps[id as usize];
            live.publish(t(id), u64::from(step * (id + 2)));
            let wanted = match step {
                step if step == 2 * rounds => Operation::Exit,
                step if step % 2 == 0 => lock(LOCK),
                _ => unlock(LOCK),
            };
            waits[id as usize] = true;
            if live.request(t(id), wanted, 0) {
                live.news.push((t(id), News::Granted));
            }
        }
        // The end of a thread makes more news.
        while let Some((thread, news)) = live.news.pop() {
            assert_eq!(news, News::Granted, "with turns nobody tries again");
            let id = thread.index();
            waits[id] = false;
            match steps[id] {
                step if step == 2 * rounds => live.end(thread),
                step if step % 2 == 0 => got.push(thread.0),
                _ => {}
            }
            steps[id] += 1;
        }
    }
}

#[test]
fn with_turns_the_order_does_not_depend_on_speed() {
    let seeds = 1..6;
    let random = seeds.clone().map(|seed| Policy::Random { seed });
    let pct = seeds.map(|seed| Policy::Pct { seed, depth: 3 });
    let mut orders = BTreeSet::new();
    for policy in random.chain(pct).chain([Policy::Kendo]) {
        let first = play(policy, 4, 8, 0);
        assert_eq!(first.len(), 4 * 8, "{policy:?}: every thread gets the lock each time");
        for hurry in 1..40 {
            assert_eq!(play(policy, 4, 8, hurry), first, "{policy:?}, hurry {hurry}");
        }
        orders.insert(first);
    }
    assert!(orders.len() > 8, "seeds make different orders: {}", orders.len());
}
