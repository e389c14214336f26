//! The engines, schedulers, clocks and costs that a replay can be asked to have, by their names.

use serde::{Deserialize, Serialize};

/// What executes the recorded code.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum EngineKind {
    /// Copied at first; what threads come to often is compiled by Cranelift in the background
    Tiered,
    /// Code compiled by Cranelift; observers are compiled into it
    Cranelift,
    /// The same instructions, copied; nearest to native speed
    Copy,
}

impl EngineKind {
    /// The name that users pick it by.
    pub fn name(self) -> &'static str {
        match self {
            EngineKind::Tiered => "tiered",
            EngineKind::Cranelift => "cranelift",
            EngineKind::Copy => "copy",
        }
    }
}

/// Who decides which thread goes next.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SchedulerKind {
    /// Each lock in its recorded order; free otherwise
    #[default]
    Elsc,
    /// By deterministic logical clocks (PerfPlay's SYNC-S)
    Kendo,
    /// Everything that is ordered in one sequence
    MemS,
    /// Whoever comes first
    OrigS,
    /// Random priorities with a few changes, from --seed
    Pct,
    /// Random choices at each step, from --seed
    Random,
}

impl SchedulerKind {
    /// Those that Figure 13 of PerfPlay compares.
    pub const OF_FIGURE_13: [SchedulerKind; 4] =
        [SchedulerKind::MemS, SchedulerKind::Kendo, SchedulerKind::OrigS, SchedulerKind::Elsc];

    /// The name that users pick it by.
    pub fn name(self) -> &'static str {
        match self {
            SchedulerKind::Elsc => "elsc",
            SchedulerKind::Kendo => "kendo",
            SchedulerKind::MemS => "mem-s",
            SchedulerKind::OrigS => "orig-s",
            SchedulerKind::Pct => "pct",
            SchedulerKind::Random => "random",
        }
    }
}

/// What time is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Clock {
    /// Computed from recorded durations; nothing is executed
    Virtual,
    /// Measured: the program's code runs
    Wall,
}

impl Clock {
    /// The name that users pick it by.
    pub fn name(self) -> &'static str {
        match self {
            Clock::Virtual => "virtual",
            Clock::Wall => "wall",
        }
    }
}

/// Where the virtual clock has the time of the program's own work from.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Cost {
    /// The time that was recorded
    #[default]
    Recorded,
    /// The instructions, by their classes: free of the recording's noise, and blind to caches
    Instructions,
}

impl Cost {
    /// The name that users pick it by.
    pub fn name(self) -> &'static str {
        match self {
            Cost::Recorded => "recorded",
            Cost::Instructions => "instructions",
        }
    }
}
