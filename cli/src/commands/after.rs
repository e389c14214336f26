//! What `run` and `demo` do once the program has ended.
//!
//! The program ran in this very process and may have left threads, mappings and closed
//! descriptors behind. So the process replaces itself with a fresh `refrain`, whose arguments
//! say what is left to do.

use super::destination::Destination;
use super::{locks, races};
use crate::args::{AFTER_RECORDING, AfterRecording, RaceReport, Ranking};
use crate::failure::{Failure, Outcome};
use crate::output::{self, Console};
use crate::report::replay::{CUT_OFF, render, status};
use refrain_session::EngineKind;
use refrain_session::{ReplayOptions, Session};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

/// Replaces this process. Returns only if that fails.
pub(crate) fn become_it(args: &AfterRecording, session: &Session, console: Console) -> Failure {
    let mut command = Command::new(session.command());
    command.arg(AFTER_RECORDING).arg(&args.trace).arg("--top").arg(args.ranking.top.to_string());
    for (flag, wanted) in [
        ("--json", args.ranking.json),
        ("--details", args.ranking.details),
        ("--replay", args.replay),
        ("--races", args.races),
        ("--remove", args.remove),
    ] {
        if wanted {
            command.arg(flag);
        }
    }
    command.args(session.flags());
    if let Some(status) = args.status {
        command.arg("--status").arg(status.to_string());
    }
    console.give_to(&mut command);
    Failure::recording(anyhow::Error::new(command.exec()).context("cannot start the analysis"))
}

/// Shows what was recorded.
pub(crate) fn run(args: &AfterRecording, session: &Session) -> Outcome {
    let outcome = match args.races {
        true => show_races(session, &args.trace, args.ranking.json),
        false => show(session, &args.trace, &args.ranking, args.replay),
    };
    Destination { trace: args.trace.clone(), temporary: args.remove }.discard();
    match args.status {
        Some(status) => outcome.map(|_| status).map_err(Failure::recording),
        None => Ok(outcome?),
    }
}

fn show_races(session: &Session, trace: &Path, json: bool) -> anyhow::Result<u8> {
    let form = RaceReport { json, ..RaceReport::default() };
    races::print(&races::search(session, trace, &form)?, &form)?;
    Ok(0)
}

fn show(session: &Session, trace: &Path, ranking: &Ranking, replayed: bool) -> anyhow::Result<u8> {
    if replayed {
        let options = ReplayOptions::exact(EngineKind::Tiered);
        let mut report = session.replay(trace, &options)?;
        let divergence = report.divergence.as_ref().filter(|at| !at.is_endless());
        report.races = divergence.map(|divergence| session.cause(trace, Some(divergence)));
        if !ranking.json {
            output::print(&(render(&report, None) + "\n"))?;
        }
        if !matches!(status(&report), 0 | CUT_OFF) {
            return Ok(status(&report));
        }
    }
    let report = locks::rank(session, trace, false)?;
    locks::print(report, ranking)?;
    Ok(0)
}
