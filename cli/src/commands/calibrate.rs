//! `refrain calibrate`: measures what handing a lock over costs on this machine.

use crate::args::Calibrate;
use crate::failure::Outcome;
use crate::output;
use crate::report::numbers::{duration, signed};
use crate::report::table;
use refrain_session::calibration::{self, Calibration};
use refrain_trace::Latencies;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::Thread;
use std::time::{Duration, Instant};

/// Hand-overs of one measurement; the first ones warm up.
const ROUNDS: u64 = 20_000;
/// Wake-ups of one measurement.
const WAKES: u64 = 300;
/// Before it is woken, a thread has gone to sleep for certain, or the sample is a bad one, which
/// the median does not mind.
const ASLEEP: Duration = Duration::from_micros(200);

/// Measures, prints and keeps the latencies.
pub(crate) fn run(args: &Calibrate) -> Outcome {
    let cores = two_cores();
    let handoff = handoff(cores);
    let wake = wake(cores);
    let latencies = Latencies { handoff_ns: handoff, wake_ns: wake };
    let calibration = Calibration { cpu: refrain_vm::this_machine().cpu, latencies };
    let kept = calibration::store(&calibration)?;
    if args.json {
        output::print_json("calibration", &calibration)?;
    } else {
        output::print(&table::pairs(&[
            ("machine", calibration.cpu),
            ("hand-off", format!("{} (to a thread that waits awake)", duration(signed(handoff)))),
            ("wake-up", format!("{} (of a thread that sleeps)", duration(signed(wake)))),
            ("kept in", kept.display().to_string()),
        ]))?;
    }
    Ok(0)
}

/// Two cores that this process may use; `None` if there is but one.
fn two_cores() -> Option<[usize; 2]> {
    let allowed = sched_getaffinity(None).ok()?;
    let mut cores = (0..CpuSet::MAX_CPU).filter(|&core| allowed.is_set(core));
    Some([cores.next()?, cores.next()?])
}

/// Keeps this thread on a core. Without the right to, the measurement is a little noisier.
fn pin(cores: Option<[usize; 2]>, which: usize) {
    if let Some(cores) = cores {
        let mut one = CpuSet::new();
        one.set(cores[which]);
        let _ = sched_setaffinity(None, &one);
    }
}

/// Half a round trip over a word that both threads look at all the time: the least of several
/// measurements, since whatever else runs on the machine can only make one longer.
fn handoff(cores: Option<[usize; 2]>) -> u64 {
    (0..15).map(|_| round_trips(cores) / (2 * ROUNDS)).min().unwrap_or(0)
}

fn round_trips(cores: Option<[usize; 2]>) -> u64 {
    let word = AtomicU64::new(0);
    let turns = |mine: u64| {
        for round in 0..ROUNDS {
            let turn = 2 * round + mine;
            let mut looks = 0u32;
            while word.load(Ordering::Acquire) != turn {
                looks += 1;
                // On one core the other thread must get it.
                if looks.is_multiple_of(1 << 12) {
                    std::thread::yield_now();
                }
                std::hint::spin_loop();
            }
            word.store(turn + 1, Ordering::Release);
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            pin(cores, 1);
            turns(1);
        });
        let main = scope.spawn(|| {
            pin(cores, 0);
            let start = Instant::now();
            turns(0);
            elapsed(start)
        });
        main.join().expect("the measuring thread does not panic")
    })
}

/// From a wake-up call to the moment when the sleeper runs, as the sleeper sees it: the median.
fn wake(cores: Option<[usize; 2]>) -> u64 {
    let epoch = Instant::now();
    let called = AtomicU64::new(0);
    std::thread::scope(|scope| {
        let sleeper = scope.spawn(|| {
            pin(cores, 1);
            let mut samples: Vec<u64> = (0..WAKES).map(|_| sleep(&called, epoch)).collect();
            median(&mut samples)
        });
        let (thread, called) = (sleeper.thread().clone(), &called);
        scope.spawn(move || {
            pin(cores, 0);
            call(&thread, called, epoch);
        });
        sleeper.join().expect("the measuring thread does not panic")
    })
}

fn sleep(called: &AtomicU64, epoch: Instant) -> u64 {
    loop {
        std::thread::park();
        let at = called.load(Ordering::Acquire);
        if at > 0 {
            let took = elapsed(epoch).saturating_sub(at);
            called.store(0, Ordering::Release);
            return took;
        }
    }
}

fn call(sleeper: &Thread, called: &AtomicU64, epoch: Instant) {
    for _ in 0..WAKES {
        std::thread::sleep(ASLEEP);
        called.store(elapsed(epoch).max(1), Ordering::Release);
        sleeper.unpark();
        while called.load(Ordering::Acquire) > 0 {
            std::thread::yield_now();
        }
    }
}

fn elapsed(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_nanos()).unwrap_or(u64::MAX)
}

fn median(samples: &mut [u64]) -> u64 {
    samples.sort_unstable();
    samples.get(samples.len() / 2).copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_median_is_in_the_middle() {
        assert_eq!(median(&mut [9, 1, 5]), 5);
        assert_eq!(median(&mut []), 0);
    }
}
