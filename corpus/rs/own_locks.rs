//! own_locks: the locks of Rust's standard library, which are words and futexes: a section of each
//! that only reads, and one that a counter truly needs.

use std::sync::{Arc, Barrier, Mutex, RwLock};
use std::thread;

struct Shared {
    table: Mutex<Vec<u64>>,
    counter: Mutex<u64>,
    columns: RwLock<[u64; 64]>,
    barrier: Barrier,
}

#[inline(never)]
fn look(shared: &Shared) -> u64 {
    let table = shared.table.lock().unwrap(); /* @site look: read-read with look */
    table.iter().sum()
}

#[inline(never)]
fn count(shared: &Shared) {
    let mut counter = shared.counter.lock().unwrap(); /* @site count: tlcp with count */
    *counter = counter.wrapping_mul(5).wrapping_add(1);
}

#[inline(never)]
fn read(shared: &Shared, column: usize) -> u64 {
    shared.columns.read().unwrap()[column] /* @site read */
}

#[inline(never)]
fn write(shared: &Shared, column: usize) {
    shared.columns.write().unwrap()[column] += 1; /* @site write: disjoint-write with read */
}

fn main() {
    let rounds = std::env::args().nth(1).map_or(300, |text| text.parse().expect("a number"));
    let shared = Arc::new(Shared {
        table: Mutex::new((0..64).collect()),
        counter: Mutex::new(0),
        columns: RwLock::new([0; 64]),
        barrier: Barrier::new(2),
    });
    let threads: Vec<_> = (0..2)
        .map(|id| {
            let shared = shared.clone();
            thread::spawn(move || {
                let mut sum = 0;
                for round in 0..rounds {
                    if round < 40 {
                        shared.barrier.wait();
                    }
                    sum += look(&shared);
                    count(&shared);
                    if round < 40 {
                        shared.barrier.wait();
                    }
                    if id == 0 {
                        write(&shared, round % 8);
                    } else {
                        sum += read(&shared, 32);
                    }
                }
                sum
            })
        })
        .collect();
    let sum: u64 = threads.into_iter().map(|thread| thread.join().unwrap()).sum();
    println!("own_locks {sum} {}", shared.counter.lock().unwrap());
}
