//! `refrain check`: verifies a trace and mends one that was damaged or cut off.

use crate::args::Check;
use crate::failure::Outcome;
use crate::output;
use crate::progress::Progress;
use crate::report::check::{Report, render};
use anyhow::{Context, bail};
use refrain_session::trace_file::{self, NewTrace, advise, is_being_recorded};
use refrain_session::{Purpose, Session};
use refrain_trace::container::RepairReport;
use refrain_trace::verify::verify;
use refrain_trace::{Error, Trace, container};
use std::path::{Path, PathBuf};

/// Prints everything that is wrong. The status is 0 if the trace is sound, or is after its repair.
pub(crate) fn run(args: &Check, session: &Session) -> Outcome {
    let trace = args.trace.as_path();
    session.confine(&match args.repair {
        true => Purpose::Mend { trace },
        false => Purpose::Read { trace, symbols: false },
    })?;
    let progress = Progress::spin("checking");
    drop(trace_file::open(&args.trace)?);
    let mut report = inspect(&args.trace)?;
    let mut sound = report.sound;
    if args.repair && !report.whole {
        let (repair, original) = repair(&args.trace)?;
        let after = inspect(&args.trace)?;
        sound = after.sound;
        report = report.repaired(&repair, original, after);
    }
    drop(progress);
    if args.json {
        output::print_json("check", &report)?;
    } else {
        output::print(&render(&report, &args.trace.display().to_string()))?;
    }
    Ok(u8::from(!sound))
}

/// What is wrong with the file and with what it says.
fn inspect(path: &Path) -> anyhow::Result<Report> {
    let check = container::check(path).map_err(|error| advise(path, error))?;
    let (violations, unusable) = match content(path) {
        Ok(found) => found,
        // The check of the file has found this already.
        Err(Error::Corrupt(..) | Error::Missing(_)) => (Vec::new(), None),
        Err(error) => return Err(advise(path, error).into()),
    };
    Ok(Report::new(&check, violations, unusable))
}

/// What is wrong with the content, and why it cannot be replayed.
fn content(path: &Path) -> refrain_trace::Result<(Vec<String>, Option<String>)> {
    let trace = Trace::open(path)?;
    let unusable = refrain_vm::replayable(&trace).err();
    let violations = verify(&trace)?;
    let words = violations.iter().map(ToString::to_string).collect();
    Ok((words, unusable.map(|why| why.to_string())))
}

/// Mends a trace in its place where nothing is lost by that. Otherwise the damaged one is kept
/// under another name, which is returned.
fn repair(path: &Path) -> anyhow::Result<(RepairReport, Option<PathBuf>)> {
    let shown = path.display();
    if is_being_recorded(path) {
        bail!("{shown} is being recorded; it can be repaired when the recording has ended");
    }
    if let Some(report) = container::repair_in_place(path).map_err(|e| advise(path, e))? {
        return Ok((report, None));
    }
    let new = NewTrace::create(path, false)?;
    let file = new.file().with_context(|| format!("cannot write beside {shown}"))?;
    let report = container::repair_to(path, &file).map_err(|error| advise(path, error))?;
    file.sync_all().with_context(|| format!("cannot write beside {shown}"))?;
    let named = new.publish()?;
    Ok((report, named.old.clone()))
}
