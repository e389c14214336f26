//! `refrain replay --clock virtual`: the trace's skeleton, timed.

use super::repeat;
use crate::args::{Clock, Replay};
use crate::calibration::Calibration;
use crate::failure::Outcome;
use crate::machine::{self, Policy, Skeleton};
use crate::output::{self, Style};
use crate::report::simulation::{Report, render, threads};
use crate::stats::Distribution;
use crate::trace_file;
use anyhow::{Context, bail};

/// Replays in virtual time and says where it went.
pub(crate) fn run(args: &Replay) -> Outcome {
    if args.echo || args.count || args.observe {
        Err(anyhow::anyhow!("--echo and --count need --clock wall: nothing is executed"))?;
    }
    let report = simulate(args)?;
    if args.json {
        output::print_json("simulation", &report)?;
    } else {
        output::print(&render(&report, Style::of_stdout()))?;
    }
    Ok(0)
}

fn simulate(args: &Replay) -> anyhow::Result<Report> {
    let trace = trace_file::read(&args.trace)?;
    let calibration = Calibration::of_recorder(trace.header());
    let cores = args.schedule.cores;
    let skeleton = Skeleton::of(&trace, calibration.as_ref())?.on_cores(cores);
    let policy = Policy { scheduler: args.schedule.scheduler, seed: args.schedule.seed };
    let again = |policy| repeat::command(&args.trace, policy, Clock::Virtual, cores);
    let replay = |policy| skeleton.run(policy).with_context(|| failed(&again(policy)));
    let first = replay(policy)?;
    let mut times = vec![first.duration];
    for number in 1..args.schedule.repeat {
        let policy = policy.repetition(number);
        let run = replay(policy)?;
        // What nothing random is in gives the same time each time, or this clock is broken.
        if !policy.varies() && run.duration != first.duration {
            bail!("this is a bug in refrain, please report it: two virtual times of one replay");
        }
        times.push(run.duration);
    }
    Ok(Report {
        command: trace.header().argv.join(" "),
        scheduler: policy.scheduler,
        clock: Clock::Virtual,
        seed: policy.seed,
        cores: skeleton.cores(),
        latencies: skeleton.latencies,
        recorded_ns: machine::recorded_ns(&trace),
        duration_ns: first.duration,
        times: Distribution::of(&times).expect("there is a first replay"),
        threads: threads(&first),
    })
}

/// What fails can be looked at again.
pub(crate) fn failed(command: &str) -> String {
    format!("the replay in virtual time did not end (`{command}` repeats it)")
}
