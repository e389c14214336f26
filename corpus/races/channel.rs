//! What goes through a bounded channel is in order, and what is beside it is not.
use std::cell::UnsafeCell;
use std::sync::mpsc::sync_channel;
use std::sync::{Barrier, Mutex};
use std::thread;

struct Shared {
    value: UnsafeCell<u64>,
    lock: Mutex<()>,
    sent: Barrier,
}

// SAFETY: none, unless the lock is taken: this is the race.
unsafe impl Sync for Shared {}

const BOXES: u64 = 500;

fn add(shared: &Shared, how_much: u64) {
    shared.sent.wait();
    let held = cfg!(fixed).then(|| shared.lock.lock());
    let value = shared.value.get();
    // SAFETY: see above.
    unsafe { value.write_volatile(value.read_volatile() + how_much) }; /* races on heap */
    drop(held);
}

fn main() {
    let (value, lock, sent) = (UnsafeCell::new(0), Mutex::new(()), Barrier::new(2));
    let shared = Box::new(Shared { value, lock, sent });
    let (sender, boxes) = sync_channel::<Box<u64>>(4);
    let sum: u64 = thread::scope(|threads| {
        for how_much in 1..=2 {
            let (sender, shared) = (sender.clone(), &shared);
            threads.spawn(move || {
                (0..BOXES).for_each(|n| sender.send(Box::new(n)).expect("somebody receives"));
                add(shared, how_much);
            });
        }
        drop(sender);
        boxes.iter().map(|number| *number).sum()
    });
    assert_eq!(sum, BOXES * (BOXES - 1));
}
