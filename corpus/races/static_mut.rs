//! A `static mut` that two threads count in.
use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

static mut COUNTER: u64 = 0;
static COUNTED: AtomicU64 = AtomicU64::new(0);

fn count(started: &Barrier) {
    started.wait();
    for _ in 0..100 {
        if cfg!(fixed) {
            COUNTED.fetch_add(1, Ordering::Relaxed);
        } else {
            let counter = &raw mut COUNTER;
            // SAFETY: none: this is the race.
            unsafe { counter.write_volatile(counter.read_volatile() + 1) }; /* races on COUNTER */
        }
    }
}

fn main() {
    // The library's own locks order the end of a thread before the beginning of another.
    let started = Barrier::new(2);
    thread::scope(|threads| {
        threads.spawn(|| count(&started));
        threads.spawn(|| count(&started));
    });
}
