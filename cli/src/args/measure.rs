//! Arguments of the commands that replay a trace to measure it.

use super::choices;
use clap::Args;
use refrain_session::compare;
use refrain_session::{Clock, Cost, EngineKind, SchedulerKind};
use std::path::PathBuf;

/// How `replay` schedules and times.
#[derive(Args, Clone, Debug)]
pub(crate) struct Schedule {
    /// Who decides which thread goes next
    #[arg(long, value_parser = choices::scheduler(), default_value = "elsc")]
    pub(crate) scheduler: SchedulerKind,
    /// What time is: `wall` executes the program, `virtual` computes
    #[arg(long, value_parser = choices::clock(), default_value = "wall")]
    pub(crate) clock: Clock,
    /// Where virtual time comes from
    #[arg(long, value_parser = choices::cost(), default_value = Cost::default().name())]
    pub(crate) cost: Cost,
    /// Replay on N cores [default: those of the recorded machine, or of this one for wall]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub(crate) cores: Option<u32>,
    /// Replay R times and show how the times are distributed
    #[arg(long, value_name = "R", default_value_t = 1,
          value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub(crate) repeat: u32,
    /// Seed of `pct`, `random` and the noise of virtual `orig-s`; each repetition adds one
    #[arg(long, value_name = "S")]
    pub(crate) seed: Option<u64>,
    /// Keep the decisions of the (first) replay in virtual time here
    #[arg(long, value_name = "F")]
    pub(crate) save_schedule: Option<PathBuf>,
    /// Repeat the decisions that were kept here, in virtual time
    #[arg(long, value_name = "F", conflicts_with_all = ["scheduler", "seed", "save_schedule"])]
    pub(crate) schedule: Option<PathBuf>,
}

/// What `fidelity` and `ab` have in common.
#[derive(Args, Clone, Debug)]
pub(crate) struct Measuring {
    /// Replays of each kind
    #[arg(long, value_name = "R", default_value_t = 10,
          value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub(crate) repeat: u32,
    /// Measure by this clock alone
    #[arg(long, value_parser = choices::clock())]
    pub(crate) clock: Option<Clock>,
    /// Where virtual time comes from
    #[arg(long, value_parser = choices::cost(), default_value = Cost::default().name())]
    pub(crate) cost: Cost,
    /// Replay on N cores [default: those of the recorded machine, or of this one for wall]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub(crate) cores: Option<u32>,
    /// First seed of what is random
    #[arg(long, value_name = "S", default_value_t = 1)]
    pub(crate) seed: u64,
    /// What executes the recorded code for the wall clock
    #[arg(long, value_parser = choices::engine(), default_value = "copy")]
    pub(crate) engine: EngineKind,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

impl Measuring {
    /// As the library takes it.
    pub(crate) fn how(&self) -> compare::Measuring {
        let Measuring { repeat, clock, cost, cores, seed, engine, .. } = *self;
        compare::Measuring { repeat, clock, cost, cores, seed, engine }
    }
}

#[derive(Args, Debug)]
pub(crate) struct Fidelity {
    /// Trace to replay
    #[arg(value_name = "FILE")]
    pub(crate) trace: PathBuf,
    /// Compare this scheduler; may be given more than once [default: mem-s, kendo, orig-s, elsc]
    #[arg(long, value_parser = choices::scheduler())]
    pub(crate) scheduler: Vec<SchedulerKind>,
    #[command(flatten)]
    pub(crate) measuring: Measuring,
    /// Draw the figure here
    #[arg(long, value_name = "FILE")]
    pub(crate) svg: Option<PathBuf>,
}

#[derive(Args, Debug)]
pub(crate) struct Perfplay {
    /// Traces to evaluate; those of one program with different threads or input are also compared
    #[arg(value_name = "FILE", required = true)]
    pub(crate) traces: Vec<PathBuf>,
    /// Replays under each scheduler (Figure 13)
    #[arg(long, value_name = "R", default_value_t = 10,
          value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub(crate) repeat: u32,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// Write the tables and figures as a page, with bars
    #[arg(long, value_name = "FILE")]
    pub(crate) html: Option<PathBuf>,
}

#[derive(Args, Debug)]
pub(crate) struct Ab {
    /// Trace A
    #[arg(value_name = "A")]
    pub(crate) a: PathBuf,
    /// Trace B [default: A again, for two schedulers]
    #[arg(value_name = "B")]
    pub(crate) b: Option<PathBuf>,
    /// Scheduler of A; given twice, of A and of B [default: elsc]
    #[arg(long, value_parser = choices::scheduler())]
    pub(crate) scheduler: Vec<SchedulerKind>,
    #[command(flatten)]
    pub(crate) measuring: Measuring,
}

#[derive(Args, Debug)]
pub(crate) struct Calibrate {
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}
