//! `refrain run`: records a program and ranks its locks.

use super::{locks, record};
use crate::args::Run;
use crate::failure::{Failure, Outcome};
use crate::program;
use anyhow::Context;

/// Records to the file given with `-o`, or to a temporary one. Ends with the program's status.
pub(crate) fn run(args: &Run) -> Outcome {
    let program = program::find(&args.recording.command)?;
    let temporary = tempfile::tempdir().context("cannot create a temporary directory");
    let temporary = temporary.map_err(Failure::recording)?;
    let path = match &args.output {
        Some(path) => path.clone(),
        None => temporary.path().join(program.default_trace()),
    };
    let summary = record::record(program, &path, &args.recording)?;
    let report = locks::rank(&path, args.engine, args.ranking.top).map_err(Failure::recording)?;
    locks::print(&report, &args.ranking).map_err(Failure::recording)?;
    Ok(record::status(summary.ending))
}
