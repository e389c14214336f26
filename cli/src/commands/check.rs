//! `refrain check`: verifies a trace and mends one that was damaged or cut off.

use crate::args::Check;
use crate::failure::Outcome;
use crate::output;
use crate::progress::Progress;
use crate::report::check::{Report, render};
use crate::trace_file::{self, advise, old_name};
use anyhow::Context;
use refrain_trace::verify::verify;
use refrain_trace::{Error, Trace, container};
use std::path::Path;

/// Prints everything that is wrong. The status is 1 unless the trace is sound or was repaired.
pub(crate) fn run(args: &Check) -> Outcome {
    let progress = Progress::spin("checking");
    drop(trace_file::open(&args.trace)?);
    let check = container::check(&args.trace).map_err(|error| advise(&args.trace, error))?;
    let mut report = Report::new(&check, violations(&args.trace)?);
    let mut status = u8::from(!report.sound);
    if args.repair && !check.is_sound() {
        report = repair(&args.trace, report)?;
        // A repair mends the file; what is wrong with its content stays wrong.
        status = u8::from(!report.violations.is_empty());
    }
    drop(progress);
    if args.json {
        output::print_json("check", &report)?;
    } else {
        output::print(&render(&report, &args.trace.display().to_string()))?;
    }
    Ok(status)
}

/// What is wrong with the content, if the file is whole enough to be read.
fn violations(path: &Path) -> anyhow::Result<Vec<String>> {
    match Trace::open(path).and_then(|trace| verify(&trace)) {
        Ok(violations) => Ok(violations.iter().map(ToString::to_string).collect()),
        // The check of the file has found this already.
        Err(Error::Corrupt(..) | Error::Missing(_)) => Ok(Vec::new()),
        Err(error) => Err(advise(path, error)),
    }
}

/// Keeps the damaged trace as FILE.old and writes what is whole of it to FILE.
fn repair(path: &Path, report: Report) -> anyhow::Result<Report> {
    let old = old_name(path);
    let kept = || format!("cannot keep {} as {}", path.display(), old.display());
    std::fs::rename(path, &old).with_context(kept)?;
    match container::repair(&old, Some(path)) {
        Ok(repaired) => Ok(report.repaired(&repaired, old.display().to_string())),
        Err(error) => {
            std::fs::rename(&old, path).with_context(kept)?;
            Err(advise(path, error))
        }
    }
}
