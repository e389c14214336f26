//! `refrain replay --clock virtual`: the trace's skeleton, timed.

use crate::args::Replay;
use crate::failure::Outcome;
use crate::output::{self, Style};
use crate::report::simulation::{Report, render, threads};
use anyhow::{Context, anyhow, bail};
use refrain_scheduler::{Run, Schedule};
use refrain_session::stats::Distribution;
use refrain_session::{Clock, Policy, Session, Skeleton, again, trace_file};
use std::path::Path;

/// Replays in virtual time and says where it went.
pub(crate) fn run(args: &Replay, session: &Session) -> Outcome {
    if args.echo || args.count || args.observe || args.races || args.engine.is_some() {
        let why = "--echo, --count, --races and --engine need --clock wall: nothing is executed";
        return Err(anyhow!(why).into());
    }
    let report = simulate(args, session)?;
    if args.json {
        output::print_json("simulation", &report)?;
    } else {
        output::print(&render(&report, Style::of_stdout()))?;
    }
    Ok(0)
}

fn simulate(args: &Replay, session: &Session) -> anyhow::Result<Report> {
    let trace = trace_file::read(&args.trace)?;
    let wanted = &args.schedule;
    let skeleton = Skeleton::of(&trace)?;
    let mut skeleton = skeleton.on_cores(wanted.cores);
    let what = (wanted.scheduler, wanted.cost);
    session.materialize(&args.trace, &mut skeleton, what)?;
    let policy = Policy { scheduler: wanted.scheduler, seed: wanted.seed };
    let first = first(args, &skeleton, policy)?;
    let mut times = vec![first.duration];
    for number in 1..wanted.repeat {
        let run = match &wanted.schedule {
            Some(path) => skeleton.repeat(read(path)?)?,
            None => run_again(args, &skeleton, policy.repetition(number))?,
        };
        // What nothing random is in gives the same time each time, or this clock is broken.
        let varies = policy.varies() && wanted.schedule.is_none();
        if !varies && run.duration != first.duration {
            bail!("this is a bug in refrain, please report it: two virtual times of one replay");
        }
        times.push(run.duration);
    }
    Ok(Report {
        command: trace.header().argv.join(" "),
        scheduler: policy.scheduler,
        schedule: wanted.schedule.as_ref().map(|path| path.display().to_string()),
        clock: Clock::Virtual,
        seed: policy.seed,
        model: skeleton.model(),
        recorded_ns: skeleton.recorded_ns(),
        duration_ns: first.duration,
        times: Distribution::of(&times).expect("there is a first replay"),
        threads: threads(&first),
    })
}

/// The first replay, whose decisions may come from a file or go to one.
fn first(args: &Replay, skeleton: &Skeleton, policy: Policy) -> anyhow::Result<Run> {
    if let Some(path) = &args.schedule.schedule {
        let run = skeleton.repeat(read(path)?);
        return run.with_context(|| format!("cannot repeat {}", path.display()));
    }
    let Some(path) = &args.schedule.save_schedule else {
        return run_again(args, skeleton, policy);
    };
    let (run, schedule) = skeleton.run_and_keep(policy).with_context(|| again(args, policy))?;
    std::fs::write(path, schedule.to_string())
        .with_context(|| format!("cannot write the schedule to {}", path.display()))?;
    Ok(run)
}

fn run_again(args: &Replay, skeleton: &Skeleton, policy: Policy) -> anyhow::Result<Run> {
    skeleton.run(policy).with_context(|| again(args, policy))
}

fn again(args: &Replay, policy: Policy) -> String {
    again::failed(&args.trace, policy, args.schedule.cores, args.schedule.cost)
}

fn read(path: &Path) -> anyhow::Result<Schedule> {
    let text = std::fs::read_to_string(path)
        .with_context(|| format!("cannot read the schedule {}", path.display()))?;
    text.parse().with_context(|| format!("{} is no schedule", path.display()))
}
