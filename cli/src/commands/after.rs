//! What `run` and `demo` do once the program has ended.
//!
//! The program ran in this very process and may have left threads, mappings and closed
//! descriptors behind. So the process replaces itself with a fresh `refrain`, whose arguments
//! say what is left to do.

use super::destination::Destination;
use super::{locks, once, races, racing};
use crate::args::{AFTER_RECORDING, AfterRecording, RaceReport, Ranking};
use crate::failure::{Failure, Outcome};
use crate::output::{self, Console};
use crate::report::replay::{CUT_OFF, render, status};
use refrain_session::choices::EngineKind;
use refrain_session::machine::ReplayOptions;
use refrain_session::sandbox::{self, UNSANDBOXED_FLAG, is_weakness_tolerated};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

/// Replaces this process. Returns only if that fails.
pub(crate) fn become_it(args: &AfterRecording, console: Console) -> Failure {
    let mut command = Command::new("/proc/self/exe");
    command.arg(AFTER_RECORDING).arg(&args.trace).arg("--top").arg(args.ranking.top.to_string());
    for (flag, wanted) in [
        ("--json", args.ranking.json),
        ("--details", args.ranking.details),
        ("--replay", args.replay),
        ("--races", args.races),
        ("--remove", args.remove),
        (UNSANDBOXED_FLAG, is_weakness_tolerated()),
    ] {
        if wanted {
            command.arg(flag);
        }
    }
    if let Some(most) = sandbox::most_memory() {
        command.arg("--max-memory").arg((most >> 20).to_string());
    }
    if let Some(status) = args.status {
        command.arg("--status").arg(status.to_string());
    }
    console.give_to(&mut command);
    Failure::recording(anyhow::Error::new(command.exec()).context("cannot start the analysis"))
}

/// Shows what was recorded.
pub(crate) fn run(args: &AfterRecording) -> Outcome {
    let outcome = match args.races {
        true => show_races(&args.trace, args.ranking.json),
        false => show(&args.trace, &args.ranking, args.replay),
    };
    Destination { trace: args.trace.clone(), temporary: args.remove }.discard();
    match args.status {
        Some(status) => outcome.map(|_| status).map_err(Failure::recording),
        None => Ok(outcome?),
    }
}

fn show_races(trace: &Path, json: bool) -> anyhow::Result<u8> {
    let form = RaceReport { json, ..RaceReport::default() };
    races::print(&races::search(trace, &form)?, &form)?;
    Ok(0)
}

fn show(trace: &Path, ranking: &Ranking, replayed: bool) -> anyhow::Result<u8> {
    if replayed {
        let options = ReplayOptions::exact(EngineKind::Tiered);
        let mut report = once::replay(trace, &options, true)?;
        let divergence = report.divergence.as_ref().filter(|at| !at.is_endless());
        report.races = divergence.map(|divergence| racing::find(trace, Some(divergence)));
        if !ranking.json {
            output::print(&(render(&report, None) + "\n"))?;
        }
        if !matches!(status(&report), 0 | CUT_OFF) {
            return Ok(status(&report));
        }
    }
    let report = locks::rank(trace, false)?;
    locks::print(report, ranking)?;
    Ok(0)
}
