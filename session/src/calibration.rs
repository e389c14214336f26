//! How long this machine takes to hand a lock over. `refrain calibrate` measures it once, later
//! recordings write it into their traces, and the virtual clock uses it.

use crate::cache;
use crate::error::{Context, Error};
use refrain_scheduler::Costs;
use refrain_trace::{Latencies, Machine};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

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
    /// They are those of a common machine.
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
pub fn costs(measured: Option<Latencies>, ticks_per_second: u64) -> (Costs, Source) {
    let typical = Costs::typical(ticks_per_second);
    let Some(Latencies { handoff_ns, wake_ns }) = measured else {
        return (typical, Source::Typical);
    };
    let ticks = |ns: u64| {
        let ticks = u128::from(ns) * u128::from(ticks_per_second) / 1_000_000_000;
        u64::try_from(ticks).unwrap_or(u64::MAX)
    };
    let handoff = ticks(handoff_ns);
    // A hand-off is a cache line's way, and more.
    let travel = typical.travel.min(handoff);
    (Costs { handoff, wake: ticks(wake_ns), travel, ..typical }, Source::Calibrated)
}

/// This machine as recordings name it, with its latencies if they were measured and can be
/// understood.
pub fn this_machine() -> Machine {
    let machine = refrain_vm::this_machine();
    Machine { latencies: measured(&machine.cpu), ..machine }
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
    cache::replace(&path, &bytes).with_context(cannot)?;
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn measured_latencies_replace_typical_ones() {
        let measured = Latencies { handoff_ns: 250, wake_ns: 40_000 };
        let (costs, source) = super::costs(Some(measured), 2_000_000_000);
        assert_eq!((costs.handoff, costs.wake, source), (500, 80_000, Source::Calibrated));
        let quick = Latencies { handoff_ns: 25, wake_ns: 40_000 };
        assert_eq!(super::costs(Some(quick), 2_000_000_000).0.travel, 50);
        let (typical, source) = super::costs(None, 2_000_000_000);
        assert_eq!(Costs { handoff: typical.handoff, wake: typical.wake, ..costs }, typical);
        assert_eq!(source, Source::Typical);
    }
}
