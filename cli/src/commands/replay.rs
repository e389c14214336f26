//! `refrain replay`: replays a trace and says what was checked.

use super::simulate;
use crate::args::Replay;
use crate::failure::Outcome;
use crate::output;
use crate::report::replay::{Places, render, status};
use anyhow::anyhow;
use refrain_session::stats::Distribution;
use refrain_session::symbols::{Code, Symbols};
use refrain_session::{
    Clock, Cost, EngineKind, Policy, ReplayOptions, Replayed, SchedulerKind, Session,
};
use refrain_session::{again, must_be_searchable, trace_file};
use std::path::Path;

/// Replays by the clock that is asked for. The status is 0 if all that was recorded has happened, 3
/// if it was cut off and what there is was equal, and 1 otherwise.
pub(crate) fn run(args: &Replay, session: &Session) -> Outcome {
    match args.schedule.clock {
        Clock::Virtual => simulate::run(args, session),
        Clock::Wall => execute(args, session),
    }
}

/// Replays in child processes, up to the first divergence.
fn execute(args: &Replay, session: &Session) -> Outcome {
    let schedule = &args.schedule;
    if schedule.schedule.is_some() || schedule.save_schedule.is_some() {
        return Err(anyhow!("--schedule and --save-schedule need --clock virtual").into());
    }
    if schedule.cost != Cost::Recorded {
        return Err(anyhow!("--cost needs --clock virtual: the wall clock measures").into());
    }
    if args.races {
        must_be_searchable(&args.trace, &trace_file::read(&args.trace)?)?;
    }
    let first = Policy { scheduler: schedule.scheduler, seed: schedule.seed };
    let (mut times, mut last) = (Vec::new(), None);
    for number in 0..schedule.repeat {
        let policy = first.repetition(number);
        let options = ReplayOptions {
            echo: args.echo,
            count: args.count,
            observe: args.observe,
            policy,
            cores: schedule.cores,
            pin: schedule.repeat > 1,
            or_copy: args.engine.is_none(),
            ..ReplayOptions::exact(args.engine.unwrap_or(EngineKind::Tiered))
        };
        let report = session.replay(&args.trace, &options)?;
        times.push(report.run_ns);
        let diverged = report.divergence.is_some();
        last = Some((report, options));
        if diverged {
            break;
        }
    }
    let (mut report, options) = last.expect("there is at least one repetition");
    let diverged = report.divergence.is_some();
    if !diverged && schedule.repeat > 1 {
        report.times = Distribution::of(&times);
    }
    // Under another scheduler the order is to blame, which the report says.
    let exact = schedule.scheduler == SchedulerKind::Elsc;
    let transformed = trace_file::read(&args.trace)?.is_transformed();
    report.races = match &report.divergence {
        // What the freed locks ordered beside the data in them.
        Some(divergence) if transformed => Some(session.cause(&args.trace, Some(divergence))),
        Some(divergence) if exact => session.explain(&args.trace, divergence, !args.no_learn)?,
        divergence => args.races.then(|| session.cause(&args.trace, divergence.as_ref())),
    };
    if args.json {
        output::print_json("replay", &report)?;
    } else {
        output::print(&render(&report, places(&args.trace, &report).as_ref()))?;
    }
    if diverged && options.policy != Policy::default() {
        eprintln!("refrain: `{}` repeats this", again::by_wall_clock(&args.trace, &options));
    }
    Ok(status(&report))
}

/// Where a divergence happened.
fn places(path: &Path, report: &Replayed) -> Option<Places> {
    let divergence = report.divergence.as_ref()?;
    let trace = trace_file::read(path).ok()?;
    let mut symbols = Symbols::new(trace.modules());
    // The pc of an event is nearly always a return address; the byte before a plain instruction
    // belongs to the same line often enough.
    let mut place = |pc| symbols.place(Code::After(pc));
    let recorded = trace.cursor_at(divergence.thread, divergence.event).next().ok().flatten();
    let recorded = recorded.filter(|event| event.pc != 0).map(|event| place(event.pc));
    Some(Places { recorded, replayed: place(divergence.pc) })
}
