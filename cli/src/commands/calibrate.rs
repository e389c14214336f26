//! `refrain calibrate`: measures what handing a lock over costs on this machine.

use crate::args::Calibrate;
use crate::failure::Outcome;
use crate::output;
use crate::report::numbers::{duration, signed};
use crate::report::table;
use refrain_session::calibration::{self, Calibration, handoff, pin, two_cores};
use refrain_trace::Latencies;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::Thread;
use std::time::{Duration, Instant};

/// Measurements of hand-overs.
const BATCHES: u32 = 15;
/// Round trips of one of them; the first ones warm up.
const ROUNDS: u64 = 20_000;
/// On one core, a round trip takes two slices of time.
const PATIENCE: Duration = Duration::from_secs(60);
/// Wake-ups of one measurement.
const WAKES: u64 = 300;
/// Before it is woken, a thread has gone to sleep for certain, or the sample is a bad one, which
/// the median does not mind.
const ASLEEP: Duration = Duration::from_micros(200);

/// Measures, prints and keeps the latencies.
pub(crate) fn run(args: &Calibrate) -> Outcome {
    let cores = two_cores();
    let handoff = handoff(cores, BATCHES, ROUNDS, PATIENCE).unwrap_or(0);
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
