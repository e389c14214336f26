//! `refrain ab`: two traces, or two schedulers, replayed in turns.

use super::{materialize, repeat, simulate};
use crate::args::Ab;
use crate::failure::Outcome;
use crate::output;
use crate::report::ab::{Exact, Measured, Report, Side, render};
use anyhow::{Context, anyhow, bail};
use refrain_session::choices::{Clock, SchedulerKind};
use refrain_session::machine::{Policy, ReplayOptions, Skeleton};
use refrain_session::model::Model;
use refrain_session::stats::{Difference, Distribution};
use refrain_session::trace_file;
use std::path::Path;

/// Compares A and B.
pub(crate) fn run(args: &Ab) -> Outcome {
    let report = compare(args)?;
    if args.measuring.json {
        output::print_json("ab", &report)?;
    } else {
        output::print(&render(&report))?;
    }
    Ok(0)
}

fn compare(args: &Ab) -> anyhow::Result<Report> {
    let (first, second) = schedulers(args)?;
    let paths = (args.a.as_path(), args.b.as_deref().unwrap_or(&args.a));
    let policy = |scheduler| Policy { scheduler, seed: Some(args.measuring.seed) };
    let sides = [(paths.0, policy(first)), (paths.1, policy(second))];
    let [a, b] = sides.map(|(path, policy)| side(path, policy.scheduler));
    let virtual_time = args.measuring.wants(Clock::Virtual).then(|| exact(args, sides));
    let wall = args.measuring.wants(Clock::Wall).then(|| measured(args, sides));
    Ok(Report { a: a?, b: b?, virtual_time: virtual_time.transpose()?, wall: wall.transpose()? })
}

fn schedulers(args: &Ab) -> anyhow::Result<(SchedulerKind, SchedulerKind)> {
    let pair = match *args.scheduler.as_slice() {
        [] => (SchedulerKind::Elsc, SchedulerKind::Elsc),
        [one] => (one, one),
        [one, other] => (one, other),
        _ => bail!("--scheduler is for A and for B: two are enough"),
    };
    if args.b.is_none() && pair.0 == pair.1 {
        bail!("nothing to compare: name a second trace, or two schedulers (--scheduler twice)");
    }
    Ok(pair)
}

fn side(path: &Path, scheduler: SchedulerKind) -> anyhow::Result<Side> {
    let trace = trace_file::read(path)?;
    let command = trace.header().argv.join(" ");
    Ok(Side { trace: path.display().to_string(), command, scheduler })
}

fn exact(args: &Ab, sides: [(&Path, Policy); 2]) -> anyhow::Result<Exact> {
    let cores = args.measuring.cores;
    let cost = args.measuring.cost;
    let [a, b] = sides.map(|(path, policy)| -> anyhow::Result<(u64, Model)> {
        let trace = trace_file::read(path)?;
        let mut skeleton = Skeleton::of(&trace)?.on_cores(cores);
        materialize::materialize(path, &mut skeleton, policy.scheduler, cost)?;
        let again = repeat::virtual_command(path, policy, cores, cost);
        let run = skeleton.run(policy).with_context(|| simulate::failed(&again))?;
        Ok((run.duration, skeleton.model()))
    });
    let ((a_ns, a), (b_ns, b)) = (a?, b?);
    Ok(Exact {
        cores: (a.cores, b.cores),
        latencies: (a.latencies, b.latencies),
        cost,
        seed: args.measuring.seed,
        a_ns,
        b_ns,
        difference_ns: b_ns as i64 - a_ns as i64,
    })
}

/// Who is first in a pair alternates, so that neither side always gets the warmer machine.
fn measured(args: &Ab, sides: [(&Path, Policy); 2]) -> anyhow::Result<Measured> {
    let mut times = [Vec::new(), Vec::new()];
    for number in 0..args.measuring.repeat {
        let first = number as usize % 2;
        for index in [first, 1 - first] {
            let (path, policy) = sides[index];
            let options = ReplayOptions {
                policy: policy.repetition(number),
                cores: args.measuring.cores,
                pin: true,
                ..ReplayOptions::exact(args.measuring.engine)
            };
            let time = repeat::wall_time(path, &options)?;
            let which = ["A", "B"][index];
            times[index]
                .push(time.map_err(|why| anyhow!("a replay of {which} did not end: {why}"))?);
        }
    }
    let [a, b] = times;
    let pairs: Vec<(u64, u64)> = a.iter().copied().zip(b.iter().copied()).collect();
    let some = "there is at least one repetition";
    Ok(Measured {
        engine: args.measuring.engine.name(),
        a: Distribution::of(&a).expect(some),
        b: Distribution::of(&b).expect(some),
        difference: Difference::of(&pairs, args.measuring.seed).expect(some),
    })
}
