//! mixed.rs: the Rust library's synchronization, all of it inline futex code
//! that no libc hook sees: Mutex, RwLock, Condvar, Once, Barrier, mpsc, Arc and
//! scoped threads. Built by plain rustc.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Barrier, Condvar, Mutex, OnceLock, RwLock, mpsc};
use std::thread;

/// A bounded queue: one mutex, two conditions.
struct Bounded {
    items: Mutex<VecDeque<u64>>,
    not_empty: Condvar,
    not_full: Condvar,
}

impl Bounded {
    const CAPACITY: usize = 16;

    fn push(&self, item: u64) {
        let items = self.items.lock().unwrap();
        let mut items = self.not_full.wait_while(items, |i| i.len() == Self::CAPACITY).unwrap();
        items.push_back(item);
        self.not_empty.notify_one();
    }

    fn pop(&self) -> u64 {
        let items = self.items.lock().unwrap();
        let mut items = self.not_empty.wait_while(items, |i| i.is_empty()).unwrap();
        self.not_full.notify_one();
        items.pop_front().expect("waited until it is not empty")
    }
}

fn table() -> &'static [u64; 256] {
    static TABLE: OnceLock<[u64; 256]> = OnceLock::new();
    TABLE.get_or_init(|| std::array::from_fn(|i| (i as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15)))
}

fn number(index: usize, otherwise: u64) -> u64 {
    std::env::args().nth(index).map_or(otherwise, |a| a.parse().expect("a number"))
}

fn main() {
    let jobs = number(1, 20_000);
    let workers = number(2, 3) as usize;
    let queue = Arc::new(Bounded {
        items: Mutex::default(),
        not_empty: Condvar::new(),
        not_full: Condvar::new(),
    });
    let newest = Arc::new(RwLock::new(0u64));
    let done = Arc::new(AtomicU64::new(0));
    let (results, inbox) = mpsc::channel();

    let threads: Vec<_> = (0..workers)
        .map(|_| {
            let (queue, newest, done) = (queue.clone(), newest.clone(), done.clone());
            let results = results.clone();
            thread::spawn(move || {
                loop {
                    let job = queue.pop();
                    if job == 0 {
                        break;
                    }
                    if job % 8 == 0 {
                        *newest.write().unwrap() = job;
                    } else {
                        assert_eq!(*newest.read().unwrap() % 8, 0);
                    }
                    done.fetch_add(1, Ordering::Relaxed);
                    results.send(table()[(job % 256) as usize] ^ job).unwrap();
                }
            })
        })
        .collect();
    drop(results);
    (1..=jobs).for_each(|job| queue.push(job));
    (0..workers).for_each(|_| queue.push(0));
    let sum = inbox.iter().fold(0u64, u64::wrapping_add);
    threads.into_iter().for_each(|t| t.join().unwrap());
    assert_eq!(done.load(Ordering::Relaxed), jobs);

    let barrier = Barrier::new(workers);
    let leaders: usize = thread::scope(|scope| {
        let all: Vec<_> = (0..workers)
            .map(|_| scope.spawn(|| (0..100).filter(|_| barrier.wait().is_leader()).count()))
            .collect();
        all.into_iter().map(|t| t.join().unwrap()).sum()
    });
    println!("mixed.rs jobs {jobs} leaders {leaders} sum {sum:016x}");
}
