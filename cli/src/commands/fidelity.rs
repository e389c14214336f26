//! `refrain fidelity`: PerfPlay's Figure 13 for any trace.

use super::{materialize, repeat, simulate};
use crate::args::Fidelity;
use crate::failure::Outcome;
use crate::output::{self, Style};
use crate::report::fidelity::{Report, Row, render};
use crate::report::figure;
use anyhow::{Context, bail};
use refrain_session::choices::{Clock, Cost, SchedulerKind};
use refrain_session::machine::{Policy, ReplayOptions, Skeleton};
use refrain_session::trace_file;

/// Replays under all schedulers and compares the times with the recorded one.
pub(crate) fn run(args: &Fidelity) -> Outcome {
    let report = compare(args)?;
    if let Some(path) = &args.svg {
        std::fs::write(path, figure::svg(&report))
            .with_context(|| format!("cannot write {}", path.display()))?;
    }
    if args.measuring.json {
        output::print_json("fidelity", &report)?;
    } else {
        output::print(&render(&report, Style::of_stdout()))?;
    }
    Ok(0)
}

fn compare(args: &Fidelity) -> anyhow::Result<Report> {
    let trace = trace_file::read(&args.trace)?;
    if trace.is_transformed() {
        bail!("a transformed trace has no recorded time to compare with: take the recording");
    }
    if trace.is_truncated() {
        bail!("the recording was cut off, so that there is no recorded time to compare with");
    }
    let skeleton = match args.measuring.cost {
        // With the recorder's work in it, as the recorded time has it.
        Cost::Recorded => Skeleton::as_recorded(&trace)?,
        Cost::Instructions => Skeleton::of(&trace)?,
    };
    let mut skeleton = skeleton.on_cores(args.measuring.cores);
    let recorded_ns = skeleton.recorded_ns();
    let schedulers = match args.scheduler.as_slice() {
        [] => SchedulerKind::OF_FIGURE_13.to_vec(),
        chosen => chosen.to_vec(),
    };
    let mut rows = Vec::new();
    if args.measuring.wants(Clock::Virtual) {
        for &scheduler in &schedulers {
            let (times, failed) = virtual_times(args, &mut skeleton, scheduler);
            rows.push(Row::new((scheduler, Clock::Virtual), &times, failed, recorded_ns));
        }
    }
    if args.measuring.wants(Clock::Wall) {
        for (&scheduler, (times, failed)) in schedulers.iter().zip(wall_times(args, &schedulers)?) {
            rows.push(Row::new((scheduler, Clock::Wall), &times, failed, recorded_ns));
        }
    }
    Ok(Report {
        command: trace.header().argv.join(" "),
        engine: args.measuring.engine.name(),
        model: skeleton.model(),
        recorded_ns,
        rows,
    })
}

/// Times of the replays that ended, how many did not, and why the first of them did not.
type Times = (Vec<u64>, (u64, Option<String>));

fn virtual_times(args: &Fidelity, skeleton: &mut Skeleton, scheduler: SchedulerKind) -> Times {
    let needed = materialize::materialize(&args.trace, skeleton, scheduler, args.measuring.cost);
    if let Err(error) = needed {
        return (Vec::new(), (args.measuring.repeat.into(), Some(format!("{error:#}"))));
    }
    let first = Policy { scheduler, seed: Some(args.measuring.seed) };
    let mut all = Times::default();
    for number in 0..args.measuring.repeat {
        let policy = first.repetition(number);
        let (cores, cost) = (args.measuring.cores, args.measuring.cost);
        let again = repeat::virtual_command(&args.trace, policy, cores, cost);
        let run = skeleton.run(policy).with_context(|| simulate::failed(&again));
        count(&mut all, run.map(|run| run.duration).map_err(|error| format!("{error:#}")));
    }
    all
}

/// In turns, so that what disturbs the machine for a while disturbs all schedulers alike.
fn wall_times(args: &Fidelity, schedulers: &[SchedulerKind]) -> anyhow::Result<Vec<Times>> {
    let mut all = vec![Times::default(); schedulers.len()];
    for number in 0..args.measuring.repeat {
        for (&scheduler, times) in schedulers.iter().zip(&mut all) {
            let first = Policy { scheduler, seed: Some(args.measuring.seed) };
            let policy = first.repetition(number);
            let options = ReplayOptions {
                policy,
                cores: args.measuring.cores,
                pin: true,
                ..ReplayOptions::exact(args.measuring.engine)
            };
            count(times, repeat::wall_time(&args.trace, &options)?);
        }
    }
    Ok(all)
}

fn count((times, (failed, why)): &mut Times, result: Result<u64, String>) {
    match result {
        Ok(time) => times.push(time),
        Err(error) => {
            *failed += 1;
            why.get_or_insert(error);
        }
    }
}
