//! A type that says it may be shared, and may not.
use std::cell::UnsafeCell;
use std::sync::{Barrier, Mutex};
use std::thread;

struct Shared {
    value: UnsafeCell<u64>,
    lock: Mutex<()>,
    started: Barrier,
}

// SAFETY: none, unless the lock is taken: this is the race.
unsafe impl Sync for Shared {}

fn add(shared: &Shared, how_much: u64) {
    shared.started.wait();
    let held = cfg!(fixed).then(|| shared.lock.lock());
    let value = shared.value.get();
    // SAFETY: see above.
    unsafe { value.write_volatile(value.read_volatile() + how_much) }; /* races on heap */
    drop(held);
}

fn main() {
    let (value, lock, started) = (UnsafeCell::new(0), Mutex::new(()), Barrier::new(2));
    let shared = Box::new(Shared { value, lock, started });
    thread::scope(|threads| {
        threads.spawn(|| add(&shared, 1));
        threads.spawn(|| add(&shared, 2));
    });
}
