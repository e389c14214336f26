//! How long this machine takes to hand a lock over. `refrain calibrate` measures it once, later
//! recordings write it into their traces, and the virtual clock uses it. On a machine that nobody has
//! calibrated, each recording measures the hand-off alone, which takes a tenth of a millisecond.

use crate::cache;
use crate::error::{Context, Error};
use refrain_scheduler::Costs;
use refrain_trace::{Latencies, Machine};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Measured latencies, and of which machine.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Calibration {
    /// Model of the processor. Traces of the same model alone get the latencies.
    pub cpu: String,
    /// What was measured.
    #[serde(flatten)]
    pub latencies: Latencies,
}

/// Where the virtual clock's latencies come from.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Source {
    /// `refrain calibrate` had measured them on the machine that recorded, and the trace has them.
    Calibrated,
    /// They are those of a common machine; the recording has measured the hand-off at most.
    Typical,
}

impl Source {
    /// As reports say it.
    pub fn name(self) -> &'static str {
        match self {
            Source::Calibrated => "calibrated latencies",
            Source::Typical => "typical latencies",
        }
    }
}

/// Costs of a modelled machine, and where they come from.
pub fn costs(machine: &Machine, ticks_per_second: u64) -> (Costs, Source) {
    let ticks = |ns: u64| refrain_scheduler::ticks(ns, ticks_per_second);
    let mut typical = Costs::typical(ticks_per_second);
    if let Some(locking) = machine.locking {
        let both = ticks(locking.native_ns);
        (typical.acquire, typical.release) = (both.div_ceil(2), both / 2);
    }
    let Some(Latencies { handoff_ns, wake_ns }) = machine.latencies else {
        return (typical, Source::Typical);
    };
    let handoff = ticks(handoff_ns);
    // A hand-off is a cache line's way there and the answer's way back, and more.
    let travel = handoff / 2;
    let costs = Costs { handoff, travel, ..typical };
    match wake_ns {
        0 => (costs, Source::Typical),
        _ => (Costs { wake: ticks(wake_ns), ..costs }, Source::Calibrated),
    }
}

/// This machine as recordings name it, with its latencies if they were measured and can be
/// understood, or can be measured in a moment.
pub fn this_machine() -> Machine {
    let machine = refrain_vm::this_machine();
    let now = || {
        let handoff_ns = handoff(Some(two_cores()?), 3, 500, Duration::from_millis(1))?;
        Some(Latencies { handoff_ns, wake_ns: 0 })
    };
    Machine { latencies: measured(&machine.cpu).or_else(now), ..machine }
}

/// Two cores that this process may use; `None` if there is but one.
pub fn two_cores() -> Option<[usize; 2]> {
    let allowed = sched_getaffinity(None).ok()?;
    let mut cores = (0..CpuSet::MAX_CPU).filter(|&core| allowed.is_set(core));
    Some([cores.next()?, cores.next()?])
}

/// Keeps this thread on a core. Without the right to, measurements are a little noisier.
pub fn pin(cores: Option<[usize; 2]>, which: usize) {
    if let Some(cores) = cores {
        let mut one = CpuSet::new();
        one.set(cores[which]);
        let _ = sched_setaffinity(None, &one);
    }
}

/// Half a round trip, in nanoseconds, over a word that two threads look at all the time: the least of
/// several measurements, since whatever else runs on the machine can only make one longer. `None` if
/// none was done in time.
pub fn handoff(
    cores: Option<[usize; 2]>,
    batches: u32,
    rounds: u64,
    patience: Duration,
) -> Option<u64> {
    let word = AtomicU64::new(0);
    let until = Instant::now() + patience;
    let take = |turn: u64| {
        let mut looks = 0u32;
        while word.load(Ordering::Acquire) != turn {
            looks += 1;
            // On one core the other thread must get it.
            if looks.is_multiple_of(1 << 12) {
                if Instant::now() > until {
                    return false;
                }
                std::thread::yield_now();
            }
            std::hint::spin_loop();
        }
        word.store(turn + 1, Ordering::Release);
        true
    };
    let turns = |mine: u64, batch: u64| {
        let from = batch * rounds;
        (from..from + rounds).all(|round| take(2 * round + mine))
    };
    let batches = 0..u64::from(batches);
    std::thread::scope(|scope| {
        let other = scope.spawn(|| {
            pin(cores, 1);
            batches.clone().all(|batch| turns(1, batch))
        });
        let main = scope.spawn(|| {
            pin(cores, 0);
            let times = batches.clone().map_while(|batch| {
                let start = Instant::now();
                turns(0, batch).then(|| start.elapsed())
            });
            times.min()
        });
        let least = main.join().expect("the measuring thread does not panic");
        // The scope waits until both threads have measured, not until they have ended. The recorder measures
        // before it blocks signals. If a thread were still there when the program sets a timer, the timer's
        // signal could come to that thread, and would end the process.
        other.join().expect("the other thread does not panic");
        let least = least?;
        u64::try_from(least.as_nanos() / (2 * u128::from(rounds.max(1)))).ok()
    })
}

fn measured(cpu: &str) -> Option<Latencies> {
    let calibration: Calibration = serde_json::from_slice(&std::fs::read(path()?).ok()?).ok()?;
    (calibration.cpu == cpu).then_some(calibration.latencies)
}

fn path() -> Option<PathBuf> {
    Some(cache::directory()?.join("calibration.json"))
}

/// Keeps it for later commands, and says where.
pub fn store(calibration: &Calibration) -> crate::Result<PathBuf> {
    let none = || Error::Refused("there is no home directory to keep the calibration in".into());
    let path = path().ok_or_else(none)?;
    let directory = path.parent().expect("the path has a file name");
    let cannot = || format!("cannot keep the calibration in {}", path.display());
    std::fs::create_dir_all(directory).with_context(cannot)?;
    let bytes = serde_json::to_vec_pretty(calibration).with_context(cannot)?;
    cache::replace(&path, &[bytes]).with_context(cannot)?;
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use refrain_trace::Locking;

    #[test]
    fn measured_latencies_replace_typical_ones() {
        let costs_of =
            |latencies| super::costs(&Machine { latencies, ..Machine::default() }, 2_000_000_000);
        let measured = Latencies { handoff_ns: 250, wake_ns: 40_000 };
        let (costs, source) = costs_of(Some(measured));
        assert_eq!((costs.handoff, costs.wake, source), (500, 80_000, Source::Calibrated));
        let quick = Latencies { handoff_ns: 25, wake_ns: 40_000 };
        assert_eq!(costs_of(Some(quick)).0.travel, 25);
        let awake = Latencies { handoff_ns: 250, wake_ns: 0 };
        let (costs, source) = costs_of(Some(awake));
        assert_eq!((costs.handoff, costs.wake, source), (500, 10_000, Source::Typical));
        let (costs, _) = costs_of(Some(measured));
        let (typical, source) = costs_of(None);
        let Costs { handoff, wake, travel, .. } = typical;
        assert_eq!(Costs { handoff, wake, travel, ..costs }, typical);
        assert_eq!(source, Source::Typical);
    }

    #[test]
    fn a_lock_costs_what_it_was_measured_to_cost() {
        let locking = Some(Locking { native_ns: 13, held_ns: 60, free_ns: 30 });
        let machine = Machine { locking, ..Machine::default() };
        let (costs, _) = super::costs(&machine, 1_000_000_000);
        assert_eq!((costs.acquire, costs.release), (7, 6));
    }

    #[test]
    fn handing_over_takes_some_time_or_is_given_up() {
        let measured = handoff(two_cores(), 2, 100, Duration::from_secs(10));
        assert!(measured.is_some_and(|ns| ns > 0), "{measured:?}");
        assert_eq!(handoff(None, 1, u64::MAX / 4, Duration::ZERO), None);
    }
}
