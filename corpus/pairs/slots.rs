//! Slots of all threads in a vector behind one `std::sync::Mutex`. The fix: a mutex for each slot.
//!
//! Arguments as in `pair.h`: rounds of each thread, threads, work inside of a section, work outside.

use std::sync::{Barrier, Mutex};

#[repr(align(128))]
#[derive(Clone, Copy)]
struct Slot(u64);

fn work(steps: u64, mut seed: u64) -> u64 {
    for step in 0..steps {
        seed = std::hint::black_box(seed.wrapping_add((seed >> 7) ^ step));
    }
    seed
}

#[repr(align(128))]
struct Padded(Mutex<Slot>);

fn main() {
    let mut numbers = [1000, 2, 50, 50];
    for (number, argument) in numbers.iter_mut().zip(std::env::args().skip(1)) {
        *number = argument.parse().expect("arguments are numbers");
    }
    let [rounds, threads, inside, outside] = numbers;
    let all = Mutex::new(vec![Slot(0); threads as usize]);
    let each: Vec<Padded> = (0..threads).map(|_| Padded(Mutex::new(Slot(0)))).collect();
    let start = Barrier::new(threads as usize);
    let run = |id: usize| {
        start.wait();
        let mut sum = 0u64;
        for round in 0..rounds {
            let add = |slot: &mut Slot| slot.0 = work(inside, slot.0.wrapping_add(round));
            if cfg!(fixed) {
                add(&mut each[id].0.lock().expect("nobody panics"));
            } else {
                add(&mut all.lock().expect("nobody panics")[id]);
            }
            sum = sum.wrapping_add(work(outside, round));
        }
        sum
    };
    let run = &run;
    let sum = std::thread::scope(|scope| {
        let workers: Vec<_> =
            (0..threads as usize).map(|id| scope.spawn(move || run(id))).collect();
        let join = |worker: std::thread::ScopedJoinHandle<'_, u64>| worker.join();
        let sums = workers.into_iter().map(|worker| join(worker).expect("nobody panics"));
        sums.fold(0u64, u64::wrapping_add)
    });
    let slots = all.into_inner().expect("nobody panics");
    let each = each.into_iter().map(|slot| slot.0.into_inner().expect("nobody panics"));
    let sum = slots.into_iter().chain(each).fold(sum, |sum, slot| sum.wrapping_add(slot.0));
    println!("{sum}");
}
